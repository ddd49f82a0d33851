//! How dataset ops read their arguments and become kernels, with the checks and words they share.

use super::dataset::{Dataset, Next, Origin, Spec};
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext};
use downpour_tensor::{DType, PartialShape, Tensor};

/// A kernel whose one output is the dataset that `make` makes of its inputs.
pub(super) fn dataset(
    make: impl Fn(&mut OpContext<'_>) -> Result<Dataset> + Send + Sync + 'static,
) -> Result<Built> {
    Built::cheap(move |ctx| {
        let inputs = (0..ctx.num_inputs()).map(|i| ctx.input(i).cloned());
        let origin = Origin {
            node: ctx.info().node.clone(),
            inputs: inputs.collect::<Result<_>>()?,
            functions: ctx.env().functions.clone(),
        };
        let made = make(ctx)?.with_origin(origin);
        ctx.set_output(0, made.into_tensor());
        Ok(())
    })
}

/// The dataset at input `i`.
pub(super) fn input(ctx: &OpContext<'_>, i: usize) -> Result<Dataset> {
    Dataset::from_tensor(ctx.input(i)?).cloned()
}

/// The attributes `output_types` (or what else it is called) and `output_shapes`.
pub(super) fn declared(b: &KernelBuilder<'_>) -> Result<Spec> {
    let types = match b.attrs().find("output_types") {
        Some(_) => b.attrs().dtypes("output_types")?,
        None => b.attrs().dtypes("Toutput_types")?,
    };
    Ok(Spec {
        types: types.to_vec(),
        shapes: b.attrs().shapes("output_shapes")?.to_vec(),
    })
}

fn scalar<'a>(ctx: &'a OpContext<'_>, i: usize, name: &str) -> Result<&'a Tensor> {
    let tensor = ctx.input(i)?;
    if !tensor.shape().is_scalar() {
        return Err(Status::invalid_argument(format!("{name} must be a scalar")));
    }
    Ok(tensor)
}

/// The int64 (or int32) scalar at input `i`.
pub(super) fn int(ctx: &OpContext<'_>, i: usize, name: &str) -> Result<i64> {
    crate::args::int(scalar(ctx, i, name)?)
}

/// The bool scalar at input `i`.
pub(super) fn boolean(ctx: &OpContext<'_>, i: usize, name: &str) -> Result<bool> {
    Ok(scalar(ctx, i, name)?.scalar_value::<bool>()?)
}

/// The string scalar at input `i`.
pub(super) fn string(ctx: &OpContext<'_>, i: usize, name: &str) -> Result<Bytes> {
    let tensor = scalar(ctx, i, name)?;
    Ok(tensor.as_strings()?.first().cloned().unwrap_or_default())
}

/// As [`string`], as text.
pub(super) fn text(ctx: &OpContext<'_>, i: usize, name: &str) -> Result<String> {
    Ok(String::from_utf8_lossy(&string(ctx, i, name)?).into_owned())
}

/// The ints of the vector at input `i`.
pub(super) fn ints(ctx: &OpContext<'_>, i: usize, name: &str) -> Result<Vec<i64>> {
    let tensor = ctx.input(i)?;
    if tensor.rank() != 1 {
        return Err(Status::invalid_argument(format!("{name} must be a vector")));
    }
    crate::args::ints(tensor)
}

/// A future that is there already.
pub(super) fn now<'a>(got: super::dataset::Got) -> Next<'a> {
    Box::pin(std::future::ready(got))
}

/// Refuses components of other types than expected.
pub(super) fn check_types(expected: &[DType], got: &[DType]) -> Result<()> {
    if expected.len() != got.len() {
        return Err(Status::invalid_argument(format!(
            "Number of components does not match: expected {} types but got {}.",
            expected.len(),
            got.len()
        )));
    }
    for (i, (expected, got)) in expected.iter().zip(got).enumerate() {
        if expected != got {
            return Err(Status::invalid_argument(format!(
                "Data type mismatch at component {i}: expected {expected} but got {got}."
            )));
        }
    }
    Ok(())
}

/// Refuses components of shapes that do not go with what is expected.
pub(super) fn check_shapes(expected: &[PartialShape], got: &[PartialShape]) -> Result<()> {
    if expected.len() != got.len() {
        return Err(Status::invalid_argument(format!(
            "Number of components does not match: expected {} shapes but got {}.",
            expected.len(),
            got.len()
        )));
    }
    for (i, (expected, got)) in expected.iter().zip(got).enumerate() {
        if !compatible(expected, got) {
            return Err(Status::invalid_argument(format!(
                "Incompatible shapes at component {i}: expected {expected} but got {got}."
            )));
        }
    }
    Ok(())
}

/// Whether some tensor has both shapes.
pub(super) fn compatible(a: &PartialShape, b: &PartialShape) -> bool {
    match (a.dims(), b.dims()) {
        (Some(a), Some(b)) => {
            a.len() == b.len()
                && a.iter()
                    .zip(b)
                    .all(|(a, b)| a.is_none() || b.is_none() || a == b)
        }
        _ => true,
    }
}

/// The narrowest shape that admits whatever one of the two admits.
pub(super) fn widest(a: &PartialShape, b: &PartialShape) -> PartialShape {
    match (a.dims(), b.dims()) {
        (Some(a), Some(b)) if a.len() == b.len() => {
            PartialShape::from_dims(a.iter().zip(b).map(|(a, b)| if a == b { *a } else { None }))
        }
        _ => PartialShape::unknown(),
    }
}

/// A shape with one more dimension in front.
pub(super) fn batched(size: Option<usize>, shape: &PartialShape) -> PartialShape {
    match shape.dims() {
        Some(dims) => PartialShape::from_dims(std::iter::once(size).chain(dims.iter().copied())),
        None => PartialShape::unknown(),
    }
}

/// A shape without its first dimension.
pub(super) fn unbatched(shape: &PartialShape) -> PartialShape {
    match shape.dims() {
        Some(dims) => PartialShape::from_dims(dims.iter().skip(1).copied()),
        None => PartialShape::unknown(),
    }
}
