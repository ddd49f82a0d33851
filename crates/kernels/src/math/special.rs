//! Special functions of `f64` that neither Rust nor the `libm` crate has.

use std::f64::consts::{FRAC_1_SQRT_2, PI, SQRT_2};

/// Evaluates a polynomial, highest coefficient first.
pub(crate) fn polynomial(x: f64, coefficients: &[f64]) -> f64 {
    coefficients.iter().fold(0.0, |p, c| p * x + c)
}

/// The inverse of the error function.
pub(crate) fn erfinv(x: f64) -> f64 {
    if x.is_nan() || x.abs() >= 1.0 {
        return match x.abs() {
            1.0 => f64::INFINITY.copysign(x),
            _ => f64::NAN,
        };
    }
    // Single-precision start (Giles), then two steps of Halley's method.
    let w = -((1.0 - x) * (1.0 + x)).ln();
    let start = if w < 5.0 {
        polynomial(
            w - 2.5,
            &[
                2.81022636e-08,
                3.43273939e-07,
                -3.5233877e-06,
                -4.39150654e-06,
                2.1858087e-04,
                -1.25372503e-03,
                -4.17768164e-03,
                2.46640727e-01,
                1.50140941,
            ],
        )
    } else {
        polynomial(
            w.sqrt() - 3.0,
            &[
                -2.00214257e-04,
                1.00950558e-04,
                1.34934322e-03,
                -3.67342844e-03,
                5.73950773e-03,
                -7.6224613e-03,
                9.43887047e-03,
                1.00167406,
                2.83297682,
            ],
        )
    };
    let (a, mut y) = (x.abs(), start * x.abs());
    for _ in 0..2 {
        // Near 1 the complement keeps the digits.
        let error = if a > 0.5 {
            (1.0 - a) - libm::erfc(y)
        } else {
            libm::erf(y) - a
        };
        let step = error / (2.0 / PI.sqrt() * (-y * y).exp());
        y -= step / (1.0 + y * step);
    }
    y.copysign(x)
}

/// The inverse of the standard normal distribution function.
pub(crate) fn ndtri(p: f64) -> f64 {
    if !(p > 0.0 && p < 1.0) {
        return match p {
            0.0 => f64::NEG_INFINITY,
            1.0 => f64::INFINITY,
            _ => f64::NAN,
        };
    }
    // Acklam's rational start, then two steps of Halley's method.
    const A: [f64; 6] = [
        -3.969683028665376e+01,
        2.209460984245205e+02,
        -2.759285104469687e+02,
        1.38357751867269e+02,
        -3.066479806614716e+01,
        2.506628277459239e+00,
    ];
    const B: [f64; 6] = [
        -5.447609879822406e+01,
        1.615858368580409e+02,
        -1.556989798598866e+02,
        6.680131188771972e+01,
        -1.328068155288572e+01,
        1.0,
    ];
    const C: [f64; 6] = [
        -7.784894002430293e-03,
        -3.223964580411365e-01,
        -2.400758277161838e+00,
        -2.549732539343734e+00,
        4.374664141464968e+00,
        2.938163982698783e+00,
    ];
    const D: [f64; 5] = [
        7.784695709041462e-03,
        3.224671290700398e-01,
        2.445134137142996e+00,
        3.754408661907416e+00,
        1.0,
    ];
    let tail = |p: f64| {
        let q = (-2.0 * p.ln()).sqrt();
        polynomial(q, &C) / polynomial(q, &D)
    };
    let mut x = if p < 0.02425 {
        tail(p)
    } else if p > 1.0 - 0.02425 {
        -tail(1.0 - p)
    } else {
        let q = p - 0.5;
        q * polynomial(q * q, &A) / polynomial(q * q, &B)
    };
    for _ in 0..2 {
        let error = if p > 0.5 {
            (1.0 - p) - 0.5 * libm::erfc(x * FRAC_1_SQRT_2)
        } else {
            0.5 * libm::erfc(-x * FRAC_1_SQRT_2) - p
        };
        let step = error * (SQRT_2 * PI.sqrt()) * (0.5 * x * x).exp();
        x -= step / (1.0 + 0.5 * x * step);
    }
    x
}

/// The logarithmic derivative of the gamma function.
pub(crate) fn digamma(x: f64) -> f64 {
    if x <= 0.0 {
        if x == x.floor() {
            return f64::NAN;
        }
        return digamma(1.0 - x) - PI / (PI * x).tan();
    }
    // Moves up to where the asymptotic series holds.
    let (mut x, mut sum) = (x, 0.0);
    while x < 10.0 {
        sum -= 1.0 / x;
        x += 1.0;
    }
    let z = 1.0 / (x * x);
    let series = polynomial(
        z,
        &[
            1.0 / 12.0,
            -691.0 / 32760.0,
            1.0 / 132.0,
            -1.0 / 240.0,
            1.0 / 252.0,
            -1.0 / 120.0,
            1.0 / 12.0,
            0.0,
        ],
    );
    sum + x.ln() - 0.5 / x - series
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(got: f64, want: f64) {
        assert!(
            (got - want).abs() <= 1e-13 * want.abs().max(1e-300),
            "{got} is not {want}"
        );
    }

    #[test]
    fn inverses_undo_their_functions() {
        for i in 1..200 {
            let y = i as f64 * 0.02;
            near(erfinv(libm::erf(y.min(1.5))), y.min(1.5));
            near(
                libm::erfc(erfinv(1.0 - libm::erfc(y.min(2.0)))) / libm::erfc(y.min(2.0)),
                1.0,
            );
            let p = 0.5 * libm::erfc(y * 2.0 / SQRT_2);
            assert!((ndtri(p) + 2.0 * y).abs() < 1e-12 * y, "{y}");
        }
        near(erfinv(0.5), 0.476_936_276_204_469_9);
        near(ndtri(1e-10), -6.361_340_902_404_056);
        assert_eq!(
            (erfinv(1.0), erfinv(-1.0)),
            (f64::INFINITY, f64::NEG_INFINITY)
        );
        assert_eq!((ndtri(0.0), ndtri(1.0)), (f64::NEG_INFINITY, f64::INFINITY));
        assert!(erfinv(1.5).is_nan() && ndtri(-0.5).is_nan() && ndtri(f64::NAN).is_nan());
    }

    #[test]
    fn digamma_has_its_known_values() {
        near(digamma(1.0), -0.577_215_664_901_532_9);
        near(digamma(0.5), -1.963_510_026_021_423_5);
        near(digamma(10.0), 2.251_752_589_066_721);
        assert!((digamma(-0.5) - 0.036_489_973_978_576_52).abs() < 1e-14);
        assert!(digamma(0.0).is_nan() && digamma(-3.0).is_nan());
    }
}
