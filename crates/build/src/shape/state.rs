//! Shapes of variables, and of what reads and changes them.

use super::Rule::{self, Compute, Pattern};
use super::dims::{concatenate, merge, rest, shape};
use super::{Context, Shapes, invalid, one};
use downpour_graph::Result;
use downpour_tensor::PartialShape;
use smallvec::smallvec;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        // TensorFlow cannot tell an old variable's scalar shape from an unknown one.
        "Variable" => Compute(|c| {
            let shape = c.attrs().shape("shape")?.clone();
            one(match shape.rank() {
                Some(0) => PartialShape::unknown(),
                _ => shape,
            })
        }),
        "VariableV2" | "TemporaryVariable" => Compute(|c| one(c.attrs().shape("shape")?.clone())),
        "VarHandleOp" => Compute(|c| {
            let (dtype, held) = (c.attrs().dtype("dtype")?, c.attrs().shape("shape")?.clone());
            c.set_behind(0, dtype, held);
            one(shape([]))
        }),
        "_VarHandlesOp" => Compute(|c| {
            let dtypes = c.attrs().dtypes("dtypes")?.to_vec();
            let shapes = c.attrs().shapes("shapes")?.to_vec();
            if dtypes.len() != c.num_outputs() || shapes.len() != c.num_outputs() {
                return invalid("Mismatched number of dtypes and shapes");
            }
            for (i, (dtype, held)) in dtypes.into_iter().zip(shapes).enumerate() {
                c.set_behind(i as u32, dtype, held);
            }
            Ok(smallvec![shape([]); c.num_outputs()])
        }),
        "ReadVariableOp" => Compute(|c| {
            checked(c, "dtype")?;
            one(c.variable(0))
        }),
        "_ReadVariablesOp" => {
            Compute(|c| Ok((0..c.num_outputs()).map(|i| c.variable(i)).collect()))
        }
        "VarIsInitializedOp" | "IsVariableInitialized" => Pattern("* -> []"),
        "VariableShape" => Compute(|c| one(shape([c.variable(0).rank()]))),
        "AssignVariableOp" | "AssignAddVariableOp" | "AssignSubVariableOp" => Compute(|c| {
            checked(c, "dtype")?;
            merge(&c.variable(0), &c.input(1))?;
            Ok(Shapes::new())
        }),
        "DestroyResourceOp" | "DisableCopyOnRead" => Pattern("->"),
        "ResourceGather" => Compute(resource_gather),
        "Assign" => Compute(|c| match c.attrs().bool("validate_shape")? {
            true => one(merge(&c.input(0), &c.input(1))?),
            false => one(c.input(1)),
        }),
        "AssignAdd" | "AssignSub" => Pattern("S S -> S"),
        "DestroyTemporaryVariable" => Pattern("S -> S"),
        "CountUpTo" => Pattern("[] -> []"),
        "ResourceCountUpTo" => Compute(|c| {
            if c.behind(0).is_none() {
                return invalid("Handle has no shape/type information.");
            }
            checked(c, "T")?;
            match c.variable(0).rank() {
                Some(r) if r > 0 => invalid(format!("Shape must be rank 0 but is rank {r}")),
                _ => one(shape([])),
            }
        }),
        "ScatterAdd"
        | "ScatterSub"
        | "ScatterUpdate"
        | "ScatterMul"
        | "ScatterDiv"
        | "ScatterMin"
        | "ScatterMax"
        | "ResourceScatterAdd"
        | "ResourceScatterSub"
        | "ResourceScatterUpdate"
        | "ResourceScatterMul"
        | "ResourceScatterDiv"
        | "ResourceScatterMin"
        | "ResourceScatterMax" => Compute(scatter),
        "MutexV2" | "MutexLock" => Pattern("-> []"),
        "ConsumeMutexLock" => Pattern("->"),
        _ => return None,
    })
}

/// Refuses a handle of a variable of another type than the attribute says.
fn checked(c: &Context<'_>, attr: &str) -> Result<()> {
    let wanted = c.attrs().dtype(attr)?;
    match c.behind(0) {
        Some((dtype, _)) if dtype != wanted => invalid(format!(
            "Trying to read or assign variable with wrong dtype. Expected {} got {}",
            dtype.name(),
            wanted.name()
        )),
        _ => Ok(()),
    }
}

fn resource_gather(c: &mut Context<'_>) -> Result<Shapes> {
    checked(c, "dtype")?;
    let batch = c.attrs().size("batch_dims").unwrap_or(0);
    let (params, indices) = (c.variable(0), c.at_least(1, batch)?);
    let (Some(params), Some(indices)) = (params.dims(), indices.dims()) else {
        return one(PartialShape::unknown());
    };
    let Some(row) = params.get(batch + 1..) else {
        return invalid(format!(
            "Shape must be at least rank {} but is rank {}",
            batch + 1,
            params.len()
        ));
    };
    let lead = merge(
        &shape(params[..batch].iter().copied()),
        &shape(indices[..batch].iter().copied()),
    )?;
    let inner = indices[batch..].iter().chain(row).copied();
    one(concatenate(&lead, &shape(inner)))
}

fn scatter(c: &mut Context<'_>) -> Result<Shapes> {
    let variable = c.variable(0);
    let wanted = concatenate(&c.input(1), &rest(&variable, 1));
    let updates = c.input(2);
    if updates.rank() != Some(0) {
        merge(&updates, &wanted)?;
    }
    Ok(smallvec![variable; c.num_outputs()])
}
