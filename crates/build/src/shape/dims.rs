//! Arithmetic on shapes of which parts are unknown: what rules are made of.

use super::{Context, Dim, Shapes, invalid, one};
use downpour_graph::Result;
use downpour_tensor::PartialShape;

/// A shape of these dimensions.
pub(super) fn shape(dims: impl IntoIterator<Item = Dim>) -> PartialShape {
    PartialShape::from_dims(dims)
}

/// A shape of this rank of which nothing else is known.
pub(super) fn of_rank(rank: usize) -> PartialShape {
    PartialShape::from_dims(std::iter::repeat_n(None, rank))
}

/// The dimensions of a shape, if their number is known.
pub(super) fn dims_of(shape: &PartialShape) -> Option<Vec<Dim>> {
    shape.dims().map(<[Dim]>::to_vec)
}

/// The dimensions of `a`, then those of `b`.
pub(super) fn concatenate(a: &PartialShape, b: &PartialShape) -> PartialShape {
    match (a.dims(), b.dims()) {
        (Some(a), Some(b)) => shape(a.iter().chain(b).copied()),
        _ => PartialShape::unknown(),
    }
}

/// A shape with one dimension replaced.
pub(super) fn replace(of: &PartialShape, at: usize, dim: Dim) -> PartialShape {
    let Some(mut dims) = dims_of(of) else {
        return PartialShape::unknown();
    };
    if let Some(place) = dims.get_mut(at) {
        *place = dim;
    }
    shape(dims)
}

/// What is left of a shape from dimension `from` on; nothing if it has fewer.
pub(super) fn rest(of: &PartialShape, from: usize) -> PartialShape {
    match of.dims() {
        Some(dims) => shape(dims.iter().skip(from).copied()),
        None => PartialShape::unknown(),
    }
}

/// Number of elements, if known; a dimension of 0 says it whatever the others are.
pub(super) fn elements(of: &PartialShape) -> Dim {
    let dims = of.dims()?;
    if dims.contains(&Some(0)) {
        return Some(0);
    }
    dims.iter().try_fold(1usize, |n, d| n.checked_mul((*d)?))
}

