//! Kernels of the queue ops, with resource handles (`…V2`) and with handles by reference.

use super::element::{row, stack};
use super::items::Element;
use super::queue::{Got, Kind, QUEUE_TYPE, Queue, Spec};
use super::shared_handle::{Access, Home, Signature};
use crate::random::philox::entropy;
use downpour_graph::{Result, Status};
use downpour_runtime::{AsyncOp, Built, Device, KernelBuilder, OpContext, Registry, Variable};
use downpour_tensor::{DType, PartialShape, Shape, Tensor};
use std::collections::VecDeque;
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    for op in ["FIFOQueue", "FIFOQueueV2"] {
        r.add(op, |b| queue(b, Kind::Fifo));
    }
    for op in ["PaddingFIFOQueue", "PaddingFIFOQueueV2"] {
        r.add(op, |b| queue(b, Kind::Padding));
    }
    for op in ["RandomShuffleQueue", "RandomShuffleQueueV2"] {
        r.add(op, |b| queue(b, Kind::Shuffle));
    }
    for op in ["PriorityQueue", "PriorityQueueV2"] {
        r.add(op, |b| queue(b, Kind::Priority));
    }
    r.add("FakeQueue", |_| Built::cheap(by_reference));
    for op in ["QueueEnqueue", "QueueEnqueueV2"] {
        r.add(op, |b| enqueue(b, false));
    }
    for op in ["QueueEnqueueMany", "QueueEnqueueManyV2"] {
        r.add(op, |b| enqueue(b, true));
    }
    for op in ["QueueDequeue", "QueueDequeueV2"] {
        r.add(op, |b| dequeue(b, Batch::Single));
    }
    for op in ["QueueDequeueMany", "QueueDequeueManyV2"] {
        r.add(op, |b| dequeue(b, Batch::Many));
    }
    for op in ["QueueDequeueUpTo", "QueueDequeueUpToV2"] {
        r.add(op, |b| dequeue(b, Batch::UpTo));
    }
    for op in ["QueueClose", "QueueCloseV2"] {
        r.add(op, close);
    }
    for op in ["QueueSize", "QueueSizeV2"] {
        r.add(op, |b| {
            let access = Access::new(b, QUEUE_TYPE);
            Built::cheap(move |ctx| {
                let size = access.of_ctx::<Queue>(ctx)?.len();
                ctx.set_output(0, Tensor::scalar(i32::try_from(size).unwrap_or(i32::MAX)));
                Ok(())
            })
        });
    }
    for op in ["QueueIsClosed", "QueueIsClosedV2"] {
        r.add(op, |b| {
            let access = Access::new(b, QUEUE_TYPE);
            Built::cheap(move |ctx| {
                let closed = access.of_ctx::<Queue>(ctx)?.is_closed();
                ctx.set_output(0, Tensor::scalar(closed));
                Ok(())
            })
        });
    }
}

/// `[[2], []]`: how errors show component shapes.
pub(super) fn shapes_text(shapes: &[PartialShape]) -> String {
    let list: Vec<String> = shapes.iter().map(ToString::to_string).collect();
    format!("[{}]", list.join(", "))
}

/// `float, int32`: how errors show component types.
pub(super) fn types_text(types: &[DType]) -> String {
    let list: Vec<&str> = types.iter().map(|t| t.name()).collect();
    list.join(", ")
}

