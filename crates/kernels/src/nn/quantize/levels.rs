//! Quantized tensors as integers, and the floats that they stand for in TensorFlow's arithmetic:
//! the lowest integer is the range's low end, rounded to a step.

use super::invalid;
use downpour_graph::{Result, Status};
use downpour_runtime::OpContext;
use downpour_tensor::{Buffer, DType, Shape, Tensor};

/// `(lowest, highest)` integer of a quantized type.
pub(super) fn ends(dtype: DType) -> (i64, i64) {
    match dtype {
        DType::QInt8 => (i8::MIN.into(), i8::MAX.into()),
        DType::QUInt8 => (0, u8::MAX.into()),
        DType::QInt16 => (i16::MIN.into(), i16::MAX.into()),
        DType::QUInt16 => (0, u16::MAX.into()),
        _ => (i32::MIN.into(), i32::MAX.into()),
    }
}

/// The integers of a quantized tensor.
pub(super) fn read(t: &Tensor) -> Result<Vec<i32>> {
    fn all<T: downpour_tensor::Element + Into<i32>>(b: Option<&Buffer>) -> Option<Vec<i32>> {
        let values = b.and_then(Buffer::as_slice::<T>)?;
        Some(values.iter().map(|&v| v.into()).collect())
    }
    if t.num_elements() == 0 {
        return Ok(Vec::new());
    }
    let buffer = t.buffer();
    match t.dtype() {
        DType::QInt8 => all::<i8>(buffer),
        DType::QUInt8 => all::<u8>(buffer),
        DType::QInt16 => all::<i16>(buffer),
        DType::QUInt16 => all::<u16>(buffer),
        DType::QInt32 => all::<i32>(buffer),
        _ => None,
    }
    .ok_or_else(|| Status::internal("quantized integers are plain bytes"))
}

/// A tensor of `dtype` with these integers.
pub(super) fn write(dtype: DType, values: Vec<i32>, shape: impl Into<Shape>) -> Result<Tensor> {
    let buffer = match dtype {
        DType::QInt8 => Buffer::from_vec::<i8>(values.into_iter().map(|v| v as i8).collect()),
        DType::QUInt8 => Buffer::from_vec::<u8>(values.into_iter().map(|v| v as u8).collect()),
        DType::QInt16 => Buffer::from_vec::<i16>(values.into_iter().map(|v| v as i16).collect()),
        DType::QUInt16 => Buffer::from_vec::<u16>(values.into_iter().map(|v| v as u16).collect()),
        _ => Buffer::from_vec::<i32>(values),
    };
    Ok(Tensor::from_buffer(dtype, shape.into(), buffer)?)
}

/// The one float of input `i`, or an error with `text`.
pub(super) fn float(
    ctx: &OpContext<'_>,
    i: usize,
    text: impl Fn(&Tensor) -> String,
) -> Result<f32> {
    let t = ctx.input(i)?;
    if t.rank() != 0 {
        return invalid(text(t));
    }
    Ok(t.scalar_value::<f32>()?)
}

/// A quantized type over a range of floats.
#[derive(Clone, Copy)]
pub(super) struct Levels {
    pub(super) min: f32,
    pub(super) max: f32,
    low: i64,
    high: i64,
}

impl Levels {
    pub(super) fn new(dtype: DType, min: f32, max: f32) -> Levels {
        let (low, high) = ends(dtype);
        Levels {
            min,
            max,
            low,
            high,
        }
    }

    /// The range's two ends in inputs `i` and `i + 1`, each refused with a text of its name.
    pub(super) fn inputs(
        ctx: &OpContext<'_>,
        dtype: DType,
        i: usize,
        names: [&str; 2],
        text: impl Fn(&str, &Tensor) -> String,
    ) -> Result<Levels> {
        let min = float(ctx, i, |t| text(names[0], t))?;
        let max = float(ctx, i + 1, |t| text(names[1], t))?;
        Ok(Levels::new(dtype, min, max))
    }

    fn steps(&self) -> f64 {
        (self.high - self.low) as f64 + 1.0
    }

