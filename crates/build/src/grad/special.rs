//! Gradients of special functions.

use super::math::{one, pair};
use super::terms::{call, conj, of, reduced_pair, shape_of, sum_over};
use super::{Back, Grads, Rule};
use crate::Output;
use downpour_graph::Result;
use std::f64::consts::PI;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "Erf" => |b| one(b.dy(0) * (2.0 / PI.sqrt()) * (-conj(&b.x(0)).square()).exp()),
        "Erfc" => |b| one(b.dy(0) * (-2.0 / PI.sqrt()) * (-conj(&b.x(0)).square()).exp()),
        "Erfinv" => |b| one(b.dy(0) * (PI.sqrt() / 2.0) * b.y(0).square().exp()),
        "Ndtri" => |b| one(b.dy(0) * (2.0 * PI).sqrt() * (b.y(0).square() / 2.0).exp()),
        "Lgamma" => |b| one(b.dy(0) * of("Digamma", &[&b.x(0)])),
        "Digamma" => |b| {
            let x = b.x(0);
            one(b.dy(0) * of("Polygamma", &[&x.scalar_like(1.0), &x]))
        },
        "Dawsn" => |b| one(b.dy(0) * (1.0 - 2.0 * b.x(0) * b.y(0))),
        "Expint" => |b| one(b.dy(0) * b.x(0).exp() / b.x(0)),
        "FresnelCos" => |b| one(b.dy(0) * (PI / 2.0 * b.x(0).square()).cos()),
        "FresnelSin" => |b| one(b.dy(0) * (PI / 2.0 * b.x(0).square()).sin()),
        "Spence" => |b| {
            let x = b.x(0);
            let slope = x.log() / (1.0 - &x);
            let at_one = x.equal(&x.scalar_like(1.0));
            one(b.dy(0) * at_one.select(&-x.ones_like(), &slope))
        },
        "Igamma" => |b| igamma(b, false),
        "Igammac" => |b| igamma(b, true),
        "Betainc" => |b| {
            let (a, c, x) = (b.x(0), b.x(1), b.x(2));
            let beta = lgamma(&a) + lgamma(&c) - lgamma(&(&a + &c));
            let left = of("Xlog1py", &[&(&c - 1.0), &-&x]);
            let right = of("Xlogy", &[&(&a - 1.0), &x]);
            let dx = (left + right - beta).exp() * b.dy(0);
            let shape = shape_of(&x);
            let axes = call("BroadcastGradientArgs", &[&shape_of(&a), &shape]).build();
            b.only(2, sum_over(&dx, &axes.output(1), false).reshape_to(&shape))
        },
        "Zeta" => |b| {
            let (x, q) = (b.x(0), b.x(1));
            second(b, -&x * of("Zeta", &[&(&x + 1.0), &q]))
        },
        "Polygamma" => |b| second(b, of("Polygamma", &[&(b.x(0) + 1.0), &b.x(1)])),
        _ => return bessel(op),
    })
}

fn bessel(op: &str) -> Option<Rule> {
    Some(match op {
        "BesselI0" => |b| one(b.dy(0) * of("BesselI1", &[&b.x(0)])),
        "BesselI0e" => |b| {
            let x = b.x(0);
            one(b.dy(0) * (of("BesselI1e", &[&x]) - x.sign() * b.y(0)))
        },
        "BesselI1" => |b| {
            let slope = of("BesselI0", &[&b.x(0)]) - b.y(0) / b.x(0);
            one(b.dy(0) * at_zero(&b.x(0), 1.0, &slope))
        },
        "BesselI1e" => |b| {
            let x = b.x(0);
            let slope = of("BesselI0e", &[&x]) - b.y(0) * (x.sign() + x.reciprocal());
            one(b.dy(0) * at_zero(&x, 0.5, &slope))
        },
        "BesselJ0" => |b| one(b.dy(0) * -of("BesselJ1", &[&b.x(0)])),
        "BesselJ1" => |b| {
            let slope = of("BesselJ0", &[&b.x(0)]) - b.y(0) / b.x(0);
            one(b.dy(0) * at_zero(&b.x(0), 0.5, &slope))
        },
        "BesselK0" => |b| one(b.dy(0) * -of("BesselK1", &[&b.x(0)])),
        "BesselK0e" => |b| one(b.dy(0) * (b.y(0) - of("BesselK1e", &[&b.x(0)]))),
        "BesselK1" => |b| one(b.dy(0) * (-of("BesselK0", &[&b.x(0)]) - b.y(0) / b.x(0))),
        "BesselK1e" => |b| {
            let x = b.x(0);
            let slope = b.y(0) * (1.0 - x.reciprocal()) - of("BesselK0e", &[&x]);
            one(b.dy(0) * slope)
        },
        "BesselY0" => |b| one(b.dy(0) * -of("BesselY1", &[&b.x(0)])),
        "BesselY1" => |b| one(b.dy(0) * (of("BesselY0", &[&b.x(0)]) - b.y(0) / b.x(0))),
        _ => return None,
    })
}

/// A slope whose value at 0 is known.
fn at_zero(x: &Output, value: f64, elsewhere: &Output) -> Output {
    let zero = x.equal(&x.scalar_like(0.0));
    zero.select(&x.scalar_like(value), elsewhere)
}

fn lgamma(x: &Output) -> Output {
    of("Lgamma", &[x])
}

/// A gradient for the second of two inputs that broadcast.
fn second(b: &Back, slope: Output) -> Result<Grads> {
    let dy = slope * b.dy(0);
    let [_, (_, dy)] = reduced_pair(&b.x(0), &b.x(1), dy.clone(), dy);
    b.only(1, dy)
}

fn igamma(b: &Back, upper: bool) -> Result<Grads> {
    let (a, x, dy) = (b.x(0), b.x(1), b.dy(0));
    let da = of("IgammaGradA", &[&a, &x]) * &dy;
    let dx = (-&x + (&a - 1.0) * x.log() - lgamma(&a)).exp() * &dy;
    match upper {
        false => pair(b, da, dx),
        true => pair(b, -da, -dx),
    }
}
