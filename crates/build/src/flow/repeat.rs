//! Loops. As TensorFlow's own, they count their iterations in a first variable and carry their
//! limit in a second, whatever the user's variables are: gradients need both.

use super::{LOWER, all_captures, describe, identities, invalid, shapes_attr};
use crate::body::{Body, waits_of};
use crate::function::ArgSpec;
use crate::literal::IntoShape;
use crate::{Graph, Operation, Output};
use downpour_graph::{Result, Status};
use downpour_tensor::{DType, PartialShape};
use std::panic::Location;

/// The variables that every loop has before the user's.
const OWN: usize = 2;

/// How a loop runs; [`While::run`] makes it.
///
/// ```
/// use downpour_build::{Graph, PartialShape, While, concat};
/// let g = Graph::new();
/// let x = g.constant([1.0f32]);
/// let grown = While::new()
///     .maximum_iterations(3)
///     .shape_invariants(vec![PartialShape::from_dims([None])])
///     .run(&[x], |g, _| g.constant(true), |_, v| vec![concat(&[v[0].clone(), v[0].clone()], 0)]);
/// assert_eq!(grown[0].shape().to_string(), "[?]");
/// g.check()?;
/// # Ok::<(), downpour_build::Status>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a loop is made by `run`"]
pub struct While {
    name: String,
    parallel_iterations: i64,
    maximum: Option<Maximum>,
    invariants: Option<Vec<PartialShape>>,
}

#[derive(Clone, Debug)]
enum Maximum {
    Number(i32),
    Tensor(Output),
}

impl Default for While {
    fn default() -> While {
        While::new()
    }
}

/// Repeats `body` while `condition` holds: both are given the loop's variables, `body` returns
/// their next values, and the last values are returned.
///
/// ```
/// use downpour_build::{Graph, while_loop};
/// let g = Graph::new();
/// let (i, x) = (g.constant(0i32), g.constant(1.0f32));
/// let power = while_loop(
///     &[i, x],
///     |g, v| v[0].less(&g.constant(10i32)),
///     |_, v| vec![&v[0] + 1, &v[1] * 2.0],
/// );
/// assert_eq!(power[1].name(), "while/Identity_1:0");
/// g.check()?;
/// # Ok::<(), downpour_build::Status>(())
/// ```
#[track_caller]
pub fn while_loop(
    vars: &[Output],
    condition: impl FnOnce(&Graph, &[Output]) -> Output,
    body: impl FnOnce(&Graph, &[Output]) -> Vec<Output>,
) -> Vec<Output> {
    While::new().run(vars, condition, body)
}

impl While {
    /// A loop as [`while_loop`] makes it.
    pub fn new() -> While {
        While {
            name: "while".to_owned(),
            parallel_iterations: 10,
            maximum: None,
            invariants: None,
        }
    }

    /// The operation's name.
    pub fn name(mut self, name: &str) -> While {
        self.name = name.to_owned();
        self
    }

    /// How many iterations may be under way at once; 10 if not given.
    pub fn parallel_iterations(mut self, count: usize) -> While {
        self.parallel_iterations = count.max(1) as i64;
        self
    }

    /// Ends after so many iterations, whatever the condition says.
    pub fn maximum_iterations(mut self, count: i32) -> While {
        self.maximum = Some(Maximum::Number(count));
        self
    }

    /// Ends after as many iterations as a scalar int32 says.
    pub fn maximum_iterations_of(mut self, count: &Output) -> While {
        self.maximum = Some(Maximum::Tensor(count.clone()));
        self
    }

    /// What remains true of the variables' shapes when they change; their first shapes if not
    /// given.
    pub fn shape_invariants(mut self, shapes: Vec<PartialShape>) -> While {
        self.invariants = Some(shapes);
        self
    }

    /// Makes the loop; the last values of the variables.
    #[track_caller]
    pub fn run(
        self,
        vars: &[Output],
        condition: impl FnOnce(&Graph, &[Output]) -> Output,
        body: impl FnOnce(&Graph, &[Output]) -> Vec<Output>,
    ) -> Vec<Output> {
        let at = Location::caller();
        let Some(graph) = vars.first().map(|v| v.graph().innermost()) else {
            return Vec::new();
        };
        let made = self.try_run(&graph, vars, condition, body);
        self.last_values(&graph, made, vars.len(), at)
    }