/// What the node declares, as far as it can be refused when the kernel is built.
fn spec(b: &KernelBuilder<'_>, kind: Kind, name: &str) -> Result<Spec> {
    let attrs = b.attrs();
    let mut types = attrs.dtypes("component_types")?.to_vec();
    let mut shapes = attrs.shapes("shapes")?.to_vec();
    for shape in &mut shapes {
        // A shape of which nothing is known is read as that of a scalar, as TensorFlow does.
        if kind != Kind::Padding && shape.rank().is_none() {
            *shape = PartialShape::from_dims([]);
        }
        if kind != Kind::Padding && shape.to_shape().is_none() {
            return Err(Status::invalid_argument(format!(
                "Shape {shape} is not fully defined"
            )));
        }
        if shape.rank().is_none() {
            return Err(Status::invalid_argument(format!(
                "shape {shape} must have known rank."
            )));
        }
    }
    if kind == Kind::Priority {
        types.insert(0, DType::Int64);
        if !shapes.is_empty() {
            shapes.insert(0, PartialShape::from_dims([]));
        }
    }
    let capacity = attrs.int("capacity")?;
    let unbounded = i32::MAX as usize;
    let capacity = usize::try_from(capacity).map_or(unbounded, |c| c.min(unbounded));
    let (mut min_after_dequeue, mut seeds) = (0, (0, 0));
    if kind == Kind::Shuffle {
        let min = attrs.int("min_after_dequeue")?;
        min_after_dequeue = usize::try_from(min).map_err(|_| {
            Status::invalid_argument(format!("min_after_dequeue {min} must be >= 0"))
        })?;
        if min_after_dequeue >= capacity {
            return Err(Status::invalid_argument(format!(
                "min_after_dequeue {min} must be < capacity {capacity}"
            )));
        }
        seeds = (attrs.int("seed")?, attrs.int("seed2")?);
    }
    Ok(Spec {
        kind,
        name: name.to_owned(),
        types,
        shapes,
        capacity,
        min_after_dequeue,
        seeds,
    })
}

/// Refuses a queue whose declaration contradicts itself.
fn check_new(spec: &Spec) -> Result<()> {
    if spec.kind == Kind::Padding && spec.shapes.is_empty() {
        return Err(Status::invalid_argument(format!(
            "Shapes must be provided for all components, but received {} dtypes and 0 shapes.",
            spec.types.len()
        )));
    }
    if !spec.shapes.is_empty() && spec.shapes.len() != spec.types.len() {
        return Err(Status::invalid_argument(format!(
            "Different number of component types.  Types: {}, Shapes: {}",
            types_text(&spec.types),
            shapes_text(&spec.shapes)
        )));
    }
    Ok(())
}

/// Refuses a node that declares `wanted` for the queue that exists with `have`.
fn check_same(have: &Spec, wanted: &Spec, op: &str) -> Result<()> {
    let name = &have.name;
    let differs = |text: String| Err(Status::invalid_argument(text));
    if have.kind != wanted.kind {
        return differs(format!("Expected {}, found {op}", have.kind.name()));
    }
    if have.capacity != wanted.capacity {
        return differs(format!(
            "Shared queue '{name}' has capacity {} but requested capacity was {}",
            have.capacity, wanted.capacity
        ));
    }
    if have.min_after_dequeue != wanted.min_after_dequeue {
        return differs(format!(
            "Shared queue '{name}' has min_after_dequeue {} but requested min_after_dequeue was {}.",
            have.min_after_dequeue, wanted.min_after_dequeue
        ));
    }
    if wanted.seeds != (0, 0) && have.seeds != wanted.seeds {
        return differs(format!(
            "Shared queue '{name}' has random seeds ({}, {}) but requested seeds are ({}, {}).",
            have.seeds.0, have.seeds.1, wanted.seeds.0, wanted.seeds.1
        ));
    }
    if have.types != wanted.types {
        return differs(format!(
            "Shared queue '{name}' has component types {} but requested component types were {}",
            types_text(&have.types),
            types_text(&wanted.types)
        ));
    }
    // The shape of the priority is always asked for, even where none are declared.
    let mut asked = wanted.shapes.clone();
    if wanted.kind == Kind::Priority && asked.is_empty() {
        asked.push(PartialShape::from_dims([]));
    }
    let same = match wanted.kind {
        Kind::Padding => {
            have.shapes.len() == asked.len()
                && have
                    .shapes
                    .iter()
                    .zip(&asked)
                    .all(|(a, b)| compatible(a, b))
        }
        _ => have.shapes == asked,
    };
    if !same {
        return differs(format!(
            "Shared queue '{name}' has component shapes {} but requested component shapes were {}",
            shapes_text(&have.shapes),
            shapes_text(&asked)
        ));
    }
    Ok(())
}

