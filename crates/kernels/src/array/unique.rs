//! Sets: `Unique` and its relatives, `ListDiff`.
//!
//! Values are told apart as `==` does: NaN equals nothing, 0.0 equals -0.0. Hashing therefore goes
//! by a key that maps equal values to equal keys, and NaNs never meet.

use super::dtypes::{LIST_DIFF, UNIQUE};
use super::units::{Unit, with_unit};
use crate::args::{axis as wrap, ints};
use crate::types::INDEX;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Dims, Shape, Tensor};
use num_complex::{Complex32, Complex64};
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};

pub(crate) fn register(r: &mut Registry) {
    for op in [
        "Unique",
        "UniqueV2",
        "UniqueWithCounts",
        "UniqueWithCountsV2",
    ] {
        r.add_typed(op, &[("T", UNIQUE), ("out_idx", INDEX)], unique);
    }
    r.add_typed(
        "ListDiff",
        &[("T", LIST_DIFF), ("out_idx", INDEX)],
        list_diff,
    );
}

fn invalid<T>(text: &str) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// A value's identity in a set; `None` for NaN, which is in no set.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Bits(u64),
    Text(Bytes),
}

/// The identities of all elements.
pub(super) fn keys(t: &Tensor) -> Result<Vec<Option<Key>>> {
    fn floats(values: impl Iterator<Item = f64>) -> Vec<Option<Key>> {
        // Adding zero turns -0.0 into 0.0.
        values
            .map(|v| (!v.is_nan()).then(|| Key::Bits((v + 0.0).to_bits())))
            .collect()
    }
    Ok(match t.dtype() {
        DType::Float => floats(t.as_slice::<f32>()?.iter().map(|&v| v.into())),
        DType::Double => floats(t.as_slice::<f64>()?.iter().copied()),
        DType::Half => floats(t.as_slice::<half::f16>()?.iter().map(|&v| v.into())),
        DType::BFloat16 => floats(t.as_slice::<half::bf16>()?.iter().map(|&v| v.into())),
        DType::String => (t.as_strings()?.iter())
            .map(|s| Some(Key::Text(s.clone())))
            .collect(),
        dtype => match dtype.size() {
            Some(1) => bits(u8::view(t)?),
            Some(2) => bits(u16::view(t)?),
            Some(4) => bits(u32::view(t)?),
            Some(8) if !dtype.is_complex() => bits(u64::view(t)?),
            _ => complex(t)?,
        },
    })
}

/// Complex numbers are equal when both parts are.
fn complex(t: &Tensor) -> Result<Vec<Option<Key>>> {
    let parts: Vec<(f64, f64)> = match t.dtype() {
        DType::Complex64 => (t.as_slice::<Complex32>()?.iter())
            .map(|c| (c.re.into(), c.im.into()))
            .collect(),
        _ => (t.as_slice::<Complex64>()?.iter())
            .map(|c| (c.re, c.im))
            .collect(),
    };
    let key = |(re, im): (f64, f64)| {
        let text = [(re + 0.0).to_le_bytes(), (im + 0.0).to_le_bytes()].concat();
        (!re.is_nan() && !im.is_nan()).then(|| Key::Text(text.into()))
    };
    Ok(parts.into_iter().map(key).collect())
}

fn bits<U: Copy + Into<u64>>(values: &[U]) -> Vec<Option<Key>> {
    values.iter().map(|&v| Some(Key::Bits(v.into()))).collect()
}

/// First occurrences in order, and which of them each entry is.
type Distinct = (Vec<u32>, Vec<u32>);

/// The entries of `keys`, of which there are fewer than 2³².
fn distinct<K: Eq + Hash>(keys: impl Iterator<Item = Option<K>>) -> Distinct {
    let mut seen: HashMap<K, u32> = HashMap::new();
    let (mut firsts, mut index) = (Vec::new(), Vec::new());
    for (i, key) in (0u32..).zip(keys) {
        let next = firsts.len() as u32;
        let at = match key {
            Some(key) => *seen.entry(key).or_insert(next),
            None => next,
        };
        if at == next {
            firsts.push(i);
        }
        index.push(at);
    }
    (firsts, index)
}

