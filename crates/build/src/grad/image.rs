//! Gradients of resized, cropped, warped and recoloured images.

use super::math::one;
use super::terms::{Pick, at, call, filled, of, pick, pick_last, shape_of, vector};
use super::{Back, Grads, Rule};
use crate::Output;
use downpour_graph::Result;
use downpour_tensor::DType;

const ALIGN: &[&str] = &["align_corners", "half_pixel_centers"];

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "ResizeNearestNeighbor" => |b| {
            let size = pick(&shape_of(&b.x(0)), &[Pick::Between(1, 3)]);
            let op = call("ResizeNearestNeighborGrad", &[&b.dy(0), &size]);
            b.only(0, op.attrs_of(b.op(), ALIGN).output())
        },
        "ResizeBilinear" => |b| {
            let op = call("ResizeBilinearGrad", &[&b.dy(0), &b.x(0)]);
            b.only(0, op.attrs_of(b.op(), ALIGN).output())
        },
        "ResizeBicubic" => |b| match b.x(0).dtype() {
            DType::Float | DType::Double => {
                let op = call("ResizeBicubicGrad", &[&b.dy(0), &b.x(0)]);
                b.only(0, op.attrs_of(b.op(), ALIGN).output())
            }
            _ => b.nothing(),
        },
        "ScaleAndTranslate" => |b| {
            let inputs = [&b.dy(0), &b.x(0), &b.x(2), &b.x(3)];
            let op = call("ScaleAndTranslateGrad", &inputs);
            b.only(
                0,
                op.attrs_of(b.op(), &["kernel_type", "antialias"]).output(),
            )
        },
        "CropAndResize" => crop,
        "ImageProjectiveTransformV2" | "ImageProjectiveTransformV3" => project,
        "RGBToHSV" => |b| one(hue(b)),
        _ => return None,
    })
}

fn crop(b: &Back) -> Result<Grads> {
    let (image, boxes, which, dy) = (b.x(0), b.x(1), b.x(2), b.dy(0));
    let mut grads: Grads = vec![None; b.op().num_inputs()];
    if matches!(image.dtype(), DType::Half | DType::Float | DType::Double) {
        let op = call(
            "CropAndResizeGradImage",
            &[&dy, &boxes, &which, &shape_of(&image)],
        );
        let op = op.attrs_of(b.op(), &["T", "method"]);
        grads[0] = Some(op.output().into());
    }
    let inputs = [&dy, &image, &boxes, &which];
    grads[1] = Some(of("CropAndResizeGradBoxes", &inputs).into());
    Ok(grads)
}

/// The inverse transform moves the gradient back.
fn project(b: &Back) -> Result<Grads> {
    let (images, g) = (b.x(0), b.graph());
    let flat = b.x(1).reshape(&[-1, 8]);
    let rows = vector(&[&at(&shape_of(&flat), 0), &g.constant(1i32)]);
    let square = crate::concat(&[flat.clone(), filled(&rows, &flat, 1.0)], 1);
    let inverse = of("MatrixInverse", &[&square.reshape(&[-1, 3, 3])]).reshape(&[-1, 9]);
    let columns = |part: Pick| pick(&inverse, &[Pick::All, part]);
    let transforms = columns(Pick::To(8)) / columns(Pick::Between(8, 9));
    let size = pick(&shape_of(&images), &[Pick::Between(1, 3)]);
    let mut op = call(&b.op().op(), &[&b.dy(0), &transforms, &size]);
    if b.op().num_inputs() == 4 {
        op = op.input(&g.constant(0.0f32));
    }
    b.only(
        0,
        op.attrs_of(b.op(), &["interpolation", "fill_mode"])
            .output(),
    )
}

/// `1 / x`, 0 at 0.
fn reciprocal(x: &Output) -> Output {
    of("DivNoNan", &[&x.scalar_like(1.0), x])
}

/// Hue, saturation and value by each colour. The colours take the same part in turn: what holds
/// for one holds for the next with all three moved on by one.
fn hue(b: &Back) -> Output {
    let (x, y, dy) = (b.x(0), b.y(0), b.dy(0));
    let channel = |t: &Output, i: i32| pick_last(t, &[Pick::One(i)]);
    let c = [0, 1, 2].map(|i| channel(&x, i));
    let (saturation, value) = (channel(&y, 1), channel(&y, 2));
    let number = |mask: Output| mask.cast(x.dtype());
    let both = |p: Output, q: Output| number(p.logical_and(&q));
    let [r, g, u] = &c;
    let biggest = [
        both(r.greater_equal(u), r.greater_equal(g)),
        both(g.greater(r), g.greater_equal(u)),
        both(u.greater(r), u.greater(g)),
    ];
    let smallest = [
        both(r.less(u), r.less(g)),
        both(g.less_equal(r), g.less(u)),
        both(u.less_equal(r), u.less_equal(g)),
    ];
    let lit = [0, 1, 2].map(|i| number(c[i].greater(&c[i].scalar_like(0.0))));
    let spread = reciprocal(&saturation.square()) * reciprocal(&value.square());
    let by_colour = [0, 1, 2].map(|i| {
        let (next, last) = ((i + 1) % 3, (i + 2) % 3);
        let of_two = |weights: &[Output; 3]| &weights[next] * &c[next] + &weights[last] * &c[last];
        let d_saturation = &lit[i]
            * (&biggest[i] * of_two(&smallest) * reciprocal(&c[i].square())
                - &smallest[i] * reciprocal(&of_two(&biggest)));
        let ahead = &c[next] - &c[last];
        let when = |big: usize, small: usize| &lit[big] * &biggest[big] * &smallest[small];
        let d_hue = -(&lit[i] * &biggest[i]) * &ahead * &spread
            - when(next, i) * &ahead * reciprocal(&(&c[i] - &c[next]).square())
            - when(next, last) * reciprocal(&ahead)
            - when(last, i) * &ahead * reciprocal(&(&c[last] - &c[i]).square())
            + when(last, next) * reciprocal(&-&ahead);
        channel(&dy, 2) * &biggest[i]
            + channel(&dy, 1) * d_saturation
            + channel(&dy, 0) * (d_hue * 60.0 / 360.0)
    });
    crate::stack(&by_colour, -1)
}
