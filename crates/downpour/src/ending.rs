//! How a task ends: who may end it, and what happens then. The rule for being done is the worker's
//! (`downpour_worker::Ending`), the door is `downpour_net::Admission`; here they meet the clock.

use downpour_master::Master;
use downpour_net::{Admission, Limits, Peers, RemoteMaster, task_name};
use downpour_worker::{Ending, Patience, Verdict, Worker};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::{info, warn};

/// How a task ends.
///
/// ```
/// use downpour::{EndConfig, Server, ServerConfig};
/// use std::time::{Duration, Instant};
/// // Steps under way get five seconds; here there are none, so that nothing is waited for.
/// let ending = EndConfig { drain: Duration::from_secs(5), ..EndConfig::default() };
/// assert!(!ending.allow_remote_stop);
/// let server = Server::start(ServerConfig { ending, ..ServerConfig::local() })?;
/// let begin = Instant::now();
/// server.stop()?;
/// assert!(begin.elapsed() < Duration::from_secs(5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct EndConfig {
    /// How long steps under way may take when the task stops. Below the half minute that
    /// Kubernetes gives a process.
    pub drain: Duration,
    /// Ends by itself when these are done.
    pub when_done: Option<WhenDone>,
    /// Whether other machines may stop it.
    pub allow_remote_stop: bool,
}

impl Default for EndConfig {
    fn default() -> EndConfig {
        EndConfig {
            drain: Duration::from_secs(20),
            when_done: None,
            allow_remote_stop: false,
        }
    }
}

/// Whose end is the task's end.
///
/// ```
/// use downpour::{Graph, Server, ServerConfig, Session, WhenDone};
/// let mut config = ServerConfig::local();
/// config.ending.when_done = Some(WhenDone {
///     wait_for: vec![("localhost".to_owned(), 0)],
///     grace: std::time::Duration::from_millis(100),
/// });
/// let server = Server::start(config)?;
/// let g = Graph::new();
/// let sum = g.constant(1i32) + 1;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.fetch(&sum)?.scalar_value::<i32>()?, 2);
/// session.close()?;
/// // Nobody stops the server: it ends because its only user is done.
/// server.join()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct WhenDone {
    /// Tasks whose masters must have been here and be done: job and index.
    pub wait_for: Vec<(String, u32)>,
    /// How long they must have been done.
    pub grace: Duration,
}

impl WhenDone {
    /// How long one that is gone without a word counts as there.
    pub(crate) fn lost(&self) -> Duration {
        self.grace * 3
    }
}

/// How long they must have been done if nothing else is said: longer than the 30 s after which
/// TensorFlow's session manager looks again whether the chief has initialised the variables.
pub const DONE_GRACE: Duration = Duration::from_secs(40);

/// Why a server ended.
///
/// ```
/// use downpour::{EndReason, Server, ServerConfig, stop_task};
/// use std::future::pending;
/// # let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
/// # runtime.block_on(async {
/// let server = Server::bind(ServerConfig::local()).await?;
/// let address = server.address().to_string();
/// let serving = tokio::spawn(server.serve(pending()));
/// stop_task(&address, None).await?;
/// assert_eq!(serving.await??, EndReason::Asked);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndReason {
    /// Whoever started it said so.
    Stopped,
    /// The control service was asked to stop it.
    Asked,
    /// Those it waits for are done.
    Done,
}

/// How long last answers and farewells to other tasks may take.
const FAREWELLS: Duration = Duration::from_secs(1);

/// Resolves when those the task waits for are done.
pub(crate) async fn done(when: &WhenDone, worker: &Worker, peers: &Peers, admission: &Admission) {
    let patience = Patience {
        grace: when.grace,
        lost: when.lost(),
    };
    let wanted = when.wait_for.iter();
    let wanted = wanted.map(|(job, task)| task_name(job, *task)).collect();
    let mut ending = Ending::new(wanted, patience);
    let pause = (when.grace / 10).clamp(Duration::from_millis(20), Duration::from_secs(2));
    let start = Instant::now();
    let mut masters = Masters::default();
    let mut said = Verdict::Quiet;
    loop {
        tokio::time::sleep(pause).await;
        let here = (worker, peers);
        ask(&mut ending, &mut masters, here, start, patience.lost / 4).await;
        let verdict = ending.look(start.elapsed(), &worker.attendance(), admission.busy() > 0);
        if verdict != said {
            tell(peers.own(), &verdict, worker);
            said = verdict;
        }
        if said == Verdict::Done {
            return;
        }
    }
}

