//! Reading parts of a variable by handle: `ResourceGather`, `ResourceGatherNd`.

use super::resource_variable::snapshot;
use crate::array::{BadIndices, gather_rows, gather_slices, position};
use crate::types::{INDEX, MOVED, WITH_HANDLES};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Tensor};

pub(super) fn register(r: &mut Registry) {
    r.add_typed(
        "ResourceGather",
        &[("dtype", MOVED), ("Tindices", INDEX)],
        gather,
    );
    r.add_typed(
        "ResourceGatherNd",
        &[("dtype", WITH_HANDLES), ("Tindices", INDEX)],
        gather_nd,
    );
}

/// The variable's value, of the type the node declares.
fn params(ctx: &OpContext<'_>, dtype: DType) -> Result<Tensor> {
    let params = snapshot(ctx, 0)?;
    if params.dtype() != dtype {
        return Err(Status::invalid_argument(format!(
            "Trying to read variable with wrong dtype. Expected {dtype} got {}",
            params.dtype()
        )));
    }
    Ok(params)
}

fn gather(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    let batch_dims = b.attrs().int("batch_dims")?;
    let batch_dims = usize::try_from(batch_dims)
        .map_err(|_| Status::invalid_argument(format!("batch_dims is negative ({batch_dims})")))?;
    Built::cheap(move |ctx| {
        let params = params(ctx, dtype)?;
        let indices = ctx.input(1)?;
        if params.rank() == 0 {
            return Err(Status::invalid_argument(
                "params must be at least 1 dimensional",
            ));
        }
        let out = if batch_dims == 0 {
            gather_rows(ctx, &params, indices)?
        } else {
            gather_batches(ctx, params, indices, batch_dims)?
        };
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Gathers from each batch its own rows. Like TensorFlow, this checks an index against all
/// batches laid end to end, so an index may reach into a neighbour.
fn gather_batches(
    ctx: &OpContext<'_>,
    params: Tensor,
    indices: &Tensor,
    batch_dims: usize,
) -> Result<Tensor> {
    let dims = params.dims().to_vec();
    if batch_dims >= dims.len()
        || batch_dims > indices.rank()
        || dims[..batch_dims] != indices.dims()[..batch_dims]
    {
        return Err(Status::invalid_argument(format!(
            "batch_dims ({batch_dims}) must be less than rank(params) ({}), and the first dimensions of params {} and indices {} must be equal",
            dims.len(),
            params.shape(),
            indices.shape()
        )));
    }
    let batches: usize = dims[..batch_dims].iter().product();
    let limit = dims[batch_dims];
    let rows = batches * limit;
    let each = indices.num_elements().checked_div(batches).unwrap_or(0);
    let mut flat = crate::args::ints(indices)?;
    for (k, i) in flat.iter_mut().enumerate() {
        let start = k.checked_div(each).unwrap_or(0) * limit;
        *i = i.saturating_add(start as i64);
        if usize::try_from(*i).is_ok_and(|i| i < rows) {
            continue;
        }
        return Err(Status::invalid_argument(format!(
            "indices{} = {i} is not in [0, {})",
            position(indices.dims(), k),
            dims[0]
        )));
    }
    let shape: Vec<i64> = (dims[..batch_dims].iter())
        .chain(&indices.dims()[batch_dims..])
        .chain(&dims[batch_dims + 1..])
        .map(|&d| d as i64)
        .collect();
    let shape = crate::args::shape_of(&shape)?;
    let mut flat_dims = vec![rows];
    flat_dims.extend(&dims[batch_dims + 1..]);
    let params = params.reshaped(flat_dims)?;
    Ok(gather_rows(ctx, &params, &Tensor::vector(flat))?.reshaped(shape)?)
}

fn gather_nd(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    Built::cheap(move |ctx| {
        let params = params(ctx, dtype)?;
        let out = gather_slices(ctx, &params, ctx.input(1)?, BadIndices::Refuse)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::state::testing::{Bench, by_handle};
    use downpour_tensor::{DType, Tensor};

    fn indices(values: &[i32], dims: &[usize]) -> Tensor {
        Tensor::from_vec(values.to_vec(), dims).unwrap()
    }

    #[test]
    fn rows_of_each_batch_are_read() {
        let b = Bench::with(
            by_handle("", "ResourceGather"),
            DType::Float,
            &[("batch_dims", 1i64.into())],
        );
        let value = (0..12).map(|x| x as f32).collect();
        b.set(0, Tensor::from_vec(value, [2, 3, 2]).unwrap());
        let out = b.run(vec![indices(&[0, 2, 1, 1], &[2, 2])]).unwrap();
        assert_eq!(out[0].dims(), [2, 2, 2]);
        assert_eq!(
            out[0].as_slice::<f32>().unwrap(),
            [0.0, 1.0, 4.0, 5.0, 8.0, 9.0, 8.0, 9.0]
        );
        let e = b.run(vec![indices(&[0, 2, 1, 5], &[2, 2])]).unwrap_err();
        assert!(
            e.message.starts_with("indices[1,1] = 8 is not in [0, 2)"),
            "{}",
            e.message
        );
        assert!(b.run(vec![indices(&[0, 2], &[1, 2])]).is_err());
    }

    #[test]
    fn a_variable_that_is_not_there_is_not_found() {
        let b = Bench::new(by_handle("", "ResourceGatherNd"), DType::Float);
        let e = b.run(vec![indices(&[0], &[1, 1])]).unwrap_err();
        assert!(
            e.message.starts_with("Container localhost does not exist."),
            "{}",
            e.message
        );
        b.set(0, Tensor::vector(vec![1.0f32, 2.0]));
        let out = b.run(vec![indices(&[1], &[1, 1])]).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [2.0]);
    }
}
