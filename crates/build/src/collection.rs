//! What a graph carries beside its nodes: named collections of tensors and operations, and values
//! of other crates that belong to the program rather than to the computation.

use crate::{Graph, Operation, Output};
use downpour_graph::{Endpoint, NodeId};
use std::any::Any;
use std::sync::Arc;

/// A member of a collection.
#[derive(Clone, Copy)]
pub(crate) enum Member {
    Tensor(Endpoint),
    Operation(NodeId),
}

impl Graph {
    /// Adds a tensor to a named collection.
    pub fn add_to_collection(&self, collection: &str, output: &Output) {
        let mut inner = self.inner.lock();
        let members = inner.collections.entry(collection.to_owned()).or_default();
        members.push(Member::Tensor(output.endpoint()));
    }

    /// Adds an operation to a named collection, as training operations are to `train_op`.
    ///
    /// ```
    /// let g = downpour_build::Graph::new();
    /// g.add_operation_to_collection("train_op", &g.group("train", &[]));
    /// assert_eq!(g.collection_names("train_op"), ["train"]);
    /// ```
    pub fn add_operation_to_collection(&self, collection: &str, operation: &Operation) {
        let Some(node) = operation.valid_node() else {
            return;
        };
        let mut inner = self.inner.lock();
        let members = inner.collections.entry(collection.to_owned()).or_default();
        members.push(Member::Operation(node));
    }

    /// The tensors of a named collection, in the order they were added.
    pub fn collection(&self, collection: &str) -> Vec<Output> {
        let inner = self.inner.lock();
        let members = inner.collections.get(collection);
        members
            .into_iter()
            .flatten()
            .filter_map(|member| match member {
                Member::Tensor(at) => Some(Output::new(self.clone(), *at)),
                Member::Operation(_) => None,
            })
            .collect()
    }

    /// The names of what is in a collection, tensors and operations.
    pub fn collection_names(&self, collection: &str) -> Vec<String> {
        let members = self.inner.lock().collections.get(collection).cloned();
        let name = |member: Member| match member {
            Member::Tensor(at) => Output::new(self.clone(), at).name(),
            Member::Operation(node) => Operation::new(self.clone(), node).name(),
        };
        members.unwrap_or_default().into_iter().map(name).collect()
    }

    /// The names of all collections.
    ///
    /// ```
    /// let g = downpour_build::Graph::new();
    /// g.add_to_collection("losses", &g.constant(1.0f32));
    /// assert_eq!(g.collections(), ["losses"]);
    /// ```
    pub fn collections(&self) -> Vec<String> {
        self.inner.lock().collections.keys().cloned().collect()
    }

    /// Keeps a value with the graph, to be found again by its type.
    ///
    /// ```
    /// let g = downpour_build::Graph::new();
    /// g.attach("a note");
    /// g.attach(7i32);
    /// assert_eq!(*g.attached::<&str>()[0], "a note");
    /// ```
    pub fn attach<T: Any + Send + Sync>(&self, value: T) -> Arc<T> {
        let value = Arc::new(value);
        self.inner.lock().attached.push(value.clone());
        value
    }

    /// The values of a type that were attached, in that order.
    pub fn attached<T: Any + Send + Sync>(&self) -> Vec<Arc<T>> {
        let inner = self.inner.lock();
        let all = inner.attached.iter().cloned();
        all.filter_map(|value| value.downcast().ok()).collect()
    }
}
