//! Downpour's own service beside TensorFlow's: stops a task from outside, and says what it does.
//! Whoever may run a graph on a task may do anything to it, but may neither end it nor look into
//! it from another machine unless it was started so.

use crate::Admission;
use downpour_cluster::split_address;
use downpour_graph::{Code, Status};
use downpour_wire::control::control_client::ControlClient;
use downpour_wire::control::control_server::{self, ControlServer};
use downpour_wire::control::{InspectRequest, StopRequest, StopResponse, TaskReport};
use downpour_wire::from_tonic;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response};

/// Longest time that a request may give steps to end.
const MAX_DRAIN: Duration = Duration::from_secs(24 * 3600);

/// Says what the task does at the moment.
pub type Reporter = Arc<dyn Fn() -> TaskReport + Send + Sync>;

/// The service.
pub struct Control {
    /// `/job:J/replica:0/task:N`.
    pub task: String,
    /// Whether other machines may stop the task.
    pub allow_remote: bool,
    /// Whether other machines may ask what the task does.
    pub allow_remote_inspect: bool,
    /// What the task does.
    pub reporter: Reporter,
    /// How long steps under way have, if the request does not say.
    pub drain: Duration,
    /// Knows what is under way.
    pub admission: Arc<Admission>,
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
        if !self.allow_remote && !is_local(&request) {
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
            steps: self.admission.steps() as u64,
            drain_millis: drain.as_millis() as u64,
        }))
    }

    async fn inspect(
        &self,
        request: Request<InspectRequest>,
    ) -> Result<Response<TaskReport>, tonic::Status> {
        if !self.allow_remote_inspect && !is_local(&request) {
            return Err(tonic::Status::permission_denied(format!(
                "{} is inspected only from its own machine; start it with --allow-remote-inspect to inspect it from others",
                self.task
            )));
        }
        Ok(Response::new((self.reporter)()))
    }
}

/// Whether a request comes from this machine: over the loopback interface, or from the very
/// address that it came to.
fn is_local<T>(request: &Request<T>) -> bool {
    let Some(from) = request.remote_addr().map(|a| a.ip().to_canonical()) else {
        return false;
    };
    let to = request.local_addr().map(|a| a.ip().to_canonical());
    from.is_loopback() || to == Some(from)
}

/// Why a task did not say what it does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Nobody answers; the text says how.
    Silent(String),
    /// It answers, but not this: not Downpour's, or not to this machine.
    Unwilling(String),
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Refusal::Silent(text) | Refusal::Unwilling(text)) = self;
        f.write_str(text)
    }
}

/// Bytes of the largest report that is taken in.
const MAX_REPORT: usize = 16 << 20;

/// Asks the task at `address` what it does.
pub async fn inspect_task(address: &str, limit: Duration) -> Result<TaskReport, Refusal> {
    let silent = || Refusal::Silent(format!("the task at {address} does not answer"));
    let ask = async {
        let channel = connect(address, limit)
            .await
            .map_err(|e| Refusal::Silent(e.message))?;
        let mut client = ControlClient::new(channel).max_decoding_message_size(MAX_REPORT);
        client.inspect(InspectRequest {}).await.map_err(|e| {
            let status = from_tonic(&e);
            match status.code {
                Code::Unimplemented => {
                    Refusal::Unwilling(format!("the task at {address} is not Downpour's"))
                }
                Code::Unavailable => silent(),
                _ => Refusal::Unwilling(status.message),
            }
        })
    };
    match tokio::time::timeout(limit, ask).await {
        Ok(outcome) => outcome.map(Response::into_inner),
        Err(_) => Err(silent()),
    }
}

async fn connect(address: &str, limit: Duration) -> Result<Channel, Status> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|e| Status::invalid_argument(format!("'{address}': {e}")))?
        .connect_timeout(limit);
    endpoint.connect().await.map_err(|e| {
        let mut cause: &dyn std::error::Error = &e;
        while let Some(deeper) = cause.source() {
            cause = deeper;
        }
        Status::unavailable(format!("nobody answers at {address}: {cause}"))
    })
}

/// Stops the task at `address` and waits until nobody listens there; returns the task's name.
pub async fn stop_task(address: &str, drain: Option<Duration>) -> Result<String, Status> {
    /// How long connecting may take, and what comes after the steps' own time.
    const SLACK: Duration = Duration::from_secs(10);
    let (host, port) = split_address(address)
        .map_err(|e| Status::invalid_argument(format!("'{address}': {e}")))?;
    let channel = connect(address, SLACK).await?;
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

    fn control(allow_remote: bool, order: watch::Sender<Option<Duration>>) -> Control {
        Control {
            task: "/job:ps/replica:0/task:0".into(),
            allow_remote,
            allow_remote_inspect: allow_remote,
            reporter: Arc::new(TaskReport::default),
            drain: Duration::from_secs(20),
            admission: Admission::new("/job:ps/replica:0/task:0"),
            order,
        }
    }

    fn from<T>(address: &str, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.extensions_mut().insert(TcpConnectInfo {
            local_addr: None,
            remote_addr: address.parse().ok(),
        });
        request
    }

    async fn stop_from(address: &str, allow_remote: bool) -> Result<Option<Duration>, Code> {
        let (order, orders) = watch::channel(None);
        let request = from(
            address,
            StopRequest {
                drain_millis: Some(u64::MAX),
            },
        );
        let outcome = control(allow_remote, order).stop(request).await;
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

    #[tokio::test]
    async fn only_the_own_machine_inspects_a_task_unless_told_otherwise() {
        for (address, allow, granted) in [
            ("127.0.0.1:5", false, true),
            ("192.0.2.1:5", false, false),
            ("192.0.2.1:5", true, true),
            ("nothing known", false, false),
        ] {
            let control = control(allow, watch::channel(None).0);
            let outcome = control.inspect(from(address, InspectRequest {})).await;
            assert_eq!(outcome.is_ok(), granted, "{address} {allow}");
        }
        let mut own = Request::new(InspectRequest {});
        own.extensions_mut().insert(TcpConnectInfo {
            local_addr: "192.0.2.7:1".parse().ok(),
            remote_addr: "192.0.2.7:5".parse().ok(),
        });
        let control = control(false, watch::channel(None).0);
        assert!(control.inspect(own).await.is_ok());
    }

    #[tokio::test]
    async fn a_port_that_nobody_listens_on_is_silent() {
        let refusal = inspect_task("127.0.0.1:1", Duration::from_secs(5)).await;
        assert!(matches!(refusal, Err(Refusal::Silent(_))), "{refusal:?}");
    }
}
