//! Sums, products and extremes over segments of rows, dense and unsorted. Halves are computed in
//! f32 and rounded once.

use crate::args::ints;
use crate::math::isa::prefetch_run;
use crate::types::{INDEX, NUMBERS, REALS, with_type};
use crate::uninit::filled;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, parallel_ranges};
use downpour_tensor::{DType, Element, Shape, Tensor};
use half::{bf16, f16};
use num_complex::{Complex32, Complex64};

const UNSORTED_INDEX: &[DType] = crate::types::INDEX_FROM_16;

pub(crate) fn register(r: &mut Registry) {
    let numbers = [("T", NUMBERS), ("Tindices", INDEX)];
    let reals = [("T", REALS), ("Tindices", INDEX)];
    r.add_typed("SegmentSum", &numbers, |b| sorted(b, Reduction::Sum));
    r.add_typed("SegmentMean", &numbers, |b| sorted(b, Reduction::Mean));
    r.add_typed("SegmentProd", &numbers, |b| sorted(b, Reduction::Prod));
    r.add_typed("SegmentMax", &reals, |b| sorted(b, Reduction::Max));
    r.add_typed("SegmentMin", &reals, |b| sorted(b, Reduction::Min));
    let numbers = [("T", NUMBERS), ("Tindices", UNSORTED_INDEX)];
    let reals = [("T", REALS), ("Tindices", UNSORTED_INDEX)];
    r.add_typed("UnsortedSegmentSum", &numbers, |b| {
        unsorted(b, Reduction::Sum)
    });
    r.add_typed("UnsortedSegmentProd", &numbers, |b| {
        unsorted(b, Reduction::Prod)
    });
    r.add_typed("UnsortedSegmentMax", &reals, |b| {
        unsorted(b, Reduction::Max)
    });
    r.add_typed("UnsortedSegmentMin", &reals, |b| {
        unsorted(b, Reduction::Min)
    });
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reduction {
    Sum,
    Mean,
    Prod,
    Max,
    Min,
}

/// What segments need of a number. Integers wrap.
trait Number: Element {
    const ZERO: Self;
    const ONE: Self;
    /// Extremes that an empty maximum and minimum give; zero for complex numbers, which have
    /// neither op.
    const LOWEST: Self;
    const HIGHEST: Self;
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    fn max(self, other: Self) -> Self;
    fn min(self, other: Self) -> Self;
    fn over(self, count: usize) -> Self;
}

macro_rules! integers {
    ($($t:ty),*) => {
        $(impl Number for $t {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const LOWEST: Self = <$t>::MIN;
            const HIGHEST: Self = <$t>::MAX;
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn max(self, other: Self) -> Self { Ord::max(self, other) }
            fn min(self, other: Self) -> Self { Ord::min(self, other) }
            // The count is taken in the element type, as in TensorFlow; where it wraps to zero
            // there is nothing sensible to give.
            fn over(self, count: usize) -> Self { self.checked_div(count as $t).unwrap_or(0) }
        })*
    };
}
integers!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! floats {
    ($($t:ty),*) => {
        $(impl Number for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = <$t>::MIN;
            const HIGHEST: Self = <$t>::MAX;
            fn plus(self, other: Self) -> Self { self + other }
            fn times(self, other: Self) -> Self { self * other }
            fn max(self, other: Self) -> Self { if self < other { other } else { self } }
            fn min(self, other: Self) -> Self { if other < self { other } else { self } }
            fn over(self, count: usize) -> Self { self / count as $t }
        })*
    };
}
floats!(f32, f64);

macro_rules! complexes {
    ($($t:ty => $re:ty),*) => {
        $(impl Number for $t {
            const ZERO: Self = <$t>::new(0.0, 0.0);
            const ONE: Self = <$t>::new(1.0, 0.0);
            const LOWEST: Self = Self::ZERO;
            const HIGHEST: Self = Self::ZERO;
            fn plus(self, other: Self) -> Self { self + other }
            fn times(self, other: Self) -> Self { self * other }
            fn max(self, _: Self) -> Self { self }
            fn min(self, _: Self) -> Self { self }
            fn over(self, count: usize) -> Self { self / count as $re }
        })*
    };
}
complexes!(Complex32 => f32, Complex64 => f64);

