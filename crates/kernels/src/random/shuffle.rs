//! `RandomShuffle` and `StatelessShuffle`: rows of a tensor in another order.

use super::philox::{Guarded, Philox, Words};
use super::stateless::key_counter_alg;
use crate::array::units::{Unit, with_unit};
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Tensor};

pub(super) fn register(r: &mut Registry) {
    r.add_typed("RandomShuffle", &[("T", crate::array::ALL)], random_shuffle);
    r.add_typed("StatelessShuffle", &[("T", crate::array::ALL)], |_| {
        Built::costly(|ctx| {
            let philox = key_counter_alg(ctx, 1)?;
            shuffle(ctx, |_| philox)
        })
    });
}

fn random_shuffle(b: &KernelBuilder<'_>) -> Result<Built> {
    let generator = Guarded::from_attrs(b.attrs())?;
    Built::costly(move |ctx| shuffle(ctx, |words| generator.reserve_words(words)))
}

fn shuffle(ctx: &mut OpContext<'_>, philox: impl FnOnce(u64) -> Philox) -> Result<()> {
    let value = ctx.input(0)?;
    let rows = value.dims().first().copied().unwrap_or(1);
    if value.num_elements() <= 1 || rows <= 1 {
        ctx.forward(0, 0);
        return Ok(());
    }
    let mut words = Words::new(philox(rows as u64 - 1));
    // Rows of one number are exchanged where they are.
    let out = if value.num_elements() == rows && value.dtype().size().is_some() {
        with_unit!(value.dtype(), U => {
            let mut all = U::view(value)?.to_vec();
            exchange(&mut all, &mut words);
            U::tensor(value.dtype(), all, value.shape().clone())?
        })
    } else {
        let mut order: Vec<usize> = (0..rows).collect();
        exchange(&mut order, &mut words);
        gather_rows(value, &order)?
    };
    ctx.set_output(0, out);
    Ok(())
}

fn exchange<T>(all: &mut [T], words: &mut Words) {
    let n = all.len();
    for i in 0..n - 1 {
        // TensorFlow draws 32 bits whatever the size.
        let step = words.u32() % (n - i) as u32;
        all.swap(i, i + step as usize);
    }
}

fn gather_rows(value: &Tensor, order: &[usize]) -> Result<Tensor> {
    let row = value.num_elements() / order.len();
    let shape = value.shape().clone();
    fn pick<T: Clone>(all: &[T], row: usize, order: &[usize]) -> Vec<T> {
        order
            .iter()
            .flat_map(|&r| all[r * row..(r + 1) * row].iter().cloned())
            .collect()
    }
    if let (Some(from), Some(size)) = (value.buffer(), value.dtype().size()) {
        let (from, bytes) = (from.as_bytes(), row * size);
        let mut out = Tensor::zeros(value.dtype(), shape)?;
        let to = out.buffer_mut().unwrap_or_default();
        for (to, &r) in to.chunks_exact_mut(bytes.max(1)).zip(order) {
            to.copy_from_slice(&from[r * bytes..(r + 1) * bytes]);
        }
        return Ok(out);
    }
    Ok(match value.dtype() {
        DType::String => Tensor::strings(pick::<Bytes>(value.as_strings()?, row, order), shape)?,
        DType::Resource => Tensor::resources(pick(value.as_resources()?, row, order), shape)?,
        DType::Variant => Tensor::variants(pick(value.as_variants()?, row, order), shape)?,
        other => return Err(Status::internal(format!("cannot shuffle {other}"))),
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn rows_are_shuffled_as_tensorflow_shuffles_them() {
        let attrs = [
            ("T", DType::Int32.into()),
            ("seed", 1i64.into()),
            ("seed2", 2i64.into()),
        ];
        let out = run_op(
            "RandomShuffle",
            vec![Tensor::vector((0..10).collect())],
            &attrs,
        );
        let expect = [9, 0, 8, 6, 1, 3, 7, 2, 4, 5];
        assert_eq!(out.unwrap()[0].as_slice::<i32>().unwrap(), expect);
        let matrix = Tensor::from_vec((0..20).collect(), [10, 2]).unwrap();
        let out = run_op("RandomShuffle", vec![matrix], &attrs).unwrap();
        let expect: Vec<i32> = expect.iter().flat_map(|i| [2 * i, 2 * i + 1]).collect();
        assert_eq!(out[0].as_slice::<i32>().unwrap(), expect);
    }

    #[test]
    fn stateless_shuffle_depends_on_key_and_counter_alone() {
        let inputs = vec![
            Tensor::vector((0..10).collect()),
            Tensor::vector(vec![1u64]),
            Tensor::vector(vec![1u64, 2]),
            Tensor::scalar(1i32),
        ];
        let out = run_op("StatelessShuffle", inputs, &[("T", DType::Int32.into())]).unwrap();
        let expect = [1, 8, 3, 4, 9, 5, 0, 2, 6, 7];
        assert_eq!(out[0].as_slice::<i32>().unwrap(), expect);
    }
}
