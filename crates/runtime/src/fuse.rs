//! Fusion: arithmetic nodes whose results only feed each other become one node of the plan.
//!
//! A graph's bookkeeping (learning rates, decays, norms) is long runs of single numbers, where
//! passing a value on costs a hundred times the arithmetic. A fused node computes such a run in
//! one go when its inputs turn out to be single `float` numbers; for any other shape, and when
//! the step is traced, it runs the members' own kernels one after the other. Values, errors and
//! their node names are the same either way.

use crate::executor::run_kernel;
use crate::kernel::{Built, Kernel, NodeInfo, OpContext, Value};
use crate::plan::{CompileEnv, build_kernel, input_names, reference_edges};
use downpour_graph::{Edge, Graph, Node, NodeId, Result, Status};
use downpour_tensor::{DType, Tensor};
use std::collections::HashMap;
use std::sync::Arc;

/// What an op does to single numbers: exactly what its kernel does to them.
#[derive(Clone, Copy)]
pub enum ScalarOp {
    /// Of one number.
    Unary(fn(f32) -> f32),
    /// Of two numbers.
    Binary(fn(f32, f32) -> f32),
}

/// The graph with groups in place of their last nodes, and the kernels of those.
pub(crate) fn fuse(graph: &Graph, env: &CompileEnv<'_>) -> Result<(Graph, HashMap<NodeId, Built>)> {
    let groups = groups(graph, env);
    if groups.is_empty() {
        return Ok((graph.clone(), HashMap::new()));
    }
    let mut inside = vec![false; graph.len()];
    let mut by_root = HashMap::new();
    for members in groups {
        let root = *members.last().expect("a group has members");
        for id in &members {
            inside[id.index()] = *id != root;
        }
        by_root.insert(root, Fused::new(graph, &members, env)?);
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
        if let Some((fused, inputs)) = by_root.remove(&id) {
            let root = Arc::make_mut(&mut node);
            root.input_types = vec![(DType::Float, false); inputs.len()];
            root.inputs = inputs;
            kernels.insert(to, Built::Cheap(Arc::new(fused)));
        }
        kept.push(node);
    }
    for node in &mut kept {
        let node = Arc::make_mut(node);
        for edge in &mut node.inputs {
            edge.node = new_id[edge.node.index()];
        }
        for control in &mut node.control_inputs {
            *control = new_id[control.index()];
        }
    }
    Ok((Graph::from_checked(kept, graph), kernels))
}

