//! How a tensor prints in errors, logs and ops like `Print`, `Assert` and `StringFormat`:
//! TensorFlow's `SummarizeValue` in its two forms.

use crate::{DType, Element, Tensor};
use std::fmt;

impl Tensor {
    /// The first `max_entries` elements (all if negative) as TensorFlow prints them in errors:
    /// no brackets around the whole, one pair around each row of more than one dimension, `...`
    /// for what is left out.
    ///
    /// ```
    /// use downpour_tensor::Tensor;
    /// assert_eq!(Tensor::vector(vec![1i32, 2, 3, 4]).summarize(3), "1 2 3...");
    /// ```
    pub fn summarize(&self, max_entries: i64) -> String {
        let total = self.num_elements();
        let limit = usize::try_from(max_entries).unwrap_or(total).min(total);
        let texts = self.element_texts(0..limit, false);
        let mut out = String::new();
        if texts.is_none() || self.shape().is_scalar() {
            out = texts.unwrap_or_else(|| self.opaque_texts(limit)).join(" ");
        } else if let Some(texts) = texts {
            rows(self.dims(), &texts, &mut 0, true, &mut out);
        }
        if limit < total {
            out.push_str("...");
        }
        out
    }

    /// The first and last `at_ends` elements of every dimension (all if negative) with nested
    /// brackets and line breaks, strings in quotes: the form of `StringFormat` and `tf.print`.
    ///
    /// ```
    /// use downpour_tensor::Tensor;
    /// let t = Tensor::from_vec((0..10).collect(), [5, 2])?;
    /// assert_eq!(t.summarize_nested(1), "[[0 1]\n ...\n [8 9]]");
    /// # Ok::<(), downpour_tensor::TensorError>(())
    /// ```
    pub fn summarize_nested(&self, at_ends: i64) -> String {
        let total = self.num_elements();
        let ends = usize::try_from(at_ends).unwrap_or(total).min(total);
        if self.element_texts(0..0, true).is_none() {
            let texts = self.opaque_texts(ends).join(" ");
            let more = if ends < total { "..." } else { "" };
            return match self.shape().is_scalar() {
                true => format!("{texts}{more}"),
                false => format!("[{texts}{more}]"),
            };
        }
        let mut out = String::new();
        self.nested(0, ends, 0, &mut out);
        out
    }

    fn nested(&self, dim: usize, ends: usize, at: usize, out: &mut String) {
        let dims = self.dims();
        let Some(&count) = dims.get(dim) else {
            let text = self.element_texts(at..at + 1, true);
            out.push_str(text.iter().flatten().next().map_or("", String::as_str));
            return;
        };
        let spacing = |out: &mut String| {
            let inner = dims.len() - 1 - dim;
            out.push_str(&"\n".repeat(inner));
            out.push_str(&" ".repeat(if inner == 0 { 1 } else { dim + 1 }));
        };
        let row: usize = dims.iter().skip(dim + 1).product();
        out.push('[');
        for i in 0..ends.min(count) {
            if i > 0 {
                spacing(out);
            }
            self.nested(dim + 1, ends, at + row * i, out);
        }
        if count > ends.saturating_mul(2) {
            spacing(out);
            out.push_str("...");
        }
        for i in ends.max(count.saturating_sub(ends))..count {
            spacing(out);
            self.nested(dim + 1, ends, at + row * i, out);
        }
        out.push(']');
    }

    /// Elements `range` as text, or `None` for types that TensorFlow does not print.
    fn element_texts(&self, range: std::ops::Range<usize>, quoted: bool) -> Option<Vec<String>> {
        fn plain<T: Element>(
            t: &Tensor,
            range: std::ops::Range<usize>,
            f: impl Fn(T) -> String,
        ) -> Vec<String> {
            let all = t.as_slice::<T>().unwrap_or_default();
            let some = all.get(range).unwrap_or_default();
            some.iter().map(|&v| f(v)).collect()
        }
        Some(match self.dtype() {
            DType::Float => plain(self, range, float_text),
            DType::Double => plain(self, range, double_text),
            DType::Half => plain(self, range, |v: half::f16| float_text(v.to_f32())),
            DType::BFloat16 => plain(self, range, |v: half::bf16| float_text(v.to_f32())),
            DType::Int8 => plain(self, range, |v: i8| v.to_string()),
            DType::Int16 => plain(self, range, |v: i16| v.to_string()),
            DType::Int32 => plain(self, range, |v: i32| v.to_string()),
            DType::Int64 => plain(self, range, |v: i64| v.to_string()),
            DType::UInt8 => plain(self, range, |v: u8| v.to_string()),
            DType::UInt16 => plain(self, range, |v: u16| v.to_string()),
            DType::UInt32 => plain(self, range, |v: u32| v.to_string()),
            DType::UInt64 => plain(self, range, |v: u64| v.to_string()),
            DType::Bool => plain(self, range, |v: bool| u8::from(v).to_string()),
            DType::String => {
                let all = self.as_strings().unwrap_or_default();
                let quote = if quoted { "\"" } else { "" };
                let text = |s: &bytes::Bytes| format!("{quote}{}{quote}", escape(s));
                all.get(range)
                    .unwrap_or_default()
                    .iter()
                    .map(text)
                    .collect()
            }
            _ => return None,
        })
    }

