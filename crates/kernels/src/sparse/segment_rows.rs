//! Segment reductions over chosen rows (`SparseSegment…`): what embedding lookups reduce with,
//! and their gradients. Halves are computed in f32 and rounded once.

use super::segment::{each_part, narrowed, segments, widened, with_rows, within};
use crate::args::{int_tensor, ints};
use crate::types::{FLOATS, INDEX, REALS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{Element, Shape, Tensor};
use std::collections::BTreeMap;

pub(crate) fn register(r: &mut Registry) {
    let with = |t| [("T", t), ("Tidx", INDEX), ("Tsegmentids", INDEX)];
    for op in ["SparseSegmentSum", "SparseSegmentSumWithNumSegments"] {
        r.add_typed(op, &with(REALS), |b| forward(b, Scale::One));
    }
    for op in ["SparseSegmentMean", "SparseSegmentMeanWithNumSegments"] {
        r.add_typed(op, &with(FLOATS), |b| forward(b, Scale::Mean));
    }
    for op in ["SparseSegmentSqrtN", "SparseSegmentSqrtNWithNumSegments"] {
        r.add_typed(op, &with(FLOATS), |b| forward(b, Scale::SqrtN));
    }
    for op in ["SparseSegmentSumGrad", "SparseSegmentSumGradV2"] {
        r.add_typed(op, &with(FLOATS), |b| gradient(b, Scale::One));
    }
    for op in ["SparseSegmentMeanGrad", "SparseSegmentMeanGradV2"] {
        r.add_typed(op, &with(FLOATS), |b| gradient(b, Scale::Mean));
    }
    for op in ["SparseSegmentSqrtNGrad", "SparseSegmentSqrtNGradV2"] {
        r.add_typed(op, &with(FLOATS), |b| gradient(b, Scale::SqrtN));
    }
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// What a segment's sum is divided by.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scale {
    One,
    Mean,
    SqrtN,
}

impl Scale {
    fn of(self, count: usize) -> f64 {
        match self {
            Scale::One => 1.0,
            Scale::Mean => 1.0 / count as f64,
            Scale::SqrtN => 1.0 / (count as f64).sqrt(),
        }
    }
}

/// Sums with wrapping integers; only floats are ever scaled.
trait Term: Element {
    fn plus(self, other: Self) -> Self;
    fn scaled(self, by: f64) -> Self;
}

macro_rules! terms {
    ($($t:ty),*) => {
        $(impl Term for $t {
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            fn scaled(self, _: f64) -> Self { self }
        })*
    };
}
terms!(i8, i16, i32, i64, u8, u16, u32, u64);

impl Term for f32 {
    fn plus(self, other: Self) -> Self {
        self + other
    }
    fn scaled(self, by: f64) -> Self {
        self * by as f32
    }
}

impl Term for f64 {
    fn plus(self, other: Self) -> Self {
        self + other
    }
    fn scaled(self, by: f64) -> Self {
        self * by
    }
}

/// Inputs 1 and 2: which rows, and into which segment each goes.
fn rows_and_ids(ctx: &OpContext<'_>) -> Result<(Vec<i64>, Vec<i64>)> {
    let (indices, ids) = (ctx.input(1)?, ctx.input(2)?);
    if indices.rank() != 1 {
        return invalid("indices should be a vector.");
    }
    if ids.rank() != 1 {
        return invalid("segment_ids should be a vector.");
    }
    if indices.num_elements() != ids.num_elements() {
        return invalid("segment_ids and indices should have same size.");
    }
    Ok((ints(indices)?, ints(ids)?))
}

fn forward(b: &KernelBuilder<'_>, scale: Scale) -> Result<Built> {
    let dtype = b.attrs().dtype("T")?;
    Built::costly(move |ctx| {
        let mut count = None;
        if ctx.num_inputs() == 4 {
            let t = ctx.input(3)?;
            if t.rank() != 0 {
                return invalid(format!(
                    "num_segments should be a scalar, not shape {}",
                    t.shape()
                ));
            }
            count = Some(ints(t)?[0]);
            if count < Some(0) {
                return invalid("segment ids must be >= 0");
            }
        }
        let (rows, ids) = rows_and_ids(ctx)?;
        let data = ctx.input(0)?;
        if data.rank() == 0 {
            return invalid("Shape must be at least rank 1");
        }
        let last = ids.last().map_or(0, |&id| id.saturating_add(1));
        if count.is_some_and(|count| count < last) {
            return invalid("segment ids must be < num_segments");
        }
        let count = count.unwrap_or(last);
        if count < 0 || (last <= 0 && !ids.is_empty()) {
            return invalid("segment ids must be >= 0");
        }
        let shape = with_rows(&data.dims()[1..], count as usize)?;
        ctx.check_alloc(dtype, &shape)?;
        let runs = segments(&ids, count)?;
        let limit = data.dims()[0] as i64;
        if let Some(bad) = rows.iter().position(|r| !(0..limit).contains(r)) {
            return invalid(format!(
                "Bad: indices[{bad}] == {} out of range [0, {limit})",
                rows[bad]
            ));
        }
        let wide = widened(data)?;
        let out = with_type!(wide.dtype(), T in [f32, f64, i32, i64, i8, i16, u8, u16, u32, u64] =>
            summed::<T>(ctx, &wide, &rows, &runs, scale, shape)?);
        ctx.set_output(0, narrowed(out, dtype)?);
        Ok(())
    })
}

fn summed<T: Term>(
    ctx: &OpContext<'_>,
    data: &Tensor,
    rows: &[i64],
    runs: &[(usize, usize, usize)],
    scale: Scale,
    shape: Shape,
) -> Result<Tensor> {
    let n: usize = shape[1..].iter().product();
    let mut out = ctx.zeros(T::DTYPE, &shape)?;
    let sums = out.make_mut::<T>()?;
    let src = data.as_slice::<T>()?;
    let row = |r: i64| &src[r as usize * n..(r as usize + 1) * n];
    each_part(sums, n, rows.len() * n, |first, part| {
        for &(id, start, end) in within(runs, first, part.len() / n) {
            let total = &mut part[(id - first) * n..(id - first + 1) * n];
            for &r in &rows[start..end] {
                total
                    .iter_mut()
                    .zip(row(r))
                    .for_each(|(t, v)| *t = t.plus(*v));
            }
            if scale != Scale::One {
                let by = scale.of(end - start);
                total.iter_mut().for_each(|t| *t = t.scaled(by));
            }
        }
    });
    Ok(out)
}

fn gradient(b: &KernelBuilder<'_>, scale: Scale) -> Result<Built> {
    let dtype = b.attrs().dtype("T")?;
    // The second form gives only the rows that are touched, and which they are.
    let compact = b.node.output_types.len() == 2;
    Built::costly(move |ctx| {
        let (rows, ids) = rows_and_ids(ctx)?;
        let (grad, limit) = (ctx.input(0)?, ctx.input(3)?);
        if limit.rank() != 0 {
            let name = if compact {
                "dense_output_dim0"
            } else {
                "output_dim0"
            };
            return invalid(format!("{name} should be a scalar."));
        }
        let limit = ints(limit)?[0];
        if grad.rank() == 0 {
            return invalid("Index must be less than 0, got 0");
        }
        if limit < 0 {
            return invalid(format!("Expected a non-negative size, got {limit}"));
        }
        let segments = grad.dims()[0] as i64;
        if ids.last().is_some_and(|&last| last >= segments) {
            return invalid("Invalid number of segments");
        }
        if let Some(id) = ids.iter().find(|id| !(0..segments).contains(id)) {
            return invalid(format!("Segment id {id} out of range [0, {segments})."));
        }
        if let Some(r) = rows.iter().find(|r| !(0..limit).contains(r)) {
            return invalid(format!("Index {r} out of range [0, {limit})."));
        }
        let touched: BTreeMap<i64, usize> = match compact {
            true => rows.iter().map(|&r| (r, 0)).collect(),
            false => BTreeMap::new(),
        };
        let touched: BTreeMap<i64, usize> = touched.into_keys().zip(0..).collect();
        let to = |r: i64| if compact { touched[&r] } else { r as usize };
        let count = if compact {
            touched.len()
        } else {
            limit as usize
        };
        let shape = with_rows(&grad.dims()[1..], count)?;
        let wide = widened(grad)?;
        let places: Vec<usize> = rows.iter().map(|&r| to(r)).collect();
        let out = with_type!(wide.dtype(), T in [f32, f64] =>
            spread::<T>(ctx, &wide, &places, &ids, scale, shape)?);
        let index = ctx.input(1)?.dtype();
        ctx.set_output(0, narrowed(out, dtype)?);
        if compact {
            let keys: Vec<i64> = touched.into_keys().collect();
            let n = keys.len();
            ctx.set_output(1, int_tensor(index, keys, [n])?);
        }
        Ok(())
    })
}

/// Adds each segment's gradient, scaled, to the rows the segment was made of.
fn spread<T: Term>(
    ctx: &OpContext<'_>,
    grad: &Tensor,
    places: &[usize],
    ids: &[i64],
    scale: Scale,
    shape: Shape,
) -> Result<Tensor> {
    let n: usize = shape[1..].iter().product();
    let mut counts = vec![0usize; grad.dims()[0]];
    ids.iter().for_each(|&id| counts[id as usize] += 1);
    let mut out = ctx.zeros(T::DTYPE, &shape)?;
    let sums = out.make_mut::<T>()?;
    let src = grad.as_slice::<T>()?;
    let work = if n < 8 { 0 } else { places.len() * n };
    each_part(sums, n, work, |first, part| {
        let count = part.len() / n;
        for (&place, &id) in places.iter().zip(ids) {
            let Some(place) = place.checked_sub(first).filter(|p| *p < count) else {
                continue;
            };
            let id = id as usize;
            let by = scale.of(counts[id]);
            let (total, row) = (
                &mut part[place * n..(place + 1) * n],
                &src[id * n..(id + 1) * n],
            );
            match scale {
                Scale::One => total.iter_mut().zip(row).for_each(|(t, v)| *t = t.plus(*v)),
                _ => total
                    .iter_mut()
                    .zip(row)
                    .for_each(|(t, v)| *t = t.plus(v.scaled(by))),
            }
        }
    });
    Ok(out)
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_graph::{AttrValue, Result};
    use downpour_tensor::{DType, Tensor};

    fn attrs() -> [(&'static str, AttrValue); 1] {
        [("T", DType::Float.into())]
    }

    fn matrix(rows: usize) -> Tensor {
        Tensor::from_vec((0..rows * 2).map(|i| i as f32).collect(), [rows, 2]).unwrap()
    }

    fn run(op: &str, rows: Vec<i32>, ids: Vec<i32>) -> Result<Vec<f32>> {
        let inputs = vec![matrix(3), Tensor::vector(rows), Tensor::vector(ids)];
        Ok(run_op(op, inputs, &attrs())?[0].as_slice::<f32>()?.to_vec())
    }

    #[test]
    fn chosen_rows_are_reduced() {
        let sum = run("SparseSegmentSum", vec![0, 2, 1], vec![0, 0, 2]).unwrap();
        assert_eq!(sum, [4.0, 6.0, 0.0, 0.0, 2.0, 3.0]);
        let mean = run("SparseSegmentMean", vec![0, 2, 1], vec![0, 0, 2]).unwrap();
        assert_eq!(mean, [2.0, 3.0, 0.0, 0.0, 2.0, 3.0]);
        let root = run("SparseSegmentSqrtN", vec![0, 2], vec![0, 0]).unwrap();
        assert_eq!(root, [2.828_427, 4.242_640_5]);
        let text = run("SparseSegmentSum", vec![0, 3], vec![0, 0])
            .unwrap_err()
            .message;
        assert!(
            text.starts_with("Bad: indices[1] == 3 out of range [0, 3)"),
            "{text}"
        );
    }

    #[test]
    fn gradients_go_back_to_the_rows() {
        let run = |op: &str, rows: Vec<i32>, ids: Vec<i32>| {
            let grad = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2]).unwrap();
            let inputs = vec![
                grad,
                Tensor::vector(rows),
                Tensor::vector(ids),
                Tensor::scalar(4i32),
            ];
            run_op(op, inputs, &attrs())
        };
        let out = run("SparseSegmentMeanGrad", vec![0, 2, 0], vec![0, 0, 1]).unwrap();
        assert_eq!(
            out[0].as_slice::<f32>().unwrap(),
            [3.5, 5.0, 0.0, 0.0, 0.5, 1.0, 0.0, 0.0]
        );
        let out = run("SparseSegmentSumGradV2", vec![3, 2, 3], vec![0, 0, 1]).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [1.0, 2.0, 4.0, 6.0]);
        assert_eq!(out[1].as_slice::<i32>().unwrap(), [2, 3]);
        let e = run("SparseSegmentSumGrad", vec![0, 4], vec![0, 0]).unwrap_err();
        assert!(
            e.message.starts_with("Index 4 out of range [0, 4)."),
            "{}",
            e.message
        );
    }
}
