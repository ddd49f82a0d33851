//! Drives one step of a plan.
//!
//! A step is an actor. Its state ([`Core`]) belongs to whichever thread is *driving* it; kernels
//! that run elsewhere or wait put a [`Completion`] into the inbox, and the thread that does so
//! drives on if nobody else is. So no lock is held while a kernel runs, no thread is held while
//! one waits, and a step's own arrays are touched by one thread at a time.
//!
//! ```text
//! start ─► drive: ready? run cheap ones here, hand spare costly ones to executor threads
//!            │                                          │
//!            │◄──────────── inbox ◄── completion ◄──────┘ (waiting kernels as well)
//!            └► nothing ready, nothing outstanding ─► done(result)
//! ```

use crate::core::{Core, Room};
use crate::plan::{Kind, Plan, PlanNode};
use crate::run_kernel::{record, run_kernel};
use crate::step::{Quota, current_pace};
use crate::work::{BRIEF_BYTES, LONG_BYTES, WAKE_BYTES, taking};
use downpour_graph::{Result, Status};
use downpour_runtime::{
    AsyncOp, Built, NodeInfo, OpRun, Outputs, Pace, Received, Results, RunningStep, StepEnv, Value,
};
use downpour_tensor::{Tensor, account};
use parking_lot::Mutex;
use smallvec::smallvec;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The outcome of a kernel that did not run on the driving thread.
struct Completion {
    tag: OpRun,
    outcome: Result<Outputs>,
}

#[derive(Default)]
struct Inbox {
    completions: Vec<Completion>,
    /// What came along numbered edges.
    received: Vec<Received>,
    driving: bool,
}

/// A running step, as its kernels and threads hold it.
pub(crate) struct StepShared {
    pub(crate) plan: Arc<Plan>,
    pub(crate) env: Arc<StepEnv>,
    inbox: Mutex<Inbox>,
    core: Mutex<Core>,
    done: Mutex<Option<Results>>,
    /// When the step began, if what it receives is to be noted.
    log_from: Option<i64>,
}

impl RunningStep for StepShared {
    fn env(&self, run: &OpRun) -> &Arc<StepEnv> {
        self.env_of(&self.plan.nodes[run.node as usize])
    }

    fn info(&self, run: &OpRun) -> &NodeInfo {
        &self.plan.nodes[run.node as usize].info
    }

    fn complete(self: Arc<Self>, run: OpRun, outcome: Result<Outputs>) {
        let completion = Completion { tag: run, outcome };
        self.hand_in(|inbox| inbox.completions.push(completion));
    }

    fn receive(self: Arc<Self>, mut values: Vec<Received>) {
        self.hand_in(|inbox| match inbox.received.is_empty() {
            true => inbox.received = values,
            false => inbox.received.append(&mut values),
        });
    }
}

impl StepShared {
    /// A step that the caller now drives.
    pub(crate) fn new(
        plan: Arc<Plan>,
        env: Arc<StepEnv>,
        core: Core,
        done: Results,
    ) -> Arc<StepShared> {
        let log_from = match &env.remote {
            Some(remote) if !plan.edges.is_empty() => remote.log_from(&env),
            _ => None,
        };
        Arc::new(StepShared {
            log_from,
            plan,
            env,
            inbox: Mutex::new(Inbox {
                driving: true,
                ..Inbox::default()
            }),
            core: Mutex::new(core),
            done: Mutex::new(Some(done)),
        })
    }

    /// What a node runs in: the step on its own device.
    pub(crate) fn env_of(&self, node: &PlanNode) -> &Arc<StepEnv> {
        match node.device.checked_sub(1) {
            None => &self.env,
            Some(i) => self.env.others.get(i as usize).unwrap_or(&self.env),
        }
    }

    /// Hands in outcomes from outside the driving thread, and drives on if nobody does.
    fn hand_in(self: Arc<Self>, add: impl FnOnce(&mut Inbox)) {
        {
            let mut inbox = self.inbox.lock();
            add(&mut inbox);
            if inbox.driving {
                return;
            }
            inbox.driving = true;
        }
        self.core.lock().quota = current_pace().into();
        self.drive();
    }

    /// As [`StepShared::drive`], on a thread that does nothing else: what is sent to one peer leaves together.
    fn drive_batched(self: Arc<Self>) {
        let remote = self.env.remote.clone();
        let is_batch = remote.as_ref().is_some_and(|r| r.begin_batch());
        // A panic here is a bug, and ends the batch with its thread's job all the same.
        let drove = catch_unwind(AssertUnwindSafe(|| self.drive()));
        if let Some(remote) = remote.filter(|_| is_batch) {
            remote.end_batch();
        }
        if let Err(panic) = drove {
            std::panic::resume_unwind(panic);
        }
    }

