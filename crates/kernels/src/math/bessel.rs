//! Bessel functions of orders 0 and 1, modified and not. At zero, below it, at infinity and where a
//! phase is larger than its last digit the answers are TensorFlow's, right or not.

use super::binary::no_code;
use super::fit::Fit;
use super::tables::{NO_BFLOAT, pick1};
use super::unary::elementwise;
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, Registry};
use std::f64::consts::{FRAC_PI_4, PI};
use std::sync::LazyLock;

/// Fits of what oscillates end where a polynomial no longer follows.
const OSCILLATES: i32 = 3;

static I0E: LazyLock<Fit> = LazyLock::new(|| Fit::new(|x| scaled_i(0.0, x), -8, 8));
static I1E: LazyLock<Fit> = LazyLock::new(|| Fit::new(|x| scaled_i(1.0, x), -8, 8));
static K0E: LazyLock<Fit> = LazyLock::new(|| Fit::new(|x| scaled_k(0.0, x), -8, 8));
static K1E: LazyLock<Fit> = LazyLock::new(|| Fit::new(|x| scaled_k(1.0, x), -8, 8));
static J0: LazyLock<Fit> = LazyLock::new(|| Fit::new(libm::j0, -8, OSCILLATES));
static J1: LazyLock<Fit> = LazyLock::new(|| Fit::new(libm::j1, -8, OSCILLATES));
static Y0: LazyLock<Fit> = LazyLock::new(|| Fit::new(libm::y0, -8, OSCILLATES));
static Y1: LazyLock<Fit> = LazyLock::new(|| Fit::new(libm::y1, -8, OSCILLATES));

pub(crate) fn register(r: &mut Registry) {
    let t = [("T", NO_BFLOAT)];
    r.add_typed("BesselI0e", &t, |b| {
        built(b, |x| fitted_i(0.0, x.into()) as f32, |x| fitted_i(0.0, x))
    });
    r.add_typed("BesselI1e", &t, |b| {
        built(b, |x| fitted_i(1.0, x.into()) as f32, |x| fitted_i(1.0, x))
    });
    // The exponential is the type's own: it overflows before the product would.
    r.add_typed("BesselI0", &t, |b| {
        let single = |x: f32| fitted_i(0.0, x.into()) as f32 * x.abs().exp();
        built(b, single, |x| fitted_i(0.0, x) * x.abs().exp())
    });
    r.add_typed("BesselI1", &t, |b| {
        let single = |x: f32| fitted_i(1.0, x.into()) as f32 * x.abs().exp();
        built(b, single, |x| fitted_i(1.0, x) * x.abs().exp())
    });
    r.add_typed("BesselK0e", &t, |b| {
        built(b, |x| fitted_k(0.0, normal(x)) as f32, |x| fitted_k(0.0, x))
    });
    r.add_typed("BesselK1e", &t, |b| {
        built(b, |x| fitted_k(1.0, normal(x)) as f32, |x| fitted_k(1.0, x))
    });
    r.add_typed("BesselK0", &t, |b| {
        built(
            b,
            |x| unscaled_k(0.0, normal(x)) as f32,
            |x| unscaled_k(0.0, x),
        )
    });
    r.add_typed("BesselK1", &t, |b| {
        built(
            b,
            |x| unscaled_k(1.0, normal(x)) as f32,
            |x| unscaled_k(1.0, x),
        )
    });
    r.add_typed("BesselJ0", &t, |b| {
        built(b, |x| single_j(0.0, x), |x| double_j(0.0, x))
    });
    r.add_typed("BesselJ1", &t, |b| {
        built(b, |x| single_j(1.0, x), |x| double_j(1.0, x))
    });
    r.add_typed("BesselY0", &t, |b| {
        built(b, |x| single_y(0.0, x), |x| double_y(0.0, x))
    });
    r.add_typed("BesselY1", &t, |b| {
        built(b, |x| single_y(1.0, x), |x| double_y(1.0, x))
    });
}

/// The fit of an even (order 0) or odd (order 1) function.
fn mirrored(fits: [&Fit; 2], order: f64, x: f64) -> f64 {
    if order == 0.0 {
        return fits[0].at(x.abs());
    }
    let value = fits[1].at(x.abs());
    if x < 0.0 { -value } else { value }
}

/// [`scaled_i`], quickly.
fn fitted_i(order: f64, x: f64) -> f64 {
    mirrored([&I0E, &I1E], order, x)
}

/// [`scaled_k`], quickly.
fn fitted_k(order: f64, x: f64) -> f64 {
    if order == 0.0 { &K0E } else { &K1E }.at(x)
}

fn fitted_j(order: f64, x: f64) -> f64 {
    mirrored([&J0, &J1], order, x)
}

fn fitted_y(order: f64, x: f64) -> f64 {
    if order == 0.0 { &Y0 } else { &Y1 }.at(x)
}

