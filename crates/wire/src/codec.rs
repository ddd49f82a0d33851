//! The codec of the generated services: prost, behind a look at the message (see `scan`), with
//! TensorFlow's answer to bytes that do not parse.

use crate::budget::{Budget, Meter};
use crate::scan::{Kind, scan};
use crate::{control, proto, to_tonic};
use bytes::{Buf as _, Bytes};
use downpour_graph::Status;
use prost::Message;
use std::marker::PhantomData;
use tonic::codec::{BufferSettings, DecodeBuf};

/// A message of one of the services.
pub trait ServiceMessage: Message + Default + Send + 'static {
    /// Decodes bytes after checking that doing so stays within the budget. `bytes` fields of the
    /// result are windows on `bytes`.
    fn from_wire(bytes: Bytes, budget: &Budget) -> Result<Self, Status>;
}

/// A tonic codec for messages of the services.
#[derive(Clone, Debug)]
pub struct Codec<T, U>(PhantomData<(T, U)>);

impl<T, U> Default for Codec<T, U> {
    fn default() -> Self {
        Codec(PhantomData)
    }
}

impl<T: ServiceMessage, U: ServiceMessage> tonic::codec::Codec for Codec<T, U> {
    type Encode = T;
    type Decode = U;
    type Encoder = tonic_prost::ProstEncoder<T>;
    type Decoder = Decoder<U>;

    fn encoder(&mut self) -> Self::Encoder {
        tonic_prost::ProstEncoder::new(BufferSettings::default())
    }

    fn decoder(&mut self) -> Self::Decoder {
        Decoder(PhantomData)
    }
}

/// The decoding half of [`Codec`].
#[derive(Clone, Debug)]
pub struct Decoder<U>(PhantomData<U>);

impl<U: ServiceMessage> tonic::codec::Decoder for Decoder<U> {
    type Item = U;
    type Error = tonic::Status;

    fn decode(&mut self, buf: &mut DecodeBuf<'_>) -> Result<Option<U>, tonic::Status> {
        let bytes = buf.copy_to_bytes(buf.remaining());
        U::from_wire(bytes, &Budget::default())
            .map(Some)
            .map_err(to_tonic)
    }
}

fn checked<M: Message + Default>(bytes: Bytes, kind: Kind, budget: &Budget) -> Result<M, Status> {
    scan(&bytes, kind, &mut Meter::from(budget))?;
    M::decode(bytes).map_err(|_| Status::internal("Unable to parse request"))
}

macro_rules! service_messages {
    ($package:ident: $($message:ident $([$($number:literal => $kind:ident),*])?,)*) => {
        $(impl ServiceMessage for $package::$message {
            fn from_wire(bytes: Bytes, budget: &Budget) -> Result<Self, Status> {
                const KIND: Kind = Kind::Fields(&[$($(($number, Kind::$kind)),*)?]);
                checked(bytes, KIND, budget)
            }
        })*
    };
}

service_messages! { control: InspectRequest, StopRequest, StopResponse, TaskReport, }

/// A message of which only the number of its parts matters.
const COUNTED: Kind = Kind::Fields(&[]);
const META_GRAPH: Kind = Kind::Fields(&[
    // The list of ops that the graph uses.
    (1, Kind::Fields(&[(2, Kind::Fields(&[(1, Kind::OpDef)]))])),
    (2, Kind::Graph),
    // Collections and signatures are maps.
    (
        4,
        Kind::Fields(&[(2, Kind::Fields(&[(1, COUNTED), (2, COUNTED)]))]),
    ),
    (
        5,
        Kind::Fields(&[(2, Kind::Fields(&[(1, COUNTED), (2, COUNTED)]))]),
    ),
]);
const SUMMARY: Kind = Kind::Fields(&[(1, Kind::Fields(&[(8, Kind::Tensor), (9, COUNTED)]))]);

/// Messages that stand in files rather than in calls.
macro_rules! file_messages {
    ($($message:ident: $kind:expr,)*) => {
        $(impl ServiceMessage for proto::$message {
            fn from_wire(bytes: Bytes, budget: &Budget) -> Result<Self, Status> {
                checked(bytes, $kind, budget)
            }
        })*
    };
}

