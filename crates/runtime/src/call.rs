//! Calls of functions, as kernels make them. A function is compiled by the executor when it is first called, once per
//! session and set of attributes, and run as a step of its own.
//!
//! A kernel names what it calls by a [`Callee`]. Inside a step it calls through a [`Caller`]: the
//! child step shares the parent's resources, trace and device, and ends with it. Outside, an
//! object that outlives steps keeps a [`FunctionHandle`]. Neither holds a thread while the body
//! waits. Kernels keep no compiled function, or a function that calls itself would own itself:
//! the [`FunctionLibrary`] does, and steps and handles own the library.

use crate::rendezvous::{RemoteSource, Results};
use crate::{AsyncOp, Built, CancelToken, Cancellation, Device, StepEnv};
use downpour_graph::{
    AttrList, AttrValue, Attrs, FunctionRef, Functions, Graph, Node, Result, Status,
};
use downpour_tensor::account::Payer;
use downpour_tensor::{DType, Tensor};
use std::cell::Cell;
use std::fmt::Write as _;
use std::sync::Arc;

/// Most calls inside calls; a function that calls itself without end gets there.
const MAX_DEPTH: u32 = 1000;

/// Calls inside calls on one thread's stack; the next one starts on another thread.
const MAX_STACKED: u32 = 16;

/// A compiled function.
pub struct Function {
    /// Its name.
    pub name: String,
    /// Types of the arguments.
    pub arg_types: Vec<DType>,
    /// Types of the results.
    pub ret_types: Vec<DType>,
    /// Whether the body has ops with state or side effects.
    pub stateful: bool,
    /// Whether its kernels keep state (random numbers, queues without a name), so that each place
    /// that calls it needs its own.
    pub private: bool,
    /// What it does.
    pub body: Arc<dyn Body>,
}

/// The body of a function: a compiled graph, which the executor runs.
pub trait Body: Send + Sync {
    /// Runs it as a step of its own and calls `done` once, perhaps before this returns.
    fn start(self: Arc<Self>, pace: Pace, env: Arc<StepEnv>, args: Vec<Tensor>, done: Results);
}

/// How a step may use the thread that starts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// It is there for steps.
    Executor,
    /// It has other duties, none of them just now.
    Idle,
    /// It has other duties: whatever takes long belongs on an executor thread.
    Busy,
}

/// The functions of a session, compiled when they are first called.
pub trait FunctionLibrary: Send + Sync {
    /// Finds or compiles a function.
    fn get(&self, callee: &Callee) -> Result<Arc<Function>>;

    /// As [`FunctionLibrary::get`], for an object that keeps its own state.
    fn get_own(&self, callee: &Callee) -> Result<Arc<Function>>;

    /// A library of the same functions in which nothing is compiled yet: what it compiles has
    /// state of its own.
    fn apart(&self) -> Arc<dyn FunctionLibrary>;

    /// The definitions so far.
    fn definitions(&self) -> Arc<Functions>;

    /// A whole graph (results as `_Retval`, functions of its own) as a function without
    /// arguments.
    fn graph(&self, graph: &Graph, device: &Arc<Device>) -> Result<FunctionHandle>;

    /// How functions that run as steps of their own reach other tasks.
    fn remote(&self) -> Option<&Arc<dyn RemoteSource>>;
}

impl Function {
    /// Refuses arguments of the wrong number or type, in TensorFlow's words.
    fn check(&self, args: &[Tensor]) -> Result<()> {
        if args.len() != self.arg_types.len() {
            return Err(Status::invalid_argument(format!(
                "Expects {} arguments, but {} is provided",
                self.arg_types.len(),
                args.len()
            )));
        }
        for (i, (arg, wanted)) in args.iter().zip(&self.arg_types).enumerate() {
            if arg.dtype() != *wanted {
                return Err(Status::invalid_argument(format!(
                    "Expects arg[{i}] to be {wanted} but {} is provided",
                    arg.dtype()
                )));
            }
        }
        Ok(())
    }
}

/// What a node calls: a function's name and the attributes to instantiate it with.
#[derive(Clone)]
pub struct Callee(Arc<Named>);

struct Named {
    name: String,
    attrs: Attrs,
    key: Arc<str>,
    site: Option<Arc<str>>,
}

