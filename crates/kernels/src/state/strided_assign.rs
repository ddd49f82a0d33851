//! `StridedSliceAssign`: writes into a slice of a variable, in place.

use super::variable_access::VariableAccess;
use crate::array::{Masks, STRIDED, SliceSpec, overwrite_slice};
use crate::types::INDEX;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};

pub(super) fn register(r: &mut Registry) {
    let types = [("T", STRIDED), ("Index", INDEX)];
    r.add_typed("StridedSliceAssign", &types, assign);
    r.add_typed("ResourceStridedSliceAssign", &types, assign);
}

fn assign(b: &KernelBuilder<'_>) -> Result<Built> {
    let (access, masks) = (VariableAccess::of(b), Masks::of(b.attrs())?);
    Built::cheap(move |ctx| {
        access.update(ctx, |ctx, target| {
            let (begin, end, strides) = (ctx.input(1)?, ctx.input(2)?, ctx.input(3)?);
            let value = ctx.input(4)?;
            if value.dtype() != target.dtype() {
                return Err(Status::invalid_argument(format!(
                    "Trying to assign variable with wrong dtype. Expected {} got {}",
                    target.dtype(),
                    value.dtype()
                )));
            }
            let spec = SliceSpec::new(target.dims(), begin, end, strides, masks)?;
            overwrite_slice(ctx, target, &spec, value)
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::state::testing::{Bench, by_handle, by_reference};
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn a_slice_is_written_and_the_rest_stays() {
        for access in [by_reference as fn(&str, &str) -> _, by_handle] {
            let b = Bench::new(
                access("StridedSliceAssign", "ResourceStridedSliceAssign"),
                DType::Float,
            );
            let before = Tensor::from_vec((0..6).map(|x| x as f32).collect(), [3, 2]).unwrap();
            b.set(0, before.clone());
            let list = |v: [i32; 2]| Tensor::vector(v.to_vec());
            let run = |value| b.run(vec![list([2, 1]), list([-4, 2]), list([-2, 1]), value]);
            run(Tensor::from_vec(vec![7.0f32, 8.0], [2, 1]).unwrap()).unwrap();
            assert_eq!(b.get::<f32>(0), [0.0, 8.0, 2.0, 3.0, 4.0, 7.0]);
            run(Tensor::scalar(9.0f32)).unwrap();
            assert_eq!(b.get::<f32>(0), [0.0, 9.0, 2.0, 3.0, 4.0, 9.0]);
            assert_eq!(before.as_slice::<f32>().unwrap()[1], 1.0);
            let e = run(Tensor::vector(vec![1.0f32, 2.0, 3.0])).unwrap_err();
            assert!(
                e.message
                    .starts_with("Cannot broadcast input shape [3] into final shape [2,1]"),
                "{}",
                e.message
            );
        }
    }
}
