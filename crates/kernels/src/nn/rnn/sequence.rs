//! `BlockLSTM`, `BlockLSTMV2` and their gradients: an LSTM over the steps of a sequence, which is
//! its inputs' first dimension. Steps from `seq_len_max` on leave zeros.

use super::lstm::{Options, Order, Seen, Sizes, step, step_back, weights};
use super::{TYPES, beside, columns, floats, invalid, put, same, times};
use downpour_graph::Result;
use downpour_runtime::{Built, OpContext, Registry};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("BlockLSTM", &[("T", TYPES)], |b| {
        let options = Options {
            forget_bias: b.attrs().float("forget_bias")?,
            cell_clip: b.attrs().float("cell_clip")?,
            peephole: b.attrs().bool("use_peephole")?,
            order: Order::Icfo,
        };
        Built::costly(move |ctx| forward(ctx, &options))
    });
    r.add_typed("BlockLSTMV2", &[("T", TYPES)], |b| {
        let options = Options {
            forget_bias: 0.0,
            cell_clip: b.attrs().float("cell_clip")?,
            peephole: b.attrs().bool("use_peephole")?,
            order: Order::Ifco,
        };
        Built::costly(move |ctx| forward(ctx, &options))
    });
    r.add_typed("BlockLSTMGrad", &[("T", TYPES)], |b| {
        let peephole = b.attrs().bool("use_peephole")?;
        Built::costly(move |ctx| backward(ctx, peephole, Order::Icfo))
    });
    r.add_typed("BlockLSTMGradV2", &[("T", TYPES)], |b| {
        let peephole = b.attrs().bool("use_peephole")?;
        Built::costly(move |ctx| backward(ctx, peephole, Order::Ifco))
    });
}

/// Number of steps, how many of them count, and a step's sizes.
struct Sequence {
    time: usize,
    live: usize,
    sizes: Sizes,
}

fn check(ctx: &OpContext<'_>, gradient: bool) -> Result<Sequence> {
    const RANKS: [(&str, usize); 8] = [
        ("x", 3),
        ("cs_prev", 2),
        ("h_prev", 2),
        ("w", 2),
        ("wci", 1),
        ("wcf", 1),
        ("wco", 1),
        ("b", 1),
    ];
    let limit = ctx.input(0)?;
    if limit.rank() != 0 {
        return invalid(format!(
            "`seq_len_max_tensor` must be rank 0 but is rank {}",
            limit.rank()
        ));
    }
    for (i, (name, rank)) in RANKS.iter().enumerate() {
        let got = ctx.input(i + 1)?.rank();
        if got != *rank {
            return invalid(match gradient {
                false => format!("{name} must be {rank}D"),
                true => format!("{name} must be rank {rank} but is rank {got}"),
            });
        }
    }
    let dim = |i: usize, axis: usize| -> Result<usize> { Ok(ctx.input(i)?.dims()[axis]) };
    let s = Sizes {
        batch: dim(1, 1)?,
        input: dim(1, 2)?,
        cell: dim(2, 1)?,
    };
    same("cs_prev.dims(0) != batch_size", dim(2, 0)?, s.batch)?;
    same("h_prev.dims(0) != batch_size", dim(3, 0)?, s.batch)?;
    same("h_prev.dims(1) != cell_size", dim(3, 1)?, s.cell)?;
    same(
        "w.dim_size(0) != input_size + cell_size",
        dim(4, 0)?,
        s.input + s.cell,
    )?;
    same("w.dim_size(1) != cell_size * 4", dim(4, 1)?, s.cell * 4)?;
    for (i, name) in [(5, "wci"), (6, "wcf"), (7, "wco")] {
        same(
            &format!("{name}.dim_size(0) != cell_size"),
            dim(i, 0)?,
            s.cell,
        )?;
    }
    same("b.dim_size(0) != cell_size * 4", dim(8, 0)?, s.cell * 4)?;
    let time = dim(1, 0)?;
    // Outside this range TensorFlow's process ends.
    let limit = limit.scalar_value::<i64>()?;
    let Some(live) = usize::try_from(limit).ok().filter(|n| *n <= time) else {
        return invalid(format!(
            "seq_len_max must be in [0, {time}], but is {limit}"
        ));
    };
    Ok(Sequence {
        time,
        live,
        sizes: s,
    })
}

