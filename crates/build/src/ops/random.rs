//! Random tensors, with TensorFlow's rule for seeds.

use crate::literal::IntoShape;
use crate::{Graph, Output};
use downpour_graph::Status;
use downpour_tensor::DType;
use std::panic::Location;

/// The graph's seed when only an operation has one, as in TensorFlow.
const DEFAULT_GRAPH_SEED: i64 = 87_654_321;

impl Graph {
    /// `(seed, seed2)` of a new random operation.
    pub(crate) fn seeds(&self, own: Option<i64>) -> (i64, i64) {
        let graph = self.innermost();
        let mut inner = graph.inner.lock();
        match (inner.seed, own) {
            (None, None) => (0, 0),
            (None, Some(own)) => (DEFAULT_GRAPH_SEED, own),
            (Some(graph), Some(own)) => (graph, own),
            (Some(graph), None) => {
                inner.last_seed = (inner.last_seed + 1).max(inner.graph.len() as i64);
                (graph, inner.last_seed)
            }
        }
    }

    #[track_caller]
    fn random(&self, op: &str, dtype: DType, shape: impl IntoShape, seed: Option<i64>) -> Output {
        let shape = shape.into_shape();
        let Some(full) = shape.to_shape() else {
            let error = Status::invalid_argument(format!("{op}: shape {shape} is not fully known"));
            self.fail(error, Location::caller());
            return self.invalid();
        };
        let dims: Vec<i32> = full.iter().map(|d| *d as i32).collect();
        let (seed, seed2) = self.seeds(seed);
        let op = self.op(op).input(&self.constant(dims)).attr("dtype", dtype);
        op.attr("seed", seed).attr("seed2", seed2).output()
    }

    /// Uniform in `[0, 1)`.
    #[track_caller]
    pub fn random_uniform(&self, dtype: DType, shape: impl IntoShape, seed: Option<i64>) -> Output {
        self.random("RandomUniform", dtype, shape, seed)
    }

    /// Normal, with mean 0 and deviation 1.
    #[track_caller]
    pub fn random_normal(&self, dtype: DType, shape: impl IntoShape, seed: Option<i64>) -> Output {
        self.random("RandomStandardNormal", dtype, shape, seed)
    }

    /// Normal, without what lies beyond two deviations.
    #[track_caller]
    pub fn truncated_normal(
        &self,
        dtype: DType,
        shape: impl IntoShape,
        seed: Option<i64>,
    ) -> Output {
        self.random("TruncatedNormal", dtype, shape, seed)
    }
}
