//! Gradients of convolutions, pools and their own gradients.

use super::math::one;
use super::terms::{call, shape_as, shape_of};
use super::{Back, Grads, Rule};
use crate::Output;
use downpour_graph::Result;
use downpour_tensor::DType;

const CONV: &[&str] = &[
    "strides",
    "padding",
    "explicit_paddings",
    "data_format",
    "dilations",
    "use_cudnn_on_gpu",
];
const POOL: &[&str] = &["ksize", "strides", "padding", "data_format"];

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "Conv2D" => |b| forward(b, &CONV2D),
        "Conv2DBackpropInput" => |b| of_input(b, &CONV2D),
        "Conv2DBackpropFilter" => |b| of_filter(b, &CONV2D),
        "DepthwiseConv2dNative" => |b| forward(b, &DEPTHWISE),
        "DepthwiseConv2dNativeBackpropInput" => |b| of_input(b, &DEPTHWISE),
        "DepthwiseConv2dNativeBackpropFilter" => |b| of_filter(b, &DEPTHWISE),
        "Conv3D" => |b| forward(b, &CONV3D),
        "Conv3DBackpropInputV2" => |b| of_input(b, &CONV3D),
        "Conv3DBackpropFilterV2" => |b| of_filter(b, &CONV3D),
        "Dilation2D" => |b| {
            let part = |op: &str| {
                let op = call(op, &[&b.x(0), &b.x(1), &b.dy(0)]);
                op.attrs_of(b.op(), &["strides", "rates", "padding"])
                    .output()
            };
            b.some([
                (0, part("Dilation2DBackpropInput")),
                (1, part("Dilation2DBackpropFilter")),
            ])
        },
        "LRN" => |b| {
            let op = call("LRNGrad", &[&b.dy(0), &b.x(0), &b.y(0)]);
            one(op
                .attrs_of(b.op(), &["depth_radius", "bias", "alpha", "beta"])
                .output())
        },
        _ => return pool(op),
    })
}

fn pool(op: &str) -> Option<Rule> {
    Some(match op {
        "AvgPool" => |b| one(like(b, "AvgPoolGrad", &[&shape_of(&b.x(0)), &b.dy(0)])),
        "AvgPool3D" => |b| one(like(b, "AvgPool3DGrad", &[&shape_of(&b.x(0)), &b.dy(0)])),
        "AvgPoolGrad" => |b| b.only(1, like(b, "AvgPool", &[&b.dy(0)])),
        "AvgPool3DGrad" => |b| b.only(1, like(b, "AvgPool3D", &[&b.dy(0)])),
        "MaxPool" => |b| {
            let op = call("MaxPoolGrad", &[&b.x(0), &b.y(0), &b.dy(0)]);
            one(op
                .attrs_of(b.op(), POOL)
                .attrs_of(b.op(), &["explicit_paddings"])
                .output())
        },
        "MaxPool3D" => |b| one(like(b, "MaxPool3DGrad", &[&b.x(0), &b.y(0), &b.dy(0)])),
        "MaxPoolV2" => |b| {
            let op = call(
                "MaxPoolGradV2",
                &[&b.x(0), &b.y(0), &b.dy(0), &b.x(1), &b.x(2)],
            );
            b.only(0, op.attrs_of(b.op(), &["padding", "data_format"]).output())
        },
        "MaxPoolGrad" => |b| second(b, like(b, "MaxPoolGradGrad", &[&b.x(0), &b.x(1), &b.dy(0)])),
        "MaxPool3DGrad" => |b| {
            second(
                b,
                like(b, "MaxPool3DGradGrad", &[&b.x(0), &b.x(1), &b.dy(0)]),
            )
        },
        "MaxPoolGradGrad" => |b| second(b, like(b, "MaxPoolGrad", &[&b.x(0), &b.x(1), &b.dy(0)])),
        "MaxPool3DGradGrad" => {
            |b| second(b, like(b, "MaxPool3DGrad", &[&b.x(0), &b.x(1), &b.dy(0)]))
        }
        "MaxPoolGradV2" => |b| {
            let op = call(
                "MaxPoolGradGradV2",
                &[&b.x(0), &b.x(1), &b.dy(0), &b.x(3), &b.x(4)],
            );
            second(b, op.attrs_of(b.op(), &["padding", "data_format"]).output())
        },
        "MaxPoolWithArgmax" => |b| {
            let op = call("MaxPoolGradWithArgmax", &[&b.x(0), &b.dy(0), &b.y(1)]);
            let op = op.attrs_of(b.op(), &["ksize", "strides", "padding"]);
            one(op.attrs_of(b.op(), &["include_batch_in_index"]).output())
        },
        "FractionalMaxPool" => |b| {
            let inputs = [&b.x(0), &b.y(0), &b.dy(0), &b.y(1), &b.y(2)];
            let op = call("FractionalMaxPoolGrad", &inputs);
            one(op.attrs_of(b.op(), &["overlapping"]).output())
        },
        "FractionalAvgPool" => |b| {
            let shape = shape_as(&b.x(0), DType::Int64);
            let op = call(
                "FractionalAvgPoolGrad",
                &[&shape, &b.dy(0), &b.y(1), &b.y(2)],
            );
            one(op.attrs_of(b.op(), &["overlapping"]).output())
        },
        _ => return None,
    })
}

/// A convolution and its two gradients.
struct Family {
    forward: &'static str,
    input: &'static str,
    filter: &'static str,
}

const CONV2D: Family = Family {
    forward: "Conv2D",
    input: "Conv2DBackpropInput",
    filter: "Conv2DBackpropFilter",
};
const DEPTHWISE: Family = Family {
    forward: "DepthwiseConv2dNative",
    input: "DepthwiseConv2dNativeBackpropInput",
    filter: "DepthwiseConv2dNativeBackpropFilter",
};
const CONV3D: Family = Family {
    forward: "Conv3D",
    input: "Conv3DBackpropInputV2",
    filter: "Conv3DBackpropFilterV2",
};

fn conv(b: &Back, op: &str, inputs: &[&Output]) -> Output {
    call(op, inputs).attrs_of(b.op(), CONV).output()
}

fn forward(b: &Back, family: &Family) -> Result<Grads> {
    let (x, filter, dy) = (b.x(0), b.x(1), b.dy(0));
    let dx = conv(b, family.input, &[&shape_of(&x), &filter, &dy]);
    b.some([
        (0, dx),
        (1, conv(b, family.filter, &[&x, &shape_of(&filter), &dy])),
    ])
}

fn of_input(b: &Back, family: &Family) -> Result<Grads> {
    let (filter, out, dy) = (b.x(1), b.x(2), b.dy(0));
    let d_filter = conv(b, family.filter, &[&dy, &shape_of(&filter), &out]);
    b.some([(1, d_filter), (2, conv(b, family.forward, &[&dy, &filter]))])
}

fn of_filter(b: &Back, family: &Family) -> Result<Grads> {
    let (x, out, dy) = (b.x(0), b.x(2), b.dy(0));
    let dx = conv(b, family.input, &[&shape_of(&x), &dy, &out]);
    b.some([(0, dx), (2, conv(b, family.forward, &[&x, &dy]))])
}

/// A pool's other half, with the same windows.
fn like(b: &Back, op: &str, inputs: &[&Output]) -> Output {
    call(op, inputs).attrs_of(b.op(), POOL).output()
}

/// Where the largest are does not change: zeros for what says it.
fn second(b: &Back, dy: Output) -> Result<Grads> {
    b.some([(0, b.x(0).zeros_like()), (1, b.x(1).zeros_like()), (2, dy)])
}
