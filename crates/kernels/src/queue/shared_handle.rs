//! How nodes name the objects they share: the node that owns one (`Home`) and the nodes that get
//! its handle as a resource, or as a reference to the strings `[container, name]` (`Access`).
//!
//! An object without a shared name is private to its kernel and leaves with it.

use downpour_graph::{Result, Status};
use downpour_runtime::{
    AsyncOp, KernelBuilder, OpContext, Resource, ResourceManager, StepEnv, Variable,
};
use downpour_tensor::{DType, ResourceHandle, Tensor};
use parking_lot::Mutex;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Numbers the private objects of the process, as their names show.
static PRIVATE: AtomicU64 = AtomicU64::new(0);

/// Container of objects that live in the step that made them.
pub(crate) const ANONYMOUS: &str = "Anonymous";

/// Which kind of handle a node has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HandleKind {
    Ref,
    Resource,
}

impl HandleKind {
    /// What a signature calls the handle.
    pub(crate) fn type_text(self) -> &'static str {
        match self {
            HandleKind::Ref => "string_ref",
            HandleKind::Resource => "resource",
        }
    }
}

/// The place of a node's object among the device's resources.
pub(crate) struct Home<R: Resource> {
    handle_kind: HandleKind,
    container: String,
    name: String,
    private: bool,
    handle: ResourceHandle,
    /// The reference output, and the manager to leave when the kernel goes.
    made: Mutex<Option<(Arc<Variable>, Arc<ResourceManager>)>>,
    kind: PhantomData<fn() -> R>,
}

impl<R: Resource> Home<R> {
    /// Reads the attributes `container` and `shared_name`; `type_name` is TensorFlow's C++ type.
    pub(crate) fn new(b: &KernelBuilder<'_>, type_name: &str) -> Result<Home<R>> {
        let (container, mut name) = b.resource_name()?;
        let by_node = match b.attrs().find("use_node_name_sharing") {
            Some(_) => b.attrs().bool("use_node_name_sharing")?,
            None => false,
        };
        let private = !by_node && b.attrs().bytes("shared_name")?.is_empty();
        if private {
            let n = PRIVATE.fetch_add(1, Ordering::Relaxed);
            name = format!("_{n}_{}", b.node.name);
        }
        let is_ref = b.node.output_types.first().is_some_and(|t| t.1);
        Ok(Home {
            handle_kind: if is_ref {
                HandleKind::Ref
            } else {
                HandleKind::Resource
            },
            handle: b.handle(&container, &name, type_name, Vec::new()),
            container,
            name,
            private,
            made: Mutex::new(None),
            kind: PhantomData,
        })
    }

    /// The object's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// The object, made by `create` if it does not exist.
    pub(crate) fn get(
        &self,
        ctx: &OpContext<'_>,
        create: impl FnOnce() -> Result<R>,
    ) -> Result<Arc<R>> {
        self.get_in(&ctx.device().resources, create)
    }

    /// As [`Home::get`], for a waiting op. The object leaves with the kernel if it is private.
    pub(crate) fn get_in(
        &self,
        resources: &Arc<ResourceManager>,
        create: impl FnOnce() -> Result<R>,
    ) -> Result<Arc<R>> {
        let found = resources.find_or_create(&self.container, &self.name, create)?;
        let mut made = self.made.lock();
        if made.is_none() {
            let strings = vec![
                self.container.clone().into_bytes().into(),
                self.name.clone().into_bytes().into(),
            ];
            let reference = Variable::with_value(Tensor::strings(strings, [2])?);
            *made = Some((Arc::new(reference), resources.clone()));
        }
        Ok(found)
    }

    /// The handle, for a node whose output is a resource.
    pub(crate) fn handle(&self) -> Tensor {
        Tensor::resource(self.handle.clone())
    }

    /// Sets output 0 to the handle.
    pub(crate) fn emit(&self, ctx: &mut OpContext<'_>) -> Result<()> {
        match self.handle_kind {
            HandleKind::Ref => {
                let made = self.made.lock();
                let (reference, _) = made
                    .as_ref()
                    .ok_or_else(|| Status::internal("a handle is asked for before its object"))?;
                ctx.set_output_ref(0, reference.clone());
            }
            HandleKind::Resource => ctx.set_output(0, self.handle()),
        }
        Ok(())
    }
}

