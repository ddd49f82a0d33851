//! Gradients of loops. The way back is a loop of as many iterations, last one first. What it needs
//! of each forward iteration is pushed on lists, which become further variables of the forward
//! loop, and popped again.

use super::super::{Back, Differentiate, Gradient, Grads, flows};
use super::functional::Functional;
use super::v1::{Frame, V1Loop};
use super::{dense, gradient_spec, origin, unreachable_resource, way_back, zeros};
use crate::body::Body;
use crate::definition::needed;
use crate::flow::emit_loop;
use crate::function::ArgSpec;
use crate::list::shape_constant;
use crate::{Graph, Operation, Output};
use downpour_graph::{NodeId, Result, Status};
use downpour_tensor::{DType, PartialShape};

/// A loop that is differentiated: a `While` operation, or nodes of v1's control flow.
pub(super) trait Forward {
    /// The graph that it is in.
    fn graph(&self) -> &Graph;

    /// What its way back is called after.
    fn name(&self) -> String;

    /// Number of what enters: variables, and what every iteration sees the same.
    fn inputs(&self) -> usize;

    /// What enters.
    fn input(&self, i: usize) -> Output;

    /// The last value of a variable.
    fn last(&self, i: usize) -> Option<Output>;

    /// Whether the first variable counts iterations from 0, as TensorFlow's loops do.
    fn counts(&self, body: &Body) -> bool;

    /// How many iterations may be under way at once.
    fn parallel_iterations(&self) -> i64;

    /// Gives the loop the new variables that its body has got, with their first values.
    fn grow(&mut self, body: &Body, new: &[Output]) -> Result<()>;
}

/// The gradients of what enters a v1 loop.
pub(in crate::grad) fn v1_gradient(b: &Back, found: &V1Loop) -> Result<Grads> {
    let (mut frame, forward) = Frame::read(b.graph(), found)?;
    run(b, &mut frame, forward)
}

pub(super) fn gradient(b: &Back) -> Result<Grads> {
    let op = b.op();
    let specs: Vec<ArgSpec> = (0..op.num_inputs())
        .map(|i| ArgSpec {
            shape: op.output(i).shape(),
            ..ArgSpec::like(&op.input(i))
        })
        .collect();
    let attrs = op.attrs();
    let forward = Body::load(op.graph(), attrs.func("body")?, &specs, attrs.dtypes("T")?)?;
    let mut source = Functional { op: op.clone() };
    run(b, &mut source, forward)
}

fn run(b: &Back, source: &mut dyn Forward, forward: Body) -> Result<Grads> {
    let active = active(b, &forward);
    match active.is_empty() {
        true => Ok(vec![None; source.inputs()]),
        false => Loop::new(source, forward).differentiate(b, &active),
    }
}

/// The variables whose gradients lead from those that came to those that are wanted.
fn active(b: &Back, forward: &Body) -> Vec<usize> {
    let n = forward.args.len();
    let differentiable: Vec<bool> = (0..n)
        .map(|i| gradient_spec(&forward.args[i]).is_some())
        .collect();
    let depends = dependencies(forward);
    let mut came: Vec<bool> = (0..n)
        .map(|i| b.gradient(i).is_some() && differentiable[i])
        .collect();
    let mut leads: Vec<bool> = (0..n).map(|i| b.wants(i) && differentiable[i]).collect();
    loop {
        let mut changed = false;
        for (i, on) in depends.iter().enumerate() {
            for j in (0..n).filter(|&j| on[j] && differentiable[j] && differentiable[i]) {
                if came[i] && !came[j] {
                    came[j] = true;
                    changed = true;
                }
                if leads[j] && !leads[i] {
                    leads[i] = true;
                    changed = true;
                }
            }
        }
        if !changed {
            return (0..n).filter(|&i| came[i] && leads[i]).collect();
        }
    }
}

/// Which arguments each result depends on.
fn dependencies(body: &Body) -> Vec<Vec<bool>> {
    let n = body.args.len();
    let inner = body.graph.inner.lock();
    let mut on = vec![vec![false; n]; inner.graph.len()];
    for (j, arg) in body.args.iter().enumerate() {
        on[arg.endpoint().node.index()][j] = true;
    }
    // Several times where the body has v1 loops, or nodes in no order.
    let mut changed = true;
    while std::mem::take(&mut changed) {
        for (id, node) in inner.graph.nodes() {
            let mut all = std::mem::take(&mut on[id.index()]);
            for edge in &node.inputs {
                let dtype = inner.graph.node(edge.node).output_types[edge.output as usize].0;
                if edge.node == id || !flows(dtype) {
                    continue;
                }
                for (to, from) in all.iter_mut().zip(&on[edge.node.index()]) {
                    changed |= *from && !*to;
                    *to |= from;
                }
            }
            on[id.index()] = all;
        }
    }
    let results = body.results.iter();
    results
        .map(|r| on[r.endpoint().node.index()].clone())
        .collect()
}

