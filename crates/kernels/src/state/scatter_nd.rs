//! `ScatterNd…` on variables: updates slices named by index tuples, in order.

use super::arith::{Arith, Ordered};
use super::rows::replace_rows;
use super::variable_access::VariableAccess;
use crate::array::{BadIndices, COMMON, COMMON_AND_STRING, Tuples};
use crate::types::{INDEX, REALS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::{DType, Shape, Tensor};

pub(super) fn register(r: &mut Registry) {
    let moved = [("T", COMMON_AND_STRING), ("Tindices", INDEX)];
    let common = [("T", COMMON), ("Tindices", INDEX)];
    let reals = [("T", REALS), ("Tindices", INDEX)];
    r.add_typed("ScatterNdUpdate", &moved, replace);
    r.add_typed("ResourceScatterNdUpdate", &moved, replace);
    r.add_typed("ScatterNdAdd", &common, add);
    r.add_typed("ResourceScatterNdAdd", &common, add);
    r.add_typed("ScatterNdSub", &common, sub);
    r.add_typed("ResourceScatterNdSub", &common, sub);
    r.add_typed("ScatterNdMin", &reals, min);
    r.add_typed("ResourceScatterNdMin", &reals, min);
    r.add_typed("ScatterNdMax", &reals, max);
    r.add_typed("ResourceScatterNdMax", &reals, max);
}

fn add(b: &KernelBuilder<'_>) -> Result<Built> {
    match b.input_type(2)? {
        DType::Bool => combine::<bool>(b, |d, s| d | s),
        dtype => with_type!(dtype, T in numbers => combine::<T>(b, T::plus)),
    }
}

fn sub(b: &KernelBuilder<'_>) -> Result<Built> {
    match b.input_type(2)? {
        DType::Bool => combine::<bool>(b, |d, s| d ^ s),
        dtype => with_type!(dtype, T in numbers => combine::<T>(b, T::minus)),
    }
}

fn min(b: &KernelBuilder<'_>) -> Result<Built> {
    with_type!(b.input_type(2)?, T in reals => combine::<T>(b, T::least))
}

fn max(b: &KernelBuilder<'_>) -> Result<Built> {
    with_type!(b.input_type(2)?, T in reals => combine::<T>(b, T::greatest))
}

fn combine<T: downpour_tensor::Element>(
    b: &KernelBuilder<'_>,
    f: impl Fn(T, T) -> T + Copy + Send + Sync + 'static,
) -> Result<Built> {
    let (access, bad) = (VariableAccess::of(b), BadIndices::of(b)?);
    Built::cheap(move |ctx| {
        access.update(ctx, |ctx, target| {
            let (indices, updates) = (ctx.input(1)?, ctx.input(2)?);
            let (tuples, bad) = checked(target, indices, updates, bad)?;
            let n = tuples.slice.max(1);
            let (dst, src) = (target.make_mut::<T>()?, updates.as_slice::<T>()?);
            for (at, src) in tuples.slices.iter().zip(src.chunks_exact(n)) {
                if let Some(at) = at {
                    let dst = &mut dst[at * n..(at + 1) * n];
                    dst.iter_mut().zip(src).for_each(|(d, s)| *d = f(*d, *s));
                }
            }
            bad.map_or(Ok(()), Err)
        })
    })
}

fn replace(b: &KernelBuilder<'_>) -> Result<Built> {
    let (access, bad) = (VariableAccess::of(b), BadIndices::of(b)?);
    Built::cheap(move |ctx| {
        access.update(ctx, |ctx, target| {
            let (indices, updates) = (ctx.input(1)?, ctx.input(2)?);
            let (tuples, bad) = checked(target, indices, updates, bad)?;
            replace_rows(target, tuples.slice, tuples.slices.into_iter(), updates)?;
            bad.map_or(Ok(()), Err)
        })
    })
}

/// The slices to update, once shapes are known to fit, and what is wrong with an index outside:
/// as in TensorFlow, all others take effect first.
fn checked(
    target: &Tensor,
    indices: &Tensor,
    updates: &Tensor,
    bad: BadIndices,
) -> Result<(Tuples, Option<Status>)> {
    if target.dtype() != updates.dtype() {
        return Err(Status::invalid_argument(
            "DType of scatter resource and updates does not match.",
        ));
    }
    check_shapes(target.shape(), indices, updates)?;
    let first;
    let mut indices = indices;
    if indices.rank() == 1 {
        // TensorFlow takes a vector for one tuple, of which it only uses the first index.
        let count = indices.num_elements().min(1);
        let start = indices.rows(0, count);
        let start = start.ok_or_else(|| Status::internal("a vector has no first element"))?;
        first = start.reshaped([count, 1])?;
        indices = &first;
    }
    let tuples = Tuples::new(indices, target.dims())?;
    let error = match bad {
        BadIndices::Ignore => None,
        BadIndices::Refuse => tuples.last_bad(indices)?.map(|text| {
            Status::invalid_argument(format!(
                "{text} does not index into shape {}",
                target.shape()
            ))
        }),
    };
    Ok((tuples, error))
}

fn check_shapes(target: &Shape, indices: &Tensor, updates: &Tensor) -> Result<()> {
    let fail = |text: String| Err(Status::invalid_argument(text));
    if target.rank() == 0 {
        return fail(format!("Output must be at least 1-D, got shape: {target}"));
    }
    let counts = [
        target.num_elements(),
        indices.num_elements(),
        updates.num_elements(),
    ];
    if counts[1..] != [0, 0] && counts.contains(&0) {
        return fail(format!(
            "Indices and updates specified for empty output.  indices shape: {}",
            indices.shape()
        ));
    }
    let (ind, upd) = (indices.dims(), updates.dims());
    let (wanted, given) = (indices.shape(), updates.shape());
    if ind.first() != upd.first() || ind.is_empty() {
        // TensorFlow prints whatever lies beyond the dimensions of a scalar.
        let size = |dims: &[usize]| dims.first().copied().unwrap_or(0);
        return fail(format!(
            "Dimensions [0,1) of indices[shape={wanted}] = {} must match dimensions [0,1) of updates[shape={given}] = {}",
            size(ind),
            size(upd)
        ));
    }
    // One tuple may stand alone, as a vector; its update still has a first dimension.
    let (depth, batch) = if ind.len() > 1 {
        (ind[ind.len() - 1], ind.len() - 1)
    } else {
        (1, 1)
    };
    if upd.len() < batch || upd[..batch] != ind[..batch] {
        return fail(format!(
            "Dimensions [0,{batch}) of indices[shape={wanted}] must match dimensions [0,{batch}) of updates[shape={given}]"
        ));
    }
    let tail = target.dims().get(depth..);
    if tail != Some(&upd[batch..]) {
        return fail(format!(
            "Dimensions [{depth},{}) of input[shape={target}] must match dimensions [{depth},{}) of updates[shape={given}]",
            target.rank(),
            upd.len()
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::state::testing::{Bench, by_handle, by_reference};
    use downpour_graph::Result;
    use downpour_tensor::{DType, Tensor};

    fn run(op: &str, is_resource: bool, indices: Tensor, updates: Tensor) -> Result<Vec<f32>> {
        let name = format!("Resource{op}");
        let entry = if is_resource {
            by_handle("", &name)
        } else {
            by_reference(op, "")
        };
        let b = Bench::new(entry, DType::Float);
        let value = (0..6).map(|x| x as f32).collect();
        b.set(0, Tensor::from_vec(value, [3, 2])?);
        b.run(vec![indices, updates])?;
        Ok(b.get(0))
    }

    fn at(values: &[i32], depth: usize) -> Tensor {
        Tensor::from_vec(values.to_vec(), [values.len() / depth, depth]).unwrap()
    }

    #[test]
    fn slices_and_elements_are_updated_in_order() {
        let expected: [(&str, [f32; 6]); 5] = [
            ("ScatterNdUpdate", [0.0, 4.0, 2.0, 3.0, 3.0, 5.0]),
            ("ScatterNdAdd", [0.0, 6.0, 2.0, 3.0, 7.0, 5.0]),
            ("ScatterNdSub", [0.0, -4.0, 2.0, 3.0, 1.0, 5.0]),
            ("ScatterNdMin", [0.0, 1.0, 2.0, 3.0, 3.0, 5.0]),
            ("ScatterNdMax", [0.0, 4.0, 2.0, 3.0, 4.0, 5.0]),
        ];
        for by_handle in [false, true] {
            for (op, want) in expected {
                let updates = Tensor::vector(vec![1.0f32, 3.0, 4.0]);
                let got = run(op, by_handle, at(&[0, 1, 2, 0, 0, 1], 2), updates).unwrap();
                assert_eq!(got, want, "{op}");
            }
            let updates = Tensor::from_vec(vec![8.0f32, 9.0], [1, 2]).unwrap();
            let got = run("ScatterNdUpdate", by_handle, at(&[1], 1), updates).unwrap();
            assert_eq!(got, [0.0, 1.0, 8.0, 9.0, 4.0, 5.0]);
        }
    }

    #[test]
    fn the_last_index_out_of_range_is_named() {
        let rows = |n: usize| Tensor::from_vec(vec![1.0f32; 2 * n], [n, 2]).unwrap();
        let text = |indices, updates| {
            let e = run("ScatterNdAdd", false, indices, updates).unwrap_err();
            e.message.lines().next().unwrap().to_owned()
        };
        assert_eq!(
            text(at(&[7, 8, 0], 1), rows(3)),
            "indices[1] = [8] does not index into shape [3,2]"
        );
        assert_eq!(
            text(at(&[0, 1], 1), rows(1)),
            "Dimensions [0,1) of indices[shape=[2,1]] = 2 must match dimensions [0,1) of updates[shape=[1,2]] = 1"
        );
        assert_eq!(
            text(at(&[0, 0, 0], 3), Tensor::vector(vec![1.0f32])),
            "Dimensions [3,2) of input[shape=[3,2]] must match dimensions [3,1) of updates[shape=[1]]"
        );
    }
}
