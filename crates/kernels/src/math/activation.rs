//! Activations of neural networks and their gradients.

use super::binary::{Choice, no_code};
use super::drive::{Zipped, zip};
use super::elementwise::{Binary, Unary, plain, plain2, scalar2, vector, vector2};
use super::functions::{Elu, SELU_SCALE, SELU_SCALE_ALPHA, Selu, Softplus};
use super::isa::Plain;
use super::tables::{bhalf1, bhalf2, half1, half2, pick1, pick2};
use super::unary::{elementwise, unary};
use crate::types::{FLOATS, REALS};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::DType::{self, *};
use downpour_tensor::Tensor;

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

fn relu(t: DType) -> Option<Box<dyn Unary>> {
    // NaN and -0 pass.
    pick1!(t;
        floats => |x| if x < 0.0 { 0.0 } else { x };
        unsigned => |x| x;
        wrapping => |x| x.max(0))
}

fn relu6(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t;
        floats => |x| {
            let x = if x < 0.0 { 0.0 } else { x };
            if x > 6.0 { 6.0 } else { x }
        };
        unsigned => |x| x.min(6);
        wrapping => |x| x.clamp(0, 6))
}

fn elu(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; function => Elu; double => |x| if x < 0.0 { x.exp_m1() } else { x })
}

fn selu(t: DType) -> Option<Box<dyn Unary>> {
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
    pick2!(t;
        floats => |g, x| if x > 0.0 { g } else { 0.0 };
        ints => |g, x| if x > 0 { g } else { 0 })
}

fn relu6_grad(t: DType) -> Option<Box<dyn Binary>> {
    pick2!(t;
        floats => |g, x| if (x > 0.0) & (x < 6.0) { g } else { 0.0 };
        ints => |g, x| if (x > 0) & (x < 6) { g } else { 0 })
}

fn elu_grad(t: DType) -> Option<Box<dyn Binary>> {
    // In terms of the activation's output.
    pick2!(t; floats => |g, y| if y < 0.0 { (y + 1.0) * g } else { g })
}

fn selu_grad(t: DType) -> Option<Box<dyn Binary>> {
    if t == Double {
        return Some(plain2(|g: f64, y: f64| {
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
        Half => Some(half2(float)),
        BFloat16 => Some(bhalf2(float)),
        _ => None,
    }
}

fn softplus_grad(t: DType) -> Option<Box<dyn Binary>> {
    let float = |g: f32, x: f32| g / (super::functions::exp::<Plain>(-x) + 1.0);
    match t {
        Float => Some(vector2(float)),
        Half => Some(half2(float)),
        BFloat16 => Some(bhalf2(float)),
        _ => Some(scalar2(|g: f64, x: f64| g / ((-x).exp() + 1.0))),
    }
}

fn softsign_grad(t: DType) -> Option<Box<dyn Binary>> {
    pick2!(t; floats => |g, x| {
        let d = 1.0 + x.abs();
        g / (d * d)
    })
}

fn leaky_relu(b: &KernelBuilder<'_>) -> Result<Built> {
    let alpha = b.attrs().float("alpha")?;
    let float = move |x: f32| if x > 0.0 { x } else { alpha * x };
    elementwise(match b.attrs().dtype("T")? {
        Float => vector(float),
        Half => half1(float),
        BFloat16 => bhalf1(float),
        _ => {
            let alpha = f64::from(alpha);
            plain(move |x: f64| if x > 0.0 { x } else { alpha * x })
        }
    })
}

fn leaky_relu_grad(b: &KernelBuilder<'_>) -> Result<Built> {
    let alpha = b.attrs().float("alpha")?;
    let float = move |g: f32, x: f32| if x > 0.0 { g } else { alpha * g };
    with_features(match b.attrs().dtype("T")? {
        Float => vector2(float),
        Half => half2(float),
        BFloat16 => bhalf2(float),
        _ => {
            let alpha = f64::from(alpha);
            plain2(move |g: f64, x: f64| if x > 0.0 { g } else { alpha * g })
        }
    })
}
