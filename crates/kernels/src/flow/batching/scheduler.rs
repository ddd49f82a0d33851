//! When a batch is complete: it is full, or its first member has waited long enough, and one of
//! the slots for batches under way is free.
//!
//! ```text
//! submit ─► open batch of a queue ─(full, or its time is up)─► slot free? ─► process ─► slot free
//! ```

use super::rows::{concat, cut, rows};
use downpour_graph::{Result, Status};
use downpour_runtime::{AsyncOp, Caller, CancelToken, Device, Resource, Timer};
use downpour_tensor::Tensor;
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// How batches are made.
#[derive(Clone, Debug)]
pub(super) struct Options {
    /// Batches under way at once.
    pub(super) slots: usize,
    /// Most rows of a batch.
    pub(super) max_batch: usize,
    /// How long the first member of a batch waits for others.
    pub(super) timeout: Duration,
    /// Batches that may wait in one queue.
    pub(super) max_enqueued: usize,
    /// Sizes that batches are padded to, ascending; any if empty.
    pub(super) allowed: Vec<usize>,
    /// Whether inputs larger than a batch are spread over several.
    pub(super) split: bool,
}

impl Options {
    /// The size that a batch of so many rows is padded to.
    pub(super) fn padded(&self, size: usize) -> usize {
        let fits = self.allowed.iter().find(|a| **a >= size);
        fits.copied().unwrap_or(size)
    }
}

/// What is done with a batch; calls the callback when its slot is free again.
pub(super) type Process = dyn Fn(&Options, Vec<Part>, Box<dyn FnOnce() + Send>) + Send + Sync;

/// One op's run: it ends when all parts of it are done.
pub(super) struct Job {
    op: Mutex<Option<(AsyncOp, Option<CancelToken>)>>,
    outcome: Mutex<(Vec<Option<Vec<Tensor>>>, usize)>,
    device: Arc<Device>,
    pub(super) captured: Vec<Tensor>,
    pub(super) id: i64,
}

impl Job {
    fn set_token(&self, token: CancelToken) {
        if let Some((_, own)) = &mut *self.op.lock() {
            *own = Some(token);
        }
    }

    /// Ends the op, unless it is over.
    pub(super) fn end(&self, outcome: Result<Vec<Tensor>>) {
        let op = self.op.lock().take();
        if let Some((op, token)) = op {
            if let Some(token) = token {
                op.env().cancellation.deregister(token);
            }
            op.finish(outcome);
        }
    }

    /// Takes note of what became of part `index`, and ends the op with the last one.
    pub(super) fn part_done(&self, index: usize, outputs: Vec<Tensor>) {
        let parts = {
            let mut outcome = self.outcome.lock();
            outcome.0[index] = Some(outputs);
            outcome.1 -= 1;
            if outcome.1 > 0 {
                return;
            }
            std::mem::take(&mut outcome.0)
        };
        let mut parts: Vec<Vec<Tensor>> = parts.into_iter().flatten().collect();
        if parts.len() == 1 {
            return self.end(Ok(parts.remove(0)));
        }
        let count = parts.first().map_or(0, Vec::len);
        let joined = (0..count).map(|i| {
            let column: Vec<&Tensor> = parts.iter().filter_map(|p| p.get(i)).collect();
            concat(&self.device, &column)
        });
        self.end(joined.collect());
    }

    /// Calls functions in the op's name, if it is not over.
    pub(super) fn caller(&self) -> Option<Result<Arc<Caller>>> {
        self.op.lock().as_ref().map(|(op, _)| op.caller())
    }
}

/// Some rows of a job's inputs.
pub(super) struct Part {
    pub(super) job: Arc<Job>,
    pub(super) index: usize,
    pub(super) inputs: Vec<Tensor>,
    pub(super) size: usize,
}

struct Pending {
    id: u64,
    parts: Vec<Part>,
    size: usize,
    /// Takes no more parts.
    closed: bool,
    /// Has waited long enough.
    due: bool,
}

#[derive(Default)]
struct State {
    queues: HashMap<String, VecDeque<Pending>>,
    active: usize,
    next: u64,
}

/// Makes batches of what ops submit.
pub(super) struct Batcher {
    pub(super) options: Options,
    process: Box<Process>,
    timer: Timer,
    state: Mutex<State>,
}

impl Resource for Batcher {
    fn type_name(&self) -> &'static str {
        "N10tensorflow13BatchResourceE"
    }
}

impl Batcher {
    pub(super) fn new(options: Options, timer: Timer, process: Box<Process>) -> Batcher {
        Batcher {
            options,
            process,
            timer,
            state: Mutex::default(),
        }
    }

    /// Adds an op's first `count` inputs to a batch of `queue`; its other inputs are captured.
    pub(super) fn submit(self: &Arc<Self>, queue: &str, mut op: AsyncOp, count: usize, id: i64) {
        let inputs = (0..op.inputs.len())
            .map(|i| op.take(i))
            .collect::<Result<Vec<_>>>()
            .and_then(|inputs| check_inputs(&inputs[..count]).map(|size| (inputs, size)));
        let (mut inputs, size) = match inputs {
            Ok(inputs) => inputs,
            Err(e) => return op.finish(Err(e)),
        };
        let captured = inputs.split_off(count);
        let job = Arc::new(Job {
            device: op.env().device.clone(),
            op: Mutex::new(None),
            outcome: Mutex::default(),
            captured,
            id,
        });
        let cancelled = job.clone();
        let cancellation = op.env().cancellation.clone();
        *job.op.lock() = Some((op, None));
        match cancellation.register(move |reason| cancelled.end(Err(reason.clone()))) {
            Ok(token) => job.set_token(token),
            Err(reason) => return job.end(Err(reason)),
        }
        if let Err(e) = self.enqueue(queue, &job, inputs, size) {
            job.end(Err(e));
        }
        self.pump();
    }

