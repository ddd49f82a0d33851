//! Elements by their numbers: `GetElementAtIndex`, and the datasets that need it, `GlobalShuffleDataset`,
//! `IndexFlatMapDataset` and `WeightedFlatMapDataset`.
//!
//! A recipe whose elements can be had without those before them says so with `Recipe::access`. Functions are called
//! anew each time an element is asked for.

use super::dataset::{Cardinality, Dataset, Element, Iter, Next, Place, Recipe, Spec, Stream};
use super::define::{self, declared, now};
use super::function::{Captured, Fun, dataset_name};
use super::seeds::{self, SeedGenerator};
use super::sources::row;
use super::state::{Restoring, Saving, State};
use super::task::run_op;
use crate::random::index_shuffle::index_shuffle;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, Device, KernelBuilder, OpContext, Registry};
use downpour_tensor::Tensor;
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    r.add("GetElementAtIndex", |_| get());
    r.add("GlobalShuffleDataset", global_shuffle);
    r.add("IndexFlatMapDataset", index_flat_map);
    r.add("WeightedFlatMapDataset", weighted);
}

/// Gives elements by their numbers. Whoever asks keeps to those that there are.
pub(super) trait Access: Send + Sync {
    /// Element `index`.
    fn get(&self, index: u64) -> Next<'_>;
}

/// What [`Recipe::access`] gives.
pub(super) type Opened = Result<Box<dyn Access>>;

/// The answer of recipes that cannot.
pub(super) fn none(kind: &str) -> Opened {
    Err(Status::unimplemented(format!(
        "Random access is not implemented for this dataset: {kind}."
    )))
}

/// Elements that are there, or made at once.
pub(super) struct Ready<F>(pub(super) F);

impl<F: Fn(u64) -> Result<Option<Element>> + Send + Sync> Access for Ready<F> {
    fn get(&self, index: u64) -> Next<'_> {
        now((self.0)(index))
    }
}

/// The elements of another under other numbers.
pub(super) struct Renumbered<F> {
    pub(super) input: Box<dyn Access>,
    pub(super) number: F,
}

impl<F: Fn(u64) -> u64 + Send + Sync> Access for Renumbered<F> {
    fn get(&self, index: u64) -> Next<'_> {
        self.input.get((self.number)(index))
    }
}

/// What a function makes of the elements of another.
pub(super) struct Mapped {
    pub(super) input: Box<dyn Access>,
    pub(super) f: Fun,
}

impl Access for Mapped {
    fn get(&self, index: u64) -> Next<'_> {
        Box::pin(async move {
            match self.input.get(index).await? {
                Some(args) => self.f.call(args).await.map(Some),
                None => Ok(None),
            }
        })
    }
}

/// The elements of several beside each other.
pub(super) struct Beside(pub(super) Vec<Box<dyn Access>>);

impl Access for Beside {
    fn get(&self, index: u64) -> Next<'_> {
        Box::pin(async move {
            let mut element = Vec::new();
            for input in &self.0 {
                match input.get(index).await? {
                    Some(part) => element.extend(part),
                    None => return Ok(None),
                }
            }
            Ok(Some(element))
        })
    }
}

/// The elements of several one after the other.
pub(super) struct InTurn(Vec<(Box<dyn Access>, u64)>);

impl InTurn {
    /// Each with the number of its elements.
    pub(super) fn new(inputs: Vec<(Box<dyn Access>, u64)>) -> InTurn {
        InTurn(inputs)
    }
}

impl Access for InTurn {
    fn get(&self, index: u64) -> Next<'_> {
        let mut left = index;
        for (input, count) in &self.0 {
            if left < *count {
                return input.get(left);
            }
            left -= count;
        }
        now(Ok(None))
    }
}

/// Elements joined `size` at a time.
pub(super) struct Joined {
    pub(super) input: Box<dyn Access>,
    /// Elements of the input.
    pub(super) count: u64,
    pub(super) size: u64,
    pub(super) device: Arc<Device>,
    pub(super) how: super::batch::Join,
}

impl Access for Joined {
    fn get(&self, index: u64) -> Next<'_> {
        Box::pin(async move {
            let start = index.saturating_mul(self.size);
            let mut room = super::batch::Room::new(&self.device);
            let mut elements = Vec::new();
            for i in start..start.saturating_add(self.size).min(self.count) {
                let Some(element) = self.input.get(i).await? else {
                    break;
                };
                room.take(&element)?;
                elements.push(element);
            }
            if elements.is_empty() {
                return Ok(None);
            }
            (self.how)(&self.device, &elements).map(Some)
        })
    }
}

