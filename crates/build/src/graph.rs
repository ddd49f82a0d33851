//! The graph under construction: nodes with their shapes, and the scopes that say how the next
//! node is named, placed and ordered. [`crate::OpBuilder`] is the only way in.
//!
//! Invariant: the first mistake is kept, with the line of the user's code that made it; from then
//! on operations are accepted and ignored, and every fallible call returns that mistake.

use crate::{Operation, Output};
use downpour_graph::{
    AttrList, AttrValue, DeviceName, Endpoint, FunctionDef, GraphDef, Node, NodeDef, NodeId,
    Result, Status, Versions, is_valid_node_name,
};
use downpour_tensor::{DType, PartialShape};
use parking_lot::Mutex;
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::Location;
use std::sync::Arc;

/// Graph-def version that we write: that of TensorFlow 2.21.
const PRODUCER_VERSION: i32 = 2474;

/// A graph under construction; a cheap handle that can be cloned.
///
/// Operations return [`Output`]s, not results, so that formulas read as formulas. A mistake, such
/// as shapes that do not fit, is kept with the line that made it, and [`Graph::check`], like
/// everything that runs or exports the graph, returns it.
///
/// ```
/// use downpour_build::Graph;
/// let g = Graph::new();
/// let a = g.constant(vec![1.0f32, 2.0]);
/// let b = g.constant(vec![1.0f32, 2.0, 3.0]);
/// let _ = &a + &b;
/// let error = g.check().unwrap_err();
/// assert!(error.message.contains("[2] and [3]"), "{error}");
/// assert!(error.message.contains(".rs:"), "{error}");
/// ```
#[derive(Clone)]
pub struct Graph {
    pub(crate) inner: Arc<Mutex<Inner>>,
}

/// What a device function is told about the operation that it places.
///
/// ```
/// use downpour_build::{DeviceName, Graph, NewOp};
/// use std::sync::Arc;
/// let g = Graph::new();
/// let choose = |op: &NewOp<'_>| {
///     let task = if op.name.starts_with("left") { "/job:worker/task:0" } else { "/job:worker/task:1" };
///     // What an inner scope said stands.
///     op.device.or(&DeviceName::parse(task).unwrap_or_default())
/// };
/// let device = g.with_device_function(Arc::new(choose), || {
///     g.with_scope("left", || g.with_device("/device:GPU:0", || g.constant(1.0f32)))
/// });
/// assert_eq!(device.operation().device(), "/job:worker/task:0/device:GPU:0");
/// ```
pub struct NewOp<'a> {
    /// Op type.
    pub op: &'a str,
    /// Full name.
    pub name: &'a str,
    /// The device so far, from inner scopes.
    pub device: &'a DeviceName,
    /// Attributes; a variable's `shape` and `dtype` are among them.
    pub attrs: &'a downpour_graph::Attrs,
}

/// Chooses the device of new operations.
///
/// ```
/// use downpour_build::{DeviceFunction, DeviceName, Graph};
/// use std::sync::Arc;
/// let g = Graph::new();
/// let (ps, worker) = (DeviceName::parse("/job:ps")?, DeviceName::parse("/job:worker")?);
/// let choose: DeviceFunction = Arc::new(move |op| match op.op {
///     "VarHandleOp" => ps.clone(),
///     _ => worker.clone(),
/// });
/// let (w, twice) = g.with_device_function(choose, || {
///     let w = g.variable("w").shape([2]).build();
///     (w.clone(), &*w * 2.0)
/// });
/// assert_eq!(w.handle().operation().device(), "/job:ps");
/// assert_eq!(twice.operation().device(), "/job:worker");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type DeviceFunction = Arc<dyn Fn(&NewOp<'_>) -> DeviceName + Send + Sync>;

#[derive(Clone)]
enum DeviceRule {
    /// Parts that inner scopes left open.
    Spec(DeviceName),
    Function(DeviceFunction),
    /// Outer scopes do not count.
    Clear,
}

/// Operations that new ones wait for.
struct ControlFrame {
    operations: Vec<NodeId>,
    /// Nodes made inside: what consumes one of them waits already.
    made: HashSet<NodeId>,
    /// Outer frames do not count.
    clear: bool,
}

