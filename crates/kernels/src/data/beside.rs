//! Datasets that give another's elements unchanged, but under a name of their own: pauses, threads of one's own (ours are the device's), the fastest of several; and `RebatchDataset`, which cuts
//! batches into one for each replica.

use super::dataset::{Cardinality, Dataset, Iter, Next, Place, Recipe, Spec, Stream};
use super::define::{self, batched, check_shapes, check_types};
use super::function::{Captured, Fun, dataset_name};
use super::prefetch::Through;
use super::sources::{Elements, spec_of};
use crate::queue::shared_handle::{Access, Home};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, Resource, Timer};
use downpour_tensor::Tensor;
use parking_lot::Mutex;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

pub(super) fn register(r: &mut Registry) {
    for op in ["SleepDataset", "ExperimentalSleepDataset"] {
        r.add(op, |_| define::dataset(sleep));
    }
    for op in ["ThreadPoolHandle", "ExperimentalThreadPoolHandle"] {
        r.add(op, thread_pool_handle);
    }
    for op in ["ThreadPoolDataset", "ExperimentalThreadPoolDataset"] {
        r.add(op, |b| {
            let access = Access::at(b, 1, THREAD_POOL_TYPE);
            define::dataset(move |ctx| {
                access.of_ctx::<ThreadPool>(ctx)?;
                named("ThreadPool", define::input(ctx, 0)?)
            })
        });
    }
    for op in ["ChooseFastestDataset", "ExperimentalChooseFastestDataset"] {
        r.add(op, |_| define::dataset(choose_fastest));
    }
    r.add("ChooseFastestBranchDataset", choose_branch);
    for op in ["RebatchDataset", "ExperimentalRebatchDataset"] {
        r.add(op, |_| define::dataset(rebatch));
    }
    r.add("ListDataset", list);
    r.add("ComputeBatchSize", |_| {
        Built::cheap(|ctx| {
            let size = batch_size(&define::input(ctx, 0)?)?.unwrap_or(-1);
            ctx.set_output(0, Tensor::scalar(size));
            Ok(())
        })
    });
}

/// A dataset of `input`'s elements whose walks go by the name `kind`.
fn named(kind: &'static str, input: Dataset) -> Result<Dataset> {
    let recipe = Named(input.clone());
    Dataset::new(kind, input.spec().clone(), vec![input], recipe)
}

struct Named(Dataset);

impl Recipe for Named {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(Through(self.0.iterate(place)?)))
    }
    fn cardinality(&self) -> Cardinality {
        self.0.cardinality()
    }
}

fn sleep(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let input = define::input(ctx, 0)?;
    let micros = define::int(ctx, 1, "sleep_microseconds")?;
    let micros = u64::try_from(micros)
        .map_err(|_| Status::invalid_argument("`sleep_microseconds` must be >= 0"))?;
    let recipe = Sleep {
        input: input.clone(),
        pause: Duration::from_micros(micros),
    };
    Dataset::new("Sleep", input.spec().clone(), vec![input], recipe)
}

struct Sleep {
    input: Dataset,
    pause: Duration,
}

impl Recipe for Sleep {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let timer = place.device.extensions.get::<Timer>().cloned();
        let timer = timer.ok_or_else(|| Status::internal("this task has no clock to sleep by"))?;
        Ok(Box::new(SleepStream {
            input: self.input.iterate(place)?,
            pause: self.pause,
            timer,
        }))
    }
    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }
}

struct SleepStream {
    input: Iter,
    pause: Duration,
    timer: Timer,
}

impl Stream for SleepStream {
    fn input(&mut self) -> Option<&mut Iter> {
        Some(&mut self.input)
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            sleep_for(&self.timer, self.pause).await;
            self.input.next().await
        })
    }
}

/// Ends when `pause` has passed; holds no thread meanwhile.
async fn sleep_for(timer: &Timer, pause: Duration) {
    let shared: Arc<Mutex<(bool, Option<Waker>)>> = Arc::default();
    let told = shared.clone();
    timer.after(pause, move || {
        let waker = {
            let mut shared = told.lock();
            shared.0 = true;
            shared.1.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    });
    poll_fn(move |cx| {
        let mut shared = shared.lock();
        if shared.0 {
            return Poll::Ready(());
        }
        shared.1 = Some(cx.waker().clone());
        Poll::Pending
    })
    .await;
}

/// Threads that a client asked for. A pipeline here runs on the device's.
struct ThreadPool;

const THREAD_POOL_TYPE: &str =
    "N10tensorflow4data12experimental12_GLOBAL__N_118ThreadPoolResourceE";

impl Resource for ThreadPool {
    fn type_name(&self) -> &'static str {
        THREAD_POOL_TYPE
    }
}

