//! Shapes through control flow: v1's switches, merges and loops, and calls of functions. Also the
//! order in which a graph that came in whole is inferred, loops included.

use super::Rule::{self, Compute, Pattern};
use super::dims::{dims_of, merge, shape};
use super::{Context, Shapes, call, infer, invalid, one};
use crate::graph::Inner;
use downpour_graph::{Endpoint, Node, NodeId, Result};
use downpour_tensor::{DType, PartialShape};
use smallvec::smallvec;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "NoOp" | "ControlTrigger" | "Assert" | "Abort" | "_Retval" | "_Send" | "_HostSend" => {
            Pattern("->")
        }
        "_Recv" | "_HostRecv" => Pattern("-> ?"),
        "Print" => Pattern("S -> S"),
        "Switch" | "RefSwitch" => Compute(|c| {
            c.rank(1, 0)?;
            c.pass_handle(0, 0);
            c.pass_handle(0, 1);
            Ok(smallvec![c.input(0); 2])
        }),
        "_SwitchN" => Compute(|c| {
            c.rank(1, 0)?;
            Ok(smallvec![c.input(0); c.num_outputs()])
        }),
        "Merge" | "RefMerge" => Compute(|c| {
            c.pass_handle(0, 0);
            let inputs: Vec<PartialShape> = (0..c.num_inputs()).map(|i| c.input(i)).collect();
            Ok(smallvec![common(&inputs), shape([])])
        }),
        "RefSelect" => Compute(|c| {
            c.rank(0, 0)?;
            let inputs: Vec<PartialShape> = (1..c.num_inputs()).map(|i| c.input(i)).collect();
            let same = inputs
                .iter()
                .all(|s| s.to_shape().is_some() && *s == inputs[0]);
            one(match same {
                true => inputs[0].clone(),
                false => PartialShape::unknown(),
            })
        }),
        "Enter" | "RefEnter" | "Exit" | "RefExit" | "NextIteration" | "RefNextIteration" => {
            Compute(|c| {
                c.pass_handle(0, 0);
                one(c.input(0))
            })
        }
        "LoopCond" => Pattern("[] -> []"),
        "If" | "StatelessIf" => Compute(|c| {
            let branches = [function(c, "then_branch")?, function(c, "else_branch")?];
            branch(c, &branches)
        }),
        "_If" => Pattern("-> ? ..."),
        "Case" | "StatelessCase" => Compute(|c| {
            let branches = c.attrs().funcs("branches")?.to_vec();
            branch(c, &branches)
        }),
        "While" | "StatelessWhile" => Compute(|c| {
            let given = given_shapes(c)?;
            if given.is_empty() {
                (0..c.num_outputs()).for_each(|i| c.pass_handle(i, i as u32));
                return Ok((0..c.num_outputs()).map(|i| c.input(i)).collect());
            }
            (0..c.num_outputs()).for_each(|i| c.pass_handle(i, i as u32));
            Ok(given.into_iter().collect())
        }),
        "_While" | "For" => Compute(|c| {
            let first = c.num_inputs() - c.num_outputs().min(c.num_inputs());
            Ok(match c.attrs().find("cond") {
                Some(_) => (0..c.num_outputs()).map(|i| c.input(first + i)).collect(),
                None => Shapes::new(),
            })
        }),
        "PartitionedCall" | "StatefulPartitionedCall" => Compute(|c| {
            let f = function(c, "f")?;
            let inputs: Vec<usize> = (0..c.num_inputs()).collect();
            Ok(call::results(c, &f, &inputs))
        }),
        "RemoteCall" => Compute(|c| {
            let f = function(c, "f")?;
            let inputs: Vec<usize> = (1..c.num_inputs()).collect();
            Ok(call::results(c, &f, &inputs))
        }),
        "SymbolicGradient" => Compute(|c| {
            if c.num_inputs() < c.num_outputs() {
                return invalid("len(inputs) < len(outputs)");
            }
            Ok((0..c.num_outputs()).map(|i| c.variable(i)).collect())
        }),
        "_Arg" => Compute(|c| Ok(call::argument(c))),
        "_ListToArray" | "_ArrayToList" => {
            Compute(|c| Ok((0..c.num_outputs()).map(|i| c.input(i)).collect()))
        }
        "PyFunc" | "PyFuncStateless" | "EagerPyFunc" | "BatchFunction" => Pattern("->"),
        _ => return None,
    })
}

fn function(c: &Context<'_>, attr: &str) -> Result<downpour_graph::FunctionRef> {
    Ok(c.attrs().func(attr)?.clone())
}

/// The attribute `output_shapes`: one shape for each output, or nothing.
fn given_shapes(c: &Context<'_>) -> Result<Vec<PartialShape>> {
    let given = c.attrs().shapes("output_shapes").unwrap_or_default();
    if !given.is_empty() && given.len() != c.num_outputs() {
        return invalid(format!(
            "`output_shapes` must be the same length as num outputs ({} vs. {})",
            given.len(),
            c.num_outputs()
        ));
    }
    Ok(given.to_vec())
}

