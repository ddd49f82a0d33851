//! Shapes of neural network operations: biases, losses, normalisation, quantisation, sampling.

use super::Rule::{self, Compute, Pattern};
use super::dims::{broadcast, concatenate, merge, merge_dims, replace, shape, size};
use super::{Context, Shapes, invalid, one};
use downpour_graph::Result;
use downpour_tensor::PartialShape;
use smallvec::smallvec;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "BiasAdd" | "BiasAddV1" => Compute(bias_add),
        "BiasAddGrad" => Compute(|c| {
            let channels_first = c.attrs().str("data_format").is_ok_and(|f| f == "NCHW");
            let value = c.at_least(0, if channels_first { 3 } else { 2 })?;
            let dims = value.dims().unwrap_or_default();
            let at = if channels_first {
                1
            } else {
                dims.len().wrapping_sub(1)
            };
            one(shape([dims.get(at).copied().flatten()]))
        }),
        "Softmax" | "LogSoftmax" => Pattern("[B..,n] -> [B..,n]"),
        "SoftmaxCrossEntropyWithLogits" => Compute(softmax_loss),
        "SparseSoftmaxCrossEntropyWithLogits" => Pattern("[n,k] [n] -> [n] [n,k]"),
        "LRN" => Pattern("[a,b,c,d] -> [a,b,c,d]"),
        "LRNGrad" => Pattern("[a,b,c,d] [a,b,c,d] [a,b,c,d] -> [a,b,c,d]"),
        "InTopK" | "InTopKV2" => Pattern("[n,_] [n] -> [n]"),
        "TopK" => Compute(|c| {
            let k = c.attrs().int("k")?;
            if k < 0 {
                return invalid(format!("Need k >= 0, got {k}"));
            }
            last_replaced(c, Some(k as usize))
        }),
        "TopKV2" => Compute(|c| {
            let k = c.dim_from(1)?;
            last_replaced(c, k)
        }),
        "NthElement" => Compute(nth_element),
        "FusedBatchNorm" | "FusedBatchNormV2" | "FusedBatchNormV3" => Compute(batch_norm),
        "FusedBatchNormGrad" | "FusedBatchNormGradV2" | "FusedBatchNormGradV3" => {
            Compute(batch_norm_grad)
        }
        "CTCLoss" => Pattern("[t,b,c] [n,_] [n] [b] -> [b] [t,b,c]"),
        "CTCGreedyDecoder" => Pattern("[_,b,_] [b] -> [_,2] [_] [2] [b,1]"),
        "CTCBeamSearchDecoder" => Compute(beam_search),
        "FakeQuantWithMinMaxArgs" | "FakeQuantWithMinMaxArgsGradient" => Pattern("S -> S"),
        "FakeQuantWithMinMaxVars" => Pattern("S [] [] -> S"),
        "FakeQuantWithMinMaxVarsGradient" => Pattern("S S [] [] -> S [] []"),
        "FakeQuantWithMinMaxVarsPerChannel" => Pattern("[B..,d] [d] [d] -> [B..,d]"),
        "FakeQuantWithMinMaxVarsPerChannelGradient" => Compute(|c| {
            c.at_most(0, 4)?;
            super::pattern::apply("[B..,d] [B..,d] [d] [d] -> [B..,d] [d] [d]", c)
        }),
        "QuantizeAndDequantizeV2" | "QuantizeAndDequantizeV4" => {
            Compute(|c| quantized(c, 1..3).map(|(out, _)| smallvec![out]))
        }
        "QuantizeAndDequantizeV3" => Compute(|c| {
            c.rank(3, 0)?;
            quantized(c, 1..3).map(|(out, _)| smallvec![out])
        }),
        "QuantizeAndDequantizeV4Grad" => Compute(|c| {
            let (out, ends) = quantized(c, 2..4)?;
            Ok(smallvec![merge(&out, &c.input(1))?, ends.clone(), ends])
        }),
        "QuantizeV2" => {
            Compute(|c| quantized(c, 1..3).map(|(out, ends)| smallvec![out, ends.clone(), ends]))
        }
        "Dequantize" => Compute(|c| quantized(c, 1..3).map(|(out, _)| smallvec![out])),
        "AllCandidateSampler"
        | "FixedUnigramCandidateSampler"
        | "LearnedUnigramCandidateSampler"
        | "LogUniformCandidateSampler"
        | "ThreadUnsafeUnigramCandidateSampler"
        | "UniformCandidateSampler" => Compute(candidates),
        "ComputeAccidentalHits" => Compute(|c| {
            let width = size(c.attrs().int("num_true")?)?;
            merge_dims(c.rank(0, 2)?[1], width)?;
            c.rank(1, 1)?;
            Ok(smallvec![shape([None]); 3])
        }),
        "DataFormatDimMap" | "DataFormatVecPermute" => Pattern("S -> S"),
        _ => return None,
    })
}

fn bias_add(c: &mut Context<'_>) -> Result<Shapes> {
    let channels_first = c.attrs().str("data_format").is_ok_and(|f| f == "NCHW");
    let value = c.at_least(0, if channels_first { 3 } else { 2 })?;
    let bias = c.rank(1, 1)?[0];
    let Some(dims) = value.dims() else {
        return one(PartialShape::unknown());
    };
    let at = if channels_first { 1 } else { dims.len() - 1 };
    one(replace(&value, at, merge_dims(dims[at], bias)?))
}

