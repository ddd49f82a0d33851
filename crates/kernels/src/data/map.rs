//! `Map` and `Filter`, one element at a time, with what else runs a function on each element:
//! `TakeWhile`, `Scan`.

use super::access::{Mapped, Opened};
use super::dataset::{Cardinality, Dataset, Iter, Next, Place, Recipe, Stream};
use super::define::{self, declared};
use super::function::{Captured, Fun, dataset_name, mapped, only};
use super::parallel_map::ParallelMap;
use super::state::{Restoring, Saving, State, misfit};
use downpour_graph::{Code, Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::Tensor;
use std::any::Any;
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    for op in ["MapDataset", "ExperimentalMapDataset"] {
        r.add(op, map);
    }
    r.add("FilterDataset", |b| filter(b, "Filter"));
    r.add("ParallelFilterDataset", |b| filter(b, "ParallelFilter"));
    r.add("FilterByLastComponentDataset", |_| {
        define::dataset(|ctx| {
            let input = define::input(ctx, 0)?;
            let mut spec = input.spec().clone();
            spec.types.pop();
            spec.shapes.pop();
            let recipe = FilterByLast(input.clone());
            Dataset::new("FilterByLastComponent", spec, vec![input], recipe)
        })
    });
    for op in ["TakeWhileDataset", "ExperimentalTakeWhileDataset"] {
        r.add(op, take_while);
    }
    for op in ["ScanDataset", "ExperimentalScanDataset"] {
        r.add(op, scan);
    }
}

/// The bool attribute `name`; false where an op has no such.
pub(super) fn flag(b: &KernelBuilder<'_>, name: &str) -> Result<bool> {
    match b.attrs().find(name) {
        Some(_) => b.attrs().bool(name),
        None => Ok(false),
    }
}

fn map(b: &KernelBuilder<'_>) -> Result<Built> {
    let (spec, f, naming) = (declared(b)?, b.callee("f")?, dataset_name(b)?);
    let preserve = flag(b, "preserve_cardinality")?;
    let synchronous = flag(b, "force_synchronous")?;
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let f = Captured::new(ctx, &f, 1..ctx.num_inputs())?;
        let parallel = !synchronous && !f.is_stateful();
        let recipe = Map {
            input: input.clone(),
            f: Arc::new(f),
            name: naming.next(),
            preserve,
            parallel,
        };
        Dataset::new("Map", spec.clone(), vec![input], recipe)
    })
}

/// A function on each element.
pub(super) struct Map {
    pub(super) input: Dataset,
    pub(super) f: Arc<Captured>,
    pub(super) name: String,
    pub(super) preserve: bool,
    /// Whether calls may run beside each other unseen.
    parallel: bool,
}

impl Map {
    fn beside(&self, place: &Place) -> Option<ParallelMap> {
        (self.parallel && place.optimize).then(|| ParallelMap {
            input: self.input.clone(),
            f: self.f.clone(),
            name: self.name.clone(),
            preserve: self.preserve,
            calls: None,
            deterministic: Some(true),
        })
    }
}

impl Recipe for Map {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        if let Some(parallel) = self.beside(place) {
            return parallel.open(place);
        }
        Ok(Box::new(MapStream {
            input: self.input.iterate(place)?,
            f: self.f.at(place)?.of(&self.name, place),
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
    fn walk_name(&self, place: &Place) -> Option<&'static str> {
        self.beside(place).map(|_| "ParallelMapV2")
    }
    fn is_ahead(&self, place: &Place) -> bool {
        self.beside(place).is_some()
    }
    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

struct MapStream {
    input: Iter,
    f: Fun,
    preserve: bool,
}

impl Stream for MapStream {
    fn input(&mut self) -> Option<&mut Iter> {
        Some(&mut self.input)
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            let Some(args) = self.input.next().await? else {
                return Ok(None);
            };
            mapped(self.f.call(args).await, self.preserve)
        })
    }
}

fn filter(b: &KernelBuilder<'_>, kind: &'static str) -> Result<Built> {
    let (f, naming) = (b.callee("predicate")?, dataset_name(b)?);
    let parallel = b.attrs().find("deterministic").is_some();
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let last = ctx.num_inputs() - usize::from(parallel);
        let f = Captured::new(ctx, &f, 1..last)?;
        if parallel {
            super::parallel_map::parallelism(define::int(ctx, last, "num_parallel_calls")?)?;
        }
        let recipe = Filter {
            input: input.clone(),
            f,
            name: naming.next(),
        };
        Dataset::new(kind, input.spec().clone(), vec![input], recipe)
    })
}

struct Filter {
    input: Dataset,
    f: Captured,
    name: String,
}

impl Recipe for Filter {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(FilterStream {
            input: self.input.iterate(place)?,
            f: self.f.at(place)?.of(&self.name, place),
        }))
    }
}

struct FilterStream {
    input: Iter,
    f: Fun,
}

