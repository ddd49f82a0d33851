//! `BatchMatMul` and its versions: products of matrices in the last two dimensions; from V2 on
//! the dimensions before them broadcast.
#![allow(unsafe_code, reason = "products are written once, never zeroed first")]

use super::gemm::{Matrix, multiply_into};
use super::matmul::TYPES;
use super::tile::Tiled;
use crate::broadcast::Broadcast;
use crate::nn::float::{Parts, compute_type, in_parts, narrow, widen};
use crate::types::with_type;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry, parallel_for};
use downpour_tensor::{DType, Element, Shape, Tensor};
use num_complex::{Complex32, Complex64};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("BatchMatMul", &[("T", TYPES)], |b| {
        let adj = (b.attrs().bool("adj_x")?, b.attrs().bool("adj_y")?);
        Built::costly(move |ctx| run(ctx, adj, false, None))
    });
    r.add_typed("BatchMatMulV2", &[("T", TYPES)], |b| {
        let adj = (b.attrs().bool("adj_x")?, b.attrs().bool("adj_y")?);
        Built::costly(move |ctx| run(ctx, adj, true, None))
    });
    const SAME: [&[DType]; 8] = [
        &[DType::Int64],
        &[DType::Int32],
        &[DType::Int16],
        &[DType::Double],
        &[DType::Float],
        &[DType::BFloat16],
        &[DType::Complex128],
        &[DType::Complex64],
    ];
    const BYTES: &[DType] = &[DType::Int8, DType::UInt8];
    const BF16: &[DType] = &[DType::BFloat16];
    let mut v3 = |a: &'static [DType], b: &'static [DType], out: &'static [DType]| {
        r.add_typed(
            "BatchMatMulV3",
            &[("Ta", a), ("Tb", b), ("Tout", out)],
            |b| {
                let adj = (b.attrs().bool("adj_x")?, b.attrs().bool("adj_y")?);
                let out = b.attrs().dtype("Tout")?;
                Built::costly(move |ctx| run(ctx, adj, true, Some(out)))
            },
        );
    };
    for t in SAME {
        v3(t, t, t);
    }
    v3(BYTES, BYTES, &[DType::Int32]);
    v3(BYTES, BF16, BF16);
    v3(BF16, BYTES, BF16);
}

fn run(
    ctx: &mut OpContext<'_>,
    adj: (bool, bool),
    broadcasts: bool,
    out: Option<DType>,
) -> Result<()> {
    let (x, y) = (ctx.take(0)?, ctx.take(1)?);
    let plan = BatchPlan::new(&x, &y, adj, broadcasts)?;
    let dtype = out.unwrap_or(x.dtype());
    let compute = compute_type(dtype);
    let (x, y) = (to_type(&x, compute)?, to_type(&y, compute)?);
    let x = conjugate(x, adj.0)?;
    let y = conjugate(y, adj.1)?;
    ctx.check_alloc(dtype, &plan.shape)?;
    let result = with_type!(compute, T in [f32, f64, i16, i32, i64, Complex32, Complex64] => {
        batched::<T>(&plan, x.as_slice::<T>()?, y.as_slice::<T>()?)?
    });
    ctx.set_output(0, narrow(result, dtype)?);
    Ok(())
}

/// Small integers and halves as the type the product is computed in.
fn to_type(t: &Tensor, compute: DType) -> Result<Tensor> {
    if t.dtype() == compute {
        return Ok(t.clone());
    }
    let values = match t.dtype() {
        DType::Int8 | DType::UInt8 => crate::args::ints(t)?,
        _ => return widen(t),
    };
    Ok(match compute {
        DType::Int32 => Tensor::from_vec(
            values.iter().map(|&v| v as i32).collect(),
            t.shape().clone(),
        )?,
        _ => Tensor::from_vec(
            values.iter().map(|&v| v as f32).collect(),
            t.shape().clone(),
        )?,
    })
}