/// The same for integers, of which sparse gradients bring many: a flat table of places, twice as
/// large as can be needed. Its hash differs from call to call, so that nobody can choose values that
/// collide.
fn distinct_numbers<U: Copy + Eq + Into<u64>>(values: &[U]) -> Distinct {
    const FREE: u32 = u32::MAX;
    let bits = (2 * values.len())
        .next_power_of_two()
        .max(2)
        .trailing_zeros();
    let mask = (1usize << bits) - 1;
    let multiplier = RandomState::new().hash_one(0) | 1;
    // Where each value came first.
    let mut table = vec![FREE; 1 << bits];
    let mut firsts = Vec::new();
    let mut index: Vec<u32> = Vec::with_capacity(values.len());
    for (i, &value) in (0u32..).zip(values) {
        let hash = (value.into() ^ multiplier >> 32).wrapping_mul(multiplier);
        let mut slot = (hash >> (64 - bits)) as usize;
        let at = loop {
            match table[slot] {
                FREE => {
                    table[slot] = i;
                    firsts.push(i);
                    break firsts.len() as u32 - 1;
                }
                // An entry's first occurrence has its index already.
                first if values[first as usize] == value => break index[first as usize],
                _ => slot = (slot + 1) & mask,
            }
        };
        index.push(at);
    }
    (firsts, index)
}

/// Numbers of entries as an index tensor.
fn index_tensor(dtype: DType, values: &[u32]) -> Result<Tensor> {
    if dtype == DType::Int64 {
        return Ok(Tensor::vector(
            values.iter().map(|&v| v.into()).collect::<Vec<i64>>(),
        ));
    }
    // Fewer than 2³¹ entries, so each fits.
    Ok(Tensor::vector(values.iter().map(|&v| v as i32).collect()))
}

fn unique(b: &KernelBuilder<'_>) -> Result<Built> {
    let out_idx = b.attrs().dtype("out_idx")?;
    Built::cheap(move |ctx| {
        let axis = unique_axis(ctx)?;
        let x = ctx.input(0)?;
        let dims = Dims::from_slice(x.dims());
        let (outer, n, inner) = (
            dims[..axis].iter().product::<usize>(),
            dims[axis],
            dims[axis + 1..].iter().product::<usize>(),
        );
        check_count(n)?;
        let (firsts, index) = if outer == 1 && inner == 1 {
            match x.dtype() {
                DType::Int32 | DType::UInt32 => distinct_numbers(u32::view(x)?),
                DType::Int64 | DType::UInt64 => distinct_numbers(u64::view(x)?),
                _ => distinct(keys(x)?.into_iter()),
            }
        } else {
            let keys = keys(x)?;
            // An entry is a slice across the axis; one with a NaN equals no other.
            distinct((0..n).map(|i| {
                (0..outer)
                    .flat_map(|o| &keys[(o * n + i) * inner..(o * n + i + 1) * inner])
                    .cloned()
                    .collect::<Option<Vec<Key>>>()
            }))
        };
        let mut shape = dims.clone();
        shape[axis] = firsts.len();
        let y = picked(x, &firsts, outer, n, inner, shape.into())?;
        ctx.set_output(0, y);
        ctx.set_output(1, index_tensor(out_idx, &index)?);
        if ctx.num_outputs() > 2 {
            let mut counts = vec![0u32; firsts.len()];
            index.iter().for_each(|&i| counts[i as usize] += 1);
            ctx.set_output(2, index_tensor(out_idx, &counts)?);
        }
        Ok(())
    })
}

/// Refuses more entries than an int32 can number.
fn check_count(n: usize) -> Result<()> {
    if i32::try_from(n).is_err() {
        return invalid("unique does not support input tensors larger than 2147483647 elements");
    }
    Ok(())
}

fn unique_axis(ctx: &OpContext<'_>) -> Result<usize> {
    let rank = ctx.input(0)?.rank();
    let mut axes = Vec::new();
    if ctx.num_inputs() > 1 {
        let t = ctx.input(1)?;
        if t.rank() != 1 {
            return invalid("axis expects a 1D vector.");
        }
        axes = ints(t)?;
    }
    match axes.as_slice() {
        [] if rank == 1 => Ok(0),
        [] => invalid("unique expects a 1D vector."),
        [axis] => wrap(*axis, rank)
            .ok_or_else(|| Status::invalid_argument(format!("axis has to be between [0, {rank})"))),
        _ => invalid("axis does not support input tensors larger than 1 elements"),
    }
}

