//! The checked graph. Every node's op is known, its attributes are complete and of the declared
//! kind, its inputs exist and have the right types, and no cycle runs outside `NextIteration`.
//! Node ids are positions and never change: a session's graph only grows.

use crate::print::attr_kind;
use crate::removed;
use crate::{
    AttrDef, AttrList, AttrValue, Attrs, FunctionDef, Functions, GraphDef, NodeDef, OpDef, Result,
    Status, Versions, find_op, is_valid_node_name, parse_endpoint,
};
use downpour_tensor::DType;
use std::collections::HashMap;
use std::sync::Arc;

/// A node's position in its graph.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The position as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// One output of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// Producer.
    pub node: NodeId,
    /// Which of its outputs.
    pub output: u32,
}

/// A data input: where it comes from.
pub type Edge = Endpoint;

/// `(type, is_ref)` of an output or input.
pub type OutputType = (DType, bool);

/// A checked node.
#[derive(Clone, Debug)]
pub struct Node {
    /// Name.
    pub name: Arc<str>,
    /// Signature of its op (for a call, of the function).
    pub op: Arc<OpDef>,
    /// Producers of its inputs, in order.
    pub inputs: Vec<Edge>,
    /// Nodes that must run first.
    pub control_inputs: Vec<NodeId>,
    /// Requested device, as written.
    pub device: Arc<str>,
    /// Complete attributes.
    pub attrs: Attrs,
    /// Types the op expects.
    pub input_types: Vec<OutputType>,
    /// Types the op produces.
    pub output_types: Vec<OutputType>,
}

impl Node {
    /// Op type.
    pub fn op_name(&self) -> &str {
        &self.op.name
    }

    /// The name that errors show: for a node that came with a function's body, its name there.
    pub fn shown_name(&self) -> &str {
        self.attrs.str("_original_name").unwrap_or(&self.name)
    }
}

/// A checked graph.
#[derive(Clone, Debug, Default)]
pub struct Graph {
    nodes: Vec<Arc<Node>>,
    by_name: HashMap<Arc<str>, NodeId>,
    functions: Arc<Functions>,
    versions: Versions,
}

/// The graph-def version we understand: that of TensorFlow 2.21.
const CONSUMER_VERSION: i32 = 2474;

impl Graph {
    /// Checks a whole graph.
    pub fn new(def: GraphDef) -> Result<Graph> {
        let mut graph = Graph::default();
        graph.extend(def)?;
        Ok(graph)
    }

    /// Checks a whole graph whose functions are these.
    pub(crate) fn with_functions(def: GraphDef, functions: Arc<Functions>) -> Result<Graph> {
        let mut graph = Graph {
            functions,
            ..Default::default()
        };
        graph.extend(def)?;
        Ok(graph)
    }

    /// Checks more nodes and functions and adds them; on an error nothing changes.
    pub fn extend(&mut self, def: GraphDef) -> Result<()> {
        check_versions(&def.versions)?;
        let mut functions = self.functions.clone();
        for function in def.functions {
            // A client sends its whole library with every extension: the first one stands.
            if functions.find(&function.signature.name).is_none() {
                let name = function.signature.name.clone();
                let library = Arc::make_mut(&mut functions);
                library.definitions.insert(name, Arc::new(function));
            }
        }
        for (name, gradient) in def.gradients {
            if functions.gradient_of(&name) != Some(&gradient) {
                Arc::make_mut(&mut functions)
                    .gradients
                    .insert(name, gradient);
            }
        }
        let base = self.nodes.len();
        let mut by_name = HashMap::with_capacity(def.nodes.len());
        for (i, node) in def.nodes.iter().enumerate() {
            if !is_valid_node_name(&node.name) {
                let shown: String = node.name.escape_debug().take(200).collect();
                return Err(Status::invalid_argument(format!(
                    "Node '{shown}': Node name contains invalid characters"
                )));
            }
            let id =
                NodeId(u32::try_from(base + i).map_err(|_| {
                    Status::resource_exhausted("the graph has more than 2**32 nodes")
                })?);
            let name: Arc<str> = Arc::from(node.name.as_str());
            if self.by_name.contains_key(&name) || by_name.insert(name, id).is_some() {
                return Err(Status::invalid_argument(format!(
                    "Node name '{}' already exists in the Graph",
                    node.name
                )));
            }
        }
        let find = |name: &str| {
            by_name
                .get(name)
                .or_else(|| self.by_name.get(name))
                .copied()
        };
        if base > 0 {
            let mut ops = def.nodes.iter().map(|n| n.op.as_str());
            ops.try_for_each(|op| removed::check(op, def.versions.producer))?;
        }
        let mut added = Vec::with_capacity(def.nodes.len());
        let mut resolver = Resolver::default();
        for node in def.nodes {
            added.push(resolver.check(node, &functions, find)?);
        }
        self.check_edges(base, &added)?;
        self.nodes.extend(added.into_iter().map(Arc::new));
        if let Err(e) = self.check_cycles(base) {
            self.nodes.truncate(base);
            return Err(e);
        }
        self.by_name.extend(by_name);
        self.functions = functions;
        if base == 0 {
            self.versions = def.versions;
        }
        Ok(())
    }

