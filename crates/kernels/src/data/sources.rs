//! Datasets out of tensors: `Tensor` (one element), `TensorSlice` (one for each row),
//! `SparseTensorSlice` and `Range`.

use super::access::{Opened, Ready};
use super::dataset::{Cardinality, Dataset, Next, Place, Recipe, Spec, Stream};
use super::define::{self, check_shapes, check_types, declared, now};
use super::state::{Restoring, Saving, State};
use crate::types::with_type;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Element as _, PartialShape, Shape, Tensor};
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    r.add("TensorDataset", tensor);
    r.add("TensorSliceDataset", tensor_slice);
    r.add("SparseTensorSliceDataset", |_| {
        define::dataset(sparse_slice)
    });
    r.add("RangeDataset", range);
}

/// Types and shapes of tensors.
pub(super) fn spec_of(tensors: &[Tensor]) -> Spec {
    Spec {
        types: tensors.iter().map(Tensor::dtype).collect(),
        shapes: tensors.iter().map(|t| t.shape().into()).collect(),
    }
}

fn components(ctx: &mut OpContext<'_>) -> Result<Vec<Tensor>> {
    (0..ctx.num_inputs()).map(|i| ctx.take(i)).collect()
}

/// A list of ready elements.
pub(super) struct Elements(pub(super) Arc<Vec<Vec<Tensor>>>);

impl Recipe for Elements {
    fn open(&self, _: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(ElementsStream(self.0.clone(), 0)))
    }
    fn cardinality(&self) -> Cardinality {
        Cardinality::Known(self.0.len() as i64)
    }
    fn access(&self, _: &Place) -> Opened {
        let elements = self.0.clone();
        let get = move |i: u64| {
            Ok(elements
                .get(usize::try_from(i).unwrap_or(usize::MAX))
                .cloned())
        };
        Ok(Box::new(Ready(get)))
    }
}

struct ElementsStream(Arc<Vec<Vec<Tensor>>>, usize);

impl Stream for ElementsStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move { Ok(Some(State::of([self.1 as i64]))) })
    }

    fn restore(&mut self, state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.1 = state.size(0)?;
            Ok(())
        })
    }

    fn next(&mut self) -> Next<'_> {
        let element = self.0.get(self.1).cloned();
        self.1 += 1;
        now(Ok(element))
    }
}

fn tensor(b: &KernelBuilder<'_>) -> Result<Built> {
    let declared = declared(b)?;
    define::dataset(move |ctx| {
        let components = components(ctx)?;
        let spec = spec_of(&components);
        check_types(&spec.types, &declared.types)?;
        check_shapes(&spec.shapes, &declared.shapes)?;
        let recipe = Elements(Arc::new(vec![components]));
        Dataset::new("Tensor", spec, vec![], recipe)
    })
}

fn tensor_slice(b: &KernelBuilder<'_>) -> Result<Built> {
    let declared = declared(b)?;
    define::dataset(move |ctx| {
        let components = components(ctx)?;
        let mut rows = None;
        for component in &components {
            let Some(&length) = component.dims().first() else {
                return Err(Status::invalid_argument(
                    "All components must be at least 1-dimensional",
                ));
            };
            if *rows.get_or_insert(length) != length {
                return Err(Status::invalid_argument(
                    "All components must have the same size in the 0th dimension",
                ));
            }
        }
        let mut spec = spec_of(&components);
        for shape in &mut spec.shapes {
            *shape = define::unbatched(shape);
        }
        check_types(&spec.types, &declared.types)?;
        check_shapes(&spec.shapes, &declared.shapes)?;
        let recipe = Slices {
            components: components.into(),
            rows: rows.unwrap_or(0),
        };
        Dataset::new("TensorSlice", spec, vec![], recipe)
    })
}

struct Slices {
    components: Arc<[Tensor]>,
    rows: usize,
}

impl Recipe for Slices {
    fn open(&self, _: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(SlicesStream {
            components: self.components.clone(),
            rows: self.rows,
            at: 0,
        }))
    }
    fn cardinality(&self) -> Cardinality {
        Cardinality::Known(self.rows as i64)
    }
    fn access(&self, _: &Place) -> Opened {
        let components = self.components.clone();
        Ok(Box::new(Ready(move |i: u64| {
            let element = components.iter().map(|c| row(c, i as usize));
            element.collect::<Result<_>>().map(Some)
        })))
    }
}

