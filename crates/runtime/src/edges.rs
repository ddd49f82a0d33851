//! Values that other tasks push to a step along numbered edges: an array of slots in the step's rendezvous.
//!
//! An edge between two tasks of ours gets its number when the graph is split, so that a step formats, hashes and compares
//! no key. The executor takes a value out of its slot, or leaves there which op waits for it; no closure is made and
//! nothing is registered for a single value. A wait is counted once per sender (see [`PeerWait`]).

use crate::rendezvous::{Delivery, Rendezvous, Sent, State};
use crate::{Offer, OpRun, Outputs, RunningStep, StepEnv, Value};
use downpour_graph::{EdgeId, Result, Status};
use downpour_tensor::account::Account;
use downpour_tensor::{DType, Tensor};
use smallvec::smallvec;
use std::sync::Arc;

/// The edges by which values come to a task: known when its graph is compiled.
#[derive(Debug, Default)]
pub struct IncomingEdges {
    senders: Vec<Arc<str>>,
    edges: Vec<IncomingEdge>,
}

/// One of them.
#[derive(Debug)]
pub struct IncomingEdge {
    /// Its number.
    pub id: EdgeId,
    /// The task that sends: `/job:J/replica:0/task:N`.
    pub sender: Arc<str>,
    /// What it is called, for errors and traces.
    pub key: Arc<str>,
    /// Type of its values.
    pub dtype: DType,
}

impl IncomingEdges {
    /// Checks that the numbers are those from 0 on, each once.
    pub fn new(mut edges: Vec<IncomingEdge>) -> Result<IncomingEdges> {
        edges.sort_by_key(|e| e.id);
        if let Some((i, e)) = (0..).zip(&edges).find(|(i, e)| e.id != EdgeId(*i)) {
            return Err(Status::invalid_argument(format!(
                "edge {} has number {}, where {i} was expected: a task's edges are numbered from 0 on",
                e.key, e.id.0
            )));
        }
        let mut senders: Vec<Arc<str>> = edges.iter().map(|e| e.sender.clone()).collect();
        senders.sort_unstable();
        senders.dedup();
        Ok(IncomingEdges { senders, edges })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.edges.is_empty()
    }

    /// The edge of that number.
    pub fn get(&self, id: EdgeId) -> Option<&IncomingEdge> {
        self.edges.get(id.0 as usize)
    }

    fn sender_of(&self, edge: &IncomingEdge) -> usize {
        self.senders.binary_search(&edge.sender).unwrap_or(0)
    }
}

/// An edge by which a value leaves a task.
#[derive(Debug)]
pub struct OutgoingEdge {
    /// Its number among those that the receiver gets.
    pub id: EdgeId,
    /// The task that receives: `/job:J/replica:0/task:N`.
    pub receiver: String,
    /// What it is called, for errors.
    pub key: String,
}

/// Waits of one step for values of one peer. Dropped when none is left.
pub trait PeerWait: Send {
    /// One more value is waited for.
    fn begin(&self);

    /// One less.
    fn end(&self);
}

/// What the executor finds when an op wants the value of an edge.
pub enum Taken {
    /// The value.
    Value(Outputs),
    /// It comes later; the op is completed then.
    Later,
    /// It will not come.
    Failed(Status),
}

enum Slot {
    Empty,
    Here(Sent),
    Wanted(Arc<dyn RunningStep>, OpRun),
    Over,
}

/// The slots of a step.
#[derive(Default)]
pub(crate) struct Slots {
    table: Option<Arc<IncomingEdges>>,
    slots: Vec<Slot>,
    /// What came before the step was known here.
    early: Vec<(EdgeId, Sent)>,
    /// Values that nobody has taken.
    here: usize,
    /// How many values of each sender are waited for.
    waits: Vec<(usize, Option<Box<dyn PeerWait>>)>,
}

