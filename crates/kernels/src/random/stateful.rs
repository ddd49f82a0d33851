//! `RandomUniform`, `RandomStandardNormal`, `TruncatedNormal`, `RandomUniformInt`: ops that carry
//! a generator from step to step; and `NonDeterministicInts`, which has none.

use super::distribution::{Floats, draw, draw_ints};
use super::philox::{Guarded, Philox, entropy};
use super::shape_arg;
use crate::args::int;
use crate::types::{FLOATS, INDEX};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::DType;

const WORD_TYPES: &[DType] = crate::types::WORDS;

pub(super) fn register(r: &mut Registry) {
    r.add_typed("RandomUniform", &[("dtype", FLOATS)], |b| {
        floats(b, Floats::Uniform)
    });
    r.add_typed("RandomStandardNormal", &[("dtype", FLOATS)], |b| {
        floats(b, Floats::Normal)
    });
    r.add_typed("TruncatedNormal", &[("dtype", FLOATS)], |b| {
        floats(b, Floats::Truncated)
    });
    r.add_typed("RandomUniformInt", &[("Tout", INDEX)], uniform_int);
    r.add_typed(
        "NonDeterministicInts",
        &[("dtype", WORD_TYPES)],
        non_deterministic_ints,
    );
}

fn floats(b: &KernelBuilder<'_>, kind: Floats) -> Result<Built> {
    let generator = Guarded::from_attrs(b.attrs())?;
    let dtype = b.attrs().dtype("dtype")?;
    Built::costly(move |ctx| {
        let shape = shape_arg(ctx.input(0)?)?;
        let reserve = || generator.reserve_outputs(shape.num_elements());
        let out = draw(ctx, kind, dtype, &shape, reserve)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn uniform_int(b: &KernelBuilder<'_>) -> Result<Built> {
    let generator = Guarded::from_attrs(b.attrs())?;
    let dtype = b.attrs().dtype("Tout")?;
    Built::costly(move |ctx| {
        let shape = shape_arg(ctx.input(0)?)?;
        let bounds = bounds(ctx, 1, &shape)?;
        let reserve = || generator.reserve_outputs(shape.num_elements());
        let out = draw_ints(ctx, dtype, &shape, Some(bounds), reserve)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The scalars `minval` and `maxval` at inputs `i` and `i + 1`; they must be in order unless
/// nothing is drawn.
pub(super) fn bounds(ctx: &OpContext<'_>, i: usize, shape: &[usize]) -> Result<(i64, i64)> {
    let scalar = |i: usize, name: &str| {
        let tensor = ctx.input(i)?;
        if tensor.rank() != 0 {
            return Err(Status::invalid_argument(format!(
                "{name} must be 0-D, got shape {}",
                tensor.shape()
            )));
        }
        int(tensor)
    };
    let (low, high) = (scalar(i, "minval")?, scalar(i + 1, "maxval")?);
    if low >= high && !shape.contains(&0) {
        return Err(Status::invalid_argument(format!(
            "Need minval < maxval, got {low} >= {high}"
        )));
    }
    Ok((low, high))
}

fn non_deterministic_ints(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    Built::costly(move |ctx| {
        let shape = shape_arg(ctx.input(0)?)?;
        let fresh = || Philox::from_seeds(entropy(), entropy());
        let out = draw_ints(ctx, dtype, &shape, None, fresh)?;
        ctx.set_output(0, out);
        Ok(())
    })
}
