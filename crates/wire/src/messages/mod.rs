//! The requests and replies of the services as plain structs. A service implementation decodes
//! first, then works with these; a client in the same process never encodes at all.

mod cluster;
mod collective;
mod config;
mod cost;
mod master;
mod stats;
mod worker;

pub use cluster::{ClusterDef, DeviceAttributes, DeviceLink, DeviceLocality, JobDef, ServerDef};
pub use collective::{
    CompleteGroupRequest, CompleteGroupResponse, CompleteInstanceRequest, CompleteInstanceResponse,
    GetStepSequenceRequest, GetStepSequenceResponse, RecvBufRequest, RecvBufResponse,
};
pub use config::{
    CallableOptions, GraphOptions, OptLevel, RpcOptions, RunOptions, SessionConfig, TraceLevel,
};
pub use cost::{CostNode, CostOutput};
pub use master::{
    CloseSessionRequest, CloseSessionResponse, CreateSessionRequest, CreateSessionResponse,
    ExtendSessionRequest, ExtendSessionResponse, ListDevicesRequest, ListDevicesResponse,
    MakeCallableRequest, MakeCallableResponse, PartialRunSetupRequest, PartialRunSetupResponse,
    ReleaseCallableRequest, ReleaseCallableResponse, ResetRequest, ResetResponse,
    RunCallableRequest, RunCallableResponse, RunMetadata, RunStepRequest, RunStepResponse,
};
pub use stats::{
    AllocatorMemory, DeviceStepStats, NodeExecStats, NodeOutput, StepStats, TensorDescription,
};
pub use worker::{
    CleanupAllRequest, CleanupAllResponse, CleanupGraphRequest, CleanupGraphResponse,
    CreateWorkerSessionRequest, CreateWorkerSessionResponse, DeleteWorkerSessionRequest,
    DeleteWorkerSessionResponse, DeregisterGraphRequest, DeregisterGraphResponse, ExecutorOptions,
    GetStatusRequest, GetStatusResponse, LoggingRequest, LoggingResponse, MarkRecvFinishedRequest,
    MarkRecvFinishedResponse, RecvTensorRequest, RecvTensorResponse, RegisterGraphRequest,
    RegisterGraphResponse, RunGraphRequest, RunGraphResponse, TracingRequest, TracingResponse,
};

use crate::budget::{Budget, Meter};
use crate::codec::ServiceMessage;
use crate::proto::{self, NamedTensorProto};
use crate::tensor_proto::{TensorProtoError, decode_tensor, encode_tensor};
use bytes::Bytes;
use downpour_graph::{Code, Result, Status};
use downpour_tensor::Tensor;
use prost::Message as _;

/// A request or reply that travels as a protobuf message.
pub trait WireMessage: Sized {
    /// The message on the wire.
    type Proto: ServiceMessage;

    /// Checks and takes over what arrived.
    fn decode(proto: Self::Proto, budget: &Budget) -> Result<Self>;

    /// What to send. Fails only for values that cannot leave their process.
    fn encode(self) -> Result<Self::Proto>;

    /// Decodes bytes; none of them is believed before it was checked.
    fn from_bytes(bytes: Bytes, budget: &Budget) -> Result<Self> {
        Self::decode(Self::Proto::from_wire(bytes, budget)?, budget)
    }

    /// Encodes to bytes.
    fn to_bytes(self) -> Result<Bytes> {
        Ok(self.encode()?.encode_to_vec().into())
    }
}

/// Declares messages whose fields travel as they are, under their own names.
macro_rules! plain_messages {
    ($(
        $(#[$doc:meta])*
        $name:ident { $($(#[$field_doc:meta])* $field:ident: $t:ty,)* }
    )*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, Default, PartialEq, Eq)]
            pub struct $name { $($(#[$field_doc])* pub $field: $t,)* }

            impl $crate::WireMessage for $name {
                type Proto = $crate::proto::$name;

                #[allow(unused_variables, reason = "some messages have no field")]
                fn decode(
                    proto: Self::Proto,
                    budget: &$crate::Budget,
                ) -> ::downpour_graph::Result<Self> {
                    Ok($name { $($field: proto.$field,)* })
                }

                fn encode(self) -> ::downpour_graph::Result<Self::Proto> {
                    Ok($crate::proto::$name { $($field: self.$field,)* })
                }
            }
        )*
    };
}
use plain_messages;

/// The feeds of a step; `i` counts them in errors, as TensorFlow's do.
fn decode_feed(i: usize, proto: Option<proto::TensorProto>, meter: &mut Meter) -> Result<Tensor> {
    decode_tensor(proto.unwrap_or_default(), meter).map_err(|e| match e {
        e @ (TensorProtoError::Exhausted(_) | TensorProtoError::Variant(_)) => e.into(),
        _ => Status::invalid_argument(format!("Invalid TensorProto for feed value {i}")),
    })
}

fn decode_feeds(named: Vec<NamedTensorProto>, meter: &mut Meter) -> Result<Vec<(String, Tensor)>> {
    named
        .into_iter()
        .enumerate()
        .map(|(i, n)| Ok((n.name, decode_feed(i, n.tensor, meter)?)))
        .collect()
}

/// Tensors a peer sent back.
fn decode_named(named: Vec<NamedTensorProto>, meter: &mut Meter) -> Result<Vec<(String, Tensor)>> {
    named
        .into_iter()
        .map(|n| {
            let tensor = decode_tensor(n.tensor.unwrap_or_default(), meter)?;
            Ok((n.name, tensor))
        })
        .collect()
}

fn encode_named(named: Vec<(String, Tensor)>) -> Result<Vec<NamedTensorProto>> {
    named
        .into_iter()
        .map(|(name, tensor)| {
            let tensor = Some(encode_tensor(&tensor)?);
            Ok(NamedTensorProto { name, tensor })
        })
        .collect()
}

/// The error in a reply's body; code 0 is none.
fn decode_error(code: i32, message: String) -> Option<Status> {
    (code != 0).then(|| Status::new(Code::from_number(code), message))
}

fn encode_error(error: Option<Status>) -> (i32, String) {
    error.map_or((0, String::new()), |e| (e.code as i32, e.message))
}
