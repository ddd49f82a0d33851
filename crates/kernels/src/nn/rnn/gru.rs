//! `GRUBlockCell` and its gradient.

use super::{beside, columns, floats, invalid, put, same, sigmoid, times};
use downpour_graph::Result;
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::DType;

const TYPES: &[DType] = &[DType::Float];

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("GRUBlockCell", &[("T", TYPES)], |_| Built::costly(forward));
    r.add_typed("GRUBlockCellGrad", &[("T", TYPES)], |_| {
        Built::costly(backward)
    });
}

struct Sizes {
    batch: usize,
    input: usize,
    cell: usize,
}

impl Sizes {
    fn both(&self) -> usize {
        self.input + self.cell
    }
}

/// Checks the inputs, in TensorFlow's order: the ranks of all, then the sizes.
fn sizes(ctx: &OpContext<'_>, gradient: bool) -> Result<Sizes> {
    // TensorFlow's text names `c` wrongly.
    const RANKS: [(&str, usize); 10] = [
        ("x", 2),
        ("h_prev", 2),
        ("w_ru_", 2),
        ("w_c", 2),
        ("b_ru", 1),
        ("b_c", 1),
        ("r", 2),
        ("u", 2),
        ("w_c", 2),
        ("d_h", 2),
    ];
    let count = if gradient { 10 } else { 6 };
    for (i, (name, rank)) in RANKS.iter().take(count).enumerate() {
        let got = ctx.input(i)?.rank();
        if got != *rank {
            return invalid(format!("Rank of {name} must be {rank}, got {got}"));
        }
    }
    let dim = |i: usize, axis: usize| -> Result<usize> { Ok(ctx.input(i)?.dims()[axis]) };
    let s = Sizes {
        batch: dim(0, 0)?,
        input: dim(0, 1)?,
        cell: dim(1, 1)?,
    };
    same("h_prev.dims(0) != batch_size", dim(1, 0)?, s.batch)?;
    same(
        "w_ru.dim_size(0) != input_size + cell_size",
        dim(2, 0)?,
        s.both(),
    )?;
    same("w_ru.dim_size(1) != cell_size * 2", dim(2, 1)?, s.cell * 2)?;
    same(
        "w_c.dim_size(0) != input_size + cell_size",
        dim(3, 0)?,
        s.both(),
    )?;
    same("w_c.dim_size(1) != cell_size", dim(3, 1)?, s.cell)?;
    same("b_ru.dim_size(0) != cell_size * 2", dim(4, 0)?, s.cell * 2)?;
    same("b_c.dim_size(0) != cell_size", dim(5, 0)?, s.cell)?;
    if gradient {
        for (i, name) in [(6, "r"), (7, "u"), (8, "c"), (9, "d_h")] {
            same(
                &format!("{name}.dims(0) != batch_size"),
                dim(i, 0)?,
                s.batch,
            )?;
            same(&format!("{name}.dims(1) != cell_size"), dim(i, 1)?, s.cell)?;
        }
    }
    Ok(s)
}

fn forward(ctx: &mut OpContext<'_>) -> Result<()> {
    let s = sizes(ctx, false)?;
    let (x, h_prev) = (floats(ctx, 0)?, floats(ctx, 1)?);
    let (b_ru, b_c) = (floats(ctx, 4)?, floats(ctx, 5)?);
    let xh = beside(&x, s.input, &h_prev, s.cell, s.batch);
    let mut gates = times(
        &xh,
        &floats(ctx, 2)?,
        (s.batch, s.both(), 2 * s.cell),
        false,
    );
    for row in gates.chunks_exact_mut((2 * s.cell).max(1)) {
        row.iter_mut()
            .zip(&b_ru)
            .for_each(|(v, b)| *v = sigmoid(*v + b));
    }
    let r = columns(&gates, 2 * s.cell, 0, s.cell);
    let u = columns(&gates, 2 * s.cell, s.cell, s.cell);
    let reset: Vec<f32> = h_prev.iter().zip(&r).map(|(h, r)| h * r).collect();
    let xr = beside(&x, s.input, &reset, s.cell, s.batch);
    let mut c = times(&xr, &floats(ctx, 3)?, (s.batch, s.both(), s.cell), false);
    for row in c.chunks_exact_mut(s.cell.max(1)) {
        row.iter_mut()
            .zip(&b_c)
            .for_each(|(v, b)| *v = (*v + b).tanh());
    }
    let h = (0..h_prev.len())
        .map(|i| u[i] * h_prev[i] + (1.0 - u[i]) * c[i])
        .collect();
    for (i, values) in [r, u, c, h].into_iter().enumerate() {
        put(ctx, i, DType::Float, values, &[s.batch, s.cell])?;
    }
    Ok(())
}

