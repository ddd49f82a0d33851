//! What a graph carries beside its nodes: named collections of tensors, and values of other crates
//! that belong to the program rather than to the computation.

use crate::{Graph, Output};
use std::any::Any;
use std::sync::Arc;

impl Graph {
    /// Adds a tensor to a named collection.
    pub fn add_to_collection(&self, collection: &str, output: &Output) {
        let mut inner = self.inner.lock();
        let members = inner.collections.entry(collection.to_owned()).or_default();
        members.push(output.endpoint());
    }

    /// The tensors of a named collection, in the order they were added.
    pub fn collection(&self, collection: &str) -> Vec<Output> {
        let inner = self.inner.lock();
        let members = inner.collections.get(collection);
        members
            .into_iter()
            .flatten()
            .map(|&at| Output::new(self.clone(), at))
            .collect()
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
