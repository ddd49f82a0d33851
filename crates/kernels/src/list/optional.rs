//! Optionals: values that hold a tuple of tensors, or nothing.

use super::travel;
use super::values::sum;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{Encoded, Tensor, Variant, VariantValue};
use std::any::Any;
use std::fmt;

pub(super) fn register(r: &mut Registry) {
    r.add("OptionalNone", |_| {
        Built::cheap(|ctx| {
            ctx.set_output(0, Tensor::variant(Variant::new(Optional(None))));
            Ok(())
        })
    });
    r.add("OptionalFromValue", |_| {
        Built::cheap(|ctx| {
            let components = (0..ctx.num_inputs()).map(|i| ctx.take(i));
            let value = Optional(Some(components.collect::<Result<_>>()?));
            ctx.set_output(0, Tensor::variant(Variant::new(value)));
            Ok(())
        })
    });
    r.add("OptionalHasValue", |_| {
        Built::cheap(|ctx| {
            let has = Optional::of(ctx, "OptionalHasValue")?.0.is_some();
            ctx.set_output(0, Tensor::scalar(has));
            Ok(())
        })
    });
    r.add("OptionalGetValue", get);
}

/// A tuple of tensors, or nothing.
pub(crate) struct Optional(pub(crate) Option<Vec<Tensor>>);

impl fmt::Debug for Optional {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("OptionalVariant<None>"),
            // TensorFlow shows the last component only.
            Some(c) => match c.last() {
                Some(last) => write!(f, "OptionalVariant<values: ({last:?})>"),
                None => f.write_str("OptionalVariant<values: ()>"),
            },
        }
    }
}

impl VariantValue for Optional {
    fn type_name(&self) -> &str {
        "tensorflow::data::Optional"
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn encoded(&self) -> Option<Encoded> {
        Some(travel::optional(self))
    }
}

impl Optional {
    fn of<'c>(ctx: &'c OpContext<'_>, op: &str) -> Result<&'c Optional> {
        let input = ctx.input(0)?;
        if !input.shape().is_scalar() {
            return Err(Status::invalid_argument(format!(
                "Input to {op} must be a scalar tensor containing an OptionalVariant object."
            )));
        }
        let variant = input.as_variants()?.first();
        variant.and_then(Variant::downcast).ok_or_else(|| {
            Status::invalid_argument(format!("Input to {op} must be an OptionalVariant object."))
        })
    }

    /// The sum of each component; both must have a value, or neither.
    pub(super) fn sum(&self, ctx: &OpContext<'_>, other: &Optional) -> Result<Optional> {
        match (&self.0, &other.0) {
            (None, None) => Ok(Optional(None)),
            (Some(a), Some(b)) if a.len() == b.len() => {
                let sums = a.iter().zip(b).map(|(a, b)| sum(ctx, a, b));
                Ok(Optional(Some(sums.collect::<Result<_>>()?)))
            }
            (Some(_), Some(_)) => Err(Status::invalid_argument(
                "Cannot add optionals because they have different numbers of components.",
            )),
            _ => Err(Status::invalid_argument(
                "Cannot add optionals because one has a value and the other doesn't.",
            )),
        }
    }
}

fn get(b: &KernelBuilder<'_>) -> Result<Built> {
    let types = b.attrs().dtypes("output_types")?.to_vec();
    let shapes = b.attrs().shapes("output_shapes")?.to_vec();
    let invalid = |text: String| Err(Status::invalid_argument(text));
    Built::cheap(move |ctx| {
        let Some(components) = &Optional::of(ctx, "OptionalGetValue")?.0 else {
            return invalid("The given optional does not have a value.".into());
        };
        if components.len() != types.len() {
            return invalid(format!(
                "The given optional has {} components, expected {}",
                components.len(),
                types.len()
            ));
        }
        let components = components.clone();
        for (i, component) in components.iter().enumerate() {
            if component.dtype() != types[i] {
                return invalid(format!(
                    "The given optional does not match the expected type for component {i}. Expected: {}. Actual: {}.",
                    types[i],
                    component.dtype()
                ));
            }
            if let Some(shape) = shapes.get(i).filter(|s| !s.admits(component.shape())) {
                return invalid(format!(
                    "The given optional does not match the expected shape for component {i}. Expected: {shape}. Actual: {}.",
                    component.shape()
                ));
            }
        }
        for (i, component) in components.into_iter().enumerate() {
            ctx.set_output(i, component);
        }
        Ok(())
    })
}
