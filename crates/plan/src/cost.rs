//! What a step costs: a graph of measured times and sizes, and how long the step would take if its
//! parts were on given tasks. [`crate::split`] looks for a good answer to that question.
//!
//! Nodes that must share a device, such as a variable and what reads and changes it, form a group;
//! groups are placed, never single nodes.

use crate::place::{Groups, Placement};
use downpour_graph::{AttrValue, DeviceName, Graph, Node, NodeId, Result};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet};

/// What one node of a step was seen to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// How long it computed.
    pub nanos: u64,
    /// Bytes of each of its outputs.
    pub outputs: Vec<u64>,
}

/// What computing and sending cost beyond what was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Machine {
    /// How long the smallest tensor takes from task to task.
    pub latency_nanos: u64,
    /// How many bytes travel in a second.
    pub bytes_per_second: f64,
    /// How many nodes a task computes at the same time.
    pub cores: usize,
    /// How much more than its share of the variables' bytes a task may keep: 0.25 is a quarter.
    pub memory_slack: f64,
}

impl Default for Machine {
    /// A network of 10 Gbit/s; one core a task.
    fn default() -> Machine {
        Machine {
            latency_nanos: 100_000,
            bytes_per_second: 1e9,
            cores: 1,
            memory_slack: 0.25,
        }
    }
}

impl Machine {
    /// How long a tensor travels.
    pub(crate) fn transfer(&self, bytes: u64) -> u64 {
        let seconds = bytes as f64 / self.bytes_per_second.max(1.0);
        self.latency_nanos.saturating_add((seconds * 1e9) as u64)
    }
}

/// What a step would take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// From its begin to its end.
    pub nanos: u64,
    /// Bytes that travel between tasks.
    pub bytes: u64,
    /// Tensors and signals that travel.
    pub transfers: usize,
    /// How long each task computes.
    pub busy: Vec<u64>,
    /// Bytes of variables on each task.
    pub memory: Vec<u64>,
}

/// One node.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) group: usize,
    pub(crate) nanos: u64,
    pub(crate) outputs: Vec<u64>,
    /// Producers, and which of their outputs; nothing for a signal.
    pub(crate) inputs: Vec<(usize, Option<usize>)>,
}

/// Nodes that are placed together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Group {
    /// Bytes of its variables.
    pub(crate) memory: u64,
    /// Where it may go; anywhere if empty.
    pub(crate) allowed: Vec<usize>,
}

/// A step as costs, for placing it.
#[derive(Clone, Debug, Default)]
pub struct CostGraph {
    /// Producers before consumers.
    pub(crate) items: Vec<Item>,
    pub(crate) groups: Vec<Group>,
    /// Who uses each node, and which of its outputs.
    pub(crate) users: Vec<Vec<(usize, Option<usize>)>>,
    /// The group of every node of the graph, whether the step ran it or not.
    names: Vec<(String, usize)>,
    /// Devices that are no candidates, but were asked for.
    outside: Vec<DeviceName>,
}

impl CostGraph {
    /// The costs of a step that ran nodes of `graph`. `tasks` are the candidates, the first of them
    /// that of the session's master: what is fed comes from there, and what is fetched goes there.
    /// Where a node asked to be counts; one that asked for a device elsewhere stays there.
    pub fn new(
        graph: &Graph,
        measured: &HashMap<String, Measured>,
        tasks: &[DeviceName],
    ) -> Result<CostGraph> {
        let placement = Placement {
            devices: tasks.to_vec(),
            allow_soft_placement: true,
        };
        let mut roots = Groups::new(graph, &placement)?;
        let mut costs = CostGraph::default();
        let mut group_of: HashMap<NodeId, usize> = HashMap::new();
        for (id, node) in graph.nodes() {
            let root = roots.root(id);
            let group = *group_of.entry(root).or_insert_with(|| {
                costs.groups.push(Group::default());
                costs.groups.len() - 1
            });
            costs.names.push((node.name.to_string(), group));
            costs.groups[group].memory += variable_bytes(node);
            if let Some(wanted) = roots.wanted.get(&root).filter(|_| root == id) {
                let allowed = costs.candidates(wanted, tasks);
                costs.groups[group].allowed = allowed;
            }
        }
        costs.fill(graph, measured);
        costs.link();
        Ok(costs)
    }

    /// Where a request allows a group to be.
    fn candidates(&mut self, wanted: &DeviceName, tasks: &[DeviceName]) -> Vec<usize> {
        let fit: Vec<usize> = (0..tasks.len())
            .filter(|i| wanted.intersects(&tasks[*i]))
            .collect();
        if fit.len() == tasks.len() {
            return Vec::new();
        }
        if !fit.is_empty() {
            return fit;
        }
        let known = self.outside.iter().position(|d| d == wanted);
        let index = known.unwrap_or_else(|| {
            self.outside.push(wanted.clone());
            self.outside.len() - 1
        });
        vec![tasks.len() + index]
    }

