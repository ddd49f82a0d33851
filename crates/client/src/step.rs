//! One step: what is fed, fetched and run.

use crate::Session;
use crate::runtime::{wait, wait_for_step};
use crate::session::{Request, limited};
use downpour_build::{
    Evaluate, IntoTensor, Operation, Output, PartialShape, Result, Status, Tensor,
};
use downpour_wire::messages::{
    PartialRunSetupRequest, RunCallableRequest, RunMetadata, RunOptions, RunStepRequest, TraceLevel,
};
use std::time::Duration;

/// What one step feeds, fetches and runs. It can be run several times, on any session of the
/// graph it was made for.
///
/// ```
/// use downpour::{DType, Graph, Run, Server, ServerConfig, Session};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, [None]);
/// let mut run = Run::new();
/// let total = run.feed(&x, [1.0f32, 2.0, 3.0]).fetch(&x.sum(()));
/// let largest = run.fetch(&x.max(()));
/// let values = Session::new(&server, &g)?.execute(&run)?;
/// assert_eq!(values[total].scalar_value::<f32>()?, 6.0);
/// assert_eq!(values[largest].scalar_value::<f32>()?, 3.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Run {
    pub(crate) feeds: Vec<(String, Tensor)>,
    pub(crate) fetches: Vec<String>,
    targets: Vec<String>,
    timeout: Option<Duration>,
    traced: bool,
    broken: Option<Status>,
}

impl Run {
    /// A step that does nothing yet.
    pub fn new() -> Run {
        Run::default()
    }

    /// Gives a tensor its value in this step.
    pub fn feed(&mut self, output: &Output, value: impl IntoTensor) -> &mut Run {
        let value = value.into_tensor();
        if let Err(e) = fits(output, &value) {
            self.fail(e);
        }
        self.feeds.push((output.name(), value));
        self
    }

    /// Lets the step fail with this error instead of running: for who can find no value to feed.
    ///
    /// ```
    /// use downpour_build::Status;
    /// let mut run = downpour_client::Run::new();
    /// run.fail(Status::out_of_range("no more data")).fail(Status::internal("too late"));
    /// assert_eq!(run.broken().map(|e| e.message.as_str()), Some("no more data"));
    /// ```
    pub fn fail(&mut self, error: Status) -> &mut Run {
        self.broken.get_or_insert(error);
        self
    }

    /// Why the step cannot run, if it cannot: the first thing that was wrong.
    pub fn broken(&self) -> Option<&Status> {
        self.broken.as_ref()
    }

    /// Computes a tensor; its value has this position among those that the step returns.
    pub fn fetch(&mut self, output: &Output) -> usize {
        self.fetches.push(output.name());
        self.fetches.len() - 1
    }

    /// Runs an operation.
    pub fn target(&mut self, operation: &Operation) -> &mut Run {
        self.targets.push(operation.name());
        self
    }

    /// Whether it runs an operation by name.
    pub fn runs(&self, operation: &Operation) -> bool {
        self.targets.contains(&operation.name())
    }

    /// Longest time the step may take.
    pub fn timeout(&mut self, timeout: Duration) -> &mut Run {
        self.timeout = Some(timeout);
        self
    }

    /// Records what each operation does, on every task.
    ///
    /// ```
    /// let mut run = downpour_client::Run::new();
    /// assert!(run.trace().is_traced());
    /// ```
    pub fn trace(&mut self) -> &mut Run {
        self.traced = true;
        self
    }

    /// Whether it records what each operation does.
    pub fn is_traced(&self) -> bool {
        self.traced
    }

    /// How many tensors it fetches.
    pub fn fetched(&self) -> usize {
        self.fetches.len()
    }

    fn as_traced(&self, session: &Session) -> RunStepRequest {
        RunStepRequest {
            session_handle: session.handle.clone(),
            feed: self.feeds.clone(),
            fetch: self.fetches.clone(),
            target: self.targets.clone(),
            options: RunOptions {
                trace_level: TraceLevel::FullTrace,
                timeout: self.timeout.or(session.limit()),
                ..Default::default()
            },
            ..Default::default()
        }
    }
}

/// What a step gave.
///
/// ```
/// use downpour::{Graph, Run, Runner, Server, ServerConfig, Session};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let mut run = Run::new();
/// run.fetch(&(g.constant(2i32) + 3));
/// let outcome = Session::new(&server, &g)?.perform(&run)?;
/// assert_eq!(outcome.values[0].scalar_value::<i32>()?, 5);
/// assert!(outcome.metadata.is_none(), "the step was not traced");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What was fetched, in order.
    pub values: Vec<Tensor>,
    /// When each operation ran, on which device, if the step was traced.
    pub metadata: Option<RunMetadata>,
}