/// Where a node puts the objects it makes anew in every run, each for the rest of its step.
pub(crate) struct Anonymous<R: Resource> {
    handle: ResourceHandle,
    kind: PhantomData<fn() -> R>,
}

impl<R: Resource> Anonymous<R> {
    /// For objects of TensorFlow's C++ type `type_name`.
    pub(crate) fn new(b: &KernelBuilder<'_>, type_name: &str) -> Anonymous<R> {
        Anonymous {
            handle: b.handle(ANONYMOUS, "", type_name, Vec::new()),
            kind: PhantomData,
        }
    }

    /// Keeps `object` until the step ends, and sets output 0 to its handle.
    pub(crate) fn emit(&self, ctx: &mut OpContext<'_>, object: R) {
        let n = PRIVATE.fetch_add(1, Ordering::Relaxed);
        let mut handle = self.handle.clone();
        handle.name = format!("{}/{n}", ctx.name());
        let resources = &ctx.env().step_resources;
        resources.insert(ANONYMOUS, &handle.name, Arc::new(object));
        ctx.set_output(0, Tensor::resource(handle));
    }
}

impl<R: Resource> Drop for Home<R> {
    fn drop(&mut self) {
        if let (true, Some((_, resources))) = (self.private, self.made.lock().take()) {
            resources.remove::<R>(&self.container, &self.name);
        }
    }
}

/// How a node finds the object that one of its inputs names.
pub(crate) struct Access {
    /// Which kind of handle it takes.
    pub(crate) kind: HandleKind,
    input: usize,
    wanted: ResourceHandle,
}

impl Access {
    /// For a node whose input 0 is a handle to an object of TensorFlow's C++ type `type_name`.
    pub(crate) fn new(b: &KernelBuilder<'_>, type_name: &str) -> Access {
        Access::at(b, 0, type_name)
    }

    /// As [`Access::new`], for the handle at input `input`.
    pub(crate) fn at(b: &KernelBuilder<'_>, input: usize, type_name: &str) -> Access {
        let is_ref = b.node.input_types.get(input).is_some_and(|t| t.1);
        Access {
            kind: if is_ref {
                HandleKind::Ref
            } else {
                HandleKind::Resource
            },
            input,
            wanted: b.handle("", "", type_name, Vec::new()),
        }
    }

    /// The object, for a waiting op.
    pub(crate) fn of_op<R: Resource>(&self, op: &AsyncOp) -> Result<Arc<R>> {
        match self.kind {
            HandleKind::Ref => self.by_reference(op.env(), &*op.input_ref(self.input)?),
            HandleKind::Resource => self.by_handle(op.env(), first_handle(op.input(self.input)?)?),
        }
    }

    /// The object, for an op that does not wait.
    pub(crate) fn of_ctx<R: Resource>(&self, ctx: &OpContext<'_>) -> Result<Arc<R>> {
        match self.kind {
            HandleKind::Ref => self.by_reference(ctx.env(), &*ctx.input_ref(self.input)?),
            HandleKind::Resource => self.by_handle(ctx.env(), ctx.handle(self.input)?),
        }
    }

    /// The container and the name of the object.
    pub(crate) fn names(&self, ctx: &OpContext<'_>) -> Result<(String, String)> {
        match self.kind {
            HandleKind::Ref => names_in(&*ctx.input_ref(self.input)?),
            HandleKind::Resource => {
                let handle = ctx.handle(self.input)?;
                Ok((handle.container.clone(), handle.name.clone()))
            }
        }
    }

    fn by_reference<R: Resource>(&self, env: &StepEnv, reference: &Variable) -> Result<Arc<R>> {
        let (container, name) = names_in(reference)?;
        self.look_up(env, &container, &name)
    }

    fn by_handle<R: Resource>(&self, env: &StepEnv, handle: &ResourceHandle) -> Result<Arc<R>> {
        check_handle_type(handle, &self.wanted)?;
        self.look_up(env, &handle.container, &handle.name)
    }

