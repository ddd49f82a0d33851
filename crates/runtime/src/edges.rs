//! Values that other tasks push to a step along numbered edges: an array of slots in the step's rendezvous.
//!
//! An edge between two tasks of ours gets its number when the graph is split, so that a step formats, hashes and compares
//! no key. The executor takes values out of their slots, or leaves there which ops wait for them, all that it wants at once
//! ([`Rendezvous::take_edges`]); what comes is handed to the step together too. No closure is made and nothing is
//! registered for a single value. A wait is counted once per sender (see [`PeerWait`]).

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
    /// The sender of each edge, by its place among the senders.
    sent_by: Vec<u32>,
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
        let place = |e: &IncomingEdge| senders.binary_search(&e.sender).unwrap_or(0) as u32;
        Ok(IncomingEdges {
            sent_by: edges.iter().map(place).collect(),
            senders,
            edges,
        })
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.edges.is_empty()
    }

    /// The edge of that number.
    pub fn get(&self, id: EdgeId) -> Option<&IncomingEdge> {
        self.edges.get(id.0 as usize)
    }

    fn sender_of(&self, id: EdgeId) -> usize {
        self.sent_by.get(id.0 as usize).map_or(0, |s| *s as usize)
    }
}

/// The way to a task for what a step pushes to it along numbered edges.
pub trait PeerSink: Send + Sync {
    /// Sends values of the step, and leaves none behind.
    fn push(&self, step_id: u64, values: &mut Vec<(EdgeId, Option<Tensor>)>) -> Result<()>;
}

/// Waits of one step for values of one peer. Dropped when none is left.
pub trait PeerWait: Send {
    /// So many more values are waited for.
    fn begin(&self, count: usize);

    /// So many less.
    fn end(&self, count: usize);
}

/// An op and the value that came for it; a missing one is dead.
pub type Received = (OpRun, Option<Tensor>);

/// What the executor finds when ops want the values of edges.
#[derive(Default)]
pub struct TakenEdges {
    /// Values that are there.
    pub here: Vec<Received>,
    /// Ops whose values will not come.
    pub failed: Vec<(OpRun, Status)>,
    offers: Vec<(Offer, OpRun, DType)>,
}

enum Slot {
    Empty,
    Here(Sent),
    Wanted(OpRun),
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
    /// The step whose ops wait, while some do.
    waiter: Option<Arc<dyn RunningStep>>,
    /// How many values of each sender are waited for.
    waits: Vec<Waits>,
}

/// Of one sender.
#[derive(Default)]
struct Waits {
    count: usize,
    /// How many of them are new, or over, and not told yet.
    news: isize,
    told: Option<Box<dyn PeerWait>>,
}

/// What the step is to be told behind the lock.
#[derive(Default)]
struct Completions {
    step: Option<Arc<dyn RunningStep>>,
    received: Vec<Received>,
    failed: Vec<(OpRun, Status)>,
    offers: Vec<(Offer, OpRun, DType)>,
}

impl Completions {
    /// Tells it; must be called without the lock.
    fn act(self) {
        let Some(step) = self.step else {
            return;
        };
        for (offer, run, dtype) in self.offers {
            take_offer(offer, step.clone(), run, dtype);
        }
        for (run, reason) in self.failed {
            step.clone().complete(run, Err(reason));
        }
        if !self.received.is_empty() {
            step.receive(self.received);
        }
    }
}

fn take_offer(offer: Offer, step: Arc<dyn RunningStep>, run: OpRun, dtype: DType) {
    offer(Box::new(move |delivery: Result<Delivery>| {
        step.complete(run, delivery.and_then(|d| outputs(d.tensor, dtype)));
    }));
}

/// What an op that receives gives out.
fn outputs(tensor: Option<Tensor>, dtype: DType) -> Result<Outputs> {
    let tensor = fitting(tensor, dtype)?;
    Ok(smallvec![tensor.map(Value::Tensor)])
}

/// Refuses a value of another type than the edge's.
fn fitting(tensor: Option<Tensor>, dtype: DType) -> Result<Option<Tensor>> {
    match tensor {
        Some(t) if t.dtype() != dtype => Err(Status::invalid_argument(format!(
            "a tensor of type {} was sent where {dtype} is received",
            t.dtype()
        ))),
        tensor => Ok(tensor),
    }
}

