//! Iterators: resources that hold a walk over a dataset, and the ops that make, name and use them.
//!
//! Calls of one iterator are served in the order of their arrival. A call under way is a task of
//! its own; when its step is cancelled the task is dropped, and the iterator stays usable.

use super::anonymous::{Anonymous, delete};
use super::dataset::{Dataset, Element, Got, Iter, Spec};
use super::define::{check_shapes, check_types, declared};
use super::graph::check_external_state;
use super::state::State;
use super::task::{Turnstile, run_op};
use crate::list::optional::Optional;
use crate::queue::shared_handle::{Access, Home};
use downpour_formats::resource_handle;
use downpour_graph::{Code, Result, Status};
use downpour_runtime::{
    AsyncOp, Built, Callee, Device, KernelBuilder, OpContext, Registry, Resource,
};
use downpour_tensor::{DType, Encoded, PartialShape, ResourceHandle, Tensor, Variant};
use parking_lot::Mutex;
use std::sync::Arc;

/// TensorFlow's C++ type.
pub(super) const ITERATOR_TYPE: &str = "N10tensorflow4data16IteratorResourceE";

pub(super) fn register(r: &mut Registry) {
    for op in ["Iterator", "IteratorV2"] {
        r.add(op, iterator);
    }
    for op in [
        "AnonymousIterator",
        "AnonymousIteratorV2",
        "AnonymousIteratorV3",
    ] {
        r.add(op, |b| {
            let spec = declared(b)?;
            let home = Anonymous::new(b, "AnonymousIterator", ITERATOR_TYPE);
            Built::cheap(move |ctx| {
                home.emit(ctx, IteratorResource::new(spec.clone()));
                Ok(())
            })
        });
    }
    r.add("OneShotIterator", one_shot);
    r.add("MakeIterator", make);
    for op in ["IteratorGetNext", "IteratorGetNextSync"] {
        r.add(op, get_next);
    }
    r.add("IteratorGetNextAsOptional", get_next_as_optional);
    r.add("DeleteIterator", |_| {
        Built::cheap(|ctx| delete::<IteratorResource>(ctx))
    });
    r.add("SerializeIterator", serialize);
    r.add("DeserializeIterator", deserialize);
    r.add("IteratorToStringHandle", to_string_handle);
    for op in ["IteratorFromStringHandle", "IteratorFromStringHandleV2"] {
        r.add(op, from_string_handle);
    }
    for op in ["IteratorGetDevice", "ExperimentalIteratorGetDevice"] {
        r.add(op, |_| {
            Built::cheap(|ctx| {
                let name = ctx.device().name.clone();
                ctx.set_output(0, Tensor::string(name));
                Ok(())
            })
        });
    }
}

/// A place for a walk over any dataset of given components.
pub(super) struct IteratorResource {
    pub(super) spec: Spec,
    walk: Mutex<Option<Walk>>,
}

/// A walk under way, and over what.
#[derive(Clone)]
struct Walk {
    iter: Arc<Turnstile<Iter>>,
    dataset: Dataset,
}

impl Resource for IteratorResource {
    fn type_name(&self) -> &'static str {
        ITERATOR_TYPE
    }
}

impl IteratorResource {
    pub(super) fn new(spec: Spec) -> IteratorResource {
        IteratorResource {
            spec,
            walk: Mutex::new(None),
        }
    }

    /// Starts a walk over `dataset` in place of any there was.
    pub(super) fn start(&self, device: &Arc<Device>, dataset: &Dataset) -> Result<()> {
        let walk = dataset.start(device, "Iterator")?;
        check_types(&self.spec.types, &dataset.spec().types)?;
        check_shapes(&self.spec.shapes, &dataset.spec().shapes)?;
        self.put(walk, dataset);
        Ok(())
    }

    fn put(&self, iter: Iter, dataset: &Dataset) {
        let walk = Walk {
            iter: Arc::new(Turnstile::new(iter)),
            dataset: dataset.clone(),
        };
        let old = self.walk.lock().replace(walk);
        drop(old);
    }

