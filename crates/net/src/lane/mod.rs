//! Lanes: the connections between tasks that are both ours, beside TensorFlow's protocol. On a lane a
//! value is sent as soon as it exists, the calls of a step are a few bytes, and nothing is copied on the way
//! but by the system.
//!
//! A lane is made when two tasks first have to do with each other: on the task's own port, and between tasks of one
//! host on a Unix socket that the task names there. It carries what both say. [`Lanes`] are those of one
//! task; its worker is the [`LaneHandler`].

mod affinity;
mod driver;
mod handshake;
#[expect(
    clippy::module_inception,
    reason = "one lane of the lanes: the file is named for its type"
)]
mod lane;
#[cfg(test)]
mod lane_tests;
mod pulse;
mod reader;
mod same_host;
mod socket;
mod table;
mod write_batch;
mod writer;

pub use driver::is_waiting_client;
pub(crate) use handshake::{MAGIC, greet};
pub(crate) use lane::Lane;
pub use reader::Taker;
pub use table::StepState;
pub use write_batch::{begin as begin_batch, end as end_batch, flush_batch};

use crate::task::Canceller;
use crate::{Admission, Limits};
use affinity::Affinity;
use downpour_cluster::ClusterSpec;
use downpour_graph::{EdgeId, Result, Status};
use downpour_tensor::Tensor;
use downpour_wire::lane::{Destination, Run};
use driver::Driver;
use parking_lot::Mutex;
use pulse::Verdict;
use socket::Socket;
use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;
use table::{Born, Effect, Effects, Patience, Seen, Table, Why};

/// A value that a peer has announced: whoever wants it calls this.
pub type LaneOffer = Box<dyn FnOnce(Taker) + Send>;

/// Takes the end of a run: its error, or whether the step left nothing behind here.
pub type RunEnded = Box<dyn FnOnce(Result<bool>) + Send>;

/// What peers ask of a task over its lanes.
pub trait LaneHandler: Send + Sync {
    /// Runs a graph; `ended` is called once, from any thread.
    fn run(&self, run: Run, ended: RunEnded) -> Canceller;
    /// A value of a step; `None` is a dead one.
    fn tensor(&self, step_id: u64, key: &str, tensor: Option<Tensor>);
    /// A value of a step that can be had.
    fn offer(&self, peer: &str, step_id: u64, to: &Destination, offer: LaneOffer);
    /// Values of a step that `peer` sent along numbered edges.
    fn edges(&self, peer: &str, step_id: u64, values: Vec<(EdgeId, Option<Tensor>)>);
    /// What a peer was to send for these steps will not come.
    fn lost(&self, peer: &str, steps: &[u64], reason: &Status);
    /// What is known here of a step.
    fn state(&self, step_id: u64) -> StepState;
}

/// The lanes of one task.
pub struct Lanes {
    me: Weak<Lanes>,
    own: String,
    incarnation: u64,
    limits: Limits,
    pub(crate) driver: Driver,
    handler: OnceLock<Weak<dyn LaneHandler>>,
    admission: OnceLock<Arc<Admission>>,
    state: Mutex<State>,
    version: AtomicU64,
    is_closed: AtomicBool,
    /// When peers were last looked after, in nanoseconds of the driver's clock.
    looked: AtomicU64,
    /// Name of the Unix socket, if there is one.
    near: OnceLock<String>,
    /// Long reads from the memory of tasks of the same host.
    reads: same_host::Reads,
    /// Where they are read, on a host that is shared.
    affinity: OnceLock<Affinity>,
    /// Held while connecting: one attempt at a time to each peer.
    connecting: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

struct State {
    /// All lanes that are read.
    all: Vec<Arc<Lane>>,
    table: Table<Arc<Lane>>,
    next: u64,
    has_thread: bool,
}

impl Lanes {
    /// No lanes yet, of the task `own` in this life.
    pub fn new(own: &str, incarnation: u64, limits: Limits) -> io::Result<Arc<Lanes>> {
        let driver = Driver::new()?;
        let limit = nanos(limits.silence);
        let patience = Patience {
            ask: limit / 5,
            give_up: 2 * limit,
        };
        let state = State {
            all: Vec::new(),
            table: Table::new(own, incarnation, patience),
            next: 0,
            has_thread: false,
        };
        Ok(Arc::new_cyclic(|me| Lanes {
            me: me.clone(),
            own: own.to_owned(),
            incarnation,
            limits,
            driver,
            handler: OnceLock::new(),
            admission: OnceLock::new(),
            state: Mutex::new(state),
            version: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            looked: AtomicU64::new(0),
            near: OnceLock::new(),
            reads: same_host::Reads::default(),
            affinity: OnceLock::new(),
            connecting: Mutex::default(),
        }))
    }

    /// Says who does what peers ask for.
    pub fn handled_by(&self, handler: Weak<dyn LaneHandler>) {
        // There is one worker to a task.
        let _ = self.handler.set(handler);
    }

    /// Says which tasks there are, and which this is: those that share a host share its cores so.
    pub fn among(&self, cluster: &ClusterSpec, job: &str, task: u32) {
        if let Some(affinity) = Affinity::of(cluster, job, task) {
            // A task is of one cluster.
            let _ = self.affinity.set(affinity);
        }
    }

