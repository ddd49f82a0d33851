//! Sparse tensors of one shape, element by element: `SparseAdd` and its gradient,
//! `SparseSparseMaximum`, `SparseSparseMinimum`. Both walk two sorted lists of places at once.

use super::form::{Places, invalid, joined, validated, vector};
use super::layout::spread;
use super::number::{Number, with_number};
use super::segment::{narrowed, widened};
use crate::types::REALS;
use downpour_graph::Result;
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Tensor};
use half::{bf16, f16};
use std::cmp::Ordering;

const ADDED: &[DType] = &[
    DType::Float,
    DType::Double,
    DType::Int64,
    DType::Int32,
    DType::Int16,
    DType::Int8,
    DType::Complex64,
    DType::Complex128,
];

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("SparseAdd", &[("T", ADDED)], |_| Built::cheap(add));
    r.add_typed("SparseAddGrad", &[("T", ADDED)], |_| Built::cheap(add_grad));
    r.add_typed("SparseSparseMaximum", &[("T", REALS)], |_| {
        Built::cheap(|ctx| extreme(ctx, true))
    });
    r.add_typed("SparseSparseMinimum", &[("T", REALS)], |_| {
        Built::cheap(|ctx| extreme(ctx, false))
    });
}

/// The union of two sorted lists of places: which element of each, where it has one.
fn union(a: Places<'_>, b: Places<'_>) -> Vec<(Option<usize>, Option<usize>)> {
    let (mut i, mut j) = (0, 0);
    let mut out = Vec::with_capacity(a.count.max(b.count));
    while i < a.count && j < b.count {
        match a.row(i).cmp(b.row(j)) {
            Ordering::Equal => {
                out.push((Some(i), Some(j)));
                i += 1;
                j += 1;
            }
            Ordering::Less => {
                out.push((Some(i), None));
                i += 1;
            }
            Ordering::Greater => {
                out.push((None, Some(j)));
                j += 1;
            }
        }
    }
    out.extend((i..a.count).map(|i| (Some(i), None)));
    out.extend((j..b.count).map(|j| (None, Some(j))));
    out
}

fn places_of(
    a: Places<'_>,
    b: Places<'_>,
    pairs: &[(Option<usize>, Option<usize>)],
) -> Result<Tensor> {
    let rows = pairs.iter().flat_map(|pair| match *pair {
        (Some(i), _) => a.row(i),
        (None, Some(j)) => b.row(j),
        (None, None) => &[],
    });
    Ok(Tensor::from_vec(
        rows.copied().collect(),
        [pairs.len(), a.rank],
    )?)
}

