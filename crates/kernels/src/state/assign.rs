//! `AssignAdd` and `AssignSub`, by reference and by handle.

use super::arith::Arith;
use super::pass::dense1;
use super::variable_access::VariableAccess;
use crate::types::{NUMBERS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::Tensor;

pub(super) fn register(r: &mut Registry) {
    r.add_typed("AssignAdd", &[("T", NUMBERS)], add);
    r.add_typed("AssignAddVariableOp", &[("dtype", NUMBERS)], add);
    r.add_typed("AssignSub", &[("T", NUMBERS)], sub);
    r.add_typed("AssignSubVariableOp", &[("dtype", NUMBERS)], sub);
}

fn add(b: &KernelBuilder<'_>) -> Result<Built> {
    let access = VariableAccess::of(b);
    with_type!(b.input_type(1)?, T in numbers
        => Built::cheap(move |ctx| update::<T>(ctx, access, T::plus)))
}

fn sub(b: &KernelBuilder<'_>) -> Result<Built> {
    let access = VariableAccess::of(b);
    with_type!(b.input_type(1)?, T in numbers
        => Built::cheap(move |ctx| update::<T>(ctx, access, T::minus)))
}

fn update<T: Arith>(
    ctx: &mut OpContext<'_>,
    access: VariableAccess,
    f: impl Fn(T, T) -> T + Sync + Copy,
) -> Result<()> {
    access.update(ctx, |ctx, variable| {
        let value = ctx.input(1)?;
        check(access, variable, value)?;
        dense1([variable.make_mut::<T>()?], value.as_slice()?, |[x], y| {
            [f(x, y)]
        });
        Ok(())
    })
}

fn check(access: VariableAccess, variable: &Tensor, value: &Tensor) -> Result<()> {
    let same = variable.shape() == value.shape();
    match access {
        VariableAccess::Ref if !same => Err(Status::invalid_argument(
            "Parameters and update must be the same size",
        )),
        VariableAccess::Resource if variable.dtype() != value.dtype() => Err(
            Status::invalid_argument("DType of variable handle and value does not match."),
        ),
        VariableAccess::Resource if !same => Err(Status::invalid_argument(format!(
            "Cannot update variable with shape {} using a Tensor with shape {}, shapes must be equal.",
            variable.shape(),
            value.shape()
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use crate::state::testing::{Bench, by_handle, by_reference};
    use crate::testing::floats;
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn both_doors_add_and_subtract_and_refuse_other_shapes() {
        for access in [by_reference as fn(&str, &str) -> _, by_handle] {
            let b = Bench::new(access("AssignAdd", "AssignAddVariableOp"), DType::Float);
            b.set(0, floats(&[1.0, 2.0]));
            b.run(vec![floats(&[10.0, 20.0])]).unwrap();
            assert_eq!(b.get::<f32>(0), [11.0, 22.0]);
            let e = b.run(vec![floats(&[1.0])]).unwrap_err().message;
            let expected = [
                "Parameters and update must be the same size",
                "Cannot update variable with shape [2] using a Tensor with shape [1], shapes must be equal.",
            ];
            assert!(expected.iter().any(|t| e.starts_with(t)), "{e}");
            let b = Bench::new(access("AssignSub", "AssignSubVariableOp"), DType::Int32);
            b.set(0, Tensor::vector(vec![i32::MIN]));
            b.run(vec![Tensor::vector(vec![1i32])]).unwrap();
            assert_eq!(b.get::<i32>(0), [i32::MAX]);
        }
    }

    #[test]
    fn a_snapshot_taken_before_an_update_keeps_its_value() {
        let b = Bench::new(by_reference("AssignAdd", ""), DType::Float);
        let value = floats(&[1.0]);
        b.set(0, value.clone());
        b.run(vec![floats(&[1.0])]).unwrap();
        assert_eq!(value.as_slice::<f32>().unwrap(), [1.0]);
        assert_eq!(b.get::<f32>(0), [2.0]);
    }
}
