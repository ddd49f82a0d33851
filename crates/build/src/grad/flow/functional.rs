//! `While` operations: how a loop that is one operation grows new variables.

use super::repeat::Forward;
use super::{definition, origin};
use crate::body::{Body, add_everywhere, free_name};
use crate::flow::{describe, shapes_attr};
use crate::{Graph, Operation, Output};
use downpour_graph::{ArgDef, ArgKind, ElementType, FunctionRef, Result, Status};
use downpour_tensor::{DType, PartialShape};

/// A `While` operation.
pub(super) struct Functional {
    pub(super) op: Operation,
}

impl Forward for Functional {
    fn graph(&self) -> &Graph {
        self.op.graph()
    }

    fn name(&self) -> String {
        let name = self.op.name();
        name.rsplit('/').next().unwrap_or(&name).to_owned()
    }

    fn inputs(&self) -> usize {
        self.op.num_inputs()
    }

    fn input(&self, i: usize) -> Output {
        self.op.input(i)
    }

    fn last(&self, i: usize) -> Option<Output> {
        (i < self.op.num_outputs()).then(|| self.op.output(i))
    }

    fn counts(&self, body: &Body) -> bool {
        let (Some(arg), Some(next)) = (body.args.first(), body.results.first()) else {
            return false;
        };
        let is = |x: &Output, value: i64| {
            let inner = x.graph().inner.lock();
            crate::shape::ints(&inner, x.endpoint()).as_deref() == Some(&[Some(value)])
        };
        let next = origin(next).operation();
        matches!(next.op().as_str(), "Add" | "AddV2")
            && arg.dtype() == DType::Int32
            && next.input(0) == *arg
            && is(&next.input(1), 1)
            && is(&origin(&self.op.input(0)), 0)
    }

    fn parallel_iterations(&self) -> i64 {
        self.op.attrs().int("parallel_iterations").unwrap_or(10)
    }

    fn grow(&mut self, body: &Body, new: &[Output]) -> Result<()> {
        if new.is_empty() {
            return Ok(());
        }
        let (op, graph) = (&self.op, self.op.graph());
        let mut def = definition(op)?;
        let data = op.num_inputs();
        let names: Vec<String> = new.iter().map(Output::name).collect();
        def.inputs.splice(data..data, names);
        let attrs = op.attrs();
        let function = body.register(graph, &attrs.func("body")?.name)?;
        def.attrs.set("body", function);
        def.attrs
            .set("cond", grown_condition(graph, attrs.func("cond")?, new)?);
        let args = &body.args;
        let types: Vec<DType> = args.iter().map(Output::dtype).collect();
        let shapes: Vec<PartialShape> = args.iter().map(Output::shape).collect();
        def.attrs.set("_num_original_outputs", types.len() as i64);
        def.attrs.set("T", types);
        def.attrs.set("output_shapes", shapes_attr(shapes.clone()));
        if let Some(node) = op.valid_node() {
            graph.replace(node, def, &shapes)?;
        }
        let mut behind = vec![None; data];
        behind.extend(new.iter().map(Output::behind));
        describe(op, &shapes, &behind);
        Ok(())
    }
}

/// The loop's condition with arguments for the new variables, which it does not use.
fn grown_condition(graph: &Graph, old: &FunctionRef, new: &[Output]) -> Result<FunctionRef> {
    let definition = graph.inner.lock().graph.function(&old.name).cloned();
    let mut definition = match definition {
        Some(definition) => (*definition).clone(),
        None => {
            return Err(Status::not_found(format!(
                "Function {} is not defined.",
                old.name
            )));
        }
    };
    let name = free_name(graph, &old.name);
    definition.signature.name.clone_from(&name);
    for (i, new) in new.iter().enumerate() {
        let mut arg = format!("more_{i}");
        let taken = |arg: &str| {
            let args = definition.signature.inputs.iter().map(|a| a.name.as_str());
            let nodes = definition.nodes.iter().map(|n| n.name.as_str());
            args.chain(nodes).any(|name| name == arg)
        };
        while taken(&arg) {
            arg.push('_');
        }
        definition.signature.inputs.push(ArgDef {
            name: arg,
            kind: ArgKind::Single(ElementType::Fixed(new.dtype())),
            is_ref: false,
        });
    }
    add_everywhere(graph, definition)?;
    Ok(FunctionRef {
        name,
        attrs: old.attrs.clone(),
    })
}
