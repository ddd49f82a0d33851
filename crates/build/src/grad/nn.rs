//! Gradients of activations, biases, losses, normalisation and simulated quantisation.

use super::math::one;
use super::terms::{
    call, count_to, from, ints, join, of, product_of, rank_of, shape_of, sum_over, to,
};
use super::{Back, Differentiate, Gradient, Grads, Rule};
use crate::Output;
use downpour_graph::Result;
use downpour_tensor::DType;

pub(super) fn rule(op: &str) -> Option<Rule> {
    activation(op).or_else(|| layer(op))
}

fn activation(op: &str) -> Option<Rule> {
    Some(match op {
        "Relu" => |b| one(of("ReluGrad", &[&b.dy(0), &b.y(0)])),
        "Relu6" => |b| one(of("Relu6Grad", &[&b.dy(0), &b.y(0)])),
        "Elu" => |b| one(of("EluGrad", &[&b.dy(0), &b.y(0)])),
        "Selu" => |b| one(of("SeluGrad", &[&b.dy(0), &b.y(0)])),
        "LeakyRelu" => |b| one(leaky(b, &b.x(0))),
        "Softplus" => |b| one(b.dy(0) * b.x(0).sigmoid()),
        "Softsign" => |b| one(of("SoftsignGrad", &[&b.dy(0), &b.x(0)])),
        "Softmax" => |b| {
            let (y, dy) = (b.y(0), b.dy(0));
            one((&dy - (&dy * &y).sum_keep(-1)) * y)
        },
        "LogSoftmax" => |b| one(b.dy(0) - b.dy(0).sum_keep(-1) * b.y(0).exp()),
        "ReluGrad" | "Relu6Grad" => |b| {
            let x = b.x(1);
            b.some([(0, of(&b.op().op(), &[&b.dy(0), &x])), (1, x.zeros_like())])
        },
        "EluGrad" | "SeluGrad" => |b| {
            let (y, dy) = (b.x(1), b.dy(0));
            let below = y.less(&y.scalar_like(0.0));
            let curve = below.select(&(&dy * b.x(0)), &y.zeros_like());
            b.some([(0, of(&b.op().op(), &[&dy, &y])), (1, curve)])
        },
        "LeakyReluGrad" => |b| b.some([(0, leaky(b, &b.x(1))), (1, b.x(1).zeros_like())]),
        "SoftplusGrad" => |b| {
            let (x, dy) = (b.x(1), b.dy(0));
            let curve = &dy * b.x(0) / ((-&x).exp() + 2.0 + x.exp());
            b.some([(0, of("SoftplusGrad", &[&dy, &x])), (1, curve)])
        },
        "L2Loss" => |b| one(b.x(0) * b.dy(0)),
        _ => return None,
    })
}

fn layer(op: &str) -> Option<Rule> {
    Some(match op {
        "BiasAdd" => |b| {
            let op = call("BiasAddGrad", &[&b.dy(0)]);
            let bias = op.attrs_of(b.op(), &["data_format"]).output();
            b.some([(0, b.dy(0)), (1, bias)])
        },
        "BiasAddV1" => |b| {
            let axes = count_to(&(rank_of(&b.dy(0)) - 1));
            b.some([(0, b.dy(0)), (1, sum_over(&b.dy(0), &axes, false))])
        },
        "BiasAddGrad" => bias_grad,
        "SoftmaxCrossEntropyWithLogits" => |b| {
            let labels = by_rows(&b.dy(0), &-b.x(0).log_softmax());
            b.some([(0, logits(b)), (1, labels)])
        },
        "SparseSoftmaxCrossEntropyWithLogits" => |b| b.only(0, logits(b)),
        "CTCLoss" => |b| {
            let message = "Currently there is no way to take the second  derivative of ctc_loss \
                           due to the fused implementation's interaction  with tf.gradients()";
            let fixed = call("PreventGradient", &[&b.y(1)]).attr("message", message);
            b.only(0, by_rows(&b.dy(0), &fixed.output()))
        },
        "FusedBatchNorm" => |b| batch_norm(b, "FusedBatchNormGrad"),
        "FusedBatchNormV2" => |b| batch_norm(b, "FusedBatchNormGradV2"),
        "FusedBatchNormV3" => |b| batch_norm(b, "FusedBatchNormGradV3"),
        "FusedBatchNormGrad" | "FusedBatchNormGradV2" | "FusedBatchNormGradV3" => batch_norm_grad,
        "FakeQuantWithMinMaxArgs" => |b| {
            let op = call("FakeQuantWithMinMaxArgsGradient", &[&b.dy(0), &b.x(0)]);
            one(op
                .attrs_of(b.op(), &["min", "max", "num_bits", "narrow_range"])
                .output())
        },
        "FakeQuantWithMinMaxVars" => |b| fake_quant(b, "FakeQuantWithMinMaxVarsGradient"),
        "FakeQuantWithMinMaxVarsPerChannel" => {
            |b| fake_quant(b, "FakeQuantWithMinMaxVarsPerChannelGradient")
        }
        "QuantizeAndDequantizeV4" | "QuantizeAndDequantizeV4Grad" => |b| {
            let inputs = [&b.dy(0), &b.x(0), &b.x(1), &b.x(2)];
            let op = call("QuantizeAndDequantizeV4Grad", &inputs);
            let made = op.attrs_of(b.op(), &["axis"]).build();
            b.some([0, 1, 2].map(|i| (i, made.output(i))))
        },
        _ => return None,
    })
}

fn leaky(b: &Back, x: &Output) -> Output {
    let op = call("LeakyReluGrad", &[&b.dy(0), x]);
    op.attrs_of(b.op(), &["alpha"]).output()
}

