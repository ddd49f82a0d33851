//! Stateless ops: the generator is a function of a seed, or of (key, counter, algorithm).

use super::distribution::{Floats, draw, draw_ints};
use super::philox::Philox;
use super::shape_arg;
use super::stateful::bounds;
use crate::args::ints;
use crate::types::{FLOATS, INDEX};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Tensor};

const WORD_TYPES: &[DType] = crate::types::WORDS;

/// The only algorithm a CPU offers, and the one "automatic" (3) stands for.
const PHILOX: i32 = 1;

pub(super) fn register(r: &mut Registry) {
    let dtype = &[("dtype", FLOATS)];
    r.add_typed("StatelessRandomUniform", dtype, |b| {
        floats(b, Floats::Uniform, from_seed)
    });
    r.add_typed("StatelessRandomNormal", dtype, |b| {
        floats(b, Floats::Normal, from_seed)
    });
    r.add_typed("StatelessTruncatedNormal", dtype, |b| {
        floats(b, Floats::Truncated, from_seed)
    });
    r.add_typed("StatelessRandomUniformV2", dtype, |b| {
        floats(b, Floats::Uniform, key_counter_alg)
    });
    r.add_typed("StatelessRandomNormalV2", dtype, |b| {
        floats(b, Floats::Normal, key_counter_alg)
    });
    r.add_typed("StatelessTruncatedNormalV2", dtype, |b| {
        floats(b, Floats::Truncated, key_counter_alg)
    });
    let dtype = &[("dtype", INDEX)];
    r.add_typed("StatelessRandomUniformInt", dtype, |b| {
        integers(b, from_seed, Some(2))
    });
    r.add_typed("StatelessRandomUniformIntV2", dtype, |b| {
        integers(b, key_counter_alg, Some(4))
    });
    let dtype = &[("dtype", WORD_TYPES)];
    r.add_typed("StatelessRandomUniformFullInt", dtype, |b| {
        integers(b, from_seed, None)
    });
    r.add_typed("StatelessRandomUniformFullIntV2", dtype, |b| {
        integers(b, key_counter_alg, None)
    });
    r.add("StatelessRandomGetAlg", |_| {
        Built::cheap(|ctx| {
            ctx.set_output(0, Tensor::scalar(PHILOX));
            Ok(())
        })
    });
    r.add("StatelessRandomGetKeyCounter", |_| {
        Built::cheap(get_key_counter)
    });
    r.add("StatelessRandomGetKeyCounterAlg", |_| {
        Built::cheap(|ctx| {
            get_key_counter(ctx)?;
            ctx.set_output(2, Tensor::scalar(PHILOX));
            Ok(())
        })
    });
}

/// Finds the generator in the inputs from `i` on.
type Source = fn(&OpContext<'_>, usize) -> Result<Philox>;

fn floats(b: &KernelBuilder<'_>, kind: Floats, source: Source) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    Built::costly(move |ctx| {
        let shape = shape_arg(ctx.input(0)?)?;
        let philox = source(ctx, 1)?;
        let out = draw(ctx, kind, dtype, &shape, || philox)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn integers(b: &KernelBuilder<'_>, source: Source, limits: Option<usize>) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    Built::costly(move |ctx| {
        let shape = shape_arg(ctx.input(0)?)?;
        let limits = limits.map(|i| bounds(ctx, i, &shape)).transpose()?;
        let philox = source(ctx, 1)?;
        let out = draw_ints(ctx, dtype, &shape, limits, || philox)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The generator of a user's two seeds in input `i`, scrambled so that weak seeds do no harm.
pub(crate) fn from_seed(ctx: &OpContext<'_>, i: usize) -> Result<Philox> {
    let seed = ctx.input(i)?;
    if seed.dims() != [2] {
        return Err(Status::invalid_argument(format!(
            "seed must have shape [2], not {}",
            seed.shape()
        )));
    }
    let words: Vec<u64> = match seed.dtype() {
        DType::UInt64 => seed.as_slice::<u64>()?.to_vec(),
        _ => ints(seed)?.into_iter().map(|v| v as u64).collect(),
    };
    let &[a, b] = words.as_slice() else {
        return Err(Status::internal("a seed of shape [2] has two elements"));
    };
    let mixed = Philox {
        key: 0x0246_1e29_3ec8_f720,
        counter: u128::from(a) | u128::from(b) << 64,
    }
    .block();
    Ok(Philox {
        key: u64::from(mixed[0]) | u64::from(mixed[1]) << 32,
        counter: u128::from(mixed[2]) << 64 | u128::from(mixed[3]) << 96,
    })
}

/// The generator given by `key`, `counter` and `alg` in inputs `i`, `i + 1`, `i + 2`.
pub(super) fn key_counter_alg(ctx: &OpContext<'_>, i: usize) -> Result<Philox> {
    let (key, counter, alg) = (ctx.input(i)?, ctx.input(i + 1)?, ctx.input(i + 2)?);
    if alg.rank() != 0 {
        return Err(Status::invalid_argument(format!(
            "input {} (0-based) must have shape [], not {}",
            i + 2,
            alg.shape()
        )));
    }
    let alg = alg.scalar_value::<i32>()?;
    if key.dims() != [1] {
        return Err(Status::invalid_argument(format!(
            "key must have shape [1], not {}. (Note that batched keys are not supported yet.)",
            key.shape()
        )));
    }
    let least = if (0..=3).contains(&alg) { 1 } else { 4 };
    if counter.rank() != 1 || counter.num_elements() < least {
        return Err(Status::invalid_argument(format!(
            "counter must be a vector with length at least {least}; got shape: {}. (Note that batched counters are not supported yet.)",
            counter.shape()
        )));
    }
    if alg != PHILOX && alg != 3 {
        return Err(Status::invalid_argument(format!(
            "Unsupported algorithm id: {alg}"
        )));
    }
    let counter = counter.as_slice::<u64>()?;
    let part = |i: usize| u128::from(counter.get(i).copied().unwrap_or(0));
    Ok(Philox {
        key: key.scalar_value::<u64>()?,
        counter: part(0) | part(1) << 64,
    })
}

fn get_key_counter(ctx: &mut OpContext<'_>) -> Result<()> {
    let philox = from_seed(ctx, 0)?;
    let counter = vec![philox.counter as u64, (philox.counter >> 64) as u64];
    ctx.set_output(0, Tensor::vector(vec![philox.key]));
    ctx.set_output(1, Tensor::vector(counter));
    Ok(())
}
