//! `StringNGrams`: neighbouring words joined, row by row of a ragged vector.

use crate::args::{int_tensor, ints};
use crate::types::INDEX;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};

pub(super) fn register(r: &mut Registry) {
    r.add_typed("StringNGrams", &[("Tsplits", INDEX)], string_ngrams);
}

struct NGrams {
    separator: Bytes,
    widths: Vec<usize>,
    left: Bytes,
    right: Bytes,
    /// Pads on each side; `None` means as many as fit.
    pad: Option<usize>,
    preserve_short: bool,
}

fn string_ngrams(b: &KernelBuilder<'_>) -> Result<Built> {
    let attrs = b.attrs();
    let widths = attrs.ints("ngram_widths")?;
    if widths.iter().any(|&w| w <= 0) {
        return Err(Status::invalid_argument(
            "ngram_widths must contain positive values",
        ));
    }
    let op = NGrams {
        separator: attrs.bytes("separator")?.clone(),
        widths: widths.iter().map(|&w| w as usize).collect(),
        left: attrs.bytes("left_pad")?.clone(),
        right: attrs.bytes("right_pad")?.clone(),
        pad: usize::try_from(attrs.int("pad_width")?).ok(),
        preserve_short: attrs.bool("preserve_short_sequences")?,
    };
    Built::costly(move |ctx| op.compute(ctx))
}

impl NGrams {
    fn compute(&self, ctx: &mut OpContext<'_>) -> Result<()> {
        let (data, splits) = (ctx.input(0)?, ctx.input(1)?);
        let words = data.as_strings()?;
        let rows = ints(splits)?;
        if rows.is_empty() {
            // TensorFlow gives as many empty strings as there are words.
            let empty = Tensor::strings(vec![Bytes::new(); words.len()], [words.len()])?;
            let splits = splits.clone();
            ctx.set_output(0, empty);
            ctx.set_output(1, splits);
            return Ok(());
        }
        check_splits(&rows, words.len() as i64)?;
        if words.is_empty() {
            // Rows without words give n-grams of pads only where some other row has words.
            let none = int_tensor(splits.dtype(), vec![0; rows.len()], splits.shape().clone())?;
            ctx.set_output(0, Tensor::strings(Vec::new(), [0])?);
            ctx.set_output(1, none);
            return Ok(());
        }
        let mut grams = Vec::new();
        let mut ends = vec![0i64];
        let mut budget = Budget { ctx, bytes: 0 };
        for row in rows.windows(2) {
            let row = words
                .get(row[0] as usize..row[1] as usize)
                .unwrap_or_default();
            self.row(row, &mut grams, &mut budget)?;
            ends.push(grams.len() as i64);
        }
        let out = Tensor::strings(grams, [*ends.last().unwrap_or(&0) as usize])?;
        let ends = int_tensor(splits.dtype(), ends, splits.shape().clone())?;
        ctx.set_output(0, out);
        ctx.set_output(1, ends);
        Ok(())
    }

    /// Pads on each side for n-grams of `width`: never a whole n-gram of them.
    fn pads(&self, width: usize) -> usize {
        self.pad.map_or(width - 1, |pad| pad.min(width - 1))
    }

    fn row(
        &self,
        words: &[Bytes],
        grams: &mut Vec<Bytes>,
        budget: &mut Budget<'_, '_>,
    ) -> Result<()> {
        let before = grams.len();
        for &width in &self.widths {
            let pads = self.pads(width);
            let total = words.len().saturating_add(2 * pads);
            for start in 0..(total + 1).saturating_sub(width) {
                // An n-gram of nothing but pads comes from an empty row only.
                grams.push(self.gram(words, pads, start, width, budget)?);
            }
        }
        if self.preserve_short && grams.len() == before && !words.is_empty() {
            // The row is too short for every width: all of it is its one n-gram, with the pads
            // asked for. (Pads that depend on the width would have made it long enough.)
            let pads = self.pad.unwrap_or(0);
            let width = words.len().saturating_add(2 * pads);
            grams.push(self.gram(words, pads, 0, width, budget)?);
        }
        Ok(())
    }

