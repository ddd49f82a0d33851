//! An optimizer's own variables: one beside each variable that it changes, or one for all.

use downpour_build::{Init, Variable};
use std::collections::HashMap;

/// The slots of one optimizer, named as TensorFlow names them.
pub struct Slots {
    optimizer: String,
    /// By slot and variable.
    slots: HashMap<(String, String), Variable>,
    shared: HashMap<String, Variable>,
}

impl Slots {
    pub(crate) fn new(optimizer: &str) -> Slots {
        Slots {
            optimizer: optimizer.to_owned(),
            slots: HashMap::new(),
            shared: HashMap::new(),
        }
    }

    /// Makes the slot `slot` of a variable, of its shape and type and on its device. It is called
    /// `variable/Optimizer`, the next ones `variable/Optimizer_1` and so on.
    pub fn make(&mut self, slot: &str, variable: &Variable, init: Init) {
        let graph = variable.handle().graph();
        let name = format!("{}/{}", variable.name(), self.optimizer);
        let made = graph.with_colocation(&variable.handle().operation(), || {
            let made = graph.variable(&name).absolute().shape(variable.shape());
            made.dtype(variable.dtype())
                .init(init)
                .trainable(false)
                .build()
        });
        let key = (slot.to_owned(), variable.name().to_owned());
        self.slots.insert(key, made);
    }

    /// Makes a variable that belongs to no variable in particular, on the device of `beside`.
    pub fn make_shared(&mut self, name: &str, beside: &Variable, init: Init) {
        let graph = beside.handle().graph();
        let made = graph.with_colocation(&beside.handle().operation(), || {
            let made = graph
                .variable(name)
                .absolute()
                .shape(())
                .dtype(beside.dtype());
            made.init(init).trainable(false).build()
        });
        self.shared.insert(name.to_owned(), made);
    }

    /// The slot of a variable.
    ///
    /// # Panics
    /// If [`Slots::make`] was not called for it: a mistake in an optimizer.
    pub fn get(&self, slot: &str, variable: &Variable) -> &Variable {
        let key = (slot.to_owned(), variable.name().to_owned());
        &self.slots[&key]
    }

    /// A variable made by [`Slots::make_shared`].
    ///
    /// # Panics
    /// If it was not made: a mistake in an optimizer.
    pub fn shared(&self, name: &str) -> &Variable {
        &self.shared[name]
    }
}
