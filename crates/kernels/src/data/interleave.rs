//! `ParallelInterleave`: as `Interleave`, with a task for each dataset that walks it ahead.
//!
//! A task takes elements from below and gives each a worker: a task that calls the function and
//! fills a pipe with the elements of what it returns. A worker gets the next slot of the cycle that
//! was never used, then the one that has been empty longest: the slot `Interleave` would give it, so
//! that the order is the same.

use super::dataset::{Dataset, Got, Iter, Next, Place, Recipe, Stream};
use super::define::{self, declared};
use super::flat::{Cycle, lengths};
use super::function::{Captured, Fun, dataset_name};
use super::parallel_map::{ordered, parallelism, tuned};
use super::prefetch::{Receiver, Sender, pipe};
use super::task::{Permits, TaskHandle, Wakers, spawn};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Most elements that a worker keeps where the op does not say.
const MAX_BUFFER: u64 = 64;

pub(super) fn register(r: &mut Registry) {
    for op in [
        "ParallelInterleaveDataset",
        "ExperimentalParallelInterleaveDataset",
    ] {
        r.add(op, |b| {
            parallel(b, "ParallelInterleave", Form::Legacy { sloppy: true })
        });
    }
    r.add("LegacyParallelInterleaveDatasetV2", |b| {
        parallel(
            b,
            "LegacyParallelInterleaveV2",
            Form::Legacy { sloppy: false },
        )
    });
    r.add("ParallelInterleaveDatasetV2", |b| {
        parallel(b, "ParallelInterleaveV2", Form::Calls)
    });
    r.add("ParallelInterleaveDatasetV3", |b| {
        parallel(b, "ParallelInterleaveV3", Form::Calls)
    });
    r.add("ParallelInterleaveDatasetV4", |b| {
        parallel(b, "ParallelInterleaveV4", Form::Buffers)
    });
}

/// What follows the captured inputs.
#[derive(Clone, Copy)]
enum Form {
    /// Cycle, block, perhaps `sloppy`, buffer, prefetch.
    Legacy { sloppy: bool },
    /// Cycle, block, number of calls.
    Calls,
    /// Cycle, block, buffer, prefetch, number of calls.
    Buffers,
}

fn parallel(b: &KernelBuilder<'_>, kind: &'static str, form: Form) -> Result<Built> {
    let (spec, f, naming) = (declared(b)?, b.callee("f")?, dataset_name(b)?);
    let declared_order = ordered(b)?;
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let (mut shape, last) = arguments(ctx, form)?;
        shape.deterministic = shape.deterministic.or(declared_order);
        let recipe = Parallel {
            input: input.clone(),
            f: Captured::new(ctx, &f, 1..last)?,
            name: naming.next(),
            shape,
        };
        Dataset::new(kind, spec.clone(), vec![input], recipe)
    })
}

/// How many, and how far ahead.
#[derive(Clone, Copy)]
struct ShapeOf {
    cycle: usize,
    block: u64,
    /// Elements each worker keeps.
    buffer: usize,
    /// Workers beyond those of the cycle.
    prefetch: usize,
    /// Walks and calls under way at once.
    calls: usize,
    deterministic: Option<bool>,
}

/// The arguments behind the captured inputs, and where those end.
fn arguments(ctx: &OpContext<'_>, form: Form) -> Result<(ShapeOf, usize)> {
    let n = ctx.num_inputs();
    let last = n - match form {
        Form::Legacy { sloppy: true } | Form::Buffers => 5,
        Form::Legacy { sloppy: false } => 4,
        Form::Calls => 3,
    };
    let mut cycle = define::int(ctx, last, "cycle_length")?;
    let calls = match form {
        Form::Legacy { .. } => None,
        _ => parallelism(define::int(ctx, n - 1, "num_parallel_calls")?)?,
    };
    if cycle == -1 && !matches!(form, Form::Legacy { .. }) {
        cycle = calls.map_or(downpour_runtime::num_threads(), |c| c) as i64;
    }
    let (cycle, block) = lengths(cycle, define::int(ctx, last + 1, "block_length")?)?;
    if let Some(calls) = calls
        && calls > cycle
    {
        return Err(Status::invalid_argument(format!(
            "num_parallel_calls must less than or equal to cycle_length. Current settings: num_parallel_calls={calls}, cycle_length={cycle}"
        )));
    }
    let (mut buffer, mut prefetch, mut deterministic) = (-1, 1, None);
    let ahead = match form {
        Form::Calls => None,
        Form::Legacy { sloppy: true } => {
            deterministic = Some(!define::boolean(ctx, last + 2, "sloppy")?);
            Some(last + 3)
        }
        _ => Some(last + 2),
    };
    if let Some(at) = ahead {
        buffer = define::int(ctx, at, "buffer_output_elements")?;
        prefetch = define::int(ctx, at + 1, "prefetch_input_elements")?;
        let legacy = matches!(form, Form::Legacy { .. });
        if buffer < -1 || buffer == 0 {
            return Err(Status::invalid_argument(if legacy {
                "`buffer_output_elements` must be > 0".to_owned()
            } else {
                format!("`buffer_output_elements` must be -1 or > 0 but is {buffer} instead.")
            }));
        }
        if prefetch < -1 || (legacy && prefetch == -1) {
            return Err(Status::invalid_argument(if legacy {
                "`prefetch_input_elements` must be >= 0".to_owned()
            } else {
                format!("`prefetch_input_elements` must be -1 or > 0 but is {prefetch} instead.")
            }));
        }
    }
    let own = block.min(MAX_BUFFER) as usize;
    let shape = ShapeOf {
        cycle,
        block,
        buffer: usize::try_from(buffer).unwrap_or(own),
        prefetch: usize::try_from(prefetch).unwrap_or(cycle.min(downpour_runtime::num_threads())),
        calls: calls.unwrap_or_else(|| cycle.max(tuned(None))),
        deterministic,
    };
    Ok((shape, last))
}

