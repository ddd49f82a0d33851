//! `StochasticCastToInt`: floats rounded up or down by chance, so that the mean is kept.
//!
//! TensorFlow draws a block of numbers for each of its vectors of eight floats or four doubles, whose halves share them;
//! behind the last vector, and for the shorter types, one for each element that needs one. Key and counter are taken as
//! two seeds, only the first word of each.

use super::distribution::Draw;
use super::philox::Philox;
use super::stateless::key_counter_alg;
use crate::types::FLOATS;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::{DType, Tensor};
use half::{bf16, f16};
use num_traits::{AsPrimitive, Float};

const TO: &[DType] = &[DType::Int8, DType::Int16, DType::Int32];

pub(super) fn register(r: &mut Registry) {
    r.add_typed(
        "StochasticCastToInt",
        &[("Tin", FLOATS), ("Tout", TO)],
        cast,
    );
}

fn cast(b: &KernelBuilder<'_>) -> Result<Built> {
    let to = b.attrs().dtype("Tout")?;
    Built::costly(move |ctx| {
        // Refuses what is no generator.
        key_counter_alg(ctx, 1)?;
        let first = |i: usize| Ok::<_, Status>(ctx.input(i)?.as_slice::<u64>()?[0]);
        let philox = Philox::from_seeds(first(2)?, first(1)?);
        let x = ctx.input(0)?;
        ctx.check_alloc(to, x.shape())?;
        let shape = x.shape().clone();
        let rounded: Vec<f64> = match x.dtype() {
            // There are no vectors of shorter integers to cast to.
            DType::Float if to == DType::Int32 => drawn(x.as_slice::<f32>()?, 8, to, philox),
            DType::Double if to == DType::Int32 => drawn(x.as_slice::<f64>()?, 4, to, philox),
            DType::Float => drawn(x.as_slice::<f32>()?, 1, to, philox),
            DType::Double => drawn(x.as_slice::<f64>()?, 1, to, philox),
            DType::Half => drawn(x.as_slice::<f16>()?, 1, to, philox),
            _ => drawn(x.as_slice::<bf16>()?, 1, to, philox),
        };
        let out = match to {
            DType::Int8 => {
                let values = rounded.into_iter().map(|v| v as i8).collect();
                Tensor::from_vec(values, shape)?
            }
            DType::Int16 => {
                let values = rounded.into_iter().map(|v| v as i16).collect();
                Tensor::from_vec(values, shape)?
            }
            _ => {
                let values = rounded.into_iter().map(|v| v as i32).collect();
                Tensor::from_vec(values, shape)?
            }
        };
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Rounds elements, `vector` of them at a time with one block of numbers.
fn drawn<T: Draw + Float + AsPrimitive<f64>>(
    x: &[T],
    vector: usize,
    to: DType,
    mut philox: Philox,
) -> Vec<f64> {
    let (low, high) = match to {
        DType::Int8 => (f64::from(i8::MIN), f64::from(i8::MAX)),
        DType::Int16 => (f64::from(i16::MIN), f64::from(i16::MAX)),
        _ => (f64::from(i32::MIN), f64::from(i32::MAX)),
    };
    let end = |v: f64| T::from(v).unwrap_or_else(T::zero);
    let (low, high) = (end(low), end(high));
    let mut out = Vec::with_capacity(x.len());
    let whole = if vector > 1 {
        x.len() / vector * vector
    } else {
        0
    };
    let (vectors, rest) = x.split_at(whole);
    for vector in vectors.chunks_exact(vector) {
        let chances = T::uniform(philox.block());
        let chances = chances.as_ref().iter().cycle();
        out.extend(vector.iter().zip(chances).map(|(x, c)| round(*x, *c).as_()));
    }
    for x in rest {
        let is_decided = x.is_nan() || *x >= high || *x <= low || x.floor() == *x;
        let chance = match is_decided {
            true => T::zero(),
            false => T::uniform(philox.block()).as_ref()[0],
        };
        out.push(round(*x, chance).as_());
    }
    out
}

/// `x` rounded away from zero if `chance` is below what it has behind the point. NaN gives 0 in the conversion.
fn round<T: Float>(x: T, chance: T) -> T {
    if x.floor() == x || !x.is_finite() {
        x
    } else if x < T::zero() {
        (x + chance).floor()
    } else {
        (x + T::one() - chance).floor()
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::{DType, Tensor};

    fn cast(values: Vec<f32>, to: DType) -> Tensor {
        let attrs = [("Tin", DType::Float.into()), ("Tout", to.into())];
        let inputs = vec![
            Tensor::vector(values),
            Tensor::vector(vec![7u64]),
            Tensor::vector(vec![1u64, 2]),
            Tensor::scalar(1i32),
        ];
        run_op("StochasticCastToInt", inputs, &attrs)
            .unwrap()
            .remove(0)
    }

    #[test]
    fn numbers_are_shared_as_tensorflow_shares_them() {
        // How many of 2 + 1/16 .. 2 + 15/16 TensorFlow rounds up in each of 19 places.
        let mut ups = vec![0; 19];
        for k in 1..16 {
            let out = cast(vec![2.0 + k as f32 / 16.0; 19], DType::Int32);
            let values = out.as_slice::<i32>().unwrap();
            ups.iter_mut().zip(values).for_each(|(n, v)| *n += v - 2);
        }
        let want = [3, 4, 1, 5, 3, 4, 1, 5, 6, 8, 1, 9, 6, 8, 1, 9, 13, 0, 14];
        assert_eq!(ups, want);
    }

    #[test]
    fn the_mean_is_kept_and_whole_numbers_stay() {
        let n = 4000;
        let out = cast(vec![2.25; n], DType::Int32);
        let values = out.as_slice::<i32>().unwrap();
        assert!(values.iter().all(|v| *v == 2 || *v == 3));
        let ups = values.iter().filter(|v| **v == 3).count();
        assert!((850..1150).contains(&ups), "{ups} of {n}");
        let out = cast(vec![-2.25; n], DType::Int32);
        let downs = out
            .as_slice::<i32>()
            .unwrap()
            .iter()
            .filter(|v| **v == -3)
            .count();
        assert!((850..1150).contains(&downs), "{downs} of {n}");
        let odd = vec![5.0, -5.0, f32::NAN, 1e9, -1e9, f32::INFINITY];
        let out = cast(odd, DType::Int8);
        assert_eq!(out.as_slice::<i8>().unwrap(), [5, -5, 0, 127, -128, 127]);
    }
}