/// One factor for each row.
fn by_rows(factors: &Output, rows: &Output) -> Output {
    factors.expand_dims(-1) * rows
}

/// The kernel computes the gradient of the logits beside the loss; of that in turn, the softmax
/// is the derivative.
fn logits(b: &Back) -> Output {
    let first = by_rows(&b.dy(0), &b.y(1));
    if b.gradient(1).is_none() {
        return first;
    }
    let (second, softmax) = (b.dy(1), b.x(0).softmax());
    let dot = product_of(
        &second.expand_dims(1),
        false,
        &softmax.expand_dims(2),
        false,
    );
    first + (&second - dot.squeeze(&[1])) * softmax
}

fn bias_grad(b: &Back) -> Result<Grads> {
    let (shape, dy) = (shape_of(&b.x(0)), b.dy(0));
    let tall = match b.text("data_format").as_str() {
        "NCHW" => {
            let (first, rest) = (to(&shape, 1).ones_like(), from(&shape, 2).ones_like());
            join(&[&first, &shape_of(&dy), &rest])
        }
        _ => join(&[&to(&shape, -1).ones_like(), &shape_of(&dy)]),
    };
    one(of("BroadcastTo", &[&dy.reshape_to(&tall), &shape]))
}

fn fake_quant(b: &Back, op: &str) -> Result<Grads> {
    let op = call(op, &[&b.dy(0), &b.x(0), &b.x(1), &b.x(2)]);
    let made = op.attrs_of(b.op(), &["num_bits", "narrow_range"]).build();
    b.some([0, 1, 2].map(|i| (i, made.output(i))))
}

fn batch_norm(b: &Back, op: &str) -> Result<Grads> {
    let (training, format) = (b.flag("is_training")?, b.text("data_format"));
    let (mut x, mut dy, mut used) = (b.x(0), b.dy(0), format.as_str());
    // Without training the kernels know channels only at the end.
    let turn: Option<(&[i32], &[i32], &str)> = match (training, format.as_str()) {
        (false, "NCHW") => Some((&[0, 2, 3, 1], &[0, 3, 1, 2], "NHWC")),
        (false, "NCDHW") => Some((&[0, 2, 3, 4, 1], &[0, 4, 1, 2, 3], "NDHWC")),
        _ => None,
    };
    if let Some((ahead, _, turned)) = turn {
        (x, dy, used) = (x.transpose(ahead), dy.transpose(ahead), turned);
    }
    let (mean, variance) = match training {
        true => (b.y(3), b.y(4)),
        false => (b.x(3), b.x(4)),
    };
    let mut made = call(op, &[&dy, &x, &b.x(1), &mean, &variance]);
    if op.ends_with("V3") {
        made = made.input(&b.y(5));
    }
    let made = made.attrs_of(b.op(), &["epsilon", "is_training"]);
    let made = made.attr("data_format", used).build();
    let dx = match turn {
        Some((_, back, _)) => made.output(0).transpose(back),
        None => made.output(0),
    };
    b.some([(0, dx), (1, made.output(1)), (2, made.output(2))])
}

/// The gradient written out, and differentiated.
fn batch_norm_grad(b: &Back) -> Result<Grads> {
    let xs = [b.x(0), b.x(1), b.x(2)].map(|x| x.identity());
    let [dy, x, scale] = &xs;
    let ys = written_out(b, dy, x, scale)?;
    let dys: Vec<Option<Gradient>> = (0..3).map(|i| Some(b.dy(i).into())).collect();
    let grads = Differentiate {
        ys: &ys,
        dys: &dys,
        xs: &xs,
        ..Default::default()
    };
    let mut grads = grads.run()?;
    grads.resize(b.op().num_inputs(), None);
    Ok(grads)
}

/// The gradients of input, scale and offset in terms of plain operations.
fn written_out(b: &Back, dy: &Output, x: &Output, scale: &Output) -> Result<[Output; 3]> {
    let dtype = x.dtype();
    let half = matches!(dtype, DType::Half | DType::BFloat16);
    let wide = |t: &Output| match half {
        true => t.cast(DType::Float),
        false => t.clone(),
    };
    let (x, dy, g) = (wide(x), wide(dy), b.graph());
    let epsilon = f64::from(b.op().attrs().float("epsilon")?);
    let (axes, channels): (&[i32], &[i32]) = match b.text("data_format").as_str() {
        "NHWC" => (&[0, 1, 2], &[-1]),
        "NDHWC" => (&[0, 1, 2, 3], &[-1]),
        "NCHW" => (&[0, 2, 3], &[1, -1, 1, 1]),
        _ => (&[0, 2, 3, 4], &[1, -1, 1, 1, 1]),
    };
    let axes = ints(g, axes);
    let mean = |t: &Output| call("Mean", &[t, &axes]).attr("keep_dims", true).output();
    let total = |t: &Output| sum_over(t, &axes, false);
    let per_channel = |t: &Output| t.reshape(channels);
    let scale = per_channel(scale);
    let offset = total(&dy);
    if !b.flag("is_training")? {
        let spread = (per_channel(&b.x(4)) + epsilon).rsqrt();
        let d_scale = total(&(&dy * (&x - per_channel(&b.x(3))) * &spread));
        return Ok([(dy * scale * spread).cast(dtype), d_scale, offset]);
    }
    let center = mean(&x);
    let variance = mean(&x.squared_difference(&center.stop_gradient())) + epsilon;
    let shift = &x - center;
    let slope = mean(&(&dy * &shift));
    let dx = scale * variance.rsqrt() * (&dy - mean(&dy) - variance.reciprocal() * slope * &shift);
    let d_scale = variance.rsqrt().reshape(&[-1]) * total(&(dy * shift));
    Ok([dx.cast(dtype), d_scale, offset])
}
