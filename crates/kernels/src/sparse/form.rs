//! How a sparse tensor reaches a kernel: a matrix of places, a vector of values, a dense shape.
//! TensorFlow has two sets of checks with texts of their own; each op uses the one its kernel
//! uses. After either, `Places` has one row per value and one column per dimension.

use crate::array::units::{Unit, with_unit};
use downpour_graph::{Result, Status};
use downpour_tensor::{Shape, Tensor};
use std::cmp::Ordering;

pub(super) fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// A matrix of int64, one row per element.
#[derive(Clone, Copy)]
pub(super) struct Places<'a> {
    at: &'a [i64],
    /// Number of rows.
    pub(super) count: usize,
    /// Number of columns.
    pub(super) rank: usize,
}

impl<'a> Places<'a> {
    /// The matrix; callers have checked its rank, in their own words.
    pub(super) fn new(t: &'a Tensor) -> Result<Places<'a>> {
        match *t.dims() {
            [count, rank] => Ok(Places {
                at: t.as_slice()?,
                count,
                rank,
            }),
            _ => invalid(format!("indices must be a matrix, but got: {}", t.shape())),
        }
    }

    /// Rows of `rank` columns held elsewhere.
    pub(super) fn of(at: &'a [i64], rank: usize, count: usize) -> Places<'a> {
        Places { at, count, rank }
    }

    pub(super) fn row(&self, i: usize) -> &'a [i64] {
        &self.at[i * self.rank..(i + 1) * self.rank]
    }

    pub(super) fn rows(self) -> impl Iterator<Item = &'a [i64]> {
        (0..self.count).map(move |i| self.row(i))
    }

    /// The rows in this order, as a matrix.
    pub(super) fn picked(&self, order: &[usize]) -> Result<Tensor> {
        let values = order.iter().flat_map(|&i| self.row(i)).copied().collect();
        Ok(Tensor::from_vec(values, [order.len(), self.rank])?)
    }

    pub(super) fn is_sorted(&self) -> bool {
        (1..self.count).all(|i| self.row(i - 1) <= self.row(i))
    }

    /// Row numbers in the order of their rows, compared by the columns `by`; equal rows stay in
    /// their order.
    pub(super) fn order_by(&self, by: &[usize]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.count).collect();
        let less = |&a: &usize, &b: &usize| {
            let (a, b) = (self.row(a), self.row(b));
            by.iter()
                .map(|&d| a[d].cmp(&b[d]))
                .find(|o| *o != Ordering::Equal)
                .unwrap_or(Ordering::Equal)
        };
        order.sort_by(less);
        order
    }

    /// Row numbers in lexicographic order of their rows.
    pub(super) fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.count).collect();
        if !self.is_sorted() {
            order.sort_by(|&a, &b| self.row(a).cmp(self.row(b)));
        }
        order
    }

    /// Refuses places outside `shape`, out of order or repeated.
    pub(super) fn check_order(&self, shape: &[i64]) -> Result<()> {
        for (i, row) in self.rows().enumerate() {
            let text =
                |what: &str| invalid(format!("indices[{i}] = [{}] {what}", joined(row, ",")));
            if row.iter().zip(shape).any(|(at, n)| !(0..*n).contains(at)) {
                return text(&format!(
                    "is out of bounds: need 0 <= index < [{}]",
                    joined(shape, ",")
                ));
            }
            if i > 0 {
                match self.row(i - 1).cmp(row) {
                    Ordering::Less => {}
                    Ordering::Greater => {
                        return text(
                            "is out of order. Many sparse ops require sorted indices.\n    Use `tf.sparse.reorder` to create a correctly ordered copy.\n\n",
                        );
                    }
                    Ordering::Equal => return text("is repeated"),
                }
            }
        }
        Ok(())
    }
}

/// A tensor as TensorFlow shows it in errors.
pub(super) fn shown(t: &Tensor) -> String {
    format!(
        "Tensor<type: {} shape: {} values: {}>",
        t.dtype(),
        t.shape(),
        t.summarize(3)
    )
}

/// Numbers with a separator.
pub(super) fn joined(values: &[i64], by: &str) -> String {
    let words: Vec<String> = values.iter().map(i64::to_string).collect();
    words.join(by)
}

/// The checks of TensorFlow's `SparseTensor::Create`; `rank` is that of the dense shape.
pub(super) fn created<'a>(indices: &'a Tensor, values: &Tensor, rank: usize) -> Result<Places<'a>> {
    let rows = indices.dims().first().copied();
    if let (Some(rows), [n]) = (rows, values.dims())
        && rows != *n
    {
        return invalid(format!(
            "indices and values rows (indexing dimension) must match. (indices = {rows}, values = {n})"
        ));
    }
    if values.rank() != 1 {
        return invalid(format!("vals must be a vec, but got: {}", values.shape()));
    }
    let places = Places::new(indices)?;
    if places.rank != rank {
        return invalid("Order length must be SparseTensor rank.");
    }
    Ok(places)
}

