//! What a parsing op was asked for: names, types and shapes of features, and their defaults.

use super::invalid;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_tensor::{DType, PartialShape, Shape, Tensor};
use std::collections::HashMap;

/// A feature that becomes a dense tensor.
pub(crate) struct Dense {
    pub(super) key: Bytes,
    pub(super) dtype: DType,
    /// One example's shape; when `variable`, the first dimension is what the example has.
    pub(super) shape: PartialShape,
    /// No element: the feature must be there.
    pub(super) default: Tensor,
    pub(super) variable: bool,
    /// Values of one example, or of one of its rows when `variable`.
    pub(super) stride: usize,
}

/// A feature that becomes a sparse tensor.
pub(crate) struct Sparse {
    pub(super) key: Bytes,
    pub(super) dtype: DType,
}

/// A feature that becomes a ragged tensor.
pub(crate) struct Ragged {
    pub(super) key: Bytes,
    pub(super) dtype: DType,
    pub(super) splits: DType,
}

/// Which feature of a [`Config`] a key means.
#[derive(Clone, Copy)]
pub(super) enum Slot {
    Dense(usize),
    Sparse(usize),
    Ragged(usize),
}

/// All features that are asked for.
pub(crate) struct Config {
    pub(super) dense: Vec<Dense>,
    pub(super) sparse: Vec<Sparse>,
    pub(super) ragged: Vec<Ragged>,
    index: HashMap<Bytes, Slot>,
}

impl Config {
    /// Refuses a key that is asked for twice.
    pub(crate) fn new(
        dense: Vec<Dense>,
        sparse: Vec<Sparse>,
        ragged: Vec<Ragged>,
    ) -> Result<Config> {
        let keys = (dense.iter().enumerate())
            .map(|(i, d)| (d.key.clone(), Slot::Dense(i)))
            .chain((sparse.iter().enumerate()).map(|(i, s)| (s.key.clone(), Slot::Sparse(i))))
            .chain((ragged.iter().enumerate()).map(|(i, r)| (r.key.clone(), Slot::Ragged(i))));
        let mut index = HashMap::with_capacity(dense.len() + sparse.len() + ragged.len());
        for (key, slot) in keys {
            if index.insert(key, slot).is_some() {
                return Err(Status::internal(
                    "Could not avoid collision. This should not happen.",
                ));
            }
        }
        Ok(Config {
            dense,
            sparse,
            ragged,
            index,
        })
    }

    pub(super) fn find(&self, key: &[u8]) -> Option<Slot> {
        self.index.get(key).copied()
    }
}

/// Shapes of dense features, as an op's attribute gives them.
#[derive(Clone)]
pub(crate) struct DenseShape {
    pub(super) shape: PartialShape,
    pub(super) variable: bool,
    pub(super) stride: usize,
}

impl DenseShape {
    /// Only the first dimension may be unknown.
    pub(crate) fn parse(shapes: &[PartialShape]) -> Result<Vec<DenseShape>> {
        let parse = |(i, shape): (usize, &PartialShape)| {
            let inner = |dims: &[Option<usize>]| -> Option<usize> {
                dims.iter().try_fold(1usize, |n, d| n.checked_mul((*d)?))
            };
            let known = shape.dims().and_then(|dims| match dims {
                [None, rest @ ..] => Some((true, inner(rest)?)),
                all => Some((false, inner(all)?)),
            });
            match known {
                Some((variable, stride)) => Ok(DenseShape {
                    shape: shape.clone(),
                    variable,
                    stride,
                }),
                None => invalid(format!(
                    "dense_shapes[{i}] has unknown rank or unknown inner dimensions: {shape}"
                )),
            }
        };
        shapes.iter().enumerate().map(parse).collect()
    }
}

/// Dense features from their keys, shapes and defaults, which are checked against one another.
pub(crate) fn dense(
    keys: &[Bytes],
    types: &[DType],
    shapes: &[DenseShape],
    defaults: &[&Tensor],
) -> Result<Vec<Dense>> {
    let mut out = Vec::with_capacity(keys.len());
    for (d, default) in defaults.iter().enumerate() {
        let (Some(key), Some(&dtype), Some(shape)) = (keys.get(d), types.get(d), shapes.get(d))
        else {
            return invalid("len(dense_keys) != len(dense_types)");
        };
        if shape.variable {
            if default.num_elements() != 1 {
                return invalid(format!(
                    "dense_shape[{d}] is a variable length shape: {}, therefore def_value[{d}] must contain a single element (the padding element).  But its shape is: {}",
                    shape.shape,
                    default.shape()
                ));
            }
        } else if default.num_elements() > 0 && !shape.shape.admits(default.shape()) {
            return invalid(format!(
                "def_value[{d}].shape() == {} is not compatible with dense_shapes_[{d}] == {}",
                default.shape(),
                shape.shape
            ));
        }
        if default.dtype() != dtype {
            return invalid(format!(
                "dense_defaults[{d}].dtype() == {} != dense_types_[{d}] == {dtype}",
                default.dtype()
            ));
        }
        out.push(Dense {
            key: key.clone(),
            dtype,
            shape: shape.shape.clone(),
            default: (*default).clone(),
            variable: shape.variable,
            stride: shape.stride,
        });
    }
    Ok(out)
}

/// Sparse features.
pub(crate) fn sparse(keys: &[Bytes], types: &[DType]) -> Vec<Sparse> {
    let pairs = keys.iter().zip(types);
    pairs
        .map(|(key, &dtype)| Sparse {
            key: key.clone(),
            dtype,
        })
        .collect()
}

/// Ragged features.
pub(crate) fn ragged(keys: &[Bytes], types: &[DType], splits: &[DType]) -> Vec<Ragged> {
    let rows = keys.iter().zip(types).zip(splits);
    rows.map(|((key, &dtype), &splits)| Ragged {
        key: key.clone(),
        dtype,
        splits,
    })
    .collect()
}

/// `lead` dimensions, then those of `shape` that are known.
pub(super) fn shape_after(lead: &[usize], shape: &[Option<usize>]) -> Result<Shape> {
    let dims = lead.iter().copied().chain(shape.iter().flatten().copied());
    Ok(Shape::checked(dims.map(|d| d as i64))?)
}
