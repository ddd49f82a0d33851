//! `XlaPad`, `XlaDynamicSlice`, `XlaDynamicUpdateSlice`, `XlaBroadcastHelper`.

use super::{invalid, positions};
use crate::args::{ints, shape_of};
use crate::array::units::{Unit, with_unit};
use downpour_graph::Result;
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add("XlaPad", |_| Built::costly(pad));
    r.add("XlaDynamicSlice", |_| Built::costly(slice));
    r.add("XlaDynamicUpdateSlice", |_| Built::costly(update));
    r.add("XlaBroadcastHelper", |_| Built::cheap(broadcast));
}

fn place(at: &[usize], strides: &[usize]) -> usize {
    at.iter().zip(strides).map(|(a, s)| a * s).sum()
}

fn per_dimension(ctx: &OpContext<'_>, i: usize, name: &str, rank: usize) -> Result<Vec<i64>> {
    let values = ints(ctx.input(i)?)?;
    if values.len() != rank || ctx.input(i)?.rank() != 1 {
        return invalid(format!(
            "The size of {name} must be equal to the input rank ({} vs. {rank})",
            values.len()
        ));
    }
    Ok(values)
}

fn pad(ctx: &mut OpContext<'_>) -> Result<()> {
    let (x, value) = (ctx.input(0)?, ctx.input(1)?);
    let rank = x.rank();
    if value.rank() != 0 {
        return invalid(format!(
            "padding_value must be a scalar, got shape {}",
            value.shape()
        ));
    }
    let low = per_dimension(ctx, 2, "padding_low", rank)?;
    let high = per_dimension(ctx, 3, "padding_high", rank)?;
    let inner = per_dimension(ctx, 4, "padding_interior", rank)?;
    if inner.iter().any(|v| *v < 0) {
        return invalid("padding_interior must contain only non-negative values");
    }
    let mut dims = Vec::with_capacity(rank);
    for d in 0..rank {
        let size = x.dims()[d] as i64;
        let wide = inner[d]
            .checked_mul((size - 1).max(0))
            .and_then(|v| v.checked_add(size));
        let all = wide.and_then(|v| v.checked_add(low[d])?.checked_add(high[d]));
        match all {
            Some(v) if v >= 0 => dims.push(v),
            _ => return invalid(format!("padding of dimension {d} leaves a negative size")),
        }
    }
    let shape = shape_of(&dims)?;
    ctx.check_alloc(x.dtype(), &shape)?;
    let dtype = x.dtype();
    let out = with_unit!(dtype, U => {
        let fill = U::view(value)?[0].clone();
        let from = U::view(x)?;
        let mut out = vec![fill; shape.num_elements()];
        let strides = shape.strides();
        let mut next = 0;
        positions(x.dims(), |at| {
            let spot = (0..rank).map(|d| {
                let to = at[d] as i64 * (inner[d] + 1) + low[d];
                (to >= 0 && to < dims[d]).then(|| to as usize * strides[d])
            });
            if let Some(to) = spot.sum::<Option<usize>>() {
                out[to] = from[next].clone();
            }
            next += 1;
        });
        U::tensor(dtype, out, shape)?
    });
    ctx.set_output(0, out);
    Ok(())
}

/// Where a window of `size` begins, moved so that it lies within `dims`.
fn clamped(start: &[i64], size: &[usize], dims: &[usize]) -> Vec<usize> {
    let each = start.iter().zip(size.iter().zip(dims));
    each.map(|(s, (size, dim))| (*s).clamp(0, (dim - size) as i64) as usize)
        .collect()
}

fn window(ctx: &OpContext<'_>, sizes: Vec<i64>, start: usize) -> Result<(Vec<usize>, Vec<usize>)> {
    let x = ctx.input(0)?;
    let starts = per_dimension(ctx, start, "start_indices", x.rank())?;
    let mut size = Vec::with_capacity(sizes.len());
    for (d, v) in sizes.iter().enumerate() {
        match usize::try_from(*v).ok().filter(|v| *v <= x.dims()[d]) {
            Some(v) => size.push(v),
            None => {
                return invalid(format!(
                    "Slice size at index {d} in dynamic slice op is out of range, must be within [0, {}], got {v}.",
                    x.dims()[d]
                ));
            }
        }
    }
    Ok((clamped(&starts, &size, x.dims()), size))
}

fn slice(ctx: &mut OpContext<'_>) -> Result<()> {
    let x = ctx.input(0)?;
    let sizes = per_dimension(ctx, 2, "size_indices", x.rank())?;
    let (start, size) = window(ctx, sizes, 1)?;
    let dtype = x.dtype();
    let strides = x.shape().strides();
    let base = place(&start, &strides);
    let out = with_unit!(dtype, U => {
        let from = U::view(x)?;
        let mut out = Vec::with_capacity(size.iter().product());
        positions(&size, |at| out.push(from[base + place(at, &strides)].clone()));
        U::tensor(dtype, out, Shape::from(size))?
    });
    ctx.set_output(0, out);
    Ok(())
}

fn update(ctx: &mut OpContext<'_>) -> Result<()> {
    let (x, new) = (ctx.input(0)?, ctx.input(1)?);
    if x.rank() != new.rank() {
        return invalid(format!(
            "input and update must have the same rank, input shape is {}; update shape is {}",
            x.shape(),
            new.shape()
        ));
    }
    let sizes = new.dims().iter().map(|&d| d as i64).collect();
    let (start, size) = window(ctx, sizes, 2)?;
    let dtype = x.dtype();
    let strides = x.shape().strides();
    let base = place(&start, &strides);
    let out = with_unit!(dtype, U => {
        let from = U::view(new)?;
        let mut out = U::view(x)?.to_vec();
        let mut next = from.iter();
        positions(&size, |at| {
            if let Some(v) = next.next() {
                out[base + place(at, &strides)] = v.clone();
            }
        });
        U::tensor(dtype, out, x.shape().clone())?
    });
    ctx.set_output(0, out);
    Ok(())
}

/// Gives the operand of lower rank the other's rank, its dimensions at the places named.
fn broadcast(ctx: &mut OpContext<'_>) -> Result<()> {
    let dims = ints(ctx.input(2)?)?;
    let (left, right) = (ctx.take(0)?, ctx.take(1)?);
    if dims.is_empty() {
        if left.rank() != right.rank() && left.rank() != 0 && right.rank() != 0 {
            return invalid(
                "If broadcast_dims is empty, both arguments must have equal rank; argument shapes, or at least one argument must be a scalar",
            );
        }
        ctx.set_output(0, left);
        ctx.set_output(1, right);
        return Ok(());
    }
    let (small, large) = match left.rank() < right.rank() {
        true => (&left, &right),
        false => (&right, &left),
    };
    if dims.len() != small.rank() {
        return invalid(format!(
            "broadcast_dims must have size equal to the smaller argument rank: {} vs. {}",
            dims.len(),
            small.rank()
        ));
    }
    let mut shape = vec![1usize; large.rank()];
    for (i, d) in dims.iter().enumerate() {
        match usize::try_from(*d).ok().and_then(|d| shape.get_mut(d)) {
            Some(to) => *to = small.dims()[i],
            None => return invalid(format!("broadcast_dims holds {d}, which is out of range")),
        }
    }
    let grown: Tensor = small.clone().reshaped(shape)?;
    let (left, right) = match left.rank() < right.rank() {
        true => (grown, right),
        false => (left, grown),
    };
    ctx.set_output(0, left);
    ctx.set_output(1, right);
    Ok(())
}