    /// Puts a grown node in the place of one: of the same name, with outputs that begin with those
    /// it had, so that nobody who consumes them notices. On an error nothing changes.
    pub fn replace(&mut self, id: NodeId, def: NodeDef) -> Result<()> {
        let Some(old) = self.nodes.get(id.index()).cloned() else {
            return Err(Status::internal(format!("there is no node {}", id.0)));
        };
        if *old.name != *def.name {
            return Err(Status::invalid_argument(format!(
                "Node '{}' cannot take the place of '{}'",
                def.name, old.name
            )));
        }
        let new = Resolver::default().check(def, &self.functions, |name| self.find(name))?;
        if !new.output_types.starts_with(&old.output_types) {
            return Err(Status::invalid_argument(format!(
                "Node '{}' must keep its outputs: {} do not begin with {}",
                old.name,
                type_list(&new.output_types),
                type_list(&old.output_types)
            )));
        }
        self.check_edges(self.nodes.len(), std::slice::from_ref(&new))?;
        self.nodes[id.index()] = Arc::new(new);
        self.check_cycles(0).inspect_err(|_| {
            self.nodes[id.index()] = old;
        })
    }

    /// Builds a graph from nodes that were already checked and only rearranged.
    pub fn from_checked(nodes: Vec<Arc<Node>>, like: &Graph) -> Graph {
        let by_name = nodes
            .iter()
            .enumerate()
            .map(|(i, n)| (n.name.clone(), NodeId(i as u32)))
            .collect();
        Graph {
            nodes,
            by_name,
            functions: like.functions.clone(),
            versions: like.versions.clone(),
        }
    }

    /// The nodes marked in `keep`, which must include all that those need.
    pub(crate) fn subgraph(&self, keep: &[bool]) -> Graph {
        if keep.iter().all(|k| *k) {
            return self.clone();
        }
        let mut new_id = vec![NodeId(0); self.len()];
        let mut nodes = Vec::new();
        for (id, node) in self.nodes().filter(|(id, _)| keep[id.index()]) {
            new_id[id.index()] = NodeId(nodes.len() as u32);
            nodes.push(node.clone());
        }
        for node in &mut nodes {
            let node = Arc::make_mut(node);
            for edge in &mut node.inputs {
                edge.node = new_id[edge.node.index()];
            }
            for control in &mut node.control_inputs {
                *control = new_id[control.index()];
            }
        }
        Graph::from_checked(nodes, self)
    }

