//! `EditDistance`: how many insertions, deletions and substitutions lead from each hypothesis
//! sequence to its truth.

use super::dtypes::COMMON_AND_STRING;
use super::unique::{Key, keys};
use crate::args::{ints, shape_of};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Tensor};
use std::cmp::Ordering;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("EditDistance", &[("T", COMMON_AND_STRING)], edit_distance);
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// A sequence and where it belongs.
struct Group {
    place: Vec<i64>,
    values: Vec<Option<Key>>,
}

/// The sparse tensor in inputs `at..at + 3`, cut where its leading indices change. Indices are
/// taken in the order they come, as TensorFlow does.
fn groups(ctx: &OpContext<'_>, at: usize, rank: usize) -> Result<Vec<Group>> {
    let indices = ints(ctx.input(at)?)?;
    let mut out: Vec<Group> = Vec::new();
    for (index, value) in indices.chunks(rank).zip(keys(ctx.input(at + 1)?)?) {
        let place = &index[..rank - 1];
        match out.last_mut() {
            Some(group) if group.place == place => group.values.push(value),
            _ => out.push(Group {
                place: place.to_vec(),
                values: vec![value],
            }),
        }
    }
    Ok(out)
}

fn check(ctx: &OpContext<'_>) -> Result<()> {
    let names = ["hypothesis", "truth"];
    for (i, name) in names.iter().enumerate() {
        let t = ctx.input(3 * i)?;
        if t.rank() != 2 {
            return invalid(format!(
                "{name}_indices should be a matrix, but got shape: {}",
                t.shape()
            ));
        }
    }
    for (offset, part) in [(1, "values"), (2, "shape")] {
        for (i, name) in names.iter().enumerate() {
            let t = ctx.input(3 * i + offset)?;
            if t.rank() != 1 {
                return invalid(format!(
                    "{name}_{part} should be a vector, but got shape: {}",
                    t.shape()
                ));
            }
        }
    }
    let sizes = |i: usize, name: &str| -> Result<()> {
        let (indices, values, shape) = (
            ctx.input(3 * i)?,
            ctx.input(3 * i + 1)?,
            ctx.input(3 * i + 2)?,
        );
        for (part, t, side, n) in [
            ("values", values, "rows", indices.dims()[0]),
            ("shape", shape, "cols", indices.dims()[1]),
        ] {
            if t.num_elements() != n {
                return invalid(format!(
                    "Expected {name}_{part}.NumElements == #{side}({name}_indices), their shapes are: {} and {}",
                    t.shape(),
                    indices.shape()
                ));
            }
        }
        Ok(())
    };
    sizes(0, names[0])?;
    let (hypothesis, truth) = (ctx.input(2)?, ctx.input(5)?);
    if truth.num_elements() < 2 {
        return invalid(format!(
            "Input SparseTensors must have rank at least 2, but truth_shape rank is: {}",
            truth.num_elements()
        ));
    }
    sizes(1, names[1])?;
    if truth.num_elements() != hypothesis.num_elements() {
        return invalid(format!(
            "Expected truth and hypothesis to have matching ranks, but their shapes are: {} and {}",
            truth.shape(),
            hypothesis.shape()
        ));
    }
    Ok(())
}

fn edit_distance(b: &KernelBuilder<'_>) -> Result<Built> {
    let normalize = b.attrs().bool("normalize")?;
    Built::cheap(move |ctx| {
        check(ctx)?;
        let (a, b) = (ints(ctx.input(2)?)?, ints(ctx.input(5)?)?);
        shape_of(&a)?;
        shape_of(&b)?;
        let rank = a.len();
        let dims: Vec<i64> = a[..rank - 1]
            .iter()
            .zip(&b)
            .map(|(a, b)| *a.max(b))
            .collect();
        let shape = shape_of(&dims)?;
        let mut out = ctx.zeros(DType::Float, &shape)?;
        let (hypotheses, truths) = (groups(ctx, 0, rank)?, groups(ctx, 3, rank)?);
        let result = out.make_mut::<f32>()?;
        let strides = shape.strides();
        let mut put = |place: &[i64], value: f32| {
            let at: i64 = place
                .iter()
                .zip(&strides)
                .map(|(&i, &s)| i.saturating_mul(s as i64))
                .sum();
            match usize::try_from(at).ok().and_then(|at| result.get_mut(at)) {
                Some(slot) => *slot = value,
                None => {
                    return Err(Status::internal(format!(
                        "Got an inner product {at} which would require writing to outside of the buffer for the output tensor (max elements {})",
                        shape.num_elements()
                    )));
                }
            }
            Ok(())
        };
        let (mut h, mut t) = (hypotheses.iter().peekable(), truths.iter().peekable());
        loop {
            let order = match (h.peek(), t.peek()) {
                (None, None) => break,
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (Some(h), Some(t)) => h.place.cmp(&t.place),
            };
            match order {
                Ordering::Equal => {
                    if let (Some(h), Some(t)) = (h.next(), t.next()) {
                        let distance = levenshtein(&t.values, &h.values) as f32;
                        let by = if normalize {
                            t.values.len() as f32
                        } else {
                            1.0
                        };
                        put(&t.place, distance / by)?;
                    }
                }
                Ordering::Less => {
                    if let Some(h) = h.next() {
                        let size = h.values.len() as f32;
                        put(&h.place, if normalize { f32::INFINITY } else { size })?;
                    }
                }
                Ordering::Greater => {
                    if let Some(t) = t.next() {
                        let size = t.values.len() as f32;
                        put(&t.place, if normalize { 1.0 } else { size })?;
                    }
                }
            }
        }
        ctx.set_output(0, Tensor::reshaped(out, shape)?);
        Ok(())
    })
}

/// Edits between two sequences; NaN (no key) equals nothing.
fn levenshtein(a: &[Option<Key>], b: &[Option<Key>]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let same = x.is_some() && x == y;
            let next = (diagonal + usize::from(!same))
                .min(row[j] + 1)
                .min(row[j + 1] + 1);
            diagonal = std::mem::replace(&mut row[j + 1], next);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn distances_are_per_sequence_and_by_length() {
        let run = |truth: Vec<i64>, values: Vec<i32>, normalize: bool| {
            let pairs = |v: Vec<i64>| Tensor::from_vec(v.clone(), [v.len() / 2, 2]).unwrap();
            let inputs = vec![
                pairs(vec![0, 0, 0, 1, 1, 0]),
                Tensor::vector(vec![1i32, 2, 3]),
                Tensor::vector(vec![2i64, 2]),
                pairs(truth),
                Tensor::vector(values),
                Tensor::vector(vec![2i64, 2]),
            ];
            let attrs = [("T", DType::Int32.into()), ("normalize", normalize.into())];
            run_op("EditDistance", inputs, &attrs).unwrap()[0]
                .as_slice::<f32>()
                .unwrap()
                .to_vec()
        };
        let same = vec![0, 0, 0, 1, 1, 0];
        assert_eq!(run(same.clone(), vec![1, 3, 3], true), [0.5, 0.0]);
        assert_eq!(run(same, vec![1, 3, 3], false), [1.0, 0.0]);
        assert_eq!(run(vec![0, 0], vec![1], true), [1.0, f32::INFINITY]);
        assert_eq!(run(vec![0, 0], vec![1], false), [1.0, 1.0]);
    }
}