fn softmax_loss(c: &mut Context<'_>) -> Result<Shapes> {
    let equal = c.with_rank(0, 2).and_then(|a| merge(&a, &c.input(1)));
    let both = match equal {
        Ok(both) => both,
        Err(_) => broadcast(&c.input(0), &c.input(1))?,
    };
    match both.dims() {
        Some([rows, _]) => Ok(smallvec![shape([*rows]), both]),
        Some(dims) => invalid(format!(
            "Shape must be broadcasted with rank 2, but is rank {}",
            dims.len()
        )),
        None => invalid("Shape must be broadcasted with rank 2, but its rank is unknown"),
    }
}

/// All outputs are like input 0, but for the last dimension.
fn last_replaced(c: &mut Context<'_>, k: Option<usize>) -> Result<Shapes> {
    let input = c.at_least(0, 1)?;
    let out = match input.dims() {
        Some([.., Some(last)]) if k.is_some_and(|k| *last < k) => {
            return invalid(format!(
                "input must have last dimension >= k = {} but is {last}",
                k.unwrap_or(0)
            ));
        }
        Some([lead @ .., _]) => concatenate(&shape(lead.iter().copied()), &shape([k])),
        _ => PartialShape::unknown(),
    };
    Ok(smallvec![out; c.num_outputs()])
}

fn nth_element(c: &mut Context<'_>) -> Result<Shapes> {
    let input = c.at_least(0, 1)?;
    let n = c.dim_from(1)?;
    match input.dims() {
        Some([.., Some(last)]) if n.is_some_and(|n| *last <= n) => invalid(format!(
            "Input must have last dimension > n = {} but is {last}",
            n.unwrap_or(0)
        )),
        Some([lead @ .., _]) => one(shape(lead.iter().copied())),
        _ => one(PartialShape::unknown()),
    }
}

/// Rank of the images, and which of their dimensions holds the channels.
fn channels(c: &Context<'_>) -> Result<(usize, usize)> {
    Ok(match c.attrs().str("data_format")? {
        "NHWC" => (4, 3),
        "NCHW" => (4, 1),
        "NDHWC" => (5, 4),
        "NCDHW" => (5, 1),
        other => return invalid(format!("Invalid data format string: {other}")),
    })
}

fn batch_norm(c: &mut Context<'_>) -> Result<Shapes> {
    let (rank, at) = channels(c)?;
    let x = c.with_rank(0, rank)?;
    let average = c.attrs().float("exponential_avg_factor").unwrap_or(1.0);
    let statistics = !c.attrs().bool("is_training")? || average != 1.0;
    let mut depth = x.dims().and_then(|d| d[at]);
    for i in 1..if statistics { 5 } else { 3 } {
        depth = merge_dims(depth, c.rank(i, 1)?[0])?;
    }
    let vector = shape([depth]);
    let mut out = smallvec![vector; c.num_outputs()];
    out[0] = replace(&x, at, depth);
    if c.num_outputs() == 6 {
        // Space that a device's library may use: nobody knows how much.
        out[5] = shape([None]);
    }
    Ok(out)
}

fn batch_norm_grad(c: &mut Context<'_>) -> Result<Shapes> {
    let (rank, at) = channels(c)?;
    let (dy, x) = (c.with_rank(0, rank)?, c.rank(1, rank)?);
    let mut depth = merge_dims(dy.dims().and_then(|d| d[at]), x[at])?;
    for i in 2..5 {
        depth = merge_dims(depth, c.rank(i, 1)?[0])?;
    }
    let (vector, none) = (shape([depth]), shape([Some(0)]));
    Ok(smallvec![
        replace(&dy, at, depth),
        vector.clone(),
        vector,
        none.clone(),
        none
    ])
}

fn beam_search(c: &mut Context<'_>) -> Result<Shapes> {
    let batch = merge_dims(c.rank(0, 3)?[1], c.rank(1, 1)?[0])?;
    let paths = c.attrs().size("top_paths")?;
    let mut out = Shapes::new();
    for part in [shape([None, Some(2)]), shape([None]), shape([Some(2)])] {
        out.extend(std::iter::repeat_n(part, paths));
    }
    out.push(shape([batch, Some(paths)]));
    Ok(out)
}

/// Input 0, and the shape of the ranges: one for all, or one for each place along `axis`.
fn quantized(
    c: &Context<'_>,
    ends: std::ops::Range<usize>,
) -> Result<(PartialShape, PartialShape)> {
    let axis = c.attrs().int("axis").unwrap_or(-1);
    if axis < -1 {
        return invalid(format!("axis should be at least -1, got {axis}"));
    }
    let rank = usize::from(axis != -1);
    let mut range = PartialShape::unknown();
    for i in ends {
        range = merge(&range, &c.with_rank(i, rank)?)?;
    }
    let input = c.input(0);
    if axis >= 0 {
        let at = axis as usize;
        c.at_least(0, at.saturating_add(1))?;
        let along = input.dims().and_then(|d| d[at]);
        merge_dims(along, range.dims().and_then(|d| d[0]))?;
    }
    Ok((input, range))
}

fn candidates(c: &mut Context<'_>) -> Result<Shapes> {
    let (sampled, given) = (c.attrs().int("num_sampled")?, c.attrs().int("num_true")?);
    if sampled <= 0 {
        return invalid("num_sampled must be positive");
    }
    let rows = c.rank(0, 2)?[0];
    let samples = shape([size(sampled)?]);
    Ok(smallvec![
        samples.clone(),
        shape([rows, size(given)?]),
        samples
    ])
}
