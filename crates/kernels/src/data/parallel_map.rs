//! Calls of a function beside each other: `ParallelMap`, and `MapAndBatch` on top of the same.
//!
//! A task takes elements from below one by one and starts a task for each call, as many as are
//! allowed; results wait in a line in the order of their elements. Whoever takes them takes the
//! first, or, where the order does not matter, the first that is there.

use super::access::{Mapped, Opened};
use super::batch::{Room, batch_elements};
use super::dataset::{Cardinality, Dataset, Element, Got, Iter, Next, Place, Recipe, Stream};
use super::define::{self, declared};
use super::function::{Captured, Fun, dataset_name, mapped};
use super::map::{Map, flag};
use super::state::{Restoring, Saving, State, got_state, state_got};
use super::task::{TaskHandle, Turnstile, Wakers, spawn};
use downpour_graph::{Code, Result, Status};
use downpour_runtime::{Built, Device, KernelBuilder, Registry};
use downpour_tensor::Tensor;
use parking_lot::Mutex;
use std::any::Any;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

pub(super) fn register(r: &mut Registry) {
    r.add("ParallelMapDataset", |b| parallel_map(b, "ParallelMap"));
    r.add("ParallelMapDatasetV2", |b| parallel_map(b, "ParallelMapV2"));
    for op in ["MapAndBatchDataset", "ExperimentalMapAndBatchDataset"] {
        r.add(op, map_and_batch);
    }
}

/// A number of calls beside each other; -1 leaves it to us.
pub(super) fn parallelism(calls: i64) -> Result<Option<usize>> {
    match calls {
        -1 => Ok(None),
        ..=0 => Err(Status::invalid_argument(
            "num_parallel_calls must be greater than zero.",
        )),
        n => Ok(Some(usize::try_from(n).unwrap_or(usize::MAX))),
    }
}

/// As many calls as can run at once, and one more to be ready when one ends.
pub(super) fn tuned(calls: Option<usize>) -> usize {
    calls.unwrap_or_else(|| downpour_runtime::num_threads() + 1)
}

/// The attribute `deterministic` or its predecessor `sloppy`: `None` leaves it to the options.
pub(super) fn ordered(b: &KernelBuilder<'_>) -> Result<Option<bool>> {
    if b.attrs().find("deterministic").is_none() {
        return Ok(flag(b, "sloppy")?.then_some(false));
    }
    match b.attrs().str("deterministic")? {
        "true" => Ok(Some(true)),
        "false" => Ok(Some(false)),
        "default" => Ok(None),
        other => Err(Status::invalid_argument(format!(
            "Unrecognized determinism policy: {other}"
        ))),
    }
}

fn parallel_map(b: &KernelBuilder<'_>, kind: &'static str) -> Result<Built> {
    let (spec, f, naming) = (declared(b)?, b.callee("f")?, dataset_name(b)?);
    let preserve = flag(b, "preserve_cardinality")?;
    let deterministic = ordered(b)?;
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let last = ctx.num_inputs() - 1;
        let calls = parallelism(define::int(ctx, last, "num_parallel_calls")?)?;
        let recipe = ParallelMap {
            input: input.clone(),
            f: Arc::new(Captured::new(ctx, &f, 1..last)?),
            name: naming.next(),
            preserve,
            calls,
            deterministic,
        };
        Dataset::new(kind, spec.clone(), vec![input], recipe)
    })
}

/// A function on each element, several calls at a time.
pub(super) struct ParallelMap {
    pub(super) input: Dataset,
    pub(super) f: Arc<Captured>,
    pub(super) name: String,
    pub(super) preserve: bool,
    pub(super) calls: Option<usize>,
    pub(super) deterministic: Option<bool>,
}

impl Recipe for ParallelMap {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let input = self.input.iterate(place)?;
        let f = self.f.at(place)?.of(&self.name, place);
        let ordered = self.deterministic.unwrap_or(place.deterministic);
        let calls = Calls::new(place, input, f, tuned(self.calls), ordered);
        Ok(Box::new(ParallelMapStream {
            calls,
            preserve: self.preserve,
        }))
    }
    fn cardinality(&self) -> Cardinality {
        if self.preserve {
            self.input.cardinality()
        } else {
            Cardinality::Unknown
        }
    }
    fn access(&self, place: &Place) -> Opened {
        Ok(Box::new(Mapped {
            input: self.input.access(place)?,
            f: self.f.at(place)?.of(&self.name, place),
        }))
    }
    fn is_ahead(&self, _: &Place) -> bool {
        true
    }
    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

struct ParallelMapStream {
    calls: Calls,
    preserve: bool,
}

