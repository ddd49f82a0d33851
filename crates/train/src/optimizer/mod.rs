//! Optimizers: from gradients to the operations that change variables, with TensorFlow's
//! formulas, slot names and operations, so that either side can go on where the other stopped.

mod adadelta;
mod adagrad;
mod adam;
mod descent;
mod ftrl;
mod momentum;
mod per_variable;
mod proximal;
mod rate;
mod rmsprop;
mod settings;
pub(crate) mod slots;
mod update;

pub use adadelta::Adadelta;
pub use adagrad::Adagrad;
pub use adam::Adam;
pub use descent::GradientDescent;
pub use ftrl::Ftrl;
pub use momentum::Momentum;
pub use per_variable::PerVariable;
pub use proximal::{AdagradDa, ProximalAdagrad, ProximalGradientDescent};
pub use rate::Rate;
pub use rmsprop::RmsProp;
pub use slots::Slots;
pub use update::Update;

use downpour_build::{
    DType, Gradient, Graph, IndexedSlices, Init, Operation, Output, Result, Status, Variable,
    clip_by_global_norm, gradients,
};

/// How gradients change variables.
///
/// ```
/// use downpour::train::{Minimize, Optimizer, Slots, Update};
/// use downpour::{Graph, IndexedSlices, Init, Operation, Output, Variable};
/// use downpour::{Server, ServerConfig, Session};
///
/// /// Steps of one length, against the gradient.
/// struct SignDescent(f64);
///
/// impl Optimizer for SignDescent {
///     fn name(&self) -> &str {
///         "SignDescent"
///     }
///     fn make_slots(&self, _: &Graph, _: &[Variable], _: &mut Slots) {}
///     fn apply_dense(&self, update: &Update<'_>, gradient: &Output) -> Operation {
///         update.variable.assign_sub(&(gradient.sign() * update.number(self.0)))
///     }
///     fn apply_sparse(&self, update: &Update<'_>, gradient: &IndexedSlices) -> Operation {
///         self.apply_dense(update, &gradient.to_dense())
///     }
/// }
///
/// # let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value([3.0f32, -4.0])).build();
/// let train = SignDescent(0.5).minimize(&w.square().sum(()), None)?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// session.run(&train)?;
/// assert_eq!(session.fetch(&w)?.as_slice::<f32>()?, [2.5, -3.5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Optimizer {
    /// What slots, scopes and the training operation are named after, as TensorFlow names them.
    fn name(&self) -> &str;

    /// Refuses numbers that make no sense.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// The slots made in a graph so far; those of an optimizer that does not remember are made
    /// each time that gradients are applied.
    fn slots(&self, _graph: &Graph) -> Slots {
        Slots::new(self.name())
    }

    /// Remembers the slots.
    fn keep_slots(&self, _graph: &Graph, _slots: Slots) {}

    /// Makes the slots of these variables. Called before any update.
    fn make_slots(&self, graph: &Graph, variables: &[Variable], slots: &mut Slots);

    /// Changes a variable by a gradient of all its elements.
    fn apply_dense(&self, update: &Update<'_>, gradient: &Output) -> Operation;

    /// Changes a variable by a gradient of some rows, each of which occurs once.
    fn apply_sparse(&self, update: &Update<'_>, gradient: &IndexedSlices) -> Operation;

    /// Whether rows that occur several times must be added up before [`Self::apply_sparse`].
    fn sums_duplicates(&self) -> bool {
        true
    }

    /// What must happen once all variables are changed, such as counting steps; given are the
    /// updates, by variable.
    fn finish(&self, _graph: &Graph, _slots: &Slots, _updates: &[Operation]) -> Vec<Operation> {
        Vec::new()
    }
}

/// What every optimizer can do.
///
/// ```
/// use downpour_build::{Graph, Init};
/// use downpour_train::{Minimize, Momentum, global_step};
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value([3.0f32, 4.0])).build();
/// let momentum = Momentum::new(0.1, 0.9);
/// let train = momentum.minimize(&w.square().sum(()), Some(&global_step(&g)))?;
/// assert_eq!(train.name(), "Momentum");
/// let slot = momentum.slot(&w, "momentum").expect("made by minimize");
/// assert_eq!(slot.name(), "w/Momentum");
/// # Ok::<(), downpour_build::Status>(())
/// ```
pub trait Minimize: Optimizer {
    /// Gradients of a loss with respect to all trainable variables that it depends on.
    fn compute_gradients(&self, loss: &Output) -> Result<Vec<(Gradient, Variable)>> {
        self.compute_gradients_of(loss, loss.graph().trainable_variables())
    }

