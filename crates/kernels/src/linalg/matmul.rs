//! `MatMul`: products of two matrices, either transposed.

use super::gemm::{Matrix, Scalar, multiply};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Element, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("MatMul", &[("T", &[DType::Float])], |b| matmul::<f32>(b));
    r.add_typed("MatMul", &[("T", &[DType::Double])], |b| matmul::<f64>(b));
}

fn matmul<T: Element + Scalar>(b: &KernelBuilder<'_>) -> Result<Built> {
    let (ta, tb) = (
        b.attrs().bool("transpose_a")?,
        b.attrs().bool("transpose_b")?,
    );
    Built::costly(move |ctx| {
        let shape = check(ctx, ta, tb)?;
        let (a, b) = (ctx.input(0)?, ctx.input(1)?);
        let (a_dims, b_dims) = (a.dims(), b.dims());
        let left = Matrix::dense(a.as_slice::<T>()?, a_dims[0], a_dims[1], ta);
        let right = Matrix::dense(b.as_slice::<T>()?, b_dims[0], b_dims[1], tb);
        let mut out = ctx.zeros(T::DTYPE, &shape)?;
        multiply(out.make_mut::<T>()?, left, right, false, true);
        ctx.set_output(0, out);
        Ok(())
    })
}

/// TensorFlow's checks; returns the product's shape.
fn check(ctx: &OpContext<'_>, ta: bool, tb: bool) -> Result<Shape> {
    let (a, b): (&Tensor, &Tensor) = (ctx.input(0)?, ctx.input(1)?);
    for (name, t) in [("In[0]", a), ("In[1]", b)] {
        if t.rank() != 2 {
            return Err(Status::invalid_argument(format!(
                "{name} and {} has different ndims: {} vs. {}",
                if name == "In[0]" { "In[1]" } else { "In[0]" },
                a.shape(),
                b.shape()
            )));
        }
    }
    let (m, k) = if ta {
        (a.dims()[1], a.dims()[0])
    } else {
        (a.dims()[0], a.dims()[1])
    };
    let (k2, n) = if tb {
        (b.dims()[1], b.dims()[0])
    } else {
        (b.dims()[0], b.dims()[1])
    };
    if k != k2 {
        return Err(Status::invalid_argument(format!(
            "Matrix size-incompatible: In[0]: {}, In[1]: {}",
            a.shape(),
            b.shape()
        )));
    }
    Ok(Shape::from([m, n]))
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn sizes_that_do_not_fit_are_named() {
        let t = [("T", DType::Float.into())];
        let a = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2]).unwrap();
        let b = Tensor::from_vec(vec![1.0f32, 0.0, 0.0], [3, 1]).unwrap();
        let e = run_op("MatMul", vec![a.clone(), b], &t).unwrap_err();
        assert!(
            e.message
                .starts_with("Matrix size-incompatible: In[0]: [2,2], In[1]: [3,1]")
        );
        let out = run_op("MatMul", vec![a.clone(), a], &t).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [7.0, 10.0, 15.0, 22.0]);
    }
}
