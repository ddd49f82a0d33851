//! Partition: one graph per task. An edge between tasks becomes a `_Send` on one side and a
//! `_Recv` on the other, one pair per value and receiving task however many nodes use it there.
//!
//! A `Ref` edge is a reference, not a value: its reader sees the variable as it is once everything else the reader waits
//! for has happened. Where such an edge crosses tasks, the read moves into the `_Send`, so the `_Send` waits for what the
//! reader waits for ([`Split::read_after`]). TensorFlow lets the `_Recv` wait instead, which is enough only where values
//! are pulled and the sender's buffer is the variable itself.
//!
//! A `_Recv` inside a loop must fire once per iteration, on a task that may hold no other part of
//! the loop. Each such task gets a small loop of its own (`Enter`, `Merge`, `Switch`,
//! `NextIteration`) that turns as often as the real one, told by the real one's condition.

use downpour_graph::{
    AttrValue, Attrs, Edge, Graph, Node, NodeId, OutputType, Result, Status, find_op,
};
use downpour_tensor::{DType, Shape, Tensor};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// A device that nodes are placed on.
#[derive(Clone, Debug)]
pub struct DeviceRef {
    /// Full name.
    pub name: Arc<str>,
    /// Which life of the device this is.
    pub incarnation: u64,
    /// Index of the task it belongs to.
    pub task: usize,
    /// Whether the task sends values to those that also do before they are asked for.
    pub pushes: bool,
}

/// What one task runs.
#[derive(Debug)]
pub struct Partition {
    /// Index of the task.
    pub task: usize,
    /// Its nodes.
    pub graph: Graph,
}

/// Splits a placed graph by task. Nodes without a device run on the first one. `serial` numbers
/// the nodes that are added, so that no two graphs of a session share a name.
pub fn partition(graph: &Graph, devices: &[DeviceRef], serial: &mut u64) -> Result<Vec<Partition>> {
    let first = devices.first().map_or(0, |d| d.task);
    let whole = |task: usize| {
        Ok(vec![Partition {
            task,
            graph: graph.clone(),
        }])
    };
    if devices.iter().all(|d| d.task == first) {
        return whole(first);
    }
    let by_name: HashMap<&str, usize> = devices
        .iter()
        .enumerate()
        .map(|(i, d)| (&*d.name, i))
        .collect();
    let mut device_of = Vec::with_capacity(graph.len());
    for (_, node) in graph.nodes() {
        device_of.push(match &*node.device {
            "" => 0,
            name => *by_name.get(name).ok_or_else(|| {
                Status::internal(format!("node {} is on unknown device {name}", node.name))
            })?,
        });
    }
    let tasks = devices.iter().map(|d| d.task).max().unwrap_or(0) + 1;
    if device_of.iter().all(|d| devices[*d].task == first) {
        return whole(first);
    }
    keep_steering_near(graph, &mut device_of);
    let mut split = Split {
        graph,
        devices,
        frames: Frames::analyse(graph)?,
        ordered: ordered_by_effects(graph),
        device_of,
        parts: (0..tasks).map(|_| Vec::new()).collect(),
        place: Vec::with_capacity(graph.len()),
        values: HashMap::new(),
        controls: HashMap::new(),
        loops: HashMap::new(),
        numbered: vec![0; tasks],
        serial,
    };
    split.run()?;
    let parts = split.parts.into_iter().enumerate();
    Ok(parts
        .filter(|(_, nodes)| !nodes.is_empty())
        .map(|(task, nodes)| Partition {
            task,
            graph: Graph::from_checked(nodes.into_iter().map(Arc::new).collect(), graph),
        })
        .collect())
}

