//! Frames of v1 control flow at run time: how a node's outputs reach its consumers, inside loops
//! and out of them.
//!
//! A graph without loops has the root frame only and takes the short way through
//! [`Core::propagate`]. The rules (dead tensors, frames, iterations) follow TensorFlow 2.21's executor.

use crate::core::Core;
use crate::drive::StepShared;
use crate::frame_table::child_frame_id;
use crate::plan::{Kind, Plan, PlanNode};
use downpour_runtime::{OpRun, Value};
use std::collections::VecDeque;
use std::sync::Arc;

/// A frame instance: one execution of a loop (or the root).
pub(crate) struct Frame {
    /// Index in the plan's frame table.
    pub(crate) body: u32,
    /// Id in rendezvous keys.
    pub(crate) id: u64,
    pub(crate) parent: Option<(u32, u64)>,
    /// Number of the oldest iteration in `iterations`.
    pub(crate) first: u64,
    pub(crate) iterations: VecDeque<Iteration>,
    /// Number of the newest iteration.
    pub(crate) last: u64,
    pub(crate) pending_enters: u32,
    pub(crate) outstanding_iterations: u32,
    pub(crate) next_roots: Vec<(u32, Value)>,
    pub(crate) invariants: Vec<(u32, Option<Value>)>,
    pub(crate) dead_exits: Vec<u32>,
}

#[derive(Default)]
pub(crate) struct Iteration {
    pub(crate) slots: Vec<Option<Value>>,
    pub(crate) pending: Vec<(u32, u32)>,
    pub(crate) outstanding_ops: u32,
    pub(crate) outstanding_frames: u32,
}

impl Core {
    /// Gives a node's outputs to their consumers and counts what that makes ready.
    pub(crate) fn propagate(
        &mut self,
        step: &Arc<StepShared>,
        tag: OpRun,
        outputs: &mut [Option<Value>],
    ) {
        if self.error.is_some() {
            return;
        }
        let plan = &*step.plan;
        let node = &plan.nodes[tag.node as usize];
        let now = step.env.trace.as_ref().map_or(0, |t| t.now());
        if plan.frames.frames.len() == 1 {
            self.activate(plan, node, 0, 0, outputs, tag.dead, now);
            self.iteration(0, 0).outstanding_ops -= 1;
            return;
        }
        match node.kind {
            Kind::Enter { child, constant } => {
                let inner = self.child_frame(plan, &tag, child);
                let value = outputs.first_mut().and_then(Option::take);
                if constant {
                    self.add_invariant(plan, tag.node, inner, value, tag.dead, now);
                } else {
                    self.activate(plan, node, inner, 0, &mut [value], tag.dead, now);
                }
                if let Some(frame) = self.frames[inner as usize].as_mut() {
                    frame.pending_enters -= 1;
                }
                // The child may already be over: a dead loop has nothing to run.
                self.op_done(plan, tag.frame, tag.iter, now);
                self.collect(plan, inner, now);
                return;
            }
            Kind::Exit => {
                let frame = self.frames[tag.frame as usize]
                    .as_mut()
                    .expect("the exit's own frame");
                if tag.dead {
                    if tag.iter == frame.last {
                        frame.dead_exits.push(tag.node);
                    }
                } else if let Some((parent, parent_iter)) = frame.parent {
                    self.activate(plan, node, parent, parent_iter, outputs, false, now);
                }
            }
            Kind::NextIteration => {
                let value = outputs.first_mut().and_then(Option::take);
                if let (false, Some(value)) = (tag.dead, value) {
                    self.next_iteration(plan, tag, value, now);
                }
            }
            _ => self.activate(plan, node, tag.frame, tag.iter, outputs, tag.dead, now),
        }
        self.op_done(plan, tag.frame, tag.iter, now);
    }

