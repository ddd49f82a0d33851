//! Activations of neural networks and their gradients.

use super::binary::{Choice, no_code};
use super::broadcast_loop::{Zipped, zip};
use super::elementwise::{Binary, Unary, scalar2, vector, vector2, vector2_64, vector64};
use super::functions::{Elu, SELU_SCALE, SELU_SCALE_ALPHA, Selu, Softplus};
use super::isa::Plain;
use super::tables::{halves1, halves2, pick1, pick2};
use super::unary::{elementwise, unary};
use crate::types::{FLOATS, REALS};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::DType::{self, *};
use downpour_tensor::Tensor;
use half::{bf16, f16};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Relu", &[("T", REALS)], |b| unary(b, relu));
    r.add_typed("Relu6", &[("T", REALS)], |b| unary(b, relu6));
    r.add_typed("Elu", &[("T", FLOATS)], |b| unary(b, elu));
    r.add_typed("Selu", &[("T", FLOATS)], |b| unary(b, selu));
    r.add_typed("Softplus", &[("T", FLOATS)], |b| unary(b, softplus));
    r.add_typed("Softsign", &[("T", FLOATS)], |b| unary(b, softsign));
    r.add_typed("LeakyRelu", &[("T", FLOATS)], leaky_relu);
    r.add_typed("ReluGrad", &[("T", REALS)], |b| gradient(b, relu_grad));
    r.add_typed("Relu6Grad", &[("T", REALS)], |b| gradient(b, relu6_grad));
    r.add_typed("EluGrad", &[("T", FLOATS)], |b| gradient(b, elu_grad));
    r.add_typed("SeluGrad", &[("T", FLOATS)], |b| gradient(b, selu_grad));
    r.add_typed("SoftplusGrad", &[("T", FLOATS)], |b| {
        gradient(b, softplus_grad)
    });
    r.add_typed("SoftsignGrad", &[("T", FLOATS)], |b| {
        gradient(b, softsign_grad)
    });
    r.add_typed("LeakyReluGrad", &[("T", FLOATS)], leaky_relu_grad);
}

/// An op on (gradients, features) of equal shape.
fn gradient(b: &KernelBuilder<'_>, choice: Choice) -> Result<Built> {
    let t = b.attrs().dtype("T")?;
    with_features(choice(t).ok_or_else(|| no_code(t))?)
}

fn with_features(kernel: Box<dyn Binary>) -> Result<Built> {
    Built::cheap(move |ctx| {
        let (g, x) = (ctx.take(0)?, ctx.take(1)?);
        if g.shape() != x.shape() {
            let info = ctx.info();
            return Err(same_shape(&info.name, info.node.op_name(), &g, 1, &x));
        }
        if let Zipped::Done(out) = zip(ctx, &*kernel, g, x)? {
            ctx.set_output(0, out);
        }
        Ok(())
    })
}

/// TensorFlow's text for inputs that should have had one shape.
pub(crate) fn same_shape(name: &str, op: &str, first: &Tensor, i: usize, other: &Tensor) -> Status {
    Status::invalid_argument(format!(
        "Inputs to operation {name} of type {op} must have the same size and shape.  Input 0: {} != input {i}: {}",
        first.shape(),
        other.shape()
    ))
}

pub(super) fn relu(t: DType) -> Option<Box<dyn Unary>> {
    // NaN and -0 pass.
    pick1! { t;
        floats => |x| if x < 0.0 { 0.0 } else { x };
        unsigned => |x| x;
        wrapping => |x| x.max(0)
    }
}

pub(super) fn relu6(t: DType) -> Option<Box<dyn Unary>> {
    pick1! { t;
        floats => |x| {
            let x = if x < 0.0 { 0.0 } else { x };
            if x > 6.0 { 6.0 } else { x }
        };
        unsigned => |x| x.min(6);
        wrapping => |x| x.clamp(0, 6)
    }
}

pub(super) fn elu(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; function => Elu; double => |x| if x < 0.0 { x.exp_m1() } else { x })
}

pub(super) fn selu(t: DType) -> Option<Box<dyn Unary>> {
    let double = |x: f64| {
        if x < 0.0 {
            SCALE_ALPHA_64 * x.exp_m1()
        } else {
            SCALE_64 * x
        }
    };
    pick1!(t; function => Selu; double => double)
}