    /// Gives every node a device.
    pub fn assign_devices(&mut self, device: impl Fn(NodeId) -> Arc<str>) {
        for (i, node) in self.nodes.iter_mut().enumerate() {
            let device = device(NodeId(i as u32));
            if node.device != device {
                Arc::make_mut(node).device = device;
            }
        }
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Whether there is no node.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// The node at `id`.
    pub fn node(&self, id: NodeId) -> &Arc<Node> {
        &self.nodes[id.index()]
    }

    /// All nodes with their ids.
    pub fn nodes(&self) -> impl ExactSizeIterator<Item = (NodeId, &Arc<Node>)> {
        self.nodes
            .iter()
            .enumerate()
            .map(|(i, n)| (NodeId(i as u32), n))
    }

    /// The node called `name`.
    pub fn find(&self, name: &str) -> Option<NodeId> {
        self.by_name.get(name).copied()
    }

    /// The function called `name`.
    pub fn function(&self, name: &str) -> Option<&Arc<FunctionDef>> {
        self.functions.find(name)
    }

    /// All functions.
    pub fn functions(&self) -> &HashMap<String, Arc<FunctionDef>> {
        &self.functions.definitions
    }

    /// The function library.
    pub fn library(&self) -> &Arc<Functions> {
        &self.functions
    }

    /// The function registered as the gradient of `name`.
    pub fn gradient_of(&self, name: &str) -> Option<&str> {
        self.functions.gradient_of(name)
    }

    /// Ids so that producers come before consumers. Nodes that can only be reached through a
    /// loop's back edge are left out.
    pub fn topological_order(&self) -> Vec<NodeId> {
        let mut pending = vec![0usize; self.len()];
        let mut consumers: Vec<Vec<NodeId>> = vec![Vec::new(); self.len()];
        for (id, node) in self.nodes() {
            let inputs = node.inputs.iter().map(|e| e.node);
            for source in inputs.chain(node.control_inputs.iter().copied()) {
                pending[id.index()] += 1;
                consumers[source.index()].push(id);
            }
        }
        let mut order: Vec<NodeId> = self
            .nodes()
            .map(|(id, _)| id)
            .filter(|id| pending[id.index()] == 0)
            .collect();
        let mut next = 0;
        while let Some(&id) = order.get(next) {
            next += 1;
            for &consumer in &consumers[id.index()] {
                pending[consumer.index()] -= 1;
                if pending[consumer.index()] == 0 {
                    order.push(consumer);
                }
            }
        }
        order
    }

    /// Versions of the producer.
    pub fn versions(&self) -> &Versions {
        &self.versions
    }

    fn check_edges(&self, base: usize, added: &[Node]) -> Result<()> {
        let producer = |id: NodeId| match id.index().checked_sub(base) {
            Some(i) => &added[i],
            None => &self.nodes[id.index()],
        };
        for node in added {
            for (i, (edge, &(wanted, wants_ref))) in
                node.inputs.iter().zip(&node.input_types).enumerate()
            {
                let source = producer(edge.node);
                let Some(&(given, is_ref)) = source.output_types.get(edge.output as usize) else {
                    return Err(Status::invalid_argument(format!(
                        "Node '{}': Connecting to invalid output {} of source node {} which has {} outputs.",
                        node.name,
                        edge.output,
                        source.name,
                        source.output_types.len()
                    )));
                };
                if given != wanted || (wants_ref && !is_ref) {
                    let suffix = |r: bool| if r { "_ref" } else { "" };
                    return Err(Status::invalid_argument(format!(
                        "Input {i} of node {} was passed {given}{} from {}:{} incompatible with expected {wanted}{}.",
                        node.name,
                        suffix(is_ref),
                        source.name,
                        edge.output,
                        suffix(wants_ref)
                    )));
                }
            }
        }
        Ok(())
    }

    /// Refuses cycles among nodes from `base` on that do not pass through `NextIteration`.
    fn check_cycles(&self, base: usize) -> Result<()> {
        let count = self.nodes.len() - base;
        let mut pending = vec![0usize; count];
        let mut consumers: Vec<Vec<u32>> = vec![Vec::new(); count];
        let breaks = |op: &str| matches!(op, "NextIteration" | "RefNextIteration");
        for (i, node) in self.nodes[base..].iter().enumerate() {
            let sources = node
                .inputs
                .iter()
                .map(|e| e.node)
                .chain(node.control_inputs.iter().copied());
            for source in sources {
                if let Some(s) = source.index().checked_sub(base)
                    && !breaks(self.nodes[source.index()].op_name())
                {
                    pending[i] += 1;
                    consumers[s].push(i as u32);
                }
            }
        }
        let mut ready: Vec<usize> = (0..count).filter(|&i| pending[i] == 0).collect();
        let mut seen = 0;
        while let Some(i) = ready.pop() {
            seen += 1;
            for &c in &consumers[i] {
                pending[c as usize] -= 1;
                if pending[c as usize] == 0 {
                    ready.push(c as usize);
                }
            }
        }
        if seen == count {
            return Ok(());
        }
        let stuck: Vec<&str> = (0..count)
            .filter(|&i| pending[i] > 0)
            .map(|i| &*self.nodes[base + i].name)
            .take(3)
            .collect();
        Err(Status::invalid_argument(format!(
            "Graph is invalid, contains a cycle with {} nodes, including: {}",
            count - seen,
            stuck.join(", ")
        )))
    }
}

fn check_versions(v: &Versions) -> Result<()> {
    if v.min_consumer > CONSUMER_VERSION {
        return Err(Status::invalid_argument(format!(
            "GraphDef min consumer version {} above current version {CONSUMER_VERSION} for this runtime. Please upgrade.",
            v.min_consumer
        )));
    }
    if v.producer < 0 {
        return Err(Status::invalid_argument(format!(
            "GraphDef producer version {} below min producer 0 supported by this runtime. Please regenerate your graph.",
            v.producer
        )));
    }
    if v.bad_consumers.contains(&CONSUMER_VERSION) {
        return Err(Status::invalid_argument(format!(
            "GraphDef disallows consumer version {CONSUMER_VERSION}. Please upgrade this runtime: this version is likely buggy."
        )));
    }
    Ok(())
}

/// Checks single nodes; shares strings that repeat.
#[derive(Default)]
pub(crate) struct Resolver {
    devices: HashMap<String, Arc<str>>,
    calls: HashMap<String, Arc<OpDef>>,
}

impl Resolver {
    fn check(
        &mut self,
        def: NodeDef,
        functions: &Functions,
        find: impl Fn(&str) -> Option<NodeId>,
    ) -> Result<Node> {
        let op = self.signature(&def, functions)?;
        let attrs = complete_attrs(&def, &op)?;
        let at_node = |e: Status| Status {
            message: format!("{}\n\t [[{{{{node {}}}}}]]", e.message, def.name),
            ..e
        };
        let input_types = op.input_types(&attrs).map_err(at_node)?;
        let output_types = op.output_types(&attrs).map_err(at_node)?;
        let mut inputs = Vec::with_capacity(input_types.len());
        let mut control_inputs = Vec::new();
        for text in &def.inputs {
            let unknown = |name: &str| {
                let name: String = name.chars().take(200).collect();
                Status::invalid_argument(format!(
                    "Node '{}': Unknown input node '{name}'",
                    def.name
                ))
            };
            if let Some(name) = text.strip_prefix('^') {
                let id = find(name).ok_or_else(|| unknown(text))?;
                if !control_inputs.contains(&id) {
                    control_inputs.push(id);
                }
                continue;
            }
            if !control_inputs.is_empty() {
                return Err(Status::invalid_argument(format!(
                    "Node '{}': Control dependencies must come after regular dependencies",
                    def.name
                )));
            }
            let (name, output) = parse_endpoint(text).ok_or_else(|| unknown(text))?;
            inputs.push(Edge {
                node: find(name).ok_or_else(|| unknown(text))?,
                output,
            });
        }
        if inputs.len() != input_types.len() {
            return Err(Status::invalid_argument(format!(
                "NodeDef expected inputs '{}' do not match {} inputs specified; Op<name={}>; NodeDef: {{{{node {}}}}}",
                type_list(&input_types),
                inputs.len(),
                op.name,
                def.name
            )));
        }
        let device = self
            .devices
            .entry(def.device)
            .or_insert_with_key(|d| Arc::from(d.as_str()))
            .clone();
        Ok(Node {
            name: Arc::from(def.name),
            op,
            inputs,
            control_inputs,
            device,
            attrs,
            input_types,
            output_types,
        })
    }

