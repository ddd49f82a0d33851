//! What every optimizer can be told, and what it keeps: the slots that it made.

use super::Slots;
use downpour_build::Graph;
use parking_lot::Mutex;

/// An optimizer's name, and whether its updates lock; the slots made so far.
#[derive(Debug)]
pub(super) struct Settings {
    pub(super) name: String,
    pub(super) locking: bool,
    slots: Mutex<Option<(Graph, Slots)>>,
}

impl Settings {
    pub(super) fn new(name: &str) -> Settings {
        Settings {
            name: name.to_owned(),
            locking: false,
            slots: Mutex::new(None),
        }
    }

    /// The slots made in this graph so far.
    pub(super) fn slots(&self, graph: &Graph) -> Slots {
        match &*self.slots.lock() {
            Some((known, slots)) if known.is(graph) => slots.clone(),
            _ => Slots::new(&self.name),
        }
    }

    /// Keeps the slots for the next time that gradients are applied.
    pub(super) fn keep(&self, graph: &Graph, slots: Slots) {
        *self.slots.lock() = Some((graph.clone(), slots));
    }
}

impl Clone for Settings {
    /// The same optimizer again, which will make slots of its own.
    fn clone(&self) -> Settings {
        Settings {
            locking: self.locking,
            ..Settings::new(&self.name)
        }
    }
}

/// The settings' methods of an optimizer with a field `settings`.
macro_rules! settings {
    ($optimizer:ty) => {
        impl $optimizer {
            /// What slots and operations are named after.
            pub fn named(mut self, name: &str) -> Self {
                self.settings.name = name.to_owned();
                self
            }

            /// Whether updates of one variable exclude each other; otherwise those of several
            /// workers may mix.
            pub fn use_locking(mut self, locking: bool) -> Self {
                self.settings.locking = locking;
                self
            }
        }
    };
}
pub(super) use settings;

/// The parts of [`super::Optimizer`] that follow from the settings and from a method `apply`
/// for both forms of gradient.
macro_rules! fused {
    () => {
        fn name(&self) -> &str {
            &self.settings.name
        }

        fn slots(&self, graph: &Graph) -> Slots {
            self.settings.slots(graph)
        }

        fn keep_slots(&self, graph: &Graph, slots: Slots) {
            self.settings.keep(graph, slots);
        }

        fn apply_dense(&self, update: &Update<'_>, gradient: &Output) -> Operation {
            self.apply(update, Given::Dense(gradient))
        }

        fn apply_sparse(&self, update: &Update<'_>, gradient: &IndexedSlices) -> Operation {
            self.apply(update, Given::Sparse(gradient))
        }
    };
}
pub(super) use fused;