const SCALE_64: f64 = 1.050_700_987_355_480_5;
const SCALE_ALPHA_64: f64 = 1.758_099_340_847_376_8;

fn softplus(t: DType) -> Option<Box<dyn Unary>> {
    let double = |x: f64| {
        let threshold = f64::EPSILON.ln() + 2.0;
        if x > -threshold {
            x
        } else if x < threshold {
            x.exp()
        } else {
            x.exp().ln_1p()
        }
    };
    pick1!(t; function => Softplus; double => double)
}

fn softsign(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; floats => |x| x / (1.0 + x.abs()))
}

fn relu_grad(t: DType) -> Option<Box<dyn Binary>> {
    // A product, as in TensorFlow: a gradient that is not finite shows wherever it meets a 0.
    pick2! { t;
        floats => |g, x| g * if x > 0.0 { 1.0 } else { 0.0 };
        ints => |g, x| if x > 0 { g } else { 0 }
    }
}

fn relu6_grad(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        floats => |g, x| g * if (x > 0.0) & (x < 6.0) { 1.0 } else { 0.0 };
        ints => |g, x| if (x > 0) & (x < 6) { g } else { 0 }
    }
}

fn elu_grad(t: DType) -> Option<Box<dyn Binary>> {
    // In terms of the activation's output.
    pick2!(t; floats => |g, y| if y < 0.0 { (y + 1.0) * g } else { g })
}

fn selu_grad(t: DType) -> Option<Box<dyn Binary>> {
    if t == Double {
        return Some(vector2_64(|g: f64, y: f64| {
            if y < 0.0 {
                g * (y + SCALE_ALPHA_64)
            } else {
                g * SCALE_64
            }
        }));
    }
    let float = |g: f32, y: f32| {
        if y < 0.0 {
            g * (y + SELU_SCALE_ALPHA)
        } else {
            g * SELU_SCALE
        }
    };
    match t {
        Float => Some(vector2(float)),
        Half | BFloat16 => halves2(t, float),
        _ => None,
    }
}

fn softplus_grad(t: DType) -> Option<Box<dyn Binary>> {
    let float = |g: f32, x: f32| g / (super::functions::exp::<Plain>(-x) + 1.0);
    match t {
        Float => Some(vector2(float)),
        Half | BFloat16 => halves2(t, float),
        _ => Some(scalar2(|g: f64, x: f64| g / ((-x).exp() + 1.0))),
    }
}

fn softsign_grad(t: DType) -> Option<Box<dyn Binary>> {
    pick2!(t; floats => |g, x| {
        let d = 1.0 + x.abs();
        g / (d * d)
    })
}

/// A number as `dtype` has it: TensorFlow rounds the slope before it multiplies.
fn rounded(value: f32, dtype: DType) -> f32 {
    match dtype {
        Half => f16::from_f32(value).to_f32(),
        BFloat16 => bf16::from_f32(value).to_f32(),
        _ => value,
    }
}

fn leaky_relu(b: &KernelBuilder<'_>) -> Result<Built> {
    let alpha = b.attrs().float("alpha")?;
    let dtype = b.attrs().dtype("T")?;
    let slope = rounded(alpha, dtype);
    let float = move |x: f32| if x > 0.0 { x } else { slope * x };
    let kernel = match dtype {
        Float => Some(vector(float)),
        Half | BFloat16 => halves1(dtype, float),
        _ => {
            let alpha = f64::from(alpha);
            Some(vector64(move |x| if x > 0.0 { x } else { alpha * x }))
        }
    };
    elementwise(kernel.ok_or_else(|| no_code(dtype))?)
}

