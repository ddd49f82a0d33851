//! Turning dimensions round: `Reverse`, `ReverseV2`, `ReverseSequence`, `Roll`.

use super::dtypes::{ALL, COMMON_AND_STRING};
use super::strided::{Walk, gathered, strides_of};
use super::units::{Unit, room, with_unit};
use crate::args::{axis as wrap, ints};
use crate::types::INDEX;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{Dims, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Reverse", &[("T", COMMON_AND_STRING)], |_| {
        Built::cheap(reverse)
    });
    r.add_typed(
        "ReverseV2",
        &[("T", COMMON_AND_STRING), ("Tidx", INDEX)],
        |_| Built::cheap(reverse_v2),
    );
    r.add_typed(
        "ReverseSequence",
        &[("T", COMMON_AND_STRING), ("Tlen", INDEX)],
        reverse_sequence,
    );
    r.add_typed(
        "Roll",
        &[("T", ALL), ("Tshift", INDEX), ("Taxis", INDEX)],
        |_| Built::cheap(roll),
    );
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn reverse(ctx: &mut OpContext<'_>) -> Result<()> {
    let (input, dims) = (ctx.input(0)?, ctx.input(1)?);
    if input.rank() == 0 {
        ctx.forward(0, 0);
        return Ok(());
    }
    if dims.rank() != 1 {
        return invalid(format!("'dims' must be 1-dimension, not {}", dims.rank()));
    }
    let flags = dims.as_slice::<bool>()?;
    if flags.len() != input.rank() {
        return invalid(format!(
            "'dims' must have the same number of values as 'input' has dimensions. 'input' has {}'dims' has {} values",
            input.rank(),
            flags.len()
        ));
    }
    let out = turned(ctx, input, flags)?;
    ctx.set_output(0, out);
    Ok(())
}

fn reverse_v2(ctx: &mut OpContext<'_>) -> Result<()> {
    let (input, axes) = (ctx.input(0)?, ctx.input(1)?);
    let rank = input.rank();
    if rank == 0 {
        ctx.forward(0, 0);
        return Ok(());
    }
    if axes.rank() != 1 {
        return invalid(format!("'dims' must be 1-dimension, not {}", axes.rank()));
    }
    let mut flags = vec![false; rank];
    for (i, &axis) in ints(axes)?.iter().enumerate() {
        let Some(at) = wrap(axis, rank) else {
            return invalid(format!(
                "'axis'[{i}] = {axis} is out of valid range [0, {}",
                rank - 1
            ));
        };
        if flags[at] {
            return invalid(format!("axis {at} specified more than once."));
        }
        flags[at] = true;
    }
    let out = turned(ctx, input, &flags)?;
    ctx.set_output(0, out);
    Ok(())
}

fn turned(ctx: &OpContext<'_>, input: &Tensor, flags: &[bool]) -> Result<Tensor> {
    if input.rank() > 8 {
        return Err(Status::unimplemented(
            "reverse is not implemented for tensors of rank > 8.",
        ));
    }
    if !flags.contains(&true) || input.num_elements() == 0 {
        return Ok(input.clone());
    }
    let mut strides = strides_of(input.dims());
    let mut offset = 0;
    for ((stride, &turn), &dim) in strides.iter_mut().zip(flags).zip(input.dims()) {
        if turn {
            offset += (dim as isize - 1) * *stride;
            *stride = -*stride;
        }
    }
    let walk = Walk::new(offset, input.dims(), &strides);
    gathered(ctx, input, &walk, input.shape().clone())
}

