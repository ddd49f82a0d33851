//! Lists, optional values and ragged tensors on their way between tasks: as TensorFlow writes them
//! down, and alive again on the other side. Maps, datasets and iterators stay where they are.

use super::composite::{self, Composite};
use super::optional::Optional;
use super::primitive::Primitive;
use super::tensor_list::TensorList;
use crate::sparse::ragged_variant::Ragged;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_tensor::{Encoded, Tensor, Variant, VariantValue};
use downpour_wire::ListMetadata;

/// A list as it leaves the task.
pub(super) fn list(list: &TensorList) -> Encoded {
    let missing = list.tensors.iter().enumerate();
    let missing = missing.filter_map(|(i, t)| t.is_none().then_some(i));
    let metadata = ListMetadata {
        missing: missing.collect(),
        dtype: list.dtype,
        max: list.max,
        shape: list.shape.clone(),
    };
    Encoded {
        type_name: list.type_name().to_owned(),
        metadata: metadata.encode(),
        tensors: list.tensors.iter().flatten().cloned().collect(),
    }
}

/// An optional value as it leaves the task.
pub(super) fn optional(optional: &Optional) -> Encoded {
    Encoded {
        type_name: optional.type_name().to_owned(),
        metadata: Bytes::from_static(if optional.0.is_some() { &[1] } else { &[0] }),
        tensors: optional.0.clone().unwrap_or_default(),
    }
}

/// Makes values of what another task wrote down; other tensors are what they are.
pub(crate) fn revived(tensor: Tensor) -> Result<Tensor> {
    let Ok(variants) = tensor.as_variants() else {
        return Ok(tensor);
    };
    let is_written = |v: &Variant| v.downcast::<Encoded>().is_some();
    if !variants.iter().any(is_written) {
        return Ok(tensor);
    }
    let live = variants.iter().map(|v| match v.downcast::<Encoded>() {
        Some(encoded) => alive(encoded, v),
        None => Ok(v.clone()),
    });
    let live = live.collect::<Result<Vec<_>>>()?;
    Ok(Tensor::variants(live, tensor.shape().clone())?)
}

fn alive(encoded: &Encoded, as_is: &Variant) -> Result<Variant> {
    let broken = || {
        Status::invalid_argument(format!(
            "Could not parse a variant of type '{}' that another task sent",
            encoded.type_name
        ))
    };
    let tensors = encoded.tensors.iter().cloned().map(revived);
    let tensors = tensors.collect::<Result<Vec<_>>>()?;
    match encoded.type_name.as_str() {
        "tensorflow::TensorList" => {
            let list = alive_list(&encoded.metadata, tensors).ok_or_else(broken)?;
            Ok(Variant::new(list))
        }
        "tensorflow::data::Optional" => match encoded.metadata.first() {
            Some(0) => Ok(Variant::new(Optional(None))),
            Some(_) => Ok(Variant::new(Optional(Some(tensors)))),
            None => Err(broken()),
        },
        "RaggedTensorVariant" => Ok(Variant::new(Ragged::decoded(encoded).ok_or_else(broken)?)),
        "int" | "float" | "double" | "bool" => {
            let value = Primitive::decode(&encoded.type_name, &encoded.metadata);
            Ok(Variant::new(value.ok_or_else(broken)?))
        }
        composite::TYPE_NAME => Ok(Variant::new(Composite {
            metadata: encoded.metadata.clone(),
            components: tensors,
        })),
        // An iterator's state is used as it was written down.
        _ => Ok(as_is.clone()),
    }
}

fn alive_list(metadata: &[u8], given: Vec<Tensor>) -> Option<TensorList> {
    let metadata = ListMetadata::decode(metadata)?;
    if given.iter().any(|t| t.dtype() != metadata.dtype) {
        return None;
    }
    let total = given.len() + metadata.missing.len();
    let (mut missing, mut given) = (metadata.missing.into_iter().peekable(), given.into_iter());
    let mut tensors = Vec::with_capacity(total);
    for i in 0..total {
        if missing.next_if_eq(&i).is_some() {
            tensors.push(None);
        } else {
            tensors.push(Some(given.next()?));
        }
    }
    Some(TensorList {
        dtype: metadata.dtype,
        shape: metadata.shape,
        max: metadata.max,
        tensors,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_tensor::{DType, PartialShape};

    fn travelled(value: impl VariantValue) -> Result<Tensor> {
        let encoded = value.encoded().unwrap();
        revived(Tensor::variant(Variant::new(encoded)))
    }

    #[test]
    fn what_was_written_down_lives_again() {
        let inner = TensorList::new(DType::Int32, PartialShape::unknown(), vec![]);
        let inner = Tensor::variant(Variant::new(inner.encoded().unwrap()));
        let shape = PartialShape::from_dims([]);
        let list = TensorList {
            max: 7,
            ..TensorList::new(DType::Variant, shape.clone(), vec![None, Some(inner), None])
        };
        let back = travelled(list).unwrap();
        let list: &TensorList = back.as_variants().unwrap()[0].downcast().unwrap();
        assert_eq!(
            (list.dtype, list.max, &list.shape),
            (DType::Variant, 7, &shape)
        );
        assert!(list.tensors[0].is_none() && list.tensors[2].is_none());
        let inner = list.tensors[1].as_ref().unwrap();
        let inner: &TensorList = inner.as_variants().unwrap()[0].downcast().unwrap();
        assert_eq!((inner.dtype, inner.tensors.len()), (DType::Int32, 0));

        for value in [None, Some(vec![Tensor::scalar(3i32)])] {
            let back = travelled(Optional(value.clone())).unwrap();
            let back: &Optional = back.as_variants().unwrap()[0].downcast().unwrap();
            assert_eq!(back.0.is_some(), value.is_some());
        }
        let ragged = Ragged {
            splits: vec![Tensor::vector(vec![0i64, 2])],
            values: Tensor::vector(vec![5i32, 6]),
        };
        let back = travelled(ragged).unwrap();
        let back: &Ragged = back.as_variants().unwrap()[0].downcast().unwrap();
        assert_eq!(back.values.as_slice::<i32>().unwrap(), [5, 6]);
    }

    #[test]
    fn nonsense_from_a_peer_is_an_error() {
        let list = |metadata: &'static [u8], tensors| {
            revived(Tensor::variant(Variant::new(Encoded {
                type_name: "tensorflow::TensorList".into(),
                metadata: Bytes::from_static(metadata),
                tensors,
            })))
        };
        assert!(list(&[0, 3, 0], vec![Tensor::scalar(1i32)]).is_ok());
        for (metadata, tensor) in [
            (&[][..], Tensor::scalar(1i32)),
            // Another type than it says; an element too many; one that is missing twice.
            (&[0, 3, 0], Tensor::scalar(1.0f32)),
            (&[1, 9, 3, 0], Tensor::scalar(1i32)),
            (&[2, 0, 0, 3, 0], Tensor::scalar(1i32)),
        ] {
            assert!(list(metadata, vec![tensor]).is_err(), "{metadata:?}");
        }
    }
}
