//! The door of a task: which calls may come in, which are under way, and how they end when the task
//! stops. Every call of every service passes here, so a service need not know that the end is near.
//!
//! ```text
//! open ──drain──► draining: what would begin something new is refused, steps under way go on
//!                    └──cut──► cut: whatever is still under way is answered UNAVAILABLE and dropped
//! ```

use crate::serve::control::Reporter;
use downpour_wire::control::TaskReport;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::Notify;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};

/// How long nothing may be under way before a draining task counts as idle: the peers of a step
/// that has just ended here may yet come for its values.
const QUIET: Duration = Duration::from_millis(100);

/// What a call is to a task that wants to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A step. Not begun any more; waited for.
    Step,
    /// A part of a step that runs elsewhere too. Let in and waited for.
    Share,
    /// The beginning of something: a session, a graph. Neither begun nor waited for.
    Begin,
    /// Anything else: questions and farewells.
    Other,
}

impl Kind {
    /// By the path of a call: `/package.Service/Method`.
    fn of(path: &str) -> Kind {
        let method = path.rsplit('/').next().unwrap_or_default();
        match method {
            "RunStep" | "RunCallable" | "RunGraph" => Kind::Step,
            "RecvTensor" | "CleanupGraph" | "MarkRecvFinished" => Kind::Share,
            "CreateSession"
            | "ExtendSession"
            | "PartialRunSetup"
            | "MakeCallable"
            | "CreateWorkerSession"
            | "RegisterGraph" => Kind::Begin,
            _ => Kind::Other,
        }
    }
}

#[derive(Clone, Debug)]
enum Phase {
    Open,
    Draining,
    Cut,
}

/// Records what the next steps of the task do: as JSON, or why it cannot.
pub type StepRecorder = Arc<dyn Fn() -> Recording + Send + Sync>;

/// A recording under way.
pub type Recording = Pin<Box<dyn Future<Output = Result<String, String>> + Send>>;

/// As [`Reporter`] holds it.
type ReportFn = dyn Fn() -> TaskReport + Send + Sync;

/// The door of one task.
pub struct Admission {
    /// `/job:J/replica:0/task:N`, for what is said to those who are refused.
    name: String,
    state: Mutex<State>,
    left: Notify,
    /// What `/metrics` shows, and whether to other machines. What reports knows this admission itself.
    metrics: OnceLock<(Weak<ReportFn>, bool)>,
    /// What `/steps` shows, and whether to other machines.
    steps: OnceLock<(StepRecorder, bool)>,
}

struct State {
    phase: Phase,
    /// Counts calls; also their ids.
    arrivals: u64,
    calls: HashMap<u64, Call>,
}

struct Call {
    kind: Kind,
    waker: Option<Waker>,
}

/// What is said to other machines.
const FOR_THE_OWN_MACHINE: &str =
    "figures are shown to the task's own machine; --allow-remote-inspect shows them to others";

/// Whether a question comes from this machine.
fn is_near(from: Option<IpAddr>) -> bool {
    from.is_some_and(|ip| ip.to_canonical().is_loopback())
}

impl Admission {
    /// Lets this machine, or all, read the task's figures at `/metrics`. The first call counts.
    pub fn show_metrics(&self, reporter: &Reporter, to_all: bool) {
        let _ = self.metrics.set((Arc::downgrade(reporter), to_all));
    }