/// Whether some shape fits both.
fn compatible(a: &PartialShape, b: &PartialShape) -> bool {
    match (a.dims(), b.dims()) {
        (Some(a), Some(b)) => {
            a.len() == b.len()
                && a.iter()
                    .zip(b)
                    .all(|(a, b)| a.is_none() || b.is_none() || a == b)
        }
        _ => true,
    }
}

fn queue(b: &KernelBuilder<'_>, kind: Kind) -> Result<Built> {
    let home = Home::<Queue>::new(b, QUEUE_TYPE)?;
    let spec = spec(b, kind, home.name())?;
    let op = b.node.op_name().to_owned();
    Built::cheap(move |ctx| {
        let found = home.get(ctx, || {
            check_new(&spec)?;
            let mut spec = spec.clone();
            if kind == Kind::Shuffle && spec.seeds == (0, 0) {
                spec.seeds = (entropy() as i64, entropy() as i64);
            }
            Ok(Queue::new(spec))
        })?;
        check_same(&found.spec, &spec, &op)?;
        home.emit(ctx)
    })
}

/// TensorFlow declares a limit and serves none.
pub(super) fn refuse_timeout(b: &KernelBuilder<'_>) -> Result<()> {
    match b.attrs().int("timeout_ms")? {
        -1 => Ok(()),
        _ => Err(Status::invalid_argument("Timeout not supported yet.")),
    }
}

fn enqueue(b: &KernelBuilder<'_>, many: bool) -> Result<Built> {
    refuse_timeout(b)?;
    let signature = Signature::new(b, QUEUE_TYPE);
    Built::waiting(move |mut op| {
        let ready = signature.access.of_op::<Queue>(&op).and_then(|queue| {
            signature.check(&queue.spec.types, &[])?;
            let tensors = (0..queue.spec.types.len())
                .map(|i| op.take(i + 1))
                .collect::<Result<Element>>()?;
            let elements = if many {
                rows(&queue.spec, &tensors)?
            } else {
                check_element(&queue.spec, &tensors)?;
                VecDeque::from([tensors])
            };
            Ok((queue, elements))
        });
        match ready {
            Err(e) => op.finish(Err(e)),
            Ok((queue, elements)) => {
                let cancellation = op.env().cancellation.clone();
                let done = Box::new(move |r: Result<Got>| op.finish(r.map(|_| Vec::new())));
                queue.enqueue(elements, &cancellation, done);
            }
        }
    })
}

/// The handle by reference of a queue that has one as a resource.
fn by_reference(ctx: &mut OpContext<'_>) -> Result<()> {
    let handle = ctx.handle(0)?;
    let names = [&handle.container, &handle.name];
    let strings = names.map(|name| name.clone().into_bytes().into()).to_vec();
    let reference = Variable::with_value(Tensor::strings(strings, [2])?);
    ctx.set_output_ref(0, Arc::new(reference));
    Ok(())
}

fn mismatch(i: usize, wanted: &PartialShape, got: &Shape) -> Status {
    Status::invalid_argument(format!(
        "Shape mismatch in tuple component {i}. Expected {wanted}, got {got}"
    ))
}

/// Checks the shapes of one element.
fn check_element(spec: &Spec, tensors: &[Tensor]) -> Result<()> {
    for (i, (shape, tensor)) in spec.shapes.iter().zip(tensors).enumerate() {
        if !shape.admits(tensor.shape()) {
            return Err(mismatch(i, shape, tensor.shape()));
        }
    }
    Ok(())
}

