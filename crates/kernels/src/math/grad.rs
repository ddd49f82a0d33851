//! Gradients of elementwise functions from the function's value and the incoming gradient. Their
//! operands have equal sizes; nothing broadcasts.

use super::binary::{Choice, no_code};
use super::drive::{Zipped, zip};
use super::elementwise::Binary;
use super::tables::{FIELDS, pick2};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::DType;
use num_traits::Zero;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("SigmoidGrad", &[("T", FIELDS)], |b| gradient(b, sigmoid));
    r.add_typed("TanhGrad", &[("T", FIELDS)], |b| gradient(b, tanh));
    r.add_typed("SqrtGrad", &[("T", FIELDS)], |b| gradient(b, sqrt));
    r.add_typed("RsqrtGrad", &[("T", FIELDS)], |b| gradient(b, rsqrt));
    r.add_typed("InvGrad", &[("T", FIELDS)], |b| gradient(b, reciprocal));
    r.add_typed("ReciprocalGrad", &[("T", FIELDS)], |b| {
        gradient(b, reciprocal)
    });
}

fn gradient(b: &KernelBuilder<'_>, choice: Choice) -> Result<Built> {
    let t = b.attrs().dtype("T")?;
    let kernel = choice(t).ok_or_else(|| no_code(t))?;
    Built::cheap(move |ctx| {
        let (y, dy) = (ctx.take(0)?, ctx.take(1)?);
        let (n, m) = (y.num_elements(), dy.num_elements());
        if n != m {
            return Err(Status::invalid_argument(format!(
                "The two arguments to a cwise op must have same number of elements, got {n} and {m}"
            )));
        }
        let shape = y.shape().clone();
        let dy = dy.reshaped(shape)?;
        if let Zipped::Done(out) = zip(ctx, &*kernel, y, dy)? {
            ctx.set_output(0, out);
        }
        Ok(())
    })
}

fn sigmoid(t: DType) -> Option<Box<dyn Binary>> {
    pick2!(t;
    floats => |y, dy| dy * (1.0 - y) * y;
    complex => |y, dy| {
        let y = y.conj();
        dy * (y - 1.0) * -y
    })
}

fn tanh(t: DType) -> Option<Box<dyn Binary>> {
    pick2!(t;
    floats => |y, dy| dy * (1.0 - y * y);
    complex => |y, dy| {
        let y = y.conj();
        dy * -(y * y - 1.0)
    })
}

fn sqrt(t: DType) -> Option<Box<dyn Binary>> {
    pick2!(t;
        floats => |y, dy| if dy == 0.0 { 0.0 } else { 0.5 * dy / y };
        complex => |y, dy| if dy.is_zero() { dy } else { dy * 0.5 / y.conj() })
}

fn rsqrt(t: DType) -> Option<Box<dyn Binary>> {
    pick2!(t;
    floats => |y, dy| if dy == 0.0 { 0.0 } else { -0.5 * dy * (y * y * y) };
    complex => |y, dy| {
        let y = y.conj();
        if dy.is_zero() { dy } else { dy * -0.5 * (y * y * y) }
    })
}

fn reciprocal(t: DType) -> Option<Box<dyn Binary>> {
    pick2!(t;
    floats => |y, dy| if dy == 0.0 { 0.0 } else { -y * y * dy };
    complex => |y, dy| {
        let y = y.conj();
        if dy.is_zero() { dy } else { -(y * y) * dy }
    })
}