    fn started(&self, what: &str, doing: &str) -> Result<Walk> {
        self.walk.lock().clone().ok_or_else(|| {
            Status::failed_precondition(format!(
                "{what}() failed because the iterator has not been initialized. Ensure that you have run the initializer operation for this iterator before {doing}."
            ))
        })
    }

    fn is_started(&self) -> bool {
        self.walk.lock().is_some()
    }

    fn walk(&self) -> Result<Arc<Turnstile<Iter>>> {
        Ok(self.started("GetNext", "getting the next element")?.iter)
    }
}

/// The next element, where it only has to be handed out: not worth a task.
fn ready(walk: &Turnstile<Iter>) -> Option<Got> {
    walk.try_enter()?.ready()
}

async fn next_of(walk: Arc<Turnstile<Iter>>) -> Got {
    let mut turn = walk.enter().await;
    turn.next().await
}

fn iterator(b: &KernelBuilder<'_>) -> Result<Built> {
    let spec = declared(b)?;
    let home = Home::<IteratorResource>::new(b, ITERATOR_TYPE)?;
    Built::cheap(move |ctx| {
        let found = home.get(ctx, || Ok(IteratorResource::new(spec.clone())))?;
        check_types(&spec.types, &found.spec.types)?;
        check_shapes(&spec.shapes, &found.spec.shapes)?;
        home.emit(ctx)
    })
}

/// How far a one-shot iterator's walk has come.
enum OneShot {
    New,
    /// Its dataset is being made; these wait for it.
    Starting(Vec<AsyncOp>),
    Started,
    Failed(Status),
}

fn one_shot(b: &KernelBuilder<'_>) -> Result<Built> {
    let shot = Arc::new(Shot {
        spec: declared(b)?,
        factory: b.callee("dataset_factory")?,
        home: Home::new(b, ITERATOR_TYPE)?,
        state: Mutex::new(OneShot::New),
    });
    Built::waiting(move |op| shot.emit(op))
}

struct Shot {
    spec: Spec,
    factory: Callee,
    home: Home<IteratorResource>,
    state: Mutex<OneShot>,
}

impl Shot {
    /// Ends `op` with the handle, when the walk has started.
    fn emit(self: &Arc<Self>, op: AsyncOp) {
        let outcome = {
            let mut state = self.state.lock();
            match &mut *state {
                OneShot::Started => Ok(vec![self.home.handle()]),
                OneShot::Failed(status) => Err(status.clone()),
                OneShot::Starting(waiting) => return waiting.push(op),
                OneShot::New => {
                    *state = OneShot::Starting(vec![]);
                    drop(state);
                    return self.start(op);
                }
            }
        };
        op.finish(outcome);
    }

    /// Makes the dataset and starts the walk; the first run of the op does this for all.
    fn start(self: &Arc<Self>, op: AsyncOp) {
        let caller = match op.caller() {
            Ok(caller) => caller,
            Err(e) => return self.started(op, Err(e)),
        };
        let (shot, device) = (self.clone(), op.env().device.clone());
        caller.call(&self.factory, vec![], move |made| {
            let work = device.clone();
            // Opening a pipeline takes stack by its depth, and reads files.
            device.spawn(move || {
                let started = made.and_then(|made| shot.walk(&work, &made));
                shot.started(op, started);
            });
        });
    }

    fn walk(&self, device: &Arc<Device>, made: &[Tensor]) -> Result<()> {
        let [dataset] = made else {
            return Err(Status::invalid_argument(
                "The `dataset_factory` function must return a single scalar of dtype DT_VARIANT.",
            ));
        };
        let dataset = Dataset::from_tensor(dataset)?;
        let create = || Ok(IteratorResource::new(self.spec.clone()));
        let iterator = self.home.get_in(&device.resources, create)?;
        check_types(&self.spec.types, &iterator.spec.types)?;
        check_shapes(&self.spec.shapes, &iterator.spec.shapes)?;
        if iterator.is_started() {
            // Another session has started it under the same name.
            return Ok(());
        }
        iterator.start(device, dataset)
    }

