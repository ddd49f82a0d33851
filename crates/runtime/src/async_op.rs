//! A run of a kernel that waits: what it sees, and how it ends.

use crate::kernel::no_such;
use crate::{Caller, NodeInfo, Outputs, Received, Resource, StepEnv, Value, Variable};
use downpour_graph::{Code, Result, Status};
use downpour_tensor::Tensor;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// One run of a waiting kernel. Dropping it without an outcome fails the op rather than hang it.
pub struct AsyncOp {
    step: Option<Arc<dyn RunningStep>>,
    run: OpRun,
    frame_iter: (u64, u64),
    /// Whether its step had nothing else to do when it began.
    alone: bool,
    /// The inputs; take what is needed.
    pub inputs: SmallVec<[Option<Value>; 4]>,
}

/// Which run of which node: the node, its frame instance, the iteration.
#[derive(Clone, Copy, Debug)]
pub struct OpRun {
    /// Number of the node in its plan.
    pub node: u32,
    /// Number of the frame instance.
    pub frame: u32,
    /// Iteration of that frame.
    pub iter: u64,
    /// Whether it only passes on that its inputs are dead.
    pub dead: bool,
    /// When it became ready, if the step is traced.
    pub scheduled_ns: i64,
}

/// The step of an op that waits, as the executor has it.
pub trait RunningStep: Send + Sync {
    /// What the op runs in.
    fn env(&self, run: &OpRun) -> &Arc<StepEnv>;

    /// The op's node.
    fn info(&self, run: &OpRun) -> &NodeInfo;

    /// Takes the op's outcome, and goes on with the step on this thread if no other does.
    fn complete(self: Arc<Self>, run: OpRun, outcome: Result<Outputs>);

    /// As [`RunningStep::complete`], for several ops that receive what came to the step.
    fn receive(self: Arc<Self>, values: Vec<Received>) {
        for (run, tensor) in values {
            let outputs = smallvec![tensor.map(Value::Tensor)];
            self.clone().complete(run, Ok(outputs));
        }
    }
}

impl AsyncOp {
    /// A run of a node of `step`; `alone` if the step has nothing else to do.
    pub fn new(
        step: Arc<dyn RunningStep>,
        run: OpRun,
        frame_iter: (u64, u64),
        alone: bool,
        inputs: SmallVec<[Option<Value>; 4]>,
    ) -> AsyncOp {
        AsyncOp {
            step: Some(step),
            run,
            frame_iter,
            alone,
            inputs,
        }
    }

    fn step(&self) -> &Arc<dyn RunningStep> {
        self.step
            .as_ref()
            .expect("an op has its step until it is finished")
    }

    /// The step.
    pub fn env(&self) -> &Arc<StepEnv> {
        self.step().env(&self.run)
    }

    /// Calls functions in the name of this op; refused when calls are nested too deep.
    pub fn caller(&self) -> Result<Arc<Caller>> {
        Caller::new(self, self.alone)
    }

    /// As [`AsyncOp::caller`], for calls on the task's device called `device`; `None` if it has none of that name.
    pub fn caller_on(&self, device: &str) -> Option<Result<Arc<Caller>>> {
        let siblings = self.env().siblings.as_ref()?;
        let (device, functions) = siblings.iter().find(|(d, _)| d.name == device)?;
        Some(Caller::on(self, self.alone, device, Some(functions)))
    }

    /// The node.
    pub fn info(&self) -> &NodeInfo {
        self.step().info(&self.run)
    }

    /// `(frame id, iteration)` of this run; `(0, 0)` outside loops.
    pub fn frame_iter(&self) -> (u64, u64) {
        self.frame_iter
    }

    /// Input `i`.
    pub fn input(&self, i: usize) -> Result<&Tensor> {
        match self.inputs.get(i) {
            Some(Some(Value::Tensor(t))) => Ok(t),
            _ => Err(no_such("input", i, &self.info().name)),
        }
    }

    /// Input `i` by value.
    pub fn take(&mut self, i: usize) -> Result<Tensor> {
        match self.inputs.get_mut(i).and_then(Option::take) {
            Some(Value::Tensor(t)) => Ok(t),
            _ => Err(no_such("input", i, &self.info().name)),
        }
    }

    /// The variable behind the reference input `i`.
    pub fn input_ref(&self, i: usize) -> Result<Arc<Variable>> {
        match self.inputs.get(i) {
            Some(Some(Value::Ref(v))) => Ok(v.clone()),
            _ => Err(no_such("reference input", i, &self.info().name)),
        }
    }

    /// The resource of type `R` that the handle in input `i` names.
    pub fn lookup<R: Resource>(&self, i: usize) -> Result<Arc<R>> {
        let handle = self.input(i)?.as_resources()?;
        let handle = handle.first().ok_or_else(|| {
            Status::invalid_argument(format!("input {i} holds no resource handle"))
        })?;
        self.env()
            .device
            .resources
            .lookup(&handle.container, &handle.name)
    }

    /// Ends the op with these outputs.
    pub fn finish(self, outcome: Result<Vec<Tensor>>) {
        self.finish_values(
            outcome.map(|o| o.into_iter().map(|t| Some(Value::Tensor(t))).collect()),
        );
    }

    /// Ends the op; a missing output is dead.
    pub fn finish_values(mut self, outcome: Result<Outputs>) {
        if let Some(step) = self.step.take() {
            step.complete(self.run, outcome);
        }
    }
}

impl Drop for AsyncOp {
    fn drop(&mut self) {
        if let Some(step) = self.step.take() {
            let lost = Status::new(Code::Internal, "the op was dropped before it finished");
            step.complete(self.run, Err(lost));
        }
    }
}
