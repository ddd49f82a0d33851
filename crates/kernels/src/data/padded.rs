//! `PaddedBatch`: elements of different shapes in batches, each padded to a common shape.

use super::batch::{Batch, column, with_rows};
use super::dataset::{Dataset, Element, Spec};
use super::define::{self, batched};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, Device, KernelBuilder, OpContext, Registry};
use downpour_tensor::{Buffer, DType, PartialShape, Shape, Tensor};
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    r.add("PaddedBatchDataset", |b| padded(b, false));
    r.add("PaddedBatchDatasetV2", |b| padded(b, true));
}

fn padded(b: &KernelBuilder<'_>, v2: bool) -> Result<Built> {
    let shapes = b.attrs().size("N")?;
    define::dataset(move |ctx| make(ctx, shapes, v2))
}

fn make(ctx: &mut OpContext<'_>, shapes: usize, v2: bool) -> Result<Dataset> {
    let refused = |text: String| Err(Status::invalid_argument(text));
    let input = define::input(ctx, 0)?;
    let size = define::int(ctx, 1, "batch_size")?;
    if size <= 0 {
        return refused("Batch size must be greater than zero.".into());
    }
    let values = ctx.num_inputs() - 2 - shapes - usize::from(v2);
    let drop_rest = v2 && define::boolean(ctx, 2 + shapes + values, "drop_remainder")?;
    let components = input.spec().types.len();
    if shapes != components {
        return refused(format!(
            "Number of padded shapes ({shapes}) must match the number of components in the input dataset's elements ({components})"
        ));
    }
    let mut padded = Vec::with_capacity(shapes);
    for i in 0..shapes {
        let shape = ctx.input(2 + i)?;
        if shape.rank() != 1 {
            return refused("All padded shapes must be vectors".into());
        }
        let dims = crate::args::ints(shape)?;
        if let Some(bad) = dims.iter().find(|d| **d < -1) {
            return refused(format!("Dimension {bad} must be >= -1"));
        }
        padded.push(PartialShape::checked(dims)?);
    }
    if values != components {
        return refused(format!(
            "Number of padding values ({values}) must match the number of components in the input dataset's elements ({components})"
        ));
    }
    let mut fill = Vec::with_capacity(values);
    for i in 0..values {
        let value = ctx.take(2 + shapes + i)?;
        if !value.shape().is_scalar() {
            return refused("All padding values must be scalars".into());
        }
        let wanted = input.spec().types[i];
        if value.dtype() != wanted {
            return refused(format!(
                "Mismatched type between padding value {i} and input dataset's component {i}: {} vs. {wanted}",
                value.dtype()
            ));
        }
        fill.push(value);
    }
    let first = drop_rest.then_some(usize::try_from(size).unwrap_or(usize::MAX));
    let spec = Spec {
        types: input.spec().types.clone(),
        shapes: padded.iter().map(|s| batched(first, s)).collect(),
    };
    let how = move |device: &Device, elements: &[Element]| {
        let columns = padded.iter().zip(&fill).enumerate();
        columns
            .map(|(c, (shape, fill))| pad(device, c, &column(elements, c)?, shape, fill))
            .collect()
    };
    let recipe = Batch {
        input: input.clone(),
        size,
        drop_rest,
        how: Arc::new(how),
        fuses: false,
    };
    let kind = if v2 { "PaddedBatchV2" } else { "PaddedBatch" };
    Dataset::new(kind, spec, vec![input], recipe)
}

/// Stacks the parts of component `c`, each filled up to `shape`.
fn pad(
    device: &Device,
    c: usize,
    parts: &[&Tensor],
    shape: &PartialShape,
    fill: &Tensor,
) -> Result<Tensor> {
    let Some(wanted) = shape.dims() else {
        return Err(Status::invalid_argument(
            "a padded shape must have a known rank",
        ));
    };
    let mut dims: Vec<usize> = wanted.iter().map(|d| d.unwrap_or(0)).collect();
    for part in parts {
        if part.rank() != dims.len() {
            return Err(Status::invalid_argument(format!(
                "All elements in a batch must have the same rank as the padded shape for component{c}: expected rank {} but got element with rank {}",
                dims.len(),
                part.rank()
            )));
        }
        for ((have, wanted), &is) in dims.iter_mut().zip(wanted).zip(part.dims()) {
            match wanted {
                Some(wanted) if is > *wanted => {
                    return Err(Status::data_loss(
                        "Attempted to pad to a smaller size than the input element.",
                    ));
                }
                Some(_) => {}
                None => *have = is.max(*have),
            }
        }
    }
    let shape = with_rows(parts.len(), &dims)?;
    device.check_alloc(fill.dtype(), &shape)?;
    let inner = Shape::from(dims);
    let each = inner.num_elements();
    match fill.dtype() {
        DType::String => {
            let value = fill.as_strings()?.first().cloned().unwrap_or_default();
            let mut out = vec![value; shape.num_elements()];
            for (part, out) in parts.iter().zip(out.chunks_mut(each.max(1))) {
                let from = part.as_strings()?;
                runs(&inner, part.shape(), |to, at, n| {
                    out[to..to + n].clone_from_slice(&from[at..at + n]);
                });
            }
            Ok(Tensor::strings(out, shape)?)
        }
        DType::Variant => {
            let value = fill.as_variants()?.first().cloned();
            let value = value.ok_or_else(|| Status::internal("a padding value is empty"))?;
            let mut out = vec![value; shape.num_elements()];
            for (part, out) in parts.iter().zip(out.chunks_mut(each.max(1))) {
                let from = part.as_variants()?;
                runs(&inner, part.shape(), |to, at, n| {
                    out[to..to + n].clone_from_slice(&from[at..at + n]);
                });
            }
            Ok(Tensor::variants(out, shape)?)
        }
        dtype => {
            let size = dtype.size().ok_or_else(|| {
                Status::unimplemented(format!("padding elements of type {dtype} is not supported"))
            })?;
            let mut out = Tensor::zeros(dtype, shape)?;
            let value = fill.buffer().map_or(&[][..], Buffer::as_bytes);
            let bytes = out.buffer_mut().unwrap_or_default();
            if value.iter().any(|b| *b != 0) {
                bytes
                    .chunks_exact_mut(size)
                    .for_each(|to| to.copy_from_slice(value));
            }
            for (part, out) in parts.iter().zip(bytes.chunks_mut((each * size).max(1))) {
                let from = part.buffer().map_or(&[][..], Buffer::as_bytes);
                runs(&inner, part.shape(), |to, at, n| {
                    let (to, at, n) = (to * size, at * size, n * size);
                    out[to..to + n].copy_from_slice(&from[at..at + n]);
                });
            }
            Ok(out)
        }
    }
}

/// Calls `copy(to, from, length)` for every run of elements of a part that lies at the origin of
/// `whole`, a shape of the same rank and no smaller in any dimension.
fn runs(whole: &Shape, part: &Shape, mut copy: impl FnMut(usize, usize, usize)) {
    let count = part.num_elements();
    if count == 0 {
        return;
    }
    if whole == part {
        return copy(0, 0, count);
    }
    let run = part.dims().last().copied().unwrap_or(1);
    let (strides, rank) = (whole.strides(), part.rank());
    let mut index = vec![0usize; rank];
    for from in (0..count).step_by(run) {
        let to: usize = index.iter().zip(&strides).map(|(i, s)| i * s).sum();
        copy(to, from, run);
        for d in (0..rank.saturating_sub(1)).rev() {
            index[d] += 1;
            if index[d] < part.dims()[d] {
                break;
            }
            index[d] = 0;
        }
    }
}
