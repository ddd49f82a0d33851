//! Sums of many tensors of one shape.

use super::activation::same_shape;
use super::binary::{add, no_code};
use super::broadcast_loop::fold;
use crate::types::NUMBERS;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("AddN", &[("T", NUMBERS)], |b| {
        let kernel = {
            let t = b.attrs().dtype("T")?;
            add(t).ok_or_else(|| no_code(t))?
        };
        Built::cheap(move |ctx| {
            let inputs = take_all(ctx)?;
            if let Some((i, other)) = odd_one(&inputs) {
                let info = ctx.info();
                let op = info.node.op_name();
                return Err(same_shape(&info.name, op, &inputs[0], i, other));
            }
            let sum = fold(ctx, &*kernel, inputs)?;
            ctx.set_output(0, sum);
            Ok(())
        })
    });
    r.add_typed("AccumulateNV2", &[("T", NUMBERS)], |b| {
        let kernel = {
            let t = b.attrs().dtype("T")?;
            add(t).ok_or_else(|| no_code(t))?
        };
        Built::cheap(move |ctx| {
            let inputs = take_all(ctx)?;
            if odd_one(&inputs).is_some() {
                return Err(Status::invalid_argument(
                    "Parameters and update must be the same size",
                ));
            }
            let sum = fold(ctx, &*kernel, inputs)?;
            ctx.set_output(0, sum);
            Ok(())
        })
    });
}

/// The sum of tensors of one shape and of one type of number.
pub(crate) fn sum(ctx: &OpContext<'_>, dtype: DType, tensors: Vec<Tensor>) -> Result<Tensor> {
    let kernel = add(dtype).ok_or_else(|| no_code(dtype))?;
    fold(ctx, &*kernel, tensors)
}

fn take_all(ctx: &mut OpContext<'_>) -> Result<Vec<Tensor>> {
    (0..ctx.num_inputs()).map(|i| ctx.take(i)).collect()
}

fn odd_one(inputs: &[Tensor]) -> Option<(usize, &Tensor)> {
    let first = inputs.first()?;
    inputs
        .iter()
        .enumerate()
        .find(|(_, t)| t.shape() != first.shape())
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::AttrValue;
    use downpour_tensor::Tensor;

    fn add_n(inputs: Vec<Tensor>) -> downpour_graph::Result<Tensor> {
        let n = AttrValue::Int(inputs.len() as i64);
        let attrs = [("T", inputs[0].dtype().into()), ("N", n)];
        Ok(run_op("AddN", inputs, &attrs)?.remove(0))
    }

    #[test]
    fn sums_of_any_number_of_inputs_are_right_whoever_holds_them() {
        for n in 1..6usize {
            for len in [0, 1, 5000] {
                let make = |i: usize| Tensor::vector(vec![10i32.pow(i as u32); len]);
                let want = vec![(0..n as u32).map(|i| 10i32.pow(i)).sum::<i32>(); len];
                // Bit i: input i is also held here.
                for held in 0..1u32 << n {
                    let inputs: Vec<Tensor> = (0..n).map(make).collect();
                    let kept: Vec<Tensor> = (0..n)
                        .filter(|i| held >> i & 1 == 1)
                        .map(|i| inputs[i].clone())
                        .collect();
                    let sum = add_n(inputs).unwrap();
                    assert_eq!(sum.as_slice::<i32>().unwrap(), want, "{n} {len} {held:b}");
                    for (t, i) in kept.iter().zip((0..n).filter(|i| held >> i & 1 == 1)) {
                        assert_eq!(
                            t.as_slice::<i32>().unwrap(),
                            make(i).as_slice::<i32>().unwrap()
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn shapes_must_agree() {
        let e = add_n(vec![floats(&[1.0, 2.0]), floats(&[1.0])]).unwrap_err();
        let want = "Inputs to operation op of type AddN must have the same size and shape.  Input 0: [2] != input 1: [1]";
        assert!(e.message.starts_with(want), "{}", e.message);
    }
}