/// The conjugates, of complex numbers whose matrix is to be adjoint.
pub(super) fn conjugate(mut t: Tensor, adjoint: bool) -> Result<Tensor> {
    if adjoint {
        match t.dtype() {
            DType::Complex64 => t
                .make_mut::<Complex32>()?
                .iter_mut()
                .for_each(|v| *v = v.conj()),
            DType::Complex128 => t
                .make_mut::<Complex64>()?
                .iter_mut()
                .for_each(|v| *v = v.conj()),
            _ => {}
        }
    }
    Ok(t)
}

/// Shapes of the operands and of the result, and where each product finds its operands.
pub(super) struct BatchPlan {
    pub(super) shape: Shape,
    x: (usize, usize),
    y: (usize, usize),
    adj: (bool, bool),
    /// Index of the left and right matrix for each product.
    pairs: Vec<(usize, usize)>,
}

impl BatchPlan {
    /// Checks two operands.
    pub(super) fn new(
        x: &Tensor,
        y: &Tensor,
        adj: (bool, bool),
        broadcasts: bool,
    ) -> Result<BatchPlan> {
        let invalid = |text: String| Err(Status::invalid_argument(text));
        let shapes = |sep: &str| format!("{}{sep}{}", x.shape(), y.shape());
        if broadcasts {
            for (i, t) in [x, y].iter().enumerate() {
                if t.rank() < 2 {
                    return invalid(format!("In[{i}] ndims must be >= 2: {}", t.rank()));
                }
            }
        } else {
            if x.rank() != y.rank() {
                return invalid(format!(
                    "In[0] and In[1] has different ndims: {}",
                    shapes(" vs. ")
                ));
            }
            if x.rank() < 2 {
                return invalid(format!("In[0] and In[1] ndims must be >= 2: {}", x.rank()));
            }
            for i in 0..x.rank() - 2 {
                if x.dims()[i] != y.dims()[i] {
                    return invalid(format!(
                        "In[0].dim({i}) and In[1].dim({i}) must be the same: {}",
                        shapes(" vs ")
                    ));
                }
            }
        }
        let split = |t: &Tensor| {
            let d = t.dims();
            let (batch, last) = d.split_at(d.len() - 2);
            (batch.to_vec(), (last[0], last[1]))
        };
        let ((xb, xm), (yb, ym)) = (split(x), split(y));
        let Some(bc) = Broadcast::new(&xb, &yb) else {
            return invalid(format!(
                "In[0] and In[1] must have compatible batch dimensions: {}",
                shapes(" vs. ")
            ));
        };
        let (m, k) = if adj.0 { (xm.1, xm.0) } else { xm };
        let (k2, n) = if adj.1 { (ym.1, ym.0) } else { ym };
        if k != k2 {
            return invalid(format!(
                "Matrix size-incompatible: In[0]: {}, In[1]: {}",
                x.shape(),
                y.shape()
            ));
        }
        let dims = bc.shape.iter().copied().chain([m, n]);
        let shape = Shape::checked(dims.map(|d| d as i64))?;
        let mut pairs = Vec::new();
        if shape.num_elements() != 0 {
            let inner = bc.sizes.len() - 1;
            let (sx, sy) = (bc.left[inner], bc.right[inner]);
            bc.rows(|_, l, r| {
                pairs.extend((0..bc.sizes[inner]).map(|i| (l + i * sx, r + i * sy)));
            });
        }
        Ok(BatchPlan {
            shape,
            x: xm,
            y: ym,
            adj,
            pairs,
        })
    }
}

