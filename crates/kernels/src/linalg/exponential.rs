//! `MatrixExponential`: scaled until small, a Padé approximant, squared back.

use super::batch::{FOUR, by_field};
use super::field::{Dense, Field};
use super::functions::{map, times};
use super::lu::Lu;
use downpour_runtime::Registry;
use num_complex::Complex64;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("MatrixExponential", &[("T", FOUR)], |b| {
        by_field(
            b,
            |ctx| map::<f64>(ctx, exponential),
            |ctx| map::<Complex64>(ctx, exponential),
        )
    });
}

/// Coefficients of the diagonal approximant of degree 13, highest last.
const PADE: [f64; 14] = [
    64_764_752_532_480_000.0,
    32_382_376_266_240_000.0,
    7_771_770_303_897_600.0,
    1_187_353_796_428_800.0,
    129_060_195_264_000.0,
    10_559_470_521_600.0,
    670_442_572_800.0,
    33_522_128_640.0,
    1_323_241_920.0,
    40_840_800.0,
    960_960.0,
    16_380.0,
    182.0,
    1.0,
];

/// Up to this norm degree 13 is exact to double precision.
const LARGEST: f64 = 5.371_920_351_148_152;

fn exponential<C: Field>(mut a: Dense<C>) -> Dense<C> {
    let n = a.rows;
    let column = |j: usize| (0..n).map(|i| a.get(i, j).abs()).sum::<f64>();
    let norm = (0..n).map(column).fold(0.0, f64::max);
    if !norm.is_finite() {
        return Dense::new(n, n, vec![C::real(f64::NAN); n * n]);
    }
    let halvings = (norm / LARGEST).log2().ceil().clamp(0.0, 1100.0) as i32;
    let scale = C::real(0.5f64.powi(halvings));
    a.values.iter_mut().for_each(|v| *v = *v * scale);
    // Even and odd powers apart: exp(a) = (even + odd) / (even - odd).
    let square = times(&a, &a);
    let (mut even, mut odd) = (
        scaled(&Dense::identity(n), 0),
        scaled(&Dense::identity(n), 1),
    );
    let mut power = Dense::identity(n);
    for k in 1..7 {
        power = times(&power, &square);
        add(&mut even, &scaled(&power, 2 * k));
        add(&mut odd, &scaled(&power, 2 * k + 1));
    }
    let odd = times(&a, &odd);
    let both = |sign: f64| {
        let values = even.values.iter().zip(&odd.values);
        Dense::new(n, n, values.map(|(e, o)| *e + *o * C::real(sign)).collect())
    };
    let mut out = Lu::new(both(-1.0)).solve(&both(1.0));
    for _ in 0..halvings {
        out = times(&out, &out);
    }
    out
}

fn scaled<C: Field>(a: &Dense<C>, coefficient: usize) -> Dense<C> {
    let by = C::real(PADE[coefficient]);
    Dense::new(a.rows, a.cols, a.values.iter().map(|v| *v * by).collect())
}

fn add<C: Field>(to: &mut Dense<C>, from: &Dense<C>) {
    for (to, from) in to.values.iter_mut().zip(&from.values) {
        *to = *to + *from;
    }
}

#[cfg(test)]
mod tests {
    use super::{Dense, exponential};

    #[test]
    fn a_turn_is_the_exponential_of_its_angle() {
        for angle in [0.0f64, 0.3, 2.0, 40.0] {
            let e = exponential(Dense::new(2, 2, vec![0.0, -angle, angle, 0.0]));
            let wanted = [angle.cos(), -angle.sin(), angle.sin(), angle.cos()];
            for (got, want) in e.values.iter().zip(wanted) {
                assert!((got - want).abs() < 1e-10, "{got} {want}");
            }
        }
    }
}
