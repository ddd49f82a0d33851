//! The state of one step: what is ready, what runs elsewhere, where values lie.
//!
//! Only the thread that drives the step touches it. How values move through loops is in
//! [`crate::frames`].

use crate::blame::{blame, no_value};
use crate::drive::StepShared;
use crate::edges::StepEdges;
use crate::frames::{Frame, Iteration, new_iteration, renew_iteration};
use crate::plan::{Kind, Plan, PlanNode};
use crate::step::Quota;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, CancelToken, OpRun, StepEnv, Value};
use downpour_tensor::Tensor;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Inputs and outputs of the node that is running: one place for all nodes in turn, because
/// moving them about took longer than many a kernel.
#[derive(Default)]
pub(crate) struct Room {
    pub(crate) inputs: Vec<Option<Value>>,
    pub(crate) outputs: Vec<Option<Value>>,
}

#[derive(Default)]
pub(crate) struct Core {
    pub(crate) frames: Vec<Option<Frame>>,
    pub(crate) children: HashMap<(u32, u64, u32), u32>,
    pub(crate) cheap: Vec<OpRun>,
    pub(crate) costly: VecDeque<OpRun>,
    /// Kernels that run or wait elsewhere.
    pub(crate) outstanding: usize,
    pub(crate) room: Room,
    pub(crate) edges: StepEdges,
    pub(crate) quota: Quota,
    pub(crate) args: Vec<Option<Tensor>>,
    pub(crate) retvals: Vec<Option<Value>>,
    pub(crate) error: Option<Status>,
    /// Ends waits for edges when the step is cancelled.
    pub(crate) on_cancel: Option<CancelToken>,
}

impl Core {
    /// That of a new step; memory of an earlier one of the same plan is used again.
    pub(crate) fn new(plan: &Plan, args: Vec<Tensor>, quota: Quota) -> Core {
        let mut core = plan.used();
        core.quota = quota;
        core.args.extend(args.into_iter().map(Some));
        core.retvals.resize(plan.num_retvals, None);
        core.edges.reset(plan.receivers.len());
        match core.root() {
            Some(root) => renew_iteration(plan, 0, root),
            None => core.frames = vec![Some(root_frame(plan))],
        }
        for &root in plan.roots.iter().rev() {
            core.push(plan, root, 0, 0, false, 0);
        }
        core
    }

    /// The state of a step that is over, without its values, for the next one.
    pub(crate) fn retire(&mut self) -> Core {
        let mut used = std::mem::take(self);
        used.frames.truncate(1);
        if let Some(root) = used.root() {
            // A step that came to its end has taken all; one that failed has not.
            for slot in root.slots.iter_mut().filter(|slot| slot.is_some()) {
                *slot = None;
            }
        }
        used.children.clear();
        used.args.clear();
        used.retvals.clear();
        used.edges.drop_all();
        Core {
            cheap: used.cheap,
            costly: used.costly,
            room: used.room,
            edges: used.edges,
            frames: used.frames,
            children: used.children,
            args: used.args,
            retvals: used.retvals,
            ..Core::default()
        }
    }

    /// The only iteration of the root frame, if that was made.
    fn root(&mut self) -> Option<&mut Iteration> {
        self.frames.first_mut()?.as_mut()?.iterations.front_mut()
    }

    pub(crate) fn iteration(&mut self, frame: u32, iter: u64) -> &mut Iteration {
        let frame = self.frames[frame as usize]
            .as_mut()
            .expect("a live op keeps its frame alive");
        &mut frame.iterations[(iter - frame.first) as usize]
    }

    pub(crate) fn frame_iter(&self, tag: &OpRun) -> (u64, u64) {
        match &self.frames[tag.frame as usize] {
            Some(frame) => (frame.id, tag.iter),
            None => (0, tag.iter),
        }
    }

    pub(crate) fn push(
        &mut self,
        plan: &Plan,
        node: u32,
        frame: u32,
        iter: u64,
        dead: bool,
        now: i64,
    ) {
        self.iteration(frame, iter).outstanding_ops += 1;
        let tag = OpRun {
            node,
            frame,
            iter,
            dead,
            scheduled_ns: now,
        };
        match &plan.nodes[node as usize].kernel {
            Some(Built::Costly(_)) if !dead => self.costly.push_back(tag),
            _ => self.cheap.push(tag),
        }
    }

