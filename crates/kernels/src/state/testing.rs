//! Runs one op on variables, by reference and by handle: what unit tests of this family are made of.

use super::ref_variable::RefVariable;
use super::variable_access::VariableAccess;
use crate::testing::{device, node, run_on};
use downpour_graph::{AttrValue, NodeDef, Result, find_op};
use downpour_runtime::{Device, Variable};
use downpour_tensor::{DType, Element, PartialShape, Shape, Tensor};
use std::sync::Arc;

/// An op and how it names its variables.
pub(super) struct Entry {
    op: String,
    access: VariableAccess,
}

/// The reference op of a pair.
pub(super) fn by_reference(op: &str, _: &str) -> Entry {
    Entry {
        op: op.into(),
        access: VariableAccess::Ref,
    }
}

/// The resource op of a pair.
pub(super) fn by_handle(_: &str, op: &str) -> Entry {
    Entry {
        op: op.into(),
        access: VariableAccess::Resource,
    }
}

/// A device with the op's variables `v0`, `v1`, … on it.
pub(super) struct Bench {
    device: Arc<Device>,
    entry: Entry,
    dtype: DType,
    attrs: Vec<(String, AttrValue)>,
}

impl Bench {
    pub(super) fn new(entry: Entry, dtype: DType) -> Bench {
        Bench::with(entry, dtype, &[])
    }

    pub(super) fn with(entry: Entry, dtype: DType, attrs: &[(&str, AttrValue)]) -> Bench {
        Bench {
            device: device(),
            entry,
            dtype,
            attrs: attrs
                .iter()
                .map(|(k, v)| ((*k).to_owned(), v.clone()))
                .collect(),
        }
    }

    fn variable(&self, i: usize) -> Arc<Variable> {
        let (resources, name) = (&self.device.resources, format!("v{i}"));
        match self.entry.access {
            VariableAccess::Ref => resources
                .find_or_create("localhost", &name, || {
                    let declared = Variable::declared(self.dtype, Shape::from([1]));
                    Ok(RefVariable(Arc::new(declared)))
                })
                .unwrap()
                .0
                .clone(),
            VariableAccess::Resource => resources
                .find_or_create("localhost", &name, || Ok(Variable::new()))
                .unwrap(),
        }
    }

    /// Sets variable `i`.
    pub(super) fn set(&self, i: usize, value: Tensor) {
        self.variable(i).assign(value);
    }

    /// The elements of variable `i`.
    pub(super) fn get<T: Element>(&self, i: usize) -> Vec<T> {
        let value = self.variable(i).read().unwrap();
        value.as_slice().unwrap().to_vec()
    }

    /// Runs the op with `rest` after the variables; gives its outputs that are no references.
    pub(super) fn run(&self, rest: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let def = find_op(&self.entry.op).unwrap();
        let count = def.inputs.len() - rest.len();
        let mut nodes: Vec<NodeDef> = Vec::new();
        let mut inputs: Vec<String> = Vec::new();
        for i in 0..count {
            let name = format!("v{i}");
            let op = match self.entry.access {
                VariableAccess::Ref => "VariableV2",
                VariableAccess::Resource => "VarHandleOp",
            };
            let shape = match self.entry.access {
                VariableAccess::Ref => PartialShape::checked([1]).unwrap(),
                VariableAccess::Resource => PartialShape::unknown(),
            };
            let attrs = [
                ("dtype", self.dtype.into()),
                ("shape", shape.into()),
                ("shared_name", name.as_str().into()),
            ];
            nodes.push(node(&name, op, &[], &attrs));
            inputs.push(name);
        }
        for (i, t) in rest.iter().enumerate() {
            let name = format!("a{i}");
            let attrs = [("T", t.dtype().into()), ("index", (i as i64).into())];
            nodes.push(node(&name, "_Arg", &[], &attrs));
            inputs.push(name);
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let mut op = node("op", &self.entry.op, &inputs, &[]);
        for name in ["T", "dtype"] {
            if def.attr(name).is_some() {
                op.attrs.set(name, self.dtype);
            }
        }
        for name in ["Tindices", "Index"] {
            let at = def.inputs.iter().position(|a| {
                matches!(&a.kind, downpour_graph::ArgKind::Single(
                    downpour_graph::ElementType::Attr(x)) if x == name)
            });
            if let Some(at) = at {
                op.attrs.set(name, rest[at - count].dtype());
            }
        }
        for (name, value) in &self.attrs {
            op.attrs.set(name.clone(), value.clone());
        }
        nodes.push(op);
        let plain = def.outputs.iter().filter(|o| !o.is_ref).count();
        for i in 0..plain {
            let attrs = [("T", self.dtype.into()), ("index", (i as i64).into())];
            nodes.push(node(
                &format!("r{i}"),
                "_Retval",
                &[&format!("op:{i}")],
                &attrs,
            ));
        }
        run_on(&self.device, nodes, rest)
    }
}
