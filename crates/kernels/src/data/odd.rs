//! Datasets that fit nowhere else: `Unique`, `IgnoreErrors`, `Rebatch`, `DenseToSparseBatch`,
//! `SlidingWindow`, `MatchingFiles`.

use super::batch::{Room, batch_elements, column};
use super::dataset::{Cardinality, Dataset, Element, Iter, Next, Place, Recipe, Spec, Stream};
use super::define::{self, batched, now};
use super::state::{Restoring, Saving, State};
use crate::io::file::path;
use crate::io::storage;
use crate::sparse::serialize::Held;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, Device, KernelBuilder, OpContext, Registry};
use downpour_tensor::{Buffer, DType, PartialShape, Shape, Tensor, Variant};
use std::collections::{HashSet, VecDeque};
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    for op in ["UniqueDataset", "ExperimentalUniqueDataset"] {
        r.add(op, |_| define::dataset(unique));
    }
    for op in ["IgnoreErrorsDataset", "ExperimentalIgnoreErrorsDataset"] {
        r.add(op, ignore_errors);
    }
    for op in [
        "DenseToSparseBatchDataset",
        "ExperimentalDenseToSparseBatchDataset",
    ] {
        r.add(op, |_| define::dataset(dense_to_sparse));
    }
    for op in ["SlidingWindowDataset", "ExperimentalSlidingWindowDataset"] {
        r.add(op, |_| define::dataset(sliding));
    }
    for op in ["MatchingFilesDataset", "ExperimentalMatchingFilesDataset"] {
        r.add(op, |_| define::dataset(matching_files));
    }
    r.add("RebatchDatasetV2", |_| define::dataset(rebatch));
}

fn unique(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let input = define::input(ctx, 0)?;
    let [dtype] = input.spec().types.as_slice() else {
        return Err(Status::invalid_argument(
            "UniqueDataset only supports inputs with a single component.",
        ));
    };
    if !matches!(dtype, DType::Int32 | DType::Int64 | DType::String) {
        return Err(Status::invalid_argument(
            "UniqueDataset only supports inputs with a single `tf.int32`, `tf.int64`, or `tf.string` component.",
        ));
    }
    let recipe = Unique(input.clone());
    Dataset::new("Unique", input.spec().clone(), vec![input], recipe)
}

struct Unique(Dataset);

impl Recipe for Unique {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(UniqueStream {
            input: self.0.iterate(place)?,
            seen: HashSet::new(),
        }))
    }
}

struct UniqueStream {
    input: Iter,
    seen: HashSet<(Vec<usize>, Vec<Bytes>)>,
}

impl Stream for UniqueStream {
    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            while let Some(element) = self.input.next().await? {
                let Some(tensor) = element.first() else {
                    return Ok(Some(element));
                };
                let value = match tensor.buffer() {
                    Some(buffer) => vec![Bytes::copy_from_slice(buffer.as_bytes())],
                    None => tensor.as_strings()?.to_vec(),
                };
                if self.seen.insert((tensor.dims().to_vec(), value)) {
                    return Ok(Some(element));
                }
            }
            Ok(None)
        })
    }
}

fn ignore_errors(b: &KernelBuilder<'_>) -> Result<Built> {
    let log = b.attrs().bool("log_warning")?;
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let recipe = IgnoreErrors {
            input: input.clone(),
            log,
        };
        Dataset::new("IgnoreErrors", input.spec().clone(), vec![input], recipe)
    })
}

struct IgnoreErrors {
    input: Dataset,
    log: bool,
}

impl Recipe for IgnoreErrors {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(IgnoreErrorsStream {
            input: self.input.iterate(place)?,
            log: self.log,
        }))
    }
}

struct IgnoreErrorsStream {
    input: Iter,
    log: bool,
}

impl Stream for IgnoreErrorsStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move { Ok(Some(State::default().with(self.input.save().await?))) })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move { self.input.restore(state.below(0)?).await })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            loop {
                match self.input.next().await {
                    Err(e) if self.log => tracing::warn!("an element was left out: {e}"),
                    Err(_) => {}
                    ok => return ok,
                }
            }
        })
    }
}

