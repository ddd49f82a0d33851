//! Prunes a graph to what a request needs. Each fed tensor is replaced by a source node, each
//! fetched one gets a sink node: `_Arg`/`_Retval` for a step that is run whole, `_Recv`/`_Send`
//! for one whose feeds come bit by bit (a partial run). Either way the nodes are named as
//! TensorFlow's master names them, since errors show the names.

use downpour_graph::{Attrs, Edge, Graph, Node, NodeId, Result, Status, find_op, parse_endpoint};
use downpour_tensor::DType;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Names of what a step is given and asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Request {
    /// Fed tensors, as `node:0`.
    pub feeds: Vec<String>,
    /// Fetched tensors, as `node:0`.
    pub fetches: Vec<String>,
    /// Nodes to run without fetching anything.
    pub targets: Vec<String>,
}

/// What stands at the ends of a rewritten graph.
#[derive(Clone, Debug)]
pub enum Endpoints {
    /// `_Arg` number i is feed i, `_Retval` number i fetch i.
    Positional,
    /// `_Recv` and `_Send` whose tensor name is the feed's or fetch's name, to and from the
    /// client on this device.
    Rendezvous {
        /// Full name of the client device.
        device: String,
        /// Its incarnation.
        incarnation: u64,
    },
}

/// Rewrites `graph` for `request`. The result's nodes all run. Fed types are returned in the
/// order of the feeds, so that values can be checked.
pub fn rewrite(graph: &Graph, request: &Request, ends: &Endpoints) -> Result<(Graph, Vec<DType>)> {
    let mut feeds: HashMap<Edge, usize> = HashMap::new();
    let mut feed_types = Vec::with_capacity(request.feeds.len());
    for (i, name) in request.feeds.iter().enumerate() {
        let edge = find_feed(graph, name)?;
        if feeds.insert(edge, i).is_some() {
            return Err(Status::invalid_argument(format!(
                "Endpoint \"{name}\" fed more than once."
            )));
        }
        feed_types.push(graph.node(edge.node).output_types[edge.output as usize].0);
    }
    let fetches: Vec<Edge> = request
        .fetches
        .iter()
        .map(|name| find_fetch(graph, name))
        .collect::<Result<_>>()?;
    let targets = find_targets(graph, &request.targets)?;

    let fed_nodes: HashSet<NodeId> = feeds.keys().map(|e| e.node).collect();
    let mut keep = vec![false; graph.len()];
    let mut used_feeds = vec![false; request.feeds.len()];
    let mut stack: Vec<NodeId> = targets
        .iter()
        .copied()
        .filter(|id| !is_fed(graph, &feeds, *id))
        .collect();
    let need = |edge: Edge, stack: &mut Vec<NodeId>, used: &mut [bool]| match feeds.get(&edge) {
        Some(&i) => used[i] = true,
        None => stack.push(edge.node),
    };
    for &edge in &fetches {
        need(edge, &mut stack, &mut used_feeds);
    }
    while let Some(id) = stack.pop() {
        if std::mem::replace(&mut keep[id.index()], true) {
            continue;
        }
        let node = graph.node(id);
        for &edge in &node.inputs {
            need(edge, &mut stack, &mut used_feeds);
        }
        for &control in &node.control_inputs {
            // A control edge from a fed placeholder waits for the feed, not for the node.
            if fed_nodes.contains(&control) && is_fed(graph, &feeds, control) {
                continue;
            }
            stack.push(control);
        }
    }

    let mut nodes: Vec<Arc<Node>> = Vec::new();
    let mut new_id: HashMap<NodeId, NodeId> = HashMap::new();
    for (id, _) in graph.nodes().filter(|(id, _)| keep[id.index()]) {
        new_id.insert(id, NodeId(new_id.len() as u32));
    }
    let first_feed = new_id.len();
    let feed_id = |i: usize| NodeId((first_feed + i) as u32);
    let map_edge = |edge: Edge| match feeds.get(&edge) {
        Some(&i) => Edge {
            node: feed_id(i),
            output: 0,
        },
        None => Edge {
            node: new_id[&edge.node],
            output: edge.output,
        },
    };
    for (_, node) in graph.nodes().filter(|(id, _)| keep[id.index()]) {
        let mut copy = Node::clone(node);
        for edge in &mut copy.inputs {
            *edge = map_edge(*edge);
        }
        let controls = std::mem::take(&mut copy.control_inputs);
        for control in controls {
            match new_id.get(&control) {
                Some(&id) => copy.control_inputs.push(id),
                None => {
                    let fed = feeds
                        .iter()
                        .filter(|(e, _)| e.node == control)
                        .map(|(_, &i)| feed_id(i));
                    copy.control_inputs.extend(fed);
                }
            }
        }
        copy.control_inputs.dedup();
        nodes.push(Arc::new(copy));
    }
    for (i, name) in request.feeds.iter().enumerate() {
        nodes.push(Arc::new(source(name, i, feed_types[i], ends)?));
    }
    for (i, (name, &edge)) in request.fetches.iter().zip(&fetches).enumerate() {
        let dtype = graph.node(edge.node).output_types[edge.output as usize].0;
        nodes.push(Arc::new(sink(name, i, dtype, map_edge(edge), ends)?));
    }
    Ok((Graph::from_checked(nodes, graph), feed_types))
}

