//! A sparse update together with what optimizers put before it: repeated rows of the gradient are added up
//! where the update meets them, instead of in a tensor of sums that is written and read once.
//!
//! ```text
//! indices ─► Unique ─┬─ y ──────────────────────────────► indices ┐
//!                    ├─ y ─► Size, or Shape and its [0] ─┐        ├ SparseApply…
//!                    └─ idx ─► UnsortedSegmentSum ◄──────┘─► grad ┘
//! values ─────────────────────────┘
//! ```

use super::check::Check;
use super::{Layout, Optimizer, Pass};
use crate::args::ints;
use crate::state::pass::Repeats;
use downpour_graph::{Edge, Node, NodeId};
use downpour_runtime::{Around, OpContext, Shortcut};

/// The update that `around` looks at with the sums before it, if they are as optimizers make them.
pub(super) fn find(around: &Around<'_>, checks: &'static [Check], pass: Pass) -> Option<Shortcut> {
    let node = around.node();
    let layout = Layout::new(&around.builder()).ok()?;
    let (grad, indices) = (node.inputs[layout.grad], node.inputs[layout.indices?]);
    let unique = around.op(indices, "Unique")?;
    let sum = around.op(grad, "UnsortedSegmentSum")?;
    let &[values, positions, count] = sum.inputs.as_slice() else {
        return None;
    };
    let ids = *unique.inputs.first()?;
    let of_unique = |output| Edge {
        node: indices.node,
        output,
    };
    if indices != of_unique(0) || positions != of_unique(1) {
        return None;
    }
    let (counting, bounds) = counted(around, count, indices)?;
    let mut inputs = node.inputs.clone();
    inputs[layout.grad] = values;
    inputs[layout.indices?] = ids;
    let first_bound = inputs.len();
    inputs.extend(bounds);
    let optimizer = Optimizer {
        layout,
        checks,
        pass,
    };
    Some(Shortcut {
        members: [indices.node]
            .into_iter()
            .chain(counting)
            .chain([grad.node])
            .collect(),
        inputs,
        run: Box::new(move |ctx| {
            if !is_first(ctx, first_bound) {
                return Ok(false);
            }
            optimizer.apply(ctx, Repeats::Summed)
        }),
    })
}

/// The nodes that count the rows of `of`, and what they slice its shape with.
fn counted(around: &Around<'_>, count: Edge, of: Edge) -> Option<(Vec<NodeId>, Vec<Edge>)> {
    if let Some(size) = around.op(count, "Size") {
        return (size.inputs == [of]).then(|| (vec![count.node], Vec::new()));
    }
    let slice = around.op(count, "StridedSlice")?;
    let (shape, bounds) = slice.inputs.split_first()?;
    let is_shape = around.op(*shape, "Shape")?.inputs == [of];
    (is_shape && takes_one(slice)).then(|| (vec![shape.node, count.node], bounds.to_vec()))
}

/// Whether a slice gives the element at its beginning.
fn takes_one(slice: &Node) -> bool {
    let mask = |name, wanted| slice.attrs.int(name).is_ok_and(|mask| mask == wanted);
    mask("shrink_axis_mask", 1)
        && ["begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask"]
            .iter()
            .all(|name| mask(name, 0))
}

/// Whether a slice, if there is one, begins where it should: its bounds are inputs from `at` on.
fn is_first(ctx: &OpContext<'_>, at: usize) -> bool {
    let bound = |i: usize| ctx.input(at + i).and_then(ints).ok();
    at >= ctx.num_inputs()
        || bound(0).is_some_and(|begin| begin == [0])
            && bound(2).is_some_and(|stride| stride == [1])
}

#[cfg(test)]
mod tests {
    use crate::testing::{device, node, run_on};
    use downpour_graph::{NodeDef, Result};
    use downpour_tensor::{DType, PartialShape, Tensor};

    const ROWS: usize = 300;
    const WIDTH: usize = 16;

    fn handle(name: &str) -> NodeDef {
        let attrs = [
            ("dtype", DType::Float.into()),
            ("shape", PartialShape::unknown().into()),
            ("shared_name", name.into()),
        ];
        node(name, "VarHandleOp", &[], &attrs)
    }

