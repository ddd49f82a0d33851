//! Keyed hand-over of tensors inside one process: whichever of sender and receiver comes first
//! waits (the receiver as a callback, never as a thread).

use crate::StepEnv;
use crate::edges::{PeerSink, PeerWait, Slots};
use downpour_graph::{FunctionRef, Result, Status};
use downpour_tensor::account::{Account, COUNTED, Refused};
use downpour_tensor::{DType, Tensor};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

/// A tensor, or the news that it is dead (the untaken side of a branch).
#[derive(Clone, Debug)]
pub struct Delivery {
    /// The value; `None` when dead.
    pub tensor: Option<Tensor>,
}

/// Takes a value when it arrives, or the news that it will not.
pub type Receiver = Box<dyn FnOnce(Result<Delivery>) + Send>;

/// Brings values from the tasks that send them.
pub trait RemoteSource: Send + Sync {
    /// Calls `receiver` once: with the value of `key`, or when it cannot come, or when the step
    /// is cancelled.
    fn recv(&self, env: &StepEnv, key: &str, receiver: Receiver);

    /// As [`RemoteSource::recv`], for a value that its sender sends unasked.
    fn await_pushed(&self, env: &StepEnv, key: &str, receiver: Receiver);

    /// Sends a value unasked to the task that receives `key`.
    fn push(&self, env: &StepEnv, key: &str, delivery: Delivery) -> Result<()>;

    /// The way to the task `receiver` (`/job:J/replica:0/task:N`) for what the step pushes to it along numbered edges.
    fn sink(&self, env: &StepEnv, receiver: &str) -> Result<Arc<dyn PeerSink>>;

    /// Begins to wait for what `sender` pushes to the step along numbered edges.
    fn wait_for(&self, env: &StepEnv, sender: &str) -> Result<Box<dyn PeerWait>>;

    /// When the step began, if what comes to it along numbered edges is to be noted.
    fn log_from(&self, env: &StepEnv) -> Option<i64>;

    /// Notes a value that came along a numbered edge.
    fn log(&self, env: &StepEnv, key: &str, value: &Tensor, from: i64);

    /// Collects what is pushed on this thread until [`RemoteSource::end_batch`]; `false` if it is collected already.
    fn begin_batch(&self) -> bool;

    /// Sends what was collected.
    fn end_batch(&self);

    /// Sends what was collected so far: others may wait for it, and the thread is about to do something long.
    fn flush_batch(&self);

    /// Runs a function on another task and calls `done` once, as [`RemoteSource::recv`] does.
    fn call(&self, env: &StepEnv, call: RemoteCall, done: Results);
}

/// Takes the results of a function, or why there are none.
pub type Results = Box<dyn FnOnce(Result<Vec<Tensor>>) + Send>;

/// A function to run on another task.
#[derive(Clone, Debug)]
pub struct RemoteCall {
    /// Full name of the device.
    pub target: String,
    /// The function, in the session's library.
    pub function: FunctionRef,
    /// Its arguments.
    pub args: Vec<Tensor>,
    /// Types of its results.
    pub ret_types: Vec<DType>,
}

/// A value that has been announced: whoever wants it calls this, and gets it when it is here. Dropped
/// when nobody does.
pub type Offer = Box<dyn FnOnce(Receiver) + Send>;

pub(crate) enum Sent {
    Value(Delivery),
    Offer(Offer),
}

enum Waiting {
    Sent(VecDeque<Sent>),
    Receivers(VecDeque<Receiver>),
}

/// One step's table of keys.
#[derive(Default)]
pub struct Rendezvous {
    pub(crate) state: Mutex<State>,
    /// Who pays for what waits here, if that becomes much.
    pub(crate) account: OnceLock<Arc<Account>>,
}

#[derive(Default)]
pub(crate) struct State {
    table: HashMap<String, Waiting>,
    /// Values along numbered edges.
    pub(crate) edges: Slots,
    pub(crate) aborted: Option<Status>,
    /// Bytes that wait here and nobody else counts.
    held: usize,
    /// Bytes of them that are paid for.
    paid: usize,
}

impl Sent {
    /// Bytes that are kept while nobody has come for it.
    pub(crate) fn kept(&self) -> usize {
        let value = match self {
            Sent::Value(delivery) => delivery.tensor.as_ref().map_or(0, Tensor::uncounted),
            Sent::Offer(_) => 0,
        };
        value + size_of::<Sent>()
    }
}

