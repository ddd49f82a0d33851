//! Incomplete gamma and beta functions, Hurwitz zeta, polygamma: functions of two or three
//! numbers, computed in `f64` whatever the type.

use super::binary::arithmetic;
use super::elementwise::{Binary, scalar2};
use super::special::digamma;
use super::tables::WIDE;
use crate::types::with_type;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry, parallel_ranges};
use downpour_tensor::DType::{self, *};
use downpour_tensor::{Element, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Igamma", &[("T", WIDE)], |b| {
        arithmetic(b, |t| wide(t, igamma_to))
    });
    r.add_typed("Igammac", &[("T", WIDE)], |b| {
        arithmetic(b, |t| wide(t, igammac_to))
    });
    r.add_typed("IgammaGradA", &[("T", WIDE)], |b| {
        arithmetic(b, |t| wide(t, igamma_grad_a))
    });
    r.add_typed("RandomGammaGrad", &[("T", WIDE)], |b| {
        arithmetic(b, |t| wide(t, sample_gradient))
    });
    r.add_typed("Zeta", &[("T", WIDE)], |b| arithmetic(b, |t| wide(t, zeta)));
    r.add_typed("Polygamma", &[("T", WIDE)], |b| {
        arithmetic(b, |t| wide(t, polygamma))
    });
    r.add_typed("Betainc", &[("T", WIDE)], |b| {
        let t = b.attrs().dtype("T")?;
        with_type!(t, T in [f32, f64] => Built::costly(betainc_op::<T>))
    });
}

fn wide(t: DType, f: fn(f64, f64, Exact) -> f64) -> Option<Box<dyn Binary>> {
    match t {
        Float => Some(scalar2(move |a: f32, b: f32| {
            f(a.into(), b.into(), SINGLE) as f32
        })),
        Double => Some(scalar2(move |a, b| f(a, b, DOUBLE))),
        _ => None,
    }
}

/// The part of a sum below which a further term no longer matters.
type Exact = f64;
/// What a float can tell, and some digits more.
const SINGLE: Exact = 1e-10;
/// The same of a double: products of factors near 1 do not come closer to 1 than this.
const DOUBLE: Exact = 4e-16;

/// Series and fractions end when a term no longer matters, and after this many terms at last.
const TERMS: usize = 20_000;
const TINY: f64 = 1e-300;

/// xᵃ e⁻ˣ / Γ(a).
fn gamma_factor(a: f64, x: f64) -> f64 {
    if a > 100.0 && (x - a).abs() < 0.4 * a {
        // Near x = a the terms of the exponent nearly cancel: they are taken together, with
        // Stirling's series for the rest.
        let mu = (x - a) / a;
        let stirling = 1.0 / (12.0 * a) - 1.0 / (360.0 * a * a * a) + 1.0 / (1260.0 * a.powi(5));
        let exponent = a * (mu.ln_1p() - mu) - stirling;
        return (a / (2.0 * std::f64::consts::PI)).sqrt() * exponent.exp();
    }
    (a * x.ln() - x - libm::lgamma(a)).exp()
}

/// The regularised lower incomplete gamma function by its series.
fn gamma_series(a: f64, x: f64, exact: Exact) -> f64 {
    let (mut term, mut sum) = (1.0 / a, 1.0 / a);
    for n in 1..TERMS {
        term *= x / (a + n as f64);
        sum += term;
        if term < sum * exact * 0.1 {
            break;
        }
    }
    gamma_factor(a, x) * sum
}

/// The regularised upper incomplete gamma function by its continued fraction.
fn gamma_fraction(a: f64, x: f64, exact: Exact) -> f64 {
    let mut b = x + 1.0 - a;
    let mut c = 1.0 / TINY;
    let mut d = 1.0 / b;
    let mut h = d;
    for i in 1..TERMS {
        let an = -(i as f64) * (i as f64 - a);
        b += 2.0;
        d = 1.0 / nonzero(an * d + b);
        c = nonzero(b + an / c);
        h *= d * c;
        if (d * c - 1.0).abs() < exact {
            break;
        }
    }
    gamma_factor(a, x) * h
}

fn nonzero(x: f64) -> f64 {
    if x.abs() < TINY { TINY } else { x }
}

/// The regularised lower incomplete gamma function.
fn igamma_to(a: f64, x: f64, exact: Exact) -> f64 {
    if x.is_nan() || a.is_nan() || x < 0.0 || a < 0.0 {
        return f64::NAN;
    }
    if x == 0.0 || a.is_infinite() {
        return if a.is_infinite() && x.is_infinite() {
            f64::NAN
        } else {
            0.0
        };
    }
    if a == 0.0 {
        return f64::NAN;
    }
    if x.is_infinite() {
        return 1.0;
    }
    if x > 1.0 && x > a {
        1.0 - gamma_fraction(a, x, exact)
    } else {
        gamma_series(a, x, exact)
    }
}