/// The number of elements, where it is known.
pub(super) fn count(dataset: &Dataset) -> Result<u64> {
    match dataset.cardinality() {
        Cardinality::Known(n) => Ok(n.max(0) as u64),
        other => Err(Status::failed_precondition(format!(
            "Dataset of type {}DatasetOp::Dataset has {} cardinality, which does not support random access.",
            dataset.kind(),
            if other == Cardinality::Infinite {
                "infinite"
            } else {
                "unknown"
            }
        ))),
    }
}

fn get() -> Result<Built> {
    Built::waiting(|op| {
        let ready = (|| {
            let dataset = Dataset::from_tensor(op.input(0)?)?.clone();
            let index = op.input(1)?;
            if !index.shape().is_scalar() {
                return Err(Status::invalid_argument("index must be a scalar"));
            }
            Ok((dataset, crate::args::int(index)?))
        })();
        let (dataset, index) = match ready {
            Ok(ready) => ready,
            Err(e) => return op.finish(Err(e)),
        };
        let device = op.env().device.clone();
        run_op(op, async move {
            let place = Place::new(&device, "GetElementAtIndex");
            let access = dataset.access(&place)?;
            let end = count(&dataset)?;
            let outside = || {
                let text = format!("Index out of range [0, {end}):{index}");
                Status::new(downpour_graph::Code::OutOfRange, text)
            };
            let at = u64::try_from(index).ok().filter(|at| *at < end);
            access
                .get(at.ok_or_else(outside)?)
                .await?
                .ok_or_else(outside)
        });
    })
}

/// Rounds of the cipher that shuffles.
const ROUNDS: usize = 8;

fn global_shuffle(b: &KernelBuilder<'_>) -> Result<Built> {
    let again = b.attrs().bool("reshuffle_each_iteration")?;
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        // Whether elements can be had by number is known before a walk begins.
        let place = Place::new(ctx.device(), "GlobalShuffle");
        let opened = input.check_shuffle().and_then(|()| input.access(&place));
        opened.map_err(|e| {
            Status::failed_precondition(format!(
                "`global_shuffle` requires all upstream transformations be compatible with random access. Got: {e}"
            ))
        })?;
        let size = match input.cardinality() {
            Cardinality::Known(n) if n > 0 => n as u64,
            other => {
                return Err(Status::invalid_argument(format!(
                    "`global_shuffle` requires the input dataset to have a non-empty finite cardinality. Got cardinality {} for dataset {}Dataset::Dataset",
                    other.number(),
                    input.kind()
                )));
            }
        };
        let given = (define::int(ctx, 1, "seed")?, define::int(ctx, 2, "seed2")?);
        let seeds = seeds::find(ctx, 3, || SeedGenerator::new(given, again))?;
        let recipe = GlobalShuffle {
            input: input.clone(),
            size,
            seeds,
        };
        Dataset::new("GlobalShuffle", input.spec().clone(), vec![input], recipe)
    })
}

struct GlobalShuffle {
    input: Dataset,
    size: u64,
    seeds: Arc<SeedGenerator>,
}

impl GlobalShuffle {
    /// The three words of this walk's order.
    fn key(&self) -> [u32; 3] {
        let (first, second) = self.seeds.next();
        [first as u32, second as u32, self.seeds.next().0 as u32]
    }

    fn shuffled(&self, place: &Place, key: [u32; 3]) -> Opened {
        let last = self.size - 1;
        Ok(Box::new(Renumbered {
            input: self.input.access(place)?,
            number: move |i| index_shuffle(i, key, last, ROUNDS),
        }))
    }
}

impl Recipe for GlobalShuffle {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let key = self.key();
        Ok(Box::new(ByNumber {
            elements: self.shuffled(place, key)?,
            next: 0,
            end: self.size,
        }))
    }
    fn cardinality(&self) -> Cardinality {
        Cardinality::Known(self.size as i64)
    }
    fn access(&self, place: &Place) -> Opened {
        let key = self.key();
        self.shuffled(place, key)
    }
}

/// A walk that asks for one number after the other.
struct ByNumber {
    elements: Box<dyn Access>,
    next: u64,
    end: u64,
}

impl Stream for ByNumber {
    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            if self.next >= self.end {
                return Ok(None);
            }
            let got = self.elements.get(self.next).await?;
            self.next += 1;
            Ok(got)
        })
    }
}