impl Callee {
    /// What a `func` attribute says. State inside the function is shared by all who call it so.
    pub fn new(function: &FunctionRef) -> Callee {
        Callee::make(function, None)
    }

    /// As [`Callee::new`], with state of its own for the calling node at `site`.
    pub(crate) fn at(function: &FunctionRef, site: String) -> Callee {
        Callee::make(function, Some(site.into()))
    }

    fn make(function: &FunctionRef, site: Option<Arc<str>>) -> Callee {
        Callee(Arc::new(Named {
            name: function.name.clone(),
            attrs: function.attrs.clone(),
            key: key_of(&function.name, &function.attrs).into(),
            site,
        }))
    }

    /// The function's name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// The attributes to instantiate it with.
    pub fn attrs(&self) -> &Attrs {
        &self.0.attrs
    }

    /// A text that differs for instantiations that differ.
    pub fn key(&self) -> &Arc<str> {
        &self.0.key
    }

    /// The place that calls it, if state inside the function belongs to that place.
    pub fn site(&self) -> Option<&Arc<str>> {
        self.0.site.as_ref()
    }

    /// The function for calls outside any step; `captured` follow the arguments of each call.
    pub fn handle(&self, env: &StepEnv, captured: Vec<Tensor>) -> Result<FunctionHandle> {
        let library = library_of(env)?;
        Ok(FunctionHandle {
            function: library.get_own(self)?,
            device: env.device.clone(),
            library: library.clone(),
            captured: captured.into(),
        })
    }

    /// As [`Callee::handle`], out of a library of one's choice: all handles out of it share the
    /// function's state.
    pub fn handle_in(
        &self,
        library: &Arc<dyn FunctionLibrary>,
        device: &Arc<Device>,
        captured: Arc<[Tensor]>,
    ) -> Result<FunctionHandle> {
        Ok(FunctionHandle {
            function: library.get(self)?,
            device: device.clone(),
            library: library.clone(),
            captured,
        })
    }
}

fn library_of(env: &StepEnv) -> Result<&Arc<dyn FunctionLibrary>> {
    env.functions
        .as_ref()
        .ok_or_else(|| Status::internal("No function library is provided."))
}

/// Calls functions from inside a step. One caller may make any number of calls.
pub struct Caller {
    env: Arc<StepEnv>,
    alone: bool,
    _link: Link,
}

impl Caller {
    pub(crate) fn new(op: &AsyncOp, alone: bool) -> Result<Arc<Caller>> {
        let parent = op.env();
        Caller::on(op, alone, &parent.device, parent.functions.as_ref())
    }

    /// Calls functions of `functions` on `device`.
    pub(crate) fn on(
        op: &AsyncOp,
        alone: bool,
        device: &Arc<Device>,
        functions: Option<&Arc<dyn FunctionLibrary>>,
    ) -> Result<Arc<Caller>> {
        let parent = op.env();
        if parent.depth >= MAX_DEPTH {
            return Err(Status::resource_exhausted(format!(
                "functions call each other more than {MAX_DEPTH} deep; a function that calls itself must end"
            )));
        }
        let (cancellation, link) = Link::below(&parent.cancellation);
        let env = StepEnv {
            step_id: parent.step_id,
            device: device.clone(),
            step_resources: parent.step_resources.clone(),
            cancellation,
            rendezvous: Arc::default(),
            remote: parent.remote.clone(),
            trace: parent.trace.clone(),
            depth: parent.depth + 1,
            functions: functions.cloned(),
            writer: parent.writer.clone(),
            session: parent.session.clone(),
            account: Payer::account(&**parent).clone().into(),
            others: Vec::new(),
            siblings: parent.siblings.clone(),
        };
        Ok(Arc::new(Caller {
            env: Arc::new(env),
            alone,
            _link: link,
        }))
    }

    /// The environment of the calls: its cancellation is that of the step, or a call's failure.
    pub fn env(&self) -> &Arc<StepEnv> {
        &self.env
    }

    /// The function itself, compiled if this is its first use.
    pub fn function(&self, callee: &Callee) -> Result<Arc<Function>> {
        library_of(&self.env)?.get(callee)
    }

