//! Gradients of Fourier transforms.

use super::math::one;
use super::terms::{
    Pick, at, call, complex, conj, count_to, from, of, pick_last, product, product_of, real,
    real_type, shape_of,
};
use super::{Back, Grads, Rule};
use crate::Output;
use downpour_graph::Result;
use downpour_tensor::DType;
use std::f64::consts::PI;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "FFT" => |b| one(of("IFFT", &[&b.dy(0)]) * size(&b.dy(0), 1)),
        "FFT2D" => |b| one(of("IFFT2D", &[&b.dy(0)]) * size(&b.dy(0), 2)),
        "FFT3D" => |b| one(of("IFFT3D", &[&b.dy(0)]) * size(&b.dy(0), 3)),
        "IFFT" => |b| one(of("FFT", &[&b.dy(0)]) * inverse_size(&b.dy(0), 1)),
        "IFFT2D" => |b| one(of("FFT2D", &[&b.dy(0)]) * inverse_size(&b.dy(0), 2)),
        "IFFT3D" => |b| one(of("FFT3D", &[&b.dy(0)]) * inverse_size(&b.dy(0), 3)),
        "RFFT" => |b| rfft(b, 1, "IRFFT"),
        "RFFT2D" => |b| rfft(b, 2, "IRFFT2D"),
        "IRFFT" => |b| irfft(b, 1, "RFFT"),
        "IRFFT2D" => |b| irfft(b, 2, "RFFT2D"),
        _ => return None,
    })
}

/// Number of elements that one transform covers, in the tensor's type.
fn size(x: &Output, rank: i32) -> Output {
    product(&from(&shape_of(x), -rank)).cast(x.dtype())
}

fn inverse_size(x: &Output, rank: i32) -> Output {
    let part = real_type(x.dtype());
    let number = product(&from(&shape_of(x), -rank)).cast(part);
    (1.0 / number).cast(x.dtype())
}

/// `1, -1, 1, …`.
fn signs(length: &Output, dtype: DType) -> Output {
    (1 - 2 * (count_to(length) % 2)).cast(dtype)
}

/// The inverse transform of the gradient, and the terms that the missing half would have given.
fn rfft(b: &Back, rank: i32, inverse: &str) -> Result<Grads> {
    let (x, length, dy) = (b.x(0), b.x(1), b.dy(0));
    let (z, shape) = (dy.dtype(), shape_of(&x));
    let even = (1 - at(&length, -1) % 2).cast(z);
    let first = pick_last(&dy, &[Pick::Between(0, 1)]);
    let last = pick_last(&dy, &[Pick::From(-1)]);
    let width = at(&shape, -1);
    let mut own = first.clone();
    let mut edge = last.clone();
    if rank == 2 {
        let turns = twiddles(&at(&shape, -2), z);
        own = product_of(&turns, false, &conj(&first), false);
        edge = product_of(&turns, false, &conj(&last), false);
    }
    let extra = own + even * edge * signs(&width, z);
    let back = call(inverse, &[&dy, &length])
        .attr("Treal", x.dtype())
        .output();
    let number = product(&from(&shape, -rank)).cast(x.dtype());
    b.only(0, 0.5 * (back * number + real(&extra).cast(x.dtype())))
}

/// `exp(-2πi·a·b / n)` for all `a`, `b` below `n`.
fn twiddles(n: &Output, dtype: DType) -> Output {
    let part = real_type(dtype);
    let all = count_to(n).cast(part);
    let turns = all.expand_dims(0) * all.expand_dims(1);
    let angle = turns * (-2.0 * PI) / n.cast(part);
    complex(&angle.cos(), &angle.sin())
}

/// The transform of the gradient; what stands for two mirrored terms counts twice.
fn irfft(b: &Back, rank: i32, forward: &str) -> Result<Grads> {
    let (x, length, dy) = (b.x(0), b.x(1), b.dy(0));
    let odd = at(&length, -1) % 2;
    let width = at(&shape_of(&x), -1);
    let places = count_to(&width);
    let first = places.equal(&places.scalar_like(0.0));
    let last = places.equal(&(&width - 1 + odd));
    let single = first.logical_or(&last);
    let mask = single.select(&dy.scalar_like(1.0), &dy.scalar_like(2.0));
    let scale = size(&dy, rank).reciprocal() * mask;
    let op = call(forward, &[&dy, &length]).attr("Tcomplex", x.dtype());
    b.only(0, op.output() * scale.cast(x.dtype()))
}
