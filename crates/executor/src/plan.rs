//! Compilation: from a checked graph (already pruned and rewritten, feeds as `_Arg`, fetches as
//! `_Retval`) to dense arrays with kernel objects. Everything a step needs that does not change
//! from step to step is here.

use crate::core::Core;
use crate::frame_table::FrameTable;
use crate::step::Step;
use downpour_graph::{
    AttrList, AttrValue, DeviceName, Edge, EdgeId, Graph, Node, NodeId, Result, Status, find_op,
};
use downpour_runtime::{
    Body, Built, Device, Growth, IncomingEdge, IncomingEdges, KernelBuilder, NodeInfo, Pace,
    Registry, Results, StepEnv, call_by_name,
};
use downpour_tensor::{DType, Tensor};
use parking_lot::Mutex;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// States that a plan keeps for its next steps: as many as are under way at once where several clients share a plan.
const MOST_SPARE: usize = 4;

/// Kernels of stateful nodes, by node name, for the life of a session: two plans that contain
/// the same random op or queue share its state.
#[derive(Default)]
pub struct KernelCache(Mutex<HashMap<Arc<str>, (String, Built)>>);

/// What compiling needs besides the graph.
pub struct CompileEnv<'a> {
    /// Kernels.
    pub registry: &'a Registry,
    /// Device that will run the plan.
    pub device: &'a Arc<Device>,
    /// The session's stateful kernels.
    pub cache: &'a KernelCache,
    /// Whether to evaluate constant parts of the graph now.
    pub fold_constants: bool,
    /// Which place of which function's body this is; empty for a graph.
    pub site: &'a str,
    /// The task's further devices: nodes that name one of them run there, all others on `device`.
    pub others: &'a [Arc<Device>],
}

impl<'a> CompileEnv<'a> {
    /// The device that runs a node, and its number among the task's.
    pub(crate) fn device_of(&self, node: &Node) -> (u32, &'a Arc<Device>) {
        let mut numbered = (1..).zip(self.others);
        let found = numbered.find(|(_, device)| *device.name == *node.device);
        found.unwrap_or((0, self.device))
    }
}

impl Body for Plan {
    fn start(self: Arc<Self>, pace: Pace, env: Arc<StepEnv>, args: Vec<Tensor>, done: Results) {
        Step::start_at(pace, self, env, args, done);
    }
}

/// How the executor treats a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Normal,
    Arg(u32),
    Retval(u32),
    Switch,
    Merge,
    Enter {
        child: u32,
        constant: bool,
    },
    Exit,
    NextIteration,
    ControlTrigger,
    /// Runs even when its input is dead, to tell the receiver so.
    Send,
    /// Pushes its input along a numbered edge to one of the plan's receivers.
    Push {
        to: u32,
        edge: EdgeId,
    },
    /// Takes what another task pushes along a numbered edge.
    Recv(EdgeId),
}

impl Kind {
    /// Whether it tells another task of a dead input.
    pub(crate) fn sends(self) -> bool {
        matches!(self, Kind::Send | Kind::Push { .. })
    }
}

pub(crate) struct PlanNode {
    pub(crate) kind: Kind,
    pub(crate) kernel: Option<Built>,
    pub(crate) info: NodeInfo,
    /// Index among the nodes of its frame.
    pub(crate) local: u32,
    /// First of its input slots among those of its frame.
    pub(crate) slots: u32,
    pub(crate) num_inputs: u32,
    pub(crate) num_outputs: u32,
    pub(crate) data_edges: Vec<DataEdge>,
    pub(crate) control_edges: Vec<u32>,
    /// Whether any input may arrive as a reference.
    pub(crate) takes_refs: bool,
    /// Whether the kernel's work follows from the size of its inputs. That of a random
    /// number generator or of reading a file does not.
    pub(crate) cost_by_inputs: bool,
    /// What its outputs take beyond its inputs, if their sizes are among the values of the inputs.
    pub(crate) growth: Option<Growth>,
    /// Passes a reference on unread: whoever uses the value reads it, so that it sees updates
    /// made meanwhile, as TensorFlow's do, whose `Identity` of a variable shares its memory.
    pub(crate) reads_late: bool,
    /// Calls functions: what that takes is unknown.
    pub(crate) calls: bool,
    /// An argument that other nodes give as well, so that it cannot be moved out.
    pub(crate) shares_arg: bool,
    /// What it makes goes to another task, which may be beside this one.
    pub(crate) is_sent: bool,
    /// Which of the task's devices runs it.
    pub(crate) device: u32,
}

