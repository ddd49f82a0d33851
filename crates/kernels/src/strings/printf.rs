//! C's number formats, as far as `AsString` reaches them: `%f`, `%e`, `%g`, `%d` with flags,
//! width and precision.

/// What stands between `%` and the conversion letter.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spec {
    /// One of `0`, `-`, `+`, space; 0 for none.
    pub(crate) flag: u8,
    /// Least number of characters.
    pub(crate) width: usize,
    /// Digits; `None` means six.
    pub(crate) precision: Option<usize>,
}

/// The notation of a float.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notation {
    /// `%f`
    Fixed,
    /// `%e`
    Scientific,
    /// `%g`
    Shortest,
}

/// Formats a float.
pub(crate) fn float(value: f64, notation: Notation, spec: Spec) -> String {
    let (magnitude, negative) = (value.abs(), value.is_sign_negative());
    if !value.is_finite() {
        // C prints the sign of a NaN too, but TensorFlow's NaNs are the positive ones unless
        // computed; a negative one prints as such.
        let text = if value.is_nan() { "nan" } else { "inf" };
        return pad(text, negative, spec, false);
    }
    let precision = spec.precision.unwrap_or(6);
    let digits = match notation {
        Notation::Fixed => format!("{magnitude:.precision$}"),
        Notation::Scientific => scientific(magnitude, precision),
        Notation::Shortest => general(magnitude, precision.max(1)),
    };
    pad(&digits, negative, spec, true)
}

/// Most digits after the point that [`fixed`] gives: with them a fraction of 53 bits fits 128.
const FIXED_DIGITS: usize = 17;

/// Appends `value` as `%.{precision}f`; `false` for what it leaves to [`float`]: numbers that are not finite or beyond 2⁶³, and
/// more digits than fit. Exact, a tie goes to the even digit, as C does it.
pub(super) fn fixed(value: f64, precision: usize, out: &mut Vec<u8>) -> bool {
    if precision > FIXED_DIGITS || !(value.abs() < 9.2e18) {
        return false;
    }
    let bits = value.to_bits();
    let exponent = (bits >> 52 & 0x7ff) as i32;
    let mantissa = bits & ((1 << 52) - 1);
    // value = mantissa · 2^power
    let (mantissa, power) = match exponent {
        0 => (mantissa, -1074),
        _ => (mantissa | 1 << 52, exponent - 1075),
    };
    let scale = 10u64.pow(precision as u32);
    let (mut whole, mut fraction) = match power {
        0.. => (mantissa << power, 0),
        _ => {
            let shift = power.unsigned_abs();
            let (whole, rest) = match shift {
                ..64 => (mantissa >> shift, mantissa & ((1 << shift) - 1)),
                _ => (0, mantissa),
            };
            let scaled = u128::from(rest) * u128::from(scale);
            // Fewer than 111 bits: with more to drop nothing is left, nor half of one.
            let (digits, dropped, half) = match shift {
                ..128 => (
                    scaled >> shift,
                    scaled & ((1 << shift) - 1),
                    1 << (shift - 1),
                ),
                _ => (0, 0, 1u128),
            };
            let odd = if precision == 0 {
                whole & 1 == 1
            } else {
                digits & 1 == 1
            };
            let up = dropped > half || (dropped == half && odd);
            (whole, digits as u64 + u64::from(up))
        }
    };
    if fraction == scale {
        (whole, fraction) = (whole + 1, 0);
    } else if precision == 0 {
        (whole, fraction) = (whole + fraction, 0);
    }
    if value.is_sign_negative() {
        out.push(b'-');
    }
    let mut room = [0; 20];
    out.extend_from_slice(decimal(whole, &mut room).as_bytes());
    if precision > 0 {
        out.push(b'.');
        let digits = decimal(fraction, &mut room);
        out.resize(out.len() + precision - digits.len(), b'0');
        out.extend_from_slice(digits.as_bytes());
    }
    true
}

