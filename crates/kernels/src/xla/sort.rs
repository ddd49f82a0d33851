//! `XlaSort` and `XlaKeyValueSort`: along the last dimension, floats in their total order.

use super::invalid;
use crate::array::units::{Unit, with_unit};
use crate::types::{REALS, with_type};
use downpour_graph::Result;
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{Element, Tensor};
use std::cmp::Ordering;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("XlaSort", &[("T", REALS)], |_| {
        Built::costly(|ctx| {
            let order = order(ctx.input(0)?)?;
            let x = ctx.take(0)?;
            let out = picked(&x, &order)?;
            ctx.set_output(0, out);
            Ok(())
        })
    });
    r.add_typed("XlaKeyValueSort", &[("K", REALS)], |_| {
        Built::costly(key_values)
    });
}

trait Ordered: Element {
    fn order(&self, other: &Self) -> Ordering;
}

macro_rules! ordered {
    ($how:ident: $($t:ty),*) => {
        $(impl Ordered for $t {
            fn order(&self, other: &Self) -> Ordering { self.$how(other) }
        })*
    };
}
ordered!(cmp: i8, i16, i32, i64, u8, u16, u32, u64);
ordered!(total_cmp: f32, f64, half::f16, half::bf16);

/// Positions in rising order of their values, row by row.
fn order(keys: &Tensor) -> Result<Vec<usize>> {
    fn rows<T: Ordered>(keys: &Tensor, width: usize) -> Result<Vec<usize>> {
        let values = keys.as_slice::<T>()?;
        let mut order: Vec<usize> = (0..values.len()).collect();
        for row in order.chunks_mut(width.max(1)) {
            row.sort_by(|a, b| values[*a].order(&values[*b]));
        }
        Ok(order)
    }
    let width = keys.dims().last().copied().unwrap_or(1);
    Ok(with_type!(keys.dtype(), T in reals => rows::<T>(keys, width)?))
}

fn picked(t: &Tensor, order: &[usize]) -> Result<Tensor> {
    let dtype = t.dtype();
    Ok(with_unit!(dtype, U => {
        let from = U::view(t)?;
        let values = order.iter().map(|i| from[*i].clone()).collect();
        U::tensor(dtype, values, t.shape().clone())?
    }))
}

fn key_values(ctx: &mut OpContext<'_>) -> Result<()> {
    let (keys, values) = (ctx.input(0)?, ctx.input(1)?);
    if keys.shape() != values.shape() {
        return invalid(format!(
            "keys and values must have one shape: {} vs. {}",
            keys.shape(),
            values.shape()
        ));
    }
    let order = order(keys)?;
    let (keys, values) = (picked(keys, &order)?, picked(values, &order)?);
    ctx.set_output(0, keys);
    ctx.set_output(1, values);
    Ok(())
}