    /// Adds what the step ran, producers first.
    fn fill(&mut self, graph: &Graph, measured: &HashMap<String, Measured>) {
        let ran = what_ran(graph, measured);
        let mut item_of: HashMap<NodeId, usize> = HashMap::new();
        let mut fetched = Vec::new();
        let mut shortest: BTreeMap<Kind<'_>, (u64, Vec<usize>)> = BTreeMap::new();
        for id in graph.topological_order() {
            if !ran.contains(&id) {
                continue;
            }
            let node = graph.node(id);
            let data = node.inputs.iter();
            let data = data.map(|e| (item_of.get(&e.node), Some(e.output as usize)));
            let signals = node.control_inputs.iter().map(|c| (item_of.get(c), None));
            let inputs: Vec<(usize, Option<usize>)> = data
                .chain(signals)
                .filter_map(|(item, output)| Some((*item?, output)))
                .collect();
            let group = self.names[id.index()].1;
            let fed = is_fed(node, measured);
            if fed {
                self.groups[group].allowed = vec![0];
            }
            let nanos = match measured.get(&*node.name) {
                Some(seen) if !waits(node) => seen.nanos,
                _ => 0,
            };
            let outputs = self.sizes(node, measured, &inputs);
            item_of.insert(id, self.items.len());
            if nanos > 0 {
                let kind = self.kind(node.op_name(), &inputs, &outputs);
                let alike = shortest.entry(kind).or_insert((nanos, Vec::new()));
                alike.0 = alike.0.min(nanos);
                alike.1.push(self.items.len());
            }
            for output in 0..outputs.len() {
                if measured.contains_key(&format!("_send_{}_{output}", node.name)) {
                    fetched.push((self.items.len(), Some(output)));
                }
            }
            self.items.push(Item {
                group,
                nanos,
                outputs,
                inputs: if fed { Vec::new() } else { inputs },
            });
        }
        // What does the same with as much takes as long: a longer time is that of something else
        // that the machine did, and would make a split lopsided.
        for (nanos, alike) in shortest.into_values() {
            alike.into_iter().for_each(|i| self.items[i].nanos = nanos);
        }
        if !fetched.is_empty() {
            self.groups.push(Group {
                memory: 0,
                allowed: vec![0],
            });
            self.items.push(Item {
                group: self.groups.len() - 1,
                nanos: 0,
                outputs: Vec::new(),
                inputs: fetched,
            });
        }
    }

