//! Permuting dimensions.

use super::dtypes::MOVABLE;
use super::strided::{Walk, gathered, strides_of};
use crate::args::ints;
use crate::types::{INDEX, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Dims, Shape, Tensor};
use num_complex::Complex;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Transpose", &[("T", MOVABLE)], |_| {
        Built::cheap(|ctx| {
            let out = transpose(ctx)?;
            ctx.set_output(0, out);
            Ok(())
        })
    });
    r.add_typed("ConjugateTranspose", &[("T", MOVABLE)], |_| {
        Built::cheap(|ctx| {
            let out = conjugate(transpose(ctx)?)?;
            ctx.set_output(0, out);
            Ok(())
        })
    });
    r.add_typed("InvertPermutation", &[("T", INDEX)], |_| {
        Built::cheap(invert_permutation)
    });
}

fn transpose(ctx: &mut OpContext<'_>) -> Result<Tensor> {
    let perm = ctx.input(1)?;
    if perm.rank() != 1 {
        return Err(Status::invalid_argument(format!(
            "perm must be rank 1, got shape {}",
            perm.shape()
        )));
    }
    let perm = ints(perm)?;
    let dims = Dims::from_slice(ctx.input(0)?.dims());
    let order = permutation(&perm, dims.len())?;
    let shape: Shape = order.iter().map(|&p| dims[p]).collect();
    // Moving dimensions of size 1 about moves no element.
    let moved = order.iter().filter(|&&p| dims[p] != 1);
    if moved.clone().zip(moved.skip(1)).all(|(a, b)| a < b) || shape.num_elements() == 0 {
        return Ok(ctx.take(0)?.reshaped(shape)?);
    }
    let strides = strides_of(&dims);
    let strides: Vec<isize> = order.iter().map(|&p| strides[p]).collect();
    let walk = Walk::new(0, &shape, &strides);
    gathered(ctx, ctx.input(0)?, &walk, shape)
}

/// `perm` as a permutation of `0..rank`; negative entries count from the end.
fn permutation(perm: &[i64], rank: usize) -> Result<Dims> {
    if perm.len() != rank {
        return Err(Status::invalid_argument(format!(
            "transpose expects a vector of size {rank}. But input(1) is a vector of size {}",
            perm.len()
        )));
    }
    let mut seen = vec![false; rank];
    let mut order = Dims::with_capacity(rank);
    for &p in perm {
        let at = if p < 0 {
            p.wrapping_add(rank as i64)
        } else {
            p
        };
        let Some(slot) = usize::try_from(at).ok().and_then(|a| seen.get_mut(a)) else {
            return Err(Status::invalid_argument(format!(
                "{at} is out of range [0 .. {rank})"
            )));
        };
        *slot = true;
        order.push(at as usize);
    }
    if let Some(missing) = seen.iter().position(|s| !s) {
        let list: Vec<String> = order.iter().map(usize::to_string).collect();
        return Err(Status::invalid_argument(format!(
            "{missing} is missing from {{{}}}.",
            list.join(",")
        )));
    }
    Ok(order)
}

fn conjugate(mut t: Tensor) -> Result<Tensor> {
    fn flip<T: Copy + std::ops::Neg<Output = T>>(values: &mut [Complex<T>]) {
        values.iter_mut().for_each(|v| v.im = -v.im);
    }
    match t.dtype() {
        DType::Complex64 => flip(t.make_mut::<Complex<f32>>()?),
        DType::Complex128 => flip(t.make_mut::<Complex<f64>>()?),
        _ => {}
    }
    Ok(t)
}

fn invert_permutation(ctx: &mut OpContext<'_>) -> Result<()> {
    let x = ctx.input(0)?;
    if x.rank() != 1 {
        return Err(Status::invalid_argument(
            "invert_permutation expects a 1D vector.",
        ));
    }
    let out = with_type!(x.dtype(), T in index => {
        let x = x.as_slice::<T>()?;
        let n = x.len();
        let mut out: Vec<T> = vec![-1; n];
        for (i, &d) in x.iter().enumerate() {
            match usize::try_from(d).ok().and_then(|d| out.get_mut(d)) {
                Some(slot) if *slot == -1 => *slot = i as T,
                Some(_) => {
                    return Err(Status::invalid_argument(format!("{d} is duplicated in the input.")));
                }
                None => {
                    return Err(Status::invalid_argument(format!("{d} is not between 0 and {n}")));
                }
            }
        }
        Tensor::vector(out)
    });
    ctx.set_output(0, out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run_op;

    #[test]
    fn bad_permutations_are_named() {
        let text = |p: &[i64]| permutation(p, 2).unwrap_err().message;
        assert_eq!(text(&[0, 0]), "1 is missing from {0,0}.");
        assert_eq!(text(&[0, -3]), "-1 is out of range [0 .. 2)");
        assert_eq!(
            text(&[0]),
            "transpose expects a vector of size 2. But input(1) is a vector of size 1"
        );
        assert_eq!(permutation(&[-1, -2], 2).unwrap().as_slice(), [1, 0]);
    }

    #[test]
    fn dimensions_and_strings_are_permuted() {
        let t = Tensor::from_vec((0..24).collect::<Vec<i32>>(), [2, 3, 4]).unwrap();
        let attrs = [("T", DType::Int32.into())];
        let out = run_op(
            "Transpose",
            vec![t, Tensor::vector(vec![2i32, 0, 1])],
            &attrs,
        )
        .unwrap();
        assert_eq!(out[0].dims(), [4, 2, 3]);
        assert_eq!(
            out[0].as_slice::<i32>().unwrap()[..7],
            [0, 4, 8, 12, 16, 20, 1]
        );
        let names = ["a", "b", "c", "d"].map(bytes::Bytes::from);
        let t = Tensor::strings(names.to_vec(), [2, 2]).unwrap();
        let attrs = [("T", DType::String.into())];
        let out = run_op("Transpose", vec![t, Tensor::vector(vec![1i32, 0])], &attrs).unwrap();
        assert_eq!(out[0].as_strings().unwrap(), ["a", "c", "b", "d"]);
    }

    #[test]
    fn complex_numbers_are_conjugated_even_when_nothing_moves() {
        let t = Tensor::vector(vec![Complex::new(1.0f32, 2.0)]);
        let attrs = [("T", DType::Complex64.into())];
        let out = run_op(
            "ConjugateTranspose",
            vec![t, Tensor::vector(vec![0i32])],
            &attrs,
        )
        .unwrap();
        assert_eq!(
            out[0].as_slice::<Complex<f32>>().unwrap(),
            [Complex::new(1.0, -2.0)]
        );
    }
}
