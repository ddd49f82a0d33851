//! Taking tensors apart along a dimension. Parts that lie together in memory are windows on the
//! input, not copies.

use super::dtypes::{MOVABLE, SPLIT};
use super::strided::{Walk, gathered};
use crate::args::{axis as wrap, ints};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{Dims, Tensor};

/// Bytes from which sharing memory beats copying: a small part should not keep a large tensor.
const SHARE: usize = 4 << 10;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Split", &[("T", SPLIT)], |_| Built::cheap(split));
    r.add_typed("SplitV", &[("T", SPLIT)], |_| Built::cheap(split_v));
    r.add_typed("Unpack", &[("T", MOVABLE)], unpack);
}

/// Indices `start..start + count` of dimension `axis`; the caller has checked the range.
pub(super) fn part(
    ctx: &OpContext<'_>,
    input: &Tensor,
    axis: usize,
    start: usize,
    count: usize,
) -> Result<Tensor> {
    let mut dims = Dims::from_slice(input.dims());
    let (size, outer) = (dims[axis], dims[..axis].iter().product::<usize>());
    let inner: usize = dims[axis + 1..].iter().product();
    dims[axis] = count;
    if outer == 1 && count * inner * input.dtype().size().unwrap_or(0) >= SHARE {
        let flat = input.clone().reshaped([size, inner])?;
        if let Some(rows) = flat.rows(start, count) {
            return Ok(rows.reshaped(dims)?);
        }
    }
    let walk = Walk::new(
        (start * inner) as isize,
        &[outer, count * inner],
        &[(size * inner) as isize, 1],
    );
    gathered(ctx, input, &walk, dims.into())
}

fn split_axis(axis: i64, rank: usize) -> Result<usize> {
    wrap(axis, rank).ok_or_else(|| {
        Status::invalid_argument(format!(
            "-input rank(-{rank}) <= split_dim < input rank ({rank}), but got {axis}"
        ))
    })
}

fn split(ctx: &mut OpContext<'_>) -> Result<()> {
    let axis = ctx.input(0)?;
    if axis.rank() != 0 {
        return Err(Status::invalid_argument(format!(
            "split_dim must be a scalar but has rank {}",
            axis.rank()
        )));
    }
    let axis = ints(axis)?[0];
    let n = ctx.num_outputs();
    let input = ctx.take(1)?;
    let at = split_axis(axis, input.rank())?;
    let size = input.dims()[at];
    if n == 0 || !size.is_multiple_of(n) {
        return Err(Status::invalid_argument(format!(
            "Number of ways to split should evenly divide the split dimension, but got split_dim {at} (size = {size}) and num_split {n}"
        )));
    }
    if n == 1 {
        ctx.set_output(0, input);
        return Ok(());
    }
    for i in 0..n {
        let out = part(ctx, &input, at, i * (size / n), size / n)?;
        ctx.set_output(i, out);
    }
    Ok(())
}

fn split_v(ctx: &mut OpContext<'_>) -> Result<()> {
    let n = ctx.num_outputs();
    let sizes = ctx.input(1)?;
    let axis = ints(ctx.input(2)?)?;
    let [axis] = axis.as_slice() else {
        return Err(Status::invalid_argument(
            "split_dim_tensor must have exactly one element.",
        ));
    };
    if sizes.rank() != 1 || sizes.num_elements() != n {
        return Err(Status::invalid_argument(format!(
            "size of the split_tensor must be 1-D and have the same elements as outputs got {} -D and {} elements",
            sizes.rank(),
            sizes.num_elements()
        )));
    }
    if n == 1 {
        ctx.forward(0, 0);
        return Ok(());
    }
    let mut sizes = ints(sizes)?;
    let input = ctx.take(0)?;
    let axis = split_axis(*axis, input.rank())?;
    let total = input.dims()[axis] as i64;
    let open: Vec<usize> = (0..n).filter(|&i| sizes[i] == -1).collect();
    if open.len() > 1 {
        return Err(Status::invalid_argument(
            "There can only be one -1 in the input.",
        ));
    }
    let known = sizes
        .iter()
        .filter(|&&s| s != -1)
        .fold(0i64, |a, &s| a.saturating_add(s));
    let fits = if open.is_empty() {
        known == total
    } else {
        known <= total
    };
    if !fits {
        return Err(Status::invalid_argument(format!(
            "Determined shape must either match input shape along split_dim exactly if fully specified, or be less than the size of the input along split_dim if not fully specified.  Got: {known}"
        )));
    }
    if let Some(&i) = open.first() {
        sizes[i] = total - known;
    }
    if let Some(i) = sizes.iter().position(|&s| s < 0) {
        return Err(Status::invalid_argument(format!(
            "Split size at index {i} must be >= 0. Got: {}",
            sizes[i]
        )));
    }
    let mut start = 0;
    for (i, &size) in sizes.iter().enumerate() {
        let out = part(ctx, &input, axis, start, size as usize)?;
        ctx.set_output(i, out);
        start += size as usize;
    }
    Ok(())
}

fn unpack(b: &KernelBuilder<'_>) -> Result<Built> {
    let axis = b.attrs().int("axis")?;
    Built::cheap(move |ctx| {
        let n = ctx.num_outputs();
        let input = ctx.take(0)?;
        let rank = input.rank();
        let Some(axis) = wrap(axis, rank) else {
            return Err(Status::invalid_argument(format!(
                "axis = {axis} not in [{}, {rank})",
                -(rank as i64)
            )));
        };
        if input.dims()[axis] != n {
            return Err(Status::invalid_argument(format!(
                "Input shape axis {axis} must equal {n}, got shape {}",
                input.shape()
            )));
        }
        for i in 0..n {
            let out = part(ctx, &input, axis, i, 1)?;
            let mut dims = Dims::from_slice(out.dims());
            dims.remove(axis);
            ctx.set_output(i, out.reshaped(dims)?);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn parts_are_cut_at_the_given_sizes() {
        let t = Tensor::from_vec((0..6).collect::<Vec<i32>>(), [2, 3]).unwrap();
        let attrs = [
            ("T", DType::Int32.into()),
            ("Tlen", DType::Int32.into()),
            ("num_split", 2.into()),
        ];
        let run = |sizes: Vec<i32>| {
            run_op(
                "SplitV",
                vec![t.clone(), Tensor::vector(sizes), Tensor::scalar(1i32)],
                &attrs,
            )
        };
        let out = run(vec![1, -1]).unwrap();
        assert_eq!(out[0].as_slice::<i32>().unwrap(), [0, 3]);
        assert_eq!(out[1].as_slice::<i32>().unwrap(), [1, 2, 4, 5]);
        assert!(run(vec![5, -1]).unwrap_err().message.contains("Got: 5"));
        assert!(
            run(vec![-2, 5])
                .unwrap_err()
                .message
                .starts_with("Split size at index 0 must be >= 0. Got: -2")
        );
    }

    #[test]
    fn large_parts_share_memory() {
        let t = Tensor::from_vec(vec![1.0f32; 4096], [2, 2048]).unwrap();
        let attrs = [("T", DType::Float.into()), ("num", 2.into())];
        let out = run_op("Unpack", vec![t.clone()], &attrs).unwrap();
        assert_eq!(out[1].dims(), [2048]);
        assert!(
            out[1]
                .buffer()
                .unwrap()
                .shares_memory_with(t.buffer().unwrap())
        );
    }
}