fn add(ctx: &mut OpContext<'_>) -> Result<()> {
    let [ai, av, ash, bi, bv, bsh, thresh] = [
        ctx.input(0)?,
        ctx.input(1)?,
        ctx.input(2)?,
        ctx.input(3)?,
        ctx.input(4)?,
        ctx.input(5)?,
        ctx.input(6)?,
    ];
    if ai.rank() != 2 || bi.rank() != 2 {
        return invalid(format!(
            "Input indices should be matrices but received shapes: {} and {}",
            ai.shape(),
            bi.shape()
        ));
    }
    let (a, b) = (Places::new(ai)?, Places::new(bi)?);
    if av.rank() != 1 || bv.rank() != 1 {
        return invalid(format!(
            "Input values should be vectors but received shapes: {} and {}",
            av.shape(),
            bv.shape()
        ));
    }
    if av.num_elements() != a.count || bv.num_elements() != b.count {
        return invalid(format!(
            "Expected {} and {} non-empty input values, got {} and {}",
            a.count,
            b.count,
            av.num_elements(),
            bv.num_elements()
        ));
    }
    if ash.rank() != 1 || bsh.rank() != 1 {
        return invalid(format!(
            "Input shapes should be a vector but received shapes {} and {}",
            ash.shape(),
            bsh.shape()
        ));
    }
    let (a_dims, b_dims) = (ash.as_slice::<i64>()?, bsh.as_slice::<i64>()?);
    if a_dims.len() != b_dims.len() {
        return invalid(format!(
            "Operands do not have the same ranks; got shapes: {} and {}",
            joined(a_dims, " "),
            joined(b_dims, " ")
        ));
    }
    same_dims(a_dims, b_dims)?;
    if thresh.rank() != 0 {
        return invalid(format!(
            "The magnitude threshold must be a scalar: got shape {}",
            thresh.shape()
        ));
    }
    if a.rank != b.rank {
        return invalid(format!(
            "Input indices must have the same dimension, got {} and {}",
            a.rank, b.rank
        ));
    }
    for (name, p, dims) in [("a", a, a_dims), ("b", b, b_dims)] {
        if p.rank != dims.len() {
            return invalid(format!(
                "Second dimension of {name}_indices and length of {name}_shape must match, got {} and {}",
                p.rank,
                dims.len()
            ));
        }
    }
    let thresh = threshold(thresh)?;
    let mut pairs = union(a, b);
    let values = with_number!(av.dtype(), T => {
        let (x, y) = (av.as_slice::<T>()?, bv.as_slice::<T>()?);
        let mut sums = Vec::with_capacity(pairs.len());
        // Only sums of two are held against the threshold.
        pairs.retain(|pair| {
            let sum = match *pair {
                (Some(i), Some(j)) => x[i].plus(y[j]),
                (Some(i), None) => x[i],
                (None, Some(j)) => y[j],
                (None, None) => return false,
            };
            let keep = pair.0.is_none() || pair.1.is_none() || thresh <= sum.magnitude();
            if keep {
                sums.push(sum);
            }
            keep
        });
        Tensor::vector(sums)
    });
    let (places, dims) = (places_of(a, b, &pairs)?, vector(a_dims));
    ctx.set_output(0, places);
    ctx.set_output(1, values);
    ctx.set_output(2, dims);
    Ok(())
}

fn same_dims(a: &[i64], b: &[i64]) -> Result<()> {
    match a.iter().zip(b).position(|(a, b)| a != b) {
        Some(d) => invalid(format!(
            "Operands' shapes do not match: got {} and {} for dimension {d}",
            a[d], b[d]
        )),
        None => Ok(()),
    }
}

fn threshold(t: &Tensor) -> Result<f64> {
    Ok(match t.dtype() {
        DType::Float => t.scalar_value::<f32>()?.into(),
        DType::Double => t.scalar_value()?,
        DType::Half => t.scalar_value::<f16>()?.into(),
        DType::BFloat16 => t.scalar_value::<bf16>()?.into(),
        DType::UInt64 => t.scalar_value::<u64>()? as f64,
        _ => crate::args::int(t)? as f64,
    })
}

fn add_grad(ctx: &mut OpContext<'_>) -> Result<()> {
    let (grad, ai, bi, si) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?, ctx.input(3)?);
    if ai.rank() != 2 || bi.rank() != 2 || si.rank() != 2 {
        return invalid(format!(
            "Input indices should be matrices but received shapes: {} and {} and {}",
            ai.shape(),
            bi.shape(),
            si.shape()
        ));
    }
    if grad.rank() != 1 {
        return invalid(format!(
            "Input backprop_val_grad should be a vector but received shape: {}",
            grad.shape()
        ));
    }
    let (a, b, sum) = (Places::new(ai)?, Places::new(bi)?, Places::new(si)?);
    if a.rank != b.rank || b.rank != sum.rank {
        return invalid(format!(
            "The densified operands should have the same ndims; for A, B, sum got: {}{}{}",
            a.rank, b.rank, sum.rank
        ));
    }
    if grad.num_elements() != sum.count {
        return invalid(format!(
            "# elements of backprop_val_grad and # rows of sum_indices should match (#nnz of sum): got {} and {}",
            grad.num_elements(),
            sum.count
        ));
    }
    let back = |operand: Places<'_>| {
        let mut k = 0;
        let which: Vec<Option<usize>> = operand
            .rows()
            .map(|row| {
                while k < sum.count && sum.row(k) < row {
                    k += 1;
                }
                (k < sum.count && sum.row(k) == row).then_some(k)
            })
            .collect();
        spread(grad, &which)
    };
    let (da, db) = (back(a)?, back(b)?);
    ctx.set_output(0, da);
    ctx.set_output(1, db);
    Ok(())
}

