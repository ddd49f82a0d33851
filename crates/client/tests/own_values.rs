//! What a client fetches is its own: a value that it keeps pins neither a message nor memory that another task shares.

use bytes::Bytes;
use downpour_build::{Graph, Result, Status, Tensor};
use downpour_client::{Session, Target};
use downpour_net::{MasterCalls, Reply, ready};
use downpour_tensor::{Buffer, DType, Shape};
use downpour_wire::messages::*;
use std::sync::Arc;

/// A master whose values lie in memory that is lent.
struct Lender;

fn lent() -> Tensor {
    let memory: Vec<u8> = vec![1; 4096 + 64];
    let skip = memory.as_ptr().align_offset(64);
    let bytes = Bytes::from(memory).slice(skip..skip + 4096);
    let buffer = Buffer::from_bytes(bytes, 64);
    assert!(buffer.is_borrowed());
    Tensor::from_buffer(DType::UInt8, Shape::from(vec![4096]), buffer)
        .expect("the buffer has as many bytes as the shape")
}

fn none<T: Send + 'static>() -> Reply<T> {
    ready(Err(Status::unimplemented("not asked for here")))
}

impl MasterCalls for Lender {
    fn create_session(self: Arc<Self>, _: CreateSessionRequest) -> Reply<CreateSessionResponse> {
        ready(Ok(CreateSessionResponse::default()))
    }
    fn extend_session(self: Arc<Self>, _: ExtendSessionRequest) -> Reply<ExtendSessionResponse> {
        none()
    }
    fn run_step(self: Arc<Self>, request: RunStepRequest) -> Reply<RunStepResponse> {
        let tensors = request.fetch.into_iter().map(|name| (name, lent()));
        ready(Ok(RunStepResponse {
            tensors: tensors.collect(),
            ..Default::default()
        }))
    }
    fn partial_run_setup(
        self: Arc<Self>,
        _: PartialRunSetupRequest,
    ) -> Reply<PartialRunSetupResponse> {
        none()
    }
    fn make_callable(self: Arc<Self>, _: MakeCallableRequest) -> Reply<MakeCallableResponse> {
        ready(Ok(MakeCallableResponse { handle: 1 }))
    }
    fn run_callable(self: Arc<Self>, _: RunCallableRequest) -> Reply<RunCallableResponse> {
        ready(Ok(RunCallableResponse {
            fetch: vec![lent()],
            metadata: RunMetadata::default(),
        }))
    }
    fn release_callable(self: Arc<Self>, _: ReleaseCallableRequest) -> Reply<()> {
        ready(Ok(()))
    }
    fn close_session(self: Arc<Self>, _: CloseSessionRequest) -> Reply<()> {
        ready(Ok(()))
    }
    fn list_devices(self: Arc<Self>, _: ListDevicesRequest) -> Reply<ListDevicesResponse> {
        none()
    }
    fn reset(self: Arc<Self>, _: ResetRequest) -> Reply<()> {
        none()
    }
}

#[test]
fn what_is_fetched_is_the_clients_own() -> Result<()> {
    let g = Graph::new();
    let value = g.constant(1u8);
    let session = Session::new(Target::local(Arc::new(Lender)), &g)?;
    let fetched = session.fetch(&value)?;
    assert!(!fetched.buffer().unwrap().is_borrowed());
    assert_eq!(fetched.as_slice::<u8>().unwrap(), [1; 4096]);
    Ok(())
}
