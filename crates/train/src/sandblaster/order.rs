//! One command to all shards: a prepared step that feeds each shard the same small value, runs
//! operations there and brings back small vectors. Used by [`super::vectors`] and
//! [`super::exchange`].
//!
//! Invariant: what is fed and fetched stands on the shard's own device, so that a command is one
//! message to each shard and one back, whatever the size of the model.

use downpour_build::{DType, Graph, Operation, Output, Result, Status, Tensor, Variable};
use downpour_client::{Run, Session};

/// A command.
#[derive(Clone, Default)]
pub(super) struct Order {
    /// Placeholders, by argument and shard.
    pub(super) fed: Vec<Vec<Output>>,
    pub(super) targets: Vec<Operation>,
    /// One vector of each shard.
    pub(super) fetched: Vec<Output>,
}

impl Order {
    /// Carries it out; what each shard answers.
    pub(super) fn give(&self, session: &Session, values: &[Tensor]) -> Result<Vec<Vec<f64>>> {
        let mut run = Run::new();
        for (places, value) in self.fed.iter().zip(values) {
            for place in places {
                run.feed(place, value);
            }
        }
        for operation in &self.targets {
            run.target(operation);
        }
        for output in &self.fetched {
            run.fetch(output);
        }
        session.execute(&run)?.iter().map(numbers).collect()
    }
}

/// The elements of a tensor of doubles.
pub(super) fn numbers(tensor: &Tensor) -> Result<Vec<f64>> {
    let values = tensor.as_slice::<f64>().map(<[f64]>::to_vec);
    values.map_err(|e| Status::internal(e.to_string()))
}

/// The elements of a tensor of whole numbers.
pub(super) fn integers(tensor: &Tensor) -> Result<Vec<i64>> {
    let values = tensor.as_slice::<i64>().map(<[i64]>::to_vec);
    values.map_err(|e| Status::internal(e.to_string()))
}

/// The sum of the shards' answers, element by element.
pub(super) fn total(answers: &[Vec<f64>]) -> Vec<f64> {
    let mut sum = answers.first().cloned().unwrap_or_default();
    for answer in answers.iter().skip(1) {
        for (sum, value) in sum.iter_mut().zip(answer) {
            *sum += value;
        }
    }
    sum
}

/// Builds on the device of a variable.
pub(super) fn beside<R>(variable: &Variable, body: impl FnOnce() -> R) -> R {
    let handle = variable.handle();
    let graph = handle.graph();
    graph.with_colocation(&handle.operation(), body)
}

/// A placeholder on the device of a variable.
pub(super) fn place(home: &Variable, name: &str, dtype: DType, dims: &[usize]) -> Output {
    let graph: &Graph = home.handle().graph();
    beside(home, || graph.placeholder(name, dtype, dims))
}
