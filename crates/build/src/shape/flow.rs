//! Shapes of what branches, loops and calls return: what the attribute says.

use super::{Context, Rule, Shapes, one};
use downpour_graph::Result;
use downpour_tensor::PartialShape;
use smallvec::SmallVec;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "If" | "StatelessIf" | "Case" | "StatelessCase" | "While" | "StatelessWhile" => stated,
        "FakeParam" => |c| one(c.attrs().shape("shape")?.clone()),
        "EmptyTensorList"
        | "TensorListReserve"
        | "TensorListFromTensor"
        | "TensorListSetItem"
        | "TensorListPushBack"
        | "TensorListLength"
        | "TensorListResize" => |_| one(PartialShape::from_dims([])),
        _ => return None,
    })
}

fn stated(c: &mut Context<'_>) -> Result<Shapes> {
    let shapes = c.attrs().shapes("output_shapes")?;
    Ok(match shapes.len() == c.num_outputs() {
        true => shapes.iter().cloned().collect(),
        false => SmallVec::from_elem(PartialShape::unknown(), c.num_outputs()),
    })
}
