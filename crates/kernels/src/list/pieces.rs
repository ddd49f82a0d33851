//! Tensors cut into pieces along their first dimension, and pieces joined again.

use super::shapes::{split_first, with_first};
use downpour_graph::{Result, Status};
use downpour_runtime::Device;
use downpour_tensor::{Buffer, DType, Shape, Tensor};

/// The elements of `parts` one after the other, as a tensor of `shape`. There must be as many
/// elements as the shape has.
pub(crate) fn join(
    device: &Device,
    dtype: DType,
    shape: Shape,
    parts: &[&Tensor],
) -> Result<Tensor> {
    device.check_alloc(dtype, &shape)?;
    Ok(match dtype {
        DType::String => {
            let mut out = Vec::with_capacity(shape.num_elements());
            for part in parts {
                out.extend_from_slice(part.as_strings()?);
            }
            Tensor::strings(out, shape)?
        }
        DType::Resource => {
            let mut out = Vec::with_capacity(shape.num_elements());
            for part in parts {
                out.extend_from_slice(part.as_resources()?);
            }
            Tensor::resources(out, shape)?
        }
        DType::Variant => {
            let mut out = Vec::with_capacity(shape.num_elements());
            for part in parts {
                out.extend_from_slice(part.as_variants()?);
            }
            Tensor::variants(out, shape)?
        }
        _ => {
            let mut whole = Tensor::zeros(dtype, shape)?;
            let mut rest = whole.buffer_mut().unwrap_or_default();
            for part in parts {
                let bytes = part.buffer().map_or(&[][..], Buffer::as_bytes);
                let (place, after) = rest.split_at_mut_checked(bytes.len()).ok_or_else(|| {
                    Status::internal(format!("a part of shape {} has no place", part.shape()))
                })?;
                place.copy_from_slice(bytes);
                rest = after;
            }
            whole
        }
    })
}

/// `parts`, all of shape `inner`, along a new first dimension.
pub(super) fn pack(
    device: &Device,
    dtype: DType,
    inner: &Shape,
    parts: &[&Tensor],
) -> Result<Tensor> {
    join(device, dtype, with_first(parts.len(), inner)?, parts)
}

/// Row `i` of a tensor, without the first dimension. Plain types share the tensor's memory.
pub(crate) fn row(tensor: &Tensor, i: usize) -> Result<Tensor> {
    let rows = tensor
        .rows(i, 1)
        .ok_or_else(|| Status::internal(format!("{} has no row {i}", tensor.shape())))?;
    let (_, inner) = split_first(rows.shape()).unwrap_or_default();
    Ok(rows.reshaped(inner)?)
}

/// Pieces of the given numbers of rows, which must add up to no more than there are.
pub(crate) fn cut(tensor: &Tensor, lengths: &[usize]) -> Result<Vec<Tensor>> {
    let mut start = 0;
    lengths
        .iter()
        .map(|&length| {
            let piece = tensor.rows(start, length).ok_or_else(|| {
                Status::internal(format!("{} has no rows from {start}", tensor.shape()))
            })?;
            start += length;
            Ok(piece)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::device;

    #[test]
    fn cutting_and_joining_are_inverse_for_every_kind_of_element() {
        let d = device();
        let numbers = Tensor::from_vec((0..6i16).collect(), [3, 2]).unwrap();
        let strings = Tensor::strings(vec!["a".into(), "b".into(), "c".into()], [3]).unwrap();
        let pieces = cut(&numbers, &[1, 0, 2]).unwrap();
        assert_eq!(pieces[1].dims(), [0, 2]);
        let parts: Vec<&Tensor> = pieces.iter().collect();
        let whole = join(&d, DType::Int16, Shape::from([3, 2]), &parts).unwrap();
        assert_eq!(whole.as_slice::<i16>().unwrap(), [0, 1, 2, 3, 4, 5]);
        assert!(cut(&numbers, &[1, 3]).is_err());

        let rows: Vec<Tensor> = (0..3).map(|i| row(&strings, i).unwrap()).collect();
        let parts: Vec<&Tensor> = rows.iter().rev().collect();
        let whole = pack(&d, DType::String, &Shape::scalar(), &parts).unwrap();
        assert_eq!(whole.dims(), [3]);
        assert_eq!(whole.as_strings().unwrap(), ["c", "b", "a"]);
        assert!(row(&strings, 3).is_err());
    }
}
