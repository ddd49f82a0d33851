//! `Slice`, `StridedSlice`, its gradient, and writing into a slice.

use super::dtypes::{SLICE, STRIDED};
use super::slice_spec::{Masks, SliceSpec};
use super::split::part;
use super::strided::{Walk, gathered, place, strides_of};
use super::units::{Unit, with_unit};
use crate::args::{ints, shape_of};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{Dims, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Slice", &[("T", SLICE)], |_| Built::cheap(slice));
    r.add_typed("StridedSlice", &[("T", STRIDED)], strided_slice);
    r.add_typed("StridedSliceGrad", &[("T", STRIDED)], strided_slice_grad);
    r.add_typed("TensorStridedSliceUpdate", &[("T", STRIDED)], update);
}

fn slice(ctx: &mut OpContext<'_>) -> Result<()> {
    let (begin, size) = (ctx.input(1)?, ctx.input(2)?);
    let dims = Dims::from_slice(ctx.input(0)?.dims());
    let rank = dims.len();
    let is_list = |t: &Tensor| t.rank() == 1 && t.num_elements() == rank;
    if !is_list(begin) || !is_list(size) {
        return Err(Status::invalid_argument(format!(
            "Expected begin and size arguments to be 1-D tensors of size {rank}, but got shapes {} and {} instead.",
            begin.shape(),
            size.shape()
        )));
    }
    let (begin, mut size) = (ints(begin)?, ints(size)?);
    for i in 0..rank {
        let (b, dim) = (begin[i], dims[i] as i64);
        if size[i] == -1 {
            size[i] = dim - b;
        }
        if !(0..=dim).contains(&b) {
            return Err(Status::invalid_argument(format!(
                "Expected begin[{i}] in [0, {dim}], but got {b}"
            )));
        }
        if !(0..=dim - b).contains(&size[i]) {
            return Err(Status::invalid_argument(format!(
                "Expected size[{i}] in [0, {}], but got {}",
                dim - b,
                size[i]
            )));
        }
    }
    let shape: Shape = size.iter().map(|&s| s as usize).collect();
    if shape.dims() == dims.as_slice() {
        ctx.forward(0, 0);
        return Ok(());
    }
    let out = if rank > 0 && shape[1..] == dims[1..] {
        part(ctx, ctx.input(0)?, 0, begin[0] as usize, shape[0])?
    } else {
        let memory = strides_of(&dims);
        let offset = begin
            .iter()
            .zip(&memory)
            .map(|(&b, &m)| b as isize * m)
            .sum();
        let walk = Walk::new(offset, &shape, &memory);
        gathered(ctx, ctx.input(0)?, &walk, shape)?
    };
    ctx.set_output(0, out);
    Ok(())
}

fn strided_slice(b: &KernelBuilder<'_>) -> Result<Built> {
    let masks = Masks::of(b.attrs())?;
    Built::cheap(move |ctx| {
        let input = ctx.input(0)?;
        let spec = SliceSpec::new(
            input.dims(),
            ctx.input(1)?,
            ctx.input(2)?,
            ctx.input(3)?,
            masks,
        )?;
        let out = if spec.is_identity(input.dims()) {
            ctx.take(0)?.reshaped(spec.shape)?
        } else if let Some((start, count)) = spec.rows(input.dims()) {
            part(ctx, input, 0, start, count)?.reshaped(spec.shape)?
        } else {
            gathered(ctx, input, &spec.walk(input.dims()), spec.shape)?
        };
        ctx.set_output(0, out);
        Ok(())
    })
}

fn strided_slice_grad(b: &KernelBuilder<'_>) -> Result<Built> {
    let masks = Masks::of(b.attrs())?;
    Built::cheap(move |ctx| {
        let shape = ctx.input(0)?;
        if shape.rank() != 1 {
            return Err(Status::invalid_argument(format!(
                "shape must be 1-D, got shape.shape = {}",
                shape.shape()
            )));
        }
        let shape = shape_of(&ints(shape)?)?;
        let spec = SliceSpec::new(&shape, ctx.input(1)?, ctx.input(2)?, ctx.input(3)?, masks)?;
        let dy = ctx.input(4)?;
        if *dy.shape() != spec.shape {
            return Err(Status::invalid_argument(format!(
                "shape of dy was {} instead of {}",
                dy.shape(),
                spec.shape
            )));
        }
        if spec.is_identity(&shape) {
            let dy = ctx.take(4)?;
            ctx.set_output(0, dy.reshaped(shape)?);
            return Ok(());
        }
        ctx.check_alloc(dy.dtype(), &shape)?;
        let out = with_unit!(dy.dtype(), U => {
            let mut out = U::zeros(shape.num_elements())?;
            place(&mut out, &spec.walk(&shape), U::view(dy)?)?;
            U::tensor(dy.dtype(), out, shape)?
        });
        ctx.set_output(0, out);
        Ok(())
    })
}