#[derive(Default)]
pub(crate) struct Inner {
    pub(crate) graph: downpour_graph::Graph,
    /// Shapes of each node's outputs.
    pub(crate) shapes: Vec<SmallVec<[PartialShape; 1]>>,
    /// What is known of resource and variant outputs: the value behind a handle.
    pub(crate) handles: HashMap<Endpoint, (DType, PartialShape)>,
    /// In how many functions' bodies inference is nested.
    pub(crate) depth: usize,
    /// How many nodes of functions' bodies the inference under way has looked at.
    pub(crate) effort: std::cell::Cell<usize>,
    names: HashMap<String, usize>,
    scope: String,
    devices: Vec<DeviceRule>,
    controls: Vec<ControlFrame>,
    colocate: Vec<NodeId>,
    pub(crate) collections: BTreeMap<String, Vec<crate::collection::Member>>,
    /// Values of other crates, found by their type.
    pub(crate) attached: Vec<Arc<dyn std::any::Any + Send + Sync>>,
    pub(crate) variables: Vec<crate::variable::Shared>,
    pub(crate) partitioned: Vec<crate::PartitionedVariable>,
    pub(crate) sharing: Option<crate::scope::Sharing>,
    pub(crate) seed: Option<i64>,
    pub(crate) last_seed: i64,
    error: Option<Status>,
    pub(crate) function: Option<crate::function::Frame>,
    /// Gradients that the user gave, by the name that operations refer to them by.
    pub(crate) rules: HashMap<String, crate::grad::OwnRule>,
    /// Op types whose new operations get another gradient, with its name; inner scopes last.
    pub(crate) overrides: Vec<(String, String)>,
    /// The function's body that is being built: what is made now belongs there.
    pub(crate) current: Option<Graph>,
    /// How often each name was given to a function.
    pub(crate) function_names: HashMap<String, usize>,
    /// Which function each one is a grown copy of.
    pub(crate) function_origins: HashMap<String, String>,
    /// Nodes that grew, and how many nodes there were then.
    rewritten: Vec<(NodeId, usize)>,
    /// Whether gradients are placed beside what they are gradients of.
    pub(crate) gradients_beside: bool,
}

impl Default for Graph {
    fn default() -> Graph {
        Graph::new()
    }
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Graph {
        Graph {
            inner: Arc::default(),
        }
    }

    /// Whether two handles mean the same graph.
    pub fn is(&self, other: &Graph) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// The first mistake made while building, if there was one.
    pub fn check(&self) -> Result<()> {
        match &self.inner.lock().error {
            None => Ok(()),
            Some(error) => Err(error.clone()),
        }
    }

    /// Keeps a mistake, with the line that made it; the first one stands.
    pub(crate) fn fail(&self, error: Status, at: &Location<'_>) {
        let message = format!("{}:{}: {}", at.file(), at.line(), error.message);
        self.adopt(Status::new(error.code, message));
    }

    /// Keeps a mistake that names its line already.
    pub(crate) fn adopt(&self, error: Status) {
        let outer = {
            let mut inner = self.inner.lock();
            if inner.error.is_none() {
                inner.error = Some(error.clone());
            }
            inner.function.as_ref().and_then(|f| f.finished_in())
        };
        // Nobody looks at a body any more once it is part of another graph.
        if let Some(outer) = outer {
            outer.adopt(error);
        }
    }

    /// An output that stands for one that could not be made.
    pub(crate) fn invalid(&self) -> Output {
        Output::new(self.clone(), INVALID)
    }

    /// Everything made so far, in TensorFlow's form.
    pub fn to_graph_def(&self) -> Result<GraphDef> {
        self.check()?;
        let inner = self.inner.lock();
        Ok(to_def(&inner.graph, 0))
    }

    /// What was added since the graph had `nodes` nodes, for a session that knows the rest.
    ///
    /// Gradients of branches, loops and calls change the operation that they are gradients of: it
    /// also returns what the way back needs. A session that knows the old one cannot go on.
    pub fn graph_def_since(&self, nodes: usize) -> Result<GraphDef> {
        self.check()?;
        let inner = self.inner.lock();
        let changed = |(id, then): &&(NodeId, usize)| id.index() < nodes && *then >= nodes;
        if let Some((id, _)) = inner.rewritten.iter().find(changed) {
            return Err(Status::failed_precondition(format!(
                "Operation '{}' was changed by gradients after it was run by a session. Either don't modify nodes after running them or create a new session.",
                inner.graph.node(*id).name
            )));
        }
        Ok(to_def(&inner.graph, nodes))
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.inner.lock().graph.len()
    }