#[derive(Clone, Copy)]
pub(crate) struct DataEdge {
    pub(crate) output: u32,
    pub(crate) to: u32,
    pub(crate) slot: u32,
    /// Last edge of this output: the value can be moved instead of cloned.
    pub(crate) last: bool,
}

/// A graph compiled for one device.
pub struct Plan {
    pub(crate) nodes: Vec<PlanNode>,
    pub(crate) frames: FrameTable,
    pub(crate) roots: Vec<u32>,
    /// The numbered edges by which values come from other tasks.
    pub(crate) edges: Arc<IncomingEdges>,
    /// The tasks to which values go along numbered edges.
    pub(crate) receivers: Vec<String>,
    /// States of steps that are over: the next steps need no memory of their own.
    spare: Mutex<Vec<Core>>,
    pub(crate) num_args: usize,
    pub(crate) num_retvals: usize,
    retval_names: Vec<String>,
}

impl Plan {
    /// Compiles a rewritten graph.
    pub fn compile(graph: &Graph, env: &CompileEnv<'_>) -> Result<Arc<Plan>> {
        let folded;
        let graph = if env.fold_constants {
            folded = crate::fold::fold(graph, env);
            &folded
        } else {
            graph
        };
        let (graph, kernels) = crate::fuse::fuse(graph, env)?;
        Plan::build(&graph, kernels, env)
    }

    /// Number of values [`crate::Step::start`] expects.
    pub fn num_args(&self) -> usize {
        self.num_args
    }

    /// Number of values a step returns.
    pub fn num_retvals(&self) -> usize {
        self.num_retvals
    }

    /// What result `i` is called, for errors.
    pub(crate) fn retval_name(&self, i: usize) -> &str {
        self.retval_names.get(i).map_or("", String::as_str)
    }

    /// The state of a step that is over, or a new one.
    pub(crate) fn used(&self) -> Core {
        self.spare.lock().pop().unwrap_or_default()
    }

    /// Keeps the state of a step that is over for the next.
    pub(crate) fn keep(&self, used: Core) {
        let mut spare = self.spare.lock();
        if spare.len() < MOST_SPARE {
            spare.push(used);
        }
    }

    /// Number of nodes left after folding.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is nothing to run.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Lays the graph out; `fused` are the kernels of nodes that stand for several.
    fn build(
        graph: &Graph,
        mut fused: HashMap<NodeId, Built>,
        env: &CompileEnv<'_>,
    ) -> Result<Arc<Plan>> {
        let frames = FrameTable::analyse(graph)?;
        let mut nodes = Vec::with_capacity(graph.len());
        let refs = reference_edges(graph);
        let (mut num_args, mut num_retvals) = (0, 0);
        let mut retval_names = Vec::new();
        let mut receivers = Vec::new();
        for (id, node) in graph.nodes() {
            let kind = kind_of(node, id, &frames, &mut receivers)?;
            match kind {
                Kind::Arg(i) => num_args = num_args.max(i as usize + 1),
                Kind::Retval(i) => {
                    num_retvals = num_retvals.max(i as usize + 1);
                    retval_names.resize(num_retvals.max(retval_names.len()), String::new());
                    retval_names[i as usize] = node.name.to_string();
                }
                _ => {}
            }
            let kernel = match kind {
                Kind::Normal | Kind::Send => Some(match fused.remove(&id) {
                    Some(kernel) => kernel,
                    None => build_kernel(node, env)?,
                }),
                _ => None,
            };
            let place = frames.place(id);
            nodes.push(PlanNode {
                kind,
                kernel,
                info: NodeInfo::new(node, input_names(graph, node)),
                local: place.local,
                slots: place.slots,
                num_inputs: node.inputs.len() as u32,
                num_outputs: node.output_types.len() as u32,
                data_edges: Vec::new(),
                control_edges: Vec::new(),
                takes_refs: node.inputs.iter().any(|e| refs.contains(e)),
                cost_by_inputs: cost_by_inputs(node, env.registry),
                growth: env.registry.growth(node.op_name()),
                reads_late: matches!(kind, Kind::Retval(_))
                    || kind == Kind::Send && !is_pushed(node)
                    || reads_late(node, &refs),
                calls: calls_functions(node),
                shares_arg: false,
                is_sent: false,
                device: env.device_of(node).0,
            });
        }
        connect(graph, &mut nodes);
        mark_shared_args(&mut nodes, num_args);
        mark_sent(graph, &mut nodes, env.registry);
        let roots = graph
            .nodes()
            .filter(|(_, n)| n.inputs.is_empty() && n.control_inputs.is_empty())
            .map(|(id, _)| id.0)
            .collect();
        Ok(Arc::new(Plan {
            edges: Arc::new(incoming_edges(&nodes)?),
            receivers,
            spare: Mutex::default(),
            nodes,
            frames,
            roots,
            num_args,
            num_retvals,
            retval_names,
        }))
    }
}