    /// The float that an integer stands for.
    pub(super) fn float(&self, v: i32) -> f32 {
        if self.min == self.max {
            return self.min;
        }
        let adjust = self.steps() / (self.steps() - 1.0);
        let range = f64::from(self.max - self.min) * adjust;
        let scale = range / self.steps();
        let narrow = scale as f32;
        let start = (self.min / narrow).round() * narrow;
        (f64::from(start) + (f64::from(v) - self.low as f64) * scale) as f32
    }

    /// The integer nearest to a float, which may lie outside the type.
    pub(super) fn unclamped(&self, v: f32) -> i64 {
        if self.min == self.max {
            return self.low;
        }
        let adjust = self.steps() / (self.steps() - 1.0);
        let scale = self.steps() / (f64::from(self.max - self.min) * adjust);
        let at = |v: f32| (f64::from(v) * scale).round() as i64;
        at(v) - at(self.min) + self.low
    }

    pub(super) fn code(&self, v: f32) -> i32 {
        self.unclamped(v).clamp(self.low, self.high) as i32
    }

    /// As codes of `to`, by a whole number of codes a step: what TensorFlow does before it adds.
    pub(super) fn linear(self, to: Levels) -> impl Fn(i32) -> i32 + Copy {
        let start = to.unclamped(self.float(0));
        let step = i64::from((to.unclamped(self.float(1)) - start) as i32);
        move |v| (start + i64::from(v) * step).clamp(to.low, to.high) as i32
    }

    /// From 32 bits to these 8 in fixed point of 16 bits, as TensorFlow does for unsigned ones.
    pub(super) fn narrowing(self, from: Levels) -> impl Fn(i32) -> i32 + Copy {
        const SHIFT: u32 = 16;
        let (given, wanted) = (from.max - from.min, self.max - self.min);
        let one = f64::from(1 << SHIFT);
        let (scale, start, end) = match wanted == 0.0 {
            true => (0, 0, 0),
            false => {
                let middle = ((f64::from(from.min + from.max)) / 2.0) as f32;
                let levels = (255.0 / f64::from(wanted)) as f32;
                (
                    (255.0 * one * f64::from(given) / f64::from(wanted)) as i64,
                    (middle * levels * one as f32) as i64,
                    (one * (f64::from(self.min) * 255.0) / f64::from(wanted)) as i64,
                )
            }
        };
        let offset = start - end + (1 << (SHIFT - 1));
        move |v| ((((i64::from(v) * scale) >> 32) + offset) >> SHIFT).clamp(0, 255) as i32
    }

    /// As [`Levels::float`], in single precision: what TensorFlow does to whole tensors.
    pub(super) fn floats(self) -> impl Fn(i32) -> f32 + Copy {
        let scale = (f64::from(self.max - self.min) / (self.steps() - 1.0)) as f32;
        let low = match self.min == self.max {
            true => self.min,
            false => (self.min / scale).round() * scale,
        };
        let start = low - self.low as f32 * scale;
        move |v| start + v as f32 * scale
    }

    /// As [`Levels::code`], in single precision.
    pub(super) fn codes(self) -> impl Fn(f32) -> i32 + Copy {
        let scale = match self.min == self.max {
            true => 0.0,
            false => ((self.steps() - 1.0) / f64::from(self.max - self.min)) as f32,
        };
        let from = (self.min * scale).round() - self.low as f32;
        let low = self.low as f32;
        // The highest integer of 32 bits is no float.
        let high = (self.high as f32).min(2.147_483_5e9);
        move |v| ((v * scale).round() - from).max(low).min(high) as i32
    }

    /// The float between two neighbouring integers.
    fn step(&self) -> f32 {
        (self.max - self.min) / (self.high - self.low) as f32
    }

    /// The range of `out` in which products of the two are exact.
    pub(super) fn product(&self, other: &Levels, out: DType) -> (f32, f32) {
        let step = self.step() * other.step();
        let (low, high) = ends(out);
        (step * low as f32, step * high as f32)
    }
}
