//! What a graph is made of: ops, devices, variables and what they weigh, functions, signatures.

use crate::inspect::output::{Align, Output, Table, bytes, count, thousands};
use crate::inspect::statistics::python_name;
use anyhow::Result;
use downpour_formats::graph_file::{FileGraph, Signature};
use downpour_graph::{AttrValue, NodeDef};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A variable of the graph.
pub(super) struct Variable {
    name: String,
    dtype: String,
    shape: String,
    device: String,
    /// Values, where the shape is known.
    values: Option<u64>,
    bytes: u64,
}

/// Nodes and what they weigh on one device.
#[derive(Default)]
struct OnDevice {
    nodes: u64,
    variables: u64,
    values: u64,
    bytes: u64,
}

/// Figures of a graph.
pub(super) struct Summary {
    nodes: usize,
    edges: u64,
    control_edges: u64,
    ops: Vec<(String, u64)>,
    devices: BTreeMap<String, OnDevice>,
    variables: Vec<Variable>,
    constant_bytes: u64,
}

/// What a variable's node says; `None` for other nodes.
pub(super) fn variable(node: &NodeDef) -> Option<Variable> {
    if !matches!(node.op.as_str(), "Variable" | "VariableV2" | "VarHandleOp") {
        return None;
    }
    let (dtype, size) = match node.attrs.get("dtype") {
        Ok(AttrValue::Type(dtype)) => (python_name(dtype.name()), dtype.size()),
        _ => ("?".to_owned(), None),
    };
    let shape = match node.attrs.get("shape") {
        Ok(AttrValue::Shape(shape)) => Some(shape),
        _ => None,
    };
    let values = shape
        .and_then(|s| s.to_shape())
        .map(|s| s.num_elements() as u64);
    Some(Variable {
        name: node.name.clone(),
        dtype,
        shape: shape.map_or("?".to_owned(), ToString::to_string),
        device: node.device.clone(),
        values,
        bytes: values.unwrap_or(0).saturating_mul(size.unwrap_or(0) as u64),
    })
}

/// Values of a variable's node, 0 for other nodes.
pub(super) fn parameters(node: &NodeDef) -> u64 {
    variable(node).and_then(|v| v.values).unwrap_or(0)
}

impl Summary {
    pub(super) fn of(graph: &FileGraph, nodes: &[&NodeDef]) -> Summary {
        let mut ops: BTreeMap<&str, u64> = BTreeMap::new();
        let mut made = Summary {
            nodes: nodes.len(),
            edges: 0,
            control_edges: 0,
            ops: Vec::new(),
            devices: BTreeMap::new(),
            variables: Vec::new(),
            constant_bytes: 0,
        };
        for node in nodes {
            *ops.entry(&node.op).or_default() += 1;
            let control = node.inputs.iter().filter(|i| i.starts_with('^')).count() as u64;
            made.control_edges += control;
            made.edges += node.inputs.len() as u64 - control;
            if let Ok(AttrValue::Tensor(tensor)) = node.attrs.get("value") {
                made.constant_bytes = made.constant_bytes.saturating_add(tensor.byte_len() as u64);
            }
            let device = made.devices.entry(node.device.clone()).or_default();
            device.nodes += 1;
            if let Some(variable) = variable(node) {
                device.variables += 1;
                device.values = device.values.saturating_add(variable.values.unwrap_or(0));
                device.bytes = device.bytes.saturating_add(variable.bytes);
                made.variables.push(variable);
            }
        }
        // Variables of TensorFlow 2 are made inside of functions where the graph itself is a shell.
        if made.variables.is_empty() && nodes.len() == graph.graph.nodes.len() {
            let inner = graph.graph.functions.iter().flat_map(|f| &f.nodes);
            made.variables.extend(inner.filter_map(variable));
        }
        made.ops = ops.into_iter().map(|(op, n)| (op.to_owned(), n)).collect();
        made.ops
            .sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
        made.variables
            .sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        made
    }

    fn values(&self) -> u64 {
        let values = self.variables.iter().map(|v| v.values.unwrap_or(0));
        values.fold(0, u64::saturating_add)
    }

    fn bytes(&self) -> u64 {
        let bytes = self.variables.iter().map(|v| v.bytes);
        bytes.fold(0, u64::saturating_add)
    }

