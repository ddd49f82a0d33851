//! The tensor: element type, shape, elements. No mathematics lives here.

use crate::account::Charge;
use crate::{Buffer, DType, Element, ResourceHandle, Shape, Variant};
use bytes::Bytes;
use std::sync::Arc;

/// Why a tensor cannot be made or seen as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// The tensor has another element type.
    #[error("expected a tensor of type {expected} but it has type {actual}")]
    DType {
        /// Type that was asked for.
        expected: DType,
        /// Type of the tensor.
        actual: DType,
    },
    /// The number of elements differs from the shape's.
    #[error("shape {shape} needs {expected} elements but {actual} are given")]
    Length {
        /// Shape that was asked for.
        shape: Shape,
        /// Elements of that shape.
        expected: usize,
        /// Elements that are there.
        actual: usize,
    },
    /// The tensor is no scalar.
    #[error("expected a scalar but the tensor has shape {0}")]
    NotScalar(Shape),
}

/// A typed, shaped, copy-on-write array.
///
/// ```
/// use downpour_tensor::{Shape, Tensor};
/// let t = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], Shape::from([2, 2]))?;
/// let mut doubled = t.clone();
/// doubled.make_mut::<f32>()?.iter_mut().for_each(|x| *x *= 2.0);
/// assert_eq!(t.as_slice::<f32>()?, [1.0, 2.0, 3.0, 4.0]);
/// assert_eq!(doubled.as_slice::<f32>()?, [2.0, 4.0, 6.0, 8.0]);
/// # Ok::<(), downpour_tensor::TensorError>(())
/// ```
#[derive(Clone)]
pub struct Tensor {
    dtype: DType,
    shape: Shape,
    data: Data,
}

#[derive(Clone)]
enum Data {
    Plain(Buffer),
    Strings(Arc<Strings>),
    Resources(Arc<Vec<ResourceHandle>>),
    Variants(Arc<Vec<Variant>>),
}

/// Strings, and who pays for them if they are many or long. What they share with others is paid for by each.
#[derive(Clone)]
struct Strings {
    values: Vec<Bytes>,
    payer: Option<Charge>,
}

impl Strings {
    fn new(values: Vec<Bytes>) -> Arc<Strings> {
        let payer = Charge::new(string_bytes(&values));
        Arc::new(Strings { values, payer })
    }
}

/// Bytes of strings and of their headers.
fn string_bytes(values: &[Bytes]) -> usize {
    values.iter().map(|s| s.len() + size_of::<Bytes>()).sum()
}

