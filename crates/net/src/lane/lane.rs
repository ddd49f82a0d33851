//! One lane: calls and tensors to and from one peer.
//!
//! A thread that sends writes on the spot, or batches its frames and flushes them together (`write_batch.rs`). The
//! driver (`driver.rs`) reads frames and handles them here, without any lock held. A lane ends once, on the
//! driver's thread: every open call fails, every run that the peer asked for is told to end.

use super::handshake::Who;
use super::pulse::Pulse;
use super::reader::{Arrival, Coming, Incoming, Reader, Taker};
use super::socket::Socket;
use super::writer::Writer;
use super::{LaneHandler, Lanes, StepState};
use super::{same_host, write_batch};
use crate::serve::admission::{Admission, Pass};
use crate::task::Canceller;
use bytes::Bytes;
use downpour_graph::{EdgeId, Result, Status};
use downpour_tensor::shared::SharedMemory;
use downpour_tensor::{Buffer, BufferWriter, Tensor};
use downpour_wire::lane::{self, Following, Kind, Run, Sending, TensorFront};
use downpour_wire::{Budget, from_tonic};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Wake, Waker};

/// Values of numbered edges that are sent although their thread batches.
const CUT: usize = 128;

/// Takes the end of a call: its error, or whether its step left nothing behind.
pub(crate) type CallDone = Box<dyn FnOnce(Result<bool>) + Send>;

/// The connection to one peer.
pub(crate) struct Lane {
    /// Not that of any other lane of this task.
    pub(super) id: u64,
    /// `/job:J/replica:0/task:N` of the peer.
    pub(crate) peer: String,
    /// Where the peer listens, for texts.
    pub(crate) address: String,
    pub(crate) socket: Socket,
    me: Weak<Lane>,
    lanes: Weak<Lanes>,
    reader: Mutex<Reader>,
    writer: Mutex<Writer>,
    next: AtomicU64,
    /// Calls that the peer has yet to answer.
    calls: Mutex<HashMap<u64, CallDone>>,
    /// What the peer may take.
    offers: Mutex<HashMap<u64, Bytes>>,
    coming: Coming,
    served: Mutex<Served>,
    /// The peer's process, if it is on this host.
    pid: Option<i32>,
    /// Whether the peer's memory, other than what it shares, cannot be read.
    is_far: AtomicBool,
    /// What the peer says that it shares, and that once it is mapped.
    shared: Option<SharedMemory>,
    mapping: OnceLock<Option<Arc<same_host::Mapping>>>,
    /// Offers of the peer that are no longer wanted, and of which it has not been told.
    declined: Mutex<Vec<u64>>,
    /// Values that are waited for.
    pub(crate) waits: AtomicUsize,
    ended: AtomicBool,
    pub(super) pulse: Pulse,
}

/// Runs that the peer asked for.
#[derive(Default)]
struct Served {
    /// How to end each, once that is known.
    runs: HashMap<u64, Option<Canceller>>,
    /// Orders to end for runs that are about to begin.
    early: HashMap<u64, Status>,
}

impl Served {
    fn forget(&mut self, call: u64) {
        self.runs.remove(&call);
        self.early.remove(&call);
    }
}

impl Lane {
    pub(super) fn new(lanes: &Arc<Lanes>, id: u64, who: Who, socket: Socket) -> Arc<Lane> {
        Arc::new_cyclic(|me| Lane {
            id,
            me: me.clone(),
            peer: who.task,
            address: who.address,
            lanes: Arc::downgrade(lanes),
            reader: Mutex::default(),
            writer: Mutex::default(),
            next: AtomicU64::new(1),
            calls: Mutex::default(),
            offers: Mutex::default(),
            coming: Mutex::default(),
            served: Mutex::default(),
            pid: socket.peer_process(),
            is_far: AtomicBool::new(false),
            shared: who.shared,
            mapping: OnceLock::new(),
            declined: Mutex::default(),
            waits: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            pulse: Pulse::new(lanes.driver.now()),
            socket,
        })
    }

    /// The process whose memory can be read, as far as is known.
    fn near(&self) -> Option<i32> {
        self.pid.filter(|_| !self.is_far.load(Ordering::Relaxed))
    }

