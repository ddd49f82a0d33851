//! Moving blocks of space into batch or depth, and back.

use super::dtypes::{ALL, SPACE_TO_DEPTH};
use super::strided::{Walk, collect, gathered, place, strides_of};
use super::units::{Unit, room, with_unit};
use crate::args::{ints, shape_of};
use crate::types::REALS;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{Dims, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("SpaceToBatch", &[("T", REALS)], |b| {
        let block = b.attrs().int("block_size")?;
        Built::cheap(move |ctx| {
            rank_four(ctx)?;
            space_to_batch(ctx, &[block, block], 1)
        })
    });
    r.add_typed("SpaceToBatchND", &[("T", REALS)], |_| {
        Built::cheap(|ctx| {
            let block = block_shape(ctx)?;
            space_to_batch(ctx, &block, 2)
        })
    });
    r.add_typed("BatchToSpace", &[("T", REALS)], |b| {
        let block = b.attrs().int("block_size")?;
        Built::cheap(move |ctx| {
            rank_four(ctx)?;
            batch_to_space(ctx, &[block, block], 1)
        })
    });
    r.add_typed("BatchToSpaceND", &[("T", REALS)], |_| {
        Built::cheap(|ctx| {
            let block = block_shape(ctx)?;
            batch_to_space(ctx, &block, 2)
        })
    });
    r.add_typed("SpaceToDepth", &[("T", SPACE_TO_DEPTH)], space_to_depth);
    r.add_typed("DepthToSpace", &[("T", ALL)], depth_to_space);
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn rank_four(ctx: &OpContext<'_>) -> Result<()> {
    match ctx.input(0)?.rank() {
        4 => Ok(()),
        // The missing space is TensorFlow's.
        n => invalid(format!("Input rank should be: 4instead of: {n}")),
    }
}

fn block_shape(ctx: &OpContext<'_>) -> Result<Vec<i64>> {
    let t = ctx.input(1)?;
    if t.rank() != 1 {
        return invalid(format!("block_shape should be 1-D instead of {}", t.rank()));
    }
    ints(t)
}

/// Input `at` as one pair per block dimension.
fn pairs(ctx: &OpContext<'_>, at: usize, name: &str, n: usize) -> Result<Vec<(i64, i64)>> {
    let rank = ctx.input(0)?.rank();
    if rank < n + 1 {
        return invalid(format!(
            "input rank should be >= {} instead of {rank}",
            n + 1
        ));
    }
    let t = ctx.input(at)?;
    if t.rank() != 2 || t.dims() != [n, 2] {
        return invalid(format!(
            "{name} should have shape [{n}, 2] instead of {}",
            t.shape()
        ));
    }
    Ok(ints(t)?.chunks(2).map(|p| (p[0], p[1])).collect())
}

/// Block dimensions that neither divide nor pad can be left to the batch or the rest, so only
/// the others count toward TensorFlow's limit of four.
fn check_dims(block: &[i64], pairs: &[(i64, i64)]) -> Result<()> {
    let plain = |i: usize| block[i] == 1 && pairs[i] == (0, 0);
    let first = (0..block.len()).find(|&i| !plain(i)).unwrap_or(block.len());
    let last = (0..block.len())
        .rev()
        .find(|&i| !plain(i))
        .map_or(first, |i| i + 1);
    match last - first {
        0..=4 => Ok(()),
        n => invalid(format!(
            "Maximum number of non-combined block dimensions is {n} but must not exceed 4"
        )),
    }
}

fn space_to_batch(ctx: &mut OpContext<'_>, block: &[i64], at: usize) -> Result<()> {
    let n = block.len();
    let paddings = pairs(ctx, at, "paddings", n)?;
    if let Some(i) = block.iter().position(|&b| b < 1) {
        return invalid(format!(
            "All values in block_shape must be positive, got value, {} at index {i}.",
            block[i]
        ));
    }
    if paddings.iter().any(|&(b, a)| b < 0 || a < 0) {
        return invalid("Paddings must be non-negative".to_owned());
    }
    check_dims(block, &paddings)?;
    let input = ctx.input(0)?;
    let dims = Dims::from_slice(input.dims());
    let mut batch = dims[0] as i64;
    for &b in block {
        batch = match batch.checked_mul(b) {
            Some(product) => product,
            None => {
                return invalid(format!(
                    "Negative output dimension size caused by overflow when multiplying {batch} and {b}"
                ));
            }
        };
    }
    let mut padded: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
    let mut out = padded.clone();
    out[0] = batch;
    for (i, (&b, &(before, after))) in block.iter().zip(&paddings).enumerate() {
        let size = padded[i + 1].saturating_add(before).saturating_add(after);
        if size % b != 0 {
            return invalid(format!(
                "padded_shape[{i}]={size} is not divisible by block_shape[{i}]={b}"
            ));
        }
        padded[i + 1] = size;
        out[i + 1] = size / b;
    }
    let (padded, shape) = (shape_of(&padded)?, shape_of(&out)?);
    // Output dimensions: the blocks, the batch, the cut-down space, the rest.
    let memory = strides_of(&padded);
    let (mut sizes, mut strides) = (Vec::new(), Vec::new());
    for (i, &b) in block.iter().enumerate() {
        sizes.push(b as usize);
        strides.push(memory[i + 1]);
    }
    sizes.push(dims[0]);
    strides.push(memory[0]);
    for (i, &b) in block.iter().enumerate() {
        sizes.push(shape[i + 1]);
        strides.push(memory[i + 1] * b as isize);
    }
    sizes.extend_from_slice(&dims[n + 1..]);
    strides.extend_from_slice(&memory[n + 1..]);
    let walk = Walk::new(0, &sizes, &strides);
    let out = padded_and_walked(ctx, input, &paddings, padded, &walk, shape)?;
    ctx.set_output(0, out);
    Ok(())
}

/// `input` padded with zeros to `padded`, then rearranged by `walk` to `shape`.
fn padded_and_walked(
    ctx: &OpContext<'_>,
    input: &Tensor,
    paddings: &[(i64, i64)],
    padded: Shape,
    walk: &Walk,
    shape: Shape,
) -> Result<Tensor> {
    if padded == *input.shape() {
        return gathered(ctx, input, walk, shape);
    }
    let dtype = input.dtype();
    ctx.check_alloc(dtype, &padded)?;
    let memory = strides_of(&padded);
    let offset = (paddings.iter().enumerate())
        .map(|(i, p)| p.0 as isize * memory[i + 1])
        .sum();
    with_unit!(dtype, U => {
        let mut whole = U::zeros(padded.num_elements())?;
        place(&mut whole, &Walk::new(offset, input.dims(), &memory), U::view(input)?)?;
        let out = collect(&whole, walk, room::<U>(ctx, dtype, &shape)?)?;
        U::tensor(dtype, out, shape)
    })
}

fn batch_to_space(ctx: &mut OpContext<'_>, block: &[i64], at: usize) -> Result<()> {
    let n = block.len();
    let crops = pairs(ctx, at, "crops", n)?;
    let product = block.iter().fold(1i64, |p, &b| p.saturating_mul(b));
    if product <= 0 {
        return invalid(format!(
            "Product of block sizes must be positive, got {product}"
        ));
    }
    let input = ctx.input(0)?;
    let dims = Dims::from_slice(input.dims());
    if dims[0] as i64 % product != 0 {
        return invalid(format!(
            "Input batch dimension ({}) is not divisible by product of block sizes ({product})",
            dims[0]
        ));
    }
    if crops.iter().any(|&(b, a)| b < 0 || a < 0) {
        return invalid("Crops must be non-negative".to_owned());
    }
    check_dims(block, &crops)?;
    let mut full: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
    full[0] /= product;
    let mut out = full.clone();
    for (i, (&b, &(before, after))) in block.iter().zip(&crops).enumerate() {
        full[i + 1] = full[i + 1].saturating_mul(b);
        let size = full[i + 1].saturating_sub(before).saturating_sub(after);
        if size < 0 {
            return invalid(format!("cropped_shape[{i}]={size} must be non-negative"));
        }
        out[i + 1] = size;
    }
    let (full, shape) = (shape_of(&full)?, shape_of(&out)?);
    // Input dimensions are the blocks, the batch, the space, the rest; blocks go behind space.
    let batch = full[0];
    let mut split: Dims = block.iter().map(|&b| b as usize).collect();
    split.push(batch);
    split.extend_from_slice(&dims[1..]);
    let memory = strides_of(&split);
    let (mut sizes, mut strides) = (vec![batch], vec![memory[n]]);
    for i in 0..n {
        sizes.extend([dims[i + 1], split[i]]);
        strides.extend([memory[n + 1 + i], memory[i]]);
    }
    sizes.extend_from_slice(&dims[n + 1..]);
    strides.extend_from_slice(&memory[2 * n + 1..]);
    let whole = gathered(ctx, input, &Walk::new(0, &sizes, &strides), full.clone())?;
    let out = if full == shape {
        whole
    } else {
        let memory = strides_of(&full);
        let offset = (crops.iter().enumerate())
            .map(|(i, c)| c.0 as isize * memory[i + 1])
            .sum();
        gathered(ctx, &whole, &Walk::new(offset, &shape, &memory), shape)?
    };
    ctx.set_output(0, out);
    Ok(())
}

/// The block size of a node in the one layout that CPUs have.
fn block_of_nhwc(b: &KernelBuilder<'_>) -> Result<usize> {
    let format = b.attrs().str("data_format")?;
    if format != "NHWC" {
        return invalid(format!(
            "No OpKernel was registered to support Op '{}' used by {{{{node {}}}}} with these attrs: [{}]\nRegistered devices: [CPU]\nRegistered kernels:\n  device='CPU'; data_format in [\"NHWC\"]\n",
            b.node.op_name(),
            b.node.name,
            b.node.attrs_text()
        ));
    }
    b.attrs().size("block_size")
}

fn space_to_depth(b: &KernelBuilder<'_>) -> Result<Built> {
    let block = block_of_nhwc(b)?;
    Built::cheap(move |ctx| {
        let input = ctx.input(0)?;
        let [n, h, w, c] = *input.dims() else {
            return invalid(format!(
                "Input rank should be 4 instead of {}",
                input.rank()
            ));
        };
        if !h.is_multiple_of(block) || !w.is_multiple_of(block) {
            return invalid(format!(
                "Image width {w} and height {h} should be divisible by block_size: {block}"
            ));
        }
        let s = |x: usize| x as isize;
        let walk = Walk::new(
            0,
            &[n, h / block, w / block, block, block, c],
            &[
                s(h * w * c),
                s(block * w * c),
                s(block * c),
                s(w * c),
                s(c),
                1,
            ],
        );
        let shape = Shape::from([n, h / block, w / block, block * block * c]);
        let out = gathered(ctx, input, &walk, shape)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn depth_to_space(b: &KernelBuilder<'_>) -> Result<Built> {
    let block = block_of_nhwc(b)?;
    Built::cheap(move |ctx| {
        let input = ctx.input(0)?;
        let [n, h, w, c] = *input.dims() else {
            return invalid(format!(
                "Input rank should be: 4 instead of: {}",
                input.rank()
            ));
        };
        let square = block.saturating_mul(block);
        if !c.is_multiple_of(square) {
            return invalid(format!(
                "Input depth dimension {c} should be divisible by: {square}"
            ));
        }
        let out_c = c / square;
        let s = |x: usize| x as isize;
        let walk = Walk::new(
            0,
            &[n, h, block, w, block, out_c],
            &[s(h * w * c), s(w * c), s(block * out_c), s(c), s(out_c), 1],
        );
        let shape = Shape::from([n, h * block, w * block, out_c]);
        let out = gathered(ctx, input, &walk, shape)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_graph::Result;
    use downpour_tensor::{DType, Tensor};

    fn counting(dims: &[usize]) -> Tensor {
        let n: usize = dims.iter().product();
        Tensor::from_vec((0..n).map(|i| i as f32).collect(), dims).unwrap()
    }

    fn run(op: &str, dims: &[usize], block: i32, pairs: [i32; 2]) -> Result<Vec<f32>> {
        let attrs = [("T", DType::Float.into())];
        let pairs = Tensor::from_vec(pairs.to_vec(), [1, 2])?;
        let out = run_op(
            op,
            vec![counting(dims), Tensor::vector(vec![block]), pairs],
            &attrs,
        )?;
        Ok(out[0].as_slice::<f32>()?.to_vec())
    }

    #[test]
    fn space_goes_to_batch_and_back() {
        assert_eq!(
            run("SpaceToBatchND", &[2, 4], 2, [1, 1]).unwrap(),
            [0.0, 1.0, 3.0, 0.0, 5.0, 7.0, 0.0, 2.0, 0.0, 4.0, 6.0, 0.0]
        );
        assert_eq!(
            run("BatchToSpaceND", &[4, 2], 2, [0, 0]).unwrap(),
            [0.0, 4.0, 1.0, 5.0, 2.0, 6.0, 3.0, 7.0]
        );
        assert_eq!(
            run("BatchToSpaceND", &[4, 2], 2, [1, 1]).unwrap(),
            [4.0, 1.0, 6.0, 3.0]
        );
        let text = |r: Result<Vec<f32>>| r.unwrap_err().message;
        assert!(
            text(run("SpaceToBatchND", &[2, 3], 2, [0, 0]))
                .starts_with("padded_shape[0]=3 is not divisible by block_shape[0]=2")
        );
        assert!(text(run("BatchToSpaceND", &[3, 2], 2, [0, 0])).starts_with(
            "Input batch dimension (3) is not divisible by product of block sizes (2)"
        ));
        assert!(
            text(run("SpaceToBatchND", &[2, 4], 0, [0, 0])).starts_with(
                "All values in block_shape must be positive, got value, 0 at index 0."
            )
        );
    }

    #[test]
    fn space_goes_to_depth_and_back() {
        let attrs = [("T", DType::Float.into()), ("block_size", 2.into())];
        let out = run_op("SpaceToDepth", vec![counting(&[1, 2, 4, 2])], &attrs).unwrap();
        let values = out[0].as_slice::<f32>().unwrap();
        assert_eq!(values[..8], [0.0, 1.0, 2.0, 3.0, 8.0, 9.0, 10.0, 11.0]);
        let back = run_op("DepthToSpace", out, &attrs).unwrap();
        assert_eq!(back[0].as_slice::<f32>().unwrap()[..3], [0.0, 1.0, 2.0]);
        assert_eq!(back[0].dims(), [1, 2, 4, 2]);
    }
}
