//! Barriers: tuples by key whose components come one by one. A whole tuple goes to a queue, in the
//! order in which keys were first seen, and whoever takes waits there.

use super::element::row;
use super::items::Element;
use super::ops::{components, shapes_text, types_text};
use super::queue::{Got, Kind, Queue, Spec};
use super::shared_handle::{Access, Home, Signature};
use super::wait::Done;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{AsyncOp, Built, Cancellation, KernelBuilder, Registry, Resource};
use downpour_tensor::{DType, PartialShape, Tensor};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// TensorFlow's C++ type.
const BARRIER_TYPE: &str = "N10tensorflow7barrier7BarrierE";

/// Types `BarrierInsertMany` has kernels for: all that a tensor may hold but quantized ones.
const TYPES: &[DType] = &[
    DType::Variant,
    DType::Resource,
    DType::String,
    DType::Bool,
    DType::Complex128,
    DType::Complex64,
    DType::Double,
    DType::Float,
    DType::BFloat16,
    DType::Half,
    DType::Int32,
    DType::Int8,
    DType::UInt8,
    DType::Int16,
    DType::UInt16,
    DType::UInt32,
    DType::Int64,
    DType::UInt64,
];

pub(super) fn register(r: &mut Registry) {
    r.add("Barrier", barrier);
    r.add_typed("BarrierInsertMany", &[("T", TYPES)], insert_many);
    r.add("BarrierTakeMany", take_many);
    r.add("BarrierClose", close);
    r.add("BarrierReadySize", |b| size(b, |b| b.queue.len()));
    r.add("BarrierIncompleteSize", |b| {
        size(b, |b| b.state.lock().incomplete.len())
    });
}

struct Barrier {
    name: String,
    types: Vec<DType>,
    shapes: Vec<PartialShape>,
    /// Whole tuples: index, key, components.
    queue: Arc<Queue>,
    state: Mutex<State>,
}

struct State {
    closed: bool,
    cancelled: bool,
    /// Grows with every insertion of new keys; the queue's priority.
    index: i64,
    incomplete: HashMap<Bytes, Partial>,
}

struct Partial {
    index: i64,
    parts: Vec<Option<Tensor>>,
}

impl Resource for Barrier {
    fn type_name(&self) -> &'static str {
        BARRIER_TYPE
    }
}

impl Barrier {
    fn new(name: &str, types: Vec<DType>, shapes: Vec<PartialShape>) -> Barrier {
        let scalar = PartialShape::from_dims([]);
        let queue = Queue::new(Spec {
            kind: Kind::Priority,
            name: format!("{name}_queue"),
            types: [DType::Int64, DType::String]
                .into_iter()
                .chain(types.iter().copied())
                .collect(),
            shapes: [scalar.clone(), scalar]
                .into_iter()
                .chain(shapes.iter().cloned())
                .collect(),
            capacity: i32::MAX as usize,
            min_after_dequeue: 0,
            seeds: (0, 0),
        });
        Barrier {
            name: name.to_owned(),
            types,
            shapes,
            queue: Arc::new(queue),
            state: Mutex::new(State {
                closed: false,
                cancelled: false,
                index: i64::MIN,
                incomplete: HashMap::new(),
            }),
        }
    }

    /// Puts a value of one component in for each key; gives the tuples that this makes whole.
    fn insert(
        &self,
        keys: &[Bytes],
        component: usize,
        values: &Tensor,
    ) -> Result<VecDeque<Element>> {
        if !keys.is_empty() && values.num_elements() == 0 {
            return Err(Status::invalid_argument(format!(
                "Tensors with no elements are not supported {}: received shape {}",
                self.name,
                values.shape()
            )));
        }
        // TensorFlow reads beyond its values here.
        if values.dims().first().copied().unwrap_or(0) < keys.len() {
            return Err(Status::invalid_argument(format!(
                "{} keys but values of shape {}",
                keys.len(),
                values.shape()
            )));
        }
        let mut state = self.state.lock();
        let waiting = state.incomplete.len();
        if state.closed && (state.cancelled || (!keys.is_empty() && waiting == 0)) {
            return Err(Status::cancelled(format!(
                "Barrier {} is closed.  Pending enqueues cancelled: {}.  Number of new insertions: {}.  Number of incomplete keys: {waiting}.",
                self.name,
                u8::from(state.cancelled),
                keys.len(),
            )));
        }
        let (mut whole, mut any_new) = (VecDeque::new(), false);
        for (i, key) in keys.iter().enumerate() {
            whole.extend(self.insert_one(&mut state, key, i, component, values, &mut any_new)?);
        }
        state.index += i64::from(any_new);
        Ok(whole)
    }