impl Slots {
    pub(crate) fn is_idle(&self) -> bool {
        self.here == 0 && self.waits.iter().all(|w| w.count == 0)
    }

    /// Notes that one more value of a sender is waited for, or one less.
    fn count(&mut self, sender: usize, change: isize) {
        if let Some(waits) = self.waits.get_mut(sender) {
            waits.news += change;
        }
    }

    /// Has those count who must know that values are waited for, and fails the waits for a sender that will not come.
    fn begin_waits(
        &mut self,
        table: &IncomingEdges,
        env: &StepEnv,
        failed: &mut Vec<(OpRun, Status)>,
    ) {
        for (place, sender) in table.senders.iter().enumerate() {
            let Some(waits) = self.waits.get_mut(place) else {
                continue;
            };
            if waits.news <= 0 || waits.told.is_some() {
                continue;
            }
            let Some(remote) = &env.remote else {
                continue;
            };
            match remote.wait_for(env, sender) {
                Ok(told) => waits.told = Some(told),
                Err(reason) => {
                    let all = self.take_out(table, |e| e.sender == *sender);
                    failed.extend(all.into_iter().map(|run| (run, reason.clone())));
                }
            }
        }
        self.settle();
    }

    /// Takes out who waits for an edge that `which` chooses.
    fn take_out(
        &mut self,
        table: &IncomingEdges,
        which: impl Fn(&IncomingEdge) -> bool,
    ) -> Vec<OpRun> {
        let mut runs = Vec::new();
        for edge in table.edges.iter().filter(|e| which(e)) {
            if let Some(slot @ Slot::Wanted(_)) = self.slots.get_mut(edge.id.0 as usize)
                && let Slot::Wanted(run) = std::mem::replace(slot, Slot::Over)
            {
                runs.push(run);
                self.count(table.sender_of(edge.id), -1);
            }
        }
        runs
    }

    /// Tells those who count what was noted.
    fn settle(&mut self) {
        let mut is_waiting = false;
        for waits in &mut self.waits {
            let news = std::mem::take(&mut waits.news);
            waits.count = waits.count.saturating_add_signed(news);
            match (&waits.told, news) {
                (Some(told), 1..) => told.begin(news.unsigned_abs()),
                (Some(told), ..=-1) => told.end(news.unsigned_abs()),
                _ => {}
            }
            if waits.count == 0 {
                waits.told = None;
            }
            is_waiting |= waits.count > 0;
        }
        if !is_waiting {
            self.waiter = None;
        }
    }

    /// Takes out who waits for an edge that `which` chooses, to be failed.
    fn fail(&mut self, reason: &Status, which: impl Fn(&IncomingEdge) -> bool) -> Failed {
        let mut out = Completions {
            step: self.waiter.clone(),
            ..Completions::default()
        };
        if let Some(table) = self.table.clone() {
            let runs = self.take_out(&table, which);
            out.failed = runs.into_iter().map(|run| (run, reason.clone())).collect();
            self.settle();
        }
        Failed(out)
    }
}

/// Ops that waited and must hear that nothing comes.
#[must_use]
pub(crate) struct Failed(Completions);

impl Failed {
    /// Fails them; without the lock.
    pub(crate) fn tell(self) {
        self.0.act();
    }
}

impl State {
    /// Drops what is in the slots, and gives back who waits there.
    pub(crate) fn abort_edges(&mut self, reason: &Status) -> Failed {
        let failed = self.edges.fail(reason, |_| true);
        self.edges.early.clear();
        for slot in &mut self.edges.slots {
            *slot = Slot::Over;
        }
        self.edges.here = 0;
        failed
    }

    /// Takes what is in the slot of an edge; if nothing is, `run` is left there.
    fn take_edge(
        &mut self,
        table: &IncomingEdges,
        (id, run): (EdgeId, OpRun),
        account: Option<&Arc<Account>>,
        out: &mut TakenEdges,
    ) {
        let slot = self.edges.slots.get_mut(id.0 as usize);
        let (Some(edge), Some(slot)) = (table.get(id), slot) else {
            return out.failed.push((run, unfit(id, &Unfit::Unknown)));
        };
        match std::mem::replace(slot, Slot::Over) {
            Slot::Here(sent) => {
                self.edges.here -= 1;
                self.release(sent.kept(), account);
                match sent {
                    Sent::Value(d) => match fitting(d.tensor, edge.dtype) {
                        Ok(tensor) => out.here.push((run, tensor)),
                        Err(e) => out.failed.push((run, e)),
                    },
                    Sent::Offer(offer) => out.offers.push((offer, run, edge.dtype)),
                }
            }
            Slot::Empty => {
                *slot = Slot::Wanted(run);
                self.edges.count(table.sender_of(id), 1);
            }
            found @ (Slot::Wanted(_) | Slot::Over) => {
                *slot = found;
                out.failed.push((run, unfit(id, &Unfit::Twice)));
            }
        }
    }