    /// What nodes that take equally long have in common.
    fn kind<'n>(
        &self,
        op: &'n str,
        inputs: &[(usize, Option<usize>)],
        outputs: &[u64],
    ) -> Kind<'n> {
        let size = |(item, output): &(usize, Option<usize>)| {
            let sizes = &self.items.get(*item)?.outputs;
            sizes.get((*output)?).copied()
        };
        let inputs = inputs.iter().filter_map(size).collect();
        (op, inputs, outputs.to_vec())
    }

    /// Bytes of a node's outputs, as they were seen or as far as they can be guessed: what was
    /// merged with an equal node or computed before the step was not seen.
    fn sizes(
        &self,
        node: &Node,
        measured: &HashMap<String, Measured>,
        inputs: &[(usize, Option<usize>)],
    ) -> Vec<u64> {
        let largest = inputs.iter().filter_map(|(item, output)| {
            let outputs = &self.items.get(*item)?.outputs;
            outputs.get((*output)?).copied()
        });
        let guess = match node.attrs.find("value") {
            Some(AttrValue::Tensor(value)) => value.byte_len() as u64,
            _ => largest.max().unwrap_or(0),
        };
        let seen = measured.get(&*node.name);
        (0..node.output_types.len())
            .map(|i| {
                let fed = measured.get(&format!("_recv_{}_{i}", node.name));
                let fed = fed.and_then(|m| m.outputs.first());
                let seen = seen.and_then(|m| m.outputs.get(i));
                fed.or(seen).copied().unwrap_or(guess)
            })
            .collect()
    }

    /// How many groups there are.
    pub fn num_groups(&self) -> usize {
        self.groups.len()
    }

    /// Number of places: the candidates, and devices elsewhere that nodes asked for.
    pub(crate) fn num_places(&self, tasks: usize) -> usize {
        tasks + self.outside.len()
    }

    /// Finds the consumers of each node, once all are there.
    pub(crate) fn link(&mut self) {
        self.users = vec![Vec::new(); self.items.len()];
        for (to, item) in self.items.iter().enumerate() {
            for (from, output) in &item.inputs {
                self.users[*from].push((to, *output));
            }
        }
    }

    /// What the step would take with each group on the task of that number.
    pub fn estimate(&self, places: &[usize], tasks: usize, machine: &Machine) -> Estimate {
        let count = self.num_places(tasks);
        let mut found = Estimate {
            busy: vec![0; count],
            memory: vec![0; count],
            ..Default::default()
        };
        for (group, place) in self.groups.iter().zip(places) {
            found.memory[*place] += group.memory;
        }
        let mut missing: Vec<usize> = self.items.iter().map(|i| i.inputs.len()).collect();
        let mut ready_at = vec![0u64; self.items.len()];
        let mut free: Vec<Vec<u64>> = vec![vec![0; machine.cores.max(1)]; count];
        let mut ready: BinaryHeap<Reverse<(u64, usize)>> = (missing.iter().enumerate())
            .filter(|(_, m)| **m == 0)
            .map(|(i, _)| Reverse((0, i)))
            .collect();
        while let Some(Reverse((at, number))) = ready.pop() {
            let item = &self.items[number];
            let place = places[item.group];
            let mut end = at;
            if item.nanos > 0 {
                let core = (0..free[place].len()).min_by_key(|c| free[place][*c]);
                let core = &mut free[place][core.unwrap_or(0)];
                end = at.max(*core) + item.nanos;
                *core = end;
                found.busy[place] += item.nanos;
            }
            found.nanos = found.nanos.max(end);
            let mut sent: Vec<(usize, Option<usize>)> = Vec::new();
            for (to, output) in &self.users[number] {
                let there = places[self.items[*to].group];
                let mut arrives = end;
                if there != place {
                    let bytes = output.and_then(|o| item.outputs.get(o)).copied();
                    arrives += machine.transfer(bytes.unwrap_or(0));
                    if !sent.contains(&(there, *output)) {
                        sent.push((there, *output));
                        found.bytes += bytes.unwrap_or(0);
                        found.transfers += 1;
                    }
                }
                ready_at[*to] = ready_at[*to].max(arrives);
                missing[*to] -= 1;
                if missing[*to] == 0 {
                    ready.push(Reverse((ready_at[*to], *to)));
                }
            }
        }
        found
    }

    /// Which task each node of the graph goes to. What the step did not run goes where its first
    /// input is, or else its first consumer; what asked for another device is left out.
    pub fn assignment(
        &self,
        graph: &Graph,
        places: &[usize],
        tasks: usize,
    ) -> BTreeMap<String, usize> {
        let ran: HashSet<usize> = self.items.iter().map(|i| i.group).collect();
        let settled = |group: usize| {
            let has_state = self.groups[group].memory > 0;
            (ran.contains(&group) || has_state).then(|| places[group])
        };
        let mut place: Vec<Option<usize>> = (self.names.iter())
            .map(|(_, group)| settled(*group))
            .collect();
        let order = graph.topological_order();
        let mut by_group: HashMap<usize, usize> = HashMap::new();
        for id in &order {
            let group = self.names[id.index()].1;
            let known = place[id.index()].or(by_group.get(&group).copied());
            let inputs = graph.node(*id).inputs.iter().map(|e| e.node);
            let mut near = inputs.chain(graph.node(*id).control_inputs.iter().copied());
            let known = known.or_else(|| near.find_map(|n| place[n.index()]));
            if let Some(known) = known {
                place[id.index()] = Some(known);
                by_group.insert(group, known);
            }
        }
        for id in order.iter().rev() {
            for edge in &graph.node(*id).inputs {
                if place[edge.node.index()].is_none() {
                    place[edge.node.index()] = place[id.index()];
                }
            }
        }
        let named = self.names.iter().zip(place);
        named
            .filter_map(|((name, _), place)| Some((name.clone(), place.filter(|p| *p < tasks)?)))
            .collect()
    }
}

/// An op and the bytes of its inputs and outputs.
type Kind<'n> = (&'n str, Vec<u64>, Vec<u64>);

/// Whether a step gave the node's value instead of computing it.
fn is_fed(node: &Node, measured: &HashMap<String, Measured>) -> bool {
    let mut outputs = 0..node.output_types.len();
    outputs.any(|i| measured.contains_key(&format!("_recv_{}_{i}", node.name)))
}

/// Whether the time of a node is that of waiting for others.
fn waits(node: &Node) -> bool {
    let op = node.op_name();
    op.contains("Dequeue") || op.contains("TakeGradient") || op.contains("Enqueue")
}

/// The nodes that were seen, what they are computed from, and everything that holds state.
fn what_ran(graph: &Graph, measured: &HashMap<String, Measured>) -> HashSet<NodeId> {
    let seen = |node: &Node| measured.contains_key(&*node.name) || is_fed(node, measured);
    let mut left: Vec<NodeId> = graph
        .nodes()
        .filter(|(_, node)| seen(node))
        .map(|(id, _)| id)
        .collect();
    let mut ran: HashSet<NodeId> = left.iter().copied().collect();
    while let Some(id) = left.pop() {
        let node = graph.node(id);
        if is_fed(node, measured) {
            continue;
        }
        let data = node.inputs.iter().map(|e| e.node);
        for from in data.chain(node.control_inputs.iter().copied()) {
            if ran.insert(from) {
                left.push(from);
            }
        }
    }
    ran
}

/// Bytes of the variable that a node holds.
fn variable_bytes(node: &Node) -> u64 {
    if !matches!(node.op_name(), "VarHandleOp" | "VariableV2" | "Variable") {
        return 0;
    }
    let (Some(AttrValue::Type(dtype)), Some(AttrValue::Shape(shape))) =
        (node.attrs.find("dtype"), node.attrs.find("shape"))
    else {
        return 0;
    };
    let elements = shape.to_shape().map_or(0, |s| s.num_elements() as u64);
    elements.saturating_mul(dtype.size().map_or(16, |s| s as u64))
}
