//! Gradients of solvers and decompositions of matrices.

use super::math::one;
use super::matmul::{batches_reduced, shifted};
use super::terms::{
    Pick, adjoint, at, call, conj, join, of, pick_last, product_of, real, shape_of, to, transposed,
    vector,
};
use super::{Back, Grads, Rule};
use crate::Output;
use downpour_graph::Result;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "MatrixInverse" => |b| {
            let (y, adjoint) = (b.y(0), b.flag("adjoint")?);
            let inner = product_of(&b.dy(0), adjoint, &y, !adjoint);
            one(-product_of(&y, !adjoint, &inner, false))
        },
        "MatrixDeterminant" => |b| one(by_inverse(b, &(b.dy(0) * b.y(0)))),
        "LogMatrixDeterminant" => |b| one(by_inverse(b, &b.dy(1))),
        "MatrixSquareRoot" => square_root,
        "Cholesky" => |b| {
            let l = b.y(0);
            let inverse = of("MatrixTriangularSolve", &[&l, &identity(&l)]);
            let middle = product_of(&l, true, &b.dy(0), false);
            let half = of("MatrixDiagPart", &[&middle]) * 0.5;
            let middle = band(&of("MatrixSetDiag", &[&middle, &half]), -1, 0);
            let dx = product_of(
                &product_of(&inverse, true, &middle, false),
                false,
                &inverse,
                false,
            );
            one((&dx + adjoint(&dx)) * 0.5)
        },
        "MatrixSolve" => |b| {
            let (a, x, flip) = (b.x(0), b.y(0), b.flag("adjoint")?);
            let op = call("MatrixSolve", &[&a, &b.dy(0)]).attr("adjoint", !flip);
            let d_right = op.output();
            b.some([(0, solved(&d_right, &x, flip)), (1, d_right)])
        },
        "MatrixTriangularSolve" => |b| {
            let (a, right, flip, lower) = (b.x(0), b.x(1), b.flag("adjoint")?, b.flag("lower")?);
            let op = call("MatrixTriangularSolve", &[&a, &b.dy(0)]).attr("lower", lower);
            let d_right = op.attr("adjoint", !flip).output();
            let da = solved(&d_right, &b.y(0), flip);
            let da = if lower {
                band(&da, -1, 0)
            } else {
                band(&da, 0, -1)
            };
            b.some(batches_reduced(&a, &right, da, d_right))
        },
        "BandedTriangularSolve" => banded,
        "MatrixSolveLs" => least_squares,
        "TridiagonalSolve" => tridiagonal_solve,
        "Qr" => qr,
        "Eig" => eig,
        "SelfAdjointEigV2" => self_adjoint_eig,
        "Svd" => super::svd::svd,
        _ => return None,
    })
}

/// The elements of matrices between two diagonals.
fn band(x: &Output, lower: i64, upper: i64) -> Output {
    let g = x.graph();
    of(
        "MatrixBandPart",
        &[x, &g.constant(lower), &g.constant(upper)],
    )
}

/// Identity matrices in the shape of `like`, square ones.
fn identity(like: &Output) -> Output {
    let shape = shape_of(like);
    let ones = super::terms::filled(&to(&shape, -1), like, 1.0);
    diag(&ones)
}

/// Matrices with these diagonals.
pub(super) fn diag(x: &Output) -> Output {
    of("MatrixDiag", &[x])
}

/// One factor for each matrix of the adjoint inverse.
fn by_inverse(b: &Back, factors: &Output) -> Output {
    let op = call("MatrixInverse", &[&b.x(0)]).attr("adjoint", true);
    factors.expand_dims(-1).expand_dims(-1) * op.output()
}

/// The gradient of a matrix that was solved with.
fn solved(d_right: &Output, x: &Output, flip: bool) -> Output {
    match flip {
        true => -product_of(x, false, d_right, true),
        false => -product_of(d_right, false, x, true),
    }
}

/// Solves the equation of the root's differential, written with Kronecker products.
fn square_root(b: &Back) -> Result<Grads> {
    let (root, g) = (b.y(0), b.graph());
    let shape = shape_of(&root);
    let (batch, order) = (to(&shape, -2), at(&shape, -1));
    let unit = identity(&root);
    let one_dim = g.constant(1i32);
    let square = vector(&[&(&order * &order), &(&order * &order)]);
    let kronecker = |x: &Output, y: &Output| {
        let outer = vector(&[&order, &one_dim, &order, &one_dim]);
        let inner = vector(&[&one_dim, &order, &one_dim, &order]);
        let x = x.reshape_to(&join(&[&batch, &outer]));
        let y = y.reshape_to(&join(&[&batch, &inner]));
        (x * y).reshape_to(&join(&[&batch, &square]))
    };
    let sum = kronecker(&unit, &transposed(&root, false)) + kronecker(&root, &unit);
    let column = vector(&[&(&order * &order), &one_dim]);
    let column = transposed(&b.dy(0), false).reshape_to(&join(&[&batch, &column]));
    let dx = of("MatrixSolve", &[&sum, &column]).reshape_to(&shape);
    one(transposed(&dx, false))
}

