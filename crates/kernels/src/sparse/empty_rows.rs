//! Filling empty rows (`SparseFillEmptyRows`, `RaggedFillEmptyRows`) and their gradients: what
//! safe embedding lookups begin with.

use super::form::{Places, dense_shape, invalid};
use super::number::{Number, with_number};
use super::segment::{narrowed, widened};
use crate::array::COMMON_AND_STRING;
use crate::array::units::{Unit, room, with_unit};
use crate::types::NUMBERS;
use downpour_graph::Result;
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("SparseFillEmptyRows", &[("T", COMMON_AND_STRING)], |_| {
        Built::cheap(sparse)
    });
    r.add_typed("RaggedFillEmptyRows", &[("T", COMMON_AND_STRING)], |_| {
        Built::cheap(ragged)
    });
    for op in ["SparseFillEmptyRowsGrad", "RaggedFillEmptyRowsGrad"] {
        r.add_typed(op, &[("T", NUMBERS)], |_| Built::cheap(gradient));
    }
}

fn sparse(ctx: &mut OpContext<'_>) -> Result<()> {
    let (indices, values) = (ctx.input(0)?, ctx.input(1)?);
    let (shape, default) = (ctx.input(2)?, ctx.input(3)?);
    for (name, kind, rank, t) in [
        ("dense_shape", "a vector", 1, shape),
        ("indices", "a matrix", 2, indices),
        ("values", "a vector", 1, values),
        ("default_value", "a scalar", 0, default),
    ] {
        if t.rank() != rank {
            return invalid(format!("{name} must be {kind}, saw: {}", t.shape()));
        }
    }
    let places = Places::new(indices)?;
    if values.num_elements() != places.count {
        return invalid(format!(
            "The length of `values` ({}) must match the first dimension of `indices` ({}).",
            values.num_elements(),
            places.count
        ));
    }
    if shape.num_elements() != places.rank {
        return invalid(format!(
            "The length of `dense_shape` ({}) must match the second dimension of `indices` ({}).",
            shape.num_elements(),
            places.rank
        ));
    }
    let shape = shape.as_slice::<i64>()?;
    let Some(&rows) = shape.first() else {
        return invalid("Dense shape cannot be empty.");
    };
    dense_shape(shape)?;
    if rows == 0 && places.count != 0 {
        return invalid(format!(
            "Received SparseTensor with dense_shape[0] = 0 but indices.shape[0] = {}",
            places.count
        ));
    }
    let ids: Vec<i64> = places.rows().map(|row| row[0]).collect();
    let filled = Filled::new(ctx, &ids, rows as usize)?;
    let shape = Shape::from([filled.source.len(), places.rank]);
    let mut at = ctx.vec::<i64>(&shape)?;
    for (row, from) in filled.source.iter() {
        match from {
            Some(i) => at.extend_from_slice(places.row(*i)),
            None => {
                at.push(*row as i64);
                at.resize(at.len() + places.rank - 1, 0);
            }
        }
    }
    let at = Tensor::from_vec(at, shape)?;
    let values = filled.values(ctx, values, default)?;
    ctx.set_output(0, at);
    ctx.set_output(1, values);
    ctx.set_output(2, Tensor::vector(filled.is_empty));
    ctx.set_output(3, Tensor::vector(filled.reverse));
    Ok(())
}

fn ragged(ctx: &mut OpContext<'_>) -> Result<()> {
    let (ids, values) = (ctx.input(0)?, ctx.input(1)?);
    let (rows, default) = (ctx.input(2)?, ctx.input(3)?);
    for (name, kind, rank, t) in [
        ("nrows", "a scalar", 0, rows),
        ("value_rowids", "a vector", 1, ids),
        ("values", "a vector", 1, values),
        ("default_value", "a scalar", 0, default),
    ] {
        if t.rank() != rank {
            return invalid(format!("{name} must be {kind}, saw: {}", t.shape()));
        }
    }
    if values.num_elements() != ids.num_elements() {
        return invalid(format!(
            "The length of `values` ({}) must match the first dimension of `value_rowids` ({}).",
            values.num_elements(),
            ids.num_elements()
        ));
    }
    let rows = rows.scalar_value::<i64>()?;
    if rows == 0 && ids.num_elements() != 0 {
        return invalid(format!(
            "Received RaggedTensor with nrows = 0 but value_rowids.shape[0] = {}",
            ids.num_elements()
        ));
    }
    dense_shape(&[rows])?;
    let filled = Filled::new(ctx, ids.as_slice()?, rows as usize)?;
    let ids = filled.source.iter().map(|(row, _)| *row as i64).collect();
    let values = filled.values(ctx, values, default)?;
    ctx.set_output(0, Tensor::vector::<i64>(ids));
    ctx.set_output(1, values);
    ctx.set_output(2, Tensor::vector(filled.is_empty));
    ctx.set_output(3, Tensor::vector(filled.reverse));
    Ok(())
}

/// Elements in the order of their rows, each empty row with one of its own.
struct Filled {
    /// For each element of the result its row and where it comes from.
    source: Vec<(usize, Option<usize>)>,
    is_empty: Vec<bool>,
    /// For each given element its place in the result.
    reverse: Vec<i64>,
}