    /// Works until nothing is ready. The caller has set `driving`.
    pub(crate) fn drive(self: Arc<Self>) {
        let working = account::work_for(self.env.clone());
        let mut core = self.core.lock();
        loop {
            if self.run_ready(&mut core) == Pause::TooLong {
                core.quota = Quota::from(Pace::Executor);
                drop(core);
                let device = self.env.device.clone();
                return device.spawn(move || self.drive_batched());
            }
            let (completions, received) = {
                let mut inbox = self.inbox.lock();
                if inbox.completions.is_empty() && inbox.received.is_empty() {
                    inbox.driving = false;
                    break;
                }
                let inbox = &mut *inbox;
                (
                    std::mem::take(&mut inbox.completions),
                    std::mem::take(&mut inbox.received),
                )
            };
            core.outstanding -= received.len();
            for value in received {
                self.received(&mut core, value);
            }
            for mut c in completions {
                core.outstanding -= 1;
                if let Ok(outputs) = &c.outcome
                    && let Some(Some(Value::Tensor(value))) = outputs.first()
                {
                    self.note_received(&c.tag, value);
                }
                let outcome = c.outcome.as_mut().map_err(|e| e.clone());
                core.finish(&self, c.tag, outcome.map(|outputs| &mut outputs[..]));
            }
        }
        if core.outstanding > 0 {
            return;
        }
        if let Some(token) = core.on_cancel.take() {
            self.env.cancellation.deregister(token);
        }
        let outcome = core.outcome(&self.plan, &self.env);
        // Values of the step are dropped before the caller hears of its end, so that it finds
        // variables without snapshots held by a step that is over.
        let used = core.retire();
        drop(core);
        self.plan.keep(used);
        drop(working);
        let done = self.done.lock().take();
        if let Some(done) = done {
            done(outcome);
        }
    }

    fn run_ready(self: &Arc<Self>, core: &mut Core) -> Pause {
        loop {
            if core.cheap.is_empty() {
                self.send_all(core);
                if self.take_wanted(core) {
                    continue;
                }
            }
            if core.quota.polite {
                let next = core.cheap.last().or_else(|| core.costly.front());
                let heavy = next
                    .copied()
                    .is_some_and(|tag| core.is_heavy(&self.plan, &tag, BRIEF_BYTES));
                if heavy {
                    self.send_all(core);
                    return Pause::TooLong;
                }
            }
            if core.quota.nodes == 0 && !(core.cheap.is_empty() && core.costly.is_empty()) {
                self.send_all(core);
                return Pause::TooLong;
            }
            core.quota.nodes = core.quota.nodes.saturating_sub(1);
            if core.error.is_none() && self.env.cancellation.is_cancelled() {
                let reason = self.env.cancellation.reason();
                core.fail(
                    &self.env,
                    reason.unwrap_or_else(|| Status::cancelled("Step was cancelled")),
                );
            }
            let tag = match core.cheap.pop() {
                Some(tag) => tag,
                None => match core.costly.pop_front() {
                    None => return Pause::Idle,
                    Some(tag) => {
                        self.spawn_spare(core);
                        tag
                    }
                },
            };
            self.process(core, tag);
        }
    }

    /// Hands ready kernels to other threads, those that are worth it: this thread runs one.
    fn spawn_spare(self: &Arc<Self>, core: &mut Core) {
        let mut small = VecDeque::new();
        while let Some(spare) = core.costly.pop_front() {
            if core.is_heavy(&self.plan, &spare, WAKE_BYTES) {
                self.spawn(core, spare);
            } else {
                small.push_back(spare);
            }
        }
        core.costly = small;
    }

    /// Runs a node's kernel on another executor thread.
    fn spawn(self: &Arc<Self>, core: &mut Core, tag: OpRun) {
        let node = &self.plan.nodes[tag.node as usize];
        let Some(Built::Costly(kernel)) = &node.kernel else {
            self.process(core, tag);
            return;
        };
        let mut inputs = Vec::new();
        if let Err(e) = core.take_inputs(node, &tag, self.env.step_id, &mut inputs) {
            return core.finish(self, tag, Err(e));
        }
        let frame_iter = core.frame_iter(&tag);
        core.outstanding += 1;
        let (step, kernel) = (self.clone(), kernel.clone());
        self.env.device.spawn(move || {
            let node = &step.plan.nodes[tag.node as usize];
            let mut outputs: Outputs = smallvec![None; node.num_outputs as usize];
            let working = account::work_for(step.env.clone());
            let work = node.work(&inputs);
            let ran = taking(&step.env, work, || {
                node.made(|| {
                    run_kernel(
                        &*kernel,
                        step.env_of(node),
                        &node.info,
                        tag.scheduled_ns,
                        frame_iter,
                        (&mut inputs, &mut outputs),
                    )
                })
            });
            drop(working);
            step.complete(tag, ran.map(|()| outputs));
        });
    }