    /// Whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The operation of this name.
    pub fn operation(&self, name: &str) -> Result<Operation> {
        let node = self.inner.lock().graph.find(name);
        match node {
            Some(node) => Ok(Operation::new(self.clone(), node)),
            None => Err(Status::not_found(format!(
                "The graph has no operation named '{name}'"
            ))),
        }
    }

    /// The output of this name, as in `dense/MatMul:0`.
    pub fn output(&self, name: &str) -> Result<Output> {
        let none = || Status::not_found(format!("The graph has no tensor named '{name}'"));
        let (node, output) = downpour_graph::parse_endpoint(name).ok_or_else(none)?;
        let operation = self.operation(node)?;
        operation
            .outputs()
            .into_iter()
            .nth(output as usize)
            .ok_or_else(none)
    }

    /// All operations, in the order they were made.
    pub fn operations(&self) -> Vec<Operation> {
        (0..self.len() as u32)
            .map(|i| Operation::new(self.clone(), NodeId(i)))
            .collect()
    }

    /// Names what `body` makes `name/…`. A name that is taken gets a number: `name_1/…`.
    pub fn with_scope<R>(&self, name: &str, body: impl FnOnce() -> R) -> R {
        let graph = self.innermost();
        let full = graph.inner.lock().unique(name);
        self.in_variable_path(name, || graph.in_scope(full, body))
    }

    /// Names what `body` makes in the scope that was entered before under this full name.
    pub(crate) fn in_scope<R>(&self, full: String, body: impl FnOnce() -> R) -> R {
        let graph = self.innermost();
        let outer = std::mem::replace(&mut graph.inner.lock().scope, full);
        let result = body();
        graph.inner.lock().scope = outer;
        result
    }

    /// The full name of the current scope, without a slash at its end.
    pub fn scope(&self) -> String {
        self.innermost().inner.lock().scope.clone()
    }

    /// Places what `body` makes on a device, as far as inner scopes leave parts of it open:
    /// `/job:ps/task:1`, `/device:GPU:0`.
    #[track_caller]
    pub fn with_device<R>(&self, device: &str, body: impl FnOnce() -> R) -> R {
        let rule = match DeviceName::parse(device) {
            Ok(name) => DeviceRule::Spec(name),
            Err(e) => {
                self.fail(Status::invalid_argument(e.to_string()), Location::caller());
                DeviceRule::Spec(DeviceName::default())
            }
        };
        self.under(rule, body)
    }

    /// Places what `body` makes where `choose` says.
    pub fn with_device_function<R>(&self, choose: DeviceFunction, body: impl FnOnce() -> R) -> R {
        self.under(DeviceRule::Function(choose), body)
    }

    /// Forgets the devices of outer scopes while `body` runs.
    pub fn without_device<R>(&self, body: impl FnOnce() -> R) -> R {
        self.under(DeviceRule::Clear, body)
    }

    fn under<R>(&self, rule: DeviceRule, body: impl FnOnce() -> R) -> R {
        let graph = self.innermost();
        graph.inner.lock().devices.push(rule);
        let result = body();
        graph.inner.lock().devices.pop();
        result
    }

    /// Makes what `body` makes wait for `operations`.
    #[track_caller]
    pub fn with_control<R>(&self, operations: &[Operation], body: impl FnOnce() -> R) -> R {
        let graph = self.innermost();
        self.controlled(
            ControlFrame {
                operations: operations
                    .iter()
                    .filter_map(|o| graph.waitable(o))
                    .collect(),
                made: HashSet::new(),
                clear: false,
            },
            body,
        )
    }

    /// Forgets what outer scopes wait for while `body` runs.
    pub fn without_control<R>(&self, body: impl FnOnce() -> R) -> R {
        self.controlled(
            ControlFrame {
                operations: Vec::new(),
                made: HashSet::new(),
                clear: true,
            },
            body,
        )
    }

    fn controlled<R>(&self, frame: ControlFrame, body: impl FnOnce() -> R) -> R {
        let graph = self.innermost();
        graph.inner.lock().controls.push(frame);
        let result = body();
        graph.inner.lock().controls.pop();
        result
    }

