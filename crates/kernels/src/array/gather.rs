//! Taking elements by index: `Gather`, `GatherV2`, `GatherNd`.

use super::dtypes::{PACK, STRIDED};
use super::units::{Unit, room, with_unit};
use crate::args::ints;
use crate::math::isa::prefetch_run;
use crate::uninit::filled;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Dims, Shape, Tensor};

/// Elements below which a copy is not worth splitting.
const GRAIN: usize = 64 << 10;

/// Rows that are asked for before they are copied: their places are known, and memory is slow.
const AHEAD: usize = 8;

/// Index types of gathers.
pub(super) const GATHER_INDEX: &[DType] = crate::types::INDEX_FROM_16;

pub(crate) fn register(r: &mut Registry) {
    let types = [("Tparams", PACK), ("Tindices", GATHER_INDEX)];
    r.add_typed("Gather", &types, |_| Built::cheap(|ctx| gather(ctx, 0)));
    r.add_typed("GatherV2", &types, |b| {
        let batch_dims = b.attrs().int("batch_dims")?;
        Built::cheap(move |ctx| gather(ctx, batch_dims))
    });
    r.add_typed(
        "GatherNd",
        &[("Tparams", STRIDED), ("Tindices", GATHER_INDEX)],
        gather_nd,
    );
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn gather(ctx: &mut OpContext<'_>, batch_dims: i64) -> Result<()> {
    let (params, indices) = (ctx.input(0)?, ctx.input(1)?);
    let rank = params.rank() as i64;
    if rank == 0 {
        return invalid("params must be at least 1 dimensional".to_owned());
    }
    let mut axis = 0;
    if ctx.num_inputs() == 3 {
        let t = ctx.input(2)?;
        if t.rank() != 0 {
            return invalid("axis must be scalar".to_owned());
        }
        axis = ints(t)?[0];
    }
    let least = if axis < 0 {
        axis.saturating_neg()
    } else {
        axis.saturating_add(1)
    };
    if rank < least {
        return invalid(format!(
            "Shape must be at least rank {least} but is rank {rank}"
        ));
    }
    let axis = if axis < 0 { axis + rank } else { axis } as usize;
    let batch_dims = checked_batch_dims(params, indices, axis, batch_dims)?;
    let out = take(ctx, params, indices, axis, batch_dims)?;
    ctx.set_output(0, out);
    Ok(())
}

fn checked_batch_dims(
    params: &Tensor,
    indices: &Tensor,
    axis: usize,
    batch_dims: i64,
) -> Result<usize> {
    if batch_dims == 0 {
        return Ok(0);
    }
    let n = indices.rank() as i64;
    if !(-n..=n).contains(&batch_dims) {
        return invalid(format!(
            "Expected batch_dims in the range [{}, {n}], but got {batch_dims}",
            -n
        ));
    }
    let batch_dims = if batch_dims < 0 {
        batch_dims + n
    } else {
        batch_dims
    } as usize;
    if batch_dims >= params.rank() {
        return invalid(format!(
            "batch_dims ({batch_dims}) must be less than rank(params) ({}).",
            params.rank()
        ));
    }
    if axis < batch_dims {
        return invalid(format!(
            "batch_dims ({batch_dims}) must be less than or equal to axis ({axis})."
        ));
    }
    for i in 0..batch_dims {
        if params.dims()[i] != indices.dims()[i] {
            return invalid(format!(
                "params.shape[{i}]: {} should be equal to indices.shape[{i}]: {}",
                params.dims()[i],
                indices.dims()[i]
            ));
        }
    }
    Ok(batch_dims)
}

/// The index list of `shape` that element `at` has, as TensorFlow prints it: `[1,0]`.
pub(crate) fn position(shape: &[usize], at: usize) -> String {
    if shape.is_empty() {
        return String::new();
    }
    let mut index = vec![0; shape.len()];
    let mut rest = at;
    for d in (0..shape.len()).rev() {
        index[d] = rest % shape[d].max(1);
        rest /= shape[d].max(1);
    }
    let list: Vec<String> = index.iter().map(usize::to_string).collect();
    format!("[{}]", list.join(","))
}

/// `indices` as offsets below `limit`, or TensorFlow's text for the first that is not.
pub(super) fn checked_indices(indices: &Tensor, limit: usize) -> Result<Vec<usize>> {
    let values = ints(indices)?;
    if let Some(bad) = values
        .iter()
        .position(|&i| i < 0 || i as u64 >= limit as u64)
    {
        return invalid(format!(
            "indices{} = {} is not in [0, {limit})",
            position(indices.dims(), bad),
            values[bad]
        ));
    }
    Ok(values.into_iter().map(|i| i as usize).collect())
}

/// The rows of `params`, which is no scalar, that `indices` names.
pub(crate) fn gather_rows(
    ctx: &OpContext<'_>,
    params: &Tensor,
    indices: &Tensor,
) -> Result<Tensor> {
    take(ctx, params, indices, 0, 0)
}

/// `params` indexed along `axis`, the first `batch_dims` dimensions going side by side.
fn take(
    ctx: &OpContext<'_>,
    params: &Tensor,
    indices: &Tensor,
    axis: usize,
    batch_dims: usize,
) -> Result<Tensor> {
    let dims = params.dims();
    let limit = dims[axis];
    let wanted = checked_indices(indices, limit)?;
    let shape: Vec<i64> = (dims[..axis].iter())
        .chain(&indices.dims()[batch_dims..])
        .chain(&dims[axis + 1..])
        .map(|&d| d as i64)
        .collect();
    let shape = crate::args::shape_of(&shape)?;
    let batch: usize = dims[..batch_dims].iter().product();
    let outer: usize = dims[batch_dims..axis].iter().product();
    let inner: usize = dims[axis + 1..].iter().product();
    let per_batch = wanted.len().checked_div(batch).unwrap_or(0);
    let dtype = params.dtype();
    let rows = batch * outer * per_batch;
    with_unit!(dtype, U => {
        let src = U::view(params)?;
        let room = room::<U>(ctx, dtype, &shape)?;
        let out = if batch == 1 && outer == 1 {
            copy_rows(room, src, rows, inner, |r| wanted[r] * inner)
        } else {
            // Row r of the output is index r % per_batch of plane r / per_batch.
            copy_rows(room, src, rows, inner, |r| {
                let (plane, i) = (r / per_batch, r % per_batch);
                (plane * limit + wanted[plane / outer * per_batch + i]) * inner
            })
        };
        U::tensor(dtype, out, shape)
    })
}

/// Fills `out` with `rows` runs of `inner` elements of `src`, the r-th starting at `start(r)`.
fn copy_rows<U: Unit>(
    out: Vec<U>,
    src: &[U],
    rows: usize,
    inner: usize,
    start: impl Fn(usize) -> usize + Sync,
) -> Vec<U> {
    if inner == 0 {
        return out;
    }
    filled(
        out,
        rows * inner,
        inner,
        GRAIN.div_ceil(inner),
        |first, out| {
            let end = first + out.missing() / inner;
            if inner == 1 {
                out.extend((first..end).map(|r| src[start(r)].clone()));
                return;
            }
            for r in first..end {
                if r + AHEAD < rows {
                    prefetch_run(src, start(r + AHEAD), inner);
                }
                let at = start(r);
                out.extend_from_slice(&src[at..at + inner]);
            }
        },
    )
}

/// What an op does with an index outside the tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BadIndices {
    Refuse,
    Ignore,
}

