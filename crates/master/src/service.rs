//! The gRPC shell: decodes, calls the master, encodes. No decision is made here.

use crate::Master;
use downpour_graph::Result;
use downpour_net::Methods;
use downpour_wire::codec::ServiceMessage as _;
use downpour_wire::messages::{
    CloseSessionRequest, CloseSessionResponse, CreateSessionRequest, ExtendSessionRequest,
    ListDevicesRequest, MakeCallableRequest, PartialRunSetupRequest, ReleaseCallableRequest,
    ReleaseCallableResponse, ResetRequest, ResetResponse, RunCallableRequest, RunStepRequest,
    RunStepResponse,
};
use downpour_wire::proto::master_service_server::{MasterService, MasterServiceServer};
use downpour_wire::{InPieces, Meter, WireMessage, proto, to_tonic};
use std::sync::Arc;
use tonic::{Request, Response, Status};

/// Serves a [`Master`] over gRPC.
pub struct MasterShell(Arc<Master>);

impl MasterShell {
    /// The service, with this limit on the size of a message either way.
    pub fn service(master: Arc<Master>, message_bytes: usize) -> MasterServiceServer<MasterShell> {
        MasterServiceServer::new(MasterShell(master))
            .max_decoding_message_size(message_bytes)
            .max_encoding_message_size(message_bytes)
            .accept_compressed(tonic::codec::CompressionEncoding::Gzip)
            .accept_compressed(tonic::codec::CompressionEncoding::Deflate)
    }

    /// The calls of which a step is made, without the generated service around them.
    pub fn add_methods(master: &Arc<Master>, methods: &mut Methods) {
        let shell = master.clone();
        methods.add("/tensorflow.MasterService/RunStep", move |message| {
            let master = shell.clone();
            async move {
                let budget = master.budget();
                let request = proto::RunStepRequest::from_wire(message, &budget);
                let request = request.map_err(to_tonic)?;
                let in_body = request.store_errors_in_response_body;
                let outcome = match RunStepRequest::decode(request, &budget) {
                    Ok(request) => master.run_step(request).await,
                    Err(e) => Err(e),
                };
                Ok(RunStepResponse::reply(outcome, in_body)?
                    .into_pieces()
                    .into())
            }
        });
        let shell = master.clone();
        methods.add("/tensorflow.MasterService/RunCallable", move |message| {
            let master = shell.clone();
            async move {
                let request = RunCallableRequest::from_bytes(message, &master.budget());
                let reply = master.run_callable(request.map_err(to_tonic)?).await;
                let reply = reply.and_then(WireMessage::encode).map_err(to_tonic)?;
                Ok(reply.into_pieces().into())
            }
        });
    }

    fn decode<M: WireMessage>(&self, request: Request<M::Proto>) -> Result<M, Status> {
        M::decode(request.into_inner(), &self.0.budget()).map_err(to_tonic)
    }
}

fn reply<M: WireMessage>(outcome: Result<M>) -> Result<Response<M::Proto>, Status> {
    outcome
        .and_then(WireMessage::encode)
        .map(Response::new)
        .map_err(to_tonic)
}

#[tonic::async_trait]
impl MasterService for MasterShell {
    async fn create_session(
        &self,
        request: Request<proto::CreateSessionRequest>,
    ) -> Result<Response<proto::CreateSessionResponse>, Status> {
        let mut meter = Meter::from(&self.0.budget());
        let client = request.extensions().get().cloned();
        let request = tokio::task::block_in_place(|| {
            CreateSessionRequest::decode_metered(request.into_inner(), &mut meter)
        })
        .map_err(to_tonic)?;
        reply(self.0.create_session(request, meter, client).await)
    }

    async fn extend_session(
        &self,
        request: Request<proto::ExtendSessionRequest>,
    ) -> Result<Response<proto::ExtendSessionResponse>, Status> {
        tokio::task::block_in_place(|| {
            let request = request.into_inner();
            reply(
                self.0
                    .session_budget(&request.session_handle)
                    .and_then(|budget| {
                        let mut meter = Meter::from(&budget);
                        let request = ExtendSessionRequest::decode_metered(request, &mut meter)?;
                        self.0.extend_session(request, &meter)
                    }),
            )
        })
    }

    async fn partial_run_setup(
        &self,
        request: Request<proto::PartialRunSetupRequest>,
    ) -> Result<Response<proto::PartialRunSetupResponse>, Status> {
        let request: PartialRunSetupRequest = self.decode(request)?;
        reply(self.0.partial_run_setup(request).await)
    }

    async fn run_step(
        &self,
        request: Request<proto::RunStepRequest>,
    ) -> Result<Response<proto::RunStepResponse>, Status> {
        let in_body = request.get_ref().store_errors_in_response_body;
        let outcome = match RunStepRequest::decode(request.into_inner(), &self.0.budget()) {
            Ok(request) => self.0.run_step(request).await,
            Err(e) => Err(e),
        };
        RunStepResponse::reply(outcome, in_body).map(Response::new)
    }

    async fn close_session(
        &self,
        request: Request<proto::CloseSessionRequest>,
    ) -> Result<Response<proto::CloseSessionResponse>, Status> {
        let request: CloseSessionRequest = self.decode(request)?;
        reply(
            self.0
                .close_session(request)
                .map(|()| CloseSessionResponse {}),
        )
    }

    async fn list_devices(
        &self,
        request: Request<proto::ListDevicesRequest>,
    ) -> Result<Response<proto::ListDevicesResponse>, Status> {
        let request: ListDevicesRequest = self.decode(request)?;
        reply(self.0.list_devices(request).await)
    }

    async fn reset(
        &self,
        request: Request<proto::ResetRequest>,
    ) -> Result<Response<proto::ResetResponse>, Status> {
        let request: ResetRequest = self.decode(request)?;
        reply(self.0.reset(request).await.map(|()| ResetResponse {}))
    }

    async fn make_callable(
        &self,
        request: Request<proto::MakeCallableRequest>,
    ) -> Result<Response<proto::MakeCallableResponse>, Status> {
        let request: MakeCallableRequest = self.decode(request)?;
        reply(self.0.make_callable(request).await)
    }

    async fn run_callable(
        &self,
        request: Request<proto::RunCallableRequest>,
    ) -> Result<Response<proto::RunCallableResponse>, Status> {
        let request: RunCallableRequest = self.decode(request)?;
        reply(self.0.run_callable(request).await)
    }

    async fn release_callable(
        &self,
        request: Request<proto::ReleaseCallableRequest>,
    ) -> Result<Response<proto::ReleaseCallableResponse>, Status> {
        let request: ReleaseCallableRequest = self.decode(request)?;
        reply(
            self.0
                .release_callable(request)
                .map(|()| ReleaseCallableResponse {}),
        )
    }
}
