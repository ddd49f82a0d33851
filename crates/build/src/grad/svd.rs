//! The gradient of the singular value decomposition.

use super::linalg::{diag, gaps, safe_reciprocal};
use super::math::one;
use super::terms::{Pick, adjoint, call, of, pick_last, product_of};
use super::{Back, Grads};
use crate::Output;
use downpour_graph::Result;

pub(super) fn svd(b: &Back) -> Result<Grads> {
    let (a, ds) = (b.x(0), b.dy(0).cast(b.x(0).dtype()));
    if !b.flag("compute_uv")? {
        let made = call("Svd", &[&a]).attr("compute_uv", true).build();
        let inner = product_of(&diag(&ds), false, &made.output(2), true);
        return one(product_of(&made.output(1), false, &inner, false));
    }
    let shape = a.shape();
    let Some([.., Some(m), Some(n)]) = shape.dims() else {
        return b.refuse("not implemented for input with unknown inner matrix shape");
    };
    let full = b.flag("full_matrices")?;
    if full && m.abs_diff(*n) > 1 {
        return b.refuse("not implemented for abs(m - n) > 1 when full_matrices is True");
    }
    let s = b.y(0).cast(a.dtype());
    let (u, v, du, dv) = (b.y(1), b.y(2), b.dy(1), b.dy(2));
    Ok(match m > n {
        false => one(wide(&s, [&u, &v], [&ds, &du, &dv], (*m, *n), full))?,
        // The adjoint is wide.
        true => one(adjoint(&wide(
            &s,
            [&v, &u],
            [&ds, &dv, &du],
            (*n, *m),
            full,
        )))?,
    })
}

/// For matrices with at least as many columns `n` as rows `m`.
fn wide(
    s: &Output,
    [u, v]: [&Output; 2],
    [ds, du, dv]: [&Output; 3],
    (m, n): (usize, usize),
    full: bool,
) -> Output {
    let f = gaps(&s.square());
    let (values, inverse) = (diag(s), diag(&safe_reciprocal(s)));
    let first = |x: &Output| pick_last(x, &[Pick::All, Pick::To(m as i32)]);
    let (v1, dv1) = (first(v), first(dv));
    let v_turn = product_of(&v1, true, &dv1, false);
    let fu = &f * product_of(u, true, du, false);
    let fv = f * &v_turn;
    let middle = diag(ds)
        + product_of(&(&fu + adjoint(&fu)), false, &values, false)
        + product_of(&values, false, &(&fv + adjoint(&fv)), false);
    let embed =
        |middle: &Output| product_of(u, false, &product_of(middle, false, &v1, true), false);
    let mut dx = embed(&middle);
    if m != n {
        let turned = adjoint(&dv1);
        let inside = product_of(&product_of(&turned, false, &v1, false), false, &v1, true);
        let mut outside = turned - inside;
        if full {
            let rest = |x: &Output| pick_last(x, &[Pick::All, Pick::Between(m as i32, n as i32)]);
            let (v2, dv2) = (rest(v), rest(dv));
            let cross = product_of(&v1, true, &dv2, false);
            outside = outside - product_of(&cross, false, &v2, true);
        }
        let scaled = product_of(u, false, &inverse, false);
        dx = dx + product_of(&scaled, false, &outside, false);
    }
    if s.dtype().is_complex() {
        let own = diag(&of("MatrixDiagPart", &[&v_turn]));
        let phase = product_of(&inverse, false, &(adjoint(&own) - &own), false);
        dx = dx + 0.5 * embed(&phase);
    }
    dx
}
