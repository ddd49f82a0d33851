//! Sums of many tensors of one shape: the first input that nobody else holds takes the result.

use super::activation::same_shape;
use super::binary::{add, no_code};
use super::drive::{Zipped, zip};
use crate::types::NUMBERS;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::Tensor;

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
            let sum = sum(ctx, &*kernel, inputs)?;
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
            let sum = sum(ctx, &*kernel, inputs)?;
            ctx.set_output(0, sum);
            Ok(())
        })
    });
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

/// The sum of tensors of one shape, added in their order.
fn sum(
    ctx: &OpContext<'_>,
    kernel: &dyn super::elementwise::Binary,
    inputs: Vec<Tensor>,
) -> Result<Tensor> {
    let mut inputs = inputs.into_iter();
    let mut sum = inputs
        .next()
        .ok_or_else(|| Status::invalid_argument("a sum of no tensors"))?;
    for next in inputs {
        match zip(ctx, kernel, sum, next)? {
            Zipped::Done(t) => sum = t,
            _ => return Err(Status::internal("tensors of one shape did not add up")),
        }
    }
    Ok(sum)
}
