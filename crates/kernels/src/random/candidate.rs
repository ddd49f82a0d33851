//! Candidate samplers for sampled losses, and `ComputeAccidentalHits`.

use super::philox::{Guarded, Words};
use super::sampler::{Fixed, Sampler, Unigram};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{Shape, Tensor};
use parking_lot::RwLock;
use std::collections::HashMap;

/// Words reserved for each candidate, as TensorFlow reserves.
const WORDS_PER_CANDIDATE: u64 = 2048;

/// Most classes a sampler that keeps a table of them may have.
const MAX_TABLE: i64 = 1 << 30;

pub(super) fn register(r: &mut Registry) {
    r.add("UniformCandidateSampler", |b| {
        build(b, Sampler::Uniform(b.attrs().int("range_max")?))
    });
    r.add("LogUniformCandidateSampler", |b| {
        build(b, Sampler::LogUniform(b.attrs().int("range_max")?))
    });
    r.add("LearnedUnigramCandidateSampler", learned);
    r.add("ThreadUnsafeUnigramCandidateSampler", learned);
    r.add("FixedUnigramCandidateSampler", fixed);
    r.add("AllCandidateSampler", |b| {
        build(b, Sampler::All(b.attrs().int("num_sampled")?))
    });
    r.add("ComputeAccidentalHits", accidental_hits);
}

fn learned(b: &KernelBuilder<'_>) -> Result<Built> {
    let range = b.attrs().int("range_max")?;
    check_table(range)?;
    build(b, Sampler::Learned(Unigram::new(range as usize)))
}

fn check_table(range: i64) -> Result<()> {
    if (0..=MAX_TABLE).contains(&range) {
        return Ok(());
    }
    Err(Status::resource_exhausted(format!(
        "a sampler of {range} classes is over the limit of {MAX_TABLE}"
    )))
}

fn fixed(b: &KernelBuilder<'_>) -> Result<Built> {
    let attrs = b.attrs();
    let range = attrs.int("range_max")?;
    check_table(range)?;
    let (file, unigrams) = (attrs.bytes("vocab_file")?, attrs.floats("unigrams")?);
    if file.is_empty() && unigrams.is_empty() {
        return Err(Status::invalid_argument(
            "Must provide either vocab_file or unigrams.",
        ));
    }
    if !file.is_empty() && !unigrams.is_empty() {
        return Err(Status::invalid_argument(
            "Must only provide one of vocab_file and unigrams.",
        ));
    }
    let read;
    let given = if file.is_empty() {
        unigrams
    } else {
        read = crate::io::read_vocabulary(b.device, attrs.str("vocab_file")?)?;
        &read
    };
    let (shards, shard) = (attrs.size("num_shards")?.max(1), attrs.size("shard")?);
    let reserved = attrs.size("num_reserved_ids")?.min(range as usize + 1);
    let distortion = attrs.float("distortion")?;
    // Reserved ids come first; the count of those kept is the number of the first given id.
    let mut weights: Vec<f32> = (0..reserved)
        .filter(|i| i % shards == shard)
        .map(|_| 0.0)
        .collect();
    let first = weights.len();
    let mine = given
        .iter()
        .enumerate()
        .filter(|(i, _)| (first + i) % shards == shard);
    weights.extend(mine.map(|(_, w)| w.powf(distortion)));
    if weights.len() as i64 != range {
        return Err(Status::invalid_argument(format!(
            "range is {range} must be equal to weights size  {}",
            weights.len()
        )));
    }
    build(b, Sampler::Fixed(Fixed::new(weights)))
}

fn build(b: &KernelBuilder<'_>, sampler: Sampler) -> Result<Built> {
    let attrs = b.attrs();
    let generator = Guarded::from_attrs(attrs)?;
    let (num_true, num_sampled) = (attrs.size("num_true")?, attrs.size("num_sampled")?);
    let unique = attrs.bool("unique")?;
    let sampler = RwLock::new(sampler);
    Built::costly(move |ctx| {
        let trues = ctx.input(0)?;
        let &[batch, columns] = trues.dims() else {
            return Err(Status::invalid_argument("true_classes must be a matrix"));
        };
        if columns != num_true {
            return Err(Status::invalid_argument(format!(
                "true_classes must have num_true columns, expected: {columns} was: {num_true}"
            )));
        }
        let values = trues.as_slice::<i64>()?;
        let shape = Shape::from([num_sampled]);
        ctx.check_alloc(downpour_tensor::DType::Int64, &shape)?;
        let drawn = {
            let sampler = sampler.read();
            let range = sampler.range();
            if unique && num_sampled as i64 > range {
                return Err(Status::invalid_argument("Sampler's range is too small."));
            }
            if let Some(bad) = values.iter().find(|v| !(0..range).contains(*v)) {
                return Err(Status::invalid_argument(format!(
                    "`true_candidate` out of range [0, {range}), received {bad}"
                )));
            }
            let philox = generator.reserve_words(WORDS_PER_CANDIDATE * num_sampled as u64);
            sampler.draw(&mut Words::new(philox), unique, num_sampled, values)?
        };
        if let Sampler::Learned(unigram) = &mut *sampler.write() {
            unigram.update(values);
        }
        ctx.set_output(0, Tensor::vector(drawn.candidates));
        ctx.set_output(1, Tensor::from_vec(drawn.true_counts, [batch, columns])?);
        ctx.set_output(2, Tensor::vector(drawn.candidate_counts));
        Ok(())
    })
}

