//! Maps of sparse tensors: `AddSparseToTensorsMap`, `AddManySparseToTensorsMap`,
//! `TakeManySparseFromTensorsMap`. Handles count up from zero and are taken out once.

use super::form::{Places, created, dense_shape, invalid, vector};
use super::serialize::{batches, check_ranks, stacked};
use crate::array::COMMON_AND_STRING;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, Resource};
use downpour_tensor::{DType, Shape, Tensor};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

pub(crate) fn register(r: &mut Registry) {
    let types = [("T", COMMON_AND_STRING)];
    r.add_typed("AddSparseToTensorsMap", &types, |b| writer(b, add));
    r.add_typed("AddManySparseToTensorsMap", &types, |b| writer(b, add_many));
    r.add("TakeManySparseFromTensorsMap", |b| {
        let (container, name) = b.resource_name()?;
        let dtype = b.attrs().dtype("dtype")?;
        Built::cheap(move |ctx| {
            let map = map(ctx, &container, &name)?;
            take(ctx, &map, &name, dtype)
        })
    });
}

/// Sparse tensors by handle.
#[derive(Default)]
struct SparseTensorsMap {
    state: Mutex<(i64, HashMap<i64, [Tensor; 3]>)>,
}

impl Resource for SparseTensorsMap {
    fn type_name(&self) -> &'static str {
        "N10tensorflow16SparseTensorsMapE"
    }
}

impl SparseTensorsMap {
    fn add(&self, tensor: [Tensor; 3]) -> i64 {
        let (next, held) = &mut *self.state.lock();
        let handle = *next;
        *next += 1;
        held.insert(handle, tensor);
        handle
    }
}

fn map(ctx: &OpContext<'_>, container: &str, name: &str) -> Result<Arc<SparseTensorsMap>> {
    let create = || Ok(SparseTensorsMap::default());
    let resources = &ctx.device().resources;
    resources.find_or_create(container, name, create)
}

