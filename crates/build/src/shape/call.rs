//! Shapes of functions' results: the body is instantiated and inferred with the shapes of the
//! arguments. TensorFlow leaves these unknown unless an attribute says them; a body that cannot be
//! inferred is unknown here too, never an error.

use super::flow::{Known, infer_all};
use super::{Context, Shapes};
use crate::graph::Inner;
use downpour_graph::{Endpoint, FunctionRef, NodeId, Result};
use downpour_tensor::PartialShape;

/// Deepest nesting of calls that is followed.
const MAX_DEPTH: usize = 8;

/// Most nodes of bodies that one operation's inference may look at.
const MAX_NODES: usize = 20_000;

/// An operation that is itself the name of a function.
pub(super) fn function(c: &mut Context<'_>) -> Result<Shapes> {
    let name = c.node.op_name();
    if c.inner.graph.function(name).is_none() {
        return Ok(Shapes::new());
    }
    let f = FunctionRef {
        name: name.to_owned(),
        attrs: c.node.attrs.clone(),
    };
    let inputs: Vec<usize> = (0..c.num_inputs()).collect();
    Ok(results(c, &f, &inputs))
}

/// The shapes of a function's results when it is given these inputs; none if it is too deep, too
/// large or unknown. What is behind results that are handles is set at the same outputs.
pub(super) fn results(c: &mut Context<'_>, f: &FunctionRef, inputs: &[usize]) -> Shapes {
    let args: Vec<Known> = inputs.iter().map(|&i| (c.input(i), c.behind(i))).collect();
    let Some(found) = inside(c.inner, f, &args) else {
        return Shapes::new();
    };
    for (i, (_, behind)) in found.iter().enumerate() {
        if let Some((dtype, shape)) = behind {
            c.set_behind(i as u32, *dtype, shape.clone());
        }
    }
    found.into_iter().map(|(shape, _)| shape).collect()
}

fn inside(inner: &Inner, f: &FunctionRef, args: &[Known]) -> Option<Vec<Known>> {
    if inner.depth >= MAX_DEPTH {
        return None;
    }
    let body = inner.graph.library().instantiate(&f.name, &f.attrs).ok()?;
    let used = if inner.depth == 0 {
        0
    } else {
        inner.effort.get()
    };
    let effort = used + body.graph.len();
    if effort > MAX_NODES {
        return None;
    }
    let mut nested = Inner::default();
    nested.graph = body.graph;
    nested.depth = inner.depth + 1;
    nested.effort.set(effort);
    for i in 0..nested.graph.len() {
        let id = NodeId(i as u32);
        let node = nested.graph.node(id).clone();
        let mut shapes = Shapes::from_elem(PartialShape::unknown(), node.output_types.len());
        if node.op_name() == "_Arg"
            && let Some((shape, behind)) = args.get(node.attrs.size("index").ok()?)
        {
            shapes[0] = shape.clone();
            if let Some(behind) = behind {
                let at = Endpoint {
                    node: id,
                    output: 0,
                };
                nested.handles.insert(at, behind.clone());
            }
        }
        nested.shapes.push(shapes);
    }
    // What could be inferred counts; an error in a body shows when it runs.
    let _ = infer_all(&mut nested, 0);
    inner.effort.set(nested.effort.get());
    let mut out = vec![Known::default(); body.ret_types.len()];
    for (_, node) in nested
        .graph
        .nodes()
        .filter(|(_, n)| n.op_name() == "_Retval")
    {
        let (place, edge) = (node.attrs.size("index").ok()?, *node.inputs.first()?);
        let shape = nested
            .shapes
            .get(edge.node.index())?
            .get(edge.output as usize)?;
        *out.get_mut(place)? = (shape.clone(), nested.handles.get(&edge).cloned());
    }
    Some(out)
}

/// An argument inside a body keeps what it was given.
pub(super) fn argument(c: &Context<'_>) -> Shapes {
    let known = c.inner.graph.find(&c.node.name);
    let shapes = known.and_then(|id| c.inner.shapes.get(id.index()));
    shapes.cloned().unwrap_or_default()
}