    /// What `/metrics` shows to one at this address; why nothing.
    pub(crate) fn metrics(&self, from: Option<IpAddr>) -> Result<String, &'static str> {
        let known = self.metrics.get();
        let known = known.and_then(|(reporter, to_all)| Some((reporter.upgrade()?, to_all)));
        let Some((reporter, to_all)) = known else {
            return Err("this task shows no figures");
        };
        match *to_all || is_near(from) {
            true => Ok(crate::serve::metrics::page(&reporter())),
            false => Err(FOR_THE_OWN_MACHINE),
        }
    }

    /// Lets this machine, or all, have steps recorded at `/steps`. The first call counts.
    pub fn show_steps(&self, recorder: StepRecorder, to_all: bool) {
        let _ = self.steps.set((recorder, to_all));
    }

    /// Begins to record steps for one at this address; why not.
    pub(crate) fn record(&self, from: Option<IpAddr>) -> Result<Recording, &'static str> {
        match self.steps.get() {
            Some((recorder, to_all)) if *to_all || is_near(from) => Ok(recorder()),
            Some(_) => Err(FOR_THE_OWN_MACHINE),
            None => Err("this task records no steps"),
        }
    }

    /// An open door.
    pub fn new(name: &str) -> Arc<Admission> {
        Arc::new(Admission {
            name: name.to_owned(),
            state: Mutex::new(State {
                phase: Phase::Open,
                arrivals: 0,
                calls: HashMap::new(),
            }),
            left: Notify::new(),
            metrics: OnceLock::new(),
            steps: OnceLock::new(),
        })
    }

    /// Whether the task is about to end.
    pub fn is_draining(&self) -> bool {
        !matches!(self.state.lock().phase, Phase::Open)
    }

    /// Whether new work is let in.
    pub fn is_open(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Open)
    }

    /// Steps under way.
    pub fn steps(&self) -> usize {
        self.count(|kind| kind == Kind::Step)
    }

    /// Steps under way and sessions and graphs that are being made.
    pub fn busy(&self) -> usize {
        self.count(|kind| matches!(kind, Kind::Step | Kind::Begin))
    }

    fn count(&self, which: impl Fn(Kind) -> bool) -> usize {
        let state = self.state.lock();
        state.calls.values().filter(|c| which(c.kind)).count()
    }

    /// Refuses whatever would begin something new from now on.
    pub fn drain(&self) {
        self.enter(Phase::Draining, |kind| kind == Kind::Begin);
    }

    /// Answers every call that is still under way.
    pub fn cut(&self) {
        self.enter(Phase::Cut, |_| true);
    }

    fn enter(&self, phase: Phase, wakes: impl Fn(Kind) -> bool) {
        let wakers: Vec<Waker> = {
            let mut state = self.state.lock();
            state.phase = phase;
            let calls = state.calls.values_mut();
            calls
                .filter(|c| wakes(c.kind))
                .filter_map(|c| c.waker.take())
                .collect()
        };
        for waker in wakers {
            waker.wake();
        }
    }

    /// Waits until no call of these kinds is under way.
    async fn gone(&self, which: impl Fn(Kind) -> bool) {
        loop {
            let left = self.left.notified();
            tokio::pin!(left);
            left.as_mut().enable();
            if self.count(&which) == 0 {
                return;
            }
            left.await;
        }
    }

    /// Waits until every call is answered.
    pub async fn empty(&self) {
        self.gone(|_| true).await;
    }

    /// Waits until no step has been under way for a moment.
    pub async fn idle(&self) {
        loop {
            self.gone(|kind| matches!(kind, Kind::Step | Kind::Share))
                .await;
            let before = self.state.lock().arrivals;
            tokio::time::sleep(QUIET).await;
            if self.state.lock().arrivals == before {
                return;
            }
        }
    }

    fn admit(self: &Arc<Self>, kind: Kind) -> Result<Pass, Status> {
        let mut state = self.state.lock();
        let refused = match state.phase {
            Phase::Open => false,
            Phase::Draining => matches!(kind, Kind::Step | Kind::Begin),
            Phase::Cut => true,
        };
        if refused {
            return Err(self.refusal());
        }
        // Others do not count: being asked for its status does not keep a task.
        if kind != Kind::Other {
            state.arrivals += 1;
        }
        let id = state.arrivals;
        let id = match kind {
            Kind::Other => None,
            _ => {
                state.calls.insert(id, Call { kind, waker: None });
                Some(id)
            }
        };
        let admission = self.clone();
        Ok(Pass { admission, id })
    }

    /// Lets a step in that came over a lane.
    pub(crate) fn admit_step(self: &Arc<Self>) -> Result<Pass, Status> {
        self.admit(Kind::Step)
    }

    fn refusal(&self) -> Status {
        Status::unavailable(format!("{} is shutting down", self.name))
    }
}

/// A call that was let in, until it is over.
pub(crate) struct Pass {
    admission: Arc<Admission>,
    id: Option<u64>,
}

impl Pass {
    /// What to answer if the call may not go on; else `waker` is woken when that changes.
    pub(crate) fn check(&self, waker: &Waker) -> Option<Status> {
        let mut state = self.admission.state.lock();
        let phase = state.phase.clone();
        let call = state.calls.get_mut(&self.id?)?;
        match phase {
            Phase::Draining if call.kind == Kind::Begin => Some(self.admission.refusal()),
            Phase::Cut => Some(Status::unavailable(format!(
                "{} is shutting down and did not wait longer for what was under way",
                self.admission.name
            ))),
            _ => {
                call.waker = Some(waker.clone());
                None
            }
        }
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.admission.state.lock().calls.remove(&id);
            self.admission.left.notify_waiters();
        }
    }
}

