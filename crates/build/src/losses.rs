//! Losses: one number to make small. Each takes the mean over the batch, as TensorFlow's do when
//! all weights are one; [`weighted`] takes weights.

use crate::{DType, Output};

/// Mean of squared differences.
#[track_caller]
pub fn mean_squared_error(labels: &Output, predictions: &Output) -> Output {
    predictions.squared_difference(labels).mean(())
}

/// Mean of absolute differences.
#[track_caller]
pub fn absolute_difference(labels: &Output, predictions: &Output) -> Output {
    (predictions - labels).abs().mean(())
}

/// Mean cross entropy of logits with rows of probabilities.
#[track_caller]
pub fn softmax_cross_entropy(labels: &Output, logits: &Output) -> Output {
    logits.softmax_cross_entropy(labels).mean(())
}

/// Mean cross entropy of logits with the numbers of classes.
#[track_caller]
pub fn sparse_softmax_cross_entropy(labels: &Output, logits: &Output) -> Output {
    logits.sparse_softmax_cross_entropy(labels).mean(())
}

/// Cross entropy of each logit with its own probability, computed so that nothing overflows.
#[track_caller]
pub fn sigmoid_cross_entropy_elements(labels: &Output, logits: &Output) -> Output {
    logits.relu() - logits * labels + (-logits.abs()).exp().log1p()
}

/// Mean of [`sigmoid_cross_entropy_elements`].
#[track_caller]
pub fn sigmoid_cross_entropy(labels: &Output, logits: &Output) -> Output {
    sigmoid_cross_entropy_elements(labels, logits).mean(())
}

/// Mean of `max(0, 1 - ±logit)`, labels being 0 or 1.
#[track_caller]
pub fn hinge(labels: &Output, logits: &Output) -> Output {
    let signs = labels * 2.0 - 1.0;
    (1.0 - signs * logits).relu().mean(())
}

/// Squared below `delta`, linear above; the mean.
#[track_caller]
pub fn huber(labels: &Output, predictions: &Output, delta: f64) -> Output {
    let error = (predictions - labels).abs();
    let near = error.minimum(&error.scalar_like(delta));
    let far = &error - &near;
    (near.square() * 0.5 + far * delta).mean(())
}

/// Mean of `-label ln(p + ε) - (1 - label) ln(1 - p + ε)`.
#[track_caller]
pub fn log_loss(labels: &Output, predictions: &Output) -> Output {
    const EPSILON: f64 = 1e-7;
    let yes = labels * (predictions + EPSILON).log();
    let no = (1.0 - labels) * (1.0 - predictions + EPSILON).log();
    -(yes + no).mean(())
}

/// The sum of weighted losses, divided by how many weights are not zero.
#[track_caller]
pub fn weighted(losses: &Output, weights: &Output) -> Output {
    let weighted = losses * weights;
    let present = weights.not_equal(&weights.zeros_like());
    let ones = losses.ones_like() * present.cast(losses.dtype());
    weighted.sum(()).div_no_nan(&ones.sum(()))
}

/// Half the sum of squares of variables, times a factor.
#[track_caller]
pub fn l2_regularizer(variables: &[crate::Variable], factor: f64) -> Option<Output> {
    let parts: Vec<Output> = variables
        .iter()
        .filter(|v| matches!(v.dtype(), DType::Float | DType::Double))
        .map(|v| v.l2_loss())
        .collect();
    crate::ops::add_n(&parts).map(|sum| sum * factor)
}
