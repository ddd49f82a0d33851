//! New variables of a v1 loop: the nodes that carry them from iteration to iteration, and the
//! nodes that compute their next values, which the loop's body has as a function's.

use super::v1::Frame;
use crate::Output;
use crate::body::Body;
use downpour_graph::{AttrValue, Attrs, Endpoint, NodeDef, NodeId, Result, Status};
use downpour_tensor::DType;
use std::collections::HashMap;

/// New nodes of a loop.
pub(super) struct Growth<'a> {
    frame: &'a Frame<'a>,
    forward: &'a Body,
    pub(super) nodes: Vec<NodeDef>,
    /// What a node of the body is called in the graph.
    names: HashMap<NodeId, String>,
    /// Runs in every iteration, and only inside of it.
    pivot: String,
}

impl<'a> Growth<'a> {
    pub(super) fn new(frame: &'a Frame<'a>, forward: &'a Body) -> Growth<'a> {
        let mut made = Growth {
            frame,
            forward,
            nodes: Vec::new(),
            names: HashMap::new(),
            pivot: String::new(),
        };
        let found = frame.found;
        let node = |id: NodeId| frame.graph.node(id).name.to_string();
        for (i, arg) in frame.args.iter().enumerate() {
            let name = match found.vars.get(i) {
                Some(var) => format!("{}:1", node(var.switch)),
                None => format!("{}:0", node(found.constants[i - found.vars.len()])),
            };
            made.names.insert(*arg, name);
        }
        let first = made.names[&frame.args[0]].clone();
        let dtype = forward.args[0].dtype();
        made.pivot = made.add("pivot", "Identity", vec![first], &[("T", dtype.into())]);
        made
    }

    fn unique(&self, name: &str) -> String {
        self.frame.graph.inner.lock().unique(name)
    }

    fn add(
        &mut self,
        name: &str,
        op: &str,
        inputs: Vec<String>,
        attrs: &[(&str, AttrValue)],
    ) -> String {
        let name = self.unique(name);
        self.put(name, op, inputs, attrs)
    }

    fn put(
        &mut self,
        name: String,
        op: &str,
        inputs: Vec<String>,
        attrs: &[(&str, AttrValue)],
    ) -> String {
        let mut all = Attrs::default();
        for (key, value) in attrs {
            all.set(*key, value.clone());
        }
        self.nodes.push(NodeDef {
            name: name.clone(),
            op: op.to_owned(),
            inputs,
            device: String::new(),
            attrs: all,
        });
        name
    }

    pub(super) fn exit(&mut self, dtype: DType, switch: NodeId) -> String {
        let switch = self.frame.graph.node(switch).name.to_string();
        self.add("Exit", "Exit", vec![switch], &[("T", dtype.into())])
    }

    /// Names a new variable's switch, which others' next values may refer to.
    pub(super) fn declare(&mut self, i: usize) {
        let switch = self.unique("Switch");
        let arg = self.forward.args[i].endpoint().node;
        self.names.insert(arg, format!("{switch}:1"));
    }

    /// Makes a new variable; the name of its exit.
    pub(super) fn variable(&mut self, i: usize, first: &Output) -> Result<String> {
        let dtype = first.dtype();
        let t = [("T", AttrValue::Type(dtype))];
        let arg = self.forward.args[i].endpoint().node;
        let switch = self.names[&arg].trim_end_matches(":1").to_owned();
        let next = self.transfer(self.forward.results[i].endpoint())?;
        let merge = self.unique("Merge");
        let back = self.add("NextIteration", "NextIteration", vec![next], &t);
        let frame = self.frame.found.frame.as_str();
        let enter = [t[0].clone(), ("frame_name", frame.into())];
        let enter = self.add("Enter", "Enter", vec![first.name()], &enter);
        let n = ("N", AttrValue::Int(2));
        self.put(
            merge.clone(),
            "Merge",
            vec![enter, back],
            &[t[0].clone(), n],
        );
        let condition = self
            .frame
            .graph
            .node(self.frame.found.condition)
            .name
            .to_string();
        self.put(switch.clone(), "Switch", vec![merge, condition], &t);
        Ok(self.add("Exit", "Exit", vec![switch], &t))
    }

    /// What a tensor of the body is called in the graph; a node that is new in the body becomes
    /// new in the graph.
    fn transfer(&mut self, at: Endpoint) -> Result<String> {
        if let Some(name) = self.names.get(&at.node) {
            return Ok(match name.contains(':') {
                true => name.clone(),
                false => format!("{name}:{}", at.output),
            });
        }
        let node = self.forward.graph.node(at.node);
        if self.frame.copied.contains(&*node.name) {
            return Ok(format!("{}:{}", node.name, at.output));
        }
        if node.op_name() == "Placeholder" {
            return Err(Status::internal(format!(
                "'{}' has no place in the loop",
                node.name
            )));
        }
        let name = self.unique(&node.name);
        self.names.insert(at.node, name.clone());
        let mut inputs = Vec::new();
        for edge in &node.inputs {
            inputs.push(self.transfer(*edge)?);
        }
        if inputs.is_empty() {
            inputs.push(format!("^{}", self.pivot));
        }
        for control in &node.control_inputs {
            let whole = self.transfer(Endpoint {
                node: *control,
                output: 0,
            })?;
            let (control, _) = whole.rsplit_once(':').unwrap_or((&whole, ""));
            inputs.push(format!("^{control}"));
        }
        self.nodes.push(NodeDef {
            name: name.clone(),
            op: node.op.name.clone(),
            inputs,
            device: node.device.to_string(),
            attrs: node.attrs.clone(),
        });
        Ok(format!("{name}:{}", at.output))
    }
}
