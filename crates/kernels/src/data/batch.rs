//! Elements in batches: `Batch`, `PaddedBatch`, and back again, `Unbatch`.

use super::access::{Joined, Opened, count};
use super::dataset::{Cardinality, Dataset, Element, Iter, Next, Place, Recipe, Spec, Stream};
use super::define::{self, batched};
use super::parallel_map::{MapAndBatch, fused};
use super::sources::row;
use super::state::{Restoring, Saving, State, misfit};
use crate::queue::element::stack;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, Device, KernelBuilder, OpContext, Registry};
use downpour_tensor::{Shape, Tensor};
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    r.add("BatchDataset", |_| {
        define::dataset(|ctx| batch(ctx, "Batch", None))
    });
    r.add("BatchDatasetV2", |_| {
        define::dataset(|ctx| batch(ctx, "BatchV2", Some(2)))
    });
    // Batches are copied on one thread as soon as their elements are there; more calls would
    // change nothing that can be seen.
    r.add("ParallelBatchDataset", |_| {
        define::dataset(|ctx| {
            let calls = define::int(ctx, 2, "num_parallel_calls")?;
            if calls < 1 && calls != -1 {
                return Err(Status::invalid_argument(
                    "num_parallel_calls must be greater than zero.",
                ));
            }
            batch(ctx, "ParallelBatch", Some(3))
        })
    });
    for op in ["UnbatchDataset", "ExperimentalUnbatchDataset"] {
        r.add(op, unbatch);
    }
}

fn batch(ctx: &mut OpContext<'_>, kind: &'static str, drop_at: Option<usize>) -> Result<Dataset> {
    let input = define::input(ctx, 0)?;
    let size = define::int(ctx, 1, "batch_size")?;
    if size <= 0 {
        return Err(Status::invalid_argument(
            "Batch size must be greater than zero.",
        ));
    }
    let drop_rest = match drop_at {
        Some(at) => define::boolean(ctx, at, "drop_remainder")?,
        None => false,
    };
    let full = drop_rest || input.cardinality() == Cardinality::Infinite;
    let first = full.then_some(usize::try_from(size).unwrap_or(usize::MAX));
    let spec = Spec {
        types: input.spec().types.clone(),
        shapes: input
            .spec()
            .shapes
            .iter()
            .map(|s| batched(first, s))
            .collect(),
    };
    let recipe = Batch {
        input: input.clone(),
        size,
        drop_rest,
        how: Arc::new(batch_elements),
        fuses: kind != "ParallelBatch",
    };
    Dataset::new(kind, spec, vec![input], recipe)
}

/// Makes one element of many.
pub(super) type Join = Arc<dyn Fn(&Device, &[Element]) -> Result<Element> + Send + Sync>;

/// Elements joined `size` at a time.
pub(super) struct Batch {
    pub(super) input: Dataset,
    pub(super) size: i64,
    pub(super) drop_rest: bool,
    pub(super) how: Join,
    /// Whether a map below may be done with it in one.
    pub(super) fuses: bool,
}

impl Batch {
    fn fused(&self, place: &Place) -> Option<MapAndBatch> {
        let may = self.fuses && place.optimize;
        may.then(|| fused(&self.input, self.size, self.drop_rest))?
    }
}

impl Recipe for Batch {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        if let Some(fused) = self.fused(place) {
            return fused.open(place);
        }
        Ok(Box::new(BatchStream {
            input: self.input.iterate(place)?,
            device: place.device.clone(),
            size: usize::try_from(self.size).unwrap_or(usize::MAX),
            drop_rest: self.drop_rest,
            how: self.how.clone(),
        }))
    }
    fn cardinality(&self) -> Cardinality {
        let rest = |n: i64| i64::from(n % self.size != 0 && !self.drop_rest);
        self.input.cardinality().map(|n| n / self.size + rest(n))
    }
    fn access(&self, place: &Place) -> Opened {
        Ok(Box::new(Joined {
            input: self.input.access(place)?,
            count: count(&self.input)?,
            size: self.size as u64,
            device: place.device.clone(),
            how: self.how.clone(),
        }))
    }
    fn check_shuffle(&self) -> Result<()> {
        if self.drop_rest {
            return Ok(());
        }
        Err(Status::failed_precondition(
            "BatchDatasetV2 does not support global shuffling with `drop_remainder=False`.",
        ))
    }
    fn walk_name(&self, place: &Place) -> Option<&'static str> {
        self.fused(place).map(|_| "MapAndBatch")
    }
    fn is_ahead(&self, place: &Place) -> bool {
        self.fused(place).is_some()
    }
}

struct BatchStream {
    input: Iter,
    device: Arc<Device>,
    size: usize,
    drop_rest: bool,
    how: Join,
}

impl Stream for BatchStream {
    fn input(&mut self) -> Option<&mut Iter> {
        Some(&mut self.input)
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            let mut elements = Vec::new();
            let mut room = Room::new(&self.device);
            while elements.len() < self.size {
                match self.input.next().await? {
                    Some(element) => {
                        room.take(&element)?;
                        elements.push(element);
                    }
                    None if elements.is_empty() || self.drop_rest => return Ok(None),
                    None => break,
                }
            }
            (self.how)(&self.device, &elements).map(Some)
        })
    }
}