    fn look_up<R: Resource>(&self, env: &StepEnv, container: &str, name: &str) -> Result<Arc<R>> {
        let resources = match container {
            ANONYMOUS => &env.step_resources,
            _ => &*env.device.resources,
        };
        resources
            .find(container, name)
            .ok_or_else(|| resources.not_found(container, name, &self.wanted.type_name))
    }
}

/// The types of a node's inputs after the handle and of its outputs, checked against those its
/// object has.
pub(crate) struct Signature {
    pub(crate) access: Access,
    inputs: Vec<DType>,
    outputs: Vec<DType>,
}

impl Signature {
    /// For a node whose input 0 is a handle to an object of TensorFlow's C++ type `type_name`.
    pub(crate) fn new(b: &KernelBuilder<'_>, type_name: &str) -> Signature {
        Signature {
            access: Access::new(b, type_name),
            inputs: b.node.input_types.iter().skip(1).map(|t| t.0).collect(),
            outputs: b.node.output_types.iter().map(|t| t.0).collect(),
        }
    }

    /// Refuses a node that does not take and give these.
    pub(crate) fn check(&self, inputs: &[DType], outputs: &[DType]) -> Result<()> {
        if self.inputs == inputs && self.outputs == outputs {
            return Ok(());
        }
        let text = |inputs: &[DType], outputs: &[DType]| {
            let names = inputs.iter().map(|t| t.name());
            let inputs: Vec<&str> = std::iter::once(self.access.kind.type_text())
                .chain(names)
                .collect();
            let outputs: Vec<&str> = outputs.iter().map(|t| t.name()).collect();
            format!("{}->{}", inputs.join(", "), outputs.join(", "))
        };
        Err(Status::invalid_argument(format!(
            "Signature mismatch, have: {} expected: {}",
            text(&self.inputs, &self.outputs),
            text(inputs, outputs)
        )))
    }
}

/// Refuses a handle to an object of another type than `wanted`'s.
pub(crate) fn check_handle_type(handle: &ResourceHandle, wanted: &ResourceHandle) -> Result<()> {
    if handle.type_name.is_empty() || handle.type_name == wanted.type_name {
        return Ok(());
    }
    Err(Status::invalid_argument(format!(
        "Trying to access a handle's resource using the wrong type. The handle points to a resource (name '{}') of type '{}' (hash code {}) but you are trying to access the resource as type '{}' (hash code {})",
        handle.name,
        demangled(&handle.type_name),
        handle.hash_code,
        demangled(&wanted.type_name),
        wanted.hash_code
    )))
}

/// The container and the name that a reference holds.
fn names_in(reference: &Variable) -> Result<(String, String)> {
    let value = reference
        .read()
        .ok_or_else(|| Status::failed_precondition("the handle has no value"))?;
    let [container, name] = value.as_strings()? else {
        return Err(Status::invalid_argument(format!(
            "Resource handle must have 2 elements, but had shape: {}",
            value.shape()
        )));
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok((text(container), text(name)))
}

fn first_handle(tensor: &Tensor) -> Result<&ResourceHandle> {
    tensor
        .as_resources()?
        .first()
        .ok_or_else(|| Status::invalid_argument("input 0 holds no resource handle"))
}

/// `N10tensorflow3VarE` as `tensorflow::Var`; anything else as it is.
fn demangled(name: &str) -> String {
    let parts = || {
        let mut rest = name.strip_prefix('N')?.strip_suffix('E')?;
        let mut parts = Vec::new();
        while !rest.is_empty() {
            let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
            let length: usize = rest.get(..digits)?.parse().ok()?;
            let end = digits.checked_add(length)?;
            parts.push(rest.get(digits..end)?);
            rest = rest.get(end..)?;
        }
        Some(parts.join("::"))
    };
    parts().unwrap_or_else(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::demangled;

    #[test]
    fn type_names_are_shown_as_a_programmer_writes_them() {
        assert_eq!(demangled("N10tensorflow3VarE"), "tensorflow::Var");
        assert_eq!(demangled("N99tensorflow3VarE"), "N99tensorflow3VarE");
        assert_eq!(demangled("Plain"), "Plain");
    }
}
