//! `downpour inspect`: what is in the files that training leaves behind, and whether they are whole.
//! Reading is `formats`' matter; here it is put into words, tables and JSON. Exit codes: 0 found as it should be, 1 damage
//! or a difference, 2 what was asked for cannot be looked at.

mod checkpoint;
mod cluster;
mod diff;
mod event_tags;
mod events;
mod graph;
mod locate;
pub(crate) mod output;
mod progress;
mod record;
mod statistics;
mod verify;

use crate::refusal::Found;
use anyhow::{Result, anyhow};
use clap::{Args, Subcommand};
use downpour_formats::Files;
use downpour_graph::{Code, Status};
use std::process::ExitCode;

/// Arguments of `downpour inspect`.
#[derive(Args)]
pub(crate) struct Inspect {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Tensors of a checkpoint: names, types, shapes, statistics, values, differences, damage
    #[command(after_help = checkpoint::EXAMPLES)]
    Checkpoint(checkpoint::Checkpoint),

    /// What TensorBoard would show: tags, scalars, graphs, sessions
    #[command(after_help = events::EXAMPLES)]
    Events(events::Events),

    /// Tasks that run: who is alive, devices, sessions, steps, variables and how they are spread
    #[command(after_help = cluster::EXAMPLES)]
    Cluster(cluster::Cluster),

    /// Graphs of any kind of file: ops, devices, variables; drawings
    #[command(after_help = graph::EXAMPLES)]
    Graph(graph::Graph),

    /// TFRecord files: records, their features, damage
    #[command(after_help = record::EXAMPLES)]
    Record(record::Record),
}

impl Inspect {
    /// Looks and tells.
    pub(crate) fn run(self) -> Result<ExitCode> {
        match self.what {
            What::Checkpoint(checkpoint) => checkpoint.run(),
            What::Cluster(cluster) => cluster.run(),
            What::Events(events) => events.run(),
            What::Graph(graph) => graph.run(),
            What::Record(record) => record.run(),
        }
    }
}

/// A failure to read, for people: what is at fault and what to do. Damage ends with 1, all else
/// with 2.
fn unreadable(what: &str, status: &Status) -> anyhow::Error {
    let reason = status.message.as_str();
    if Files::is_remote(what) {
        // It names the URL itself, without a password that one may hold.
        return Found(reason.to_owned()).into();
    }
    match status.code {
        Code::NotFound => anyhow!("{what}: there is no such file; is the path right?"),
        Code::PermissionDenied => {
            anyhow!("{what}: {reason}; ask its owner, or run as one who may read it")
        }
        Code::FailedPrecondition | Code::InvalidArgument | Code::Unimplemented => {
            anyhow!("{what}: {reason}")
        }
        _ => Found(format!("{what}: {reason}")).into(),
    }
}
