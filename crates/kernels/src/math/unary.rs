//! Functions of one tensor, element by element, with a result of the same type.

use super::arcs::{Acos, Acosh, Asin, Asinh, Atan, Atanh, Cosh, Erfc};
use super::binary::no_code;
use super::broadcast_loop::map;
use super::elementwise::{Unary, plain, vector64};
use super::fit::Fit;
use super::functions::{Erf, Exp, Expm1, Log, Log1p, Sigmoid, Tanh};
use super::tables::{FIELDS, NO_BFLOAT, WIDE, pick1};
use super::{arcs, halves, special, trig};
use crate::types::{FLOATS, INTS, NUMBERS};
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::DType::{self, *};
use num_complex::Complex;
use num_traits::{Float, One, Zero};
use std::sync::LazyLock;

const SIGNED: &[DType] = &[BFloat16, Half, Float, Double, Int8, Int16, Int32, Int64];
const SIGNED_FIELDS: &[DType] = &[
    BFloat16, Half, Float, Double, Int8, Int16, Int32, Int64, Complex64, Complex128,
];
const ROUND: &[DType] = &[BFloat16, Half, Float, Double, Int32, Int64];

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Abs", &[("T", SIGNED)], |b| unary(b, abs));
    r.add_typed("Neg", &[("T", SIGNED_FIELDS)], |b| unary(b, neg));
    r.add_typed("Sign", &[("T", SIGNED_FIELDS)], |b| unary(b, sign));
    r.add_typed("Reciprocal", &[("T", FIELDS)], |b| unary(b, reciprocal));
    r.add_typed("Inv", &[("T", FIELDS)], |b| unary(b, reciprocal));
    r.add_typed("Square", &[("T", NUMBERS)], |b| unary(b, square));
    r.add_typed("Sqrt", &[("T", FIELDS)], |b| unary(b, sqrt));
    r.add_typed("Rsqrt", &[("T", FIELDS)], |b| unary(b, rsqrt));
    r.add_typed("Exp", &[("T", FIELDS)], |b| unary(b, exp));
    r.add_typed("Expm1", &[("T", FIELDS)], |b| unary(b, expm1));
    r.add_typed("Log", &[("T", FIELDS)], |b| unary(b, log));
    r.add_typed("Log1p", &[("T", FIELDS)], |b| unary(b, log1p));
    r.add_typed("Sin", &[("T", FIELDS)], |b| unary(b, sin));
    r.add_typed("Cos", &[("T", FIELDS)], |b| unary(b, cos));
    r.add_typed("Tan", &[("T", FIELDS)], |b| unary(b, tan));
    r.add_typed("Asin", &[("T", FIELDS)], |b| unary(b, asin));
    r.add_typed("Acos", &[("T", FIELDS)], |b| unary(b, acos));
    r.add_typed("Atan", &[("T", FIELDS)], |b| unary(b, atan));
    r.add_typed("Sinh", &[("T", FIELDS)], |b| unary(b, sinh));
    r.add_typed("Cosh", &[("T", FIELDS)], |b| unary(b, cosh));
    r.add_typed("Tanh", &[("T", FIELDS)], |b| unary(b, tanh));
    r.add_typed("Asinh", &[("T", FIELDS)], |b| unary(b, asinh));
    r.add_typed("Acosh", &[("T", FIELDS)], |b| unary(b, acosh));
    r.add_typed("Atanh", &[("T", FIELDS)], |b| unary(b, atanh));
    r.add_typed("Sigmoid", &[("T", FIELDS)], |b| unary(b, sigmoid));
    r.add_typed("Erf", &[("T", FLOATS)], |b| unary(b, erf));
    r.add_typed("Erfc", &[("T", FLOATS)], |b| unary(b, erfc));
    r.add_typed("Erfinv", &[("T", WIDE)], |b| unary(b, erfinv));
    r.add_typed("Ndtri", &[("T", WIDE)], |b| unary(b, ndtri));
    r.add_typed("Lgamma", &[("T", NO_BFLOAT)], |b| unary(b, lgamma));
    r.add_typed("Digamma", &[("T", NO_BFLOAT)], |b| unary(b, digamma));
    r.add_typed("Floor", &[("T", FLOATS)], |b| unary(b, floor));
    r.add_typed("Ceil", &[("T", FLOATS)], |b| unary(b, ceil));
    r.add_typed("Round", &[("T", ROUND)], |b| unary(b, round));
    r.add_typed("Rint", &[("T", WIDE)], |b| unary(b, round));
    r.add_typed("Invert", &[("T", INTS)], |b| unary(b, invert));
    r.add("LogicalNot", |_| elementwise(plain(|x: u8| x ^ 1)));
}

