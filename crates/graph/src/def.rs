//! The unchecked graph: what a client or a file says, decoded but not yet believed.

use crate::{Attrs, OpDef};
use std::collections::BTreeMap;

/// A node as written: its inputs are still names.
#[derive(Clone, Debug, Default)]
pub struct NodeDef {
    /// Name, unique in its graph.
    pub name: String,
    /// Op type.
    pub op: String,
    /// `node`, `node:2` or `^node`; inside functions `argument` or `node:output:0`.
    pub inputs: Vec<String>,
    /// Requested device, possibly partial or empty.
    pub device: String,
    /// Attributes that were written; defaults are filled in when the graph is checked.
    pub attrs: Attrs,
}

/// Versions of the producer of a graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// Version of the code that made the graph.
    pub producer: i32,
    /// Oldest consumer allowed.
    pub min_consumer: i32,
    /// Consumers that are known not to work.
    pub bad_consumers: Vec<i32>,
}

/// A function: a signature and a body whose inputs refer to arguments and node outputs by name.
#[derive(Clone, Debug, Default)]
pub struct FunctionDef {
    /// Name, arguments, results and attributes.
    pub signature: OpDef,
    /// Body.
    pub nodes: Vec<NodeDef>,
    /// Result name → `node:output:index` of the body, or an argument.
    pub ret: BTreeMap<String, String>,
    /// Control result name → node of the body.
    pub control_ret: BTreeMap<String, String>,
    /// Attributes of the function itself.
    pub attrs: Attrs,
    /// Attributes of single arguments, by position.
    pub arg_attrs: BTreeMap<u32, Attrs>,
}

/// A graph as written.
#[derive(Clone, Debug, Default)]
pub struct GraphDef {
    /// Nodes in any order.
    pub nodes: Vec<NodeDef>,
    /// Function library.
    pub functions: Vec<FunctionDef>,
    /// Function name → name of the function that computes its gradient.
    pub gradients: Vec<(String, String)>,
    /// Versions.
    pub versions: Versions,
}
