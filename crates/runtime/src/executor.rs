//! Runs one step of a plan.
//!
//! A step is an actor. Its state (`Core`) belongs to whichever thread is *driving* it; kernels
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
//!
//! The rules of v1 control flow (dead tensors, frames, iterations) follow TensorFlow 2.21's
//! executor.

use crate::device::{before_long, on_executor_thread};
use crate::frame::child_frame_id;
use crate::kernel::{AsyncOp, Built, Inputs, Kernel, NodeInfo, OpContext, Outputs, Value};
use crate::plan::{Kind, Plan, PlanNode};
use crate::rendezvous::RemoteSource;
use crate::trace::NodeTrace;
use crate::{Cancellation, Device, FunctionLibrary, Rendezvous, ResourceManager, Staleness, Trace};
use downpour_graph::{Result, Status};
use downpour_tensor::account::{self, Account, Holder, Payer, Refused, Stopped};
use downpour_tensor::{Tensor, shared};
use parking_lot::Mutex;
use smallvec::smallvec;
use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

/// What a step's kernels share.
pub struct StepEnv {
    /// Step id, one for all partitions of a step.
    pub step_id: u64,
    /// Device the plan was compiled for.
    pub device: Arc<Device>,
    /// Resources that end with the step.
    pub step_resources: Arc<ResourceManager>,
    /// Ends the step early.
    pub cancellation: Arc<Cancellation>,
    /// Hand-over of tensors between partitions.
    pub rendezvous: Arc<Rendezvous>,
    /// Values that other tasks send, if the step has parts elsewhere.
    pub remote: Option<Arc<dyn RemoteSource>>,
    /// Where to record what ran, if asked.
    pub trace: Option<Arc<Trace>>,
    /// How many function calls deep this step is.
    pub depth: u32,
    /// The session's functions.
    pub functions: Option<Arc<FunctionLibrary>>,
    /// Counts how stale the updates of whoever asked for the step are.
    pub writer: Option<Arc<Staleness>>,
    /// What the step's session holds; that of the process if there is none.
    pub session: Arc<Account>,
    /// What the step holds: made when that is first something worth counting.
    pub(crate) account: OnceLock<Arc<Account>>,
    /// The same step on the task's further devices, in the order of [`crate::CompileEnv::others`].
    pub others: Vec<Arc<StepEnv>>,
    /// All devices of the task, if it has several, for calls from one to another.
    pub siblings: Option<Siblings>,
}

impl Payer for StepEnv {
    fn account(&self) -> &Arc<Account> {
        self.account.get_or_init(|| match self.step_id {
            // Not a step of a client.
            0 => self.session.clone(),
            id => (self.session).below(Holder::Step(id), self.device.memory.step),
        })
    }

    fn is_stopped(&self) -> bool {
        self.cancellation.is_cancelled()
    }
}

/// The devices of a task, each with the session's functions for it.
pub type Siblings = Arc<[(Arc<Device>, Arc<FunctionLibrary>)]>;

impl StepEnv {
    /// An environment for one step.
    pub fn new(step_id: u64, device: Arc<Device>, cancellation: Arc<Cancellation>) -> StepEnv {
        StepEnv {
            step_id,
            session: device.account.clone(),
            account: OnceLock::new(),
            device,
            step_resources: Arc::default(),
            cancellation,
            rendezvous: Arc::default(),
            remote: None,
            trace: None,
            depth: 0,
            functions: None,
            writer: None,
            others: Vec::new(),
            siblings: None,
        }
    }

    /// The same step on all `siblings`: this environment must be that of the first of them. `trace` makes what each
    /// of the others records to, if the step is traced.
    pub fn spread(&mut self, siblings: &Siblings, trace: impl Fn() -> Option<Arc<Trace>>) {
        self.siblings = Some(siblings.clone());
        let others = siblings.iter().skip(1).map(|(device, functions)| {
            Arc::new(StepEnv {
                step_id: self.step_id,
                device: device.clone(),
                step_resources: self.step_resources.clone(),
                cancellation: self.cancellation.clone(),
                rendezvous: self.rendezvous.clone(),
                remote: self.remote.clone(),
                trace: trace(),
                depth: self.depth,
                functions: Some(functions.clone()),
                writer: self.writer.clone(),
                session: self.session.clone(),
                account: Payer::account(self).clone().into(),
                others: Vec::new(),
                siblings: self.siblings.clone(),
            })
        });
        self.others = others.collect();
    }
}

