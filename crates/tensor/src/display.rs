//! How a tensor prints in errors, logs and `Print`/`Assert`/`AsString`-like ops: TensorFlow's
//! `SummarizeValue` forms.

use crate::{DType, Element, Tensor};
use std::fmt::{self, Write as _};

impl Tensor {
    /// The first `max_entries` elements with nested brackets, as TensorFlow's `SummarizeValue`
    /// prints them; a negative number means all of them.
    pub fn summarize(&self, max_entries: i64) -> String {
        let limit = usize::try_from(max_entries).unwrap_or(usize::MAX);
        let texts = self.element_texts(limit);
        let mut out = String::new();
        if self.shape().is_scalar() {
            out.push_str(texts.first().map_or("", String::as_str));
        } else if self.num_elements() == 0 {
            // TensorFlow prints nothing for an empty tensor.
        } else {
            nested(self.dims(), &texts, self.num_elements(), &mut 0, &mut out);
        }
        out
    }

    /// Up to `limit` elements as TensorFlow's streams print them.
    fn element_texts(&self, limit: usize) -> Vec<String> {
        fn plain<T: Element>(t: &Tensor, limit: usize, f: impl Fn(T) -> String) -> Vec<String> {
            t.as_slice::<T>()
                .map(|s| s.iter().take(limit).map(|&v| f(v)).collect())
                .unwrap_or_default()
        }
        match self.dtype() {
            DType::Float => plain(self, limit, |v: f32| {
                shortest_float(v.into(), format!("{v}"))
            }),
            DType::Double => plain(self, limit, |v: f64| shortest_float(v, format!("{v}"))),
            DType::Half => plain(self, limit, |v: half::f16| general_float(v.to_f64(), 6)),
            DType::BFloat16 => plain(self, limit, |v: half::bf16| general_float(v.to_f64(), 6)),
            DType::Int8 => plain(self, limit, |v: i8| v.to_string()),
            DType::Int16 => plain(self, limit, |v: i16| v.to_string()),
            DType::Int32 => plain(self, limit, |v: i32| v.to_string()),
            DType::Int64 => plain(self, limit, |v: i64| v.to_string()),
            DType::UInt8 => plain(self, limit, |v: u8| v.to_string()),
            DType::UInt16 => plain(self, limit, |v: u16| v.to_string()),
            DType::UInt32 => plain(self, limit, |v: u32| v.to_string()),
            DType::UInt64 => plain(self, limit, |v: u64| v.to_string()),
            DType::Bool => plain(self, limit, |v: bool| u8::from(v).to_string()),
            DType::Complex64 => plain(self, limit, |v: crate::Complex32| {
                format!(
                    "({},{})",
                    general_float(v.re.into(), 6),
                    general_float(v.im.into(), 6)
                )
            }),
            DType::Complex128 => plain(self, limit, |v: crate::Complex64| {
                format!("({},{})", general_float(v.re, 6), general_float(v.im, 6))
            }),
            DType::String => self
                .as_strings()
                .map(|s| {
                    let text = |b: &bytes::Bytes| String::from_utf8_lossy(b).into_owned();
                    s.iter().take(limit).map(text).collect()
                })
                .unwrap_or_default(),
            other => vec![format!("<{other}>"); self.num_elements().min(limit)],
        }
    }
}

fn nested(dims: &[usize], texts: &[String], total: usize, at: &mut usize, out: &mut String) {
    let Some((&n, rest)) = dims.split_first() else {
        return;
    };
    out.push('[');
    for i in 0..n {
        if *at >= texts.len() {
            if *at < total {
                out.push_str("...");
            }
            break;
        }
        if rest.is_empty() {
            if i > 0 {
                out.push(' ');
            }
            out.push_str(&texts[*at]);
            *at += 1;
        } else {
            nested(rest, texts, total, at, out);
        }
    }
    out.push(']');
}

/// Shortest text that reads back as the same number, in TensorFlow's exponent style.
fn shortest_float(value: f64, shortest: String) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 {
            "inf".into()
        } else {
            "-inf".into()
        };
    }
    let magnitude = value.abs();
    if value != 0.0 && !(1e-4..1e6).contains(&magnitude) {
        return exponent_form(&shortest);
    }
    shortest
}

/// Rewrites plain decimal digits as `d.ddde+XX`.
fn exponent_form(plain: &str) -> String {
    let (sign, digits) = match plain.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", plain),
    };
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let all: String = format!("{whole}{fraction}");
    let first = all.find(|c| c != '0').unwrap_or(0);
    let exponent = whole.len() as i64 - 1 - first as i64;
    let mantissa = all[first..].trim_end_matches('0');
    let (head, tail) = mantissa.split_at(1.min(mantissa.len()));
    let mut out = format!("{sign}{head}");
    if !tail.is_empty() {
        let _ = write!(out, ".{tail}");
    }
    let _ = write!(
        out,
        "e{}{:02}",
        if exponent < 0 { '-' } else { '+' },
        exponent.abs()
    );
    out
}

/// C's `%.<precision>g`.
pub(crate) fn general_float(value: f64, precision: usize) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 {
            "inf".into()
        } else {
            "-inf".into()
        };
    }
    if value == 0.0 {
        return if value.is_sign_negative() {
            "-0".into()
        } else {
            "0".into()
        };
    }
    let scientific = format!("{value:.*e}", precision - 1);
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if exponent < -4 || exponent >= precision as i32 {
        let mantissa = trim_zeros(mantissa);
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{mantissa}e{sign}{:02}", exponent.abs())
    } else {
        let decimals = (precision as i32 - 1 - exponent).max(0) as usize;
        trim_zeros(&format!("{value:.decimals$}")).to_owned()
    }
}

fn trim_zeros(text: &str) -> &str {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        text
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Tensor<{} {} {}>",
            self.dtype(),
            self.shape(),
            self.summarize(8)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_print_as_tensorflow_prints_them() {
        let t = Tensor::from_vec(vec![1.0f32, 2.5, 1e-5, 1e10], [2, 2]).unwrap();
        assert_eq!(t.summarize(-1), "[[1 2.5][1e-05 1e+10]]");
        assert_eq!(t.summarize(3), "[[1 2.5][1e-05...]]");
        assert_eq!(Tensor::scalar(true).summarize(3), "1");
        assert_eq!(
            Tensor::vector(vec![1i64, 2, 3, 4]).summarize(3),
            "[1 2 3...]"
        );
        assert_eq!(general_float(123456789.0, 6), "1.23457e+08");
        assert_eq!(general_float(0.0001, 6), "0.0001");
    }
}