/// Numbers are computed on; integers alone may be sizes, strings may be files.
fn cost_by_inputs(node: &Node, registry: &Registry) -> bool {
    let types = || node.input_types.iter().map(|t| t.0);
    let has_numbers = types().any(|t| t.is_floating() || t.is_complex());
    (has_numbers || registry.computes_on_integers(node.op_name()))
        && types().all(|t| t != DType::String)
}

/// Whether a node calls functions.
pub(crate) fn calls_functions(node: &Node) -> bool {
    let names =
        |v: &AttrValue| matches!(v, AttrValue::Func(_) | AttrValue::List(AttrList::Func(_)));
    node.attrs.0.values().any(names) || find_op(node.op_name()).is_none()
}

/// Finds `_Arg` nodes of the same index.
fn mark_shared_args(nodes: &mut [PlanNode], num_args: usize) {
    let mut uses = vec![0u32; num_args];
    for node in &*nodes {
        if let Kind::Arg(i) = node.kind {
            uses[i as usize] += 1;
        }
    }
    for node in nodes {
        if let Kind::Arg(i) = node.kind {
            node.shares_arg = uses[i as usize] > 1;
        }
    }
}

/// Finds the nodes that make what is pushed to other tasks.
fn mark_sent(graph: &Graph, nodes: &mut [PlanNode], registry: &Registry) {
    let sends = (graph.nodes()).filter(|(id, n)| nodes[id.index()].kind.sends() && is_pushed(n));
    let mut made: Vec<Edge> = sends
        .filter_map(|(_, n)| n.inputs.first().copied())
        .collect();
    while let Some(edge) = made.pop() {
        let node = graph.node(edge.node);
        if !std::mem::replace(&mut nodes[edge.node.index()].is_sent, true)
            && registry.hands_on_memory(node.op_name())
        {
            made.extend(node.inputs.first());
        }
    }
}

/// Whether a `_Send` sends unasked; any other keeps what it has until it is asked for.
fn is_pushed(node: &Node) -> bool {
    node.attrs.bool("_pushed").unwrap_or(false)
}

/// Outputs that may travel as references: those of `Ref` types, and variables' plain readings.
pub(crate) fn reference_edges(graph: &Graph) -> HashSet<Edge> {
    let mut refs = HashSet::new();
    for (id, node) in graph.nodes() {
        for (output, (_, is_ref)) in (0..).zip(&node.output_types) {
            if *is_ref {
                refs.insert(Edge { node: id, output });
            }
        }
    }
    // In and behind a loop no order of the nodes has every producer first: look again until nothing is new.
    let mut grew = true;
    while std::mem::take(&mut grew) {
        for (id, node) in graph.nodes() {
            let reading = Edge {
                node: id,
                output: 0,
            };
            grew |= reads_late(node, &refs) && refs.insert(reading);
        }
    }
    refs
}

/// Whether a node only reads a variable.
fn reads_late(node: &Node, refs: &HashSet<Edge>) -> bool {
    node.op_name() == "Identity" && node.inputs.first().is_some_and(|e| refs.contains(e))
}

fn incoming_edges(nodes: &[PlanNode]) -> Result<IncomingEdges> {
    let mut edges = Vec::new();
    for node in nodes {
        let Kind::Recv(id) = node.kind else {
            continue;
        };
        let attrs = &node.info.node.attrs;
        let device = attrs.str("send_device")?;
        let sender = DeviceName::parse(device)
            .map_err(|e| Status::invalid_argument(format!("{}: {e}", node.info.name)))?;
        edges.push(IncomingEdge {
            id,
            sender: sender.task_name().to_string().into(),
            key: format!(
                "{device};{:016x};{};{};0:0",
                attrs.int("send_device_incarnation")? as u64,
                attrs.str("recv_device")?,
                attrs.str("tensor_name")?
            )
            .into(),
            dtype: attrs.dtype("tensor_type")?,
        });
    }
    IncomingEdges::new(edges)
}