/// The entries `at` of the middle of three dimensions.
fn picked(
    x: &Tensor,
    at: &[u32],
    outer: usize,
    n: usize,
    inner: usize,
    shape: Shape,
) -> Result<Tensor> {
    with_unit!(x.dtype(), U => {
        let src = U::view(x)?;
        let mut out = Vec::with_capacity(shape.num_elements());
        if outer == 1 && inner == 1 {
            out.extend(at.iter().map(|&i| src[i as usize].clone()));
            return U::tensor(x.dtype(), out, shape);
        }
        for o in 0..outer {
            for i in at.iter().map(|&i| i as usize) {
                out.extend_from_slice(&src[(o * n + i) * inner..(o * n + i + 1) * inner]);
            }
        }
        U::tensor(x.dtype(), out, shape)
    })
}

fn list_diff(b: &KernelBuilder<'_>) -> Result<Built> {
    let out_idx = b.attrs().dtype("out_idx")?;
    Built::cheap(move |ctx| {
        let (x, y) = (ctx.input(0)?, ctx.input(1)?);
        if x.rank() != 1 {
            return invalid("x should be a 1D vector.");
        }
        if y.rank() != 1 {
            return invalid("y should be a 1D vector.");
        }
        check_count(x.num_elements())?;
        let without: std::collections::HashSet<Key> = keys(y)?.into_iter().flatten().collect();
        let kept: Vec<u32> = (0u32..)
            .zip(&keys(x)?)
            .filter(|(_, k)| k.as_ref().is_none_or(|k| !without.contains(k)))
            .map(|(i, _)| i)
            .collect();
        let n = kept.len();
        let out = picked(x, &kept, 1, x.num_elements(), 1, [n].into())?;
        ctx.set_output(0, out);
        ctx.set_output(1, index_tensor(out_idx, &kept)?);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::{distinct, distinct_numbers};
    use crate::testing::{floats, run_op};
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn values_come_once_in_the_order_they_came() {
        let attrs = [("T", DType::Int32.into())];
        let out = run_op(
            "UniqueWithCounts",
            vec![Tensor::vector(vec![3i32, 1, 3, 2])],
            &attrs,
        )
        .unwrap();
        assert_eq!(out[0].as_slice::<i32>().unwrap(), [3, 1, 2]);
        assert_eq!(out[1].as_slice::<i32>().unwrap(), [0, 1, 0, 2]);
        assert_eq!(out[2].as_slice::<i32>().unwrap(), [2, 1, 1]);
        let attrs = [("T", DType::Float.into())];
        let x = floats(&[f32::NAN, 1.0, f32::NAN, 0.0, -0.0]);
        let out = run_op("Unique", vec![x], &attrs).unwrap();
        assert_eq!(out[1].as_slice::<i32>().unwrap(), [0, 1, 2, 3, 3]);
    }

    #[test]
    fn slices_along_an_axis_are_compared_whole() {
        let attrs = [("T", DType::Int32.into())];
        let x = Tensor::from_vec(vec![1i32, 2, 1, 1, 2, 1, 3, 4, 3], [3, 3]).unwrap();
        let out = run_op("UniqueV2", vec![x, Tensor::vector(vec![1i64])], &attrs).unwrap();
        assert_eq!(out[0].dims(), [3, 2]);
        assert_eq!(out[0].as_slice::<i32>().unwrap(), [1, 2, 1, 2, 3, 4]);
        assert_eq!(out[1].as_slice::<i32>().unwrap(), [0, 1, 0]);
    }

    #[test]
    fn a_difference_keeps_what_is_not_listed() {
        let attrs = [("T", DType::String.into())];
        let words = |v: &[&'static str]| {
            Tensor::strings(
                v.iter().map(|s| bytes::Bytes::from(*s)).collect(),
                [v.len()],
            )
            .unwrap()
        };
        let out = run_op(
            "ListDiff",
            vec![words(&["a", "b", "a"]), words(&["b"])],
            &attrs,
        )
        .unwrap();
        assert_eq!(out[0].as_strings().unwrap(), ["a", "a"]);
        assert_eq!(out[1].as_slice::<i32>().unwrap(), [0, 2]);
    }

    #[test]
    fn integers_are_told_apart_as_any_other_values_are() {
        let mut seed = 7u64;
        let mut draw = || {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            seed >> 33
        };
        for n in [0, 1, 2, 3, 1000] {
            let few: Vec<u64> = (0..n).map(|_| draw() % 50).collect();
            let far: Vec<u64> = few.iter().map(|v| v << 57).collect();
            let all: Vec<u64> = (0..n as u64).collect();
            for values in [few, far, all] {
                let keys = values.iter().map(|&v| Some(v));
                assert_eq!(distinct_numbers(&values), distinct(keys));
            }
        }
    }
}
