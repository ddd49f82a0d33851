//! `Substr`: parts of strings by position and length, in bytes or characters.

use super::edit::is_trail;
use crate::args::ints;
use crate::broadcast::Broadcast;
use crate::types::INDEX;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::{DType, Tensor};

pub(super) fn register(r: &mut Registry) {
    r.add_typed("Substr", &[("T", INDEX)], substr);
}

fn substr(b: &KernelBuilder<'_>) -> Result<Built> {
    let characters = b.attrs().bytes("unit")?.as_ref() == b"UTF8_CHAR";
    Built::cheap(move |ctx| {
        let (input, positions, lengths) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
        if positions.shape() != lengths.shape() {
            return Err(Status::invalid_argument(format!(
                "pos and len should have the same shape, got: {} vs. {}",
                positions.shape(),
                lengths.shape()
            )));
        }
        let plain = positions.rank() == 0 || positions.shape() == input.shape();
        let Some(walk) = Broadcast::new(input.dims(), positions.dims()) else {
            return Err(Status::invalid_argument(format!(
                "Incompatible shapes: {} vs. {}",
                input.shape(),
                positions.shape()
            )));
        };
        if !plain && walk.shape.rank() > 2 {
            return Err(Status::unimplemented(format!(
                "Substr broadcast not implemented for {} dimensions",
                walk.shape.rank()
            )));
        }
        ctx.check_alloc(DType::String, &walk.shape)?;
        let (strings, positions, lengths) = (input.as_strings()?, ints(positions)?, ints(lengths)?);
        let mut out = vec![Bytes::new(); walk.shape.num_elements()];
        let inner = |steps: &[usize]| steps.last().copied().unwrap_or(0);
        let (size, left, right) = (inner(&walk.sizes), inner(&walk.left), inner(&walk.right));
        // TensorFlow reports the first bad element, and where it is in the output.
        let mut bad = None;
        walk.rows(|o, l, r| {
            for i in 0..size {
                let (text, position) = (&strings[l + i * left], positions[r + i * right]);
                match part(text, position, lengths[r + i * right], characters) {
                    Some(part) => out[o + i] = part,
                    None => bad = bad.or(Some((o + i, l + i * left, position))),
                }
            }
        });
        if let Some((at, string, position)) = bad {
            let row = walk.shape.last().copied().unwrap_or(1);
            let place = match (plain, walk.shape.rank(), characters) {
                (false, 2, true) => (at / row).to_string(),
                (false, 2, false) => format!("({}, {})", at / row, at % row),
                _ => at.to_string(),
            };
            let text = match characters {
                true => String::new(),
                false => format!(" b'{}'", String::from_utf8_lossy(&strings[string])),
            };
            return Err(Status::invalid_argument(format!(
                "pos {position} out of range for string{text} at index {place}"
            )));
        }
        let out = Tensor::strings(out, walk.shape)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The part of `text`, or `None` if it begins outside.
fn part(text: &Bytes, position: i64, length: i64, characters: bool) -> Option<Bytes> {
    if !characters {
        let from = match position {
            0.. => usize::try_from(position)
                .ok()
                .filter(|&p| p <= text.len())?,
            _ => text
                .len()
                .checked_sub(usize::try_from(position.unsigned_abs()).ok()?)?,
        };
        // A negative length means the rest, because TensorFlow reads it as a huge one.
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        return Some(text.slice(from..from.saturating_add(length).min(text.len())));
    }
    if position < 0 {
        let back = usize::try_from(position.unsigned_abs()).ok()?;
        let length = usize::try_from(length).ok()?;
        let end = backward(text, text.len(), back.saturating_sub(length))?;
        let start = backward(text, end, back.min(length))?;
        return Some(text.slice(start..end));
    }
    let start = forward(text, 0, usize::try_from(position).ok()?)?;
    let mut end = start;
    for _ in 0..length.max(0) {
        match forward(text, end, 1) {
            Some(next) => end = next,
            None => break,
        }
    }
    Some(text.slice(start..end))
}

/// The place `count` characters after `at`, if there are so many.
fn forward(text: &[u8], mut at: usize, count: usize) -> Option<usize> {
    for _ in 0..count {
        if at >= text.len() {
            return None;
        }
        at += 1;
        while at < text.len() && is_trail(text[at]) {
            at += 1;
        }
    }
    Some(at)
}

/// The place `count` characters before `at`, if there are so many.
fn backward(text: &[u8], mut at: usize, count: usize) -> Option<usize> {
    for _ in 0..count {
        at = at.checked_sub(1)?;
        while at > 0 && is_trail(text[at]) {
            at -= 1;
        }
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_bytes_and_characters() {
        let bytes = |p, l| part(&Bytes::from_static(b"hello"), p, l, false);
        assert_eq!(bytes(1, 3).unwrap(), "ell");
        assert_eq!(bytes(-3, 2).unwrap(), "ll");
        assert_eq!(bytes(5, 3).unwrap(), "");
        assert_eq!(bytes(1, -3).unwrap(), "ello");
        assert_eq!((bytes(6, 1), bytes(-6, 1)), (None, None));
        let chars = |p, l| part(&Bytes::from_static("hé¿lo".as_bytes()), p, l, true);
        assert_eq!(chars(1, 3).unwrap(), "é¿l");
        assert_eq!(chars(-3, 2).unwrap(), "¿l");
        assert_eq!(chars(5, 3).unwrap(), "");
        assert_eq!(chars(1, -1).unwrap(), "");
        assert_eq!(
            (chars(6, 3), chars(-6, 3), chars(-2, -1)),
            (None, None, None)
        );
        assert_eq!(chars(0, i64::MAX).unwrap(), "hé¿lo");
    }
}
