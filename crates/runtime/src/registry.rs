//! Which kernel runs which op for which element types.

use crate::arithmetic::Arithmetic;
use crate::kernel::{Built, Inputs, KernelBuilder};
use crate::shortcut::Finder;
use downpour_graph::{Node, Result, Status};
use downpour_tensor::DType;
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;

/// Makes a kernel object for one node.
pub type Factory = fn(&KernelBuilder<'_>) -> Result<Built>;

/// How many bytes a node will write, by its inputs' shapes and, where those are sizes, values. An estimate that is quick
/// to make: it decides which thread runs the kernel, and refuses nothing.
pub type Growth = fn(&Node, Inputs<'_>) -> usize;

/// One kernel: an op, the types it takes, and how to build it.
pub struct Registration {
    /// Op type.
    pub op: &'static str,
    /// For each constrained `type` attribute, the types the kernel takes.
    pub types: Vec<(&'static str, &'static [DType])>,
    /// Builds the kernel.
    pub factory: Factory,
}

/// All kernels of a process.
#[derive(Default)]
pub struct Registry {
    kernels: HashMap<&'static str, Vec<Registration>>,
    arithmetic: HashMap<&'static str, Arithmetic>,
    shortcuts: HashMap<&'static str, Finder>,
    growths: HashMap<&'static str, Growth>,
    integer_work: HashSet<&'static str>,
    handing_on: HashSet<&'static str>,
}

impl Registry {
    /// A registry without kernels.
    pub fn new() -> Registry {
        Registry::default()
    }

    /// Registers a kernel for an op whatever its types.
    pub fn add(&mut self, op: &'static str, factory: Factory) {
        self.add_typed(op, &[], factory);
    }

    /// Registers a kernel for an op with some attributes restricted to some types. Kernels are
    /// tried in the order of their registration.
    pub fn add_typed(
        &mut self,
        op: &'static str,
        types: &[(&'static str, &'static [DType])],
        factory: Factory,
    ) {
        debug_assert!(downpour_graph::find_op(op).is_some(), "no such op: {op}");
        let registration = Registration {
            op,
            types: types.to_vec(),
            factory,
        };
        self.kernels.entry(op).or_default().push(registration);
    }

    /// Says what an op's `float` kernel does to numbers, so that runs of such ops can be
    /// computed at once. It must be what the kernel does, to the bit.
    pub fn add_arithmetic(&mut self, op: &'static str, arithmetic: Arithmetic) {
        self.arithmetic.insert(op, arithmetic);
    }

    /// What an op does to `float` numbers, if that is known.
    pub fn arithmetic(&self, op: &str) -> Option<Arithmetic> {
        self.arithmetic.get(op).copied()
    }

    /// All ops whose arithmetic is known.
    pub fn arithmetics(&self) -> impl Iterator<Item = (&'static str, Arithmetic)> + '_ {
        self.arithmetic.iter().map(|(op, what)| (*op, *what))
    }

    /// Says how much an op writes whose outputs may be larger than its inputs.
    pub fn add_growth(&mut self, op: &'static str, growth: Growth) {
        debug_assert!(downpour_graph::find_op(op).is_some(), "no such op: {op}");
        self.growths.insert(op, growth);
    }

    /// How much an op writes, if that was said.
    pub fn growth(&self, op: &str) -> Option<Growth> {
        self.growths.get(op).copied()
    }

    /// Says that an op computes on integers too: they are not merely the sizes of what it makes.
    pub fn add_integer_work(&mut self, op: &'static str) {
        debug_assert!(downpour_graph::find_op(op).is_some(), "no such op: {op}");
        self.integer_work.insert(op);
    }

    /// Whether an op's work follows from the size of its inputs even where they are integers.
    pub fn computes_on_integers(&self, op: &str) -> bool {
        self.integer_work.contains(op)
    }

    /// Says that an op's output is its first input's memory.
    pub fn add_handing_on(&mut self, op: &'static str) {
        debug_assert!(downpour_graph::find_op(op).is_some(), "no such op: {op}");
        self.handing_on.insert(op);
    }

    /// Whether an op hands on the memory of its first input.
    pub fn hands_on_memory(&self, op: &str) -> bool {
        self.handing_on.contains(op)
    }

    /// Lets a node take over nodes before it: see [`crate::Shortcut`].
    pub fn add_shortcut(&mut self, op: &'static str, finder: Finder) {
        self.shortcuts.insert(op, finder);
    }

    /// What an op may take over, if it said so.
    pub fn shortcut(&self, op: &str) -> Option<Finder> {
        self.shortcuts.get(op).copied()
    }

    /// Names of all ops with a kernel.
    pub fn ops(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.kernels.keys().copied()
    }

    /// The kernel for a node, or TensorFlow's error that says which there are.
    pub fn find(&self, node: &Node) -> Result<&Registration> {
        let candidates = self
            .kernels
            .get(node.op_name())
            .map_or(&[][..], Vec::as_slice);
        candidates
            .iter()
            .find(|k| {
                k.types
                    .iter()
                    .all(|(attr, types)| match node.attrs.find(attr) {
                        Some(downpour_graph::AttrValue::Type(t)) => types.contains(t),
                        Some(downpour_graph::AttrValue::List(_)) => node
                            .attrs
                            .dtypes(attr)
                            .is_ok_and(|l| l.iter().all(|t| types.contains(t))),
                        _ => true,
                    })
            })
            .ok_or_else(|| no_kernel(node, candidates))
    }
}

fn no_kernel(node: &Node, candidates: &[Registration]) -> Status {
    let mut kernels = String::new();
    for kernel in candidates {
        kernels.push_str("  device='CPU'");
        for (attr, types) in &kernel.types {
            let list: Vec<&str> = types.iter().map(|t| t.enum_name()).collect();
            let _ = write!(kernels, "; {attr} in [{}]", list.join(", "));
        }
        kernels.push('\n');
    }
    if kernels.is_empty() {
        kernels.push_str("  <no registered kernels>\n");
    }
    Status::invalid_argument(format!(
        "No OpKernel was registered to support Op '{}' used by {{{{node {}}}}} with these attrs: [{}]\nRegistered devices: [CPU]\nRegistered kernels:\n{kernels}",
        node.op_name(),
        node.name,
        node.attrs_text()
    ))
}
