//! Several optimizers as one: each variable has its own, as wide-and-deep models want. To whoever
//! applies gradients, also synchronously, it is an optimizer like any other.

use super::{Optimizer, Slots, Update, unique_rows};
use downpour_build::{Graph, IndexedSlices, Operation, Output, Result, Variable};
use parking_lot::Mutex;

/// Which variables an optimizer changes.
type Rule = Box<dyn Fn(&Variable) -> bool + Send + Sync>;

/// One optimizer among several.
struct Part {
    changes: Rule,
    optimizer: Box<dyn Optimizer + Send + Sync>,
}

/// Changes each variable by the first optimizer whose rule accepts it.
///
/// ```
/// use downpour_build::Graph;
/// use downpour_train::{Adagrad, Ftrl, Minimize, PerVariable};
/// let g = Graph::new();
/// let wide = g.variable("wide/w").shape([8, 1]).build();
/// let deep = g.variable("deep/w").shape([8, 1]).build();
/// let loss = (&*wide + &*deep).square().sum(());
/// let optimizer = PerVariable::new(Adagrad::new(0.1))
///     .with(|v| v.name().starts_with("wide/"), Ftrl::new(0.2));
/// optimizer.minimize(&loss, None)?;
/// assert_eq!(optimizer.slot(&wide, "linear").expect("Ftrl's").name(), "wide/w/Ftrl_1");
/// assert_eq!(optimizer.slot(&deep, "accumulator").expect("Adagrad's").name(), "deep/w/Adagrad");
/// # Ok::<(), downpour_build::Status>(())
/// ```
pub struct PerVariable {
    /// The last accepts every variable.
    parts: Vec<Part>,
    made: Mutex<Option<Made>>,
}

/// What was made in a graph.
#[derive(Clone)]
struct Made {
    graph: Graph,
    /// By part.
    slots: Vec<Slots>,
    /// The parts of the variables of the last call, in its order.
    order: Vec<usize>,
}

impl PerVariable {
    /// This optimizer for all variables that no rule accepts.
    pub fn new(otherwise: impl Optimizer + Send + Sync + 'static) -> PerVariable {
        PerVariable {
            parts: vec![Part {
                changes: Box::new(|_| true),
                optimizer: Box::new(otherwise),
            }],
            made: Mutex::new(None),
        }
    }

    /// This optimizer for the variables that a rule accepts and no earlier rule does.
    pub fn with(
        mut self,
        rule: impl Fn(&Variable) -> bool + Send + Sync + 'static,
        optimizer: impl Optimizer + Send + Sync + 'static,
    ) -> PerVariable {
        let last = self.parts.len() - 1;
        self.parts.insert(
            last,
            Part {
                changes: Box::new(rule),
                optimizer: Box::new(optimizer),
            },
        );
        self
    }

    /// The number of the part that changes a variable.
    fn part_of(&self, variable: &Variable) -> usize {
        let found = self.parts.iter().position(|p| (p.changes)(variable));
        found.unwrap_or(self.parts.len() - 1)
    }

    /// What was made in this graph so far.
    fn made(&self, graph: &Graph) -> Made {
        match &*self.made.lock() {
            Some(made) if made.graph.is(graph) => made.clone(),
            _ => Made {
                graph: graph.clone(),
                slots: self
                    .parts
                    .iter()
                    .map(|p| p.optimizer.slots(graph))
                    .collect(),
                order: Vec::new(),
            },
        }
    }
}

impl Optimizer for PerVariable {
    fn name(&self) -> &str {
        "PerVariable"
    }

    fn check(&self) -> Result<()> {
        self.parts.iter().try_for_each(|p| p.optimizer.check())
    }

    fn slots(&self, graph: &Graph) -> Slots {
        let mut all = Slots::new(self.name());
        for slots in self.made(graph).slots {
            all.adopt(slots);
        }
        all
    }

    fn make_slots(&self, graph: &Graph, variables: &[Variable], _: &mut Slots) {
        let mut made = self.made(graph);
        made.order = variables.iter().map(|v| self.part_of(v)).collect();
        for (i, part) in self.parts.iter().enumerate() {
            let own = variables.iter().zip(&made.order);
            let own = own.filter(|(_, part)| **part == i).map(|(v, _)| v.clone());
            let own: Vec<Variable> = own.collect();
            part.optimizer.make_slots(graph, &own, &mut made.slots[i]);
            part.optimizer.keep_slots(graph, made.slots[i].clone());
        }
        *self.made.lock() = Some(made);
    }

    fn apply_dense(&self, update: &Update<'_>, gradient: &Output) -> Operation {
        let (variable, i) = (update.variable, self.part_of(update.variable));
        let slots = &self.made(variable.handle().graph()).slots[i];
        let update = Update { variable, slots };
        self.parts[i].optimizer.apply_dense(&update, gradient)
    }

    fn apply_sparse(&self, update: &Update<'_>, gradient: &IndexedSlices) -> Operation {
        let (variable, i) = (update.variable, self.part_of(update.variable));
        let slots = &self.made(variable.handle().graph()).slots[i];
        let (update, optimizer) = (Update { variable, slots }, &self.parts[i].optimizer);
        match optimizer.sums_duplicates() {
            true => optimizer.apply_sparse(&update, &unique_rows(gradient)),
            false => optimizer.apply_sparse(&update, gradient),
        }
    }

    /// Each part decides for itself.
    fn sums_duplicates(&self) -> bool {
        false
    }

    fn finish(&self, graph: &Graph, _: &Slots, updates: &[Operation]) -> Vec<Operation> {
        let made = self.made(graph);
        let mut last = Vec::new();
        for (i, part) in self.parts.iter().enumerate() {
            let own = updates.iter().zip(&made.order);
            let own = own.filter(|(_, part)| **part == i).map(|(u, _)| u.clone());
            let own: Vec<Operation> = own.collect();
            if !own.is_empty() {
                last.extend(part.optimizer.finish(graph, &made.slots[i], &own));
            }
        }
        last
    }
}
