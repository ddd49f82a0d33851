//! Functions of one `f32`, written so that loops over them vectorise: no branches, no tables, no
//! calls. Errors are below two units in the last place except where said.

use super::elementwise::Function;
use super::isa::Isa;

/// Declares [`Function`]s.
macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident($x:ident, $I:ident) => $body:expr;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy)]
            pub(crate) struct $name;

            impl Function for $name {
                #[inline(always)]
                fn at<$I: Isa>(self, $x: f32) -> f32 {
                    $body
                }
            }
        )*
    };
}

functions! {
    /// eˣ.
    Exp(x, I) => exp::<I>(x);
    /// eˣ - 1.
    Expm1(x, I) => expm1::<I>(x);
    /// Natural logarithm.
    Log(x, I) => log::<I>(x);
    /// log(1 + x).
    Log1p(x, I) => log1p::<I>(x);
    /// Hyperbolic tangent.
    Tanh(x, I) => tanh::<I>(x);
    /// 1 / (1 + e⁻ˣ).
    Sigmoid(x, I) => sigmoid::<I>(x);
    /// Error function.
    Erf(x, I) => erf::<I>(x);
    /// log(1 + eˣ).
    Softplus(x, I) => softplus::<I>(x);
    /// x for x ≥ 0, else eˣ - 1.
    Elu(x, I) => if x < 0.0 { expm1::<I>(x) } else { x };
    /// A scaled [`Elu`] that keeps mean and variance.
    Selu(x, I) => if x < 0.0 { SELU_SCALE_ALPHA * expm1::<I>(x) } else { SELU_SCALE * x };
}

/// The scale of `Selu`.
pub(crate) const SELU_SCALE: f32 = 1.050_701;
/// The scale of `Selu` times its alpha.
pub(crate) const SELU_SCALE_ALPHA: f32 = 1.758_099_3;

/// 1.5·2²³: adding it rounds to an integer, which then sits in the low mantissa bits. (A cast to
/// an integer would saturate, which does not vectorise well.)
const ROUND: f32 = 12_582_912.0;
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;

/// Splits x = n·log 2 + r with |r| ≤ log(2)/2; n comes as an integer and as the rounded float's
/// bits. x must be within ±200.
#[inline(always)]
fn reduce<I: Isa>(x: f32) -> (i32, f32) {
    let shifted = I::madd(x, std::f32::consts::LOG2_E, ROUND);
    let n = shifted - ROUND;
    let r = I::madd(n, -LN_2_HIGH, x);
    let r = I::madd(n, -LN_2_LOW, r);
    let n = (shifted.to_bits() as i32).wrapping_sub(ROUND.to_bits() as i32);
    (n, r)
}

/// (eʳ - 1 - r) / r² for |r| ≤ log(2)/2.
#[inline(always)]
fn exp_tail<I: Isa>(r: f32) -> f32 {
    let p = 1.988_934_6e-4;
    let p = I::madd(p, r, 1.393_652_7e-3);
    let p = I::madd(p, r, 8.333_076e-3);
    let p = I::madd(p, r, 4.166_628_7e-2);
    let p = I::madd(p, r, 1.666_666_7e-1);
    I::madd(p, r, 0.5)
}

/// 2ⁿ for -127 < n < 128.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) as u32) << 23)
}

/// `x` cut to the range, NaN kept.
#[inline(always)]
fn clamp(x: f32, low: f32, high: f32) -> f32 {
    let x = if x > high { high } else { x };
    if x < low { low } else { x }
}

#[inline(always)]
pub(crate) fn exp<I: Isa>(x: f32) -> f32 {
    // e^-104 rounds to 0 and e^89 to infinity.
    let (n, r) = reduce::<I>(clamp(x, -104.0, 89.0));
    let e = I::madd(exp_tail::<I>(r) * r, r, r) + 1.0;
    // In two steps, since 2^n itself need not be a normal number.
    let half = n >> 1;
    e * power_of_two(half) * power_of_two(n.wrapping_sub(half))
}