fn built(b: &KernelBuilder<'_>, single: fn(f32) -> f32, double: fn(f64) -> f64) -> Result<Built> {
    let t = b.attrs().dtype("T")?;
    elementwise(pick1!(t; float => single; double => double).ok_or_else(|| no_code(t))?)
}

/// A float without the bits that processors told to flush denormals do not see.
fn normal(x: f32) -> f64 {
    if x.is_subnormal() { 0.0 } else { x.into() }
}

/// Where the phase in floats begins to tell: closer to zero an error in it is below the last digit.
const SINGLE_WAVE: f32 = 25.0;
/// Where the phase in doubles does.
const DOUBLE_WAVE: f64 = 1e5;

/// J and Y of a large `x`: the modulus, and the phase less `x`.
fn wave(order: f64, x: f64) -> (f64, f64) {
    let (mu, q) = (4.0 * order * order, 1.0 / (2.0 * x));
    let square = 1.0 + (mu - 1.0) * q * q * (0.5 + 0.375 * (mu - 9.0) * q * q);
    let modulus = (2.0 / PI).sqrt() / x.sqrt() * square.sqrt();
    let late = 1.0 / (4.0 * x);
    let shift = (mu - 1.0) * late * (0.5 + (mu - 25.0) * late * late / 6.0);
    (modulus, shift - (2.0 * order + 1.0) * FRAC_PI_4)
}

/// The modulus, and the phase as TensorFlow's float function adds it up.
fn single_wave(order: f64, x: f32) -> (f64, f64) {
    let (modulus, offset) = wave(order, x.into());
    (modulus, f64::from(offset as f32 + x))
}

/// The same for doubles: there the late part of the phase is not added but multiplied in, so that it
/// lasts however large `x` is.
fn double_wave(order: f64, x: f64) -> (f64, f64, f64) {
    let (modulus, offset) = wave(order, x);
    let whole = (2.0 * order + 1.0) * FRAC_PI_4;
    (modulus, x - whole, offset + whole)
}

fn single_j(order: f64, x: f32) -> f32 {
    let a = x.abs();
    let j = if a < SINGLE_WAVE || a.is_nan() {
        return fitted_j(order, x.into()) as f32;
    } else {
        let (modulus, phase) = single_wave(order, a);
        modulus * phase.cos()
    };
    (if order == 1.0 && x < 0.0 { -j } else { j }) as f32
}

fn double_j(order: f64, x: f64) -> f64 {
    let a = x.abs();
    if a < DOUBLE_WAVE || a.is_nan() {
        return fitted_j(order, x);
    }
    let (modulus, phase, late) = double_wave(order, a);
    let j = modulus * (phase.cos() * late.cos() - phase.sin() * late.sin());
    if order == 1.0 && x < 0.0 { -j } else { j }
}

fn single_y(order: f64, x: f32) -> f32 {
    if order == 1.0 && normal(x) == 0.0 {
        f32::NAN
    } else if normal(x) <= 0.0 {
        f32::NEG_INFINITY
    } else if x < SINGLE_WAVE || x.is_nan() {
        fitted_y(order, x.into()) as f32
    } else {
        let (modulus, phase) = single_wave(order, x);
        (modulus * phase.sin()) as f32
    }
}

fn double_y(order: f64, x: f64) -> f64 {
    if x <= 0.0 || x.is_subnormal() {
        f64::NEG_INFINITY
    } else if x < DOUBLE_WAVE || x.is_nan() {
        fitted_y(order, x)
    } else {
        let (modulus, phase, late) = double_wave(order, x);
        modulus * (phase.sin() * late.cos() + phase.cos() * late.sin())
    }
}

/// e^-|x| I(x) for order 0 or 1.
fn scaled_i(order: f64, x: f64) -> f64 {
    let a = x.abs();
    let value = if a <= 30.0 {
        // The power series: all terms are positive.
        let q = a * a / 4.0;
        let (mut term, mut sum, mut k) = (1.0, 1.0, 1.0);
        while term > sum * 1e-18 {
            term *= q / (k * (k + order));
            sum += term;
            k += 1.0;
        }
        let lead = if order == 0.0 { 1.0 } else { a / 2.0 };
        lead * sum * (-a).exp()
    } else if a.is_infinite() {
        0.0
    } else {
        // The asymptotic series, up to its smallest term.
        let mu = 4.0 * order * order;
        let (mut term, mut sum) = (1.0f64, 1.0);
        for k in 1..30 {
            let odd = 2.0 * k as f64 - 1.0;
            let next = -term * (mu - odd * odd) / (k as f64 * 8.0 * a);
            if next.abs() >= term.abs() {
                break;
            }
            term = next;
            sum += term;
        }
        // Two roots: the product may be too large for a double.
        sum / ((2.0 * PI).sqrt() * a.sqrt())
    };
    if order == 1.0 && x < 0.0 {
        -value
    } else {
        value
    }
}

/// Euler's constant.
const EULER: f64 = 0.577_215_664_901_532_9;