    fn insert_one(
        &self,
        state: &mut State,
        key: &Bytes,
        i: usize,
        component: usize,
        values: &Tensor,
        any_new: &mut bool,
    ) -> Result<Option<Element>> {
        if state.closed && !state.incomplete.contains_key(key) {
            return Err(Status::cancelled(format!(
                "Barrier {} is closed, but attempted to insert a brand new key: {}.  Pending enqueues cancelled: {}.  Insertion index: {i}.  Number of incomplete keys: {}.",
                self.name,
                String::from_utf8_lossy(key),
                u8::from(state.cancelled),
                state.incomplete.len()
            )));
        }
        let index = state.index;
        let partial = match state.incomplete.get_mut(key) {
            Some(partial) => partial,
            None => {
                *any_new = true;
                let key = Bytes::copy_from_slice(key);
                state.incomplete.entry(key).or_insert_with(|| Partial {
                    index,
                    parts: vec![None; self.types.len()],
                })
            }
        };
        match partial.parts.get_mut(component) {
            Some(part @ None) => *part = Some(row(values, i)?),
            _ => {
                return Err(Status::invalid_argument(format!(
                    "Key {} already has a value for component {component} in barrier {}",
                    String::from_utf8_lossy(key),
                    self.name
                )));
            }
        }
        if partial.parts.iter().any(Option::is_none) {
            return Ok(None);
        }
        let Some((key, partial)) = state.incomplete.remove_entry(key) else {
            return Ok(None);
        };
        let mut element = vec![Tensor::scalar(partial.index), Tensor::string(key)];
        element.extend(partial.parts.into_iter().flatten());
        for (n, (shape, tensor)) in self.shapes.iter().zip(element.iter().skip(2)).enumerate() {
            if !shape.admits(tensor.shape()) {
                return Err(Status::invalid_argument(format!(
                    "Shape mismatch in tuple component {}. Expected {shape}, got {}",
                    n + 2,
                    tensor.shape()
                )));
            }
        }
        Ok(Some(element))
    }

    /// How many elements to wait for, or what there is to say of a closed barrier.
    fn requested(&self, wanted: usize, fewer: bool) -> Result<usize> {
        let state = self.state.lock();
        if !state.closed {
            return Ok(wanted);
        }
        let ready = self.queue.len();
        let (wanted, available) = match fewer {
            true => (wanted.min(ready), ready),
            // Tuples that are not whole yet may still become so.
            false => (wanted, ready + state.incomplete.len()),
        };
        if available >= wanted.max(1) {
            return Ok(wanted);
        }
        Err(Status::out_of_range(format!(
            "Barrier '{}' is closed and has insufficient elements (requested {wanted}, total size {available})",
            self.name
        )))
    }

    fn close(&self, cancel: bool, cancellation: &Arc<Cancellation>, done: Done<Got>) {
        let mut state = self.state.lock();
        // A second close may only add the cancellation.
        if state.closed && (state.cancelled || !cancel) {
            drop(state);
            return done(Err(Status::cancelled(format!(
                "Barrier '{}' is already closed.",
                self.name
            ))));
        }
        (state.closed, state.cancelled) = (true, cancel);
        if !cancel && !state.incomplete.is_empty() {
            drop(state);
            return done(Ok(Got::Nothing));
        }
        state.incomplete.clear();
        drop(state);
        if cancel {
            self.queue.close_and_cancel();
            done(Ok(Got::Nothing));
        } else if self.queue.is_closed() {
            done(Ok(Got::Nothing));
        } else {
            self.queue.close(cancellation, done);
        }
    }
}