    fn gram(
        &self,
        words: &[Bytes],
        pads: usize,
        start: usize,
        width: usize,
        budget: &mut Budget<'_, '_>,
    ) -> Result<Bytes> {
        let part = |i: usize| match i.checked_sub(pads) {
            None => &self.left,
            Some(i) => words.get(i).unwrap_or(&self.right),
        };
        // First the count alone, so that a hostile width is refused before it is walked.
        budget.take(width)?;
        let parts = start..start.saturating_add(width);
        let size = parts.clone().map(|i| part(i).len() + self.separator.len());
        budget.take(size.sum())?;
        let mut out = Vec::new();
        for i in parts {
            if i > start {
                out.extend_from_slice(&self.separator);
            }
            out.extend_from_slice(part(i));
        }
        Ok(out.into())
    }
}

/// Bytes of all n-grams so far: together no more than a tensor may have.
struct Budget<'a, 'b> {
    ctx: &'a OpContext<'b>,
    bytes: usize,
}

impl Budget<'_, '_> {
    fn take(&mut self, bytes: usize) -> Result<()> {
        // 32 for the string itself.
        self.bytes = self.bytes.saturating_add(bytes).saturating_add(32);
        self.ctx
            .check_alloc(DType::UInt8, &Shape::from([self.bytes]))
    }
}

fn check_splits(splits: &[i64], words: i64) -> Result<()> {
    let (first, last) = (splits[0], splits[splits.len() - 1]);
    if first != 0 {
        return Err(Status::invalid_argument(format!(
            "First split value must be 0, got {first}"
        )));
    }
    for pair in splits.windows(2) {
        if pair[1] < pair[0] || pair[1] > words {
            return Err(Status::invalid_argument(format!(
                "Invalid split value {}, must be in [{}, {words}]",
                pair[1], pair[0]
            )));
        }
    }
    if last != words {
        return Err(Status::invalid_argument(format!(
            "Last split value must be data size. Expected {words}, got {last}"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use bytes::Bytes;
    use downpour_graph::{AttrList, AttrValue};
    use downpour_tensor::Tensor;

    fn run(splits: Vec<i64>, widths: Vec<i64>, pad: i64, keep: bool) -> (Vec<String>, Vec<i64>) {
        let words = ["a", "b", "c", "d", "e"].map(Bytes::from).to_vec();
        let text = |s: &'static str| AttrValue::Str(Bytes::from_static(s.as_bytes()));
        let attrs = [
            ("separator", text("|")),
            ("ngram_widths", AttrValue::List(AttrList::Int(widths))),
            ("left_pad", text("L")),
            ("right_pad", text("R")),
            ("pad_width", pad.into()),
            ("preserve_short_sequences", keep.into()),
        ];
        let inputs = vec![Tensor::strings(words, [5]).unwrap(), Tensor::vector(splits)];
        let out = run_op("StringNGrams", inputs, &attrs).unwrap();
        let grams = out[0].as_strings().unwrap().iter();
        let grams = grams.map(|g| String::from_utf8(g.to_vec()).unwrap());
        (grams.collect(), out[1].as_slice::<i64>().unwrap().to_vec())
    }

    /// Each answer is TensorFlow's.
    #[test]
    fn ngrams_are_padded_and_short_rows_kept() {
        let (grams, splits) = run(vec![0, 3, 5], vec![2], -1, false);
        assert_eq!(grams, ["L|a", "a|b", "b|c", "c|R", "L|d", "d|e", "e|R"]);
        assert_eq!(splits, [0, 4, 7]);
        let (grams, splits) = run(vec![0, 1, 1, 5], vec![3], 0, false);
        assert_eq!(
            (grams, splits),
            (vec!["b|c|d".into(), "c|d|e".into()], vec![0, 0, 0, 2])
        );
        let (grams, splits) = run(vec![0, 1, 1, 5], vec![3], 0, true);
        assert_eq!(grams, ["a", "b|c|d", "c|d|e"]);
        assert_eq!(splits, [0, 1, 1, 3]);
        let (grams, _) = run(vec![0, 1, 1, 5], vec![4], 1, true);
        assert_eq!(grams, ["L|a|R", "L|b|c|d", "b|c|d|e", "c|d|e|R"]);
    }
}