fn accidental_hits(b: &KernelBuilder<'_>) -> Result<Built> {
    let num_true = b.attrs().int("num_true")?;
    Built::costly(move |ctx: &mut OpContext<'_>| {
        let (trues, sampled) = (ctx.input(0)?, ctx.input(1)?);
        if trues.rank() != 2 || trues.dims()[1] as i64 != num_true {
            return Err(Status::invalid_argument(
                "true_candidates must be a batch_size * num_true matrix",
            ));
        }
        if sampled.rank() != 1 {
            return Err(Status::invalid_argument(
                "sampled_candidates must be a vector, which is typically an output from CandidateSampler",
            ));
        }
        // Where a class was drawn twice, the later place counts.
        let places: HashMap<i64, i64> = sampled
            .as_slice::<i64>()?
            .iter()
            .enumerate()
            .map(|(i, &class)| (class, i as i64))
            .collect();
        let (mut rows, mut ids) = (Vec::new(), Vec::new());
        let width = trues.dims()[1].max(1);
        for (row, classes) in trues.as_slice::<i64>()?.chunks(width).enumerate() {
            for place in classes.iter().filter_map(|c| places.get(c)) {
                rows.push(row as i32);
                ids.push(*place);
            }
        }
        let weights = vec![f32::MIN; ids.len()];
        ctx.set_output(0, Tensor::vector(rows));
        ctx.set_output(1, Tensor::vector(ids));
        ctx.set_output(2, Tensor::vector(weights));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_graph::{AttrList, AttrValue};
    use downpour_tensor::Tensor;

    fn run(op: &str, sampled: i64, unique: bool, more: &[(&str, AttrValue)]) -> Vec<Tensor> {
        let mut attrs = vec![
            ("num_true", 1i64.into()),
            ("num_sampled", sampled.into()),
            ("unique", unique.into()),
            ("seed", 1i64.into()),
            ("seed2", 2i64.into()),
        ];
        attrs.extend(more.iter().cloned());
        let trues = Tensor::from_vec(vec![1i64, 2], [2, 1]).unwrap();
        run_op(op, vec![trues], &attrs).unwrap()
    }

    fn near(tensor: &Tensor, expect: &[f32]) {
        let got = tensor.as_slice::<f32>().unwrap();
        let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-6;
        assert!(
            got.len() == expect.len() && got.iter().zip(expect).all(close),
            "{got:?}"
        );
    }

    #[test]
    fn samplers_draw_what_tensorflow_draws() {
        let range = ("range_max", 10i64.into());
        let out = run(
            "UniformCandidateSampler",
            5,
            false,
            std::slice::from_ref(&range),
        );
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [9, 6, 7, 1, 3]);
        near(&out[1], &[0.5, 0.5]);
        let out = run(
            "LogUniformCandidateSampler",
            5,
            true,
            std::slice::from_ref(&range),
        );
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [0, 1, 8, 6, 2]);
        near(&out[1], &[0.7265548, 0.5912358]);
        near(
            &out[2],
            &[0.9082069, 0.7265548, 0.26987028, 0.33040524, 0.5912358],
        );
        let out = run("LearnedUnigramCandidateSampler", 5, true, &[range]);
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [9, 5, 2, 1, 6]);
        near(&out[1], &[0.468559, 0.468559]);
        let fixed = [
            ("range_max", 6i64.into()),
            ("num_reserved_ids", 2i64.into()),
            ("distortion", AttrValue::Float(0.5)),
            (
                "unigrams",
                AttrValue::List(AttrList::Float(vec![1.0, 2.0, 3.0, 4.0])),
            ),
        ];
        let out = run("FixedUnigramCandidateSampler", 2, true, &fixed);
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [5, 4]);
        near(&out[2], &[0.6930008, 0.6295528]);
    }
}