/// Ops that are to be completed behind the lock.
#[derive(Default)]
struct Completions {
    step: Option<Arc<dyn RunningStep>>,
    done: Vec<(OpRun, Result<Outputs>)>,
    offers: Vec<(Offer, Arc<dyn RunningStep>, OpRun, DType)>,
}

impl Completions {
    fn add(&mut self, step: Arc<dyn RunningStep>, run: OpRun, outcome: Result<Outputs>) {
        if self.step.as_ref().is_some_and(|s| !Arc::ptr_eq(s, &step)) {
            self.flush();
        }
        self.step.get_or_insert(step);
        self.done.push((run, outcome));
    }

    fn flush(&mut self) {
        let done = std::mem::take(&mut self.done);
        if let Some(step) = self.step.take() {
            step.complete_all(done);
        }
    }

    /// Completes them; must be called without the lock.
    fn act(mut self) {
        for (offer, step, run, dtype) in std::mem::take(&mut self.offers) {
            take_offer(offer, step, run, dtype);
        }
        self.flush();
    }
}

fn take_offer(offer: Offer, step: Arc<dyn RunningStep>, run: OpRun, dtype: DType) {
    offer(Box::new(move |delivery: Result<Delivery>| {
        step.complete(run, delivery.and_then(|d| outputs(d.tensor, dtype)));
    }));
}

/// What an op that receives gives out.
fn outputs(tensor: Option<Tensor>, dtype: DType) -> Result<Outputs> {
    match tensor {
        None => Ok(smallvec![None]),
        Some(t) if t.dtype() == dtype => Ok(smallvec![Some(Value::Tensor(t))]),
        Some(t) => Err(Status::invalid_argument(format!(
            "a tensor of type {} was sent where {dtype} is received",
            t.dtype()
        ))),
    }
}

impl Slots {
    pub(crate) fn is_idle(&self) -> bool {
        self.here == 0 && self.waits.iter().all(|(n, _)| *n == 0)
    }

    fn end_wait(&mut self, sender: usize) {
        if let Some((count, wait)) = self.waits.get_mut(sender) {
            *count -= 1;
            if let Some(wait) = wait {
                wait.end();
            }
            if *count == 0 {
                *wait = None;
            }
        }
    }

    /// Takes out who waits for an edge that `which` chooses.
    fn fail(
        &mut self,
        reason: &Status,
        which: impl Fn(&IncomingEdge) -> bool,
        out: &mut Vec<(Arc<dyn RunningStep>, OpRun, Status)>,
    ) {
        let Some(table) = self.table.clone() else {
            return;
        };
        for (i, edge) in table.edges.iter().enumerate().filter(|(_, e)| which(e)) {
            if !matches!(self.slots.get(i), Some(Slot::Wanted(..))) {
                continue;
            }
            if let Some(slot) = self.slots.get_mut(i)
                && let Slot::Wanted(step, run) = std::mem::replace(slot, Slot::Over)
            {
                out.push((step, run, reason.clone()));
                self.end_wait(table.sender_of(edge));
            }
        }
    }
}

/// Fails ops that waited; without the lock.
pub(crate) fn fail_all(failed: Vec<(Arc<dyn RunningStep>, OpRun, Status)>) {
    let mut completions = Completions::default();
    for (step, run, reason) in failed {
        completions.add(step, run, Err(reason));
    }
    completions.act();
}

impl State {
    /// Drops what is in the slots, and gives back who waits there.
    pub(crate) fn abort_edges(
        &mut self,
        reason: &Status,
    ) -> Vec<(Arc<dyn RunningStep>, OpRun, Status)> {
        let mut failed = Vec::new();
        self.edges.fail(reason, |_| true, &mut failed);
        self.edges.early.clear();
        for slot in &mut self.edges.slots {
            *slot = Slot::Over;
        }
        self.edges.here = 0;
        failed
    }