    fn last_values(
        &self,
        graph: &Graph,
        made: Result<Operation>,
        count: usize,
        at: &'static Location<'static>,
    ) -> Vec<Output> {
        match made {
            Ok(op) if op.num_outputs() >= OWN + count => {
                identities(&op, &op.outputs()[OWN..OWN + count])
            }
            Ok(_) => invalid(graph, count),
            Err(e) => {
                graph.fail(e, at);
                invalid(graph, count)
            }
        }
    }

    fn try_run(
        &self,
        graph: &Graph,
        vars: &[Output],
        condition: impl FnOnce(&Graph, &[Output]) -> Output,
        body: impl FnOnce(&Graph, &[Output]) -> Vec<Output>,
    ) -> Result<Operation> {
        let mut specs: Vec<ArgSpec> = vars.iter().map(ArgSpec::like).collect();
        if let Some(invariants) = &self.invariants {
            check_invariants(vars, invariants)?;
            for (spec, shape) in specs.iter_mut().zip(invariants) {
                spec.shape = shape.clone();
            }
        }
        let body = Counted::build(graph, &specs, body);
        self.finish(graph, vars, body, condition)
    }

    /// Makes a loop of a body that is there: the last values of its variables, after `vars`.
    #[track_caller]
    pub(super) fn run_body(
        &self,
        graph: &Graph,
        vars: &[Output],
        body: Counted,
        condition: impl FnOnce(&Graph, &[Output]) -> Output,
    ) -> Vec<Output> {
        let made = self.finish(graph, vars, body, condition);
        self.last_values(graph, made, vars.len(), Location::caller())
    }

    fn finish(
        &self,
        graph: &Graph,
        vars: &[Output],
        Counted { mut body }: Counted,
        condition: impl FnOnce(&Graph, &[Output]) -> Output,
    ) -> Result<Operation> {
        body.settle(graph)?;
        check_next(vars, &body)?;
        let specs: Vec<(&str, ArgSpec)> = body
            .args
            .iter()
            .map(|a| ("var", ArgSpec::like(a)))
            .collect();
        let limited = self.maximum.is_some();
        let mut cond = Body::build(graph, &specs, |g, args| {
            let goes_on = condition(g, &args[OWN..]);
            vec![match limited {
                true => args[0].less(&args[1]).logical_and(&goes_on),
                false => goes_on,
            }]
        });
        cond.settle(graph)?;
        check_condition(&cond.results[0])?;
        let captures = all_captures(&[&body, &cond]);
        body.close_over(&captures);
        cond.close_over(&captures);
        body.results
            .extend(body.args[body.results.len()..].to_vec());
        let counter = graph.without_control(|| graph.constant(0i32));
        let maximum = match &self.maximum {
            None => graph.without_control(|| graph.constant(-1i32)),
            Some(Maximum::Number(n)) => graph.constant(*n),
            Some(Maximum::Tensor(tensor)) => tensor.clone(),
        };
        let mut inputs = vec![counter, maximum];
        inputs.extend(vars.iter().cloned());
        inputs.extend(captures);
        let waits = waits_of(&[&body, &cond]);
        let op = emit(
            graph,
            &self.name,
            &inputs,
            &body,
            &cond,
            self.parallel_iterations,
            &waits,
        )?;
        Ok(op)
    }
}

/// Makes the operation of a loop whose bodies are complete.
pub(crate) fn emit(
    graph: &Graph,
    name: &str,
    inputs: &[Output],
    body: &Body,
    cond: &Body,
    parallel_iterations: i64,
    waits: &[Operation],
) -> Result<Operation> {
    let kind = match body.is_stateful() || cond.is_stateful() {
        true => "While",
        false => "StatelessWhile",
    };
    let short = name.rsplit('/').next().unwrap_or(name);
    let shapes: Vec<PartialShape> = body.args.iter().map(Output::shape).collect();
    let mut op = graph.op(kind).name(name).inputs(inputs);
    op = op.attr("cond", cond.register(graph, &format!("{short}_cond"))?);
    op = op.attr("body", body.register(graph, &format!("{short}_body"))?);
    op = op.attr("parallel_iterations", parallel_iterations);
    op = op.attr("output_shapes", shapes_attr(shapes.clone()));
    op = op.attr("_num_original_outputs", inputs.len() as i64);
    op = op.attr(LOWER, true);
    for operation in waits {
        op = op.control(operation);
    }
    let op = op.build();
    let behind: Vec<_> = body.args.iter().map(Output::behind).collect();
    describe(&op, &shapes, &behind);
    Ok(op)
}

