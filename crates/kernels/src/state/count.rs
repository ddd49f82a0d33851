//! `CountUpTo`: gives a counter's value and adds one, until a limit.

use super::variable_access::{VariableAccess, uninitialized};
use crate::args::{int, int_tensor};
use crate::types::INDEX;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::Shape;

pub(super) fn register(r: &mut Registry) {
    r.add_typed("CountUpTo", &[("T", INDEX)], count_up_to);
    r.add_typed("ResourceCountUpTo", &[("T", INDEX)], count_up_to);
}

fn count_up_to(b: &KernelBuilder<'_>) -> Result<Built> {
    let (access, limit) = (VariableAccess::of(b), b.attrs().int("limit")?);
    Built::cheap(move |ctx| {
        let variable = access.variable(ctx, 0)?;
        let before = variable.update(|value| {
            let tensor = value.as_mut().ok_or_else(|| uninitialized(ctx, 0))?;
            if !tensor.shape().is_scalar() {
                return Err(Status::invalid_argument(format!(
                    "input is not a scalar: {}",
                    tensor.shape()
                )));
            }
            let count = int(tensor)?;
            if count >= limit {
                return Err(Status::out_of_range(format!("Reached limit of {limit}")));
            }
            variable.note_update(ctx.env());
            let next = int_tensor(tensor.dtype(), vec![count + 1], Shape::scalar())?;
            Ok(std::mem::replace(tensor, next))
        })?;
        ctx.set_output(0, before);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::state::testing::{Bench, by_handle, by_reference};
    use downpour_graph::Code;
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn counting_stops_at_the_limit() {
        for access in [by_reference as fn(&str, &str) -> _, by_handle] {
            let b = Bench::with(
                access("CountUpTo", "ResourceCountUpTo"),
                DType::Int64,
                &[("limit", 2i64.into())],
            );
            b.set(0, Tensor::scalar(0i64));
            for expected in [0, 1] {
                let out = b.run(vec![]).unwrap();
                assert_eq!(out[0].as_slice::<i64>().unwrap(), [expected]);
            }
            let e = b.run(vec![]).unwrap_err();
            assert_eq!(e.code, Code::OutOfRange);
            assert!(e.message.starts_with("Reached limit of 2"));
        }
    }
}