/// A half or bfloat16 tensor as floats; others as they are.
pub(super) fn widened(t: &Tensor) -> Result<Tensor> {
    let values: Vec<f32> = match t.dtype() {
        DType::Half => t.as_slice::<f16>()?.iter().map(|v| v.to_f32()).collect(),
        DType::BFloat16 => t.as_slice::<bf16>()?.iter().map(|v| v.to_f32()).collect(),
        _ => return Ok(t.clone()),
    };
    Ok(Tensor::from_vec(values, t.shape().clone())?)
}

/// Undoes [`widened`].
pub(super) fn narrowed(t: Tensor, dtype: DType) -> Result<Tensor> {
    let shape = t.shape().clone();
    Ok(match dtype {
        DType::Half => {
            let values = t
                .as_slice::<f32>()?
                .iter()
                .map(|&v| f16::from_f32(v))
                .collect();
            Tensor::from_vec::<f16>(values, shape)?
        }
        DType::BFloat16 => {
            let values = t
                .as_slice::<f32>()?
                .iter()
                .map(|&v| bf16::from_f32(v))
                .collect();
            Tensor::from_vec::<bf16>(values, shape)?
        }
        _ => t,
    })
}

/// Runs of equal, growing ids: (segment, first row, end row). Errors are TensorFlow's and come in
/// its order.
pub(super) fn segments(ids: &[i64], rows: i64) -> Result<Vec<(usize, usize, usize)>> {
    let mut out = Vec::new();
    let mut start = 0;
    for end in 1..=ids.len() {
        let id = ids[start];
        if ids.get(end) == Some(&id) {
            continue;
        }
        if ids.get(end).is_some_and(|&next| next < id) {
            return invalid("segment ids are not increasing".to_owned());
        }
        if !(0..rows).contains(&id) {
            return invalid(format!(
                "Segment id {id} out of range [0, {rows}), possibly because 'segment_ids' input is not sorted."
            ));
        }
        out.push((id as usize, start, end));
        start = end;
    }
    Ok(out)
}

/// Rows of `shape` below its first dimension.
pub(super) fn with_rows(dims: &[usize], rows: usize) -> Result<Shape> {
    let dims: Vec<i64> = std::iter::once(rows)
        .chain(dims.iter().copied())
        .map(|d| d as i64)
        .collect();
    crate::args::shape_of(&dims)
}

fn sorted(b: &KernelBuilder<'_>, op: Reduction) -> Result<Built> {
    let dtype = b.attrs().dtype("T")?;
    Built::costly(move |ctx| {
        let (data, ids) = (ctx.input(0)?, ctx.input(1)?);
        if data.rank() == 0 {
            return invalid("input must be at least rank 1".to_owned());
        }
        if ids.rank() != 1 {
            return invalid("segment_ids should be a vector.".to_owned());
        }
        if ids.num_elements() != data.dims()[0] {
            return invalid(
                "segment_ids should be the same size as dimension 0 of input.".to_owned(),
            );
        }
        let ids = ints(ids)?;
        let rows = ids.last().map_or(0, |&id| id.saturating_add(1));
        if rows < 0 || (rows == 0 && !ids.is_empty()) {
            return invalid("segment ids must be >= 0".to_owned());
        }
        let shape = with_rows(&data.dims()[1..], rows as usize)?;
        ctx.check_alloc(dtype, &shape)?;
        let segments = segments(&ids, rows)?;
        let wide = widened(data)?;
        let out = with_type!(wide.dtype(), T in [f32, f64, i32, i64, i8, i16, u8, u16, u32, u64,
            Complex32, Complex64] => reduce::<T>(ctx, &wide, &segments, op, shape)?);
        ctx.set_output(0, narrowed(out, dtype)?);
        Ok(())
    })
}

/// Rows that are asked for before they are added up.
const AHEAD: usize = 8;

/// Elements that are worth a thread of their own.
const GRAIN: usize = 32 << 10;

