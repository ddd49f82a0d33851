//! Sparse tensors as strings or variants: `SerializeSparse`, `SerializeManySparse`,
//! `DeserializeSparse`, `DeserializeManySparse`. A serialized sparse tensor is three elements:
//! its places, its values, its shape.

use super::form::{Places, created, dense_shape, groups, invalid, joined, vector};
use crate::array::COMMON_AND_STRING;
use crate::array::units::{Unit, room, with_unit};
use bytes::Bytes;
use downpour_formats::tensor_proto::{self, ParseError};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor, Variant, VariantValue};

const FORMS: &[DType] = &[DType::String, DType::Variant];

pub(crate) fn register(r: &mut Registry) {
    let types = [("T", COMMON_AND_STRING), ("out_type", FORMS)];
    r.add_typed("SerializeSparse", &types, serialize);
    r.add_typed("SerializeManySparse", &types, serialize_many);
    r.add_typed("DeserializeSparse", &[("Tserialized", FORMS)], |b| {
        let dtype = b.attrs().dtype("dtype")?;
        Built::cheap(move |ctx| deserialize(ctx, dtype))
    });
    r.add("DeserializeManySparse", |b| {
        let dtype = b.attrs().dtype("dtype")?;
        Built::cheap(move |ctx| deserialize(ctx, dtype))
    });
}

/// A tensor as an element of a variant tensor.
#[derive(Debug)]
pub(crate) struct Held(pub(crate) Tensor);

impl VariantValue for Held {
    fn type_name(&self) -> &str {
        "tensorflow::Tensor"
    }

    fn as_any(&self) -> &dyn std::any::Any {
        self
    }
}

/// Rows of places, values and shape in the form asked for.
fn packed(parts: &[[Tensor; 3]], form: DType, shape: Shape) -> Result<Tensor> {
    let all = parts.iter().flatten();
    Ok(match form {
        DType::String => {
            let strings = all.map(tensor_proto::serialize).collect::<Result<_>>()?;
            Tensor::strings(strings, shape)?
        }
        _ => Tensor::variants(all.map(|t| Variant::new(Held(t.clone()))).collect(), shape)?,
    })
}

/// The checks that all writers begin with.
pub(super) fn check_ranks(indices: &Tensor, values: &Tensor, shape: &Tensor) -> Result<()> {
    for (name, kind, rank, t) in [
        ("indices", "a matrix", 2, indices),
        ("values", "a vector", 1, values),
        ("shape", "a vector", 1, shape),
    ] {
        if t.rank() != rank {
            return invalid(format!(
                "Input {name} should be {kind} but received shape {}",
                t.shape()
            ));
        }
    }
    Ok(())
}

