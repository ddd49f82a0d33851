//! `QuantizeAndDequantize` in all its versions: values scaled to integers of some bits,
//! rounded, and scaled back.

use super::{invalid, slices};
use crate::args::int;
use crate::types::with_type;
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Element, Shape, Tensor};
use num_traits::Float;

const TYPES: &[DType] = crate::types::FLOAT_DOUBLE;

pub(crate) fn register(r: &mut Registry) {
    let types = &[("T", TYPES)];
    for op in ["QuantizeAndDequantizeV2", "QuantizeAndDequantizeV4"] {
        r.add_typed(op, types, |b| {
            let options = Options::parse(b)?;
            let bits = Some(check_bits(b.attrs().int("num_bits")?, options.signed)?);
            Built::costly(move |ctx| run(ctx, options, bits))
        });
    }
    // The first version, whose range, if given, is in attributes.
    r.add_typed(
        "QuantizeAndDequantize",
        &[("T", &[DType::Float, DType::Double])],
        |b| {
            let attrs = b.attrs();
            let options = Options {
                signed: attrs.bool("signed_input")?,
                range_given: attrs.bool("range_given")?,
                narrow: false,
                half_up: false,
                axis: -1,
            };
            let bits = check_bits(attrs.int("num_bits")?, options.signed)?;
            let ends = (attrs.float("input_min")?, attrs.float("input_max")?);
            if options.range_given && ends.0 > ends.1 {
                return invalid(format!(
                    "Invalid range: input_min {} > input_max {}",
                    super::shown(ends.0),
                    super::shown(ends.1)
                ));
            }
            Built::costly(move |ctx| first_version(ctx, options, bits, ends))
        },
    );
    r.add_typed("QuantizeAndDequantizeV3", types, |b| {
        let options = Options::parse(b)?;
        Built::costly(move |ctx| run(ctx, options, None))
    });
    r.add_typed("QuantizeAndDequantizeV4Grad", types, |b| {
        let axis = b.attrs().int("axis")?;
        Built::costly(move |ctx| gradient(ctx, axis))
    });
}

#[derive(Clone, Copy)]
struct Options {
    signed: bool,
    range_given: bool,
    narrow: bool,
    half_up: bool,
    axis: i64,
}

impl Options {
    fn parse(b: &KernelBuilder<'_>) -> Result<Options> {
        let attrs = b.attrs();
        let axis = attrs.int("axis")?;
        if axis < -1 {
            return invalid(format!("Axis must be at least -1. Found {axis}"));
        }
        let half_up = match attrs.find("round_mode") {
            None => false,
            Some(_) => match attrs.str("round_mode")? {
                "HALF_UP" => true,
                "HALF_TO_EVEN" => false,
                other => {
                    return invalid(format!(
                        "Round mode string must be 'HALF_TO_EVEN' or 'HALF_UP', is '{other}'"
                    ));
                }
            },
        };
        Ok(Options {
            signed: attrs.bool("signed_input")?,
            range_given: attrs.bool("range_given")?,
            narrow: attrs.bool("narrow_range")?,
            half_up,
            axis,
        })
    }
}

fn check_bits(bits: i64, signed: bool) -> Result<i64> {
    if bits <= 0 || bits >= if signed { 62 } else { 63 } {
        return invalid(format!(
            "num_bits is out of range: {bits} with signed_input_ {}",
            u8::from(signed)
        ));
    }
    Ok(bits)
}

/// The axis of the channels, if there is one.
fn channel_axis(axis: i64, rank: usize) -> Result<Option<usize>> {
    if axis == -1 {
        return Ok(None);
    }
    match usize::try_from(axis) {
        Ok(a) if a < rank => Ok(Some(a)),
        _ => invalid(format!(
            "Shape must be at least rank {} but is rank {rank}",
            axis.saturating_add(1)
        )),
    }
}