/// Whether all outputs of a node are fed, so that it need not run.
fn is_fed(graph: &Graph, feeds: &HashMap<Edge, usize>, id: NodeId) -> bool {
    let outputs = graph.node(id).output_types.len() as u32;
    outputs > 0 && (0..outputs).all(|output| feeds.contains_key(&Edge { node: id, output }))
}

fn find_feed(graph: &Graph, name: &str) -> Result<Edge> {
    let missing = || Status::not_found(format!("FeedInputs: unable to find feed output {name}"));
    let (node, output) = parse_endpoint(name).ok_or_else(missing)?;
    let id = graph.find(node).ok_or_else(missing)?;
    let outputs = graph.node(id).output_types.len();
    if output as usize >= outputs {
        return Err(Status::invalid_argument(format!(
            "FeedInputs: {name} should have output index < {outputs}"
        )));
    }
    Ok(Edge { node: id, output })
}

fn find_fetch(graph: &Graph, name: &str) -> Result<Edge> {
    let missing = || Status::not_found(format!("FetchOutputs node {name}: not found"));
    let (node, output) = parse_endpoint(name).ok_or_else(missing)?;
    let id = graph.find(node).ok_or_else(missing)?;
    let outputs = graph.node(id).output_types.len();
    if outputs == 0 {
        return Err(Status::invalid_argument(format!(
            "Tried to fetch data for '{name}', which produces no output.  To run to a node but not fetch any data, pass '{name}' as an argument to the 'target_node_names' argument of the Session::Run API."
        )));
    }
    if output as usize >= outputs {
        return Err(Status::invalid_argument(format!(
            "FetchOutputs {name}: output index too large, must be < {outputs}"
        )));
    }
    Ok(Edge { node: id, output })
}

fn find_targets(graph: &Graph, names: &[String]) -> Result<Vec<NodeId>> {
    let mut found = Vec::with_capacity(names.len());
    let mut missing = Vec::new();
    for name in names {
        match parse_endpoint(name).and_then(|(node, _)| graph.find(node)) {
            Some(id) => found.push(id),
            None => missing.push(name.as_str()),
        }
    }
    if missing.is_empty() {
        return Ok(found);
    }
    Err(Status::not_found(format!(
        "PruneForTargets: Some target nodes not found: {}",
        missing.join(" ")
    )))
}

fn source(name: &str, i: usize, dtype: DType, ends: &Endpoints) -> Result<Node> {
    let (node, output) = parse_endpoint(name).unwrap_or((name, 0));
    match ends {
        Endpoints::Positional => {
            let mut attrs = Attrs::default();
            attrs.set("T", dtype);
            attrs.set("index", i as i64);
            end_node(
                format!("_recv_{node}_{output}"),
                "_Arg",
                attrs,
                vec![],
                vec![(dtype, false)],
            )
        }
        Endpoints::Rendezvous {
            device,
            incarnation,
        } => {
            let mut attrs = transfer_attrs(name, device, *incarnation);
            attrs.set("tensor_type", dtype);
            end_node(
                format!("_recv_{node}_{output}"),
                "_Recv",
                attrs,
                vec![],
                vec![(dtype, false)],
            )
        }
    }
}

fn sink(name: &str, i: usize, dtype: DType, from: Edge, ends: &Endpoints) -> Result<Node> {
    let (node, output) = parse_endpoint(name).unwrap_or((name, 0));
    let (name, op, attrs) = match ends {
        Endpoints::Positional => {
            let mut attrs = Attrs::default();
            attrs.set("T", dtype);
            attrs.set("index", i as i64);
            (format!("_send_{node}_{output}"), "_Retval", attrs)
        }
        Endpoints::Rendezvous {
            device,
            incarnation,
        } => {
            let mut attrs = transfer_attrs(name, device, *incarnation);
            attrs.set("T", dtype);
            (format!("_send_{node}_{output}"), "_Send", attrs)
        }
    };
    let mut sink = end_node(name, op, attrs, vec![from], vec![])?;
    sink.input_types = vec![(dtype, false)];
    Ok(sink)
}

