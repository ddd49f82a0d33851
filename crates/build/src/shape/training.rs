//! Shapes of optimizers' updates: slots and gradients are like the variable, rates are scalars.
//! Except in two updates, TensorFlow compares a gradient with a ref variable only, not with what is
//! behind a handle.

use super::Rule::{self, Pattern};

/// The `Resource…` form of an update takes the same inputs and has no output.
pub(super) fn rule(op: &str) -> Option<Rule> {
    let update = op.strip_prefix("Resource").unwrap_or(op);
    Some(Pattern(match update {
        "ApplyGradientDescent" => "&V [] V -> V",
        "ApplyProximalGradientDescent" => "&V [] [] [] ~V -> V",
        "SparseApplyProximalGradientDescent" => "&[v,R..] [] [] [] ~[n,R..] [n] -> [v,R..]",
        "ApplyAdadelta" => "&V &V &V [] [] [] ~V -> V",
        "SparseApplyAdadelta" => "&[v,R..] &[v,R..] &[v,R..] [] [] [] ~[n,R..] [n] -> [v,R..]",
        "ApplyAdagrad" => "&V &V [] ~V -> V",
        "SparseApplyAdagrad" => "&[v,R..] &[v,R..] [] ~[n,R..] [n] -> [v,R..]",
        "ApplyAdagradV2" => "&V &V [] [] ~V -> V",
        "SparseApplyAdagradV2" => "&[v,R..] &[v,R..] [] [] ~[n,R..] [n] -> [v,R..]",
        "ApplyProximalAdagrad" => "&V &V [] [] [] V -> V",
        "SparseApplyProximalAdagrad" => "&[v,R..] &[v,R..] [] [] [] ~[n,R..] [n] -> [v,R..]",
        "ApplyAdagradDA" => "&V &V &V ~V [] [] [] [] -> V",
        "SparseApplyAdagradDA" => "&[v,R..] &[v,R..] &[v,R..] ~[n,R..] [n] [] [] [] [] -> [v,R..]",
        "ApplyFtrl" => "&V &V &V ~V [] [] [] [] -> V",
        "SparseApplyFtrl" => "&[v,R..] &[v,R..] &[v,R..] ~[n,R..] [n] [] [] [] [] -> [v,R..]",
        // TensorFlow's rule looks at four of the five rates.
        "ApplyFtrlV2" => "&V &V &V ~V [] [] [] [] * -> V",
        "SparseApplyFtrlV2" => "&[v,R..] &[v,R..] &[v,R..] ~[n,R..] [n] [] [] [] [] * -> [v,R..]",
        "ApplyMomentum" | "ApplyKerasMomentum" => "&V &V [] ~V [] -> V",
        "SparseApplyMomentum" | "SparseApplyKerasMomentum" => {
            "&[v,R..] &[v,R..] [] ~[n,R..] [n] [] -> [v,R..]"
        }
        "ApplyAdam" => "&V &V &V [] [] [] [] [] [] ~V -> V",
        "ApplyAdamWithAmsgrad" => "&V &V &V &V [] [] [] [] [] [] ~V -> V",
        "ApplyAdaMax" => "&V &V &V [] [] [] [] [] ~V -> V",
        "ApplyRMSProp" => "&V &V &V [] [] [] [] ~V -> V",
        "SparseApplyRMSProp" => "&[v,R..] &[v,R..] &[v,R..] [] [] [] [] ~[n,R..] [n] -> [v,R..]",
        "ApplyCenteredRMSProp" => "&V &V &V &V [] [] [] [] ~V -> V",
        "SparseApplyCenteredRMSProp" => {
            "&[v,R..] &[v,R..] &[v,R..] &[v,R..] [] [] [] [] ~[n,R..] [n] -> [v,R..]"
        }
        "ApplyAddSign" | "ApplyPowerSign" => "&V &V [] [] [] [] ~V -> V",
        _ => return None,
    }))
}
