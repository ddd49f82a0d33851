//! Gradients of elementwise functions from the function's value and the incoming gradient. Their
//! operands have equal sizes; nothing broadcasts.

use super::binary::{Choice, no_code};
use super::broadcast_loop::{Zipped, zip};
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
    pick2! { t;
        floats => |y, dy| dy * (1.0 - y) * y;
        complex => |y, dy| dy * (y - 1.0) * -y
    }
}

fn tanh(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        floats => |y, dy| dy * (1.0 - y * y);
        complex => |y, dy| dy * -(y * y - 1.0)
    }
}

fn sqrt(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        floats => |y, dy| if dy == 0.0 { 0.0 } else { 0.5 * dy / y };
        complex => |y, dy| if dy.is_zero() { dy } else { dy * 0.5 / y.conj() }
    }
}

fn rsqrt(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        floats => |y, dy| if dy == 0.0 { 0.0 } else { -0.5 * dy * (y * y * y) };
        complex => |y, dy| {
            let y = y.conj();
            if dy.is_zero() { dy } else { dy * -0.5 * (y * y * y) }
        }
    }
}

fn reciprocal(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        floats => |y, dy| if dy == 0.0 { 0.0 } else { -y * y * dy };
        complex => |y, dy| {
            let y = y.conj();
            if dy.is_zero() { dy } else { -(y * y) * dy }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_tensor::{Complex32, DType, Tensor};

    #[test]
    fn values_are_those_of_tensorflow() {
        for (op, want, complex) in [
            ("SigmoidGrad", [0.25, -6.0], (1.25, 2.5)),
            ("TanhGrad", [0.75, -9.0], (3.75, 2.5)),
            ("SqrtGrad", [1.0, 0.75], (-0.6, 0.8)),
            ("RsqrtGrad", [-0.0625, -12.0], (0.9375, 1.25)),
            ("ReciprocalGrad", [-0.25, -12.0], (-1.25, 2.5)),
        ] {
            let inputs = vec![floats(&[0.5, 2.0]), floats(&[1.0, 3.0])];
            let out = run_op(op, inputs, &[("T", DType::Float.into())]).unwrap();
            assert_eq!(out[0].as_slice::<f32>().unwrap(), want, "{op}");
            let inputs = vec![
                Tensor::scalar(Complex32::new(0.5, 1.0)),
                Tensor::scalar(Complex32::new(1.0, 2.0)),
            ];
            let out = run_op(op, inputs, &[("T", DType::Complex64.into())]).unwrap();
            let got: Complex32 = out[0].scalar_value().unwrap();
            let want = Complex32::new(complex.0, complex.1);
            assert!((got - want).norm() < 1e-6, "{op}: {got} {want}");
        }
    }

    #[test]
    fn no_gradient_stays_none_even_at_a_pole() {
        for op in ["SqrtGrad", "RsqrtGrad", "InvGrad"] {
            let inputs = vec![floats(&[0.0, f32::INFINITY]), floats(&[0.0, 0.0])];
            let out = run_op(op, inputs, &[("T", DType::Float.into())]).unwrap();
            assert_eq!(out[0].as_slice::<f32>().unwrap(), [0.0, 0.0], "{op}");
        }
    }

    #[test]
    fn operands_have_as_many_elements() {
        let inputs = vec![floats(&[1.0, 2.0]), Tensor::scalar(2.0f32)];
        let e = run_op("TanhGrad", inputs, &[("T", DType::Float.into())]).unwrap_err();
        let want = "The two arguments to a cwise op must have same number of elements, got 2 and 1";
        assert!(e.message.starts_with(want), "{}", e.message);
    }
}
