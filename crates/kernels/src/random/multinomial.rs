//! `Multinomial` and `StatelessMultinomial`: classes drawn with the odds given by logits.

use super::philox::{Guarded, Philox, Words};
use super::stateless::from_seed;
use crate::types::{FLOATS, INDEX, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, parallel_ranges};
use downpour_tensor::{DType, Element, Shape, Tensor};
use num_traits::AsPrimitive;

pub(super) fn register(r: &mut Registry) {
    let types = &[("T", FLOATS), ("output_dtype", INDEX)];
    r.add_typed("Multinomial", types, multinomial);
    r.add_typed("StatelessMultinomial", types, |b| {
        let dtype = b.attrs().dtype("output_dtype")?;
        Built::costly(move |ctx| compute(ctx, dtype, |ctx, _| from_seed(ctx, 2)))
    });
}

fn multinomial(b: &KernelBuilder<'_>) -> Result<Built> {
    let generator = Guarded::from_attrs(b.attrs())?;
    let dtype = b.attrs().dtype("output_dtype")?;
    Built::costly(move |ctx| {
        compute(ctx, dtype, |_, outputs| {
            Ok(generator.reserve_outputs(outputs))
        })
    })
}

fn compute(
    ctx: &mut OpContext<'_>,
    dtype: DType,
    source: impl Fn(&OpContext<'_>, usize) -> Result<Philox>,
) -> Result<()> {
    let (logits, samples) = (ctx.input(0)?, ctx.input(1)?);
    let &[rows, classes] = logits.dims() else {
        return Err(Status::invalid_argument(format!(
            "logits should be a matrix, got shape {}",
            logits.shape()
        )));
    };
    if samples.rank() != 0 {
        return Err(Status::invalid_argument(format!(
            "num_samples should be a scalar, got shape {}",
            samples.shape()
        )));
    }
    let wanted = samples.scalar_value::<i32>()?;
    let Ok(samples) = usize::try_from(wanted) else {
        return Err(Status::invalid_argument(format!(
            "num_samples should be non-negative, got {wanted}"
        )));
    };
    if classes == 0 {
        return Err(Status::invalid_argument(
            "num_classes should be positive, got 0",
        ));
    }
    let shape = Shape::checked([rows as i64, samples as i64])?;
    let mut out = ctx.zeros(dtype, &shape)?;
    if out.num_elements() > 0 {
        // As TensorFlow reserves: two words a sample, rounded up to whole blocks.
        let philox = source(ctx, rows * samples.next_multiple_of(4) * 2)?;
        with_type!(logits.dtype(), T in floats => {
            let odds = |x: &T| f64::from(*x);
            match dtype {
                DType::Int32 => sample::<T, i32>(logits, classes, odds, &mut out, samples, philox)?,
                _ => sample::<T, i64>(logits, classes, odds, &mut out, samples, philox)?,
            }
        });
    } else {
        source(ctx, 0)?;
    }
    ctx.set_output(0, out);
    Ok(())
}

fn sample<T: Element, I: Element>(
    logits: &Tensor,
    classes: usize,
    value: impl Fn(&T) -> f64 + Sync,
    out: &mut Tensor,
    samples: usize,
    philox: Philox,
) -> Result<()>
where
    usize: AsPrimitive<I>,
{
    let logits = logits.as_slice::<T>()?;
    let grain = (1 << 14) / (samples + classes) + 1;
    parallel_ranges(out.make_mut::<I>()?, samples, grain, |first, rows| {
        // Two words for each sample, in one stream over all rows.
        let start = first as u64 * samples as u64 * 2;
        let mut words = Words::new(philox.skipped(start / 4));
        for _ in 0..start % 4 {
            words.u32();
        }
        let mut sums = vec![0.0f64; classes];
        for (i, row) in rows.chunks_exact_mut(samples).enumerate() {
            let logits = &logits[(first + i) * classes..(first + i + 1) * classes];
            let finite = |x: &T| Some(value(x)).filter(|x| x.is_finite());
            let most = logits.iter().filter_map(finite).fold(f64::MIN, f64::max);
            let mut total = 0.0;
            for (sum, x) in sums.iter_mut().zip(logits) {
                total += finite(x).map_or(0.0, |x| (x - most).exp());
                *sum = total;
            }
            for sample in row {
                let find = words.f64() * total;
                *sample = sums.partition_point(|&s| s <= find).as_();
            }
        }
    });
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn samples_follow_one_stream_over_the_rows() {
        let logits = Tensor::from_vec(
            vec![
                0.1f32,
                2.0,
                -1.0,
                f32::INFINITY,
                1.0,
                2.0,
                f32::NAN,
                f32::NEG_INFINITY,
            ],
            [2, 4],
        );
        let attrs = [
            ("T", DType::Float.into()),
            ("seed", 1i64.into()),
            ("seed2", 2i64.into()),
        ];
        let out = run_op(
            "Multinomial",
            vec![logits.unwrap(), Tensor::scalar(7i32)],
            &attrs,
        );
        let expect = [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1];
        assert_eq!(out.unwrap()[0].as_slice::<i64>().unwrap(), expect);
        let even = vec![
            Tensor::zeros(DType::Float, [2, 3]).unwrap(),
            Tensor::scalar(5i32),
        ];
        let out = run_op("Multinomial", even, &attrs).unwrap();
        let expect = [0, 1, 0, 0, 2, 2, 1, 1, 2, 0];
        assert_eq!(out[0].as_slice::<i64>().unwrap(), expect);
    }
}
