//! Gradients of branches and calls: a call is a choice of one.

use super::super::{Back, Differentiate, Gradient, Grads, IndexedSlices};
use super::{
    definition, dense, gradient_spec, origin, target, unreachable_resource, way_back, zeros,
};
use crate::body::Body;
use crate::flow::{LOWER, describe, either, functions_attr, shapes_attr};
use crate::function::ArgSpec;
use crate::{Operation, Output};
use downpour_graph::{AttrValue, FunctionRef, NodeDef, Result};
use downpour_tensor::{DType, PartialShape};

/// One branch: forward, and back.
struct Way {
    forward: Body,
    back: Body,
    /// Gradients of the arguments that are wanted.
    grads: Grads,
    /// Which of the branch's arguments the way back needs, and what stands for each.
    needs: Vec<(usize, Output)>,
    /// Which values from inside it needs, and what stands for each.
    values: Vec<(Output, Output)>,
}

pub(super) fn gradient(b: &Back, functions: &[FunctionRef]) -> Result<Grads> {
    let op = b.op();
    let first = op.num_inputs() - branch_inputs(op)?;
    let args: Vec<Output> = op.inputs().split_off(first);
    let given: Vec<usize> = (0..op.num_outputs())
        .filter(|&i| b.gradient(i).is_some() && gradient_spec(&op.output(i)).is_some())
        .collect();
    let wanted: Vec<usize> = (0..args.len())
        .filter(|&j| b.wants(first + j) && gradient_spec(&args[j]).is_some())
        .collect();
    let mut ways = Vec::new();
    for function in functions {
        ways.push(Way::through(op, function, &args, &given, &wanted)?);
    }
    let some: Vec<usize> = (0..wanted.len())
        .filter(|&k| ways.iter().any(|w| w.grads[k].is_some()))
        .collect();
    let mut grads: Grads = vec![None; op.num_inputs()];
    if some.is_empty() {
        return Ok(grads);
    }
    let alone = ways.len() == 1;
    let mut sparse = vec![false; some.len()];
    for way in &mut ways {
        for (&k, sparse) in some.iter().zip(&mut sparse) {
            *sparse = way.give_back(k, &wanted, alone)?;
        }
        way.settle()?;
    }
    let outputs = op.num_outputs();
    grow(op, &mut ways)?;
    let made = emit(b, &given, first, outputs, &mut ways)?;
    let mut made = made.outputs().into_iter();
    for (&k, sparse) in some.iter().zip(sparse) {
        let mut next = || made.next().unwrap_or_else(|| op.graph().invalid());
        let grad = match sparse {
            false => Gradient::Dense(next()),
            true => Gradient::Sparse(IndexedSlices {
                values: next(),
                indices: next(),
                shape: next(),
            }),
        };
        grads[first + wanted[k]] = Some(grad);
    }
    Ok(grads)
}

/// How many of an operation's inputs its functions are given.
fn branch_inputs(op: &Operation) -> Result<usize> {
    Ok(op.attrs().dtypes("Tin")?.len())
}

impl Way {
    fn through(
        op: &Operation,
        function: &FunctionRef,
        args: &[Output],
        given: &[usize],
        wanted: &[usize],
    ) -> Result<Way> {
        let specs: Vec<ArgSpec> = args.iter().map(ArgSpec::like).collect();
        let attrs = op.attrs();
        let forward = Body::load(op.graph(), function, &specs, attrs.dtypes("Tout")?)?;
        let mut back = way_back(&forward);
        let mut dys = Vec::new();
        let mut ys = Vec::new();
        for &i in given {
            let y = &forward.results[i];
            let spec = gradient_spec(y).unwrap_or_else(|| ArgSpec::like(&op.output(i)));
            let dy = back.graph.argument("dy", &spec);
            back.args.push(dy.clone());
            dys.push(Some(Gradient::Dense(dy)));
            ys.push(y.clone());
        }
        let xs: Vec<Output> = wanted.iter().map(|&j| forward.args[j].clone()).collect();
        let what = Differentiate {
            ys: &ys,
            dys: &dys,
            xs: &xs,
            ..Default::default()
        };
        let grads = what.run_into(op.graph(), &forward.graph, &back.graph)?;
        Ok(Way {
            forward,
            back,
            grads,
            needs: Vec::new(),
            values: Vec::new(),
        })
    }

