//! Functions defined by integrals: `Dawsn`, `Expint`, `FresnelCos`, `FresnelSin`, `Spence`.

use super::binary::no_code;
use super::fit::Fit;
use super::tables::pick1;
use super::unary::elementwise;
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::DType;
use num_complex::Complex64;
use std::f64::consts::{FRAC_PI_2, PI};
use std::sync::LazyLock;

pub(crate) fn register(r: &mut Registry) {
    const TYPES: &[DType] = crate::types::FLOAT_DOUBLE;
    let t = [("T", TYPES)];
    r.add_typed("Dawsn", &t, |b| built(b, |x| odd(&DAWSON, x)));
    r.add_typed("Expint", &t, |b| built(b, |x| EXPONENTIAL.at(x)));
    r.add_typed("FresnelCos", &t, |b| built(b, |x| fresnel_fit(x).re));
    r.add_typed("FresnelSin", &t, |b| built(b, |x| fresnel_fit(x).im));
    r.add_typed("Spence", &t, |b| built(b, |x| SPENCE.at(x)));
}

static DAWSON: LazyLock<Fit> = LazyLock::new(|| Fit::new(dawson, -8, 8));
// Up to where its growth is too much for a polynomial.
static EXPONENTIAL: LazyLock<Fit> = LazyLock::new(|| Fit::new(exponential_integral, -8, 4));
// Up to where they turn too quickly.
static FRESNEL_COS: LazyLock<Fit> = LazyLock::new(|| Fit::new(|x| fresnel(x).re, -4, 1));
static FRESNEL_SIN: LazyLock<Fit> = LazyLock::new(|| Fit::new(|x| fresnel(x).im, -4, 1));
// Beyond, what is left of them when their turning is taken off, which is smooth.
static FRESNEL_REAL: LazyLock<Fit> = LazyLock::new(|| Fit::new(|x| fresnel_tail(x).re, 1, 15));
static FRESNEL_IMAGINARY: LazyLock<Fit> = LazyLock::new(|| Fit::new(|x| fresnel_tail(x).im, 1, 15));
static SPENCE: LazyLock<Fit> = LazyLock::new(|| Fit::new(spence, -8, 8));

/// [`fresnel`], quickly.
fn fresnel_fit(x: f64) -> Complex64 {
    let a = x.abs();
    if !(2.0..32_768.0).contains(&a) {
        return Complex64::new(odd(&FRESNEL_COS, x), odd(&FRESNEL_SIN, x));
    }
    let tail = Complex64::new(FRESNEL_REAL.at(a), FRESNEL_IMAGINARY.at(a));
    let value = with_tail(a, tail);
    if x < 0.0 { -value } else { value }
}

/// An odd function from its fit.
fn odd(fit: &Fit, x: f64) -> f64 {
    let value = fit.at(x.abs());
    if x.is_sign_negative() { -value } else { value }
}

fn built(b: &KernelBuilder<'_>, f: fn(f64) -> f64) -> Result<Built> {
    let t = b.attrs().dtype("T")?;
    let float = move |x: f32| f(x.into()) as f32;
    elementwise(pick1!(t; float => float; double => f).ok_or_else(|| no_code(t))?)
}

/// e^-x² times the integral of e^t² from 0 to x.
fn dawson(x: f64) -> f64 {
    let a = x.abs();
    if a < 0.2 {
        let s = x * x;
        // The power series, of which nine terms suffice here.
        let mut term = x;
        let mut sum = x;
        for k in 1..9 {
            term *= -2.0 * s / (2 * k + 1) as f64;
            sum += term;
        }
        return sum;
    }
    if a > 1e8 {
        return 0.5 / x;
    }
    // Rybicki's sum of Gaussians around the nearest even multiple of the step; its error is
    // e^-(π/2h)².
    const H: f64 = 0.2;
    let centre = 2.0 * (0.5 * a / H).round();
    let rest = a - centre * H;
    let mut sum = 0.0;
    for i in 0..24 {
        let n = (2 * i + 1) as f64;
        let (up, down) = (rest - n * H, rest + n * H);
        sum += (-up * up).exp() / (centre + n) + (-down * down).exp() / (centre - n);
    }
    (sum / PI.sqrt()).copysign(x)
}

/// The exponential integral of positive numbers.
fn exponential_integral(x: f64) -> f64 {
    const EULER: f64 = 0.577_215_664_901_532_9;
    if x == 0.0 {
        return f64::NEG_INFINITY;
    }
    if !(x > 0.0) || x.is_infinite() {
        return f64::NAN;
    }
    if x < 50.0 {
        // All terms are positive.
        let (mut term, mut sum, mut k) = (x, x, 1.0);
        while term > sum * 1e-17 {
            k += 1.0;
            term *= x / k;
            sum += term / k;
        }
        return EULER + x.ln() + sum;
    }
    let (mut term, mut sum) = (1.0, 1.0);
    for k in 1..40 {
        term *= f64::from(k) / x;
        sum += term;
    }
    x.exp() / x * sum
}