impl BadIndices {
    /// Reads attribute `bad_indices_policy`.
    pub(crate) fn of(b: &KernelBuilder<'_>) -> Result<BadIndices> {
        match b.attrs().str("bad_indices_policy")? {
            "" | "DEFAULT" | "ERROR" => Ok(BadIndices::Refuse),
            "IGNORE" => Ok(BadIndices::Ignore),
            other => invalid(format!("Unknown bad indices handling attribute: {other}")),
        }
    }
}

/// Rows of index tuples over the first dimensions of a tensor.
pub(crate) struct Tuples {
    /// Offset of each tuple's slice in slices; `None` where it is out of range.
    pub(crate) slices: Vec<Option<usize>>,
    /// Elements of one slice.
    pub(crate) slice: usize,
}

impl Tuples {
    /// Reads `indices`, whose last dimension indexes the first dimensions of `dims`.
    pub(crate) fn new(indices: &Tensor, dims: &[usize]) -> Result<Tuples> {
        let depth = indices.dims().last().copied().unwrap_or(0);
        let count = indices.num_elements().checked_div(depth);
        let values = ints(indices)?;
        let (head, tail) = dims.split_at(depth.min(dims.len()));
        let slices = match count {
            Some(_) => values
                .chunks(depth)
                .map(|tuple| offset(tuple, head))
                .collect(),
            None => {
                let outer = indices.rank().saturating_sub(1);
                vec![Some(0); indices.dims()[..outer].iter().product()]
            }
        };
        Ok(Tuples {
            slices,
            slice: tail.iter().product(),
        })
    }

