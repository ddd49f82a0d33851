//! Ragged tensors: `RaggedRange`, `RaggedGather`, `RaggedTensorToSparse`. Splits are given by a
//! user and checked before anything is indexed with them.

use super::form::invalid;
use crate::args::{int_tensor, ints};
use crate::array::COMMON_AND_STRING;
use crate::array::units::{Unit, room, with_unit};
use crate::types::{INDEX, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Element, Shape, Tensor};

const RANGES: &[DType] = &[DType::Float, DType::Double, DType::Int32, DType::Int64];

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("RaggedRange", &[("T", RANGES), ("Tsplits", INDEX)], |b| {
        let splits = b.attrs().dtype("Tsplits")?;
        Built::cheap(move |ctx| {
            with_type!(ctx.input(0)?.dtype(), T in [f32, f64, i32, i64] => ranges::<T>(ctx, splits))
        })
    });
    let types = [
        ("Tvalues", COMMON_AND_STRING),
        ("Tindices", INDEX),
        ("Tsplits", INDEX),
    ];
    r.add_typed("RaggedGather", &types, gather);
    let types = [("T", COMMON_AND_STRING), ("Tsplits", INDEX)];
    r.add_typed("RaggedTensorToSparse", &types, |b| {
        let n = b.attrs().size("RAGGED_RANK")?;
        Built::cheap(move |ctx| to_sparse(ctx, n))
    });
}

/// A number that ranges are made of.
trait RangeNumber: Element + PartialOrd {
    const ZERO: Self;
    /// Elements from `start` up to and without `limit`; `None` when they cannot be counted.
    fn count(start: Self, limit: Self, delta: Self) -> Option<usize>;
    fn plus(self, other: Self) -> Self;
}

macro_rules! steps {
    ($($t:ty),* => $count:expr, $plus:expr) => {
        $(impl RangeNumber for $t {
            const ZERO: Self = 0 as $t;
            fn count(start: Self, limit: Self, delta: Self) -> Option<usize> {
                let past = if delta > Self::ZERO { start >= limit } else { start <= limit };
                if past { Some(0) } else { $count(start, limit, delta) }
            }
            fn plus(self, other: Self) -> Self { $plus(self, other) }
        })*
    };
}
steps!(i32, i64 => |a, b, d| {
    let span = (i128::from(b) - i128::from(a)).unsigned_abs();
    usize::try_from(span.div_ceil(i128::from(d).unsigned_abs())).ok()
}, |a: Self, b| a.wrapping_add(b));
steps!(f32, f64 => |a: Self, b: Self, d: Self| {
    let n = f64::from(((b - a) / d).abs().ceil());
    (n <= i64::MAX as f64).then_some(n as usize)
}, |a: Self, b: Self| a + b);

fn ranges<T: RangeNumber>(ctx: &mut OpContext<'_>, dtype: DType) -> Result<()> {
    let mut rows = None;
    for (i, name) in ["starts", "limits", "deltas"].iter().enumerate() {
        let t = ctx.input(i)?;
        match t.dims() {
            [] => {}
            [n] => {
                if *rows.get_or_insert(*n) != *n {
                    return invalid("starts, limits, and deltas must have the same shape");
                }
            }
            _ => return invalid(format!("{name} must be a scalar or vector")),
        }
    }
    let given = |i: usize| -> Result<(&[T], bool)> {
        let t = ctx.input(i)?;
        Ok((t.as_slice()?, t.rank() == 0))
    };
    let (starts, limits, deltas) = (given(0)?, given(1)?, given(2)?);
    let at = |(values, one): (&[T], bool), i: usize| values[if one { 0 } else { i }];
    let rows = rows.unwrap_or(1);
    let (mut splits, mut total) = (vec![0i64], 0usize);
    for i in 0..rows {
        let delta = at(deltas, i);
        if delta == T::ZERO {
            return invalid("Requires delta != 0");
        }
        let count = T::count(at(starts, i), at(limits, i), delta);
        total = match count.and_then(|n| total.checked_add(n)) {
            Some(sum) if sum <= i64::MAX as usize => sum,
            _ => return invalid("Requires ((limit - start) / delta) <= 9223372036854775807"),
        };
        splits.push(total as i64);
    }
    let mut values = ctx.vec::<T>(&Shape::from([total]))?;
    for i in 0..rows {
        let (mut value, delta) = (at(starts, i), at(deltas, i));
        for _ in splits[i]..splits[i + 1] {
            values.push(value);
            value = value.plus(delta);
        }
    }
    let count = splits.len();
    ctx.set_output(0, int_tensor(dtype, splits, [count])?);
    ctx.set_output(1, Tensor::vector(values));
    Ok(())
}

