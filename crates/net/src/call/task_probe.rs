//! Whether another task is there, asked without waiting for it.

use crate::Peers;
use downpour_graph::Code;
use downpour_wire::messages::GetStatusResponse;
use downpour_wire::{Budget, WireMessage as _, proto};
use std::time::Duration;

/// How a task answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TaskProbe {
    /// It is there; these are the incarnations of its devices, if it said so.
    Answers(Vec<u64>),
    /// It is not, or nothing can be heard of it.
    Away,
}

impl Peers {
    /// Whether anything listens where a task should be: a process that was killed refuses at once,
    /// one that hangs does not. Nothing if that cannot be told in time.
    pub async fn listens(&self, task: &str, limit: Duration) -> Option<bool> {
        let address = self.address(task)?;
        let connect = tokio::net::TcpStream::connect(address);
        match tokio::time::timeout(limit, connect).await.ok()? {
            Ok(_) => Some(true),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionRefused => Some(false),
            Err(_) => None,
        }
    }

    /// Asks a task for its status.
    pub async fn reach(&self, task: &str, limit: Duration) -> TaskProbe {
        let Ok(mut client) = self.client(task) else {
            return TaskProbe::Away;
        };
        let asked = client.get_status(proto::GetStatusRequest {});
        match tokio::time::timeout(limit, asked).await {
            Ok(Ok(reply)) => {
                let reply = GetStatusResponse::decode(reply.into_inner(), &Budget::default());
                let devices = reply.map(|r| r.devices).unwrap_or_default();
                TaskProbe::Answers(devices.iter().map(|d| d.incarnation).collect())
            }
            Ok(Err(e)) if self.failed(task, &e).code == Code::Unavailable => TaskProbe::Away,
            // A task that refuses the question is there.
            Ok(Err(_)) => TaskProbe::Answers(Vec::new()),
            Err(_) => TaskProbe::Away,
        }
    }
}
