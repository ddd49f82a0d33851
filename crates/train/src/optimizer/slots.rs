//! An optimizer's own variables: one beside each variable that it changes, or one for all.

use downpour_build::{DType, Init, SaveSlice, Variable};
use std::collections::HashMap;

/// The slots of one optimizer, named as TensorFlow names them.
///
/// ```
/// use downpour::train::{Slots};
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// # let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value([3.0f32, 4.0])).build();
/// let mut slots = Slots::new("Mine");
/// slots.make("sum", &w, Init::filled(0.5));
/// slots.make("count", &w, Init::zeros());
/// assert_eq!(slots.get("sum", &w).name(), "w/Mine");
/// assert_eq!(slots.get("count", &w).name(), "w/Mine_1");
/// assert!(slots.find("mean", &w).is_none());
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// assert_eq!(session.fetch(slots.get("sum", &w))?.as_slice::<f32>()?, [0.5, 0.5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Slots {
    optimizer: String,
    /// By slot and variable.
    slots: HashMap<(String, String), Variable>,
    shared: HashMap<String, Variable>,
}

impl Slots {
    /// Those of an optimizer of this name, none yet.
    pub fn new(optimizer: &str) -> Slots {
        Slots {
            optimizer: optimizer.to_owned(),
            slots: HashMap::new(),
            shared: HashMap::new(),
        }
    }

    /// Makes the slot `slot` of a variable, of its shape and type and on its device, unless it is
    /// there. It is called `variable/Optimizer`, the next ones `variable/Optimizer_1` and so on; a
    /// part's slot is the same part of `whole/Optimizer`.
    pub fn make(&mut self, slot: &str, variable: &Variable, init: Init) {
        let name = self.optimizer.clone();
        self.make_named(slot, variable, init, &name);
    }

    /// As [`Slots::make`], called `variable/name`.
    pub fn make_named(&mut self, slot: &str, variable: &Variable, init: Init, name: &str) {
        let key = (slot.to_owned(), variable.name().to_owned());
        self.slots
            .entry(key)
            .or_insert_with(|| beside(variable, init, name));
    }

    /// Makes a number that belongs to no variable in particular, on the device of `beside`,
    /// unless it is there.
    pub fn make_shared(&mut self, name: &str, beside: &Variable, init: Init) {
        if self.shared.contains_key(name) {
            return;
        }
        let graph = beside.handle().graph();
        let made = graph.with_colocation(&beside.handle().operation(), || {
            let full = match graph.scope().as_str() {
                "" => name.to_owned(),
                scope => format!("{scope}/{name}"),
            };
            let made = graph.variable(&full).absolute().shape(());
            let made = made.dtype(DType::Float);
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

    /// The slot of a variable, if it was made.
    pub fn find(&self, slot: &str, variable: &Variable) -> Option<&Variable> {
        let key = (slot.to_owned(), variable.name().to_owned());
        self.slots.get(&key)
    }

    /// Takes in the slots of variables that another optimizer made.
    pub(super) fn adopt(&mut self, other: Slots) {
        self.slots.extend(other.slots);
    }

    /// A variable made by [`Slots::make_shared`].
    ///
    /// # Panics
    /// If it was not made: a mistake in an optimizer.
    pub fn shared(&self, name: &str) -> &Variable {
        &self.shared[name]
    }
}

/// A variable like another one and on its device, called after it.
pub(crate) fn beside(variable: &Variable, init: Init, name: &str) -> Variable {
    let graph = variable.handle().graph();
    graph.with_colocation(&variable.handle().operation(), || {
        let full = unused(variable, name);
        let mut made = graph.variable(&full).absolute().shape(variable.shape());
        if let Some(slice) = variable.part_of() {
            let own = full.strip_prefix(variable.name()).unwrap_or_default();
            made = made.slice_of(SaveSlice {
                full_name: format!("{}{own}", slice.full_name),
                ..slice.clone()
            });
        }
        let made = made.dtype(variable.dtype()).init(init);
        made.trainable(false).build()
    })
}

/// `variable/name`, with a number if there is such a variable.
fn unused(variable: &Variable, name: &str) -> String {
    let graph = variable.handle().graph();
    let first = format!("{}/{name}", variable.name());
    let mut full = first.clone();
    let mut number = 0;
    while graph.find_variable(&full).is_ok() {
        number += 1;
        full = format!("{first}_{number}");
    }
    full
}