    /// The first tuple out of range, as TensorFlow prints it: `indices[1] = [3, 0]`.
    pub(super) fn first_bad(&self, indices: &Tensor) -> Result<Option<String>> {
        let at = self.slices.iter().position(Option::is_none);
        at.map(|at| Tuples::show(indices, at)).transpose()
    }

    /// The last tuple out of range, printed likewise: what ops on variables name.
    pub(crate) fn last_bad(&self, indices: &Tensor) -> Result<Option<String>> {
        let at = self.slices.iter().rposition(Option::is_none);
        at.map(|at| Tuples::show(indices, at)).transpose()
    }

    fn show(indices: &Tensor, at: usize) -> Result<String> {
        let depth = indices.dims().last().copied().unwrap_or(0);
        let values = ints(indices)?;
        let tuple: Vec<String> = (values[at * depth..(at + 1) * depth].iter())
            .map(i64::to_string)
            .collect();
        let outer = &indices.dims()[..indices.rank() - 1];
        Ok(format!(
            "indices{} = [{}]",
            position(outer, at),
            tuple.join(", ")
        ))
    }
}

fn offset(tuple: &[i64], dims: &[usize]) -> Option<usize> {
    let mut at = 0usize;
    for (&i, &d) in tuple.iter().zip(dims) {
        let i = usize::try_from(i).ok().filter(|&i| i < d)?;
        at = at * d + i;
    }
    Some(at)
}