fn update(b: &KernelBuilder<'_>) -> Result<Built> {
    let masks = Masks::of(b.attrs())?;
    Built::cheap(move |ctx| {
        let input = ctx.input(0)?;
        let spec = SliceSpec::new(
            input.dims(),
            ctx.input(1)?,
            ctx.input(2)?,
            ctx.input(3)?,
            masks,
        )?;
        let mut out = ctx.take(0)?;
        overwrite_slice(ctx, &mut out, &spec, ctx.input(4)?)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Replaces the slice of `target` by `value`, repeated as broadcasting says; in place unless
/// `target` shares its memory.
pub(crate) fn overwrite_slice(
    ctx: &OpContext<'_>,
    target: &mut Tensor,
    spec: &SliceSpec,
    value: &Tensor,
) -> Result<()> {
    if spec.shape.num_elements() == 0 {
        return Ok(());
    }
    let fits = super::tile::broadcast_walk(value.dims(), &spec.shape).is_some();
    if !fits {
        return Err(Status::invalid_argument(format!(
            "Cannot broadcast input shape {} into final shape {}",
            value.shape(),
            spec.shape
        )));
    }
    let value = super::tile::broadcast(ctx, value, &spec.shape)?;
    let (dtype, shape) = (target.dtype(), target.shape().clone());
    if let Some(size) = dtype.size()
        && let Some(src) = value.buffer()
        && let Some(dst) = target.buffer_mut()
    {
        return place(dst, &spec.byte_walk(&shape, size), src.as_bytes());
    }
    let walk = spec.walk(&shape);
    *target = with_unit!(dtype, U => {
        let mut out = U::view(target)?.to_vec();
        place(&mut out, &walk, U::view(&value)?)?;
        U::tensor(dtype, out, shape)?
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_graph::{AttrValue, Result};
    use downpour_tensor::{DType, Tensor};

    fn matrix() -> Tensor {
        Tensor::from_vec((0..12).map(|x| x as f32).collect(), [3, 4]).unwrap()
    }

    fn attrs() -> [(&'static str, AttrValue); 2] {
        [("T", DType::Float.into()), ("Index", DType::Int32.into())]
    }

    fn slice(begin: [i32; 2], size: [i32; 2]) -> Result<Vec<f32>> {
        let lists = [begin, size].map(|v| Tensor::vector(v.to_vec()));
        let [b, s] = lists;
        let out = run_op("Slice", vec![matrix(), b, s], &attrs())?;
        Ok(out[0].as_slice::<f32>()?.to_vec())
    }

    #[test]
    fn boxes_are_cut_out_and_checked() {
        assert_eq!(
            slice([1, 1], [2, -1]).unwrap(),
            [5.0, 6.0, 7.0, 9.0, 10.0, 11.0]
        );
        assert_eq!(slice([2, 0], [1, 4]).unwrap(), [8.0, 9.0, 10.0, 11.0]);
        assert!(slice([3, 4], [-1, 0]).unwrap().is_empty());
        let text = slice([1, 0], [3, 1]).unwrap_err().message;
        assert!(
            text.starts_with("Expected size[0] in [0, 2], but got 3"),
            "{text}"
        );
        let text = slice([4, 0], [-1, 1]).unwrap_err().message;
        assert!(
            text.starts_with("Expected begin[0] in [0, 3], but got 4"),
            "{text}"
        );
    }

    #[test]
    fn the_gradient_puts_values_back() {
        let list = |v: [i32; 2]| Tensor::vector(v.to_vec());
        let dy = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2]).unwrap();
        let inputs = vec![list([3, 4]), list([2, 3]), list([0, 0]), list([-1, -2]), dy];
        let out = run_op("StridedSliceGrad", inputs, &attrs()).unwrap();
        assert_eq!(
            out[0].as_slice::<f32>().unwrap(),
            [0.0, 0.0, 0.0, 0.0, 0.0, 4.0, 0.0, 3.0, 0.0, 2.0, 0.0, 1.0]
        );
    }

    #[test]
    fn a_slice_can_be_overwritten_by_something_that_broadcasts() {
        let list = |v: [i32; 2]| Tensor::vector(v.to_vec());
        let put = |value| {
            let inputs = vec![matrix(), list([0, 0]), list([2, 2]), list([1, 1]), value];
            run_op("TensorStridedSliceUpdate", inputs, &attrs())
        };
        let out = put(Tensor::vector(vec![-1.0f32, -2.0])).unwrap();
        assert_eq!(
            out[0].as_slice::<f32>().unwrap()[..6],
            [-1.0, -2.0, 2.0, 3.0, -1.0, -2.0]
        );
        let e = put(Tensor::vector(vec![0.0f32; 3])).unwrap_err();
        assert!(
            e.message
                .starts_with("Cannot broadcast input shape [3] into final shape [2,2]")
        );
    }
}
