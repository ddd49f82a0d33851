//! What the values of a tensor are like: range, mean, spread, how many are zero or not finite. One
//! pass over the bytes; nothing is copied.

use super::output::{json_number, number};
use downpour_tensor::{DType, Tensor};
use half::{bf16, f16};
use serde_json::{Map, Value, json};

/// Figures of a tensor's values.
#[derive(Debug, Default, Clone, PartialEq)]
pub(super) struct Statistics {
    pub(super) count: u64,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) mean: f64,
    /// Sum of squared distances from the mean (Welford's).
    spread: f64,
    pub(super) zeros: u64,
    pub(super) nans: u64,
    pub(super) infinities: u64,
}

impl Statistics {
    /// Of a tensor of numbers or truths; `None` for anything else.
    pub(super) fn of(tensor: &Tensor) -> Option<Statistics> {
        let mut made = Statistics::default();
        each(tensor, |x| made.add(x))?;
        Some(made)
    }

    fn add(&mut self, x: f64) {
        self.count += 1;
        if x.is_nan() {
            self.nans += 1;
            return;
        }
        let seen = self.count - self.nans - self.infinities;
        let is_first = self.count - self.nans == 1;
        self.min = if is_first { x } else { self.min.min(x) };
        self.max = if is_first { x } else { self.max.max(x) };
        if x.is_infinite() {
            self.infinities += 1;
            return;
        }
        self.zeros += u64::from(x == 0.0);
        let away = x - self.mean;
        self.mean += away / seen as f64;
        self.spread += away * (x - self.mean);
    }

    fn finite(&self) -> u64 {
        self.count - self.nans - self.infinities
    }

    /// Standard deviation of the finite values, as numpy's.
    pub(super) fn deviation(&self) -> f64 {
        match self.finite() {
            0 => 0.0,
            n => (self.spread / n as f64).sqrt(),
        }
    }

    /// Cells: min, max, mean, deviation, remarks.
    pub(super) fn cells(&self) -> Vec<String> {
        let has_range = self.count > self.nans;
        let shown = |x: f64, is_there: bool| match is_there {
            true => number(x),
            false => "-".to_owned(),
        };
        let remarks = [
            (self.zeros, "zero"),
            (self.nans, "NaN"),
            (self.infinities, "inf"),
        ];
        let remarks: Vec<String> = remarks
            .iter()
            .filter(|(n, _)| *n > 0)
            .map(|(n, what)| format!("{n} {what}"))
            .collect();
        let has_mean = self.finite() > 0;
        vec![
            shown(self.min, has_range),
            shown(self.max, has_range),
            shown(self.mean, has_mean),
            shown(self.deviation(), has_mean),
            remarks.join(", "),
        ]
    }

    pub(super) fn json(&self) -> Value {
        let mut out = Map::new();
        out.insert("count".into(), json!(self.count));
        if self.count > self.nans {
            out.insert("min".into(), json_number(self.min));
            out.insert("max".into(), json_number(self.max));
        }
        if self.finite() > 0 {
            out.insert("mean".into(), json_number(self.mean));
            out.insert("std".into(), json_number(self.deviation()));
        }
        out.insert("zeros".into(), json!(self.zeros));
        out.insert("nan".into(), json!(self.nans));
        out.insert("inf".into(), json!(self.infinities));
        Value::Object(out)
    }
}