impl Tensor {
    /// A tensor over `values` in row-major order, taking the vector's memory.
    pub fn from_vec<T: Element>(
        values: Vec<T>,
        shape: impl Into<Shape>,
    ) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        check_length(&shape, values.len())?;
        Ok(Tensor {
            dtype: T::DTYPE,
            shape,
            data: Data::Plain(Buffer::from_vec(values)),
        })
    }

    /// A scalar.
    pub fn scalar<T: Element>(value: T) -> Tensor {
        Tensor {
            dtype: T::DTYPE,
            shape: Shape::scalar(),
            data: Data::Plain(Buffer::scalar(value)),
        }
    }

    /// A vector (rank 1).
    pub fn vector<T: Element>(values: Vec<T>) -> Tensor {
        let shape = Shape::from([values.len()]);
        Tensor {
            dtype: T::DTYPE,
            shape,
            data: Data::Plain(Buffer::from_vec(values)),
        }
    }

    /// Zeros of a plain type, empty strings, nameless handles. Variants have no zero: the result
    /// is then the empty-shaped error of [`Tensor::variants`].
    pub fn zeros(dtype: DType, shape: impl Into<Shape>) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        let n = shape.num_elements();
        let data = match (dtype, dtype.size()) {
            (_, Some(size)) => Data::Plain(Buffer::zeroed(n.saturating_mul(size))),
            (DType::String, _) => Data::Strings(Strings::new(vec![Bytes::new(); n])),
            (DType::Resource, _) => Data::Resources(Arc::new(vec![Default::default(); n])),
            _ => {
                check_length(&shape, 0)?;
                Data::Variants(Arc::default())
            }
        };
        Ok(Tensor { dtype, shape, data })
    }

    /// A tensor over plain bytes in row-major, little-endian order. Bools are normalised to 0/1.
    pub fn from_buffer(
        dtype: DType,
        shape: impl Into<Shape>,
        mut buffer: Buffer,
    ) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        let Some(size) = dtype.size() else {
            return Err(TensorError::DType {
                expected: DType::UInt8,
                actual: dtype,
            });
        };
        if shape.num_elements().checked_mul(size) != Some(buffer.len()) {
            let expected = shape.num_elements();
            return Err(TensorError::Length {
                shape,
                expected,
                actual: buffer.len() / size,
            });
        }
        // All bytes at once rather than the first bad one: this loop runs at memory speed.
        if dtype == DType::Bool && buffer.as_bytes().iter().fold(0, |all, b| all | b) > 1 {
            buffer
                .make_mut()
                .iter_mut()
                .for_each(|b| *b = u8::from(*b != 0));
        }
        let aligned = (buffer.as_bytes().as_ptr() as usize).is_multiple_of(size.min(8));
        if !aligned {
            buffer = Buffer::copy_from(buffer.as_bytes());
        }
        Ok(Tensor {
            dtype,
            shape,
            data: Data::Plain(buffer),
        })
    }

    /// A string tensor.
    pub fn strings(values: Vec<Bytes>, shape: impl Into<Shape>) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        check_length(&shape, values.len())?;
        Ok(Tensor {
            dtype: DType::String,
            shape,
            data: Data::Strings(Strings::new(values)),
        })
    }

    /// A string scalar.
    pub fn string(value: impl Into<Bytes>) -> Tensor {
        let data = Data::Strings(Strings::new(vec![value.into()]));
        Tensor {
            dtype: DType::String,
            shape: Shape::scalar(),
            data,
        }
    }

    /// A tensor of resource handles.
    pub fn resources(
        values: Vec<ResourceHandle>,
        shape: impl Into<Shape>,
    ) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        check_length(&shape, values.len())?;
        Ok(Tensor {
            dtype: DType::Resource,
            shape,
            data: Data::Resources(Arc::new(values)),
        })
    }

    /// A scalar resource handle.
    pub fn resource(handle: ResourceHandle) -> Tensor {
        let data = Data::Resources(Arc::new(vec![handle]));
        Tensor {
            dtype: DType::Resource,
            shape: Shape::scalar(),
            data,
        }
    }

    /// A tensor of variants.
    pub fn variants(values: Vec<Variant>, shape: impl Into<Shape>) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        check_length(&shape, values.len())?;
        Ok(Tensor {
            dtype: DType::Variant,
            shape,
            data: Data::Variants(Arc::new(values)),
        })
    }

    /// A scalar variant.
    pub fn variant(value: Variant) -> Tensor {
        let data = Data::Variants(Arc::new(vec![value]));
        Tensor {
            dtype: DType::Variant,
            shape: Shape::scalar(),
            data,
        }
    }

    /// The element type.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape.
    #[inline]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The dimensions.
    #[inline]
    pub fn dims(&self) -> &[usize] {
        self.shape.dims()
    }

    /// Number of dimensions.
    #[inline]
    pub fn rank(&self) -> usize {
        self.shape.rank()
    }

    /// Number of elements.
    #[inline]
    pub fn num_elements(&self) -> usize {
        self.shape.num_elements()
    }

    /// Bytes the elements take (for strings: their contents).
    #[inline]
    pub fn byte_len(&self) -> usize {
        match &self.data {
            Data::Plain(b) => b.len(),
            Data::Strings(s) => s.values.iter().map(Bytes::len).sum(),
            Data::Resources(_) | Data::Variants(_) => 0,
        }
    }

    /// About as many bytes as there are to go through, found without going through them.
    #[inline]
    pub fn weight(&self) -> usize {
        const LOOKED_AT: usize = 16;
        match &self.data {
            Data::Plain(b) => b.len(),
            Data::Strings(s) => {
                let some = s.values.get(..LOOKED_AT).unwrap_or(&s.values);
                some.iter().map(Bytes::len).sum::<usize>() + s.values.len() * size_of::<Bytes>()
            }
            Data::Resources(r) => r.len() * size_of::<ResourceHandle>(),
            Data::Variants(v) => v.len() * size_of::<Variant>(),
        }
    }

    /// Bytes that nobody pays for yet: what a queue that keeps the tensor has to count itself.
    pub fn uncounted(&self) -> usize {
        size_of::<Tensor>()
            + match &self.data {
                Data::Plain(b) if b.is_counted() => 0,
                Data::Plain(b) => b.len(),
                Data::Strings(s) if s.payer.is_some() => 0,
                Data::Strings(s) => string_bytes(&s.values),
                Data::Resources(r) => r.len() * size_of::<ResourceHandle>(),
                Data::Variants(v) => v.len() * size_of::<Variant>(),
            }
    }

    /// The elements in row-major order.
    pub fn as_slice<T: Element>(&self) -> Result<&[T], TensorError> {
        self.expect_dtype(T::DTYPE)?;
        match &self.data {
            Data::Plain(b) => Ok(b
                .as_slice()
                .expect("a tensor's buffer is aligned and of whole elements")),
            _ => Err(TensorError::DType {
                expected: T::DTYPE,
                actual: self.dtype,
            }),
        }
    }

    /// The elements for writing; copies first if the memory is shared.
    pub fn make_mut<T: Element>(&mut self) -> Result<&mut [T], TensorError> {
        self.expect_dtype(T::DTYPE)?;
        match &mut self.data {
            Data::Plain(b) => Ok(b
                .make_mut_slice()
                .expect("a tensor's buffer is aligned and of whole elements")),
            _ => Err(TensorError::DType {
                expected: T::DTYPE,
                actual: self.dtype,
            }),
        }
    }

    /// The same in memory of our own: for what is kept longer than a step.
    pub fn kept(mut self) -> Tensor {
        if let Data::Plain(b) = &mut self.data
            && b.is_borrowed()
        {
            *b = Buffer::copy_from(b.as_bytes());
        }
        self
    }

    /// Whether writing needs no copy.
    #[inline]
    pub fn is_unique(&self) -> bool {
        match &self.data {
            Data::Plain(b) => b.is_unique(),
            Data::Strings(s) => Arc::strong_count(s) == 1,
            Data::Resources(r) => Arc::strong_count(r) == 1,
            Data::Variants(v) => Arc::strong_count(v) == 1,
        }
    }

    /// The plain bytes, or `None` for strings, resources and variants.
    #[inline]
    pub fn buffer(&self) -> Option<&Buffer> {
        match &self.data {
            Data::Plain(b) => Some(b),
            _ => None,
        }
    }

    /// The plain bytes for writing (copied first if shared), or `None`. Writers must keep bools
    /// 0 or 1.
    pub fn buffer_mut(&mut self) -> Option<&mut [u8]> {
        match &mut self.data {
            Data::Plain(b) => Some(b.make_mut()),
            _ => None,
        }
    }

    /// The strings in row-major order.
    pub fn as_strings(&self) -> Result<&[Bytes], TensorError> {
        match &self.data {
            Data::Strings(s) => Ok(&s.values),
            _ => Err(TensorError::DType {
                expected: DType::String,
                actual: self.dtype,
            }),
        }
    }

    /// The strings for writing; copies the list first if it is shared.
    pub fn make_mut_strings(&mut self) -> Result<&mut Vec<Bytes>, TensorError> {
        match &mut self.data {
            Data::Strings(s) => Ok(&mut Arc::make_mut(s).values),
            _ => Err(TensorError::DType {
                expected: DType::String,
                actual: self.dtype,
            }),
        }
    }

    /// The resource handles in row-major order.
    pub fn as_resources(&self) -> Result<&[ResourceHandle], TensorError> {
        match &self.data {
            Data::Resources(r) => Ok(r),
            _ => Err(TensorError::DType {
                expected: DType::Resource,
                actual: self.dtype,
            }),
        }
    }

    /// The variants in row-major order.
    pub fn as_variants(&self) -> Result<&[Variant], TensorError> {
        match &self.data {
            Data::Variants(v) => Ok(v),
            _ => Err(TensorError::DType {
                expected: DType::Variant,
                actual: self.dtype,
            }),
        }
    }

    /// The variants for writing; copies the list first if it is shared.
    pub fn make_mut_variants(&mut self) -> Result<&mut Vec<Variant>, TensorError> {
        match &mut self.data {
            Data::Variants(v) => Ok(Arc::make_mut(v)),
            _ => Err(TensorError::DType {
                expected: DType::Variant,
                actual: self.dtype,
            }),
        }
    }

    /// The one element of a scalar (or of any one-element tensor).
    pub fn scalar_value<T: Element>(&self) -> Result<T, TensorError> {
        match self.as_slice::<T>()? {
            [value] => Ok(*value),
            _ => Err(TensorError::NotScalar(self.shape.clone())),
        }
    }

    /// The same elements under another shape of as many elements.
    pub fn reshaped(mut self, shape: impl Into<Shape>) -> Result<Tensor, TensorError> {
        let shape = shape.into();
        check_length(&shape, self.num_elements())?;
        self.shape = shape;
        Ok(self)
    }

    /// Rows `start..start + count` of the first dimension. Plain types share memory where the
    /// rows are aligned; strings and handles are copied (they are reference-counted anyway).
    pub fn rows(&self, start: usize, count: usize) -> Option<Tensor> {
        let rows = *self.dims().first()?;
        if start.checked_add(count)? > rows {
            return None;
        }
        let mut shape = self.shape.dims().to_vec();
        *shape.first_mut()? = count;
        let row: usize = self.dims().get(1..)?.iter().product();
        let range = start * row..(start + count) * row;
        let data = match &self.data {
            Data::Plain(b) => {
                let size = self.dtype.size()?;
                let window = b.slice(range.start * size, range.len() * size)?;
                return Tensor::from_buffer(self.dtype, shape, window).ok();
            }
            Data::Strings(s) => Data::Strings(Strings::new(s.values.get(range)?.to_vec())),
            Data::Resources(r) => Data::Resources(Arc::new(r.get(range)?.to_vec())),
            Data::Variants(v) => Data::Variants(Arc::new(v.get(range)?.to_vec())),
        };
        Some(Tensor {
            dtype: self.dtype,
            shape: shape.into(),
            data,
        })
    }

    fn expect_dtype(&self, expected: DType) -> Result<(), TensorError> {
        if self.dtype == expected {
            Ok(())
        } else {
            Err(TensorError::DType {
                expected,
                actual: self.dtype,
            })
        }
    }
}