/// The regularised upper incomplete gamma function.
fn igammac(a: f64, x: f64) -> f64 {
    igammac_to(a, x, DOUBLE)
}

fn igammac_to(a: f64, x: f64, exact: Exact) -> f64 {
    if x.is_nan() || a.is_nan() || x < 0.0 || a <= 0.0 {
        return f64::NAN;
    }
    if x == 0.0 || a.is_infinite() {
        return if a.is_infinite() && x.is_infinite() {
            f64::NAN
        } else {
            1.0
        };
    }
    if x.is_infinite() {
        return 0.0;
    }
    if x > 1.0 && x > a {
        gamma_fraction(a, x, exact)
    } else {
        1.0 - gamma_series(a, x, exact)
    }
}

/// How a number drawn from the gamma distribution moves with the distribution's shape `a`.
fn sample_gradient(a: f64, x: f64, exact: Exact) -> f64 {
    if x.is_nan() || a.is_nan() || x < 0.0 || a <= 0.0 {
        return f64::NAN;
    }
    if x == 0.0 {
        return 0.0;
    }
    // The distribution function stays the same: its change by `a` over the density.
    match gamma_factor(a, x) {
        0.0 => 0.0,
        density => -igamma_grad_a(a, x, exact) * x / density,
    }
}

/// The derivative of `igamma` by its first argument.
fn igamma_grad_a(a: f64, x: f64, exact: Exact) -> f64 {
    if x.is_nan() || a.is_nan() || x < 0.0 || a <= 0.0 {
        return f64::NAN;
    }
    if x == 0.0 {
        return 0.0;
    }
    if x <= a + 30.0 {
        // The series term by term: t' = t·(x's logarithm - Σ 1/(a+k)).
        let (mut term, mut slope) = (1.0 / a, -1.0 / a);
        let (mut sum, mut weighted) = (term, term * slope);
        for n in 1..TERMS {
            let at = a + n as f64;
            term *= x / at;
            slope -= 1.0 / at;
            sum += term;
            weighted += term * slope;
            if (term * slope).abs() < weighted.abs() * exact * 0.1 {
                break;
            }
        }
        return gamma_factor(a, x) * (sum * (x.ln() - digamma(a)) + weighted);
    }
    // Far out the complement is smooth in `a`: a central difference of high order.
    let h = 1e-3 * a.max(1.0);
    let q = |k: f64| igammac(a + k * h, x);
    let first = q(1.0) - q(-1.0);
    let second = q(2.0) - q(-2.0);
    let third = q(3.0) - q(-3.0);
    -(45.0 * first - 9.0 * second + third) / (60.0 * h)
}

/// The Hurwitz zeta function, by the Euler-Maclaurin formula.
pub(crate) fn zeta(x: f64, q: f64, exact: Exact) -> f64 {
    if x == 1.0 {
        return f64::INFINITY;
    }
    if x.is_nan() || q.is_nan() || x < 1.0 {
        return f64::NAN;
    }
    if q <= 0.0 {
        if q == q.floor() {
            return f64::INFINITY;
        }
        if x != x.floor() {
            return f64::NAN;
        }
    }
    // B₂ₖ / (2k)!
    const BERNOULLI: [f64; 12] = [
        1.0 / 12.0,
        -1.0 / 720.0,
        1.0 / 30_240.0,
        -1.0 / 1_209_600.0,
        1.0 / 47_900_160.0,
        -691.0 / 1_307_674_368_000.0,
        1.0 / 74_724_249_600.0,
        -3617.0 / 10_670_622_842_880_000.0,
        43_867.0 / 5_109_094_217_170_944_000.0,
        -174_611.0 / 802_857_662_698_291_200_000.0,
        77_683.0 / 14_101_100_039_391_805_440_000.0,
        -236_364_091.0 / 1_693_824_136_731_743_669_452_800_000.0,
    ];
    let (mut sum, mut a) = (0.0, q);
    let mut steps = 0;
    while steps < 10 || a < 10.0 {
        let term = a.powf(-x);
        sum += term;
        // All that follow are smaller, and for a large `x` much smaller together.
        if term * a < sum * exact * 0.01 * (x - 1.0) && a > 1.0 {
            return sum;
        }
        a += 1.0;
        steps += 1;
    }
    let power = a.powf(-x);
    sum += power * a / (x - 1.0) + 0.5 * power;
    let mut term = x * power / a;
    for (k, b) in BERNOULLI.iter().enumerate() {
        sum += b * term;
        if (b * term).abs() < sum.abs() * exact * 0.01 {
            break;
        }
        let at = x + 2.0 * k as f64;
        term *= (at + 1.0) * (at + 2.0) / (a * a);
    }
    sum
}

