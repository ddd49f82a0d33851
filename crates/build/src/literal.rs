//! What may be written where a tensor, a shape or axes are meant: numbers, arrays, vectors.

use downpour_tensor::{DType, PartialShape, Shape, Tensor};
use half::{bf16, f16};

/// A value that can stand for a tensor.
///
/// ```
/// use downpour_build::IntoTensor;
/// assert_eq!([[1.0f32, 2.0], [3.0, 4.0]].into_tensor().dims(), [2, 2]);
/// assert_eq!("text".into_tensor().dims(), [0usize; 0]);
/// ```
pub trait IntoTensor {
    /// The tensor.
    fn into_tensor(self) -> Tensor;
}

impl IntoTensor for Tensor {
    fn into_tensor(self) -> Tensor {
        self
    }
}

impl IntoTensor for &Tensor {
    fn into_tensor(self) -> Tensor {
        self.clone()
    }
}

macro_rules! numbers {
    ($($t:ty)*) => {$(
        impl IntoTensor for $t {
            fn into_tensor(self) -> Tensor {
                Tensor::scalar(self)
            }
        }

        impl IntoTensor for Vec<$t> {
            fn into_tensor(self) -> Tensor {
                Tensor::vector(self)
            }
        }

        impl IntoTensor for &[$t] {
            fn into_tensor(self) -> Tensor {
                Tensor::vector(self.to_vec())
            }
        }

        impl<const N: usize> IntoTensor for [$t; N] {
            fn into_tensor(self) -> Tensor {
                Tensor::vector(self.to_vec())
            }
        }

        impl<const N: usize, const M: usize> IntoTensor for [[$t; M]; N] {
            fn into_tensor(self) -> Tensor {
                shaped(self.concat(), [N, M])
            }
        }

        impl<const N: usize, const M: usize, const L: usize> IntoTensor for [[[$t; L]; M]; N] {
            fn into_tensor(self) -> Tensor {
                shaped(self.concat().concat(), [N, M, L])
            }
        }
    )*};
}

numbers! { f32 f64 i32 i64 u8 i8 u16 i16 u32 u64 bool f16 bf16 }

/// A tensor of as many values as the shape has.
fn shaped<T: downpour_tensor::Element>(values: Vec<T>, shape: impl Into<Shape>) -> Tensor {
    let tensor = Tensor::vector(values);
    let flat = tensor.clone();
    tensor.reshaped(shape).unwrap_or(flat)
}

impl IntoTensor for &str {
    fn into_tensor(self) -> Tensor {
        Tensor::string(self.as_bytes().to_vec())
    }
}

impl IntoTensor for String {
    fn into_tensor(self) -> Tensor {
        Tensor::string(self.into_bytes())
    }
}

impl IntoTensor for Vec<&str> {
    fn into_tensor(self) -> Tensor {
        strings(self.iter().map(|s| s.as_bytes()))
    }
}

impl IntoTensor for Vec<String> {
    fn into_tensor(self) -> Tensor {
        strings(self.iter().map(|s| s.as_bytes()))
    }
}

fn strings<'a>(values: impl ExactSizeIterator<Item = &'a [u8]>) -> Tensor {
    let shape = [values.len()];
    let values = values.map(bytes::Bytes::copy_from_slice).collect();
    Tensor::strings(values, shape).unwrap_or_else(|_| Tensor::string(""))
}

/// A value that can stand for a shape, known in part or in full.
///
/// ```
/// use downpour_build::IntoShape;
/// assert_eq!([2, 3].into_shape().to_string(), "[2,3]");
/// assert_eq!([None, Some(3)].into_shape().to_string(), "[?,3]");
/// assert_eq!(().into_shape().rank(), Some(0));
/// ```
pub trait IntoShape {
    /// The shape.
    fn into_shape(self) -> PartialShape;
}

impl IntoShape for PartialShape {
    fn into_shape(self) -> PartialShape {
        self
    }
}

impl IntoShape for &PartialShape {
    fn into_shape(self) -> PartialShape {
        self.clone()
    }
}

impl IntoShape for Shape {
    fn into_shape(self) -> PartialShape {
        (&self).into()
    }
}

impl IntoShape for () {
    fn into_shape(self) -> PartialShape {
        PartialShape::from_dims([])
    }
}

impl<const N: usize> IntoShape for [usize; N] {
    fn into_shape(self) -> PartialShape {
        PartialShape::from_dims(self.map(Some))
    }
}

impl<const N: usize> IntoShape for [Option<usize>; N] {
    fn into_shape(self) -> PartialShape {
        PartialShape::from_dims(self)
    }
}

impl IntoShape for &[usize] {
    fn into_shape(self) -> PartialShape {
        PartialShape::from_dims(self.iter().map(|d| Some(*d)))
    }
}

impl IntoShape for Vec<usize> {
    fn into_shape(self) -> PartialShape {
        PartialShape::from_dims(self.into_iter().map(Some))
    }
}

/// Dimensions to work along: `()` for all, a number, or several; negative ones count from the
/// end.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session};
/// let g = Graph::new();
/// let x = g.constant([[1.0f32, 2.0, 3.0], [10.0, 20.0, 30.0]]);
/// let sums = [x.sum(()), x.sum(0), x.sum(-1), x.sum([0, 1])];
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// let expected: [&[f32]; 4] = [&[66.0], &[11.0, 22.0, 33.0], &[6.0, 60.0], &[66.0]];
/// for (sum, expected) in sums.iter().zip(expected) {
///     assert_eq!(session.fetch(sum)?.as_slice::<f32>()?, expected);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Axes(pub(crate) Option<Vec<i32>>);

impl From<()> for Axes {
    fn from((): ()) -> Axes {
        Axes(None)
    }
}

impl From<i32> for Axes {
    fn from(axis: i32) -> Axes {
        Axes(Some(vec![axis]))
    }
}

impl<const N: usize> From<[i32; N]> for Axes {
    fn from(axes: [i32; N]) -> Axes {
        Axes(Some(axes.to_vec()))
    }
}

impl From<&[i32]> for Axes {
    fn from(axes: &[i32]) -> Axes {
        Axes(Some(axes.to_vec()))
    }
}

impl From<Vec<i32>> for Axes {
    fn from(axes: Vec<i32>) -> Axes {
        Axes(Some(axes))
    }
}

/// A number as a scalar of this type; nothing if the type has no such numbers.
pub(crate) fn number(value: f64, dtype: DType) -> Option<Tensor> {
    use num_complex::Complex;
    Some(match dtype {
        DType::Float => Tensor::scalar(value as f32),
        DType::Double => Tensor::scalar(value),
        DType::Half => Tensor::scalar(f16::from_f64(value)),
        DType::BFloat16 => Tensor::scalar(bf16::from_f64(value)),
        DType::Int32 => Tensor::scalar(value as i32),
        DType::Int64 => Tensor::scalar(value as i64),
        DType::Int16 => Tensor::scalar(value as i16),
        DType::Int8 => Tensor::scalar(value as i8),
        DType::UInt8 => Tensor::scalar(value as u8),
        DType::UInt16 => Tensor::scalar(value as u16),
        DType::UInt32 => Tensor::scalar(value as u32),
        DType::UInt64 => Tensor::scalar(value as u64),
        DType::Complex64 => Tensor::scalar(Complex::new(value as f32, 0.0)),
        DType::Complex128 => Tensor::scalar(Complex::new(value, 0.0)),
        _ => return None,
    })
}