    /// Gradients of a loss with respect to those of these variables that it depends on.
    fn compute_gradients_of(
        &self,
        loss: &Output,
        variables: Vec<Variable>,
    ) -> Result<Vec<(Gradient, Variable)>> {
        if variables.is_empty() {
            return Err(Status::invalid_argument("No variables to optimize."));
        }
        let handles: Vec<Output> = variables.iter().map(|v| v.handle().clone()).collect();
        let found = gradients(std::slice::from_ref(loss), &handles)?;
        let pairs: Vec<(Gradient, Variable)> = found
            .into_iter()
            .zip(variables)
            .filter_map(|(gradient, variable)| Some((gradient?, variable)))
            .collect();
        if pairs.is_empty() {
            return Err(Status::invalid_argument(format!(
                "no trainable variable has a gradient: '{}' depends on none of them",
                loss.name()
            )));
        }
        Ok(pairs)
    }

    /// The operation that changes each variable by its gradient and then counts the step.
    fn apply_gradients(
        &self,
        pairs: &[(Gradient, Variable)],
        global_step: Option<&Variable>,
    ) -> Result<Operation> {
        let Some((_, first)) = pairs.first() else {
            return Err(Status::invalid_argument("No gradients to apply."));
        };
        let graph = first.handle().graph().clone();
        let variables: Vec<Variable> = pairs.iter().map(|(_, v)| v.clone()).collect();
        self.check()?;
        let mut slots = self.slots(&graph);
        graph.without_control(|| self.make_slots(&graph, &variables, &mut slots));
        self.keep_slots(&graph, slots.clone());
        let train = graph.with_scope(self.name(), || {
            let mut updates = Vec::new();
            for (gradient, variable) in pairs {
                let update = Update {
                    variable,
                    slots: &slots,
                };
                let scope = format!("update_{}", variable.name());
                updates.push(graph.with_scope(&scope, || {
                    graph.with_colocation(&variable.handle().operation(), || match gradient {
                        Gradient::Dense(gradient) => self.apply_dense(&update, gradient),
                        Gradient::Sparse(slices) if self.sums_duplicates() => {
                            self.apply_sparse(&update, &unique_rows(slices))
                        }
                        Gradient::Sparse(slices) => self.apply_sparse(&update, slices),
                    })
                }));
            }
            let mut last = self.finish(&graph, &slots, &updates);
            last.extend(updates);
            match global_step {
                None => graph.group_scope(&last),
                Some(step) => count(&graph, step, &last),
            }
        });
        graph.check()?;
        graph.add_operation_to_collection("train_op", &train);
        Ok(train)
    }

    /// A slot of a variable, by TensorFlow's name for it (`momentum`, `m`), once gradients were
    /// applied.
    fn slot(&self, variable: &Variable, slot: &str) -> Option<Variable> {
        let slots = self.slots(variable.handle().graph());
        slots.find(slot, variable).cloned()
    }

    /// As [`Minimize::minimize`], with all gradients scaled down together where their common norm
    /// is larger than `norm`.
    fn minimize_clipped(
        &self,
        loss: &Output,
        norm: f64,
        global_step: Option<&Variable>,
    ) -> Result<Operation> {
        let pairs = self.compute_gradients(loss)?;
        let (gradients, variables): (Vec<_>, Vec<_>) =
            pairs.into_iter().map(|(g, v)| (Some(g), v)).unzip();
        let (clipped, _) = clip_by_global_norm(&gradients, norm)?;
        let pairs = clipped.into_iter().zip(variables);
        let pairs: Vec<(Gradient, Variable)> = pairs.filter_map(|(g, v)| Some((g?, v))).collect();
        self.apply_gradients(&pairs, global_step)
    }