    /// What is in the slot of an edge and its type; if nothing is, `waiter` is left there.
    fn take_edge(
        &mut self,
        id: EdgeId,
        env: &StepEnv,
        account: Option<&Arc<Account>>,
        waiter: impl FnOnce() -> (Arc<dyn RunningStep>, OpRun),
    ) -> Result<Option<(Sent, DType)>> {
        if let Some(reason) = &self.aborted {
            return Err(reason.clone());
        }
        let edges = &mut self.edges;
        let Some(table) = &edges.table else {
            return Err(Status::internal("a step's edges are not open"));
        };
        let (Some(edge), Some(slot)) = (table.get(id), edges.slots.get_mut(id.0 as usize)) else {
            return Err(unfit(id, &Unfit::Unknown));
        };
        match std::mem::replace(slot, Slot::Over) {
            Slot::Here(sent) => {
                let dtype = edge.dtype;
                edges.here -= 1;
                self.release(sent.kept(), account);
                Ok(Some((sent, dtype)))
            }
            Slot::Empty => {
                let sender = table.sender_of(edge);
                let Some((count, wait)) = edges.waits.get_mut(sender) else {
                    return Err(unfit(id, &Unfit::Unknown));
                };
                if wait.is_none()
                    && let Some(remote) = &env.remote
                {
                    *wait = Some(remote.wait_for(env, &edge.sender)?);
                }
                *count += 1;
                if let Some(wait) = wait {
                    wait.begin();
                }
                let (step, run) = waiter();
                *slot = Slot::Wanted(step, run);
                Ok(None)
            }
            Slot::Wanted(..) | Slot::Over => Err(unfit(id, &Unfit::Twice)),
        }
    }

    /// Puts a value where its op will look, or has the op completed.
    fn arrive(&mut self, id: EdgeId, sent: Sent, out: &mut Completions) -> Result<(), Unfit> {
        let Some(table) = self.edges.table.clone() else {
            self.edges.here += 1;
            self.edges.early.push((id, sent));
            return Ok(());
        };
        let at = id.0 as usize;
        let (Some(edge), Some(slot)) = (table.get(id), self.edges.slots.get_mut(at)) else {
            return Err(Unfit::Unknown);
        };
        match std::mem::replace(slot, Slot::Over) {
            Slot::Empty => {
                *slot = Slot::Here(sent);
                self.edges.here += 1;
            }
            Slot::Wanted(step, run) => {
                self.edges.end_wait(table.sender_of(edge));
                match sent {
                    Sent::Value(d) => out.add(step, run, outputs(d.tensor, edge.dtype)),
                    Sent::Offer(offer) => out.offers.push((offer, step, run, edge.dtype)),
                }
            }
            Slot::Here(_) | Slot::Over => return Err(Unfit::Twice),
        }
        Ok(())
    }
}

/// Why a value has no place in its step.
enum Unfit {
    Unknown,
    Twice,
}

impl Rendezvous {
    /// Says which edges lead to the step that now begins here. Values may have come before.
    pub fn open_edges(&self, table: &Arc<IncomingEdges>) -> Result<()> {
        let mut out = Completions::default();
        let opened = {
            let mut state = self.state.lock();
            if let Some(known) = &state.edges.table {
                return match Arc::ptr_eq(known, table) {
                    true => Ok(()),
                    false => Err(Status::internal("a step has two sets of edges on one task")),
                };
            }
            state.edges.table = Some(table.clone());
            state
                .edges
                .slots
                .resize_with(table.edges.len(), || Slot::Empty);
            let waits = table.senders.iter().map(|_| (0, None));
            state.edges.waits = waits.collect();
            let early = std::mem::take(&mut state.edges.early);
            state.edges.here -= early.len();
            early
                .into_iter()
                .try_for_each(|(id, sent)| state.arrive(id, sent, &mut out).map_err(|u| (id, u)))
        };
        out.act();
        opened.map_err(|(id, why)| unfit(id, &why))
    }

    /// Takes values that were pushed to the step.
    pub fn deliver(&self, values: impl Iterator<Item = (EdgeId, Option<Tensor>)>) -> Result<()> {
        let values = values.map(|(id, tensor)| (id, Sent::Value(Delivery { tensor })));
        self.arrived(values)
    }