fn polygamma(n: f64, x: f64, exact: Exact) -> f64 {
    if n != n.floor() || n < 0.0 {
        return f64::NAN;
    }
    if n == 0.0 {
        return digamma(x);
    }
    let sign = if n % 2.0 == 0.0 { -1.0 } else { 1.0 };
    let factorial = if n < 20.0 {
        (2..=n as u64).product::<u64>() as f64
    } else {
        libm::lgamma(n + 1.0).exp()
    };
    sign * factorial * zeta(n + 1.0, x, exact)
}

/// The regularised incomplete beta function.
fn betainc(a: f64, b: f64, x: f64, exact: Exact) -> f64 {
    if a.is_nan() || b.is_nan() || a <= 0.0 || b <= 0.0 || !(0.0..=1.0).contains(&x) {
        return f64::NAN;
    }
    if x == 0.0 || x == 1.0 {
        return x;
    }
    let log =
        libm::lgamma(a + b) - libm::lgamma(a) - libm::lgamma(b) + a * x.ln() + b * (-x).ln_1p();
    if x < (a + 1.0) / (a + b + 2.0) {
        log.exp() * beta_fraction(a, b, x, exact) / a
    } else {
        1.0 - log.exp() * beta_fraction(b, a, 1.0 - x, exact) / b
    }
}

fn beta_fraction(a: f64, b: f64, x: f64, exact: Exact) -> f64 {
    let mut c = 1.0;
    let mut d = 1.0 / nonzero(1.0 - (a + b) * x / (a + 1.0));
    let mut h = d;
    for i in 1..TERMS {
        let m = i as f64;
        let even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m));
        d = 1.0 / nonzero(1.0 + even * d);
        c = nonzero(1.0 + even / c);
        h *= d * c;
        let odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0));
        d = 1.0 / nonzero(1.0 + odd * d);
        c = nonzero(1.0 + odd / c);
        h *= d * c;
        if (d * c - 1.0).abs() < exact {
            break;
        }
    }
    h
}

/// Elements that widen to `f64`.
trait Real: Element + Into<f64> {
    const EXACT: Exact;
    fn round(x: f64) -> Self;
}

impl Real for f32 {
    const EXACT: Exact = SINGLE;
    fn round(x: f64) -> f32 {
        x as f32
    }
}

impl Real for f64 {
    const EXACT: Exact = DOUBLE;
    fn round(x: f64) -> f64 {
        x
    }
}

/// Values of the incomplete beta function worth a thread of their own.
const BETA_GRAIN: usize = 256;

