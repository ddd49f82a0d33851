//! Matrices with few diagonals: `TridiagonalSolve`, `TridiagonalMatMul`, `BandedTriangularSolve`.

use super::batch::{FOUR, by_field, each, invalid, matrices, split};
use super::field::{Dense, Field};
use crate::broadcast::Broadcast;
use downpour_graph::{Result, Status};
use downpour_runtime::{OpContext, Registry};
use downpour_tensor::{DType, Shape};
use num_complex::Complex64;
use smallvec::smallvec;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("TridiagonalSolve", &[("T", FOUR)], |b| {
        let method = match (
            b.attrs().bool("partial_pivoting")?,
            b.attrs().bool("perturb_singular")?,
        ) {
            (false, true) => {
                return invalid("Setting perturb_singular requires also setting partial_pivoting.");
            }
            (false, false) => Method::Thomas,
            (true, false) => Method::Pivots,
            (true, true) => Method::Perturbed,
        };
        by_field(
            b,
            move |ctx| solve::<f64>(ctx, method),
            move |ctx| solve::<Complex64>(ctx, method),
        )
    });
    r.add_typed("TridiagonalMatMul", &[("T", FOUR)], |b| {
        by_field(b, multiply::<f64>, multiply::<Complex64>)
    });
    r.add_typed("BandedTriangularSolve", &[("T", FOUR)], |b| {
        let (lower, adjoint) = (b.attrs().bool("lower")?, b.attrs().bool("adjoint")?);
        by_field(
            b,
            move |ctx| banded::<f64>(ctx, lower, adjoint),
            move |ctx| banded::<Complex64>(ctx, lower, adjoint),
        )
    });
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Method {
    /// No pivots.
    Thomas,
    /// Rows exchanged with their successors.
    Pivots,
    /// As before, and pivots too small to divide by are moved away from zero.
    Perturbed,
}

fn solve<C: Field>(ctx: &mut OpContext<'_>, method: Method) -> Result<()> {
    let tiny = match ctx.input(0)?.dtype() {
        DType::Float | DType::Complex64 => (f64::from(f32::EPSILON), f64::from(f32::MIN_POSITIVE)),
        _ => (f64::EPSILON, f64::MIN_POSITIVE),
    };
    each::<C>(
        ctx,
        2,
        |sizes| match sizes {
            [(3, left), (right, cols)] if left == right => Ok(vec![smallvec![*right, *cols]]),
            [(3, left), (right, _)] => invalid(format!(
                "Expected the same number of left-hand sides and right-hand sides, got {left} and {right}."
            )),
            [(diagonals, _), ..] => invalid(format!(
                "Expected diagonals to be provided as a matrix with 3 rows, got {diagonals} rows."
            )),
            [] => Err(Status::internal("two matrices were asked for")),
        },
        |given| {
            let [diagonals, rhs] = <[_; 2]>::try_from(given)
                .map_err(|_| Status::internal("two matrices were asked for"))?;
            let len = rhs.values.len();
            if diagonals.cols == 0 {
                return Ok(vec![vec![C::ZERO; len]]);
            }
            let solved = match method {
                Method::Thomas => thomas(&diagonals, rhs),
                Method::Pivots => pivoted(&diagonals, rhs, None),
                Method::Perturbed => pivoted(&diagonals, rhs, Some(tiny)),
            };
            // What cannot be solved is NaN.
            let nan = || vec![C::real(f64::NAN); len];
            Ok(vec![solved.map_or_else(nan, |x| x.values)])
        },
    )
}

/// Row `to` becomes itself less `factor` times row `from`.
fn subtract<C: Field>(x: &mut Dense<C>, to: usize, factor: C, from: usize) {
    for j in 0..x.cols {
        *x.at(to, j) = x.get(to, j) - factor * x.get(from, j);
    }
}

fn divide<C: Field>(x: &mut Dense<C>, row: usize, by: C) {
    for j in 0..x.cols {
        *x.at(row, j) = x.get(row, j) / by;
    }
}