fn banded(b: &Back) -> Result<Grads> {
    let (a, right, flip, lower) = (b.x(0), b.x(1), b.flag("adjoint")?, b.flag("lower")?);
    let op = call("BandedTriangularSolve", &[&a, &b.dy(0)]).attr("lower", lower);
    let d_right = op.attr("adjoint", !flip).output();
    let full = solved(&d_right, &b.y(0), flip);
    let (width, zero) = (at(&shape_of(&a), -2) - 1, b.graph().constant(0i32));
    let k = match lower {
        true => vector(&[&-width, &zero]),
        false => vector(&[&zero, &width]),
    };
    let op = call("MatrixDiagPartV3", &[&full, &k, &full.scalar_like(0.0)]);
    let da = op.attr("align", "LEFT_RIGHT").output();
    b.some(batches_reduced(&a, &right, da, d_right))
}

/// Solves with a Cholesky factor.
fn cholesky_solve(factor: &Output, right: &Output) -> Output {
    let half = of("MatrixTriangularSolve", &[factor, right]);
    let op = call("MatrixTriangularSolve", &[factor, &half]);
    op.attr("adjoint", true).output()
}

fn least_squares(b: &Back) -> Result<Grads> {
    let (a, right, x, dy) = (b.x(0), b.x(1), b.y(0), b.dy(0));
    if !b.flag("fast")? {
        return b.refuse("Gradient not defined for fast=False");
    }
    let shape = a.shape();
    let Some([.., Some(m), Some(n)]) = shape.dims() else {
        return b.refuse("it needs to know whether there are more rows than columns");
    };
    let tall = m >= n;
    let gram = product_of(&a, tall, &a, !tall);
    let regular = b.x(2).cast(a.dtype());
    let diagonal = of("MatrixDiagPart", &[&gram]) + regular;
    let factor = of("Cholesky", &[&of("MatrixSetDiag", &[&gram, &diagonal])]);
    if tall {
        let z = cholesky_solve(&factor, &dy);
        let both = product_of(&x, false, &z, true);
        let sum = &both + transposed(&both, false);
        let da = product_of(&right, false, &z, true) - product_of(&a, false, &sum, false);
        return b.some([(0, da), (1, product_of(&a, false, &z, false))]);
    }
    let d_right = cholesky_solve(&factor, &product_of(&a, false, &dy, false));
    let inner = cholesky_solve(&factor, &right);
    let first = -product_of(&d_right, false, &product_of(&inner, true, &a, false), false);
    let rest = dy - product_of(&a, true, &d_right, false);
    b.some([
        (0, first + product_of(&inner, false, &rest, true)),
        (1, d_right),
    ])
}

fn tridiagonal_solve(b: &Back) -> Result<Grads> {
    let (diags, x) = (b.x(0), b.y(0));
    let row = |i: i32| pick_last(&diags, &[Pick::One(i), Pick::All]);
    let (above, below) = (row(0), row(2));
    let edge = pick_last(&above, &[Pick::To(1)]).zeros_like();
    let up = crate::concat(&[pick_last(&below, &[Pick::From(1)]), edge.clone()], -1);
    let down = crate::concat(&[edge, pick_last(&above, &[Pick::To(-1)])], -1);
    let flipped = crate::stack(&[up, row(1), down], -2);
    let op = call("TridiagonalSolve", &[&flipped, &b.dy(0)]);
    let op = op.attrs_of(b.op(), &["partial_pivoting", "perturb_singular"]);
    let d_right = op.output();
    let dots = |y: &Output| (&d_right * y).sum(-1);
    let parts = [
        dots(&shifted(&x, true)),
        dots(&x),
        dots(&shifted(&x, false)),
    ];
    b.some([(0, -crate::stack(&parts, -2)), (1, d_right)])
}