    fn next_iteration(&mut self, plan: &Plan, tag: OpRun, value: Value, now: i64) {
        let frame = self.frames[tag.frame as usize]
            .as_mut()
            .expect("the op's own frame");
        let parallel = plan.frames.frames[frame.body as usize].parallel_iterations;
        if tag.iter == frame.last {
            if frame.outstanding_iterations >= parallel {
                frame.next_roots.push((tag.node, value));
                return;
            }
            self.increment_iteration(plan, tag.frame, now);
        }
        let node = &plan.nodes[tag.node as usize];
        self.activate(
            plan,
            node,
            tag.frame,
            tag.iter + 1,
            &mut [Some(value)],
            false,
            now,
        );
    }

    fn increment_iteration(&mut self, plan: &Plan, at: u32, now: i64) {
        let frame = self.frames[at as usize]
            .as_mut()
            .expect("the frame is live");
        frame.last += 1;
        frame.outstanding_iterations += 1;
        frame.iterations.push_back(new_iteration(plan, frame.body));
        frame.dead_exits.clear();
        let (iter, roots) = (frame.last, std::mem::take(&mut frame.next_roots));
        let invariants = frame.invariants.clone();
        for (node, value) in roots {
            let node = &plan.nodes[node as usize];
            self.activate(plan, node, at, iter, &mut [Some(value)], false, now);
        }
        for (node, value) in invariants {
            let dead = value.is_none();
            let node = &plan.nodes[node as usize];
            self.activate(plan, node, at, iter, &mut [value], dead, now);
        }
    }

    /// A constant `Enter`: its value is given to every iteration, so far and to come.
    fn add_invariant(
        &mut self,
        plan: &Plan,
        node: u32,
        at: u32,
        value: Option<Value>,
        dead: bool,
        now: i64,
    ) {
        let frame = self.frames[at as usize]
            .as_mut()
            .expect("the child frame is live");
        let value = if dead { None } else { value };
        frame.invariants.push((node, value.clone()));
        for iter in frame.first..=frame.last {
            let item = &plan.nodes[node as usize];
            self.activate(plan, item, at, iter, &mut [value.clone()], dead, now);
        }
    }

    fn child_frame(&mut self, plan: &Plan, tag: &OpRun, body: u32) -> u32 {
        let key = (tag.frame, tag.iter, body);
        if let Some(&found) = self.children.get(&key) {
            return found;
        }
        let parent_id = self.frame_iter(tag).0;
        let info = &plan.frames.frames[body as usize];
        let frame = Frame {
            body,
            id: child_frame_id(parent_id, tag.iter, &info.name),
            parent: Some((tag.frame, tag.iter)),
            first: 0,
            iterations: [new_iteration(plan, body)].into(),
            last: 0,
            pending_enters: info.num_enters,
            outstanding_iterations: 1,
            next_roots: Vec::new(),
            invariants: Vec::new(),
            dead_exits: Vec::new(),
        };
        let at = match self.frames.iter().position(Option::is_none) {
            Some(free) => {
                self.frames[free] = Some(frame);
                free as u32
            }
            None => {
                self.frames.push(Some(frame));
                self.frames.len() as u32 - 1
            }
        };
        self.children.insert(key, at);
        self.iteration(tag.frame, tag.iter).outstanding_frames += 1;
        at
    }

