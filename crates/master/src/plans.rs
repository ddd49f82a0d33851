//! The graphs a session has registered, found by what they are fed and asked for. Bounded: the
//! least recently used one makes room.

use crate::session::Session;
use downpour_graph::Graph;
use downpour_plan::Request;
use downpour_tensor::DType;
use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

/// What one task runs of a request.
#[derive(Clone)]
pub(crate) struct Part {
    /// Number of the task.
    pub(crate) task: usize,
    /// The task's handle of the graph.
    pub(crate) handle: u64,
    /// What was registered, for `RunMetadata.partition_graphs`.
    pub(crate) graph: Graph,
}

/// A request's graphs, registered on their tasks until the last of its users lets go of it.
pub(crate) struct Registered {
    pub(crate) parts: Vec<Part>,
    /// Feeds, fetches and targets, each sorted: position i of a step's values is name i here.
    pub(crate) request: Request,
    pub(crate) feed_types: Vec<DType>,
    /// All of it, before it was parted.
    pub(crate) graph: Graph,
    /// How many steps have begun.
    pub(crate) steps: AtomicU64,
    /// The session whose graphs these are.
    pub(crate) home: Weak<Session>,
}

impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(session) = self.home.upgrade() {
            session.deregister(&self.parts);
        }
    }
}

/// Registered graphs by request.
#[derive(Default)]
pub(crate) struct Plans {
    found: HashMap<Request, (Arc<Registered>, u64)>,
    clock: u64,
}

impl Plans {
    pub(crate) fn get(&mut self, request: &Request) -> Option<Arc<Registered>> {
        self.clock += 1;
        let (found, used) = self.found.get_mut(request)?;
        *used = self.clock;
        Some(found.clone())
    }

    /// Adds a graph; returns the one that had to go, if any.
    pub(crate) fn insert(
        &mut self,
        plan: Arc<Registered>,
        limit: usize,
    ) -> Option<Arc<Registered>> {
        self.clock += 1;
        self.found.insert(plan.request.clone(), (plan, self.clock));
        if self.found.len() <= limit {
            return None;
        }
        let oldest = self
            .found
            .iter()
            .min_by_key(|(_, (_, used))| *used)?
            .0
            .clone();
        self.found.remove(&oldest).map(|(plan, _)| plan)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_makes_room() {
        let plan = |handle: u64| {
            let request = Request {
                targets: vec![handle.to_string()],
                ..Default::default()
            };
            Arc::new(Registered {
                parts: Vec::new(),
                request,
                feed_types: vec![],
                graph: Graph::default(),
                steps: AtomicU64::new(0),
                home: Weak::new(),
            })
        };
        let mut plans = Plans::default();
        assert!(plans.insert(plan(1), 2).is_none());
        assert!(plans.insert(plan(2), 2).is_none());
        assert!(plans.get(&plan(1).request).is_some());
        assert_eq!(plans.insert(plan(3), 2).unwrap().request.targets, ["2"]);
        assert!(plans.get(&plan(2).request).is_none());
    }
}