/// The shape that two tensors broadcast to.
pub(crate) fn broadcast(a: &PartialShape, b: &PartialShape) -> Result<PartialShape> {
    let (Some(x), Some(y)) = (a.dims(), b.dims()) else {
        return Ok(PartialShape::unknown());
    };
    let rank = x.len().max(y.len());
    let mut dims = Vec::with_capacity(rank);
    for i in 0..rank {
        let at = |dims: &[Dim]| match (i + dims.len()).checked_sub(rank) {
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
    Ok(shape(dims))
}

/// What is known when both are shapes of the same tensor.
pub(crate) fn merge(a: &PartialShape, b: &PartialShape) -> Result<PartialShape> {
    let (Some(x), Some(y)) = (a.dims(), b.dims()) else {
        return Ok(if a.rank().is_some() { a } else { b }.clone());
    };
    if x.len() != y.len() {
        return invalid(format!(
            "Shapes must be equal rank, but are {} and {}: {a} and {b}",
            x.len(),
            y.len()
        ));
    }
    let mut dims = Vec::with_capacity(x.len());
    for (i, (&p, &q)) in x.iter().zip(y).enumerate() {
        dims.push(match merge_dim(p, q) {
            Some(dim) => dim,
            None => {
                return invalid(format!(
                    "Dimension {i} in both shapes must be equal. Shapes are {a} and {b}"
                ));
            }
        });
    }
    Ok(shape(dims))
}

/// The first dimensions of `a` are those of `b`; `a` with what is known of them.
pub(super) fn merge_prefix(a: &PartialShape, b: &PartialShape) -> Result<PartialShape> {
    let (Some(x), Some(y)) = (a.dims(), b.dims()) else {
        return Ok(a.clone());
    };
    let Some(prefix) = x.get(..y.len()) else {
        return invalid(format!("{b} has more dimensions than {a}"));
    };
    let prefix = merge(&shape(prefix.iter().copied()), b)?;
    Ok(concatenate(&prefix, &rest(a, y.len())))
}

/// One dimension of which two things are known; nothing if they contradict each other.
pub(crate) fn merge_dim(a: Dim, b: Dim) -> Option<Dim> {
    match (a, b) {
        (Some(a), Some(b)) if a != b => None,
        (a, b) => Some(a.or(b)),
    }
}

/// Like [`merge_dim`], with TensorFlow's error.
pub(super) fn merge_dims(a: Dim, b: Dim) -> Result<Dim> {
    match (a, b) {
        (Some(x), Some(y)) if x != y => {
            invalid(format!("Dimensions must be equal, but are {x} and {y}"))
        }
        _ => Ok(a.or(b)),
    }
}

/// A dimension divided into equal parts.
pub(super) fn divide(dim: Dim, by: usize) -> Result<Dim> {
    match dim {
        Some(_) if by == 0 => invalid("Divisor must be positive but is 0"),
        Some(d) if d % by != 0 => invalid(format!(
            "Dimension size must be evenly divisible by {by} but is {d}"
        )),
        _ => Ok(dim.map(|d| d / by)),
    }
}

/// A product of dimensions; 0 if one of them is.
pub(super) fn multiply(a: Dim, b: Dim) -> Result<Dim> {
    match (a, b) {
        (Some(0), _) | (_, Some(0)) => Ok(Some(0)),
        (Some(a), Some(b)) => match a.checked_mul(b) {
            Some(n) => Ok(Some(n)),
            None => invalid(format!("{a} times {b} is too large for a dimension")),
        },
        _ => Ok(None),
    }
}

/// The smaller of two dimensions, 0 if one of them is.
pub(super) fn smaller(a: Dim, b: Dim) -> Dim {
    match (a, b) {
        (Some(0), _) | (_, Some(0)) => Some(0),
        (Some(a), Some(b)) => Some(a.min(b)),
        _ => None,
    }
}

/// A size from an attribute or a tensor; -1 stands for an unknown one.
pub(super) fn size(value: i64) -> Result<Dim> {
    match usize::try_from(value) {
        Ok(size) => Ok(Some(size)),
        Err(_) if value == -1 => Ok(None),
        Err(_) => invalid(format!(
            "Dimension size must be non-negative but is {value}"
        )),
    }
}

/// A dimension counted from either end.
pub(crate) fn axis(value: i64, rank: usize) -> Result<usize> {
    let from = match value < 0 {
        true => value.saturating_add(rank as i64),
        false => value,
    };
    match usize::try_from(from) {
        Ok(axis) if axis < rank => Ok(axis),
        _ => invalid(format!(
            "dimension {value} is outside a tensor of rank {rank}"
        )),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn s(dims: &[i64]) -> PartialShape {
        PartialShape::checked(dims.iter().copied()).unwrap()
    }

    #[test]
    fn broadcasting_fills_in_what_is_known() {
        let cases: &[(&[i64], &[i64], &[i64])] = &[
            (&[2, 1], &[3], &[2, 3]),
            (&[-1, 3], &[1], &[-1, 3]),
            (&[-1], &[4], &[4]),
            (&[-1], &[1], &[-1]),
            (&[], &[5, 0], &[5, 0]),
        ];
        for (a, b, want) in cases {
            assert_eq!(broadcast(&s(a), &s(b)).unwrap(), s(want), "{a:?} {b:?}");
        }
        assert!(broadcast(&s(&[2]), &s(&[3])).is_err());
        assert_eq!(
            broadcast(&PartialShape::unknown(), &s(&[3])).unwrap(),
            PartialShape::unknown()
        );
    }

    #[test]
    fn merging_joins_and_refuses() {
        assert_eq!(merge(&s(&[-1, 3]), &s(&[2, -1])).unwrap(), s(&[2, 3]));
        assert!(merge(&s(&[2]), &s(&[3])).is_err());
        assert!(merge(&s(&[2]), &s(&[2, 1])).is_err());
        let prefix = merge_prefix(&s(&[-1, 7]), &s(&[4])).unwrap();
        assert_eq!(prefix, s(&[4, 7]));
        assert!(merge_prefix(&s(&[4]), &s(&[4, 7])).is_err());
    }

    #[test]
    fn sizes_are_checked() {
        assert_eq!(divide(Some(6), 3).unwrap(), Some(2));
        assert!(divide(Some(7), 3).is_err());
        assert!(divide(Some(7), 0).is_err());
        assert!(multiply(Some(usize::MAX), Some(2)).is_err());
        assert_eq!(multiply(None, Some(0)).unwrap(), Some(0));
        assert!(size(-2).is_err());
        assert_eq!(axis(-1, 3).unwrap(), 2);
        assert!(axis(3, 3).is_err());
        assert!(axis(i64::MIN, 3).is_err());
        assert_eq!(elements(&s(&[-1, 0])), Some(0));
    }
}
