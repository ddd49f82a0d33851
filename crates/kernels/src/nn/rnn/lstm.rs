//! `LSTMBlockCell` and its gradient, and the arithmetic of one step that whole sequences share.

use super::{TYPES, beside, floats, invalid, put, same, sigmoid, times};
use downpour_graph::Result;
use downpour_runtime::{Built, OpContext, Registry};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("LSTMBlockCell", &[("T", TYPES)], |b| {
        let options = Options {
            forget_bias: b.attrs().float("forget_bias")?,
            cell_clip: b.attrs().float("cell_clip")?,
            peephole: b.attrs().bool("use_peephole")?,
            order: Order::Icfo,
        };
        Built::costly(move |ctx| forward(ctx, &options))
    });
    r.add_typed("LSTMBlockCellGrad", &[("T", TYPES)], |b| {
        let peephole = b.attrs().bool("use_peephole")?;
        Built::costly(move |ctx| backward(ctx, peephole))
    });
}

/// How the four gates lie in a row of the product with the weights.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// input, cell, forget, output.
    Icfo,
    /// input, forget, cell, output.
    Ifco,
}

impl Order {
    /// Columns of (cell, forget) in units of the cell size.
    fn inner(self) -> (usize, usize) {
        match self {
            Order::Icfo => (1, 2),
            Order::Ifco => (2, 1),
        }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Options {
    pub(super) forget_bias: f32,
    pub(super) cell_clip: f32,
    pub(super) peephole: bool,
    pub(super) order: Order,
}

#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) input: usize,
    pub(super) cell: usize,
}

/// Weights of the gates, and of the peepholes in the order input, forget, output.
pub(super) struct Weights {
    pub(super) w: Vec<f32>,
    pub(super) b: Vec<f32>,
    pub(super) peep: [Vec<f32>; 3],
}

/// What one step gives: `i, cs, f, o, ci, co, h`.
pub(super) type CellValues = [Vec<f32>; 7];

pub(super) fn step(
    x: &[f32],
    cs_prev: &[f32],
    h_prev: &[f32],
    weights: &Weights,
    s: Sizes,
    o: &Options,
) -> CellValues {
    let n = s.cell;
    let xh = beside(x, s.input, h_prev, n, s.batch);
    let gates = times(&xh, &weights.w, (s.batch, s.input + n, 4 * n), false);
    let (at_cell, at_forget) = o.order.inner();
    let mut out: CellValues = std::array::from_fn(|_| Vec::with_capacity(s.batch * n));
    let peep = |which: usize, j: usize, state: f32| match o.peephole {
        true => weights.peep[which][j] * state,
        false => 0.0,
    };
    for row in 0..s.batch {
        for j in 0..n {
            let gate = |g: usize| gates[row * 4 * n + g * n + j] + weights.b[g * n + j];
            let before = cs_prev[row * n + j];
            let i = sigmoid(gate(0) + peep(0, j, before));
            let ci = gate(at_cell).tanh();
            let f = sigmoid(gate(at_forget) + o.forget_bias + peep(1, j, before));
            let mut cs = ci * i + f * before;
            if o.cell_clip > 0.0 {
                cs = cs.min(o.cell_clip).max(-o.cell_clip);
            }
            let output = sigmoid(gate(3) + peep(2, j, cs));
            let co = cs.tanh();
            for (to, v) in out.iter_mut().zip([i, cs, f, output, ci, co, output * co]) {
                to.push(v);
            }
        }
    }
    out
}

/// What the step's forward run left, and the gradients that reach it.
pub(super) struct Seen<'a> {
    pub(super) cs_prev: &'a [f32],
    pub(super) i: &'a [f32],
    pub(super) cs: &'a [f32],
    pub(super) f: &'a [f32],
    pub(super) o: &'a [f32],
    pub(super) ci: &'a [f32],
    pub(super) co: &'a [f32],
    pub(super) cs_grad: &'a [f32],
    pub(super) h_grad: &'a [f32],
}

/// The gradient of one step: of the state before it, of the gates, of the peepholes (added).
pub(super) fn step_back(
    seen: &Seen<'_>,
    peep: &[Vec<f32>; 3],
    peep_grad: &mut [Vec<f32>; 3],
    s: Sizes,
    peephole: bool,
    order: Order,
) -> (Vec<f32>, Vec<f32>) {
    let n = s.cell;
    let (at_cell, at_forget) = order.inner();
    let mut before = vec![0.0; s.batch * n];
    let mut gates = vec![0.0; s.batch * 4 * n];
    for row in 0..s.batch {
        for j in 0..n {
            let at = row * n + j;
            let (i, f, o) = (seen.i[at], seen.f[at], seen.o[at]);
            let (ci, co, cs_prev) = (seen.ci[at], seen.co[at], seen.cs_prev[at]);
            let d_o = o * (1.0 - o) * seen.h_grad[at] * co;
            let mut d_cs = (1.0 - co * co) * seen.h_grad[at] * o + seen.cs_grad[at];
            if peephole {
                d_cs += d_o * peep[2][j];
            }
            let d_ci = (1.0 - ci * ci) * d_cs * i;
            let d_f = f * (1.0 - f) * d_cs * cs_prev;
            let d_i = i * (1.0 - i) * d_cs * ci;
            let mut d_prev = d_cs * f;
            if peephole {
                d_prev += d_i * peep[0][j] + d_f * peep[1][j];
                peep_grad[0][j] += d_i * cs_prev;
                peep_grad[1][j] += d_f * cs_prev;
                peep_grad[2][j] += d_o * seen.cs[at];
            }
            before[at] = d_prev;
            for (g, v) in [(0, d_i), (at_cell, d_ci), (at_forget, d_f), (3, d_o)] {
                gates[row * 4 * n + g * n + j] = v;
            }
        }
    }
    (before, gates)
}

