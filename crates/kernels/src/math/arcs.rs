//! More functions of one or two `f32`s, written so that loops over them vectorise: no branches, no tables, no calls.
//! Polynomials are least-squares fits; errors are a few units in the last place.

use super::elementwise::Function;
use super::functions::{exp, log, log1p};
use super::isa::Isa;
use std::f32::consts::{FRAC_PI_2, FRAC_PI_4, LN_2, PI};
use std::f64;

macro_rules! functions {
    ($($(#[$doc:meta])* $name:ident => $f:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy)]
            pub(crate) struct $name;

            impl Function for $name {
                #[inline(always)]
                fn at<I: Isa>(self, x: f32) -> f32 {
                    $f::<I>(x)
                }
            }
        )*
    };
}

functions! {
    /// Inverse sine.
    Asin => asin;
    /// Inverse cosine.
    Acos => acos;
    /// Inverse tangent.
    Atan => atan;
    /// Inverse hyperbolic sine.
    Asinh => asinh;
    /// Inverse hyperbolic cosine.
    Acosh => acosh;
    /// Inverse hyperbolic tangent.
    Atanh => atanh;
    /// Hyperbolic cosine.
    Cosh => cosh;
    /// 1 less the error function.
    Erfc => erfc;
}

/// The inverse tangent of numbers from 0 to 1.
#[inline(always)]
fn atan_unit<I: Isa>(t: f32) -> f32 {
    // Beyond tan(π/8) from the other side of π/4.
    let far = t > 0.414_213_57;
    let u = if far { (t - 1.0) / (t + 1.0) } else { t };
    let z = u * u;
    let p = I::madd(z, -6.448_611e-2, 1.074_26e-1);
    let p = I::madd(p, z, -1.426_383_5e-1);
    let p = I::madd(p, z, 1.999_953_6e-1);
    let p = I::madd(p, z, -3.333_333_3e-1);
    let y = I::madd(p * z, u, u);
    if far { y + FRAC_PI_4 } else { y }
}

#[inline(always)]
fn atan<I: Isa>(x: f32) -> f32 {
    let a = x.abs();
    let outside = a > 1.0;
    let y = atan_unit::<I>(if outside { 1.0 / a } else { a });
    (if outside { FRAC_PI_2 - y } else { y }).copysign(x)
}

/// The angle of (x, y), in all four quadrants.
#[inline(always)]
pub(crate) fn atan2<I: Isa>(y: f32, x: f32) -> f32 {
    let (a, b) = (y.abs(), x.abs());
    let steep = a > b;
    let (low, high) = if steep { (b, a) } else { (a, b) };
    let t = low / high;
    // 0/0 and ∞/∞ have angles all the same.
    let t = if high == 0.0 { 0.0 } else { t };
    let t = if low == f32::INFINITY { 1.0 } else { t };
    let r = atan_unit::<I>(t);
    let r = if steep { FRAC_PI_2 - r } else { r };
    let r = if x.is_sign_negative() { PI - r } else { r };
    let r = r.copysign(y);
    if x.is_nan() || y.is_nan() {
        f32::NAN
    } else {
        r
    }
}

/// The inverse tangent of a number from 0 to 1, as Cephes has it.
#[inline(always)]
fn atan_unit_double(t: f64) -> f64 {
    // tan(π/8) and more from the other side of π/4; the rest of π/4's bits is added at last.
    let far = t > 0.66;
    let u = if far { (t - 1.0) / (t + 1.0) } else { t };
    let z = u * u;
    let p = -8.750_608_600_031_904e-1 * z - 1.615_753_718_733_365_2e1;
    let p = p * z - 7.500_855_792_314_705e1;
    let p = p * z - 1.228_866_684_490_136_1e2;
    let p = p * z - 6.485_021_904_942_025e1;
    let q = z + 2.485_846_490_142_306_3e1;
    let q = q * z + 1.650_270_098_316_988_5e2;
    let q = q * z + 4.328_810_604_912_903e2;
    let q = q * z + 4.853_903_996_359_137e2;
    let q = q * z + 1.945_506_571_482_614e2;
    let y = u * (z * p / q) + u;
    if far {
        f64::consts::FRAC_PI_4 + (y + 3.061_616_997_868_383e-17)
    } else {
        y
    }
}

/// What π/2 loses as a double.
const PI_2_LOW: f64 = 6.123_233_995_736_766e-17;

/// The inverse tangent of doubles.
#[inline(always)]
pub(crate) fn atan_double(x: f64) -> f64 {
    let a = x.abs();
    let outside = a > 1.0;
    let y = atan_unit_double(if outside { 1.0 / a } else { a });
    let other = f64::consts::FRAC_PI_2 - (y - PI_2_LOW);
    (if outside { other } else { y }).copysign(x)
}

/// The angle of (x, y), in all four quadrants, of doubles.
#[inline(always)]
pub(crate) fn atan2_double(y: f64, x: f64) -> f64 {
    let (a, b) = (y.abs(), x.abs());
    let steep = a > b;
    let (low, high) = if steep { (b, a) } else { (a, b) };
    let t = low / high;
    // 0/0 and ∞/∞ have angles all the same.
    let t = if high == 0.0 { 0.0 } else { t };
    let t = if low == f64::INFINITY { 1.0 } else { t };
    let r = atan_unit_double(t);
    let r = if steep {
        f64::consts::FRAC_PI_2 - (r - PI_2_LOW)
    } else {
        r
    };
    let r = if x.is_sign_negative() {
        f64::consts::PI - (r - 2.0 * PI_2_LOW)
    } else {
        r
    };
    let r = r.copysign(y);
    if x.is_nan() || y.is_nan() {
        f64::NAN
    } else {
        r
    }
}

/// The inverse hyperbolic sine of doubles.
pub(crate) fn asinh_double(x: f64) -> f64 {
    let a = x.abs();
    let y = if a > 1e9 {
        a.ln() + f64::consts::LN_2
    } else {
        let square = a * a;
        (a + square / (1.0 + (1.0 + square).sqrt())).ln_1p()
    };
    y.copysign(x)
}

/// arcsin(s) for 0 ≤ s ≤ ½, from s² too.
#[inline(always)]
fn asin_half<I: Isa>(s: f32, z: f32) -> f32 {
    let p = I::madd(z, 3.368_444_5e-2, 1.715_326_3e-2);
    let p = I::madd(p, z, 3.109_977_4e-2);
    let p = I::madd(p, z, 4.459_948e-2);
    let p = I::madd(p, z, 7.500_094e-2);
    let p = I::madd(p, z, 1.666_666_6e-1);
    I::madd(p * z, s, s)
}

#[inline(always)]
fn asin<I: Isa>(x: f32) -> f32 {
    let a = x.abs();
    let outer = a > 0.5;
    // Beyond ½ by the half angle; beyond 1 its root is no number.
    let z = if outer { 0.5 * (1.0 - a) } else { a * a };
    let s = if outer { z.sqrt() } else { a };
    let y = asin_half::<I>(s, z);
    (if outer { FRAC_PI_2 - 2.0 * y } else { y }).copysign(x)
}

#[inline(always)]
fn acos<I: Isa>(x: f32) -> f32 {
    let a = x.abs();
    let outer = a > 0.5;
    let z = if outer { 0.5 * (1.0 - a) } else { a * a };
    let s = if outer { z.sqrt() } else { a };
    let y = asin_half::<I>(s, z);
    let inside = FRAC_PI_2 - y.copysign(x);
    let outside = if x < 0.0 { PI - 2.0 * y } else { 2.0 * y };
    if outer { outside } else { inside }
}

#[inline(always)]
fn asinh<I: Isa>(x: f32) -> f32 {
    let a = x.abs();
    // Where 1 no longer counts beside its square, which may be infinite.
    let large = a > 1e4;
    let square = a * a;
    let near = log1p::<I>(a + square / (1.0 + (1.0 + square).sqrt()));
    let far = log::<I>(a) + LN_2;
    let y = if large { far } else { near };
    // A zero keeps its sign, and so does NaN.
    (if a == 0.0 { a } else { y }).copysign(x)
}

#[inline(always)]
fn acosh<I: Isa>(x: f32) -> f32 {
    let t = x - 1.0;
    let near = log1p::<I>(t + (t * (t + 2.0)).sqrt());
    let far = log::<I>(x) + LN_2;
    let y = if x > 1e4 { far } else { near };
    if x >= 1.0 { y } else { f32::NAN }
}

#[inline(always)]
fn atanh<I: Isa>(x: f32) -> f32 {
    let a = x.abs();
    (0.5 * log1p::<I>(2.0 * a / (1.0 - a))).copysign(x)
}

#[inline(always)]
fn cosh<I: Isa>(x: f32) -> f32 {
    // In two factors: the exponential is infinite before its half is.
    let h = exp::<I>(0.5 * x.abs());
    I::madd(0.5 * h, h, 0.5 / h / h)
}

#[inline(always)]
fn erfc<I: Isa>(x: f32) -> f32 {
    let a = x.abs();
    let a = if a > 10.5 { 10.5 } else { a };
    // e^x²·erfc(x) over the half line, mapped to a short interval.
    let u = (a - 2.0) / (a + 2.0);
    let p = I::madd(u, 1.109_320_3e-4, 6.730_63e-5);
    let p = I::madd(p, u, -9.301_785e-4);
    let p = I::madd(p, u, -8.587_22e-4);
    let p = I::madd(p, u, 6.979_58e-3);
    let p = I::madd(p, u, 3.736_091_5e-3);
    let p = I::madd(p, u, -7.897_618e-2);
    let p = I::madd(p, u, 2.416_578_3e-1);
    let p = I::madd(p, u, -4.271_859_3e-1);
    let p = I::madd(p, u, 2.553_956_8e-1);
    // What the square loses is told apart where that costs nothing.
    let square = a * a;
    let lost = I::madd(a, a, -square);
    let e = exp::<I>(-square);
    let y = p * I::madd(-lost, e, e);
    if x < 0.0 { 2.0 - y } else { y }
}

#[cfg(test)]
mod tests {
    use super::super::isa::{Fused, Plain};
    use super::*;

    /// Worst error over a range, relative to the result.
    fn worst(f: impl Fn(f32) -> f32, want: impl Fn(f64) -> f64, low: f32, high: f32) -> f64 {
        let steps = 20_000;
        let error = |i: i32| {
            let x = low + (high - low) * (i as f32 / steps as f32);
            let (got, want) = (f64::from(f(x)), want(f64::from(x)));
            (got - want).abs() / (want.abs() + 1e-30)
        };
        (0..=steps).map(error).fold(0.0, f64::max)
    }

    fn check<I: Isa>() {
        assert!(worst(atan::<I>, f64::atan, -1e-3, 50.0) < 4e-7);
        assert!(worst(asin::<I>, f64::asin, -1.0, 1.0) < 4e-7);
        assert!(worst(acos::<I>, f64::acos, -1.0, 0.9999) < 4e-7);
        assert!(worst(atanh::<I>, f64::atanh, -0.999, 0.999) < 1e-6);
        assert!(worst(asinh::<I>, f64::asinh, -3.0, 3.0) < 1e-6);
        assert!(worst(asinh::<I>, f64::asinh, 3.0, 3e4) < 1e-6);
        assert!(worst(asinh::<I>, f64::asinh, 1e30, 3e38) < 1e-6);
        assert!(worst(acosh::<I>, f64::acosh, 1.0, 30.0) < 1e-6);
        assert!(worst(acosh::<I>, f64::acosh, 30.0, 3e38) < 1e-6);
        assert!(worst(cosh::<I>, f64::cosh, -80.0, 80.0) < 1e-6);
        assert!(worst(erfc::<I>, libm::erfc, -5.0, 4.0) < 3e-6);
        assert!(worst(erfc::<I>, libm::erfc, 4.0, 9.0) < 1e-5);
    }

    #[test]
    fn values_agree_with_the_definition() {
        check::<Plain>();
        check::<Fused>();
    }

    #[test]
    fn doubles_agree_with_the_library_to_the_last_places() {
        let close = |got: f64, want: f64, what: f64| {
            let far = (got - want).abs() / want.abs().max(1e-300);
            assert!(far < 5e-16, "{what}: {got} {want}");
        };
        for i in 0..40_000 {
            let x = (i as f64 - 20_000.0) / 1_000.0 + 1e-7;
            close(atan_double(x), x.atan(), x);
            close(asinh_double(x), x.asinh(), x);
            let y = ((i * 7919) % 40_000) as f64 / 500.0 - 39.99;
            close(atan2_double(y, x), y.atan2(x), x);
        }
        for x in [1e-300, 1e-10, 1e10, 1e300, f64::INFINITY] {
            close(atan_double(x), x.atan(), x);
            assert!((asinh_double(x) / x.asinh() - 1.0).abs() < 1e-15 || x == f64::INFINITY);
        }
        let inf = f64::INFINITY;
        assert_eq!((asinh_double(inf), asinh_double(-inf)), (inf, -inf));
        assert!(atan_double(f64::NAN).is_nan() && atan_double(-0.0).is_sign_negative());
        assert!(asinh_double(-0.0).is_sign_negative() && asinh_double(f64::NAN).is_nan());
        for y in [0.0, -0.0, 1.0, -2.5, inf, -inf, f64::NAN] {
            for x in [0.0f64, -0.0, 3.0, -0.5, inf, -inf, f64::NAN] {
                let (got, want) = (atan2_double(y, x), y.atan2(x));
                let same = (got - want).abs() <= 1e-15 || (got.is_nan() && want.is_nan());
                let signs = got.is_nan() || got.is_sign_negative() == want.is_sign_negative();
                assert!(same && signs, "{y} {x}: {got} {want}");
            }
        }
    }

    #[test]
    fn the_ends_of_the_range_are_right() {
        let inf = f32::INFINITY;
        assert!(asin::<Plain>(1.1).is_nan() && acos::<Plain>(-1.1).is_nan());
        assert_eq!((acos::<Plain>(1.0), acos::<Plain>(-1.0)), (0.0, PI));
        assert_eq!(
            (atan::<Plain>(inf), atan::<Plain>(-inf)),
            (FRAC_PI_2, -FRAC_PI_2)
        );
        assert_eq!((atanh::<Plain>(1.0), atanh::<Plain>(-1.0)), (inf, -inf));
        assert_eq!((asinh::<Plain>(inf), asinh::<Plain>(-inf)), (inf, -inf));
        assert!(asinh::<Plain>(-0.0).is_sign_negative() && acosh::<Plain>(0.5).is_nan());
        assert_eq!((acosh::<Plain>(1.0), acosh::<Plain>(inf)), (0.0, inf));
        assert!(asinh::<Plain>(f32::NAN).is_nan() && acosh::<Plain>(f32::NAN).is_nan());
        assert!(atanh::<Plain>(1.5).is_nan() && atan::<Plain>(-0.0).is_sign_negative());
        assert_eq!((cosh::<Plain>(inf), cosh::<Plain>(-inf)), (inf, inf));
        assert!((cosh::<Plain>(89.0) / 89f32.cosh() - 1.0).abs() < 1e-5);
        assert_eq!((erfc::<Plain>(inf), erfc::<Plain>(-inf)), (0.0, 2.0));
        for f in [
            asin::<Plain>,
            acos::<Plain>,
            atan::<Plain>,
            atanh::<Plain>,
            cosh::<Plain>,
            erfc::<Plain>,
        ] {
            assert!(f(f32::NAN).is_nan());
        }
        for y in [0.0, -0.0, 1.0, -2.5, inf, -inf, f32::NAN] {
            for x in [0.0f32, -0.0, 3.0, -0.5, inf, -inf, f32::NAN] {
                let (got, want) = (atan2::<Plain>(y, x), y.atan2(x));
                let same = (got - want).abs() <= 1e-6 || (got.is_nan() && want.is_nan());
                assert!(
                    same && (got.is_nan() || got.is_sign_negative() == want.is_sign_negative()),
                    "{y} {x}: {got} {want}"
                );
            }
        }
    }
}
