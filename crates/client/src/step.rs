//! One step: what is fed, fetched and run.

use crate::Session;
use crate::runtime::wait;
use crate::session::{Request, limited};
use downpour_build::{IntoTensor, Operation, Output, PartialShape, Result, Status, Tensor};
use downpour_wire::messages::{
    PartialRunSetupRequest, RunCallableRequest, RunMetadata, RunOptions, RunStepRequest, TraceLevel,
};
use std::time::Duration;

/// A step about to run.
#[must_use = "a step runs by `run` or one of the `fetch` calls"]
pub struct Step<'a> {
    session: &'a Session,
    feeds: Vec<(String, Tensor)>,
    targets: Vec<String>,
    timeout: Option<Duration>,
    broken: Option<Status>,
}

/// What a traced step gave, and what it did.
#[derive(Clone, Debug)]
pub struct Traced {
    /// What was fetched.
    pub values: Vec<Tensor>,
    /// When each operation ran, on which device.
    pub metadata: RunMetadata,
}

impl<'a> Step<'a> {
    pub(crate) fn new(session: &'a Session) -> Step<'a> {
        Step {
            session,
            feeds: Vec::new(),
            targets: Vec::new(),
            timeout: None,
            broken: None,
        }
    }

    /// Gives a tensor its value in this step.
    pub fn feed(mut self, output: &Output, value: impl IntoTensor) -> Step<'a> {
        let value = value.into_tensor();
        if let Err(e) = fits(output, &value) {
            self.broken = self.broken.or(Some(e));
        }
        self.feeds.push((output.name(), value));
        self
    }

    /// Runs an operation.
    pub fn target(mut self, operation: &Operation) -> Step<'a> {
        self.targets.push(operation.name());
        self
    }

    /// Longest time the step may take.
    pub fn timeout(mut self, timeout: Duration) -> Step<'a> {
        self.timeout = Some(timeout);
        self
    }

    /// Runs the step.
    pub fn run(self) -> Result<()> {
        self.values(Vec::new()).map(|_| ())
    }

    /// Runs the step; the value of a tensor.
    pub fn fetch(self, output: &Output) -> Result<Tensor> {
        let [value] = self.fetch_all([output])?;
        Ok(value)
    }

    /// Runs the step; the values of several tensors.
    pub fn fetch_all<const N: usize>(self, outputs: [&Output; N]) -> Result<[Tensor; N]> {
        let names = outputs.iter().map(|o| o.name()).collect();
        let values = self.values(names)?;
        let count = values.len();
        values
            .try_into()
            .map_err(|_| Status::internal(format!("{N} tensors were fetched, but {count} came")))
    }

    /// Runs the step; the values of a list of tensors.
    pub fn fetch_list(self, outputs: &[Output]) -> Result<Vec<Tensor>> {
        self.values(outputs.iter().map(Output::name).collect())
    }

    /// Runs the step and records what each operation did, on every task.
    pub fn trace(mut self, outputs: &[Output]) -> Result<Traced> {
        self.ready()?;
        let fetch: Vec<String> = outputs.iter().map(Output::name).collect();
        let limit = self.timeout.or(self.session.limit());
        let request = RunStepRequest {
            session_handle: self.session.handle.clone(),
            feed: self.feeds,
            fetch: fetch.clone(),
            target: self.targets,
            options: RunOptions {
                trace_level: TraceLevel::FullTrace,
                timeout: limit,
                ..Default::default()
            },
            ..Default::default()
        };
        let call = self.session.master.clone().run_step(request);
        let reply = wait(limited(limit, "the step", call))?;
        Ok(Traced {
            values: in_order(&fetch, reply.tensors)?,
            metadata: reply.metadata,
        })
    }

    /// Refuses what was fed wrongly; sends what was built since the last step.
    fn ready(&mut self) -> Result<()> {
        if let Some(broken) = self.broken.take() {
            return Err(broken);
        }
        self.session.extend()
    }

    fn values(mut self, fetches: Vec<String>) -> Result<Vec<Tensor>> {
        self.ready()?;
        if self.timeout.is_some() {
            return self.bounded(fetches);
        }
        let (feeds, feed): (Vec<String>, Vec<Tensor>) = self.feeds.into_iter().unzip();
        let request = Request {
            feeds,
            fetches,
            targets: self.targets,
        };
        let handle = self.session.prepared(&request)?;
        let call = self
            .session
            .master
            .clone()
            .run_callable(RunCallableRequest {
                session_handle: self.session.handle.clone(),
                handle,
                feed,
                request_id: 0,
            });
        let reply = wait(limited(self.session.limit(), "the step", call))?;
        Ok(reply.fetch)
    }

    /// A step with a bound of its own: callables have theirs from when they were prepared.
    fn bounded(self, fetches: Vec<String>) -> Result<Vec<Tensor>> {
        let request = RunStepRequest {
            session_handle: self.session.handle.clone(),
            feed: self.feeds,
            fetch: fetches.clone(),
            target: self.targets,
            options: RunOptions {
                timeout: self.timeout,
                ..Default::default()
            },
            ..Default::default()
        };
        let call = self.session.master.clone().run_step(request);
        let reply = wait(limited(self.timeout, "the step", call))?;
        in_order(&fetches, reply.tensors)
    }
}

