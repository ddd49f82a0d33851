//! Branches: `cond`, `case`, `switch_case`.

use super::{
    LOWER, all_captures, describe, either, functions_attr, identities, invalid, shapes_attr,
};
use crate::body::{Body, waits_of};
use crate::{Graph, Operation, Output};
use downpour_graph::{Result, Status};
use downpour_tensor::{DType, PartialShape};
use std::panic::Location;

/// One branch: makes its results in the graph that it is given, the branch's own.
///
/// ```
/// use downpour::{Branch, DType, Graph, Server, ServerConfig, Session, switch_case};
/// let g = Graph::new();
/// let (i, x) = (g.placeholder("i", DType::Int32, ()), g.constant(2.0f32));
/// let double: Branch<'_> = Box::new(|_| vec![&x * 2.0]);
/// let square: Branch<'_> = Box::new(|_| vec![x.square() + 1.0]);
/// let y = switch_case(&i, vec![double, square]);
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.step().feed(&i, 0).fetch(&y[0])?.scalar_value::<f32>()?, 4.0);
/// assert_eq!(session.step().feed(&i, 1).fetch(&y[0])?.scalar_value::<f32>()?, 5.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub type Branch<'a> = Box<dyn FnOnce(&Graph) -> Vec<Output> + 'a>;

/// What `then` returns if `pred` is true at the step, what `otherwise` returns if not. Only one of
/// them runs.
///
/// Both must return as many tensors, of the same types.
///
/// ```
/// use downpour_build::{DType, Graph, cond};
/// let g = Graph::new();
/// let (p, x) = (g.placeholder("p", DType::Bool, ()), g.constant(2.0f32));
/// let y = cond(&p, |_| vec![&x * 3.0], |_| vec![x.clone()]);
/// assert_eq!(y[0].name(), "cond/Identity:0");
/// g.check()?;
/// # Ok::<(), downpour_build::Status>(())
/// ```
#[track_caller]
pub fn cond<'a>(
    pred: &Output,
    then: impl FnOnce(&Graph) -> Vec<Output> + 'a,
    otherwise: impl FnOnce(&Graph) -> Vec<Output> + 'a,
) -> Vec<Output> {
    let branches: Vec<(&str, Branch<'a>)> = vec![
        ("cond_true", Box::new(then)),
        ("cond_false", Box::new(otherwise)),
    ];
    let (op, count) = choose(pred, "cond", branches, Location::caller());
    results(op, pred, count)
}

/// As [`cond`], for branches that do something and need return nothing.
///
/// ```
/// use downpour_build::{DType, Graph, Init, cond_op};
/// let g = Graph::new();
/// let p = g.placeholder("p", DType::Bool, ());
/// let v = g.variable("v").init(Init::value(1.0f32)).build();
/// let add = cond_op(&p, |g| { v.assign_add(&g.constant(1.0f32)); }, |_| ());
/// assert_eq!(add.op(), "If");
/// ```
#[track_caller]
pub fn cond_op<'a>(
    pred: &Output,
    then: impl FnOnce(&Graph) + 'a,
    otherwise: impl FnOnce(&Graph) + 'a,
) -> Operation {
    let branches: Vec<(&str, Branch<'a>)> = vec![
        (
            "cond_true",
            Box::new(|g| {
                then(g);
                Vec::new()
            }),
        ),
        (
            "cond_false",
            Box::new(|g| {
                otherwise(g);
                Vec::new()
            }),
        ),
    ];
    choose(pred, "cond", branches, Location::caller()).0
}

/// What the first branch whose predicate is true returns, what `default` returns if none is.
///
/// ```
/// use downpour_build::{Branch, DType, Graph, case};
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, ());
/// let below: Branch<'_> = Box::new(|_| vec![-&x]);
/// let y = case(vec![(x.less(&g.constant(0.0f32)), below)], Box::new(|_| vec![x.sqrt()]));
/// assert_eq!(y.len(), 1);
/// g.check()?;
/// # Ok::<(), downpour_build::Status>(())
/// ```
#[track_caller]
pub fn case<'a>(branches: Vec<(Output, Branch<'a>)>, default: Branch<'a>) -> Vec<Output> {
    let at = Location::caller();
    let mut next = default;
    let mut first: Option<Output> = None;
    for (pred, then) in branches.into_iter().rev() {
        let (otherwise, condition) = (next, pred.clone());
        first = Some(pred);
        next = Box::new(move |_| {
            let branches: Vec<(&str, Branch<'a>)> =
                vec![("cond_true", then), ("cond_false", otherwise)];
            let (op, count) = choose(&condition, "cond", branches, at);
            results(op, &condition, count)
        });
    }
    match first {
        Some(pred) => next(&pred.graph().innermost()),
        None => Vec::new(),
    }
}