fn extreme(ctx: &mut OpContext<'_>, largest: bool) -> Result<()> {
    let (av, bv) = (ctx.input(1)?, ctx.input(4)?);
    let (a, a_dims) = validated(ctx.input(0)?, av, ctx.input(2)?, false)?;
    let (b, b_dims) = validated(ctx.input(3)?, bv, ctx.input(5)?, false)?;
    if a_dims.len() != b_dims.len() {
        return invalid(format!(
            "Operands do not have the same ranks; got shapes: {} and {}",
            joined(a_dims, " "),
            joined(b_dims, " ")
        ));
    }
    same_dims(a_dims, b_dims)?;
    let pairs = union(a, b);
    let dtype = av.dtype();
    let (x, y) = (widened(av)?, widened(bv)?);
    let values = with_number!(x.dtype(), T => {
        let (x, y) = (x.as_slice::<T>()?, y.as_slice::<T>()?);
        let pick = |pair: &(Option<usize>, Option<usize>)| {
            let left = pair.0.map_or(T::ZERO, |i| x[i]);
            let right = pair.1.map_or(T::ZERO, |j| y[j]);
            if largest { left.larger(right) } else { left.smaller(right) }
        };
        Tensor::vector(pairs.iter().map(pick).collect())
    });
    let places = places_of(a, b, &pairs)?;
    ctx.set_output(0, places);
    ctx.set_output(1, narrowed(values, dtype)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_tensor::{DType, Tensor};

    fn operands() -> Vec<Tensor> {
        let at = |v: Vec<i64>| {
            let n = v.len();
            Tensor::from_vec(v, [n, 1]).unwrap()
        };
        let shape = Tensor::vector(vec![5i64]);
        vec![
            at(vec![0, 2, 4]),
            floats(&[1.0, -3.0, 1.0]),
            shape.clone(),
            at(vec![1, 2, 4]),
            floats(&[2.0, 3.5, 7.0]),
            shape,
        ]
    }

    #[test]
    fn small_sums_are_dropped_and_their_gradients_zero() {
        let attrs = [("T", DType::Float.into()), ("Treal", DType::Float.into())];
        let mut inputs = operands();
        inputs.push(Tensor::scalar(1.0f32));
        let out = run_op("SparseAdd", inputs, &attrs).unwrap();
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [0, 1, 4]);
        assert_eq!(out[1].as_slice::<f32>().unwrap(), [1.0, 2.0, 8.0]);
        let o = operands();
        let inputs = vec![
            floats(&[10.0, 20.0, 30.0]),
            o[0].clone(),
            o[3].clone(),
            out[0].clone(),
        ];
        let out = run_op("SparseAddGrad", inputs, &attrs[..1]).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [10.0, 0.0, 30.0]);
        assert_eq!(out[1].as_slice::<f32>().unwrap(), [20.0, 0.0, 30.0]);
    }

    #[test]
    fn what_is_missing_counts_as_zero() {
        let out = run_op(
            "SparseSparseMinimum",
            operands(),
            &[("T", DType::Float.into())],
        );
        let out = out.unwrap();
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [0, 1, 2, 4]);
        assert_eq!(out[1].as_slice::<f32>().unwrap(), [0.0, 0.0, -3.0, 1.0]);
    }
}
