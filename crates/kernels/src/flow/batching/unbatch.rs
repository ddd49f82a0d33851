//! `Unbatch` gives each member of a batch its rows back; `UnbatchGrad` collects the members'
//! gradients for the one that had the batch.

use super::rows::{concat, cut, none_of, rows};
use super::timer;
use downpour_graph::{Result, Status};
use downpour_runtime::{AsyncOp, Built, CancelToken, KernelBuilder, Registry, Resource};
use downpour_tensor::Tensor;
use parking_lot::Mutex;
use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

pub(crate) fn register(r: &mut Registry) {
    r.add("Unbatch", unbatch);
    r.add("UnbatchGrad", unbatch_grad);
}

/// An op that waits, and how its step tells it to stop.
type Waiter = (AsyncOp, Option<CancelToken>);

fn end((op, token): Waiter, outcome: Result<Tensor>) {
    if let Some(token) = token {
        op.env().cancellation.deregister(token);
    }
    op.finish(outcome.map(|t| vec![t]));
}

#[derive(Default)]
struct Unbatcher(Mutex<Pieces>);

#[derive(Default)]
struct Pieces {
    /// Rows whose member has not come yet.
    rows: HashMap<i64, Tensor>,
    /// Members whose rows have not come yet.
    waiting: HashMap<i64, Waiter>,
}

impl Resource for Unbatcher {
    fn type_name(&self) -> &'static str {
        "N10tensorflow15UnbatchResourceE"
    }
}

fn unbatch(b: &KernelBuilder<'_>) -> Result<Built> {
    let (container, name) = b.resource_name()?;
    let timeout = Duration::from_micros(b.attrs().size("timeout_micros")? as u64);
    let timer = timer(b.device)?;
    Built::waiting(move |op| {
        let resources = &op.env().device.resources;
        let found = resources.find_or_create(&container, &name, || Ok(Unbatcher::default()));
        let place: Arc<Unbatcher> = match found {
            Ok(place) => place,
            Err(e) => return op.finish(Err(e)),
        };
        match Request::read(&op) {
            Err(e) => op.finish(Err(e)),
            Ok(request) => {
                let key = request.key;
                let mut late = request.pieces.iter().map(|p| p.0).collect::<Vec<_>>();
                late.push(key);
                place.meet(op, request);
                let place = place.clone();
                timer.after(timeout, move || place.expire(&late));
            }
        }
    })
}

/// What one run of `Unbatch` brings and wants.
struct Request {
    key: i64,
    pieces: Vec<(i64, Tensor)>,
}