/// e^x K(x) for order 0 or 1.
fn scaled_k(order: f64, x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x <= 0.0 || x.is_subnormal() {
        return f64::INFINITY;
    }
    // Near zero and far from it the first term is all of it, and the integral below too wide or too
    // narrow to be sampled.
    if x < 1e-9 {
        let first = if order == 0.0 {
            -(x / 2.0).ln() - EULER
        } else {
            1.0 / x
        };
        return first * x.exp();
    }
    if x > 1e15 {
        return (PI / 2.0).sqrt() / x.sqrt();
    }
    // ∫ e^(-x (cosh t - 1)) cosh(order·t) dt over t > 0: the trapezoidal rule is exact to the last
    // digits for a function that falls off like this.
    let end = (1.0 + 745.0 / x).acosh();
    let steps = 200.0;
    let h = end / steps;
    let f = |t: f64| {
        let s = (t / 2.0).sinh();
        (-x * 2.0 * s * s).exp() * (order * t).cosh()
    };
    let inner: f64 = (1..=steps as usize).map(|i| f(i as f64 * h)).sum();
    h * (0.5 * f(0.0) + inner)
}

fn unscaled_k(order: f64, x: f64) -> f64 {
    let scaled = fitted_k(order, x);
    if scaled.is_finite() {
        scaled * (-x).exp()
    } else {
        scaled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_tensorflow() {
        let near = |got: f64, want: f64| {
            assert!(
                (got - want).abs() <= 1e-13 * want.abs(),
                "{got} is not {want}"
            );
        };
        near(scaled_i(0.0, -3.0), 0.24300035416182536);
        near(scaled_i(0.0, 1.0), 0.46575960759364043);
        near(scaled_i(0.0, 29.9), 0.07326921904600191);
        near(scaled_i(0.0, 30.1), 0.07302329413106094);
        near(scaled_i(0.0, 1000.0), 0.01261724045589125);
        near(scaled_i(1.0, -3.0), -0.19682671329730084);
        near(scaled_i(1.0, 50.0), 0.0559931238928954);
        near(scaled_k(0.0, 0.1), 2.682326102262894);
        near(scaled_k(0.0, 5.0), 0.5478075643135191);
        near(scaled_k(0.0, 500.0), 0.05603591541723452);
        near(scaled_k(0.0, 1e-10), 23.141782447913045);
        near(scaled_k(1.0, 2.0) * (-2.0f64).exp(), 0.13986588181652243);
        near(
            scaled_k(1.0, 1e-5) * (-1e-5f64).exp(),
            99_999.999_939_355_71,
        );
        assert_eq!((scaled_i(0.0, 0.0), scaled_i(1.0, 0.0)), (1.0, 0.0));
        assert_eq!(
            (scaled_k(0.0, 0.0), unscaled_k(1.0, -1.0)),
            (f64::INFINITY, f64::INFINITY)
        );
        near(scaled_k(0.0, 1e-300), 690.8914594138721);
        near(scaled_k(1.0, 1e300), 1.2533141373155002e-150);
    }

    #[test]
    fn waves_far_out_have_tensorflows_phase() {
        let close = |got: f64, want: f64, digits: f64| {
            assert!(
                (got - want).abs() <= digits * want.abs(),
                "{got} is not {want}"
            );
        };
        close(single_j(0.0, 1e5).into(), -0.0017124248, 1e-5);
        close(single_j(1.0, -1e8).into(), 2.8993933e-05, 1e-5);
        close(single_y(0.0, 1e6).into(), -0.0007346727, 1e-5);
        close(double_j(0.0, 1e20), 6.095601906143758e-11, 1e-9);
        close(double_y(1.0, 1e20), -5.148360383517719e-11, 1e-9);
        assert!(double_j(0.0, f64::INFINITY).is_nan() && single_y(1.0, 0.0).is_nan());
        assert_eq!(single_y(0.0, -1.0), f32::NEG_INFINITY);
        assert_eq!(double_y(1.0, 0.0), f64::NEG_INFINITY);
    }

    type Exact = fn(f64) -> f64;

    #[test]
    fn fits_agree_with_their_definitions() {
        let pairs: [(&Fit, Exact); 8] = [
            (&I0E, |x| scaled_i(0.0, x)),
            (&I1E, |x| scaled_i(1.0, x)),
            (&K0E, |x| scaled_k(0.0, x)),
            (&K1E, |x| scaled_k(1.0, x)),
            (&J0, libm::j0),
            (&J1, libm::j1),
            (&Y0, libm::y0),
            (&Y1, libm::y1),
        ];
        for (i, (fit, exact)) in pairs.iter().enumerate() {
            for k in 0..400 {
                let x = 2f64.powf(f64::from(k) / 20.0 - 10.0);
                let (got, want) = (fit.at(x), exact(x));
                // What oscillates passes zero, where nothing is relative.
                let size = if i < 4 {
                    want.abs()
                } else {
                    want.abs().max(1.0)
                };
                assert!((got - want).abs() <= 1e-12 * size, "{i} {x}: {got} {want}");
            }
        }
    }
}
