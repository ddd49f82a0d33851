//! Starting a step, and how long it may use the thread that starts it.

use crate::core::Core;
use crate::drive::StepShared;
use crate::plan::Plan;
use downpour_graph::{Result, Status};
use downpour_runtime::{Pace, Results, StepEnv, on_executor_thread};
use downpour_tensor::Tensor;
use std::sync::Arc;

/// Starts steps.
pub struct Step;

/// Nodes that a borrowed thread runs at most: about a millisecond. A parameter server that reads and sends a thousand variables
/// stays below it: on another thread each value would leave in a frame, and a system call, of its own.
const BRIEF_NODES: u32 = 8192;

/// Nodes that an executor thread runs before others get their turn: a step whose loop never ends
/// must not hold a thread for ever.
const TURN_NODES: u32 = 1 << 16;

/// What a step may still do on the thread it is driven by.
#[derive(Clone, Copy, Default)]
pub(crate) struct Quota {
    /// Nodes that this thread will still run.
    pub(crate) nodes: u32,
    /// Whether the thread leaves whatever takes long to others.
    pub(crate) polite: bool,
}

impl From<Pace> for Quota {
    fn from(pace: Pace) -> Quota {
        let (nodes, polite) = match pace {
            Pace::Executor => (TURN_NODES, false),
            Pace::Idle => (BRIEF_NODES, false),
            Pace::Busy => (BRIEF_NODES, true),
        };
        Quota { nodes, polite }
    }
}

/// How a step may use the calling thread.
pub(crate) fn current_pace() -> Pace {
    match on_executor_thread() {
        true => Pace::Executor,
        false => Pace::Busy,
    }
}

impl Step {
    /// Runs `plan` with `args`, on the calling thread as far as it goes without waiting, and
    /// calls `done` once with the results or the first error.
    pub fn start(
        plan: Arc<Plan>,
        env: Arc<StepEnv>,
        args: Vec<Tensor>,
        done: impl FnOnce(Result<Vec<Tensor>>) + Send + 'static,
    ) {
        Step::start_at(Pace::Executor, plan, env, args, Box::new(done));
    }

    /// As [`Step::start`], for a thread with other duties: runs there only as long as that is
    /// quicker than waking an executor thread up, which takes over when something costly comes. On a
    /// thread that is lent ([`downpour_runtime::as_own_thread`]) it is as [`Step::start`].
    pub fn start_briefly(
        plan: Arc<Plan>,
        env: Arc<StepEnv>,
        args: Vec<Tensor>,
        done: impl FnOnce(Result<Vec<Tensor>>) + Send + 'static,
    ) {
        Step::start_at(current_pace(), plan, env, args, Box::new(done));
    }

    pub(crate) fn start_at(
        pace: Pace,
        plan: Arc<Plan>,
        env: Arc<StepEnv>,
        args: Vec<Tensor>,
        done: Results,
    ) {
        if args.len() < plan.num_args {
            let (given, wanted) = (args.len(), plan.num_args);
            done(Err(Status::internal(format!(
                "a step got {given} of {wanted} arguments"
            ))));
            return;
        }
        let mut core = Core::new(&plan, args, pace.into());
        if !plan.edges.is_empty() {
            if let Err(e) = env.rendezvous.open_edges(&plan.edges) {
                return done(Err(e));
            }
            let (device, rendezvous) = (env.device.clone(), env.rendezvous.clone());
            let on_cancel = env.cancellation.register(move |reason| {
                let reason = reason.clone();
                // Whoever cancels may hold what the step needs to end.
                device.spawn(move || rendezvous.fail_edges(&reason));
            });
            // One that is cancelled already runs nothing that waits.
            core.on_cancel = on_cancel.ok();
        }
        StepShared::new(plan, env, core, done).drive();
    }
}