fn dense_to_sparse(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let input = define::input(ctx, 0)?;
    if input.spec().types.len() != 1 {
        return Err(Status::invalid_argument(
            "DenseToSparseBatchDataset only supports inputs with a single component.",
        ));
    }
    let size = define::int(ctx, 1, "batch_size")?;
    if size <= 0 {
        return Err(Status::invalid_argument(
            "Batch size must be greater than zero.",
        ));
    }
    let row = define::ints(ctx, 2, "row_shape")?;
    if let Some(bad) = row.iter().find(|d| **d < -1) {
        return Err(Status::invalid_argument(format!(
            "Dimension {bad} must be >= -1"
        )));
    }
    let row = PartialShape::checked(row)?;
    let spec = Spec {
        types: vec![DType::Variant],
        shapes: vec![batched(None, &row)],
    };
    let recipe = DenseToSparse {
        input: input.clone(),
        size,
        row,
    };
    Dataset::new("DenseToSparseBatch", spec, vec![input], recipe)
}

struct DenseToSparse {
    input: Dataset,
    size: i64,
    row: PartialShape,
}

impl Recipe for DenseToSparse {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(DenseToSparseStream {
            input: self.input.iterate(place)?,
            device: place.device.clone(),
            size: usize::try_from(self.size).unwrap_or(usize::MAX),
            row: self.row.clone(),
        }))
    }
    fn cardinality(&self) -> Cardinality {
        let rest = |n: i64| i64::from(n % self.size != 0);
        self.input.cardinality().map(|n| n / self.size + rest(n))
    }
}

struct DenseToSparseStream {
    input: Iter,
    device: Arc<Device>,
    size: usize,
    row: PartialShape,
}

impl Stream for DenseToSparseStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move { Ok(Some(State::default().with(self.input.save().await?))) })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move { self.input.restore(state.below(0)?).await })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            let wanted = self.row.dims().unwrap_or_default();
            let mut dims: Vec<usize> = wanted.iter().map(|d| d.unwrap_or(0)).collect();
            let mut rows: Vec<Element> = Vec::new();
            let mut room = Room::new(&self.device);
            while rows.len() < self.size {
                let Some(row) = self.input.next().await? else {
                    break;
                };
                room.take(&row)?;
                if let Some(tensor) = row.first() {
                    fit(tensor, &self.row, &mut dims)?;
                }
                rows.push(row);
            }
            if rows.is_empty() {
                return Ok(None);
            }
            sparse(&self.device, &rows, &dims).map(|t| Some(vec![t]))
        })
    }
}

