//! Layers of eight-bit integers in one op, as graphs hold that were quantized ahead of time: `QuantizedConv2D…`,
//! `QuantizedDepthwiseConv2D…` and `QuantizedMatMulWithBias…`, with a bias, a summand, a rectifier and a change of
//! scale behind the product. In TensorFlow they are oneDNN's.
//!
//! The sum of products is exact in 32 bits. What follows is done in single precision and rounded once, half to even.

use super::arithmetic::I32;
use super::invalid;
use super::levels::{ends, float, read, write};
use crate::linalg::matmul::matmul;
use crate::nn::conv::{self, Direction};
use crate::nn::depthwise;
use downpour_graph::{AttrList, AttrValue, Attrs, Result};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Tensor};

const U8: &[DType] = &[DType::QUInt8];
const I8: &[DType] = &[DType::QInt8];
const BOTH: &[DType] = &[DType::QUInt8, DType::QInt8];
const FLOAT: &[DType] = &[DType::Float];
const BIAS: &[DType] = &[DType::Float, DType::QInt32];

pub(crate) fn register(r: &mut Registry) {
    // Which inputs an op takes, and whether its result is cut off at zero, its name says.
    let plain: &[(&'static str, &'static [DType])] = &[
        ("QuantizedConv2D", U8),
        ("QuantizedConv2DPerChannel", U8),
        ("QuantizedConv2DAndRelu", U8),
        ("QuantizedConv2DWithBias", BOTH),
        ("QuantizedConv2DWithBiasAndRelu", BOTH),
        ("QuantizedConv2DWithBiasSumAndRelu", U8),
        ("QuantizedDepthwiseConv2D", U8),
        ("QuantizedDepthwiseConv2DWithBias", U8),
        ("QuantizedDepthwiseConv2DWithBiasAndRelu", U8),
    ];
    for &(op, input) in plain {
        let types = &[("Tinput", input), ("Tfilter", I8), ("out_type", I32)];
        r.add_typed(op, types, convolution);
    }
    for (op, out) in [
        ("QuantizedConv2DAndRequantize", I8),
        ("QuantizedConv2DAndReluAndRequantize", U8),
    ] {
        let types = &[("Tinput", U8), ("Tfilter", I8), ("out_type", out)];
        r.add_typed(op, types, convolution);
    }
    for (op, input, out) in [
        ("QuantizedConv2DWithBiasAndRequantize", BOTH, I8),
        ("QuantizedConv2DWithBiasAndReluAndRequantize", BOTH, U8),
        (
            "QuantizedDepthwiseConv2DWithBiasAndReluAndRequantize",
            U8,
            U8,
        ),
    ] {
        let types = [("Tinput", input), ("Tfilter", I8)];
        let types = [types[0], types[1], ("Tbias", BIAS), ("out_type", out)];
        r.add_typed(op, &types, convolution);
    }
    for (op, summand) in [
        ("QuantizedConv2DWithBiasSumAndReluAndRequantize", U8),
        ("QuantizedConv2DWithBiasSignedSumAndReluAndRequantize", I8),
    ] {
        let types = &[
            ("Tinput", U8),
            ("Tfilter", I8),
            ("Tbias", BIAS),
            ("Tsummand", summand),
            ("out_type", U8),
        ];
        r.add_typed(op, types, convolution);
    }
    let types = &[("T1", U8), ("T2", I8), ("Toutput", I32)];
    r.add_typed("QuantizedMatMulWithBiasAndRelu", types, product);
    for (op, out) in [
        ("QuantizedMatMulWithBias", I32),
        ("QuantizedMatMulWithBiasAndRequantize", U8),
        ("QuantizedMatMulWithBiasAndReluAndRequantize", U8),
        ("QuantizedMatMulWithBiasAndDequantize", FLOAT),
    ] {
        let types = &[("T1", U8), ("T2", I8), ("Tbias", BIAS), ("Toutput", out)];
        r.add_typed(op, types, product);
    }
}

/// Where an op's operands are among its inputs, as its name says.
#[derive(Clone, Copy)]
struct Inputs {
    bias: Option<usize>,
    /// The first of the four ends of the operands' ranges.
    ranges: usize,
    /// The first of the two ends of the result's range.
    wanted: Option<usize>,
    summand: Option<usize>,
    has_relu: bool,
}