/// Nodes that only steer control flow run beside the data they pass on: a value then crosses
/// tasks where it is used, not where it is steered.
fn keep_steering_near(graph: &Graph, device_of: &mut [usize]) {
    let mut first_user: Vec<Option<NodeId>> = vec![None; graph.len()];
    for (id, node) in graph.nodes() {
        for edge in &node.inputs {
            first_user[edge.node.index()].get_or_insert(id);
        }
    }
    // Entries follow their users, branches their data, exits their branches: in this order.
    for ops in [
        &["Enter", "NextIteration"],
        &["Switch", "RefSwitch"],
        &["Exit", "RefExit"],
    ] {
        for (id, node) in graph.nodes() {
            if !ops.contains(&node.op_name()) {
                continue;
            }
            let beside = match node.op_name() {
                "Enter" | "NextIteration" => first_user[id.index()],
                _ => node.inputs.first().map(|e| e.node),
            };
            if let Some(beside) = beside {
                device_of[id.index()] = device_of[beside.index()];
            }
        }
    }
}

/// A place in a partition's graph.
#[derive(Clone, Copy)]
struct Place {
    task: usize,
    id: NodeId,
}

struct Split<'a> {
    graph: &'a Graph,
    devices: &'a [DeviceRef],
    frames: Frames,
    /// Nodes that run after an effect of this step or of another one.
    ordered: Vec<bool>,
    device_of: Vec<usize>,
    parts: Vec<Vec<Node>>,
    place: Vec<Place>,
    /// Values received so far, by source, receiving task, and what the sender waits for before it reads a reference.
    values: HashMap<(Edge, usize, Vec<NodeId>), NodeId>,
    /// Control signals received so far.
    controls: HashMap<(NodeId, usize), NodeId>,
    /// `Merge` of the loop that makes receivers of a frame fire on a task.
    loops: HashMap<(usize, usize), NodeId>,
    /// How many edges to each task have a number.
    numbered: Vec<u32>,
    serial: &'a mut u64,
}

