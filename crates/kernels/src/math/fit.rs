//! Functions whose definition takes long, by polynomials through their values: sixteen for each power of two, made from the
//! definition when the function is first used. Outside of the range that a fit covers, the definition answers.

/// Coefficients of a polynomial.
const TERMS: usize = 9;
/// Bits of the mantissa that choose a polynomial.
const CHOICE: u32 = 4;
/// Bits that do not.
const REST: u32 = 52 - CHOICE;

/// A function of positive numbers.
pub(crate) struct Fit {
    exact: fn(f64) -> f64,
    /// The number of the first polynomial: the upper bits of where it begins.
    first: u64,
    pieces: Vec<[f64; TERMS]>,
}

impl Fit {
    /// A fit of `exact` from 2^`low` to 2^`high`. There it must be smooth on the scale of its argument.
    pub(crate) fn new(exact: fn(f64) -> f64, low: i32, high: i32) -> Fit {
        let key = |power: i32| 2f64.powi(power).to_bits() >> REST;
        let first = key(low);
        let piece = |key: u64| {
            let (start, end) = (
                f64::from_bits(key << REST),
                f64::from_bits((key + 1) << REST),
            );
            interpolate(|t| exact((start + end) / 2.0 + (end - start) / 2.0 * t))
        };
        Fit {
            exact,
            first,
            pieces: (first..key(high)).map(piece).collect(),
        }
    }

    /// The value at `x`.
    #[inline]
    pub(crate) fn at(&self, x: f64) -> f64 {
        let bits = x.to_bits();
        // A negative number, NaN or infinity has a number beyond the last.
        let piece = (bits >> REST).wrapping_sub(self.first);
        let Some(c) = usize::try_from(piece).ok().and_then(|i| self.pieces.get(i)) else {
            return (self.exact)(x);
        };
        // Where in its piece, from -1 to 1: the rest of the mantissa.
        let t = 2.0 * f64::from_bits(1f64.to_bits() | (bits << CHOICE & ((1 << 52) - 1))) - 3.0;
        // Pairs of terms, so that fewer additions wait for one another.
        let s = t * t;
        let (a, b) = (c[0] + c[1] * t, c[2] + c[3] * t);
        let (d, e) = (c[4] + c[5] * t, c[6] + c[7] * t);
        a + s * (b + s * (d + s * (e + s * c[8])))
    }
}

/// The polynomial that agrees with `f` at Chebyshev's points of -1 to 1, lowest power first.
fn interpolate(f: impl Fn(f64) -> f64) -> [f64; TERMS] {
    let n = TERMS as f64;
    let angle = |k: usize| std::f64::consts::PI * (k as f64 + 0.5) / n;
    let values: [f64; TERMS] = std::array::from_fn(|k| f(angle(k).cos()));
    let mut sum = [0.0; TERMS];
    // Chebyshev's polynomials of two degrees in powers of t: each follows from the two before.
    let (mut older, mut newer) = ([0.0; TERMS], [0.0; TERMS]);
    newer[0] = 1.0;
    for j in 0..TERMS {
        let both = values.iter().enumerate();
        let dot: f64 = both.map(|(k, v)| v * (j as f64 * angle(k)).cos()).sum();
        let weight = if j == 0 { 1.0 / n } else { 2.0 / n };
        for (s, p) in sum.iter_mut().zip(newer) {
            *s += weight * dot * p;
        }
        let grown = if j == 0 { 1.0 } else { 2.0 };
        let next = std::array::from_fn(|i| {
            let shifted = if i == 0 { 0.0 } else { newer[i - 1] };
            grown * shifted - older[i]
        });
        (older, newer) = (newer, next);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fit_agrees_with_its_definition_inside_and_outside() {
        let f: fn(f64) -> f64 = |x| (1.0 + x).ln() / (2.0 + x.sqrt());
        let fit = Fit::new(f, -6, 6);
        for i in 0..20_000 {
            let x = 2f64.powf(f64::from(i) / 1000.0 - 10.0);
            assert!((fit.at(x) - f(x)).abs() < 1e-13 * f(x).abs(), "{x}");
        }
        for x in [-1.0, f64::NAN, f64::INFINITY, 0.0, -0.0] {
            assert_eq!(fit.at(x).to_bits(), f(x).to_bits());
        }
    }
}
