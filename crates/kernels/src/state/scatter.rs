//! `Scatter…`: updates rows of a variable by number, in order, so repeats accumulate or the last
//! one stays. A scalar update stands for every element of every row.

use super::arith::{Arith, Ordered};
use super::pass::{Rows, over_rows};
use super::rows::replace_rows;
use super::variable_access::VariableAccess;
use crate::array::position;
use crate::types::{INDEX, NUMBERS, REALS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::{DType, Tensor};

/// What the ref `ScatterUpdate` moves.
const MOVED: &[DType] = &[
    DType::Float,
    DType::Double,
    DType::Half,
    DType::BFloat16,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
    DType::UInt32,
    DType::UInt64,
    DType::Bool,
    DType::Complex64,
    DType::Complex128,
    DType::String,
    DType::Variant,
    DType::Resource,
];

/// What `ResourceScatterUpdate` moves: no handles.
const MOVED_BY_HANDLE: &[DType] = MOVED.split_at(MOVED.len() - 1).0;

pub(super) fn register(r: &mut Registry) {
    r.add_typed(
        "ScatterUpdate",
        &[("T", MOVED), ("Tindices", INDEX)],
        replace,
    );
    r.add_typed(
        "ResourceScatterUpdate",
        &[("dtype", MOVED_BY_HANDLE), ("Tindices", INDEX)],
        replace,
    );
    let by_ref = [("T", NUMBERS), ("Tindices", INDEX)];
    let by_handle = [("dtype", NUMBERS), ("Tindices", INDEX)];
    r.add_typed("ScatterAdd", &by_ref, add);
    r.add_typed("ResourceScatterAdd", &by_handle, add);
    r.add_typed("ScatterSub", &by_ref, sub);
    r.add_typed("ResourceScatterSub", &by_handle, sub);
    r.add_typed("ScatterMul", &by_ref, mul);
    r.add_typed("ResourceScatterMul", &by_handle, mul);
    r.add_typed("ScatterDiv", &by_ref, div);
    r.add_typed("ResourceScatterDiv", &by_handle, div);
    let by_ref = [("T", REALS), ("Tindices", INDEX)];
    let by_handle = [("dtype", REALS), ("Tindices", INDEX)];
    r.add_typed("ScatterMin", &by_ref, min);
    r.add_typed("ResourceScatterMin", &by_handle, min);
    r.add_typed("ScatterMax", &by_ref, max);
    r.add_typed("ResourceScatterMax", &by_handle, max);
}

fn add(b: &KernelBuilder<'_>) -> Result<Built> {
    with_type!(b.input_type(2)?, T in numbers => arithmetic::<T>(b, T::plus))
}

fn sub(b: &KernelBuilder<'_>) -> Result<Built> {
    with_type!(b.input_type(2)?, T in numbers => arithmetic::<T>(b, T::minus))
}

fn mul(b: &KernelBuilder<'_>) -> Result<Built> {
    with_type!(b.input_type(2)?, T in numbers => arithmetic::<T>(b, T::times))
}

fn div(b: &KernelBuilder<'_>) -> Result<Built> {
    with_type!(b.input_type(2)?, T in numbers => arithmetic::<T>(b, T::over))
}

fn min(b: &KernelBuilder<'_>) -> Result<Built> {
    with_type!(b.input_type(2)?, T in reals => arithmetic::<T>(b, T::least))
}

fn max(b: &KernelBuilder<'_>) -> Result<Built> {
    with_type!(b.input_type(2)?, T in reals => arithmetic::<T>(b, T::greatest))
}

fn arithmetic<T: Arith>(
    b: &KernelBuilder<'_>,
    f: impl Fn(T, T) -> T + Copy + Send + Sync + 'static,
) -> Result<Built> {
    let dtype = T::DTYPE;
    let divides = b.node.op_name().ends_with("Div");
    // By reference TensorFlow lets floats divide by zero and dies of an integer that does.
    let refuse_zero = divides
        && (VariableAccess::of(b) == VariableAccess::Resource
            || crate::types::INTS.contains(&dtype));
    let access = VariableAccess::of(b);
    Built::cheap(move |ctx| {
        access.update(ctx, |ctx, target| {
            let (indices, updates) = (ctx.input(1)?, ctx.input(2)?);
            check_shapes(access, target, indices, updates)?;
            if refuse_zero && updates.as_slice::<T>()?.contains(&T::default()) {
                return Err(Status::invalid_argument("updates must not contain 0"));
            }
            let (rows, bad) = checked_rows(target, indices, updates)?;
            let inner = row_len(target);
            let is_scalar = updates.rank() == 0;
            let (dst, src) = (target.make_mut::<T>()?, updates.as_slice::<T>()?);
            if is_scalar {
                for row in rows {
                    let dst = &mut dst[row * inner..(row + 1) * inner];
                    dst.iter_mut().for_each(|d| *d = f(*d, src[0]));
                }
            } else {
                let at = Rows { rows: &rows, inner };
                over_rows([dst], &at, src, |[dst], src| {
                    dst.iter_mut().zip(src).for_each(|(d, s)| *d = f(*d, *s));
                });
            }
            bad.map_or(Ok(()), Err)
        })
    })
}

fn replace(b: &KernelBuilder<'_>) -> Result<Built> {
    let access = VariableAccess::of(b);
    Built::cheap(move |ctx| {
        access.update(ctx, |ctx, target| {
            let (indices, updates) = (ctx.input(1)?, ctx.input(2)?);
            check_shapes(access, target, indices, updates)?;
            let (rows, bad) = checked_rows(target, indices, updates)?;
            let inner = row_len(target);
            match target.dtype().size() {
                Some(size) if updates.rank() > 0 => {
                    let mixed = || Status::internal("a variable and its update differ in kind");
                    let src = updates.buffer().ok_or_else(mixed)?.as_bytes();
                    let dst = target.buffer_mut().ok_or_else(mixed)?;
                    let inner = inner * size;
                    let at = Rows { rows: &rows, inner };
                    over_rows([dst], &at, src, |[dst], src| dst.copy_from_slice(src));
                }
                _ => replace_rows(target, inner, rows.iter().map(|&r| Some(r)), updates)?,
            }
            bad.map_or(Ok(()), Err)
        })
    })
}

/// Elements of a row; a scalar is one row.
fn row_len(target: &Tensor) -> usize {
    target.dims().iter().skip(1).product()
}

/// What TensorFlow checks before it looks at the indices.
fn check_shapes(
    access: VariableAccess,
    target: &Tensor,
    indices: &Tensor,
    updates: &Tensor,
) -> Result<()> {
    if target.dtype() != updates.dtype() {
        return Err(Status::invalid_argument(
            "DType of scatter resource and updates does not match.",
        ));
    }
    if access == VariableAccess::Ref && target.rank() == 0 {
        return Err(Status::invalid_argument(format!(
            "params must be at least 1-D, got shape {}",
            target.shape()
        )));
    }
    let ranks = updates.rank() + 1 == indices.rank() + target.rank();
    let dims = || {
        updates
            .dims()
            .iter()
            .eq(indices.dims().iter().chain(&target.dims()[1..]))
    };
    let fits = updates.rank() == 0
        || match access {
            VariableAccess::Ref => ranks && dims(),
            // By handle the sizes are compared later, and not at all without indices.
            VariableAccess::Resource => ranks,
        };
    if fits {
        Ok(())
    } else {
        Err(wrong_shapes(target, indices, updates))
    }
}

fn wrong_shapes(target: &Tensor, indices: &Tensor, updates: &Tensor) -> Status {
    Status::invalid_argument(format!(
        "Must have updates.shape = indices.shape + params.shape[1:] or updates.shape = [], got updates.shape {}, indices.shape {}, params.shape {}",
        updates.shape(),
        indices.shape(),
        target.shape()
    ))
}

/// The rows that `indices` names, once the sizes are known to fit, up to the first that does not
/// exist, and what is wrong with that one: as in TensorFlow, the rows before it are updated.
fn checked_rows(
    target: &Tensor,
    indices: &Tensor,
    updates: &Tensor,
) -> Result<(Vec<usize>, Option<Status>)> {
    if indices.num_elements() == 0 {
        return Ok((Vec::new(), None));
    }
    if updates.rank() > 0 {
        if !updates.dims().starts_with(indices.dims()) {
            return Err(Status::invalid_argument(format!(
                "The shape of indices ({}) must be a prefix of the shape of updates ({})",
                indices.shape(),
                updates.shape()
            )));
        }
        // TensorFlow reads past the rows of the update here.
        if updates.num_elements() != indices.num_elements() * row_len(target) {
            return Err(wrong_shapes(target, indices, updates));
        }
    }
    let limit = target.dims().first().copied().unwrap_or(1);
    let mut rows = Vec::with_capacity(indices.num_elements());
    for (k, i) in crate::args::ints(indices)?.into_iter().enumerate() {
        match usize::try_from(i) {
            Ok(row) if row < limit => rows.push(row),
            _ => {
                let bad = Status::invalid_argument(format!(
                    "indices{} = {i} is not in [0, {limit})",
                    position(indices.dims(), k)
                ));
                return Ok((rows, Some(bad)));
            }
        }
    }
    Ok((rows, None))
}

#[cfg(test)]
mod tests {
    use crate::state::testing::{Bench, by_handle, by_reference};
    use downpour_graph::Result;
    use downpour_tensor::{DType, Tensor};

    fn run(op: &str, is_resource: bool, indices: &[i32], updates: Tensor) -> Result<Vec<f32>> {
        let name = format!("Resource{op}");
        let entry = if is_resource {
            by_handle("", &name)
        } else {
            by_reference(op, "")
        };
        let b = Bench::new(entry, DType::Float);
        let value = (0..6).map(|x| x as f32).collect();
        b.set(0, Tensor::from_vec(value, [3, 2])?);
        b.run(vec![Tensor::vector(indices.to_vec()), updates])?;
        Ok(b.get(0))
    }

    fn rows(values: &[f32]) -> Tensor {
        Tensor::from_vec(values.to_vec(), [values.len() / 2, 2]).unwrap()
    }

    #[test]
    fn rows_are_updated_in_order() {
        let expected: [(&str, [f32; 6]); 7] = [
            ("ScatterUpdate", [3.0, 4.0, 2.0, 3.0, 5.0, 6.0]),
            ("ScatterAdd", [4.0, 7.0, 2.0, 3.0, 9.0, 11.0]),
            ("ScatterSub", [-4.0, -5.0, 2.0, 3.0, -1.0, -1.0]),
            ("ScatterMul", [0.0, 8.0, 2.0, 3.0, 20.0, 30.0]),
            ("ScatterDiv", [0.0, 0.125, 2.0, 3.0, 0.8, 5.0 / 6.0]),
            ("ScatterMin", [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
            ("ScatterMax", [3.0, 4.0, 2.0, 3.0, 5.0, 6.0]),
        ];
        for by_handle in [false, true] {
            for (op, want) in expected {
                let updates = rows(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
                let got = run(op, by_handle, &[0, 0, 2], updates).unwrap();
                assert_eq!(got, want, "{op}");
            }
            let got = run("ScatterUpdate", by_handle, &[2], Tensor::scalar(7.0f32)).unwrap();
            assert_eq!(got, [0.0, 1.0, 2.0, 3.0, 7.0, 7.0]);
        }
    }

    #[test]
    fn many_rows_are_updated_in_order_too() {
        let (count, width, n) = (50, 64, 4096);
        let at: Vec<i32> = (0..n).map(|k| (k * 37 + k / 7) % count).collect();
        let updates: Vec<f32> = (0..n * width).map(|i| (i % 101) as f32 - 50.0).collect();
        for (op, f) in [
            ("ScatterUpdate", (|_, s| s) as fn(f32, f32) -> f32),
            ("ScatterSub", |d, s| d - s),
        ] {
            let b = Bench::new(by_reference(op, ""), DType::Float);
            let mut want = vec![1.0f32; (count * width) as usize];
            let shape = [count as usize, width as usize];
            b.set(0, Tensor::from_vec(want.clone(), shape).unwrap());
            for (k, row) in at.iter().enumerate() {
                for i in 0..width as usize {
                    let d = &mut want[*row as usize * width as usize + i];
                    *d = f(*d, updates[k * width as usize + i]);
                }
            }
            let shape = [n as usize, width as usize];
            let updates = Tensor::from_vec(updates.clone(), shape).unwrap();
            b.run(vec![Tensor::vector(at.clone()), updates]).unwrap();
            assert_eq!(b.get::<f32>(0), want, "{op}");
        }
    }

    #[test]
    fn wrong_indices_and_shapes_are_refused() {
        for by_handle in [false, true] {
            let text = |indices: &[i32], updates| {
                let e = run("ScatterAdd", by_handle, indices, updates).unwrap_err();
                e.message.lines().next().unwrap().to_owned()
            };
            assert_eq!(
                text(&[0, 3], rows(&[1.0; 4])),
                "indices[1] = 3 is not in [0, 3)"
            );
            assert_eq!(
                text(&[-1], rows(&[1.0; 2])),
                "indices[0] = -1 is not in [0, 3)"
            );
            let want = "Must have updates.shape = indices.shape + params.shape[1:] or updates.shape = [], got updates.shape [2,3], indices.shape [2], params.shape [3,2]";
            let wide = Tensor::from_vec(vec![1.0f32; 6], [2, 3]).unwrap();
            assert_eq!(text(&[0, 2], wide), want);
        }
        let e = run("ScatterDiv", true, &[0], rows(&[1.0, 0.0])).unwrap_err();
        assert!(e.message.starts_with("updates must not contain 0"));
        let e = run("ScatterAdd", true, &[0, 1], rows(&[1.0, 0.0])).unwrap_err();
        assert!(
            e.message.starts_with(
                "The shape of indices ([2]) must be a prefix of the shape of updates ([1,2])"
            ),
            "{}",
            e.message
        );
    }
}