/// Which kernel an op has for a type.
pub(crate) type Choice = fn(DType) -> Option<Box<dyn Unary>>;

/// The kernels that can follow one another in `_UnaryOpsComposition`, by their ops' names.
pub(super) fn named(op: &str) -> Option<Choice> {
    Some(match op {
        "Abs" => abs,
        "Acos" => acos,
        "Acosh" => acosh,
        "Asin" => asin,
        "Asinh" => asinh,
        "Atan" => atan,
        "Atanh" => atanh,
        "Ceil" => ceil,
        "Cos" => cos,
        "Cosh" => cosh,
        "Expm1" => expm1,
        "Exp" => exp,
        "Floor" => floor,
        "Inv" | "Reciprocal" => reciprocal,
        "Log" => log,
        "Log1p" => log1p,
        "Neg" => neg,
        "Rint" | "Round" => round,
        "Rsqrt" => rsqrt,
        "Sigmoid" => sigmoid,
        "Sin" => sin,
        "Sinh" => sinh,
        "Sqrt" => sqrt,
        "Square" => square,
        "Tan" => tan,
        "Tanh" => tanh,
        _ => return None,
    })
}

/// An op of one input of attribute `T`.
pub(crate) fn unary(b: &KernelBuilder<'_>, choice: Choice) -> Result<Built> {
    let t = b.attrs().dtype("T")?;
    elementwise(choice(t).ok_or_else(|| no_code(t))?)
}

/// An op of one input.
pub(crate) fn elementwise(kernel: Box<dyn Unary>) -> Result<Built> {
    Built::cheap(move |ctx| {
        let x = ctx.take(0)?;
        let out = map(ctx, &*kernel, x)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn abs(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; floats => |x| x.abs(); wrapping => |x| x.wrapping_abs())
}

fn neg(t: DType) -> Option<Box<dyn Unary>> {
    pick1! { t;
        floats => |x| -x;
        wrapping => |x| x.wrapping_neg();
        complex => |x| -x
    }
}

fn sign(t: DType) -> Option<Box<dyn Unary>> {
    fn float<T: Float>(x: T) -> T {
        if x > T::zero() {
            T::one()
        } else if x < T::zero() {
            -T::one()
        } else if x == T::zero() {
            T::zero()
        } else {
            x
        }
    }
    pick1! { t;
        floats => float;
        wrapping => |x| x.signum();
        complex => |x| if x.is_zero() { x } else { x / x.norm() }
    }
}

fn reciprocal(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; floats => |x| 1.0 / x; complex => |x| x.inv())
}

fn square(t: DType) -> Option<Box<dyn Unary>> {
    pick1! { t;
        floats => |x| x * x;
        wrapping => |x| x.wrapping_mul(x);
        complex => |x| x * x
    }
}

fn sqrt(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; floats => |x| x.sqrt(); complex => |x| x.sqrt())
}

fn rsqrt(t: DType) -> Option<Box<dyn Unary>> {
    fn complex<T: Float>(x: Complex<T>) -> Complex<T> {
        if x.is_zero() {
            return Complex::new(T::infinity(), T::nan());
        }
        x.sqrt().inv()
    }
    pick1!(t; floats => |x| 1.0 / x.sqrt(); complex => complex)
}

fn exp(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; function => Exp; double => f64::exp; complex => |x| x.exp())
}

fn expm1(t: DType) -> Option<Box<dyn Unary>> {
    fn complex<T: Float>(x: Complex<T>) -> Complex<T> {
        // e^a·cos b - 1, without the difference of two nearly equal numbers.
        let half_sin = (x.im / (T::one() + T::one())).sin();
        let real = x.re.exp_m1() * x.im.cos() - (half_sin * half_sin + half_sin * half_sin);
        Complex::new(real, x.re.exp() * x.im.sin())
    }
    pick1!(t; function => Expm1; double => f64::exp_m1; complex => complex)
}