fn thread_pool_handle(b: &KernelBuilder<'_>) -> Result<Built> {
    if b.attrs().int("num_threads")? <= 0 {
        return Err(Status::invalid_argument(
            "`num_threads` must be greater than zero.",
        ));
    }
    let home = Home::<ThreadPool>::new(b, THREAD_POOL_TYPE)?;
    Built::cheap(move |ctx| {
        home.get(ctx, || Ok(ThreadPool))?;
        home.emit(ctx)
    })
}

/// Functions that make the same dataset of the input in different ways: the first one does.
fn choose_branch(b: &KernelBuilder<'_>) -> Result<Built> {
    let spec = define::declared(b)?;
    let lengths = b.attrs().ints("other_arguments_lengths")?.to_vec();
    let mut branches = b.callees("branches")?;
    if branches.is_empty() || branches.len() != lengths.len() {
        return Err(Status::invalid_argument(format!(
            "there are {} branches, but numbers of arguments for {}",
            branches.len(),
            lengths.len()
        )));
    }
    let (first, name) = (branches.swap_remove(0), dataset_name(b)?);
    let count = usize::try_from(lengths[0]).unwrap_or(0);
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let (numerator, denominator) = (
            define::int(ctx, 1, "ratio_numerator")?,
            define::int(ctx, 2, "ratio_denominator")?,
        );
        if numerator <= 0 {
            return Err(Status::invalid_argument(
                "`ratio_numerator` must be greater than zero.",
            ));
        }
        if denominator <= 0 {
            return Err(Status::invalid_argument(
                "`ratio_denominator` must be greater than zero.",
            ));
        }
        let recipe = Branch {
            input: input.clone(),
            f: Captured::new(ctx, &first, 3..3 + count)?,
            name: name.next(),
            ratio: (numerator, denominator),
        };
        Dataset::new("ChooseFastestBranch", spec.clone(), vec![input], recipe)
    })
}

struct Branch {
    input: Dataset,
    f: Captured,
    name: String,
    /// Elements out for elements in.
    ratio: (i64, i64),
}

impl Recipe for Branch {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(BranchStream {
            f: self.f.at(place)?.of(&self.name, place),
            place: place.clone(),
            input: Some(self.input.clone()),
            walk: None,
        }))
    }
    fn cardinality(&self) -> Cardinality {
        let (numerator, denominator) = self.ratio;
        self.input
            .cardinality()
            .map(|n| n.saturating_mul(numerator) / denominator)
    }
}

struct BranchStream {
    f: Fun,
    place: Place,
    /// Until the function has made a dataset of it.
    input: Option<Dataset>,
    walk: Option<Iter>,
}

impl Stream for BranchStream {
    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            if let Some(input) = &self.input {
                let args = vec![input.clone().into_tensor()];
                self.walk = Some(self.f.walk(args, &self.place).await?);
                self.input = None;
            }
            match &mut self.walk {
                Some(walk) => walk.next().await,
                None => Ok(None),
            }
        })
    }
}

/// All inputs must give the same, so any of them may be the fastest: the first is.
fn choose_fastest(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let inputs = (0..ctx.num_inputs()).map(|i| define::input(ctx, i));
    let inputs = inputs.collect::<Result<Vec<_>>>()?;
    let Some(first) = inputs.first().cloned() else {
        return Err(Status::invalid_argument("there is no dataset to choose"));
    };
    for other in &inputs {
        check_types(&first.spec().types, &other.spec().types)?;
        check_shapes(&first.spec().shapes, &other.spec().shapes)?;
    }
    let recipe = Named(first.clone());
    Dataset::new("ChooseFastest", first.spec().clone(), inputs, recipe)
}

fn rebatch(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let input = define::input(ctx, 0)?;
    let replicas = define::int(ctx, 1, "num_replicas")?;
    if replicas <= 0 {
        return Err(Status::invalid_argument(
            "num_replicas must be greater than zero.",
        ));
    }
    for (i, shape) in input.spec().shapes.iter().enumerate() {
        if shape.rank() == Some(0) {
            return Err(Status::invalid_argument(format!(
                "Cannot rebatch dataset: All components must have at least one dimension. Perhaps your input dataset is not batched? Component {i} is scalar."
            )));
        }
    }
    let shapes = input.spec().shapes.iter();
    let spec = Spec {
        types: input.spec().types.clone(),
        shapes: shapes
            .map(|s| batched(None, &define::unbatched(s)))
            .collect(),
    };
    let recipe = Rebatch {
        input: input.clone(),
        replicas: usize::try_from(replicas).unwrap_or(usize::MAX),
    };
    Dataset::new("Rebatch", spec, vec![input], recipe)
}