    /// Whether a ready node has `bytes` of work, or may be costly however small its inputs are.
    pub(crate) fn is_heavy(&mut self, plan: &Plan, tag: &OpRun, bytes: usize) -> bool {
        let node = &plan.nodes[tag.node as usize];
        if node.calls {
            return true;
        }
        if matches!(node.kind, Kind::Push { .. } | Kind::Recv(_)) {
            return false;
        }
        let slots = node.slots as usize..(node.slots + node.num_inputs) as usize;
        let slots = &self.iteration(tag.frame, tag.iter).slots[slots];
        node.work(slots) >= bytes
    }

    /// Takes a node's inputs out of their slots, reading references where values are wanted.
    pub(crate) fn take_inputs(
        &mut self,
        node: &PlanNode,
        tag: &OpRun,
        step: u64,
        inputs: &mut Vec<Option<Value>>,
    ) -> Result<()> {
        let slots = node.slots as usize..(node.slots + node.num_inputs) as usize;
        let iteration = self.iteration(tag.frame, tag.iter);
        inputs.extend(iteration.slots[slots].iter_mut().map(Option::take));
        if node.takes_refs {
            let types = &node.info.node.input_types;
            let lenient = node.info.node.op.allows_uninitialized_input;
            for (i, input) in inputs.iter_mut().enumerate() {
                let Some(Value::Ref(variable)) = input else {
                    continue;
                };
                let wants_ref = types.get(i).is_some_and(|t| t.1);
                if wants_ref && lenient {
                    continue;
                }
                // A node that gets the reference does not use the value that it had before.
                let tensor = match wants_ref {
                    true => variable.read(),
                    false => variable.read_by(step),
                };
                let Some(tensor) = tensor else {
                    return Err(Status::failed_precondition(format!(
                        "Attempting to use uninitialized value {}",
                        node.info.input_names.get(i).map_or("", String::as_str)
                    )));
                };
                if !wants_ref && !node.reads_late {
                    *input = Some(Value::Tensor(tensor));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn drop_inputs(&mut self, node: &PlanNode, tag: &OpRun) {
        let slots = node.slots as usize..(node.slots + node.num_inputs) as usize;
        self.iteration(tag.frame, tag.iter).slots[slots].fill(None);
    }

    pub(crate) fn merge(
        &mut self,
        node: &PlanNode,
        tag: &OpRun,
        outputs: &mut [Option<Value>],
    ) -> Result<()> {
        let slots = node.slots as usize..(node.slots + node.num_inputs) as usize;
        let slots = &mut self.iteration(tag.frame, tag.iter).slots[slots];
        let live = slots.iter().position(Option::is_some);
        let value = live.and_then(|i| slots[i].take());
        slots.fill(None);
        let by_value = node.info.node.output_types.first().is_some_and(|t| !t.1);
        let value = match value {
            Some(Value::Ref(variable)) if by_value => match variable.read() {
                Some(tensor) => Some(Value::Tensor(tensor)),
                None => {
                    return Err(Status::failed_precondition(format!(
                        "Attempting to use uninitialized value {}",
                        live.and_then(|i| node.info.input_names.get(i))
                            .map_or("", String::as_str)
                    )));
                }
            },
            value => value,
        };
        match (live, value) {
            (Some(i), Some(value)) => {
                set(outputs, 0, Some(value));
                set(outputs, 1, Some(Value::Tensor(Tensor::scalar(i as i32))));
                Ok(())
            }
            _ => Err(Status::internal(format!(
                "Merge node {} has no live input",
                node.info.name
            ))),
        }
    }

    /// Nodes that the executor itself understands.
    pub(crate) fn control_op(
        &mut self,
        node: &PlanNode,
        inputs: &mut [Option<Value>],
        outputs: &mut [Option<Value>],
    ) -> Result<()> {
        let mut first = || inputs.first_mut().and_then(Option::take);
        match node.kind {
            Kind::Arg(i) => {
                let value = match node.shares_arg {
                    true => self.args.get(i as usize).cloned().flatten(),
                    false => self.args.get_mut(i as usize).and_then(Option::take),
                };
                set(outputs, 0, value.map(Value::Tensor));
            }
            Kind::Retval(i) => {
                if let Some(slot) = self.retvals.get_mut(i as usize) {
                    *slot = first();
                }
            }
            Kind::Switch => {
                let data = first();
                let pred = match inputs.get(1) {
                    Some(Some(Value::Tensor(t))) if t.rank() == 0 => t.scalar_value::<bool>()?,
                    Some(Some(Value::Tensor(t))) => {
                        return Err(Status::invalid_argument(format!(
                            "The second input must be a scalar, but it has shape {}",
                            t.shape()
                        )));
                    }
                    _ => return Err(Status::internal("Switch has no predicate")),
                };
                set(outputs, usize::from(pred), data);
            }
            Kind::Enter { .. } | Kind::Exit | Kind::NextIteration => set(outputs, 0, first()),
            Kind::ControlTrigger => {}
            Kind::Merge | Kind::Normal | Kind::Send | Kind::Push { .. } | Kind::Recv(_) => {
                return Err(Status::internal(format!(
                    "node {} has no kernel",
                    node.info.name
                )));
            }
        }
        Ok(())
    }

    /// Takes note of a node's outcome.
    pub(crate) fn finish(
        &mut self,
        step: &Arc<StepShared>,
        tag: OpRun,
        outcome: Result<&mut [Option<Value>]>,
    ) {
        let node = &step.plan.nodes[tag.node as usize];
        let outcome = outcome.and_then(|outputs| {
            let complete = matches!(node.kind, Kind::Switch)
                || node.kernel.is_none()
                || matches!(node.kernel, Some(Built::Async(_)))
                || outputs.iter().all(Option::is_some);
            if complete {
                return Ok(outputs);
            }
            let missing = outputs.iter().position(Option::is_none).unwrap_or(0);
            let op = node.info.node.op_name();
            Err(Status::internal(format!(
                "Missing {missing}-th output from {{{{node {}}}}} (op {op})",
                node.info.name
            )))
        });
        match outcome {
            Ok(outputs) => self.propagate(step, tag, outputs),
            Err(e) => {
                let message = blame(e.message, node, &step.env);
                self.fail(&step.env, Status { message, ..e });
            }
        }
    }

    /// Stops the step: the first error stands, what is ready is dropped, what waits is told.
    pub(crate) fn fail(&mut self, env: &StepEnv, error: Status) {
        if self.error.is_none() {
            self.error = Some(error.clone());
        }
        self.cheap.clear();
        self.costly.clear();
        self.edges.drop_all();
        env.rendezvous.abort(error.clone().as_derived());
        env.cancellation.cancel(error);
    }

    pub(crate) fn outcome(&mut self, plan: &Plan, env: &StepEnv) -> Result<Vec<Tensor>> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if let Some(reason) = env.cancellation.reason() {
            return Err(reason);
        }
        self.retvals
            .drain(..)
            .enumerate()
            .map(|(i, value)| match value {
                Some(Value::Tensor(tensor)) => Ok(tensor),
                // A variable is read when its step is over.
                Some(Value::Ref(variable)) => variable.read().ok_or_else(|| {
                    Status::failed_precondition(format!(
                        "Attempting to use uninitialized value {}",
                        plan.retval_name(i)
                    ))
                }),
                None => Err(no_value(i, plan, env)),
            })
            .collect()
    }
}

fn root_frame(plan: &Plan) -> Frame {
    Frame {
        body: 0,
        id: 0,
        parent: None,
        first: 0,
        iterations: [new_iteration(plan, 0)].into(),
        last: 0,
        pending_enters: 0,
        outstanding_iterations: 1,
        next_roots: Vec::new(),
        invariants: Vec::new(),
        dead_exits: Vec::new(),
    }
}

fn set(outputs: &mut [Option<Value>], i: usize, value: Option<Value>) {
    if let Some(slot) = outputs.get_mut(i) {
        *slot = value;
    }
}
