//! Training: optimizers, replication, supervision and checkpoints, on graphs that `build` makes
//! and sessions that `client` runs.

mod optimizer;

pub use optimizer::{
    Adam, GradientDescent, Minimize, Momentum, Optimizer, Rate, Slots, Update, global_step,
};
