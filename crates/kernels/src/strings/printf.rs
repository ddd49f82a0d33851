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
