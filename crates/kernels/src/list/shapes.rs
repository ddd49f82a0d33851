//! What is known of an element's shape, and how two such pieces of knowledge agree.

use downpour_graph::{Result, Status};
use downpour_tensor::{PartialShape, Shape};

/// Whether some shape fits both.
pub(crate) fn compatible(a: &PartialShape, b: &PartialShape) -> bool {
    match (a.dims(), b.dims()) {
        (Some(a), Some(b)) => {
            a.len() == b.len()
                && a.iter()
                    .zip(b)
                    .all(|(a, b)| a.is_none() || b.is_none() || a == b)
        }
        _ => true,
    }
}

/// What is known when both are true.
pub(super) fn merge(a: &PartialShape, b: &PartialShape) -> Result<PartialShape> {
    let (Some(x), Some(y)) = (a.dims(), b.dims()) else {
        return Ok(if a.dims().is_some() { a } else { b }.clone());
    };
    if x.len() != y.len() {
        return Err(Status::invalid_argument(format!(
            "PartialTensorShape: Incompatible ranks during merge: {} vs. {}",
            x.len(),
            y.len()
        )));
    }
    if !compatible(a, b) {
        return Err(Status::invalid_argument(format!(
            "PartialTensorShape: Incompatible shapes during merge: {a} vs. {b}"
        )));
    }
    Ok(PartialShape::from_dims(
        x.iter().zip(y).map(|(x, y)| x.or(*y)),
    ))
}

/// `outer` followed by `inner`; unknown if `inner` is.
pub(super) fn prepend(outer: &[usize], inner: &PartialShape) -> PartialShape {
    match inner.dims() {
        None => PartialShape::unknown(),
        Some(inner) => {
            PartialShape::from_dims(outer.iter().map(|&d| Some(d)).chain(inner.iter().copied()))
        }
    }
}

/// `shape` without its first dimension, and that dimension; `None` for a scalar.
pub(super) fn split_first(shape: &Shape) -> Option<(usize, Shape)> {
    let (&first, rest) = shape.dims().split_first()?;
    Some((first, Shape::from(rest)))
}

/// `first` followed by the dimensions of `rest`, refused where that is too large.
pub(super) fn with_first(first: usize, rest: &Shape) -> Result<Shape> {
    Shape::checked(
        std::iter::once(first)
            .chain(rest.dims().iter().copied())
            .map(|d| i64::try_from(d).unwrap_or(i64::MAX)),
    )
    .map_err(|e| Status::invalid_argument(e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[i64]) -> PartialShape {
        PartialShape::checked(dims.iter().copied()).unwrap()
    }

    #[test]
    fn knowledge_adds_up_or_is_refused() {
        let merged = merge(&shape(&[-1, 3]), &shape(&[2, -1])).unwrap();
        assert_eq!(merged, shape(&[2, 3]));
        let unknown = PartialShape::unknown();
        assert_eq!(merge(&unknown, &shape(&[-1])).unwrap(), shape(&[-1]));
        assert_eq!(merge(&shape(&[-1]), &unknown).unwrap(), shape(&[-1]));
        assert_eq!(
            merge(&shape(&[1]), &shape(&[2])).unwrap_err().message,
            "PartialTensorShape: Incompatible shapes during merge: [1] vs. [2]"
        );
        assert_eq!(
            merge(&shape(&[1]), &shape(&[1, 2])).unwrap_err().message,
            "PartialTensorShape: Incompatible ranks during merge: 1 vs. 2"
        );
    }
}
