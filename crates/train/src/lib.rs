//! Training: optimizers, replication, supervision and checkpoints, on graphs that `build` makes
//! and sessions that `client` runs.

mod average;
mod events;
pub mod hooks;
mod monitored;
mod optimizer;
mod ready;
mod saver;
mod schedule;
mod sync;
mod timeline;

pub use average::ExponentialMovingAverage;
pub use events::Events;
pub use monitored::{Every, MonitoredSession, MonitoredStep, Supervision};
pub use optimizer::{
    Adadelta, Adagrad, AdagradDa, Adam, Ftrl, GradientDescent, Minimize, Momentum, Optimizer,
    ProximalAdagrad, ProximalGradientDescent, Rate, RmsProp, Slots, Update, global_step,
    weight_decay,
};
pub use saver::{Saver, SaverBuilder, latest_checkpoint, read_checkpoint};
pub use schedule::Schedule;
pub use sync::{SyncHook, SyncReplicas, SyncTraining};
pub use timeline::chrome_trace;
