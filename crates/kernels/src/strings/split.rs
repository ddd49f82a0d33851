//! `StringSplit` and `StringSplitV2`: parts of strings as a sparse matrix.

use super::edit::is_space;
use super::scalar;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};

pub(super) fn register(r: &mut Registry) {
    r.add("StringSplit", split_v1);
    r.add("StringSplitV2", split_v2);
}

fn split_v1(b: &KernelBuilder<'_>) -> Result<Built> {
    let skip_empty = b.attrs().bool("skip_empty")?;
    Built::cheap(move |ctx| {
        compute(ctx, "delimiter", |text, delimiters| {
            by_any(text, delimiters, skip_empty)
        })
    })
}

fn split_v2(b: &KernelBuilder<'_>) -> Result<Built> {
    let limit = usize::try_from(b.attrs().int("maxsplit")?).ok();
    Built::cheap(move |ctx| {
        compute(ctx, "sep", |text, separator| {
            match (limit, separator.is_empty()) {
                (Some(0), _) => vec![text.clone()],
                (limit, true) => by_space(text, limit.unwrap_or(usize::MAX)),
                (limit, false) => by_text(text, separator, limit.unwrap_or(usize::MAX)),
            }
        })
    })
}

fn compute(
    ctx: &mut OpContext<'_>,
    name: &str,
    split: impl Fn(&Bytes, &[u8]) -> Vec<Bytes>,
) -> Result<()> {
    let input = ctx.input(0)?;
    if input.rank() != 1 {
        return Err(Status::invalid_argument(format!(
            "input must be a vector, got shape: {}",
            input.shape()
        )));
    }
    let Some(separator) = scalar(ctx, 1)? else {
        return Err(Status::invalid_argument(format!(
            "{name} must be a scalar, got shape: {}",
            ctx.input(1)?.shape()
        )));
    };
    let (mut indices, mut values, mut widest) = (Vec::new(), Vec::new(), 0);
    for (row, text) in input.as_strings()?.iter().enumerate() {
        let parts = split(text, separator);
        widest = widest.max(parts.len());
        for (column, part) in parts.into_iter().enumerate() {
            indices.extend([row as i64, column as i64]);
            values.push(part);
        }
        // A part may be one byte, and takes many more in a tensor.
        ctx.check_alloc(DType::String, &Shape::from([values.len()]))?;
    }
    let (rows, count) = (input.num_elements() as i64, values.len());
    ctx.set_output(0, Tensor::from_vec(indices, [count, 2])?);
    ctx.set_output(1, Tensor::strings(values, [count])?);
    ctx.set_output(2, Tensor::vector(vec![rows, widest as i64]));
    Ok(())
}

/// At every byte that is one of `delimiters`; without delimiters into single bytes.
fn by_any(text: &Bytes, delimiters: &[u8], skip_empty: bool) -> Vec<Bytes> {
    if text.is_empty() {
        return Vec::new();
    }
    if delimiters.is_empty() {
        return (0..text.len()).map(|i| text.slice(i..i + 1)).collect();
    }
    let mut start = 0;
    let mut parts = Vec::new();
    let mut push = |from: usize, to: usize| {
        if from < to || !skip_empty {
            parts.push(text.slice(from..to));
        }
    };
    for (i, byte) in text.iter().enumerate() {
        if delimiters.contains(byte) {
            push(start, i);
            start = i + 1;
        }
    }
    push(start, text.len());
    parts
}

/// At runs of white space, leaving none at the front. After `limit` parts the rest follows as it
/// is, even if nothing is left.
fn by_space(text: &Bytes, limit: usize) -> Vec<Bytes> {
    let skip = |from: usize, space: bool| {
        let rest = &text[from..];
        from + rest
            .iter()
            .position(|&b| is_space(b) != space)
            .unwrap_or(rest.len())
    };
    let mut parts = Vec::new();
    let mut at = skip(0, true);
    while at < text.len() {
        let end = skip(at, false);
        parts.push(text.slice(at..end));
        at = skip(end, true);
        if parts.len() == limit {
            parts.push(text.slice(at..));
            break;
        }
    }
    parts
}

/// At every occurrence of `separator`, at most `limit` times.
fn by_text(text: &Bytes, separator: &[u8], limit: usize) -> Vec<Bytes> {
    let mut parts = Vec::new();
    let mut start = 0;
    let mut at = 0;
    while at + separator.len() <= text.len() && parts.len() < limit {
        if text[at..].starts_with(separator) {
            parts.push(text.slice(start..at));
            at += separator.len();
            start = at;
        } else {
            at += 1;
        }
    }
    parts.push(text.slice(start..));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(parts: Vec<Bytes>) -> Vec<String> {
        let text = |b: Bytes| String::from_utf8(b.to_vec()).unwrap();
        parts.into_iter().map(text).collect()
    }

    #[test]
    fn splitting_as_tensorflow_does() {
        let s = Bytes::from_static(b" a b  c ");
        let all = usize::MAX;
        assert_eq!(texts(by_space(&s, all)), ["a", "b", "c"]);
        assert_eq!(texts(by_space(&s, 1)), ["a", "b  c "]);
        assert_eq!(texts(by_space(&Bytes::from_static(b"x"), 1)), ["x", ""]);
        assert_eq!(texts(by_text(&s, b" ", all)), ["", "a", "b", "", "c", ""]);
        let t = Bytes::from_static(b"1::2::::3");
        assert_eq!(texts(by_text(&t, b"::", all)), ["1", "2", "", "3"]);
        assert_eq!(texts(by_text(&t, b"::", 2)), ["1", "2", "::3"]);
        assert_eq!(texts(by_text(&Bytes::new(), b"::", all)), [""]);
        let v1 = Bytes::from_static(b"ab,c;;d");
        assert_eq!(texts(by_any(&v1, b",;", true)), ["ab", "c", "d"]);
        assert_eq!(texts(by_any(&v1, b",;", false)), ["ab", "c", "", "d"]);
        assert_eq!(
            texts(by_any(&Bytes::from_static(b"ab"), b"", false)),
            ["a", "b"]
        );
        assert!(by_any(&Bytes::new(), b",", false).is_empty());
    }
}
