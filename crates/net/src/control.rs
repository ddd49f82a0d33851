//! Downpour's own service beside TensorFlow's: stops a task from outside. Whoever may run a graph
//! on a task may do anything to it, but may not end it from another machine unless it was
//! started so.

use crate::Gate;
use crate::address::split_address;
use downpour_graph::{Code, Status};
use downpour_wire::control::control_client::ControlClient;
use downpour_wire::control::control_server::{self, ControlServer};
use downpour_wire::control::{StopRequest, StopResponse};
use downpour_wire::from_tonic;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tonic::transport::Endpoint;
use tonic::{Request, Response};

/// Longest time that a request may give steps to end.
const MAX_DRAIN: Duration = Duration::from_secs(24 * 3600);

/// The service.
pub struct Control {
    /// `/job:J/replica:0/task:N`.
    pub task: String,
    /// Whether other machines may stop the task.
    pub allow_remote: bool,
    /// How long steps under way have, if the request does not say.
    pub drain: Duration,
    /// Knows what is under way.
    pub gate: Arc<Gate>,
    /// Hears the order to stop, with the time that steps have.
    pub order: watch::Sender<Option<Duration>>,
}

impl Control {
    /// As a service to add to others.
    pub fn service(self) -> ControlServer<Control> {
        ControlServer::new(self)
    }
}

#[tonic::async_trait]
impl control_server::Control for Control {
    async fn stop(
        &self,
        request: Request<StopRequest>,
    ) -> Result<Response<StopResponse>, tonic::Status> {
        let from = request.remote_addr().map(|a| a.ip().to_canonical());
        if !self.allow_remote && !from.is_some_and(|ip| ip.is_loopback()) {
            return Err(tonic::Status::permission_denied(format!(
                "{} is stopped only from its own machine; start it with --allow-remote-stop to stop it from others",
                self.task
            )));
        }
        let asked = request.into_inner().drain_millis.map(Duration::from_millis);
        let drain = asked.unwrap_or(self.drain).min(MAX_DRAIN);
        self.order.send_replace(Some(drain));
        Ok(Response::new(StopResponse {
            task: self.task.clone(),
            steps: self.gate.steps() as u64,
            drain_millis: drain.as_millis() as u64,
        }))
    }
}

/// Stops the task at `address` and waits until nobody listens there; returns the task's name.
pub async fn stop_task(address: &str, drain: Option<Duration>) -> Result<String, Status> {
    /// How long connecting may take, and what comes after the steps' own time.
    const SLACK: Duration = Duration::from_secs(10);
    let (host, port) = split_address(address)
        .map_err(|e| Status::invalid_argument(format!("'{address}': {e}")))?;
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|e| Status::invalid_argument(format!("'{address}': {e}")))?
        .connect_timeout(SLACK);
    let channel = endpoint.connect().await.map_err(|e| {
        let mut cause: &dyn std::error::Error = &e;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        Status::unavailable(format!("nobody answers at {address}: {cause}"))
    })?;
    let request = StopRequest {
        drain_millis: drain.map(|d| d.as_millis() as u64),
    };
    let mut client = ControlClient::new(channel);
    let reply = tokio::time::timeout(SLACK, client.stop(request))
        .await
        .map_err(|_| Status::unavailable(format!("the task at {address} does not answer")))?
        .map_err(|e| match from_tonic(&e) {
            e if e.code == Code::Unimplemented => {
                Status::unimplemented(format!("the task at {address} is not Downpour's"))
            }
            e => e,
        })?
        .into_inner();
    let limit = Duration::from_millis(reply.drain_millis) + SLACK;
    let gone = async {
        while tokio::net::TcpStream::connect((host, port)).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    match tokio::time::timeout(limit, gone).await {
        Ok(()) => Ok(reply.task),
        Err(_) => Err(Status::deadline_exceeded(format!(
            "{} was told to stop {limit:?} ago and still listens at {address}",
            reply.task
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::control_server::Control as _;
    use super::*;
    use tonic::transport::server::TcpConnectInfo;

    async fn stop_from(address: &str, allow_remote: bool) -> Result<Option<Duration>, Code> {
        let (order, orders) = watch::channel(None);
        let control = Control {
            task: "/job:ps/replica:0/task:0".into(),
            allow_remote,
            drain: Duration::from_secs(20),
            gate: Gate::new("/job:ps/replica:0/task:0"),
            order,
        };
        let mut request = Request::new(StopRequest {
            drain_millis: Some(u64::MAX),
        });
        request.extensions_mut().insert(TcpConnectInfo {
            local_addr: None,
            remote_addr: address.parse().ok(),
        });
        let outcome = control.stop(request).await;
        outcome.map_err(|e| from_tonic(&e).code)?;
        Ok(*orders.borrow())
    }

    #[tokio::test]
    async fn only_the_own_machine_stops_a_task_unless_told_otherwise() {
        let stopped = Ok(Some(MAX_DRAIN));
        for own in ["127.0.0.1:5", "[::1]:5", "[::ffff:127.0.0.1]:5"] {
            assert_eq!(stop_from(own, false).await, stopped, "{own}");
        }
        for other in ["192.0.2.1:5", "[2001:db8::1]:5", "nothing known"] {
            let refused = stop_from(other, false).await;
            assert_eq!(refused, Err(Code::PermissionDenied), "{other}");
            assert_eq!(stop_from(other, true).await, stopped, "{other}");
        }
    }
}
