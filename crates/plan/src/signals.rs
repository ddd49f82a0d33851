//! Signals that take a detour: a `NoOp` that gathers what one task waits for, but sits on another. An optimizer's `update`
//! is the usual case: parameter servers tell the worker that they are done, which tells one of them to count the step.
//! Whoever waits for such a node waits for what it waits for instead, where that takes fewer signals between tasks.
//! TensorFlow's optimiser does the same.

use downpour_graph::{Graph, Node, NodeId};
use std::collections::HashSet;
use std::sync::Arc;

/// Lets nodes wait for one another without a detour over other tasks. `targets` stay.
pub fn shorten_signals(graph: &Graph, targets: &[String]) -> Graph {
    let mut waits: Vec<Vec<NodeId>> = graph
        .nodes()
        .map(|(_, n)| n.control_inputs.clone())
        .collect();
    let mut waiting: Vec<Vec<NodeId>> = vec![Vec::new(); graph.len()];
    for (id, node) in graph.nodes() {
        for control in &node.control_inputs {
            waiting[control.index()].push(id);
        }
    }
    let mut passed = vec![false; graph.len()];
    for id in graph.topological_order() {
        if !is_signal(graph.node(id)) || waiting[id.index()].is_empty() {
            continue;
        }
        let from = waits[id.index()].clone();
        let to = std::mem::take(&mut waiting[id.index()]);
        if !is_detour(graph, id, &from, &to) {
            waiting[id.index()] = to;
            continue;
        }
        passed[id.index()] = true;
        for other in to {
            let waits = &mut waits[other.index()];
            waits.retain(|w| *w != id);
            waits.extend(&from);
            waits.sort();
            waits.dedup();
            for source in &from {
                waiting[source.index()].push(other);
            }
        }
    }
    if !passed.contains(&true) {
        return graph.clone();
    }
    let targets: HashSet<&str> = targets.iter().map(String::as_str).collect();
    let stays = |id: NodeId| !passed[id.index()] || targets.contains(&*graph.node(id).name);
    let mut new_id = vec![NodeId(0); graph.len()];
    for (count, (id, _)) in (0..).zip(graph.nodes().filter(|(id, _)| stays(*id))) {
        new_id[id.index()] = NodeId(count);
    }
    let nodes = graph.nodes().filter(|(id, _)| stays(*id));
    let nodes = nodes.map(|(id, node)| {
        let mut copy = Node::clone(node);
        for edge in &mut copy.inputs {
            edge.node = new_id[edge.node.index()];
        }
        copy.control_inputs = waits[id.index()]
            .iter()
            .map(|w| new_id[w.index()])
            .collect();
        Arc::new(copy)
    });
    Graph::from_checked(nodes.collect(), graph)
}

/// Whether a node is nothing but a place to wait.
fn is_signal(node: &Node) -> bool {
    node.op_name() == "NoOp" && !node.control_inputs.is_empty()
}

/// Whether fewer signals travel between tasks when those in `to` wait for those in `from` themselves.
fn is_detour(graph: &Graph, id: NodeId, from: &[NodeId], to: &[NodeId]) -> bool {
    let device = |id: NodeId| &*graph.node(id).device;
    let receivers: HashSet<&str> = to.iter().map(|id| device(*id)).collect();
    let arriving = |at: &str| from.iter().filter(|id| device(**id) != at).count();
    let own = device(id);
    let through = arriving(own) + receivers.iter().filter(|at| **at != own).count();
    receivers.iter().map(|at| arriving(at)).sum::<usize>() < through
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_graph::{GraphDef, NodeDef};

    /// A graph of lines `name device ^waits…`.
    fn graph(text: &str) -> Graph {
        let nodes = text.lines().map(|line| {
            let mut words = line.split(' ').map(str::to_owned);
            NodeDef {
                name: words.next().unwrap(),
                op: "NoOp".to_owned(),
                device: words.next().unwrap(),
                inputs: words.collect(),
                ..Default::default()
            }
        });
        let nodes = nodes.collect();
        Graph::new(GraphDef {
            nodes,
            ..Default::default()
        })
        .unwrap()
    }

    fn text(graph: &Graph) -> String {
        let line = |node: &Node| {
            let waits = node.control_inputs.iter();
            let waits: String = waits
                .map(|id| format!(" ^{}", graph.node(*id).name))
                .collect();
            format!("{} {}{waits}", node.name, node.device)
        };
        let lines: Vec<String> = graph.nodes().map(|(_, node)| line(node)).collect();
        lines.join("\n")
    }

    fn shortened(graph_text: &str, targets: &[&str]) -> String {
        let targets: Vec<String> = targets.iter().map(|t| (*t).to_owned()).collect();
        text(&shorten_signals(&graph(graph_text), &targets))
    }

    #[test]
    fn parameter_servers_tell_each_other_that_they_are_done_and_not_the_worker() {
        let g = "w ps0\nb ps1\nupdate worker ^w ^b\ncount ps0 ^update";
        assert_eq!(shortened(g, &["count"]), "w ps0\nb ps1\ncount ps0 ^w ^b");
        // Whoever asked for the detour itself gets it too.
        assert_eq!(
            shortened(g, &["count", "update"]),
            "w ps0\nb ps1\nupdate worker ^w ^b\ncount ps0 ^w ^b"
        );
        let chain = "w ps0\none worker ^w\ntwo ps1 ^one\ncount ps0 ^two";
        assert_eq!(shortened(chain, &["count"]), "w ps0\ncount ps0 ^w");
    }

    #[test]
    fn signals_that_are_gathered_before_they_travel_stay_so() {
        for g in [
            "a ps0\nb ps0\nall ps0 ^a ^b\nend worker ^all",
            "a ps0\nb ps0\nall ps1 ^a ^b\nc worker ^all\nd ps2 ^all\ne ps3 ^all",
            "a ps0\nb ps0 ^a\nc ps0 ^b",
        ] {
            assert_eq!(shortened(g, &["end"]), g);
        }
    }
}