impl Stream for FilterStream {
    fn input(&mut self) -> Option<&mut Iter> {
        Some(&mut self.input)
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            while let Some(element) = self.input.next().await? {
                let kept = self.f.call(element.clone()).await?;
                if predicate(
                    &kept,
                    "Filter predicate `predicate` must return a scalar bool.",
                )? {
                    return Ok(Some(element));
                }
            }
            Ok(None)
        })
    }
}

fn predicate(results: &[Tensor], refused: &str) -> Result<bool> {
    match results {
        [one] if one.shape().is_scalar() => only(results, refused),
        _ => Err(Status::invalid_argument(refused)),
    }
}

struct FilterByLast(Dataset);

impl Recipe for FilterByLast {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(FilterByLastStream(self.0.iterate(place)?)))
    }
}

struct FilterByLastStream(Iter);

impl Stream for FilterByLastStream {
    fn input(&mut self) -> Option<&mut Iter> {
        Some(&mut self.0)
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            while let Some(mut element) = self.0.next().await? {
                let last: Vec<Tensor> = element.pop().into_iter().collect();
                if predicate(&last, "Last component must be a bool scalar.")? {
                    return Ok(Some(element));
                }
            }
            Ok(None)
        })
    }
}

fn take_while(b: &KernelBuilder<'_>) -> Result<Built> {
    let f = b.callee("predicate")?;
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let f = Captured::new(ctx, &f, 1..ctx.num_inputs())?;
        let recipe = TakeWhile {
            input: input.clone(),
            f,
        };
        Dataset::new("TakeWhile", input.spec().clone(), vec![input], recipe)
    })
}

struct TakeWhile {
    input: Dataset,
    f: Captured,
}

impl Recipe for TakeWhile {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(TakeWhileStream {
            input: self.input.iterate(place)?,
            f: self.f.at(place)?,
        }))
    }
}

struct TakeWhileStream {
    input: Iter,
    f: Fun,
}

impl Stream for TakeWhileStream {
    fn input(&mut self) -> Option<&mut Iter> {
        Some(&mut self.input)
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            let Some(element) = self.input.next().await? else {
                return Ok(None);
            };
            let go_on = self.f.call(element.clone()).await?;
            let go_on = predicate(&go_on, "`predicate` must returns a scalar bool tensor.")?;
            Ok(go_on.then_some(element))
        })
    }
}

fn scan(b: &KernelBuilder<'_>) -> Result<Built> {
    let (spec, f) = (declared(b)?, b.callee("f")?);
    let states = b.attrs().dtypes("Tstate")?.to_vec();
    let preserve = flag(b, "preserve_cardinality")?;
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let first = (0..states.len()).map(|i| ctx.input(1 + i).cloned());
        let first = first.collect::<Result<Vec<_>>>()?;
        let f = Captured::new(ctx, &f, 1 + states.len()..ctx.num_inputs())?;
        let recipe = Scan {
            input: input.clone(),
            f,
            first,
            outputs: spec.types.len(),
            preserve,
        };
        Dataset::new("Scan", spec.clone(), vec![input], recipe)
    })
}

struct Scan {
    input: Dataset,
    f: Captured,
    first: Vec<Tensor>,
    outputs: usize,
    preserve: bool,
}

impl Recipe for Scan {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(ScanStream {
            input: self.input.iterate(place)?,
            f: self.f.at(place)?,
            state: self.first.clone(),
            outputs: self.outputs,
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
}

struct ScanStream {
    input: Iter,
    f: Fun,
    state: Vec<Tensor>,
    outputs: usize,
    preserve: bool,
}

impl Stream for ScanStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move {
            let mut state = State::default();
            state.tensors = self.state.clone();
            Ok(Some(state.with(self.input.save().await?)))
        })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move {
            if state.tensors.len() != self.state.len() {
                return Err(misfit());
            }
            self.state = std::mem::take(&mut state.tensors);
            self.input.restore(state.below(0)?).await
        })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            let Some(element) = self.input.next().await? else {
                return Ok(None);
            };
            let args = self.state.iter().cloned().chain(element).collect();
            let Some(mut state) = mapped(self.f.call(args).await, self.preserve)? else {
                return Ok(None);
            };
            let wanted = self.state.len() + self.outputs;
            if state.len() != wanted {
                return Err(Status::new(
                    Code::InvalidArgument,
                    "Number of components does not match between the state and output of `scan_func`.",
                ));
            }
            let output = state.split_off(self.state.len());
            for (i, (new, old)) in state.iter().zip(&self.state).enumerate() {
                if new.dtype() != old.dtype() {
                    return Err(Status::invalid_argument(format!(
                        "Got wrong type for scan_func return value {i} (expected {}, got {}).",
                        old.dtype(),
                        new.dtype()
                    )));
                }
            }
            self.state = state;
            Ok(Some(output))
        })
    }
}
