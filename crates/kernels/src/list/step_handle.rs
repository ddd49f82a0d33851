//! Handles to objects that live in a step: how a node gives one and how another finds the object.
//!
//! A handle is a resource, a pair of strings `[prefix, name]`, or a reference to such a pair; the
//! object's key is the prefix and the name, one after the other.

use downpour_graph::{Result, Status};
use downpour_runtime::{KernelBuilder, OpContext, Resource, Variable};
use downpour_tensor::{DType, ResourceHandle, Tensor};
use std::sync::Arc;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Ref,
    Strings,
    Resource,
}

/// How a node holds its handle: output 0 of a node that makes the object, input 0 of others.
pub(super) struct StepHandle {
    given: Kind,
    taken: Kind,
    model: ResourceHandle,
    /// What an error calls a pair of strings of the wrong length.
    bad_pair: &'static str,
}

impl StepHandle {
    /// For a node that handles objects of TensorFlow's C++ type `type_name`.
    pub(super) fn new(
        b: &KernelBuilder<'_>,
        type_name: &str,
        bad_pair: &'static str,
    ) -> StepHandle {
        let kind = |t: Option<&(DType, bool)>| match t {
            Some((_, true)) => Kind::Ref,
            Some((DType::String, _)) => Kind::Strings,
            _ => Kind::Resource,
        };
        StepHandle {
            given: kind(b.node.output_types.first()),
            taken: kind(b.node.input_types.first()),
            model: b.handle("", "", type_name, Vec::new()),
            bad_pair,
        }
    }

    /// Sets output 0 to the handle of the object `prefix` + `name`.
    pub(super) fn emit(&self, ctx: &mut OpContext<'_>, prefix: &str, name: &str) -> Result<()> {
        if self.given == Kind::Resource {
            let handle = ResourceHandle {
                container: container(ctx),
                name: format!("{prefix}{name}"),
                ..self.model.clone()
            };
            ctx.set_output(0, Tensor::resource(handle));
            return Ok(());
        }
        let pair = vec![
            prefix.to_owned().into_bytes().into(),
            name.to_owned().into_bytes().into(),
        ];
        let pair = Tensor::strings(pair, [2])?;
        match self.given {
            Kind::Ref => ctx.set_output_ref(0, Arc::new(Variable::with_value(pair))),
            _ => ctx.set_output(0, pair),
        }
        Ok(())
    }

    /// The prefix (where it can be told from the name) and name in the handle of input 0.
    pub(super) fn key(&self, ctx: &OpContext<'_>) -> Result<(Option<String>, String)> {
        let pair = match self.taken {
            Kind::Resource => {
                let handle = ctx.handle(0)?;
                self.check_type(handle)?;
                return Ok((None, handle.name.clone()));
            }
            Kind::Strings => ctx.input(0)?.clone(),
            Kind::Ref => ctx
                .input_ref(0)?
                .read()
                .ok_or_else(|| Status::failed_precondition("the handle has no value"))?,
        };
        let [prefix, name] = pair.as_strings()? else {
            return Err(Status::invalid_argument(format!(
                "{}, but had shape: {}",
                self.bad_pair,
                pair.shape()
            )));
        };
        let text = |s: &[u8]| String::from_utf8_lossy(s).into_owned();
        Ok((Some(text(prefix)), text(name)))
    }

    /// The object that the handle in input 0 names.
    pub(super) fn find<R: Resource>(&self, ctx: &OpContext<'_>) -> Result<Arc<R>> {
        let (prefix, name) = self.key(ctx)?;
        let key = prefix.unwrap_or_default() + &name;
        let found = ctx.env().step_resources.find("", &key);
        found.ok_or_else(|| {
            let own = container(ctx);
            let named = match self.taken {
                Kind::Resource => ctx.handle(0).map_or(own.clone(), |h| h.container.clone()),
                _ => own.clone(),
            };
            Status::not_found(if named == own {
                format!(
                    "Resource {own}/{key}/{} does not exist.",
                    self.model.type_name
                )
            } else {
                format!(
                    "Container {named} does not exist. (Could not find resource: {named}/{key})"
                )
            })
        })
    }

    fn check_type(&self, handle: &ResourceHandle) -> Result<()> {
        crate::queue::check_handle_type(handle, &self.model)
    }
}

/// The container of the step's objects.
fn container(ctx: &OpContext<'_>) -> String {
    format!("__per_step_{}", ctx.env().step_id)
}
