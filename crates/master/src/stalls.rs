//! Calls that do not end: the log says what they wait for and which tasks of the cluster do not
//! answer. Whatever a client can wait for is watched: the tasks of a session that is being opened, the graphs of a step
//! that are being built, the step itself, a value of a partial run. In synchronous training a worker that is lost leaves all others waiting for its
//! gradient, with nothing broken between them and the ps; only this tells why.
//!
//! A step costs an entry in a table; a task that looks at the table now and then does the rest,
//! and ends when there is nothing to look at.

use crate::plans::Registered;
use crate::session::Session;
use downpour_net::{Peers, TaskProbe};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tracing::warn;

/// The steps under way.
pub(crate) struct Stalls(Arc<Inner>);

struct Inner {
    peers: Arc<Peers>,
    /// How long a step may take before it is reported.
    progress: Duration,
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    steps: BTreeMap<u64, Entry>,
    /// Whether someone looks at it.
    awake: bool,
}

struct Entry {
    doing: Doing,
    /// How often it was looked at.
    looks: u32,
}

/// What a client waits for.
#[derive(Clone)]
pub(crate) enum Doing {
    /// The tasks of a new session, by its handle.
    Opening(String),
    /// The graphs of a step, on their tasks.
    Preparing(Arc<Session>),
    Running(Arc<Session>, Arc<Registered>),
    /// A value of a partial run.
    Fetching(Arc<Session>),
}

impl Doing {
    /// What has not happened `for` how long.
    fn told(&self) -> (String, String) {
        match self {
            Doing::Opening(handle) => (
                format!("session {handle} has not opened"),
                "not every task has taken it".to_owned(),
            ),
            Doing::Preparing(session) => (
                format!("a step of session {} has not begun", session.handle),
                format!(
                    "its graphs are being built on {}",
                    listed(&session.tasks.names())
                ),
            ),
            Doing::Running(session, plan) => (
                format!("a step of session {} has not ended", session.handle),
                waits(session, plan),
            ),
            Doing::Fetching(session) => (
                format!(
                    "a call of a partial run of session {} has not ended",
                    session.handle
                ),
                format!("it may run on {}", listed(&session.tasks.names())),
            ),
        }
    }
}

/// A step in the table, until it is dropped.
pub(crate) struct Watched {
    inner: Arc<Inner>,
    number: u64,
}

impl Watched {
    /// The graphs are there: the step runs.
    pub(crate) fn runs(&self, session: &Arc<Session>, plan: &Arc<Registered>) {
        if let Some(entry) = self.inner.table.lock().steps.get_mut(&self.number) {
            entry.doing = Doing::Running(session.clone(), plan.clone());
        }
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let gone = self.inner.table.lock().steps.remove(&self.number);
        // Its session may go with it: not under the lock.
        drop(gone);
    }
}

/// Looks before the first report; reports come after twice as many each.
const LOOKS: u32 = 4;

/// How long a task may take to show that it is there.
const ANSWER: Duration = Duration::from_secs(2);

/// Most names in one line.
const MAX_SHOWN: usize = 5;

impl Stalls {
    pub(crate) fn new(peers: Arc<Peers>, progress: Duration) -> Stalls {
        Stalls(Arc::new(Inner {
            peers,
            progress,
            table: Mutex::default(),
        }))
    }

    /// Watches a call until the value is dropped.
    pub(crate) fn watch(&self, doing: Doing) -> Watched {
        let entry = Entry { doing, looks: 0 };
        let mut table = self.0.table.lock();
        let number = table.next;
        table.next += 1;
        table.steps.insert(number, entry);
        let sleeps = !std::mem::replace(&mut table.awake, true);
        drop(table);
        if sleeps {
            let inner = self.0.clone();
            self.0.peers.spawn(async move { inner.look_on().await });
        }
        Watched {
            inner: self.0.clone(),
            number,
        }
    }
}

impl Inner {
    async fn look_on(self: Arc<Self>) {
        loop {
            tokio::time::sleep(self.progress / LOOKS).await;
            let mut late = Vec::new();
            {
                let mut table = self.table.lock();
                if table.steps.is_empty() {
                    table.awake = false;
                    return;
                }
                for entry in table.steps.values_mut() {
                    entry.looks += 1;
                    if entry.looks >= LOOKS && entry.looks.is_power_of_two() {
                        late.push((entry.doing.clone(), entry.looks));
                    }
                }
            }
            // One report tells of a cluster in trouble; a hundred steps have the same trouble.
            late.truncate(MAX_SHOWN);
            if late.is_empty() {
                continue;
            }
            let away = self.away().await;
            for (doing, looks) in late {
                let time = self.progress / LOOKS * looks;
                let (what, waits) = doing.told();
                if away.is_empty() {
                    warn!("{what} for {time:?}; {waits}; every task answers");
                } else {
                    warn!("{what} for {time:?}; {waits}; no answer from {away}");
                }
            }
        }
    }

    /// The tasks of the cluster that do not answer, with their addresses.
    async fn away(&self) -> String {
        let mut asked = tokio::task::JoinSet::new();
        for name in self.peers.others() {
            let (peers, name) = (self.peers.clone(), name.to_owned());
            asked.spawn(async move {
                let found = peers.reach(&name, ANSWER).await;
                (found == TaskProbe::Away).then(|| {
                    let address = peers.address(&name).unwrap_or("?");
                    format!("{name} at {address}")
                })
            });
        }
        let mut away: Vec<String> = asked.join_all().await.into_iter().flatten().collect();
        away.sort();
        listed(&away)
    }
}

fn listed(names: &[String]) -> String {
    match names.len().checked_sub(MAX_SHOWN) {
        Some(more) if more > 0 => format!("{} and {more} more", names[..MAX_SHOWN].join(", ")),
        _ => names.join(", "),
    }
}

/// What a step may be waiting for: where its parts are, and which of their ops wait for others.
fn waits(session: &Session, plan: &Registered) -> String {
    let mut waiting = Vec::new();
    let mut tasks = Vec::new();
    for part in &plan.parts {
        let task = session.tasks.name(part.task);
        tasks.push(task.to_owned());
        for (_, node) in part.graph.nodes() {
            if may_wait(&node.op.name) {
                waiting.push(format!("{} ({}) on {task}", node.name, node.op.name));
            }
        }
    }
    match waiting.is_empty() {
        true => format!("it runs on {}", listed(&tasks)),
        false => format!("it may be waiting in {}", listed(&waiting)),
    }
}

/// Ops that wait for what another step does.
fn may_wait(op: &str) -> bool {
    let parts = [
        "QueueDequeue",
        "QueueEnqueue",
        "TakeGradient",
        "BarrierTakeMany",
        "Unstage",
        "MutexLock",
    ];
    parts.iter().any(|p| op.contains(p))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_that_wait_for_others_are_known() {
        for (op, want) in [
            ("QueueDequeueV2", true),
            ("QueueDequeueManyV2", true),
            ("AccumulatorTakeGradient", true),
            ("ResourceAccumulatorTakeGradient", true),
            ("MatMul", false),
            ("_Recv", false),
        ] {
            assert_eq!(may_wait(op), want, "{op}");
        }
    }

    #[test]
    fn long_lists_are_cut() {
        let names: Vec<String> = (0..7).map(|i| i.to_string()).collect();
        assert_eq!(listed(&names), "0, 1, 2, 3, 4 and 2 more");
        assert_eq!(listed(&names[..5]), "0, 1, 2, 3, 4");
    }
}