struct SlicesStream {
    components: Arc<[Tensor]>,
    rows: usize,
    at: usize,
}

impl Stream for SlicesStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move { Ok(Some(State::of([self.at as i64]))) })
    }

    fn restore(&mut self, state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.at = state.size(0)?;
            Ok(())
        })
    }

    fn next(&mut self) -> Next<'_> {
        if self.at >= self.rows {
            return now(Ok(None));
        }
        let element: Result<_> = self.components.iter().map(|c| row(c, self.at)).collect();
        self.at += 1;
        now(element.map(Some))
    }
}

/// Row `i` of a tensor without the first dimension. Plain types share the tensor's memory.
pub(super) fn row(tensor: &Tensor, i: usize) -> Result<Tensor> {
    let row = tensor
        .rows(i, 1)
        .ok_or_else(|| Status::internal(format!("{} has no row {i}", tensor.shape())))?;
    let shape = Shape::from(row.dims().get(1..).unwrap_or_default());
    Ok(row.reshaped(shape)?)
}

fn sparse_slice(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let (indices, values, shape) = (ctx.take(0)?, ctx.take(1)?, ctx.take(2)?);
    let refused = |text: String| Err(Status::invalid_argument(text));
    if indices.rank() != 2 {
        return refused(format!(
            "Input indices must be a matrix. Got: {}",
            indices.shape()
        ));
    }
    if values.rank() != 1 {
        return refused(format!(
            "Input values must be a vector. Got: {}",
            values.shape()
        ));
    }
    if shape.rank() != 1 {
        return refused(format!(
            "Input shape must be a vector. Got: {}",
            shape.shape()
        ));
    }
    let (count, rank) = (indices.dims()[0], indices.dims()[1]);
    if values.dims()[0] != count {
        return refused(format!(
            "Number of values must match first dimension of indices. Got {} values, indices shape: {}",
            values.dims()[0],
            indices.shape()
        ));
    }
    if shape.dims()[0] != rank {
        return refused(format!(
            "Number of dimensions must match second dimension of indices. Got {} dimensions, indices shape: {}",
            shape.dims()[0],
            indices.shape()
        ));
    }
    if rank == 0 {
        return refused("The shape argument requires at least one element.".into());
    }
    let dims = shape.as_slice::<i64>()?.to_vec();
    crate::args::shape_of(&dims)?;
    let at = indices.as_slice::<i64>()?;
    let mut previous = -1;
    for row in at.chunks_exact(rank) {
        if row[0] < previous {
            return Err(Status::unimplemented(
                "The SparseTensor must be ordered in the batch dimension; handling arbitrarily ordered input is not currently supported.",
            ));
        }
        previous = row[0];
        for (d, (&i, &size)) in row.iter().zip(&dims).enumerate() {
            if !(0..size).contains(&i) {
                return refused(format!(
                    "Index out of range at dimension {d}: {i} not in [0, {size})"
                ));
            }
        }
    }
    let inner = rank - 1;
    let spec = Spec {
        types: vec![DType::Int64, values.dtype(), DType::Int64],
        shapes: vec![
            PartialShape::from_dims([None, Some(inner)]),
            PartialShape::from_dims([None]),
            PartialShape::from_dims([Some(inner)]),
        ],
    };
    let recipe = SparseSlices(Arc::new(Sparse {
        indices,
        values,
        dims,
    }));
    Dataset::new("SparseTensorSlice", spec, vec![], recipe)
}

struct Sparse {
    indices: Tensor,
    values: Tensor,
    dims: Vec<i64>,
}

struct SparseSlices(Arc<Sparse>);

impl Recipe for SparseSlices {
    fn open(&self, _: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(SparseStream {
            sparse: self.0.clone(),
            row: 0,
            at: 0,
        }))
    }
    fn cardinality(&self) -> Cardinality {
        Cardinality::Known(self.0.dims.first().copied().unwrap_or(0))
    }
}

struct SparseStream {
    sparse: Arc<Sparse>,
    row: i64,
    /// First value that belongs to no row before this one.
    at: usize,
}

