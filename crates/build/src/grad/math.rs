//! Gradients of elementwise arithmetic. Complex tensors follow TensorFlow's convention: the
//! gradient is that of the conjugate.

use super::terms::{
    call, complex, conj, imag, of, real, reduced_pair, reduced_to, shape_of, sum_over,
};
use super::{Back, Gradient, Grads, IndexedSlices, Rule};
use crate::Output;
use downpour_graph::Result;
use downpour_tensor::DType;

pub(super) fn rule(op: &str) -> Option<Rule> {
    unary(op).or_else(|| binary(op)).or_else(|| other(op))
}

fn unary(op: &str) -> Option<Rule> {
    Some(match op {
        "Abs" => |b| one(b.dy(0) * b.x(0).sign()),
        "Neg" => |b| match b.gradient(0) {
            Some(Gradient::Sparse(s)) => {
                let values = -&s.values;
                b.only(
                    0,
                    Gradient::Sparse(IndexedSlices {
                        values,
                        ..s.clone()
                    }),
                )
            }
            _ => one(-b.dy(0)),
        },
        "Inv" | "Reciprocal" => |b| one(of("ReciprocalGrad", &[&b.y(0), &b.dy(0)])),
        "Square" => |b| one(b.dy(0) * (conj(&b.x(0)) * 2.0)),
        "Sqrt" => |b| one(of("SqrtGrad", &[&b.y(0), &b.dy(0)])),
        "Rsqrt" => |b| one(of("RsqrtGrad", &[&b.y(0), &b.dy(0)])),
        "Exp" => |b| one(b.dy(0) * conj(&b.y(0))),
        "Expm1" => |b| one(b.dy(0) * conj(&b.x(0)).exp()),
        "Log" => |b| one(b.dy(0) * conj(&b.x(0)).reciprocal()),
        "Log1p" => |b| one(b.dy(0) * (1.0 + conj(&b.x(0))).reciprocal()),
        "Sin" => |b| one(b.dy(0) * conj(&b.x(0)).cos()),
        "Cos" => |b| one(-b.dy(0) * conj(&b.x(0)).sin()),
        "Tan" => |b| one(conj(&b.x(0)).cos().reciprocal().square() * b.dy(0)),
        "Asin" => |b| one(b.dy(0) * arc(&b.x(0))),
        "Acos" => |b| one(-b.dy(0) * arc(&b.x(0))),
        "Atan" => |b| one(b.dy(0) * (1.0 + conj(&b.x(0)).square()).reciprocal()),
        "Sinh" => |b| one(b.dy(0) * of("Cosh", &[&conj(&b.x(0))])),
        "Cosh" => |b| one(b.dy(0) * of("Sinh", &[&conj(&b.x(0))])),
        "Tanh" => |b| one(of("TanhGrad", &[&conj(&b.y(0)), &b.dy(0)])),
        "Asinh" => |b| one(b.dy(0) / of("Cosh", &[&conj(&b.y(0))])),
        "Acosh" => |b| one(b.dy(0) / of("Sinh", &[&conj(&b.y(0))])),
        "Atanh" => |b| one(b.dy(0) * (1.0 - conj(&b.x(0)).square()).reciprocal()),
        "Sigmoid" => |b| one(of("SigmoidGrad", &[&conj(&b.y(0)), &b.dy(0)])),
        "Sign" => |b| one(b.x(0).zeros_like()),
        "Conj" => |b| one(conj(&b.dy(0))),
        "Real" => |b| one(complex(&b.dy(0), &b.dy(0).scalar_like(0.0))),
        "Imag" => |b| one(complex(&b.dy(0).scalar_like(0.0), &b.dy(0))),
        "Angle" => |b| {
            let (x, dy) = (b.x(0), b.dy(0));
            let z = complex(&imag(&x), &real(&x)).reciprocal();
            one(-complex(&dy, &dy.scalar_like(0.0)) * z)
        },
        "ComplexAbs" => |b| {
            let widened = |t: &Output| complex(t, &t.zeros_like());
            one((widened(&b.dy(0)) * b.x(0)).div_no_nan(&widened(&b.y(0))))
        },
        "Cast" => |b| match number(b.x(0).dtype()) && number(b.dy(0).dtype()) {
            true => one(b.dy(0).cast(b.x(0).dtype())),
            false => b.nothing(),
        },
        _ => return None,
    })
}