    /// Waits for `future` on this thread, which meanwhile does what comes over the lanes.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.driver.block_on(self, future)
    }

    /// Whether there is any lane.
    pub fn is_in_use(&self) -> bool {
        self.version() != 0
    }

    /// The lane to a task, if there is one.
    pub(crate) fn to(&self, peer: &str) -> Option<Arc<Lane>> {
        let lane = self.state.lock().table.lane(peer)?;
        lane.is_live().then_some(lane)
    }

    /// Its holder alone may connect a lane to `peer`.
    fn turn_for(&self, peer: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut connecting = self.connecting.lock();
        connecting.entry(peer.to_owned()).or_default().clone()
    }

    /// Whether the other end of a lane is there, asked if it has not said anything for a while. A peer that does not
    /// answer is lost.
    async fn answers(&self, lane: &Arc<Lane>) -> bool {
        let (limit, asked) = (nanos(self.limits.silence), self.driver.now());
        if asked.saturating_sub(lane.pulse.last()) <= limit / 8 {
            return lane.is_live();
        }
        lane.ping();
        let mut pause = Duration::from_micros(200);
        while lane.is_live() {
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(Duration::from_millis(20));
            if lane.pulse.last() >= asked {
                return lane.is_live();
            }
            if self.driver.now().saturating_sub(asked) > limit {
                self.silent(lane);
            }
        }
        false
    }

    /// Sends a value to a task before it asks.
    pub(crate) fn push(
        &self,
        peer: &str,
        step_id: u64,
        key: &str,
        tensor: Option<&Tensor>,
    ) -> Result<()> {
        match self.to(peer) {
            Some(lane) => lane.push(step_id, key, tensor),
            None => Err(lost(peer)),
        }
    }

    /// Counts a wait for a value of `peer`, whose silence then is noticed. A peer that was never there is about to come: who
    /// sends makes the lane.
    pub(crate) fn await_from(&self, peer: &str, step_id: u64) -> Result<Awaited> {
        let Some(lanes) = self.me.upgrade() else {
            return Err(lost(peer));
        };
        let begun = self
            .state
            .lock()
            .table
            .wait(self.driver.now(), peer, step_id);
        let Ok((wait, lane)) = begun else {
            return Err(lost(peer));
        };
        if let Some(lane) = &lane {
            lane.waits.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Awaited { lanes, wait, lane })
    }

    /// A peer that was lost calls again. Known before it is answered: what its values are waited for may begin as soon as it
    /// has the answer, before the lane is there.
    fn expect(&self, peer: &str) {
        self.state.lock().table.called(peer);
    }

    pub(crate) fn admitted_by(&self, admission: Arc<Admission>) {
        // There is one door to a task.
        let _ = self.admission.set(admission);
    }

    fn admission(&self) -> Option<Arc<Admission>> {
        self.admission.get().cloned()
    }

    fn handler(&self) -> Option<Arc<dyn LaneHandler>> {
        self.handler.get()?.upgrade()
    }

    fn silence(&self) -> Duration {
        self.limits.silence
    }

    fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    fn current(&self) -> (u64, Vec<Arc<Lane>>) {
        let state = self.state.lock();
        (self.version(), state.all.clone())
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Uses a connection whose other end is known.
    fn adopt(self: &Arc<Self>, who: handshake::Who, socket: Socket) -> io::Result<Arc<Lane>> {
        if self.is_closed() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let born = Born {
            is_own: who.is_own,
            number: who.number,
            incarnation: who.incarnation,
            said: who.seen.map(|(incarnation, number)| Seen {
                incarnation,
                number,
            }),
        };
        let mut state = self.state.lock();
        state.next += 1;
        let lane = Lane::new(self, state.next, who, socket);
        if !std::mem::replace(&mut state.has_thread, true) {
            let lanes = self.me.clone();
            let started = std::thread::Builder::new()
                .name("lanes".to_owned())
                .stack_size(4 << 20)
                .spawn(move || Driver::attend(&lanes));
            if let Err(e) = started {
                state.has_thread = false;
                return Err(e);
            }
        }
        state.all.push(lane.clone());
        let effects = state
            .table
            .adopt(&lane.peer, &born, (lane.id, lane.clone()));
        self.version.fetch_add(1, Ordering::AcqRel);
        drop(state);
        tracing::debug!(
            peer = lane.peer,
            id = lane.id,
            born.is_own,
            "a lane is there"
        );
        self.act(effects, &given_up(&lane));
        self.driver.kick();
        match lane.is_live() {
            true => Ok(lane),
            false => Err(io::ErrorKind::ConnectionAborted.into()),
        }
    }

    /// A lane has come to its end.
    fn end(&self, lane: &Arc<Lane>, cause: io::Error) {
        let mut reason = lane.lost();
        if cause.kind() == io::ErrorKind::InvalidData {
            reason.message = format!("{}: {cause}", reason.message);
        }
        tracing::debug!(peer = lane.peer, id = lane.id, %cause, "a lane has ended");
        let effects = self.state.lock().table.ended(&lane.peer, lane.id);
        self.retire(lane, &reason);
        self.act(effects, &reason);
    }

    /// A peer gives no sign of life.
    fn silent(&self, lane: &Lane) {
        let (peer, address, limit) = (&lane.peer, &lane.address, self.limits.silence);
        let reason = Status::unavailable(format!(
            "{peer} at {address} is connected but has not answered for {limit:?}: it hangs, is stopped, or the network between is cut"
        ));
        tracing::debug!(peer, "a peer is silent");
        let effects = self.state.lock().table.silent(peer);
        self.act(effects, &reason);
    }

    /// Does what the table says, without its lock.
    fn act(&self, effects: Effects<Arc<Lane>>, reason: &Status) {
        let mut failed: Vec<(String, Why, Vec<u64>)> = Vec::new();
        for effect in effects {
            match effect {
                Effect::End(lane) => self.retire(&lane, reason),
                Effect::Ask(lane, step) => lane.ask(step),
                Effect::Fail { peer, step, why } => {
                    let known = failed.iter_mut().find(|(p, w, _)| *p == peer && *w == why);
                    match known {
                        Some((_, _, steps)) => steps.push(step),
                        None => failed.push((peer, why, vec![step])),
                    }
                }
            }
        }
        let Some(handler) = self.handler() else {
            return;
        };
        for (peer, why, steps) in failed {
            let reason = match why {
                Why::LaneLost => reason.clone(),
                Why::NoLane => Status::unavailable(format!(
                    "{peer} was to send a value but has not connected for {:?}",
                    2 * self.limits.silence
                )),
                Why::SenderDone => Status::unavailable(format!(
                    "a value of {peer} was lost on the way: it is done with the step, but the value is not here"
                )),
            };
            handler.lost(&peer, &steps, &reason);
        }
    }

    /// Reads a lane no more and ends it.
    fn retire(&self, lane: &Arc<Lane>, reason: &Status) {
        self.state.lock().all.retain(|l| !Arc::ptr_eq(l, lane));
        self.version.fetch_add(1, Ordering::AcqRel);
        lane.end(self, reason);
    }

    /// A peer says that it does not run a step.
    fn told(&self, peer: &str, step_id: u64, is_over: bool) {
        let now = self.driver.now();
        let effects = self.state.lock().table.told(now, peer, step_id, is_over);
        self.act(effects, &lost(peer));
    }

    /// Asks peers that are waited for and have been silent for a sign of life, ends those that give none, and asks after
    /// values that do not come. Now and then, however often it is called.
    fn look_after(&self) {
        let (now, limit) = (self.driver.now(), nanos(self.limits.silence));
        let before = self.looked.load(Ordering::Relaxed);
        let since = now.saturating_sub(before);
        if since < limit / pulse::LOOKS {
            return;
        }
        let taken = self
            .looked
            .compare_exchange(before, now, Ordering::Relaxed, Ordering::Relaxed);
        if taken.is_err() {
            return;
        }
        let was_away = since > limit / 2;
        let (_, all) = self.current();
        for lane in all.iter().filter(|l| l.is_live() && l.is_awaited()) {
            match lane.pulse.look(now, limit, lane.acknowledged(), was_away) {
                Verdict::Fine => {}
                Verdict::Ask => lane.ping(),
                Verdict::Lost => self.silent(lane),
            }
        }
        let effects = self.state.lock().table.look(now);
        self.act(effects, &Status::unavailable("a value did not come"));
    }

    /// Ends all lanes.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let all = self.state.lock().all.clone();
        for lane in all {
            self.end(&lane, io::ErrorKind::NotConnected.into());
        }
        self.driver.kick();
    }
}

/// What is said of lanes that are replaced.
fn given_up(lane: &Lane) -> Status {
    Status::unavailable(format!(
        "Socket closed ({} at {} has connected anew)",
        lane.peer, lane.address
    ))
}

/// A time on the driver's clock.
const fn nanos(time: Duration) -> u64 {
    let nanos = time.as_nanos();
    if nanos > u64::MAX as u128 {
        u64::MAX
    } else {
        nanos as u64
    }
}

/// What is said when there is no lane to a task.
pub(crate) fn lost(task: &str) -> Status {
    Status::unavailable(format!("the connection to {task} is lost"))
}

/// A wait for a value of a peer, until it is dropped.
pub(crate) struct Awaited {
    lanes: Arc<Lanes>,
    wait: u64,
    lane: Option<Arc<Lane>>,
}

impl Awaited {
    /// Why nothing more will come from the peer, if so.
    pub(crate) fn lost(&self, peer: &str) -> Option<Status> {
        let is_waiting = self.lanes.state.lock().table.is_waiting(self.wait);
        (!is_waiting).then(|| {
            let lane = self.lane.as_ref();
            lane.map_or_else(|| lost(peer), |lane| lane.lost())
        })
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        if let Some(lane) = &self.lane {
            lane.waits.fetch_sub(1, Ordering::Relaxed);
        }
        self.lanes.state.lock().table.over(self.wait);
    }
}