impl Inputs {
    fn of(op: &str) -> Inputs {
        let bias = op.contains("WithBias").then_some(2);
        let ranges = if bias.is_some() { 3 } else { 2 };
        let wanted = op.ends_with("equantize").then_some(ranges + 4);
        let summand = op.contains("Sum").then_some(match wanted {
            Some(at) => at + 2,
            None => ranges + 4,
        });
        Inputs {
            bias,
            ranges,
            wanted,
            summand,
            has_relu: op.contains("Relu"),
        }
    }
}

/// Both ends of a range, each once or once for a channel.
fn range(ctx: &OpContext<'_>, i: usize, name: &str, channels: usize) -> Result<Vec<(f32, f32)>> {
    let (low, high) = (ctx.input(i)?, ctx.input(i + 1)?);
    let count = low.num_elements();
    if count != high.num_elements() || (count != 1 && count != channels) {
        return invalid(format!(
            "min_{name} and max_{name} must have one element or one for each of {channels} channels, but their shapes are {} and {}",
            low.shape(),
            high.shape()
        ));
    }
    let pairs = low.as_slice::<f32>()?.iter().zip(high.as_slice::<f32>()?);
    Ok(pairs.map(|(low, high)| (*low, *high)).collect())
}

/// The float between two neighbouring integers of a type over a range around zero.
fn symmetric(dtype: DType, (low, high): (f32, f32)) -> f32 {
    low.abs().max(high.abs()) / ends(dtype).1 as f32
}

/// The same where the range need not lie around zero. The lowest signed integer is not used.
fn step(dtype: DType, (low, high): (f32, f32)) -> f32 {
    let (first, last) = ends(dtype);
    let first = if first < 0 { first + 1 } else { first };
    (high - low) / (last - first) as f32
}

/// The integers of a quantized tensor as a tensor of int32.
fn widened(t: &Tensor) -> Result<Tensor> {
    Ok(Tensor::from_vec(read(t)?, t.shape().clone())?)
}

fn four<'a>(name: &str, t: &'a Tensor) -> Result<&'a [usize]> {
    match t.rank() {
        4 => Ok(t.dims()),
        rank => invalid(format!("{name} must be rank 4 but is rank {rank}")),
    }
}

/// A quantized op's attributes in the words of a convolution of `dtype`.
fn plain_attrs(attrs: &Attrs, dtype: DType) -> Result<Attrs> {
    let mut plain = attrs.clone();
    plain.set("T", dtype);
    plain.set("data_format", AttrValue::Str("NHWC".into()));
    if attrs.find("padding_list").is_some() {
        let list = attrs.ints("padding_list")?.to_vec();
        if !list.is_empty() {
            plain.set("padding", AttrValue::Str("EXPLICIT".into()));
            plain.set("explicit_paddings", AttrValue::List(AttrList::Int(list)));
        }
    }
    Ok(plain)
}

fn convolution(b: &KernelBuilder<'_>) -> Result<Built> {
    let op = b.node.op_name();
    let inputs = Inputs::of(op);
    let out = b.attrs().dtype("out_type")?;
    if op.contains("Depthwise") {
        let p = depthwise::Params::parse(&plain_attrs(b.attrs(), DType::Double)?, true)?;
        return Built::costly(move |ctx| {
            let (x, filter) = (ctx.input(0)?, ctx.input(1)?);
            let channels = four("filter", filter)?[2..].iter().product();
            let sum = depthwise::convolve(ctx, &p, &doubles(x)?, &doubles(filter)?)?;
            let exact = sum.as_slice::<f64>()?.iter().map(|v| *v as i32).collect();
            let sum = Tensor::from_vec(exact, sum.shape().clone())?;
            finish_convolution(ctx, inputs, &sum, channels, out)
        });
    }
    let p = conv::Params::parse(&plain_attrs(b.attrs(), DType::Int32)?, Direction::Forward)?;
    Built::costly(move |ctx| {
        let (x, filter) = (ctx.input(0)?, ctx.input(1)?);
        let channels = four("filter", filter)?[3];
        let sum = conv::convolve(ctx, &p, &widened(x)?, &widened(filter)?, None)?;
        finish_convolution(ctx, inputs, &sum, channels, out)
    })
}

/// The integers of a quantized tensor as doubles, whose sums are exact.
fn doubles(t: &Tensor) -> Result<Tensor> {
    let values = read(t)?.into_iter().map(f64::from).collect();
    Ok(Tensor::from_vec(values, t.shape().clone())?)
}