    /// Puts a value where its op will look, or gives it to the op.
    fn arrive(
        &mut self,
        table: &IncomingEdges,
        id: EdgeId,
        sent: Sent,
        out: &mut Completions,
    ) -> Result<(), Unfit> {
        let slot = self.edges.slots.get_mut(id.0 as usize);
        let (Some(edge), Some(slot)) = (table.get(id), slot) else {
            return Err(Unfit::Unknown);
        };
        match std::mem::replace(slot, Slot::Over) {
            Slot::Empty => {
                *slot = Slot::Here(sent);
                self.edges.here += 1;
            }
            Slot::Wanted(run) => {
                self.edges.count(table.sender_of(id), -1);
                match sent {
                    Sent::Value(d) => match fitting(d.tensor, edge.dtype) {
                        Ok(tensor) => out.received.push((run, tensor)),
                        Err(e) => out.failed.push((run, e)),
                    },
                    Sent::Offer(offer) => out.offers.push((offer, run, edge.dtype)),
                }
            }
            found @ (Slot::Here(_) | Slot::Over) => {
                *slot = found;
                return Err(Unfit::Twice);
            }
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
            let state = &mut *state;
            state.edges.table = Some(table.clone());
            (state.edges.slots).resize_with(table.edges.len(), || Slot::Empty);
            (state.edges.waits).resize_with(table.senders.len(), Waits::default);
            let early = std::mem::take(&mut state.edges.early);
            state.edges.here -= early.len();
            early.into_iter().try_for_each(|(id, sent)| {
                let arrived = state.arrive(table, id, sent, &mut out);
                arrived.map_err(|why| (id, why))
            })
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
            let state = &mut *state;
            if let Some(reason) = &state.aborted {
                return Err(reason.clone());
            }
            let table = state.edges.table.clone();
            out.step.clone_from(&state.edges.waiter);
            for (id, sent) in values {
                // Paid for until it is taken; what is waited for goes on at once.
                let slot = state.edges.slots.get(id.0 as usize);
                if !matches!(slot, Some(Slot::Wanted(_)))
                    && let Err(e) = state.keep(sent.kept(), self.account.get())
                {
                    let text = format!("OOM when keeping a value of edge {}: {e}", id.0);
                    outcome = Err(Status::resource_exhausted(text));
                    break;
                }
                let Some(table) = &table else {
                    state.edges.here += 1;
                    state.edges.early.push((id, sent));
                    continue;
                };
                if let Err(why) = state.arrive(table, id, sent, &mut out) {
                    outcome = Err(unfit(id, &why));
                    break;
                }
            }
            state.edges.settle();
        }
        out.act();
        outcome
    }