/// A running step.
pub struct Step;

type Done = Box<dyn FnOnce(Result<Vec<Tensor>>) + Send>;

/// Nodes that a borrowed thread runs at most: some hundred microseconds.
const BRIEF_NODES: u32 = 2048;

/// Nodes that an executor thread runs before others get their turn: a step whose loop never ends
/// must not hold a thread for ever.
const TURN_NODES: u32 = 1 << 16;

/// How long a step may stay on the thread it is driven by.
#[derive(Clone, Copy)]
pub(crate) struct Pace {
    /// Nodes that this thread will still run.
    nodes: u32,
    /// Whether the thread leaves whatever takes long to others.
    polite: bool,
}

impl Pace {
    /// An executor thread's.
    pub(crate) fn turn() -> Pace {
        Pace {
            nodes: TURN_NODES,
            polite: false,
        }
    }

    /// That of a thread with other duties; `idle` if it has no others just now.
    pub(crate) fn borrowed(idle: bool) -> Pace {
        Pace {
            nodes: BRIEF_NODES,
            polite: !idle,
        }
    }
}

/// Bytes of work from which on a borrowed thread leaves a kernel to an executor thread.
const BRIEF_BYTES: usize = 64 << 10;

/// Bytes of work from which on a costly kernel is worth waking another thread up for.
const WAKE_BYTES: usize = 16 << 10;

/// Bytes of work from which on others get a turn beside a kernel: about a tenth of a millisecond.
const LONG_BYTES: usize = 1 << 20;

impl Step {
    /// Runs `plan` with `args`, on the calling thread as far as it goes without waiting, and
    /// calls `done` once with the results or the first error.
    pub fn start(
        plan: Arc<Plan>,
        env: Arc<StepEnv>,
        args: Vec<Tensor>,
        done: impl FnOnce(Result<Vec<Tensor>>) + Send + 'static,
    ) {
        Step::start_at(Pace::turn(), plan, env, args, done);
    }

    /// As [`Step::start`], for a thread with other duties: runs there only as long as that is
    /// quicker than waking an executor thread up, which takes over when something costly comes. On a
    /// thread that is lent ([`crate::as_own_thread`]) it is as [`Step::start`].
    pub fn start_briefly(
        plan: Arc<Plan>,
        env: Arc<StepEnv>,
        args: Vec<Tensor>,
        done: impl FnOnce(Result<Vec<Tensor>>) + Send + 'static,
    ) {
        let pace = match on_executor_thread() {
            true => Pace::turn(),
            false => Pace::borrowed(false),
        };
        Step::start_at(pace, plan, env, args, done);
    }

    pub(crate) fn start_at(
        pace: Pace,
        plan: Arc<Plan>,
        env: Arc<StepEnv>,
        args: Vec<Tensor>,
        done: impl FnOnce(Result<Vec<Tensor>>) + Send + 'static,
    ) {
        if args.len() < plan.num_args {
            let (given, wanted) = (args.len(), plan.num_args);
            done(Err(Status::internal(format!(
                "a step got {given} of {wanted} arguments"
            ))));
            return;
        }
        let core = Core::new(&plan, args, pace);
        let step = Arc::new(StepShared {
            plan,
            env,
            inbox: Mutex::new(Inbox {
                completions: Vec::new(),
                driving: true,
            }),
            core: Mutex::new(core),
            done: Mutex::new(Some(Box::new(done))),
        });
        step.drive();
    }
}

/// Which run of which node: the node, its frame instance, the iteration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tagged {
    pub(crate) node: u32,
    frame: u32,
    iter: u64,
    dead: bool,
    scheduled_ns: i64,
}

pub(crate) struct Completion {
    pub(crate) tag: Tagged,
    pub(crate) outcome: Result<Outputs>,
}

struct Inbox {
    completions: Vec<Completion>,
    driving: bool,
}

pub(crate) struct StepShared {
    plan: Arc<Plan>,
    pub(crate) env: Arc<StepEnv>,
    inbox: Mutex<Inbox>,
    core: Mutex<Core>,
    done: Mutex<Option<Done>>,
}

