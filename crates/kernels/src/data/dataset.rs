//! What a dataset is, and what walks over one.
//!
//! A [`Dataset`] is a handle to an immutable [`Recipe`] and travels along edges as a variant. An
//! [`Iter`] is a handle to a [`Stream`], the state of one walk. `Iter::next` is a future: a
//! stream asks the streams below it with `.await`, so a walk that has to wait (for a queue inside a
//! function, a buffer being filled) holds no thread, one that is cancelled is simply dropped, and
//! what skips a million elements is a loop, not a recursion.
//!
//! Two things a graph decides are bounded here: how deep streams may nest, because polling nests
//! as deep, and how many streams one walk may open, because `zip(d, d)` doubles them.

use super::access::Opened;
use super::prefetch::ahead;
use super::state::{Restoring, Saving, State, misfit};
use super::stats::Stats;
use super::task::yield_now;
use downpour_graph::{Node, Result, Status};
use downpour_runtime::{Device, FunctionLibrary};
use downpour_tensor::{DType, PartialShape, Tensor, Variant, VariantValue};
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};

/// How deep streams may nest. A level takes one or two KiB of an executor thread's 16 MiB.
const MAX_DEPTH: u32 = 1500;

/// How many streams one walk may open at its start.
const MAX_STREAMS: u64 = 1 << 20;

/// After how many elements a stream lets others have the thread.
const YIELD_EVERY: u32 = 64;

/// One element: a tensor for each component.
pub(super) type Element = Vec<Tensor>;

/// An element, or `None` at the end.
pub(super) type Got = Result<Option<Element>>;

/// What [`Stream::next`] returns.
pub(super) type Next<'a> = Pin<Box<dyn Future<Output = Got> + Send + 'a>>;

/// Types and shapes of the components.
#[derive(Clone, Debug, Default)]
pub(super) struct Spec {
    pub(super) types: Vec<DType>,
    pub(super) shapes: Vec<PartialShape>,
}

/// How many elements a dataset has, as far as that can be known without walking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cardinality {
    Infinite,
    Unknown,
    Known(i64),
}

impl Cardinality {
    /// TensorFlow's number for it.
    pub(super) fn number(self) -> i64 {
        match self {
            Cardinality::Infinite => -1,
            Cardinality::Unknown => -2,
            Cardinality::Known(n) => n,
        }
    }

    /// The same with a known number replaced.
    pub(super) fn map(self, f: impl FnOnce(i64) -> i64) -> Cardinality {
        match self {
            Cardinality::Known(n) => Cardinality::Known(f(n)),
            other => other,
        }
    }
}

/// How a dataset makes its elements. Immutable; walked by many at once.
pub(super) trait Recipe: Send + Sync {
    /// Starts a walk.
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>>;

    /// How many elements there are.
    fn cardinality(&self) -> Cardinality {
        Cardinality::Unknown
    }

    /// What the walk at `place` is called in prefixes, where that depends on the place.
    fn walk_name(&self, _place: &Place) -> Option<&'static str> {
        None
    }

    /// Whether its walks run beside whoever takes their elements, so that a buffer in front of
    /// them would win nothing.
    fn is_ahead(&self, _place: &Place) -> bool {
        false
    }

    /// Its elements by their numbers, where one can be had without those before it.
    fn access(&self, _place: &Place) -> Opened {
        Err(Status::unimplemented(""))
    }

    /// Whether all its elements may be had in any order, as a global shuffle takes them; its inputs are asked besides.
    fn check_shuffle(&self) -> Result<()> {
        Ok(())
    }

    /// The part of the recipe that a fusion with what follows may take over.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

/// The state of one walk. Must stay sound when a future of `next` is dropped half way: what was
/// taken from below may then be lost, but nothing else.
pub(super) trait Stream: Send {
    /// The next element.
    fn next(&mut self) -> Next<'_>;

    /// The next element if it is there already and only has to be handed out.
    fn ready(&mut self) -> Option<Got> {
        None
    }

    /// The walk below, of a stream that between two elements has no state but that walk's.
    fn input(&mut self) -> Option<&mut Iter> {
        None
    }