/// Runs `body` over parts of the output's rows, in parallel where there is enough to add up.
pub(super) fn each_part<T: Send>(
    out: &mut [T],
    row: usize,
    work: usize,
    body: impl Fn(usize, &mut [T]) + Sync,
) {
    if row == 0 || out.is_empty() {
        return;
    }
    let rows = out.len() / row;
    let parts = (work / GRAIN).clamp(1, rows);
    parallel_ranges(out, row, rows.div_ceil(parts), body);
}

/// The segments, in order, of rows `first..first + count`.
pub(super) fn within(
    segments: &[(usize, usize, usize)],
    first: usize,
    count: usize,
) -> &[(usize, usize, usize)] {
    let start = segments.partition_point(|s| s.0 < first);
    let end = segments.partition_point(|s| s.0 < first + count);
    &segments[start..end]
}

fn reduce<T: Number>(
    ctx: &OpContext<'_>,
    data: &Tensor,
    segments: &[(usize, usize, usize)],
    op: Reduction,
    shape: Shape,
) -> Result<Tensor> {
    let gap = if op == Reduction::Prod {
        T::ONE
    } else {
        T::ZERO
    };
    let row: usize = shape[1..].iter().product();
    ctx.check_alloc(T::DTYPE, &shape)?;
    let mut out = vec![gap; shape.num_elements()];
    let src = data.as_slice::<T>()?;
    each_part(&mut out, row, src.len(), |first, rows| {
        for &(id, start, end) in within(segments, first, rows.len() / row) {
            let total = &mut rows[(id - first) * row..(id - first + 1) * row];
            total.copy_from_slice(&src[start * row..(start + 1) * row]);
            for r in start + 1..end {
                fold(total, &src[r * row..(r + 1) * row], op);
            }
            if op == Reduction::Mean {
                total.iter_mut().for_each(|v| *v = v.over(end - start));
            }
        }
    });
    Ok(Tensor::from_vec(out, shape)?)
}

fn fold<T: Number>(total: &mut [T], row: &[T], op: Reduction) {
    let pairs = total.iter_mut().zip(row);
    match op {
        Reduction::Sum | Reduction::Mean => pairs.for_each(|(t, v)| *t = t.plus(*v)),
        Reduction::Prod => pairs.for_each(|(t, v)| *t = t.times(*v)),
        Reduction::Max => pairs.for_each(|(t, v)| *t = v.max(*t)),
        Reduction::Min => pairs.for_each(|(t, v)| *t = v.min(*t)),
    }
}

fn unsorted(b: &KernelBuilder<'_>, op: Reduction) -> Result<Built> {
    let dtype = b.attrs().dtype("T")?;
    Built::costly(move |ctx| {
        let (data, ids, count) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
        if count.rank() != 0 {
            return invalid(format!(
                "num_segments should be a scalar, not shape {}",
                count.shape()
            ));
        }
        if !data.dims().starts_with(ids.dims()) {
            return invalid(format!(
                "data.shape = {} does not start with segment_ids.shape = {}",
                data.shape(),
                ids.shape()
            ));
        }
        let count = ints(count)?[0];
        if count < 0 {
            return invalid(format!(
                "Input num_segments == {count} must not be negative."
            ));
        }
        let shape = with_rows(&data.dims()[ids.rank()..], count as usize)?;
        ctx.check_alloc(dtype, &shape)?;
        let values = ints(ids)?;
        // Negative ids drop their row; others must name a segment.
        if let Some(bad) = values.iter().position(|&id| id >= count) {
            return invalid(format!(
                "segment_ids{} = {} is out of range [0, {count})",
                crate::array::position(ids.dims(), bad),
                values[bad]
            ));
        }
        let wide = widened(data)?;
        let out = with_type!(wide.dtype(), T in [f32, f64, i32, i64, i8, i16, u8, u16, u32, u64,
            Complex32, Complex64] => gathered::<T>(ctx, &wide, &values, op, shape)?);
        let out = match dtype {
            DType::Half | DType::BFloat16 => finite(out, dtype)?,
            _ => out,
        };
        ctx.set_output(0, narrowed(out, dtype)?);
        Ok(())
    })
}