/// What the branches' results have in common, and the attribute says.
fn branch(c: &mut Context<'_>, branches: &[downpour_graph::FunctionRef]) -> Result<Shapes> {
    let given = given_shapes(c)?;
    if !given.is_empty() && given.iter().all(|s| s.to_shape().is_some()) {
        return Ok(given.into_iter().collect());
    }
    let inputs: Vec<usize> = (1..c.num_inputs()).collect();
    let results: Vec<Shapes> = branches
        .iter()
        .map(|f| call::results(c, f, &inputs))
        .collect();
    let mut out = Shapes::new();
    for i in 0..c.num_outputs() {
        let each: Vec<PartialShape> = results
            .iter()
            .map(|r| r.get(i).cloned().unwrap_or_default())
            .collect();
        let both = common(&each);
        // Where attribute and bodies contradict each other, the attribute stands, as in TensorFlow.
        out.push(match given.get(i) {
            Some(given) => merge(given, &both).unwrap_or_else(|_| given.clone()),
            None => both,
        });
    }
    Ok(out)
}

/// What all of these shapes have in common.
fn common(shapes: &[PartialShape]) -> PartialShape {
    let Some(mut out) = shapes.first().and_then(dims_of) else {
        return PartialShape::unknown();
    };
    for other in &shapes[1..] {
        match other.dims() {
            Some(dims) if dims.len() == out.len() => {
                for (known, d) in out.iter_mut().zip(dims) {
                    *known = known.filter(|k| Some(*k) == *d);
                }
            }
            _ => return PartialShape::unknown(),
        }
    }
    shape(out)
}

/// How often a loop's shapes are gone through before what still changes is given up.
const ROUNDS: usize = 8;

/// Infers the shapes of the nodes from `first` on, which came in whole. A loop's variable has what
/// the value it starts with and the one that comes around have in common.
pub(crate) fn infer_all(inner: &mut Inner, first: usize) -> Result<()> {
    for i in inner.shapes.len()..inner.graph.len() {
        let outputs = inner.graph.node(NodeId(i as u32)).output_types.len();
        inner
            .shapes
            .push(Shapes::from_elem(PartialShape::unknown(), outputs));
    }
    let order = order(inner, first);
    let loops: Vec<NodeId> = order
        .iter()
        .copied()
        .filter(|id| back_edges(inner, *id).next().is_some())
        .collect();
    let mut outcome = pass(inner, &order, &loops, Merging::Entering);
    for round in 0..ROUNDS {
        let mut changed = false;
        for &id in &loops {
            let node = inner.graph.node(id).clone();
            let last = round + 1 == ROUNDS;
            let around = merged(inner, &node, last);
            let known = &mut inner.shapes[id.index()][0];
            if *known != around {
                *known = around;
                changed = true;
            }
        }
        if !changed {
            break;
        }
        outcome = pass(inner, &order, &loops, Merging::Fixed);
    }
    outcome
}

#[derive(PartialEq)]
enum Merging {
    /// A loop's merges have the shape of what enters.
    Entering,
    /// They keep the shape they have.
    Fixed,
}

/// Infers every node once; the first error, if there was one.
fn pass(inner: &mut Inner, order: &[NodeId], loops: &[NodeId], merging: Merging) -> Result<()> {
    let mut outcome = Ok(());
    for &id in order {
        if loops.contains(&id) {
            let node = inner.graph.node(id).clone();
            if merging == Merging::Entering {
                let entering: Vec<PartialShape> = node
                    .inputs
                    .iter()
                    .filter(|e| !is_back(inner, e))
                    .map(|e| inner.shapes[e.node.index()][e.output as usize].clone())
                    .collect();
                inner.shapes[id.index()] = smallvec![common(&entering), shape([])];
            }
            let behind = node
                .inputs
                .iter()
                .find_map(|e| inner.handles.get(e).cloned());
            if let Some(behind) = behind {
                inner.handles.insert(
                    Endpoint {
                        node: id,
                        output: 0,
                    },
                    behind,
                );
            }
            continue;
        }
        match infer(inner, id) {
            Ok(shapes) => inner.shapes[id.index()] = shapes,
            Err(e) => {
                let outputs = inner.graph.node(id).output_types.len();
                inner.shapes[id.index()] = Shapes::from_elem(PartialShape::unknown(), outputs);
                outcome = outcome.and(Err(e));
            }
        }
    }
    outcome
}

/// A loop's merge, with what comes around; in the last round what differs is unknown altogether.
fn merged(inner: &Inner, node: &Node, last: bool) -> PartialShape {
    let at = |e: &Endpoint| inner.shapes[e.node.index()][e.output as usize].clone();
    let inputs: Vec<PartialShape> = node.inputs.iter().map(at).collect();
    match last {
        true if inputs.iter().any(|s| *s != inputs[0]) => PartialShape::unknown(),
        _ => common(&inputs),
    }
}

fn is_back(inner: &Inner, edge: &Endpoint) -> bool {
    let op = inner.graph.node(edge.node).op_name();
    op == "NextIteration" || op == "RefNextIteration"
}

