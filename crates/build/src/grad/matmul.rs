//! Gradients of products of matrices, dense and by equation.

use super::math::one;
use super::reduce::kept_dims;
use super::terms::{
    Pick, adjoint, call, conj, from, ints, join, of, pick_last, product_of, shape_of, sum_over, to,
    vector,
};
use super::{Back, Grads, Rule};
use crate::Output;
use downpour_graph::Result;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "MatMul" => |b| {
            let (x, y, dy) = (conj(&b.x(0)), conj(&b.x(1)), b.dy(0));
            let plain = |a: &Output, ta: bool, b: &Output, tb: bool| {
                let op = call("MatMul", &[a, b]).attr("transpose_a", ta);
                op.attr("transpose_b", tb).output()
            };
            let flips = (b.flag("transpose_a")?, b.flag("transpose_b")?);
            let (dx, dy) = factors(&x, &y, &dy, flips, plain);
            b.some([(0, dx), (1, dy)])
        },
        "SparseMatMul" => |b| {
            let plain = |a: &Output, ta: bool, b: &Output, tb: bool| {
                let op = call("SparseMatMul", &[a, b]).attr("transpose_a", ta);
                op.attr("transpose_b", tb).output()
            };
            let flips = (b.flag("transpose_a")?, b.flag("transpose_b")?);
            let (dx, dy) = factors(&b.x(0), &b.x(1), &b.dy(0), flips, plain);
            b.some([(0, dx.cast(b.x(0).dtype())), (1, dy.cast(b.x(1).dtype()))])
        },
        "BatchMatMul" | "BatchMatMulV2" | "BatchMatMulV3" => |b| {
            let flips = (b.flag("adj_x")?, b.flag("adj_y")?);
            let (x, y) = (b.x(0), b.x(1));
            let (dx, dy) = factors(&x, &y, &b.dy(0), flips, product_of);
            b.some(batches_reduced(&x, &y, dx, dy))
        },
        "Cross" => |b| {
            let (u, v, dy) = (b.x(0), b.x(1), b.dy(0));
            b.some([(0, of("Cross", &[&v, &dy])), (1, of("Cross", &[&dy, &u]))])
        },
        "TridiagonalMatMul" => tridiagonal,
        "Einsum" => einsum,
        _ => return None,
    })
}

/// Gradients of both factors of a product, of which either may have been flipped.
fn factors(
    x: &Output,
    y: &Output,
    dy: &Output,
    flips: (bool, bool),
    product: impl Fn(&Output, bool, &Output, bool) -> Output,
) -> (Output, Output) {
    match flips {
        (false, false) => (product(dy, false, y, true), product(x, true, dy, false)),
        (false, true) => (product(dy, false, y, false), product(dy, true, x, false)),
        (true, false) => (product(y, false, dy, true), product(x, false, dy, false)),
        (true, true) => (product(y, true, dy, true), product(dy, true, x, true)),
    }
}

/// Gradients of two batches of matrices whose leading dimensions broadcast.
pub(super) fn batches_reduced(
    x: &Output,
    y: &Output,
    dx: Output,
    dy: Output,
) -> [(usize, Output); 2] {
    let batch = |t: &Output| {
        t.shape()
            .to_shape()
            .map(|s| s.iter().rev().skip(2).copied().collect())
    };
    let (known_x, known_y): (Option<Vec<usize>>, Option<Vec<usize>>) = (batch(x), batch(y));
    if known_x.is_some() && known_x == known_y {
        return [(0, dx), (1, dy)];
    }
    let (shape_x, shape_y) = (shape_of(x), shape_of(y));
    let axes = call(
        "BroadcastGradientArgs",
        &[&to(&shape_x, -2), &to(&shape_y, -2)],
    )
    .build();
    let back = |grad: &Output, i: usize, shape: &Output| {
        sum_over(grad, &axes.output(i), false).reshape_to(shape)
    };
    [(0, back(&dx, 0, &shape_x)), (1, back(&dy, 1, &shape_y))]
}

/// Rows moved up by one, zeros below; or down, zeros above.
pub(super) fn shifted(x: &Output, up: bool) -> Output {
    let edge = pick_last(x, &[Pick::To(1), Pick::All]).zeros_like();
    let parts = match up {
        true => [pick_last(x, &[Pick::From(1), Pick::All]), edge],
        false => [edge, pick_last(x, &[Pick::To(-1), Pick::All])],
    };
    crate::concat(&parts, -2)
}

fn tridiagonal(b: &Back) -> Result<Grads> {
    let [above, main, below] = [0, 1, 2].map(|i| adjoint(&b.x(i)));
    let (right, dy) = (conj(&b.x(3)), b.dy(0));
    let diagonal = |rows: &Output| (rows * &dy).sum(-1).expand_dims(-2);
    let d_right = shifted(&(above * &dy), false) + main * &dy + shifted(&(below * &dy), true);
    b.some([
        (0, diagonal(&shifted(&right, true))),
        (1, diagonal(&right)),
        (2, diagonal(&shifted(&right, false))),
        (3, d_right),
    ])
}

const DOTS: &str = "...";