fn connect(graph: &Graph, nodes: &mut [PlanNode]) {
    for (id, node) in graph.nodes() {
        for (i, edge) in node.inputs.iter().enumerate() {
            let slot = nodes[id.index()].slots + i as u32;
            let edge_to = DataEdge {
                output: edge.output,
                to: id.0,
                slot,
                last: false,
            };
            nodes[edge.node.index()].data_edges.push(edge_to);
        }
        for control in &node.control_inputs {
            nodes[control.index()].control_edges.push(id.0);
        }
    }
    for node in nodes {
        node.data_edges.sort_by_key(|e| e.output);
        for i in 0..node.data_edges.len() {
            let next = node.data_edges.get(i + 1).map(|e| e.output);
            node.data_edges[i].last = next != Some(node.data_edges[i].output);
        }
    }
}

pub(crate) fn input_names(graph: &Graph, node: &Node) -> Vec<String> {
    node.inputs
        .iter()
        .map(|e| match e.output {
            0 => graph.node(e.node).name.to_string(),
            k => format!("{}:{k}", graph.node(e.node).name),
        })
        .collect()
}

/// The number of the edge that a pushed `_Send` or `_Recv` belongs to, if it has one.
fn numbered(node: &Node) -> Result<Option<EdgeId>> {
    if !is_pushed(node) || node.attrs.find("_edge").is_none() {
        return Ok(None);
    }
    let number = node.attrs.int("_edge")?;
    let bad = |_| Status::invalid_argument(format!("{number} is no number of an edge"));
    Ok(Some(EdgeId(u32::try_from(number).map_err(bad)?)))
}

/// Where a `_Send` sends, by its place in `receivers`, to which it is added.
fn receiver(node: &Node, receivers: &mut Vec<String>) -> Result<u32> {
    let device = DeviceName::parse(node.attrs.str("recv_device")?)
        .map_err(|e| Status::invalid_argument(format!("{}: {e}", node.name)))?;
    let task = device.task_name().to_string();
    let place = receivers.iter().position(|r| *r == task);
    Ok(place.unwrap_or_else(|| {
        receivers.push(task);
        receivers.len() - 1
    }) as u32)
}

fn kind_of(
    node: &Node,
    id: NodeId,
    frames: &FrameTable,
    receivers: &mut Vec<String>,
) -> Result<Kind> {
    let index = |node: &Node| -> Result<u32> {
        u32::try_from(node.attrs.int("index")?)
            .ok()
            .filter(|i| *i < 1 << 20)
            .ok_or_else(|| Status::invalid_argument(format!("bad index of {}", node.name)))
    };
    Ok(match node.op_name() {
        "_Arg" | "_DeviceArg" => Kind::Arg(index(node)?),
        "_Retval" | "_DeviceRetval" => Kind::Retval(index(node)?),
        "Switch" | "RefSwitch" => Kind::Switch,
        "Merge" | "RefMerge" => Kind::Merge,
        "Enter" | "RefEnter" => Kind::Enter {
            child: frames.child_of(id),
            constant: node.attrs.bool("is_constant")?,
        },
        "Exit" | "RefExit" => Kind::Exit,
        "NextIteration" | "RefNextIteration" => Kind::NextIteration,
        "ControlTrigger" => Kind::ControlTrigger,
        "_Send" | "_HostSend" => match numbered(node)? {
            Some(edge) => Kind::Push {
                to: receiver(node, receivers)?,
                edge,
            },
            None => Kind::Send,
        },
        "_Recv" | "_HostRecv" => match numbered(node)? {
            Some(edge) => Kind::Recv(edge),
            None => Kind::Normal,
        },
        _ => Kind::Normal,
    })
}

pub(crate) fn build_kernel(node: &Arc<Node>, env: &CompileEnv<'_>) -> Result<Built> {
    let at_node = |e: Status| Status {
        message: format!("{}\n\t [[{{{{node {}}}}}]]", e.message, node.shown_name()),
        ..e
    };
    let make = || {
        if find_op(node.op_name()).is_none() {
            return Ok(call_by_name(node));
        }
        let registration = env.registry.find(node).map_err(|e| Status {
            // As TensorFlow's placer says it: the node without braces.
            message: format!("{}\n\t [[{}]]", e.message, node.name),
            ..e
        })?;
        let builder = KernelBuilder::new(node, env.device_of(node).1, env.site);
        (registration.factory)(&builder).map_err(at_node)
    };
    if !node.op.stateful {
        return make();
    }
    if let Some((op, built)) = env.cache.0.lock().get(&node.name)
        && op == node.op_name()
    {
        return Ok(built.clone());
    }
    let built = make()?;
    let mut cache = env.cache.0.lock();
    let entry = cache
        .entry(node.name.clone())
        .or_insert_with(|| (node.op_name().to_owned(), built.clone()));
    Ok(if entry.0 == node.op_name() {
        entry.1.clone()
    } else {
        built
    })
}