    /// Runs a function and calls `done` with its results, perhaps before this returns.
    pub fn call(
        self: &Arc<Self>,
        callee: &Callee,
        args: Vec<Tensor>,
        done: impl FnOnce(Result<Vec<Tensor>>) + Send + 'static,
    ) {
        let pace = match self.alone {
            true => Pace::Idle,
            false => Pace::Busy,
        };
        self.run(callee, args, pace, done);
    }

    /// As [`Caller::call`], for a caller that has an executor thread for itself.
    pub fn call_here(
        self: &Arc<Self>,
        callee: &Callee,
        args: Vec<Tensor>,
        done: impl FnOnce(Result<Vec<Tensor>>) + Send + 'static,
    ) {
        self.run(callee, args, Pace::Executor, done);
    }

    fn run(
        self: &Arc<Self>,
        callee: &Callee,
        args: Vec<Tensor>,
        pace: Pace,
        done: impl FnOnce(Result<Vec<Tensor>>) + Send + 'static,
    ) {
        let function = match self.function(callee) {
            Ok(function) => function,
            Err(e) => return done(Err(e)),
        };
        if let Err(e) = function.check(&args) {
            return done(Err(e));
        }
        let (body, env) = (function.body.clone(), self.env.clone());
        // The caller lives until its call is over: dropping it would cut the cancellation off.
        let caller = self.clone();
        let done = move |outcome| {
            let device = caller.env.device.clone();
            drop(caller);
            nested(&device, move || done(outcome));
        };
        nested(&self.env.device, move || {
            body.start(pace, env, args, Box::new(done));
        });
    }
}

/// Runs `job` here unless too many calls are on this thread's stack already. Neither the way
/// into functions nor the way out of them may grow a stack without bound.
fn nested(device: &Device, job: impl FnOnce() + Send + 'static) {
    thread_local!(static STACKED: Cell<u32> = const { Cell::new(0) });
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            STACKED.set(STACKED.get() - 1);
        }
    }
    if STACKED.get() >= MAX_STACKED {
        return device.spawn(job);
    }
    STACKED.set(STACKED.get() + 1);
    let _leave = Leave;
    job();
}

/// The kernel of a node whose op is a function: its attributes are those of the call.
pub fn call_by_name(node: &Node) -> Built {
    let mut function = FunctionRef {
        name: node.op_name().to_owned(),
        attrs: Attrs::default(),
    };
    for declared in &node.op.attrs {
        if let Some(value) = node.attrs.find(&declared.name) {
            function.attrs.set(declared.name.clone(), value.clone());
        }
    }
    let callee = Callee::new(&function);
    Built::Async(Arc::new(move |op: AsyncOp| call_op(op, &callee, 0)))
}

/// Ends an op with what `callee` makes of its inputs from `first` on.
pub fn call_op(mut op: AsyncOp, callee: &Callee, first: usize) {
    let args = (first..op.inputs.len())
        .map(|i| op.take(i))
        .collect::<Result<Vec<_>>>();
    match args.and_then(|args| Ok((args, op.caller()?))) {
        Ok((args, caller)) => caller.call(callee, args, move |outcome| {
            let outcome = outcome.and_then(|outputs| checked_outputs(&op, outputs));
            op.finish(outcome);
        }),
        Err(e) => op.finish(Err(e)),
    }
}

/// Refuses results that are not what the calling node declares.
pub fn checked_outputs(op: &AsyncOp, outputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
    let wanted = &op.info().node.output_types;
    if outputs.len() != wanted.len() {
        return Err(Status::internal(format!(
            "Expect to produce {} tensors, but only get {}",
            wanted.len(),
            outputs.len()
        )));
    }
    for (i, (output, (wanted, _))) in outputs.iter().zip(wanted).enumerate() {
        if output.dtype() != *wanted {
            return Err(Status::internal(format!(
                "Expect {i}-th output is of type {wanted} but get {}",
                output.dtype()
            )));
        }
    }
    Ok(outputs)
}

/// A function that can be called at any time, with inputs it has captured.
#[derive(Clone)]
pub struct FunctionHandle {
    library: Arc<dyn FunctionLibrary>,
    function: Arc<Function>,
    device: Arc<Device>,
    captured: Arc<[Tensor]>,
}