fn qr(b: &Back) -> Result<Grads> {
    let (q, r, dq, dr) = (b.y(0), b.y(1), b.dy(0), b.dy(1));
    let (shape_q, shape_r) = (q.shape(), r.shape());
    let (Some([.., Some(rows), Some(inner)]), Some([.., Some(r_rows), Some(columns)])) =
        (shape_q.dims(), shape_r.dims())
    else {
        return b.refuse("QrGrad not implemented with dynamic shapes");
    };
    if r_rows > columns && rows == inner {
        return b.refuse("not implemented when nrows > ncols and full_matrices is true");
    }
    if rows >= columns {
        return one(deep_qr(&q, &r, &dq, &dr));
    }
    let split = *rows as i32;
    let (left, right) = ([Pick::All, Pick::To(split)], [Pick::All, Pick::From(split)]);
    let (y, u) = (pick_last(&b.x(0), &right), pick_last(&r, &left));
    let (dv, du) = (pick_last(&dr, &right), pick_last(&dr, &left));
    let dy = product_of(&q, false, &dv, false);
    let dx = deep_qr(&q, &u, &(dq + product_of(&y, false, &dv, true)), &du);
    one(crate::concat(&[dx, dy], -1))
}

/// For matrices with at least as many rows as columns.
fn deep_qr(q: &Output, r: &Output, dq: &Output, dr: &Output) -> Output {
    let solve = |x: &Output| {
        let op = call("MatrixTriangularSolve", &[r, &adjoint(x)]).attr("lower", false);
        adjoint(&op.output())
    };
    let qdq = product_of(q, true, dq, false);
    let rdr = product_of(r, false, dr, true);
    let skew = &qdq - adjoint(&qdq) + (&rdr - adjoint(&rdr));
    let first = product_of(q, false, &(dr + solve(&band(&skew, -1, 0))), false);
    let second = solve(&(dq - product_of(q, false, &qdq, false)));
    let dx = first + second;
    if !q.dtype().is_complex() {
        return dx;
    }
    let m = rdr - adjoint(&qdq);
    let diagonal = of(
        "MatrixSetDiag",
        &[&m.zeros_like(), &of("MatrixDiagPart", &[&m])],
    );
    let correction = &diagonal - real(&diagonal).cast(q.dtype());
    dx + solve(&product_of(q, false, &adjoint(&correction), false))
}

/// `1 / x`, nearly 0 at 0.
pub(super) fn safe_reciprocal(x: &Output) -> Output {
    x * (x * x + 1e-20).reciprocal()
}

/// `1 / (values of columns - values of rows)`, 0 on the diagonal.
pub(super) fn gaps(values: &Output) -> Output {
    let gaps = safe_reciprocal(&(values.expand_dims(-2) - values.expand_dims(-1)));
    of("MatrixSetDiag", &[&gaps, &values.zeros_like()])
}

fn eig(b: &Back) -> Result<Grads> {
    let (x, e, de) = (b.x(0), b.y(0), b.dy(0));
    let dx = if b.flag("compute_v")? {
        let (v, dv) = (b.y(1), b.dy(1));
        let vt = adjoint(&v);
        let f = conj(&gaps(&e));
        let vgv = product_of(&vt, false, &dv, false);
        let own = of("MatrixDiagPart", &[&real(&vgv).cast(vgv.dtype())]);
        let along = product_of(
            &product_of(&vt, false, &v, false),
            false,
            &diag(&own),
            false,
        );
        let middle = diag(&de) + f * (vgv - along);
        of(
            "MatrixSolve",
            &[&vt, &product_of(&middle, false, &vt, false)],
        )
    } else {
        let op = call("Eig", &[&x]).attr("compute_v", true);
        let vt = adjoint(&op.attr("Tout", e.dtype()).build().output(1));
        of(
            "MatrixSolve",
            &[&vt, &product_of(&diag(&de), false, &vt, false)],
        )
    };
    one(dx.cast(x.dtype()))
}

fn self_adjoint_eig(b: &Back) -> Result<Grads> {
    let (v, middle) = match b.flag("compute_v")? {
        true => {
            let (v, dv) = (b.y(1), b.dy(1));
            let turn = gaps(&b.y(0)) * product_of(&v, true, &dv, false);
            (v, diag(&b.dy(0)) + turn)
        }
        false => {
            let op = call("SelfAdjointEigV2", &[&b.x(0)]).attr("compute_v", true);
            (op.build().output(1), diag(&b.dy(0)))
        }
    };
    let dx = product_of(&v, false, &product_of(&middle, false, &v, true), false);
    // Only the lower triangle is read.
    let lower = band(&(&dx + adjoint(&dx)), -1, 0);
    let half = of("MatrixDiagPart", &[&lower]) * 0.5;
    one(of("MatrixSetDiag", &[&lower, &half]))
}