    /// Puts what `body` makes on the device of `operation`.
    pub fn with_colocation<R>(&self, operation: &Operation, body: impl FnOnce() -> R) -> R {
        let Some(node) = operation.valid_node() else {
            return body();
        };
        let graph = self.innermost();
        if !operation.graph().is(&graph) {
            // A body cannot name an operation outside; it can share its device.
            let device = DeviceName::parse(&operation.device()).unwrap_or_default();
            return graph.under(DeviceRule::Spec(device), body);
        }
        graph.inner.lock().colocate.push(node);
        let result = body();
        graph.inner.lock().colocate.pop();
        result
    }

    /// Whether gradients are placed on the devices of what they are gradients of, from now on:
    /// what a model that is split over tasks needs. [`crate::ModelPartitions::on`] asks for it.
    ///
    /// Gradients of one tensor are then added up on each device before they travel. Otherwise, as
    /// in TensorFlow, the scopes around the call that makes them say where they go.
    ///
    /// ```
    /// use downpour_build::{DType, Graph, gradients};
    /// let g = Graph::new();
    /// g.place_gradients_beside(true);
    /// let x = g.placeholder("x", DType::Float, [2]);
    /// let y = g.with_device("/job:worker/task:1", || x.square());
    /// let dx = gradients(&[y.sum(())], &[x])?;
    /// assert_eq!(dx[0].as_ref().unwrap().to_dense().operation().device(), "/job:worker/task:1");
    /// # Ok::<(), downpour_build::Status>(())
    /// ```
    pub fn place_gradients_beside(&self, beside: bool) {
        self.outermost().inner.lock().gradients_beside = beside;
    }

    /// Moves the operations for which `device` gives one. Sessions that are open keep what they
    /// know: what was moved since shows in those opened from now on.
    ///
    /// ```
    /// use downpour_build::Graph;
    /// let g = Graph::new();
    /// let x = g.constant(1.0f32);
    /// g.move_operations(|name| (name == "Const").then(|| "/job:worker/task:1".to_owned()));
    /// assert_eq!(x.operation().device(), "/job:worker/task:1");
    /// ```
    pub fn move_operations(&self, device: impl Fn(&str) -> Option<String>) {
        let mut inner = self.inner.lock();
        let devices: Vec<Arc<str>> = (inner.graph.nodes())
            .map(|(_, node)| match device(&node.name) {
                Some(device) => device.into(),
                None => node.device.clone(),
            })
            .collect();
        inner.graph.assign_devices(|id| devices[id.index()].clone());
    }

    /// Runs `body` with the device of `beside`, whatever the scopes around say; where that has
    /// none, they say.
    pub(crate) fn beside<R>(&self, beside: &Operation, body: impl FnOnce() -> R) -> R {
        match DeviceName::parse(&beside.device()) {
            Ok(device) if device != DeviceName::default() => {
                self.without_device(|| self.under(DeviceRule::Spec(device), body))
            }
            _ => body(),
        }
    }

    /// Sets the graph's seed: random operations without a seed of their own then repeat.
    pub fn set_seed(&self, seed: i64) {
        self.inner.lock().seed = Some(seed);
    }

    /// Adds the nodes and functions of a graph in TensorFlow's form, under the current scope's
    /// names if there is one.
    #[track_caller]
    pub fn import(&self, def: &GraphDef) -> Result<()> {
        self.check()?;
        let mut inner = self.inner.lock();
        let prefix = match inner.scope.as_str() {
            "" => String::new(),
            scope => format!("{scope}/"),
        };
        let mut def = def.clone();
        for node in &mut def.nodes {
            node.name.insert_str(0, &prefix);
            for input in &mut node.inputs {
                let at = usize::from(input.starts_with('^'));
                input.insert_str(at, &prefix);
            }
            inner.names.insert(node.name.to_lowercase(), 1);
        }
        let first = inner.graph.len();
        inner.graph.extend(def)?;
        if let Err(error) = crate::shape::infer_all(&mut inner, first) {
            drop(inner);
            self.fail(error, Location::caller());
            return self.check();
        }
        Ok(())
    }

    /// Adds a function to the graph's library; one of the same name stands.
    pub(crate) fn add_function(&self, function: FunctionDef) -> Result<()> {
        self.inner.lock().graph.extend(GraphDef {
            functions: vec![function],
            ..Default::default()
        })
    }