fn index_flat_map(b: &KernelBuilder<'_>) -> Result<Built> {
    let (spec, map, index) = (
        declared(b)?,
        b.callee("map_func")?,
        b.callee("index_map_func")?,
    );
    let count = b.attrs().dtypes("Tmap_func_args")?.len();
    let naming = dataset_name(b)?;
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let middle = 1 + count;
        let last = ctx.num_inputs() - 1;
        let recipe = IndexFlatMap {
            input: input.clone(),
            map: Captured::new(ctx, &map, 1..middle)?,
            index: Captured::new(ctx, &index, middle..last)?,
            cardinality: define::int(ctx, last, "output_cardinality")?,
            name: naming.next(),
        };
        Dataset::new("IndexFlatMap", spec.clone(), vec![input], recipe)
    })
}

struct IndexFlatMap {
    input: Dataset,
    map: Captured,
    index: Captured,
    cardinality: i64,
    name: String,
}

impl IndexFlatMap {
    fn functions(&self, place: &Place) -> Result<Functions> {
        Ok(Functions {
            map: self.map.at(place)?.of(&self.name, place),
            index: self.index.at(place)?.of(&self.name, place),
        })
    }
}

impl Recipe for IndexFlatMap {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(IndexFlatMapStream {
            input: self.input.iterate(place)?,
            functions: self.functions(place)?,
            given: 0,
            taken: 0,
            held: None,
        }))
    }
    fn cardinality(&self) -> Cardinality {
        match self.cardinality {
            -1 => Cardinality::Infinite,
            n if n >= 0 => Cardinality::Known(n),
            _ => Cardinality::Unknown,
        }
    }
    fn access(&self, place: &Place) -> Opened {
        Ok(Box::new(Flattened {
            input: self.input.access(place)?,
            functions: self.functions(place)?,
        }))
    }
}

struct Functions {
    map: Fun,
    index: Fun,
}

impl Functions {
    /// The number of the input's element that holds element `flat`, and its place in it.
    async fn place(&self, flat: u64) -> Result<(u64, usize)> {
        let made = self.index.call(vec![Tensor::scalar(flat as i64)]).await?;
        let refused = || {
            let found: Vec<String> = made.iter().map(|t| t.summarize(3)).collect();
            Status::invalid_argument(format!(
                "The `index_map_fn` for `index_flat_map` is expected to return two int values representing the element index and an offset within the element. Got: {{{}}}",
                found.join(", ")
            ))
        };
        let [element, offset] = made.as_slice() else {
            return Err(refused());
        };
        let number = |t: &Tensor| {
            let value = crate::args::int(t).map_err(|_| refused())?;
            u64::try_from(value).map_err(|_| refused())
        };
        let offset = usize::try_from(number(offset)?).map_err(|_| refused())?;
        Ok((number(element)?, offset))
    }
}

/// Part `offset` of each component; scalars are the same for all.
fn slice(element: &Element, offset: usize) -> Result<Element> {
    let part = |t: &Tensor| match t.rank() {
        0 => Ok(t.clone()),
        _ if offset < t.dims()[0] => row(t, offset),
        _ => Err(Status::invalid_argument(format!(
            "`index_map_fn` gave offset {offset} in an element of shape {}",
            t.shape()
        ))),
    };
    element.iter().map(part).collect()
}

struct IndexFlatMapStream {
    input: Iter,
    functions: Functions,
    /// Elements given, and taken from below.
    given: u64,
    taken: u64,
    /// What the function made of the last one taken.
    held: Option<Element>,
}

impl Stream for IndexFlatMapStream {
    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            let (element, offset) = self.functions.place(self.given).await?;
            while self.taken <= element || self.held.is_none() {
                let Some(args) = self.input.next().await? else {
                    return Ok(None);
                };
                self.taken += 1;
                if self.taken > element {
                    self.held = Some(self.functions.map.call(args).await?);
                }
            }
            self.given += 1;
            let held = self.held.as_ref();
            held.map(|held| slice(held, offset)).transpose()
        })
    }
}

struct Flattened {
    input: Box<dyn Access>,
    functions: Functions,
}

impl Access for Flattened {
    fn get(&self, index: u64) -> Next<'_> {
        Box::pin(async move {
            let (element, offset) = self.functions.place(index).await?;
            let Some(args) = self.input.get(element).await? else {
                return Ok(None);
            };
            let made = self.functions.map.call(args).await?;
            slice(&made, offset).map(Some)
        })
    }
}