    /// Stores outputs in the consumers' slots of (frame, iter) and queues what becomes ready.
    #[expect(
        clippy::too_many_arguments,
        reason = "the coordinates of one activation"
    )]
    fn activate(
        &mut self,
        plan: &Plan,
        node: &PlanNode,
        frame: u32,
        iter: u64,
        outputs: &mut [Option<Value>],
        dead: bool,
        now: i64,
    ) {
        for edge in &node.data_edges {
            let value = match outputs.get_mut(edge.output as usize) {
                Some(value) if edge.last => value.take(),
                Some(value) => value.clone(),
                None => None,
            };
            let target = &plan.nodes[edge.to as usize];
            let iteration = self.iteration(frame, iter);
            let (pending, dead_count) = &mut iteration.pending[target.local as usize];
            let (ready, target_dead) = if target.kind == Kind::Merge {
                if value.is_some() {
                    // Only the first live input counts; later ones are ignored.
                    if *pending & 1 == 0 {
                        continue;
                    }
                    *pending &= !1;
                    let ready = *pending == 0;
                    iteration.slots[edge.slot as usize] = value;
                    (ready, false)
                } else {
                    *dead_count += 1;
                    let all =
                        *dead_count == target.num_inputs || matches!(node.kind, Kind::Enter { .. });
                    (*pending == 1 && all, all)
                }
            } else {
                *pending -= 1;
                *dead_count += u32::from(value.is_none());
                let outcome = (*pending == 0, *dead_count > 0);
                iteration.slots[edge.slot as usize] = value;
                outcome
            };
            if ready {
                let runs = target.kind == Kind::ControlTrigger;
                self.push(plan, edge.to, frame, iter, target_dead && !runs, now);
            }
        }
        for &to in &node.control_edges {
            let target = &plan.nodes[to as usize];
            let (pending, dead_count) =
                &mut self.iteration(frame, iter).pending[target.local as usize];
            let (ready, target_dead) = if target.kind == Kind::Merge {
                *pending -= 2;
                let all_dead = *dead_count == target.num_inputs;
                (
                    *pending == 0 || (*pending == 1 && all_dead),
                    all_dead && *pending & 1 == 1,
                )
            } else {
                *pending -= 1;
                *dead_count += u32::from(dead);
                (*pending == 0, *dead_count > 0)
            };
            if ready {
                let runs = target.kind == Kind::ControlTrigger;
                self.push(plan, to, frame, iter, target_dead && !runs, now);
            }
        }
    }

    fn op_done(&mut self, plan: &Plan, frame: u32, iter: u64, now: i64) {
        let iteration = self.iteration(frame, iter);
        iteration.outstanding_ops -= 1;
        if iteration.outstanding_ops == 0 {
            self.collect(plan, frame, now);
        }
    }

    /// Drops finished iterations, starts ones that waited for room, and ends the frame (and
    /// then perhaps its parent's iteration) when nothing is left in it.
    fn collect(&mut self, plan: &Plan, mut at: u32, now: i64) {
        loop {
            let Some(frame) = self.frames[at as usize].as_mut() else {
                return;
            };
            let Some((parent, parent_iter)) = frame.parent else {
                return;
            };
            let Some(front) = frame.iterations.front() else {
                return;
            };
            let done = front.outstanding_ops == 0
                && front.outstanding_frames == 0
                && (frame.first > 0 || frame.pending_enters == 0);
            if !done {
                return;
            }
            if frame.iterations.len() > 1 || !frame.next_roots.is_empty() {
                frame.iterations.pop_front();
                frame.first += 1;
                frame.outstanding_iterations -= 1;
                if !frame.next_roots.is_empty() {
                    self.increment_iteration(plan, at, now);
                }
                continue;
            }
            if frame.pending_enters > 0 {
                return;
            }
            let body = frame.body;
            let dead_exits = std::mem::take(&mut frame.dead_exits);
            self.frames[at as usize] = None;
            self.children.remove(&(parent, parent_iter, body));
            for exit in dead_exits {
                let node = &plan.nodes[exit as usize];
                self.activate(plan, node, parent, parent_iter, &mut [None], true, now);
            }
            let iteration = self.iteration(parent, parent_iter);
            iteration.outstanding_frames -= 1;
            at = parent;
        }
    }
}

/// Makes an iteration that is over as [`new_iteration`] would; its slots are empty.
pub(crate) fn renew_iteration(plan: &Plan, body: u32, iteration: &mut Iteration) {
    let frame = &plan.frames.frames[body as usize];
    iteration.pending.clear();
    iteration
        .pending
        .extend(frame.pending.iter().map(|&p| (p, 0)));
    (iteration.outstanding_ops, iteration.outstanding_frames) = (0, 0);
}

pub(crate) fn new_iteration(plan: &Plan, body: u32) -> Iteration {
    let frame = &plan.frames.frames[body as usize];
    Iteration {
        slots: vec![None; frame.num_slots as usize],
        pending: frame.pending.iter().map(|&p| (p, 0)).collect(),
        outstanding_ops: 0,
        outstanding_frames: 0,
    }
}