fn leaky_relu_grad(b: &KernelBuilder<'_>) -> Result<Built> {
    let alpha = b.attrs().float("alpha")?;
    let dtype = b.attrs().dtype("T")?;
    let slope = rounded(alpha, dtype);
    let float = move |g: f32, x: f32| if x > 0.0 { g } else { slope * g };
    let kernel = match dtype {
        Float => Some(vector2(float)),
        Half | BFloat16 => halves2(dtype, float),
        _ => {
            let alpha = f64::from(alpha);
            let double = move |g: f64, x: f64| if x > 0.0 { g } else { alpha * g };
            Some(vector2_64(double))
        }
    };
    with_features(kernel.ok_or_else(|| no_code(dtype))?)
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::AttrValue;
    use downpour_tensor::{DType, Tensor};

    fn run(op: &str, inputs: Vec<Tensor>) -> Vec<f32> {
        let mut attrs = vec![("T", DType::Float.into())];
        if op.starts_with("Leaky") {
            attrs.push(("alpha", AttrValue::Float(0.2)));
        }
        let out = run_op(op, inputs, &attrs).unwrap();
        out[0].as_slice::<f32>().unwrap().to_vec()
    }

    fn near(got: Vec<f32>, want: &[f32]) {
        let close = |(a, b): (&f32, &f32)| {
            (a - b).abs() <= 2e-6 * b.abs() || (a.is_nan() && b.is_nan()) || a == b
        };
        assert!(got.iter().zip(want).all(close), "{got:?} is not {want:?}");
    }

    #[test]
    fn values_are_those_of_tensorflow() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let one = |op: &str, x: &[f32]| run(op, vec![floats(x)]);
        near(one("Relu", &[nan, -1.0, 1.0, inf]), &[nan, 0.0, 1.0, inf]);
        near(one("Relu6", &[nan, 7.0, 3.0]), &[nan, 6.0, 3.0]);
        near(
            one("Elu", &[nan, -1.0, 1.0, -100.0]),
            &[nan, -0.632_120_55, 1.0, -1.0],
        );
        near(
            one("Selu", &[nan, -1.0, 1.0]),
            &[nan, -1.111_330_7, 1.050_701],
        );
        near(
            one("LeakyRelu", &[nan, -1.0, 1.0, -inf]),
            &[nan, -0.2, 1.0, -inf],
        );
        near(
            one("Softplus", &[nan, -1.0, 1.0, 100.0, -20.0, 13.0]),
            &[
                nan,
                0.313_261_7,
                1.313_261_6,
                100.0,
                2.061_153_7e-9,
                13.000_002,
            ],
        );
        near(one("Softsign", &[-1.0, 1.0, inf]), &[-0.5, 0.5, nan]);
    }

    #[test]
    fn gradients_are_those_of_tensorflow() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let two = |op: &str, g: &[f32], x: &[f32]| run(op, vec![floats(g), floats(x)]);
        near(
            two("ReluGrad", &[nan, 1.0, 2.0, inf], &[1.0, nan, 0.0, -1.0]),
            &[nan, 0.0, 0.0, nan],
        );
        near(
            two("Relu6Grad", &[1.0; 5], &[0.0, 6.0, 5.0, 7.0, nan]),
            &[0.0, 0.0, 1.0, 0.0, 0.0],
        );
        near(
            two("EluGrad", &[1.0, 1.0, 2.0], &[-0.5, 1.0, nan]),
            &[0.5, 1.0, 2.0],
        );
        near(
            two("SeluGrad", &[1.0, 1.0, 2.0], &[-0.5, 1.0, nan]),
            &[1.258_099_3, 1.050_701, 2.101_402],
        );
        near(
            two("LeakyReluGrad", &[1.0; 4], &[-0.5, 1.0, nan, 0.0]),
            &[0.2, 1.0, 0.2, 0.2],
        );
        near(
            two("SoftplusGrad", &[1.0; 4], &[-0.5, 1.0, nan, -100.0]),
            &[0.377_540_68, 0.731_058_6, nan, 0.0],
        );
        near(
            two("SoftsignGrad", &[1.0; 2], &[-0.5, 1.0]),
            &[0.444_444_45, 0.25],
        );
    }

    #[test]
    fn shapes_must_agree() {
        let inputs = vec![floats(&[1.0, 2.0]), floats(&[1.0])];
        let e = run_op("ReluGrad", inputs, &[("T", DType::Float.into())]).unwrap_err();
        let want = "Inputs to operation op of type ReluGrad must have the same size and shape.  Input 0: [2] != input 1: [1]";
        assert!(e.message.starts_with(want), "{}", e.message);
    }

    #[test]
    fn integers_are_cut_too() {
        let t = [("T", DType::Int8.into())];
        let out = run_op("Relu6", vec![Tensor::vector(vec![-3i8, 9, 4])], &t).unwrap();
        assert_eq!(out[0].as_slice::<i8>().unwrap(), [0, 6, 4]);
        let t = [("T", DType::UInt8.into())];
        let out = run_op("Relu", vec![Tensor::vector(vec![200u8, 0])], &t).unwrap();
        assert_eq!(out[0].as_slice::<u8>().unwrap(), [200, 0]);
    }
}