const RANKS: [(&str, usize); 8] = [
    ("x", 2),
    ("cs_prev", 2),
    ("h_prev", 2),
    ("w", 2),
    ("wci", 1),
    ("wcf", 1),
    ("wco", 1),
    ("b", 1),
];

fn ranks(ctx: &OpContext<'_>) -> Result<()> {
    for (i, (name, rank)) in RANKS.iter().enumerate() {
        let got = ctx.input(i)?.rank();
        if got != *rank {
            return invalid(format!(
                "{name}_tensor must be rank {rank} but is rank {got}."
            ));
        }
    }
    Ok(())
}

fn sizes(ctx: &OpContext<'_>) -> Result<Sizes> {
    // TensorFlow looks at the sizes first; where there is no such dimension its process ends.
    let dim = |i: usize, axis: usize| -> Result<usize> {
        let dims = ctx.input(i)?.dims();
        let (name, rank) = RANKS[i];
        dims.get(axis).copied().map_or_else(
            || {
                invalid(format!(
                    "{name}_tensor must be rank {rank} but is rank {}.",
                    dims.len()
                ))
            },
            Ok,
        )
    };
    let s = Sizes {
        batch: dim(0, 0)?,
        input: dim(0, 1)?,
        cell: dim(1, 1)?,
    };
    same("cs_prev.dims(0) != batch_size", dim(1, 0)?, s.batch)?;
    same("h_prev.dims(0) != batch_size", dim(2, 0)?, s.batch)?;
    same("h_prev.dims(1) != cell_size", dim(2, 1)?, s.cell)?;
    same(
        "w.dim_size(0) != input_size + cell_size",
        dim(3, 0)?,
        s.input + s.cell,
    )?;
    same("w.dim_size(1) != cell_size * 4", dim(3, 1)?, s.cell * 4)?;
    same("b.dim_size(0) != cell_size * 4", dim(7, 0)?, s.cell * 4)?;
    Ok(s)
}

/// The weights in inputs `first..first + 5`.
pub(super) fn weights(ctx: &OpContext<'_>, first: usize) -> Result<Weights> {
    Ok(Weights {
        w: floats(ctx, first)?,
        peep: [
            floats(ctx, first + 1)?,
            floats(ctx, first + 2)?,
            floats(ctx, first + 3)?,
        ],
        b: floats(ctx, first + 4)?,
    })
}

/// Refuses peepholes of another size, which TensorFlow reads past their end.
fn peepholes(weights: &Weights, s: Sizes) -> Result<()> {
    for (name, values) in ["wci", "wcf", "wco"].iter().zip(&weights.peep) {
        same(
            &format!("{name}.dim_size(0) != cell_size"),
            values.len(),
            s.cell,
        )?;
    }
    Ok(())
}

fn forward(ctx: &mut OpContext<'_>, o: &Options) -> Result<()> {
    let s = sizes(ctx)?;
    ranks(ctx)?;
    let weights = weights(ctx, 3)?;
    if o.peephole {
        peepholes(&weights, s)?;
    }
    let dtype = ctx.input(0)?.dtype();
    let (x, cs_prev, h_prev) = (floats(ctx, 0)?, floats(ctx, 1)?, floats(ctx, 2)?);
    let out = step(&x, &cs_prev, &h_prev, &weights, s, o);
    for (i, values) in out.into_iter().enumerate() {
        put(ctx, i, dtype, values, &[s.batch, s.cell])?;
    }
    Ok(())
}

fn backward(ctx: &mut OpContext<'_>, peephole: bool) -> Result<()> {
    let s = sizes(ctx)?;
    ranks(ctx)?;
    let weights = weights(ctx, 3)?;
    if peephole {
        peepholes(&weights, s)?;
    }
    let names = ["i", "cs", "f", "o", "ci", "co", "cs_grad", "h_grad"];
    for (k, name) in names.iter().enumerate() {
        let t = ctx.input(8 + k)?;
        if t.rank() != 2 {
            return invalid(format!(
                "{name}_tensor must be rank 2 but is rank {}.",
                t.rank()
            ));
        }
        let dims = (t.dims()[0], t.dims()[1]);
        same(
            &format!("{name}.dim_size(0) != batch_size"),
            dims.0,
            s.batch,
        )?;
        same(&format!("{name}.dim_size(1) != cell_size"), dims.1, s.cell)?;
    }
    let dtype = ctx.input(0)?.dtype();
    let cs_prev = floats(ctx, 1)?;
    let all: Vec<Vec<f32>> = (8..16).map(|k| floats(ctx, k)).collect::<Result<_>>()?;
    let [i, cs, f, o, ci, co, cs_grad, h_grad] = &all[..] else {
        return invalid("an LSTM's gradient has eight values of its forward run");
    };
    let seen = Seen {
        cs_prev: &cs_prev,
        i,
        cs,
        f,
        o,
        ci,
        co,
        cs_grad,
        h_grad,
    };
    let mut peep_grad: [Vec<f32>; 3] = std::array::from_fn(|k| vec![0.0; weights.peep[k].len()]);
    let (before, gates) = step_back(
        &seen,
        &weights.peep,
        &mut peep_grad,
        s,
        peephole,
        Order::Icfo,
    );
    put(ctx, 0, dtype, before, &[s.batch, s.cell])?;
    put(ctx, 1, dtype, gates, &[s.batch, 4 * s.cell])?;
    for (k, grad) in peep_grad.into_iter().enumerate() {
        let len = grad.len();
        put(ctx, 2 + k, dtype, grad, &[len])?;
    }
    Ok(())
}
