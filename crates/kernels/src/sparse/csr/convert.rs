//! To and from sparse tensors and dense ones; what a CSR matrix consists of.

use super::super::form::{Places, invalid};
use super::{Csr, Part, TYPES, with_csr_type};
use crate::args::{ints, shape_of};
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{Shape, Tensor};

use super::super::number::Number;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("SparseTensorToCSRSparseMatrix", &[("T", TYPES)], |_| {
        Built::costly(from_sparse)
    });
    r.add_typed("DenseToCSRSparseMatrix", &[("T", TYPES)], |_| {
        Built::costly(from_dense)
    });
    r.add_typed(
        "CSRSparseMatrixToSparseTensor",
        &[("type", TYPES)],
        to_sparse,
    );
    r.add_typed("CSRSparseMatrixToDense", &[("type", TYPES)], to_dense);
    r.add_typed("CSRSparseMatrixComponents", &[("type", TYPES)], components);
    r.add("SparseMatrixNNZ", |_| Built::cheap(nnz));
}

fn check_places(
    places: Places<'_>,
    dims: &[i64],
    outside: impl Fn(usize, &[i64]) -> String,
) -> Result<()> {
    for (i, row) in places.rows().enumerate() {
        if row.iter().zip(dims).any(|(v, d)| v < &0 || v >= d) {
            return invalid(outside(i, row));
        }
    }
    Ok(())
}

fn listed(row: &[i64]) -> String {
    let parts: Vec<String> = row.iter().map(i64::to_string).collect();
    parts.join(", ")
}

/// How many elements each row has decides where it begins; columns and values follow in the
/// order given, whatever rows they were given for.
fn gather<T: Number>(dims: Vec<usize>, places: Places<'_>, values: Vec<T>) -> Result<Tensor> {
    let (batches, rows) = match dims[..] {
        [batches, rows, _] => (batches, rows),
        _ => (1, dims[0]),
    };
    let mut counts = vec![vec![0i32; rows + 1]; batches];
    let mut parts: Vec<Part<T>> = (0..batches).map(|_| Part::default()).collect();
    for (row, value) in places.rows().zip(values) {
        let (batch, at) = match row {
            [b, r, _] => (*b as usize, *r as usize),
            _ => (0, row[0] as usize),
        };
        counts[batch][at + 1] += 1;
        parts[batch].columns.push(row[row.len() - 1] as i32);
        parts[batch].values.push(value);
    }
    for (part, mut starts) in parts.iter_mut().zip(counts) {
        for i in 1..starts.len() {
            starts[i] += starts[i - 1];
        }
        part.starts = starts;
    }
    Ok(Csr::of(dims, parts).tensor())
}

fn check_rank(rank: usize, what: &str) -> Result<()> {
    if rank != 2 && rank != 3 {
        return invalid(format!(
            "{what} must have rank 2 or 3; but it has rank {rank}"
        ));
    }
    Ok(())
}

fn from_sparse(ctx: &mut OpContext<'_>) -> Result<()> {
    let (indices, values, shape) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let dims = ints(shape)?;
    check_rank(dims.len(), "SparseTensor")?;
    let places = Places::new(indices)?;
    if places.rank != dims.len() || places.count != values.num_elements() {
        return invalid("indices, values and dense_shape do not describe one sparse tensor");
    }
    let out = Shape::checked(dims.iter().copied())?;
    check_alloc(ctx, out.dims())?;
    check_places(places, &dims, |i, row| {
        format!(
            "Sparse index tuple indices[{i}, :] = [{}] is out of bounds",
            listed(row)
        )
    })?;
    let made = with_csr_type!(values.dtype(), T => {
        gather(out.dims().to_vec(), places, values.as_slice::<T>()?.to_vec())?
    });
    ctx.set_output(0, made);
    Ok(())
}

/// The row pointers are memory that the indices do not pay for.
fn check_alloc(ctx: &OpContext<'_>, dims: &[usize]) -> Result<()> {
    let rows: Vec<i64> = dims[..dims.len() - 1].iter().map(|&d| d as i64).collect();
    ctx.check_alloc(downpour_tensor::DType::Int64, &shape_of(&rows)?)
}