fn backward(ctx: &mut OpContext<'_>) -> Result<()> {
    let s = sizes(ctx, true)?;
    let h_prev = floats(ctx, 1)?;
    let (w_ru, w_c) = (floats(ctx, 2)?, floats(ctx, 3)?);
    let (r, u) = (floats(ctx, 6)?, floats(ctx, 7)?);
    let (c, d_h) = (floats(ctx, 8)?, floats(ctx, 9)?);
    let each = 0..h_prev.len();
    let d_c: Vec<f32> = each
        .clone()
        .map(|i| d_h[i] * (1.0 - u[i]) * (1.0 - c[i] * c[i]))
        .collect();
    let d_u: Vec<f32> = each
        .clone()
        .map(|i| d_h[i] * (h_prev[i] - c[i]) * u[i] * (1.0 - u[i]))
        .collect();
    // The candidate's inputs: x and the reset state.
    let through_c = times(&d_c, &w_c, (s.batch, s.cell, s.both()), true);
    let d_hr = columns(&through_c, s.both(), s.input, s.cell);
    let d_r: Vec<f32> = each
        .clone()
        .map(|i| d_hr[i] * h_prev[i] * r[i] * (1.0 - r[i]))
        .collect();
    let d_ru = beside(&d_r, s.cell, &d_u, s.cell, s.batch);
    let through_ru = times(&d_ru, &w_ru, (s.batch, 2 * s.cell, s.both()), true);
    let mut d_x = columns(&through_ru, s.both(), 0, s.input);
    let other = columns(&through_c, s.both(), 0, s.input);
    d_x.iter_mut().zip(other).for_each(|(a, b)| *a += b);
    let direct = columns(&through_ru, s.both(), s.input, s.cell);
    let d_h_prev = each
        .map(|i| direct[i] + d_hr[i] * r[i] + d_h[i] * u[i])
        .collect();
    put(ctx, 0, DType::Float, d_x, &[s.batch, s.input])?;
    put(ctx, 1, DType::Float, d_h_prev, &[s.batch, s.cell])?;
    put(ctx, 2, DType::Float, d_c, &[s.batch, s.cell])?;
    put(ctx, 3, DType::Float, d_ru, &[s.batch, 2 * s.cell])
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op, text};
    use downpour_tensor::Tensor;

    fn matrix(values: &[f32], dims: [usize; 2]) -> Tensor {
        Tensor::from_vec(values.to_vec(), dims).unwrap()
    }

    #[test]
    fn a_cell_without_weights_halves_its_state() {
        let given = || {
            vec![
                matrix(&[1.0], [1, 1]),
                matrix(&[2.0], [1, 1]),
                matrix(&[0.0; 4], [2, 2]),
                matrix(&[0.0; 2], [2, 1]),
                floats(&[0.0, 0.0]),
                floats(&[0.0]),
            ]
        };
        let attrs = [("T", downpour_tensor::DType::Float.into())];
        let out = run_op("GRUBlockCell", given(), &attrs).unwrap();
        assert_eq!(out[3].as_slice::<f32>().unwrap(), [1.0]);
        let mut wrong = given();
        wrong[5] = floats(&[0.0, 0.0]);
        assert_eq!(
            text(run_op("GRUBlockCell", wrong, &attrs)),
            "b_c.dim_size(0) != cell_size: 2 vs. 1"
        );
    }
}
