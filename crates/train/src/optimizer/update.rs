//! One variable about to be changed, and the fused operations that change it.

use super::{Rate, Slots};
use downpour_build::{IndexedSlices, OpBuilder, Output, Variable};

/// One variable about to be changed.
///
/// ```
/// use downpour::train::{Slots, Update};
/// use downpour::{Graph, Init, Server, ServerConfig, Session};
/// # let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let w = g.variable("w").init(Init::value([3.0f32, 4.0])).build();
/// let mut slots = Slots::new("Mine");
/// slots.make("sum", &w, Init::ones());
/// // What an optimizer is given for each variable.
/// let update = Update { variable: &w, slots: &slots };
/// let halved = w.assign(&(w.value() * update.number(0.5) - update.slot("sum").value()));
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// session.run(&halved)?;
/// assert_eq!(session.fetch(&w)?.as_slice::<f32>()?, [0.5, 1.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Update<'a> {
    /// The variable.
    pub variable: &'a Variable,
    /// The optimizer's own variables.
    pub slots: &'a Slots,
}

/// A gradient as an update operation takes it.
#[derive(Clone, Copy)]
pub(super) enum Given<'a> {
    Dense(&'a Output),
    Sparse(&'a IndexedSlices),
}

impl<'a> Update<'a> {
    /// A slot of the variable.
    pub fn slot(&self, slot: &str) -> &'a Variable {
        self.slots.get(slot, self.variable)
    }

    /// A number in the variable's type, beside the variable.
    pub fn number(&self, value: f64) -> Output {
        Rate::from(value).for_variable(self.variable)
    }

    /// Begins `ResourceApply…` or `ResourceSparseApply…` with the variable and slots of it.
    pub(super) fn op(&self, kind: &str, given: Given<'_>, slots: &[&str]) -> OpBuilder {
        let graph = self.variable.handle().graph();
        let op = match given {
            Given::Dense(_) => graph.op(&format!("ResourceApply{kind}")),
            Given::Sparse(_) => graph.op(&format!("ResourceSparseApply{kind}")),
        };
        let op = op.input(self.variable.handle());
        slots
            .iter()
            .fold(op, |op, s| op.input(self.slot(s).handle()))
    }
}

impl Given<'_> {
    /// Adds the gradient's inputs to an operation.
    pub(super) fn to(self, op: OpBuilder) -> OpBuilder {
        match self {
            Given::Dense(gradient) => op.input(gradient),
            Given::Sparse(slices) => op.input(&slices.values).input(&slices.indices),
        }
    }
}
