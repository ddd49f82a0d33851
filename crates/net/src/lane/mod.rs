//! Lanes: the connections between tasks that are both ours, beside TensorFlow's protocol. On a lane a
//! value is sent as soon as it exists, the calls of a step are a few bytes, and nothing is copied on the way
//! but by the system.
//!
//! A lane is made when two tasks first have to do with each other: on the task's own port, and between tasks of one
//! host on a Unix socket that the task names there. It carries what both say. [`Lanes`] are those of one
//! task; its worker is the [`LaneHandler`].

mod driver;
mod held;
mod hello;
#[cfg(test)]
mod lane_tests;
mod near;
mod one;
mod reader;
mod seat;
mod socket;
mod transport;
mod writer;

pub use driver::is_lent;
pub use held::let_go;
pub(crate) use hello::{MAGIC, greet};
pub use reader::Taker;
pub use transport::Transport;

use crate::task::Canceller;
use crate::{ClusterSpec, Gate, Limits};
use downpour_graph::{Result, Status};
use downpour_tensor::Tensor;
use downpour_wire::lane::Run;
use driver::Driver;
pub(crate) use one::Lane;
use parking_lot::Mutex;
use seat::Seat;
use socket::Socket;
use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

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
    fn offer(&self, step_id: u64, key: &str, offer: LaneOffer);
    /// Nothing more will come from a peer.
    fn lost(&self, peer: &str, reason: &Status);
}

/// Peers that are remembered as lost: a cluster's, not whatever a stranger calls itself.
const MOST_LOST: usize = 10_000;

/// The lanes of one task.
pub struct Lanes {
    me: Weak<Lanes>,
    own: String,
    incarnation: u64,
    limits: Limits,
    pub(crate) driver: Driver,
    handler: OnceLock<Weak<dyn LaneHandler>>,
    gate: OnceLock<Arc<Gate>>,
    table: Mutex<Table>,
    version: AtomicU64,
    is_closed: AtomicBool,
    /// When peers were last looked after, in nanoseconds of the driver's clock.
    looked: AtomicU64,
    /// Name of the Unix socket, if there is one.
    near: OnceLock<String>,
    /// Long reads from the memory of tasks of the same host.
    reads: near::Reads,
    /// Where they are read, on a host that is shared.
    seat: OnceLock<Seat>,
    /// Held while connecting: one attempt at a time.
    connecting: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct Table {
    /// All lanes that are read.
    all: Vec<Arc<Lane>>,
    /// The one to use for each peer.
    by_peer: HashMap<String, Arc<Lane>>,
    /// Peers whose last lane has ended.
    lost: HashSet<String>,
    has_thread: bool,
}

impl Lanes {
    /// No lanes yet, of the task `own` in this life.
    pub fn new(own: &str, incarnation: u64, limits: Limits) -> io::Result<Arc<Lanes>> {
        let driver = Driver::new()?;
        Ok(Arc::new_cyclic(|me| Lanes {
            me: me.clone(),
            own: own.to_owned(),
            incarnation,
            limits,
            driver,
            handler: OnceLock::new(),
            gate: OnceLock::new(),
            table: Mutex::default(),
            version: AtomicU64::new(0),
            is_closed: AtomicBool::new(false),
            looked: AtomicU64::new(0),
            near: OnceLock::new(),
            reads: near::Reads::default(),
            seat: OnceLock::new(),
            connecting: tokio::sync::Mutex::default(),
        }))
    }

    /// Says who does what peers ask for.
    pub fn handled_by(&self, handler: Weak<dyn LaneHandler>) {
        // There is one worker to a task.
        let _ = self.handler.set(handler);
    }