struct Parallel {
    input: Dataset,
    f: Captured,
    name: String,
    shape: ShapeOf,
}

impl Recipe for Parallel {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let ordered = self.shape.deterministic.unwrap_or(place.deterministic);
        Ok(Box::new(ParallelStream {
            shared: Arc::new(Mutex::new(Shared {
                slots: Vec::new(),
                empty: VecDeque::new(),
                ahead: VecDeque::new(),
                ended: false,
                visited: 0,
                runner: Wakers::default(),
                taker: Wakers::default(),
            })),
            start: Some((
                self.input.iterate(place)?,
                self.f.at(place)?.of(&self.name, place),
            )),
            place: place.clone(),
            shape: self.shape,
            cycle: Cycle::new(self.shape.cycle, self.shape.block),
            ordered,
            wake_runner: false,
            runner: None,
        }))
    }
    fn is_ahead(&self, _: &Place) -> bool {
        true
    }
}

/// A dataset being walked ahead.
struct Worker {
    pipe: Receiver,
    _task: TaskHandle,
}

struct Shared {
    /// The cycle, as far as it has been used.
    slots: Vec<Option<Worker>>,
    /// Slots whose worker has ended, in that order.
    empty: VecDeque<usize>,
    /// Workers for which there is no slot yet.
    ahead: VecDeque<Worker>,
    /// There will be no more workers.
    ended: bool,
    /// How many slots the taker has come to: the runner fills only some beyond them, however
    /// long the cycle.
    visited: usize,
    runner: Wakers,
    taker: Wakers,
}

struct ParallelStream {
    shared: Arc<Mutex<Shared>>,
    start: Option<(Iter, Fun)>,
    place: Place,
    shape: ShapeOf,
    cycle: Cycle,
    ordered: bool,
    wake_runner: bool,
    runner: Option<TaskHandle>,
}

impl Stream for ParallelStream {
    fn next(&mut self) -> Next<'_> {
        if let Some((input, f)) = self.start.take() {
            let work = run(
                self.place.clone(),
                self.shared.clone(),
                input,
                f,
                self.shape,
            );
            self.runner = Some(spawn(&self.place.device, work));
        }
        Box::pin(poll_fn(|cx| self.poll(cx)))
    }
}

impl ParallelStream {
    fn poll(&mut self, cx: &Context<'_>) -> Poll<Got> {
        let shared = self.shared.clone();
        let mut shared = shared.lock();
        let mut gone = Vec::new();
        let got = self.poll_slots(&mut shared, cx, &mut gone);
        let mut wakers = Vec::new();
        if std::mem::take(&mut self.wake_runner) || !gone.is_empty() {
            wakers = shared.runner.take();
        }
        drop(shared);
        // Workers stop, and the runner is woken, outside the lock.
        drop(gone);
        wakers.into_iter().for_each(|w| w.wake());
        got
    }