/// A step that is fed and fetched bit by bit.
pub struct PartialRun<'a> {
    session: &'a Session,
    handle: String,
}

impl<'a> PartialRun<'a> {
    /// Prepares a step of which these tensors will be fed and fetched, each once, in any order.
    pub fn new(
        session: &'a Session,
        feeds: &[Output],
        fetches: &[Output],
    ) -> Result<PartialRun<'a>> {
        session.extend()?;
        let request = PartialRunSetupRequest {
            session_handle: session.handle.clone(),
            feed: feeds.iter().map(Output::name).collect(),
            fetch: fetches.iter().map(Output::name).collect(),
            ..Default::default()
        };
        let setup = session.master.clone().partial_run_setup(request);
        let reply = wait(limited(session.limit(), "preparing a partial run", setup))?;
        Ok(PartialRun {
            session,
            handle: reply.partial_run_handle,
        })
    }

    /// Feeds some tensors and fetches others.
    pub fn step(&self, feeds: &[(&Output, Tensor)], fetches: &[Output]) -> Result<Vec<Tensor>> {
        for (output, value) in feeds {
            fits(output, value)?;
        }
        let fetch: Vec<String> = fetches.iter().map(Output::name).collect();
        let request = RunStepRequest {
            session_handle: self.session.handle.clone(),
            feed: feeds.iter().map(|(o, v)| (o.name(), v.clone())).collect(),
            fetch: fetch.clone(),
            partial_run_handle: self.handle.clone(),
            ..Default::default()
        };
        let call = self.session.master.clone().run_step(request);
        let reply = wait(limited(self.session.limit(), "the step", call))?;
        in_order(&fetch, reply.tensors)
    }
}

/// Refuses a value whose type or shape is not that of the tensor it is fed to.
fn fits(output: &Output, value: &Tensor) -> Result<()> {
    let (dtype, shape): (_, PartialShape) = (output.dtype(), output.shape());
    if value.dtype() != dtype {
        return Err(Status::invalid_argument(format!(
            "'{}' is {}, but is fed {}",
            output.name(),
            dtype.name(),
            value.dtype().name()
        )));
    }
    if !shape.admits(value.shape()) {
        return Err(Status::invalid_argument(format!(
            "'{}' has shape {shape}, but is fed {}",
            output.name(),
            value.shape()
        )));
    }
    Ok(())
}

/// The values of `names`, which came with their names.
fn in_order(names: &[String], tensors: Vec<(String, Tensor)>) -> Result<Vec<Tensor>> {
    let find = |name: &String| {
        let found = tensors.iter().find(|(n, _)| n == name);
        let missing = || Status::internal(format!("the master did not return '{name}'"));
        found.map(|(_, t)| t.clone()).ok_or_else(missing)
    };
    names.iter().map(find).collect()
}
