//! Iterators over a dataset whose elements go to several devices in turn.
//!
//! A task walks the dataset and deals its elements out to a pipe for each device; whoever is ahead
//! waits until the others have made room. A new dataset is a new incarnation, and calls for an older
//! one are refused.

use super::anonymous::{Anonymous, delete};
use super::dataset::{Dataset, Iter, Spec};
use super::define::{check_shapes, check_types, declared};
use super::iterator::{declared_element, string_handle};
use super::prefetch::{Receiver, Sender, pipe};
use super::task::{TaskHandle, Turnstile, run_op, spawn};
use crate::queue::shared_handle::{Access, Home};
use downpour_formats::resource_handle;
use downpour_graph::{Result, Status};
use downpour_runtime::{AsyncOp, Built, Device, KernelBuilder, Registry, Resource};
use downpour_tensor::Tensor;
use parking_lot::Mutex;
use std::sync::Arc;

const MULTI_TYPE: &str = "N10tensorflow4data12_GLOBAL__N_119MultiDeviceIteratorE";

pub(super) fn register(r: &mut Registry) {
    r.add("MultiDeviceIterator", |b| {
        let (spec, devices) = (declared(b)?, b.attrs().byte_strings("devices")?.len());
        let home = Home::<MultiDevice>::new(b, MULTI_TYPE)?;
        Built::cheap(move |ctx| {
            let found = home.get(ctx, || Ok(MultiDevice::new(spec.clone(), devices)))?;
            check_types(&spec.types, &found.spec.types)?;
            check_shapes(&spec.shapes, &found.spec.shapes)?;
            home.emit(ctx)
        })
    });
    for op in [
        "AnonymousMultiDeviceIterator",
        "AnonymousMultiDeviceIteratorV3",
    ] {
        r.add(op, |b| {
            let (spec, devices) = (declared(b)?, b.attrs().byte_strings("devices")?.len());
            let home = Anonymous::new(b, "AnonymousMultiDeviceIterator", MULTI_TYPE);
            Built::cheap(move |ctx| {
                home.emit(ctx, MultiDevice::new(spec.clone(), devices));
                Ok(())
            })
        });
    }
    r.add("MultiDeviceIteratorInit", init);
    r.add("MultiDeviceIteratorGetNextFromShard", get_next);
    r.add("DeleteMultiDeviceIterator", |_| {
        Built::cheap(|ctx| delete::<MultiDevice>(ctx))
    });
    r.add("MultiDeviceIteratorToStringHandle", |b| {
        let access = Access::new(b, MULTI_TYPE);
        Built::cheap(move |ctx| {
            access.of_ctx::<MultiDevice>(ctx)?;
            let text = resource_handle::serialize(ctx.handle(0)?);
            ctx.set_output(0, Tensor::string(text));
            Ok(())
        })
    });
    r.add("MultiDeviceIteratorFromStringHandle", |b| {
        let types = b.attrs().dtypes("output_types")?.to_vec();
        let shapes = b.attrs().shapes("output_shapes")?.to_vec();
        let wanted = b.handle("", "", MULTI_TYPE, vec![]);
        Built::cheap(move |ctx| {
            let (handle, found) = string_handle::<MultiDevice>(ctx, &wanted)?;
            if !types.is_empty() {
                check_types(&types, &found.spec.types)?;
            }
            if !shapes.is_empty() {
                check_shapes(&shapes, &found.spec.shapes)?;
            }
            ctx.set_output(0, Tensor::resource(handle));
            Ok(())
        })
    });
}

/// The resource.
struct MultiDevice {
    spec: Spec,
    devices: usize,
    state: Mutex<State>,
}

impl Resource for MultiDevice {
    fn type_name(&self) -> &'static str {
        MULTI_TYPE
    }
}

#[derive(Default)]
struct State {
    incarnation: i64,
    dealt: Option<Arc<Dealt>>,
}

/// A walk being dealt out.
struct Dealt {
    shards: Vec<Turnstile<Receiver>>,
    /// The walk and the pipes' other ends, until the first element is asked for.
    start: Mutex<Option<(Iter, Vec<Sender>)>>,
    task: Mutex<Option<TaskHandle>>,
}

impl MultiDevice {
    fn new(spec: Spec, devices: usize) -> MultiDevice {
        MultiDevice {
            spec,
            devices,
            state: Mutex::default(),
        }
    }