fn binary(op: &str) -> Option<Rule> {
    Some(match op {
        "Add" | "AddV2" => |b| pair(b, b.dy(0), b.dy(0)),
        "Sub" => |b| pair(b, b.dy(0), -b.dy(0)),
        "Mul" => |b| pair(b, b.dy(0) * conj(&b.x(1)), conj(&b.x(0)) * b.dy(0)),
        "MulNoNan" => |b| {
            let (x, y, dy) = (b.x(0), b.x(1), b.dy(0));
            pair(b, of("MulNoNan", &[&dy, &y]), of("MulNoNan", &[&x, &dy]))
        },
        "RealDiv" | "Div" => |b| {
            let (x, y, dy) = (conj(&b.x(0)), conj(&b.x(1)), b.dy(0));
            let dx = &dy / &y;
            pair(b, dx, dy * (-x / &y / &y))
        },
        "DivNoNan" => |b| {
            let (x, y, dy) = (conj(&b.x(0)), conj(&b.x(1)), b.dy(0));
            let dx = dy.div_no_nan(&y);
            pair(b, dx, dy * (-x).div_no_nan(&y).div_no_nan(&y))
        },
        "FloorMod" => |b| {
            let (x, y) = (conj(&b.x(0)), conj(&b.x(1)));
            pair(b, b.dy(0), b.dy(0) * -x.floor_div(&y))
        },
        "Pow" => power,
        "Maximum" => |b| chosen(b, &b.x(0).greater_equal(&b.x(1))),
        "Minimum" => |b| chosen(b, &b.x(0).less_equal(&b.x(1))),
        "SquaredDifference" => |b| {
            let dx = 2.0 * b.dy(0) * (b.x(0) - b.x(1));
            let dy = -&dx;
            pair(b, dx, dy)
        },
        "Atan2" => |b| {
            let (y, x) = (b.x(0), b.x(1));
            let inverse = b.dy(0) / (y.square() + x.square());
            pair(b, &x * &inverse, -y * &inverse)
        },
        "Complex" => |b| pair(b, real(&b.dy(0)), imag(&b.dy(0))),
        "Xlogy" => |b| logarithm(b, "Xlogy", of("Xdivy", &[&b.x(0), &b.x(1)])),
        "Xlog1py" => |b| logarithm(b, "Xlog1py", of("Xdivy", &[&b.x(0), &(b.x(1) + 1.0)])),
        "Xdivy" => |b| logarithm(b, "Xdivy", of("Xdivy", &[&-b.x(0), &b.x(1).square()])),
        "NextAfter" => |b| {
            let (x, y, dy) = (b.x(0), b.x(1), b.dy(0));
            pair(b, x.ones_like() * &dy, y.zeros_like() * &dy)
        },
        _ => return None,
    })
}