/// The extremes of f32, which stand for empty segments, as those of the narrow type.
fn finite(mut t: Tensor, dtype: DType) -> Result<Tensor> {
    let top = if dtype == DType::Half {
        f16::MAX.to_f32()
    } else {
        bf16::MAX.to_f32()
    };
    for v in t.make_mut::<f32>()? {
        if v.abs() == f32::MAX {
            *v = top.copysign(*v);
        }
    }
    Ok(t)
}

fn gathered<T: Number>(
    ctx: &OpContext<'_>,
    data: &Tensor,
    ids: &[i64],
    op: Reduction,
    shape: Shape,
) -> Result<Tensor> {
    let start = match op {
        Reduction::Sum | Reduction::Mean => T::ZERO,
        Reduction::Prod => T::ONE,
        Reduction::Max => T::LOWEST,
        Reduction::Min => T::HIGHEST,
    };
    let row: usize = shape[1..].iter().product();
    ctx.check_alloc(T::DTYPE, &shape)?;
    let src = data.as_slice::<T>()?;
    let total = shape.num_elements();
    let segments = ids.iter().enumerate().filter_map(|(r, &id)| {
        // Negative ids drop their row.
        usize::try_from(id).ok().map(|id| (r, id))
    });
    // Where most segments have a row, as after `Unique`, they begin with it and are not set first.
    let (mut out, rest) = if row >= 8 && ids.len() >= total / row / 2 {
        begun(src, segments, row, total, start, op)
    } else {
        (vec![start; total], segments.collect())
    };
    // Each part looks through all ids, which is little beside adding up rows of some length.
    let work = if row < 8 { 0 } else { rest.len() * row };
    each_part(&mut out, row, work, |first, rows| {
        let count = rows.len() / row;
        for &(r, id) in &rest {
            if let Some(id) = id.checked_sub(first).filter(|id| *id < count) {
                fold(
                    &mut rows[id * row..(id + 1) * row],
                    &src[r * row..(r + 1) * row],
                    op,
                );
            }
        }
    });
    Ok(Tensor::from_vec(out, shape)?)
}