fn log(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; function => Log; double => f64::ln; complex => |x| x.ln())
}

fn log1p(t: DType) -> Option<Box<dyn Unary>> {
    fn complex<T: Float>(x: Complex<T>) -> Complex<T> {
        if x == -Complex::one() {
            return Complex::new(T::neg_infinity(), T::nan());
        }
        // log|1 + z| = log1p(2a + a² + b²) / 2
        let two = T::one() + T::one();
        let grown = (two * x.re + x.norm_sqr()).ln_1p() / two;
        Complex::new(grown, (x + Complex::one()).arg())
    }
    pick1!(t; function => Log1p; double => f64::ln_1p; complex => complex)
}

fn sin(t: DType) -> Option<Box<dyn Unary>> {
    if t == Float {
        return Some(Box::new(trig::Sin));
    }
    halves::one(t, Box::new(trig::Sin))
        .or_else(|| pick1!(t; double => f64::sin; complex => |x| x.sin()))
}

fn cos(t: DType) -> Option<Box<dyn Unary>> {
    if t == Float {
        return Some(Box::new(trig::Cos));
    }
    halves::one(t, Box::new(trig::Cos))
        .or_else(|| pick1!(t; double => f64::cos; complex => |x| x.cos()))
}

fn tan(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; float => f32::tan; double => f64::tan; complex => |x| x.tan())
}

fn asin(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; function => Asin; double => f64::asin; complex => |x| x.asin())
}

fn acos(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; function => Acos; double => f64::acos; complex => |x| x.acos())
}

fn atan(t: DType) -> Option<Box<dyn Unary>> {
    if t == Double {
        return Some(vector64(arcs::atan_double));
    }
    pick1!(t; function => Atan; complex => |x| x.atan())
}

fn sinh(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; float => f32::sinh; double => f64::sinh; complex => |x| x.sinh())
}

fn cosh(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; function => Cosh; double => f64::cosh; complex => |x| x.cosh())
}

fn tanh(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; function => Tanh; double => f64::tanh; complex => |x| x.tanh())
}

fn asinh(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; function => Asinh; double => arcs::asinh_double; complex => |x| x.asinh())
}

fn acosh(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; function => Acosh; double => f64::acosh; complex => |x| x.acosh())
}

fn atanh(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; function => Atanh; double => f64::atanh; complex => |x| x.atanh())
}

fn sigmoid(t: DType) -> Option<Box<dyn Unary>> {
    pick1! { t;
        function => Sigmoid;
        double => |x| 1.0 / (1.0 + (-x).exp());
        complex => |x| ((-x).exp() + 1.0).inv()
    }
}

fn erf(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; function => Erf; double => libm::erf)
}

fn erfc(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; function => Erfc; double => libm::erfc)
}

static ERFINV: LazyLock<Fit> = LazyLock::new(|| Fit::new(special::erfinv, -8, -1));
static ERFCINV: LazyLock<Fit> = LazyLock::new(|| Fit::new(|w| special::erfinv(1.0 - w), -24, -1));
static NDTRI: LazyLock<Fit> = LazyLock::new(|| Fit::new(special::ndtri, -24, -1));
static DIGAMMA: LazyLock<Fit> = LazyLock::new(|| Fit::new(special::digamma, -8, 8));

fn erfinv(t: DType) -> Option<Box<dyn Unary>> {
    fn double(x: f64) -> f64 {
        let a = x.abs();
        // Towards 1 by the distance from it, on whose scale it changes.
        let value = if a <= 0.5 {
            ERFINV.at(a)
        } else {
            ERFCINV.at(1.0 - a)
        };
        value.copysign(x)
    }
    pick1!(t; float => |x: f32| double(x.into()) as f32; double => double)
}

fn ndtri(t: DType) -> Option<Box<dyn Unary>> {
    fn double(p: f64) -> f64 {
        if p <= 0.5 {
            NDTRI.at(p)
        } else {
            -NDTRI.at(1.0 - p)
        }
    }
    pick1!(t; float => |x: f32| double(x.into()) as f32; double => double)
}