fn writer(
    b: &KernelBuilder<'_>,
    write: fn(&mut OpContext<'_>, &SparseTensorsMap) -> Result<()>,
) -> Result<Built> {
    let (container, name) = b.resource_name()?;
    Built::cheap(move |ctx| {
        let map = map(ctx, &container, &name)?;
        write(ctx, &map)
    })
}

fn add(ctx: &mut OpContext<'_>, map: &SparseTensorsMap) -> Result<()> {
    let (indices, values, shape) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    check_ranks(indices, values, shape)?;
    crate::args::shape(shape)?;
    created(indices, values, shape.num_elements())?;
    let handle = map.add([indices.clone(), values.clone(), shape.clone()]);
    ctx.set_output(0, Tensor::scalar(handle));
    Ok(())
}

fn add_many(ctx: &mut OpContext<'_>, map: &SparseTensorsMap) -> Result<()> {
    let (indices, values, shape) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    check_ranks(indices, values, shape)?;
    let places = Places::new(indices)?;
    let dims = shape.as_slice::<i64>()?;
    if values.num_elements() != places.count {
        return invalid(format!(
            "Number of values must match first dimension of indices. Got {} values, indices shape: {}",
            values.num_elements(),
            indices.shape()
        ));
    }
    if dims.len() != places.rank {
        return invalid(format!(
            "Number of dimensions must match second dimension of indices. Got {} dimensions, indices shape: {}",
            dims.len(),
            indices.shape()
        ));
    }
    if dims.len() < 2 {
        return invalid(format!(
            "Rank of input SparseTensor should be > 1, but saw rank: {}",
            dims.len()
        ));
    }
    dense_shape(dims)?;
    places.check_order(dims)?;
    let rows = dims[0] as usize;
    ctx.check_alloc(DType::String, &Shape::from([rows, 3]))?;
    let inner = vector(&dims[1..]);
    // As in TensorFlow: the rows that have elements are numbered before those that have none.
    let mut handles = vec![None; rows];
    for (row, [at, members]) in batches(places, values)? {
        handles[row] = Some(map.add([at, members, inner.clone()]));
    }
    let none = [
        Tensor::zeros(DType::Int64, [0, dims.len() - 1])?,
        Tensor::zeros(values.dtype(), [0])?,
        inner,
    ];
    let handles = handles
        .into_iter()
        .map(|h| h.unwrap_or_else(|| map.add(none.clone())));
    let handles = Tensor::vector(handles.collect());
    ctx.set_output(0, handles);
    Ok(())
}

fn take(ctx: &mut OpContext<'_>, map: &SparseTensorsMap, name: &str, dtype: DType) -> Result<()> {
    let handles = ctx.input(0)?;
    if handles.rank() != 1 {
        return invalid(format!(
            "sparse_handles should be a vector but received shape {}",
            handles.shape()
        ));
    }
    if handles.num_elements() == 0 {
        return invalid(
            "Must have at least 1 serialized SparseTensor, but input matrix has 0 rows",
        );
    }
    let mut parts = Vec::with_capacity(handles.num_elements());
    for &handle in handles.as_slice::<i64>()? {
        parts.push(map.state.lock().1.remove(&handle).ok_or_else(|| {
            Status::invalid_argument(format!(
                "Unable to find SparseTensor: {handle} in map: {name}"
            ))
        })?);
    }
    let parts: Vec<[&Tensor; 3]> = parts.iter().map(|[a, b, c]| [a, b, c]).collect();
    let (at, values, dims) = stacked(ctx, &parts, dtype, true, "rank")?;
    ctx.set_output(0, at);
    ctx.set_output(1, values);
    ctx.set_output(2, vector(&dims));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{device, floats, node, run_on};
    use downpour_graph::Result;
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn tensors_are_taken_once() {
        let device = device();
        let arg = |i: i64, t: DType| {
            node(
                &format!("a{i}"),
                "_Arg",
                &[],
                &[("T", t.into()), ("index", i.into())],
            )
        };
        let ret = |i: i64, from: &str, t: DType| {
            node(
                &format!("r{i}"),
                "_Retval",
                &[from],
                &[("T", t.into()), ("index", i.into())],
            )
        };
        let add = node(
            "add",
            "AddManySparseToTensorsMap",
            &["a0", "a1", "a2"],
            &[
                ("T", DType::Float.into()),
                ("shared_name", "m".into()),
                ("container", "".into()),
            ],
        );
        let nodes = vec![
            arg(0, DType::Int64),
            arg(1, DType::Float),
            arg(2, DType::Int64),
            add,
            ret(0, "add", DType::Int64),
        ];
        let inputs = vec![
            Tensor::from_vec(vec![0i64, 1, 2, 2], [2, 2]).unwrap(),
            floats(&[1.0, 2.0]),
            Tensor::vector(vec![3i64, 4]),
        ];
        let out = run_on(&device, nodes, inputs).unwrap();
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [0, 2, 1]);
        let take = |handles: Vec<i64>| -> Result<Vec<Tensor>> {
            let take = node(
                "take",
                "TakeManySparseFromTensorsMap",
                &["a0"],
                &[
                    ("dtype", DType::Float.into()),
                    ("shared_name", "m".into()),
                    ("container", "".into()),
                ],
            );
            let nodes = vec![
                arg(0, DType::Int64),
                take,
                ret(0, "take:0", DType::Int64),
                ret(1, "take:1", DType::Float),
                ret(2, "take:2", DType::Int64),
            ];
            run_on(&device, nodes, vec![Tensor::vector(handles)])
        };
        let out = take(vec![1, 2, 0]).unwrap();
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [0, 2, 2, 1]);
        assert_eq!(out[1].as_slice::<f32>().unwrap(), [2.0, 1.0]);
        assert_eq!(out[2].as_slice::<i64>().unwrap(), [3, 4]);
        let text = take(vec![0]).unwrap_err().message;
        assert!(
            text.starts_with("Unable to find SparseTensor: 0 in map: m"),
            "{text}"
        );
    }
}