    /// What the stream has come to; `None` if that cannot be saved.
    fn save(&mut self) -> Saving<'_> {
        match self.input() {
            Some(input) => {
                Box::pin(async move { Ok(Some(State::default().with(input.save().await?))) })
            }
            None => Box::pin(std::future::ready(Ok(None))),
        }
    }

    /// Goes on from a state that `save` gave; only for a stream just opened.
    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        match self.input() {
            Some(input) => Box::pin(async move { input.restore(state.below(0)?).await }),
            None => Box::pin(std::future::ready(Err(misfit()))),
        }
    }
}

/// Where a walk takes place.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) device: Arc<Device>,
    /// The way from the iterator to this stream, as in `Iterator::Root::Map`; errors show it.
    pub(super) prefix: Arc<str>,
    /// Whether the order of elements must not depend on who is ready first, where a dataset leaves
    /// that to the pipeline's options.
    pub(super) deterministic: bool,
    /// Whether the pipeline may be changed where nobody sees it but in speed. TensorFlow
    /// optimizes the pipelines of iterators, not those that functions make inside of them.
    pub(super) optimize: bool,
    /// Where statistics go, if anywhere.
    stats: Option<Stats>,
    /// Functions with state of their own, one of each for a whole iterator.
    functions: Arc<OnceLock<Arc<dyn FunctionLibrary>>>,
    depth: u32,
}

impl Place {
    /// The place of a walk that nothing is known of yet.
    pub(super) fn new(device: &Arc<Device>, prefix: &str) -> Place {
        Place {
            device: device.clone(),
            prefix: prefix.into(),
            deterministic: true,
            optimize: false,
            stats: None,
            functions: Arc::default(),
            depth: 0,
        }
    }

    /// This place, with statistics of what is below going to `stats`.
    pub(super) fn reporting(&self, stats: Stats) -> Place {
        Place {
            stats: Some(stats),
            ..self.clone()
        }
    }

    /// Where statistics go, if anywhere.
    pub(super) fn stats(&self) -> Option<&Stats> {
        self.stats.as_ref()
    }

    /// The library in which this iterator's functions have their state: made out of `library` at
    /// the first need.
    pub(super) fn functions(&self, library: &dyn FunctionLibrary) -> &Arc<dyn FunctionLibrary> {
        self.functions.get_or_init(|| library.apart())
    }

    /// The place of a dataset that a function made for element `i` of the walk here.
    pub(super) fn inner(&self, i: u64) -> Place {
        Place {
            prefix: format!("{}[{i}]", self.prefix).into(),
            optimize: false,
            ..self.clone()
        }
    }

    /// The place below this one that errors call `prefix`, no deeper.
    pub(super) fn renamed(&self, prefix: String) -> Place {
        Place {
            prefix: prefix.into(),
            ..self.clone()
        }
    }
}

/// TensorFlow's names of a dataset's type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Kind {
    /// The dataset's: `Repeat`.
    name: &'static str,
    /// What its iterators are called in prefixes: `FiniteRepeat`. Empty for one that only says
    /// something about its input.
    walk: &'static str,
}

impl From<&'static str> for Kind {
    fn from(name: &'static str) -> Kind {
        Kind { name, walk: name }
    }
}

impl From<(&'static str, &'static str)> for Kind {
    fn from((name, walk): (&'static str, &'static str)) -> Kind {
        Kind { name, walk }
    }
}

/// The op that made a dataset, its inputs, and the functions they may name.
pub(super) struct Origin {
    pub(super) node: Arc<Node>,
    pub(super) inputs: Vec<Tensor>,
    pub(super) functions: Option<Arc<dyn FunctionLibrary>>,
}

/// A dataset.
#[derive(Clone)]
pub(super) struct Dataset(Arc<Parts>);

struct Parts {
    kind: Kind,
    spec: Spec,
    recipe: Box<dyn Recipe>,
    inputs: Vec<Dataset>,
    depth: u32,
    streams: u64,
    origin: Option<Origin>,
    /// The option of that name, as the last dataset on the way here that sets it does.
    deterministic: Option<bool>,
}