/// Operands of one shape, or scalars.
fn betainc_op<T: Real>(ctx: &mut OpContext<'_>) -> Result<()> {
    let names = ["a", "b", "x"];
    let inputs = [ctx.take(0)?, ctx.take(1)?, ctx.take(2)?];
    let mut full: Option<(usize, &Tensor)> = None;
    for (i, t) in inputs.iter().enumerate() {
        if t.shape().is_scalar() {
            continue;
        }
        match full {
            Some((j, first)) if first.shape() != t.shape() => {
                return Err(Status::invalid_argument(format!(
                    "Shapes of {} and {} are inconsistent: {} vs. {}",
                    names[j],
                    names[i],
                    first.shape(),
                    t.shape()
                )));
            }
            Some(_) => {}
            None => full = Some((i, t)),
        }
    }
    let shape = full.map_or_else(Default::default, |(_, t)| t.shape().clone());
    let mut out = ctx.zeros(T::DTYPE, &shape)?;
    let slices = [
        inputs[0].as_slice::<T>()?,
        inputs[1].as_slice::<T>()?,
        inputs[2].as_slice::<T>()?,
    ];
    let at = |s: &[T], i: usize| -> f64 { s[if s.len() == 1 { 0 } else { i }].into() };
    let [a, b, x] = slices;
    parallel_ranges(out.make_mut::<T>()?, 1, BETA_GRAIN, |first, out| {
        for (i, to) in (first..).zip(out) {
            *to = T::round(betainc(at(a, i), at(b, i), at(x, i), T::EXACT));
        }
    });
    ctx.set_output(0, out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn igamma(a: f64, x: f64) -> f64 {
        igamma_to(a, x, DOUBLE)
    }

    fn near(got: f64, want: f64) {
        assert!(
            (got - want).abs() <= 1e-11 * want.abs(),
            "{got} is not {want}"
        );
    }

    #[test]
    fn values_are_those_of_tensorflow() {
        for (a, x, p, q) in [
            (0.1, 0.1, 0.8275517595858507, 0.1724482404141493),
            (1.0, 2.0, 0.8646647167633873, 0.1353352832366127),
            (10.0, 9.0, 0.4125917556680593, 0.5874082443319407),
            (100.0, 110.0, 0.8417213299399123, 0.15827867006008764),
            (1000.0, 1000.0, 0.5042052441801859, 0.49579475581975496),
            (0.5, 20.0, 0.9999999997460371, 2.5396285894708634e-10),
        ] {
            near(igamma(a, x), p);
            near(igammac(a, x), q);
        }
        near(igamma_grad_a(0.1, 0.1, DOUBLE), -1.6219824706549486);
        near(igamma_grad_a(1.0, 2.0, DOUBLE), -0.22082542621185938);
        near(igamma_grad_a(100.0, 110.0, DOUBLE), -0.023808656854890364);
        near(zeta(1.5, 0.5, DOUBLE), 4.776537947554834);
        near(zeta(2.0, 1.0, DOUBLE), 1.6449340668482266);
        near(zeta(2.0, -1.5, DOUBLE), 9.379246644989124);
        near(zeta(20.0, 1.0, DOUBLE), 1.0000009539620338);
        near(polygamma(2.0, 1.0, DOUBLE), -2.404113806319188);
        near(polygamma(3.0, 2.5, DOUBLE), 0.2239058488172521);
        near(polygamma(10.0, 3.0, DOUBLE), -21.43660662871304);
        near(betainc(2.0, 2.0, 0.3, DOUBLE), 0.216);
        near(betainc(100.0, 200.0, 0.33, DOUBLE), 0.4566181633340067);
        near(betainc(0.1, 0.2, 0.3, DOUBLE), 0.6228433547203174);
        near(betainc(1000.0, 900.0, 0.5, DOUBLE), 0.01086108263068344);
    }

    #[test]
    fn floats_need_fewer_terms_and_are_as_exact_as_floats_are() {
        for i in 0..400 {
            let (a, b) = (
                0.05 + f64::from(i % 20) * 1.7,
                0.1 + f64::from(i / 20) * 2.3,
            );
            let x = f64::from(i) / 401.0;
            let same = |short: f64, long: f64| {
                assert!(
                    (short - long).abs() <= 1e-8 * long.abs().max(1e-30),
                    "{a} {b}: {short} {long}"
                );
            };
            same(igamma_to(a, b, SINGLE), igamma_to(a, b, DOUBLE));
            same(igammac_to(a, b, SINGLE).max(1e-6), igammac(a, b).max(1e-6));
            same(zeta(1.0 + a, b, SINGLE), zeta(1.0 + a, b, DOUBLE));
            same(
                betainc(a, b, x, SINGLE).max(1e-6),
                betainc(a, b, x, DOUBLE).max(1e-6),
            );
            same(
                polygamma(f64::from(i % 30), b, SINGLE),
                polygamma(f64::from(i % 30), b, DOUBLE),
            );
        }
        // An iteration that turns around 1 in the last place ends all the same.
        near(betainc(3.0, 5.0, 0.4, DOUBLE), 0.580096);
    }

    #[test]
    fn derivatives_agree_with_differences() {
        for (a, x) in [
            (0.1, 0.1),
            (1.0, 2.0),
            (10.0, 9.0),
            (100.0, 110.0),
            (2.0, 40.0),
        ] {
            let h = 1e-4 * a;
            let slope = (8.0 * (igamma(a + h, x) - igamma(a - h, x))
                - (igamma(a + 2.0 * h, x) - igamma(a - 2.0 * h, x)))
                / (12.0 * h);
            let got = igamma_grad_a(a, x, DOUBLE);
            assert!(
                (got - slope).abs() < 1e-7 * slope.abs().max(1e-4),
                "{a} {x}: {got} {slope}"
            );
        }
    }

    #[test]
    fn arguments_outside_the_domain_give_nan() {
        for bad in [
            igamma(0.0, 1.0),
            igamma(-1.0, 1.0),
            igamma(1.0, -1.0),
            igammac(0.0, 1.0),
            zeta(0.5, 1.0, DOUBLE),
            polygamma(1.5, 1.0, DOUBLE),
            polygamma(-1.0, 1.0, DOUBLE),
            betainc(-1.0, 1.0, 0.5, DOUBLE),
            betainc(1.0, 1.0, 1.5, DOUBLE),
            betainc(f64::NAN, 1.0, 0.5, DOUBLE),
        ] {
            assert!(bad.is_nan());
        }
        assert_eq!((igamma(1.0, 0.0), igammac(1.0, 0.0)), (0.0, 1.0));
        assert_eq!(
            (zeta(1.0, 2.0, DOUBLE), zeta(2.0, -1.0, DOUBLE)),
            (f64::INFINITY, f64::INFINITY)
        );
    }
}
