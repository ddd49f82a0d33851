//! What a kernel is and what it sees: its node, its inputs, places for its outputs, the step.
//!
//! A kernel object is built once per node (per session for stateful ops) and then run by many
//! steps at once, so it is `Sync` and keeps state only behind locks.

use crate::{AsyncOp, Callee, Device, Resource, StepEnv, Variable};
use downpour_graph::{Attrs, FunctionRef, Node, Result, Status};
use downpour_tensor::{DType, Element, PartialShape, ResourceHandle, Shape, Tensor};
use smallvec::SmallVec;
use std::sync::Arc;

/// What travels along an edge.
#[derive(Clone)]
pub enum Value {
    /// A value.
    Tensor(Tensor),
    /// A reference to a variable, for ops that take or give `Ref` types.
    Ref(Arc<Variable>),
}

/// A node's inputs before it runs.
#[derive(Clone, Copy)]
pub struct Inputs<'a>(&'a [Option<Value>]);

impl<'a> Inputs<'a> {
    /// These values.
    pub fn new(values: &'a [Option<Value>]) -> Inputs<'a> {
        Inputs(values)
    }

    /// Input `i`, if it is a value.
    pub fn get(self, i: usize) -> Option<&'a Tensor> {
        match self.0.get(i) {
            Some(Some(Value::Tensor(tensor))) => Some(tensor),
            _ => None,
        }
    }
}

/// What a node has made; a missing one is dead.
pub type Outputs = SmallVec<[Option<Value>; 2]>;