/// Closes sessions whose clients are gone, for as long as it is polled.
pub(crate) async fn end_leases(lease: Duration, master: &Master) {
    // Sessions of clients that have left go sooner than their lease.
    let pause = (lease / 10).clamp(Duration::from_millis(20), Duration::from_secs(2));
    let start = Instant::now();
    loop {
        tokio::time::sleep(pause).await;
        master.end_leases(start.elapsed(), lease);
    }
}

/// The masters that have had sessions here, to ask them about those.
#[derive(Default)]
struct Masters(HashMap<String, Arc<RemoteMaster>>);

impl Masters {
    /// The master of a task of the cluster. Of one outside nothing can be known, of the own task
    /// everything is.
    fn find(&mut self, task: &str, peers: &Peers) -> Option<Arc<RemoteMaster>> {
        if task == peers.own() {
            return None;
        }
        if let Some(known) = self.0.get(task) {
            return Some(known.clone());
        }
        let master = RemoteMaster::new(peers.address(task)?, Limits::default()).ok()?;
        let master = Arc::new(master);
        self.0.insert(task.to_owned(), master.clone());
        Some(master)
    }
}

/// Asks masters that have sessions here whether they know them.
async fn ask(
    ending: &mut Ending,
    masters: &mut Masters,
    (worker, peers): (&Worker, &Peers),
    start: Instant,
    limit: Duration,
) {
    let mut asked = tokio::task::JoinSet::new();
    for (task, handles) in worker.attendance().masters {
        if handles.is_empty() {
            continue;
        }
        let Some(master) = masters.find(&task, peers) else {
            continue;
        };
        asked.spawn(async move {
            let mut answers = Vec::with_capacity(handles.len());
            for handle in handles {
                let is_known = master.has_session(&handle, limit).await;
                answers.push((handle, is_known));
            }
            answers
        });
    }
    while let Some(answers) = asked.join_next().await {
        for (handle, is_known) in answers.unwrap_or_default() {
            ending.answered(start.elapsed(), &handle, is_known);
        }
    }
}

fn tell(own: &str, verdict: &Verdict, worker: &Worker) {
    match verdict {
        Verdict::Unseen(tasks) if !worker.attendance().masters.is_empty() => warn!(
            "{own} exits when all are done, but {} never opened a session here: still waiting",
            tasks.join(", ")
        ),
        Verdict::Unseen(tasks) => info!("{own} waits for {}", tasks.join(", ")),
        Verdict::Busy(tasks) => info!("{own} is used by {}", tasks.join(", ")),
        Verdict::Quiet => info!("{own} is used by nobody"),
        Verdict::Done => info!("{own} is done"),
    }
}

/// Lets steps under way end, at most for `drain`, and answers the rest; then ends the sessions.
/// Another order may shorten the time.
pub(crate) async fn wind_down(
    admission: &Admission,
    master: &Master,
    peers: &Peers,
    drain: Duration,
    orders: &mut watch::Receiver<Option<Duration>>,
) {
    admission.drain();
    let mut deadline = Instant::now() + drain;
    loop {
        tokio::select! {
            () = admission.idle() => break,
            () = tokio::time::sleep_until(deadline) => break,
            Ok(()) = orders.changed() => {
                if let Some(shorter) = *orders.borrow_and_update() {
                    deadline = deadline.min(Instant::now() + shorter);
                }
            }
        }
    }
    admission.cut();
    // Their answers go out before the sessions end, which would answer otherwise.
    let _ = tokio::time::timeout(FAREWELLS, admission.empty()).await;
    master.shut_down();
    peers.farewells(FAREWELLS).await;
}
