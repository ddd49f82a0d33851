//! Sums of gradients, dense or by row, and the checks on what may be added to them.

use crate::types::with_type;
use downpour_graph::{Result, Status};
use downpour_tensor::{DType, Element, PartialShape, Shape, Tensor};

/// Element types accumulators have kernels for.
pub(super) const ACCUMULATED: &[DType] = crate::types::HALF_TO_DOUBLE;

/// What an accumulator adds and divides; half precision rounds after every step.
trait Number: Element {
    fn plus(self, other: Self) -> Self;
    fn over(self, count: usize) -> Self;
}

impl Number for f32 {
    fn plus(self, other: f32) -> f32 {
        self + other
    }

    fn over(self, count: usize) -> f32 {
        self / count as f32
    }
}

impl Number for f64 {
    fn plus(self, other: f64) -> f64 {
        self + other
    }

    fn over(self, count: usize) -> f64 {
        self / count as f64
    }
}

impl Number for half::f16 {
    fn plus(self, other: half::f16) -> half::f16 {
        self + other
    }

    fn over(self, count: usize) -> half::f16 {
        self / half::f16::from_f32(count as f32)
    }
}

fn mismatch(text: String) -> Status {
    Status::invalid_argument(format!("Shape mismatch: {text}"))
}

/// A gradient, or a sum of some.
pub(super) enum Gradient {
    Dense(Tensor),
    Sparse(Rows),
}

/// Rows of a larger gradient. The rows of a sum are sorted as long as those of its terms are.
pub(super) struct Rows {
    indices: Vec<i64>,
    /// How many gradients had each row.
    counts: Vec<usize>,
    values: Tensor,
}

impl Rows {
    /// Checks that indices and values go together.
    pub(super) fn new(indices: &Tensor, values: Tensor) -> Result<Rows> {
        if indices.rank() != 1 {
            return Err(Status::invalid_argument(format!(
                "Input indices should be vector but received shape: {}",
                indices.shape()
            )));
        }
        let Some(&rows) = values.dims().first() else {
            return Err(Status::invalid_argument("Values cannot be 0-dimensional."));
        };
        let indices = indices.as_slice::<i64>()?.to_vec();
        if rows != indices.len() {
            return Err(Status::invalid_argument(format!(
                "Expected {} non-empty input values, got {rows}",
                indices.len()
            )));
        }
        Ok(Rows {
            counts: vec![1; indices.len()],
            indices,
            values,
        })
    }
}

impl Gradient {
    /// Checks a gradient against the accumulator's shape and what it has accumulated so far;
    /// `given` is the full shape a sparse gradient came with.
    pub(super) fn check(
        &self,
        declared: &PartialShape,
        sum: Option<&Gradient>,
        given: Option<&[i64]>,
    ) -> Result<()> {
        match (self, sum) {
            (Gradient::Dense(g), Some(Gradient::Dense(sum))) if sum.shape() != g.shape() => Err(
                mismatch(format!("expected {}, got {}", sum.shape(), g.shape())),
            ),
            (Gradient::Dense(g), _) if !declared.admits(g.shape()) => {
                Err(mismatch(format!("expected {declared}, got {}", g.shape())))
            }
            (Gradient::Dense(_), _) => Ok(()),
            (Gradient::Sparse(rows), sum) => {
                let sum = match sum {
                    Some(Gradient::Sparse(sum)) => Some(sum),
                    _ => None,
                };
                rows.check(declared, sum, given)
            }
        }
    }

    /// Adds another of the same kind and shape.
    pub(super) fn add(&mut self, other: Gradient) -> Result<()> {
        match (self, other) {
            (Gradient::Dense(sum), Gradient::Dense(g)) => {
                with_type!(sum.dtype(), T in [f32, f64, half::f16] => {
                    for (a, b) in sum.make_mut::<T>()?.iter_mut().zip(g.as_slice::<T>()?) {
                        *a = a.plus(*b);
                    }
                });
                Ok(())
            }
            (Gradient::Sparse(sum), Gradient::Sparse(g)) => {
                *sum = with_type!(g.values.dtype(), T in [f32, f64, half::f16] => merge::<T>(sum, &g)?);
                Ok(())
            }
            _ => Err(Status::internal("a dense and a sparse gradient do not add")),
        }
    }