/// A kernel that computes without waiting.
pub trait Kernel: Send + Sync {
    /// Reads inputs and sets outputs. Must not block on anything but short locks and local files.
    fn compute(&self, ctx: &mut OpContext<'_>) -> Result<()>;
}

impl<F: Fn(&mut OpContext<'_>) -> Result<()> + Send + Sync> Kernel for F {
    fn compute(&self, ctx: &mut OpContext<'_>) -> Result<()> {
        self(ctx)
    }
}

/// A kernel that may have to wait (for a tensor, a queue, a function): it holds no thread
/// meanwhile. Waits must end when the step's cancellation fires.
pub trait AsyncKernel: Send + Sync {
    /// Begins; whoever ends the wait calls [`AsyncOp::finish`].
    fn start(&self, op: AsyncOp);
}

impl<F: Fn(AsyncOp) + Send + Sync> AsyncKernel for F {
    fn start(&self, op: AsyncOp) {
        self(op)
    }
}

/// A kernel object, ready to run.
#[derive(Clone)]
pub enum Built {
    /// Takes a microsecond or so: run where its inputs were made.
    Cheap(Arc<dyn Kernel>),
    /// May take long: worth another thread when something else is ready.
    Costly(Arc<dyn Kernel>),
    /// Waits.
    Async(Arc<dyn AsyncKernel>),
}

impl Built {
    /// A cheap kernel from a closure.
    pub fn cheap(
        f: impl Fn(&mut OpContext<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Built> {
        Ok(Built::Cheap(Arc::new(f)))
    }

    /// A costly kernel from a closure.
    pub fn costly(
        f: impl Fn(&mut OpContext<'_>) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Built> {
        Ok(Built::Costly(Arc::new(f)))
    }

    /// A waiting kernel from a closure.
    pub fn waiting(f: impl Fn(AsyncOp) + Send + Sync + 'static) -> Result<Built> {
        Ok(Built::Async(Arc::new(f)))
    }
}

/// What a kernel's factory sees: the node and where it will run.
pub struct KernelBuilder<'a> {
    /// The node, its attributes complete.
    pub node: &'a Arc<Node>,
    /// The device that will run it.
    pub device: &'a Arc<Device>,
    site: &'a str,
}

impl<'a> KernelBuilder<'a> {
    /// To build the kernel of `node`, which is in the function body called `site`; empty in a graph.
    pub fn new(node: &'a Arc<Node>, device: &'a Arc<Device>, site: &'a str) -> KernelBuilder<'a> {
        KernelBuilder { node, device, site }
    }

    /// The node's attributes.
    pub fn attrs(&self) -> &Attrs {
        &self.node.attrs
    }

    /// Type of input `i`.
    pub fn input_type(&self, i: usize) -> Result<DType> {
        self.node
            .input_types
            .get(i)
            .map(|t| t.0)
            .ok_or_else(|| no_such("input", i, &self.node.name))
    }

    /// Type of output `i`.
    pub fn output_type(&self, i: usize) -> Result<DType> {
        self.node
            .output_types
            .get(i)
            .map(|t| t.0)
            .ok_or_else(|| no_such("output", i, &self.node.name))
    }

    /// The function that the `func` attribute `name` names.
    pub fn callee(&self, name: &str) -> Result<Callee> {
        Ok(self.called(self.attrs().func(name)?))
    }

    fn called(&self, function: &FunctionRef) -> Callee {
        Callee::at(function, format!("{}\u{3}{}", self.site, self.node.name))
    }

    /// The functions that the `list(func)` attribute `name` names.
    pub fn callees(&self, name: &str) -> Result<Vec<Callee>> {
        let functions = self.attrs().funcs(name)?.iter();
        Ok(functions.map(|f| self.called(f)).collect())
    }

    /// The container and name under which the node's resource is shared: attributes `container`
    /// and `shared_name`, else the device's default container and the node's name.
    pub fn resource_name(&self) -> Result<(String, String)> {
        let text = |name: &str| match self.attrs().find(name) {
            Some(_) => self.attrs().name(name),
            None => Ok("".into()),
        };
        let (container, shared) = (text("container")?, text("shared_name")?);
        if !is_container_name(&container) {
            return Err(Status::invalid_argument(format!(
                "container contains invalid characters: {container}"
            )));
        }
        if shared.starts_with('_') {
            return Err(Status::invalid_argument(format!(
                "shared_name cannot start with '_':{shared}"
            )));
        }
        let container = match &*container {
            "" => self.device.default_container.clone(),
            given => given.to_owned(),
        };
        let name = match &*shared {
            "" => self.node.name.to_string(),
            given => given.to_owned(),
        };
        Ok((container, name))
    }

    /// A handle to the resource (container, name) on this device.
    pub fn handle(
        &self,
        container: &str,
        name: &str,
        type_name: &str,
        contents: Vec<(DType, PartialShape)>,
    ) -> ResourceHandle {
        ResourceHandle {
            device: self.device.name.clone(),
            container: container.to_owned(),
            name: name.to_owned(),
            hash_code: type_hash(type_name),
            type_name: type_name.to_owned(),
            dtypes_and_shapes: contents,
        }
    }
}

/// Letters, digits and dots, behind the first also dashes and slashes; or nothing.
fn is_container_name(name: &str) -> bool {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b == b'.';
    name.bytes()
        .enumerate()
        .all(|(i, b)| plain(b) || (i > 0 && matches!(b, b'-' | b'/')))
}

pub(crate) fn no_such(what: &str, i: usize, node: &str) -> Status {
    Status::internal(format!("{what} {i} of node {node} does not exist"))
}

/// TensorFlow's hash of a C++ type's name (MurmurHash64A with its own seed), which error texts show.
fn type_hash(name: &str) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    let mix = |k: u64| k ^ (k >> 47);
    let start = 0x00DE_CAFC_AFFE ^ (name.len() as u64).wrapping_mul(M);
    let hash = name.as_bytes().chunks(8).fold(start, |h, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        let mut k = u64::from_le_bytes(word);
        if chunk.len() == 8 {
            k = mix(k.wrapping_mul(M)).wrapping_mul(M);
        }
        (h ^ k).wrapping_mul(M)
    });
    mix(mix(hash).wrapping_mul(M))
}

/// What errors and traces need to know of a node at run time.
pub struct NodeInfo {
    /// Name.
    pub name: Arc<str>,
    /// The checked node.
    pub node: Arc<Node>,
    /// Names of its inputs as a user would write them (`v`, `split:1`).
    pub input_names: Vec<String>,
    /// Whether its kernel may be given up half-way: it changes nothing but its outputs, and perhaps a generator of random
    /// numbers.
    pub can_stop: bool,
}

impl NodeInfo {
    /// Of a node whose inputs are called so.
    pub fn new(node: &Arc<Node>, input_names: Vec<String>) -> NodeInfo {
        let is_state = |(dtype, is_ref): &(DType, bool)| *is_ref || *dtype == DType::Resource;
        NodeInfo {
            name: node.name.clone(),
            node: node.clone(),
            input_names,
            can_stop: (!node.op.stateful || node.attrs.find("seed2").is_some())
                && !node.input_types.iter().any(is_state),
        }
    }
}

/// One run of a kernel.
pub struct OpContext<'a> {
    env: &'a Arc<StepEnv>,
    info: &'a NodeInfo,
    inputs: &'a mut [Option<Value>],
    outputs: &'a mut [Option<Value>],
    frame_iter: (u64, u64),
}

impl<'a> OpContext<'a> {
    /// A run of the node `info` on these inputs, with these places for its outputs.
    #[inline]
    pub fn new(
        env: &'a Arc<StepEnv>,
        info: &'a NodeInfo,
        inputs: &'a mut [Option<Value>],
        outputs: &'a mut [Option<Value>],
        frame_iter: (u64, u64),
    ) -> OpContext<'a> {
        OpContext {
            env,
            info,
            inputs,
            outputs,
            frame_iter,
        }
    }

