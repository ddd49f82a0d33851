//! What members of a collective ask of each other. Parameter-server training never does.

use super::cluster::{decode_devices, encode_devices};
use super::{DeviceAttributes, WireMessage, plain_messages};
use crate::budget::Budget;
use crate::{decode_partial_shape, encode_partial_shape, proto};
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_tensor::{DType, PartialShape};
use prost::Message as _;

plain_messages! {
    /// The answer to [`CompleteInstanceRequest`].
    CompleteInstanceResponse {
        /// Instance.
        instance_key: i32,
        /// Rank of the source of a broadcast.
        source_rank: i32,
    }
    /// Asks which steps come next in collective graphs.
    GetStepSequenceRequest {
        /// Graphs.
        graph_key: Vec<i64>,
    }
}

/// Asks a peer of a collective for a buffer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecvBufRequest {
    /// Step.
    pub step_id: i64,
    /// What is wanted.
    pub buf_rendezvous_key: String,
    /// How long it should be.
    pub num_bytes: i64,
    /// Device that has it.
    pub src_device: String,
    /// Device that wants it.
    pub dst_device: String,
    /// Random, the same when the call is repeated; 0 is none.
    pub request_id: i64,
    /// Incarnation of the device that has it.
    pub src_incarnation: u64,
}

impl WireMessage for RecvBufRequest {
    type Proto = proto::RecvBufRequest;

    fn decode(proto: Self::Proto, _: &Budget) -> Result<Self> {
        Ok(RecvBufRequest {
            step_id: proto.step_id,
            buf_rendezvous_key: proto.buf_rendezvous_key,
            num_bytes: proto.num_bytes,
            src_device: proto.src_device,
            dst_device: proto.dst_device,
            request_id: proto.request_id,
            src_incarnation: proto.src_incarnation,
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        Ok(proto::RecvBufRequest {
            step_id: self.step_id,
            buf_rendezvous_key: self.buf_rendezvous_key,
            num_bytes: self.num_bytes,
            src_device: self.src_device,
            dst_device: self.dst_device,
            request_id: self.request_id,
            src_incarnation: self.src_incarnation,
            ..Default::default()
        })
    }
}

/// The answer to [`RecvBufRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecvBufResponse {
    /// The buffer in pieces.
    pub content: Vec<Bytes>,
    /// Bytes of all pieces.
    pub num_bytes: i64,
    /// Whether it comes from a branch not taken.
    pub is_dead: bool,
    /// When it was sent, in microseconds since 1970.
    pub send_start_micros: i64,
    /// Whether the sender keeps it until it is acknowledged.
    pub require_ack: bool,
}

const RECV_BUF_CONTENT: &str = "type.googleapis.com/tensorflow.RecvBufRespExtra";

impl WireMessage for RecvBufResponse {
    type Proto = proto::RecvBufResponse;

    fn decode(proto: Self::Proto, _: &Budget) -> Result<Self> {
        let extra = proto
            .transport_options
            .filter(|any| any.type_url == RECV_BUF_CONTENT)
            .map(|any| proto::RecvBufRespExtra::decode(any.value))
            .transpose()
            .map_err(|_| Status::internal("Unable to parse RecvBufRespExtra"))?;
        Ok(RecvBufResponse {
            content: extra.unwrap_or_default().tensor_content,
            num_bytes: proto.num_bytes,
            is_dead: proto.is_dead,
            send_start_micros: proto.send_start_micros,
            require_ack: proto.require_ack,
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        let extra = proto::RecvBufRespExtra {
            tensor_content: self.content,
        };
        Ok(proto::RecvBufResponse {
            num_bytes: self.num_bytes,
            is_dead: self.is_dead,
            transport_options: Some(proto::Any {
                type_url: RECV_BUF_CONTENT.to_owned(),
                value: extra.encode_to_vec().into(),
            }),
            send_start_micros: self.send_start_micros,
            require_ack: self.require_ack,
            ..Default::default()
        })
    }
}

/// Announces a device to the leader of a collective group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompleteGroupRequest {
    /// Group.
    pub group_key: i32,
    /// Devices it shall have.
    pub group_size: i32,
    /// Their type.
    pub device_type: String,
    /// Kind of collective.
    pub collective_type: i32,
    /// The device.
    pub device: DeviceAttributes,
}

impl WireMessage for CompleteGroupRequest {
    type Proto = proto::CompleteGroupRequest;

    fn decode(proto: Self::Proto, _: &Budget) -> Result<Self> {
        Ok(CompleteGroupRequest {
            group_key: proto.group_key,
            group_size: proto.group_size,
            device_type: proto.device_type,
            collective_type: proto.collective_type,
            device: proto.device_attributes.unwrap_or_default().into(),
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        Ok(proto::CompleteGroupRequest {
            group_key: self.group_key,
            group_size: self.group_size,
            device_type: self.device_type,
            collective_type: self.collective_type,
            device_attributes: Some(self.device.into()),
        })
    }
}

/// The answer to [`CompleteGroupRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CompleteGroupResponse {
    /// Group.
    pub group_key: i32,
    /// Devices it has.
    pub group_size: i32,
    /// Their type.
    pub device_type: String,
    /// Tasks it spans.
    pub num_tasks: i32,
    /// Names its communicator.
    pub communicator_key: Bytes,
    /// Its devices.
    pub devices: Vec<DeviceAttributes>,
}

impl WireMessage for CompleteGroupResponse {
    type Proto = proto::CompleteGroupResponse;