/// What a batch being gathered may take: as much as a tensor may.
pub(super) struct Room {
    left: usize,
    limit: usize,
}

impl Room {
    pub(super) fn new(device: &Device) -> Room {
        let limit = device.room();
        Room { left: limit, limit }
    }

    pub(super) fn take(&mut self, element: &[Tensor]) -> Result<()> {
        let bytes: usize = element.iter().map(|t| t.byte_len().max(1)).sum();
        self.left = self.left.checked_sub(bytes).ok_or_else(|| {
            Status::resource_exhausted(format!(
                "a batch has more than the {} bytes that a tensor may have",
                self.limit
            ))
        })?;
        Ok(())
    }
}

/// Stacks elements of equal shapes.
pub(super) fn batch_elements(device: &Device, elements: &[Element]) -> Result<Element> {
    let Some(first) = elements.first() else {
        return Ok(Vec::new());
    };
    (0..first.len())
        .map(|c| {
            let parts = column(elements, c)?;
            let shape = parts[0].shape();
            if let Some(i) = parts.iter().position(|p| p.shape() != shape) {
                return Err(Status::invalid_argument(format!(
                    "Cannot batch tensors with different shapes in component {c}. First element had shape {shape} and element {i} had shape {}.",
                    parts[i].shape()
                )));
            }
            stack(device, parts[0].dtype(), shape, &parts)
        })
        .collect()
}

/// Component `c` of all elements, of which there is at least one.
pub(super) fn column(elements: &[Element], c: usize) -> Result<Vec<&Tensor>> {
    let parts = elements.iter().map(|e| {
        e.get(c)
            .ok_or_else(|| Status::internal("elements have different numbers of components"))
    });
    let parts = parts.collect::<Result<Vec<_>>>()?;
    match parts.first() {
        Some(first) if parts.iter().all(|p| p.dtype() == first.dtype()) => Ok(parts),
        _ => Err(Status::invalid_argument(format!(
            "Cannot batch tensors with different types in component {c}."
        ))),
    }
}

fn unbatch(_: &KernelBuilder<'_>) -> Result<Built> {
    define::dataset(|ctx| {
        let input = define::input(ctx, 0)?;
        let shapes = &input.spec().shapes;
        let mut size = None;
        for shape in shapes {
            if let Some([Some(n), ..]) = shape.dims() {
                size.get_or_insert(*n);
            }
        }
        let spec = Spec {
            types: input.spec().types.clone(),
            shapes: shapes.iter().map(define::unbatched).collect(),
        };
        let recipe = Unbatch {
            input: input.clone(),
            size,
        };
        Dataset::new("Unbatch", spec, vec![input], recipe)
    })
}

struct Unbatch {
    input: Dataset,
    /// Rows of each batch, if declared.
    size: Option<usize>,
}

impl Recipe for Unbatch {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(UnbatchStream {
            input: self.input.iterate(place)?,
            batch: Vec::new(),
            rows: 0,
            at: 0,
        }))
    }
    fn cardinality(&self) -> Cardinality {
        match (self.input.cardinality(), self.size) {
            (Cardinality::Known(n), Some(size)) => {
                Cardinality::Known(n.saturating_mul(size as i64))
            }
            (Cardinality::Known(_), None) => Cardinality::Unknown,
            (other, _) => other,
        }
    }
}

struct UnbatchStream {
    input: Iter,
    batch: Vec<Tensor>,
    rows: usize,
    at: usize,
}

impl Stream for UnbatchStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move {
            let mut state = State::of([self.rows as i64, self.at as i64]);
            state.tensors = self.batch.clone();
            Ok(Some(state.with(self.input.save().await?)))
        })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move {
            (self.rows, self.at) = (state.size(0)?, state.size(1)?);
            self.batch = std::mem::take(&mut state.tensors);
            if self
                .batch
                .iter()
                .any(|t| t.dims().first() != Some(&self.rows))
            {
                return Err(misfit());
            }
            self.input.restore(state.below(0)?).await
        })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            while self.at >= self.rows {
                let Some(batch) = self.input.next().await? else {
                    return Ok(None);
                };
                let scalar = || {
                    Status::invalid_argument(
                        "Input element must have a non-scalar value in each component.",
                    )
                };
                let rows = batch.first().and_then(|t| t.dims().first().copied());
                let rows = rows.ok_or_else(scalar)?;
                for component in &batch {
                    let Some(&mine) = component.dims().first() else {
                        return Err(scalar());
                    };
                    if mine != rows {
                        return Err(Status::invalid_argument(format!(
                            "Input element must have the same batch size in each component. Component 0 had size {rows} but component 1 had size, {mine}."
                        )));
                    }
                }
                (self.batch, self.rows, self.at) = (batch, rows, 0);
            }
            let element = self
                .batch
                .iter()
                .map(|c| row(c, self.at))
                .collect::<Result<_>>()?;
            self.at += 1;
            Ok(Some(element))
        })
    }
}

/// The shape `[n] + inner`, checked.
pub(super) fn with_rows(n: usize, inner: &[usize]) -> Result<Shape> {
    let dims = std::iter::once(n)
        .chain(inner.iter().copied())
        .map(|d| d as i64);
    Ok(Shape::checked(dims)?)
}
