//! Half and bfloat16 are computed in float and rounded once: widening inputs, narrowing outputs.
//! Also the memory of outputs that are written exactly once, by several threads.
#![allow(
    unsafe_code,
    reason = "threads write disjoint parts of one output, which is not zeroed first"
)]

use downpour_graph::{Result, Status};
use downpour_tensor::{DType, Element, Shape, Tensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// The type that values of `dtype` are computed in.
pub(crate) fn compute_type(dtype: DType) -> DType {
    match dtype {
        DType::Half | DType::BFloat16 => DType::Float,
        other => other,
    }
}

/// The same values in the type they are computed in.
pub(crate) fn widen(t: &Tensor) -> Result<Tensor> {
    let mut out = Vec::new();
    match t.dtype() {
        DType::Half => {
            let values = t.as_slice::<f16>()?;
            out.resize(values.len(), 0.0f32);
            values.convert_to_f32_slice(&mut out);
        }
        DType::BFloat16 => {
            let values = t.as_slice::<bf16>()?;
            out.resize(values.len(), 0.0f32);
            values.convert_to_f32_slice(&mut out);
        }
        _ => return Ok(t.clone()),
    }
    Ok(Tensor::from_vec(out, t.shape().clone())?)
}

/// The same values rounded to `dtype`.
pub(crate) fn narrow(t: Tensor, dtype: DType) -> Result<Tensor> {
    if t.dtype() == dtype {
        return Ok(t);
    }
    let values = t.as_slice::<f32>()?;
    Ok(match dtype {
        DType::Half => {
            let mut out = vec![f16::ZERO; values.len()];
            out.convert_from_f32_slice(values);
            Tensor::from_vec(out, t.shape().clone())?
        }
        DType::BFloat16 => {
            let mut out = vec![bf16::ZERO; values.len()];
            out.convert_from_f32_slice(values);
            Tensor::from_vec(out, t.shape().clone())?
        }
        other => {
            return Err(Status::internal(format!(
                "values computed in {} cannot be given as {other}",
                t.dtype()
            )));
        }
    })
}

/// An output that several threads write, each its own part.
pub(crate) struct Parts<'a, T>(*mut MaybeUninit<T>, usize, PhantomData<&'a mut [T]>);

// SAFETY: parts are handed out by `part`, whose callers keep them disjoint.
unsafe impl<T: Send> Send for Parts<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Parts<'_, T> {}

impl<'a, T> Parts<'a, T> {
    /// Parts of a slice. Writers must leave values in all of them.
    pub(crate) fn of(slice: &'a mut [T]) -> Parts<'a, T> {
        Parts(slice.as_mut_ptr().cast(), slice.len(), PhantomData)
    }

    /// Parts of the memory that a vector has room for, behind its elements.
    pub(crate) fn spare(vec: &'a mut Vec<T>) -> Parts<'a, T> {
        let room = vec.spare_capacity_mut();
        Parts(room.as_mut_ptr(), room.len(), PhantomData)
    }

    /// Where the output begins, for writers whose elements lie between those of others, and the
    /// number of its elements.
    pub(crate) fn all(&self) -> (*mut T, usize) {
        (self.0.cast(), self.1)
    }

    /// Elements `start..start + len`.
    ///
    /// # Safety
    /// No two parts in use at a time may overlap.
    #[expect(clippy::mut_from_ref, reason = "parts are disjoint by contract")]
    pub(crate) unsafe fn part(&self, start: usize, len: usize) -> &mut [MaybeUninit<T>] {
        assert!(
            start.checked_add(len).is_some_and(|end| end <= self.1),
            "a part ends past the output"
        );
        // SAFETY: in bounds, and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
    }
}

/// A tensor of `shape` in the memory of `room`, which `write` fills in parts.
///
/// # Safety
/// `write` must set every element, unless it fails.
pub(crate) unsafe fn in_parts<T: Element>(
    mut room: Vec<T>,
    shape: Shape,
    write: impl FnOnce(&Parts<'_, T>) -> Result<()>,
) -> Result<Tensor> {
    let len = shape.num_elements();
    room.clear();
    room.reserve_exact(len);
    let spare = &mut room.spare_capacity_mut()[..len];
    write(&Parts(spare.as_mut_ptr(), len, PhantomData))?;
    // SAFETY: there is room for `len` elements, and `write` set them.
    unsafe { room.set_len(len) };
    Ok(Tensor::from_vec(room, shape)?)
}

/// Elements that `write` set, as plain values.
///
/// # Safety
/// All of them must have been set.
pub(crate) unsafe fn assume_set<T>(part: &mut [MaybeUninit<T>]) -> &mut [T] {
    // SAFETY: `MaybeUninit<T>` has the layout of `T`, and the values are there.
    unsafe { &mut *(std::ptr::from_mut(part) as *mut [T]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_survive_the_way_there_and_back() {
        for dtype in [DType::Half, DType::BFloat16] {
            let wide = Tensor::vector(vec![1.0f32, -2.5, f32::INFINITY]);
            let t = narrow(wide.clone(), dtype).unwrap();
            assert_eq!(t.dtype(), dtype);
            let back = widen(&t).unwrap();
            assert_eq!(
                back.as_slice::<f32>().unwrap(),
                wide.as_slice::<f32>().unwrap()
            );
        }
        assert!(narrow(Tensor::vector(vec![1.0f32]), DType::Int32).is_err());
    }
}