    /// Returns the gradient of one of the wanted arguments; whether it is sparse.
    fn give_back(&mut self, k: usize, wanted: &[usize], may_be_sparse: bool) -> Result<bool> {
        let results = &mut self.back.results;
        let (forward, back) = (&self.forward.graph, &self.back.graph);
        match &self.grads[k] {
            Some(Gradient::Sparse(slices)) if may_be_sparse => {
                results.push(slices.values.clone());
                results.push(slices.indices.clone());
                results.push(slices.shape.clone());
                return Ok(true);
            }
            Some(gradient) => results.push(forward.building(back, || gradient.to_dense())),
            None => {
                let arg = &self.forward.args[wanted[k]];
                results.push(forward.building(back, || zeros(arg))?);
            }
        }
        let spec = gradient_spec(&self.forward.args[wanted[k]]);
        if let (Some(result), Some(spec)) = (results.last(), spec) {
            result.set_shape(&spec.shape);
        }
        Ok(false)
    }

    /// Finds out what the way back needs.
    fn settle(&mut self) -> Result<()> {
        self.back.settle(&self.forward.graph)?;
        for (from, inside) in self.back.captures() {
            let from = origin(&from);
            let arg = self.forward.args.iter().position(|a| *a == from);
            let known = match arg {
                Some(j) => self.needs.iter().find(|n| n.0 == j).map(|n| &n.1),
                None => self.values.iter().find(|v| v.0 == from).map(|v| &v.1),
            };
            if let Some(known) = known {
                let known = known.clone();
                self.back.instead.insert(inside.endpoint().node, known);
                continue;
            }
            match arg {
                Some(j) => self.needs.push((j, inside)),
                None if from.dtype() == DType::Resource => return Err(unreachable_resource(&from)),
                None => self.values.push((from, inside)),
            }
        }
        Ok(())
    }
}

/// Lets the operation return, from each branch, what the ways back need; the other branches return
/// something empty in its place.
fn grow(op: &Operation, ways: &mut [Way]) -> Result<()> {
    let values: Vec<Vec<Output>> = ways
        .iter()
        .map(|w| w.values.iter().map(|v| v.0.clone()).collect())
        .collect();
    let all: Vec<Output> = values.concat();
    if all.is_empty() {
        return Ok(());
    }
    let graph = op.graph();
    let mut def = definition(op)?;
    for (i, way) in ways.iter_mut().enumerate() {
        for (k, values) in values.iter().enumerate() {
            for value in values {
                let result = match k == i {
                    true => value.clone(),
                    false => nothing(&way.forward, value.dtype()),
                };
                way.forward.results.push(result);
            }
        }
    }
    replace_functions(op, &mut def, ways)?;
    let exact = ways.len() == 1;
    let mut shapes: Vec<PartialShape> = op.outputs().iter().map(Output::shape).collect();
    let known = |v: &Output| match exact {
        true => v.shape(),
        false => PartialShape::unknown(),
    };
    shapes.extend(all.iter().map(known));
    let types: Vec<DType> = ways[0].forward.results.iter().map(Output::dtype).collect();
    def.attrs.set("Tout", types);
    if def.attrs.find("output_shapes").is_some() {
        def.attrs.set("output_shapes", shapes_attr(shapes.clone()));
    }
    if let Some(node) = op.valid_node() {
        graph.replace(node, def, &shapes)?;
    }
    let kept = op.num_outputs() - all.len();
    let mut behind = vec![None; kept];
    behind.extend(all.iter().map(Output::behind));
    describe(op, &shapes, &behind);
    Ok(())
}

/// Stands for a value that only another branch has.
fn nothing(forward: &Body, dtype: DType) -> Output {
    let op = forward.graph.op("FakeParam").attr("dtype", dtype);
    let empty = PartialShape::from_dims([Some(0)]);
    op.attr("shape", AttrValue::Shape(empty)).output()
}

fn replace_functions(op: &Operation, def: &mut NodeDef, ways: &[Way]) -> Result<()> {
    let attrs = op.attrs();
    let single = |name: &str, way: &Way| -> Result<AttrValue> {
        let old = attrs.func(name)?;
        Ok(way.forward.register(op.graph(), &old.name)?.into())
    };
    match op.op().as_str() {
        "If" | "StatelessIf" => {
            let names = ["then_branch", "else_branch"];
            for (name, way) in names.iter().zip(ways) {
                def.attrs.set(*name, single(name, way)?);
            }
        }
        "Case" | "StatelessCase" => {
            let mut functions = Vec::new();
            for (old, way) in attrs.funcs("branches")?.iter().zip(ways) {
                functions.push(way.forward.register(op.graph(), &old.name)?);
            }
            def.attrs.set("branches", functions_attr(functions));
        }
        _ => def.attrs.set("f", single("f", &ways[0])?),
    }
    Ok(())
}