    /// The peer's shared memory, if it can be had.
    fn mapping(&self) -> Option<&Arc<same_host::Mapping>> {
        let (pid, shared) = (self.pid?, self.shared?);
        let mapping = self.mapping.get_or_init(|| {
            let mapping = same_host::Mapping::open(pid, shared);
            if let Err(e) = &mapping {
                tracing::debug!(peer = self.peer, %e, "shared memory cannot be had");
            }
            mapping.ok().map(Arc::new)
        });
        mapping.as_ref()
    }

    /// Whether it can be used.
    pub(crate) fn is_live(&self) -> bool {
        !self.ended.load(Ordering::Acquire)
    }

    /// Whether the peer may yet take something.
    #[cfg(test)]
    pub(crate) fn is_holding(&self) -> bool {
        !self.offers.lock().is_empty()
    }

    /// How many pieces of short frames wait to be sent.
    #[cfg(test)]
    pub(crate) fn unsent(&self) -> usize {
        self.writer.lock().frames()
    }

    /// Whether anyone here waits for the peer.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waits.load(Ordering::Relaxed) > 0 || !self.calls.lock().is_empty()
    }

    /// Runs a graph on the peer; `done` is called once, from any thread.
    pub(crate) fn run(&self, run: &Run, done: CallDone) -> u64 {
        let call = self.next.fetch_add(1, Ordering::Relaxed);
        self.calls.lock().insert(call, done);
        self.send(run.encode(call), Bytes::new());
        // The driver may have ended the lane before the call was in the table; nobody else would fail it.
        if !self.is_live()
            && let Some(done) = self.calls.lock().remove(&call)
        {
            done(Err(self.lost()));
        }
        call
    }

    /// Tells the peer to end a call; what it says about it still counts until `give_up`.
    pub(crate) fn stop(&self, call: u64) {
        if self.calls.lock().contains_key(&call) {
            self.send(lane::empty(Kind::Stop, call), Bytes::new());
        }
    }

    /// Ends a call from here.
    pub(crate) fn give_up(&self, call: u64, reason: Status) {
        let done = self.calls.lock().remove(&call);
        if let Some(done) = done {
            done(Err(reason));
        }
    }

    /// Sends a value of a step.
    pub(crate) fn push(&self, step_id: u64, key: &str, tensor: Option<&Tensor>) -> Result<()> {
        let offer = self.next.fetch_add(1, Ordering::Relaxed);
        match lane::send(step_id, key, tensor, offer)? {
            Sending::Inline(front, rest) => self.send(front, rest),
            Sending::Offered(front, bytes) => {
                self.offers.lock().insert(offer, bytes);
                self.send(front, Bytes::new());
            }
        }
        match self.is_live() {
            true => Ok(()),
            false => Err(self.lost()),
        }
    }

    /// Sends values of a step along numbered edges.
    pub(crate) fn push_edges(
        &self,
        step_id: u64,
        values: &[(EdgeId, Option<Tensor>)],
    ) -> Result<()> {
        let mut offer = self.next.fetch_add(values.len() as u64, Ordering::Relaxed);
        let mut outcome: Result<()> = Ok(());
        self.write(|writer| {
            for (edge, tensor) in values {
                outcome = writer.append(|out| {
                    let tensor = tensor.as_ref();
                    Ok(match lane::send_edge(out, step_id, *edge, tensor, offer)? {
                        Following::Nothing => None,
                        Following::Rest(rest) => Some(rest),
                        Following::Offered(bytes) => {
                            self.offers.lock().insert(offer, bytes);
                            None
                        }
                    })
                });
                if outcome.is_err() {
                    break;
                }
                offer += 1;
            }
            writer.values += values.len();
            self.sent_frame(writer);
        });
        outcome?;
        match self.is_live() {
            true => Ok(()),
            false => Err(self.lost()),
        }
    }

    /// Asks for a sign of life.
    pub(crate) fn ping(&self) {
        self.write(|writer| {
            writer.frame(lane::empty(Kind::Ping, 0), Bytes::new());
            self.pulse.asked_until(writer.sent + writer.ahead());
            self.flush(writer);
        });
    }

    /// Gives a sign of life. One that waits to be read is enough.
    fn pong(&self) {
        self.write(|writer| {
            if !std::mem::replace(&mut writer.has_pong, true) {
                writer.frame(lane::empty(Kind::Pong, 0), Bytes::new());
            }
            self.flush(writer);
        });
    }

    /// Asks what the peer knows of a step.
    pub(super) fn ask(&self, step_id: u64) {
        self.send(lane::empty(Kind::Ask, step_id), Bytes::new());
    }

    /// Bytes that the system at the other end has taken; none are counted within a host.
    pub(super) fn acknowledged(&self) -> u64 {
        match self.socket.unacknowledged() {
            Some(held) => self.writer.lock().sent.saturating_sub(held),
            None => 0,
        }
    }

    fn send(&self, front: Bytes, rest: Bytes) {
        self.write(|writer| {
            writer.frame(front, rest);
            self.sent_frame(writer);
        });
    }

    /// Flushes behind a new frame, unless this thread batches.
    fn sent_frame(&self, writer: &mut Writer) {
        if writer.is_overfull() {
            // A peer that does not read is as good as gone: the driver ends the lane.
            self.socket.shut_down();
            writer.discard();
        } else if writer.values >= CUT || !write_batch::defers(&self.me) {
            // Of many values the receiver begins with the first while this task makes the next.
            self.flush(writer);
        }
    }

    /// Sends what was held back.
    pub(crate) fn flush_batch(&self) {
        self.write(|writer| self.flush(writer));
    }

    /// The only way to the writer. What it drops may be the last of a tensor that the peer has offered, wherever that was sent on to: it is
    /// declined behind the lock.
    fn write(&self, body: impl FnOnce(&mut Writer)) {
        body(&mut self.writer.lock());
        self.decline_all();
    }

    /// Tells the peer that an offer of its is not wanted, or no longer. May be called whatever locks are held.
    fn decline(&self, offer: u64) {
        self.declined.lock().push(offer);
        self.decline_all();
    }

    fn decline_all(&self) {
        while !self.declined.lock().is_empty() {
            // The thread that holds the writer checks this list when it is done.
            let Some(mut writer) = self.writer.try_lock() else {
                return;
            };
            for offer in std::mem::take(&mut *self.declined.lock()) {
                writer.frame(lane::empty(Kind::Decline, offer), Bytes::new());
            }
            if !write_batch::defers(&self.me) {
                self.flush(&mut writer);
            }
        }
    }

    fn flush(&self, writer: &mut Writer) {
        if writer.is_full {
            // The driver goes on when there is room.
            return;
        }
        match writer.flush(&self.socket) {
            Ok(true) => {}
            Ok(false) => {
                if let Some(lanes) = self.lanes.upgrade() {
                    lanes.driver.kick();
                }
            }
            // The driver meets the end of the socket and ends the lane.
            Err(_) => self.socket.shut_down(),
        }
    }

    /// Whether the socket must be waited for before more can be sent.
    pub(crate) fn is_full(&self) -> bool {
        self.writer.lock().is_full
    }

    /// The socket takes more.
    pub(crate) fn writable(&self) {
        self.write(|writer| {
            writer.is_full = false;
            self.flush(writer);
        });
    }

    /// Reads what is there, and says how many bytes that was; none if another thread does.
    pub(crate) fn read(&self, out: &mut Vec<Arrival>) -> io::Result<usize> {
        let Some(mut reader) = self.reader.try_lock() else {
            return Ok(0);
        };
        let known = out.len();
        let outcome = reader.read(&self.socket, &self.coming, out);
        for arrival in out.get(known..).unwrap_or_default() {
            // In the order of the wire: an order to end finds the run, however threads overtake each other.
            if let Arrival::Run(call, _) = arrival {
                self.served.lock().runs.insert(*call, None);
            }
        }
        outcome
    }

    /// Does what came asks for.
    pub(crate) fn handle(self: &Arc<Self>, arrival: Arrival, lanes: &Lanes) {
        let Some(handler) = lanes.handler() else {
            return;
        };
        match arrival {
            Arrival::Run(call, run) => self.serve(call, run, &*handler, lanes.admission()),
            Arrival::Ended(call, error, is_over) => {
                let done = self.calls.lock().remove(&call);
                if let Some(done) = done {
                    done(error.map_or(Ok(is_over), Err));
                }
            }
            Arrival::Stop(call) => self.stopped(call, hung_up()),
            Arrival::Tensor(front, tensor) => {
                handler.tensor(front.step_id, &front.to.to_string(), tensor);
            }
            Arrival::Edges(step_id, values) => handler.edges(&self.peer, step_id, values),
            Arrival::Offer(id, front, address) => {
                let (step_id, to) = (front.step_id, front.to.clone());
                let offered = Offered {
                    lane: self.clone(),
                    id,
                    address: NonZeroU64::new(address),
                    front: Some(front),
                };
                let offer = Box::new(move |taker| offered.take(taker));
                handler.offer(&self.peer, step_id, &to, offer);
            }
            Arrival::Take(id) => {
                let bytes = self.offers.lock().remove(&id);
                if let Some(bytes) = bytes {
                    self.write(|writer| {
                        writer.transfer(id, bytes);
                        self.flush(writer);
                    });
                }
            }
            Arrival::Decline(id) => {
                let bytes = self.offers.lock().remove(&id);
                drop(bytes);
            }
            Arrival::Ping => self.pong(),
            Arrival::Ask(step_id) => match handler.state(step_id) {
                StepState::Running => {}
                state => {
                    let is_over = state == StepState::Over;
                    self.send(lane::told(step_id, is_over), Bytes::new());
                }
            },
            Arrival::Told(step_id, is_over) => lanes.told(&self.peer, step_id, is_over),
            Arrival::Taken(taker, tensor) => taker(tensor),
        }
    }

    /// Runs a graph for the peer.
    fn serve(
        self: &Arc<Self>,
        call: u64,
        run: Run,
        handler: &dyn LaneHandler,
        admission: Option<Arc<Admission>>,
    ) {
        let pass = match admission
            .map(|admission| admission.admit_step())
            .transpose()
        {
            Ok(pass) => pass,
            Err(refusal) => {
                let refusal = from_tonic(&refusal);
                self.served.lock().forget(call);
                return self.send(lane::ended(call, Some(&refusal), false), Bytes::new());
            }
        };
        let pass = pass.map(|pass| {
            Arc::new(Passing {
                pass,
                lane: self.clone(),
                call,
            })
        });
        let (lane, held) = (self.clone(), pass.clone());
        let ended = Box::new(move |outcome: Result<bool>| {
            lane.served.lock().forget(call);
            drop(held);
            let frame = match &outcome {
                Ok(is_over) => lane::ended(call, None, *is_over),
                Err(e) => lane::ended(call, Some(e), false),
            };
            lane.send(frame, Bytes::new());
        });
        let cancel = handler.run(run, ended);
        let told = {
            let mut served = self.served.lock();
            let told = served.early.remove(&call);
            if let Some(slot) = served.runs.get_mut(&call) {
                *slot = Some(cancel.clone());
            }
            told
        };
        if let Some(reason) = told {
            cancel(reason);
        } else if !self.is_live() {
            cancel(hung_up());
        }
        if let Some(pass) = pass {
            pass.look();
        }
    }

    fn stopped(&self, call: u64, reason: Status) {
        let cancel = {
            let mut served = self.served.lock();
            match served.runs.get(&call) {
                Some(Some(cancel)) => cancel.clone(),
                Some(None) => {
                    served.early.insert(call, reason);
                    return;
                }
                None => return,
            }
        };
        cancel(reason);
    }

    /// Ends the lane: nothing more will come.
    pub(crate) fn end(&self, lanes: &Lanes, reason: &Status) {
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        self.socket.shut_down();
        let calls = std::mem::take(&mut *self.calls.lock());
        for done in calls.into_values() {
            done(Err(reason.clone()));
        }
        let offers = std::mem::take(&mut *self.offers.lock());
        if let Some(pid) = self.pid {
            same_host::keep_for(pid, offers.into_values());
        }
        let mut coming: Vec<Incoming> = self.coming.lock().drain().map(|(_, i)| i).collect();
        coming.extend(self.reader.lock().abandon());
        for incoming in coming {
            (incoming.taker)(Err(reason.clone()));
        }
        let runs = std::mem::take(&mut self.served.lock().runs);
        for cancel in runs.into_values().flatten() {
            cancel(hung_up());
        }
        if let Some(handler) = lanes.handler() {
            handler.lost(&self.peer, &[], reason);
        }
    }

    /// What is said of a lane that has ended.
    pub(crate) fn lost(&self) -> Status {
        Status::unavailable(format!("Socket closed ({} at {})", self.peer, self.address))
    }
}

