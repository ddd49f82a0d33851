//! Recurrent cells computed as one op each: LSTM (a step, or a whole sequence) and GRU, with
//! their gradients. All are computed in float and rounded once.

mod gru;
mod lstm;
mod sequence;

use super::float::{narrow, widen};
use crate::linalg::gemm::{Matrix, product};
use downpour_graph::{Result, Status};
use downpour_runtime::{OpContext, Registry};
use downpour_tensor::{DType, Tensor};

const TYPES: &[DType] = crate::types::FLOAT_HALF;

pub(crate) fn register(registry: &mut Registry) {
    gru::register(registry);
    lstm::register(registry);
    sequence::register(registry);
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// Refuses two sizes that differ.
fn same(what: &str, got: usize, wanted: usize) -> Result<()> {
    if got != wanted {
        return invalid(format!("{what}: {got} vs. {wanted}"));
    }
    Ok(())
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// The values of input `i` as float.
fn floats(ctx: &OpContext<'_>, i: usize) -> Result<Vec<f32>> {
    Ok(widen(ctx.input(i)?)?.as_slice::<f32>()?.to_vec())
}

/// Sets output `i` to `values`, rounded to the op's type.
fn put(
    ctx: &mut OpContext<'_>,
    i: usize,
    dtype: DType,
    values: Vec<f32>,
    dims: &[usize],
) -> Result<()> {
    let t = narrow(Tensor::from_vec(values, dims)?, dtype)?;
    ctx.set_output(i, t);
    Ok(())
}

/// `a·b` of dense row-major matrices; `b` seen transposed if asked.
fn times(a: &[f32], b: &[f32], (m, k, n): (usize, usize, usize), turned: bool) -> Vec<f32> {
    let b = match turned {
        true => Matrix::dense(b, n, k, true),
        false => Matrix::dense(b, k, n, false),
    };
    product(Vec::new(), Matrix::dense(a, m, k, false), b, true)
}

/// Rows of `a` followed by the same rows of `b`.
fn beside(a: &[f32], width_a: usize, b: &[f32], width_b: usize, rows: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(rows * (width_a + width_b));
    for r in 0..rows {
        out.extend_from_slice(&a[r * width_a..(r + 1) * width_a]);
        out.extend_from_slice(&b[r * width_b..(r + 1) * width_b]);
    }
    out
}

/// Columns `from..from + count` of rows that are `width` wide.
fn columns(a: &[f32], width: usize, from: usize, count: usize) -> Vec<f32> {
    a.chunks_exact(width.max(1))
        .flat_map(|row| row[from..from + count].iter().copied())
        .collect()
}