fn gather(b: &KernelBuilder<'_>) -> Result<Built> {
    let n = b.attrs().size("PARAMS_RAGGED_RANK")?;
    let dtype = b.attrs().dtype("Tsplits")?;
    Built::cheap(move |ctx| {
        let nested: Vec<Vec<i64>> = ctx
            .inputs(0..n)?
            .into_iter()
            .map(ints)
            .collect::<Result<_>>()?;
        let (values, indices) = (ctx.input(n)?, ctx.input(n + 1)?);
        if values.rank() == 0 {
            return invalid("params.rank must be nonzero");
        }
        let first = ctx.input(0)?;
        let limit = first.dims().first().map_or(0, |d| *d as i64) - 1;
        let wanted = ints(indices)?;
        if let Some(bad) = wanted.iter().position(|i| !(0..limit).contains(i)) {
            let place = crate::array::position(indices.dims(), bad);
            return invalid(format!(
                "indices{place} = {} is not in [0, {limit})",
                wanted[bad]
            ));
        }
        check_splits(&nested, values.dims()[0])?;
        let mut out = even_splits(indices.dims());
        let skipped = usize::from(indices.rank() == 0);
        let (mut inner, mut slices) = (vec![vec![0i64]; n], Vec::new());
        for &index in &wanted {
            let (mut start, mut end) = (index as usize, index as usize + 1);
            for (splits, out) in nested.iter().zip(&mut inner) {
                for k in start..end {
                    let last = out.last().copied().unwrap_or(0);
                    out.push(last + splits[k + 1] - splits[k]);
                }
                (start, end) = (splits[start] as usize, splits[end] as usize);
            }
            slices.push(start..end);
        }
        out.extend(inner.into_iter().skip(skipped));
        let rows = slices.iter().map(ExactSizeIterator::len).sum();
        let mut shape = values.dims().to_vec();
        shape[0] = rows;
        let row: usize = shape[1..].iter().product();
        let (kind, shape) = (values.dtype(), Shape::from(shape));
        let taken = with_unit!(kind, U => {
            let from = U::view(values)?;
            let mut to: Vec<U> = room(ctx, kind, &shape)?;
            for s in slices {
                to.extend_from_slice(&from[s.start * row..s.end * row]);
            }
            U::tensor(kind, to, shape)?
        });
        for (i, splits) in out.into_iter().enumerate() {
            let count = splits.len();
            ctx.set_output(i, int_tensor(dtype, splits, [count])?);
        }
        ctx.set_output(ctx.num_outputs() - 1, taken);
        Ok(())
    })
}

/// The splits of all but the last dimension of the indices, which are regular.
fn even_splits(dims: &[usize]) -> Vec<Vec<i64>> {
    let (mut out, mut rows) = (Vec::new(), 1);
    for pair in dims.windows(2) {
        rows *= pair[0];
        out.push((0..=rows).map(|r| (r * pair[1]) as i64).collect());
    }
    out
}

fn check_splits(nested: &[Vec<i64>], values: usize) -> Result<()> {
    for (i, splits) in nested.iter().enumerate() {
        let limit = match nested.get(i + 1) {
            Some(next) => next.len() as i64 - 1,
            None => values as i64,
        };
        let (Some(&first), Some(&last)) = (splits.first(), splits.last()) else {
            return invalid("Splits must be non-empty");
        };
        if first < 0 {
            return invalid("Ragged splits must be non-negative");
        }
        if last > limit {
            return invalid("Ragged splits must not point past values");
        }
        if splits.windows(2).any(|w| w[0] > w[1]) {
            return invalid("Ragged splits must be sorted");
        }
    }
    Ok(())
}