fn finish_convolution(
    ctx: &mut OpContext<'_>,
    inputs: Inputs,
    sum: &Tensor,
    channels: usize,
    out: DType,
) -> Result<()> {
    let dtype = ctx.input(0)?.dtype();
    let input = range(ctx, inputs.ranges, "input", 1)?[0];
    let filter = range(ctx, inputs.ranges + 2, "filter", channels)?;
    let scales: Vec<f32> = filter
        .iter()
        .map(|f| symmetric(dtype, input) * symmetric(DType::QInt8, *f))
        .collect();
    let made = Made {
        sum,
        channels,
        scales: &scales,
        offsets: None,
    };
    finish(ctx, inputs, &made, out)?;
    if inputs.wanted.is_none() {
        // Far enough apart for whatever the product of two integers stands for.
        let (low, high) = ends(DType::QInt32);
        let steps = filter
            .iter()
            .map(|f| step(dtype, input) * step(DType::QInt8, *f));
        let steps: Vec<f32> = steps.collect();
        let shape = ctx.input(inputs.ranges + 2)?.shape().clone();
        for (i, end) in [(1, low), (2, high)] {
            let values = steps.iter().map(|s| s * end as f32).collect();
            let t = Tensor::from_vec(values, shape.clone())?;
            ctx.set_output(i, t);
        }
    }
    Ok(())
}

/// A sum of products in 32 bits, and the floats that its integers stand for.
struct Made<'a> {
    sum: &'a Tensor,
    channels: usize,
    /// Of one integer, for all channels or for each.
    scales: &'a [f32],
    /// What is added to each channel beside the bias, in the sum's integers.
    offsets: Option<&'a [f32]>,
}

/// Adds bias and summand, rectifies, and writes the result in its type.
fn finish(ctx: &mut OpContext<'_>, inputs: Inputs, made: &Made<'_>, out: DType) -> Result<()> {
    let channels = made.channels.max(1);
    let scale = |c: usize| *made.scales.get(c).unwrap_or(&made.scales[0]);
    // What one integer of the result stands for. Where no range is asked for, that of the channel with the widest.
    let unit = match (inputs.wanted, out) {
        (Some(at), DType::QInt8 | DType::QUInt8) => {
            let text = |name: &'static str| {
                move |t: &Tensor| format!("`{name}` must be rank 0 but is rank {}", t.rank())
            };
            let low = float(ctx, at, text("min_freezed_output"))?;
            let high = float(ctx, at + 1, text("max_freezed_output"))?;
            ctx.set_output(1, Tensor::scalar(low));
            ctx.set_output(2, Tensor::scalar(high));
            symmetric(out, (low, high))
        }
        (_, DType::Float) => 1.0,
        _ => made.scales.iter().copied().fold(0.0, f32::max),
    };
    let mut offsets = vec![0f32; channels];
    let mut whole = vec![0i32; channels];
    if let Some(at) = inputs.bias {
        let bias = ctx.input(at)?;
        if bias.dims() != [made.channels] {
            return invalid(format!(
                "the bias must have one element for each of {} channels, but its shape is {}",
                made.channels,
                bias.shape()
            ));
        }
        match bias.dtype() {
            DType::Float => {
                let values = bias.as_slice::<f32>()?.iter().enumerate();
                values.for_each(|(c, v)| offsets[c] = *v);
                for (c, more) in made.offsets.iter().flat_map(|o| o.iter()).enumerate() {
                    offsets[c] += more * scale(c);
                }
            }
            // Already in the integers of the sum, what belongs to a zero point included.
            _ => whole.copy_from_slice(&read(bias)?),
        }
    }
    let summand = match inputs.summand {
        None => None,
        Some(at) => {
            let t = ctx.input(at)?;
            if t.shape() != made.sum.shape() {
                return invalid(format!(
                    "the summand must have the shape of the result, {}, but its shape is {}",
                    made.sum.shape(),
                    t.shape()
                ));
            }
            Some(match t.dtype() {
                DType::Float => t.as_slice::<f32>()?.iter().map(|v| v / unit).collect(),
                dtype => {
                    let range = range(ctx, at + 1, "summand", 1)?[0];
                    let by = symmetric(dtype, range) / unit;
                    let values = read(t)?.into_iter();
                    values.map(|v| v as f32 * by).collect::<Vec<f32>>()
                }
            })
        }
    };
    let sums = made.sum.as_slice::<i32>()?;
    // oneDNN multiplies by the inverse, which rounds otherwise than a division.
    let per_unit = 1.0 / unit;
    let value = |(i, sum): (usize, &i32)| {
        let c = i % channels;
        let mut v = (sum.wrapping_add(whole[c]) as f32 * scale(c) + offsets[c]) * per_unit;
        if let Some(summand) = &summand {
            v += summand[i];
        }
        if inputs.has_relu { v.max(0.0) } else { v }
    };
    let shape = made.sum.shape().clone();
    let values = sums.iter().enumerate().map(value);
    let t = match out {
        DType::Float => Tensor::from_vec(values.collect(), shape)?,
        // Plain sums need not be floats on their way.
        DType::QInt32
            if inputs.bias.is_none() && inputs.summand.is_none() && made.scales.len() == 1 =>
        {
            let least = if inputs.has_relu { 0 } else { i32::MIN };
            let values = sums.iter().map(|v| (*v).max(least)).collect();
            write(out, values, shape)?
        }
        _ => {
            let (low, high) = ends(out);
            let rounded = values.map(|v| v.round_ties_even().max(low as f32).min(high as f32));
            write(out, rounded.map(|v| v as i32).collect(), shape)?
        }
    };
    ctx.set_output(0, t);
    Ok(())
}