file_messages! {
    MetaGraphDef: META_GRAPH,
    SavedModel: Kind::Fields(&[(2, META_GRAPH)]),
    Event: Kind::Fields(&[(5, SUMMARY)]),
}

service_messages! { proto:
    CreateSessionRequest [1 => Graph],
    CreateSessionResponse,
    ExtendSessionRequest [2 => Graph],
    ExtendSessionResponse,
    RunStepRequest [2 => NamedTensor],
    RunStepResponse [1 => NamedTensor],
    PartialRunSetupRequest,
    PartialRunSetupResponse,
    CloseSessionRequest,
    CloseSessionResponse,
    ResetRequest,
    ResetResponse,
    ListDevicesRequest,
    ListDevicesResponse,
    MakeCallableRequest,
    MakeCallableResponse,
    RunCallableRequest [3 => Tensor],
    RunCallableResponse [1 => Tensor],
    ReleaseCallableRequest,
    ReleaseCallableResponse,
    GetStatusRequest,
    GetStatusResponse,
    CreateWorkerSessionRequest,
    CreateWorkerSessionResponse,
    DeleteWorkerSessionRequest,
    DeleteWorkerSessionResponse,
    RegisterGraphRequest [2 => Graph],
    RegisterGraphResponse,
    DeregisterGraphRequest,
    DeregisterGraphResponse,
    RunGraphRequest [3 => NamedTensor],
    RunGraphResponse [1 => NamedTensor, 4 => Graph],
    CleanupGraphRequest,
    CleanupGraphResponse,
    CleanupAllRequest,
    CleanupAllResponse,
    RecvTensorRequest,
    RecvTensorResponse [1 => Tensor],
    MarkRecvFinishedRequest,
    MarkRecvFinishedResponse,
    LoggingRequest,
    LoggingResponse,
    TracingRequest,
    TracingResponse,
    RecvBufRequest,
    RecvBufResponse,
    CompleteGroupRequest,
    CompleteGroupResponse,
    CompleteInstanceRequest,
    CompleteInstanceResponse,
    GetStepSequenceRequest,
    GetStepSequenceResponse,
}

impl ServiceMessage for proto::GraphDef {
    fn from_wire(bytes: Bytes, budget: &Budget) -> Result<Self, Status> {
        checked(bytes, Kind::Graph, budget)
    }
}

impl ServiceMessage for proto::TensorProto {
    fn from_wire(bytes: Bytes, budget: &Budget) -> Result<Self, Status> {
        checked(bytes, Kind::Tensor, budget)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_graph::Code;

    #[test]
    fn garbage_gets_the_answer_of_tensorflow() {
        let e = proto::RunStepRequest::from_wire(
            Bytes::from_static(&[0xff, 0xff, 0xff]),
            &Budget::default(),
        )
        .unwrap_err();
        assert_eq!(e, Status::internal("Unable to parse request"));
        // Well-formed as far as the scan looks, but a name is not UTF-8.
        let e = proto::CloseSessionRequest::from_wire(
            Bytes::from_static(&[0x0a, 1, 0xff]),
            &Budget::default(),
        )
        .unwrap_err();
        assert_eq!(e, Status::internal("Unable to parse request"));
    }

    #[test]
    fn nodes_inside_requests_are_counted() {
        let request = proto::ExtendSessionRequest {
            graph_def: Some(proto::GraphDef {
                node: vec![Default::default(); 11],
                ..Default::default()
            }),
            ..Default::default()
        };
        let budget = Budget {
            nodes: 10,
            ..Budget::default()
        };
        let bytes = Bytes::from(request.encode_to_vec());
        let e = proto::ExtendSessionRequest::from_wire(bytes.clone(), &budget).unwrap_err();
        assert_eq!(e.code, Code::ResourceExhausted);
        assert!(proto::ExtendSessionRequest::from_wire(bytes, &Budget::default()).is_ok());
    }

    #[test]
    fn tensor_bytes_are_windows_on_the_message() {
        let tensor = proto::TensorProto {
            tensor_content: Bytes::from(vec![7; 100]),
            ..Default::default()
        };
        let bytes = Bytes::from(tensor.encode_to_vec());
        let range = bytes.as_ptr_range();
        let decoded = proto::TensorProto::from_wire(bytes, &Budget::default()).unwrap();
        assert!(range.contains(&decoded.tensor_content.as_ptr()));
    }
}
