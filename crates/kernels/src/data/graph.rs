//! Datasets as graphs: `DatasetToGraph` writes down the ops and inputs a dataset was made of,
//! `DatasetFromGraph` makes it again, here or on another task. Variables that functions have captured
//! go along as copies of their values.

use super::dataset::{Dataset, Origin};
use crate::strings::hash::fingerprint64;
use bytes::Bytes;
use downpour_formats::graph_def;
use downpour_graph::{
    AttrList, AttrValue, Attrs, Functions, Graph, GraphDef, NodeDef, Result, Status, Versions,
};
use downpour_runtime::{AsyncOp, Built, Device, KernelBuilder, Registry, Variable};
use downpour_tensor::{DType, PartialShape, Tensor};
use std::collections::{BTreeSet, HashMap};

/// TensorFlow 2.21's version of graphs.
const PRODUCER: i32 = 2474;

pub(super) fn register(r: &mut Registry) {
    r.add("DatasetToGraph", |b| {
        let strict = !b.attrs().bool("allow_stateful")?;
        to_graph(strict)
    });
    r.add("DatasetToGraphV2", |b| {
        // 0 warns about state, 1 ignores it, 2 refuses it.
        let strict = b.attrs().int("external_state_policy")? == 2;
        to_graph(strict)
    });
    r.add("DatasetFromGraph", from_graph);
    r.add("DatasetFingerprint", |_| {
        Built::costly(|ctx| {
            let dataset = super::define::input(ctx, 0)?;
            let value = fingerprint(ctx.device(), &dataset)?;
            ctx.set_output(0, Tensor::scalar(value));
            Ok(())
        })
    });
}

fn to_graph(strict: bool) -> Result<Built> {
    Built::costly(move |ctx| {
        let dataset = super::define::input(ctx, 0)?;
        let mut writer = Writer::new(ctx.device());
        writer.strict = strict;
        let root = writer.dataset(&dataset)?;
        let bytes = graph_def::serialize(&writer.finish(root))?;
        ctx.set_output(0, Tensor::string(bytes));
        Ok(())
    })
}

/// A number that is the same for pipelines of the same ops, values and functions, in this and in other processes. It is
/// not TensorFlow's, whose form of a graph differs.
pub(super) fn fingerprint(device: &Device, dataset: &Dataset) -> Result<u64> {
    let mut writer = Writer::new(device);
    let root = writer.dataset(dataset)?;
    let mut graph = writer.finish(root);
    graph
        .functions
        .sort_by(|a, b| a.signature.name.cmp(&b.signature.name));
    // A name that only says when an op was made says nothing of what it does.
    for node in &mut graph.nodes {
        node.attrs.0.remove("metadata");
    }
    Ok(fingerprint64(&graph_def::serialize(&graph)?))
}

/// What is written otherwise than it is.
pub(super) trait Edit {
    /// Names of the inputs to write in place of `names`, those of `dataset`'s own. May write nodes.
    fn inputs(
        &self,
        writer: &mut Writer<'_>,
        dataset: &Dataset,
        names: Vec<String>,
    ) -> Result<Vec<String>>;
}

/// A graph being written.
pub(super) struct Writer<'a> {
    device: &'a Device,
    nodes: Vec<NodeDef>,
    /// Names of the nodes of datasets, by identity.
    written: HashMap<usize, String>,
    functions: HashMap<String, downpour_graph::FunctionDef>,
    strict: bool,
    /// For a graph that runs in this process: resources are named, not copied.
    stays_here: bool,
    edit: Option<&'a dyn Edit>,
}

impl<'a> Writer<'a> {
    fn new(device: &'a Device) -> Writer<'a> {
        Writer {
            device,
            nodes: Vec::new(),
            written: HashMap::new(),
            functions: HashMap::new(),
            strict: false,
            stays_here: false,
            edit: None,
        }
    }

    /// A writer of graphs for this process that differ from what is there by `edit`.
    pub(super) fn editing(device: &'a Device, edit: &'a dyn Edit) -> Writer<'a> {
        Writer {
            stays_here: true,
            edit: Some(edit),
            ..Writer::new(device)
        }
    }

