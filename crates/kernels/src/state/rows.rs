//! Overwriting whole rows of a tensor in place, whatever its element type.

use downpour_graph::{Result, Status};
use downpour_tensor::Tensor;

/// Sets the rows of `target`, each `inner` elements long and in range, to the rows of `updates`
/// in turn, or all to the one element of a scalar `updates`. `None` skips a row.
pub(super) fn replace_rows(
    target: &mut Tensor,
    inner: usize,
    rows: impl Iterator<Item = Option<usize>>,
    updates: &Tensor,
) -> Result<()> {
    let one = updates.rank() == 0;
    let mixed = || Status::internal("a variable and its update differ in type");
    if target.dtype() != updates.dtype() {
        return Err(mixed());
    }
    if let Some(size) = target.dtype().size() {
        let src = updates.buffer().ok_or_else(mixed)?.as_bytes();
        let dst = target.buffer_mut().ok_or_else(mixed)?;
        copy(dst, src, inner * size, if one { size } else { 0 }, rows);
        return Ok(());
    }
    let step = usize::from(one);
    let shape = target.shape().clone();
    if let Ok(src) = updates.as_strings() {
        copy(target.make_mut_strings()?, src, inner, step, rows);
    } else if let Ok(src) = updates.as_resources() {
        let mut all = target.as_resources()?.to_vec();
        copy(&mut all, src, inner, step, rows);
        *target = Tensor::resources(all, shape)?;
    } else {
        let mut all = target.as_variants()?.to_vec();
        copy(&mut all, updates.as_variants()?, inner, step, rows);
        *target = Tensor::variants(all, shape)?;
    }
    Ok(())
}

/// Copies row after row; with `repeat` over 0 the first `repeat` units of `src` fill each row.
fn copy<U: Clone>(
    dst: &mut [U],
    src: &[U],
    row_len: usize,
    repeat: usize,
    rows: impl Iterator<Item = Option<usize>>,
) {
    for (k, row) in rows.enumerate() {
        let Some(row) = row else { continue };
        let dst = &mut dst[row * row_len..(row + 1) * row_len];
        if repeat == 0 {
            dst.clone_from_slice(&src[k * row_len..(k + 1) * row_len]);
        } else {
            for unit in dst.chunks_exact_mut(repeat) {
                unit.clone_from_slice(&src[..repeat]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use downpour_tensor::ResourceHandle;

    #[test]
    fn rows_of_any_kind_are_replaced() {
        let rows = || [Some(2), None, Some(0)].into_iter();
        let mut t = Tensor::vector(vec![1i64, 2, 3]);
        replace_rows(&mut t, 1, rows(), &Tensor::vector(vec![7i64, 8, 9])).unwrap();
        assert_eq!(t.as_slice::<i64>().unwrap(), [9, 2, 7]);
        replace_rows(&mut t, 1, rows(), &Tensor::scalar(5i64)).unwrap();
        assert_eq!(t.as_slice::<i64>().unwrap(), [5, 2, 5]);
        let text = |s: &[&str]| {
            let list = s.iter().map(|s| Bytes::copy_from_slice(s.as_bytes()));
            Tensor::strings(list.collect(), [s.len()]).unwrap()
        };
        let mut t = text(&["a", "b", "c"]);
        replace_rows(&mut t, 1, rows(), &text(&["x", "y", "z"])).unwrap();
        assert_eq!(t.as_strings().unwrap(), ["z", "b", "x"]);
        let handle = |name: &str| ResourceHandle {
            name: name.into(),
            ..Default::default()
        };
        let mut t = Tensor::resources(vec![handle("a"); 3], [3]).unwrap();
        replace_rows(&mut t, 1, rows(), &Tensor::resource(handle("b"))).unwrap();
        let names: Vec<&str> = t.as_resources().unwrap().iter().map(|h| &*h.name).collect();
        assert_eq!(names, ["b", "a", "b"]);
        assert!(replace_rows(&mut t, 1, rows(), &Tensor::scalar(1u8)).is_err());
    }
}
