//! Connectionist temporal classification: the loss and the two decoders. Computed in double
//! precision, in logarithms.

mod beam;
mod loss;

use crate::args::ints;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};

/// The types these ops take.
const TYPES: &[DType] = crate::types::FLOAT_DOUBLE;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("CTCLoss", &[("T", TYPES)], loss::build);
    r.add_typed("CTCGreedyDecoder", &[("T", TYPES)], |b| {
        let merge = b.attrs().bool("merge_repeated")?;
        let blank = b.attrs().int("blank_index")?;
        Built::costly(move |ctx| greedy(ctx, merge, blank))
    });
    r.add_typed("CTCBeamSearchDecoder", &[("T", TYPES)], beam::build);
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// ln(eᵃ + eᵇ).
fn log_add(a: f64, b: f64) -> f64 {
    let (low, high) = if a < b { (a, b) } else { (b, a) };
    match low == f64::NEG_INFINITY {
        true => high,
        false => high + (low - high).exp().ln_1p(),
    }
}

/// `[time, batch, classes]` of numbers.
struct Inputs {
    values: Vec<f64>,
    time: usize,
    batch: usize,
    classes: usize,
}

impl Inputs {
    fn new(t: &Tensor) -> Result<Inputs> {
        let &[time, batch, classes] = t.dims() else {
            return invalid("inputs is not a 3-Tensor");
        };
        let values = match t.dtype() {
            DType::Double => t.as_slice::<f64>()?.to_vec(),
            _ => t.as_slice::<f32>()?.iter().map(|&v| v.into()).collect(),
        };
        Ok(Inputs {
            values,
            time,
            batch,
            classes,
        })
    }

    /// The numbers of the classes at one time.
    fn at(&self, time: usize, batch: usize) -> &[f64] {
        let start = (time * self.batch + batch) * self.classes;
        &self.values[start..start + self.classes]
    }
}

/// Numbers as a tensor of the op's type.
fn floats(dtype: DType, values: Vec<f64>, shape: impl Into<Shape>) -> Result<Tensor> {
    Ok(match dtype {
        DType::Double => Tensor::from_vec(values, shape)?,
        _ => Tensor::from_vec::<f32>(values.iter().map(|&v| v as f32).collect(), shape)?,
    })
}

/// Inputs of a decoder, and the length of each sequence.
fn to_decode(ctx: &OpContext<'_>) -> Result<(Inputs, Vec<usize>)> {
    let inputs = Inputs::new(ctx.input(0)?)?;
    let lengths = ctx.input(1)?;
    if inputs.values.is_empty() {
        return invalid("inputs must not be empty");
    }
    if lengths.rank() != 1 {
        return invalid("sequence_length is not a vector");
    }
    if lengths.num_elements() != inputs.batch {
        return Err(Status::failed_precondition(format!(
            "len(sequence_length) != batch_size.  len(sequence_length):  {} batch_size: {}",
            lengths.num_elements(),
            inputs.batch
        )));
    }
    let mut out = Vec::with_capacity(inputs.batch);
    for (b, n) in ints(lengths)?.into_iter().enumerate() {
        if n > inputs.time as i64 {
            return Err(Status::failed_precondition(format!(
                "sequence_length({b}) <= {}",
                inputs.time
            )));
        }
        out.push(n.max(0) as usize);
    }
    Ok((inputs, out))
}

/// Sets the outputs of a decoder: one sparse tensor for each path.
fn set_paths(ctx: &mut OpContext<'_>, paths: &[Vec<Vec<i64>>]) -> Result<()> {
    let count = paths.len();
    for (p, batch) in paths.iter().enumerate() {
        let mut places = Vec::new();
        for (b, path) in batch.iter().enumerate() {
            places.extend((0..path.len()).flat_map(|t| [b as i64, t as i64]));
        }
        let values: Vec<i64> = batch.iter().flatten().copied().collect();
        let longest = batch.iter().map(Vec::len).max().unwrap_or(0);
        ctx.set_output(p, Tensor::from_vec(places, [values.len(), 2])?);
        ctx.set_output(count + p, Tensor::vector(values));
        let shape = vec![batch.len() as i64, longest as i64];
        ctx.set_output(2 * count + p, Tensor::vector(shape));
    }
    Ok(())
}

fn greedy(ctx: &mut OpContext<'_>, merge: bool, blank: i64) -> Result<()> {
    let dtype = ctx.input(0)?.dtype();
    let (inputs, lengths) = to_decode(ctx)?;
    let classes = inputs.classes as i64;
    if !(-classes..classes).contains(&blank) {
        return invalid(format!(
            "blank_index expected to be between {} and {} but was {blank}",
            -classes,
            classes - 1
        ));
    }
    let blank = if blank < 0 { classes + blank } else { blank };
    let (mut paths, mut scores) = (Vec::new(), Vec::new());
    for (b, &n) in lengths.iter().enumerate() {
        let (mut path, mut score, mut before) = (Vec::new(), 0.0, -1);
        for t in 0..n {
            let (best, value) = largest(inputs.at(t, b));
            score -= value;
            if best != blank && !(merge && best == before) {
                path.push(best);
            }
            before = best;
        }
        paths.push(path);
        scores.push(score);
    }
    set_paths(ctx, &[paths])?;
    ctx.set_output(3, floats(dtype, scores, [inputs.batch, 1])?);
    Ok(())
}

/// The first of the largest numbers.
fn largest(row: &[f64]) -> (i64, f64) {
    let first = row.first().copied().unwrap_or(f64::NAN);
    let rest = row.iter().enumerate();
    rest.fold(
        (0, first),
        |(i, best), (j, &v)| {
            if v > best { (j as i64, v) } else { (i, best) }
        },
    )
}