    fn started(&self, op: AsyncOp, outcome: Result<()>) {
        let next = match &outcome {
            Ok(()) => OneShot::Started,
            // A cancelled step says nothing about the next one.
            Err(e) if e.code == Code::Cancelled => OneShot::New,
            Err(e) => OneShot::Failed(e.clone()),
        };
        let before = std::mem::replace(&mut *self.state.lock(), next);
        let waiting = match before {
            OneShot::Starting(waiting) => waiting,
            _ => vec![],
        };
        for op in std::iter::once(op).chain(waiting) {
            op.finish(outcome.clone().map(|()| vec![self.home.handle()]));
        }
    }
}

fn make(b: &KernelBuilder<'_>) -> Result<Built> {
    let access = Access::at(b, 1, ITERATOR_TYPE);
    Built::waiting(move |op| {
        let ready = (|| {
            let dataset = Dataset::from_tensor(op.input(0)?)?.clone();
            Ok((dataset, access.of_op::<IteratorResource>(&op)?))
        })();
        let (dataset, iterator) = match ready {
            Ok(ready) => ready,
            Err(e) => return op.finish(Err(e)),
        };
        let device = op.env().device.clone();
        // On an executor thread: opening a pipeline takes stack by its depth, and reads files.
        run_op(op, async move {
            iterator.start(&device, &dataset)?;
            Ok(vec![])
        });
    })
}

/// Refuses an element that is not what its op declares.
fn check_element(element: &Element, declared: &Spec) -> Result<()> {
    let types: Vec<DType> = element.iter().map(Tensor::dtype).collect();
    let shapes: Vec<PartialShape> = element.iter().map(|t| t.shape().into()).collect();
    check_types(&declared.types, &types)?;
    check_shapes(&declared.shapes, &shapes)
}

pub(super) fn declared_element(got: Got, declared: &Spec) -> Result<Vec<Tensor>> {
    let element = got?.ok_or_else(end_of_sequence)?;
    check_element(&element, declared)?;
    Ok(element)
}

fn get_next(b: &KernelBuilder<'_>) -> Result<Built> {
    let access = Access::new(b, ITERATOR_TYPE);
    let spec: Arc<Spec> = declared(b)?.into();
    Built::waiting(move |op| {
        let walk = match access.of_op::<IteratorResource>(&op).and_then(|i| i.walk()) {
            Ok(walk) => walk,
            Err(e) => return op.finish(Err(e)),
        };
        if let Some(got) = ready(&walk) {
            return op.finish(declared_element(got, &spec));
        }
        let spec = spec.clone();
        run_op(
            op,
            async move { declared_element(next_of(walk).await, &spec) },
        );
    })
}

pub(super) fn end_of_sequence() -> Status {
    Status::out_of_range("End of sequence")
}

fn get_next_as_optional(b: &KernelBuilder<'_>) -> Result<Built> {
    let access = Access::new(b, ITERATOR_TYPE);
    let spec: Arc<Spec> = declared(b)?.into();
    Built::waiting(move |op: AsyncOp| {
        let walk = match access.of_op::<IteratorResource>(&op).and_then(|i| i.walk()) {
            Ok(walk) => walk,
            Err(e) => return op.finish(Err(e)),
        };
        let spec = spec.clone();
        run_op(op, async move {
            let element = next_of(walk).await?;
            if let Some(element) = &element {
                check_element(element, &spec)?;
            }
            Ok(vec![Tensor::variant(Variant::new(Optional(element)))])
        });
    })
}