impl Split<'_> {
    fn run(&mut self) -> Result<()> {
        for (id, node) in self.graph.nodes() {
            let device = self.device_of[id.index()];
            let task = self.devices[device].task;
            let mut copy = Node::clone(node);
            copy.device = self.devices[device].name.clone();
            copy.inputs.clear();
            copy.control_inputs.clear();
            let part = &mut self.parts[task];
            self.place.push(Place {
                task,
                id: NodeId(part.len() as u32),
            });
            part.push(copy);
        }
        for (id, node) in self.graph.nodes() {
            let to = self.place[id.index()];
            let device = self.device_of[id.index()];
            let mut inputs = Vec::with_capacity(node.inputs.len());
            for edge in &node.inputs {
                let after = self.read_after(node, *edge, to.task);
                inputs.push(self.value(*edge, device, after)?);
            }
            let mut controls = Vec::with_capacity(node.control_inputs.len());
            for source in &node.control_inputs {
                controls.push(self.control(*source, device)?);
            }
            let node = &mut self.parts[to.task][to.id.index()];
            node.inputs = inputs;
            node.control_inputs.extend(controls);
        }
        Ok(())
    }

    /// What must have happened before `reader`, on `task`, may read the variable behind `edge`: all that it waits for
    /// beside the variable itself. Empty for a value, and for a variable of the reader's own task, which is read when the
    /// reader runs.
    fn read_after(&self, reader: &Node, edge: Edge, task: usize) -> Vec<NodeId> {
        let is_ref = self.graph.node(edge.node).output_types[edge.output as usize].1;
        if self.place[edge.node.index()].task == task || !is_ref {
            return Vec::new();
        }
        // A merge takes the first value to come: it waits for none of the others.
        let data: &[Edge] = match reader.op_name() {
            "Merge" => &[],
            _ => &reader.inputs,
        };
        let data = data.iter().map(|e| e.node);
        let mut after: Vec<NodeId> = data
            .chain(reader.control_inputs.iter().copied())
            .filter(|id| *id != edge.node && self.ordered[id.index()])
            .collect();
        after.sort();
        after.dedup();
        after
    }

    /// Where a value is found on the task of `device`. If it is behind a reference, the reference is read once the nodes
    /// in `after` have run.
    fn value(&mut self, edge: Edge, device: usize, after: Vec<NodeId>) -> Result<Edge> {
        let from = self.place[edge.node.index()];
        let task = self.devices[device].task;
        if from.task == task {
            return Ok(Edge {
                node: from.id,
                output: edge.output,
            });
        }
        let key = (edge, task, after);
        if let Some(&node) = self.values.get(&key) {
            return Ok(Edge { node, output: 0 });
        }
        let source = self.graph.node(edge.node);
        let dtype = source.output_types[edge.output as usize].0;
        let local = Edge {
            node: from.id,
            output: edge.output,
        };
        let frame = self.frames.of_output(self.graph, edge.node);
        let mut waits = Vec::with_capacity(key.2.len());
        for source in &key.2 {
            waits.push(self.control(*source, self.device_of[edge.node.index()])?);
        }
        let node = self.transfer(edge.node, local, dtype, device, frame, waits)?;
        self.values.insert(key, node);
        Ok(Edge { node, output: 0 })
    }

    /// The node on the task of `device` that runs when `source` has run.
    fn control(&mut self, source: NodeId, device: usize) -> Result<NodeId> {
        let from = self.place[source.index()];
        let task = self.devices[device].task;
        if from.task == task {
            return Ok(from.id);
        }
        if let Some(&node) = self.controls.get(&(source, task)) {
            return Ok(node);
        }
        let name = format!("{}/ctrl", self.graph.node(source).name);
        let mut signal =
            self.constant(&name, Shape::from(vec![0]), self.device_of[source.index()])?;
        signal.control_inputs.push(from.id);
        let signal = self.add(from.task, signal);
        let local = Edge {
            node: signal,
            output: 0,
        };
        let frame = self.frames.of_output(self.graph, source);
        let received = self.transfer(source, local, DType::Float, device, frame, Vec::new())?;
        let mut identity = self.new_node(&name, "Identity", device, &[(DType::Float, false)])?;
        identity.attrs.set("T", DType::Float);
        identity.inputs.push(Edge {
            node: received,
            output: 0,
        });
        identity.input_types.push((DType::Float, false));
        let identity = self.add(task, identity);
        self.controls.insert((source, task), identity);
        Ok(identity)
    }

    /// A `_Send` of `local` beside `source` that runs after `waits`, and its `_Recv` on `device`.
    fn transfer(
        &mut self,
        source: NodeId,
        local: Edge,
        dtype: DType,
        device: usize,
        frame: usize,
        waits: Vec<NodeId>,
    ) -> Result<NodeId> {
        let from = self.device_of[source.index()];
        let name = self.graph.node(source).name.to_string();
        let mut attrs = Attrs::default();
        attrs.set(
            "tensor_name",
            format!("edge_{}_{name}", *self.serial).as_str(),
        );
        attrs.set("send_device", &*self.devices[from].name);
        attrs.set(
            "send_device_incarnation",
            self.devices[from].incarnation as i64,
        );
        attrs.set("recv_device", &*self.devices[device].name);
        attrs.set("client_terminated", false);
        if self.devices[from].pushes && self.devices[device].pushes {
            attrs.set("_pushed", true);
            // Inside a loop an edge has a value for each iteration; variants are revived by a kernel.
            if self.frames.list.len() == 1 && dtype != DType::Variant {
                let task = self.devices[device].task;
                attrs.set("_edge", i64::from(self.numbered[task]));
                self.numbered[task] += 1;
            }
        }
        let mut send = self.new_node(&name, "_Send", from, &[])?;
        send.attrs = attrs.clone();
        send.attrs.set("T", dtype);
        send.inputs.push(local);
        send.input_types.push((dtype, false));
        send.control_inputs = waits;
        self.add(self.devices[from].task, send);
        let mut recv = self.new_node(&name, "_Recv", device, &[(dtype, false)])?;
        recv.attrs = attrs;
        recv.attrs.set("tensor_type", dtype);
        if frame != 0 {
            recv.control_inputs.push(self.turn(frame, device)?);
        }
        Ok(self.add(self.devices[device].task, recv))
    }

    /// The node that runs once per iteration of `frame` on the task of `device`.
    fn turn(&mut self, frame: usize, device: usize) -> Result<NodeId> {
        let task = self.devices[device].task;
        if let Some(&merge) = self.loops.get(&(frame, task)) {
            return Ok(merge);
        }
        let Frame {
            name,
            parent,
            parallel_iterations,
            condition,
        } = self.frames.list[frame].clone();
        let condition = condition.ok_or_else(|| {
            Status::invalid_argument(format!(
                "the loop '{name}' spans tasks but has no LoopCond node"
            ))
        })?;
        let prefix = format!("_cloop{name}");
        let mut start = self.constant(&prefix, Shape::scalar(), device)?;
        if parent != 0 {
            start.control_inputs.push(self.turn(parent, device)?);
        }
        let start = self.add(task, start);
        let float: &[OutputType] = &[(DType::Float, false)];
        let data = |node: NodeId, output: u32| Edge { node, output };
        let mut enter = self.new_node(&prefix, "Enter", device, float)?;
        enter.attrs.set("T", DType::Float);
        enter.attrs.set("frame_name", name.as_str());
        enter.attrs.set("is_constant", false);
        enter.attrs.set("parallel_iterations", parallel_iterations);
        enter.inputs.push(data(start, 0));
        enter.input_types = float.to_vec();
        let enter = self.add(task, enter);
        let merged: &[OutputType] = &[(DType::Float, false), (DType::Int32, false)];
        let mut merge = self.new_node(&prefix, "Merge", device, merged)?;
        merge.attrs.set("T", DType::Float);
        merge.attrs.set("N", 2_i64);
        merge.inputs.push(data(enter, 0));
        merge.input_types = vec![(DType::Float, false); 2];
        let merge = self.add(task, merge);
        // Known before the condition asks for it: its own receiver turns with this loop.
        self.loops.insert((frame, task), merge);
        let cond = self.value(data(condition, 0), device, Vec::new())?;
        let both: &[OutputType] = &[(DType::Float, false), (DType::Float, false)];
        let mut switch = self.new_node(&prefix, "Switch", device, both)?;
        switch.attrs.set("T", DType::Float);
        switch.inputs = vec![data(merge, 0), cond];
        switch.input_types = vec![(DType::Float, false), (DType::Bool, false)];
        let switch = self.add(task, switch);
        let mut next = self.new_node(&prefix, "NextIteration", device, float)?;
        next.attrs.set("T", DType::Float);
        next.inputs.push(data(switch, 1));
        next.input_types = float.to_vec();
        let next = self.add(task, next);
        self.parts[task][merge.index()].inputs.push(data(next, 0));
        Ok(merge)
    }

    fn constant(&mut self, name: &str, shape: Shape, device: usize) -> Result<Node> {
        let mut node = self.new_node(name, "Const", device, &[(DType::Float, false)])?;
        node.attrs.set("dtype", DType::Float);
        let value = Tensor::zeros(DType::Float, shape)?;
        node.attrs.set("value", AttrValue::Tensor(value));
        Ok(node)
    }

    /// A node on a device, with a name nobody has.
    fn new_node(
        &mut self,
        name: &str,
        op: &str,
        device: usize,
        outputs: &[OutputType],
    ) -> Result<Node> {
        let signature =
            find_op(op).ok_or_else(|| Status::internal(format!("no signature for {op}")))?;
        let name = format!("{name}_S{}", *self.serial);
        *self.serial += 1;
        Ok(Node {
            name: name.into(),
            op: signature,
            inputs: Vec::new(),
            control_inputs: Vec::new(),
            device: self.devices[device].name.clone(),
            attrs: Attrs::default(),
            input_types: Vec::new(),
            output_types: outputs.to_vec(),
        })
    }

    fn add(&mut self, task: usize, node: Node) -> NodeId {
        let part = &mut self.parts[task];
        part.push(node);
        NodeId(part.len() as u32 - 1)
    }
}