/// What a traced step gave, and what it did.
///
/// ```
/// use downpour::{DType, Graph, Server, ServerConfig, Session};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, [2, 2]);
/// let product = x.matmul(&x);
/// let session = Session::new(&server, &g)?;
/// let step = session.step().feed(&x, [[1.0f32, 1.0], [0.0, 1.0]]);
/// let traced = step.trace(&[product])?;
/// assert_eq!(traced.values[0].as_slice::<f32>()?, [1.0, 2.0, 0.0, 1.0]);
/// let stats = traced.metadata.step_stats.ok_or("no times")?;
/// let mut nodes = stats.devices.iter().flat_map(|device| &device.nodes);
/// assert!(nodes.any(|node| node.node_name == "MatMul"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Traced {
    /// What was fetched.
    pub values: Vec<Tensor>,
    /// When each operation ran, on which device.
    pub metadata: RunMetadata,
}

/// What can run a step: a session, or one that is supervised.
///
/// ```
/// use downpour::{Graph, Outcome, Result, Run, Runner, Server, ServerConfig, Session, Step};
/// use std::cell::Cell;
///
/// /// Counts the steps of a session.
/// struct Counted(Session, Cell<usize>);
///
/// impl Runner for &Counted {
///     fn perform(self, run: &Run) -> Result<Outcome> {
///         self.1.set(self.1.get() + 1);
///         self.0.perform(run)
///     }
/// }
///
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let sum = g.constant(1i32) + 2;
/// let counted = Counted(Session::new(&server, &g)?, Cell::new(0));
/// for _ in 0..3 {
///     assert_eq!(Step::on(&counted).fetch(&sum)?.scalar_value::<i32>()?, 3);
/// }
/// assert_eq!(counted.1.get(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Runner {
    /// Runs a step, and records what it did if it is to be traced.
    fn perform(self, run: &Run) -> Result<Outcome>;
}

impl Runner for &Session {
    fn perform(self, run: &Run) -> Result<Outcome> {
        if !run.traced {
            let values = self.execute(run)?;
            return Ok(Outcome {
                values,
                metadata: None,
            });
        }
        self.ready(run)?;
        let request = run.as_traced(self);
        let limit = request.options.timeout;
        let call = self.master.clone().run_step(request);
        let reply = wait_for_step(&*self.master, limited(limit, "the step", call))?;
        Ok(Outcome {
            values: in_order(&run.fetches, reply.tensors)?,
            metadata: Some(reply.metadata),
        })
    }
}

impl Session {
    /// Runs a step; the values of what it fetches, in order, in memory of our own.
    pub fn execute(&self, run: &Run) -> Result<Vec<Tensor>> {
        if run.traced {
            return Ok(self.perform(run)?.values);
        }
        self.ready(run)?;
        let (feeds, feed): (Vec<String>, Vec<Tensor>) = run.feeds.iter().cloned().unzip();
        let handle = self.prepared(&Request {
            feeds,
            fetches: run.fetches.clone(),
            targets: run.targets.clone(),
            timeout: run.timeout.or(self.limit()),
        })?;
        let call = self.master.clone().run_callable(RunCallableRequest {
            session_handle: self.handle.clone(),
            handle,
            feed,
            request_id: 0,
        });
        let limit = run.timeout.or(self.limit());
        let reply = wait_for_step(&*self.master, limited(limit, "the step", call))?;
        Ok(reply.fetch.into_iter().map(Tensor::kept).collect())
    }

    /// Refuses what was fed wrongly; sends what was built since the last step.
    fn ready(&self, run: &Run) -> Result<()> {
        match &run.broken {
            Some(broken) => Err(broken.clone()),
            None => self.extend(),
        }
    }
}

/// A step about to run on a session, or on one that is supervised.
///
/// ```
/// use downpour_build::{Graph, Result, Tensor};
/// use downpour_client::{Outcome, Run, Runner, Step};
///
/// /// Runs nothing; everything it is asked for is 7.
/// struct Sevens;
///
/// impl Runner for &Sevens {
///     fn perform(self, run: &Run) -> Result<Outcome> {
///         Ok(Outcome { values: vec![Tensor::scalar(7i32); run.fetched()], metadata: None })
///     }
/// }
///
/// let g = Graph::new();
/// let [a, b] = [g.constant(1i32), g.constant(2i32)];
/// let [a, _] = Step::on(&Sevens).fetch_all([&a, &b])?;
/// assert_eq!(a.scalar_value::<i32>()?, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a step runs by `run` or one of the `fetch` calls"]
pub struct Step<R> {
    runner: R,
    run: Run,
}

