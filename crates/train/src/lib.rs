//! Training: optimizers, replication, supervision and checkpoints, on graphs that `build` makes
//! and sessions that `client` runs.

mod average;
mod coordinator;
mod creator;
mod downpour;
mod election;
mod events;
mod heartbeat;
pub mod hooks;
mod hyperparameters;
mod meta;
mod monitored;
mod optimizer;
mod queue;
mod ready;
mod runner;
pub mod sandblaster;
mod saver;
mod schedule;
mod services;
pub mod shards;
pub mod staleness;
mod supervision;
mod supervisor;
mod sync;
mod timeline;

pub use average::ExponentialMovingAverage;
pub use coordinator::Coordinator;
pub use downpour::{DownpourHook, DownpourSgd, DownpourTraining, Replica, ShardBatches, Taken};
pub use downpour_coordination::Coordinator as CoordinatorUrl;
pub use election::{
    Appointed, CoordinatedElection, Election, Fence, LeaseElection, SharedElection,
};
pub use events::Events;
pub use hyperparameters::Hyperparameter;
pub use meta::{Imported, MetaGraph};
pub use monitored::{Every, MonitoredSession, MonitoredStep};
pub use optimizer::{
    Adadelta, Adagrad, AdagradDa, Adam, Ftrl, GradientDescent, Minimize, Momentum, Optimizer,
    PerVariable, ProximalAdagrad, ProximalGradientDescent, Rate, RmsProp, Slots, Update,
    global_step, weight_decay,
};
pub use queue::{Queue, QueueBuilder};
pub use runner::QueueRunner;
pub use saver::{Saver, SaverBuilder, latest_checkpoint, read_checkpoint};
pub use schedule::Schedule;
pub use supervision::Supervision;
pub use supervisor::{Supervisor, SupervisorBuilder};
pub use sync::{MissingWorkers, SyncHook, SyncReplicas, SyncTraining};
pub use timeline::chrome_trace;