/// Nodes that run after something which changes or observes state: only they can order a read after an update. What is
/// computed from constants and feeds alone could have been computed before the step began.
fn ordered_by_effects(graph: &Graph) -> Vec<bool> {
    let mut users: Vec<Vec<NodeId>> = vec![Vec::new(); graph.len()];
    let mut ordered = vec![false; graph.len()];
    let mut found = Vec::new();
    for (id, node) in graph.nodes() {
        let is_ref = |e: &Edge| graph.node(e.node).output_types[e.output as usize].1;
        // A variable's own node only names it; a feed is there from the start.
        let is_name = matches!(
            node.op_name(),
            "VariableV2" | "Variable" | "VarHandleOp" | "_Arg" | "Placeholder" | "PlaceholderV2"
        );
        if node.op.stateful && !is_name || node.inputs.iter().any(is_ref) {
            ordered[id.index()] = true;
            found.push(id);
        }
        let sources = node.inputs.iter().map(|e| e.node);
        for source in sources.chain(node.control_inputs.iter().copied()) {
            users[source.index()].push(id);
        }
    }
    while let Some(id) = found.pop() {
        for &user in &users[id.index()] {
            if !std::mem::replace(&mut ordered[user.index()], true) {
                found.push(user);
            }
        }
    }
    ordered
}