fn thomas<C: Field>(d: &Dense<C>, mut x: Dense<C>) -> Option<Dense<C>> {
    let n = d.cols;
    let mut upper = vec![C::ZERO; n];
    for i in 0..n {
        let mut pivot = d.get(1, i);
        if i > 0 {
            let below = d.get(2, i);
            pivot = pivot - below * upper[i - 1];
            subtract(&mut x, i, below, i - 1);
        }
        if pivot == C::ZERO {
            return None;
        }
        upper[i] = d.get(0, i) / pivot;
        divide(&mut x, i, pivot);
    }
    for i in (0..n - 1).rev() {
        subtract(&mut x, i, upper[i], i + 1);
    }
    Some(x)
}

/// Gaussian elimination that exchanges neighbouring rows; with `tiny` (the precision and the
/// least normal number) it scales rows before it chooses and never divides by zero.
fn pivoted<C: Field>(d: &Dense<C>, mut x: Dense<C>, tiny: Option<(f64, f64)>) -> Option<Dense<C>> {
    let n = d.cols;
    // The diagonal of the upper factor and the two beside it.
    let mut u = vec![[C::ZERO; 3]; n];
    let above = |k: usize| if k + 1 < n { d.get(0, k) } else { C::ZERO };
    u[0] = [d.get(1, 0), above(0), C::ZERO];
    let mut scale = u[0][0].abs() + u[0][1].abs();
    for k in 0..n - 1 {
        let (below, next) = (d.get(2, k + 1), d.get(1, k + 1));
        let row = below.abs() + next.abs() + above(k + 1).abs();
        let keep = match tiny {
            None => u[k][0].abs() >= below.abs(),
            Some(_) if below == C::ZERO => true,
            Some(_) => u[k][0] != C::ZERO && below.abs() / row <= u[k][0].abs() / scale,
        };
        if keep {
            scale = row;
            let factor = match u[k][0] == C::ZERO {
                true if tiny.is_none() => return None,
                true => C::ZERO,
                false => below / u[k][0],
            };
            u[k + 1] = [next - factor * u[k][1], above(k + 1), C::ZERO];
            subtract(&mut x, k + 1, factor, k);
        } else {
            let factor = u[k][0] / below;
            let old = u[k][1];
            u[k] = [below, next, above(k + 1)];
            u[k + 1] = [old - factor * next, -factor * above(k + 1), C::ZERO];
            x.swap_rows(k, k + 1);
            subtract(&mut x, k + 1, factor, k);
        }
    }
    let largest = u.iter().flatten().map(|v| v.abs()).fold(0.0, f64::max);
    for k in (0..n).rev() {
        if k + 1 < n {
            subtract(&mut x, k, u[k][1], k + 1);
        }
        if k + 2 < n {
            subtract(&mut x, k, u[k][2], k + 2);
        }
        let mut pivot = u[k][0];
        match tiny {
            None if pivot == C::ZERO => return None,
            None => {}
            Some((epsilon, least)) => perturb(&mut pivot, &mut x, k, epsilon * largest, least),
        }
        divide(&mut x, k, pivot);
    }
    Some(x)
}

/// Moves a pivot away from zero until dividing row `k` by it cannot overflow.
fn perturb<C: Field>(pivot: &mut C, x: &mut Dense<C>, k: usize, by: f64, least: f64) {
    let mut by = by.max(least).copysign(pivot.re());
    let largest = (0..x.cols).map(|j| x.get(k, j).abs()).fold(0.0, f64::max);
    loop {
        let size = pivot.abs();
        // Also ends for NaN.
        if !(size < 1.0) {
            return;
        }
        if size < least && size != 0.0 && largest * least <= size {
            let big = C::real(1.0 / least);
            *pivot = *pivot * big;
            (0..x.cols).for_each(|j| *x.at(k, j) = x.get(k, j) * big);
            return;
        }
        if size >= least && largest <= size / least {
            return;
        }
        *pivot = *pivot + C::real(by);
        by *= 2.0;
    }
}