/// The checks of TensorFlow's `ValidateSparseTensor`, and of the places if `bounds`.
pub(super) fn validated<'a>(
    indices: &'a Tensor,
    values: &Tensor,
    shape: &'a Tensor,
    bounds: bool,
) -> Result<(Places<'a>, &'a [i64])> {
    for (what, t, rank) in [
        ("indices", indices, 2),
        ("values", values, 1),
        ("shape", shape, 1),
    ] {
        if t.rank() != rank {
            return invalid(format!(
                "Sparse {what} must be rank {rank} but is rank {}",
                t.rank()
            ));
        }
    }
    let places = Places::new(indices)?;
    if values.num_elements() != places.count {
        return invalid(format!(
            "Number of elements in indices ({}) and values ({}) do not match",
            places.count,
            values.num_elements()
        ));
    }
    if shape.num_elements() != places.rank {
        return invalid(format!(
            "Index rank ({}) and shape rank ({}) do not match",
            places.rank,
            shape.num_elements()
        ));
    }
    let shape = shape.as_slice()?;
    if bounds {
        for (i, row) in places.rows().enumerate() {
            if row.iter().zip(shape).any(|(at, n)| !(0..*n).contains(at)) {
                return invalid(format!(
                    "Sparse index tuple indices[{i}, :] = [{}] is out of bounds",
                    joined(row, ", ")
                ));
            }
        }
    }
    Ok((places, shape))
}

/// A dense shape whose dimensions must not be negative.
pub(super) fn dense_shape(dims: &[i64]) -> Result<Shape> {
    if let Some(d) = dims.iter().find(|d| **d < 0) {
        return invalid(format!(
            "Expected shape dimensions to be non-negative, got {d}"
        ));
    }
    let mut product = 1i64;
    for &d in dims {
        product = match product.checked_mul(d) {
            Some(p) => p,
            None => {
                return invalid(format!(
                    "Encountered overflow when multiplying {product} with {d}, result: -1"
                ));
            }
        };
    }
    crate::args::shape_of(dims)
}

/// Elements of a vector in this order.
pub(super) fn picked(values: &Tensor, order: &[usize]) -> Result<Tensor> {
    let dtype = values.dtype();
    with_unit!(dtype, U => {
        let from = U::view(values)?;
        let out = order.iter().map(|&i| from[i].clone()).collect();
        U::tensor(dtype, out, Shape::from([order.len()]))
    })
}

/// A vector of int64.
pub(super) fn vector(values: &[i64]) -> Tensor {
    Tensor::vector(values.to_vec())
}

/// Runs of rows that agree in the columns `by`, in the order of `order`.
pub(super) fn groups(
    places: Places<'_>,
    order: &[usize],
    by: &[usize],
) -> Vec<std::ops::Range<usize>> {
    let mut out = Vec::new();
    let mut start = 0;
    for end in 1..=order.len() {
        let differ = order.get(end).is_none_or(|&next| {
            let (a, b) = (places.row(order[start]), places.row(next));
            by.iter().any(|&d| a[d] != b[d])
        });
        if differ {
            out.push(start..end);
            start = end;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_ordered_and_grouped() {
        let t = Tensor::from_vec(vec![1i64, 0, 0, 5, 1, 0, 0, 2], [4, 2]).unwrap();
        let places = Places::new(&t).unwrap();
        assert_eq!(places.order(), [3, 1, 0, 2]);
        assert_eq!(places.order_by(&[1, 0]), [0, 2, 3, 1]);
        assert_eq!(groups(places, &places.order(), &[0]), [0..2, 2..4]);
        let text = |shape: &[i64]| places.check_order(shape).unwrap_err().message;
        assert!(text(&[2, 6]).starts_with("indices[1] = [0,5] is out of order."));
        assert_eq!(
            text(&[1, 6]),
            "indices[0] = [1,0] is out of bounds: need 0 <= index < [1,6]"
        );
    }

    #[test]
    fn no_columns_are_a_rank_too() {
        let t = Tensor::from_vec(Vec::<i64>::new(), [3, 0]).unwrap();
        let places = Places::new(&t).unwrap();
        assert_eq!(places.rows().count(), 3);
        assert_eq!(groups(places, &places.order(), &[]), vec![0..3; 1]);
    }
}