    /// The operation that makes a loss smaller, and counts the step if asked.
    fn minimize(&self, loss: &Output, global_step: Option<&Variable>) -> Result<Operation> {
        self.apply_gradients(&self.compute_gradients(loss)?, global_step)
    }
}

impl<O: Optimizer + ?Sized> Minimize for O {}

/// Counts the step once everything is done.
fn count(graph: &Graph, step: &Variable, done: &[Operation]) -> Operation {
    let done = graph.group("update", done);
    graph.with_control(&[done], || {
        graph.with_colocation(&step.handle().operation(), || {
            let one = graph.filled(step.dtype(), (), 1.0);
            let op = graph.op("AssignAddVariableOp").name_of_scope();
            op.input(step.handle()).input(&one).build()
        })
    })
}

/// Refuses a number that is not above zero.
fn positive(what: &str, value: f64) -> Result<()> {
    match value > 0.0 {
        true => Ok(()),
        false => Err(Status::invalid_argument(format!(
            "{what} must be positive: {value}"
        ))),
    }
}

/// Refuses a number below zero.
fn not_negative(what: &str, value: f64) -> Result<()> {
    match value >= 0.0 {
        true => Ok(()),
        false => Err(Status::invalid_argument(format!(
            "{what} {value} needs to be positive or zero"
        ))),
    }
}

/// The count of steps that all workers share, made when first asked for.
///
/// ```
/// use downpour::train::{GradientDescent, Minimize, global_step};
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// # let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value(4.0f32)).build();
/// let train = GradientDescent::new(0.25).minimize(&w.square(), Some(&global_step(&g)))?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// session.run(&train)?;
/// session.run(&train)?;
/// assert_eq!(global_step(&g).name(), "global_step");
/// assert_eq!(session.fetch(&global_step(&g))?.scalar_value::<i64>()?, 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn global_step(graph: &Graph) -> Variable {
    let known = graph.variables().into_iter();
    let mut known = known.filter(|v| v.name() == "global_step");
    known.next().unwrap_or_else(|| {
        let step = graph.variable("global_step").absolute().dtype(DType::Int64);
        step.init(Init::value(0i64)).trainable(false).build()
    })
}

/// A penalty on the squares of variables, to be added to a loss: `scale · Σ w² / 2`.
///
/// ```
/// use downpour::train::{weight_decay};
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// # let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value([3.0f32, 4.0])).build();
/// let b = g.variable("b").init(Init::value(1.0f32)).build();
/// let penalty = weight_decay(&[w, b], 0.5);
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// // 0.5 · (3² + 4² + 1²) / 2
/// assert_eq!(session.fetch(&penalty)?.scalar_value::<f32>()?, 6.5);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Panics
/// If there are no variables.
#[track_caller]
pub fn weight_decay(variables: &[Variable], scale: f64) -> Output {
    let halves: Vec<Output> = variables.iter().map(|v| v.l2_loss()).collect();
    let graph = halves[0].graph();
    graph.op("AddN").inputs(&halves).output() * scale
}

/// The same slices, with rows of the same position added up.
fn unique_rows(slices: &IndexedSlices) -> IndexedSlices {
    let graph = slices.values.graph();
    let found = graph.op("Unique").input(&slices.indices).outputs();
    let [unique, positions] = found.as_slice() else {
        return slices.clone();
    };
    let count = unique.size_op();
    let op = graph.op("UnsortedSegmentSum").input(&slices.values);
    IndexedSlices {
        values: op.input(positions).input(&count).output(),
        indices: unique.clone(),
        shape: slices.shape.clone(),
    }
}
