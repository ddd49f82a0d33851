//! Elements and batches: a batch's rows, and elements stacked into a batch, padded if they differ.

use downpour_graph::{Result, Status};
use downpour_runtime::Device;
use downpour_tensor::{Buffer, DType, Shape, Tensor};

/// Row `i` of a batch, in memory of its own: a queue must not keep whole batches alive for the
/// sake of a row.
pub(crate) fn row(batch: &Tensor, i: usize) -> Result<Tensor> {
    let row = batch
        .rows(i, 1)
        .ok_or_else(|| Status::internal(format!("batch {} has no row {i}", batch.shape())))?;
    let shape = Shape::from(batch.dims().get(1..).unwrap_or_default());
    match row.buffer() {
        Some(buffer) => {
            let own = Buffer::copy_from(buffer.as_bytes());
            Ok(Tensor::from_buffer(batch.dtype(), shape, own)?)
        }
        None => Ok(row.reshaped(shape)?),
    }
}

/// Stacks `parts` along a new first dimension. Each part lies at the origin of its place of shape
/// `inner`, which is zero elsewhere.
pub(crate) fn stack(
    device: &Device,
    dtype: DType,
    inner: &Shape,
    parts: &[&Tensor],
) -> Result<Tensor> {
    let dims: Vec<i64> = std::iter::once(parts.len())
        .chain(inner.dims().iter().copied())
        .map(|d| d as i64)
        .collect();
    let shape = Shape::checked(dims).map_err(|e| Status::invalid_argument(e.to_string()))?;
    device.check_alloc(dtype, &shape)?;
    let each = inner.num_elements();
    match dtype {
        DType::String => {
            let mut out = vec![Default::default(); shape.num_elements()];
            for (i, part) in parts.iter().enumerate() {
                let from = part.as_strings()?;
                place(inner, part.shape(), |to, at, len| {
                    let to = i * each + to;
                    out[to..to + len].clone_from_slice(&from[at..at + len]);
                });
            }
            Ok(Tensor::strings(out, shape)?)
        }
        DType::Resource => {
            let mut out = vec![Default::default(); shape.num_elements()];
            for (i, part) in parts.iter().enumerate() {
                let from = part.as_resources()?;
                place(inner, part.shape(), |to, at, len| {
                    let to = i * each + to;
                    out[to..to + len].clone_from_slice(&from[at..at + len]);
                });
            }
            Ok(Tensor::resources(out, shape)?)
        }
        DType::Variant => {
            let mut out = Vec::with_capacity(shape.num_elements());
            for part in parts {
                if part.shape() != inner {
                    return Err(Status::unimplemented("variant elements cannot be padded"));
                }
                out.extend_from_slice(part.as_variants()?);
            }
            Ok(Tensor::variants(out, shape)?)
        }
        _ => {
            let mut out = Tensor::zeros(dtype, shape)?;
            let size = dtype.size().unwrap_or(1);
            if let Some(out) = out.buffer_mut() {
                for (i, part) in parts.iter().enumerate() {
                    let from = part.buffer().map_or(&[][..], Buffer::as_bytes);
                    place(inner, part.shape(), |to, at, len| {
                        let to = (i * each + to) * size;
                        let bytes = &from[at * size..(at + len) * size];
                        out[to..to + len * size].copy_from_slice(bytes);
                    });
                }
            }
            Ok(out)
        }
    }
}

/// Calls `copy(to, from, length)` for every run of elements of a part of shape `part` that lies
/// at the origin of `whole`, a shape of the same rank and no smaller in any dimension.
fn place(whole: &Shape, part: &Shape, mut copy: impl FnMut(usize, usize, usize)) {
    let count = part.num_elements();
    if count == 0 {
        return;
    }
    if whole == part {
        copy(0, 0, count);
        return;
    }
    let run = part.dims().last().copied().unwrap_or(1);
    let (strides, rank) = (whole.strides(), part.rank());
    let mut index = vec![0usize; rank];
    for from in (0..count).step_by(run.max(1)) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::device;

    #[test]
    fn smaller_parts_are_padded_with_zeros_and_empty_strings() {
        let a = Tensor::from_vec(vec![1i32, 2, 3, 4], [2, 2]).unwrap();
        let b = Tensor::from_vec(vec![5i32, 6, 7], [1, 3]).unwrap();
        let out = stack(&device(), DType::Int32, &Shape::from([2, 3]), &[&a, &b]).unwrap();
        assert_eq!(out.dims(), [2, 2, 3]);
        let want = [1, 2, 0, 3, 4, 0, 5, 6, 7, 0, 0, 0];
        assert_eq!(out.as_slice::<i32>().unwrap(), want);
        let s = Tensor::strings(vec!["x".into()], [1]).unwrap();
        let out = stack(&device(), DType::String, &Shape::from([2]), &[&s]).unwrap();
        assert_eq!(out.as_strings().unwrap(), ["x", ""]);
    }

    #[test]
    fn a_row_of_a_batch_has_the_shape_of_an_element() {
        let batch = Tensor::from_vec(vec![1u8, 2, 3, 4, 5, 6], [3, 2]).unwrap();
        let second = row(&batch, 1).unwrap();
        assert_eq!(
            (second.dims(), second.as_slice::<u8>().unwrap()),
            (&[2][..], &[3, 4][..])
        );
        assert!(row(&batch, 3).is_err());
    }
}