fn lgamma(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; float => |x| libm::lgamma(x.into()) as f32; double => libm::lgamma)
}

fn digamma(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; float => |x: f32| DIGAMMA.at(x.into()) as f32; double => |x: f64| DIGAMMA.at(x))
}

fn floor(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; floats => |x| x.floor())
}

fn ceil(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; floats => |x| x.ceil())
}

fn round(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; floats => |x| x.round_ties_even(); wrapping => |x| x)
}

fn invert(t: DType) -> Option<Box<dyn Unary>> {
    pick1!(t; wrapping => |x| !x)
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_tensor::{Complex32, Element, Tensor, bf16, f16};

    fn one<T: Element>(op: &str, x: &[T]) -> Vec<T> {
        let x = Tensor::vector(x.to_vec());
        let attrs = [("T", x.dtype().into())];
        let out = run_op(op, vec![x], &attrs).unwrap();
        out[0].as_slice::<T>().unwrap().to_vec()
    }

    #[test]
    fn integers_wrap() {
        assert_eq!(one("Abs", &[i32::MIN, -3]), [i32::MIN, 3]);
        assert_eq!(one("Neg", &[i8::MIN, 5]), [i8::MIN, -5]);
        assert_eq!(one("Square", &[100i8]), [16]);
        assert_eq!(one("Square", &[65_536u32, 3]), [0, 9]);
        assert_eq!(one("Sign", &[-5, 0, 5]), [-1, 0, 1]);
        assert_eq!(one("Invert", &[5u8]), [250]);
        assert_eq!(one("Round", &[3, -7]), [3, -7]);
    }

    #[test]
    fn special_floats_follow_tensorflow() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let sign = one("Sign", &[nan, -0.0, 3.0, -inf]);
        assert!(sign[0].is_nan() && sign[1].is_sign_positive());
        assert_eq!(sign[1..], [0.0, 1.0, -1.0]);
        assert_eq!(one("Round", &[0.5, 1.5, 2.5, -0.5]), [0.0, 2.0, 2.0, -0.0]);
        assert_eq!(one("Reciprocal", &[0.0, -0.0, inf]), [inf, -inf, 0.0]);
        let rsqrt = one("Rsqrt", &[0.0, -0.0, -1.0, inf]);
        assert_eq!(rsqrt[..2], [inf, -inf]);
        assert!(rsqrt[2].is_nan() && rsqrt[3] == 0.0);
        assert_eq!(one("Lgamma", &[0.0, -1.0, 1.0]), [inf, inf, 0.0]);
    }

    #[test]
    fn small_floats_are_rounded_once() {
        let x = [f16::from_f32(1.0), f16::from_f32(-2.0)];
        assert_eq!(
            one("Exp", &x),
            [f16::from_f32(2.718_281_7), f16::from_f32(0.135_335_28)]
        );
        let x = [bf16::from_f32(3.0)];
        assert_eq!(one("Log", &x), [bf16::from_f32(1.098_612_3)]);
    }

    #[test]
    fn complex_functions_follow_tensorflow() {
        let x = [Complex32::new(0.0, 0.5)];
        for (op, re, im) in [
            ("Sqrt", 0.5, 0.5),
            ("Rsqrt", 1.0, -1.0),
            ("Expm1", -0.122_417_44, 0.479_425_55),
            ("Log1p", 0.111_571_79, 0.463_647_6),
            ("Tan", 0.0, 0.462_117_1),
            ("Sigmoid", 0.5, 0.127_670_97),
            ("Sign", 0.0, 1.0),
        ] {
            let got = one(op, &x)[0];
            assert!((got - Complex32::new(re, im)).norm() < 1e-6, "{op}: {got}");
        }
    }

    #[test]
    fn inputs_that_others_hold_are_not_written() {
        let x = floats(&vec![4.0; 5000]);
        let attrs = [("T", x.dtype().into())];
        let out = run_op("Sqrt", vec![x.clone()], &attrs).unwrap();
        assert!(out[0].as_slice::<f32>().unwrap().iter().all(|&v| v == 2.0));
        assert!(x.as_slice::<f32>().unwrap().iter().all(|&v| v == 4.0));
    }
}