/// The inputs of a merge that come around a loop.
fn back_edges(inner: &Inner, id: NodeId) -> impl Iterator<Item = Endpoint> {
    let node = inner.graph.node(id).clone();
    let merge = matches!(node.op_name(), "Merge" | "RefMerge");
    let edges: Vec<Endpoint> = node
        .inputs
        .iter()
        .copied()
        .filter(|e| merge && is_back(inner, e))
        .collect();
    edges.into_iter()
}

/// Producers before consumers, but for the edges that close loops.
fn order(inner: &Inner, first: usize) -> Vec<NodeId> {
    let graph = &inner.graph;
    let count = graph.len() - first;
    let mut pending = vec![0usize; count];
    let mut consumers: Vec<Vec<NodeId>> = vec![Vec::new(); count];
    for i in first..graph.len() {
        let node = graph.node(NodeId(i as u32));
        let merge = matches!(node.op_name(), "Merge" | "RefMerge");
        for edge in &node.inputs {
            if edge.node.index() < first || (merge && is_back(inner, edge)) {
                continue;
            }
            pending[i - first] += 1;
            consumers[edge.node.index() - first].push(NodeId(i as u32));
        }
    }
    let mut order: Vec<NodeId> = (0..count)
        .filter(|&i| pending[i] == 0)
        .map(|i| NodeId((first + i) as u32))
        .collect();
    let mut next = 0;
    while let Some(&id) = order.get(next) {
        next += 1;
        for consumer in std::mem::take(&mut consumers[id.index() - first]) {
            let left = &mut pending[consumer.index() - first];
            *left -= 1;
            if *left == 0 {
                order.push(consumer);
            }
        }
    }
    order
}

/// What is known of a value that goes into a function.
pub(super) type Known = (PartialShape, Option<(DType, PartialShape)>);

#[cfg(test)]
mod tests {
    use crate::{DType, Graph};
    use downpour_graph::{AttrValue, GraphDef, NodeDef};
    use downpour_tensor::PartialShape;

    fn node(name: &str, op: &str, inputs: &[&str], attrs: &[(&str, AttrValue)]) -> NodeDef {
        let mut def = NodeDef {
            name: name.into(),
            op: op.into(),
            inputs: inputs.iter().map(|i| (*i).to_owned()).collect(),
            ..Default::default()
        };
        for (name, value) in attrs {
            def.attrs.set(*name, value.clone());
        }
        def
    }

    fn placeholder(name: &str, dtype: DType, dims: &[i64]) -> NodeDef {
        let shape = PartialShape::checked(dims.iter().copied()).unwrap();
        let attrs = [
            ("dtype", AttrValue::Type(dtype)),
            ("shape", AttrValue::Shape(shape)),
        ];
        node(name, "Placeholder", &[], &attrs)
    }

    /// A loop that appends a row to its variable: only the number of columns stays.
    #[test]
    fn a_loop_keeps_what_stays_the_same() {
        let t = ("T", AttrValue::Type(DType::Float));
        let n = |n: i64| ("N", AttrValue::Int(n));
        let frame = ("frame_name", AttrValue::Str("loop".into()));
        let g = Graph::new();
        let axis = g.constant(0i32).name();
        let axis = axis.split(':').next().unwrap().to_owned();
        let enter = [t.clone(), frame.clone()];
        let axis_attrs = [("T", AttrValue::Type(DType::Int32)), frame];
        let nodes = vec![
            placeholder("x", DType::Float, &[1, 3]),
            placeholder("go", DType::Bool, &[]),
            node("enter", "Enter", &["x"], &enter),
            node("axis", "Enter", &[&axis], &axis_attrs),
            node("merge", "Merge", &["enter", "next"], &[t.clone(), n(2)]),
            node(
                "switch",
                "Switch",
                &["merge", "go"],
                std::slice::from_ref(&t),
            ),
            node(
                "more",
                "ConcatV2",
                &["switch:1", "switch:1", "axis"],
                &[t.clone(), n(2)],
            ),
            node("next", "NextIteration", &["more"], std::slice::from_ref(&t)),
            node("exit", "Exit", &["switch"], &[t]),
        ];
        let def = GraphDef {
            nodes,
            ..Default::default()
        };
        g.import(&def).unwrap();
        let shape = |name: &str| g.output(name).unwrap().shape().to_string();
        assert_eq!(shape("merge:0"), "[?,3]");
        assert_eq!(shape("exit:0"), "[?,3]");
        assert_eq!(shape("next:0"), "[?,3]");
    }

    /// TensorFlow: Dimensions must be equal, but are 3 and 4.
    #[test]
    fn an_imported_graph_that_cannot_fit_is_refused() {
        let g = Graph::new();
        let t = [("T", AttrValue::Type(DType::Float))];
        let def = GraphDef {
            nodes: vec![
                placeholder("a", DType::Float, &[2, 3]),
                placeholder("b", DType::Float, &[4, 5]),
                node("product", "MatMul", &["a", "b"], &t),
            ],
            ..Default::default()
        };
        let error = g.import(&def).unwrap_err();
        assert!(error.message.contains("3 and 4"), "{error}");
        assert!(error.message.contains("'product'"), "{error}");
        assert!(g.check().is_err());
    }
}