    /// Lets an operation grow in place; `shapes` are those of all its outputs then.
    pub(crate) fn replace(&self, id: NodeId, def: NodeDef, shapes: &[PartialShape]) -> Result<()> {
        let mut inner = self.inner.lock();
        inner.graph.replace(id, def)?;
        inner.shapes[id.index()] = shapes.iter().cloned().collect();
        let nodes = inner.graph.len();
        inner.rewritten.push((id, nodes));
        Ok(())
    }

    /// A node's own data.
    pub(crate) fn node(&self, id: NodeId) -> Arc<Node> {
        self.inner.lock().graph.node(id).clone()
    }
}

/// Stands for an operation that could not be made.
pub(crate) const INVALID: Endpoint = Endpoint {
    node: NodeId(u32::MAX),
    output: 0,
};

impl Inner {
    /// Takes over where what is made in `outer` would be placed and how it would be seeded.
    pub(crate) fn settle_in(&mut self, outer: &Inner) {
        self.graph = downpour_graph::Graph::from_checked(Vec::new(), &outer.graph);
        (self.seed, self.last_seed) = (outer.seed, outer.last_seed);
        self.overrides.clone_from(&outer.overrides);
        self.devices.clone_from(&outer.devices);
        if let Some(id) = outer.colocate.last() {
            let device = DeviceName::parse(&outer.graph.node(*id).device);
            self.devices
                .push(DeviceRule::Spec(device.unwrap_or_default()));
        }
    }

    /// Marks the names of nodes that came in whole as taken.
    pub(crate) fn take_names(&mut self, nodes: &[NodeDef]) {
        for node in nodes {
            self.names.insert(node.name.to_lowercase(), 1);
        }
    }

    /// `name`, in the current scope, with a number if it is taken.
    pub(crate) fn unique(&mut self, name: &str) -> String {
        let full = match self.scope.as_str() {
            "" => name.to_owned(),
            scope => format!("{scope}/{name}"),
        };
        let key = full.to_lowercase();
        let count = self.names.entry(key).or_insert(0);
        *count += 1;
        if *count == 1 {
            return full;
        }
        let mut number = *count - 1;
        loop {
            let next = format!("{full}_{number}");
            number += 1;
            if !self.names.contains_key(&next.to_lowercase()) {
                self.names.insert(next.to_lowercase(), 1);
                self.names.insert(full.to_lowercase(), number);
                return next;
            }
        }
    }

    /// The current scope's own name, for the one operation that stands for all of it.
    fn name_of_scope(&mut self) -> String {
        let scope = self.scope.clone();
        if self.graph.find(&scope).is_none() {
            return scope;
        }
        self.scope.clear();
        let name = self.unique(&scope);
        self.scope = scope;
        name
    }

    /// Lets go of a name that [`Inner::unique`] gave, for the operation that will carry it.
    pub(crate) fn release(&mut self, full: &str) {
        self.names.remove(&full.to_lowercase());
    }

    /// Checks a node, infers its shapes and adds it. The name is made unique.
    pub(crate) fn add(
        &mut self,
        mut def: NodeDef,
        own_device: Option<DeviceName>,
        controls: &[NodeId],
    ) -> Result<NodeId> {
        def.name = match def.name.as_str() {
            "" if !self.scope.is_empty() => self.name_of_scope(),
            name if is_valid_node_name(name) => self.unique(name),
            name => {
                return Err(Status::invalid_argument(format!(
                    "'{name}' is not a valid name for an operation"
                )));
            }
        };
        self.colocated(&mut def);
        if let Some((_, rule)) = self.overrides.iter().rev().find(|(op, _)| *op == def.op)
            && def.attrs.find("_gradient_op_type").is_none()
        {
            def.attrs.set("_gradient_op_type", rule.as_str());
        }
        let device = self.device_of(&def, own_device);
        def.device = device.to_string();
        let inputs: Vec<NodeId> = def
            .inputs
            .iter()
            .filter_map(|i| self.graph.find(downpour_graph::parse_endpoint(i)?.0))
            .collect();
        let mut waits = self.waits_for(&inputs, controls);
        for id in crate::function::program_order(self, &def) {
            if !waits.contains(&id) {
                waits.push(id);
            }
        }
        for id in waits {
            def.inputs.push(format!("^{}", self.graph.node(id).name));
        }
        let first = self.graph.len();
        self.graph.extend(GraphDef {
            nodes: vec![def],
            ..Default::default()
        })?;
        let id = NodeId(first as u32);
        let shapes = crate::shape::infer(self, id)?;
        self.shapes.push(shapes);
        for frame in &mut self.controls {
            frame.made.insert(id);
        }
        crate::function::note_effect(self, id);
        Ok(id)
    }

