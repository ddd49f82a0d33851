//! `FractionalMaxPool`, `FractionalAvgPool` and their gradients: cells of two neighbouring sizes,
//! in an order drawn for every run.

use super::four;
use crate::args::{ints, shape_of};
use crate::random::philox::{Guarded, Words};
use crate::types::with_type;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Element, Shape, Tensor};
use std::ops::{AddAssign, DivAssign};

const TYPES: &[DType] = &[DType::Float, DType::Double, DType::Int32, DType::Int64];

pub(crate) fn register(r: &mut Registry) {
    let types = &[("T", TYPES)];
    r.add_typed("FractionalMaxPool", types, |b| build(b, true));
    r.add_typed("FractionalAvgPool", types, |b| build(b, false));
    r.add_typed("FractionalMaxPoolGrad", types, |b| {
        let overlapping = b.attrs().bool("overlapping")?;
        Built::costly(move |ctx| max_gradient(ctx, overlapping))
    });
    r.add_typed("FractionalAvgPoolGrad", types, |b| {
        let overlapping = b.attrs().bool("overlapping")?;
        Built::costly(move |ctx| average_gradient(ctx, overlapping))
    });
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// A type these pools know.
trait Cell: Element + PartialOrd + AddAssign + DivAssign {
    const LOWEST: Self;
    fn count(n: usize) -> Self;
    fn wide(self) -> f64;
    fn narrow(value: f64) -> Self;
}

macro_rules! cells {
    ($($t:ty),*) => {
        $(impl Cell for $t {
            const LOWEST: $t = <$t>::MIN;
            fn count(n: usize) -> $t {
                n as $t
            }
            fn wide(self) -> f64 {
                self as f64
            }
            fn narrow(value: f64) -> $t {
                value as $t
            }
        })*
    };
}

cells!(f32, f64, i32, i64);

struct Options {
    ratio: Vec<f32>,
    pseudo_random: bool,
    overlapping: bool,
    /// The seeds every run begins with; none for runs that differ.
    seeds: Option<(i64, i64)>,
    largest: bool,
}

fn build(b: &KernelBuilder<'_>, largest: bool) -> Result<Built> {
    let attrs = b.attrs();
    let ratio = attrs.floats("pooling_ratio")?.to_vec();
    if ratio.len() != 4 {
        return invalid("pooling_ratio field must specify 4 dimensions");
    }
    if let Some(bad) = ratio.iter().find(|r| !(**r >= 1.0)) {
        return invalid(format!(
            "pooling_ratio cannot be smaller than 1, got: {bad}"
        ));
    }
    if ratio[0] != 1.0 && ratio[3] != 1.0 {
        let name = if largest { "max" } else { "average" };
        return Err(Status::unimplemented(format!(
            "Fractional {name} pooling is not yet supported on the batch nor channel dimension."
        )));
    }
    let deterministic = attrs.bool("deterministic")?;
    let (seed, seed2) = (attrs.int("seed")?, attrs.int("seed2")?);
    let seeds = match (deterministic, seed, seed2) {
        // A deterministic node without seeds draws them once.
        (true, 0, 0) => {
            let draw = || crate::random::philox::entropy() as i64;
            Some((draw(), draw() | 1))
        }
        (true, ..) => Some((seed, seed2)),
        (false, 0, 0) => None,
        (false, ..) => {
            return invalid("Both seed and seed2 should be 0 if deterministic is false.");
        }
    };
    let options = Options {
        ratio,
        pseudo_random: attrs.bool("pseudo_random")?,
        overlapping: attrs.bool("overlapping")?,
        seeds,
        largest,
    };
    Built::costly(move |ctx| forward(ctx, &options))
}

/// The first element of each cell, and the end of the last.
fn sequence(input: usize, output: usize, generator: &Guarded, pseudo_random: bool) -> Vec<i64> {
    let k = input / output;
    let mut out = vec![0i64; output + 1];
    if pseudo_random {
        let alpha = input as f64 / output as f64;
        let first = (k + 2) as f64 / alpha - 1.0;
        let second = (input + 1 - k) as f64 / alpha - (output as f64 - 1.0);
        let u = Words::new(generator.reserve_words(2)).f64() * first.min(second);
        for (i, to) in out.iter_mut().enumerate().take(output).skip(1) {
            *to = (alpha * (i as f64 + u)).ceil() as i64 - 1;
        }
        out[output] = input as i64;
        return out;
    }
    let mut sizes: Vec<i64> = (0..output)
        .map(|i| k as i64 + i64::from(i < input % output))
        .collect();
    let mut words = Words::new(generator.reserve_words(output as u64));
    for i in 0..output - 1 {
        let other = words.u32() % (output - i) as u32;
        sizes.swap(i, i + other as usize);
    }
    for (i, size) in sizes.iter().enumerate() {
        out[i + 1] = out[i] + size;
    }
    out
}

/// The elements of cell `i`.
fn cell(seq: &[i64], i: usize, overlapping: bool, size: usize) -> std::ops::Range<usize> {
    let end = if overlapping {
        seq[i + 1] + 1
    } else {
        seq[i + 1]
    };
    let end = (end.max(0) as usize).min(size);
    (seq[i].max(0) as usize).min(end)..end
}

fn forward(ctx: &mut OpContext<'_>, o: &Options) -> Result<()> {
    let x = ctx.take(0)?;
    let dims = four(&x, "tensor_in must be 4-dimensional")?;
    for (i, (&size, &ratio)) in dims.iter().zip(&o.ratio).enumerate() {
        if (size as f32) < ratio {
            return invalid(format!(
                "Pooling ratio is higher than input dimension size for dimension {i}. Input dim size: {size} pooling ratio: {ratio}"
            ));
        }
    }
    let out_dims: [usize; 4] = std::array::from_fn(|i| (dims[i] as f32 / o.ratio[i]) as usize);
    let generator = match o.seeds {
        Some((seed, seed2)) => Guarded::new(seed, seed2),
        None => Guarded::new(0, 0),
    };
    let rows = sequence(dims[1], out_dims[1], &generator, o.pseudo_random);
    let columns = sequence(dims[2], out_dims[2], &generator, o.pseudo_random);
    let shape = Shape::from(out_dims);
    let out = with_type!(x.dtype(), T in [f32, f64, i32, i64] => {
        let values = x.as_slice::<T>()?;
        let [_, height, width, depth] = dims;
        let mut out = vec![T::default(); shape.num_elements()];
        for (i, to) in out.chunks_mut(depth.max(1)).enumerate() {
            let (b, place) = (i / (out_dims[1] * out_dims[2]), i % (out_dims[1] * out_dims[2]));
            let ys = cell(&rows, place / out_dims[2], o.overlapping, height);
            let xs = cell(&columns, place % out_dims[2], o.overlapping, width);
            let count = <T as Cell>::count(ys.len() * xs.len());
            if o.largest {
                to.fill(<T as Cell>::LOWEST);
            }
            for y in ys {
                for x in xs.clone() {
                    let start = ((b * height + y) * width + x) * depth;
                    for (to, v) in to.iter_mut().zip(&values[start..start + depth]) {
                        if !o.largest {
                            *to += *v;
                        } else if *v > *to {
                            *to = *v;
                        }
                    }
                }
            }
            if !o.largest {
                to.iter_mut().for_each(|v| *v /= count);
            }
        }
        Tensor::from_vec(out, shape)?
    });
    ctx.set_output(0, out);
    ctx.set_output(1, Tensor::vector(rows));
    ctx.set_output(2, Tensor::vector(columns));
    Ok(())
}

fn max_gradient(ctx: &mut OpContext<'_>, overlapping: bool) -> Result<()> {
    let (x, y, grad) = (ctx.take(0)?, ctx.take(1)?, ctx.take(2)?);
    let (rows, columns) = (ctx.input(3)?, ctx.input(4)?);
    let dims = four(&x, "orig_input must be 4-dimensional")?;
    let out_dims = four(&y, "orig_output must be 4-dimensional")?;
    if grad.shape() != y.shape() {
        return invalid(format!(
            "out_backprop must have the same shape as orig_output: {} vs {}",
            grad.shape(),
            y.shape()
        ));
    }
    let (rows, columns) = (ints(rows)?, ints(columns)?);
    check(&rows, dims[1], out_dims[1], "row_pooling_sequence")?;
    check(&columns, dims[2], out_dims[2], "col_pooling_sequence")?;
    if dims[0] != out_dims[0] || dims[3] != out_dims[3] {
        return invalid("orig_input and orig_output must have the same batch and depth");
    }
    let mut out = ctx.zeros(x.dtype(), x.shape())?;
    with_type!(x.dtype(), T in [f32, f64, i32, i64] => {
        let (values, grad) = (x.as_slice::<T>()?, grad.as_slice::<T>()?);
        let to = out.make_mut::<T>()?;
        each_cell(dims, out_dims, (&rows, &columns), overlapping, |at, cells| {
            for d in 0..dims[3] {
                // The first of the largest, as in the forward pass.
                let best = cells.clone().map(|c| c + d).reduce(|best, c| {
                    if values[best] < values[c] { c } else { best }
                });
                if let Some(best) = best {
                    to[best] += grad[at + d];
                }
            }
        });
    });
    ctx.set_output(0, out);
    Ok(())
}

/// Refuses sequences that do not fit the tensors.
fn check(seq: &[i64], input: usize, output: usize, name: &str) -> Result<()> {
    let fits = seq.len() == output + 1
        && seq.iter().all(|v| (0..=input as i64).contains(v))
        && seq.windows(2).all(|w| w[0] <= w[1]);
    match fits {
        true => Ok(()),
        false => invalid(format!(
            "{name} must rise from 0 to {input} in {} elements",
            output + 1
        )),
    }
}

/// Calls `f` with the start of every output's channels and those of the inputs in its cell.
fn each_cell(
    dims: [usize; 4],
    out_dims: [usize; 4],
    (rows, columns): (&[i64], &[i64]),
    overlapping: bool,
    mut f: impl FnMut(usize, std::iter::Copied<std::slice::Iter<'_, usize>>),
) {
    let [batch, height, width, depth] = dims;
    let mut starts = Vec::new();
    for b in 0..batch {
        for r in 0..out_dims[1] {
            for c in 0..out_dims[2] {
                starts.clear();
                for y in cell(rows, r, overlapping, height) {
                    for x in cell(columns, c, overlapping, width) {
                        starts.push(((b * height + y) * width + x) * depth);
                    }
                }
                let at = ((b * out_dims[1] + r) * out_dims[2] + c) * depth;
                f(at, starts.iter().copied());
            }
        }
    }
}

fn average_gradient(ctx: &mut OpContext<'_>, overlapping: bool) -> Result<()> {
    let (original, grad) = (ctx.input(0)?, ctx.input(1)?);
    if original.dims() != [4] {
        return invalid("original input tensor shape must be1-dimensional and 4 elements");
    }
    let out_dims = four(grad, "out_backprop must be 4-dimensional")?;
    let (rows, columns) = (ints(ctx.input(2)?)?, ints(ctx.input(3)?)?);
    let dims = ints(original)?;
    for (size, name) in dims.iter().zip(["Batch", "Rows", "Columns", "Depth"]) {
        if *size == 0 {
            return invalid(format!("{name} dimension of input must not be 0"));
        }
    }
    let shape = shape_of(&dims)?;
    ctx.check_alloc(DType::Double, &shape)?;
    let dims: [usize; 4] = std::array::from_fn(|i| shape[i]);
    for (seq, name) in [(&rows, "Row"), (&columns, "Column")] {
        if seq.iter().any(|v| *v < 0) {
            let list: Vec<String> = seq.iter().map(i64::to_string).collect();
            return invalid(format!(
                "{name} sequence tensor values must not be negative, got {}",
                list.join(" ")
            ));
        }
    }
    check(&rows, dims[1], out_dims[1], "row_pooling_sequence")?;
    check(&columns, dims[2], out_dims[2], "col_pooling_sequence")?;
    if dims[0] != out_dims[0] || dims[3] != out_dims[3] {
        return invalid("original input and out_backprop must have the same batch and depth");
    }
    let out = with_type!(grad.dtype(), T in [f32, f64, i32, i64] => {
        let values = grad.as_slice::<T>()?;
        let mut sums = vec![0.0f64; shape.num_elements()];
        each_cell(dims, out_dims, (&rows, &columns), overlapping, |at, cells| {
            let count = cells.len() as f64;
            for start in cells {
                for d in 0..dims[3] {
                    sums[start + d] += values[at + d].wide() / count;
                }
            }
        });
        Tensor::from_vec(sums.into_iter().map(<T as Cell>::narrow).collect::<Vec<T>>(), shape)?
    });
    ctx.set_output(0, out);
    Ok(())
}
