//! Set operations on rows: `SetSize`, `DenseToDenseSetOperation`, `DenseToSparse…`,
//! `SparseToSparse…`. A set is what the last dimension holds; results are sorted sets.

use super::form::{Places, created, groups, invalid, vector};
use crate::types::with_type;
use bytes::Bytes;
use downpour_graph::{Code, Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Element, Shape, Tensor};
use std::collections::{BTreeMap, BTreeSet};

const MEMBERS: &[DType] = &[
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
    DType::String,
];

pub(crate) fn register(r: &mut Registry) {
    let types = [("T", MEMBERS)];
    r.add_typed("SetSize", &types, |b| {
        let validate = b.attrs().bool("validate_indices")?;
        Built::cheap(move |ctx| match ctx.input(1)?.dtype() {
            DType::String => sizes::<Bytes>(ctx, validate),
            _ => sizes::<i64>(ctx, validate),
        })
    });
    r.add_typed("DenseToDenseSetOperation", &types, |b| {
        operation(b, [true, true])
    });
    r.add_typed("DenseToSparseSetOperation", &types, |b| {
        operation(b, [true, false])
    });
    r.add_typed("SparseToSparseSetOperation", &types, |b| {
        operation(b, [false, false])
    });
}

/// A member of a set: an integer of any width, or a string.
trait Member: Ord + Clone {
    fn all(t: &Tensor) -> Result<Vec<Self>>;
    fn tensor(dtype: DType, members: Vec<Self>) -> Result<Tensor>;
}

impl Member for i64 {
    fn all(t: &Tensor) -> Result<Vec<i64>> {
        crate::args::ints(t)
    }

    fn tensor(dtype: DType, members: Vec<i64>) -> Result<Tensor> {
        fn vector<T: Element>(members: &[i64], cast: fn(i64) -> T) -> Tensor {
            Tensor::vector(members.iter().map(|v| cast(*v)).collect())
        }
        Ok(
            with_type!(dtype, T in [i8, i16, i32, i64, u8, u16] => vector::<T>(&members, |v| v as T)),
        )
    }
}

impl Member for Bytes {
    fn all(t: &Tensor) -> Result<Vec<Bytes>> {
        Ok(t.as_strings()?.to_vec())
    }

    fn tensor(_: DType, members: Vec<Bytes>) -> Result<Tensor> {
        let n = members.len();
        Ok(Tensor::strings(members, [n])?)
    }
}

/// Sets by the dimensions before the last.
struct Sets<M> {
    rows: Vec<i64>,
    sets: BTreeMap<Vec<i64>, BTreeSet<M>>,
}

impl<M: Member> Sets<M> {
    fn sparse(
        indices: &Tensor,
        values: &Tensor,
        shape: &Tensor,
        validate: bool,
    ) -> Result<Sets<M>> {
        if shape.rank() != 1 {
            return invalid("Shape must be a 1D tensor.");
        }
        let dims = shape.as_slice::<i64>()?;
        let places = created(indices, values, dims.len())?;
        if validate {
            places.check_order(dims)?;
        }
        if dims.len() < 2 {
            return invalid(format!("Invalid rank {}.", dims.len()));
        }
        let members = M::all(values)?;
        let order: Vec<usize> = (0..places.count).collect();
        let by: Vec<usize> = (0..dims.len() - 1).collect();
        let mut sets = BTreeMap::new();
        for group in groups(places, &order, &by) {
            inside(places, group.clone(), dims)?;
            let key = places.row(group.start)[..dims.len() - 1].to_vec();
            sets.insert(key, members[group].iter().cloned().collect());
        }
        Ok(Sets {
            rows: dims[..dims.len() - 1].to_vec(),
            sets,
        })
    }

    fn dense(t: &Tensor) -> Result<Sets<M>> {
        if t.rank() < 2 {
            return invalid(format!("Shape {} has rank {} < 2", t.shape(), t.rank()));
        }
        let (rows, width) = (&t.dims()[..t.rank() - 1], t.dims()[t.rank() - 1]);
        let members = M::all(t)?;
        let mut sets = BTreeMap::new();
        if width > 0 {
            for (i, row) in members.chunks(width).enumerate() {
                let mut key = vec![0; rows.len()];
                let mut rest = i;
                for (k, &n) in key.iter_mut().zip(rows).rev() {
                    *k = (rest % n) as i64;
                    rest /= n;
                }
                sets.insert(key, row.iter().cloned().collect());
            }
        }
        Ok(Sets {
            rows: rows.iter().map(|&d| d as i64).collect(),
            sets,
        })
    }
}

/// Refuses members outside the shape, which unvalidated places may have.
fn inside(places: Places<'_>, group: std::ops::Range<usize>, dims: &[i64]) -> Result<()> {
    for (i, at) in group.enumerate() {
        for (d, (&at, &n)) in places.row(at).iter().zip(dims).enumerate() {
            if !(0..n).contains(&at) {
                return Err(Status::new(
                    Code::Internal,
                    format!("indices[{i}, {d}] expected < {n}, got {at}."),
                ));
            }
        }
    }
    Ok(())
}