fn hung_up() -> Status {
    Status::cancelled("RunGraph was cancelled by the master")
}

/// A value that the peer has offered; it hears when nobody wants it.
struct Offered {
    lane: Arc<Lane>,
    id: u64,
    address: Option<NonZeroU64>,
    front: Option<TensorFront>,
}

impl Offered {
    fn take(self, taker: Taker) {
        let Some(address) = self.address else {
            return self.take_over_lane(taker);
        };
        let len = self.front.as_ref().map_or(0, |front| front.len);
        if let Some(mapping) = self.lane.mapping().cloned()
            && let Some(place) = mapping.find(address, len)
        {
            return self.borrow(mapping, place, taker);
        }
        let Some(pid) = self.lane.near() else {
            return self.take_over_lane(taker);
        };
        let lanes = self.lane.lanes.upgrade();
        let read = move |is_alone| self.read_from(pid, address, is_alone, taker);
        match lanes.filter(|_| len > same_host::BRIEF) {
            None => read(false),
            Some(lanes) => {
                if let Err(read) = lanes.reads.spawn(Box::new(read)) {
                    read(false);
                }
            }
        }
    }

    /// Uses the bytes where they are; the peer keeps them until they are no longer used.
    fn borrow(self, mapping: Arc<same_host::Mapping>, place: same_host::Found, taker: Taker) {
        let Some(front) = self.front.clone() else {
            return;
        };
        let bytes = Bytes::from_owner(same_host::Borrowed {
            mapping,
            place,
            offer: self,
        });
        let bytes = Buffer::from_bytes(bytes, 64);
        let tensor = front.with(bytes, &Budget::default());
        taker(tensor.map_err(|e| Status::data_loss(format!("{}: {e}", front.to))));
    }