#[inline(always)]
pub(crate) fn expm1<I: Isa>(x: f32) -> f32 {
    let (n, r) = reduce::<I>(clamp(x, -30.0, 89.0));
    let e = I::madd(exp_tail::<I>(r) * r, r, r);
    // Half of everything, since 2^128 is no float: exact, and 0 stays 0 for small x.
    let s = power_of_two(n.wrapping_sub(1));
    let y = I::madd(s, e, s - 0.5) * 2.0;
    // Keeps the sign of a zero.
    if x == 0.0 { x } else { y }
}

#[inline(always)]
pub(crate) fn log<I: Isa>(x: f32) -> f32 {
    // Subnormal numbers are scaled up first.
    let small = x < f32::MIN_POSITIVE;
    let scaled = if small { x * 8_388_608.0 } else { x };
    let offset = if small { -23.0 } else { 0.0 };
    // Mantissa in [√½, √2).
    let bits = scaled.to_bits().wrapping_add(0x3f80_0000 - 0x3f35_04f3);
    let k = ((bits >> 23) as i32).wrapping_sub(127) as f32 + offset;
    let f = f32::from_bits((bits & 0x007f_ffff).wrapping_add(0x3f35_04f3)) - 1.0;
    let s = f / (2.0 + f);
    let z = s * s;
    let r = I::madd(z, 0.242_790_79, 0.284_987_87);
    let r = I::madd(r, z, 0.400_009_72);
    let r = I::madd(r, z, 0.666_666_6) * z;
    let half_square = 0.5 * f * f;
    let low = I::madd(k, 9.058_001e-6, s * (half_square + r));
    let y = I::madd(k, 0.693_138_1, f - (half_square - low));
    let y = if x == f32::INFINITY { x } else { y };
    let y = if x == 0.0 { f32::NEG_INFINITY } else { y };
    // Negative, or NaN itself.
    if x >= 0.0 { y } else { f32::NAN }
}

#[inline(always)]
pub(crate) fn log1p<I: Isa>(x: f32) -> f32 {
    let u = 1.0 + x;
    // What the sum lost, as a correction of the first order.
    let y = log::<I>(u);
    let y = y * (x / (u - 1.0));
    let y = if u == 1.0 { x } else { y };
    let y = if x == f32::INFINITY { x } else { y };
    if x == -1.0 { f32::NEG_INFINITY } else { y }
}

#[inline(always)]
pub(crate) fn tanh<I: Isa>(x: f32) -> f32 {
    let e = expm1::<I>(clamp(x + x, -40.0, 40.0));
    e / (e + 2.0)
}

#[inline(always)]
pub(crate) fn sigmoid<I: Isa>(x: f32) -> f32 {
    1.0 / (1.0 + exp::<I>(-x))
}

#[inline(always)]
pub(crate) fn softplus<I: Isa>(x: f32) -> f32 {
    // TensorFlow's thresholds: log(epsilon) + 2.
    const THRESHOLD: f32 = -13.942_385;
    let e = exp::<I>(x);
    let y = log1p::<I>(e);
    let y = if x > -THRESHOLD { x } else { y };
    if x < THRESHOLD { e } else { y }
}

#[inline(always)]
pub(crate) fn erf<I: Isa>(x: f32) -> f32 {
    let (a, s) = (x.abs(), x * x);
    let p = -5.967_617e-4;
    let p = I::madd(p, s, 4.991_194_2e-3);
    let p = I::madd(p, s, -2.676_813_5e-2);
    let p = I::madd(p, s, 1.128_199_25e-1);
    let p = I::madd(p, s, -3.761_253_4e-1);
    let p = I::madd(p, s, 1.283_791_7e-1);
    let near = I::madd(p, x, x);
    // 1 - e^q(|x|) further out.
    let t = clamp(a, 0.0, 4.0);
    let q = I::madd(-1.728_534_7e-5, t, 3.831_971_3e-4);
    let r = I::madd(-3.883_964_4e-3, t, 2.425_462_2e-2);
    let q = I::madd(q, t * t, r);
    let q = I::madd(q, t, -1.067_778_8e-1);
    let q = I::madd(q, t, -6.348_467e-1);
    let q = I::madd(q, t, -1.287_175_1e-1);
    let q = I::madd(q, t, -t);
    let far = (1.0 - exp::<I>(q)).copysign(x);
    if a > 0.921_875 { far } else { near }
}

#[cfg(test)]
mod tests {
    use super::super::isa::{Fused, Plain};
    use super::*;

