//! Fusion: nodes whose results only feed each other become one node of the plan.
//!
//! Two kinds of groups. *Arithmetic*: a graph's bookkeeping (learning rates, decays, norms) is long runs
//! of single numbers, where passing a value on costs a hundred times the arithmetic, and on large arrays
//! each op is one more way through memory; such a run is computed in one go. *Shortcuts*: what kernels
//! declare that they can do better together with the nodes before them. For shapes a group is not made for,
//! and when the step is traced, it runs the members' own kernels one after the other. Values, errors
//! and their node names are the same either way.

mod arithmetic;
mod group;

use crate::fold::renumbered;
use crate::plan::{CompileEnv, reference_edges};
use downpour_graph::{Edge, Graph, Node, NodeId, Result};
use downpour_runtime::{Around, Built, Quick};
use downpour_tensor::DType;
use group::Group;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Nodes that run as one, in an order in which they can run; the last is the one whose results
/// others see.
struct Found {
    members: Vec<NodeId>,
    /// The first inputs of the group; the members' others follow.
    inputs: Vec<Edge>,
    quick: Option<Quick>,
}

/// The graph with groups in place of their last nodes, and the kernels of those.
pub(crate) fn fuse(graph: &Graph, env: &CompileEnv<'_>) -> Result<(Graph, HashMap<NodeId, Built>)> {
    let users = Users::of(graph);
    let mut groups = shortcuts(graph, env, &users);
    let taken: HashSet<NodeId> = groups.iter().flat_map(|g| g.members.clone()).collect();
    groups.extend(arithmetic_groups(graph, env, &users, &taken));
    if groups.is_empty() {
        return Ok((graph.clone(), HashMap::new()));
    }
    let mut inside = vec![false; graph.len()];
    let mut by_root = HashMap::new();
    for found in groups {
        let root = *found.members.last().expect("a group has members");
        for id in &found.members {
            inside[id.index()] = *id != root;
        }
        by_root.insert(root, Group::build(graph, found, env)?);
    }
    let mut new_id = vec![NodeId(0); graph.len()];
    let mut kept = Vec::with_capacity(graph.len());
    let mut kernels = HashMap::new();
    for (id, node) in graph.nodes() {
        if inside[id.index()] {
            continue;
        }
        let to = NodeId(kept.len() as u32);
        new_id[id.index()] = to;
        let mut node = node.clone();
        if let Some((kernel, inputs)) = by_root.remove(&id) {
            let root = Arc::make_mut(&mut node);
            let type_of = |e: &Edge| graph.node(e.node).output_types[e.output as usize];
            root.input_types = inputs.iter().map(type_of).collect();
            root.inputs = inputs;
            kernels.insert(to, kernel);
        }
        kept.push(node);
    }
    Ok((renumbered(kept, &new_id, graph), kernels))
}

/// Who uses what.
struct Users {
    of: Vec<Vec<NodeId>>,
    is_control: Vec<bool>,
    /// Values that are references: read when their reader runs, which a group would put off.
    refs: HashSet<Edge>,
}

impl Users {
    fn of(graph: &Graph) -> Users {
        let mut of: Vec<Vec<NodeId>> = vec![Vec::new(); graph.len()];
        let mut is_control = vec![false; graph.len()];
        for (id, node) in graph.nodes() {
            for edge in &node.inputs {
                of[edge.node.index()].push(id);
            }
            for control in &node.control_inputs {
                is_control[control.index()] = true;
            }
        }
        Users {
            of,
            is_control,
            refs: reference_edges(graph),
        }
    }

    /// Whether a node can run later than its own inputs ask for: with the last of a group.
    fn can_wait(&self, node: &Node) -> bool {
        node.control_inputs.is_empty() && !node.inputs.iter().any(|e| self.refs.contains(e))
    }
}

/// The groups that kernels ask for.
fn shortcuts(graph: &Graph, env: &CompileEnv<'_>, users: &Users) -> Vec<Found> {
    let mut taken: HashSet<NodeId> = HashSet::new();
    let mut groups = Vec::new();
    for (root, node) in graph.nodes() {
        let Some(finder) = env.registry.shortcut(node.op_name()) else {
            continue;
        };
        let around = Around::new(graph, root, env.device, env.site);
        let Some(found) = finder(&around) else {
            continue;
        };
        let mut members = found.members;
        members.push(root);
        let only_inside = |id: &NodeId| {
            *id == root
                || !users.is_control[id.index()]
                    && users.can_wait(graph.node(*id))
                    && users.of[id.index()].iter().all(|u| members.contains(u))
        };
        if members.iter().any(|id| taken.contains(id)) || !members.iter().all(only_inside) {
            continue;
        }
        taken.extend(&members);
        groups.push(Found {
            members,
            inputs: found.inputs,
            quick: Some(found.run),
        });
    }
    groups
}

/// Groups of two nodes of arithmetic and more. A node joins when all that use it are in one group already.
fn arithmetic_groups(
    graph: &Graph,
    env: &CompileEnv<'_>,
    users: &Users,
    taken: &HashSet<NodeId>,
) -> Vec<Found> {
    let can_fuse = |id: NodeId, node: &Node| {
        env.registry.arithmetic(node.op_name()).is_some_and(|a| {
            let numbers = &node.input_types[..a.numbers().min(node.input_types.len())];
            numbers.iter().all(|t| *t == (DType::Float, false))
        }) && node.output_types == [(DType::Float, false)]
            && users.can_wait(node)
            && !taken.contains(&id)
    };
    let mut group_of: Vec<Option<usize>> = vec![None; graph.len()];
    let mut groups: Vec<Vec<NodeId>> = Vec::new();
    let order = graph.topological_order();
    for id in order.iter().rev() {
        if !can_fuse(*id, graph.node(*id)) {
            continue;
        }
        let of = &users.of[id.index()];
        let shared = of.first().and_then(|u| group_of[u.index()]).filter(|g| {
            !users.is_control[id.index()] && of.iter().all(|u| group_of[u.index()] == Some(*g))
        });
        let group = shared.unwrap_or_else(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        group_of[id.index()] = Some(group);
        groups[group].push(*id);
    }
    groups.retain(|members| members.len() > 1);
    let found = groups.into_iter().map(|mut members| {
        members.reverse();
        Found {
            members,
            inputs: Vec::new(),
            quick: None,
        }
    });
    found.collect()
}