/// Makes the operation that runs the ways back.
fn emit(
    b: &Back,
    given: &[usize],
    first: usize,
    outputs: usize,
    ways: &mut [Way],
) -> Result<Operation> {
    let op = b.op();
    let mut inputs: Vec<Output> = given.iter().filter_map(|&i| dense(b.gradient(i))).collect();
    let mut shared: Vec<usize> = ways.iter().flat_map(|w| &w.needs).map(|n| n.0).collect();
    shared.sort();
    shared.dedup();
    inputs.extend(shared.iter().map(|j| op.input(first + j)));
    inputs.extend((outputs..op.num_outputs()).map(|i| op.output(i)));
    let values: Vec<Vec<Output>> = ways
        .iter()
        .map(|w| w.values.iter().map(|v| v.0.clone()).collect())
        .collect();
    for (i, way) in ways.iter_mut().enumerate() {
        for j in &shared {
            let known = way.needs.iter().find(|n| n.0 == *j).map(|n| n.1.clone());
            let spec = ArgSpec::like(&way.forward.args[*j]);
            let arg = known.unwrap_or_else(|| way.back.graph.argument("unused", &spec));
            way.back.args.push(arg);
        }
        for (k, values) in values.iter().enumerate() {
            for (n, value) in values.iter().enumerate() {
                let arg = match k == i {
                    true => way.values[n].1.clone(),
                    false => way.back.graph.argument("unused", &ArgSpec::like(value)),
                };
                way.back.args.push(arg);
            }
        }
    }
    call(op, &inputs, ways)
}

fn call(op: &Operation, inputs: &[Output], ways: &[Way]) -> Result<Operation> {
    let graph = target(op);
    let stateful = ways.iter().any(|w| w.back.is_stateful());
    let kind = op.op();
    let base = match kind.as_str() {
        "If" | "StatelessIf" => "If",
        "Case" | "StatelessCase" => "Case",
        _ => "PartitionedCall",
    };
    let name = match (base, stateful) {
        ("PartitionedCall", true) => "StatefulPartitionedCall".to_owned(),
        ("PartitionedCall", false) | (_, true) => base.to_owned(),
        (_, false) => format!("Stateless{base}"),
    };
    let mut functions = Vec::new();
    let attrs = op.attrs();
    let names: Vec<String> = match base {
        "If" => ["then_branch", "else_branch"]
            .iter()
            .map(|a| attrs.func(a).map(|f| f.name.clone()))
            .collect::<Result<_>>()?,
        "Case" => attrs
            .funcs("branches")?
            .iter()
            .map(|f| f.name.clone())
            .collect(),
        _ => vec![attrs.func("f")?.name.clone()],
    };
    for (way, name) in ways.iter().zip(names) {
        functions.push(way.back.register(&graph, &format!("{name}_grad"))?);
    }
    let results = &ways[0].back.results;
    let types: Vec<DType> = results.iter().map(Output::dtype).collect();
    let mut shapes: Vec<PartialShape> = results.iter().map(Output::shape).collect();
    for way in &ways[1..] {
        for (shape, result) in shapes.iter_mut().zip(&way.back.results) {
            *shape = either(shape, &result.shape());
        }
    }
    let mut made = graph.op(&name);
    if base != "PartitionedCall" {
        made = made.input(&op.input(0)).attr(LOWER, true);
        made = made.attr("output_shapes", shapes_attr(shapes.clone()));
    }
    made = made.inputs(inputs).attr("Tout", types);
    made = match (base, functions.as_slice()) {
        ("If", [then, otherwise]) => made
            .attr("then_branch", then.clone())
            .attr("else_branch", otherwise.clone()),
        ("Case", _) => made.attr("branches", functions_attr(functions)),
        _ => made.attr("f", functions[0].clone()),
    };
    let made = made.build();
    let behind: Vec<_> = results.iter().map(Output::behind).collect();
    describe(&made, &shapes, &behind);
    Ok(made)
}