fn check_length(shape: &Shape, actual: usize) -> Result<(), TensorError> {
    let expected = shape.num_elements();
    if expected == actual {
        Ok(())
    } else {
        Err(TensorError::Length {
            shape: shape.clone(),
            expected,
            actual,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_type_and_length_are_errors() {
        let t = Tensor::vector(vec![1i32, 2]);
        assert_eq!(
            t.as_slice::<f32>(),
            Err(TensorError::DType {
                expected: DType::Float,
                actual: DType::Int32
            })
        );
        assert!(Tensor::from_vec(vec![1.0f32], [2]).is_err());
        assert!(t.scalar_value::<i32>().is_err());
        assert!(t.as_strings().is_err());
        assert!(Tensor::zeros(DType::Variant, [1]).is_err());
    }

    #[test]
    fn foreign_bools_are_normalised() {
        let t = Tensor::from_buffer(DType::Bool, [3], Buffer::copy_from(&[0, 1, 200])).unwrap();
        assert_eq!(t.as_slice::<bool>().unwrap(), [false, true, true]);
    }

    #[test]
    fn rows_share_memory() {
        let t = Tensor::from_vec((0..6).map(|x| x as f32).collect(), [3, 2]).unwrap();
        let r = t.rows(1, 2).unwrap();
        assert_eq!(r.as_slice::<f32>().unwrap(), [2.0, 3.0, 4.0, 5.0]);
        assert!(r.buffer().unwrap().shares_memory_with(t.buffer().unwrap()));
        assert!(t.rows(2, 2).is_none());
        assert!(Tensor::scalar(1u8).rows(0, 0).is_none());
    }
}