fn barrier(b: &KernelBuilder<'_>) -> Result<Built> {
    let home = Home::<Barrier>::new(b, BARRIER_TYPE)?;
    let types = b.attrs().dtypes("component_types")?.to_vec();
    // A shape of which nothing is known is read as that of a scalar, as TensorFlow does.
    let scalar = PartialShape::from_dims([]);
    let shapes = b.attrs().shapes("shapes")?.iter();
    let shapes: Vec<PartialShape> = shapes
        .map(|s| s.rank().map_or(&scalar, |_| s).clone())
        .collect();
    if let Some(shape) = shapes.iter().find(|s| s.to_shape().is_none()) {
        return Err(Status::invalid_argument(format!(
            "Shape {shape} is not fully defined"
        )));
    }
    if shapes.len() != types.len() {
        return Err(Status::invalid_argument(
            "All of the component shapes must be specified",
        ));
    }
    if b.attrs().int("capacity")? != -1 {
        return Err(Status::invalid_argument(
            "Barrier only accepts capacity=-1.  Feed the inputs to your Barrier through a queue to enforce a limited capacity.",
        ));
    }
    Built::cheap(move |ctx| {
        let found = home.get(ctx, || {
            Ok(Barrier::new(home.name(), types.clone(), shapes.clone()))
        })?;
        let differs = |what: &str, have: String, wanted: String| {
            Err(Status::invalid_argument(format!(
                "Shared barrier '{}' has component {what} {have} but requested component {what} were {wanted}",
                home.name()
            )))
        };
        if found.types != types {
            return differs("types", types_text(&found.types), types_text(&types));
        }
        if found.shapes != shapes {
            return differs("shapes", shapes_text(&found.shapes), shapes_text(&shapes));
        }
        home.emit(ctx)
    })
}

fn insert_many(b: &KernelBuilder<'_>) -> Result<Built> {
    let signature = Signature::new(b, BARRIER_TYPE);
    let component = b.attrs().int("component_index")?;
    Built::waiting(move |op| {
        let ready = signature.access.of_op::<Barrier>(&op).and_then(|barrier| {
            let count = barrier.types.len();
            let at = usize::try_from(component).ok().filter(|&at| at < count);
            let at = at.ok_or_else(|| {
                Status::invalid_argument(format!(
                    "The component ID is out of range {component} > num_components (= {count})"
                ))
            })?;
            signature.check(&[DType::String, barrier.types[at]], &[])?;
            let whole = barrier.insert(op.input(1)?.as_strings()?, at, op.input(2)?)?;
            Ok((barrier, whole))
        });
        match ready {
            Err(e) => op.finish(Err(e)),
            Ok((barrier, whole)) => {
                let cancellation = op.env().cancellation.clone();
                let done = Box::new(move |r: Result<Got>| op.finish(r.map(|_| Vec::new())));
                barrier.queue.enqueue(whole, &cancellation, done);
            }
        }
    })
}

fn take_many(b: &KernelBuilder<'_>) -> Result<Built> {
    let signature = Signature::new(b, BARRIER_TYPE);
    let fewer = b.attrs().bool("allow_small_batch")?;
    super::ops::refuse_timeout(b)?;
    Built::waiting(move |op| {
        let ready = signature.access.of_op::<Barrier>(&op).and_then(|barrier| {
            let n = number(&op)?;
            let mut outputs = vec![DType::Int64, DType::String];
            outputs.extend(&barrier.types);
            signature.check(&[DType::Int32], &outputs)?;
            let n = usize::try_from(n).map_err(|_| {
                Status::invalid_argument(format!("BarrierTakeMany requested {n} < 0 elements"))
            })?;
            Ok((barrier.queue.clone(), barrier.requested(n, fewer)?))
        });
        match ready {
            Err(e) => op.finish(Err(e)),
            Ok((queue, n)) => {
                let cancellation = op.env().cancellation.clone();
                let source = queue.clone();
                let done = Box::new(move |r: Result<Got>| {
                    let device = op.env().device.clone();
                    op.finish(r.and_then(|got| components(&device, &source, got)));
                });
                queue.dequeue_many(n, fewer, &cancellation, done);
            }
        }
    })
}

fn number(op: &AsyncOp) -> Result<i32> {
    match op.input(1)? {
        n if n.rank() == 0 => Ok(n.scalar_value()?),
        _ => Err(Status::invalid_argument("num_elements must be a scalar.")),
    }
}

fn close(b: &KernelBuilder<'_>) -> Result<Built> {
    let access = Access::new(b, BARRIER_TYPE);
    let cancel = b.attrs().bool("cancel_pending_enqueues")?;
    Built::waiting(move |op| match access.of_op::<Barrier>(&op) {
        Err(e) => op.finish(Err(e)),
        Ok(barrier) => {
            let cancellation = op.env().cancellation.clone();
            let done = Box::new(move |r: Result<Got>| op.finish(r.map(|_| Vec::new())));
            barrier.close(cancel, &cancellation, done);
        }
    })
}

fn size(b: &KernelBuilder<'_>, count: fn(&Barrier) -> usize) -> Result<Built> {
    let access = Access::new(b, BARRIER_TYPE);
    Built::cheap(move |ctx| {
        let size = count(&*access.of_ctx::<Barrier>(ctx)?);
        ctx.set_output(0, Tensor::scalar(i32::try_from(size).unwrap_or(i32::MAX)));
        Ok(())
    })
}
