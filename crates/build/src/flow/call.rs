//! Functions of the user's own, called as often as wanted.

use super::describe;
use crate::body::{Body, waits_of};
use crate::function::ArgSpec;
use crate::literal::IntoShape;
use crate::{Graph, Operation, Output};
use downpour_graph::{FunctionRef, Result, Status};
use downpour_tensor::{DType, PartialShape};
use std::panic::Location;

/// A function of a graph: operations that are written once and called where wanted.
///
/// ```
/// use downpour::{DType, Graph, PartialShape, Server, ServerConfig, Session, call};
/// let g = Graph::new();
/// let step = g.function("step", &[(DType::Float, PartialShape::unknown())], |_, args| {
///     vec![&args[0] * 2.0 + 1.0]
/// });
/// let twice = call(&step, &call(&step, &[g.constant(3.0f32)]));
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.fetch(&twice[0])?.scalar_value::<f32>()?, 15.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Function {
    graph: Graph,
    made: Option<Made>,
    count: usize,
}

#[derive(Clone)]
struct Made {
    function: FunctionRef,
    args: Vec<(DType, PartialShape)>,
    results: Vec<ArgSpec>,
    /// Outer tensors that every call passes behind its own arguments.
    captures: Vec<Output>,
    waits: Vec<Operation>,
    stateful: bool,
}

impl Graph {
    /// Makes a function of arguments of these types and shapes.
    ///
    /// ```
    /// use downpour_build::{DType, Graph, PartialShape, call};
    /// let g = Graph::new();
    /// let scale = g.constant(3.0f32);
    /// let f = g.function("scaled", &[(DType::Float, PartialShape::unknown())], |_, args| {
    ///     vec![&args[0] * &scale]
    /// });
    /// let y = call(&f, &[g.constant([1.0f32, 2.0])]);
    /// assert_eq!(y.len(), 1);
    /// g.check()?;
    /// # Ok::<(), downpour_build::Status>(())
    /// ```
    #[track_caller]
    pub fn function(
        &self,
        name: &str,
        args: &[(DType, PartialShape)],
        make: impl FnOnce(&Graph, &[Output]) -> Vec<Output>,
    ) -> Function {
        let graph = self.innermost();
        let spec = |a: &(DType, PartialShape)| ArgSpec::new(a.0, (&a.1).into_shape());
        let specs: Vec<(&str, ArgSpec)> = args.iter().map(|a| ("arg", spec(a))).collect();
        let mut body = Body::build(&graph, &specs, make);
        let count = body.results.len();
        let made = define(&graph, name, args, &mut body);
        let made = made.map_err(|e| graph.fail(e, Location::caller())).ok();
        Function { graph, made, count }
    }
}

fn define(
    graph: &Graph,
    name: &str,
    args: &[(DType, PartialShape)],
    body: &mut Body,
) -> Result<Made> {
    body.settle(graph)?;
    let captures: Vec<Output> = body.captures().into_iter().map(|c| c.0).collect();
    body.close_over(&captures);
    Ok(Made {
        function: body.register(graph, name)?,
        args: args.to_vec(),
        results: body.results.iter().map(ArgSpec::like).collect(),
        captures,
        waits: waits_of(&[body]),
        stateful: body.is_stateful(),
    })
}

impl Function {
    /// Its name in the graph's library.
    pub fn name(&self) -> &str {
        self.made.as_ref().map_or("", |m| &m.function.name)
    }

    /// Calls it; the operation, for functions that do something and return nothing.
    #[track_caller]
    pub fn call_op(&self, args: &[Output]) -> Operation {
        let graph = args.first().map_or(&self.graph, Output::graph).innermost();
        let Some(made) = &self.made else {
            return graph.invalid().operation();
        };
        if let Err(e) = made.check(args) {
            graph.fail(e, Location::caller());
            return graph.invalid().operation();
        }
        let kind = match made.stateful {
            true => "StatefulPartitionedCall",
            false => "PartitionedCall",
        };
        let inputs: Vec<Output> = args.iter().chain(&made.captures).cloned().collect();
        let types: Vec<DType> = made.results.iter().map(|r| r.dtype).collect();
        let mut op = graph.op(kind).inputs(&inputs).attr("Tout", types);
        op = op.attr("f", made.function.clone());
        for operation in &made.waits {
            op = op.control(operation);
        }
        let op = op.build();
        let shapes: Vec<PartialShape> = made.results.iter().map(|r| r.shape.clone()).collect();
        let behind: Vec<_> = made.results.iter().map(|r| r.behind.clone()).collect();
        describe(&op, &shapes, &behind);
        op
    }
}

/// What a function returns for these arguments.
///
/// ```
/// use downpour::{DType, Graph, PartialShape, Server, ServerConfig, Session, call};
/// let g = Graph::new();
/// let number = (DType::Float, PartialShape::unknown());
/// let both = g.function("both", &[number.clone(), number], |_, args| {
///     vec![&args[0] + &args[1], &args[0] * &args[1]]
/// });
/// let results = call(&both, &[g.constant(3.0f32), g.constant(4.0f32)]);
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.fetch(&results[0])?.scalar_value::<f32>()?, 7.0);
/// assert_eq!(session.fetch(&results[1])?.scalar_value::<f32>()?, 12.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[track_caller]
pub fn call(function: &Function, args: &[Output]) -> Vec<Output> {
    let op = function.call_op(args);
    match op.num_outputs() == function.count {
        true => op.outputs(),
        false => super::invalid(op.graph(), function.count),
    }
}

impl Made {
    fn check(&self, args: &[Output]) -> Result<()> {
        let name = &self.function.name;
        if args.len() != self.args.len() {
            return Err(Status::invalid_argument(format!(
                "Function {name} takes {} arguments, but {} were given",
                self.args.len(),
                args.len()
            )));
        }
        for (i, (arg, (dtype, shape))) in args.iter().zip(&self.args).enumerate() {
            if arg.is_invalid() {
                continue;
            }
            if arg.dtype() != *dtype {
                return Err(Status::invalid_argument(format!(
                    "Argument {i} of function {name} is {}, but must be {}",
                    arg.dtype().name(),
                    dtype.name()
                )));
            }
            crate::shape::merge(&arg.shape(), shape).map_err(|_| {
                Status::invalid_argument(format!(
                    "Argument {i} of function {name} has shape {}, but must have shape {shape}",
                    arg.shape()
                ))
            })?;
        }
        Ok(())
    }
}