/// A loop's body with the variables that every loop has.
pub(super) struct Counted {
    pub(super) body: Body,
}

impl Counted {
    pub(super) fn build(
        graph: &Graph,
        vars: &[ArgSpec],
        make: impl FnOnce(&Graph, &[Output]) -> Vec<Output>,
    ) -> Counted {
        let number = ArgSpec::new(DType::Int32, ().into_shape());
        let mut specs = vec![("counter", number.clone()), ("maximum", number)];
        specs.extend(vars.iter().map(|v| ("var", v.clone())));
        let body = Body::build(graph, &specs, |g, args| {
            let mut results = vec![&args[0] + 1, args[1].clone()];
            results.extend(make(g, &args[OWN..]));
            results
        });
        Counted { body }
    }

    /// One more variable, and its next value.
    pub(super) fn add(&mut self, like: &Output, next: impl FnOnce(&Output) -> Output) {
        let graph = self.body.graph.clone();
        let var = graph.argument("var", &ArgSpec::like(like));
        let next = match graph.outer() {
            Some(outer) => outer.building(&graph, || next(&var)),
            None => next(&var),
        };
        self.body.args.push(var);
        self.body.results.push(next);
    }
}

fn check_invariants(vars: &[Output], invariants: &[PartialShape]) -> Result<()> {
    if invariants.len() != vars.len() {
        return Err(Status::invalid_argument(format!(
            "the loop has {} variables, but {} shape invariants",
            vars.len(),
            invariants.len()
        )));
    }
    for (var, shape) in vars.iter().zip(invariants) {
        if !within(&var.shape(), shape) {
            return Err(Status::invalid_argument(format!(
                "The shape invariant specified for {} is not compatible with the initial shape of the loop variable. It enters the loop with shape {}, but the specified shape invariant is {shape}.",
                var.name(),
                var.shape()
            )));
        }
    }
    Ok(())
}

/// Whether every tensor that has shape `a` has shape `b`.
fn within(a: &PartialShape, b: &PartialShape) -> bool {
    match (a.dims(), b.dims()) {
        (_, None) => true,
        (None, Some(_)) => false,
        (Some(a), Some(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| b.is_none() || a == b)
        }
    }
}

/// Refuses a body that changes how many variables there are, their types or their shapes.
fn check_next(vars: &[Output], body: &Body) -> Result<()> {
    if body.results.len() != body.args.len() {
        return Err(Status::invalid_argument(format!(
            "the loop has {} variables, but its body returns {} values",
            body.args.len() - OWN,
            body.results.len() - OWN
        )));
    }
    for ((var, arg), next) in vars.iter().zip(&body.args[OWN..]).zip(&body.results[OWN..]) {
        if arg.dtype() != next.dtype() {
            return Err(Status::invalid_argument(format!(
                "Loop var {} enters the loop with type {} but has type {} after 1 iteration. {0} type should remain constant.",
                var.name(),
                arg.dtype().name(),
                next.dtype().name()
            )));
        }
        if !within(&next.shape(), &arg.shape()) {
            return Err(Status::invalid_argument(format!(
                "Input tensor `{}` enters the loop with shape {}, but has shape {} after one iteration. To allow the shape to vary across iterations, use `While::shape_invariants` to specify a less-specific shape.",
                var.name(),
                arg.shape(),
                next.shape()
            )));
        }
    }
    Ok(())
}

fn check_condition(condition: &Output) -> Result<()> {
    if condition.dtype() != DType::Bool || condition.rank().is_some_and(|r| r != 0) {
        return Err(Status::invalid_argument(format!(
            "the condition of a loop must be a bool scalar, but is {} of shape {}",
            condition.dtype().name(),
            condition.shape()
        )));
    }
    Ok(())
}
