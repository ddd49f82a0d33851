//! `TensorShapeProto` ⇄ [`Shape`] and [`PartialShape`]. Names of dimensions are dropped: nothing
//! reads them.

use crate::proto::{TensorShapeProto, tensor_shape_proto::Dim};
use downpour_tensor::{MAX_RANK, PartialShape, Shape, ShapeError};

/// The shape of a value. `unknown_rank` is not looked at, as in TensorFlow.
pub fn decode_shape(proto: &TensorShapeProto) -> Result<Shape, ShapeError> {
    check_rank(proto)?;
    Shape::checked(proto.dim.iter().map(|d| d.size))
}

/// The shape in an attribute: -1 is an unknown dimension.
pub fn decode_partial_shape(proto: &TensorShapeProto) -> Result<PartialShape, ShapeError> {
    if proto.unknown_rank {
        return Ok(PartialShape::unknown());
    }
    check_rank(proto)?;
    PartialShape::checked(proto.dim.iter().map(|d| d.size))
}

/// Before anything is collected.
fn check_rank(proto: &TensorShapeProto) -> Result<(), ShapeError> {
    if proto.dim.len() > MAX_RANK {
        return Err(ShapeError::Rank(proto.dim.len()));
    }
    Ok(())
}

/// A shape from dimensions.
pub fn encode_dims(dims: &[usize]) -> TensorShapeProto {
    TensorShapeProto {
        dim: dims.iter().map(|&d| dim(Some(d))).collect(),
        unknown_rank: false,
    }
}

/// The shape of a value.
pub fn encode_shape(shape: &Shape) -> TensorShapeProto {
    encode_dims(shape.dims())
}

/// A shape of which parts may be unknown.
pub fn encode_partial_shape(shape: &PartialShape) -> TensorShapeProto {
    match shape.dims() {
        None => TensorShapeProto {
            dim: Vec::new(),
            unknown_rank: true,
        },
        Some(dims) => TensorShapeProto {
            dim: dims.iter().map(|&d| dim(d)).collect(),
            unknown_rank: false,
        },
    }
}

fn dim(size: Option<usize>) -> Dim {
    Dim {
        size: size.map_or(-1, |d| i64::try_from(d).unwrap_or(i64::MAX)),
        name: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(dims: &[i64]) -> TensorShapeProto {
        TensorShapeProto {
            dim: dims
                .iter()
                .map(|&size| Dim {
                    size,
                    name: String::new(),
                })
                .collect(),
            unknown_rank: false,
        }
    }

    #[test]
    fn shapes_survive_the_round_trip() {
        for dims in [&[][..], &[0], &[3, 4, 5]] {
            assert_eq!(decode_shape(&encode_dims(dims)).unwrap(), Shape::from(dims));
        }
        for partial in [
            PartialShape::unknown(),
            PartialShape::from_dims([]),
            PartialShape::from_dims([None, Some(3)]),
        ] {
            assert_eq!(
                decode_partial_shape(&encode_partial_shape(&partial)).unwrap(),
                partial
            );
        }
    }

    #[test]
    fn hostile_dimensions_are_refused() {
        for dims in [&[-1][..], &[-2], &[1 << 62, 4], &[1 << 62, 4, 0], &[1; 255]] {
            assert!(decode_shape(&shape(dims)).is_err());
        }
        for dims in [&[-2][..], &[i64::MIN], &[1 << 62, -1, 4], &[1; 255]] {
            assert!(decode_partial_shape(&shape(dims)).is_err());
        }
    }

    #[test]
    fn an_unknown_rank_matters_only_to_attributes() {
        let mut unknown = shape(&[2]);
        unknown.unknown_rank = true;
        assert_eq!(decode_shape(&unknown).unwrap(), Shape::from([2]));
        assert_eq!(
            decode_partial_shape(&unknown).unwrap(),
            PartialShape::unknown()
        );
    }
}