fn product(b: &KernelBuilder<'_>) -> Result<Built> {
    let inputs = Inputs::of(b.node.op_name());
    let out = b.attrs().dtype("Toutput")?;
    let (ta, tb) = (
        b.attrs().bool("transpose_a")?,
        b.attrs().bool("transpose_b")?,
    );
    let from_lowest = b.attrs().str("input_quant_mode")? == "MIN_FIRST";
    Built::costly(move |ctx| {
        let (left, right) = (widened(ctx.input(0)?)?, widened(ctx.input(1)?)?);
        let sum = matmul(ctx, &left, &right, ta, tb)?;
        let text = |name: &'static str| {
            move |t: &Tensor| format!("`{name}` must be rank 0 but is rank {}", t.rank())
        };
        let names = ["min_a", "max_a", "min_b", "max_b"];
        let mut given = [0f32; 4];
        for (i, name) in names.into_iter().enumerate() {
            given[i] = float(ctx, inputs.ranges + i, text(name))?;
        }
        let (a, b) = ((given[0], given[1]), (given[2], given[3]));
        let unit = match from_lowest {
            true => step(DType::QUInt8, a),
            false => symmetric(DType::QUInt8, a),
        };
        // Where 0 stands for the lowest float, each column misses that many times its sum.
        let missing: Option<Vec<f32>> = from_lowest.then(|| {
            let columns = column_sums(&right, tb);
            columns.iter().map(|s| *s as f32 * (a.0 / unit)).collect()
        });
        let made = Made {
            sum: &sum,
            channels: sum.dims()[1],
            scales: &[unit * symmetric(DType::QInt8, b)],
            offsets: missing.as_deref(),
        };
        finish(ctx, inputs, &made, out)?;
        if out == DType::QInt32 {
            let one = step(DType::QUInt8, a) * step(DType::QInt8, b);
            let (low, high) = ends(out);
            ctx.set_output(1, Tensor::scalar(one * low as f32));
            ctx.set_output(2, Tensor::scalar(one * high as f32));
        }
        Ok(())
    })
}