/// Cuts a batch into elements.
fn rows(spec: &Spec, tensors: &[Tensor]) -> Result<VecDeque<Element>> {
    let count = tensors.first().and_then(|t| t.dims().first().copied());
    for (i, tensor) in tensors.iter().enumerate() {
        if let Some(shape) = spec.shapes.get(i) {
            let inner = shape.dims().unwrap_or_default().iter().copied();
            let wanted =
                PartialShape::from_dims(std::iter::once(Some(count.unwrap_or(0))).chain(inner));
            if !wanted.admits(tensor.shape()) {
                return Err(mismatch(i, &wanted, tensor.shape()));
            }
            continue;
        }
        let size = tensor.dims().first().copied().ok_or_else(|| {
            Status::invalid_argument(format!(
                "Component {i} of a batch must have at least one dimension"
            ))
        })?;
        if Some(size) != count {
            return Err(Status::invalid_argument(format!(
                "All input tensors must have the same size in the 0th dimension. Component {i} has {size}, and should have {}",
                count.unwrap_or(0)
            )));
        }
    }
    (0..count.unwrap_or(0))
        .map(|i| tensors.iter().map(|t| row(t, i)).collect())
        .collect()
}

#[derive(Clone, Copy, PartialEq)]
enum Batch {
    Single,
    Many,
    UpTo,
}

fn dequeue(b: &KernelBuilder<'_>, batch: Batch) -> Result<Built> {
    refuse_timeout(b)?;
    let signature = Signature::new(b, QUEUE_TYPE);
    Built::waiting(move |op| {
        let ready = signature.access.of_op::<Queue>(&op).and_then(|queue| {
            let n = requested(&op, batch)?;
            let extra: &[DType] = match batch {
                Batch::Single => &[],
                _ => &[DType::Int32],
            };
            signature.check(extra, &queue.spec.types)?;
            if batch != Batch::Single && queue.spec.shapes.is_empty() {
                return Err(Status::invalid_argument(format!(
                    "{}'s DequeueMany and DequeueUpTo require the components to have specified shapes.",
                    queue.spec.kind.name()
                )));
            }
            Ok((queue, n))
        });
        let (queue, n) = match ready {
            Ok(ready) => ready,
            Err(e) => return op.finish(Err(e)),
        };
        let cancellation = op.env().cancellation.clone();
        let source = queue.clone();
        let done = Box::new(move |r: Result<Got>| {
            let device = op.env().device.clone();
            op.finish(r.and_then(|got| components(&device, &source, got)));
        });
        match batch {
            Batch::Single => queue.dequeue(&cancellation, done),
            _ => queue.dequeue_many(n, batch == Batch::UpTo, &cancellation, done),
        }
    })
}

/// The number of elements a dequeue asks for.
fn requested(op: &AsyncOp, batch: Batch) -> Result<usize> {
    let name = match batch {
        Batch::Single => return Ok(1),
        Batch::Many => "DequeueManyOp",
        Batch::UpTo => "DequeueUpToOp",
    };
    let n = op.input(1)?.as_slice::<i32>()?.first().copied();
    let n = n.ok_or_else(|| Status::invalid_argument(format!("{name} was given no number")))?;
    usize::try_from(n)
        .map_err(|_| Status::invalid_argument(format!("{name} requested {n} < 0 elements")))
}

/// The outputs for what a dequeue got.
pub(super) fn components(device: &Arc<Device>, queue: &Queue, got: Got) -> Result<Vec<Tensor>> {
    match got {
        Got::Nothing => Ok(Vec::new()),
        Got::One(element) => Ok(element),
        Got::Many(elements) => (queue.spec.types.iter().enumerate())
            .map(|(i, &dtype)| {
                let inner = Shape::from(queue.inner_dims(i, &elements));
                let parts: Vec<&Tensor> = elements.iter().filter_map(|e| e.get(i)).collect();
                stack(device, dtype, &inner, &parts)
            })
            .collect(),
    }
}

fn close(b: &KernelBuilder<'_>) -> Result<Built> {
    let access = Access::new(b, QUEUE_TYPE);
    let cancel_pending = b.attrs().bool("cancel_pending_enqueues")?;
    Built::waiting(move |op| match access.of_op::<Queue>(&op) {
        Err(e) => op.finish(Err(e)),
        Ok(queue) if cancel_pending => {
            queue.close_and_cancel();
            op.finish(Ok(Vec::new()));
        }
        Ok(queue) => {
            let cancellation = op.env().cancellation.clone();
            let done = Box::new(move |r: Result<Got>| op.finish(r.map(|_| Vec::new())));
            queue.close(&cancellation, done);
        }
    })
}