fn forward(ctx: &mut OpContext<'_>, o: &Options) -> Result<()> {
    let Sequence {
        time,
        live,
        sizes: s,
    } = check(ctx, false)?;
    let dtype = ctx.input(1)?.dtype();
    let weights = weights(ctx, 4)?;
    let (x, mut cs, mut h) = (floats(ctx, 1)?, floats(ctx, 2)?, floats(ctx, 3)?);
    let (taken, made) = (s.batch * s.input, s.batch * s.cell);
    let mut out: [Vec<f32>; 7] = std::array::from_fn(|_| Vec::with_capacity(time * made));
    for t in 0..live {
        let now = step(&x[t * taken..(t + 1) * taken], &cs, &h, &weights, s, o);
        for (to, from) in out.iter_mut().zip(&now) {
            to.extend_from_slice(from);
        }
        let [_, new_cs, _, _, _, _, new_h] = now;
        (cs, h) = (new_cs, new_h);
    }
    for (i, mut values) in out.into_iter().enumerate() {
        values.resize(time * made, 0.0);
        put(ctx, i, dtype, values, &[time, s.batch, s.cell])?;
    }
    Ok(())
}

fn backward(ctx: &mut OpContext<'_>, peephole: bool, order: Order) -> Result<()> {
    let Sequence {
        time,
        live,
        sizes: s,
    } = check(ctx, true)?;
    let n = s.cell;
    for (k, name) in ["i", "cs", "f", "o", "ci", "co", "h", "cs_grad", "h_grad"]
        .iter()
        .enumerate()
    {
        let t = ctx.input(9 + k)?;
        if t.rank() != 3 {
            return invalid(format!("{name} must be rank 3. Received: {}", t.rank()));
        }
        // TensorFlow reads past the end of what is smaller.
        if t.dims() != [time, s.batch, n] {
            return invalid(format!(
                "{name} must have shape [{time},{},{n}], but has {}",
                s.batch,
                t.shape()
            ));
        }
    }
    let dtype = ctx.input(1)?.dtype();
    let weights = weights(ctx, 4)?;
    let (x, cs_first, h_first) = (floats(ctx, 1)?, floats(ctx, 2)?, floats(ctx, 3)?);
    let all: Vec<Vec<f32>> = (9..18).map(|k| floats(ctx, k)).collect::<Result<_>>()?;
    let (taken, made) = (s.batch * s.input, s.batch * n);
    let both = s.input + n;
    let mut x_grad = vec![0.0; time * taken];
    let mut w_grad = vec![0.0f32; both * 4 * n];
    let mut b_grad = vec![0.0f32; 4 * n];
    let mut peep_grad: [Vec<f32>; 3] = std::array::from_fn(|_| vec![0.0; n]);
    let (mut cs_prev_grad, mut h_prev_grad) = (vec![0.0; made], vec![0.0; made]);
    let sum = |a: &[f32], b: &[f32]| -> Vec<f32> { a.iter().zip(b).map(|(a, b)| a + b).collect() };
    for t in (0..live).rev() {
        let at = |k: usize| &all[k][t * made..(t + 1) * made];
        let before = |k: usize, first: &'_ Vec<f32>| match t {
            0 => first.clone(),
            _ => all[k][(t - 1) * made..t * made].to_vec(),
        };
        let (cs_prev, h_prev) = (before(1, &cs_first), before(6, &h_first));
        let (cs_grad, h_grad) = (sum(at(7), &cs_prev_grad), sum(at(8), &h_prev_grad));
        let seen = Seen {
            cs_prev: &cs_prev,
            i: at(0),
            cs: at(1),
            f: at(2),
            o: at(3),
            ci: at(4),
            co: at(5),
            cs_grad: &cs_grad,
            h_grad: &h_grad,
        };
        let (d_cs, gates) = step_back(&seen, &weights.peep, &mut peep_grad, s, peephole, order);
        cs_prev_grad = d_cs;
        let through = times(&gates, &weights.w, (s.batch, 4 * n, both), true);
        x_grad[t * taken..(t + 1) * taken].copy_from_slice(&columns(&through, both, 0, s.input));
        h_prev_grad = columns(&through, both, s.input, n);
        let xh = beside(&x[t * taken..(t + 1) * taken], s.input, &h_prev, n, s.batch);
        for row in 0..s.batch {
            let gates = &gates[row * 4 * n..(row + 1) * 4 * n];
            for (k, v) in xh[row * both..(row + 1) * both].iter().enumerate() {
                let to = &mut w_grad[k * 4 * n..(k + 1) * 4 * n];
                to.iter_mut().zip(gates).for_each(|(to, g)| *to += v * g);
            }
            b_grad.iter_mut().zip(gates).for_each(|(to, g)| *to += g);
        }
    }
    put(ctx, 0, dtype, x_grad, &[time, s.batch, s.input])?;
    put(ctx, 1, dtype, cs_prev_grad, &[s.batch, n])?;
    put(ctx, 2, dtype, h_prev_grad, &[s.batch, n])?;
    put(ctx, 3, dtype, w_grad, &[both, 4 * n])?;
    for (k, grad) in peep_grad.into_iter().enumerate() {
        put(ctx, 4 + k, dtype, grad, &[n])?;
    }
    put(ctx, 7, dtype, b_grad, &[4 * n])
}