impl Dataset {
    /// A dataset over `inputs`.
    pub(super) fn new(
        kind: impl Into<Kind>,
        spec: Spec,
        inputs: Vec<Dataset>,
        recipe: impl Recipe + 'static,
    ) -> Result<Dataset> {
        let depth = inputs.iter().map(|i| i.0.depth + 1).max().unwrap_or(0);
        let streams = inputs
            .iter()
            .fold(1u64, |n, i| n.saturating_add(i.0.streams));
        if depth > MAX_DEPTH {
            return Err(too_deep());
        }
        let deterministic = inputs.iter().filter_map(|i| i.0.deterministic).next_back();
        if streams > MAX_STREAMS {
            return Err(Status::resource_exhausted(format!(
                "a dataset that opens {streams} iterators at once is refused; {MAX_STREAMS} are allowed"
            )));
        }
        Ok(Dataset(Arc::new(Parts {
            kind: kind.into(),
            spec,
            recipe: Box::new(recipe),
            inputs,
            depth,
            streams,
            origin: None,
            deterministic,
        })))
    }

    /// The same dataset, which remembers what made it. Only for one just made.
    pub(super) fn with_origin(mut self, origin: Origin) -> Dataset {
        if let Some(parts) = Arc::get_mut(&mut self.0) {
            parts.origin = Some(origin);
        }
        self
    }

    /// What made it, if that was an op.
    pub(super) fn origin(&self) -> Option<&Origin> {
        self.0.origin.as_ref()
    }

    /// A number that differs for datasets that differ.
    pub(super) fn identity(&self) -> usize {
        Arc::as_ptr(&self.0) as usize
    }

    /// The same dataset with the option `deterministic` set. Only for one just made.
    pub(super) fn with_deterministic(mut self, value: bool) -> Dataset {
        if let Some(parts) = Arc::get_mut(&mut self.0) {
            parts.deterministic = Some(value);
        }
        self
    }

    /// TensorFlow's type, without `Dataset`.
    pub(super) fn kind(&self) -> &'static str {
        self.0.kind.name
    }

    pub(super) fn spec(&self) -> &Spec {
        &self.0.spec
    }

    pub(super) fn inputs(&self) -> &[Dataset] {
        &self.0.inputs
    }

    pub(super) fn cardinality(&self) -> Cardinality {
        self.0.recipe.cardinality()
    }

    /// Starts a walk for an op; `name` is what its place is called. As TensorFlow does, the walk is
    /// optimized and has a buffer behind it where it does not end in one.
    pub(super) fn start(&self, device: &Arc<Device>, name: &str) -> Result<Iter> {
        let mut place = Place::new(device, &format!("{name}::Root"));
        place.deterministic = self.0.deterministic.unwrap_or(true);
        place.optimize = true;
        if self.is_ahead(&place) {
            self.iterate(&place)
        } else {
            ahead(self, &place)
        }
    }

    /// Starts a walk below `place`.
    pub(super) fn iterate(&self, place: &Place) -> Result<Iter> {
        if place.depth + self.0.depth > MAX_DEPTH {
            return Err(too_deep());
        }
        let name = self.0.recipe.walk_name(place).unwrap_or(self.0.kind.walk);
        let mut place = place.clone();
        place.depth += 1;
        if !name.is_empty() {
            place.prefix = format!("{}::{name}", place.prefix).into();
        }
        Ok(Iter {
            stream: Some(self.0.recipe.open(&place)?),
            calls: 0,
            given: 0,
        })
    }

    /// Its elements by their numbers.
    pub(super) fn access(&self, place: &Place) -> Opened {
        if place.depth + self.0.depth > MAX_DEPTH {
            return Err(too_deep());
        }
        match self.0.recipe.access(place) {
            Err(e) if e.message.is_empty() => super::access::none(self.0.kind.name),
            opened => opened,
        }
    }

    /// Whether a global shuffle may take its elements.
    pub(super) fn check_shuffle(&self) -> Result<()> {
        self.0.inputs.iter().try_for_each(Dataset::check_shuffle)?;
        self.0.recipe.check_shuffle()
    }

    /// Whether a walk at `place` runs beside whoever takes its elements.
    pub(super) fn is_ahead(&self, place: &Place) -> bool {
        match self.0.kind.walk {
            "" => self.0.inputs.first().is_some_and(|i| i.is_ahead(place)),
            _ => self.0.recipe.is_ahead(place),
        }
    }

    /// The recipe, for whoever can do the work of two at once.
    pub(super) fn recipe<R: 'static>(&self) -> Option<&R> {
        self.0.recipe.as_any()?.downcast_ref()
    }

    /// The dataset as a scalar variant.
    pub(super) fn into_tensor(self) -> Tensor {
        Tensor::variant(Variant::new(DatasetVariant(self)))
    }

    /// The dataset in a tensor.
    pub(super) fn from_tensor(tensor: &Tensor) -> Result<&Dataset> {
        if tensor.dtype() != DType::Variant || !tensor.shape().is_scalar() {
            return Err(Status::invalid_argument(
                "Dataset tensor must be a scalar of dtype DT_VARIANT.",
            ));
        }
        let variant = tensor.as_variants()?.first();
        match variant.and_then(Variant::downcast::<DatasetVariant>) {
            Some(DatasetVariant(dataset)) => Ok(dataset),
            None => Err(Status::invalid_argument("Tensor must be a Dataset object.")),
        }
    }
}

