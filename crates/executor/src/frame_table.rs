//! Static frames of v1 control flow: which loop body each node belongs to. A graph without
//! loops has one frame, the root, and every node is in it.

use downpour_graph::{Graph, NodeId, Result, Status};
use std::collections::{HashMap, VecDeque};

/// Most loops inside loops; a deeper graph is refused.
const MAX_DEPTH: u32 = 1000;

/// Where a node's per-iteration state lies.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Place {
    pub(crate) local: u32,
    pub(crate) slots: u32,
}

/// One loop body (or the root).
#[derive(Debug, Default)]
pub(crate) struct StaticFrame {
    pub(crate) name: String,
    depth: u32,
    pub(crate) parent: u32,
    /// `Enter` nodes that lead in.
    pub(crate) num_enters: u32,
    pub(crate) parallel_iterations: u32,
    /// Initial pending counts of the nodes inside.
    pub(crate) pending: Vec<u32>,
    pub(crate) num_slots: u32,
}

/// All frames of a graph and each node's place.
#[derive(Debug)]
pub(crate) struct FrameTable {
    pub(crate) frames: Vec<StaticFrame>,
    places: Vec<Place>,
    /// For `Enter` nodes, the frame they lead into.
    children: HashMap<NodeId, u32>,
}

impl FrameTable {
    pub(crate) fn analyse(graph: &Graph) -> Result<FrameTable> {
        let mut table = FrameTable {
            frames: vec![StaticFrame {
                parallel_iterations: 1,
                ..Default::default()
            }],
            places: vec![Place::default(); graph.len()],
            children: HashMap::new(),
        };
        let loops = graph
            .nodes()
            .any(|(_, n)| matches!(n.op_name(), "Enter" | "RefEnter"));
        let frame_of = if loops {
            table.assign(graph)?
        } else {
            vec![0; graph.len()]
        };
        for (id, node) in graph.nodes() {
            let frame = &mut table.frames[frame_of[id.index()] as usize];
            table.places[id.index()] = Place {
                local: frame.pending.len() as u32,
                slots: frame.num_slots,
            };
            frame.num_slots += node.inputs.len() as u32;
            let controls = node.control_inputs.len() as u32;
            frame.pending.push(match node.op_name() {
                // The lowest bit stands for "no live data input yet".
                "Merge" | "RefMerge" => 1 | (controls << 1),
                _ => node.inputs.len() as u32 + controls,
            });
        }
        Ok(table)
    }

    pub(crate) fn place(&self, id: NodeId) -> Place {
        self.places[id.index()]
    }

    pub(crate) fn child_of(&self, enter: NodeId) -> u32 {
        self.children.get(&enter).copied().unwrap_or(0)
    }

    /// Walks from the nodes without inputs and gives each node the frame it runs in.
    fn assign(&mut self, graph: &Graph) -> Result<Vec<u32>> {
        let mut consumers: Vec<Vec<NodeId>> = vec![Vec::new(); graph.len()];
        let mut frame_of: Vec<Option<u32>> = vec![None; graph.len()];
        let mut queue = VecDeque::new();
        for (id, node) in graph.nodes() {
            for edge in &node.inputs {
                consumers[edge.node.index()].push(id);
            }
            for control in &node.control_inputs {
                consumers[control.index()].push(id);
            }
            if node.inputs.is_empty() && node.control_inputs.is_empty() {
                frame_of[id.index()] = Some(0);
                queue.push_back(id);
            }
        }
        let mut by_name: HashMap<(u32, String), u32> = HashMap::new();
        while let Some(id) = queue.pop_front() {
            let node = graph.node(id);
            let own = frame_of[id.index()].unwrap_or(0);
            let out = match node.op_name() {
                "Enter" | "RefEnter" => self.enter(graph, id, own, &mut by_name)?,
                "Exit" | "RefExit" => self.frames[own as usize].parent,
                _ => own,
            };
            for &next in &consumers[id.index()] {
                match frame_of[next.index()] {
                    None => {
                        frame_of[next.index()] = Some(out);
                        queue.push_back(next);
                    }
                    Some(frame) if frame != out => {
                        return Err(Status::invalid_argument(format!(
                            "The node '{}' has inputs from different frames. The input '{}' is in frame '{}'. Another input is in frame '{}'.",
                            graph.node(next).name,
                            node.name,
                            self.frames[out as usize].name,
                            self.frames[frame as usize].name
                        )));
                    }
                    Some(_) => {}
                }
            }
        }
        let unreached = frame_of.iter().position(Option::is_none);
        if let Some(i) = unreached {
            return Err(Status::invalid_argument(format!(
                "The node '{}' is in a loop that nothing enters",
                graph.node(NodeId(i as u32)).name
            )));
        }
        Ok(frame_of.into_iter().flatten().collect())
    }