    /// Says which tasks there are, and which this is: those that share a host share its cores so.
    pub fn among(&self, cluster: &ClusterSpec, job: &str, task: u32) {
        if let Some(seat) = Seat::of(cluster, job, task) {
            // A task is of one cluster.
            let _ = self.seat.set(seat);
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
        let lane = self.table.lock().by_peer.get(peer).cloned()?;
        lane.is_live().then_some(lane)
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
    pub(crate) fn await_from(&self, peer: &str) -> Result<Awaited> {
        let lane = self.to(peer);
        if lane.is_none() && self.table.lock().lost.contains(peer) {
            return Err(lost(peer));
        }
        if let Some(lane) = &lane {
            lane.waits.fetch_add(1, Ordering::Relaxed);
        }
        Ok(Awaited(lane))
    }

    /// A peer that was lost calls again. Known before it is answered: what its values are waited for may begin as soon as it
    /// has the answer, before the lane is there.
    fn expect(&self, peer: &str) {
        self.table.lock().lost.remove(peer);
    }

    pub(crate) fn gated_by(&self, gate: Arc<Gate>) {
        // There is one door to a task.
        let _ = self.gate.set(gate);
    }

    fn gate(&self) -> Option<Arc<Gate>> {
        self.gate.get().cloned()
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
        let table = self.table.lock();
        (self.version(), table.all.clone())
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Uses a connection whose other end is known.
    fn adopt(self: &Arc<Self>, who: hello::Who, socket: Socket) -> io::Result<Arc<Lane>> {
        if self.is_closed() {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let lane = Lane::new(self, who, socket);
        let mut table = self.table.lock();
        table.all.push(lane.clone());
        table.lost.remove(&lane.peer);
        table.by_peer.insert(lane.peer.clone(), lane.clone());
        self.version.fetch_add(1, Ordering::AcqRel);
        if !std::mem::replace(&mut table.has_thread, true) {
            let lanes = self.me.clone();
            let started = std::thread::Builder::new()
                .name("lanes".to_owned())
                .stack_size(4 << 20)
                .spawn(move || Driver::attend(&lanes));
            if let Err(e) = started {
                table.has_thread = false;
                return Err(e);
            }
        }
        drop(table);
        self.driver.kick();
        Ok(lane)
    }

    /// A lane has come to its end.
    fn end(&self, lane: &Arc<Lane>, cause: io::Error) {
        let mut reason = lane.lost();
        if cause.kind() == io::ErrorKind::InvalidData {
            reason.message = format!("{}: {cause}", reason.message);
        }
        self.forget(lane);
        lane.end(self, &reason);
    }

    fn forget(&self, lane: &Arc<Lane>) {
        let mut table = self.table.lock();
        table.all.retain(|l| !Arc::ptr_eq(l, lane));
        let peer = &lane.peer;
        if table
            .by_peer
            .get(peer)
            .is_some_and(|l| Arc::ptr_eq(l, lane))
        {
            // Both may have called at once, and each made one.
            let other = table.all.iter().find(|l| l.peer == *peer && l.is_live());
            match other.cloned() {
                Some(other) => table.by_peer.insert(peer.clone(), other),
                None => {
                    if table.lost.len() < MOST_LOST {
                        table.lost.insert(peer.clone());
                    }
                    table.by_peer.remove(peer)
                }
            };
        }
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// Asks peers that are waited for and have been silent for a sign of life; ends those that give none. Now and then,
    /// however often it is called.
    fn look_after(&self) {
        let now = self.driver.now();
        let limit = u64::try_from(self.limits.silence.as_nanos()).unwrap_or(u64::MAX);
        if now.saturating_sub(self.looked.load(Ordering::Relaxed)) < limit / 8 {
            return;
        }
        self.looked.store(now, Ordering::Relaxed);
        for lane in &self.current().1 {
            if !lane.is_awaited() {
                continue;
            }
            let asked = lane.asked.load(Ordering::Relaxed);
            let heard = lane.heard.load(Ordering::Relaxed);
            if asked == 0 && now.saturating_sub(heard) > limit / 4 {
                lane.asked.store(now.max(1), Ordering::Relaxed);
                lane.ping();
            } else if asked != 0 && now.saturating_sub(asked) > limit {
                let (peer, address) = (&lane.peer, &lane.address);
                let limit = self.limits.silence;
                let reason = Status::unavailable(format!(
                    "{peer} at {address} is connected but has not answered for {limit:?}: it hangs, is stopped, or the network between is cut"
                ));
                self.forget(lane);
                lane.end(self, &reason);
            }
        }
    }

    /// Ends all lanes.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
        let all = std::mem::take(&mut self.table.lock().all);
        for lane in all {
            self.forget(&lane);
            let reason = lane.lost();
            lane.end(self, &reason);
        }
        self.driver.kick();
    }
}

/// What is said when there is no lane to a task.
pub(crate) fn lost(task: &str) -> Status {
    Status::unavailable(format!("the connection to {task} is lost"))
}

/// A wait for a value of a peer, until it is dropped.
pub(crate) struct Awaited(Option<Arc<Lane>>);

impl Awaited {
    /// The peer and why nothing more will come from it, if so.
    pub(crate) fn lost(&self) -> Option<(&str, Status)> {
        let lane = self.0.as_ref()?;
        (!lane.is_live()).then(|| (lane.peer.as_str(), lane.lost()))
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        if let Some(lane) = &self.0 {
            lane.waits.fetch_sub(1, Ordering::Relaxed);
        }
    }
}