fn einsum(b: &Back) -> Result<Grads> {
    let equation = b.text("equation");
    let Some((inputs, output)) = equation.split_once("->") else {
        return b.refuse("its equation has no '->'");
    };
    let dy = b.dy(0);
    let Some((left, right)) = inputs.split_once(',') else {
        let summed = labels(inputs, &[output]);
        return one(match summed.is_empty() {
            true => equal(&[&dy], &format!("{output}->{inputs}")),
            false => unsummed(&dy, output, inputs, &shape_of(&b.x(0)), &summed),
        });
    };
    let dotted = |subs: &str| match output.contains(DOTS) && !subs.contains(DOTS) {
        true => format!("{subs}{DOTS}"),
        false => subs.to_owned(),
    };
    let (left, right) = (dotted(left), dotted(right));
    let (x, y) = (conj(&b.x(0)), conj(&b.x(1)));
    let (shape_x, shape_y) = (shape_of(&x), shape_of(&y));
    let dx = one_factor(&dy, &y, &shape_x, [&left, &right, output]);
    let d_y = one_factor(&dy, &x, &shape_y, [&right, &left, output]);
    if !output.contains(DOTS) {
        return b.some([(0, dx), (1, d_y)]);
    }
    // What the dots stand for was broadcast.
    let (before_x, before_y) = (dots_at(&left), dots_at(&right));
    let dots_x = between(&shape_x, &left);
    let axes = call(
        "BroadcastGradientArgs",
        &[&dots_x, &between(&shape_y, &right)],
    )
    .build();
    let back = |grad: &Output, i: usize, before: i32, shape: &Output| {
        sum_over(grad, &(axes.output(i) + before), false).reshape_to(shape)
    };
    b.some([
        (0, back(&dx, 0, before_x, &shape_x)),
        (1, back(&d_y, 1, before_y, &shape_y)),
    ])
}

fn equal(inputs: &[&Output], equation: &str) -> Output {
    let inputs: Vec<Output> = inputs.iter().map(|i| (*i).clone()).collect();
    let op = inputs[0].graph().op("Einsum").inputs(&inputs);
    op.attr("equation", equation).output()
}

/// Labels of `subs` that occur in none of `others`, each once.
fn labels(subs: &str, others: &[&str]) -> Vec<char> {
    let mut out: Vec<char> = Vec::new();
    for c in subs.chars() {
        if c != '.' && !out.contains(&c) && !others.iter().any(|o| o.contains(c)) {
            out.push(c);
        }
    }
    out
}

/// The gradient of one factor: the product with the other, and what was summed alone spread out.
fn one_factor(dy: &Output, other: &Output, shape: &Output, subs: [&str; 3]) -> Output {
    let [own, others, output] = subs;
    let summed = labels(own, &[output, others]);
    let rest: String = own.chars().filter(|c| !summed.contains(c)).collect();
    let grad = equal(&[dy, other], &format!("{output},{others}->{rest}"));
    match summed.is_empty() {
        true => grad,
        false => unsummed(&grad, &rest, own, shape, &summed),
    }
}

/// Spreads a gradient over labels that were summed: in place if the others keep their order,
/// else in front and then to where they belong.
fn unsummed(dy: &Output, output: &str, input: &str, shape: &Output, summed: &[char]) -> Output {
    let g = dy.graph();
    let axes: Vec<i32> = summed.iter().map(|c| axis_of(input, *c)).collect();
    let repeated = |subs: &str| {
        let letters: Vec<char> = subs.chars().filter(|c| *c != '.').collect();
        letters
            .iter()
            .enumerate()
            .any(|(i, c)| letters[..i].contains(c))
    };
    let rest: String = input.chars().filter(|c| !summed.contains(c)).collect();
    if !repeated(input) && !repeated(output) && rest == output {
        let tall = dy.reshape_to(&kept_dims(shape, &ints(g, &axes)));
        return of("BroadcastTo", &[&tall, shape]);
    }
    let sizes: Vec<Output> = axes.iter().map(|a| super::terms::at(shape, *a)).collect();
    let sizes = vector(&sizes.iter().collect::<Vec<_>>());
    let own = shape_of(dy);
    let tall = dy.reshape_to(&join(&[&ints(g, &vec![1; axes.len()]), &own]));
    let wide = of("BroadcastTo", &[&tall, &join(&[&sizes, &own])]);
    let front: String = summed.iter().collect();
    equal(&[&wide], &format!("{front}{output}->{input}"))
}

/// Where a label stands, from the end if behind the dots.
fn axis_of(subs: &str, label: char) -> i32 {
    let (before, after) = subs.split_once(DOTS).unwrap_or((subs, ""));
    match before.find(label) {
        Some(at) => at as i32,
        None => after
            .find(label)
            .map_or(0, |at| at as i32 - after.len() as i32),
    }
}

/// Number of labels before the dots.
fn dots_at(subs: &str) -> i32 {
    subs.find(DOTS).unwrap_or(0) as i32
}

/// The dimensions that the dots stand for.
fn between(shape: &Output, subs: &str) -> Output {
    let Some((before, after)) = subs.split_once(DOTS) else {
        return to(shape, 0);
    };
    let tail = from(shape, before.len() as i32);
    match after.len() {
        0 => tail,
        n => to(&tail, -(n as i32)),
    }
}