struct Loop<'a> {
    source: &'a mut dyn Forward,
    forward: Body,
    back: Body,
    /// First values of the forward loop's new variables.
    new: Vec<Output>,
    /// Which variable counts the iterations.
    counter: usize,
    /// Where the variables of the way back that follow the gradients come from.
    tail: Vec<Tail>,
}

enum Tail {
    /// A variable of the forward loop that never changes.
    Constant(usize),
    /// The last value of a forward variable.
    Last(usize),
}

/// The variables of the way back before the gradients: counter, maximum, number of iterations.
const OWN: usize = 3;

impl Loop<'_> {
    fn new(source: &mut dyn Forward, forward: Body) -> Loop<'_> {
        let mut back = way_back(&forward);
        let number = ArgSpec::new(DType::Int32, PartialShape::from_dims([]));
        for name in ["counter", "maximum", "iterations"] {
            back.args.push(back.graph.argument(name, &number));
        }
        let (counts, graph) = (source.counts(&forward), source.graph().clone());
        let mut made = Loop {
            source,
            forward,
            back,
            new: Vec::new(),
            counter: 0,
            tail: Vec::new(),
        };
        if !counts {
            made.counter = made.forward.args.len();
            let zero = graph.itself(|| graph.without_control(|| graph.constant(0i32)));
            let count = made.forward.graph.argument("iterations", &number);
            made.add_variable(zero, count.clone(), &count + 1);
        }
        made
    }

    fn add_variable(&mut self, first: Output, var: Output, next: Output) {
        self.new.push(first);
        self.forward.args.push(var);
        self.forward.results.push(next);
    }

    fn differentiate(mut self, b: &Back, active: &[usize]) -> Result<Grads> {
        let mut dys = Vec::new();
        for &i in active {
            let like = &self.forward.args[i];
            let spec = gradient_spec(like).unwrap_or_else(|| ArgSpec::like(like));
            let dy = self.back.graph.argument("dy", &spec);
            self.back.args.push(dy.clone());
            dys.push(Some(Gradient::Dense(dy)));
        }
        let of =
            |from: &[Output]| -> Vec<Output> { active.iter().map(|&i| from[i].clone()).collect() };
        let (ys, xs) = (of(&self.forward.results), of(&self.forward.args));
        let what = Differentiate {
            ys: &ys,
            dys: &dys,
            xs: &xs,
            ..Default::default()
        };
        let dxs = what.run_into(self.source.graph(), &self.forward.graph, &self.back.graph)?;
        let (forward, back) = (self.forward.graph.clone(), self.back.graph.clone());
        let next = &self.back.args[0] + 1;
        let fixed = self.back.args[1..OWN].to_vec();
        self.back.results = vec![next];
        self.back.results.extend(fixed);
        for (k, dx) in dxs.iter().enumerate() {
            let dy = &self.back.args[OWN + k];
            let dx = match dx {
                Some(dx) => forward.building(&back, || dx.to_dense()),
                None => dy.zeros_like(),
            };
            self.back.results.push(dx);
        }
        self.back.settle(&forward)?;
        self.provide()?;
        self.source.grow(&self.forward, &self.new)?;
        let made = self.emit(b, active)?;
        let mut grads: Grads = vec![None; self.source.inputs()];
        for (k, &i) in active.iter().enumerate() {
            if b.wants(i) {
                grads[i] = Some(made.output(OWN + k).identity().into());
            }
        }
        Ok(grads)
    }

    /// Provides the way back with what it uses of the forward iteration.
    fn provide(&mut self) -> Result<()> {
        let mut known: Vec<(Output, Output)> = Vec::new();
        for (from, inside) in self.back.captures() {
            let from = origin(&from);
            let there = known.iter().find(|(f, _)| *f == from);
            if let Some((_, value)) = there {
                let value = value.clone();
                self.back.instead.insert(inside.endpoint().node, value);
                continue;
            }
            let arg = self.forward.args.iter().position(|a| *a == from);
            if let Some(j) = arg.filter(|&j| origin(&self.forward.results[j]) == from) {
                self.back.args.push(inside.clone());
                self.back.results.push(inside.clone());
                self.tail.push(Tail::Constant(j));
                known.push((from, inside));
                continue;
            }
            if from.dtype() == DType::Resource {
                return Err(unreachable_resource(&from));
            }
            if let Some(shapes) = self.only_shapes(&inside) {
                for node in shapes {
                    let taken = Operation::new(self.back.graph.clone(), node);
                    let shape = self.forward.graph.op("Shape").input(&from);
                    let shape = shape.attrs_of(&taken, &["out_type"]).output();
                    let shape = self.accumulate(&shape);
                    self.back.instead.insert(node, shape);
                }
                continue;
            }
            let value = match arg == Some(self.counter) {
                true => &self.back.args[2] - 1 - &self.back.args[0],
                false => self.accumulate(&from),
            };
            self.back
                .instead
                .insert(inside.endpoint().node, value.clone());
            known.push((from, value));
        }
        Ok(())
    }

    /// The operations that take the shape of what stands for a tensor, if nothing else uses it.
    fn only_shapes(&self, inside: &Output) -> Option<Vec<NodeId>> {
        if self.back.results.contains(inside) {
            return None;
        }
        let inner = self.back.graph.inner.lock();
        let needed = needed(&inner, &self.back);
        let mut shapes = Vec::new();
        for (id, node) in inner.graph.nodes().filter(|(id, _)| needed.contains(id)) {
            if node.inputs.contains(&inside.endpoint()) {
                match node.op_name() {
                    "Shape" => shapes.push(id),
                    _ => return None,
                }
            }
        }
        Some(shapes)
    }

    /// Pushes a value of each forward iteration on a list; what the way back pops.
    fn accumulate(&mut self, value: &Output) -> Output {
        let (graph, scope) = (&self.source.graph().clone(), self.source.name());
        let (dtype, shape) = (value.dtype(), value.shape());
        let empty = graph.itself(|| {
            graph.without_control(|| {
                graph.with_scope(&scope, || {
                    let (dims, any) = (shape_constant(graph, &shape), graph.constant(-1i32));
                    let op = graph.op("EmptyTensorList").name("accumulator");
                    let op = op.input(&dims).input(&any);
                    op.attr("element_dtype", dtype).output()
                })
            })
        });
        empty.set_behind(dtype, shape.clone());
        let spec = ArgSpec::like(&empty);
        let list = self.forward.graph.argument("accumulator", &spec);
        let push = self.forward.graph.op("TensorListPushBack").input(&list);
        let pushed = push.input(value).output();
        self.tail.push(Tail::Last(self.forward.args.len()));
        self.add_variable(empty, list, pushed);
        let list = self.back.graph.argument("accumulator", &spec);
        let pop = self.back.graph.op("TensorListPopBack").input(&list);
        let pop = pop.input(&shape_constant(&self.back.graph, &shape));
        let pop = pop.attr("element_dtype", dtype).build();
        pop.output(1).set_shape(&shape);
        if let Some((dtype, shape)) = value.behind() {
            pop.output(1).set_behind(dtype, shape);
        }
        self.back.args.push(list);
        self.back.results.push(pop.output(0));
        pop.output(1)
    }

    /// Makes the loop that is the way back.
    fn emit(&self, b: &Back, active: &[usize]) -> Result<Operation> {
        let source = &*self.source;
        let graph = source.graph().innermost();
        let last = |i: usize| {
            source.last(i).ok_or_else(|| {
                Status::internal(format!("'{}' does not return variable {i}", source.name()))
            })
        };
        let mut inputs = vec![graph.constant(0i32), graph.constant(-1i32)];
        inputs.push(last(self.counter)?);
        for &i in active {
            inputs.push(match dense(b.gradient(i)) {
                Some(dy) => dy,
                // What every iteration sees the same need not come out of the loop.
                None if self.is_constant(i) => zeros(&source.input(i))?,
                None => zeros(&last(i)?)?,
            });
        }
        for tail in &self.tail {
            inputs.push(match tail {
                Tail::Constant(j) => source.input(*j),
                Tail::Last(j) => last(*j)?,
            });
        }
        let args = self.back.args.iter();
        let specs: Vec<(&str, ArgSpec)> = args.map(|a| ("var", ArgSpec::like(a))).collect();
        let mut cond = Body::build(&graph, &specs, |_, args| vec![args[0].less(&args[2])]);
        cond.settle(&graph)?;
        let parallel = source.parallel_iterations();
        let name = format!("{}_grad", source.name());
        emit_loop(&graph, &name, &inputs, &self.back, &cond, parallel, &[])
    }

    fn is_constant(&self, i: usize) -> bool {
        origin(&self.forward.results[i]) == self.forward.args[i]
    }
}