fn first_version(ctx: &mut OpContext<'_>, o: Options, bits: i64, ends: (f32, f32)) -> Result<()> {
    let mut x = ctx.take(0)?;
    with_type!(x.dtype(), T in [f32, f64] => {
        let values = x.make_mut::<T>()?;
        let (min, max) = match o.range_given {
            true => (T::from(ends.0), T::from(ends.1)),
            false => values.iter().fold(
                (<T as Float>::infinity(), <T as Float>::neg_infinity()),
                |(a, b), v| (a.min(*v), b.max(*v)),
            ),
        };
        let range = Range::new(min, max, bits, o);
        values.iter_mut().for_each(|v| *v = range.round(*v, o));
    });
    ctx.set_output(0, x);
    Ok(())
}

fn run(ctx: &mut OpContext<'_>, o: Options, bits: Option<i64>) -> Result<()> {
    let mut x = ctx.take(0)?;
    let axis = channel_axis(o.axis, x.rank())?;
    let (before, depth, after) = slices(x.dims(), axis);
    let bits = match bits {
        Some(bits) => bits,
        None => {
            let t = ctx.input(3)?;
            if t.num_elements() != 1 {
                return invalid(format!(
                    "`num_bits` input tensor must contain exactly 1 element, found {}",
                    t.num_elements()
                ));
            }
            check_bits(int(t)?, o.signed)?
        }
    };
    with_type!(x.dtype(), T in [f32, f64] => {
        let ends = match o.range_given {
            false => None,
            true => Some(given::<T>(ctx, axis.is_some(), depth)?),
        };
        let values = x.make_mut::<T>()?;
        for channel in 0..depth {
            let place = |i: usize| (i / after * depth + channel) * after + i % after;
            let count = before * after;
            let (min, max) = match &ends {
                Some(ends) => (ends.0[channel], ends.1[channel]),
                None => {
                    let all = (0..count).map(|i| values[place(i)]);
                    all.fold((<T as Float>::infinity(), <T as Float>::neg_infinity()), |(a, b), v| (a.min(v), b.max(v)))
                }
            };
            let range = Range::new(min, max, bits, o);
            for i in 0..count {
                let v = &mut values[place(i)];
                *v = range.round(*v, o);
            }
        }
    });
    ctx.set_output(0, x);
    Ok(())
}

/// The range in inputs 1 and 2, one for each channel. Where the op itself says how many bits,
/// TensorFlow wants scalars even then, and refuses those.
fn given<T: Element + Float + std::fmt::Display>(
    ctx: &OpContext<'_>,
    by_channel: bool,
    depth: usize,
) -> Result<(Vec<T>, Vec<T>)> {
    let (min, max) = (ctx.input(1)?, ctx.input(2)?);
    for (name, t) in [("input_min", min), ("input_max", max)] {
        if t.rank() != 0 && (ctx.num_inputs() == 3 || !by_channel) {
            return invalid(format!("{name} must be a scalar."));
        }
    }
    if by_channel {
        for (name, t) in [("input_min_tensor", min), ("input_max_tensor", max)] {
            check_channels(name, t)?;
            if t.num_elements() != depth {
                return invalid(format!(
                    "{name} has incorrect size, was {} expected {depth} to match dim {} of the input {}",
                    t.num_elements(),
                    ctx.info().node.attrs.int("axis")?,
                    t.shape()
                ));
            }
        }
    }
    let (min, max) = (min.as_slice::<T>()?.to_vec(), max.as_slice::<T>()?.to_vec());
    if !by_channel && min[0] > max[0] {
        return invalid(format!(
            "Invalid range: input_min {} > input_max {}",
            min[0], max[0]
        ));
    }
    Ok((min, max))
}

fn check_channels(name: &str, t: &Tensor) -> Result<()> {
    match t.rank() {
        1 => Ok(()),
        _ => invalid(format!(
            "Shape must be rank 1 for {name} when the axis is specified"
        )),
    }
}

/// A range and its scale to integers.
struct Range<T> {
    min: T,
    max: T,
    scale: T,
    inverse: T,
}