    fn process(self: &Arc<Self>, core: &mut Core, tag: OpRun) {
        let node = &self.plan.nodes[tag.node as usize];
        let mut room = std::mem::take(&mut core.room);
        room.outputs.resize_with(node.num_outputs as usize, || None);
        if tag.dead && !node.kind.sends() {
            core.drop_inputs(node, &tag);
            core.propagate(self, tag, &mut room.outputs);
        } else if let Some(outcome) = self.run_node(core, node, &tag, &mut room) {
            core.finish(self, tag, outcome.map(|()| &mut room.outputs[..]));
        }
        room.inputs.clear();
        room.outputs.clear();
        core.room = room;
    }

    /// Notes what came along an edge, if somebody wants to know.
    pub(crate) fn note_received(&self, run: &OpRun, value: &Tensor) {
        if let (Some(from), Some(remote)) = (self.log_from, &self.env.remote)
            && let Kind::Recv(edge) = self.plan.nodes[run.node as usize].kind
            && let Some(edge) = self.plan.edges.get(edge)
        {
            remote.log(&self.env, &edge.key, value, from);
        }
    }

    /// Runs a node here; `None` if it will tell its outcome later.
    fn run_node(
        self: &Arc<Self>,
        core: &mut Core,
        node: &PlanNode,
        tag: &OpRun,
        room: &mut Room,
    ) -> Option<Result<()>> {
        if node.kind == Kind::Merge {
            return Some(core.merge(node, tag, &mut room.outputs));
        }
        if let Kind::Recv(edge) = node.kind {
            if let Some(trace) = &self.env_of(node).trace {
                record(trace, &node.info, tag.scheduled_ns, trace.now(), &[]);
            }
            core.edges.want(edge, *tag);
            return None;
        }
        if tag.dead {
            // Only `_Send` gets here: it tells the other side.
            core.drop_inputs(node, tag);
            room.inputs.push(None);
        } else if let Err(e) = core.take_inputs(node, tag, self.env.step_id, &mut room.inputs) {
            return Some(Err(e));
        }
        if let Kind::Push { to, edge } = node.kind {
            let value = room.inputs.pop().flatten();
            self.push(core, (to, edge), tag, value);
            return Some(Ok(()));
        }
        match &node.kernel {
            None => Some(core.control_op(node, &mut room.inputs, &mut room.outputs)),
            Some(Built::Cheap(kernel) | Built::Costly(kernel)) => {
                let work = node.work(&room.inputs);
                // Most cheap kernels only pass on what they are given, however large.
                let long = match (node.is_costly(), node.growth) {
                    (true, _) => work >= WAKE_BYTES,
                    (false, growth) => growth.is_some() && work >= LONG_BYTES,
                };
                if long {
                    self.send_all(core);
                    if let Some(remote) = &self.env.remote {
                        remote.flush_batch();
                    }
                }
                let frame_iter = core.frame_iter(tag);
                let values = (&mut room.inputs[..], &mut room.outputs[..]);
                let run = || {
                    node.made(|| {
                        run_kernel(
                            &**kernel,
                            self.env_of(node),
                            &node.info,
                            tag.scheduled_ns,
                            frame_iter,
                            values,
                        )
                    })
                };
                Some(taking(&self.env, work, run))
            }
            Some(Built::Async(kernel)) => {
                core.outstanding += 1;
                let ready = core.cheap.len() + core.costly.len();
                let op = AsyncOp::new(
                    self.clone(),
                    *tag,
                    core.frame_iter(tag),
                    ready == 0 && core.outstanding == 1,
                    room.inputs.drain(..).collect(),
                );
                let trace = self.env_of(node).trace.as_ref();
                let trace = trace.map(|t| (t, t.now()));
                // A panic drops the op, which completes it with an error.
                let _ = catch_unwind(AssertUnwindSafe(|| kernel.start(op)));
                if let Some((trace, start)) = trace {
                    record(trace, &node.info, tag.scheduled_ns, start, &[]);
                }
                None
            }
        }
    }
}

/// Why a driving thread stopped running nodes.
#[derive(PartialEq, Eq)]
enum Pause {
    /// Nothing is ready.
    Idle,
    /// The thread was only borrowed.
    TooLong,
}