    fn poll_slots(
        &mut self,
        shared: &mut Shared,
        cx: &Context<'_>,
        gone: &mut Vec<Worker>,
    ) -> Poll<Got> {
        // Without order, a whole round is looked at for somebody who is ready.
        let mut passed = 0;
        loop {
            let open = shared.slots.iter().any(Option::is_some);
            if !open && shared.ended && shared.ahead.is_empty() {
                return Poll::Ready(Ok(None));
            }
            let at = self.cycle.at;
            if at >= shared.visited {
                shared.visited = at + 1;
                self.wake_runner = true;
            }
            match shared.slots.get_mut(at) {
                Some(Some(worker)) => match worker.pipe.poll(cx) {
                    Poll::Ready(Ok(None)) => {
                        gone.extend(shared.slots[at].take());
                        shared.give_slot(at);
                        self.cycle.turn();
                        passed = 0;
                        continue;
                    }
                    Poll::Ready(got) => {
                        self.cycle.gave();
                        return Poll::Ready(got);
                    }
                    Poll::Pending if self.ordered => return Poll::Pending,
                    Poll::Pending => {}
                },
                // Never used: the runner has not come that far.
                None if !shared.ended => {
                    shared.taker.add(cx);
                    if self.ordered {
                        return Poll::Pending;
                    }
                }
                // Empty, but a worker will come.
                Some(None) if !shared.ended => {
                    shared.taker.add(cx);
                    if self.ordered {
                        return Poll::Pending;
                    }
                }
                _ => {}
            }
            if at >= shared.slots.len() {
                // Nothing beyond has been used either.
                self.cycle.at = self.cycle.length - 1;
            }
            self.cycle.turn();
            passed += 1;
            if passed > shared.slots.len() + 1 {
                shared.taker.add(cx);
                return Poll::Pending;
            }
        }
    }
}

impl Shared {
    /// Gives a slot that has become empty to the next worker, or notes it.
    fn give_slot(&mut self, at: usize) {
        match self.ahead.pop_front() {
            Some(worker) => self.slots[at] = Some(worker),
            None => self.empty.push_back(at),
        }
    }

    /// Puts a worker where `Interleave` would: the first round uses every slot of the cycle once
    /// before a slot whose worker has ended is used again, however early that worker ended.
    fn place(&mut self, worker: Worker, cycle: usize) {
        if self.slots.len() < cycle {
            return self.slots.push(Some(worker));
        }
        match self.empty.pop_front() {
            Some(at) => self.slots[at] = Some(worker),
            None => self.ahead.push_back(worker),
        }
    }
}

/// Takes elements and gives each a worker, as many as there is room for.
async fn run(place: Place, shared: Arc<Mutex<Shared>>, mut input: Iter, f: Fun, shape: ShapeOf) {
    let end = End(shared.clone());
    let permits = Permits::new(shape.calls);
    let mut count = 0;
    loop {
        poll_fn(|cx| {
            let mut shared = shared.lock();
            let room = if shared.slots.len() < shape.cycle {
                shared.slots.len() < shared.visited.saturating_add(shape.calls)
            } else {
                !shared.empty.is_empty() || shared.ahead.len() < shape.prefetch
            };
            if room {
                return Poll::Ready(());
            }
            shared.runner.add(cx);
            Poll::Pending
        })
        .await;
        let (sender, pipe) = pipe(Some(shape.buffer));
        let task = match input.next().await {
            Ok(None) => return drop(end),
            Ok(Some(args)) => {
                let inner = place.inner(count);
                count += 1;
                let work = work(f.clone(), args, inner, sender, permits.clone());
                spawn(&place.device, work)
            }
            Err(e) => spawn(&place.device, async move {
                sender.push(Err(e));
                sender.push(Ok(None));
            }),
        };
        let worker = Worker { pipe, _task: task };
        let wakers = {
            let mut shared = shared.lock();
            shared.place(worker, shape.cycle);
            shared.taker.take()
        };
        wakers.into_iter().for_each(|w| w.wake());
    }
}

/// Walks the dataset of one element.
async fn work(
    f: Fun,
    args: Vec<downpour_tensor::Tensor>,
    place: Place,
    sender: Sender,
    permits: Permits,
) {
    let walk = {
        let _permit = permits.take().await;
        f.walk(args, &place).await
    };
    let mut walk = match walk {
        Ok(walk) => walk,
        Err(e) => {
            sender.push(Err(e));
            return sender.push(Ok(None));
        }
    };
    loop {
        sender.room().await;
        let got = {
            let _permit = permits.take().await;
            walk.next().await
        };
        let ended = matches!(got, Ok(None));
        sender.push(got);
        if ended {
            return;
        }
    }
}

/// Says that there will be no more workers.
struct End(Arc<Mutex<Shared>>);

impl Drop for End {
    fn drop(&mut self) {
        let wakers = {
            let mut shared = self.0.lock();
            shared.ended = true;
            shared.taker.take()
        };
        wakers.into_iter().for_each(|w| w.wake());
    }
}