    /// The graph, whose one result is the dataset that node `root` makes.
    pub(super) fn finish(mut self, root: String) -> GraphDef {
        let mut attrs = Attrs::default();
        attrs.set("T", DType::Variant);
        attrs.set("index", 0i64);
        self.nodes.push(NodeDef {
            name: "dataset".into(),
            op: "_Retval".into(),
            inputs: vec![root],
            attrs,
            ..Default::default()
        });
        GraphDef {
            nodes: self.nodes,
            functions: self.functions.into_values().collect(),
            versions: Versions {
                producer: PRODUCER,
                ..Default::default()
            },
            ..Default::default()
        }
    }
}

impl Writer<'_> {
    pub(super) fn node(&mut self, op: &str, inputs: Vec<String>, attrs: Attrs) -> String {
        let name = format!("{op}/_{}", self.nodes.len());
        self.nodes.push(NodeDef {
            name: name.clone(),
            op: op.into(),
            inputs,
            attrs,
            ..Default::default()
        });
        name
    }

    /// The name of the node that makes `dataset`. Recursion is as deep as datasets may nest.
    pub(super) fn dataset(&mut self, dataset: &Dataset) -> Result<String> {
        if let Some(name) = self.written.get(&dataset.identity()) {
            return Ok(name.clone());
        }
        let Some(Origin {
            node,
            inputs,
            functions,
        }) = dataset.origin()
        else {
            return Err(Status::unimplemented(format!(
                "{}Dataset does not support serialization.",
                dataset.kind()
            )));
        };
        let names = inputs.iter().map(|tensor| self.input(tensor));
        let mut names = names.collect::<Result<Vec<_>>>()?;
        if let Some(edit) = self.edit {
            names = edit.inputs(self, dataset, names)?;
        }
        let mut attrs = Attrs::default();
        for (name, value) in node
            .attrs
            .0
            .iter()
            .filter(|(name, _)| !name.starts_with('_'))
        {
            attrs.set(name.clone(), value.clone());
        }
        if let Some(library) = functions {
            let definitions = library.definitions();
            self.add_functions(&attrs, &definitions)?;
        }
        let name = self.node(node.op_name(), names, attrs);
        self.written.insert(dataset.identity(), name.clone());
        Ok(name)
    }

    pub(super) fn input(&mut self, tensor: &Tensor) -> Result<String> {
        match tensor.dtype() {
            DType::Resource if self.stays_here => {
                let mut attrs = Attrs::default();
                attrs.set("dtype", DType::Resource);
                attrs.set("value", tensor.clone());
                Ok(self.node("Const", vec![], attrs))
            }
            DType::Variant => {
                let dataset = Dataset::from_tensor(tensor)?;
                self.dataset(dataset)
            }
            DType::Resource => self.resource(tensor),
            dtype => {
                let mut attrs = Attrs::default();
                attrs.set("dtype", dtype);
                attrs.set("value", tensor.clone());
                Ok(self.node("Const", vec![], attrs))
            }
        }
    }

    /// A variable of its own with the value that this one has now.
    fn resource(&mut self, tensor: &Tensor) -> Result<String> {
        let handle = tensor.as_resources()?.first().cloned().unwrap_or_default();
        let resources = &self.device.resources;
        let Some(variable) = resources.find::<Variable>(&handle.container, &handle.name) else {
            return Err(Status::failed_precondition(format!(
                "Failed to serialize the input pipeline graph: it depends on the resource {}, which cannot be serialized.",
                handle.name
            )));
        };
        let value = variable.read().ok_or_else(|| {
            Status::failed_precondition(format!("the variable {} has no value", handle.name))
        })?;
        let (dtype, shape) = (value.dtype(), PartialShape::from(value.shape()));
        let mut attrs = Attrs::default();
        attrs.set("dtype", dtype);
        attrs.set("shape", shape);
        let unique = crate::random::philox::entropy();
        attrs.set("shared_name", format!("copy-{unique:016x}"));
        let variable = self.node("VarHandleOp", vec![], attrs);
        let value = self.input(&value)?;
        let mut attrs = Attrs::default();
        attrs.set("dtype", dtype);
        let assign = self.node("AssignVariableOp", vec![variable.clone(), value], attrs);
        let mut attrs = Attrs::default();
        attrs.set("T", DType::Resource);
        Ok(self.node("Identity", vec![variable, format!("^{assign}")], attrs))
    }

    /// The functions that attributes name, with those that they call.
    fn add_functions(&mut self, attrs: &Attrs, definitions: &Functions) -> Result<()> {
        let mut missing: Vec<String> = names_in(attrs).into_iter().collect();
        while let Some(name) = missing.pop() {
            if self.functions.contains_key(&name) {
                continue;
            }
            let Some(function) = definitions.find(&name) else {
                continue;
            };
            for node in &function.nodes {
                if self.strict && is_stateful(&node.op) {
                    return Err(Status::failed_precondition(format!(
                        "Failed to serialize the input pipeline graph: {} is stateful.",
                        node.op
                    )));
                }
                missing.extend(names_in(&node.attrs));
                missing.push(node.op.clone());
            }
            self.functions.insert(name, (**function).clone());
        }
        Ok(())
    }
}