#[derive(Clone, Debug)]
struct Frame {
    name: String,
    parent: usize,
    parallel_iterations: i64,
    condition: Option<NodeId>,
}

/// Loops by the nodes in them; frame 0 is outside of all.
struct Frames {
    list: Vec<Frame>,
    of: Vec<usize>,
}

impl Frames {
    fn analyse(graph: &Graph) -> Result<Frames> {
        let mut frames = Frames {
            list: vec![Frame {
                name: String::new(),
                parent: 0,
                parallel_iterations: 1,
                condition: None,
            }],
            of: vec![0; graph.len()],
        };
        let mut consumers: Vec<Vec<NodeId>> = vec![Vec::new(); graph.len()];
        let mut known = vec![false; graph.len()];
        let mut queue = VecDeque::new();
        for (id, node) in graph.nodes() {
            let sources = node.inputs.iter().map(|e| e.node);
            for source in sources.chain(node.control_inputs.iter().copied()) {
                consumers[source.index()].push(id);
            }
            if node.inputs.is_empty() && node.control_inputs.is_empty() {
                known[id.index()] = true;
                queue.push_back(id);
            }
        }
        let mut found: HashMap<(usize, String), usize> = HashMap::new();
        while let Some(id) = queue.pop_front() {
            let node = graph.node(id);
            let above = frames.of[id.index()];
            if matches!(node.op_name(), "Enter" | "RefEnter") {
                let name = node.attrs.str("frame_name")?.to_owned();
                let next = frames.list.len();
                let frame = *found.entry((above, name.clone())).or_insert(next);
                if frame == next {
                    frames.list.push(Frame {
                        name,
                        parent: above,
                        parallel_iterations: node.attrs.int("parallel_iterations")?,
                        condition: None,
                    });
                }
                frames.of[id.index()] = frame;
            }
            if node.op_name() == "LoopCond" {
                frames.list[above].condition = Some(id);
            }
            let out = frames.of_output(graph, id);
            for &consumer in &consumers[id.index()] {
                if !std::mem::replace(&mut known[consumer.index()], true) {
                    frames.of[consumer.index()] = out;
                    queue.push_back(consumer);
                }
            }
        }
        Ok(frames)
    }

    /// The frame in which a node's outputs appear.
    fn of_output(&self, graph: &Graph, id: NodeId) -> usize {
        let frame = self.of[id.index()];
        match graph.node(id).op_name() {
            "Exit" | "RefExit" => self.list[frame].parent,
            _ => frame,
        }
    }
}

#[cfg(test)]
mod tests;