    /// Adds `_class` for the operations that a new one must share its device with.
    fn colocated(&self, def: &mut NodeDef) {
        if self.colocate.is_empty() || def.attrs.find("_class").is_some() {
            return;
        }
        let mut classes: Vec<bytes::Bytes> = Vec::new();
        for id in &self.colocate {
            let node = self.graph.node(*id);
            match node.attrs.find("_class") {
                Some(AttrValue::List(AttrList::Str(list))) => classes.extend(list.iter().cloned()),
                _ => classes.push(format!("loc:@{}", node.name).into()),
            }
        }
        classes.sort();
        classes.dedup();
        def.attrs
            .set("_class", AttrValue::List(AttrList::Str(classes)));
    }

    fn device_of(&self, def: &NodeDef, own: Option<DeviceName>) -> DeviceName {
        let beside = match (&own, self.colocate.last()) {
            (None, Some(id)) => {
                let device = DeviceName::parse(&self.graph.node(*id).device);
                Some(device.unwrap_or_default())
            }
            _ => None,
        };
        // As in TensorFlow, device functions are asked about every variable, also about one that
        // must be beside another: round robin counts it.
        if let (Some(device), false) = (&beside, def.op == "VarHandleOp") {
            return device.clone();
        }
        let mut device = own.unwrap_or_default();
        for rule in self.devices.iter().rev() {
            match rule {
                DeviceRule::Spec(spec) => device = device.or(spec),
                DeviceRule::Function(choose) => {
                    device = choose(&NewOp {
                        op: &def.op,
                        name: &def.name,
                        device: &device,
                        attrs: &def.attrs,
                    });
                }
                DeviceRule::Clear => break,
            }
        }
        beside.unwrap_or(device)
    }

    /// What a node with these inputs must wait for: the scopes' operations, but for those that
    /// one of its inputs waits for already.
    fn waits_for(&self, inputs: &[NodeId], own: &[NodeId]) -> Vec<NodeId> {
        let mut out: Vec<NodeId> = own.to_vec();
        for frame in self.controls.iter().rev() {
            if frame.clear {
                break;
            }
            if !inputs.iter().any(|i| frame.made.contains(i)) {
                out.extend(frame.operations.iter().filter(|o| !inputs.contains(o)));
            }
        }
        let mut seen = HashSet::new();
        out.retain(|id| seen.insert(*id));
        out
    }

    /// Infers the shapes of a function's body that came in whole; an error in it shows when it runs.
    pub(crate) fn infer_from(&mut self, first: usize) {
        let _ = crate::shape::infer_all(self, first);
    }
}

fn to_def(graph: &downpour_graph::Graph, first: usize) -> GraphDef {
    let nodes = graph.nodes().skip(first);
    let mut functions: Vec<FunctionDef> =
        graph.functions().values().map(|f| (**f).clone()).collect();
    functions.sort_by(|a, b| a.signature.name.cmp(&b.signature.name));
    GraphDef {
        nodes: nodes.map(|(_, node)| node_def(graph, node)).collect(),
        functions,
        gradients: Vec::new(),
        versions: Versions {
            producer: PRODUCER_VERSION,
            ..Default::default()
        },
    }
}

/// A checked node in the form it is written in.
pub(crate) fn node_def(graph: &downpour_graph::Graph, node: &Node) -> NodeDef {
    let mut inputs: Vec<String> = Vec::with_capacity(node.inputs.len());
    for edge in &node.inputs {
        let name = &graph.node(edge.node).name;
        inputs.push(match edge.output {
            0 => name.to_string(),
            n => format!("{name}:{n}"),
        });
    }
    for control in &node.control_inputs {
        inputs.push(format!("^{}", graph.node(*control).name));
    }
    NodeDef {
        name: node.name.to_string(),
        op: node.op.name.clone(),
        inputs,
        device: node.device.to_string(),
        attrs: node.attrs.clone(),
    }
}