impl Stream for ParallelMapStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move { self.calls.save().await.map(Some) })
    }

    fn restore(&mut self, state: State) -> Restoring<'_> {
        Box::pin(self.calls.restore(state))
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            match self.calls.next().await {
                Taken::End => Ok(None),
                Taken::Input(e) => Err(e),
                Taken::Call(outcome) => mapped(outcome, self.preserve),
            }
        })
    }

    fn ready(&mut self) -> Option<Got> {
        Some(match self.calls.ready()? {
            Taken::End => Ok(None),
            Taken::Input(e) => Err(e),
            Taken::Call(outcome) => mapped(outcome, self.preserve),
        })
    }
}

/// What came of one element.
#[derive(Clone)]
pub(super) enum Taken {
    Call(Result<Vec<Tensor>>),
    /// The element itself could not be had.
    Input(Status),
    End,
}

/// The place of one element in the line.
struct Slot {
    outcome: Arc<Mutex<Option<Taken>>>,
    /// The call; dropping it stops it.
    call: Option<TaskHandle>,
}

struct Line {
    slots: VecDeque<Slot>,
    running: usize,
    /// Nobody will take anything any more.
    closed: bool,
    runner: Wakers,
    taker: Wakers,
}

/// A walk's calls under way.
pub(super) struct Calls {
    line: Arc<Mutex<Line>>,
    /// The walk, which the runner takes elements from, and whoever saves it.
    input: Arc<Turnstile<Iter>>,
    f: Fun,
    /// From the first result asked for on.
    runner: Option<TaskHandle>,
    device: Arc<Device>,
    limit: usize,
    ordered: bool,
}

impl Calls {
    pub(super) fn new(place: &Place, input: Iter, f: Fun, limit: usize, ordered: bool) -> Calls {
        Calls {
            line: Arc::new(Mutex::new(Line {
                slots: VecDeque::new(),
                running: 0,
                closed: false,
                runner: Wakers::default(),
                taker: Wakers::default(),
            })),
            input: Arc::new(Turnstile::new(input)),
            f,
            runner: None,
            device: place.device.clone(),
            limit,
            ordered,
        }
    }