/// The integrals from 0 to x of cos(πt²/2) and of sin(πt²/2).
fn fresnel(x: f64) -> Complex64 {
    let a = x.abs();
    let value = if a.is_nan() {
        Complex64::new(a, a)
    } else if a < 1.5 {
        // The power series of the integral of e^(iπt²/2).
        let z = Complex64::new(0.0, FRAC_PI_2 * a * a);
        let (mut term, mut sum) = (Complex64::new(a, 0.0), Complex64::new(a, 0.0));
        for k in 1..40 {
            term *= z / f64::from(k);
            sum += term / f64::from(2 * k + 1);
        }
        sum
    } else if a > 36974.0 {
        Complex64::new(0.5, 0.5)
    } else {
        with_tail(a, fresnel_tail(a))
    };
    if x < 0.0 { -value } else { value }
}

/// The integrals up to `a` from what [`fresnel_tail`] gives.
fn with_tail(a: f64, tail: Complex64) -> Complex64 {
    // The angle modulo a turn, so that large arguments keep their digits.
    let square = a * a;
    let turn = Complex64::cis(FRAC_PI_2 * (square - 4.0 * (square * 0.25).floor()));
    Complex64::new(0.5, 0.5) * (1.0 - turn * tail)
}

/// The continued fraction of the complementary error function, by Lentz's method, its turning taken off.
fn fresnel_tail(a: f64) -> Complex64 {
    let squared = PI * a * a;
    let mut b = Complex64::new(1.0, -squared);
    let mut c = Complex64::new(1e300, 0.0);
    let mut d = b.inv();
    let mut h = d;
    let mut n = -1.0;
    for _ in 0..200 {
        n += 2.0;
        let factor = -n * (n + 1.0);
        b += 4.0;
        d = (d * factor + b).inv();
        c = b + c.inv() * factor;
        let step = c * d;
        h *= step;
        if (step - 1.0).l1_norm() < 1e-16 {
            break;
        }
    }
    h * Complex64::new(a, -a)
}

/// The dilogarithm of 1 - x.
fn spence(x: f64) -> f64 {
    if x < 0.0 || x.is_nan() || x.is_infinite() {
        return f64::NAN;
    }
    if x == 0.0 {
        return PI * PI / 6.0;
    }
    if x > 1.5 {
        let log = x.ln();
        return -spence(1.0 / x) - 0.5 * log * log;
    }
    if x < 0.5 {
        return PI * PI / 6.0 - x.ln() * (-x).ln_1p() - spence(1.0 - x);
    }
    let w = 1.0 - x;
    let (mut power, mut sum) = (1.0, 0.0);
    for k in 1..60 {
        power *= w;
        sum += power / f64::from(k * k);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    // Values: the functions of the same names in scipy.special.
    #[test]
    fn values_are_those_of_the_tables() {
        let close = |got: f64, want: f64| {
            assert!(
                (got - want).abs() < 1e-14 * want.abs().max(1.0),
                "{got} {want}"
            )
        };
        close(dawson(1.0), 0.538_079_506_912_768_4);
        close(dawson(0.1), 0.099_335_992_397_852_86);
        close(dawson(-5.0), -0.102_134_074_424_276_82);
        close(exponential_integral(1.0), 1.895_117_816_355_936_7);
        close(exponential_integral(0.3), -0.302_668_539_265_825_9);
        close(fresnel(1.0).re, 0.779_893_400_376_822_8);
        close(fresnel(1.0).im, 0.438_259_147_390_354_77);
        close(fresnel(2.0).re, 0.488_253_406_075_340_75);
        close(fresnel(-2.0).im, -0.343_415_678_363_698_2);
        close(spence(2.0), -PI * PI / 12.0);
        close(spence(0.5), PI * PI / 12.0 - 0.5 * 2f64.ln() * 2f64.ln());
        assert!(exponential_integral(-1.0).is_nan() && spence(-0.1).is_nan());
    }

    #[test]
    fn far_out_the_smooth_part_is_fitted_and_the_turning_computed() {
        for k in 0..600 {
            let x = 2f64.powf(f64::from(k) / 40.0);
            let (got, want) = (fresnel_fit(x), fresnel(x));
            assert!((got - want).norm() < 1e-10, "{x}: {got} {want}");
            assert!((fresnel_fit(-x) + got).norm() == 0.0);
        }
        assert!(fresnel_fit(f64::NAN).re.is_nan());
        assert_eq!(fresnel_fit(f64::INFINITY), Complex64::new(0.5, 0.5));
    }

    type Exact = fn(f64) -> f64;

    #[test]
    fn fits_agree_with_their_definitions() {
        let pairs: [(&Fit, Exact); 5] = [
            (&DAWSON, dawson),
            (&EXPONENTIAL, exponential_integral),
            (&FRESNEL_COS, |x| fresnel(x).re),
            (&FRESNEL_SIN, |x| fresnel(x).im),
            (&SPENCE, spence),
        ];
        for (i, (fit, exact)) in pairs.iter().enumerate() {
            for k in 0..400 {
                let x = 2f64.powf(f64::from(k) / 20.0 - 10.0);
                let (got, want) = (fit.at(x), exact(x));
                let far = (got - want).abs() / want.abs().max(1e-3);
                // Both overflow alike.
                assert!(got == want || far <= 1e-10, "{i} {x}: {got} {want}");
            }
        }
    }
}
