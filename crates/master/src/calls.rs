//! The master as a client of the same process calls it: no socket, nothing encoded.

use crate::Master;
use downpour_net::{Lanes, MasterCalls, Reply};
use downpour_wire::Meter;
use downpour_wire::messages::{
    CloseSessionRequest, CreateSessionRequest, CreateSessionResponse, ExtendSessionRequest,
    ExtendSessionResponse, ListDevicesRequest, ListDevicesResponse, MakeCallableRequest,
    MakeCallableResponse, PartialRunSetupRequest, PartialRunSetupResponse, ReleaseCallableRequest,
    ResetRequest, RunCallableRequest, RunCallableResponse, RunStepRequest, RunStepResponse,
};
use std::sync::Arc;
use std::time::Duration;

/// How long a task's host may take to accept or refuse a connection.
const CONNECT: Duration = Duration::from_millis(500);

impl MasterCalls for Master {
    fn create_session(
        self: Arc<Self>,
        request: CreateSessionRequest,
    ) -> Reply<CreateSessionResponse> {
        // What the own process built is not metered: it already has the memory.
        let meter = Meter::from(&self.budget());
        Box::pin(async move { Master::create_session(&self, request, meter, None).await })
    }

    fn extend_session(
        self: Arc<Self>,
        request: ExtendSessionRequest,
    ) -> Reply<ExtendSessionResponse> {
        Box::pin(async move {
            let meter = Meter::from(&self.session_budget(&request.session_handle)?);
            Master::extend_session(&self, request, &meter)
        })
    }

    fn run_step(self: Arc<Self>, request: RunStepRequest) -> Reply<RunStepResponse> {
        Box::pin(async move { Master::run_step(&self, request).await })
    }

    fn partial_run_setup(
        self: Arc<Self>,
        request: PartialRunSetupRequest,
    ) -> Reply<PartialRunSetupResponse> {
        Box::pin(async move { Master::partial_run_setup(&self, request).await })
    }

    fn make_callable(self: Arc<Self>, request: MakeCallableRequest) -> Reply<MakeCallableResponse> {
        Box::pin(async move { Master::make_callable(&self, request).await })
    }

    fn run_callable(self: Arc<Self>, request: RunCallableRequest) -> Reply<RunCallableResponse> {
        Box::pin(async move { Master::run_callable(&self, request).await })
    }

    fn release_callable(self: Arc<Self>, request: ReleaseCallableRequest) -> Reply<()> {
        downpour_net::ready(Master::release_callable(&self, request))
    }

    fn close_session(self: Arc<Self>, request: CloseSessionRequest) -> Reply<()> {
        downpour_net::ready(Master::close_session(&self, request))
    }

    fn list_devices(self: Arc<Self>, request: ListDevicesRequest) -> Reply<ListDevicesResponse> {
        Box::pin(async move { Master::list_devices(&self, request).await })
    }

    fn reset(self: Arc<Self>, request: ResetRequest) -> Reply<()> {
        Box::pin(async move { Master::reset(&self, request).await })
    }

    fn lanes(&self) -> Option<&Arc<Lanes>> {
        self.peers().lanes()
    }

    fn listens(self: Arc<Self>, task: String) -> Reply<Option<bool>> {
        // Peers are known by their full names.
        let task = match task.contains("/replica:") {
            true => task,
            false => task.replace("/task:", "/replica:0/task:"),
        };
        let peers = self.peers().clone();
        Box::pin(async move { Ok(peers.listens(&task, CONNECT).await) })
    }
}