/// Takes a row's size into account, or refuses it.
fn fit(tensor: &Tensor, row: &PartialShape, dims: &mut [usize]) -> Result<()> {
    let wanted = row.dims().unwrap_or_default();
    if tensor.rank() != wanted.len() {
        return Err(Status::invalid_argument(format!(
            "Input element had shape ({}) that is incompatible with the row shape ({row}).",
            tensor.shape()
        )));
    }
    for ((have, wanted), &is) in dims.iter_mut().zip(wanted).zip(tensor.dims()) {
        match wanted {
            None => *have = is.max(*have),
            Some(most) if is > *most => {
                return Err(Status::data_loss(format!(
                    "Input element had shape ({}) that is larger than the row shape ({row}).",
                    tensor.shape()
                )));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// The rows as a sparse tensor in three variants: indices, values, dense shape.
fn sparse(device: &Device, rows: &[Element], dims: &[usize]) -> Result<Tensor> {
    let parts = column(rows, 0)?;
    let (rank, total) = (
        dims.len() + 1,
        parts.iter().map(|t| t.num_elements()).sum::<usize>(),
    );
    let shape = Shape::checked([total as i64, rank as i64])?;
    device.check_alloc(DType::Int64, &shape)?;
    let mut indices = Vec::with_capacity(shape.num_elements());
    for (i, part) in parts.iter().enumerate() {
        let strides = part.shape().strides();
        for j in 0..part.num_elements() {
            indices.push(i as i64);
            let mut rest = j;
            for stride in &strides {
                indices.push((rest / stride) as i64);
                rest %= stride;
            }
        }
    }
    let dtype = parts[0].dtype();
    let values = match dtype {
        DType::String => {
            let mut all = Vec::with_capacity(total);
            for part in &parts {
                all.extend_from_slice(part.as_strings()?);
            }
            Tensor::strings(all, [total])?
        }
        DType::Variant => {
            let mut all = Vec::with_capacity(total);
            for part in &parts {
                all.extend_from_slice(part.as_variants()?);
            }
            Tensor::variants(all, [total])?
        }
        _ => {
            let mut all = Vec::new();
            for part in &parts {
                all.extend_from_slice(part.buffer().map_or(&[][..], Buffer::as_bytes));
            }
            Tensor::from_buffer(dtype, [total], Buffer::copy_from(&all))?
        }
    };
    let dense = std::iter::once(rows.len()).chain(dims.iter().copied());
    let dense = dense.map(|d| d as i64).collect();
    let three = [
        Tensor::from_vec(indices, shape)?,
        values,
        Tensor::vector(dense),
    ];
    let three = three.map(|t| Variant::new(Held(t)));
    Ok(Tensor::variants(three.to_vec(), [3])?)
}

fn sliding(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let input = define::input(ctx, 0)?;
    let mut sizes = [0; 3];
    let names = ["window_size", "window_shift", "window_stride"];
    let texts = ["Window size", "Window shift", "window_stride"];
    for (i, (name, text)) in names.iter().zip(texts).enumerate() {
        sizes[i] = define::int(ctx, i + 1, name)?;
        if sizes[i] <= 0 {
            return Err(Status::invalid_argument(format!(
                "{text} must be greater than zero."
            )));
        }
    }
    let [size, shift, stride] = sizes;
    let spec = Spec {
        types: input.spec().types.clone(),
        shapes: input
            .spec()
            .shapes
            .iter()
            .map(|s| batched(None, s))
            .collect(),
    };
    let recipe = Sliding {
        input: input.clone(),
        size,
        shift,
        stride,
    };
    Dataset::new(("SlidingWindow", "Slide"), spec, vec![input], recipe)
}

struct Sliding {
    input: Dataset,
    size: i64,
    shift: i64,
    stride: i64,
}

impl Recipe for Sliding {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let span = (self.size - 1)
            .saturating_mul(self.stride)
            .saturating_add(1);
        let size = |n: i64| usize::try_from(n).unwrap_or(usize::MAX);
        Ok(Box::new(SlidingStream {
            input: self.input.iterate(place)?,
            device: place.device.clone(),
            span: size(span),
            shift: size(self.shift),
            stride: size(self.stride),
            held: VecDeque::new(),
        }))
    }
    fn cardinality(&self) -> Cardinality {
        self.input.cardinality().map(|n| n / self.shift)
    }
}

struct SlidingStream {
    input: Iter,
    device: Arc<Device>,
    span: usize,
    shift: usize,
    stride: usize,
    held: VecDeque<Element>,
}

impl Stream for SlidingStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move {
            let mut state = State::default();
            state.put_elements(self.held.iter());
            Ok(Some(state.with(self.input.save().await?)))
        })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.held = state.take_elements(0)?.into();
            self.input.restore(state.below(0)?).await
        })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            while self.held.len() < self.span {
                match self.input.next().await? {
                    Some(element) => self.held.push_back(element),
                    None => return Ok(None),
                }
            }
            let window: Vec<Element> = self.held.iter().step_by(self.stride).cloned().collect();
            let kept = self.shift.min(self.held.len());
            self.held.drain(..kept);
            for _ in kept..self.shift {
                if self.input.next().await?.is_none() {
                    break;
                }
            }
            batch_elements(&self.device, &window).map(Some)
        })
    }
}

fn matching_files(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let patterns = ctx.input(0)?;
    let spec = Spec {
        types: vec![DType::String],
        shapes: vec![PartialShape::from_dims([])],
    };
    let recipe = MatchingFiles(patterns.as_strings()?.to_vec().into());
    Dataset::new("MatchingFiles", spec, vec![], recipe)
}

struct MatchingFiles(Arc<[Bytes]>);

impl Recipe for MatchingFiles {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(MatchingFilesStream {
            patterns: self.0.clone(),
            device: place.device.clone(),
            names: None,
        }))
    }
}

struct MatchingFilesStream {
    patterns: Arc<[Bytes]>,
    device: Arc<Device>,
    /// Pattern by pattern, each sorted, the other way round; found at the first element asked for.
    names: Option<Vec<String>>,
}

impl MatchingFilesStream {
    fn name(&mut self) -> Result<Option<Element>> {
        if self.names.is_none() {
            let mut names = Vec::new();
            for pattern in self.patterns.iter() {
                let mut found = storage(&self.device).glob(path(pattern)?)?;
                found.sort();
                names.extend(found);
            }
            if names.is_empty() {
                return Err(Status::not_found("Don't find any matched files"));
            }
            names.reverse();
            self.names = Some(names);
        }
        let name = self.names.as_mut().and_then(Vec::pop);
        Ok(name.map(|name| vec![Tensor::string(name)]))
    }
}

impl Stream for MatchingFilesStream {
    fn next(&mut self) -> Next<'_> {
        now(self.name())
    }
}

