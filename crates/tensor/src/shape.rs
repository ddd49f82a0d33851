//! Shapes of tensors (all dimensions known) and of attributes (some or none known).

use smallvec::SmallVec;
use std::fmt;
use std::ops::Deref;

/// Most dimensions a tensor may have, as in TensorFlow.
pub const MAX_RANK: usize = 254;

/// Dimension sizes; four stay inline.
pub type Dims = SmallVec<[usize; 4]>;

/// Why a list of dimensions is no shape.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ShapeError {
    /// More than [`MAX_RANK`] dimensions.
    #[error("Shape must have rank at most {MAX_RANK}, but it has rank {0}")]
    Rank(usize),
    /// A size below zero.
    #[error("Dimension {1} must be >= 0")]
    Negative(usize, i64),
    /// The number of elements does not fit.
    #[error("Shape [{0}] would have more than 2**63 - 1 elements")]
    TooLarge(String),
}

/// The dimensions of a tensor.
///
/// ```
/// use downpour_tensor::Shape;
/// let s = Shape::from([2, 3]);
/// assert_eq!((s.rank(), s.num_elements(), s.to_string()), (2, 6, "[2,3]".to_string()));
/// ```
#[derive(PartialEq, Eq, Hash, Default)]
pub struct Shape(Dims);

impl Clone for Shape {
    /// Copies the sizes at once: that of the list would go through them one by one.
    #[inline]
    fn clone(&self) -> Shape {
        Shape(Dims::from_slice(&self.0))
    }
}

impl Shape {
    /// The shape of a scalar.
    pub fn scalar() -> Shape {
        Shape(Dims::new())
    }

    /// Checks dimensions that came from a user or a file.
    pub fn checked<I: IntoIterator<Item = i64>>(dims: I) -> Result<Shape, ShapeError> {
        let mut out = Dims::new();
        for (i, d) in dims.into_iter().enumerate() {
            out.push(usize::try_from(d).map_err(|_| ShapeError::Negative(i, d))?);
        }
        if out.len() > MAX_RANK {
            return Err(ShapeError::Rank(out.len()));
        }
        let product = out.iter().try_fold(1u64, |p, &d| p.checked_mul(d as u64));
        match product {
            Some(p) if p <= i64::MAX as u64 => Ok(Shape(out)),
            // A zero later in the list makes the product zero even where the prefix overflows;
            // TensorFlow refuses those as well.
            _ => Err(ShapeError::TooLarge(
                out.iter()
                    .map(usize::to_string)
                    .collect::<Vec<_>>()
                    .join(","),
            )),
        }
    }

    /// Number of dimensions.
    #[inline]
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Product of the dimensions (1 for a scalar).
    #[inline]
    pub fn num_elements(&self) -> usize {
        self.0.iter().fold(1usize, |p, &d| p.saturating_mul(d))
    }

    /// The dimensions.
    #[inline]
    pub fn dims(&self) -> &[usize] {
        &self.0
    }

    /// Whether this is the shape of a scalar.
    #[inline]
    pub fn is_scalar(&self) -> bool {
        self.0.is_empty()
    }

