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

use super::task::yield_now;
use downpour_graph::{Result, Status};
use downpour_runtime::Device;
use downpour_tensor::{DType, PartialShape, Tensor, Variant, VariantValue};
use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

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
}

/// The state of one walk. Must stay sound when a future of `next` is dropped half way: what was
/// taken from below may then be lost, but nothing else.
pub(super) trait Stream: Send {
    /// The next element.
    fn next(&mut self) -> Next<'_>;
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
    depth: u32,
}

impl Place {
    /// The place of a walk that starts at an iterator.
    pub(super) fn root(device: &Arc<Device>) -> Place {
        Place::named(device, "Iterator::Root")
    }

    /// The place of a walk with a prefix of its own.
    pub(super) fn named(device: &Arc<Device>, prefix: &str) -> Place {
        Place {
            device: device.clone(),
            prefix: prefix.into(),
            deterministic: true,
            depth: 0,
        }
    }

    /// The same place for a walk over `dataset`, whose options then hold.
    pub(super) fn with_options(mut self, dataset: &Dataset) -> Place {
        self.deterministic = dataset.deterministic().unwrap_or(true);
        self
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
    /// What its iterators are called in prefixes: `FiniteRepeat`.
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
        let deterministic = inputs.iter().filter_map(|i| i.0.deterministic).last();
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
            deterministic,
        })))
    }

    /// The same dataset with the option `deterministic` set. Only for one just made.
    pub(super) fn with_deterministic(mut self, value: bool) -> Dataset {
        if let Some(parts) = Arc::get_mut(&mut self.0) {
            parts.deterministic = Some(value);
        }
        self
    }

    /// The option `deterministic` of this dataset.
    pub(super) fn deterministic(&self) -> Option<bool> {
        self.0.deterministic
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

    /// Starts a walk below `place`.
    pub(super) fn iterate(&self, place: &Place) -> Result<Iter> {
        if place.depth + self.0.depth > MAX_DEPTH {
            return Err(too_deep());
        }
        let place = Place {
            prefix: format!("{}::{}", place.prefix, self.0.kind.walk).into(),
            depth: place.depth + 1,
            ..place.clone()
        };
        Ok(Iter {
            stream: Some(self.0.recipe.open(&place)?),
            calls: 0,
        })
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
}

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
        if let Ok(None) = got {
            self.stream = None;
        }
        got
    }
}
