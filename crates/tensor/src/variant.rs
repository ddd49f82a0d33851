//! The two element kinds that point at something else: resource handles and variants.

use crate::{DType, PartialShape, Tensor};
use bytes::Bytes;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

/// Names a resource (variable, queue, table, …) on one device.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default)]
pub struct ResourceHandle {
    /// Full name of the device that owns the resource.
    pub device: String,
    /// Container in the device's resource manager.
    pub container: String,
    /// Name within the container.
    pub name: String,
    /// TensorFlow's type hash; carried, never interpreted.
    pub hash_code: u64,
    /// TensorFlow's C++ type name; carried for error texts.
    pub type_name: String,
    /// Types and shapes of what the resource holds, where known.
    pub dtypes_and_shapes: Vec<(DType, PartialShape)>,
}

/// What a variant element may hold: a tensor list, a dataset, an optional, …
pub trait VariantValue: Any + Send + Sync + fmt::Debug {
    /// TensorFlow's registered type name, as in `tensorflow::TensorList`.
    fn type_name(&self) -> &str;
    /// This value as [`Any`], for downcasting.
    fn as_any(&self) -> &dyn Any;
    /// What stands for the value where a tensor is printed.
    fn summary(&self) -> String {
        self.type_name().to_owned()
    }
    /// This value as what may leave the process, if it may.
    fn encoded(&self) -> Option<Encoded> {
        None
    }
}

/// A variant as it is written down: what it is, and of what it consists.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// TensorFlow's registered type name.
    pub type_name: String,
    /// What the type makes of it.
    pub metadata: Bytes,
    /// Tensors that go along.
    pub tensors: Vec<Tensor>,
}

impl VariantValue for Encoded {
    fn type_name(&self) -> &str {
        &self.type_name
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn encoded(&self) -> Option<Encoded> {
        Some(self.clone())
    }
}

/// One variant element.
#[derive(Clone, Debug)]
pub struct Variant(pub Arc<dyn VariantValue>);

impl Variant {
    /// Wraps a value.
    pub fn new<V: VariantValue>(value: V) -> Variant {
        Variant(Arc::new(value))
    }

    /// The value, if it is a `V`.
    pub fn downcast<V: VariantValue>(&self) -> Option<&V> {
        self.0.as_any().downcast_ref()
    }
}