fn to_sparse(ctx: &mut OpContext<'_>, n: usize) -> Result<()> {
    let nested: Vec<Vec<i64>> = ctx
        .inputs(0..n)?
        .into_iter()
        .map(ints)
        .collect::<Result<_>>()?;
    let values = ctx.input(n)?;
    for (i, splits) in nested.iter().enumerate() {
        let (Some(&first), Some(&last)) = (splits.first(), splits.last()) else {
            return invalid("ragged splits may not be empty.");
        };
        if first != 0 {
            return invalid("First value of ragged splits must be 0.");
        }
        if let Some(w) = splits.windows(2).find(|w| w[0] > w[1]) {
            return invalid(format!(
                "Ragged splits should be non decreasing, but we got {} followed by {}",
                w[0], w[1]
            ));
        }
        let rows = match nested.get(i + 1) {
            Some(next) => Some(next.len() as i64 - 1),
            None => values.dims().first().map(|d| *d as i64),
        };
        if rows != Some(last) {
            return invalid(
                "Final value of ragged splits must match the length the corresponding ragged values.",
            );
        }
    }
    let inner = &values.dims()[1..];
    let rank = 1 + n + inner.len();
    let total = values.num_elements();
    let mut at = ctx.vec::<i64>(&Shape::from([total, rank]))?;
    let cells: usize = inner.iter().product();
    // Where in each ragged dimension the element at hand is: its row, and its place in the row.
    let mut row = vec![0usize; n];
    let prefix = |row: &[usize], outer: &mut Vec<i64>| {
        outer.clear();
        outer.push(row[0] as i64);
        for (d, splits) in nested.iter().enumerate() {
            let child = row.get(d + 1).copied();
            let start = splits[row[d]];
            outer.push(child.map_or(start, |c| c as i64) - start);
        }
    };
    let mut outer = Vec::with_capacity(n + 1);
    for element in 0..values.dims()[0] {
        let mut child = element;
        for d in (0..n).rev() {
            while nested[d][row[d] + 1] <= child as i64 {
                row[d] += 1;
            }
            child = row[d];
        }
        prefix(&row, &mut outer);
        if let Some(last) = outer.last_mut() {
            *last = element as i64 - nested[n - 1][row[n - 1]];
        }
        for cell in 0..cells {
            at.extend_from_slice(&outer);
            let start = at.len();
            at.resize(start + inner.len(), 0);
            let mut rest = cell;
            for (slot, &size) in at[start..].iter_mut().zip(inner).rev() {
                *slot = (rest % size) as i64;
                rest /= size;
            }
        }
    }
    let mut dims = vec![nested[0].len() as i64 - 1];
    for splits in &nested {
        let widest = splits.windows(2).map(|w| w[1] - w[0]).max();
        dims.push(widest.unwrap_or(0));
    }
    dims.extend(inner.iter().map(|&d| d as i64));
    let at = Tensor::from_vec(at, [total, rank])?;
    let values = values.clone().reshaped([total]).map_err(Status::from)?;
    ctx.set_output(0, at);
    ctx.set_output(1, values);
    ctx.set_output(2, Tensor::vector(dims));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::Result;
    use downpour_tensor::{DType, Tensor};

    fn ids(v: &[i64]) -> Tensor {
        Tensor::vector(v.to_vec())
    }

    #[test]
    fn ranges_stop_before_their_limits() {
        let run = |starts: &[i64], limits: &[i64], deltas: &[i64]| -> Result<Vec<Tensor>> {
            let attrs = [("T", DType::Int64.into()), ("Tsplits", DType::Int32.into())];
            run_op(
                "RaggedRange",
                vec![ids(starts), ids(limits), ids(deltas)],
                &attrs,
            )
        };
        let out = run(&[0, 8], &[3, 2], &[1, -4]).unwrap();
        assert_eq!(out[0].as_slice::<i32>().unwrap(), [0, 3, 5]);
        assert_eq!(out[1].as_slice::<i64>().unwrap(), [0, 1, 2, 8, 4]);
        assert!(run(&[0], &[1], &[0]).is_err());
        assert!(run(&[i64::MIN], &[i64::MAX], &[1]).is_err());
    }

    #[test]
    fn rows_are_gathered_with_their_splits() {
        let attrs = [
            ("Tvalues", DType::Float.into()),
            ("Tindices", DType::Int64.into()),
            ("Tsplits", DType::Int64.into()),
            ("PARAMS_RAGGED_RANK", 1i64.into()),
            ("OUTPUT_RAGGED_RANK", 1i64.into()),
        ];
        let run = |splits: &[i64], wanted: &[i64]| {
            let values = floats(&[1.0, 2.0, 3.0, 4.0, 5.0]);
            run_op(
                "RaggedGather",
                vec![ids(splits), values, ids(wanted)],
                &attrs,
            )
        };
        let out = run(&[0, 2, 2, 5], &[2, 0]).unwrap();
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [0, 3, 5]);
        assert_eq!(out[1].as_slice::<f32>().unwrap(), [3.0, 4.0, 5.0, 1.0, 2.0]);
        for (splits, wanted) in [
            (&[0, 9][..], 0),
            (&[0, 3, 1], 0),
            (&[0, 2], 1),
            (&[-3, 2], 0),
        ] {
            assert!(run(splits, &[wanted]).is_err(), "{splits:?}");
        }
    }

    #[test]
    fn nested_rows_become_places() {
        let attrs = [
            ("T", DType::Float.into()),
            ("Tsplits", DType::Int64.into()),
            ("RAGGED_RANK", 2i64.into()),
        ];
        let inputs = vec![
            ids(&[0, 2, 2, 3]),
            ids(&[0, 1, 3, 4]),
            floats(&[1.0, 2.0, 3.0, 4.0]),
        ];
        let out = run_op("RaggedTensorToSparse", inputs, &attrs).unwrap();
        assert_eq!(
            out[0].as_slice::<i64>().unwrap(),
            [0, 0, 0, 0, 1, 0, 0, 1, 1, 2, 0, 0]
        );
        assert_eq!(out[2].as_slice::<i64>().unwrap(), [3, 2, 2]);
    }
}