fn transfer_attrs(name: &str, device: &str, incarnation: u64) -> Attrs {
    let mut attrs = Attrs::default();
    attrs.set("tensor_name", name);
    attrs.set("send_device", device);
    attrs.set("recv_device", device);
    attrs.set("send_device_incarnation", incarnation as i64);
    attrs.set("client_terminated", true);
    attrs
}

fn end_node(
    name: String,
    op: &str,
    attrs: Attrs,
    inputs: Vec<Edge>,
    output_types: Vec<(DType, bool)>,
) -> Result<Node> {
    let op = find_op(op).ok_or_else(|| Status::internal(format!("no signature for {op}")))?;
    Ok(Node {
        name: name.into(),
        op,
        inputs,
        control_inputs: vec![],
        device: "".into(),
        attrs,
        input_types: vec![],
        output_types,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_graph::{GraphDef, NodeDef};

    /// `name op input…` per line; every type is float.
    fn graph(text: &str) -> Graph {
        let nodes = text
            .lines()
            .map(|line| {
                let mut words = line.split_whitespace().map(str::to_owned);
                let (name, op) = (words.next().unwrap(), words.next().unwrap());
                let mut def = NodeDef {
                    name,
                    inputs: words.collect(),
                    ..Default::default()
                };
                let attr = if op == "Placeholder" { "dtype" } else { "T" };
                if op != "NoOp" {
                    def.attrs.set(attr, DType::Float);
                }
                def.op = op;
                def
            })
            .collect();
        Graph::new(GraphDef {
            nodes,
            ..Default::default()
        })
        .unwrap()
    }

    fn show(graph: &Graph) -> Vec<String> {
        graph
            .nodes()
            .map(|(_, n)| {
                let mut line = format!("{} {}", n.name, n.op_name());
                for e in &n.inputs {
                    line += &format!(" {}:{}", graph.node(e.node).name, e.output);
                }
                for c in &n.control_inputs {
                    line += &format!(" ^{}", graph.node(*c).name);
                }
                line
            })
            .collect()
    }

    fn request(feeds: &[&str], fetches: &[&str], targets: &[&str]) -> Request {
        let own = |v: &[&str]| v.iter().map(|s| s.to_string()).collect();
        Request {
            feeds: own(feeds),
            fetches: own(fetches),
            targets: own(targets),
        }
    }

    const TEXT: &str = "x Placeholder\ny Placeholder\na Neg x\nb Abs a ^y\nunused Neg y\nt NoOp ^b";

    #[test]
    fn only_what_is_needed_stays_and_feeds_cut_the_graph() {
        let g = graph(TEXT);
        let (r, types) = rewrite(
            &g,
            &request(&["a:0", "y:0"], &["b:0"], &[]),
            &Endpoints::Positional,
        )
        .unwrap();
        assert_eq!(types, [DType::Float; 2]);
        assert_eq!(
            show(&r),
            [
                "b Abs _recv_a_0:0 ^_recv_y_0",
                "_recv_a_0 _Arg",
                "_recv_y_0 _Arg",
                "_send_b_0 _Retval b:0"
            ]
        );
        let (r, _) = rewrite(
            &g,
            &request(&["x:0"], &["x:0"], &["t"]),
            &Endpoints::Positional,
        )
        .unwrap();
        assert_eq!(
            show(&r),
            [
                "y Placeholder",
                "a Neg _recv_x_0:0",
                "b Abs a:0 ^y",
                "t NoOp ^b",
                "_recv_x_0 _Arg",
                "_send_x_0 _Retval _recv_x_0:0"
            ]
        );
    }

    #[test]
    fn names_that_do_not_exist_are_named() {
        let g = graph(TEXT);
        for (r, text) in [
            (
                request(&["q:0"], &[], &[]),
                "FeedInputs: unable to find feed output q:0",
            ),
            (
                request(&["x:1"], &[], &[]),
                "FeedInputs: x:1 should have output index < 1",
            ),
            (
                request(&["x:0", "x"], &[], &[]),
                "Endpoint \"x\" fed more than once.",
            ),
            (
                request(&[], &["q:0"], &[]),
                "FetchOutputs node q:0: not found",
            ),
            (
                request(&[], &["x:3"], &[]),
                "FetchOutputs x:3: output index too large, must be < 1",
            ),
            (
                request(&[], &["t:0"], &[]),
                "Tried to fetch data for 't:0', which produces no output.",
            ),
            (
                request(&[], &[], &["q", "t", "r"]),
                "PruneForTargets: Some target nodes not found: q r",
            ),
        ] {
            let e = rewrite(&g, &r, &Endpoints::Positional).unwrap_err();
            assert!(e.message.starts_with(text), "{}", e.message);
        }
    }
}