    /// Takes a value that can be had.
    pub fn deliver_offer(&self, id: EdgeId, offer: Offer) -> Result<()> {
        self.arrived(std::iter::once((id, Sent::Offer(offer))))
    }

    fn arrived(&self, values: impl Iterator<Item = (EdgeId, Sent)>) -> Result<()> {
        let mut out = Completions::default();
        let mut outcome = Ok(());
        {
            let mut state = self.state.lock();
            if let Some(reason) = &state.aborted {
                return Err(reason.clone());
            }
            for (id, sent) in values {
                // Paid for until it is taken; what is waited for goes on at once.
                let is_wanted =
                    matches!(state.edges.slots.get(id.0 as usize), Some(Slot::Wanted(..)));
                if !is_wanted && let Err(e) = state.keep(sent.kept(), self.account.get()) {
                    let text = format!("OOM when keeping a value of edge {}: {e}", id.0);
                    outcome = Err(Status::resource_exhausted(text));
                    break;
                }
                if let Err(why) = state.arrive(id, sent, &mut out) {
                    outcome = Err(unfit(id, &why));
                    break;
                }
            }
        }
        out.act();
        outcome
    }

    /// The value of an edge for an op, now or by completing it later.
    pub fn take_edge<S: RunningStep + 'static>(
        &self,
        id: EdgeId,
        env: &StepEnv,
        step: &Arc<S>,
        run: OpRun,
    ) -> Taken {
        let taken = self
            .state
            .lock()
            .take_edge(id, env, self.account.get(), || {
                (step.clone() as Arc<dyn RunningStep>, run)
            });
        match taken {
            Ok(Some((Sent::Value(d), dtype))) => match outputs(d.tensor, dtype) {
                Ok(outputs) => Taken::Value(outputs),
                Err(e) => Taken::Failed(e),
            },
            Ok(Some((Sent::Offer(offer), dtype))) => {
                take_offer(offer, step.clone(), run, dtype);
                Taken::Later
            }
            Ok(None) => Taken::Later,
            Err(e) => Taken::Failed(e),
        }
    }

    /// Fails every op that waits for an edge.
    pub fn fail_edges(&self, reason: &Status) {
        let mut failed = Vec::new();
        self.state.lock().edges.fail(reason, |_| true, &mut failed);
        fail_all(failed);
    }

    /// Fails every op that waits for an edge of that task.
    pub(crate) fn fail_edges_from(&self, sender: &str, reason: &Status) {
        let mut failed = Vec::new();
        self.state
            .lock()
            .edges
            .fail(reason, |e| *e.sender == *sender, &mut failed);
        fail_all(failed);
    }
}