    fn decode(proto: Self::Proto, _: &Budget) -> Result<Self> {
        Ok(CompleteGroupResponse {
            group_key: proto.group_key,
            group_size: proto.group_size,
            device_type: proto.device_type,
            num_tasks: proto.num_tasks,
            communicator_key: proto.communicator_key,
            devices: decode_devices(proto.device_attributes),
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        Ok(proto::CompleteGroupResponse {
            group_key: self.group_key,
            group_size: self.group_size,
            device_type: self.device_type,
            num_tasks: self.num_tasks,
            communicator_key: self.communicator_key,
            device_attributes: encode_devices(self.devices),
        })
    }
}

/// Announces a member of one collective operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompleteInstanceRequest {
    /// Name of the op.
    pub name: String,
    /// Kind of collective.
    pub kind: i32,
    /// Element type.
    pub dtype: DType,
    /// Shape.
    pub shape: PartialShape,
    /// Group.
    pub group_key: i32,
    /// Devices it has.
    pub group_size: i32,
    /// Operation.
    pub instance_key: i32,
    /// Type of the devices.
    pub device_type: String,
    /// How the tensor is divided.
    pub subdiv_offset: Vec<i32>,
    /// The member's device.
    pub device: String,
    /// Whether the member is the source of a broadcast.
    pub is_source: bool,
    /// Step.
    pub step_id: i64,
}

impl WireMessage for CompleteInstanceRequest {
    type Proto = proto::CompleteInstanceRequest;

    fn decode(proto: Self::Proto, _: &Budget) -> Result<Self> {
        Ok(CompleteInstanceRequest {
            name: proto.name,
            kind: proto.r#type,
            dtype: DType::from_number(proto.data_type)
                .map_err(|e| Status::invalid_argument(e.to_string()))?,
            shape: decode_partial_shape(&proto.shape.unwrap_or_default())?,
            group_key: proto.group_key,
            group_size: proto.group_size,
            instance_key: proto.instance_key,
            device_type: proto.device_type,
            subdiv_offset: proto.subdiv_offset,
            device: proto.device,
            is_source: proto.is_source,
            step_id: proto.step_id,
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        Ok(proto::CompleteInstanceRequest {
            name: self.name,
            r#type: self.kind,
            data_type: self.dtype.number(),
            shape: Some(encode_partial_shape(&self.shape)),
            group_key: self.group_key,
            group_size: self.group_size,
            instance_key: self.instance_key,
            device_type: self.device_type,
            subdiv_offset: self.subdiv_offset,
            device: self.device,
            is_source: self.is_source,
            step_id: self.step_id,
        })
    }
}

/// The answer to [`GetStepSequenceRequest`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GetStepSequenceResponse {
    /// Graph and its next step.
    pub next_steps: Vec<(i64, i64)>,
}

impl WireMessage for GetStepSequenceResponse {
    type Proto = proto::GetStepSequenceResponse;

    fn decode(proto: Self::Proto, _: &Budget) -> Result<Self> {
        Ok(GetStepSequenceResponse {
            next_steps: proto
                .step_sequence
                .into_iter()
                .map(|s| (s.graph_key, s.next_step_id))
                .collect(),
        })
    }

    fn encode(self) -> Result<Self::Proto> {
        let step = |(graph_key, next_step_id)| proto::StepSequence {
            graph_key,
            next_step_id,
        };
        Ok(proto::GetStepSequenceResponse {
            step_sequence: self.next_steps.into_iter().map(step).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<M: WireMessage>(message: M) -> M {
        M::from_bytes(message.to_bytes().unwrap(), &Budget::default()).unwrap()
    }

    #[test]
    fn buffers_survive_the_round_trip() {
        let request = RecvBufRequest {
            step_id: 1,
            buf_rendezvous_key: "k".into(),
            num_bytes: 2,
            src_device: "a".into(),
            dst_device: "b".into(),
            request_id: 3,
            src_incarnation: u64::MAX,
        };
        assert_eq!(round_trip(request.clone()), request);
        let reply = RecvBufResponse {
            content: vec!["ab".into(), "c".into()],
            num_bytes: 3,
            is_dead: true,
            send_start_micros: 4,
            require_ack: true,
        };
        assert_eq!(round_trip(reply.clone()), reply);
        let broken = proto::RecvBufResponse {
            transport_options: Some(proto::Any {
                type_url: RECV_BUF_CONTENT.into(),
                value: Bytes::from_static(&[0xff]),
            }),
            ..Default::default()
        };
        assert!(RecvBufResponse::decode(broken, &Budget::default()).is_err());
    }

    #[test]
    fn groups_and_instances_survive_the_round_trip() {
        let request = CompleteGroupRequest {
            group_key: 1,
            group_size: 2,
            device_type: "CPU".into(),
            collective_type: 3,
            device: DeviceAttributes {
                name: "d".into(),
                ..Default::default()
            },
        };
        assert_eq!(round_trip(request.clone()), request);
        let reply = CompleteGroupResponse {
            group_key: 1,
            group_size: 2,
            device_type: "CPU".into(),
            num_tasks: 3,
            communicator_key: "k".into(),
            devices: vec![DeviceAttributes::default()],
        };
        assert_eq!(round_trip(reply.clone()), reply);
        let instance = CompleteInstanceRequest {
            name: "n".into(),
            kind: 1,
            dtype: DType::Float,
            shape: PartialShape::from_dims([Some(2)]),
            group_key: 3,
            group_size: 4,
            instance_key: 5,
            device_type: "CPU".into(),
            subdiv_offset: vec![0, 1],
            device: "d".into(),
            is_source: true,
            step_id: 6,
        };
        assert_eq!(round_trip(instance.clone()), instance);
        let steps = GetStepSequenceResponse {
            next_steps: vec![(1, 2)],
        };
        assert_eq!(round_trip(steps.clone()), steps);
        let untyped = proto::CompleteInstanceRequest::default();
        assert!(CompleteInstanceRequest::decode(untyped, &Budget::default()).is_err());
    }
}
