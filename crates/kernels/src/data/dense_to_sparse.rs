//! `DenseToSparseBatchDataset`: batches as sparse tensors, whose rows may differ in size.

use super::batch::{Room, column};
use super::dataset::{Cardinality, Dataset, Element, Iter, Next, Place, Recipe, Spec, Stream};
use super::define::{self, batched};
use crate::sparse::serialize::Held;
use downpour_graph::{Result, Status};
use downpour_runtime::{Device, OpContext, Registry};
use downpour_tensor::{Buffer, DType, PartialShape, Shape, Tensor, Variant};
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    for op in [
        "DenseToSparseBatchDataset",
        "ExperimentalDenseToSparseBatchDataset",
    ] {
        r.add(op, |_| define::dataset(dense_to_sparse));
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
    fn input(&mut self) -> Option<&mut Iter> {
        Some(&mut self.input)
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
