//! `ScalarSummary`, `HistogramSummary` and `MergeSummary`.

use super::{scalar, text};
use crate::types::{REALS, with_type};
use downpour_formats::histogram::Histogram;
use downpour_formats::summary::{SummaryContent, SummaryValue, encode_summary, summary_values};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Tensor};
use std::collections::HashSet;

pub(super) fn register(r: &mut Registry) {
    r.add_typed("ScalarSummary", &[("T", REALS)], |_| {
        Built::cheap(scalar_summary)
    });
    r.add_typed("HistogramSummary", &[("T", REALS)], |_| {
        Built::costly(histogram_summary)
    });
    r.add("MergeSummary", |_| Built::cheap(merge_summary));
}

/// Calls `f` with every element as a double.
pub(crate) fn doubles(tensor: &Tensor, mut f: impl FnMut(f64) -> Result<()>) -> Result<()> {
    match tensor.dtype() {
        DType::Int64 => tensor
            .as_slice::<i64>()?
            .iter()
            .try_for_each(|&v| f(v as f64)),
        DType::UInt64 => tensor
            .as_slice::<u64>()?
            .iter()
            .try_for_each(|&v| f(v as f64)),
        dtype => with_type!(dtype, T in [f32, f64, ::half::f16, ::half::bf16,
            i32, i8, i16, u8, u16, u32] => {
            tensor.as_slice::<T>()?.iter().try_for_each(|&v| f(f64::from(v)))
        }),
    }
}

fn scalar_summary(ctx: &mut OpContext<'_>) -> Result<()> {
    let (tags, values) = (ctx.input(0)?, ctx.input(1)?);
    let names = tags.as_strings()?;
    if tags.shape() != values.shape() {
        let which = match names {
            [only] => format!(" (tag '{}')", text(only)),
            _ => String::new(),
        };
        return Err(Status::invalid_argument(format!(
            "tags and values are not the same shape: {} != {}{which}",
            tags.shape(),
            values.shape()
        )));
    }
    let mut entries = Vec::with_capacity(names.len());
    let mut names = names.iter();
    doubles(values, |v| {
        let tag = names.next().cloned().unwrap_or_default();
        entries.push(SummaryValue::new(tag, SummaryContent::Scalar(v as f32)));
        Ok(())
    })?;
    let bytes = encode_summary(entries)?;
    ctx.set_output(0, Tensor::string(bytes));
    Ok(())
}

fn histogram_summary(ctx: &mut OpContext<'_>) -> Result<()> {
    let tag = scalar(ctx, 0, "tags must be scalar")?;
    let mut histogram = Histogram::new();
    doubles(ctx.input(1)?, |v| {
        if v.is_nan() {
            return Err(Status::invalid_argument(format!(
                "Nan in summary histogram for: {}",
                ctx.name()
            )));
        }
        if v.is_infinite() {
            return Err(Status::invalid_argument(format!(
                "Infinity in Histogram for: {}",
                ctx.name()
            )));
        }
        histogram.add(v);
        Ok(())
    })?;
    let value = SummaryValue::new(tag, SummaryContent::Histogram(histogram));
    let bytes = encode_summary(vec![value])?;
    ctx.set_output(0, Tensor::string(bytes));
    Ok(())
}

/// Messages of one repeated field are merged by writing them one after the other.
fn merge_summary(ctx: &mut OpContext<'_>) -> Result<()> {
    let mut merged = Vec::new();
    let mut seen = HashSet::new();
    for input in ctx.inputs(0..ctx.num_inputs())? {
        for summary in input.as_strings()? {
            let (tags, values) = summary_values(summary).ok_or_else(|| {
                Status::invalid_argument("Could not parse one of the summary inputs")
            })?;
            for tag in tags.into_iter().filter(|t| !t.is_empty()) {
                if seen.contains(&tag) {
                    return Err(Status::invalid_argument(format!(
                        "Duplicate tag {tag} found in summary inputs "
                    )));
                }
                seen.insert(tag);
            }
            merged.extend_from_slice(&values);
        }
    }
    ctx.set_output(0, Tensor::string(merged));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use bytes::Bytes;
    use downpour_tensor::{DType, Tensor};

    fn tag(text: &'static str) -> Tensor {
        Tensor::string(Bytes::from_static(text.as_bytes()))
    }

    #[test]
    fn scalars_and_their_merger_take_tensorflows_bytes() {
        let t = [("T", DType::Float.into())];
        let one = |name, value: f32| {
            let inputs = vec![tag(name), Tensor::scalar(value)];
            run_op("ScalarSummary", inputs, &t).unwrap().remove(0)
        };
        let (a, b) = (one("a", 1.5), one("b", 2.0));
        assert_eq!(
            a.as_strings().unwrap()[0],
            &b"\x0a\x08\x0a\x01a\x15\0\0\xc0\x3f"[..]
        );
        let n = [("N", 2i64.into())];
        let merged = run_op("MergeSummary", vec![a.clone(), b.clone()], &n).unwrap();
        let both = [
            &a.as_strings().unwrap()[0][..],
            &b.as_strings().unwrap()[0][..],
        ]
        .concat();
        assert_eq!(merged[0].as_strings().unwrap()[0], both);
        let e = run_op("MergeSummary", vec![a.clone(), a], &n).unwrap_err();
        assert!(
            e.message
                .starts_with("Duplicate tag a found in summary inputs ")
        );
        let inputs = vec![tag("a"), Tensor::vector(vec![1.5f32])];
        let e = run_op("ScalarSummary", inputs, &t).unwrap_err();
        assert!(
            e.message
                .starts_with("tags and values are not the same shape: [] != [1] (tag 'a')"),
            "{}",
            e.message
        );
    }

    #[test]
    fn histograms_refuse_what_has_no_place() {
        let t = [("T", DType::Float.into())];
        for (value, text) in [
            (f32::NAN, "Nan in summary histogram for: op"),
            (f32::INFINITY, "Infinity in Histogram for: op"),
        ] {
            let inputs = vec![tag("a"), Tensor::scalar(value)];
            let e = run_op("HistogramSummary", inputs, &t).unwrap_err();
            assert!(e.message.starts_with(text), "{}", e.message);
        }
    }
}