fn serialize(b: &KernelBuilder<'_>) -> Result<Built> {
    let access = Access::new(b, ITERATOR_TYPE);
    // 0 warns about state outside of the iterator, 1 ignores it, 2 refuses it.
    let strict = b.attrs().int("external_state_policy")? == 2;
    Built::waiting(move |op| {
        let ready = (|| {
            let iterator = access.of_op::<IteratorResource>(&op)?;
            let walk = iterator.started("Save", "saving it")?;
            if strict {
                check_external_state(&walk.dataset)?;
            }
            Ok(walk)
        })();
        match ready {
            Err(e) => op.finish(Err(e)),
            Ok(walk) => run_op(op, async move {
                let state = walk.iter.enter().await.save().await?;
                let variant = Variant::new(state.encode());
                Ok(vec![Tensor::variants(vec![variant], [1])?])
            }),
        }
    })
}

fn deserialize(b: &KernelBuilder<'_>) -> Result<Built> {
    let access = Access::new(b, ITERATOR_TYPE);
    Built::waiting(move |op| {
        let ready = (|| {
            let iterator = access.of_op::<IteratorResource>(&op)?;
            let walk = iterator.started("Restore", "restoring it")?;
            let variant = op.input(1)?.as_variants()?.first();
            let encoded = variant
                .and_then(Variant::downcast::<Encoded>)
                .ok_or_else(|| {
                    Status::invalid_argument("the tensor holds no state of an iterator")
                })?;
            Ok((iterator, walk.dataset, State::decode(encoded)?))
        })();
        let (iterator, dataset, state) = match ready {
            Ok(ready) => ready,
            Err(e) => return op.finish(Err(e)),
        };
        let device = op.env().device.clone();
        run_op(op, async move {
            let mut iter = dataset.start(&device, "Iterator")?;
            iter.restore(state).await?;
            iterator.put(iter, &dataset);
            Ok(vec![])
        });
    })
}

fn to_string_handle(b: &KernelBuilder<'_>) -> Result<Built> {
    let access = Access::new(b, ITERATOR_TYPE);
    Built::cheap(move |ctx| {
        if !ctx.input(0)?.shape().is_scalar() {
            return Err(Status::invalid_argument("resource_handle must be a scalar"));
        }
        access.of_ctx::<IteratorResource>(ctx)?;
        let text = resource_handle::serialize(ctx.handle(0)?);
        ctx.set_output(0, Tensor::string(text));
        Ok(())
    })
}

fn from_string_handle(b: &KernelBuilder<'_>) -> Result<Built> {
    let types = b.attrs().dtypes("output_types")?.to_vec();
    let shapes = b.attrs().shapes("output_shapes")?.to_vec();
    let wanted = b.handle("", "", ITERATOR_TYPE, vec![]);
    Built::cheap(move |ctx: &mut OpContext<'_>| {
        let (handle, found) = string_handle::<IteratorResource>(ctx, &wanted)?;
        if !types.is_empty() {
            check_types(&types, &found.spec.types)?;
        }
        if !shapes.is_empty() {
            check_shapes(&shapes, &found.spec.shapes)?;
        }
        ctx.set_output(0, Tensor::resource(handle));
        Ok(())
    })
}

/// The handle in the string at input 0, and the resource of this device that it names.
pub(super) fn string_handle<R: Resource>(
    ctx: &OpContext<'_>,
    wanted: &ResourceHandle,
) -> Result<(ResourceHandle, Arc<R>)> {
    let string = ctx.input(0)?;
    if !string.shape().is_scalar() {
        return Err(Status::invalid_argument("string_handle must be a scalar"));
    }
    let bytes = string.as_strings()?.first().cloned().unwrap_or_default();
    let handle = resource_handle::parse(&bytes).ok_or_else(|| {
        Status::invalid_argument("Could not parse string_handle as a valid ResourceHandle")
    })?;
    let device = ctx.device();
    if handle.device != device.name {
        return Err(Status::invalid_argument(format!(
            "Attempted create an iterator on device \"{}\" from handle defined on device \"{}\"",
            device.name, handle.device
        )));
    }
    crate::queue::check_handle_type(&handle, wanted)?;
    let resources = &device.resources;
    let found = resources.find::<R>(&handle.container, &handle.name);
    let found = found
        .ok_or_else(|| resources.not_found(&handle.container, &handle.name, &wanted.type_name))?;
    Ok((handle, found))
}