    /// Row-major strides in elements.
    pub fn strides(&self) -> Dims {
        let mut strides: Dims = smallvec::smallvec![1; self.rank()];
        for i in (1..self.rank()).rev() {
            strides[i - 1] = strides[i].saturating_mul(self.0[i].max(1));
        }
        strides
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl From<&[usize]> for Shape {
    fn from(dims: &[usize]) -> Shape {
        Shape(dims.into())
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(dims: [usize; N]) -> Shape {
        Shape(dims.as_slice().into())
    }
}

impl From<Vec<usize>> for Shape {
    fn from(dims: Vec<usize>) -> Shape {
        Shape(Dims::from_vec(dims))
    }
}

impl From<Dims> for Shape {
    fn from(dims: Dims) -> Shape {
        Shape(dims)
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(iter: I) -> Shape {
        Shape(iter.into_iter().collect())
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A shape of which dimensions, or even the rank, may be unknown.
#[derive(Clone, PartialEq, Eq, Hash, Default)]
pub struct PartialShape(Option<SmallVec<[Option<usize>; 4]>>);

impl PartialShape {
    /// The shape about which nothing is known.
    pub fn unknown() -> PartialShape {
        PartialShape(None)
    }

    /// Checks dimensions from an attribute; -1 stands for an unknown one.
    pub fn checked<I: IntoIterator<Item = i64>>(dims: I) -> Result<PartialShape, ShapeError> {
        let mut out = SmallVec::new();
        for (i, d) in dims.into_iter().enumerate() {
            out.push(match d {
                -1 => None,
                d => Some(usize::try_from(d).map_err(|_| ShapeError::Negative(i, d))?),
            });
        }
        if out.len() > MAX_RANK {
            return Err(ShapeError::Rank(out.len()));
        }
        let product = out
            .iter()
            .flatten()
            .try_fold(1u64, |p, &d| p.checked_mul(d as u64));
        match product {
            Some(p) if p <= i64::MAX as u64 => Ok(PartialShape(Some(out))),
            _ => Err(ShapeError::TooLarge(
                out.iter()
                    .map(|d| d.map_or("?".into(), |d| d.to_string()))
                    .collect::<Vec<_>>()
                    .join(","),
            )),
        }
    }

    /// Builds from dimensions that are known to be sound.
    pub fn from_dims<I: IntoIterator<Item = Option<usize>>>(dims: I) -> PartialShape {
        PartialShape(Some(dims.into_iter().collect()))
    }

    /// Number of dimensions, if known.
    pub fn rank(&self) -> Option<usize> {
        self.0.as_ref().map(SmallVec::len)
    }

    /// The dimensions, if the rank is known.
    pub fn dims(&self) -> Option<&[Option<usize>]> {
        self.0.as_deref()
    }

    /// The full shape, if every dimension is known.
    pub fn to_shape(&self) -> Option<Shape> {
        self.0
            .as_ref()?
            .iter()
            .copied()
            .collect::<Option<Dims>>()
            .map(Shape)
    }

    /// Whether a tensor of shape `shape` fits.
    pub fn admits(&self, shape: &Shape) -> bool {
        match &self.0 {
            None => true,
            Some(dims) => {
                dims.len() == shape.rank()
                    && dims
                        .iter()
                        .zip(shape.dims())
                        .all(|(a, b)| a.is_none_or(|a| a == *b))
            }
        }
    }
}

impl From<&Shape> for PartialShape {
    fn from(shape: &Shape) -> PartialShape {
        PartialShape::from_dims(shape.dims().iter().map(|&d| Some(d)))
    }
}

impl fmt::Display for PartialShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(dims) = &self.0 else {
            return f.write_str("<unknown>");
        };
        f.write_str("[")?;
        for (i, d) in dims.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            match d {
                Some(d) => write!(f, "{d}")?,
                None => f.write_str("?")?,
            }
        }
        f.write_str("]")
    }
}

impl fmt::Debug for PartialShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_dimensions_are_refused() {
        assert_eq!(Shape::checked([2, -1]), Err(ShapeError::Negative(1, -1)));
        assert!(matches!(
            Shape::checked([1 << 62, 4]),
            Err(ShapeError::TooLarge(_))
        ));
        assert!(matches!(
            Shape::checked([1 << 62, 4, 0]),
            Err(ShapeError::TooLarge(_))
        ));
        assert_eq!(Shape::checked(vec![1; 255]), Err(ShapeError::Rank(255)));
        assert!(PartialShape::checked([-2]).is_err());
        assert!(PartialShape::checked([1 << 62, -1, 4]).is_err());
    }

    #[test]
    fn strides_are_row_major() {
        assert_eq!(Shape::from([2, 3, 4]).strides().as_slice(), [12, 4, 1]);
        assert!(Shape::scalar().strides().is_empty());
    }

    #[test]
    fn partial_shapes_admit_what_fits() {
        let p = PartialShape::checked([-1, 3]).unwrap();
        assert!(p.admits(&Shape::from([7, 3])));
        assert!(!p.admits(&Shape::from([7, 4])));
        assert!(!p.admits(&Shape::from([3])));
        assert!(PartialShape::unknown().admits(&Shape::scalar()));
        assert_eq!(p.to_string(), "[?,3]");
    }
}
