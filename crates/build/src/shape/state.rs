//! Shapes of variables, and of what reads and changes them.

use super::common::{merge, same};
use super::{Rule, invalid, one};
use downpour_tensor::PartialShape;
use smallvec::SmallVec;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "Variable" | "VariableV2" | "TemporaryVariable" => {
            |c| one(c.attrs().shape("shape")?.clone())
        }
        "VarHandleOp" => |c| {
            let (dtype, shape) = (c.attrs().dtype("dtype")?, c.attrs().shape("shape")?.clone());
            c.set_behind(0, dtype, shape);
            one(PartialShape::from_dims([]))
        },
        "ReadVariableOp" => |c| {
            let behind = c.behind(0);
            one(behind.map(|b| b.1).unwrap_or_default())
        },
        "VarIsInitializedOp" | "IsVariableInitialized" => |_| one(PartialShape::from_dims([])),
        "VariableShape" => |c| {
            let rank = c.behind(0).and_then(|b| b.1.rank());
            one(PartialShape::from_dims([rank]))
        },
        "AssignVariableOp" | "AssignAddVariableOp" | "AssignSubVariableOp" => |c| {
            if let Some((_, shape)) = c.behind(0) {
                merge(&shape, &c.input(1))?;
            }
            Ok(SmallVec::new())
        },
        "ResourceGather" => |c| {
            let params = c.behind(0).map(|b| b.1).unwrap_or_default();
            let indices = c.input(1);
            let (Some(params), Some(indices)) = (params.dims(), indices.dims()) else {
                return one(PartialShape::unknown());
            };
            let Some(row) = params.get(1..) else {
                return invalid("a scalar variable has no rows to gather");
            };
            one(PartialShape::from_dims(indices.iter().chain(row).copied()))
        },
        "Assign" => |c| match c.attrs().bool("validate_shape")? {
            true => one(merge(&c.input(0), &c.input(1))?),
            false => one(c.input(1)),
        },
        "AssignAdd" | "AssignSub" => |c| one(merge(&c.input(0), &c.input(1))?),
        "ScatterAdd" | "ScatterSub" | "ScatterUpdate" | "ScatterMul" | "ScatterDiv" => same,
        "NoOp" | "ControlTrigger" | "Assert" => |_| Ok(SmallVec::new()),
        _ => return None,
    })
}