    /// The outputs of a `Take`: the sum, or with `mean` each element over the number of
    /// gradients it came from.
    pub(super) fn outputs(
        self,
        declared: &PartialShape,
        mean: bool,
        count: usize,
    ) -> Result<Vec<Tensor>> {
        match self {
            Gradient::Dense(mut sum) => {
                if mean {
                    with_type!(sum.dtype(), T in [f32, f64, half::f16] => {
                        for a in sum.make_mut::<T>()? {
                            *a = a.over(count);
                        }
                    });
                }
                Ok(vec![sum])
            }
            Gradient::Sparse(rows) => rows.outputs(declared, mean),
        }
    }
}

impl Rows {
    fn check(
        &self,
        declared: &PartialShape,
        sum: Option<&Rows>,
        given: Option<&[i64]>,
    ) -> Result<()> {
        let wanted = declared.dims().unwrap_or_default();
        if let Some(given) = given {
            if wanted.len() > given.len() {
                return Err(mismatch(format!(
                    "expected shape rank at least {}, got {}",
                    wanted.len(),
                    given.len()
                )));
            }
            for (i, (wanted, &got)) in wanted.iter().zip(given).enumerate() {
                if let Some(wanted) = wanted.filter(|&w| w as i64 != got) {
                    return Err(mismatch(format!(
                        "expected shape dim {i} to be {wanted}, got {got}"
                    )));
                }
            }
        }
        if let Some(&Some(limit)) = wanted.first() {
            for (i, &index) in self.indices.iter().enumerate() {
                if index >= limit as i64 {
                    return Err(mismatch(format!(
                        "index of slice {i} exceeded limits of shape; index is {index} exceeded {limit}"
                    )));
                }
            }
        }
        let dims = self.values.dims();
        let inner: Vec<Option<usize>> = match sum {
            Some(sum) if sum.values.rank() != dims.len() => {
                return Err(mismatch(format!(
                    "expected values rank {}, got {}",
                    sum.values.rank(),
                    dims.len()
                )));
            }
            Some(sum) => sum.values.dims().iter().map(|&d| Some(d)).collect(),
            None if wanted.len() > dims.len() => {
                return Err(mismatch(format!(
                    "expected values rank at least {}, got {}",
                    wanted.len(),
                    dims.len()
                )));
            }
            None => wanted.to_vec(),
        };
        for (i, (wanted, &got)) in inner.iter().zip(dims).enumerate().skip(1) {
            if let Some(wanted) = wanted.filter(|&w| w != got) {
                return Err(mismatch(format!(
                    "expected values dim {i} to be {wanted}, got {got}"
                )));
            }
        }
        Ok(())
    }

    fn outputs(mut self, declared: &PartialShape, mean: bool) -> Result<Vec<Tensor>> {
        let dims = self.values.dims();
        let row: usize = dims.get(1..).unwrap_or_default().iter().product();
        let first = declared.dims().and_then(|d| d.first().copied().flatten());
        let mut shape = vec![first.map_or(-1, |d| d as i64)];
        shape.extend(dims.iter().skip(1).map(|&d| d as i64));
        if mean && row > 0 {
            with_type!(self.values.dtype(), T in [f32, f64, half::f16] => {
                let rows = self.values.make_mut::<T>()?.chunks_exact_mut(row);
                for (values, &count) in rows.zip(&self.counts) {
                    for a in values {
                        *a = a.over(count);
                    }
                }
            });
        }
        Ok(vec![
            Tensor::vector(self.indices),
            self.values,
            Tensor::vector(shape),
        ])
    }
}