fn multiply<C: Field>(ctx: &mut OpContext<'_>) -> Result<()> {
    each::<C>(
        ctx,
        4,
        |sizes| {
            let &[above, on, below, (n, cols)] = sizes else {
                return Err(Status::internal("four matrices were asked for"));
            };
            for (name, size) in [
                ("superdiagonal", above),
                ("main diagonal", on),
                ("subdiagonal", below),
            ] {
                if size != (1, n) {
                    return invalid(format!("Invalid {name} shape."));
                }
            }
            Ok(vec![smallvec![n, cols]])
        },
        |given| {
            let [above, on, below, x] = <[_; 4]>::try_from(given)
                .map_err(|_| Status::internal("four matrices were asked for"))?;
            let n = x.rows;
            let mut out = Vec::with_capacity(x.values.len());
            for i in 0..n {
                for j in 0..x.cols {
                    let mut v = on.get(0, i) * x.get(i, j);
                    if i > 0 {
                        v = v + below.get(0, i) * x.get(i - 1, j);
                    }
                    if i + 1 < n {
                        v = v + above.get(0, i) * x.get(i + 1, j);
                    }
                    out.push(v);
                }
            }
            Ok(vec![out])
        },
    )
}

fn banded<C: Field>(ctx: &mut OpContext<'_>, lower: bool, adjoint: bool) -> Result<()> {
    let (a, b) = (ctx.take(0)?, ctx.take(1)?);
    for (i, t) in [&a, &b].iter().enumerate() {
        if t.rank() < 2 {
            return invalid(format!("In[{i}] ndims must be >= 2: {}", t.rank()));
        }
    }
    for (i, t) in [&a, &b].iter().enumerate() {
        if t.num_elements() == 0 {
            return invalid(format!(
                "In[{i}] must not be an empty tensor: Tensor<type: {} shape: {} values: >",
                t.dtype(),
                t.shape()
            ));
        }
    }
    let ((outer_a, bands, n), (outer_b, m, cols)) = (split(&a, 0)?, split(&b, 1)?);
    let Some(bc) = Broadcast::new(outer_a, outer_b) else {
        return invalid(format!(
            "In[0] and In[1] must have compatible batch dimensions: {} vs. {}",
            a.shape(),
            b.shape()
        ));
    };
    if n != m {
        return invalid(format!(
            "In[0] mismatch In[1] shape: {n} vs. {m}: {} {} {} {}",
            a.shape(),
            b.shape(),
            u8::from(lower),
            u8::from(adjoint)
        ));
    }
    let shape = Shape::checked(bc.shape.iter().copied().chain([n, cols]).map(|d| d as i64))?;
    ctx.check_alloc(b.dtype(), &shape)?;
    let (left, right) = (matrices::<C>(&a, bands, n)?, matrices::<C>(&b, n, cols)?);
    let diagonal = if lower { 0 } else { bands - 1 };
    // TensorFlow looks at the first matrix alone.
    if left
        .first()
        .is_some_and(|m| (0..n).any(|i| m.get(diagonal, i).abs() == 0.0))
    {
        return invalid("Input matrix is not invertible.");
    }
    let mut out = Vec::with_capacity(shape.num_elements());
    let (run, (sa, sb)) = (bc.row_len(), bc.steps());
    bc.rows(|_, l, r| {
        for i in 0..run {
            let rhs = &right[r + i * sb];
            let x = Dense::new(n, cols, rhs.values.clone());
            out.extend(band_solve(&left[l + i * sa], x, lower, adjoint).values);
        }
    });
    ctx.set_output(0, C::write(out, shape, b.dtype())?);
    Ok(())
}

fn band_solve<C: Field>(a: &Dense<C>, mut x: Dense<C>, lower: bool, adjoint: bool) -> Dense<C> {
    let (bands, n) = (a.rows, a.cols);
    // Element (i, j) of the triangle; rows of `a` are diagonals, kept by row of the matrix.
    let element = |i: usize, j: usize| match lower {
        true => a.get(i - j, i),
        false => a.get(bands - 1 - (j - i), i),
    };
    let forwards = lower != adjoint;
    for step in 0..n {
        let i = if forwards { step } else { n - 1 - step };
        let near = match forwards {
            true => i.saturating_sub(bands - 1)..i,
            false => i + 1..(i + bands).min(n),
        };
        for j in near {
            let v = if adjoint {
                element(j, i).conj()
            } else {
                element(i, j)
            };
            subtract(&mut x, i, v, j);
        }
        let d = element(i, i);
        divide(&mut x, i, if adjoint { d.conj() } else { d });
    }
    x
}