/// Segments that hold what their first row makes of `start`, and the rows that are left with their
/// segments, in order.
fn begun<T: Number>(
    src: &[T],
    ids: impl Iterator<Item = (usize, usize)>,
    row: usize,
    total: usize,
    start: T,
    op: Reduction,
) -> (Vec<T>, Vec<(usize, usize)>) {
    const NONE: usize = usize::MAX;
    let mut firsts = vec![NONE; total / row];
    let mut rest = Vec::new();
    for (r, id) in ids {
        if firsts[id] == NONE {
            firsts[id] = r;
        } else {
            rest.push((r, id));
        }
    }
    let grain = GRAIN.div_ceil(row);
    let out = filled(Vec::new(), total, row, grain, |first, out| {
        let end = first + out.missing() / row;
        for (i, &r) in firsts[first..end].iter().enumerate() {
            if let Some(&r) = firsts.get(first + i + AHEAD) {
                prefetch_run(src, r.saturating_mul(row), row);
            }
            if r == NONE {
                out.repeat(&start, row);
                continue;
            }
            let values = src[r * row..(r + 1) * row].iter();
            match op {
                Reduction::Sum | Reduction::Mean => out.extend(values.map(|v| start.plus(*v))),
                Reduction::Prod => out.extend(values.map(|v| start.times(*v))),
                Reduction::Max => out.extend(values.map(|v| v.max(start))),
                Reduction::Min => out.extend(values.map(|v| v.min(start))),
            }
        }
    });
    (out, rest)
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::Result;
    use downpour_tensor::{DType, Tensor};

    fn sorted(op: &str, ids: Vec<i32>) -> Result<Vec<f32>> {
        let attrs = [
            ("T", DType::Float.into()),
            ("Tindices", DType::Int32.into()),
        ];
        let inputs = vec![floats(&[1.0, 3.0, 5.0, 7.0]), Tensor::vector(ids)];
        Ok(run_op(op, inputs, &attrs)?[0].as_slice::<f32>()?.to_vec())
    }

    #[test]
    fn rows_of_a_segment_are_reduced_and_gaps_filled() {
        assert_eq!(
            sorted("SegmentSum", vec![0, 0, 1, 3]).unwrap(),
            [4.0, 5.0, 0.0, 7.0]
        );
        assert_eq!(
            sorted("SegmentMean", vec![0, 0, 1, 3]).unwrap(),
            [2.0, 5.0, 0.0, 7.0]
        );
        assert_eq!(
            sorted("SegmentProd", vec![0, 0, 1, 3]).unwrap(),
            [3.0, 5.0, 1.0, 7.0]
        );
        assert_eq!(
            sorted("SegmentMax", vec![0, 0, 1, 3]).unwrap(),
            [3.0, 5.0, 0.0, 7.0]
        );
        let text = |ids| sorted("SegmentSum", ids).unwrap_err().message;
        assert!(text(vec![0, 1, 0, 2]).starts_with("segment ids are not increasing"));
        assert!(text(vec![-1, 0, 0, 1]).starts_with(
            "Segment id -1 out of range [0, 2), possibly because 'segment_ids' input is not sorted."
        ));
        assert!(
            text(vec![0, 0, 1])
                .starts_with("segment_ids should be the same size as dimension 0 of input.")
        );
    }

    #[test]
    fn unsorted_segments_drop_negative_ids() {
        let run = |op: &str, dtype: DType, ids: Vec<i32>| {
            let attrs = [("T", dtype.into()), ("Tindices", DType::Int32.into())];
            let data = match dtype {
                DType::Half => Tensor::vector([1.0f32, 2.0, 3.0].map(half::f16::from_f32).to_vec()),
                _ => floats(&[1.0, 2.0, 3.0]),
            };
            run_op(
                op,
                vec![data, Tensor::vector(ids), Tensor::scalar(3i32)],
                &attrs,
            )
        };
        let out = run("UnsortedSegmentSum", DType::Float, vec![2, -1, 2]).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [0.0, 0.0, 4.0]);
        let out = run("UnsortedSegmentMax", DType::Half, vec![2, -1, 2]).unwrap();
        let low = half::f16::MIN;
        assert_eq!(
            out[0].as_slice::<half::f16>().unwrap(),
            [low, low, half::f16::from_f32(3.0)]
        );
        let e = run("UnsortedSegmentSum", DType::Float, vec![0, 5, 0]).unwrap_err();
        assert!(
            e.message
                .starts_with("segment_ids[1] = 5 is out of range [0, 3)"),
            "{}",
            e.message
        );
    }

    #[test]
    fn long_rows_give_the_sums_that_short_ones_give() {
        // Segment 1 is empty, 2 has three rows, one row is dropped; a negative zero is a zero.
        let ids = vec![2i32, 0, -1, 2, 3, 2];
        let value = |r: usize, c: usize| match (r, c) {
            (4, 0) => -0.0,
            (1, 1) => f32::NAN,
            _ => (r * 10 + c) as f32 - 20.0,
        };
        for op in ["Sum", "Prod", "Max", "Min"] {
            let run = |row: usize| {
                let values = (0..6).flat_map(|r| (0..row).map(move |c| value(r, c)));
                let data = Tensor::from_vec(values.collect::<Vec<f32>>(), [6, row]).unwrap();
                let attrs = [
                    ("T", DType::Float.into()),
                    ("Tindices", DType::Int32.into()),
                ];
                let inputs = vec![data, Tensor::vector(ids.clone()), Tensor::scalar(4i32)];
                let op = format!("UnsortedSegment{op}");
                let out = run_op(&op, inputs, &attrs).unwrap().remove(0);
                out.as_slice::<f32>().unwrap().to_vec()
            };
            let (short, long) = (run(7), run(9));
            let bits = |v: &[f32]| v.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            for r in 0..4 {
                let (short, long) = (&short[r * 7..(r + 1) * 7], &long[r * 9..r * 9 + 7]);
                assert_eq!(bits(short), bits(long), "{op} {r}");
            }
        }
    }
}