/// The digits of a number, in `room`.
pub(super) fn decimal(mut v: u64, room: &mut [u8; 20]) -> &str {
    const PAIRS: &[u8; 200] = b"0001020304050607080910111213141516171819\
2021222324252627282930313233343536373839\
4041424344454647484950515253545556575859\
6061626364656667686970717273747576777879\
8081828384858687888990919293949596979899";
    let mut at = room.len();
    while v >= 10 {
        let pair = (v % 100) as usize * 2;
        v /= 100;
        at -= 2;
        room[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    }
    // A single digit is left, or none after pairs.
    if v > 0 || at == room.len() {
        at -= 1;
        room[at] = b'0' + v as u8;
    }
    std::str::from_utf8(&room[at..]).unwrap_or_default()
}

/// Formats an integer given as its digits.
pub(super) fn integer(digits: &str, negative: bool, spec: Spec) -> String {
    pad(digits, negative, spec, true)
}

/// Pads any text to the width, on the left unless the flag is `-`.
pub(super) fn text(value: &[u8], spec: Spec) -> Vec<u8> {
    let missing = spec.width.saturating_sub(value.len());
    let mut out = Vec::with_capacity(value.len() + missing);
    if spec.flag != b'-' {
        out.resize(missing, b' ');
    }
    out.extend_from_slice(value);
    if spec.flag == b'-' {
        out.resize(value.len() + missing, b' ');
    }
    out
}

fn pad(digits: &str, negative: bool, spec: Spec, zeros: bool) -> String {
    let sign = match (negative, spec.flag) {
        (true, _) => "-",
        (false, b'+') => "+",
        (false, b' ') => " ",
        _ => "",
    };
    let missing = spec.width.saturating_sub(sign.len() + digits.len());
    match spec.flag {
        b'-' => format!("{sign}{digits}{}", " ".repeat(missing)),
        b'0' if zeros => format!("{sign}{}{digits}", "0".repeat(missing)),
        _ => format!("{}{sign}{digits}", " ".repeat(missing)),
    }
}

fn scientific(magnitude: f64, precision: usize) -> String {
    let text = format!("{magnitude:.precision$e}");
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    with_exponent(mantissa, exponent.parse().unwrap_or(0))
}

fn with_exponent(mantissa: &str, exponent: i32) -> String {
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{mantissa}e{sign}{:02}", exponent.unsigned_abs())
}

fn general(magnitude: f64, precision: usize) -> String {
    let text = format!("{magnitude:.*e}", precision - 1);
    let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < -4 || i64::from(exponent) >= precision as i64 {
        return with_exponent(trim_zeros(mantissa), exponent);
    }
    let decimals = (precision as i64 - 1 - i64::from(exponent)).max(0) as usize;
    trim_zeros(&format!("{magnitude:.decimals$}")).to_owned()
}

fn trim_zeros(text: &str) -> &str {
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.'),
        false => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fixed_numbers_are_those_of_the_library() {
        let mut bits = 1u64;
        let odd = [
            0.0,
            -0.0,
            0.5,
            1.5,
            2.5,
            0.125,
            0.375,
            1e-7,
            5e-7,
            0.9999996,
            999_999.999_999_9,
            1e18,
            5e-324,
            9e18,
        ];
        let random = (0..20_000).map(|i| {
            bits = bits
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let v = f64::from_bits(bits);
            match i % 3 {
                0 => v,
                1 => f64::from(f32::from_bits((bits >> 32) as u32)),
                _ => (bits >> 40) as f64 / 256.0,
            }
        });
        for v in odd.into_iter().chain(random) {
            for precision in [0, 1, 2, 6, 17] {
                let mut got = Vec::new();
                if !fixed(v, precision, &mut got) {
                    assert!(!(v.abs() < 9.2e18));
                    continue;
                }
                let want = format!("{v:.precision$}");
                assert_eq!(String::from_utf8(got).unwrap(), want);
            }
        }
    }

    #[test]
    fn digits_of_integers() {
        for v in [0, 7, 10, 99, 100, 101, 12_345, u64::MAX] {
            assert_eq!(decimal(v, &mut [0; 20]), v.to_string());
        }
    }
}
