//! How a client sees a master: sessions, steps, callables. Implemented by the master of the same
//! process without any encoding; by [`RemoteMaster`] over gRPC, for ours and TensorFlow's alike.

use crate::Limits;
use crate::lane::Lanes;
use crate::task::Reply;
use downpour_cluster::split_address;
use downpour_graph::{Code, Result, Status};
use downpour_wire::messages::{
    CloseSessionRequest, CreateSessionRequest, CreateSessionResponse, ExtendSessionRequest,
    ExtendSessionResponse, ListDevicesRequest, ListDevicesResponse, MakeCallableRequest,
    MakeCallableResponse, PartialRunSetupRequest, PartialRunSetupResponse, ReleaseCallableRequest,
    ResetRequest, RunCallableRequest, RunCallableResponse, RunStepRequest, RunStepResponse,
};
use downpour_wire::proto::master_service_client::MasterServiceClient;
use downpour_wire::{Budget, WireMessage, from_tonic};
use std::error::Error as _;
use std::sync::Arc;
use tonic::transport::{Channel, Endpoint};

/// A master.
pub trait MasterCalls: Send + Sync {
    /// Opens a session.
    fn create_session(
        self: Arc<Self>,
        request: CreateSessionRequest,
    ) -> Reply<CreateSessionResponse>;
    /// Adds to a session's graph.
    fn extend_session(
        self: Arc<Self>,
        request: ExtendSessionRequest,
    ) -> Reply<ExtendSessionResponse>;
    /// Runs a step, or a part of one.
    fn run_step(self: Arc<Self>, request: RunStepRequest) -> Reply<RunStepResponse>;
    /// Prepares a run in several parts.
    fn partial_run_setup(
        self: Arc<Self>,
        request: PartialRunSetupRequest,
    ) -> Reply<PartialRunSetupResponse>;
    /// Prepares a run that will be repeated.
    fn make_callable(self: Arc<Self>, request: MakeCallableRequest) -> Reply<MakeCallableResponse>;
    /// Runs a callable.
    fn run_callable(self: Arc<Self>, request: RunCallableRequest) -> Reply<RunCallableResponse>;
    /// Forgets a callable.
    fn release_callable(self: Arc<Self>, request: ReleaseCallableRequest) -> Reply<()>;
    /// Ends a session.
    fn close_session(self: Arc<Self>, request: CloseSessionRequest) -> Reply<()>;
    /// Lists devices.
    fn list_devices(self: Arc<Self>, request: ListDevicesRequest) -> Reply<ListDevicesResponse>;
    /// Ends every session and clears containers.
    fn reset(self: Arc<Self>, request: ResetRequest) -> Reply<()>;
    /// Whether anything listens where a task of the cluster should be; nothing if the master cannot
    /// tell. Not one of TensorFlow's calls: only a master of the same process knows.
    fn listens(self: Arc<Self>, _task: String) -> Reply<Option<bool>> {
        crate::ready(Ok(None))
    }
    /// The lanes of the master's task, for a client that waits in the same process.
    fn lanes(&self) -> Option<&Arc<Lanes>> {
        None
    }
}

/// A master in another process.
pub struct RemoteMaster {
    address: String,
    client: MasterServiceClient<Channel>,
}

impl RemoteMaster {
    /// The master at `grpc://host:port`, reached when it is first called. Must be called inside a
    /// tokio runtime, which then carries the calls.
    pub fn new(target: &str, limits: Limits) -> Result<RemoteMaster> {
        let address = target.strip_prefix("grpc://").unwrap_or(target);
        let wrong =
            |e: &dyn std::fmt::Display| Status::invalid_argument(format!("target '{target}': {e}"));
        split_address(address).map_err(|e| wrong(&e))?;
        let channel = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|e| wrong(&e))?
            .tcp_nodelay(true)
            .initial_stream_window_size(16 << 20)
            .initial_connection_window_size(64 << 20)
            .http2_max_header_list_size(limits.header_bytes)
            .connect_timeout(limits.connect)
            .connect_lazy();
        let client = MasterServiceClient::new(channel)
            .max_decoding_message_size(limits.message_bytes)
            .max_encoding_message_size(limits.message_bytes);
        Ok(RemoteMaster {
            address: address.to_owned(),
            client,
        })
    }

    /// What a failed call says: which master, if it could not be reached.
    fn failed(&self, error: &tonic::Status) -> Status {
        let mut status = from_tonic(error);
        if status.code == Code::Unavailable && error.source().is_some() {
            let mut cause: Option<&dyn std::error::Error> = error.source();
            let mut text = String::new();
            while let Some(e) = cause {
                text = e.to_string();
                cause = e.source();
            }
            status.message = format!("the master at {} does not answer: {text}", self.address);
        }
        status
    }
}

macro_rules! calls {
    ($($method:ident($request:ty) -> $response:ty;)*) => {$(
        fn $method(self: Arc<Self>, request: $request) -> Reply<$response> {
            Box::pin(async move {
                let mut client = self.client.clone();
                let reply = client.$method(request.encode()?).await;
                let reply = reply.map_err(|e| self.failed(&e))?;
                <$response as WireMessage>::decode(reply.into_inner(), &Budget::default())
            })
        }
    )*};
}

macro_rules! farewells {
    ($($method:ident($request:ty);)*) => {$(
        fn $method(self: Arc<Self>, request: $request) -> Reply<()> {
            Box::pin(async move {
                let mut client = self.client.clone();
                let reply = client.$method(request.encode()?).await;
                reply.map(|_| ()).map_err(|e| self.failed(&e))
            })
        }
    )*};
}

impl MasterCalls for RemoteMaster {
    calls! {
        create_session(CreateSessionRequest) -> CreateSessionResponse;
        extend_session(ExtendSessionRequest) -> ExtendSessionResponse;
        partial_run_setup(PartialRunSetupRequest) -> PartialRunSetupResponse;
        make_callable(MakeCallableRequest) -> MakeCallableResponse;
        run_callable(RunCallableRequest) -> RunCallableResponse;
        list_devices(ListDevicesRequest) -> ListDevicesResponse;
    }

    farewells! {
        release_callable(ReleaseCallableRequest);
        close_session(CloseSessionRequest);
        reset(ResetRequest);
    }

    fn run_step(self: Arc<Self>, mut request: RunStepRequest) -> Reply<RunStepResponse> {
        // A call's status has little room; the body has enough for any error.
        request.store_errors_in_response_body = true;
        Box::pin(async move {
            let mut client = self.client.clone();
            let reply = client.run_step(request.encode()?).await;
            let reply = reply.map_err(|e| self.failed(&e))?;
            let reply = RunStepResponse::decode(reply.into_inner(), &Budget::default())?;
            match reply.error {
                None => Ok(reply),
                Some(error) => Err(error),
            }
        })
    }
}