    /// What stands for elements that are not printed.
    fn opaque_texts(&self, limit: usize) -> Vec<String> {
        match self.dtype() {
            DType::Resource => {
                let handles = self.as_resources().unwrap_or_default();
                let text = |h: &crate::ResourceHandle| {
                    format!(
                        "<ResourceHandle(name=\"{}\", device=\"{}\", container=\"{}\", type=\"{}\")>",
                        h.name, h.device, h.container, h.type_name
                    )
                };
                handles.iter().take(limit).map(text).collect()
            }
            DType::Variant => {
                let variants = self.as_variants().unwrap_or_default();
                let text = |v: &crate::Variant| format!("<{}>", v.0.summary());
                variants.iter().take(limit).map(text).collect()
            }
            _ => vec!["?".into(); limit],
        }
    }
}

/// The elements in brackets per row; the outermost dimension has none of its own.
fn rows(dims: &[usize], texts: &[String], at: &mut usize, outermost: bool, out: &mut String) {
    let Some((&n, rest)) = dims.split_first() else {
        return;
    };
    if *at >= texts.len() {
        return;
    }
    for i in 0..n {
        if rest.is_empty() {
            let Some(text) = texts.get(*at) else {
                if !outermost {
                    out.push_str("...");
                }
                return;
            };
            if i > 0 {
                out.push(' ');
            }
            out.push_str(text);
            *at += 1;
        } else if *at < texts.len() {
            out.push('[');
            rows(rest, texts, at, false, out);
            out.push(']');
        }
    }
}

/// A string with everything but printable ASCII and UTF-8 escaped as in C.
fn escape(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '"' => out.push_str("\\\""),
                '\'' => out.push_str("\\'"),
                '\\' => out.push_str("\\\\"),
                c if c.is_ascii_control() => out.push_str(&format!("\\{:03o}", c as u32)),
                c => out.push(c),
            }
        }
        for b in chunk.invalid() {
            out.push_str(&format!("\\{b:03o}"));
        }
    }
    out
}

/// Six digits if they give the number back, else nine.
fn float_text(value: f32) -> String {
    let short = general_float(value.into(), 6);
    if value.is_nan() || short.parse() == Ok(value) {
        return short;
    }
    general_float(value.into(), 9)
}

/// Fifteen digits if they give the number back, else seventeen.
fn double_text(value: f64) -> String {
    let short = general_float(value, 15);
    if value.is_nan() || short.parse() == Ok(value) {
        return short;
    }
    general_float(value, 17)
}

/// C's `%.<precision>g`.
fn general_float(value: f64, precision: usize) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf" } else { "-inf" }.into();
    }
    if value == 0.0 {
        return if value.is_sign_negative() { "-0" } else { "0" }.into();
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
            "Tensor<type: {} shape: {} values: {}>",
            self.dtype(),
            self.shape(),
            self.summarize(3)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_print_as_tensorflow_prints_them() {
        let t = Tensor::from_vec(vec![1.0f32, 2.5, 1e-5, 1e10], [2, 2]).unwrap();
        assert_eq!(t.summarize(-1), "[1 2.5][1e-05 1e+10]");
        assert_eq!(t.summarize(3), "[1 2.5][1e-05...]...");
        assert_eq!(t.summarize(2), "[1 2.5]...");
        assert_eq!(Tensor::scalar(true).summarize(3), "1");
        let v = Tensor::vector(vec![1i64, 2, 3, 4]);
        assert_eq!(v.summarize(3), "1 2 3...");
        assert_eq!(
            format!("{v:?}"),
            "Tensor<type: int64 shape: [4] values: 1 2 3...>"
        );
        let c = Tensor::vector(vec![crate::Complex32::new(1.0, 2.0)]);
        assert_eq!(c.summarize(3), "?");
        assert_eq!(general_float(123456789.0, 6), "1.23457e+08");
        assert_eq!(general_float(0.0001, 6), "0.0001");
    }

    #[test]
    fn the_nested_form_shows_both_ends() {
        let v = |n: i64| Tensor::vector((0..n).collect());
        assert_eq!(v(7).summarize_nested(3), "[0 1 2 ... 4 5 6]");
        assert_eq!(v(6).summarize_nested(3), "[0 1 2 3 4 5]");
        assert_eq!(v(8).summarize_nested(0), "[ ...]");
        let m = |dims: &[usize]| {
            let n = dims.iter().product::<usize>() as i64;
            Tensor::from_vec((0..n).collect(), dims).unwrap()
        };
        assert_eq!(
            m(&[4, 4]).summarize_nested(1),
            "[[0 ... 3]\n ...\n [12 ... 15]]"
        );
        let expect = "[[[0 1]\n  [2 3]]\n\n [[4 5]\n  [6 7]]]";
        assert_eq!(m(&[2, 2, 2]).summarize_nested(1), expect);
        assert_eq!(m(&[2, 0]).summarize_nested(3), "[\n ...]");
        let s = Tensor::string(bytes::Bytes::from_static(b"a\"b\n\xff"));
        assert_eq!(s.summarize_nested(3), "\"a\\\"b\\n\\377\"");
        let f = Tensor::vector(vec![0.1f32, 1.0 / 3.0]);
        assert_eq!(f.summarize_nested(3), "[0.1 0.333333343]");
        let d = Tensor::vector(vec![1e10, 1.0 / 3.0]);
        assert_eq!(d.summarize_nested(3), "[10000000000 0.33333333333333331]");
    }
}
