//! `QuantizeV2` and `Dequantize`: floats to integers of a quantized type, and back.

use super::{invalid, slices};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, parallel_ranges};
use downpour_tensor::{Buffer, DType, Shape, Tensor};
use half::bf16;

const CODES: &[DType] = &[
    DType::QInt8,
    DType::QUInt8,
    DType::QInt16,
    DType::QUInt16,
    DType::QInt32,
];
const FLOATS: &[DType] = &[DType::Float, DType::BFloat16];

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("QuantizeV2", &[("T", CODES)], |b| {
        let options = Options::parse(b)?;
        let even = match b.attrs().str("round_mode")? {
            "HALF_AWAY_FROM_ZERO" => false,
            "HALF_TO_EVEN" if options.mode == Mode::Scaled => true,
            "HALF_TO_EVEN" => {
                return invalid(format!(
                    "Round mode 'HALF_TO_EVEN' only supported for mode 'SCALED', but mode is '{}'.",
                    b.attrs().str("mode")?
                ));
            }
            other => {
                return invalid(format!(
                    "Round mode string must be 'HALF_AWAY_FROM_ZERO' or 'HALF_TO_EVEN', is '{other}'"
                ));
            }
        };
        let least = b.attrs().float("ensure_minimum_range")?;
        Built::costly(move |ctx| quantize(ctx, options, even, least))
    });
    r.add_typed("Dequantize", &[("T", CODES), ("dtype", FLOATS)], |b| {
        let options = Options::parse(b)?;
        let dtype = b.attrs().dtype("dtype")?;
        if dtype == DType::BFloat16 && options.mode != Mode::Combined {
            return invalid(format!(
                "When output type is bfloat16, Mode string must be 'MIN_COMBINED', is '{}'",
                b.attrs().str("mode")?
            ));
        }
        Built::costly(move |ctx| dequantize(ctx, options, dtype))
    });
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The range's low end is the lowest integer.
    Combined,
    /// The same, the low end rounded to a step first.
    First,
    /// Zero is zero.
    Scaled,
}

#[derive(Clone, Copy)]
struct Options {
    mode: Mode,
    narrow: bool,
    axis: i64,
    code: Code,
}

impl Options {
    fn parse(b: &KernelBuilder<'_>) -> Result<Options> {
        let attrs = b.attrs();
        let mode = match attrs.str("mode")? {
            "MIN_COMBINED" => Mode::Combined,
            "MIN_FIRST" => Mode::First,
            "SCALED" => Mode::Scaled,
            other => {
                return invalid(format!(
                    "Mode string must be 'MIN_COMBINED', 'MIN_FIRST', or 'SCALED', is '{other}'"
                ));
            }
        };
        Ok(Options {
            mode,
            narrow: attrs.bool("narrow_range")?,
            axis: attrs.int("axis")?,
            code: Code::of(attrs.dtype("T")?),
        })
    }

    /// The lowest integer of mode SCALED.
    fn lowest(&self) -> f32 {
        (self.code.low + f64::from(u8::from(self.narrow))) as f32
    }
}

/// A quantized type's integers.
#[derive(Clone, Copy)]
struct Code {
    dtype: DType,
    low: f64,
    high: f64,
    steps: f64,
}

impl Code {
    fn of(dtype: DType) -> Code {
        let (low, bits) = match dtype {
            DType::QInt8 => (f64::from(i8::MIN), 8),
            DType::QUInt8 => (0.0, 8),
            DType::QInt16 => (f64::from(i16::MIN), 16),
            DType::QUInt16 => (0.0, 16),
            _ => (f64::from(i32::MIN), 32),
        };
        let steps = (1u64 << bits) as f64;
        Code {
            dtype,
            low,
            high: low + steps - 1.0,
            steps,
        }
    }

    fn signed(self) -> bool {
        self.low < 0.0
    }

    /// What is added to an integer to count from the lowest.
    fn half(self) -> f32 {
        if self.signed() {
            (self.steps / 2.0) as f32
        } else {
            0.0
        }
    }

    /// Integers (in floats, any outside the range cut to it) as a tensor.
    fn write(self, values: &[f32], shape: Shape) -> Result<Tensor> {
        let buffer = match self.dtype {
            DType::QInt8 => Buffer::from_vec::<i8>(values.iter().map(|&v| v as i8).collect()),
            DType::QUInt8 => Buffer::from_vec::<u8>(values.iter().map(|&v| v as u8).collect()),
            DType::QInt16 => Buffer::from_vec::<i16>(values.iter().map(|&v| v as i16).collect()),
            DType::QUInt16 => Buffer::from_vec::<u16>(values.iter().map(|&v| v as u16).collect()),
            _ => Buffer::from_vec::<i32>(values.iter().map(|&v| v as i32).collect()),
        };
        Ok(Tensor::from_buffer(self.dtype, shape, buffer)?)
    }

