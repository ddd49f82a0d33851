//! `exp` for arguments that are not positive, in a form that compilers turn into vector code.

/// `exp(x)` for `x <= 0` (or NaN), to about one unit in the last place; results below the
/// smallest normal number are zero.
#[inline(always)]
pub(crate) fn exp_down(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to the nearest integer and leaves it in the low bits.
    const MAGIC: f32 = 12_582_912.0;
    let low = if x < -87.336_54 { -87.336_54 } else { x };
    let shifted = low * std::f32::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    let r = low - n * 0.693_359_4 - n * -2.121_944_4e-4;
    let mut p = 1.987_569_2e-4f32;
    p = p * r + 1.398_199_9e-3;
    p = p * r + 8.333_452e-3;
    p = p * r + 4.166_579_6e-2;
    p = p * r + 1.666_666_5e-1;
    p = p * r + 5.0e-1;
    let e = p * r * r + r + 1.0;
    let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    let y = e * scale;
    if x < -87.336_54 { 0.0 } else { y }
}

#[cfg(test)]
mod tests {
    use super::exp_down;

    #[test]
    fn it_is_exp_to_the_last_bits() {
        for i in 0..100_000 {
            let x = -87.3 * i as f32 / 100_000.0;
            let (got, want) = (f64::from(exp_down(x)), f64::from(x).exp());
            assert!(((got - want) / want).abs() < 2e-7, "{x} {got} {want}");
        }
        assert_eq!(exp_down(0.0), 1.0);
        assert_eq!(exp_down(f32::NEG_INFINITY), 0.0);
        assert!(exp_down(f32::NAN).is_nan());
    }
}