struct Rebatch {
    input: Dataset,
    replicas: usize,
}

impl Recipe for Rebatch {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(RebatchStream {
            input: self.input.iterate(place)?,
            replicas: self.replicas,
            batch: Vec::new(),
            given: self.replicas,
        }))
    }
    fn cardinality(&self) -> Cardinality {
        let replicas = i64::try_from(self.replicas).unwrap_or(i64::MAX);
        self.input.cardinality().map(|n| n.saturating_mul(replicas))
    }
}

struct RebatchStream {
    input: Iter,
    replicas: usize,
    batch: Vec<Tensor>,
    /// Parts of `batch` that have been given.
    given: usize,
}

impl Stream for RebatchStream {
    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            if self.given >= self.replicas {
                let Some(batch) = self.input.next().await? else {
                    return Ok(None);
                };
                let rows = |t: &Tensor| t.dims().first().copied();
                let first = batch.first().and_then(rows);
                if first.is_none() || batch.iter().any(|t| rows(t) != first) {
                    return Err(Status::invalid_argument(
                        "Input element must have the same batch size in each component.",
                    ));
                }
                self.batch = batch;
                self.given = 0;
            }
            let rows = self.batch.first().and_then(|t| t.dims().first().copied());
            let rows = rows.unwrap_or(0);
            let size = rows.div_ceil(self.replicas);
            let start = self.given.saturating_mul(size).min(rows);
            let count = size.min(rows - start);
            self.given += 1;
            let part = self.batch.iter().map(|t| {
                t.rows(start, count)
                    .ok_or_else(|| Status::internal("a batch has lost its rows"))
            });
            part.collect::<Result<Vec<_>>>().map(Some)
        })
    }
}

/// Elements one after the other; what does not make a whole one at the end is left out.
fn list(b: &KernelBuilder<'_>) -> Result<Built> {
    let declared = define::declared(b)?;
    define::dataset(move |ctx| {
        let tensors = (0..ctx.num_inputs()).map(|i| ctx.input(i).cloned());
        let tensors = tensors.collect::<Result<Vec<_>>>()?;
        let elements = tensors.chunks_exact(declared.types.len().max(1));
        let elements: Vec<Vec<Tensor>> = elements.map(<[Tensor]>::to_vec).collect();
        for element in &elements {
            let spec = spec_of(element);
            check_types(&declared.types, &spec.types)?;
            check_shapes(&declared.shapes, &spec.shapes)?;
        }
        let recipe = Elements(Arc::new(elements));
        Dataset::new("List", declared.clone(), vec![], recipe)
    })
}

/// Ops that neither make nor change batches.
const KEEP_BATCHES: &[&str] = &[
    "AssertCardinality",
    "AssertNext",
    "BytesProducedStats",
    "Cache",
    "Filter",
    "Finalize",
    "IgnoreErrors",
    "LatencyStats",
    "MaxIntraOpParallelism",
    "Model",
    "NonSerializable",
    "Optimize",
    "Options",
    "Prefetch",
    "PrivateThreadPool",
    "Repeat",
    "Rewrite",
    "Shard",
    "Shuffle",
    "ShuffleAndRepeat",
    "Skip",
    "Sleep",
    "Take",
    "ThreadPool",
];

/// How many rows the batches of a dataset have, as far as that is to be seen from how it is made.
fn batch_size(dataset: &Dataset) -> Result<Option<i64>> {
    let Some(origin) = dataset.origin() else {
        return Ok(None);
    };
    let op = origin.node.op_name();
    let op = op.strip_prefix("Experimental").unwrap_or(op);
    let plain = match op.rsplit_once('V') {
        Some((name, version)) if version.bytes().all(|b| b.is_ascii_digit()) => name,
        _ => op,
    };
    let plain = plain.strip_suffix("Dataset").unwrap_or(plain);
    let size = match plain {
        "Batch" | "ParallelBatch" | "PaddedBatch" => origin.inputs.get(1),
        "MapAndBatch" => origin.inputs.iter().rev().nth(2),
        "Zip" | "Concatenate" | "ChooseFastest" => {
            let mut sizes = dataset.inputs().iter().map(batch_size);
            let first = sizes.next().transpose()?.flatten();
            for size in sizes {
                if size? != first {
                    return Ok(None);
                }
            }
            return Ok(first);
        }
        _ if KEEP_BATCHES.contains(&plain) => {
            return match dataset.inputs().first() {
                Some(input) => batch_size(input),
                None => Ok(None),
            };
        }
        _ => return Ok(None),
    };
    size.map(crate::args::int).transpose()
}