    fn read(self, t: &Tensor) -> Result<Vec<f32>> {
        let buffer = t.buffer();
        let values: Option<Vec<f32>> = match self.dtype {
            DType::QInt8 => numbers(buffer.and_then(Buffer::as_slice::<i8>), |v| v.into()),
            DType::QUInt8 => numbers(buffer.and_then(Buffer::as_slice::<u8>), |v| v.into()),
            DType::QInt16 => numbers(buffer.and_then(Buffer::as_slice::<i16>), |v| v.into()),
            DType::QUInt16 => numbers(buffer.and_then(Buffer::as_slice::<u16>), |v| v.into()),
            _ => numbers(buffer.and_then(Buffer::as_slice::<i32>), |v| v as f32),
        };
        values.ok_or_else(|| Status::internal("quantized integers are plain bytes"))
    }
}

fn numbers<T: Copy>(values: Option<&[T]>, f: impl Fn(T) -> f32) -> Option<Vec<f32>> {
    values.map(|v| v.iter().map(|&v| f(v)).collect())
}

/// The axis along which ranges differ, if any, and the ranges.
type Ranges = (Option<usize>, Vec<(f32, f32)>);

/// Checks the axis and the ranges in inputs 1 and 2.
fn ranges(ctx: &OpContext<'_>, o: Options, op: &str) -> Result<Ranges> {
    let (x, min, max) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let quantizes = op == "Quantize";
    if o.axis >= x.rank() as i64 {
        return invalid(match quantizes {
            true => format!(
                "Axis is on a zero-based index, so its value must always be less than number of input's dims, but given axis value was {} and input's dims was {}",
                o.axis,
                x.rank()
            ),
            false => format!(
                "Axis must be less than input dimension({}), got {}",
                x.rank(),
                o.axis
            ),
        });
    }
    let axis = usize::try_from(o.axis).ok();
    let count = axis.map_or(1, |a| x.dims()[a]);
    for (name, t) in [("min", min), ("max", max)] {
        let n = t.num_elements();
        if n == count && (axis.is_none() || t.rank() == 1 || !quantizes) {
            continue;
        }
        let wanted = format!(
            "If axis is specified, {name}_range must be a 1-D tensor whose size matches the axis dimension of the input and output tensors, but {name}_range"
        );
        return invalid(match (quantizes, axis, t.rank()) {
            (false, ..) => format!(
                "input_{name}_tensor must have as many elements as input on the dequantization axis ({}), got {n}, expected {count}",
                o.axis
            ),
            (true, None, _) => format!(
                "If axis is not specified, {name}_range must contain a single float element, but it contains {n} elements"
            ),
            (true, _, 1) => format!(
                "{wanted} is a 1-D tensor of size {n} and input's axis dimension is of size {count}"
            ),
            (true, _, rank) => format!("{wanted} dims are {rank}"),
        });
    }
    if axis.is_some() && o.mode == Mode::First {
        return Err(Status::unimplemented(format!(
            "MIN_FIRST mode is not implemented for {op} with axis != -1."
        )));
    }
    let pairs = min.as_slice::<f32>()?.iter().zip(max.as_slice::<f32>()?);
    Ok((axis, pairs.map(|(&a, &b)| (a, b)).collect()))
}

fn quantize(ctx: &mut OpContext<'_>, o: Options, even: bool, least: f32) -> Result<()> {
    let (axis, ranges) = ranges(ctx, o, "Quantize")?;
    let shape = ctx.input(1)?.shape().clone();
    let x = ctx.take(0)?;
    let (before, depth, after) = slices(x.dims(), axis);
    let from = x.as_slice::<f32>()?;
    let mut out = vec![0.0f32; from.len()];
    let (mut lows, mut highs) = (Vec::new(), Vec::new());
    for (channel, &(min, max)) in ranges.iter().enumerate() {
        if max < min {
            return invalid("input_max_range must be larger than input_min_range.");
        }
        let epsilon = min.abs().max(max.abs()).max(1.0) * least;
        let min = min.min(0.0);
        let max = max.max(min + epsilon).max(0.0);
        let coder = Coder::new(o, even, min, max);
        for b in 0..before {
            let start = (b * depth + channel) * after;
            for (to, v) in out[start..start + after].iter_mut().zip(&from[start..]) {
                *to = coder.encode(*v);
            }
        }
        lows.push(coder.min);
        highs.push(coder.max);
    }
    let ends = if axis.is_some() {
        shape
    } else {
        Shape::scalar()
    };
    ctx.set_output(0, o.code.write(&out, x.shape().clone())?);
    ctx.set_output(1, Tensor::from_vec(lows, ends.clone())?);
    ctx.set_output(2, Tensor::from_vec(highs, ends)?);
    Ok(())
}