impl SparseStream {
    fn slice(&mut self) -> Result<Option<Vec<Tensor>>> {
        let Sparse {
            indices,
            values,
            dims,
        } = &*self.sparse;
        let Some((&rows, inner)) = dims.split_first() else {
            return Ok(None);
        };
        if self.row >= rows {
            return Ok(None);
        }
        let rest = indices
            .as_slice::<i64>()?
            .chunks_exact(dims.len())
            .skip(self.at);
        let mine: Vec<&[i64]> = rest.take_while(|r| r[0] == self.row).collect();
        let flat = mine.iter().flat_map(|r| &r[1..]).copied().collect();
        let values = values
            .rows(self.at, mine.len())
            .ok_or_else(|| Status::internal("a sparse slice is out of range"))?;
        let element = vec![
            Tensor::from_vec(flat, [mine.len(), inner.len()])?,
            values,
            Tensor::vector(inner.to_vec()),
        ];
        self.at += mine.len();
        self.row += 1;
        Ok(Some(element))
    }
}

impl Stream for SparseStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move { Ok(Some(State::of([self.row, self.at as i64]))) })
    }

    fn restore(&mut self, state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.row = state.number(0)?;
            self.at = state.size(1)?;
            Ok(())
        })
    }

    fn next(&mut self) -> Next<'_> {
        now(self.slice())
    }
}

fn range(b: &KernelBuilder<'_>) -> Result<Built> {
    let declared = declared(b)?;
    define::dataset(move |ctx| {
        let start = define::int(ctx, 0, "start")?;
        let stop = define::int(ctx, 1, "stop")?;
        let step = define::int(ctx, 2, "step")?;
        if step == 0 {
            return Err(Status::invalid_argument("step must be a non-zero integer."));
        }
        let dtype = declared.types.first().copied().unwrap_or(DType::Int64);
        let spec = Spec {
            types: declared.types.clone(),
            shapes: vec![PartialShape::from_dims([])],
        };
        let recipe = Range {
            start,
            stop,
            step,
            dtype,
        };
        Dataset::new("Range", spec, vec![], recipe)
    })
}

#[derive(Clone)]
struct Range {
    start: i64,
    stop: i64,
    step: i64,
    dtype: DType,
}

impl Recipe for Range {
    fn open(&self, _: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(RangeStream {
            range: self.clone(),
            next: Some(self.start),
        }))
    }
    fn cardinality(&self) -> Cardinality {
        if self.stop == i64::MAX {
            return Cardinality::Infinite;
        }
        let (start, stop, step) = (self.start as i128, self.stop as i128, self.step as i128);
        let span = if step > 0 { stop - start } else { start - stop };
        let count = (span + step.abs() - 1).max(0) / step.abs();
        Cardinality::Known(count.try_into().unwrap_or(i64::MAX))
    }
    fn access(&self, _: &Place) -> Opened {
        let Range {
            start, step, dtype, ..
        } = *self;
        Ok(Box::new(Ready(move |i: u64| {
            let value = start.wrapping_add(step.wrapping_mul(i as i64));
            number(dtype, value).map(|t| Some(vec![t]))
        })))
    }
}

struct RangeStream {
    range: Range,
    next: Option<i64>,
}

impl Stream for RangeStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move {
            Ok(Some(State::of([
                self.next.is_some().into(),
                self.next.unwrap_or(0),
            ])))
        })
    }

    fn restore(&mut self, state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.next = (state.number(0)? != 0).then_some(state.number(1)?);
            Ok(())
        })
    }

    fn next(&mut self) -> Next<'_> {
        let Range {
            stop, step, dtype, ..
        } = self.range;
        let Some(value) = self
            .next
            .filter(|&v| if step > 0 { v < stop } else { v > stop })
        else {
            return now(Ok(None));
        };
        self.next = value.checked_add(step);
        now(number(dtype, value).map(|t| Some(vec![t])))
    }
}

/// An int64 as a scalar of another type.
pub(super) fn number(dtype: DType, value: i64) -> Result<Tensor> {
    use num_traits::AsPrimitive;
    let zero = |dtype| Tensor::zeros(dtype, Shape::scalar());
    Ok(match dtype {
        DType::Bool => Tensor::scalar(value != 0),
        DType::Half => Tensor::scalar(half::f16::from_f64(value as f64)),
        DType::BFloat16 => Tensor::scalar(half::bf16::from_f64(value as f64)),
        DType::String | DType::Resource | DType::Variant => zero(dtype)?,
        _ => with_type!(dtype, T in [f32, f64, i32, i64, i8, i16, u8, u16, u32, u64] => {
            debug_assert_eq!(T::DTYPE, dtype);
            Tensor::scalar(AsPrimitive::<T>::as_(value))
        }),
    })
}