impl Filled {
    fn new(ctx: &OpContext<'_>, ids: &[i64], rows: usize) -> Result<Filled> {
        ctx.check_alloc(DType::Bool, &Shape::from([rows]))?;
        ctx.check_alloc(DType::Int64, &Shape::from([rows]))?;
        let mut count = vec![0usize; rows];
        for (i, &id) in ids.iter().enumerate() {
            match usize::try_from(id).ok().and_then(|id| count.get_mut(id)) {
                Some(n) => *n += 1,
                None => {
                    return invalid(format!("indices({i}, 0) is invalid: {id} >= {rows}"));
                }
            }
        }
        let is_empty: Vec<bool> = count.iter().map(|n| *n == 0).collect();
        let mut source = Vec::with_capacity(ids.len() + rows);
        let mut next = Vec::with_capacity(rows);
        for (row, &n) in count.iter().enumerate() {
            next.push(source.len());
            source.resize(source.len() + n.max(1), (row, None));
        }
        let mut reverse = Vec::with_capacity(ids.len());
        for (i, &id) in ids.iter().enumerate() {
            let place = &mut next[id as usize];
            source[*place].1 = Some(i);
            reverse.push(*place as i64);
            *place += 1;
        }
        Ok(Filled {
            source,
            is_empty,
            reverse,
        })
    }

    fn values(&self, ctx: &OpContext<'_>, values: &Tensor, default: &Tensor) -> Result<Tensor> {
        let dtype = values.dtype();
        let shape = Shape::from([self.source.len()]);
        with_unit!(dtype, U => {
            let (from, rest) = (U::view(values)?, U::view(default)?);
            let mut out: Vec<U> = room(ctx, dtype, &shape)?;
            out.extend(self.source.iter().map(|(_, i)| i.map_or(&rest[0], |i| &from[i]).clone()));
            U::tensor(dtype, out, shape)
        })
    }
}

fn gradient(ctx: &mut OpContext<'_>) -> Result<()> {
    let (reverse, grad) = (ctx.input(0)?, ctx.input(1)?);
    for (name, t) in [("reverse_index_map", reverse), ("grad_values", grad)] {
        if t.rank() != 1 {
            return invalid(format!("{name} must be a vector, saw: {}", t.shape()));
        }
    }
    let n = grad.num_elements();
    let mut order = Vec::with_capacity(reverse.num_elements());
    let mut visited = vec![false; n];
    for &at in reverse.as_slice::<i64>()? {
        match usize::try_from(at).ok().filter(|at| *at < n) {
            Some(at) => {
                visited[at] = true;
                order.push(at);
            }
            None => {
                return invalid(format!(
                    "Elements in reverse index must be in [0, {n}) but got {at}"
                ));
            }
        }
    }
    let dtype = grad.dtype();
    let values = super::form::picked(grad, &order)?;
    let wide = widened(grad)?;
    let rest = with_number!(wide.dtype(), T => {
        let all = wide.as_slice::<T>()?.iter().zip(&visited);
        let rest = all.filter(|(_, seen)| !**seen);
        Tensor::scalar(rest.fold(T::ZERO, |sum, (v, _)| sum.plus(*v)))
    });
    ctx.set_output(0, values);
    ctx.set_output(1, narrowed(rest, dtype)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn empty_rows_get_the_default_and_gradients_find_their_way_back() {
        let attrs = [("T", DType::Float.into())];
        let at = Tensor::from_vec(vec![3i64, 1, 1, 0, 1, 2], [3, 2]).unwrap();
        let run = |rows: i64| {
            let inputs = vec![
                at.clone(),
                floats(&[1.0, 2.0, 3.0]),
                Tensor::vector(vec![rows, 4i64]),
                Tensor::scalar(-1.0f32),
            ];
            run_op("SparseFillEmptyRows", inputs, &attrs)
        };
        let out = run(4).unwrap();
        assert_eq!(
            out[0].as_slice::<i64>().unwrap(),
            [0, 0, 1, 0, 1, 2, 2, 0, 3, 1]
        );
        assert_eq!(
            out[1].as_slice::<f32>().unwrap(),
            [-1.0, 2.0, 3.0, -1.0, 1.0]
        );
        assert_eq!(
            out[2].as_slice::<bool>().unwrap(),
            [true, false, true, false]
        );
        assert_eq!(out[3].as_slice::<i64>().unwrap(), [4, 1, 2]);
        let text = run(2).unwrap_err().message;
        assert!(
            text.starts_with("indices(0, 0) is invalid: 3 >= 2"),
            "{text}"
        );
        assert!(run(1 << 50).is_err());
        let grad = vec![out[3].clone(), floats(&[1.0, 2.0, 4.0, 8.0, 16.0])];
        let out = run_op("SparseFillEmptyRowsGrad", grad, &attrs).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [16.0, 2.0, 4.0]);
        assert_eq!(out[1].as_slice::<f32>().unwrap(), [9.0]);
    }
}