fn reverse_sequence(b: &KernelBuilder<'_>) -> Result<Built> {
    let (seq, batch) = (b.attrs().int("seq_dim")?, b.attrs().int("batch_dim")?);
    Built::cheap(move |ctx| {
        let (input, lengths) = (ctx.input(0)?, ctx.input(1)?);
        let rank = input.rank() as i64;
        if lengths.rank() != 1 {
            return invalid(format!("seq_lengths must be 1-dim, not {}", lengths.rank()));
        }
        if batch == seq {
            return invalid(format!("batch_dim == seq_dim == {seq}"));
        }
        for (name, dim) in [("seq_dim", seq), ("batch_dim", batch)] {
            if dim >= rank {
                return invalid(format!("{name} must be < input rank ( {dim} vs. {rank})"));
            }
            if dim < 0 {
                return invalid(format!("Invalid {name} {dim}"));
            }
        }
        let (seq, batch) = (seq as usize, batch as usize);
        let dims = Dims::from_slice(input.dims());
        let lengths = ints(lengths)?;
        if lengths.len() != dims[batch] {
            return invalid(format!(
                "Length of seq_lengths != input.dims({batch}), ({} vs. {})",
                lengths.len(),
                dims[batch]
            ));
        }
        for (i, &n) in lengths.iter().enumerate() {
            if n < 0 {
                return invalid(format!("seq_lens({i}) < 0"));
            }
            if n > dims[seq] as i64 {
                return invalid(format!("seq_lens({i}) > input.dims({seq})"));
            }
        }
        if !(2..=5).contains(&rank) {
            return invalid(format!(
                "ReverseSequenceOp : Unhandled input dimensions: {rank}"
            ));
        }
        let out = sequences(ctx, input, &lengths, seq, batch)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The first `lengths[b]` steps of dimension `seq` turned round, for each `b` of `batch`.
fn sequences(
    ctx: &OpContext<'_>,
    input: &Tensor,
    lengths: &[i64],
    seq: usize,
    batch: usize,
) -> Result<Tensor> {
    let (dims, dtype) = (input.dims(), input.dtype());
    // Runs of elements behind both dimensions move together.
    let last = seq.max(batch);
    let run: usize = dims[last + 1..].iter().product();
    let strides = strides_of(&dims[..=last]);
    let count: usize = dims[..=last].iter().product();
    with_unit!(dtype, U => {
        let src = U::view(input)?;
        let mut out = room::<U>(ctx, dtype, input.shape())?;
        for r in 0..count {
            let index = |d: usize| r / strides[d] as usize % dims[d];
            let (s, n) = (index(seq), lengths[index(batch)] as usize);
            let from = if s < n { r - s * strides[seq] as usize + (n - 1 - s) * strides[seq] as usize } else { r };
            out.extend_from_slice(&src[from * run..(from + 1) * run]);
        }
        U::tensor(dtype, out, input.shape().clone())
    })
}

fn roll(ctx: &mut OpContext<'_>) -> Result<()> {
    let (input, shift, axis) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let rank = input.rank();
    if rank == 0 {
        return invalid("input must be 1-D or higher".to_owned());
    }
    for (name, t) in [("shift", shift), ("axis", axis)] {
        if t.rank() > 1 {
            return invalid(format!(
                "{name} must be a scalar or a 1-D vector. Found: {}",
                t.shape()
            ));
        }
    }
    if shift.shape() != axis.shape() {
        return invalid("shift and axis must have the same size".to_owned());
    }
    let mut shifts = vec![0i64; rank];
    for (&s, &a) in ints(shift)?.iter().zip(&ints(axis)?) {
        let Some(at) = wrap(a, rank) else {
            let a = if a < 0 {
                a.saturating_add(rank as i64)
            } else {
                a
            };
            return invalid(format!("axis {a} is out of range"));
        };
        let dim = input.dims()[at].max(1) as i64;
        shifts[at] = (shifts[at] + s % dim).rem_euclid(dim);
    }
    let out = rolled(ctx, input, &shifts)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Each dimension moved on by its shift, which is at least zero and below its size.
fn rolled(ctx: &OpContext<'_>, input: &Tensor, shifts: &[i64]) -> Result<Tensor> {
    let dims = input.dims();
    let Some(last) = (0..dims.len()).rev().find(|&d| shifts[d] != 0) else {
        return Ok(input.clone());
    };
    let dtype = input.dtype();
    let strides = strides_of(dims);
    // What lies behind the last moved dimension moves as one; that dimension is copied in two
    // pieces.
    let run: usize = dims[last + 1..].iter().product();
    let (n, cut) = (dims[last], dims[last] - shifts[last] as usize);
    let rows: usize = dims[..last].iter().product();
    with_unit!(dtype, U => {
        let src = U::view(input)?;
        let mut out = room::<U>(ctx, dtype, input.shape())?;
        for r in 0..rows {
            let mut from = 0;
            let mut rest = r;
            for d in (0..last).rev() {
                let i = rest % dims[d];
                rest /= dims[d];
                from += (i + dims[d] - shifts[d] as usize) % dims[d] * strides[d] as usize;
            }
            out.extend_from_slice(&src[from + cut * run..from + n * run]);
            out.extend_from_slice(&src[from..from + cut * run]);
        }
        U::tensor(dtype, out, input.shape().clone())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_graph::Result;
    use downpour_tensor::{DType, Tensor};

    fn matrix() -> Tensor {
        Tensor::from_vec((0..6).collect::<Vec<i32>>(), [2, 3]).unwrap()
    }

    fn reverse(axes: Vec<i32>) -> Result<Vec<i32>> {
        let inputs = vec![matrix(), Tensor::vector(axes)];
        Ok(
            run_op("ReverseV2", inputs, &[("T", DType::Int32.into())])?[0]
                .as_slice::<i32>()?
                .to_vec(),
        )
    }

    #[test]
    fn axes_are_turned_once() {
        assert_eq!(reverse(vec![0]).unwrap(), [3, 4, 5, 0, 1, 2]);
        assert_eq!(reverse(vec![-1, 0]).unwrap(), [5, 4, 3, 2, 1, 0]);
        assert_eq!(reverse(vec![]).unwrap(), [0, 1, 2, 3, 4, 5]);
        assert!(
            reverse(vec![2])
                .unwrap_err()
                .message
                .starts_with("'axis'[0] = 2 is out of valid range [0, 1")
        );
        assert!(
            reverse(vec![0, -2])
                .unwrap_err()
                .message
                .starts_with("axis 0 specified more than once.")
        );
    }

    #[test]
    fn sequences_turn_only_as_far_as_they_are_long() {
        let attrs = [
            ("T", DType::Int32.into()),
            ("Tlen", DType::Int32.into()),
            ("seq_dim", 1.into()),
            ("batch_dim", 0.into()),
        ];
        let inputs = vec![matrix(), Tensor::vector(vec![2i32, 3])];
        let out = run_op("ReverseSequence", inputs, &attrs).unwrap();
        assert_eq!(out[0].as_slice::<i32>().unwrap(), [1, 0, 2, 5, 4, 3]);
        let attrs = [
            ("T", DType::Int32.into()),
            ("Tlen", DType::Int32.into()),
            ("seq_dim", 0.into()),
            ("batch_dim", 1.into()),
        ];
        let inputs = vec![matrix(), Tensor::vector(vec![2i32, 1, 0])];
        let out = run_op("ReverseSequence", inputs, &attrs).unwrap();
        assert_eq!(out[0].as_slice::<i32>().unwrap(), [3, 1, 2, 0, 4, 5]);
    }

    #[test]
    fn rolling_wraps_around_and_adds_up() {
        let attrs = [
            ("T", DType::Int32.into()),
            ("Tshift", DType::Int32.into()),
            ("Taxis", DType::Int32.into()),
        ];
        let roll = |shift: Vec<i32>, axis: Vec<i32>| {
            let inputs = vec![matrix(), Tensor::vector(shift), Tensor::vector(axis)];
            run_op("Roll", inputs, &attrs).map(|o| o[0].as_slice::<i32>().unwrap().to_vec())
        };
        assert_eq!(roll(vec![1, -1], vec![0, 1]).unwrap(), [4, 5, 3, 1, 2, 0]);
        assert_eq!(roll(vec![1, 1], vec![1, 1]).unwrap(), [1, 2, 0, 4, 5, 3]);
        assert_eq!(roll(vec![1], vec![0]).unwrap(), [3, 4, 5, 0, 1, 2]);
        assert!(
            roll(vec![1], vec![-3])
                .unwrap_err()
                .message
                .starts_with("axis -1 is out of range")
        );
    }
}