/// Refuses a dataset whose functions have state that is not the iterator's own.
pub(super) fn check_external_state(dataset: &Dataset) -> Result<()> {
    let mut seen = HashMap::new();
    let mut datasets = vec![dataset.clone()];
    while let Some(dataset) = datasets.pop() {
        if seen.insert(dataset.identity(), ()).is_some() {
            continue;
        }
        datasets.extend_from_slice(dataset.inputs());
        let Some(Origin {
            node,
            functions: Some(library),
            ..
        }) = dataset.origin()
        else {
            continue;
        };
        let definitions = library.definitions();
        let mut names: Vec<String> = names_in(&node.attrs).into_iter().collect();
        let mut visited = BTreeSet::new();
        while let Some(name) = names.pop() {
            let Some(function) = definitions.find(&name).filter(|_| visited.insert(name)) else {
                continue;
            };
            for node in &function.nodes {
                if is_stateful(&node.op) {
                    let text = format!("{} is stateful.", node.op);
                    return Err(Status::failed_precondition(text));
                }
                names.extend(names_in(&node.attrs));
                names.push(node.op.clone());
            }
        }
    }
    Ok(())
}

/// Names of the functions in attributes.
fn names_in(attrs: &Attrs) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for value in attrs.0.values() {
        match value {
            AttrValue::Func(f) => {
                names.insert(f.name.clone());
                names.extend(names_in(&f.attrs));
            }
            AttrValue::List(AttrList::Func(list)) => {
                names.extend(list.iter().map(|f| f.name.clone()));
            }
            _ => {}
        }
    }
    names
}

/// Whether an op has state that a copy of the pipeline would not share. Making a dataset is none.
fn is_stateful(op: &str) -> bool {
    let known = downpour_graph::find_op(op);
    known.is_some_and(|o| o.stateful)
        && !op.contains("Dataset")
        && !matches!(op, "Assert" | "Placeholder" | "_Arg" | "_Retval")
}

fn from_graph(_: &KernelBuilder<'_>) -> Result<Built> {
    Built::waiting(|op| {
        let graph = (|| {
            let input = op.input(0)?;
            let bytes = match (input.rank(), input.as_strings()?) {
                (0, [bytes]) => bytes.clone(),
                _ => return Err(Status::invalid_argument("graph_def must be a scalar")),
            };
            parse(&bytes)
        })();
        finish_with_graph(op, graph);
    })
}

/// Ends an op with the dataset that a graph makes.
pub(super) fn finish_with_graph(op: AsyncOp, graph: Result<Graph>) {
    let ready = graph.and_then(|graph| {
        let functions = op.env().functions.as_ref();
        let functions =
            functions.ok_or_else(|| Status::internal("No function library is provided."))?;
        functions.graph(&graph, &op.env().device)
    });
    match ready {
        Err(e) => op.finish(Err(e)),
        Ok(graph) => {
            let cancellation = op.env().cancellation.clone();
            graph.call(vec![], &cancellation, move |made| {
                op.finish(made.and_then(|made| match made.as_slice() {
                    [one] => {
                        Dataset::from_tensor(one)?;
                        Ok(made)
                    }
                    _ => Err(Status::invalid_argument("the graph makes no dataset")),
                }));
            });
        }
    }
}

fn parse(bytes: &Bytes) -> Result<Graph> {
    let Some(graph) = graph_def::parse(bytes) else {
        return Err(Status::invalid_argument("Could not parse GraphDef"));
    };
    let graph = graph?;
    if !graph.nodes.iter().any(|n| n.op == "_Retval") {
        return Err(Status::not_found("FetchOutputs node : not found"));
    }
    Graph::new(graph)
}