impl StepShared {
    /// What a node runs in: the step on its own device.
    pub(crate) fn env_of(&self, node: &PlanNode) -> &Arc<StepEnv> {
        match node.device.checked_sub(1) {
            None => &self.env,
            Some(i) => self.env.others.get(i as usize).unwrap_or(&self.env),
        }
    }

    /// Hands in an outcome from outside the driving thread, and drives on if nobody does.
    pub(crate) fn complete(self: Arc<Self>, completion: Completion) {
        {
            let mut inbox = self.inbox.lock();
            inbox.completions.push(completion);
            if inbox.driving {
                return;
            }
            inbox.driving = true;
        }
        let pace = match on_executor_thread() {
            true => Pace::turn(),
            false => Pace::borrowed(false),
        };
        self.core.lock().pace = pace;
        self.drive();
    }

    /// Works until nothing is ready. The caller has set `driving`.
    fn drive(self: Arc<Self>) {
        let working = account::work_for(self.env.clone());
        let mut core = self.core.lock();
        loop {
            if self.run_ready(&mut core) == Pause::TooLong {
                core.pace = Pace::turn();
                drop(core);
                let device = self.env.device.clone();
                return device.spawn(move || self.drive());
            }
            let completions = {
                let mut inbox = self.inbox.lock();
                if inbox.completions.is_empty() {
                    inbox.driving = false;
                    break;
                }
                std::mem::take(&mut inbox.completions)
            };
            for mut c in completions {
                core.outstanding -= 1;
                let outcome = c.outcome.as_mut().map_err(|e| e.clone());
                core.finish(&self, c.tag, outcome.map(|outputs| &mut outputs[..]));
            }
        }
        if core.outstanding > 0 {
            return;
        }
        let outcome = core.outcome(&self.plan, &self.env);
        // Values of the step are dropped before the caller hears of its end, so that it finds
        // variables without snapshots held by a step that is over.
        core.clear();
        drop(core);
        drop(working);
        let done = self.done.lock().take();
        if let Some(done) = done {
            done(outcome);
        }
    }