    pub(crate) fn signature(&mut self, def: &NodeDef, functions: &Functions) -> Result<Arc<OpDef>> {
        if let Some(op) = find_op(&def.op).or_else(|| self.calls.get(&def.op).cloned()) {
            return Ok(op);
        }
        if let Some(function) = functions.find(&def.op) {
            let op = Arc::new(function.signature.clone());
            self.calls.insert(def.op.clone(), op.clone());
            return Ok(op);
        }
        let shown: String = def.op.chars().take(200).collect();
        Err(Status::not_found(format!(
            "Op type not registered '{shown}' in binary running on this task. Make sure the Op and Kernel are registered in the binary running in this process."
        )))
    }
}

fn type_list(types: &[OutputType]) -> String {
    types
        .iter()
        .map(|(t, _)| t.name())
        .collect::<Vec<_>>()
        .join(", ")
}

/// Fills in defaults and refuses missing, undeclared and ill-typed attributes.
pub(crate) fn complete_attrs(def: &NodeDef, op: &OpDef) -> Result<Attrs> {
    let mut attrs = def.attrs.clone();
    for (name, value) in &def.attrs.0 {
        if name.starts_with('_') {
            continue;
        }
        let Some(declared) = op.attr(name) else {
            return Err(Status::invalid_argument(format!(
                "NodeDef mentions attr '{name}' not in Op<name={}>; NodeDef: {{{{node {}}}}}. (Check whether your GraphDef-interpreting binary is up to date with your GraphDef-generating binary.).",
                op.name, def.name
            )));
        };
        check_attr(def, op, declared, value)?;
    }
    for declared in &op.attrs {
        if attrs.find(&declared.name).is_some() {
            continue;
        }
        match &declared.default {
            Some(value) => attrs.set(declared.name.clone(), value.clone()),
            None => {
                return Err(Status::invalid_argument(format!(
                    "NodeDef missing attr '{}' from Op<name={}>; NodeDef: {{{{node {}}}}}",
                    declared.name, op.name, def.name
                )));
            }
        }
    }
    Ok(attrs)
}

fn check_attr(def: &NodeDef, op: &OpDef, declared: &AttrDef, value: &AttrValue) -> Result<()> {
    let fail = |what: String| {
        Err(Status::invalid_argument(format!(
            "{what}\n\t; NodeDef: {{{{node {}}}}}; Op<name={}>",
            def.name, op.name
        )))
    };
    let kind = attr_kind(value);
    let fits = kind == declared.kind
        || (kind == "list(any)" && declared.kind.starts_with("list("))
        || matches!(value, AttrValue::Placeholder(_));
    if !fits {
        return fail(format!(
            "AttrValue had value with type '{kind}' when '{}' expected for attr '{}'",
            declared.kind, declared.name
        ));
    }
    if let Some(minimum) = declared.minimum {
        let actual = match value {
            AttrValue::Int(i) => *i,
            AttrValue::List(list) => list.len() as i64,
            _ => i64::MAX,
        };
        if actual < minimum {
            let what = if matches!(value, AttrValue::Int(_)) {
                "Value"
            } else {
                "Length"
            };
            return fail(format!(
                "{what} for attr '{}' of {actual} must be at least minimum {minimum}",
                declared.name
            ));
        }
    }
    if !declared.allowed.is_empty() {
        let admits = |given: &AttrValue| {
            declared.allowed.iter().any(|a| match (a, given) {
                (AttrValue::Type(a), AttrValue::Type(b)) => a == b,
                (AttrValue::Str(a), AttrValue::Str(b)) => a == b,
                _ => true,
            })
        };
        let (bad, shown) = match value {
            AttrValue::Type(t) => (!admits(value), t.name().to_owned()),
            AttrValue::Str(s) => (
                !admits(value),
                format!("\"{}\"", String::from_utf8_lossy(s)),
            ),
            AttrValue::List(AttrList::Type(types)) => {
                match types.iter().find(|t| !admits(&AttrValue::Type(**t))) {
                    Some(t) => (true, t.name().to_owned()),
                    None => (false, String::new()),
                }
            }
            _ => (false, String::new()),
        };
        if bad {
            let allowed: Vec<String> = declared
                .allowed
                .iter()
                .map(|a| match a {
                    AttrValue::Type(t) => t.name().to_owned(),
                    other => crate::attr_text(other),
                })
                .collect();
            return fail(format!(
                "Value for attr '{}' of {shown} is not in the list of allowed values: {}",
                declared.name,
                allowed.join(", ")
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, op: &str, inputs: &[&str], attrs: &[(&str, AttrValue)]) -> NodeDef {
        let mut def = NodeDef {
            name: name.into(),
            op: op.into(),
            ..Default::default()
        };
        def.inputs = inputs.iter().map(|s| s.to_string()).collect();
        for (k, v) in attrs {
            def.attrs.set(*k, v.clone());
        }
        def
    }

    fn float() -> (&'static str, AttrValue) {
        ("T", AttrValue::Type(DType::Float))
    }

    fn placeholder(name: &str) -> NodeDef {
        node(name, "Placeholder", &[], &[("dtype", DType::Float.into())])
    }

    fn check(nodes: Vec<NodeDef>) -> Result<Graph> {
        Graph::new(GraphDef {
            nodes,
            ..Default::default()
        })
    }

    #[test]
    fn defaults_are_filled_and_edges_resolved_in_any_order() {
        let g = check(vec![
            node("m", "MatMul", &["a", "b:0", "^a"], &[float()]),
            placeholder("a"),
            placeholder("b"),
        ])
        .unwrap();
        let m = g.node(g.find("m").unwrap());
        assert!(!m.attrs.bool("transpose_a").unwrap());
        assert_eq!(
            m.inputs[1],
            Edge {
                node: NodeId(2),
                output: 0
            }
        );
        assert_eq!(m.control_inputs, [NodeId(1)]);
    }

    #[test]
    fn a_node_grows_in_place() {
        let (n, pack) = (("N", AttrValue::Int(2)), "Pack");
        let mut g = check(vec![
            placeholder("a"),
            node("p", pack, &["a", "a"], &[float(), n]),
            node("u", "Neg", &["p"], &[float()]),
        ])
        .unwrap();
        let id = g.find("p").unwrap();
        let three = ("N", AttrValue::Int(3));
        let grown = |last: &str| node("p", pack, &["a", "a", last], &[float(), three.clone()]);
        let error = g.replace(id, grown("u")).unwrap_err();
        assert!(error.message.contains("cycle"), "{error}");
        assert_eq!(g.node(id).inputs.len(), 2);
        let error = g.replace(id, node("p", "NoOp", &[], &[])).unwrap_err();
        assert!(error.message.contains("must keep its outputs"), "{error}");
        let error = g.replace(id, placeholder("q")).unwrap_err();
        assert!(error.message.contains("cannot take the place"), "{error}");
        g.replace(id, grown("a")).unwrap();
        assert_eq!(g.node(id).inputs.len(), 3);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let cases = [
            (
                vec![node("a", "NoSuchOp", &[], &[])],
                "Op type not registered 'NoSuchOp'",
            ),
            (
                vec![node("a", "Neg", &["b"], &[float()])],
                "Node 'a': Unknown input node 'b'",
            ),
            (
                vec![placeholder("a"), placeholder("a")],
                "Node name 'a' already exists",
            ),
            (vec![placeholder("^a")], "invalid characters"),
            (
                vec![node("a", "Neg", &[], &[float()])],
                "do not match 0 inputs",
            ),
            (
                vec![node("a", "Placeholder", &[], &[])],
                "missing attr 'dtype'",
            ),
            (
                vec![placeholder("a"), node("n", "Neg", &["a:7"], &[float()])],
                "invalid output 7 of source node a",
            ),
            (
                vec![
                    placeholder("a"),
                    node("n", "Neg", &["a"], &[("T", DType::Int32.into())]),
                ],
                "Input 0 of node n was passed float from a:0 incompatible with expected int32.",
            ),
            (
                vec![node("n", "Neg", &["n"], &[float()])],
                "contains a cycle with 1 nodes, including: n",
            ),
            (vec![node("n", "NoOp", &["^n"], &[])], "contains a cycle"),
            (
                vec![node("n", "NoOp", &[], &[("x", true.into())])],
                "mentions attr 'x' not in Op<name=NoOp>",
            ),
            (
                vec![
                    placeholder("a"),
                    node("n", "Neg", &["a"], &[("T", DType::String.into())]),
                ],
                "Value for attr 'T' of string is not in the list of allowed values: ",
            ),
            (
                vec![node("n", "Pack", &[], &[float(), ("N", 0i64.into())])],
                "must be at least minimum 1",
            ),
            (
                vec![node("n", "Pack", &[], &[float(), ("N", i64::MAX.into())])],
                "must be between 0 and",
            ),
        ];
        for (nodes, text) in cases {
            let e = check(nodes).unwrap_err();
            assert!(
                e.message.contains(text),
                "{} should contain {text}",
                e.message
            );
        }
    }

    #[test]
    fn a_failed_extension_changes_nothing() {
        let mut g = check(vec![placeholder("a")]).unwrap();
        let more = vec![placeholder("b"), node("n", "Neg", &["n"], &[float()])];
        assert!(
            g.extend(GraphDef {
                nodes: more,
                ..Default::default()
            })
            .is_err()
        );
        assert_eq!(g.len(), 1);
        assert!(g.find("b").is_none());
        g.extend(GraphDef {
            nodes: vec![placeholder("b")],
            ..Default::default()
        })
        .unwrap();
        assert_eq!(g.len(), 2);
    }

    #[test]
    fn versions_are_checked() {
        for versions in [
            Versions {
                min_consumer: CONSUMER_VERSION + 1,
                ..Default::default()
            },
            Versions {
                producer: -1,
                ..Default::default()
            },
            Versions {
                bad_consumers: vec![CONSUMER_VERSION],
                ..Default::default()
            },
        ] {
            assert!(
                Graph::new(GraphDef {
                    versions,
                    ..Default::default()
                })
                .is_err()
            );
        }
    }
}