impl<R: Runner> Step<R> {
    /// Begins a step.
    pub fn on(runner: R) -> Step<R> {
        let run = Run::new();
        Step { runner, run }
    }

    /// Gives a tensor its value in this step.
    pub fn feed(mut self, output: &Output, value: impl IntoTensor) -> Step<R> {
        self.run.feed(output, value);
        self
    }

    /// Runs an operation.
    pub fn target(mut self, operation: &Operation) -> Step<R> {
        self.run.target(operation);
        self
    }

    /// Longest time the step may take.
    pub fn timeout(mut self, timeout: Duration) -> Step<R> {
        self.run.timeout(timeout);
        self
    }

    /// Runs the step.
    pub fn run(self) -> Result<()> {
        self.runner.perform(&self.run).map(|_| ())
    }

    /// Runs the step; the value of a tensor.
    pub fn fetch(self, output: &Output) -> Result<Tensor> {
        let [value] = self.fetch_all([output])?;
        Ok(value)
    }

    /// Runs the step; the values of several tensors.
    pub fn fetch_all<const N: usize>(self, outputs: [&Output; N]) -> Result<[Tensor; N]> {
        exactly(self.outcome(outputs)?.values)
    }

    /// Runs the step; the values of a list of tensors.
    pub fn fetch_list(self, outputs: &[Output]) -> Result<Vec<Tensor>> {
        Ok(self.outcome(outputs)?.values)
    }

    /// Runs the step and records what each operation did, on every task.
    pub fn trace(mut self, outputs: &[Output]) -> Result<Traced> {
        self.run.trace();
        let done = self.outcome(outputs)?;
        let none = || Status::internal("the step was traced, but nothing came of it");
        Ok(Traced {
            values: done.values,
            metadata: done.metadata.ok_or_else(none)?,
        })
    }

    fn outcome<'o>(mut self, outputs: impl IntoIterator<Item = &'o Output>) -> Result<Outcome> {
        for output in outputs {
            self.run.fetch(output);
        }
        self.runner.perform(&self.run)
    }
}

/// As many values as were asked for.
pub(crate) fn exactly<const N: usize>(values: Vec<Tensor>) -> Result<[Tensor; N]> {
    let count = values.len();
    let wrong = |_| Status::internal(format!("{N} tensors were fetched, but {count} came"));
    values.try_into().map_err(wrong)
}

/// A step that is fed and fetched bit by bit.
///
/// ```
/// use downpour::{DType, Graph, PartialRun, Server, ServerConfig, Session, Tensor};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let [a, b] = ["a", "b"].map(|name| g.placeholder(name, DType::Float, ()));
/// let double = &a * 2.0;
/// let sum = &double + &b;
/// let session = Session::new(&server, &g)?;
/// let run = PartialRun::new(&session, &[a.clone(), b.clone()], &[double.clone(), sum.clone()])?;
/// let first = run.step(&[(&a, Tensor::scalar(4.0f32))], &[double])?;
/// // What is fed now may depend on what came before.
/// let second = run.step(&[(&b, first[0].clone())], &[sum])?;
/// assert_eq!(second[0].scalar_value::<f32>()?, 16.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
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

/// A session evaluates what [`check_gradients`](downpour_build::check_gradients) asks for.
impl Evaluate for &Session {
    fn evaluate(&mut self, outputs: &[Output], feeds: &[(Output, Tensor)]) -> Result<Vec<Tensor>> {
        let mut run = Run::new();
        for (output, value) in feeds {
            run.feed(output, value);
        }
        for output in outputs {
            run.fetch(output);
        }
        self.execute(&run)
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

/// The values of `names`, which came with their names, in memory of our own: a caller may keep them for as long as it likes.
fn in_order(names: &[String], tensors: Vec<(String, Tensor)>) -> Result<Vec<Tensor>> {
    let find = |name: &String| {
        let found = tensors.iter().find(|(n, _)| n == name);
        let missing = || Status::internal(format!("the master did not return '{name}'"));
        found.map(|(_, t)| t.clone().kept()).ok_or_else(missing)
    };
    names.iter().map(find).collect()
}