fn weighted(b: &KernelBuilder<'_>) -> Result<Built> {
    let spec = declared(b)?;
    let count = b.attrs().size("N")?;
    define::dataset(move |ctx| weighted_of(ctx, &spec, count))
}

fn weighted_of(ctx: &mut OpContext<'_>, spec: &Spec, n: usize) -> Result<Dataset> {
    let invalid = |text: String| Err(Status::invalid_argument(text));
    let inputs = (0..n).map(|i| define::input(ctx, i));
    let inputs = inputs.collect::<Result<Vec<Dataset>>>()?;
    let weights = (n..ctx.num_inputs()).map(|i| Ok(ctx.input(i)?.scalar_value::<f64>()?));
    let weights = weights.collect::<Result<Vec<f64>>>()?;
    if weights.len() != n || n < 2 {
        return invalid(format!(
            "The number of weights must be equal to the number of inputs, at least 2, but there are {} weights and {n} inputs",
            weights.len()
        ));
    }
    if let Some(bad) = weights.iter().find(|w| !(**w > 0.0 && w.is_finite())) {
        return invalid(format!("`weights` must be greater than 0.0, got {bad}"));
    }
    let mut counts = Vec::with_capacity(n);
    for (i, input) in inputs.iter().enumerate() {
        match input.cardinality() {
            Cardinality::Known(n) if n > 0 => counts.push(n as u64),
            other => {
                return invalid(format!(
                    "`weighted_flat_map` requires all inputs to have known positive finite cardinalities, but input {i} has {}",
                    other.number()
                ));
            }
        }
    }
    // As many of each as its weight says until one of them has no more.
    let most = weights.iter().copied().fold(0.0, f64::max);
    let shares = counts
        .iter()
        .zip(&weights)
        .map(|(c, w)| *c as f64 * w / most);
    let (first, share) =
        shares.enumerate().fold(
            (0, f64::MAX),
            |best, (i, s)| if s < best.1 { (i, s) } else { best },
        );
    let mut parts = Vec::with_capacity(n);
    for (i, (have, weight)) in counts.iter().zip(&weights).enumerate() {
        let wanted = (share * weight / weights[first]) as u64;
        if wanted > *have {
            return invalid(format!(
                "Input {i} needs to have at least {wanted} elements. It only has {have} elements."
            ));
        }
        parts.push((inputs[i].clone(), wanted));
    }
    Dataset::new("WeightedFlatMap", spec.clone(), inputs, Weighted(parts))
}

/// Datasets, and how many elements of each.
struct Weighted(Vec<(Dataset, u64)>);

impl Recipe for Weighted {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let walks = self.0.iter().enumerate().map(|(i, (input, count))| {
            let place = place.renamed(format!("{}[{i}]", place.prefix));
            Ok((input.iterate(&place)?, *count))
        });
        Ok(Box::new(WeightedStream {
            walks: walks.collect::<Result<_>>()?,
            at: 0,
            given: 0,
        }))
    }
    fn cardinality(&self) -> Cardinality {
        Cardinality::Known(self.0.iter().map(|(_, count)| *count as i64).sum())
    }
    fn access(&self, place: &Place) -> Opened {
        let inputs = self
            .0
            .iter()
            .map(|(d, count)| Ok((d.access(place)?, *count)));
        Ok(Box::new(InTurn::new(inputs.collect::<Result<_>>()?)))
    }
}

struct WeightedStream {
    walks: Vec<(Iter, u64)>,
    at: usize,
    /// Elements of the one whose turn it is.
    given: u64,
}

impl Stream for WeightedStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move {
            let mut state = State::of([self.at as i64, self.given as i64]);
            for (walk, _) in &mut self.walks {
                state = state.with(walk.save().await?);
            }
            Ok(Some(state))
        })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move {
            (self.at, self.given) = (state.size(0)?, state.option(1)?.unwrap_or(0));
            for (i, (walk, _)) in self.walks.iter_mut().enumerate() {
                walk.restore(state.below(i)?).await?;
            }
            Ok(())
        })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            while let Some((walk, count)) = self.walks.get_mut(self.at) {
                if self.given < *count {
                    self.given += 1;
                    return walk.next().await;
                }
                self.at += 1;
                self.given = 0;
            }
            Ok(None)
        })
    }
}