fn from_dense(ctx: &mut OpContext<'_>) -> Result<()> {
    let (dense, indices) = (ctx.input(0)?, ctx.input(1)?);
    check_rank(dense.rank(), "params")?;
    let places = Places::new(indices)?;
    let dims: Vec<i64> = dense.dims().iter().map(|&d| d as i64).collect();
    if places.rank != dims.len() {
        return invalid(format!(
            "indices.shape[1] must match rank of dense; saw: {} vs. {}",
            places.rank,
            dims.len()
        ));
    }
    check_places(places, &dims, |i, row| {
        format!(
            "indices[{i}] = [{}] does not index into param shape {}, node name: {}",
            listed(row),
            dense.shape(),
            ctx.name()
        )
    })?;
    let strides = dense.shape().strides();
    let flat = |row: &[i64]| -> usize {
        row.iter()
            .zip(&strides)
            .map(|(v, s)| *v as usize * *s)
            .sum()
    };
    let made = with_csr_type!(dense.dtype(), T => {
        let from = dense.as_slice::<T>()?;
        let values = places.rows().map(|row| from[flat(row)]).collect();
        gather(dense.dims().to_vec(), places, values)?
    });
    ctx.set_output(0, made);
    Ok(())
}

fn to_sparse(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("type")?;
    Built::costly(move |ctx| {
        let csr = Csr::input(ctx, 0)?;
        if csr.dtype != dtype {
            return invalid(format!(
                "Expected a CSRSparseMatrix of type {dtype} but saw type: {}",
                csr.dtype
            ));
        }
        let rank = csr.dims.len();
        let shape: Vec<i64> = csr.dims.iter().map(|&d| d as i64).collect();
        let mut places: Vec<i64> = Vec::new();
        let values = with_csr_type!(dtype, T => {
            let mut values: Vec<T> = Vec::new();
            for (batch, part) in csr.parts::<T>()?.iter().enumerate() {
                for row in 0..csr.rows() {
                    for (column, value) in part.row(row) {
                        if rank == 3 {
                            places.push(batch as i64);
                        }
                        places.extend([row as i64, column as i64]);
                        values.push(value);
                    }
                }
            }
            Tensor::vector(values)
        });
        let count = values.num_elements();
        ctx.set_output(0, Tensor::from_vec(places, [count, rank])?);
        ctx.set_output(1, values);
        ctx.set_output(2, Tensor::vector(shape));
        Ok(())
    })
}

fn to_dense(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("type")?;
    Built::costly(move |ctx| {
        let csr = Csr::input(ctx, 0)?;
        if csr.dtype != dtype {
            return invalid(format!(
                "Asked for a CSRSparseMatrix of type {dtype} but saw dtype: {}",
                csr.dtype
            ));
        }
        let shape = Shape::from(csr.dims.clone());
        let mut out = ctx.zeros(dtype, &shape)?;
        with_csr_type!(dtype, T => {
            let to = out.make_mut::<T>()?;
            let size = csr.rows() * csr.cols();
            for (batch, part) in csr.parts::<T>()?.iter().enumerate() {
                for row in 0..csr.rows() {
                    for (column, value) in part.row(row) {
                        to[batch * size + row * csr.cols() + column] = value;
                    }
                }
            }
        });
        ctx.set_output(0, out);
        Ok(())
    })
}

fn components(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("type")?;
    Built::cheap(move |ctx| {
        let csr = Csr::input(ctx, 0)?;
        if csr.dtype != dtype {
            return invalid(format!(
                "dtype of input is not equal to 'type': {} vs. {dtype}",
                csr.dtype
            ));
        }
        let index = ctx.input(1)?;
        if index.rank() != 0 {
            return invalid(format!(
                "index should be a scalar, but saw: {}",
                index.shape()
            ));
        }
        let index = index.scalar_value::<i32>()?;
        let found = usize::try_from(index).ok().and_then(|i| csr.parts.get(i));
        let Some(part) = found.cloned() else {
            return invalid(format!("index ({index}) not in [0, {})", csr.parts.len()));
        };
        ctx.set_output(0, Tensor::vector(part.starts));
        ctx.set_output(1, Tensor::vector(part.columns));
        ctx.set_output(2, part.values);
        Ok(())
    })
}

fn nnz(ctx: &mut OpContext<'_>) -> Result<()> {
    let csr = Csr::input(ctx, 0)?;
    let counts: Vec<i32> = csr.parts.iter().map(|p| p.columns.len() as i32).collect();
    let shape = Shape::from(csr.outer());
    ctx.set_output(0, Tensor::from_vec(counts, shape)?);
    Ok(())
}