impl State {
    /// Keeps something, if there is room.
    pub(crate) fn keep(
        &mut self,
        bytes: usize,
        account: Option<&Arc<Account>>,
    ) -> Result<(), Refused> {
        let held = self.held + bytes;
        // The little that most steps leave for each other asks nobody.
        if let Some(account) = account
            && held > self.paid + COUNTED
        {
            let portion = (held - self.paid - COUNTED).next_multiple_of(COUNTED);
            account.try_take(portion)?;
            self.paid += portion;
        }
        self.held = held;
        Ok(())
    }

    pub(crate) fn release(&mut self, bytes: usize, account: Option<&Arc<Account>>) {
        self.held -= bytes.min(self.held);
        if let Some(account) = account
            && self.held == 0
        {
            account.give(std::mem::take(&mut self.paid));
        }
    }
}

impl Drop for Rendezvous {
    fn drop(&mut self) {
        let paid = self.state.get_mut().paid;
        if let Some(account) = self.account.get() {
            account.give(paid);
        }
    }
}

impl Rendezvous {
    /// An empty rendezvous.
    pub fn new() -> Rendezvous {
        Rendezvous::default()
    }

    /// Hands over a value; a key may be sent more than once, values queue up.
    pub fn send(&self, key: &str, delivery: Delivery) -> Result<()> {
        self.put(key, Sent::Value(delivery))
    }

    /// Announces a value, which is fetched when someone wants it.
    pub fn offer(&self, key: &str, offer: Offer) -> Result<()> {
        self.put(key, Sent::Offer(offer))
    }

    /// Has what waits here paid for by `account`, unless somebody does already.
    pub fn paid_by(&self, account: &Arc<Account>) {
        self.account.get_or_init(|| account.clone());
    }

    fn put(&self, key: &str, sent: Sent) -> Result<()> {
        let account = self.account.get();
        let receiver = {
            let mut state = self.state.lock();
            let state = &mut *state;
            let no_room = |e: Refused| {
                let text =
                    format!("OOM when keeping a value for {key}, which nobody has asked for: {e}");
                Status::resource_exhausted(text)
            };
            if let Some(reason) = &state.aborted {
                return Err(reason.clone());
            }
            match state.table.get_mut(key) {
                Some(Waiting::Receivers(receivers)) => {
                    let receiver = receivers.pop_front();
                    if receivers.is_empty() {
                        state.table.remove(key);
                    }
                    receiver
                }
                Some(Waiting::Sent(_)) => {
                    state.keep(sent.kept(), account).map_err(no_room)?;
                    if let Some(Waiting::Sent(queue)) = state.table.get_mut(key) {
                        queue.push_back(sent);
                    }
                    return Ok(());
                }
                None => {
                    let bytes = sent.kept() + key.len();
                    state.keep(bytes, account).map_err(no_room)?;
                    let waiting = Waiting::Sent([sent].into());
                    state.table.insert(key.to_owned(), waiting);
                    return Ok(());
                }
            }
        };
        if let Some(receiver) = receiver {
            hand_over(sent, receiver);
        }
        Ok(())
    }

    /// Calls `receiver` with the value of `key`, now or when it is sent or the step is aborted.
    pub fn recv(&self, key: &str, receiver: impl FnOnce(Result<Delivery>) + Send + 'static) {
        let outcome = {
            let mut state = self.state.lock();
            if let Some(reason) = &state.aborted {
                Err(reason.clone())
            } else {
                match state.table.get_mut(key) {
                    Some(Waiting::Sent(queue)) => {
                        let sent = queue.pop_front();
                        let mut bytes = sent.as_ref().map_or(0, Sent::kept);
                        if queue.is_empty() {
                            state.table.remove(key);
                            bytes += key.len();
                        }
                        state.release(bytes, self.account.get());
                        let empty = || Status::internal("an empty queue was left in a rendezvous");
                        sent.ok_or_else(empty)
                    }
                    Some(Waiting::Receivers(receivers)) => {
                        receivers.push_back(Box::new(receiver));
                        return;
                    }
                    None => {
                        let waiting = Waiting::Receivers([Box::new(receiver) as Receiver].into());
                        state.table.insert(key.to_owned(), waiting);
                        return;
                    }
                }
            }
        };
        match outcome {
            Ok(sent) => hand_over(sent, Box::new(receiver)),
            Err(e) => receiver(Err(e)),
        }
    }