/// What the branch returns whose number `index` is; the last one for any other number.
///
/// ```
/// use downpour_build::{Branch, DType, Graph, switch_case};
/// let g = Graph::new();
/// let (i, x) = (g.placeholder("i", DType::Int32, ()), g.constant(2.0f32));
/// let branches: Vec<Branch<'_>> = vec![
///     Box::new(|_| vec![&x + 1.0]),
///     Box::new(|_| vec![&x * 10.0]),
/// ];
/// assert_eq!(switch_case(&i, branches).len(), 1);
/// g.check()?;
/// # Ok::<(), downpour_build::Status>(())
/// ```
#[track_caller]
pub fn switch_case(index: &Output, branches: Vec<Branch<'_>>) -> Vec<Output> {
    let branches = branches.into_iter().map(|b| ("switch_case", b)).collect();
    let (op, count) = choose(index, "switch_case", branches, Location::caller());
    results(op, index, count)
}

fn results(op: Operation, selector: &Output, count: usize) -> Vec<Output> {
    match op.num_outputs() == count {
        true => identities(&op, &op.outputs()),
        false => invalid(&selector.graph().innermost(), count),
    }
}

/// The operation that chooses among branches, and how many results it has.
fn choose(
    selector: &Output,
    name: &str,
    branches: Vec<(&str, Branch<'_>)>,
    at: &'static Location<'static>,
) -> (Operation, usize) {
    let graph = selector.graph().innermost();
    let names: Vec<&str> = branches.iter().map(|b| b.0).collect();
    let mut bodies: Vec<Body> = branches
        .into_iter()
        .map(|(_, make)| Body::build(&graph, &[], |g, _| make(g)))
        .collect();
    let count = bodies.first().map_or(0, |b| b.results.len());
    let op = emit(&graph, selector, name, &names, &mut bodies).unwrap_or_else(|e| {
        graph.fail(e, at);
        graph.invalid().operation()
    });
    (op, count)
}

fn emit(
    graph: &Graph,
    selector: &Output,
    name: &str,
    names: &[&str],
    bodies: &mut [Body],
) -> Result<Operation> {
    for body in bodies.iter_mut() {
        body.settle(graph)?;
    }
    check_selector(selector, name)?;
    let shapes = common(name, bodies)?;
    let captures = all_captures(&bodies.iter().collect::<Vec<_>>());
    let mut functions = Vec::new();
    for (body, name) in bodies.iter_mut().zip(names) {
        body.close_over(&captures);
        functions.push(body.register(graph, name)?);
    }
    let stateful = bodies.iter().any(Body::is_stateful);
    let kind = match (name, stateful) {
        ("cond", true) => "If",
        ("cond", false) => "StatelessIf",
        (_, true) => "Case",
        (_, false) => "StatelessCase",
    };
    let types: Vec<DType> = bodies[0].results.iter().map(Output::dtype).collect();
    let mut op = graph.op(kind).name(name).input(selector).inputs(&captures);
    op = match (name, functions.as_slice()) {
        ("cond", [then, otherwise]) => op
            .attr("then_branch", then.clone())
            .attr("else_branch", otherwise.clone()),
        _ => op.attr("branches", functions_attr(functions)),
    };
    op = op.attr("Tout", types);
    op = op.attr("output_shapes", shapes_attr(shapes.clone()));
    op = op.attr(LOWER, true);
    for operation in waits_of(&bodies.iter().collect::<Vec<_>>()) {
        op = op.control(&operation);
    }
    let op = op.build();
    let behind: Vec<_> = bodies[0].results.iter().map(Output::behind).collect();
    describe(&op, &shapes, &behind);
    Ok(op)
}

fn check_selector(selector: &Output, name: &str) -> Result<()> {
    let (wanted, what) = match name {
        "cond" => (DType::Bool, "predicate"),
        _ => (DType::Int32, "branch index"),
    };
    if !selector.is_invalid() && selector.dtype() != wanted {
        return Err(Status::invalid_argument(format!(
            "{name}: the {what} '{}' must be {}, but is {}",
            selector.name(),
            wanted.name(),
            selector.dtype().name()
        )));
    }
    match selector.rank() {
        None | Some(0) => Ok(()),
        Some(_) => Err(Status::invalid_argument(format!(
            "{name}: the {what} '{}' must be a scalar, but has shape {}",
            selector.name(),
            selector.shape()
        ))),
    }
}

/// What is known of the results' shapes whichever branch runs.
fn common(name: &str, bodies: &[Body]) -> Result<Vec<PartialShape>> {
    let Some((first, others)) = bodies.split_first() else {
        return Err(Status::invalid_argument(format!("{name}: no branches")));
    };
    let mut shapes: Vec<PartialShape> = first.results.iter().map(Output::shape).collect();
    for (i, other) in others.iter().enumerate() {
        if other.results.len() != first.results.len() {
            return Err(Status::invalid_argument(format!(
                "{name}: branch 0 returns {} tensors, but branch {} returns {}",
                first.results.len(),
                i + 1,
                other.results.len()
            )));
        }
        for (k, (a, b)) in first.results.iter().zip(&other.results).enumerate() {
            if a.dtype() != b.dtype() {
                return Err(Status::invalid_argument(format!(
                    "{name}: result {k} is {} in branch 0, but {} in branch {}",
                    a.dtype().name(),
                    b.dtype().name(),
                    i + 1
                )));
            }
            shapes[k] = either(&shapes[k], &b.shape());
        }
    }
    Ok(shapes)
}
