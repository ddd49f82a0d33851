//! Shapes of files, readers, checkpoints and summaries.

use super::Rule::{self, Compute, Pattern};
use super::dims::{merge_dims, shape};
use super::{Context, Shapes, invalid};
use downpour_graph::Result;
use downpour_tensor::PartialShape;
use smallvec::smallvec;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "ReadFile" => Pattern("[] -> []"),
        "WriteFile" => Pattern("[] [] ->"),
        "MatchingFiles" => Pattern("<=1 -> [_]"),
        "ShardedFilename" => Pattern("[] [] [] -> []"),
        "ShardedFilespec" => Pattern("[] [] -> []"),
        "MergeV2Checkpoints" => Pattern("[_] [] ->"),
        "Save" => Compute(|c| saved(c, 1)),
        "SaveSlices" | "SaveV2" => Compute(|c| saved(c, 2)),
        "Restore" => Pattern("[] [] -> ?"),
        "RestoreSlice" => Compute(|c| {
            c.scalars(0..3)?;
            restored(c)
        }),
        "RestoreV2" => Compute(|c| {
            c.rank(0, 0)?;
            merge_dims(c.rank(1, 1)?[0], c.rank(2, 1)?[0])?;
            restored(c)
        }),
        "WholeFileReader"
        | "TextLineReader"
        | "FixedLengthRecordReader"
        | "TFRecordReader"
        | "IdentityReader" => Pattern("-> [2]"),
        "WholeFileReaderV2"
        | "TextLineReaderV2"
        | "FixedLengthRecordReaderV2"
        | "TFRecordReaderV2"
        | "IdentityReaderV2" => Pattern("-> []"),
        "ReaderRead" => Pattern("[2] [2] -> [] []"),
        "ReaderReadV2" => Pattern("[] [] -> [] []"),
        "ReaderReadUpTo" => Pattern("[_] [_] [] -> [_] [_]"),
        "ReaderReadUpToV2" => Pattern("[] [] [] -> [_] [_]"),
        "ReaderNumRecordsProduced" | "ReaderNumWorkUnitsCompleted" | "ReaderSerializeState" => {
            Pattern("[2] -> []")
        }
        "ReaderNumRecordsProducedV2"
        | "ReaderNumWorkUnitsCompletedV2"
        | "ReaderSerializeStateV2" => Pattern("[] -> []"),
        "ReaderReset" => Pattern("[2] ->"),
        "ReaderResetV2" => Pattern("[] ->"),
        "ReaderRestoreState" => Pattern("[2] [] ->"),
        "ReaderRestoreStateV2" => Pattern("[] [] ->"),
        "ScalarSummary" | "HistogramSummary" | "ImageSummary" | "AudioSummary"
        | "AudioSummaryV2" | "TensorSummary" | "TensorSummaryV2" | "MergeSummary" => {
            Pattern("-> []")
        }
        "PrintV2" => Pattern("[] ->"),
        _ => return None,
    })
}

/// One name (and one slice) for each tensor.
fn saved(c: &mut Context<'_>, lists: usize) -> Result<Shapes> {
    c.rank(0, 0)?;
    let tensors = c.num_inputs().saturating_sub(1 + lists);
    for i in 1..=lists {
        match c.rank(i, 1)?[0] {
            Some(n) if n != tensors => {
                return invalid(format!("Dimension must be {tensors} but is {n}"));
            }
            _ => {}
        }
    }
    Ok(Shapes::new())
}

/// The slices that input 2 names, each as `4 5 0,2:-`: a shape, then a start and a length for each
/// dimension.
fn restored(c: &mut Context<'_>) -> Result<Shapes> {
    let unknown = smallvec![PartialShape::unknown(); c.num_outputs()];
    let Some(slices) = c.constant(2).and_then(|t| t.as_strings().ok()) else {
        return Ok(unknown);
    };
    if slices.len() != c.num_outputs() {
        return invalid("The number of shape_and_slice doesn't match tensor outputs.");
    }
    let mut out = Shapes::new();
    for slice in slices {
        let text = String::from_utf8_lossy(slice);
        out.push(match text.is_empty() {
            true => PartialShape::unknown(),
            false => slice_shape(&text).ok_or(()).or_else(|()| {
                invalid(format!(
                    "Expected a shape and a slice for each of its dimensions, but got '{text}'"
                ))
            })?,
        });
    }
    Ok(out)
}

fn slice_shape(text: &str) -> Option<PartialShape> {
    let mut words: Vec<&str> = text.split(' ').collect();
    let last = words.pop()?;
    let whole: Option<Vec<usize>> = words.iter().map(|w| w.parse().ok()).collect();
    let (whole, parts) = (whole?, last.split(':').collect::<Vec<_>>());
    if whole.is_empty() || parts.len() != whole.len() {
        return None;
    }
    let length = |(whole, part): (usize, &str)| match part {
        "-" => Some(whole),
        _ => {
            let (start, length) = part.split_once(',')?;
            let (start, length): (usize, usize) = (start.parse().ok()?, length.parse().ok()?);
            (start.checked_add(length)? <= whole).then_some(length)
        }
    };
    let dims: Option<Vec<usize>> = whole.into_iter().zip(parts).map(length).collect();
    Some(shape(dims?.into_iter().map(Some)))
}

#[cfg(test)]
mod tests {
    use super::slice_shape;

    #[test]
    fn slices_of_checkpoints() {
        assert_eq!(slice_shape("4 5 0,2:-").unwrap().to_string(), "[2,5]");
        assert!(slice_shape("4 5 3,2:-").is_none());
        assert!(slice_shape("4 5 0,2").is_none());
        assert!(slice_shape("x").is_none());
    }
}