    /// Takes the values of edges that ops of `step` want. Ops that are not in `out` then get theirs by
    /// [`RunningStep::receive`], or fail.
    pub fn take_edges<S: RunningStep + 'static>(
        &self,
        env: &StepEnv,
        step: &Arc<S>,
        wanted: impl Iterator<Item = (EdgeId, OpRun)>,
        out: &mut TakenEdges,
    ) {
        {
            let mut state = self.state.lock();
            let state = &mut *state;
            let (table, waiter) = (state.edges.table.clone(), &state.edges.waiter);
            let refusal = match (&state.aborted, &table, waiter) {
                (Some(reason), ..) => Some(reason.clone()),
                (_, None, _) => Some(Status::internal("a step's edges are not open")),
                (.., Some(waiter))
                    if !std::ptr::addr_eq(Arc::as_ptr(waiter), Arc::as_ptr(step)) =>
                {
                    Some(Status::internal("a step runs twice on one task"))
                }
                _ => None,
            };
            if let Some(reason) = refusal {
                return out
                    .failed
                    .extend(wanted.map(|(_, run)| (run, reason.clone())));
            }
            let Some(table) = table else { return };
            for wanted in wanted {
                state.take_edge(&table, wanted, self.account.get(), out);
            }
            if state.edges.waits.iter().any(|w| w.news > 0) {
                state.edges.waiter = Some(step.clone());
                state.edges.begin_waits(&table, env, &mut out.failed);
            }
        }
        for (offer, run, dtype) in out.offers.drain(..) {
            take_offer(offer, step.clone(), run, dtype);
        }
    }

    /// Fails every op that waits for an edge.
    pub fn fail_edges(&self, reason: &Status) {
        let failed = self.state.lock().edges.fail(reason, |_| true);
        failed.tell();
    }

    /// Fails every op that waits for an edge of that task.
    pub(crate) fn fail_edges_from(&self, sender: &str, reason: &Status) {
        let failed = (self.state.lock().edges).fail(reason, |e| *e.sender == *sender);
        failed.tell();
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

    /// Takes edges, whose numbers are those of the ops too.
    fn take(r: &Rendezvous, step: &Arc<Noted>, edges: &[u32]) -> TakenEdges {
        let mut out = TakenEdges::default();
        let wanted = edges.iter().map(|&e| (EdgeId(e), run(e)));
        r.take_edges(&step.env, step, wanted, &mut out);
        out
    }

    fn nodes(taken: &TakenEdges) -> Vec<u32> {
        taken.here.iter().map(|(run, _)| run.node).collect()
    }

    #[test]
    fn either_side_may_come_first_also_before_the_step_is_known() {
        let (r, step) = (Rendezvous::new(), step());
        r.deliver([value(1, 1.5)].into_iter()).unwrap();
        assert!(!r.is_idle());
        r.open_edges(&table(&["a", "a", "b"])).unwrap();
        let taken = take(&r, &step, &[0, 1, 2]);
        assert_eq!((nodes(&taken), taken.failed.len()), (vec![1], 0));
        assert!(!r.is_idle());
        r.deliver([value(2, 2.5), value(0, 0.5)].into_iter())
            .unwrap();
        assert_eq!(*step.done.lock(), [(2, Ok(2.5)), (0, Ok(0.5))]);
        assert!(r.is_idle());
        // Nobody waits: the rendezvous does not keep the step.
        assert_eq!(Arc::strong_count(&step), 1);
    }

    #[test]
    fn a_lost_sender_fails_its_own_edges_and_an_abort_the_rest() {
        let (r, step) = (Rendezvous::new(), step());
        r.open_edges(&table(&["a", "b"])).unwrap();
        take(&r, &step, &[0, 1]);
        r.fail_from("b", &Status::unavailable("lost"));
        assert_eq!(*step.done.lock(), [(1, Err("lost".into()))]);
        r.abort(Status::aborted("stop"));
        assert_eq!(step.done.lock().last(), Some(&(0, Err("stop".into()))));
        let late = take(&r, &step, &[0]);
        assert!(matches!(&late.failed[..], [(_, e)] if e.message == "stop"));
        assert_eq!(Arc::strong_count(&step), 1);
    }

    #[test]
    fn what_has_no_place_in_the_step_is_refused() {
        let (r, step) = (Rendezvous::new(), step());
        r.open_edges(&table(&["a"])).unwrap();
        assert!(r.deliver([value(1, 0.0)].into_iter()).is_err());
        r.deliver([value(0, 0.0)].into_iter()).unwrap();
        assert!(r.deliver([value(0, 0.0)].into_iter()).is_err());
        assert_eq!(nodes(&take(&r, &step, &[0])), [0]);
        let wrong = Some(Tensor::scalar(1i32));
        let r = Rendezvous::new();
        r.open_edges(&table(&["a"])).unwrap();
        take(&r, &step, &[0]);
        assert_eq!(take(&r, &step, &[0, 1]).failed.len(), 2);
        r.deliver([(EdgeId(0), wrong)].into_iter()).unwrap();
        assert!(matches!(step.done.lock().last(), Some((0, Err(_)))));
        let gap = IncomingEdge {
            id: EdgeId(1),
            sender: "a".into(),
            key: "k".into(),
            dtype: DType::Float,
        };
        assert!(IncomingEdges::new(vec![gap]).is_err());
    }
}