    /// The update, counted by a shape or a size; if `seen`, the distinct rows are a result as well, so
    /// that the ops stay apart.
    fn update(by_shape: bool, seen: bool) -> Vec<NodeDef> {
        let t = || ("T", DType::Float.into());
        let index = |i: i64| ("index", i.into());
        let long = || ("T", DType::Int64.into());
        let int = |name| (name, DType::Int32.into());
        let constant = |name: &str, value: i32| {
            let value = Tensor::vector(vec![value]);
            node(
                name,
                "Const",
                &[],
                &[("dtype", DType::Int32.into()), ("value", value.into())],
            )
        };
        let count = if by_shape { "first" } else { "size" };
        let mut nodes = vec![
            handle("v"),
            handle("accum"),
            node("values", "_Arg", &[], &[t(), index(0)]),
            node("ids", "_Arg", &[], &[long(), index(1)]),
            node("lr", "_Arg", &[], &[t(), index(2)]),
            node("unique", "Unique", &["ids"], &[long(), int("out_idx")]),
            node(
                "sum",
                "UnsortedSegmentSum",
                &["values", "unique:1", count],
                &[t(), int("Tindices"), int("Tnumsegments")],
            ),
            node(
                "apply",
                "ResourceSparseApplyAdagrad",
                &["v", "accum", "lr", "sum", "unique"],
                &[t(), ("Tindices", DType::Int64.into())],
            ),
        ];
        if by_shape {
            nodes.extend([
                constant("zero", 0),
                constant("one", 1),
                node("shape", "Shape", &["unique"], &[long(), int("out_type")]),
                node(
                    "first",
                    "StridedSlice",
                    &["shape", "zero", "one", "one"],
                    &[int("T"), int("Index"), ("shrink_axis_mask", 1i64.into())],
                ),
            ]);
        } else {
            nodes.push(node(
                "size",
                "Size",
                &["unique"],
                &[long(), int("out_type")],
            ));
        }
        if seen {
            nodes.push(node("r0", "_Retval", &["unique"], &[long(), index(0)]));
        }
        nodes
    }

    fn assign(name: &str, value: f32) -> Vec<NodeDef> {
        let t = || ("T", DType::Float.into());
        let value = Tensor::from_vec(vec![value; ROWS * WIDTH], [ROWS, WIDTH]).unwrap();
        vec![
            handle(name),
            node(
                "value",
                "Const",
                &[],
                &[("dtype", DType::Float.into()), ("value", value.into())],
            ),
            node(
                "set",
                "AssignVariableOp",
                &[name, "value"],
                &[("dtype", DType::Float.into())],
            ),
            node(
                "read",
                "ReadVariableOp",
                &[name, "^set"],
                &[("dtype", DType::Float.into())],
            ),
            node("r0", "_Retval", &["read"], &[t(), ("index", 0i64.into())]),
        ]
    }

    /// The table and its sums after an update of rows that repeat, or the error.
    fn run(by_shape: bool, seen: bool, count: usize, bad: Option<i64>) -> Result<Vec<Vec<f32>>> {
        let d = device();
        run_on(&d, assign("v", 1.0), vec![])?;
        run_on(&d, assign("accum", 0.1), vec![])?;
        let mut ids: Vec<i64> = (0..count).map(|k| (k * k % 257) as i64).collect();
        ids.extend(bad);
        let values: Vec<f32> = (0..ids.len() * WIDTH)
            .map(|i| (i % 31) as f32 * 0.37)
            .collect();
        let values = Tensor::from_vec(values, [ids.len(), WIDTH]).unwrap();
        let args = vec![values, Tensor::vector(ids), Tensor::scalar(0.1f32)];
        run_on(&d, update(by_shape, seen), args)?;
        let read = |name: &str| -> Result<Vec<f32>> {
            let t = || ("T", DType::Float.into());
            let nodes = vec![
                handle(name),
                node(
                    "read",
                    "ReadVariableOp",
                    &[name],
                    &[("dtype", DType::Float.into())],
                ),
                node("r0", "_Retval", &["read"], &[t(), ("index", 0i64.into())]),
            ];
            let out = run_on(&d, nodes, vec![])?;
            Ok(out[0].as_slice::<f32>()?.to_vec())
        };
        Ok(vec![read("v")?, read("accum")?])
    }

    #[test]
    fn sums_and_their_update_give_the_same_together_and_apart() {
        for count in [0, 1, 7, 5000] {
            let apart = run(true, true, count, None).unwrap();
            assert!(count == 0 || apart[0] != vec![1.0; ROWS * WIDTH]);
            for by_shape in [true, false] {
                assert_eq!(run(by_shape, false, count, None).unwrap(), apart);
            }
        }
    }

    #[test]
    fn a_row_that_is_not_there_is_refused_alike_together_and_apart() {
        let apart = run(true, true, 40, Some(ROWS as i64)).unwrap_err();
        assert!(
            apart.message.contains("out of range") || apart.message.contains("not in"),
            "{}",
            apart.message
        );
        for by_shape in [true, false] {
            let together = run(by_shape, false, 40, Some(ROWS as i64)).unwrap_err();
            assert_eq!(together.message, apart.message);
        }
    }
}
