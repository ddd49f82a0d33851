//! The graph of one replica: what it fetches, computes and pushes.

use super::DownpourSgd;
use crate::optimizer::{Minimize, Optimizer};
use crate::staleness::table::Table;
use downpour_build::{
    DType, Gradient, IndexedSlices, Operation, Output, Result, Shape, Status, Variable,
};

/// One variable's way through a replica.
#[derive(Debug)]
pub(super) enum Way {
    /// A copy of all of it is kept.
    Dense {
        /// Its value after the table was read.
        fetched: Output,
        /// Where the copy is fed.
        value: Output,
        gradient: Output,
        /// Where the accrued gradient is fed.
        pushed: Output,
    },
    /// Its rows are read where it is.
    Sparse {
        values: Output,
        indices: Output,
        pushed_values: Output,
        pushed_indices: Output,
    },
}

/// What a replica runs.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) table: Table,
    pub(super) loss: Output,
    pub(super) ways: Vec<Way>,
    /// Applies what is fed and records it.
    pub(super) push: Operation,
    pub(super) version: Output,
}

impl Parts {
    pub(super) fn build<O: Optimizer>(
        settings: &DownpourSgd,
        optimizer: &O,
        loss: &Output,
        pairs: &[(Gradient, Variable)],
        global_step: &Variable,
    ) -> Result<Parts> {
        let g = loss.graph();
        let (table, ways) = g.with_scope("downpour", || {
            let trained: Vec<&str> = pairs.iter().map(|(_, v)| v.name()).collect();
            let table = Table::new(g, global_step, settings.replicas, &trained);
            let first = table.read_first();
            let ways = g.with_control(&first, || pairs.iter().map(|p| way(p, settings)).collect());
            (table, ways)
        });
        let ways: Vec<Way> = Result::from_iter::<Vec<Result<Way>>>(ways)?;
        let fed = ways
            .iter()
            .zip(pairs)
            .map(|(way, (_, v))| (way.given(v), v.clone()));
        let fed: Vec<(Gradient, Variable)> = fed.collect();
        let fence = settings.bound.is_limited().then(|| table.fence(g));
        let fence: Vec<Operation> = fence.into_iter().collect();
        let apply = || optimizer.apply_gradients(&fed, Some(global_step));
        let applied = g.with_control(&fence, apply)?;
        let push = g.with_scope("downpour", || table.record(g, &applied));
        g.check()?;
        Ok(Parts {
            table,
            loss: loss.clone(),
            ways,
            push,
            version: global_step.value().clone(),
        })
    }
}

impl Way {
    /// What the optimizer is given of a variable's gradient.
    fn given(&self, variable: &Variable) -> Gradient {
        match self {
            Way::Dense { pushed, .. } => Gradient::Dense(pushed.clone()),
            Way::Sparse {
                pushed_values,
                pushed_indices,
                ..
            } => {
                let shape = variable.shape().to_shape().unwrap_or(Shape::scalar());
                let dims: Vec<i64> = shape.dims().iter().map(|d| *d as i64).collect();
                Gradient::Sparse(IndexedSlices {
                    values: pushed_values.clone(),
                    indices: pushed_indices.clone(),
                    shape: variable.handle().graph().constant(dims),
                })
            }
        }
    }
}

fn way((gradient, variable): &(Gradient, Variable), settings: &DownpourSgd) -> Result<Way> {
    let g = variable.handle().graph();
    let accrues = settings.n_push > 1 || settings.local_rate.is_some();
    if accrues && !matches!(variable.dtype(), DType::Float | DType::Double) {
        return Err(Status::invalid_argument(format!(
            "gradients of '{}' are {}: only float and double ones can be accrued",
            variable.name(),
            variable.dtype().name()
        )));
    }
    let place = |name: &str, dtype: DType, like: downpour_build::PartialShape| {
        g.without_control(|| g.placeholder(name, dtype, &like))
    };
    Ok(match gradient {
        Gradient::Dense(gradient) => Way::Dense {
            fetched: variable.read(),
            value: variable.value().clone(),
            gradient: gradient.clone(),
            pushed: place("gradient", variable.dtype(), variable.shape()),
        },
        Gradient::Sparse(slices) => Way::Sparse {
            values: slices.values.clone(),
            indices: slices.indices.clone(),
            pushed_values: place("rows", variable.dtype(), slices.values.shape()),
            pushed_indices: place("positions", slices.indices.dtype(), slices.indices.shape()),
        },
    })
}
