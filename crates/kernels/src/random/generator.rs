//! Random ops over a generator kept in a variable (`tf.random.Generator`): the state is
//! `[counter low, counter high, key]` and every op advances it under the variable's lock.

use super::distribution::{Floats, draw, draw_ints};
use super::philox::{Philox, RESERVED_PER_OUTPUT};
use super::shape_arg;
use super::stateful::bounds;
use crate::args::int;
use crate::types::{FLOATS, INDEX};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, Variable};
use downpour_tensor::{DType, Tensor};

const WORD_TYPES: &[DType] = crate::types::WORDS;

pub(super) fn register(r: &mut Registry) {
    r.add_typed("StatefulUniform", &[("dtype", FLOATS)], |b| {
        floats(b, Floats::Uniform)
    });
    r.add_typed("StatefulStandardNormalV2", &[("dtype", FLOATS)], |b| {
        floats(b, Floats::Normal)
    });
    // The first version finds the algorithm in the state, in front of the rest.
    r.add_typed("StatefulStandardNormal", &[("dtype", FLOATS)], |b| {
        let dtype = b.attrs().dtype("dtype")?;
        Built::costly(move |ctx| {
            let shape = shape_arg(ctx.input(1)?)?;
            ctx.check_alloc(dtype, &shape)?;
            let state = advance_from(ctx, shape.num_elements() as u64, 1)?;
            let philox = philox_of(
                &state
                    .rows(1, 3)
                    .ok_or_else(|| Status::internal("the state's size was checked"))?,
            )?;
            let out = draw(ctx, Floats::Normal, dtype, &shape, || philox)?;
            ctx.set_output(0, out);
            Ok(())
        })
    });
    r.add_typed("StatefulTruncatedNormal", &[("dtype", FLOATS)], |b| {
        floats(b, Floats::Truncated)
    });
    r.add_typed("StatefulUniformInt", &[("dtype", INDEX)], |b| {
        integers(b, true)
    });
    r.add_typed("StatefulUniformFullInt", &[("dtype", WORD_TYPES)], |b| {
        integers(b, false)
    });
    r.add("RngSkip", |_| {
        Built::cheap(|ctx| {
            check_algorithm(ctx)?;
            let delta = int(scalar(ctx, 2)?)?;
            advance(ctx, delta as u64)?;
            Ok(())
        })
    });
    r.add("RngReadAndSkip", |_| {
        Built::cheap(|ctx| {
            check_algorithm(ctx)?;
            let delta = scalar(ctx, 2)?.scalar_value::<u64>()?;
            let old = advance(ctx, delta)?;
            ctx.set_output(0, old);
            Ok(())
        })
    });
}

fn floats(b: &KernelBuilder<'_>, kind: Floats) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    Built::costly(move |ctx| {
        check_algorithm(ctx)?;
        let shape = shape_arg(ctx.input(2)?)?;
        ctx.check_alloc(dtype, &shape)?;
        let philox = take(ctx, shape.num_elements())?;
        let out = draw(ctx, kind, dtype, &shape, || philox)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn integers(b: &KernelBuilder<'_>, bounded: bool) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    Built::costly(move |ctx| {
        check_algorithm(ctx)?;
        let shape = shape_arg(ctx.input(2)?)?;
        ctx.check_alloc(dtype, &shape)?;
        let limits = match bounded {
            true => Some(bounds(ctx, 3, &shape)?),
            false => None,
        };
        let philox = take(ctx, shape.num_elements())?;
        let out = draw_ints(ctx, dtype, &shape, limits, || philox)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn scalar<'a>(ctx: &'a OpContext<'_>, i: usize) -> Result<&'a Tensor> {
    let tensor = ctx.input(i)?;
    if tensor.rank() == 0 {
        return Ok(tensor);
    }
    Err(Status::invalid_argument(format!(
        "input {i} (0-based) must have shape [], not {}",
        tensor.shape()
    )))
}

/// The algorithm in input 1 must be Philox, by number or by leaving the choice.
pub(super) fn check_algorithm(ctx: &OpContext<'_>) -> Result<()> {
    match int(scalar(ctx, 1)?)? {
        1 | 3 => Ok(()),
        2 => Err(Status::unimplemented(
            "Non-XLA devices don't support the ThreeFry algorithm.",
        )),
        other => Err(Status::invalid_argument(format!(
            "Unsupported algorithm id: {other}"
        ))),
    }
}

/// The generator for `outputs` outputs, which the state is advanced past.
fn take(ctx: &OpContext<'_>, outputs: usize) -> Result<Philox> {
    philox_of(&advance(ctx, outputs as u64)?)
}

/// The generator that a state of the right size describes.
pub(super) fn philox_of(state: &Tensor) -> Result<Philox> {
    match state.as_slice::<i64>()? {
        &[low, high, key, ..] => Ok(Philox {
            key: key as u64,
            counter: u128::from(low as u64) | u128::from(high as u64) << 64,
        }),
        _ => Err(Status::internal("the state's size was checked")),
    }
}

/// Moves the state of the variable in input 0 on by `outputs` outputs; gives the state before.
pub(super) fn advance(ctx: &OpContext<'_>, outputs: u64) -> Result<Tensor> {
    advance_from(ctx, outputs, 0)
}

/// As [`advance`], of a state with `tags` words in front: none, or one that names the algorithm.
fn advance_from(ctx: &OpContext<'_>, outputs: u64, tags: usize) -> Result<Tensor> {
    let variable = ctx.lookup::<Variable>(0)?;
    let mut before = None;
    variable.update(|state| {
        let Some(state) = state else {
            return Err(Status::failed_precondition(
                "Trying to use an uninitialized random generator state",
            ));
        };
        if state.dtype() != DType::Int64 {
            return Err(Status::invalid_argument(format!(
                "dtype of RNG state variable must be int64, not {}",
                state.dtype()
            )));
        }
        if state.rank() != 1 {
            return Err(Status::invalid_argument(format!(
                "RNG state must have one and only one dimension, not {}",
                state.rank()
            )));
        }
        if tags == 1
            && let Some(other) = state.as_slice::<i64>()?.first().filter(|a| **a != 1)
        {
            return Err(Status::invalid_argument(format!(
                "Unsupported algorithm id: {other}"
            )));
        }
        if state.num_elements() < 3 + tags {
            return Err(Status::invalid_argument(format!(
                "For the Philox algorithm, the size of state must be at least {}; got {}",
                3 + tags,
                state.num_elements()
            )));
        }
        before = Some(Tensor::vector(state.as_slice::<i64>()?.to_vec()));
        if let [low, high, ..] = &mut state.make_mut::<i64>()?[tags..] {
            let mut philox = Philox {
                key: 0,
                counter: u128::from(*low as u64) | u128::from(*high as u64) << 64,
            };
            philox.skip(outputs.wrapping_mul(RESERVED_PER_OUTPUT));
            *low = philox.counter as u64 as i64;
            *high = (philox.counter >> 64) as u64 as i64;
        }
        Ok(())
    })?;
    before.ok_or_else(|| Status::internal("the state was read"))
}