fn sizes<M: Member>(ctx: &mut OpContext<'_>, validate: bool) -> Result<()> {
    let sets = Sets::<M>::sparse(ctx.input(0)?, ctx.input(1)?, ctx.input(2)?, validate)?;
    let shape = crate::args::shape_of(&sets.rows)?;
    let mut out = ctx.zeros(DType::Int32, &shape)?;
    let strides = shape.strides();
    let counts = out.make_mut::<i32>()?;
    for (key, set) in &sets.sets {
        let at: usize = key.iter().zip(&strides).map(|(k, s)| *k as usize * s).sum();
        counts[at] = set.len() as i32;
    }
    ctx.set_output(0, out);
    Ok(())
}

#[derive(Clone, Copy)]
enum Op {
    AMinusB,
    BMinusA,
    Intersection,
    Union,
}

fn operation(b: &KernelBuilder<'_>, dense: [bool; 2]) -> Result<Built> {
    let name = b.attrs().str("set_operation")?;
    let op = match name.to_lowercase().as_str() {
        "a-b" => Op::AMinusB,
        "b-a" => Op::BMinusA,
        "intersection" => Op::Intersection,
        "union" => Op::Union,
        _ => return invalid(format!("Invalid set_operation {name}.")),
    };
    let validate = b.attrs().bool("validate_indices")?;
    let dtype = b.attrs().dtype("T")?;
    Built::cheap(move |ctx| match dtype {
        DType::String => combine::<Bytes>(ctx, op, dense, validate),
        _ => combine::<i64>(ctx, op, dense, validate),
    })
}

fn combine<M: Member>(
    ctx: &mut OpContext<'_>,
    op: Op,
    dense: [bool; 2],
    validate: bool,
) -> Result<()> {
    let mut next = 0;
    let mut read = |is_dense: bool| -> Result<(Sets<M>, DType)> {
        let first = next;
        next += if is_dense { 1 } else { 3 };
        if is_dense {
            let t = ctx.input(first)?;
            return Ok((Sets::dense(t)?, t.dtype()));
        }
        let values = ctx.input(first + 1)?;
        let sets = Sets::sparse(ctx.input(first)?, values, ctx.input(first + 2)?, validate)?;
        Ok((sets, values.dtype()))
    };
    let (a, dtype) = read(dense[0])?;
    let (b, _) = read(dense[1])?;
    if a.rows != b.rows {
        let text = |rows: &[i64]| super::form::joined(rows, ",");
        return invalid(format!(
            "Mismatched shapes [{}] vs [{}]",
            text(&a.rows),
            text(&b.rows)
        ));
    }
    let none = BTreeSet::new();
    let keys: BTreeSet<&Vec<i64>> = a.sets.keys().chain(b.sets.keys()).collect();
    let (mut at, mut members, mut widest) = (Vec::new(), Vec::new(), 0);
    for key in keys {
        let (x, y) = (
            a.sets.get(key).unwrap_or(&none),
            b.sets.get(key).unwrap_or(&none),
        );
        let start = members.len();
        match op {
            Op::AMinusB => members.extend(x.difference(y).cloned()),
            Op::BMinusA => members.extend(y.difference(x).cloned()),
            Op::Intersection => members.extend(x.intersection(y).cloned()),
            Op::Union => members.extend(x.union(y).cloned()),
        }
        let count = members.len() - start;
        widest = widest.max(count);
        for i in 0..count {
            at.extend_from_slice(key);
            at.push(i as i64);
        }
    }
    let mut dims = a.rows;
    dims.push(widest as i64);
    let at = Tensor::from_vec(at, Shape::from([members.len(), dims.len()]))?;
    ctx.set_output(0, at);
    ctx.set_output(1, M::tensor(dtype, members)?);
    ctx.set_output(2, vector(&dims));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn rows_are_combined_as_sets() {
        let run = |name: &str| {
            let a = Tensor::from_vec(vec![1u8, 2, 2, 3, 9, 4], [2, 3]).unwrap();
            let b = Tensor::from_vec(vec![2u8, 7, 3, 4], [2, 2]).unwrap();
            let attrs = [
                ("T", DType::UInt8.into()),
                ("set_operation", name.into()),
                ("validate_indices", true.into()),
            ];
            run_op("DenseToDenseSetOperation", vec![a, b], &attrs)
        };
        let members = |name| run(name).unwrap()[1].as_slice::<u8>().unwrap().to_vec();
        assert_eq!(members("a-b"), [1, 9]);
        assert_eq!(members("b-a"), [7]);
        assert_eq!(members("intersection"), [2, 3, 4]);
        assert_eq!(members("union"), [1, 2, 7, 3, 4, 9]);
        let out = run("b-a").unwrap();
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [0, 0]);
        assert_eq!(out[2].as_slice::<i64>().unwrap(), [2, 1]);
        assert!(
            run("xor")
                .unwrap_err()
                .message
                .starts_with("Invalid set_operation xor.")
        );
    }
}
