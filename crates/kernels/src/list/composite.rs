//! Composite tensors as variants: the components of a ragged or sparse tensor, with what says how to read them.

use bytes::Bytes;
use downpour_formats::data_options::type_spec_class;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::{Encoded, Tensor, Variant, VariantValue};
use std::any::Any;

pub(super) fn register(r: &mut Registry) {
    r.add("CompositeTensorVariantFromComponents", from_components);
    r.add("CompositeTensorVariantToComponents", to_components);
}

#[derive(Debug)]
pub(super) struct Composite {
    /// A serialised `CompositeTensorVariantMetadata`.
    pub(super) metadata: Bytes,
    pub(super) components: Vec<Tensor>,
}

/// TensorFlow's name of the type.
pub(super) const TYPE_NAME: &str = "CompositeTensorVariant";

impl VariantValue for Composite {
    fn type_name(&self) -> &str {
        TYPE_NAME
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn encoded(&self) -> Option<Encoded> {
        Some(Encoded {
            type_name: TYPE_NAME.to_owned(),
            metadata: self.metadata.clone(),
            tensors: self.components.clone(),
        })
    }
}

fn from_components(b: &KernelBuilder<'_>) -> Result<Built> {
    let metadata = b.attrs().bytes("metadata")?.clone();
    Built::cheap(move |ctx| {
        let components = (0..ctx.num_inputs()).map(|i| ctx.take(i));
        let composite = Composite {
            components: components.collect::<Result<_>>()?,
            metadata: metadata.clone(),
        };
        ctx.set_output(0, Tensor::variant(Variant::new(composite)));
        Ok(())
    })
}

fn to_components(b: &KernelBuilder<'_>) -> Result<Built> {
    let wanted = type_spec_class(b.attrs().bytes("metadata")?).unwrap_or(0);
    let types = b.attrs().dtypes("Tcomponents")?.to_vec();
    Built::cheap(move |ctx| {
        let invalid = |text: String| Err(Status::invalid_argument(text));
        let input = ctx.input(0)?.clone();
        let first = input.as_variants()?.first();
        let Some(composite) = first.and_then(Variant::downcast::<Composite>) else {
            return invalid("The input `encoded` does not contain a composite tensor".to_owned());
        };
        let class = type_spec_class(&composite.metadata).unwrap_or(0);
        if class != wanted {
            return invalid(format!(
                "Expected a {} (based on `type_spec`), but `encoded` contains a {}",
                class_name(wanted),
                class_name(class)
            ));
        }
        if composite.components.len() != types.len() {
            return invalid(format!(
                "Encoded composite tensor has {} components; expected {}",
                composite.components.len(),
                types.len()
            ));
        }
        for (i, (component, dtype)) in composite.components.iter().zip(&types).enumerate() {
            if component.dtype() != *dtype {
                return invalid(format!(
                    "Tensor component {i} had dtype {}; expected dtype {}",
                    component.dtype().enum_name(),
                    dtype.enum_name()
                ));
            }
        }
        for (i, component) in composite.components.iter().enumerate() {
            ctx.set_output(i, component.clone());
        }
        Ok(())
    })
}

/// Names of `TypeSpecProto.TypeSpecClass`.
fn class_name(class: u64) -> String {
    match class {
        1 => "SPARSE_TENSOR_SPEC",
        2 => "INDEXED_SLICES_SPEC",
        3 => "RAGGED_TENSOR_SPEC",
        4 => "TENSOR_ARRAY_SPEC",
        5 => "DATA_DATASET_SPEC",
        6 => "DATA_ITERATOR_SPEC",
        7 => "OPTIONAL_SPEC",
        8 => "PER_REPLICA_SPEC",
        9 => "VARIABLE_SPEC",
        10 => "ROW_PARTITION_SPEC",
        12 => "REGISTERED_TYPE_SPEC",
        13 => "EXTENSION_TYPE_SPEC",
        _ => "UNKNOWN",
    }
    .to_owned()
}