    /// Starts over with `dataset`; returns the number of the new incarnation.
    fn init(&self, device: &Arc<Device>, dataset: &Dataset, buffer: usize) -> Result<i64> {
        let walk = dataset.start(device, "Iterator")?;
        check_types(&self.spec.types, &dataset.spec().types)?;
        check_shapes(&self.spec.shapes, &dataset.spec().shapes)?;
        let (senders, receivers): (Vec<_>, Vec<_>) =
            (0..self.devices).map(|_| pipe(Some(buffer))).unzip();
        let dealt = Arc::new(Dealt {
            shards: receivers.into_iter().map(Turnstile::new).collect(),
            start: Mutex::new(Some((walk, senders))),
            task: Mutex::new(None),
        });
        let mut state = self.state.lock();
        state.incarnation += 1;
        let (incarnation, old) = (state.incarnation, state.dealt.replace(dealt));
        drop(state);
        drop(old);
        Ok(incarnation)
    }

    fn dealt(&self, incarnation: i64) -> Result<Arc<Dealt>> {
        let state = self.state.lock();
        let Some(dealt) = &state.dealt else {
            return Err(Status::failed_precondition("Iterator not initialized"));
        };
        if state.incarnation != incarnation {
            return Err(Status::invalid_argument(format!(
                "Invalid incarnation id. Provided: {incarnation}; Expected: {}",
                state.incarnation
            )));
        }
        Ok(dealt.clone())
    }
}

/// Deals elements out in turn; at the end everybody hears of it.
async fn deal(mut walk: Iter, shards: Vec<Sender>) {
    loop {
        for shard in &shards {
            shard.room().await;
            let got = walk.next().await;
            if matches!(got, Ok(None)) {
                for shard in &shards {
                    shard.push(Ok(None));
                }
                return;
            }
            shard.push(got);
        }
    }
}

fn scalar(op: &AsyncOp, i: usize, name: &str) -> Result<i64> {
    let tensor = op.input(i)?;
    match tensor.shape().is_scalar() {
        true => crate::args::int(tensor),
        false => Err(Status::invalid_argument(format!("{name} must be a scalar"))),
    }
}

fn init(b: &KernelBuilder<'_>) -> Result<Built> {
    let access = Access::at(b, 1, MULTI_TYPE);
    Built::waiting(move |op| {
        let ready = (|| {
            let dataset = Dataset::from_tensor(op.input(0)?)?.clone();
            let buffer = scalar(&op, 2, "max_buffer_size")?;
            Ok((dataset, access.of_op::<MultiDevice>(&op)?, buffer))
        })();
        let (dataset, iterator, buffer) = match ready {
            Ok(ready) => ready,
            Err(e) => return op.finish(Err(e)),
        };
        let device = op.env().device.clone();
        run_op(op, async move {
            let buffer = usize::try_from(buffer).unwrap_or(1).max(1);
            let incarnation = iterator.init(&device, &dataset, buffer)?;
            Ok(vec![Tensor::scalar(incarnation)])
        });
    })
}

fn get_next(b: &KernelBuilder<'_>) -> Result<Built> {
    let access = Access::new(b, MULTI_TYPE);
    let spec: Arc<Spec> = declared(b)?.into();
    Built::waiting(move |op| {
        let ready = (|| {
            let iterator = access.of_op::<MultiDevice>(&op)?;
            let shard = scalar(&op, 1, "shard_num")?;
            let dealt = iterator.dealt(scalar(&op, 2, "incarnation_id")?)?;
            let shard = usize::try_from(shard)
                .ok()
                .filter(|s| *s < dealt.shards.len());
            let shard = shard.ok_or_else(|| {
                Status::invalid_argument(format!("there are {} shards", dealt.shards.len()))
            })?;
            Ok((dealt, shard))
        })();
        let (dealt, shard) = match ready {
            Ok(ready) => ready,
            Err(e) => return op.finish(Err(e)),
        };
        if let Some((walk, senders)) = dealt.start.lock().take() {
            let task = spawn(&op.env().device, deal(walk, senders));
            *dealt.task.lock() = Some(task);
        }
        let spec = spec.clone();
        run_op(op, async move {
            let got = {
                let mut turn = dealt.shards[shard].enter().await;
                turn.next_or_ended().await
            };
            declared_element(got, &spec)
        });
    })
}