fn serialize(b: &KernelBuilder<'_>) -> Result<Built> {
    let form = b.attrs().dtype("out_type")?;
    Built::cheap(move |ctx| {
        let (indices, values, shape) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
        check_ranks(indices, values, shape)?;
        let parts = [[indices.clone(), values.clone(), shape.clone()]];
        let out = packed(&parts, form, Shape::from([3]))?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn serialize_many(b: &KernelBuilder<'_>) -> Result<Built> {
    let form = b.attrs().dtype("out_type")?;
    Built::cheap(move |ctx| {
        let (indices, values, shape) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
        check_ranks(indices, values, shape)?;
        let dims = shape.as_slice::<i64>()?;
        if dims.len() < 2 {
            return invalid(format!(
                "Rank of input SparseTensor should be > 1, but saw rank: {}",
                dims.len()
            ));
        }
        dense_shape(dims)?;
        let places = created(indices, values, dims.len())?;
        places.check_order(dims)?;
        let shape = Shape::from([dims[0] as usize, 3]);
        ctx.check_alloc(DType::String, &shape)?;
        let none = [
            Tensor::zeros(DType::Int64, [0, dims.len() - 1])?,
            Tensor::zeros(values.dtype(), [0])?,
            vector(&dims[1..]),
        ];
        let mut rows = vec![none; dims[0] as usize];
        for (row, [at, members]) in batches(places, values)? {
            rows[row][0] = at;
            rows[row][1] = members;
        }
        let out = packed(&rows, form, shape)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// For each row with elements its number, the places within it and the values. Places are
/// sorted and inside the shape.
pub(super) fn batches(places: Places<'_>, values: &Tensor) -> Result<Vec<(usize, [Tensor; 2])>> {
    let order: Vec<usize> = (0..places.count).collect();
    let take = |group: std::ops::Range<usize>| {
        let inner = group.clone().flat_map(|i| &places.row(i)[1..]).copied();
        let at = Tensor::from_vec(inner.collect(), [group.len(), places.rank - 1])?;
        let members = values
            .rows(group.start, group.len())
            .ok_or_else(|| Status::internal("a group of values is outside the values"))?;
        Ok((places.row(group.start)[0] as usize, [at, members]))
    };
    groups(places, &order, &[0]).into_iter().map(take).collect()
}

fn deserialize(ctx: &mut OpContext<'_>, dtype: DType) -> Result<()> {
    let input = ctx.input(0)?;
    if input.rank() == 0 {
        return invalid(format!(
            "Serialized sparse should have non-zero rank but received shape {}",
            input.shape()
        ));
    }
    let (batch, last) = input.dims().split_at(input.rank() - 1);
    if last != [3] {
        return invalid(format!(
            "Serialized sparse should have 3 as the last dimension {}",
            input.shape()
        ));
    }
    let count: usize = batch.iter().product();
    if count == 0 {
        return invalid(format!(
            "Serialized sparse should have at least 1 serialized tensor, but has a zero dimension {}",
            input.shape()
        ));
    }
    let limit = ctx.device().room() as u64;
    let all: Vec<Tensor> = match input.dtype() {
        DType::String => {
            let strings = input.as_strings()?.iter();
            strings.map(|s| parsed(s, limit)).collect::<Result<_>>()?
        }
        _ => input
            .as_variants()?
            .iter()
            .map(|v| match v.downcast::<Held>() {
                Some(held) => Ok(held.0.clone()),
                None => invalid(format!(
                    "Could not parse serialized sparse tensor from a variant of type '{}'",
                    v.0.type_name()
                )),
            })
            .collect::<Result<_>>()?,
    };
    let parts: Vec<[&Tensor; 3]> = all.chunks_exact(3).map(|c| [&c[0], &c[1], &c[2]]).collect();
    // One alone keeps its rank; several are stacked, and take the dimensions they came in.
    let (at, values, dims) = stacked(ctx, &parts, dtype, input.rank() > 1, "shape")?;
    let (at, dims) = unstacked(at, dims, batch)?;
    ctx.set_output(0, at);
    ctx.set_output(1, values);
    ctx.set_output(2, vector(&dims));
    Ok(())
}

fn parsed(bytes: &Bytes, limit: u64) -> Result<Tensor> {
    tensor_proto::parse(bytes, limit).map_err(|e| {
        Status::invalid_argument(match e {
            ParseError::Proto => "Could not parse serialized proto",
            ParseError::Tensor => "Could not construct tensor from proto",
        })
    })
}

/// Joins sparse tensors of one rank along a new first dimension, or gives back the only one.
/// The other dimensions are as large as the largest.
pub(super) fn stacked(
    ctx: &OpContext<'_>,
    parts: &[[&Tensor; 3]],
    dtype: DType,
    stack: bool,
    inconsistent: &str,
) -> Result<(Tensor, Tensor, Vec<i64>)> {
    let lead = usize::from(stack);
    let mut dims: Vec<i64> = Vec::new();
    let mut total = 0;
    for (i, [indices, values, shape]) in parts.iter().enumerate() {
        check_part(i, indices, values, shape, dtype)?;
        let shape = shape.as_slice::<i64>()?;
        if i == 0 {
            dims = shape.to_vec();
        }
        if shape.len() != dims.len() {
            return invalid(format!(
                "Inconsistent {inconsistent} across SparseTensors: rank prior to SparseTensor[{i}] was: {} but rank of SparseTensor[{i}] is: {}",
                dims.len() + rank_offset(inconsistent, lead),
                shape.len() + rank_offset(inconsistent, lead)
            ));
        }
        if indices.dims()[1] != shape.len() {
            return invalid("Order length must be SparseTensor rank.");
        }
        dims.iter_mut()
            .zip(shape)
            .for_each(|(d, n)| *d = (*d).max(*n));
        total += indices.dims()[0];
    }
    let rank = dims.len() + lead;
    let mut at = ctx.vec::<i64>(&Shape::from([total, rank]))?;
    for (i, [indices, _, _]) in parts.iter().enumerate() {
        for row in Places::new(indices)?.rows() {
            if stack {
                at.push(i as i64);
            }
            at.extend_from_slice(row);
        }
    }
    let at = Tensor::from_vec(at, [total, rank])?;
    let values = with_unit!(dtype, U => {
        let mut out: Vec<U> = room(ctx, dtype, &Shape::from([total]))?;
        for [_, values, _] in parts {
            out.extend_from_slice(U::view(values)?);
        }
        U::tensor(dtype, out, Shape::from([total]))?
    });
    if stack {
        dims.insert(0, parts.len() as i64);
    }
    Ok((at, values, dims))
}

/// Whether the text that names ranks counts the new dimension.
fn rank_offset(inconsistent: &str, lead: usize) -> usize {
    if inconsistent == "rank" { lead } else { 0 }
}

fn check_part(
    i: usize,
    indices: &Tensor,
    values: &Tensor,
    shape: &Tensor,
    dtype: DType,
) -> Result<()> {
    if indices.dtype() != DType::Int64 || shape.dtype() != DType::Int64 {
        return invalid(format!(
            "Expected SparseTensor[{i}] to have int64 indices and shape but got {} and {}",
            indices.dtype(),
            shape.dtype()
        ));
    }
    if indices.rank() != 2 {
        return invalid(format!(
            "Expected serialized_sparse[{i}, 0] to represent an index matrix but received shape {}",
            indices.shape()
        ));
    }
    if values.rank() != 1 {
        return invalid(format!(
            "Expected serialized_sparse[{i}, 1] to represent a values vector but received shape {}",
            values.shape()
        ));
    }
    if shape.rank() != 1 {
        return invalid(format!(
            "Expected serialized_sparse[{i}, 2] to represent a shape vector but received shape {}",
            shape.shape()
        ));
    }
    if values.dtype() != dtype {
        return invalid(format!(
            "Requested SparseTensor of type {dtype} but SparseTensor[{i}].values.dtype() == {}",
            values.dtype()
        ));
    }
    if values.num_elements() != indices.dims()[0] {
        return invalid(format!(
            "Expected row counts of SparseTensor[{i}].indices and SparseTensor[{i}].values to match but they do not: {} vs. {}",
            indices.dims()[0],
            values.num_elements()
        ));
    }
    Ok(())
}

/// The first dimension of a stack taken apart into the dimensions `batch`.
fn unstacked(at: Tensor, dims: Vec<i64>, batch: &[usize]) -> Result<(Tensor, Vec<i64>)> {
    if batch.len() < 2 {
        return Ok((at, dims));
    }
    let places = Places::new(&at)?;
    let rank = places.rank - 1 + batch.len();
    let mut out = Vec::with_capacity(places.count * rank);
    for row in places.rows() {
        let start = out.len();
        out.resize(start + batch.len(), 0);
        let mut rest = row[0] as usize;
        for (slot, &n) in out[start..].iter_mut().zip(batch).rev() {
            *slot = (rest % n) as i64;
            rest /= n;
        }
        out.extend_from_slice(&row[1..]);
    }
    let mut new: Vec<i64> = batch.iter().map(|&d| d as i64).collect();
    new.extend_from_slice(&dims[1..]);
    debug_assert_eq!(new.len(), rank, "{}", joined(&new, ","));
    Ok((Tensor::from_vec(out, [places.count, rank])?, new))
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_tensor::{DType, Tensor};

    fn sparse() -> Vec<Tensor> {
        vec![
            Tensor::from_vec(vec![0i64, 1, 0, 3, 2, 2], [3, 2]).unwrap(),
            floats(&[1.0, 2.0, 3.0]),
            Tensor::vector(vec![3i64, 4]),
        ]
    }

    #[test]
    fn rows_come_back_as_they_were() {
        for form in [DType::String, DType::Variant] {
            let attrs = [("T", DType::Float.into()), ("out_type", form.into())];
            let rows = run_op("SerializeManySparse", sparse(), &attrs).unwrap();
            assert_eq!(rows[0].dims(), [3, 3]);
            let attrs = [("dtype", DType::Float.into()), ("Tserialized", form.into())];
            let back = run_op("DeserializeSparse", rows, &attrs).unwrap();
            for (a, b) in back.iter().zip(sparse()) {
                assert_eq!(
                    a.buffer().unwrap().as_bytes(),
                    b.buffer().unwrap().as_bytes()
                );
                assert_eq!(a.dims(), b.dims());
            }
        }
    }

    #[test]
    fn hostile_strings_are_refused() {
        let run = |s: &'static [u8]| {
            let rows = Tensor::strings(vec![s.into(); 3], [1, 3]).unwrap();
            let attrs = [("dtype", DType::Float.into())];
            run_op("DeserializeManySparse", vec![rows], &attrs)
                .unwrap_err()
                .message
        };
        assert!(run(b"a").starts_with("Could not parse serialized proto"));
        assert!(run(b"").starts_with("Could not construct tensor from proto"));
    }
}
