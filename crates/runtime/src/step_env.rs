//! What the kernels of one step share: its device, resources, cancellation, rendezvous, functions and accounts.

use crate::rendezvous::RemoteSource;
use crate::{Cancellation, Device, FunctionLibrary, Rendezvous, ResourceManager, Staleness, Trace};
use downpour_tensor::account::{Account, Holder, Payer};
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
    pub functions: Option<Arc<dyn FunctionLibrary>>,
    /// Counts how stale the updates of whoever asked for the step are.
    pub writer: Option<Arc<Staleness>>,
    /// What the step's session holds; that of the process if there is none.
    pub session: Arc<Account>,
    /// What the step holds: made when that is first something worth counting.
    pub(crate) account: OnceLock<Arc<Account>>,
    /// The same step on the task's further devices, in the order of the devices that the plan was compiled for.
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
pub type Siblings = Arc<[(Arc<Device>, Arc<dyn FunctionLibrary>)]>;

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