fn rebatch(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let input = define::input(ctx, 0)?;
    let sizes = ctx.input(1)?;
    if sizes.rank() > 1 {
        return Err(Status::invalid_argument(
            "`batch_sizes` must be a scalar or a vector.",
        ));
    }
    let sizes = crate::args::ints(sizes)?;
    let drop_rest = define::boolean(ctx, 2, "drop_remainder")?;
    let mut checked = Vec::with_capacity(sizes.len());
    for size in sizes {
        checked.push(usize::try_from(size).map_err(|_| {
            Status::invalid_argument(format!("batch_sizes must all be positive, but got {size}"))
        })?);
    }
    if checked.iter().all(|s| *s == 0) {
        return Err(Status::invalid_argument("batch_sizes must not be empty"));
    }
    let first = (drop_rest && checked.windows(2).all(|w| w[0] == w[1])).then(|| checked[0]);
    let shapes = input.spec().shapes.iter();
    let spec = Spec {
        types: input.spec().types.clone(),
        shapes: shapes
            .map(|s| batched(first, &define::unbatched(s)))
            .collect(),
    };
    let recipe = Rebatch {
        input: input.clone(),
        sizes: checked.into(),
        drop_rest,
    };
    Dataset::new(("Rebatch", "RebatchV2"), spec, vec![input], recipe)
}

struct Rebatch {
    input: Dataset,
    sizes: Arc<[usize]>,
    drop_rest: bool,
}

impl Recipe for Rebatch {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(RebatchStream {
            input: self.input.iterate(place)?,
            device: place.device.clone(),
            sizes: self.sizes.clone(),
            drop_rest: self.drop_rest,
            turn: 0,
            rows: VecDeque::new(),
            shapes: None,
        }))
    }
}

struct RebatchStream {
    input: Iter,
    device: Arc<Device>,
    sizes: Arc<[usize]>,
    drop_rest: bool,
    /// Whose size the next batch has.
    turn: usize,
    rows: VecDeque<Element>,
    /// Types and shapes of rows, for batches that have none.
    shapes: Option<Vec<(DType, Shape)>>,
}

impl Stream for RebatchStream {
    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            let size = self.sizes[self.turn % self.sizes.len()];
            while self.rows.len() < size || self.shapes.is_none() {
                let Some(batch) = self.input.next().await? else {
                    break;
                };
                self.cut(&batch)?;
            }
            if (self.rows.is_empty() && (size > 0 || self.ended().await?))
                || (self.drop_rest && self.rows.len() < size)
            {
                return Ok(None);
            }
            self.turn = (self.turn + 1) % self.sizes.len();
            let taken: Vec<Element> = self.rows.drain(..size.min(self.rows.len())).collect();
            if taken.is_empty() {
                return self.empty().map(Some);
            }
            batch_elements(&self.device, &taken).map(Some)
        })
    }
}

impl RebatchStream {
    fn cut(&mut self, batch: &[Tensor]) -> Result<()> {
        if batch.iter().any(|t| t.rank() == 0) {
            return Err(Status::invalid_argument(
                "Input element must have a non-scalar value in each component.",
            ));
        }
        let rows = batch
            .first()
            .and_then(|t| t.dims().first().copied())
            .unwrap_or(0);
        if batch.iter().any(|t| t.dims().first() != Some(&rows)) {
            return Err(Status::invalid_argument(
                "Input element must have the same batch size in each component.",
            ));
        }
        let inner = |t: &Tensor| {
            (
                t.dtype(),
                Shape::from(t.dims().get(1..).unwrap_or_default()),
            )
        };
        self.shapes
            .get_or_insert_with(|| batch.iter().map(inner).collect());
        for i in 0..rows {
            let row = batch.iter().map(|t| super::sources::row(t, i));
            self.rows.push_back(row.collect::<Result<_>>()?);
        }
        Ok(())
    }

    /// Whether nothing is left; what comes is kept.
    async fn ended(&mut self) -> Result<bool> {
        while self.rows.is_empty() {
            match self.input.next().await? {
                Some(batch) => self.cut(&batch)?,
                None => return Ok(true),
            }
        }
        Ok(false)
    }

    /// A batch of no rows.
    fn empty(&self) -> Result<Element> {
        let shapes = self.shapes.iter().flatten();
        let tensors = shapes.map(|(dtype, inner)| {
            let shape = super::batch::with_rows(0, inner.dims())?;
            Ok(Tensor::zeros(*dtype, shape)?)
        });
        tensors.collect()
    }
}
