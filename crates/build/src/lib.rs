//! Building graphs: operations with shapes and gradients, scopes, variables, functions.
//!
//! [`Graph`] is the principal type: a TensorFlow graph under construction. [`Output`]s are its
//! tensors-to-be, with operators and methods; [`gradients`] adds the operations that compute
//! derivatives; [`Variable`]s hold what is trained. Everything here is pure: nothing runs.
//! `client` sends the result to a cluster; `train` builds optimizers on it.
//!
//! ```
//! use downpour_build::{DType, Graph, gradients};
//! let g = Graph::new();
//! let x = g.placeholder("x", DType::Float, [None, Some(3)]);
//! let w = g.variable("w").shape([3, 1]).build();
//! let loss = (x.matmul(&w) - 1.0).square().mean(());
//! let dw = gradients(&[loss], &[w.handle().clone()])?;
//! assert!(dw[0].is_some());
//! # Ok::<(), downpour_build::Status>(())
//! ```

mod body;
mod check;
mod clip;
mod collection;
mod definition;
mod embedding;
mod flow;
mod function;
mod grad;
mod graph;
mod init;
pub mod layers;
mod list;
mod literal;
pub mod losses;
pub mod metrics;
mod op;
mod ops;
mod output;
mod partition;
mod pipeline;
mod place;
mod replicas;
mod sampled;
mod scope;
mod shape;
pub mod summary;
mod variable;

pub use check::{Evaluate, GradientCheck, check_gradients};
pub use clip::{clip_by_global_norm, clip_by_norm, clip_by_value, global_norm};
pub use downpour_graph::{
    AttrList, AttrValue, Attrs, Code, DeviceName, GraphDef, NodeDef, Result, Status,
};
pub use downpour_tensor::{DType, PartialShape, Shape, Tensor, TensorError};
pub use embedding::{
    Combiner, Lookup, SparseTensor, Table, embedding_lookup, embedding_lookup_sparse,
};
pub use flow::{
    Branch, Function, While, call, case, cond, cond_op, fold, map_fn, scan, switch_case, while_loop,
};
pub use grad::{
    Back, Differentiate, Gradient, Grads, IndexedSlices, custom_gradient, gradients, gradients_from,
};
pub use graph::{DeviceFunction, Graph, NewOp};
pub use init::{Distribution, Fan, Init};
pub use list::TensorList;
pub use literal::{Axes, IntoShape, IntoTensor};
pub use op::OpBuilder;
pub use ops::{Padding, concat, stack};
pub use output::{Operation, Output};
pub use partition::{PartitionedVariable, Partitioner, SaveSlice};
pub use pipeline::Pipeline;
pub use place::{ReplicaDeviceSetter, Spread, bytes_of};
pub use replicas::{ModelPartitions, Replicas};
pub use sampled::{Candidates, nce_loss, sampled_softmax_loss};
pub use scope::Reuse;
pub use variable::{Adopted, Variable, VariableBuilder};
