//! Padding with a constant or with a mirror image, and the mirror's gradient.

use super::dtypes::PAD;
use super::strided::{Walk, place, strides_of};
use super::units::{Unit, room, with_unit};
use crate::args::{ints, shape_of};
use crate::types::{INDEX, NUMBERS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{Dims, Element, Shape, Tensor};
use std::ops::Add;

pub(crate) fn register(r: &mut Registry) {
    let types = [("T", PAD), ("Tpaddings", INDEX)];
    r.add_typed("Pad", &types, |_| Built::cheap(pad));
    r.add_typed("PadV2", &types, |_| Built::cheap(pad));
    r.add_typed("MirrorPad", &types, mirror_pad);
    r.add_typed(
        "MirrorPadGrad",
        &[("T", NUMBERS), ("Tpaddings", INDEX)],
        mirror_pad_grad,
    );
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// Input 1 as (before, after) per dimension of input 0, which may have `max_rank` dimensions.
fn paddings(ctx: &OpContext<'_>, max_rank: usize, separator: &str) -> Result<Vec<(i64, i64)>> {
    let (input, paddings) = (ctx.input(0)?, ctx.input(1)?);
    if input.rank() > max_rank {
        return Err(Status::unimplemented(format!(
            "inputs rank not in [0,{max_rank}]: {}",
            input.rank()
        )));
    }
    if paddings.rank() != 2 || paddings.dims()[1] != 2 {
        return invalid(format!(
            "paddings must be a matrix with 2 columns: {}",
            paddings.shape()
        ));
    }
    if paddings.dims()[0] != input.rank() {
        return invalid(format!(
            "The first dimension of paddings must be the rank of inputs{}{separator}{}",
            paddings.shape(),
            input.shape()
        ));
    }
    Ok(ints(paddings)?.chunks(2).map(|p| (p[0], p[1])).collect())
}

/// The padded shape; sizes that overflow are refused as no shape.
fn padded(dims: &[usize], paddings: &[(i64, i64)]) -> Result<Shape> {
    let dims: Vec<i64> = dims
        .iter()
        .zip(paddings)
        .map(|(&d, &(b, a))| (d as i64).saturating_add(b).saturating_add(a))
        .collect();
    shape_of(&dims)
}

fn pad(ctx: &mut OpContext<'_>) -> Result<()> {
    let paddings = paddings(ctx, 8, " ")?;
    if ctx.num_inputs() == 3 {
        let value = ctx.input(2)?;
        if value.rank() != 0 {
            return invalid(format!(
                "constant_values must be a scalar. Found: {}",
                value.shape()
            ));
        }
    }
    if let Some((b, a)) = paddings.iter().find(|(b, a)| *b < 0 || *a < 0) {
        return invalid(format!("Paddings must be non-negative: {b} {a}"));
    }
    let input = ctx.input(0)?;
    let shape = padded(input.dims(), &paddings)?;
    if shape == *input.shape() {
        ctx.forward(0, 0);
        return Ok(());
    }
    let dtype = input.dtype();
    ctx.check_alloc(dtype, &shape)?;
    let memory = strides_of(&shape);
    let offset = paddings
        .iter()
        .zip(&memory)
        .map(|(p, &m)| p.0 as isize * m)
        .sum();
    let walk = Walk::new(offset, input.dims(), &memory);
    let out = with_unit!(dtype, U => {
        let value = match ctx.num_inputs() {
            3 => U::view(ctx.input(2)?)?.first().cloned(),
            _ => None,
        };
        let n = shape.num_elements();
        let mut out = match value {
            Some(v) => crate::uninit::repeated(&v, n),
            None => U::zeros(n)?,
        };
        place(&mut out, &walk, U::view(input)?)?;
        U::tensor(dtype, out, shape)?
    });
    ctx.set_output(0, out);
    Ok(())
}

/// How far a mirror image is shifted from the edge: REFLECT does not repeat the edge itself.
fn mirror_offset(b: &KernelBuilder<'_>) -> Result<i64> {
    Ok(i64::from(b.attrs().str("mode")? == "REFLECT"))
}

/// For each index of a padded dimension, the index it shows.
pub(crate) fn mirrored(dim: usize, (before, after): (i64, i64), offset: i64) -> Vec<usize> {
    let n = dim as i64;
    (-before..n + after)
        .map(|i| {
            let i = if i < 0 { -i - 1 + offset } else { i };
            (if i >= n { 2 * n - i - 1 - offset } else { i }) as usize
        })
        .collect()
}

fn mirror_pad(b: &KernelBuilder<'_>) -> Result<Built> {
    let offset = mirror_offset(b)?;
    Built::cheap(move |ctx| {
        let paddings = paddings(ctx, 5, ", ")?;
        let input = ctx.input(0)?;
        for (&(b, a), &dim) in paddings.iter().zip(input.dims()) {
            let dim = dim as i64;
            if b < 0 || a < 0 {
                return invalid(format!("paddings must be non-negative: {b} {a}"));
            }
            if offset == 0 && (b > dim || a > dim) {
                return invalid(format!(
                    "paddings must be no greater than the dimension size: {b}, {a} greater than {dim}"
                ));
            }
            if offset == 1 && (b >= dim || a >= dim) {
                return invalid(format!(
                    "paddings must be less than the dimension size: {b}, {a} not less than {dim}"
                ));
            }
        }
        let shape = padded(input.dims(), &paddings)?;
        if shape == *input.shape() {
            ctx.forward(0, 0);
            return Ok(());
        }
        let tables: Vec<Vec<usize>> = (input.dims().iter().zip(&paddings))
            .map(|(&d, &p)| mirrored(d, p, offset))
            .collect();
        let memory = strides_of(input.dims());
        let dtype = input.dtype();
        let out = with_unit!(dtype, U => {
            let mut out = room::<U>(ctx, dtype, &shape)?;
            let values = U::view(input)?;
            each_row(&tables, &memory, |at, last| {
                out.extend(last.iter().map(|&i| values[at + i].clone()));
            });
            U::tensor(dtype, out, shape)?
        });
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Calls `row(start, last table)` for each combination of entries of all tables but the last.
fn each_row(tables: &[Vec<usize>], memory: &[isize], mut row: impl FnMut(usize, &[usize])) {
    let Some((last, outer)) = tables.split_last() else {
        return row(0, &[0]);
    };
    let total: usize = outer.iter().map(Vec::len).product();
    let mut index: Dims = smallvec::smallvec![0; outer.len()];
    for _ in 0..total {
        let at = (0..outer.len())
            .map(|d| outer[d][index[d]] * memory[d] as usize)
            .sum();
        row(at, last);
        for d in (0..outer.len()).rev() {
            index[d] += 1;
            if index[d] < outer[d].len() {
                break;
            }
            index[d] = 0;
        }
    }
}

fn mirror_pad_grad(b: &KernelBuilder<'_>) -> Result<Built> {
    let offset = mirror_offset(b)?;
    let dtype = b.attrs().dtype("T")?;
    Built::cheap(move |ctx| {
        let paddings = paddings(ctx, 5, ", ")?;
        let input = ctx.input(0)?;
        let mut dims = Dims::new();
        for (&(b, a), &dim) in paddings.iter().zip(input.dims()) {
            let dim = dim as i64;
            if b < 0 || a < 0 {
                return invalid(format!("Paddings must be non-negative: {b}, {a}"));
            }
            let out = dim.saturating_sub(b).saturating_sub(a);
            if out <= 0 {
                return invalid(format!(
                    "Total paddings must be less than the input dimension size: {} was not less than {dim}",
                    b.saturating_add(a)
                ));
            }
            if offset == 0 && (b > out || a > out) {
                return invalid(format!(
                    "paddings must be no greater than the output dimension size: {b}, {a} greater than {out}"
                ));
            }
            if offset == 1 && (b >= out || a >= out) {
                return invalid(format!(
                    "paddings must be less than the output dimension size: {b}, {a} not less than {out}"
                ));
            }
            dims.push(out as usize);
        }
        let out =
            with_type!(dtype, T in numbers => folded::<T>(ctx, input, &paddings, dims, offset)?);
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Adds every element of the padded gradient to the element it mirrors.
fn folded<T: Element + Add<Output = T>>(
    ctx: &OpContext<'_>,
    grad: &Tensor,
    paddings: &[(i64, i64)],
    dims: Dims,
    offset: i64,
) -> Result<Tensor> {
    let tables: Vec<Vec<usize>> = (dims.iter().zip(paddings))
        .map(|(&d, &p)| mirrored(d, p, offset))
        .collect();
    let memory = strides_of(&dims);
    let shape = Shape::from(dims);
    let mut out = ctx.zeros(T::DTYPE, &shape)?;
    let sums = out.make_mut::<T>()?;
    let mut values = grad.as_slice::<T>()?.iter();
    each_row(&tables, &memory, |at, last| {
        for (&i, &v) in last.iter().zip(&mut values) {
            sums[at + i] = sums[at + i] + v;
        }
    });
    Ok(out)
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::Result;
    use downpour_tensor::{DType, Tensor};

    fn run(op: &str, x: &[f32], p: [i32; 2], mode: &str) -> Result<Vec<f32>> {
        let p = Tensor::from_vec(p.to_vec(), [1, 2])?;
        let mut attrs = vec![("T", DType::Float.into())];
        if op != "Pad" {
            attrs.push(("mode", mode.into()));
        }
        Ok(run_op(op, vec![floats(x), p], &attrs)?[0]
            .as_slice::<f32>()?
            .to_vec())
    }

    #[test]
    fn constants_and_mirrors_surround_the_input() {
        assert_eq!(
            run("Pad", &[1.0, 2.0], [1, 2], "").unwrap(),
            [0.0, 1.0, 2.0, 0.0, 0.0]
        );
        assert_eq!(
            run("MirrorPad", &[0.0, 1.0, 2.0], [2, 2], "REFLECT").unwrap(),
            [2.0, 1.0, 0.0, 1.0, 2.0, 1.0, 0.0]
        );
        assert_eq!(
            run("MirrorPad", &[0.0, 1.0, 2.0], [3, 3], "SYMMETRIC").unwrap(),
            [2.0, 1.0, 0.0, 0.0, 1.0, 2.0, 2.0, 1.0, 0.0]
        );
        let e = run("MirrorPad", &[0.0, 1.0, 2.0], [3, 2], "REFLECT").unwrap_err();
        assert!(
            e.message
                .starts_with("paddings must be less than the dimension size: 3, 2 not less than 3")
        );
        let e = run("Pad", &[1.0], [1, -2], "").unwrap_err();
        assert!(e.message.starts_with("Paddings must be non-negative: 1 -2"));
    }

    #[test]
    fn the_mirrors_gradient_is_the_sum_of_its_images() {
        let x: Vec<f32> = (0..7).map(|i| i as f32).collect();
        assert_eq!(
            run("MirrorPadGrad", &x, [2, 2], "REFLECT").unwrap(),
            [8.0, 9.0, 4.0]
        );
        let x: Vec<f32> = (0..9).map(|i| i as f32).collect();
        assert_eq!(
            run("MirrorPadGrad", &x, [3, 3], "SYMMETRIC").unwrap(),
            [13.0, 12.0, 11.0]
        );
    }
}