    /// The inputs and outputs where they lie, for a kernel that is made of several.
    pub fn values(&mut self) -> (&mut [Option<Value>], &mut [Option<Value>]) {
        (self.inputs, self.outputs)
    }

    /// The step.
    pub fn env(&self) -> &'a Arc<StepEnv> {
        self.env
    }

    /// The device.
    pub fn device(&self) -> &'a Arc<Device> {
        &self.env.device
    }

    /// The node.
    pub fn info(&self) -> &'a NodeInfo {
        self.info
    }

    /// The node's name.
    pub fn name(&self) -> &'a str {
        &self.info.name
    }

    /// Number of inputs.
    pub fn num_inputs(&self) -> usize {
        self.inputs.len()
    }

    /// Number of outputs.
    pub fn num_outputs(&self) -> usize {
        self.outputs.len()
    }

    /// `(frame id, iteration)` of this run; `(0, 0)` outside loops.
    pub fn frame_iter(&self) -> (u64, u64) {
        self.frame_iter
    }

    /// Input `i`.
    pub fn input(&self, i: usize) -> Result<&Tensor> {
        match self.inputs.get(i) {
            Some(Some(Value::Tensor(t))) => Ok(t),
            _ => Err(no_such("input", i, &self.info.name)),
        }
    }

    /// All inputs in `range`.
    pub fn inputs(&self, range: std::ops::Range<usize>) -> Result<Vec<&Tensor>> {
        range.map(|i| self.input(i)).collect()
    }

    /// Input `i` by value: unique, hence writable without a copy, when this was its last use.
    pub fn take(&mut self, i: usize) -> Result<Tensor> {
        match self.inputs.get_mut(i).and_then(Option::take) {
            Some(Value::Tensor(t)) => Ok(t),
            _ => Err(no_such("input", i, &self.info.name)),
        }
    }

    /// The variable behind the reference input `i`.
    pub fn input_ref(&self, i: usize) -> Result<Arc<Variable>> {
        match self.inputs.get(i) {
            Some(Some(Value::Ref(v))) => Ok(v.clone()),
            _ => Err(no_such("reference input", i, &self.info.name)),
        }
    }

    /// The resource handle in the scalar input `i`.
    pub fn handle(&self, i: usize) -> Result<&ResourceHandle> {
        self.input(i)?
            .as_resources()?
            .first()
            .ok_or_else(|| Status::invalid_argument(format!("input {i} holds no resource handle")))
    }

    /// The resource of type `R` that the handle in input `i` names.
    pub fn lookup<R: Resource>(&self, i: usize) -> Result<Arc<R>> {
        let handle = self.handle(i)?;
        self.device()
            .resources
            .lookup(&handle.container, &handle.name)
    }

    /// Sets output `i`.
    pub fn set_output(&mut self, i: usize, tensor: Tensor) {
        if let Some(slot) = self.outputs.get_mut(i) {
            *slot = Some(Value::Tensor(tensor));
        }
    }

    /// Sets output `i` to a reference.
    pub fn set_output_ref(&mut self, i: usize, variable: Arc<Variable>) {
        if let Some(slot) = self.outputs.get_mut(i) {
            *slot = Some(Value::Ref(variable));
        }
    }

    /// Passes input `i` on as output `o`, by reference if it came by reference.
    pub fn forward(&mut self, i: usize, o: usize) {
        let value = self.inputs.get_mut(i).and_then(Option::take);
        if let Some(slot) = self.outputs.get_mut(o) {
            *slot = value;
        }
    }

    /// Refuses an output that is over the memory budget. Every kernel whose output is larger
    /// than its inputs asks first, or allocates through [`OpContext::zeros`] or
    /// [`OpContext::vec`], which do.
    pub fn check_alloc(&self, dtype: DType, shape: &Shape) -> Result<()> {
        self.device().check_alloc(dtype, shape)
    }

    /// A tensor of zeros within the memory budget.
    pub fn zeros(&self, dtype: DType, shape: &Shape) -> Result<Tensor> {
        self.check_alloc(dtype, shape)?;
        Ok(Tensor::zeros(dtype, shape.clone())?)
    }

    /// An empty vector with room for a tensor of `shape`, within the memory budget.
    pub fn vec<T: Element>(&self, shape: &Shape) -> Result<Vec<T>> {
        self.check_alloc(T::DTYPE, shape)?;
        Ok(Vec::with_capacity(shape.num_elements()))
    }
}

#[cfg(test)]
mod tests {
    use super::type_hash;

    #[test]
    fn types_have_the_hashes_tensorflow_gives_them() {
        assert_eq!(
            type_hash("N10tensorflow11TensorArrayE"),
            17404284069006640434
        );
        assert_eq!(type_hash("N10tensorflow5StackE"), 11783358439878174618);
    }
}