impl FunctionHandle {
    /// A function of `library` on `device`; `captured` follow the arguments of each call.
    pub fn new(
        function: Arc<Function>,
        library: Arc<dyn FunctionLibrary>,
        device: Arc<Device>,
        captured: Arc<[Tensor]>,
    ) -> FunctionHandle {
        FunctionHandle {
            library,
            function,
            device,
            captured,
        }
    }

    /// The function's name.
    pub fn name(&self) -> &str {
        &self.function.name
    }

    /// Types of all arguments, the captured ones included.
    pub fn arg_types(&self) -> &[DType] {
        &self.function.arg_types
    }

    /// Types of the results.
    pub fn ret_types(&self) -> &[DType] {
        &self.function.ret_types
    }

    /// Whether the body has ops with state or side effects.
    pub fn is_stateful(&self) -> bool {
        self.function.stateful
    }

    /// The inputs it has captured.
    pub fn captured(&self) -> &Arc<[Tensor]> {
        &self.captured
    }

    /// The library, for what a result of this function may call in turn.
    pub fn library(&self) -> &Arc<dyn FunctionLibrary> {
        &self.library
    }

    /// Runs the function as a step of its own, on this thread as far as it goes, and calls
    /// `done` with its results. It ends when `cancellation` fires; its failure does not fire it.
    pub fn call(
        &self,
        args: Vec<Tensor>,
        cancellation: &Arc<Cancellation>,
        done: impl FnOnce(Result<Vec<Tensor>>) + Send + 'static,
    ) {
        let mut args = args;
        args.extend(self.captured.iter().cloned());
        if let Err(e) = self.function.check(&args) {
            return done(Err(e));
        }
        let (own, link) = Link::below(cancellation);
        let mut env = StepEnv::new(0, self.device.clone(), own);
        env.functions = Some(self.library.clone());
        env.remote = self.library.remote().cloned();
        let body = self.function.body.clone();
        let done = Box::new(move |outcome| {
            drop(link);
            done(outcome);
        });
        body.start(Pace::Executor, Arc::new(env), args, done);
    }
}

/// Ties a cancellation below another until it is dropped.
struct Link(Option<(Arc<Cancellation>, CancelToken)>);

impl Link {
    /// A new cancellation that fires when `parent` does.
    fn below(parent: &Arc<Cancellation>) -> (Arc<Cancellation>, Link) {
        let child = Cancellation::new();
        let told = child.clone();
        match parent.register(move |reason| told.cancel(reason.clone())) {
            Ok(token) => (child, Link(Some((parent.clone(), token)))),
            Err(reason) => {
                child.cancel(reason);
                (child, Link(None))
            }
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some((parent, token)) = self.0.take() {
            parent.deregister(token);
        }
    }
}

/// A text that differs for instantiations that differ.
fn key_of(name: &str, attrs: &Attrs) -> String {
    let mut key = name.to_owned();
    for (name, value) in &attrs.0 {
        let _ = write!(key, "\u{1}{name}=");
        write_value(&mut key, value);
    }
    key
}

fn write_value(key: &mut String, value: &AttrValue) {
    let mut function = |f: &FunctionRef| {
        let _ = write!(key, "{}[", key_of(&f.name, &f.attrs));
        key.push(']');
    };
    match value {
        AttrValue::Func(f) => function(f),
        AttrValue::List(AttrList::Func(list)) => list.iter().for_each(function),
        AttrValue::Tensor(t) => write_tensor(key, t),
        AttrValue::List(AttrList::Tensor(list)) => list.iter().for_each(|t| write_tensor(key, t)),
        AttrValue::Float(f) => {
            let _ = write!(key, "{:x}", f.to_bits());
        }
        other => {
            let _ = write!(key, "{other:?}");
        }
    }
}

fn write_tensor(key: &mut String, t: &Tensor) {
    let _ = write!(key, "{}{}", t.dtype(), t.shape());
    match (t.buffer(), t.as_strings()) {
        (Some(buffer), _) => {
            let _ = write!(key, "{:02x?}", buffer.as_bytes());
        }
        (None, Ok(strings)) => {
            let _ = write!(key, "{strings:?}");
        }
        _ => {
            let _ = write!(key, "{t:?}");
        }
    }
}