fn unfit(id: EdgeId, why: &Unfit) -> Status {
    let EdgeId(number) = id;
    Status::internal(match why {
        Unfit::Unknown => format!("a value of edge {number} came to a task that has no such edge"),
        Unfit::Twice => format!("edge {number} has more than one value in a step"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cancellation, Device, Extensions, MemoryBudget, NodeInfo};
    use parking_lot::Mutex;

    /// Notes what its ops were completed with.
    struct Noted {
        env: Arc<StepEnv>,
        done: Mutex<Vec<(u32, Result<f32, String>)>>,
    }

    impl RunningStep for Noted {
        fn env(&self, _: &OpRun) -> &Arc<StepEnv> {
            &self.env
        }

        fn info(&self, _: &OpRun) -> &NodeInfo {
            unreachable!("no op of the test asks for its node")
        }

        fn complete(self: Arc<Self>, run: OpRun, outcome: Result<Outputs>) {
            let number = |mut o: Outputs| match o.pop().flatten() {
                Some(Value::Tensor(t)) => t.scalar_value::<f32>().unwrap(),
                _ => f32::NAN,
            };
            let outcome = outcome.map(number).map_err(|e| e.message);
            self.done.lock().push((run.node, outcome));
        }
    }

    fn step() -> Arc<Noted> {
        let memory = MemoryBudget::per_tensor(1 << 20);
        let device = Device::cpu("d".into(), "j", 1, 1, memory, Extensions::default());
        let env = Arc::new(StepEnv::new(1, Arc::new(device), Cancellation::new()));
        let done = Mutex::default();
        Arc::new(Noted { env, done })
    }

    fn table(senders: &[&str]) -> Arc<IncomingEdges> {
        let edge = |(i, sender): (usize, &&str)| IncomingEdge {
            id: EdgeId(i as u32),
            sender: (*sender).into(),
            key: format!("edge {i}").into(),
            dtype: DType::Float,
        };
        let edges = senders.iter().enumerate().map(edge).collect();
        Arc::new(IncomingEdges::new(edges).unwrap())
    }

    fn run(node: u32) -> OpRun {
        OpRun {
            node,
            frame: 0,
            iter: 0,
            dead: false,
            scheduled_ns: 0,
        }
    }

    fn value(edge: u32, number: f32) -> (EdgeId, Option<Tensor>) {
        (EdgeId(edge), Some(Tensor::scalar(number)))
    }

    #[test]
    fn either_side_may_come_first_also_before_the_step_is_known() {
        let (r, step) = (Rendezvous::new(), step());
        r.deliver([value(1, 1.5)].into_iter()).unwrap();
        assert!(!r.is_idle());
        r.open_edges(&table(&["a", "a", "b"])).unwrap();
        let first = r.take_edge(EdgeId(1), &step.env, &step, run(1));
        assert!(matches!(first, Taken::Value(_)));
        for edge in [0, 2] {
            let later = r.take_edge(EdgeId(edge), &step.env, &step, run(edge));
            assert!(matches!(later, Taken::Later));
        }
        assert!(!r.is_idle());
        r.deliver([value(2, 2.5), value(0, 0.5)].into_iter())
            .unwrap();
        assert_eq!(*step.done.lock(), [(2, Ok(2.5)), (0, Ok(0.5))]);
        assert!(r.is_idle());
    }

    #[test]
    fn a_lost_sender_fails_its_own_edges_and_an_abort_the_rest() {
        let (r, step) = (Rendezvous::new(), step());
        r.open_edges(&table(&["a", "b"])).unwrap();
        for edge in 0..2 {
            r.take_edge(EdgeId(edge), &step.env, &step, run(edge));
        }
        r.fail_from("b", &Status::unavailable("lost"));
        assert_eq!(*step.done.lock(), [(1, Err("lost".into()))]);
        r.abort(Status::aborted("stop"));
        assert_eq!(step.done.lock().last(), Some(&(0, Err("stop".into()))));
        let late = r.take_edge(EdgeId(0), &step.env, &step, run(0));
        assert!(matches!(late, Taken::Failed(e) if e.message == "stop"));
    }

    #[test]
    fn what_has_no_place_in_the_step_is_refused() {
        let (r, step) = (Rendezvous::new(), step());
        r.open_edges(&table(&["a"])).unwrap();
        assert!(r.deliver([value(1, 0.0)].into_iter()).is_err());
        r.deliver([value(0, 0.0)].into_iter()).unwrap();
        assert!(r.deliver([value(0, 0.0)].into_iter()).is_err());
        let wrong = Some(Tensor::scalar(1i32));
        let r = Rendezvous::new();
        r.open_edges(&table(&["a"])).unwrap();
        r.take_edge(EdgeId(0), &step.env, &step, run(7));
        r.deliver([(EdgeId(0), wrong)].into_iter()).unwrap();
        assert!(matches!(step.done.lock().last(), Some((7, Err(_)))));
        let gap = IncomingEdge {
            id: EdgeId(1),
            sender: "a".into(),
            key: "k".into(),
            dtype: DType::Float,
        };
        assert!(IncomingEdges::new(vec![gap]).is_err());
    }
}