fn too_deep() -> Status {
    Status::resource_exhausted(format!(
        "datasets nest more than {MAX_DEPTH} deep, which is refused"
    ))
}

/// A dataset as an element of a variant tensor.
pub(super) struct DatasetVariant(pub(super) Dataset);

impl fmt::Debug for DatasetVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("<tensorflow::data::DatasetBase>")
    }
}

impl VariantValue for DatasetVariant {
    fn type_name(&self) -> &str {
        "tensorflow::data::(anonymous namespace)::DatasetVariantWrapper"
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// A walk over a dataset. After its end it stays at its end.
pub(super) struct Iter {
    stream: Option<Box<dyn Stream>>,
    calls: u32,
    /// Elements asked for so far, those that failed included.
    given: u64,
}

/// How a walk's state is written down.
const ENDED: i64 = 0;
const OWN: i64 = 1;
const AGAIN: i64 = 2;

impl Iter {
    /// The next element.
    pub(super) async fn next(&mut self) -> Got {
        let Some(stream) = &mut self.stream else {
            return Ok(None);
        };
        self.calls += 1;
        if self.calls >= YIELD_EVERY {
            self.calls = 0;
            // Loops over elements that never wait would otherwise never see a cancellation.
            yield_now().await;
        }
        let got = stream.next().await;
        self.given += 1;
        if let Ok(None) = got {
            self.stream = None;
        }
        got
    }

    /// What the walk has come to.
    pub(super) async fn save(&mut self) -> Result<State> {
        let Some(stream) = &mut self.stream else {
            return Ok(State::of([ENDED]));
        };
        Ok(match stream.save().await? {
            // Datasets among the elements have no written form.
            Some(state) if !state.holds_variants() => {
                State::of([OWN, self.given as i64]).with(state)
            }
            _ => State::of([AGAIN, self.given as i64]),
        })
    }

    /// Goes on from a state that `save` gave; only for a walk just started.
    pub(super) async fn restore(&mut self, mut state: State) -> Result<()> {
        match (state.number(0)?, &mut self.stream) {
            (ENDED, _) => self.stream = None,
            (OWN, Some(stream)) => {
                stream.restore(state.below(0)?).await?;
                self.given = state.option(1)?.unwrap_or(0);
            }
            (AGAIN, _) => {
                let given = state.option(1)?.unwrap_or(0);
                while self.given < given && self.stream.is_some() {
                    // What failed then may fail now.
                    let _ = self.next().await;
                }
            }
            _ => return Err(misfit()),
        }
        Ok(())
    }

    /// The next element if it is there already and only has to be handed out.
    pub(super) fn ready(&mut self) -> Option<Got> {
        let got = self.stream.as_mut()?.ready()?;
        self.given += 1;
        if let Ok(None) = got {
            self.stream = None;
        }
        Some(got)
    }
}