    fn enter(
        &mut self,
        graph: &Graph,
        id: NodeId,
        parent: u32,
        by_name: &mut HashMap<(u32, String), u32>,
    ) -> Result<u32> {
        let node = graph.node(id);
        let name = node.attrs.str("frame_name")?;
        if name.is_empty() {
            return Err(Status::invalid_argument(format!(
                "'{}' has no frame name",
                node.name
            )));
        }
        let parallel = node.attrs.int("parallel_iterations")?;
        let parallel_iterations =
            u32::try_from(parallel)
                .ok()
                .filter(|p| *p > 0)
                .ok_or_else(|| {
                    Status::invalid_argument(format!(
                        "'{}': parallel_iterations must be positive, but is {parallel}",
                        node.name
                    ))
                })?;
        let depth = self.frames[parent as usize].depth + 1;
        if depth > MAX_DEPTH {
            return Err(Status::invalid_argument(format!(
                "loops are nested more than {MAX_DEPTH} deep at '{}'",
                node.name
            )));
        }
        let child = *by_name.entry((parent, name.to_owned())).or_insert_with(|| {
            self.frames.push(StaticFrame {
                name: name.to_owned(),
                depth,
                parent,
                parallel_iterations,
                ..Default::default()
            });
            self.frames.len() as u32 - 1
        });
        let frame = &mut self.frames[child as usize];
        if frame.parallel_iterations != parallel_iterations {
            return Err(Status::invalid_argument(format!(
                "The loop frame '{name}' has different parallel_iterations: {} and {parallel_iterations}",
                frame.parallel_iterations
            )));
        }
        frame.num_enters += 1;
        self.children.insert(id, child);
        Ok(child)
    }
}

/// The id of a loop frame as TensorFlow 2.x numbers it in rendezvous keys.
pub(crate) fn child_frame_id(parent_id: u64, parent_iter: u64, name: &str) -> u64 {
    combine(parent_id, combine(parent_iter, hash64(name.as_bytes())))
}

fn combine(a: u64, b: u64) -> u64 {
    a ^ b
        .wrapping_add(0x9e37_79b9_7f4a_7800)
        .wrapping_add(a << 10)
        .wrapping_add(a >> 4)
}

fn hash64(bytes: &[u8]) -> u64 {
    const M: u64 = 0xc6a4_a793_5bd1_e995;
    let mut h = 0xDE_CAFC_AFFEu64 ^ (bytes.len() as u64).wrapping_mul(M);
    let mut words = bytes.chunks_exact(8);
    for word in &mut words {
        let mut k = word
            .iter()
            .rev()
            .fold(0u64, |k, b| (k << 8) | u64::from(*b));
        k = k.wrapping_mul(M);
        k ^= k >> 47;
        k = k.wrapping_mul(M);
        h = (h ^ k).wrapping_mul(M);
    }
    let tail = words.remainder();
    if !tail.is_empty() {
        h ^= tail
            .iter()
            .rev()
            .fold(0u64, |k, b| (k << 8) | u64::from(*b));
        h = h.wrapping_mul(M);
    }
    h ^= h >> 47;
    h = h.wrapping_mul(M);
    h ^ (h >> 47)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_ids_are_tensorflows() {
        assert_eq!(
            child_frame_id(0, 0, "wl/while_context"),
            5189404682685958103
        );
    }
}
