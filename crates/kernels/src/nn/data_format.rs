//! `DataFormatDimMap` and `DataFormatVecPermute`: numbers of dimensions, and lists by dimension,
//! from one data format to another.

use crate::args::{int_tensor, ints};
use crate::types::INDEX;
use downpour_graph::{Attrs, Result, Status};
use downpour_runtime::{Built, Registry};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("DataFormatDimMap", &[("T", INDEX)], |b| {
        let formats = Formats::parse(b.attrs())?;
        let to = places(&formats.from, &formats.to);
        Built::cheap(move |ctx| {
            let x = ctx.take(0)?;
            let n = to.len() as i64;
            let values = ints(&x)?;
            let values = values.iter().map(|v| to[v.rem_euclid(n) as usize] as i64);
            ctx.set_output(
                0,
                int_tensor(x.dtype(), values.collect(), x.shape().clone())?,
            );
            Ok(())
        })
    });
    r.add_typed("DataFormatVecPermute", &[("T", INDEX)], |b| {
        let formats = Formats::parse(b.attrs())?;
        Built::cheap(move |ctx| {
            let x = ctx.take(0)?;
            let (count, width) = formats.check(x.dims(), &x.shape().to_string())?;
            let to = formats.permutation(count)?;
            let values = ints(&x)?;
            let mut out = vec![0; values.len()];
            for (row, &to) in values.chunks(width).zip(&to) {
                out[to * width..][..width].copy_from_slice(row);
            }
            ctx.set_output(0, int_tensor(x.dtype(), out, x.shape().clone())?);
            Ok(())
        })
    });
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// Two orders of the same dimensions, a letter each.
struct Formats {
    from: Vec<u8>,
    to: Vec<u8>,
}

/// Where each letter of `from` stands in `to`, which has the same letters.
fn places(from: &[u8], to: &[u8]) -> Vec<usize> {
    let place = |c: &u8| to.iter().position(|d| d == c);
    from.iter().filter_map(place).collect()
}

impl Formats {
    fn parse(attrs: &Attrs) -> Result<Formats> {
        let (from, to) = (attrs.str("src_format")?, attrs.str("dst_format")?);
        if !matches!(from.len(), 4 | 5) {
            return invalid(format!(
                "Source format must be of length 4 or 5, received src_format = {from}"
            ));
        }
        if !matches!(to.len(), 4 | 5) {
            return invalid(format!(
                "Destination format must be of length 4 or 5, received dst_format = {to}"
            ));
        }
        let sorted = |s: &str| {
            let mut letters = s.as_bytes().to_vec();
            letters.sort_unstable();
            letters
        };
        let letters = sorted(from);
        if letters != sorted(to) || letters.windows(2).any(|w| w[0] == w[1]) {
            return invalid(format!(
                "Destination and source format must determine a permutation, got {from} and {to}"
            ));
        }
        Ok(Formats {
            from: from.as_bytes().to_vec(),
            to: to.as_bytes().to_vec(),
        })
    }

    /// Number of dimensions listed, and of values for each.
    fn check(&self, dims: &[usize], shape: &str) -> Result<(usize, usize)> {
        let (all, inner) = (self.from.len(), self.from.len() - 2);
        match *dims {
            [n] if n == all || n == inner => Ok((n, 1)),
            [_] => invalid(format!(
                "1D input must be of size {inner} or {all}, but got shape {shape}"
            )),
            [n, _] if n != all && n != inner => invalid(format!(
                "First dimension of 2D input must be of size {inner} or {all}, but got shape {shape}"
            )),
            [n, 2] => Ok((n, 2)),
            [..] if dims.len() == 2 => invalid(format!(
                "Second dimension of 2D input must be of size 2, but got shape {shape}"
            )),
            _ => invalid(format!(
                "input must be a vector or 2D tensor, but got shape {shape}"
            )),
        }
    }

    /// Where each of `count` dimensions goes: all of them, or the spatial ones alone.
    fn permutation(&self, count: usize) -> Result<Vec<usize>> {
        if count == self.from.len() {
            return Ok(places(&self.from, &self.to));
        }
        let spatial: &[u8] = if count == 3 { b"DHW" } else { b"HW" };
        let keep = |format: &[u8]| -> Vec<u8> {
            let kept = format.iter().filter(|c| spatial.contains(c));
            kept.copied().collect()
        };
        let (from, to) = (keep(&self.from), keep(&self.to));
        if from.len() != count {
            return invalid(format!(
                "Format specifier must contain {} for 2D case",
                if count == 3 { "D, H and W" } else { "H and W" }
            ));
        }
        Ok(places(&from, &to))
    }
}
