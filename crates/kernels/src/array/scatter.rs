//! Writing by index: `ScatterNd` and the `TensorScatter…` ops. Tuples are applied in their order,
//! so duplicates accumulate, or the last one stays.

use super::dtypes::{COMMON, COMMON_AND_STRING};
use super::gather::{BadIndices, Tuples, split_last};
use crate::args::{ints, shape_of};
use crate::state::pass::{Rows, over_rows};
use crate::types::{INDEX, NUMBERS, REALS, with_type};
use bytes::{Bytes, BytesMut};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::{DType, Element, Shape, Tensor};
use std::ops::{Add, Sub};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed(
        "ScatterNd",
        &[("T", COMMON_AND_STRING), ("Tindices", INDEX)],
        scatter_nd,
    );
    r.add_typed(
        "TensorScatterUpdate",
        &[("T", COMMON_AND_STRING), ("Tindices", INDEX)],
        |b| tensor_scatter(b, Op::Update),
    );
    let numbers = [("T", NUMBERS), ("Tindices", INDEX)];
    r.add_typed("TensorScatterAdd", &numbers, |b| tensor_scatter(b, Op::Add));
    r.add_typed("TensorScatterSub", &numbers, |b| tensor_scatter(b, Op::Sub));
    let reals = [("T", REALS), ("Tindices", INDEX)];
    r.add_typed("TensorScatterMin", &reals, |b| tensor_scatter(b, Op::Min));
    r.add_typed("TensorScatterMax", &reals, |b| tensor_scatter(b, Op::Max));
    r.add_typed(
        "ScatterNdNonAliasingAdd",
        &[("T", COMMON), ("Tindices", INDEX)],
        non_aliasing_add,
    );
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Op {
    Update,
    Add,
    Sub,
    Min,
    Max,
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn at_least_vector(indices: &Tensor, updates: &Tensor) -> Result<()> {
    for (name, t) in [("Indices", indices), ("Updates", updates)] {
        if t.rank() == 0 {
            return invalid(format!(
                "{name} shape must have rank at least one. Found:{}",
                t.shape()
            ));
        }
    }
    Ok(())
}

fn scatter_nd(b: &KernelBuilder<'_>) -> Result<Built> {
    let bad = BadIndices::of(b)?;
    Built::cheap(move |ctx| {
        let (indices, updates, shape) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
        at_least_vector(indices, updates)?;
        if shape.rank() != 1 {
            return invalid("Shape must be a vector".to_owned());
        }
        let dims = ints(shape)?;
        let empty = dims.is_empty();
        let shape = shape_of(&dims)?;
        if empty && (indices.num_elements() != 0 || updates.num_elements() != 0) {
            return invalid("Indices and updates specified for empty output shape".to_owned());
        }
        check_parts(&shape, indices, updates)?;
        let out = ctx.zeros(updates.dtype(), &shape)?;
        let out = scattered(out, indices, updates, Op::Add, bad)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The shape checks of `ScatterNd`.
fn check_parts(shape: &Shape, indices: &Tensor, updates: &Tensor) -> Result<()> {
    let Some((outer, depth)) = split_last(indices) else {
        return Ok(());
    };
    if shape.num_elements() == 0 && indices.num_elements() > 0 && updates.num_elements() > 0 {
        return invalid(format!(
            "Indices and updates specified for empty output.  indices shape: {}",
            indices.shape()
        ));
    }
    let n = outer.len();
    if updates.rank() < n || updates.dims()[..n] != outer[..] {
        return invalid(format!(
            "Dimensions [0,{n}) of indices[shape={}] must match dimensions [0,{n}) of updates[shape={}]",
            indices.shape(),
            updates.shape()
        ));
    }
    if depth > shape.rank() || shape[depth..] != updates.dims()[n..] {
        return invalid(format!(
            "Dimensions [{depth},{}) of input[shape={shape}] must match dimensions [{n},{}) of updates[shape={}]",
            shape.rank(),
            updates.rank(),
            updates.shape()
        ));
    }
    Ok(())
}

fn non_aliasing_add(b: &KernelBuilder<'_>) -> Result<Built> {
    let bad = BadIndices::of(b)?;
    Built::cheap(move |ctx| {
        let (indices, updates) = (ctx.input(1)?, ctx.input(2)?);
        at_least_vector(indices, updates)?;
        let shape = ctx.input(0)?.shape().clone();
        if shape.num_elements() == 0 && indices.num_elements() > 0 {
            return invalid(format!(
                "Indices and updates specified for empty output.  indices shape: {}",
                indices.shape()
            ));
        }
        if let Some((outer, depth)) = split_last(indices) {
            let n = outer.len();
            for i in 0..n.min(updates.rank()) {
                if updates.dims()[i] != outer[i] {
                    return invalid(format!(
                        "Dimensions [0,{n}) of indices[shape={}] = {} must match dimensions [0,{n}) of updates[shape={}] = {}",
                        indices.shape(),
                        outer[i],
                        updates.shape(),
                        updates.dims()[i]
                    ));
                }
            }
            let matches = depth <= shape.rank()
                && updates.rank() >= n
                && shape[depth..] == updates.dims()[n..];
            if !matches {
                return invalid(format!(
                    "Dimensions [{depth},{}) of input[shape={shape}] must match dimensions [{depth},{}) of updates[shape={}]",
                    shape.rank(),
                    updates.rank(),
                    updates.shape()
                ));
            }
        }
        let input = ctx.take(0)?;
        let (indices, updates) = (ctx.input(1)?, ctx.input(2)?);
        let out = scattered(input, indices, updates, Op::Add, bad)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn tensor_scatter(b: &KernelBuilder<'_>, op: Op) -> Result<Built> {
    let bad = BadIndices::of(b)?;
    Built::cheap(move |ctx| {
        let (indices, updates) = (ctx.input(1)?, ctx.input(2)?);
        at_least_vector(indices, updates)?;
        let shape = ctx.input(0)?.shape().clone();
        let Some((outer, depth)) = split_last(indices) else {
            return invalid("Indices shape must have rank at least one. Found:[]".to_owned());
        };
        if (shape.num_elements() == 0 || indices.num_elements() == 0) && updates.num_elements() != 0
        {
            return invalid("Indices and updates specified for empty output shape".to_owned());
        }
        let n = outer.len();
        if updates.rank() < n || updates.dims()[..n] != outer[..] {
            return invalid(format!(
                "Outer dimensions of indices and update must match. Indices shape: {}, updates shape:{}",
                indices.shape(),
                updates.shape()
            ));
        }
        let inner = updates.rank() - n;
        if depth + inner == shape.rank() && shape[depth..] != updates.dims()[n..] {
            return invalid(format!(
                "The inner {inner} dimensions of output.shape={shape} must match the inner {inner} dimensions of updates.shape={}",
                updates.shape()
            ));
        }
        if depth + inner != shape.rank() {
            return invalid(format!(
                "Inner dimensions of output shape must match inner dimensions of updates shape. Output: {shape} updates: {}",
                updates.shape()
            ));
        }
        let input = ctx.take(0)?;
        let (indices, updates) = (ctx.input(1)?, ctx.input(2)?);
        let out = scattered(input, indices, updates, op, bad)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// `out` with `updates` applied at `indices`; the shapes have been checked.
fn scattered(
    mut out: Tensor,
    indices: &Tensor,
    updates: &Tensor,
    op: Op,
    bad: BadIndices,
) -> Result<Tensor> {
    let tuples = Tuples::new(indices, out.dims())?;
    if bad == BadIndices::Refuse
        && let Some(text) = tuples.first_bad(indices)?
    {
        return invalid(format!("{text} does not index into shape {}", out.shape()));
    }
    match (out.dtype(), op) {
        (DType::String, _) => {
            let dst = out.make_mut_strings()?;
            let src = updates.as_strings()?;
            apply(dst, src, &tuples, |d, s| {
                if op == Op::Update || d.is_empty() {
                    *d = s.clone();
                } else {
                    *d = joined(d, s);
                }
            });
        }
        (DType::Bool, _) => {
            let src = updates.as_slice::<bool>()?;
            apply(out.make_mut::<bool>()?, src, &tuples, |d, s| {
                *d = *s || (op != Op::Update && *d);
            });
        }
        (dtype, Op::Update) => with_type!(dtype, T in numbers => {
            each::<T>(&mut out, updates, &tuples, |_, s| s)?;
        }),
        (dtype, Op::Add) => with_type!(dtype, T in numbers => {
            each::<T>(&mut out, updates, &tuples, <T as Sum>::plus)?;
        }),
        (dtype, Op::Sub) => with_type!(dtype, T in numbers => {
            each::<T>(&mut out, updates, &tuples, <T as Sum>::minus)?;
        }),
        (dtype, Op::Min) => with_type!(dtype, T in reals => {
            each::<T>(&mut out, updates, &tuples, |d, s| if s < d { s } else { d })?;
        }),
        (dtype, Op::Max) => with_type!(dtype, T in reals => {
            each::<T>(&mut out, updates, &tuples, |d, s| if s > d { s } else { d })?;
        }),
    }
    Ok(out)
}

fn joined(a: &Bytes, b: &Bytes) -> Bytes {
    let mut out = BytesMut::with_capacity(a.len() + b.len());
    out.extend_from_slice(a);
    out.extend_from_slice(b);
    out.freeze()
}

fn each<T: Element>(
    out: &mut Tensor,
    updates: &Tensor,
    tuples: &Tuples,
    f: impl Fn(T, T) -> T + Sync,
) -> Result<()> {
    let src = updates.as_slice::<T>()?;
    apply(out.make_mut::<T>()?, src, tuples, |d, s| *d = f(*d, *s));
    Ok(())
}

fn apply<T: Send + Sync>(dst: &mut [T], src: &[T], tuples: &Tuples, f: impl Fn(&mut T, &T) + Sync) {
    let n = tuples.slice;
    if n == 0 {
        return;
    }
    // A slice that is skipped is rare: all there is to gain is in the common case.
    let rows: Option<Vec<usize>> = tuples.slices.iter().copied().collect();
    if let Some(rows) = rows {
        let at = Rows {
            rows: &rows,
            inner: n,
        };
        return over_rows([dst], &at, src, |[dst], src| {
            dst.iter_mut().zip(src).for_each(|(d, s)| f(d, s));
        });
    }
    for (at, row) in tuples.slices.iter().zip(src.chunks_exact(n)) {
        if let Some(at) = at {
            dst[at * n..(at + 1) * n]
                .iter_mut()
                .zip(row)
                .for_each(|(d, s)| f(d, s));
        }
    }
}

/// Addition and subtraction as the hardware does them: integers wrap.
pub(crate) trait Sum: Copy {
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
}

macro_rules! sums {
    (wrapping $($t:ty),*) => {
        $(impl Sum for $t {
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            fn minus(self, other: Self) -> Self { self.wrapping_sub(other) }
        })*
    };
    (exact $($t:ty),*) => {
        $(impl Sum for $t {
            fn plus(self, other: Self) -> Self { Add::add(self, other) }
            fn minus(self, other: Self) -> Self { Sub::sub(self, other) }
        })*
    };
}
sums!(wrapping i8, i16, i32, i64, u8, u16, u32, u64);
sums!(exact f32, f64, half::f16, half::bf16, num_complex::Complex32, num_complex::Complex64);

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::Result;
    use downpour_tensor::{DType, Tensor};

    fn column(values: &[i32]) -> Tensor {
        Tensor::from_vec(values.to_vec(), [values.len(), 1]).unwrap()
    }

    fn run(op: &str, at: &[i32]) -> Result<Vec<f32>> {
        let attrs = [
            ("T", DType::Float.into()),
            ("Tindices", DType::Int32.into()),
        ];
        let inputs = vec![
            floats(&[0.0, 1.0, 2.0, 3.0]),
            column(at),
            floats(&[5.0, 6.0]),
        ];
        Ok(run_op(op, inputs, &attrs)?[0].as_slice::<f32>()?.to_vec())
    }

    #[test]
    fn duplicates_apply_in_order() {
        assert_eq!(
            run("TensorScatterUpdate", &[1, 1]).unwrap(),
            [0.0, 6.0, 2.0, 3.0]
        );
        assert_eq!(
            run("TensorScatterAdd", &[1, 1]).unwrap(),
            [0.0, 12.0, 2.0, 3.0]
        );
        assert_eq!(
            run("TensorScatterSub", &[1, 1]).unwrap(),
            [0.0, -10.0, 2.0, 3.0]
        );
        assert_eq!(
            run("TensorScatterMin", &[1, 1]).unwrap(),
            [0.0, 1.0, 2.0, 3.0]
        );
        assert_eq!(
            run("TensorScatterMax", &[1, 1]).unwrap(),
            [0.0, 6.0, 2.0, 3.0]
        );
        let e = run("TensorScatterAdd", &[1, 4]).unwrap_err();
        assert!(
            e.message
                .starts_with("indices[1] = [4] does not index into shape [4]")
        );
    }

    #[test]
    fn scattering_into_nothing_names_the_shapes() {
        let attrs = [
            ("T", DType::Float.into()),
            ("Tindices", DType::Int32.into()),
        ];
        let inputs = vec![
            column(&[0, 1]),
            floats(&[1.0; 3]),
            Tensor::vector(vec![4i32]),
        ];
        let e = run_op("ScatterNd", inputs, &attrs).unwrap_err();
        assert!(e.message.starts_with(
            "Dimensions [0,1) of indices[shape=[2,1]] must match dimensions [0,1) of updates[shape=[3]]"
        ), "{}", e.message);
        let attrs = [
            ("T", DType::String.into()),
            ("Tindices", DType::Int32.into()),
        ];
        let words = Tensor::strings(vec!["a".into(), "b".into()], [2]).unwrap();
        let inputs = vec![column(&[0, 0]), words, Tensor::vector(vec![2i32])];
        let out = run_op("ScatterNd", inputs, &attrs).unwrap();
        assert_eq!(out[0].as_strings().unwrap(), ["ab", ""]);
    }
}