    pub(super) fn print(
        &self,
        path: &str,
        kind: &str,
        graph: &FileGraph,
        limit: usize,
        out: &mut Output,
    ) -> Result<()> {
        let mut facts = vec![
            kind.to_owned(),
            count(self.nodes, "node"),
            count(self.edges as usize, "edge"),
            format!("{} control", thousands(self.control_edges)),
        ];
        if !graph.tags.is_empty() {
            facts.push(format!("tags {}", graph.tags.join(" ")));
        }
        if !graph.written_by.is_empty() {
            facts.push(format!("written by TensorFlow {}", graph.written_by));
        }
        out.line(&format!("{path}  ({})", facts.join(", ")))?;
        out.line(&format!(
            "{} with {} values, {}; constants {}",
            count(self.variables.len(), "variable"),
            thousands(self.values()),
            bytes(self.bytes()),
            bytes(self.constant_bytes)
        ))?;
        let limit = if limit == 0 { usize::MAX } else { limit };
        self.print_tables(limit, out)?;
        let functions = &graph.graph.functions;
        if !functions.is_empty() {
            let nodes: usize = functions.iter().map(|f| f.nodes.len()).sum();
            out.line("")?;
            out.line(&format!(
                "{} of {}",
                count(functions.len(), "function"),
                count(nodes, "node")
            ))?;
            for function in functions.iter().take(limit) {
                out.line(&format!(
                    "  {} ({})",
                    function.signature.name,
                    count(function.nodes.len(), "node")
                ))?;
            }
            more(functions.len(), limit, out)?;
        }
        for signature in &graph.signatures {
            out.line(&format!(
                "signature {} {}",
                signature.name, signature.method
            ))?;
            for (what, tensors) in [("takes", &signature.inputs), ("gives", &signature.outputs)] {
                for t in tensors {
                    out.line(&format!(
                        "  {what} {}: {} {} = {}",
                        t.key,
                        python_name(&t.dtype),
                        t.shape,
                        t.tensor
                    ))?;
                }
            }
        }
        Ok(())
    }

    fn print_tables(&self, limit: usize, out: &mut Output) -> Result<()> {
        use Align::{Left, Right};
        let mut table = Table::new(&[("OP", Left), ("COUNT", Right)]);
        for (op, n) in self.ops.iter().take(limit) {
            table.row(vec![op.clone(), thousands(*n)]);
        }
        out.line("")?;
        out.table(&table)?;
        more(self.ops.len(), limit, out)?;
        let mut table = Table::new(&[
            ("DEVICE", Left),
            ("NODES", Right),
            ("VARIABLES", Right),
            ("VALUES", Right),
            ("BYTES", Right),
        ]);
        for (device, on) in self.devices.iter().take(limit) {
            let name = match device.is_empty() {
                true => "(any)".to_owned(),
                false => device.clone(),
            };
            table.row(vec![
                name,
                thousands(on.nodes),
                thousands(on.variables),
                thousands(on.values),
                bytes(on.bytes),
            ]);
        }
        out.line("")?;
        out.table(&table)?;
        more(self.devices.len(), limit, out)?;
        if self.variables.is_empty() {
            return Ok(());
        }
        let mut table = Table::new(&[
            ("VARIABLE", Left),
            ("DTYPE", Left),
            ("SHAPE", Left),
            ("BYTES", Right),
            ("DEVICE", Left),
        ]);
        for v in self.variables.iter().take(limit) {
            let size = match v.values {
                Some(_) => bytes(v.bytes),
                None => "?".to_owned(),
            };
            table.row(vec![
                v.name.clone(),
                v.dtype.clone(),
                v.shape.clone(),
                size,
                v.device.clone(),
            ]);
        }
        out.line("")?;
        out.table(&table)?;
        more(self.variables.len(), limit, out)
    }

    pub(super) fn json(&self, graph: &FileGraph) -> Value {
        let ops = self.ops.iter().map(|(op, n)| json!({"op": op, "count": n}));
        let devices = self.devices.iter().map(|(device, on)| {
            json!({"device": device, "nodes": on.nodes, "variables": on.variables, "parameters": on.values, "bytes": on.bytes})
        });
        let variables = self.variables.iter().map(|v| {
            json!({"name": v.name, "dtype": v.dtype, "shape": v.shape, "values": v.values, "bytes": v.bytes, "device": v.device})
        });
        let functions = graph.graph.functions.iter();
        let functions =
            functions.map(|f| json!({"name": f.signature.name, "nodes": f.nodes.len()}));
        json!({
            "nodes": self.nodes, "edges": self.edges, "control_edges": self.control_edges,
            "ops": ops.collect::<Vec<_>>(), "devices": devices.collect::<Vec<_>>(),
            "variables": variables.collect::<Vec<_>>(),
            "parameters": self.values(), "parameter_bytes": self.bytes(), "constant_bytes": self.constant_bytes,
            "functions": graph.graph.functions.len(), "function_list": functions.collect::<Vec<_>>(),
            "signatures": graph.signatures.iter().map(signature).collect::<Vec<_>>(),
            "tags": graph.tags, "written_by": graph.written_by, "producer": graph.graph.versions.producer,
        })
    }
}

fn signature(s: &Signature) -> Value {
    let tensors = |tensors: &[downpour_formats::graph_file::SignatureTensor]| -> Vec<Value> {
        let each = tensors.iter().map(|t| {
            json!({"key": t.key, "tensor": t.tensor, "dtype": python_name(&t.dtype), "shape": t.shape})
        });
        each.collect()
    };
    json!({"name": s.name, "method": s.method, "inputs": tensors(&s.inputs), "outputs": tensors(&s.outputs)})
}

/// How many are not shown.
fn more(all: usize, limit: usize, out: &mut Output) -> Result<()> {
    match all.saturating_sub(limit) {
        0 => Ok(()),
        n => out.line(&format!("… {n} more; --limit 0 shows all")),
    }
}