/// Groups of two nodes and more, each in an order in which they can run; the last is the one
/// whose result others see. A node joins when all that use it are in one group already.
fn groups(graph: &Graph, env: &CompileEnv<'_>) -> Vec<Vec<NodeId>> {
    let mut consumers: Vec<Vec<NodeId>> = vec![Vec::new(); graph.len()];
    let mut is_control = vec![false; graph.len()];
    for (id, node) in graph.nodes() {
        for edge in &node.inputs {
            consumers[edge.node.index()].push(id);
        }
        for control in &node.control_inputs {
            is_control[control.index()] = true;
        }
    }
    let refs = reference_edges(graph);
    // A reference is read when its reader runs, which a group would put off.
    let can_fuse = |node: &Node| {
        env.registry.scalar(node.op_name()).is_some()
            && node.control_inputs.is_empty()
            && node.input_types.iter().all(|t| *t == (DType::Float, false))
            && node.output_types == [(DType::Float, false)]
            && !node.inputs.iter().any(|e| refs.contains(e))
    };
    let mut group_of: Vec<Option<usize>> = vec![None; graph.len()];
    let mut groups: Vec<Vec<NodeId>> = Vec::new();
    let order = graph.topological_order();
    for id in order.iter().rev() {
        if !can_fuse(graph.node(*id)) {
            continue;
        }
        let users = &consumers[id.index()];
        let shared = users.first().and_then(|u| group_of[u.index()]).filter(|g| {
            !is_control[id.index()] && users.iter().all(|u| group_of[u.index()] == Some(*g))
        });
        let group = shared.unwrap_or_else(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        group_of[id.index()] = Some(group);
        groups[group].push(*id);
    }
    groups.retain(|members| members.len() > 1);
    for members in &mut groups {
        members.reverse();
    }
    groups
}

/// Where a member finds an operand: the group's inputs come first, then the members' results.
#[derive(Clone, Copy)]
struct Operand {
    slot: u32,
    /// Nothing later uses it.
    last: bool,
}

struct Member {
    op: ScalarOp,
    /// Two for every op; of a unary one the first counts.
    operands: [Operand; 2],
    kernel: Arc<dyn Kernel>,
    info: NodeInfo,
}

/// The kernel of a group.
struct Fused {
    num_inputs: usize,
    members: Vec<Member>,
}

impl Fused {
    /// The kernel and what its inputs are.
    fn new(graph: &Graph, ids: &[NodeId], env: &CompileEnv<'_>) -> Result<(Fused, Vec<Edge>)> {
        let position: HashMap<NodeId, usize> =
            ids.iter().enumerate().map(|(i, id)| (*id, i)).collect();
        let mut inputs: Vec<Edge> = Vec::new();
        let mut slots: HashMap<Edge, usize> = HashMap::new();
        for edge in ids.iter().flat_map(|id| &graph.node(*id).inputs) {
            if !position.contains_key(&edge.node) && !slots.contains_key(edge) {
                slots.insert(*edge, inputs.len());
                inputs.push(*edge);
            }
        }
        let slot = |edge: &Edge| match position.get(&edge.node) {
            Some(i) => inputs.len() + i,
            None => slots[edge],
        };
        let mut members = Vec::with_capacity(ids.len());
        for id in ids {
            let node = graph.node(*id);
            let (Built::Cheap(kernel) | Built::Costly(kernel)) = build_kernel(node, env)? else {
                return Err(Status::internal(format!(
                    "{} cannot be fused: it waits",
                    node.name
                )));
            };
            let operand = |i: usize| Operand {
                slot: node.inputs.get(i).map_or(0, slot) as u32,
                last: false,
            };
            members.push(Member {
                op: env
                    .registry
                    .scalar(node.op_name())
                    .ok_or_else(|| Status::internal("a member without arithmetic"))?,
                operands: [operand(0), operand(1)],
                kernel,
                info: NodeInfo {
                    name: node.name.clone(),
                    node: node.clone(),
                    input_names: input_names(graph, node),
                },
            });
        }
        let num_inputs = inputs.len();
        mark_last_uses(&mut members, num_inputs);
        let fused = Fused {
            num_inputs,
            members,
        };
        Ok((fused, inputs))
    }

    /// All members on single numbers; `None` when an input is anything else.
    fn numbers(&self, ctx: &OpContext<'_>) -> Option<f32> {
        let mut values = Vec::with_capacity(self.num_inputs + self.members.len());
        for i in 0..self.num_inputs {
            let tensor = ctx.input(i).ok()?;
            if tensor.rank() != 0 {
                return None;
            }
            values.push(*tensor.as_slice::<f32>().ok()?.first()?);
        }
        for member in &self.members {
            let [a, b] = member.operands.map(|o| o.slot as usize);
            values.push(match member.op {
                ScalarOp::Unary(f) => f(*values.get(a)?),
                ScalarOp::Binary(f) => f(*values.get(a)?, *values.get(b)?),
            });
        }
        values.last().copied()
    }

    /// All members by their own kernels.
    fn one_by_one(&self, ctx: &mut OpContext<'_>) -> Result<()> {
        let mut values: Vec<Option<Value>> = ctx.inputs.iter_mut().map(Option::take).collect();
        values.resize(self.num_inputs + self.members.len(), None);
        for (i, member) in self.members.iter().enumerate() {
            let arity = member.info.node.inputs.len();
            let mut inputs = [None, None];
            for (input, operand) in inputs.iter_mut().zip(member.operands).take(arity) {
                let value = &mut values[operand.slot as usize];
                *input = if operand.last {
                    value.take()
                } else {
                    value.clone()
                };
            }
            let mut output = [None];
            let outcome = if i + 1 == self.members.len() {
                // The executor is tracing this one.
                member.kernel.compute(&mut OpContext {
                    env: ctx.env,
                    info: &member.info,
                    inputs: &mut inputs[..arity],
                    outputs: &mut output,
                    frame_iter: ctx.frame_iter,
                })
            } else {
                let values = (&mut inputs[..arity], &mut output[..]);
                run_kernel(
                    &*member.kernel,
                    ctx.env,
                    &member.info,
                    0,
                    ctx.frame_iter,
                    values,
                )
            };
            outcome.map_err(|e| Status {
                message: format!(
                    "{}\n\t [[{{{{node {}}}}}]]",
                    e.message,
                    member.info.node.shown_name()
                ),
                ..e
            })?;
            let [result] = output;
            values[self.num_inputs + i] = result;
        }
        ctx.outputs[0] = values.pop().flatten();
        Ok(())
    }
}

impl Kernel for Fused {
    fn compute(&self, ctx: &mut OpContext<'_>) -> Result<()> {
        if ctx.env.trace.is_none()
            && let Some(number) = self.numbers(ctx)
        {
            ctx.set_output(0, Tensor::scalar(number));
            return Ok(());
        }
        self.one_by_one(ctx)
    }
}

fn mark_last_uses(members: &mut [Member], num_inputs: usize) {
    let mut seen = vec![false; num_inputs + members.len()];
    for member in members.iter_mut().rev() {
        let arity = member.info.node.inputs.len();
        for operand in member.operands.iter_mut().take(arity).rev() {
            let seen = &mut seen[operand.slot as usize];
            operand.last = !std::mem::replace(seen, true);
        }
    }
}