/// Computes all products.
pub(super) fn batched<T: Element + Tiled>(plan: &BatchPlan, x: &[T], y: &[T]) -> Result<Tensor> {
    let (xs, ys) = (plan.x.0 * plan.x.1, plan.y.0 * plan.y.1);
    let size = plan.shape.num_elements() / plan.pairs.len().max(1);
    let k = if plan.adj.0 { plan.x.0 } else { plan.x.1 };
    let work = size.saturating_mul(k);
    let count = plan.pairs.len();
    // Many small products are spread over threads whole, large ones each by itself.
    let whole = count >= 8 || work < 1 << 20;
    let write = |out: &Parts<'_, T>| {
        let one = |i: usize, parallel: bool| {
            let (l, r) = plan.pairs[i];
            let (x, y) = (&x[l * xs..(l + 1) * xs], &y[r * ys..(r + 1) * ys]);
            let a = Matrix::dense(x, plan.x.0, plan.x.1, plan.adj.0);
            let b = Matrix::dense(y, plan.y.0, plan.y.1, plan.adj.1);
            // SAFETY: product `i` alone writes its part.
            let part = unsafe { out.part(i * size, size) };
            multiply_into(part, a, b, parallel);
        };
        if whole {
            let grain = (1 << 18) / work.max(1) + 1;
            parallel_for(count, grain, |r| r.for_each(|i| one(i, false)));
        } else {
            (0..count).for_each(|i| one(i, true));
        }
        Ok(())
    };
    // SAFETY: every product sets all of its elements, and there is one for every part.
    unsafe { in_parts(Vec::new(), plan.shape.clone(), write) }
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::{DType, Tensor};
    use num_complex::Complex32;

    fn iota(dims: &[usize]) -> Tensor {
        let n = dims.iter().product::<usize>();
        Tensor::from_vec((0..n).map(|v| v as f32).collect(), dims).unwrap()
    }

    #[test]
    fn batches_broadcast() {
        let t = [("T", DType::Float.into())];
        let out = run_op(
            "BatchMatMulV2",
            vec![iota(&[2, 1, 1, 2]), iota(&[3, 2, 1])],
            &t,
        )
        .unwrap();
        assert_eq!(out[0].dims(), [2, 3, 1, 1]);
        assert_eq!(
            out[0].as_slice::<f32>().unwrap(),
            [1.0, 3.0, 5.0, 3.0, 13.0, 23.0]
        );
        let empty = run_op("BatchMatMulV2", vec![iota(&[2, 2, 0]), iota(&[0, 3])], &t).unwrap();
        assert_eq!(empty[0].as_slice::<f32>().unwrap(), [0.0; 12]);
    }

    #[test]
    fn texts_are_tensorflows() {
        let t = [("T", DType::Float.into())];
        let fail = |op: &str, x: &[usize], y: &[usize]| {
            run_op(op, vec![iota(x), iota(y)], &t).unwrap_err().message
        };
        let starts = |m: String, s: &str| assert!(m.starts_with(s), "{m}");
        starts(
            fail("BatchMatMul", &[2, 2, 3], &[3, 3, 2]),
            "In[0].dim(0) and In[1].dim(0) must be the same: [2,2,3] vs [3,3,2]",
        );
        starts(
            fail("BatchMatMulV2", &[2, 2, 3], &[3, 3, 2]),
            "In[0] and In[1] must have compatible batch dimensions: [2,2,3] vs. [3,3,2]",
        );
        starts(
            fail("BatchMatMulV2", &[2, 2, 3], &[2, 2, 2]),
            "Matrix size-incompatible: In[0]: [2,2,3], In[1]: [2,2,2]",
        );
        starts(
            fail("BatchMatMulV2", &[3], &[2, 3, 2]),
            "In[0] ndims must be >= 2: 1",
        );
    }

    #[test]
    fn adjoints_conjugate_and_bytes_widen() {
        let i = Complex32::new(0.0, 1.0);
        let c = Tensor::from_vec(vec![i], [1, 1]).unwrap();
        let attrs = [("T", DType::Complex64.into()), ("adj_x", true.into())];
        let out = run_op("BatchMatMulV2", vec![c.clone(), c], &attrs).unwrap();
        assert_eq!(
            out[0].as_slice::<Complex32>().unwrap(),
            [Complex32::new(1.0, 0.0)]
        );
        let attrs = [
            ("Ta", DType::Int8.into()),
            ("Tb", DType::UInt8.into()),
            ("Tout", DType::Int32.into()),
        ];
        let a = Tensor::from_vec(vec![-100i8, 2], [1, 2]).unwrap();
        let b = Tensor::from_vec(vec![200u8, 3], [2, 1]).unwrap();
        let out = run_op("BatchMatMulV3", vec![a, b], &attrs).unwrap();
        assert_eq!(out[0].as_slice::<i32>().unwrap(), [-19994]);
    }
}