fn gather_nd(b: &KernelBuilder<'_>) -> Result<Built> {
    let bad = BadIndices::of(b)?;
    Built::cheap(move |ctx| {
        let out = gather_slices(ctx, ctx.input(0)?, ctx.input(1)?, bad)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The slices of `params` that the tuples in `indices` name.
pub(crate) fn gather_slices(
    ctx: &OpContext<'_>,
    params: &Tensor,
    indices: &Tensor,
    bad: BadIndices,
) -> Result<Tensor> {
    if params.rank() == 0 {
        return invalid("params must be at least a vector".to_owned());
    }
    let Some((&depth, outer)) = indices.dims().split_last() else {
        return invalid("indices must be at least a vector".to_owned());
    };
    if depth > params.rank() {
        return invalid(format!(
            "index innermost dimension length must be <= params rank; saw: {depth} vs. {}",
            params.rank()
        ));
    }
    let count: usize = outer.iter().product();
    if count > 0 && params.num_elements() == 0 {
        return invalid(format!(
            "Requested more than 0 entries, but params is empty.  Params shape: {}",
            params.shape()
        ));
    }
    if depth > 7 {
        return invalid(format!(
            "Only indices.shape[-1] values between 1 and 7 are currently supported.  Requested rank: {depth}"
        ));
    }
    let dims: Vec<i64> = (outer.iter())
        .chain(&params.dims()[depth..])
        .map(|&d| d as i64)
        .collect();
    let shape: Shape = crate::args::shape_of(&dims)?;
    let tuples = Tuples::new(indices, params.dims())?;
    let broken = tuples.first_bad(indices)?;
    if bad == BadIndices::Refuse
        && let Some(text) = broken
    {
        return invalid(format!(
            "{text} does not index into param shape {}, node name: {}",
            params.shape(),
            ctx.name()
        ));
    }
    let dtype = params.dtype();
    with_unit!(dtype, U => {
        let src = U::view(params)?;
        let mut out = room::<U>(ctx, dtype, &shape)?;
        for at in &tuples.slices {
            match at {
                Some(at) => {
                    let at = at * tuples.slice;
                    out.extend_from_slice(&src[at..at + tuples.slice]);
                }
                None => out.extend(U::zeros(tuples.slice)?),
            }
        }
        U::tensor(dtype, out, shape)
    })
}

/// The dimensions before the last of `indices`, and the last.
pub(super) fn split_last(indices: &Tensor) -> Option<(Dims, usize)> {
    let (&depth, outer) = indices.dims().split_last()?;
    Some((Dims::from_slice(outer), depth))
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_graph::Result;
    use downpour_tensor::{DType, Tensor};

    fn gather(params: &Tensor, indices: Tensor, axis: i32, batch: i64) -> Result<Tensor> {
        let attrs = [
            ("Tparams", params.dtype().into()),
            ("Tindices", indices.dtype().into()),
            ("Taxis", DType::Int32.into()),
            ("batch_dims", batch.into()),
        ];
        let inputs = vec![params.clone(), indices, Tensor::scalar(axis)];
        run_op("GatherV2", inputs, &attrs).map(|mut o| o.remove(0))
    }

    #[test]
    fn rows_columns_and_batches_are_taken() {
        let t = Tensor::from_vec((0..6).collect::<Vec<i32>>(), [2, 3]).unwrap();
        let rows = gather(&t, Tensor::vector(vec![1i64, 0, 1]), 0, 0).unwrap();
        assert_eq!(rows.as_slice::<i32>().unwrap(), [3, 4, 5, 0, 1, 2, 3, 4, 5]);
        let cols = gather(&t, Tensor::vector(vec![2i32, 0]), -1, 0).unwrap();
        assert_eq!(cols.as_slice::<i32>().unwrap(), [2, 0, 5, 3]);
        let index = Tensor::from_vec(vec![0i32, 2], [2, 1]).unwrap();
        let batch = gather(&t, index, 1, 1).unwrap();
        assert_eq!(
            (batch.dims(), batch.as_slice::<i32>().unwrap()),
            (&[2, 1][..], &[0, 5][..])
        );
    }

    #[test]
    fn an_index_out_of_range_is_named_with_its_place() {
        let t = Tensor::from_vec((0..6).collect::<Vec<i32>>(), [2, 3]).unwrap();
        let index = Tensor::from_vec(vec![0i32, 3], [2, 1]).unwrap();
        let e = gather(&t, index, 1, 1).unwrap_err();
        assert!(
            e.message.starts_with("indices[1,0] = 3 is not in [0, 3)"),
            "{}",
            e.message
        );
        let e = gather(&t, Tensor::scalar(-1i32), 0, 0).unwrap_err();
        assert!(
            e.message.starts_with("indices = -1 is not in [0, 2)"),
            "{}",
            e.message
        );
        let attrs = [
            ("Tparams", DType::Int32.into()),
            ("Tindices", DType::Int32.into()),
        ];
        let index = Tensor::from_vec(vec![0i32, 1, 3, 0], [2, 2]).unwrap();
        let e = run_op("GatherNd", vec![t, index], &attrs).unwrap_err();
        assert!(
            e.message.starts_with(
                "indices[1] = [3, 0] does not index into param shape [2,3], node name: op"
            ),
            "{}",
            e.message
        );
    }

    #[test]
    fn large_gathers_agree_with_small_ones() {
        let t = Tensor::from_vec((0..1000 * 64).map(|x| x as f32).collect(), [1000, 64]).unwrap();
        let index: Vec<i32> = (0..5000).map(|i| i * 7919 % 1000).collect();
        let out = gather(&t, Tensor::vector(index.clone()), 0, 0).unwrap();
        let rows = out.as_slice::<f32>().unwrap();
        for (row, i) in rows.chunks(64).zip(index) {
            assert_eq!((row[0], row[63]), ((i * 64) as f32, (i * 64 + 63) as f32));
        }
    }
}