    fn run_ready(self: &Arc<Self>, core: &mut Core) -> Pause {
        loop {
            if core.pace.polite {
                let next = core.cheap.last().or_else(|| core.costly.front());
                let heavy = next
                    .copied()
                    .is_some_and(|tag| core.is_heavy(&self.plan, &tag, BRIEF_BYTES));
                if heavy {
                    return Pause::TooLong;
                }
            }
            if core.pace.nodes == 0 && !(core.cheap.is_empty() && core.costly.is_empty()) {
                return Pause::TooLong;
            }
            core.pace.nodes = core.pace.nodes.saturating_sub(1);
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
    fn spawn(self: &Arc<Self>, core: &mut Core, tag: Tagged) {
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
            let ran = step.env.taking(work, || {
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
            step.complete(Completion {
                tag,
                outcome: ran.map(|()| outputs),
            });
        });
    }

    fn process(self: &Arc<Self>, core: &mut Core, tag: Tagged) {
        let node = &self.plan.nodes[tag.node as usize];
        let mut room = std::mem::take(&mut core.room);
        room.outputs.resize_with(node.num_outputs as usize, || None);
        if tag.dead && node.kind != Kind::Send {
            core.drop_inputs(node, &tag);
            core.propagate(self, tag, &mut room.outputs);
        } else if let Some(outcome) = self.run_node(core, node, &tag, &mut room) {
            core.finish(self, tag, outcome.map(|()| &mut room.outputs[..]));
        }
        room.inputs.clear();
        room.outputs.clear();
        core.room = room;
    }

    /// Runs a node here; `None` if it will tell its outcome later.
    fn run_node(
        self: &Arc<Self>,
        core: &mut Core,
        node: &PlanNode,
        tag: &Tagged,
        room: &mut Room,
    ) -> Option<Result<()>> {
        if node.kind == Kind::Merge {
            return Some(core.merge(node, tag, &mut room.outputs));
        }
        if tag.dead {
            // Only `_Send` gets here: it tells the other side.
            core.drop_inputs(node, tag);
            room.inputs.push(None);
        } else if let Err(e) = core.take_inputs(node, tag, self.env.step_id, &mut room.inputs) {
            return Some(Err(e));
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
                    before_long();
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
                Some(self.env.taking(work, run))
            }
            Some(Built::Async(kernel)) => {
                core.outstanding += 1;
                let ready = core.cheap.len() + core.costly.len();
                let op = AsyncOp {
                    alone: ready == 0 && core.outstanding == 1,
                    step: Some(self.clone()),
                    plan: self.plan.clone(),
                    tag: *tag,
                    frame_iter: core.frame_iter(tag),
                    inputs: room.inputs.drain(..).collect(),
                };
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

impl PlanNode {
    /// Runs its kernel so that what it makes lies where those can read it whom it is sent to.
    fn made<T>(&self, run: impl FnOnce() -> T) -> T {
        match self.is_sent {
            true => shared::outgoing(run),
            false => run(),
        }
    }

    fn is_costly(&self) -> bool {
        matches!(self.kernel, Some(Built::Costly(_)))
    }

    /// About how many bytes its kernel reads and writes with these inputs; all there are if that cannot be known.
    fn work(&self, inputs: &[Option<Value>]) -> usize {
        match self.growth {
            Some(growth) => {
                let grown = growth(&self.info.node, Inputs(inputs));
                grown.saturating_add(total_bytes(inputs))
            }
            None if self.is_costly() && !self.cost_by_inputs => usize::MAX,
            None => total_bytes(inputs),
        }
    }
}

impl StepEnv {
    /// Runs a kernel with so much work; others get their turn beside a long one.
    fn taking<T>(&self, work: usize, run: impl FnOnce() -> T) -> T {
        match work >= LONG_BYTES {
            true => self.device.at_length(run),
            false => run(),
        }
    }
}

fn total_bytes(values: &[Option<Value>]) -> usize {
    let size = |value: &Option<Value>| match value {
        Some(Value::Tensor(t)) => t.weight(),
        Some(Value::Ref(v)) => v.byte_len(),
        None => 0,
    };
    values.iter().map(size).sum()
}

/// Inputs and outputs of the node that is running: one place for all nodes in turn, because
/// moving them about took longer than many a kernel.
#[derive(Default)]
struct Room {
    inputs: Vec<Option<Value>>,
    outputs: Vec<Option<Value>>,
}

/// Runs a kernel, notes it in the step's trace and turns its panic into an error.
pub(crate) fn run_kernel(
    kernel: &dyn Kernel,
    env: &Arc<StepEnv>,
    info: &NodeInfo,
    scheduled_ns: i64,
    frame_iter: (u64, u64),
    (inputs, outputs): (&mut [Option<Value>], &mut [Option<Value>]),
) -> Result<()> {
    let mut ctx = OpContext {
        env,
        info,
        inputs,
        outputs,
        frame_iter,
    };
    let start = env.trace.as_ref().map(|t| t.now());
    let outcome = account::in_kernel(info.can_stop, || {
        catch_unwind(AssertUnwindSafe(|| kernel.compute(&mut ctx)))
    });
    if let (Some(trace), Some(start)) = (&env.trace, start) {
        record(trace, info, scheduled_ns, start, ctx.outputs);
    }
    outcome.unwrap_or_else(|panic| {
        if let Some(refused) = panic.downcast_ref::<Refused>() {
            let (bytes, device) = (refused.bytes, &env.device);
            let what = format!(
                "OOM when allocating tensor of {bytes} bytes on {} by allocator cpu",
                device.name
            );
            return Err(device.exhausted(&what, refused));
        }
        if panic.is::<Stopped>() {
            let reason = env.cancellation.reason();
            return Err(reason.unwrap_or_else(|| Status::cancelled("Step was cancelled")));
        }
        let text = panic
            .downcast_ref::<String>()
            .map(String::as_str)
            .or_else(|| panic.downcast_ref::<&str>().copied())
            .unwrap_or("no message");
        Err(Status::internal(format!(
            "the kernel of op {} panicked (please report this): {text}",
            info.node.op_name()
        )))
    })
}

fn record(
    trace: &Trace,
    info: &NodeInfo,
    scheduled_ns: i64,
    start_ns: i64,
    outputs: &[Option<Value>],
) {
    let outputs = outputs
        .iter()
        .enumerate()
        .filter_map(|(i, v)| match v {
            Some(Value::Tensor(t)) => Some((i as u32, t.dtype(), t.shape().clone(), t.byte_len())),
            _ => None,
        })
        .collect();
    trace.record(NodeTrace {
        name: info.name.clone(),
        op: info.node.op_name().to_owned(),
        inputs: info.input_names.clone(),
        scheduled_ns: if scheduled_ns == 0 {
            start_ns
        } else {
            scheduled_ns
        },
        start_ns,
        end_ns: trace.now(),
        thread: thread_number(),
        outputs,
    });
}

fn thread_number() -> u32 {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    thread_local!(static NUMBER: u32 = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.with(|n| *n)
}

/// A frame instance: one execution of a loop (or the root).
struct Frame {
    /// Index in the plan's frame table.
    body: u32,
    /// Id in rendezvous keys.
    id: u64,
    parent: Option<(u32, u64)>,
    /// Number of the oldest iteration in `iterations`.
    first: u64,
    iterations: VecDeque<Iteration>,
    /// Number of the newest iteration.
    last: u64,
    pending_enters: u32,
    outstanding_iterations: u32,
    next_roots: Vec<(u32, Value)>,
    invariants: Vec<(u32, Option<Value>)>,
    dead_exits: Vec<u32>,
}

#[derive(Default)]
struct Iteration {
    slots: Vec<Option<Value>>,
    pending: Vec<(u32, u32)>,
    outstanding_ops: u32,
    outstanding_frames: u32,
}

/// Why a driving thread stopped running nodes.
#[derive(PartialEq, Eq)]
enum Pause {
    /// Nothing is ready.
    Idle,
    /// The thread was only borrowed.
    TooLong,
}

struct Core {
    frames: Vec<Option<Frame>>,
    children: HashMap<(u32, u64, u32), u32>,
    cheap: Vec<Tagged>,
    costly: VecDeque<Tagged>,
    /// Kernels that run or wait elsewhere.
    outstanding: usize,
    room: Room,
    pace: Pace,
    args: Vec<Option<Tensor>>,
    retvals: Vec<Option<Value>>,
    error: Option<Status>,
}

impl Core {
    fn new(plan: &Plan, args: Vec<Tensor>, pace: Pace) -> Core {
        let mut core = Core {
            frames: Vec::with_capacity(1),
            children: HashMap::new(),
            cheap: Vec::with_capacity(plan.roots.len()),
            costly: VecDeque::new(),
            outstanding: 0,
            room: Room::default(),
            pace,
            args: args.into_iter().map(Some).collect(),
            retvals: vec![None; plan.num_retvals],
            error: None,
        };
        core.frames.push(Some(Frame {
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
        }));
        for &root in plan.roots.iter().rev() {
            core.push(plan, root, 0, 0, false, 0);
        }
        core
    }

    fn clear(&mut self) {
        self.frames.clear();
        self.children.clear();
        self.args.clear();
    }

    fn iteration(&mut self, frame: u32, iter: u64) -> &mut Iteration {
        let frame = self.frames[frame as usize]
            .as_mut()
            .expect("a live op keeps its frame alive");
        &mut frame.iterations[(iter - frame.first) as usize]
    }

    fn frame_iter(&self, tag: &Tagged) -> (u64, u64) {
        match &self.frames[tag.frame as usize] {
            Some(frame) => (frame.id, tag.iter),
            None => (0, tag.iter),
        }
    }

    fn push(&mut self, plan: &Plan, node: u32, frame: u32, iter: u64, dead: bool, now: i64) {
        self.iteration(frame, iter).outstanding_ops += 1;
        let tag = Tagged {
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
    fn is_heavy(&mut self, plan: &Plan, tag: &Tagged, bytes: usize) -> bool {
        let node = &plan.nodes[tag.node as usize];
        if node.calls {
            return true;
        }
        let slots = node.slots as usize..(node.slots + node.num_inputs) as usize;
        let slots = &self.iteration(tag.frame, tag.iter).slots[slots];
        node.work(slots) >= bytes
    }

    /// Takes a node's inputs out of their slots, reading references where values are wanted.
    fn take_inputs(
        &mut self,
        node: &PlanNode,
        tag: &Tagged,
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

    fn drop_inputs(&mut self, node: &PlanNode, tag: &Tagged) {
        let slots = node.slots as usize..(node.slots + node.num_inputs) as usize;
        self.iteration(tag.frame, tag.iter).slots[slots].fill(None);
    }

    fn merge(
        &mut self,
        node: &PlanNode,
        tag: &Tagged,
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
    fn control_op(
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
            Kind::Merge | Kind::Normal | Kind::Send => {
                return Err(Status::internal(format!(
                    "node {} has no kernel",
                    node.info.name
                )));
            }
        }
        Ok(())
    }

    /// Takes note of a node's outcome.
    fn finish(
        &mut self,
        step: &Arc<StepShared>,
        tag: Tagged,
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
    fn fail(&mut self, env: &StepEnv, error: Status) {
        if self.error.is_none() {
            self.error = Some(error.clone());
        }
        self.cheap.clear();
        self.costly.clear();
        env.rendezvous.abort(error.clone().as_derived());
        env.cancellation.cancel(error);
    }

    /// Gives a node's outputs to their consumers and counts what that makes ready.
    fn propagate(&mut self, step: &Arc<StepShared>, tag: Tagged, outputs: &mut [Option<Value>]) {
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

    fn next_iteration(&mut self, plan: &Plan, tag: Tagged, value: Value, now: i64) {
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

    fn child_frame(&mut self, plan: &Plan, tag: &Tagged, body: u32) -> u32 {
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

    fn outcome(&mut self, plan: &Plan, env: &StepEnv) -> Result<Vec<Tensor>> {
        if let Some(error) = self.error.take() {
            return Err(error);
        }
        if let Some(reason) = env.cancellation.reason() {
            return Err(reason);
        }
        let retvals = std::mem::take(&mut self.retvals);
        retvals
            .into_iter()
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

/// The error of a result that is dead: the untaken side of a branch. Of a step, it is the one of
/// TensorFlow's master, whose fetches are received; of a function, that of its caller.
fn no_value(i: usize, plan: &Plan, env: &StepEnv) -> Status {
    let name = plan.retval_name(i);
    let fetch = name.strip_prefix("_send_").and_then(|n| n.rsplit_once('_'));
    match fetch {
        Some((node, output)) if env.depth == 0 => {
            let (device, incarnation) = (&env.device.name, env.device.incarnation);
            Status::internal(format!(
                "Failed to fetch outputs for step {}. (Original error message: The tensor returned for {device};{incarnation:016x};{device};{node}:{output};0:0 was not valid.)",
                env.step_id
            ))
        }
        _ => Status::invalid_argument(format!(
            "Retval[{i}] does not have value\n\t [[{{{{node {name}}}}}]]"
        )),
    }
}

/// Names the node that failed, as TensorFlow does: where the message names a node already (that of
/// a called function's body), the caller's name follows without braces, because python looks for
/// those. Calls that TensorFlow's master would have replaced by their bodies are not named.
fn blame(message: String, node: &PlanNode, env: &StepEnv) -> String {
    let name = &node.info.name;
    if !message.contains("{{node ") {
        let shown = node.info.node.shown_name();
        return format!("{message}\n\t [[{{{{node {shown}}}}}]]");
    }
    let (attrs, op) = (&node.info.node.attrs, node.info.node.op_name());
    let lowered = matches!(attrs.bool("_lower_using_switch_merge"), Ok(true))
        || env.depth > 0 && matches!(op, "PartitionedCall" | "StatefulPartitionedCall");
    if !node.calls || lowered || message.ends_with(&format!("{{{{node {name}}}}}")) {
        return message;
    }
    format!("{message}\n\t [[{name}]]")
}

fn set(outputs: &mut [Option<Value>], i: usize, value: Option<Value>) {
    if let Some(slot) = outputs.get_mut(i) {
        *slot = value;
    }
}

fn new_iteration(plan: &Plan, body: u32) -> Iteration {
    let frame = &plan.frames.frames[body as usize];
    Iteration {
        slots: vec![None; frame.num_slots as usize],
        pending: frame.pending.iter().map(|&p| (p, 0)).collect(),
        outstanding_ops: 0,
        outstanding_frames: 0,
    }
}