/// One range's way to integers.
struct Coder {
    options: Options,
    even: bool,
    min: f32,
    max: f32,
    scale: f32,
}

impl Coder {
    fn new(options: Options, even: bool, mut min: f32, mut max: f32) -> Coder {
        let code = options.code;
        let scale = match options.mode {
            Mode::Combined => ((code.high - code.low) / f64::from(max - min)) as f32,
            Mode::First if max == min => 0.0,
            Mode::First => ((code.steps - 1.0) / f64::from(max - min)) as f32,
            Mode::Scaled => {
                let (low, high) = (options.lowest(), code.high as f32);
                let side = |q: f32, end: f32| if q * end > 0.0 { q / end } else { f32::MAX };
                let scale = side(low, min).min(side(high, max));
                (min, max) = (low / scale, high / scale);
                scale
            }
        };
        Coder {
            options,
            even,
            min,
            max,
            scale,
        }
    }

    fn encode(&self, v: f32) -> f32 {
        let code = self.options.code;
        let cut = || v.min(self.max).max(self.min);
        match self.options.mode {
            Mode::Combined if code.signed() => {
                ((cut() - self.min) * self.scale - code.half()).round()
            }
            Mode::Combined => (cut() - self.min) * self.scale + 0.5,
            Mode::First => {
                let low = (self.min * self.scale).round() - code.low as f32;
                // The highest integer of 32 bits is no float.
                let high = (code.high as f32).min(2.147_483_5e9);
                ((v * self.scale).round() - low)
                    .max(code.low as f32)
                    .min(high)
            }
            Mode::Scaled if self.even => (cut() * self.scale).round_ties_even(),
            Mode::Scaled => (cut() * self.scale).round(),
        }
    }
}

/// Floats worth a thread of their own.
const GRAIN: usize = 64 << 10;

fn each(values: &mut [f32], f: impl Fn(f32) -> f32) {
    for v in values {
        *v = f(*v);
    }
}

fn dequantize(ctx: &mut OpContext<'_>, o: Options, dtype: DType) -> Result<()> {
    let (axis, ranges) = ranges(ctx, o, "Dequantize")?;
    let x = ctx.take(0)?;
    let (before, depth, after) = slices(x.dims(), axis);
    let code = o.code;
    let mut values = code.read(&x)?;
    for (channel, &(min, max)) in ranges.iter().enumerate() {
        let width = (code.high as f32) - (code.low as f32);
        let mut run = |f: &(dyn Fn(&mut [f32]) + Sync)| {
            for b in 0..before {
                let start = (b * depth + channel) * after;
                let own = &mut values[start..start + after];
                parallel_ranges(own, 1, GRAIN, |_, part| f(part));
            }
        };
        match o.mode {
            Mode::Combined => {
                let (scale, half) = ((max - min) / width, code.half());
                run(&|part| each(part, |v| (v + half) * scale + min));
            }
            Mode::First => {
                let scale = (f64::from(max - min) / (code.steps - 1.0)) as f32;
                let low = match max == min {
                    true => min,
                    false => (min / scale).round() * scale,
                };
                let start = low - code.low as f32 * scale;
                run(&|part| each(part, |v| start + v * scale));
            }
            Mode::Scaled => {
                let high = max / code.high as f32;
                let scale = match code.signed() {
                    true => high.max(min / o.lowest()),
                    false => high,
                };
                run(&|part| each(part, |v| v * scale));
            }
        }
    }
    let shape = x.shape().clone();
    ctx.set_output(
        0,
        match dtype {
            DType::Float => Tensor::from_vec(values, shape)?,
            _ => Tensor::from_vec::<bf16>(values.into_iter().map(bf16::from_f32).collect(), shape)?,
        },
    );
    Ok(())
}
