//! Gradients that the user defines: for all new operations of one type in a scope, or for a piece
//! of graph as a whole.

use super::{Back, Gradient, Grads, OwnRule};
use crate::{Graph, Output};
use downpour_graph::{Result, Status};
use std::panic::Location;
use std::sync::Arc;

impl Graph {
    /// Differentiates the operations of type `op` that `body` makes by `rule` instead of by what
    /// is known of their type.
    ///
    /// ```
    /// use downpour_build::{DType, Graph, gradients};
    /// let g = Graph::new();
    /// let x = g.placeholder("x", DType::Float, ());
    /// // Rounding, through which the gradient goes straight.
    /// let y = g.with_gradient("Round", |b| Ok(vec![b.gradient(0).cloned()]), || x.round());
    /// assert!(gradients(&[y], &[x])?[0].is_some());
    /// # Ok::<(), downpour_build::Status>(())
    /// ```
    pub fn with_gradient<R>(
        &self,
        op: &str,
        rule: impl Fn(&Back) -> Result<Grads> + Send + Sync + 'static,
        body: impl FnOnce() -> R,
    ) -> R {
        let (name, graph) = (self.add_rule(Arc::new(rule)), self.innermost());
        graph.inner.lock().overrides.push((op.to_owned(), name));
        let result = body();
        graph.inner.lock().overrides.pop();
        result
    }

    /// Keeps a rule; the name that operations refer to it by.
    fn add_rule(&self, rule: OwnRule) -> String {
        // Functions' bodies are read again when they are differentiated: the rules must be found.
        let graph = self.outermost();
        let mut inner = graph.inner.lock();
        let name = format!("CustomGradient-{}", inner.rules.len());
        inner.rules.insert(name.clone(), rule);
        name
    }

    /// The rule of this name.
    pub(super) fn own_rule(&self, name: &str) -> Option<OwnRule> {
        self.outermost().inner.lock().rules.get(name).cloned()
    }
}

/// A piece of graph with a gradient of its own. `piece` is given the inputs, and returns the
/// results and what computes the inputs' gradients from those of the results.
///
/// ```
/// use downpour_build::{DType, Graph, Output, custom_gradient, gradients};
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, ());
/// // log(1 + eˣ): its derivative by the rules overflows for large x.
/// let y = custom_gradient(&[x.clone()], |x| {
///     let e = x[0].exp();
///     let y = (1.0 + &e).log();
///     let back = move |dy: &[Output]| {
///         let slope = 1.0 - 1.0 / (1.0 + &e);
///         Ok(vec![Some((&dy[0] * slope).into())])
///     };
///     (vec![y], back)
/// });
/// assert!(gradients(&y, &[x])?[0].is_some());
/// # Ok::<(), downpour_build::Status>(())
/// ```
///
/// # Panics
/// If there are no inputs.
#[track_caller]
pub fn custom_gradient<B>(
    inputs: &[Output],
    piece: impl FnOnce(&[Output]) -> (Vec<Output>, B),
) -> Vec<Output>
where
    B: Fn(&[Output]) -> Result<Grads> + Send + Sync + 'static,
{
    let graph = inputs[0].graph().clone();
    let args: Vec<Output> = inputs.iter().map(Output::identity).collect();
    let (results, back) = piece(&args);
    if results.is_empty() {
        let error = Status::invalid_argument("a piece with its own gradient needs a result");
        graph.fail(error, Location::caller());
        return Vec::new();
    }
    let (n, given) = (results.len(), args.len());
    let name = graph.add_rule(Arc::new(move |b: &Back| {
        let dys: Vec<Output> = (0..n).map(|i| b.dy(i)).collect();
        let grads = back(&dys)?;
        if grads.len() != given {
            return Err(Status::invalid_argument(format!(
                "a piece of {given} inputs has {} gradients",
                grads.len()
            )));
        }
        let mut all: Vec<Option<Gradient>> = vec![None; n];
        all.extend(grads);
        Ok(all)
    }));
    // The inputs pass through so that whoever looks for a way from them to the results finds it.
    let mut all = results;
    all.extend(args);
    let op = graph.op("IdentityN").inputs(&all);
    let mut out = op.attr("_gradient_op_type", name.as_str()).outputs();
    out.truncate(n);
    out
}