impl Admission {
    /// Does the work of a call of `path`, if and as long as it may.
    pub(crate) async fn pass<T>(
        self: &Arc<Self>,
        path: &str,
        work: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, Status> {
        let pass = self.admit(Kind::of(path))?;
        tokio::pin!(work);
        std::future::poll_fn(|context| match work.as_mut().poll(context) {
            Poll::Ready(outcome) => Poll::Ready(outcome),
            Poll::Pending => pass
                .check(context.waker())
                .map_or(Poll::Pending, |refusal| Poll::Ready(Err(refusal))),
        })
        .await
    }
}

/// Lets calls of `inner` through a admission.
#[derive(Clone)]
pub(crate) struct Admitted<S> {
    inner: S,
    admission: Arc<Admission>,
}

impl<S> Admitted<S> {
    pub(crate) fn new(inner: S, admission: Arc<Admission>) -> Self {
        Admitted { inner, admission }
    }
}

impl<S> Service<Request<Body>> for Admitted<S>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>,
    S::Future: Unpin,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Passage<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match self.admission.admit(Kind::of(request.uri().path())) {
            Ok(pass) => Passage::Open(self.inner.call(request), pass),
            Err(status) => Passage::Closed(Some(status)),
        }
    }
}

/// A call on its way through.
pub(crate) enum Passage<F> {
    Open(F, Pass),
    Closed(Option<Status>),
}

impl<F> Future for Passage<F>
where
    F: Future<Output = Result<Response<Body>, Infallible>> + Unpin,
{
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let refusal = match &mut *self {
            Passage::Closed(status) => status.take(),
            Passage::Open(call, pass) => {
                if let Poll::Ready(answer) = Pin::new(call).poll(context) {
                    return Poll::Ready(answer);
                }
                pass.check(context.waker())
            }
        };
        match refusal {
            // Dropping the call ends what it does.
            Some(status) => {
                *self = Passage::Closed(None);
                Poll::Ready(Ok(status.into_http()))
            }
            None => Poll::Pending,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::sync::oneshot;

    /// Answers when told to.
    #[derive(Clone, Default)]
    struct Slow(Arc<Mutex<Vec<oneshot::Sender<()>>>>);

    type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    impl Service<Request<Body>> for Slow {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = Answer;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, _: Request<Body>) -> Answer {
            let (tell, told) = oneshot::channel();
            self.0.lock().push(tell);
            Box::pin(async move {
                let _ = told.await;
                Ok(Status::ok("").into_http())
            })
        }
    }

    struct Test {
        admission: Arc<Admission>,
        slow: Slow,
    }

    impl Test {
        fn new() -> Test {
            let admission = Admission::new("/job:ps/replica:0/task:0");
            let slow = Slow::default();
            Test { admission, slow }
        }

        fn call(&self, method: &str) -> tokio::task::JoinHandle<(tonic::Code, String)> {
            let mut service = Admitted::new(self.slow.clone(), self.admission.clone());
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = format!("/tensorflow.S/{method}").parse().unwrap();
            let call = service.call(request);
            tokio::spawn(async move {
                let answer = call.await.unwrap();
                let status = Status::from_header_map(answer.headers()).unwrap();
                (status.code(), status.message().to_owned())
            })
        }

        fn answer_all(&self) {
            for tell in self.slow.0.lock().drain(..) {
                let _ = tell.send(());
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn draining_lets_steps_end_and_begins_none() {
        let test = Test::new();
        let step = test.call("RunStep");
        let session = test.call("CreateSession");
        tokio::task::yield_now().await;
        assert_eq!((test.admission.steps(), test.admission.busy()), (1, 2));
        test.admission.drain();
        let shutting = "/job:ps/replica:0/task:0 is shutting down";
        // A session that waits for its tasks is told at once, as are those that come now.
        for call in [session, test.call("RunGraph"), test.call("CreateSession")] {
            let (code, text) = call.await.unwrap();
            assert_eq!((code, text.as_str()), (tonic::Code::Unavailable, shutting));
        }
        let value = test.call("RecvTensor");
        let idle = test.admission.idle();
        tokio::pin!(idle);
        assert!(tokio::time::timeout(QUIET * 5, &mut idle).await.is_err());
        test.answer_all();
        assert_eq!(step.await.unwrap().0, tonic::Code::Ok);
        assert_eq!(value.await.unwrap().0, tonic::Code::Ok);
        idle.await;
        assert_eq!(test.admission.busy(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_cut_answers_whatever_is_left() {
        let test = Test::new();
        let calls = ["RunStep", "RecvTensor"].map(|m| test.call(m));
        tokio::task::yield_now().await;
        test.admission.drain();
        test.admission.cut();
        for call in calls {
            let (code, text) = call.await.unwrap();
            assert_eq!(code, tonic::Code::Unavailable);
            assert!(text.ends_with("did not wait longer for what was under way"));
        }
        assert_eq!(
            test.call("CloseSession").await.unwrap().0,
            tonic::Code::Unavailable
        );
        test.admission.idle().await;
    }

    #[tokio::test(start_paused = true)]
    async fn being_asked_keeps_no_task() {
        let test = Test::new();
        let question = test.call("GetStatus");
        test.admission.drain();
        test.admission.idle().await;
        test.answer_all();
        assert_eq!(question.await.unwrap().0, tonic::Code::Ok);
    }
}