impl<T: Float> Range<T> {
    fn new(mut min: T, mut max: T, bits: i64, o: Options) -> Range<T> {
        let number = |v: i64| <T as num_traits::NumCast>::from(v).unwrap_or_else(T::nan);
        let (low, high) = match o.signed {
            true => (
                -(1i64 << (bits - 1)) + i64::from(o.narrow),
                (1i64 << (bits - 1)) - 1,
            ),
            false => (0, (1i64 << bits) - 1),
        };
        let (low, high) = (number(low), number(high));
        let side = |q: T, end: T| match q * end > T::zero() {
            true => q / end,
            false => T::max_value(),
        };
        let (from_min, from_max) = (side(low, min), side(high, max));
        // The side that needs the smaller scale keeps its end.
        let (scale, inverse) = if from_min < from_max {
            let inverse = min / low;
            max = high * inverse;
            (from_min, inverse)
        } else {
            let inverse = max / high;
            min = low * inverse;
            (from_max, inverse)
        };
        Range {
            min,
            max,
            scale,
            inverse,
        }
    }

    fn round(&self, v: T, o: Options) -> T {
        let v = if o.range_given {
            v.min(self.max).max(self.min)
        } else {
            v
        };
        let scaled = v * self.scale;
        let half = T::one() / (T::one() + T::one());
        let whole = if o.half_up {
            (scaled + half).floor()
        } else {
            let down = scaled.floor();
            let rest = scaled - down;
            let odd = (down * half).floor() != down * half;
            if rest > half || (rest == half && odd) {
                down + T::one()
            } else {
                down
            }
        };
        whole * self.inverse
    }
}

fn gradient(ctx: &mut OpContext<'_>, axis: i64) -> Result<()> {
    let (mut g, x) = (ctx.take(0)?, ctx.take(1)?);
    let (min, max) = (ctx.take(2)?, ctx.take(3)?);
    if x.shape() != g.shape() {
        return invalid("gradient and input must be the same size");
    }
    if axis < -1 {
        return invalid(format!("Axis must be at least -1. Found {axis}"));
    }
    if axis >= x.rank() as i64 {
        return invalid(format!(
            "Axis should be -1 or 0 or a positive value less than {}but given axis value was {axis}",
            x.rank()
        ));
    }
    let axis = usize::try_from(axis).ok();
    let (_, depth, after) = slices(x.dims(), axis);
    for (name, t) in [("min", &min), ("max", &max)] {
        if t.rank() > 1 {
            return invalid(format!(
                "Input {name} tensor must have dimension 0 or 1. Received {}.",
                t.rank()
            ));
        }
        if axis.is_none() && t.rank() != 0 {
            return invalid(format!(
                "input_{name} must be a scalar if axis is unspecified"
            ));
        }
    }
    if axis.is_some() {
        for (name, t) in [("min", &min), ("max", &max)] {
            check_channels(&format!("input_{name}_tensor"), t)?;
            if t.num_elements() != depth {
                return invalid(format!(
                    "{name} has incorrect size, expected {depth} was {}",
                    t.num_elements()
                ));
            }
        }
    }
    let dtype = g.dtype();
    with_type!(dtype, T in [f32, f64] => {
        let (x, min, max) = (x.as_slice::<T>()?, min.as_slice::<T>()?, max.as_slice::<T>()?);
        for (i, g) in g.make_mut::<T>()?.iter_mut().enumerate() {
            let channel = i / after % depth;
            let inside = x[i] >= min[channel] && x[i] <= max[channel];
            *g *= if inside { 1.0 } else { 0.0 };
        }
    });
    ctx.set_output(0, g);
    let ends = match axis {
        None => Shape::scalar(),
        Some(_) => Shape::from([depth]),
    };
    ctx.set_output(1, Tensor::zeros(dtype, ends.clone())?);
    ctx.set_output(2, Tensor::zeros(dtype, ends)?);
    Ok(())
}