impl Request {
    fn read(op: &AsyncOp) -> Result<Request> {
        let (data, index, id) = (op.input(0)?, op.input(1)?, op.input(2)?);
        if id.rank() != 0 {
            return Err(Status::invalid_argument(format!(
                "Input id should be scalar; Got: {}.",
                id.shape()
            )));
        }
        let keys = read_index(index)?;
        if data.rank() == 0 || keys.len() > rows(data) {
            return Err(Status::invalid_argument(format!(
                "Wrong shape for index tensor. Expected 0th dimension size to be no greater than {}; Got: {}.",
                rows(data),
                keys.len()
            )));
        }
        let sizes = keys
            .iter()
            .map(|[_, from, to]| {
                let size = to.checked_sub(*from).and_then(|s| usize::try_from(s).ok());
                size.ok_or_else(|| {
                    Status::invalid_argument(format!("Invalid batch index: rows {from} to {to}"))
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let pieces = match keys.is_empty() {
            true => Vec::new(),
            false => cut(data, &sizes)?,
        };
        Ok(Request {
            key: id.scalar_value::<i64>()?,
            pieces: keys.iter().map(|k| k[0]).zip(pieces).collect(),
        })
    }
}

/// Rows `[key, start, end]` of an index.
fn read_index(index: &Tensor) -> Result<Vec<[i64; 3]>> {
    let columns = index.dims().get(1).copied().unwrap_or(0);
    if index.rank() != 2 || columns != 3 {
        return Err(Status::invalid_argument(format!(
            "Wrong shape for index tensor. Expected 1st dimension size to be 3 ; Got: {columns}."
        )));
    }
    let (rows, _) = index.as_slice::<i64>()?.as_chunks::<3>();
    Ok(rows.to_vec())
}

impl Unbatcher {
    fn meet(self: &Arc<Self>, op: AsyncOp, request: Request) {
        let mut ended: Vec<(Waiter, Result<Tensor>)> = Vec::new();
        {
            let mut state = self.0.lock();
            if let Some(found) = state.rows.remove(&request.key) {
                ended.push(((op, None), Ok(found)));
            } else {
                self.wait(&mut state, op, request, &mut ended);
            }
        }
        for (waiter, outcome) in ended {
            end(waiter, outcome);
        }
    }

    /// Waits for the op's rows, and hands out those it brought.
    fn wait(
        self: &Arc<Self>,
        state: &mut Pieces,
        op: AsyncOp,
        request: Request,
        ended: &mut Vec<(Waiter, Result<Tensor>)>,
    ) {
        let Entry::Vacant(place) = state.waiting.entry(request.key) else {
            let twice = "Multiple session runs with the same batch key.";
            return ended.push(((op, None), Err(already_exists(twice))));
        };
        match self.watch(&op, request.key) {
            Ok(token) => {
                place.insert((op, Some(token)));
            }
            Err(reason) => ended.push(((op, None), Err(reason))),
        }
        for (key, piece) in request.pieces {
            if let Some(waiter) = state.waiting.remove(&key) {
                ended.push((waiter, Ok(piece)));
            } else if state.rows.insert(key, piece).is_some()
                && let Some(own) = state.waiting.remove(&request.key)
            {
                let twice = "Multiple tensors returned for same batch key.";
                ended.push((own, Err(already_exists(twice))));
            }
        }
    }

    /// Ends the wait for `key` when the op's step is cancelled.
    fn watch(self: &Arc<Self>, op: &AsyncOp, key: i64) -> Result<CancelToken> {
        let place = self.clone();
        op.env().cancellation.register(move |reason| {
            let waiter = place.0.lock().waiting.remove(&key);
            if let Some(waiter) = waiter {
                end(waiter, Err(reason.clone()));
            }
        })
    }

    /// Gives up on what has waited too long.
    fn expire(&self, keys: &[i64]) {
        let mut late = Vec::new();
        {
            let mut state = self.0.lock();
            for key in keys {
                state.rows.remove(key);
                late.extend(state.waiting.remove(key));
            }
        }
        for waiter in late {
            let text = "Batched data did not arrive within timeout window.";
            end(waiter, Err(Status::deadline_exceeded(text)));
        }
    }
}

fn already_exists(text: &str) -> Status {
    Status::new(downpour_graph::Code::AlreadyExists, text)
}

#[derive(Default)]
struct Gradients(Mutex<Collected>);

#[derive(Default)]
struct Collected {
    /// Gradients that no batch has taken yet.
    ready: HashMap<i64, Tensor>,
    /// Batches that wait for some.
    batches: HashMap<i64, Collecting>,
    /// Which batch a missing gradient belongs to.
    wanted: HashMap<i64, i64>,
}

struct Collecting {
    keys: Vec<i64>,
    missing: HashSet<i64>,
    waiter: Waiter,
}

impl Resource for Gradients {
    fn type_name(&self) -> &'static str {
        "N10tensorflow19UnbatchGradResourceE"
    }
}

fn unbatch_grad(b: &KernelBuilder<'_>) -> Result<Built> {
    let (container, name) = b.resource_name()?;
    Built::waiting(move |op| {
        let resources = &op.env().device.resources;
        let found = resources.find_or_create(&container, &name, || Ok(Gradients::default()));
        match found {
            Ok(place) => place.collect(op),
            Err(e) => op.finish(Err(e)),
        }
    })
}

impl Gradients {
    fn collect(self: &Arc<Self>, op: AsyncOp) {
        let mut ended = Vec::new();
        let mut waiter = Some((op, None));
        {
            let mut state = self.0.lock();
            if let Err(e) = self.take_in(&mut state, &mut waiter, &mut ended)
                && let Some(waiter) = waiter.take()
            {
                ended.push((waiter, Err(e)));
            }
        }
        for (waiter, outcome) in ended {
            end(waiter, outcome);
        }
    }

    fn take_in(
        self: &Arc<Self>,
        state: &mut Collected,
        waiter: &mut Option<Waiter>,
        ended: &mut Vec<(Waiter, Result<Tensor>)>,
    ) -> Result<()> {
        let Some((op, _)) = &*waiter else {
            return Ok(());
        };
        let (data, index, grad) = (op.input(0)?, op.input(1)?, op.input(2)?);
        let key = crate::args::int(op.input(3)?)?;
        if state.ready.insert(key, grad.clone()).is_some() {
            return Err(Status::invalid_argument(
                "Two runs with the same batch key.",
            ));
        }
        if data.num_elements() == 0 {
            let none = none_of(grad)?;
            ended.extend(waiter.take().map(|w| (w, Ok(none))));
        } else if index.num_elements() == 0 {
            return Err(Status::invalid_argument(
                "batch_index is empty while the tensor isn't.",
            ));
        } else {
            let keys: Vec<i64> = read_index(index)?.iter().map(|k| k[0]).collect();
            let absent = keys.iter().filter(|k| !state.ready.contains_key(k));
            let missing: HashSet<i64> = absent.copied().collect();
            if missing.is_empty() {
                let device = op.env().device.clone();
                let outcome = state.gather(&keys, &device);
                ended.extend(waiter.take().map(|w| (w, outcome)));
            } else if state.batches.contains_key(&key) {
                return Err(Status::invalid_argument(
                    "Batch key with valid batch used twice.",
                ));
            } else if missing.iter().any(|k| state.wanted.contains_key(k)) {
                return Err(Status::invalid_argument(
                    "Missing tensor wanted by more than one batch.",
                ));
            } else {
                let token = self.watch(op, key)?;
                state.wanted.extend(missing.iter().map(|k| (*k, key)));
                if let Some((op, _)) = waiter.take() {
                    let waiter = (op, Some(token));
                    let batch = Collecting {
                        keys,
                        missing,
                        waiter,
                    };
                    state.batches.insert(key, batch);
                }
            }
        }
        // This gradient may be the last that another batch waits for.
        if let Some(batch) = state.wanted.remove(&key)
            && let Some(waiting) = state.batches.get_mut(&batch)
        {
            waiting.missing.remove(&key);
            if waiting.missing.is_empty()
                && let Some(done) = state.batches.remove(&batch)
            {
                let device = done.waiter.0.env().device.clone();
                let outcome = state.gather(&done.keys, &device);
                ended.push((done.waiter, outcome));
            }
        }
        Ok(())
    }

    fn watch(self: &Arc<Self>, op: &AsyncOp, key: i64) -> Result<CancelToken> {
        let place = self.clone();
        op.env().cancellation.register(move |reason| {
            let batch = {
                let mut state = place.0.lock();
                state.wanted.retain(|_, batch| *batch != key);
                state.batches.remove(&key)
            };
            if let Some(batch) = batch {
                end(batch.waiter, Err(reason.clone()));
            }
        })
    }
}

impl Collected {
    fn gather(&mut self, keys: &[i64], device: &downpour_runtime::Device) -> Result<Tensor> {
        let parts: Option<Vec<Tensor>> = keys.iter().map(|k| self.ready.remove(k)).collect();
        let parts =
            parts.ok_or_else(|| Status::internal("bad bookkeeping of available tensors."))?;
        concat(device, &parts.iter().collect::<Vec<_>>())
    }
}