    /// What came of the next element.
    pub(super) async fn next(&mut self) -> Taken {
        if self.runner.is_none() {
            let (device, line) = (self.device.clone(), self.line.clone());
            let work = run(device, line, self.input.clone(), self.f.clone(), self.limit);
            self.runner = Some(spawn(&self.device, work));
        }
        poll_fn(|cx| {
            let mut line = self.line.lock();
            match line.take(self.ordered) {
                Some(taken) => {
                    let wakers = line.runner.take();
                    drop(line);
                    wakers.into_iter().for_each(|w| w.wake());
                    Poll::Ready(taken)
                }
                None => {
                    line.taker.add(cx);
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// What the calls have come to, when those under way are over.
    pub(super) async fn save(&mut self) -> Result<State> {
        let mut turn = self.input.enter().await;
        poll_fn(|cx| {
            let mut line = self.line.lock();
            if line.running == 0 {
                return Poll::Ready(());
            }
            line.taker.add(cx);
            Poll::Pending
        })
        .await;
        let mut state = State::default().with(turn.save().await?);
        let line = self.line.lock();
        for slot in &line.slots {
            let (whose, got) = match slot.outcome.lock().clone() {
                Some(Taken::Call(outcome)) => (0, outcome.map(Some)),
                Some(Taken::Input(e)) => (1, Err(e)),
                Some(Taken::End) | None => (1, Ok(None)),
            };
            state = state.with(State::of([whose]).with(got_state(&got)));
        }
        Ok(state)
    }

    /// Goes on from a state that `save` gave.
    pub(super) async fn restore(&mut self, mut state: State) -> Result<()> {
        self.input.enter().await.restore(state.below(0)?).await?;
        for mut below in state.inner.into_iter().skip(1) {
            let whose = below.number(0)?;
            let taken = match (whose, state_got(below.below(0)?)?) {
                (0, Ok(Some(element))) => Taken::Call(Ok(element)),
                (0, Err(e)) => Taken::Call(Err(e)),
                (_, Err(e)) => Taken::Input(e),
                // The walk is at its end and will say so again.
                (_, Ok(_)) => continue,
            };
            push(&self.line, taken);
        }
        Ok(())
    }

    fn ready(&mut self) -> Option<Taken> {
        let mut line = self.line.lock();
        let taken = line.take(self.ordered)?;
        let wakers = line.runner.take();
        drop(line);
        wakers.into_iter().for_each(|w| w.wake());
        Some(taken)
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        // The calls hold the line and the line holds the calls: this lets go of both.
        let slots = {
            let mut line = self.line.lock();
            line.closed = true;
            std::mem::take(&mut line.slots)
        };
        drop(slots);
    }
}

impl Line {
    fn ends_at(&self, at: usize) -> bool {
        let slot = self.slots.get(at);
        slot.is_some_and(|s| matches!(*s.outcome.lock(), Some(Taken::End)))
    }

    fn take(&mut self, ordered: bool) -> Option<Taken> {
        let within = if ordered { 1 } else { self.slots.len() };
        let at = self
            .slots
            .iter()
            .take(within)
            .enumerate()
            .position(|(i, slot)| {
                match &*slot.outcome.lock() {
                    None => false,
                    // The end comes when everything before it has been taken.
                    Some(Taken::End) => i == 0,
                    Some(_) => true,
                }
            })?;
        if self.ends_at(at) {
            // Whoever asks again hears it again.
            return Some(Taken::End);
        }
        let slot = self.slots.remove(at)?;
        slot.outcome.lock().take()
    }
}

/// Takes elements and starts calls until the walk ends.
async fn run(
    device: Arc<Device>,
    line: Arc<Mutex<Line>>,
    input: Arc<Turnstile<Iter>>,
    f: Fun,
    limit: usize,
) {
    // Should this task end in any other way, whoever waits must hear of it.
    let end = End(line.clone());
    loop {
        poll_fn(|cx| {
            let mut line = line.lock();
            if line.running < limit && line.slots.len() < limit {
                return Poll::Ready(());
            }
            line.runner.add(cx);
            Poll::Pending
        })
        .await;
        let mut turn = input.enter().await;
        match turn.next().await {
            Ok(Some(args)) => start_call(&device, &line, f.clone(), args),
            Ok(None) => return drop(end),
            Err(e) => push(&line, Taken::Input(e)),
        }
    }
}

/// Puts an end to the line.
struct End(Arc<Mutex<Line>>);

impl Drop for End {
    fn drop(&mut self) {
        push(&self.0, Taken::End);
    }
}

fn push(line: &Mutex<Line>, taken: Taken) {
    let wakers = {
        let mut line = line.lock();
        let outcome = Arc::new(Mutex::new(Some(taken)));
        line.slots.push_back(Slot {
            outcome,
            call: None,
        });
        line.taker.take()
    };
    wakers.into_iter().for_each(|w| w.wake());
}

fn start_call(device: &Arc<Device>, line: &Arc<Mutex<Line>>, f: Fun, args: Element) {
    let outcome = Arc::new(Mutex::new(None));
    {
        let mut line = line.lock();
        line.running += 1;
        let outcome = outcome.clone();
        line.slots.push_back(Slot {
            outcome,
            call: None,
        });
    }
    let mut running = Running {
        line: line.clone(),
        outcome: outcome.clone(),
        result: Err(Status::internal("a call ended without saying so")),
    };
    let call = spawn(device, async move {
        running.result = f.call(args).await;
        drop(running);
    });
    let mut line = line.lock();
    if line.closed {
        drop(line);
        return drop(call);
    }
    match line
        .slots
        .iter_mut()
        .rev()
        .find(|s| Arc::ptr_eq(&s.outcome, &outcome))
    {
        Some(slot) => slot.call = Some(call),
        // Over, and taken, already.
        None => {
            drop(line);
            drop(call);
        }
    }
}

/// A call under way; dropped, it gives its result to the line.
struct Running {
    line: Arc<Mutex<Line>>,
    outcome: Arc<Mutex<Option<Taken>>>,
    result: Result<Vec<Tensor>>,
}

impl Drop for Running {
    fn drop(&mut self) {
        let cancelled = Err(Status::cancelled("a call was cancelled"));
        let result = std::mem::replace(&mut self.result, cancelled);
        *self.outcome.lock() = Some(Taken::Call(result));
        let wakers = {
            let mut line = self.line.lock();
            line.running -= 1;
            let mut wakers = line.runner.take();
            wakers.extend(line.taker.take());
            wakers
        };
        wakers.into_iter().for_each(|w| w.wake());
    }
}

fn map_and_batch(b: &KernelBuilder<'_>) -> Result<Built> {
    let (spec, f) = (declared(b)?, b.callee("f")?);
    let preserve = flag(b, "preserve_cardinality")?;
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let last = ctx.num_inputs() - 3;
        let size = define::int(ctx, last, "batch_size")?;
        if size <= 0 {
            return Err(Status::invalid_argument(
                "batch_size must be greater than zero.",
            ));
        }
        let calls = parallelism(define::int(ctx, last + 1, "num_parallel_calls")?)?;
        let drop_rest = define::boolean(ctx, last + 2, "drop_remainder")?;
        let recipe = MapAndBatch {
            input: input.clone(),
            f: Arc::new(Captured::new(ctx, &f, 1..last)?),
            preserve,
            calls,
            size,
            drop_rest,
        };
        Dataset::new("MapAndBatch", spec.clone(), vec![input], recipe)
    })
}

/// A function on each element and the results in batches.
pub(super) struct MapAndBatch {
    input: Dataset,
    f: Arc<Captured>,
    preserve: bool,
    calls: Option<usize>,
    size: i64,
    drop_rest: bool,
}

/// The map below a batch as one with it, if it is a map.
pub(super) fn fused(map: &Dataset, size: i64, drop_rest: bool) -> Option<MapAndBatch> {
    let (input, f, preserve, calls) = if let Some(m) = map.recipe::<Map>() {
        (&m.input, &m.f, m.preserve, Some(1))
    } else {
        let m = map.recipe::<ParallelMap>()?;
        (&m.input, &m.f, m.preserve, m.calls)
    };
    Some(MapAndBatch {
        input: input.clone(),
        f: f.clone(),
        preserve,
        calls,
        size,
        drop_rest,
    })
}

impl Recipe for MapAndBatch {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let input = self.input.iterate(place)?;
        let f = self.f.at(place)?;
        // Even one call at a time may be a batch ahead.
        let calls = Calls::new(place, input, f, tuned(self.calls), true);
        Ok(Box::new(MapAndBatchStream {
            calls,
            device: place.device.clone(),
            preserve: self.preserve,
            size: usize::try_from(self.size).unwrap_or(usize::MAX),
            drop_rest: self.drop_rest,
        }))
    }
    fn cardinality(&self) -> Cardinality {
        if !self.preserve {
            return Cardinality::Unknown;
        }
        let rest = |n: i64| i64::from(n % self.size != 0 && !self.drop_rest);
        self.input.cardinality().map(|n| n / self.size + rest(n))
    }
    fn is_ahead(&self, _: &Place) -> bool {
        true
    }
}

struct MapAndBatchStream {
    calls: Calls,
    device: Arc<Device>,
    preserve: bool,
    size: usize,
    drop_rest: bool,
}

impl Stream for MapAndBatchStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move { self.calls.save().await.map(Some) })
    }

    fn restore(&mut self, state: State) -> Restoring<'_> {
        Box::pin(self.calls.restore(state))
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            let mut elements: Vec<Element> = Vec::new();
            let mut room = Room::new(&self.device);
            let mut failed: Option<Status> = None;
            // An element that fails has its place in the batch, which then fails as a whole.
            let mut count = 0;
            while count < self.size {
                count += 1;
                let outcome = match self.calls.next().await {
                    Taken::End => break,
                    Taken::Input(e) => Err(e),
                    Taken::Call(Err(e)) if e.code == Code::OutOfRange && !self.preserve => Err(e),
                    Taken::Call(outcome) => mapped(outcome, self.preserve),
                };
                match outcome {
                    Ok(Some(element)) if failed.is_none() => {
                        if let Err(e) = room.take(&element) {
                            failed = Some(e);
                            elements.clear();
                        } else {
                            elements.push(element);
                        }
                    }
                    Ok(_) => {}
                    Err(e) => {
                        failed.get_or_insert(e);
                    }
                }
            }
            if let Some(e) = failed.filter(|e| e.code != Code::OutOfRange) {
                return Err(e);
            }
            if elements.is_empty() || (self.drop_rest && elements.len() < self.size) {
                return Ok(None);
            }
            same_sizes(&mut elements)?;
            batch_elements(&self.device, &elements).map(Some)
        })
    }
}

/// Lets elements of as many values as the first take its shape, and refuses others.
fn same_sizes(elements: &mut [Element]) -> Result<()> {
    let Some((first, rest)) = elements.split_first_mut() else {
        return Ok(());
    };
    for element in rest {
        for (part, wanted) in element.iter_mut().zip(first.iter()) {
            if part.num_elements() != wanted.num_elements() {
                return Err(Status::invalid_argument(format!(
                    "Cannot add tensor to the batch: number of elements does not match. Shapes are: [tensor]: {}, [batch]: {}",
                    part.shape(),
                    wanted.shape()
                )));
            }
            if part.shape() != wanted.shape() {
                *part = part.clone().reshaped(wanted.shape().clone())?;
            }
        }
    }
    Ok(())
}