/// The sum of each column of a matrix, or of each row where it is to be transposed.
fn column_sums(matrix: &Tensor, transposed: bool) -> Vec<i32> {
    let (rows, columns) = (matrix.dims()[0], matrix.dims()[1]);
    let values = matrix.as_slice::<i32>().unwrap_or_default();
    let mut sums = vec![0; if transposed { rows } else { columns }];
    for (i, v) in values.iter().enumerate() {
        sums[if transposed { i / columns } else { i % columns }] += v;
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::super::levels::{read, write};
    use crate::testing::run_op;
    use downpour_graph::AttrValue;
    use downpour_tensor::{DType, Tensor};

    fn codes(dtype: DType, dims: &[usize], seed: i32) -> Tensor {
        let count: usize = dims.iter().product();
        let low = if dtype == DType::QInt8 { -127 } else { 0 };
        let values = (0..count as i32).map(|i| low + (i * 37 + seed * 11) % 255);
        write(dtype, values.collect(), dims).unwrap()
    }

    fn attrs(input: DType, out: DType) -> Vec<(&'static str, AttrValue)> {
        vec![
            ("Tinput", input.into()),
            ("Tfilter", DType::QInt8.into()),
            ("out_type", out.into()),
            ("strides", vec![1i64, 1, 1, 1].into()),
            ("dilations", vec![1i64, 1, 1, 1].into()),
            ("padding", "VALID".into()),
        ]
    }

    fn scalars(values: &[f32]) -> impl Iterator<Item = Tensor> {
        values.iter().map(|v| Tensor::scalar(*v))
    }

    /// The convolution's sums by their definition, 2x2 taps and no padding.
    fn sums(x: &Tensor, f: &Tensor) -> Vec<i32> {
        let (xd, fd) = (x.dims().to_vec(), f.dims().to_vec());
        let (x, f) = (read(x).unwrap(), read(f).unwrap());
        let mut out = Vec::new();
        for y in 0..xd[1] - 1 {
            for c in 0..xd[2] - 1 {
                for o in 0..fd[3] {
                    let mut sum = 0;
                    for (ky, kx) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                        for i in 0..fd[2] {
                            let pixel = x[((y + ky) * xd[2] + c + kx) * xd[3] + i];
                            sum += pixel * f[((ky * 2 + kx) * fd[2] + i) * fd[3] + o];
                        }
                    }
                    out.push(sum);
                }
            }
        }
        out
    }

    #[test]
    fn a_layer_is_a_convolution_of_floats_rounded_to_its_range() {
        for input in [DType::QUInt8, DType::QInt8] {
            let (x, f) = (
                codes(input, &[1, 3, 4, 2], 1),
                codes(DType::QInt8, &[2, 2, 2, 3], 2),
            );
            let bias = Tensor::vector(vec![0.5f32, -1.0, 2.0]);
            let mut all = attrs(input, DType::QUInt8);
            all.push(("Tbias", DType::Float.into()));
            let lows = Tensor::vector(vec![-1f32, -0.5, -0.2]);
            let highs = Tensor::vector(vec![0.5f32, 0.4, 1.0]);
            let mut inputs = vec![x.clone(), f.clone(), bias];
            inputs.extend(scalars(&[-4.0, 4.0]));
            inputs.extend([lows, highs]);
            inputs.extend(scalars(&[0.0, 6.0]));
            let op = "QuantizedConv2DWithBiasAndReluAndRequantize";
            let got = run_op(op, inputs, &all).unwrap();
            let unit = 4.0 / if input == DType::QUInt8 { 255.0 } else { 127.0 };
            let want = sums(&x, &f).into_iter().enumerate().map(|(i, sum)| {
                let scale = unit * [1.0, 0.5, 1.0][i % 3] / 127.0;
                let value = f64::from(sum) * scale + [0.5, -1.0, 2.0][i % 3];
                (value / (6.0 / 255.0)).round_ties_even().clamp(0.0, 255.0) as i32
            });
            assert_eq!(read(&got[0]).unwrap(), want.collect::<Vec<_>>());
            assert_eq!(got[2].scalar_value::<f32>().unwrap(), 6.0);
        }
    }

    #[test]
    fn a_summand_is_added_before_the_rectifier() {
        let (x, f) = (
            codes(DType::QUInt8, &[1, 3, 3, 2], 1),
            codes(DType::QInt8, &[2, 2, 2, 3], 2),
        );
        let more = codes(DType::QInt8, &[1, 2, 2, 3], 5);
        let mut all = attrs(DType::QUInt8, DType::QUInt8);
        all.push(("Tbias", DType::QInt32.into()));
        all.push(("Tsummand", DType::QInt8.into()));
        let bias = write(DType::QInt32, vec![100, -3000, 0], [3]).unwrap();
        let mut inputs = vec![x.clone(), f.clone(), bias];
        inputs.extend(scalars(&[0.0, 2.0, -1.0, 1.0, 0.0, 5.0]));
        inputs.push(more.clone());
        inputs.extend(scalars(&[-3.0, 1.0]));
        let op = "QuantizedConv2DWithBiasSignedSumAndReluAndRequantize";
        let got = run_op(op, inputs, &all).unwrap();
        let more = read(&more).unwrap();
        let want = sums(&x, &f).into_iter().enumerate().map(|(i, sum)| {
            let value = f64::from(sum + [100, -3000, 0][i % 3]) * (2.0 / 255.0 / 127.0);
            let value = value + f64::from(more[i]) * 3.0 / 127.0;
            (value / (5.0 / 255.0)).round_ties_even().clamp(0.0, 255.0) as i32
        });
        assert_eq!(read(&got[0]).unwrap(), want.collect::<Vec<_>>());
    }

    #[test]
    fn integers_that_count_from_the_lowest_float_give_the_same_product() {
        let (a, b) = (
            codes(DType::QUInt8, &[3, 4], 1),
            codes(DType::QInt8, &[4, 2], 2),
        );
        let attrs = [
            ("T1", DType::QUInt8.into()),
            ("T2", DType::QInt8.into()),
            ("Tbias", DType::Float.into()),
            ("Toutput", DType::Float.into()),
            ("input_quant_mode", "MIN_FIRST".into()),
        ];
        let mut inputs = vec![a.clone(), b.clone(), Tensor::vector(vec![0.25f32, -1.0])];
        inputs.extend(scalars(&[-1.0, 3.0, -0.5, 0.4, 0.0, 1.0]));
        let got = run_op("QuantizedMatMulWithBiasAndDequantize", inputs, &attrs).unwrap();
        let (a, b) = (read(&a).unwrap(), read(&b).unwrap());
        for (i, got) in got[0].as_slice::<f32>().unwrap().iter().enumerate() {
            let (row, column) = (i / 2, i % 2);
            let value: f64 = (0..4)
                .map(|k| {
                    let left = f64::from(a[row * 4 + k]) * 4.0 / 255.0 - 1.0;
                    left * f64::from(b[k * 2 + column]) * 0.5 / 127.0
                })
                .sum();
            let want = value + [0.25, -1.0][column];
            assert!((f64::from(*got) - want).abs() < 1e-5, "{got} {want}");
        }
    }

    #[test]
    fn sums_have_one_unit_and_ranges_follow_their_filters() {
        let (x, f) = (
            codes(DType::QUInt8, &[1, 3, 3, 2], 1),
            codes(DType::QInt8, &[2, 2, 2, 2], 2),
        );
        let mut inputs = vec![x.clone(), f.clone()];
        inputs.extend(scalars(&[0.0, 4.0]));
        inputs.push(Tensor::vector(vec![-1f32, -0.5]));
        inputs.push(Tensor::vector(vec![1f32, 0.5]));
        let got = run_op(
            "QuantizedConv2DPerChannel",
            inputs,
            &attrs(DType::QUInt8, DType::QInt32),
        );
        let got = got.unwrap();
        // In the unit of the wider range: the other channel's sums are halved.
        let want = sums(&x, &f)
            .into_iter()
            .enumerate()
            .map(|(i, sum)| match i % 2 {
                0 => sum,
                _ => (f64::from(sum) / 2.0).round_ties_even() as i32,
            });
        assert_eq!(read(&got[0]).unwrap(), want.collect::<Vec<_>>());
        // TensorFlow's numbers for these ranges.
        let high = got[2].as_slice::<f32>().unwrap();
        assert_eq!(high, [265_244.25, 132_622.12]);
    }

    #[test]
    fn ranges_and_biases_of_other_shapes_are_refused() {
        let (x, f) = (
            codes(DType::QUInt8, &[1, 3, 3, 2], 1),
            codes(DType::QInt8, &[2, 2, 2, 2], 2),
        );
        let run = |bias: Tensor, low: Tensor| {
            let mut inputs = vec![x.clone(), f.clone(), bias];
            inputs.extend(scalars(&[0.0, 4.0]));
            inputs.extend([low.clone(), low]);
            let attrs = attrs(DType::QUInt8, DType::QInt32);
            run_op("QuantizedConv2DWithBias", inputs, &attrs).unwrap_err()
        };
        let e = run(Tensor::vector(vec![1f32; 3]), Tensor::scalar(1f32));
        assert!(
            e.message
                .contains("the bias must have one element for each of 2"),
            "{e}"
        );
        let e = run(Tensor::vector(vec![1f32; 2]), Tensor::vector(vec![1f32; 3]));
        assert!(
            e.message.contains("min_filter and max_filter must have"),
            "{e}"
        );
    }
}