    fn enqueue(
        self: &Arc<Self>,
        queue: &str,
        job: &Arc<Job>,
        inputs: Vec<Tensor>,
        size: usize,
    ) -> Result<()> {
        let max = self.options.max_batch;
        if size > max && !self.options.split {
            return Err(Status::invalid_argument(format!(
                "Task size {size} is larger than maximum input batch size {max}"
            )));
        }
        let mut state = self.state.lock();
        let State { queues, next, .. } = &mut *state;
        let batches = queues.entry(queue.to_owned()).or_default();
        let open = batches.back().filter(|b| !b.closed);
        let places = self.places(size, open.map(|b| max.saturating_sub(b.size)));
        let new = places.iter().filter(|p| !p.joins).count();
        if batches.len() + new > self.options.max_enqueued {
            return Err(Status::unavailable(
                "The batch scheduling queue to which this task was submitted is full",
            ));
        }
        let pieces = spread(inputs, &places)?;
        *job.outcome.lock() = (vec![None; pieces.len()], pieces.len());
        for (index, (inputs, place)) in pieces.into_iter().zip(&places).enumerate() {
            if !place.joins {
                if let Some(last) = batches.back_mut() {
                    last.closed = true;
                }
                batches.push_back(Pending {
                    id: *next,
                    parts: Vec::new(),
                    size: 0,
                    closed: false,
                    due: self.options.timeout.is_zero(),
                });
                self.arm(queue.to_owned(), *next);
                *next += 1;
            }
            if let Some(batch) = batches.back_mut() {
                batch.size += place.rows;
                batch.closed = batch.size >= max;
                batch.parts.push(Part {
                    job: job.clone(),
                    index,
                    inputs,
                    size: place.rows,
                });
            }
        }
        Ok(())
    }

    /// Where an input's rows go, if the open batch has `room`.
    fn places(&self, size: usize, room: Option<usize>) -> Vec<Place> {
        let max = self.options.max_batch.max(1);
        let place = |rows, joins| Place { rows, joins };
        match room {
            Some(room) if size <= room => vec![place(size, true)],
            _ if !self.options.split => vec![place(size, false)],
            _ => {
                let mut places = Vec::new();
                let mut rest = size;
                if let Some(room @ 1..) = room {
                    places.push(place(room, true));
                    rest -= room;
                }
                while rest > 0 || places.is_empty() {
                    places.push(place(rest.min(max), false));
                    rest -= rest.min(max);
                }
                places
            }
        }
    }

    /// Has a batch become due when its time is up.
    fn arm(self: &Arc<Self>, queue: String, id: u64) {
        if self.options.timeout.is_zero() {
            return;
        }
        let batcher = self.clone();
        self.timer.after(self.options.timeout, move || {
            {
                let mut state = batcher.state.lock();
                let batches = state.queues.get_mut(&queue);
                let found = batches.and_then(|b| b.iter_mut().find(|b| b.id == id));
                match found {
                    Some(batch) => batch.due = true,
                    None => return,
                }
            }
            batcher.pump();
        });
    }

    /// Starts batches that are complete, as many as there are free slots.
    fn pump(self: &Arc<Self>) {
        loop {
            let batch = {
                let mut state = self.state.lock();
                if state.active >= self.options.slots {
                    return;
                }
                let ready = state.queues.values_mut().find_map(|batches| {
                    let front = batches.front()?;
                    (front.closed || front.due).then(|| batches.pop_front())?
                });
                match ready {
                    Some(batch) => {
                        state.active += 1;
                        batch
                    }
                    None => return,
                }
            };
            let batcher = self.clone();
            let device = batch.parts.first().map(|p| p.job.device.clone());
            let free = Box::new(move || {
                batcher.state.lock().active -= 1;
                if let Some(device) = device {
                    device.spawn(move || batcher.pump());
                }
            });
            (self.process)(&self.options, batch.parts, free);
        }
    }
}

/// Some rows of an input: into the open batch, or into a new one.
struct Place {
    rows: usize,
    joins: bool,
}

/// Cuts inputs into pieces for each place.
fn spread(inputs: Vec<Tensor>, places: &[Place]) -> Result<Vec<Vec<Tensor>>> {
    if places.len() == 1 {
        return Ok(vec![inputs]);
    }
    let sizes: Vec<usize> = places.iter().map(|p| p.rows).collect();
    let mut pieces: Vec<Vec<Tensor>> = vec![Vec::new(); places.len()];
    for input in inputs {
        for (piece, rows) in pieces.iter_mut().zip(cut(&input, &sizes)?) {
            piece.push(rows);
        }
    }
    Ok(pieces)
}

/// The number of rows, which all inputs must share.
fn check_inputs(inputs: &[Tensor]) -> Result<usize> {
    let first = inputs.first().map_or(0, rows);
    for input in inputs {
        if input.rank() == 0 {
            return Err(Status::invalid_argument(
                "Batching input tensors must have at least one dimension",
            ));
        }
        if rows(input) != first {
            return Err(Status::invalid_argument(
                "Batching input tensors supplied in a given op invocation must have equal 0th-dimension size",
            ));
        }
    }
    Ok(first)
}
