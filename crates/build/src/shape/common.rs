//! Arithmetic on shapes of which parts are unknown.

use super::{Context, Shapes, invalid, one};
use downpour_graph::Result;
use downpour_tensor::PartialShape;
use smallvec::smallvec;

/// The shape that two tensors broadcast to.
pub(crate) fn broadcast(a: &PartialShape, b: &PartialShape) -> Result<PartialShape> {
    let (Some(x), Some(y)) = (a.dims(), b.dims()) else {
        return Ok(PartialShape::unknown());
    };
    let rank = x.len().max(y.len());
    let mut dims = Vec::with_capacity(rank);
    for i in 0..rank {
        let at = |dims: &[Option<usize>]| match (i + dims.len()).checked_sub(rank) {
            Some(j) => dims[j],
            None => Some(1),
        };
        dims.push(match (at(x), at(y)) {
            (Some(1), d) | (d, Some(1)) => d,
            (None, d) | (d, None) => d,
            (Some(p), Some(q)) if p == q => Some(p),
            _ => return invalid(format!("shapes {a} and {b} do not broadcast")),
        });
    }
    Ok(PartialShape::from_dims(dims))
}

/// What is known when both are shapes of the same tensor.
pub(crate) fn merge(a: &PartialShape, b: &PartialShape) -> Result<PartialShape> {
    let (Some(x), Some(y)) = (a.dims(), b.dims()) else {
        return Ok(if a.rank().is_some() {
            a.clone()
        } else {
            b.clone()
        });
    };
    if x.len() != y.len() {
        return invalid(format!("shapes {a} and {b} must have the same rank"));
    }
    let mut dims = Vec::with_capacity(x.len());
    for (&p, &q) in x.iter().zip(y) {
        dims.push(
            merge_dim(p, q)
                .ok_or(())
                .or_else(|()| invalid(format!("shapes {a} and {b} must be equal")))?,
        );
    }
    Ok(PartialShape::from_dims(dims))
}

/// One dimension of which two things are known; nothing if they contradict each other.
pub(crate) fn merge_dim(a: Option<usize>, b: Option<usize>) -> Option<Option<usize>> {
    match (a, b) {
        (Some(a), Some(b)) if a != b => None,
        (a, b) => Some(a.or(b)),
    }
}

/// A dimension counted from either end.
pub(crate) fn axis(value: i64, rank: usize) -> Result<usize> {
    let from = if value < 0 {
        value + rank as i64
    } else {
        value
    };
    match usize::try_from(from) {
        Ok(axis) if axis < rank => Ok(axis),
        _ => invalid(format!(
            "dimension {value} is outside a tensor of rank {rank}"
        )),
    }
}

/// The output is like the first input.
pub(crate) fn same(c: &mut Context<'_>) -> Result<Shapes> {
    one(c.input(0))
}

/// One scalar for each output.
pub(crate) fn scalar(c: &mut Context<'_>) -> Result<Shapes> {
    Ok(smallvec![PartialShape::from_dims([]); c.num_outputs()])
}

/// Two inputs that broadcast.
pub(crate) fn binary(c: &mut Context<'_>) -> Result<Shapes> {
    one(broadcast(&c.input(0), &c.input(1))?)
}

/// All inputs have the output's shape.
pub(crate) fn merged(c: &mut Context<'_>) -> Result<Shapes> {
    let mut shape = c.input(0);
    for i in 1..c.num_inputs() {
        shape = merge(&shape, &c.input(i))?;
    }
    one(shape)
}