    /// Reads the bytes where they are; the peer may forget them then.
    fn read_from(self, pid: i32, address: NonZeroU64, is_alone: bool, taker: Taker) {
        let Some(front) = &self.front else {
            return;
        };
        let mut bytes = BufferWriter::new(front.len);
        if let Err(e) = same_host::read(pid, address, &mut bytes, is_alone) {
            // Nor will the system allow it the next time.
            self.lane.is_far.store(true, Ordering::Relaxed);
            tracing::debug!(peer = self.lane.peer, %e, "tensors come over the lane");
            return self.take_over_lane(taker);
        }
        let tensor = match bytes.finish() {
            Some(bytes) => front.with(bytes, &Budget::default()).map_err(|e| {
                Status::data_loss(format!("{} from {}: {e}", front.to, self.lane.peer))
            }),
            None => Err(Status::internal("a tensor is not all there")),
        };
        drop(self);
        taker(tensor);
    }

    fn take_over_lane(mut self, taker: Taker) {
        let Some(front) = self.front.take() else {
            return;
        };
        let lane = self.lane.clone();
        let incoming = Incoming {
            bytes: BufferWriter::new(front.len),
            front,
            taker,
        };
        lane.coming.lock().insert(self.id, incoming);
        lane.send(lane::empty(Kind::Take, self.id), Bytes::new());
        if !lane.is_live()
            && let Some(incoming) = lane.coming.lock().remove(&self.id)
        {
            (incoming.taker)(Err(lane.lost()));
        }
    }
}

impl Drop for Offered {
    fn drop(&mut self) {
        if self.front.is_some() {
            self.lane.decline(self.id);
        }
    }
}

/// A run on its way through the admission, which may be shut before the run is over.
struct Passing {
    pass: Pass,
    lane: Arc<Lane>,
    call: u64,
}

impl Passing {
    /// Ends the run if it may not go on; else looks again when that changes.
    fn look(self: Arc<Self>) {
        let waker = Waker::from(Arc::new(Weakly(Arc::downgrade(&self))));
        if let Some(refusal) = self.pass.check(&waker) {
            let reason = from_tonic(&refusal);
            self.lane.stopped(self.call, reason);
        }
    }
}

/// The admission must not keep what waits at it.
struct Weakly(Weak<Passing>);

impl Wake for Weakly {
    fn wake(self: Arc<Self>) {
        if let Some(passing) = self.0.upgrade() {
            passing.look();
        }
    }
}
