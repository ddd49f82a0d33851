//! Bessel functions of orders 0 and 1, modified and not.

use super::binary::no_code;
use super::fit::Fit;
use super::tables::{NO_BFLOAT, pick1};
use super::unary::elementwise;
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, Registry};
use std::f64::consts::PI;
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
    r.add_typed("BesselI0e", &t, |b| built(b, |x| I0E.at(x.abs())));
    r.add_typed("BesselI1e", &t, |b| built(b, |x| odd(&I1E, x)));
    r.add_typed("BesselI0", &t, |b| {
        built(b, |x| I0E.at(x.abs()) * x.abs().exp())
    });
    r.add_typed("BesselI1", &t, |b| {
        built(b, |x| odd(&I1E, x) * x.abs().exp())
    });
    r.add_typed("BesselK0e", &t, |b| built(b, |x| K0E.at(x)));
    r.add_typed("BesselK1e", &t, |b| built(b, |x| K1E.at(x)));
    r.add_typed("BesselK0", &t, |b| built(b, |x| unscaled(K0E.at(x), x)));
    r.add_typed("BesselK1", &t, |b| built(b, |x| unscaled(K1E.at(x), x)));
    r.add_typed("BesselJ0", &t, |b| built(b, |x| J0.at(x.abs())));
    r.add_typed("BesselJ1", &t, |b| built(b, |x| odd(&J1, x)));
    r.add_typed("BesselY0", &t, |b| built(b, |x| Y0.at(x)));
    r.add_typed("BesselY1", &t, |b| built(b, |x| Y1.at(x)));
}

/// An odd function from its fit.
fn odd(fit: &Fit, x: f64) -> f64 {
    let value = fit.at(x.abs());
    if x < 0.0 { -value } else { value }
}

fn built(b: &KernelBuilder<'_>, f: fn(f64) -> f64) -> Result<Built> {
    let t = b.attrs().dtype("T")?;
    let float = move |x: f32| f(x.into()) as f32;
    elementwise(pick1!(t; float => float; double => f).ok_or_else(|| no_code(t))?)
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
        sum / (2.0 * PI * a).sqrt()
    };
    if order == 1.0 && x < 0.0 {
        -value
    } else {
        value
    }
}

/// e^x K(x) for order 0 or 1.
fn scaled_k(order: f64, x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    if x <= 0.0 {
        return f64::INFINITY;
    }
    if x.is_infinite() {
        return 0.0;
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

/// K(x) from e^x K(x).
fn unscaled(scaled: f64, x: f64) -> f64 {
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
        near(unscaled(scaled_k(1.0, 2.0), 2.0), 0.13986588181652243);
        near(unscaled(scaled_k(1.0, 1e-5), 1e-5), 99_999.999_939_355_71);
        assert_eq!((scaled_i(0.0, 0.0), scaled_i(1.0, 0.0)), (1.0, 0.0));
        assert_eq!(
            (scaled_k(0.0, 0.0), unscaled(K1E.at(-1.0), -1.0)),
            (f64::INFINITY, f64::INFINITY)
        );
    }

    #[test]
    fn fits_agree_with_their_definitions() {
        let pairs: [(&Fit, fn(f64) -> f64); 8] = [
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