/// Merges two lists of rows, adding those with the same index as the merge meets them.
fn merge<T: Number>(a: &Rows, b: &Rows) -> Result<Rows> {
    let inner = a.values.dims().get(1..).unwrap_or_default();
    let row: usize = inner.iter().product();
    let (x, y) = (a.values.as_slice::<T>()?, b.values.as_slice::<T>()?);
    let total = a.indices.len() + b.indices.len();
    let (mut indices, mut counts) = (Vec::with_capacity(total), Vec::with_capacity(total));
    let mut values: Vec<T> = Vec::with_capacity(x.len() + y.len());
    let (mut i, mut j) = (0, 0);
    loop {
        let (left, right) = (a.indices.get(i), b.indices.get(j));
        let (Some(&index), from_left, from_right) = (match (left, right) {
            (Some(l), Some(r)) if l == r => (left, true, true),
            (Some(l), Some(r)) if l > r => (right, false, true),
            (Some(_), _) => (left, true, false),
            (None, _) => (right, false, true),
        }) else {
            break;
        };
        let (x, y) = (
            x.get(i * row..(i + 1) * row).unwrap_or_default(),
            y.get(j * row..(j + 1) * row).unwrap_or_default(),
        );
        let mut count = 0;
        match (from_left, from_right) {
            (true, true) => values.extend(x.iter().zip(y).map(|(x, y)| x.plus(*y))),
            (true, false) => values.extend_from_slice(x),
            _ => values.extend_from_slice(y),
        }
        if from_left {
            count += a.counts[i];
            i += 1;
        }
        if from_right {
            count += b.counts[j];
            j += 1;
        }
        indices.push(index);
        counts.push(count);
    }
    let mut dims = vec![indices.len()];
    dims.extend_from_slice(inner);
    Ok(Rows {
        indices,
        counts,
        values: Tensor::from_vec(values, Shape::from(dims))?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(indices: &[i64], values: &[f32]) -> Gradient {
        let values = Tensor::from_vec(values.to_vec(), [indices.len(), 1]).unwrap();
        Gradient::Sparse(Rows::new(&Tensor::vector(indices.to_vec()), values).unwrap())
    }

    fn result(g: Gradient, mean: bool) -> (Vec<i64>, Vec<f32>) {
        let out = g.outputs(&PartialShape::unknown(), mean, 1).unwrap();
        assert_eq!(out[2].as_slice::<i64>().unwrap(), [-1, 1]);
        (
            out[0].as_slice().unwrap().to_vec(),
            out[1].as_slice().unwrap().to_vec(),
        )
    }

    #[test]
    fn each_row_is_divided_by_its_own_count() {
        let mut sum = rows(&[0, 2], &[1.0, 3.0]);
        sum.add(rows(&[2, 3], &[5.0, 7.0])).unwrap();
        assert_eq!(result(sum, true), (vec![0, 2, 3], vec![1.0, 4.0, 7.0]));
    }

    #[test]
    fn unsorted_rows_merge_as_in_tensorflow() {
        let mut sum = rows(&[3, 0], &[1.0, 3.0]);
        sum.add(rows(&[0, 2], &[5.0, 7.0])).unwrap();
        assert_eq!(
            result(sum, false),
            (vec![0, 2, 3, 0], vec![5.0, 7.0, 1.0, 3.0])
        );
    }

    #[test]
    fn shapes_that_do_not_fit_are_named() {
        let declared = PartialShape::from_dims([Some(4), Some(1)]);
        let text = |g: &Gradient, given: &[i64]| {
            g.check(&declared, None, Some(given)).unwrap_err().message
        };
        let g = rows(&[9], &[1.0]);
        assert_eq!(
            text(&g, &[4, 1]),
            "Shape mismatch: index of slice 0 exceeded limits of shape; index is 9 exceeded 4"
        );
        assert_eq!(
            text(&g, &[4, 2]),
            "Shape mismatch: expected shape dim 1 to be 1, got 2"
        );
        let dense = Gradient::Dense(Tensor::vector(vec![1f32]));
        let e = dense.check(&declared, None, None).unwrap_err().message;
        assert_eq!(e, "Shape mismatch: expected [4,1], got [1]");
    }
}
