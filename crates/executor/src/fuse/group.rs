//! A group as a kernel: the quick way if there is one for its inputs, else member after member.

use super::Found;
use super::arithmetic::Formula;
use crate::plan::{CompileEnv, build_kernel, input_names};
use crate::run_kernel::run_kernel;
use downpour_graph::{Edge, Graph, NodeId, Result, Status};
use downpour_runtime::{Built, Kernel, NodeInfo, OpContext, Outputs, Quick, Value};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;

/// Where a member finds an input: the group's inputs come first, then the members' results.
#[derive(Clone, Copy)]
pub(super) struct Operand {
    pub(super) slot: usize,
    /// Nothing later uses it.
    last: bool,
}

struct Member {
    inputs: SmallVec<[Operand; 3]>,
    kernel: Arc<dyn Kernel>,
    info: NodeInfo,
}

/// The kernel of a group.
pub(super) struct Group {
    num_inputs: usize,
    members: Vec<Member>,
    quick: Quick,
}

impl Group {
    /// The kernel and what its inputs are.
    pub(super) fn build(
        graph: &Graph,
        found: Found,
        env: &CompileEnv<'_>,
    ) -> Result<(Built, Vec<Edge>)> {
        let mut inputs = found.inputs;
        let mut slots: HashMap<Edge, usize> = inputs.iter().copied().zip(0..).collect();
        let inside = |id: &NodeId| found.members.contains(id);
        for edge in found.members.iter().flat_map(|id| &graph.node(*id).inputs) {
            if !inside(&edge.node) && !slots.contains_key(edge) {
                slots.insert(*edge, inputs.len());
                inputs.push(*edge);
            }
        }
        let num_inputs = inputs.len();
        let mut free = num_inputs;
        let mut is_costly = false;
        let mut members = Vec::with_capacity(found.members.len());
        for id in &found.members {
            let node = graph.node(*id);
            let kernel = match build_kernel(node, env)? {
                Built::Cheap(kernel) => kernel,
                Built::Costly(kernel) => {
                    is_costly = true;
                    kernel
                }
                Built::Async(_) => {
                    return Err(Status::internal(format!(
                        "{} cannot be fused: it waits",
                        node.name
                    )));
                }
            };
            let operand = |edge: &Edge| Operand {
                slot: slots[edge],
                last: false,
            };
            members.push(Member {
                inputs: node.inputs.iter().map(operand).collect(),
                kernel,
                info: NodeInfo::new(node, input_names(graph, node)),
            });
            for output in 0..node.output_types.len() as u32 {
                slots.insert(Edge { node: *id, output }, free);
                free += 1;
            }
        }
        mark_last_uses(&mut members, free);
        let quick = match found.quick {
            Some(quick) => quick,
            None => {
                // Arithmetic itself is cheap; what a member's kernel says is about arrays, whose
                // size the executor sees.
                is_costly = false;
                let ops = members.iter().map(|m| {
                    let op = env.registry.arithmetic(m.info.node.op_name());
                    let op = op.ok_or_else(|| Status::internal("a member without arithmetic"))?;
                    Ok((op, m.inputs.iter().map(|o| o.slot).collect()))
                });
                let formula = Formula::new(num_inputs, ops.collect::<Result<_>>()?);
                Box::new(move |ctx: &mut OpContext<'_>| Ok(formula.run(ctx)))
            }
        };
        let group = Arc::new(Group {
            num_inputs,
            members,
            quick,
        });
        let built = if is_costly {
            Built::Costly(group)
        } else {
            Built::Cheap(group)
        };
        Ok((built, inputs))
    }

    /// All members by their own kernels.
    fn one_by_one(&self, ctx: &mut OpContext<'_>) -> Result<()> {
        let mut values: Vec<Option<Value>> = ctx.values().0.iter_mut().map(Option::take).collect();
        debug_assert_eq!(values.len(), self.num_inputs);
        for (i, member) in self.members.iter().enumerate() {
            let mut inputs: SmallVec<[Option<Value>; 3]> = member
                .inputs
                .iter()
                .map(|operand| {
                    let value = &mut values[operand.slot];
                    if operand.last {
                        value.take()
                    } else {
                        value.clone()
                    }
                })
                .collect();
            let mut outputs = Outputs::from_elem(None, member.info.node.output_types.len());
            let outcome = if i + 1 == self.members.len() {
                // The executor is tracing this one.
                let (env, frame_iter) = (ctx.env(), ctx.frame_iter());
                let results = ctx.values().1;
                let mut last = OpContext::new(env, &member.info, &mut inputs, results, frame_iter);
                member.kernel.compute(&mut last)
            } else {
                run_kernel(
                    &*member.kernel,
                    ctx.env(),
                    &member.info,
                    0,
                    ctx.frame_iter(),
                    (&mut inputs, &mut outputs),
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
            values.extend(outputs);
        }
        Ok(())
    }
}

impl Kernel for Group {
    fn compute(&self, ctx: &mut OpContext<'_>) -> Result<()> {
        if ctx.env().trace.is_none() && (self.quick)(ctx)? {
            return Ok(());
        }
        self.one_by_one(ctx)
    }
}

fn mark_last_uses(members: &mut [Member], slots: usize) {
    let mut seen = vec![false; slots];
    for member in members.iter_mut().rev() {
        for operand in member.inputs.iter_mut().rev() {
            operand.last = !std::mem::replace(&mut seen[operand.slot], true);
        }
    }
}