    /// Worst error over a range in units in the last place of the result.
    fn worst(f: impl Fn(f32) -> f32, want: impl Fn(f64) -> f64, low: f32, high: f32) -> f64 {
        let steps = 20_000;
        (0..=steps)
            .map(|i| {
                let x = low + (high - low) * (i as f32 / steps as f32);
                let (got, want) = (f64::from(f(x)), want(f64::from(x)));
                let unit = (want.abs() * f64::from(f32::EPSILON)).max(f64::from(f32::MIN_POSITIVE));
                (got - want).abs() / unit
            })
            .fold(0.0, f64::max)
    }

    fn check<I: Isa>() {
        let sigmoid_64 = |x: f64| 1.0 / (1.0 + (-x).exp());
        assert!(worst(exp::<I>, f64::exp, -87.0, 88.7) < 1.5);
        assert!(worst(expm1::<I>, f64::exp_m1, -20.0, 88.0) < 2.0);
        assert!(worst(expm1::<I>, f64::exp_m1, -0.5, 0.5) < 2.0);
        assert!(worst(log::<I>, f64::ln, 1e-6, 4.0) < 2.0);
        assert!(worst(log::<I>, f64::ln, 4.0, 1e30) < 2.0);
        assert!(worst(log1p::<I>, f64::ln_1p, -0.9, 0.9) < 4.0);
        assert!(worst(log1p::<I>, f64::ln_1p, 0.9, 1e6) < 2.0);
        assert!(worst(tanh::<I>, f64::tanh, -9.0, 9.0) < 3.0);
        assert!(worst(tanh::<I>, f64::tanh, -0.01, 0.01) < 3.0);
        assert!(worst(sigmoid::<I>, sigmoid_64, -80.0, 20.0) < 3.0);
        assert!(worst(erf::<I>, libm::erf, -5.0, 5.0) < 2.5);
        assert!(worst(softplus::<I>, |x| x.exp().ln_1p(), -20.0, 20.0) < 12.0);
    }

    #[test]
    fn values_agree_with_the_definition_to_a_few_units_in_the_last_place() {
        check::<Plain>();
        check::<Fused>();
    }

    #[test]
    fn the_ends_of_the_range_are_right() {
        let inf = f32::INFINITY;
        assert_eq!(exp::<Plain>(-inf), 0.0);
        assert_eq!(exp::<Plain>(inf), inf);
        assert_eq!(exp::<Plain>(0.0), 1.0);
        assert_eq!(exp::<Plain>(89.0), inf);
        assert!(exp::<Plain>(-100.0) > 0.0 && exp::<Plain>(-100.0) < 1e-40);
        assert_eq!(expm1::<Plain>(-inf), -1.0);
        assert_eq!(expm1::<Plain>(inf), inf);
        assert!(expm1::<Plain>(-0.0).is_sign_negative());
        assert_eq!(log::<Plain>(0.0), -inf);
        assert_eq!(log::<Plain>(-0.0), -inf);
        assert_eq!(log::<Plain>(inf), inf);
        assert_eq!(log::<Plain>(1.0), 0.0);
        assert!(log::<Plain>(-1.0).is_nan());
        assert!((log::<Plain>(1e-42) - 1e-42f32.ln()).abs() < 1e-5);
        assert_eq!(log1p::<Plain>(inf), inf);
        assert_eq!(log1p::<Plain>(-1.0), -inf);
        assert!(log1p::<Plain>(-2.0).is_nan());
        assert_eq!(log1p::<Plain>(1e-20), 1e-20);
        assert_eq!((tanh::<Plain>(inf), tanh::<Plain>(-inf)), (1.0, -1.0));
        assert_eq!((sigmoid::<Plain>(inf), sigmoid::<Plain>(-inf)), (1.0, 0.0));
        assert_eq!((erf::<Plain>(inf), erf::<Plain>(-inf)), (1.0, -1.0));
        for f in [
            exp::<Plain>,
            expm1::<Plain>,
            log::<Plain>,
            log1p::<Plain>,
            tanh::<Plain>,
            sigmoid::<Plain>,
            erf::<Plain>,
            softplus::<Plain>,
        ] {
            assert!(f(f32::NAN).is_nan());
        }
    }
}