fn other(op: &str) -> Option<Rule> {
    Some(match op {
        "AddN" | "AccumulateNV2" => |b| Ok(vec![b.gradient(0).cloned(); b.op().num_inputs()]),
        "Select" => |b| {
            let zeros = b.x(1).zeros_like();
            let select = |yes: &Output, no: &Output| of("Select", &[&b.x(0), yes, no]);
            b.some([(1, select(&b.dy(0), &zeros)), (2, select(&zeros, &b.dy(0)))])
        },
        "SelectV2" => |b| {
            let (c, dy) = (b.x(0), b.dy(0));
            let zero = dy.scalar_like(0.0);
            let dx = reduced_to(&c.select(&dy, &zero), &b.x(1));
            b.some([(1, dx), (2, reduced_to(&c.select(&zero, &dy), &b.x(2)))])
        },
        "ClipByValue" => clip,
        // d/da of the gradients of a = 1/x, √x, 1/√x, tanh x, σ(x), and what they are linear in.
        "InvGrad" | "ReciprocalGrad" => |b| {
            let (a, dy) = (conj(&b.x(0)), b.dy(0));
            let da = conj(&dy) * -2.0 * b.x(1) * &a;
            b.some([(0, da), (1, of("ReciprocalGrad", &[&a, &dy]))])
        },
        "SqrtGrad" => |b| {
            let ratio = b.dy(0) / b.x(0);
            b.some([(0, -conj(&ratio) * b.y(0)), (1, 0.5 * ratio)])
        },
        "RsqrtGrad" => |b| {
            let (a, dy) = (conj(&b.x(0)), b.dy(0));
            let da = -1.5 * conj(&dy) * b.x(1) * a.square();
            b.some([(0, da), (1, of("RsqrtGrad", &[&a, &dy]))])
        },
        "TanhGrad" => |b| {
            let (a, g, dy) = (conj(&b.x(0)), conj(&b.x(1)), b.dy(0));
            b.some([(0, &dy * -2.0 * g * &a), (1, of("TanhGrad", &[&a, &dy]))])
        },
        "SigmoidGrad" => |b| {
            let (a, dy) = (conj(&b.x(0)), b.dy(0));
            let both = &dy * conj(&b.x(1));
            b.some([
                (0, &both - 2.0 * &both * &a),
                (1, of("SigmoidGrad", &[&a, &dy])),
            ])
        },
        _ => return None,
    })
}

/// The only input's gradient.
pub(super) fn one(dx: Output) -> Result<Grads> {
    Ok(vec![Some(dx.into())])
}

/// Gradients of two inputs that broadcast.
pub(super) fn pair(b: &Back, dx: Output, dy: Output) -> Result<Grads> {
    b.some(reduced_pair(&b.x(0), &b.x(1), dx, dy))
}

/// Types between which a cast has a gradient.
fn number(dtype: DType) -> bool {
    dtype.is_complex()
        || matches!(
            dtype,
            DType::Half | DType::Float | DType::Double | DType::BFloat16
        )
}

/// `1 / √(1 - x²)`.
fn arc(x: &Output) -> Output {
    (1.0 - conj(x).square()).sqrt().reciprocal()
}

/// The gradient goes to the first input where `first` is true, else to the second.
fn chosen(b: &Back, first: &Output) -> Result<Grads> {
    let (dy, zeros) = (b.dy(0), b.dy(0).zeros_like());
    pair(b, first.select(&dy, &zeros), first.select(&zeros, &dy))
}

/// `x·f(y)`, 0 where `x` is: `dy` is its derivative by `y`.
fn logarithm(b: &Back, op: &str, dy: Output) -> Result<Grads> {
    let (x, grad) = (b.x(0), b.dy(0));
    let set = x.not_equal(&x.scalar_like(0.0)).cast(x.dtype());
    pair(b, of(op, &[&set, &b.x(1)]) * &grad, dy * &grad)
}

fn power(b: &Back) -> Result<Grads> {
    let (x, y, dy) = (conj(&b.x(0)), conj(&b.x(1)), b.dy(0));
    let dx = &dy * &y * x.pow(&(&y - 1.0));
    // The logarithm only where there is one.
    let zero = x.scalar_like(0.0);
    let there = match x.dtype().is_complex() {
        true => x.not_equal(&zero),
        false => x.greater(&zero),
    };
    let safe = there.select(&x, &x.ones_like());
    let log = there.select(&safe.log(), &x.zeros_like());
    pair(b, dx, dy * conj(&b.y(0)) * log)
}

fn clip(b: &Back) -> Result<Grads> {
    let (x, low, high, dy) = (b.x(0), b.x(1), b.x(2), b.dy(0));
    let zeros = dy.zeros_like();
    let (below, above) = (x.less(&low), x.greater(&high));
    let dx = below.logical_or(&above).select(&zeros, &dy);
    let bound = |mask: &Output, bound: &Output| {
        let shape = shape_of(bound);
        let axes = call("BroadcastGradientArgs", &[&shape_of(&x), &shape]).build();
        sum_over(&mask.select(&dy, &zeros), &axes.output(1), false).reshape_to(&shape)
    };
    b.some([(0, dx), (1, bound(&below, &low)), (2, bound(&above, &high))])
}