/// Hands every element to `visit` as a number, a complex one as its magnitude; `None` where
/// elements are no numbers that we know.
pub(super) fn each(tensor: &Tensor, mut visit: impl FnMut(f64)) -> Option<()> {
    let data = tensor.buffer()?.as_bytes();
    macro_rules! all {
        ($size:literal, $read:expr) => {{
            let (elements, _) = data.as_chunks::<$size>();
            for element in elements {
                visit($read(*element));
            }
        }};
    }
    match tensor.dtype() {
        DType::Float => all!(4, |b| f64::from(f32::from_le_bytes(b))),
        DType::Double => all!(8, f64::from_le_bytes),
        DType::Half => all!(2, |b| f16::from_le_bytes(b).to_f64()),
        DType::BFloat16 => all!(2, |b| bf16::from_le_bytes(b).to_f64()),
        DType::Int8 | DType::QInt8 => all!(1, |b| f64::from(i8::from_le_bytes(b))),
        DType::UInt8 | DType::QUInt8 | DType::Bool => all!(1, |[b]: [u8; 1]| f64::from(b)),
        DType::Int16 | DType::QInt16 => all!(2, |b| f64::from(i16::from_le_bytes(b))),
        DType::UInt16 | DType::QUInt16 => all!(2, |b| f64::from(u16::from_le_bytes(b))),
        DType::Int32 | DType::QInt32 => all!(4, |b| f64::from(i32::from_le_bytes(b))),
        DType::UInt32 => all!(4, |b| f64::from(u32::from_le_bytes(b))),
        DType::Int64 => all!(8, |b| i64::from_le_bytes(b) as f64),
        DType::UInt64 => all!(8, |b| u64::from_le_bytes(b) as f64),
        DType::Complex64 => all!(8, |b: [u8; 8]| {
            let [r, i] = [&b[..4], &b[4..]].map(|p| p.try_into().map_or(0.0, f32::from_le_bytes));
            f64::from(r).hypot(f64::from(i))
        }),
        DType::Complex128 => all!(16, |b: [u8; 16]| {
            let [r, i] = [&b[..8], &b[8..]].map(|p| p.try_into().map_or(0.0, f64::from_le_bytes));
            r.hypot(i)
        }),
        _ => return None,
    }
    Some(())
}

/// Python's name for an element type, given TensorFlow's own: what its users know.
pub(super) fn python_name(dtype: &str) -> String {
    let (base, suffix) = match dtype.strip_suffix("_ref") {
        Some(base) => (base, "_ref"),
        None => (dtype, ""),
    };
    let base = match base {
        "float" => "float32",
        "double" => "float64",
        "half" => "float16",
        other => other,
    };
    format!("{base}{suffix}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_numpys() {
        let tensor = Tensor::vector(vec![1.0f32, 2.0, 0.0, f32::NAN, 5.0]);
        let s = Statistics::of(&tensor).unwrap();
        assert_eq!((s.count, s.zeros, s.nans, s.infinities), (5, 1, 1, 0));
        assert_eq!((s.min, s.max, s.mean), (0.0, 5.0, 2.0));
        // numpy.nanstd([1, 2, 0, 5]) is sqrt(3.5).
        assert!((s.deviation() - 3.5f64.sqrt()).abs() < 1e-12);
        let all_bad = Tensor::vector(vec![f32::NAN]);
        assert_eq!(
            Statistics::of(&all_bad).unwrap().cells(),
            ["-", "-", "-", "-", "1 NaN"]
        );
        let infinite = Tensor::vector(vec![f64::INFINITY, 1.0]);
        let s = Statistics::of(&infinite).unwrap();
        assert_eq!((s.min, s.max, s.mean), (1.0, f64::INFINITY, 1.0));
    }

    #[test]
    fn every_numeric_type_is_read() {
        let mut seen = 0;
        for dtype in DType::all().filter(|d| d.size().is_some()) {
            let Ok(zeros) = Tensor::zeros(dtype, [3]) else {
                continue;
            };
            let known = Statistics::of(&zeros).map(|s| (s.count, s.zeros));
            let is_odd = dtype.name().contains("float8")
                || dtype.name().contains("int4")
                || dtype.name().contains("int2")
                || dtype.name().contains("float4");
            assert_eq!(known, (!is_odd).then_some((3, 3)), "{dtype}");
            seen += 1;
        }
        assert!(seen > 15);
        let complex = Tensor::vector(vec![num(3.0, 4.0)]);
        assert_eq!(Statistics::of(&complex).unwrap().max, 5.0);
        assert!(Statistics::of(&Tensor::string("x")).is_none());
    }

    fn num(re: f32, im: f32) -> num_complex::Complex<f32> {
        num_complex::Complex::new(re, im)
    }
}