    /// Fails everyone who waits for a value of `sender`, and drops what it announced.
    pub fn fail_from(&self, sender: &str, reason: &Status) {
        self.fail_edges_from(sender, reason);
        let failed: Vec<Waiting> = {
            let mut state = self.state.lock();
            let is_from = |key: &str| key.split(';').next().is_some_and(|d| is_of(d, sender));
            let keys: Vec<String> = state
                .table
                .iter()
                .filter(|(key, waiting)| matches!(waiting, Waiting::Receivers(_)) && is_from(key))
                .map(|(key, _)| key.clone())
                .collect();
            keys.iter()
                .filter_map(|key| state.table.remove(key))
                .collect()
        };
        for waiting in failed {
            if let Waiting::Receivers(receivers) = waiting {
                for receiver in receivers {
                    receiver(Err(reason.clone()));
                }
            }
        }
    }

    /// Whether nothing is left here: every value was taken, nobody waits for one.
    pub fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.table.is_empty() && state.edges.is_idle() && state.aborted.is_none()
    }

    /// Fails everyone who waits, and everyone who comes later.
    pub fn abort(&self, reason: Status) {
        let (table, edges) = {
            let mut state = self.state.lock();
            if state.aborted.is_some() {
                return;
            }
            state.aborted = Some(reason.clone());
            let held = state.held;
            state.release(held, self.account.get());
            let edges = state.abort_edges(&reason);
            (std::mem::take(&mut state.table), edges)
        };
        edges.tell();
        for waiting in table.into_values() {
            if let Waiting::Receivers(receivers) = waiting {
                for receiver in receivers {
                    receiver(Err(reason.clone()));
                }
            }
        }
    }
}

/// Whether a device is one of a task.
fn is_of(device: &str, task: &str) -> bool {
    device
        .strip_prefix(task)
        .is_some_and(|rest| rest.starts_with('/'))
}

fn hand_over(sent: Sent, receiver: Receiver) {
    match sent {
        Sent::Value(delivery) => receiver(Ok(delivery)),
        Sent::Offer(offer) => offer(receiver),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_tensor::account::Holder;

    #[test]
    fn values_that_nobody_takes_end_at_the_budget() {
        let account = Account::new(Holder::Process, 1 << 20);
        let r = Rendezvous::new();
        r.paid_by(&account);
        let value = || Delivery {
            tensor: Some(Tensor::vector(vec![0u8; 1000])),
        };
        let mut count = 0;
        let e = loop {
            match r.send(&format!("k{count}"), value()) {
                Ok(()) => count += 1,
                Err(e) => break e,
            }
        };
        assert!((500..2000).contains(&count), "{count}");
        assert_eq!(e.code, downpour_graph::Code::ResourceExhausted);
        assert!(e.message.contains("nobody has asked for"), "{}", e.message);
        for i in 0..count {
            r.recv(&format!("k{i}"), |_| ());
        }
        assert_eq!((account.used(), r.is_idle()), (0, true));
        for i in 0..200 {
            r.send(&format!("k{i}"), value()).unwrap();
        }
        assert!(account.used() > 0);
        drop(r);
        assert_eq!(account.used(), 0);
    }

    #[test]
    fn either_side_may_come_first_and_abort_ends_waits() {
        let r = Rendezvous::new();
        let got: Arc<Mutex<Vec<Result<f32, String>>>> = Arc::default();
        let take = |got: &Arc<Mutex<Vec<Result<f32, String>>>>| {
            let got = got.clone();
            move |d: Result<Delivery>| {
                got.lock().push(
                    d.map(|d| d.tensor.unwrap().scalar_value::<f32>().unwrap())
                        .map_err(|e| e.message),
                )
            }
        };
        let give = |v: f32| Delivery {
            tensor: Some(Tensor::scalar(v)),
        };
        r.send("a", give(1.0)).unwrap();
        r.send("a", give(2.0)).unwrap();
        r.recv("a", take(&got));
        assert!(!r.is_idle());
        r.recv("a", take(&got));
        assert!(r.is_idle());
        r.recv("b", take(&got));
        r.send("b", give(3.0)).unwrap();
        r.recv("c", take(&got));
        r.abort(Status::aborted("stop"));
        r.recv("d", take(&got));
        assert!(r.send("e", give(0.0)).is_err());
        assert_eq!(
            *got.lock(),
            [
                Ok(1.0),
                Ok(2.0),
                Ok(3.0),
                Err("stop".into()),
                Err("stop".into())
            ]
        );
    }
}
