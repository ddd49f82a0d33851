//! Reading small integer arguments (axes, shapes, sizes) whatever their index type.

use downpour_graph::{Result, Status};
use downpour_tensor::{DType, Shape, ShapeError, Tensor};

/// All elements of an integer tensor of any width, as i64.
pub(crate) fn ints(tensor: &Tensor) -> Result<Vec<i64>> {
    Ok(match tensor.dtype() {
        DType::Int32 => tensor
            .as_slice::<i32>()?
            .iter()
            .map(|&v| v.into())
            .collect(),
        DType::Int64 => tensor.as_slice::<i64>()?.to_vec(),
        DType::Int16 => tensor
            .as_slice::<i16>()?
            .iter()
            .map(|&v| v.into())
            .collect(),
        DType::UInt16 => tensor
            .as_slice::<u16>()?
            .iter()
            .map(|&v| v.into())
            .collect(),
        DType::Int8 => tensor.as_slice::<i8>()?.iter().map(|&v| v.into()).collect(),
        DType::UInt8 => tensor.as_slice::<u8>()?.iter().map(|&v| v.into()).collect(),
        DType::UInt32 => tensor
            .as_slice::<u32>()?
            .iter()
            .map(|&v| v.into())
            .collect(),
        other => return Err(Status::internal(format!("expected integers, got {other}"))),
    })
}

/// The one element of an integer scalar (or one-element tensor).
pub(crate) fn int(tensor: &Tensor) -> Result<i64> {
    match ints(tensor)?.as_slice() {
        [value] => Ok(*value),
        _ => Err(Status::invalid_argument(format!(
            "expected a scalar, but the tensor has shape {}",
            tensor.shape()
        ))),
    }
}

/// The elements of an integer vector as a shape.
pub(crate) fn shape(tensor: &Tensor) -> Result<Shape> {
    shape_of(&ints(tensor)?)
}

/// Dimensions given by a user as a shape, refused in TensorFlow's words.
pub(crate) fn shape_of(dims: &[i64]) -> Result<Shape> {
    Shape::checked(dims.iter().copied()).map_err(|e| {
        Status::invalid_argument(match e {
            ShapeError::Negative(_, d) => format!("Dimension {d} must be >= 0"),
            ShapeError::Rank(_) => "Too many dimensions".to_owned(),
            other => other.to_string(),
        })
    })
}

/// `axis`, counted from the end when negative, as an index below `rank`; `None` when out of range.
pub(crate) fn axis(axis: i64, rank: usize) -> Option<usize> {
    let rank = rank as i64;
    let at = if axis < 0 {
        axis.checked_add(rank)?
    } else {
        axis
    };
    (0..rank).contains(&at).then_some(at as usize)
}

/// `values` as an integer tensor of `dtype` (int32 or int64) and `shape`.
pub(crate) fn int_tensor(
    dtype: DType,
    values: Vec<i64>,
    shape: impl Into<Shape>,
) -> Result<Tensor> {
    Ok(match dtype {
        DType::Int64 => Tensor::from_vec(values, shape)?,
        DType::Int32 => {
            let narrow = values
                .iter()
                .map(|&v| {
                    i32::try_from(v).map_err(|_| {
                        Status::invalid_argument(format!("{v} does not fit into int32"))
                    })
                })
                .collect::<Result<Vec<i32>>>()?;
            Tensor::from_vec(narrow, shape)?
        }
        DType::Int16 => Tensor::from_vec(values.iter().map(|&v| v as i16).collect(), shape)?,
        DType::UInt16 => Tensor::from_vec(values.iter().map(|&v| v as u16).collect(), shape)?,
        other => return Err(Status::internal(format!("no index type: {other}"))),
    })
}
