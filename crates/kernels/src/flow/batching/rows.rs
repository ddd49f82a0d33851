//! Tensors joined and cut along their first dimension.

use crate::args::shape_of;
use crate::list::pieces::{cut as cut_rows, join};
use downpour_graph::{Result, Status};
use downpour_runtime::Device;
use downpour_tensor::Tensor;

/// Number of rows; a scalar has one.
pub(super) fn rows(t: &Tensor) -> usize {
    t.dims().first().copied().unwrap_or(1)
}

/// Joins tensors that agree in all dimensions but the first.
pub(super) fn concat(device: &Device, parts: &[&Tensor]) -> Result<Tensor> {
    let Some(first) = parts.first() else {
        return Err(Status::invalid_argument("Empty batch."));
    };
    let mut total = 0usize;
    for (i, part) in parts.iter().enumerate() {
        let differ = |what: &str| {
            Status::invalid_argument(format!(
                "{what} should match: shape[0] = {} vs. shape[{i}] = {}",
                first.shape(),
                part.shape()
            ))
        };
        if part.rank() != first.rank() || part.rank() == 0 {
            return Err(differ("Ranks of all input tensors"));
        }
        if part.dims()[1..] != first.dims()[1..] {
            return Err(differ("Dimensions of inputs"));
        }
        if part.dtype() != first.dtype() {
            return Err(Status::invalid_argument(format!(
                "Batched tensors must be of one type, but are {} and {}",
                first.dtype(),
                part.dtype()
            )));
        }
        total = total.saturating_add(rows(part));
    }
    let mut dims: Vec<i64> = first.dims().iter().map(|&d| d as i64).collect();
    dims[0] = total as i64;
    join(device, first.dtype(), shape_of(&dims)?, parts)
}

/// Cuts a tensor into pieces of so many rows; what is left over is dropped.
pub(super) fn cut(t: &Tensor, sizes: &[usize]) -> Result<Vec<Tensor>> {
    let total = sizes.iter().fold(0usize, |a, b| a.saturating_add(*b));
    if t.rank() == 0 || total > rows(t) {
        return Err(Status::invalid_argument(
            "Sum of split sizes must not exceed dim0-size of input tensor",
        ));
    }
    cut_rows(t, sizes)
}

/// A tensor like `t` without rows.
pub(super) fn none_of(t: &Tensor) -> Result<Tensor> {
    let mut dims: Vec<i64> = t.dims().iter().map(|&d| d as i64).collect();
    if let Some(first) = dims.first_mut() {
        *first = 0;
    }
    Ok(Tensor::zeros(t.dtype(), shape_of(&dims)?)?)
}
