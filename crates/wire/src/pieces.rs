//! Encoded messages in pieces: sent one after the other they are the message. The contents of
//! large tensors are pieces of their own, by reference, so that what goes on the wire is the
//! tensor itself. Called by the services for every answer that may carry tensors.

use crate::proto::{self, NamedTensorProto, TensorProto};
use bytes::{Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};

/// Contents from which on a reference is cheaper than a copy.
const SHARE: usize = 4 << 10;

/// The field of a tensor that holds its elements.
const CONTENT: u32 = 4;

/// One message.
#[derive(Debug, Default)]
pub struct Pieces {
    whole: Vec<Bytes>,
    open: BytesMut,
    len: usize,
}

impl Pieces {
    /// The pieces of a message without tensors: one.
    pub fn of(message: &impl Message) -> Pieces {
        let mut pieces = Pieces::default();
        pieces.message(message);
        pieces
    }

    /// Bytes of the message.
    pub fn len(&self) -> usize {
        self.len + self.open.len()
    }

    /// Whether the message has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The pieces, in order.
    pub fn into_parts(mut self) -> Vec<Bytes> {
        self.close();
        self.whole
    }

    fn close(&mut self) {
        if !self.open.is_empty() {
            self.len += self.open.len();
            self.whole.push(self.open.split().freeze());
        }
    }

    /// Fields of `message`.
    fn message(&mut self, message: &impl Message) {
        self.open.reserve(message.encoded_len());
        // A `BytesMut` grows, so there is always room.
        let _ = message.encode(&mut self.open);
    }

    fn content(&mut self, content: Bytes) {
        if content.len() < SHARE {
            self.open.extend_from_slice(&content);
        } else {
            self.close();
            self.len += content.len();
            self.whole.push(content);
        }
    }

    /// Field `number`: a tensor, its elements last.
    fn tensor(&mut self, number: u32, mut tensor: TensorProto) {
        let content = std::mem::take(&mut tensor.tensor_content);
        let head = tensor.encoded_len();
        encode_key(number, WireType::LengthDelimited, &mut self.open);
        encode_varint((head + content_len(&content)) as u64, &mut self.open);
        self.message(&tensor);
        if !content.is_empty() {
            encode_key(CONTENT, WireType::LengthDelimited, &mut self.open);
            encode_varint(content.len() as u64, &mut self.open);
            self.content(content);
        }
    }

    /// Field `number`: a tensor with a name.
    fn named(&mut self, number: u32, named: NamedTensorProto) {
        let tensor = named.tensor.unwrap_or_default();
        let name = NamedTensorProto {
            name: named.name,
            tensor: None,
        };
        let inner = tensor.encoded_len();
        let len = name.encoded_len() + key_len(2) + encoded_len_varint(inner as u64) + inner;
        encode_key(number, WireType::LengthDelimited, &mut self.open);
        encode_varint(len as u64, &mut self.open);
        self.message(&name);
        self.tensor(2, tensor);
    }
}

fn content_len(content: &Bytes) -> usize {
    match content.len() {
        0 => 0,
        n => key_len(CONTENT) + encoded_len_varint(n as u64) + n,
    }
}

/// An answer that can be sent in pieces.
pub trait InPieces {
    /// The message.
    fn into_pieces(self) -> Pieces;
}

impl InPieces for proto::RunStepResponse {
    fn into_pieces(mut self) -> Pieces {
        let mut pieces = Pieces::default();
        for tensor in std::mem::take(&mut self.tensor) {
            pieces.named(1, tensor);
        }
        pieces.message(&self);
        pieces
    }
}

impl InPieces for proto::RunCallableResponse {
    fn into_pieces(mut self) -> Pieces {
        let mut pieces = Pieces::default();
        for tensor in std::mem::take(&mut self.fetch) {
            pieces.tensor(1, tensor);
        }
        pieces.message(&self);
        pieces
    }
}

impl InPieces for proto::RunGraphResponse {
    fn into_pieces(mut self) -> Pieces {
        let mut pieces = Pieces::default();
        for tensor in std::mem::take(&mut self.recv) {
            pieces.named(1, tensor);
        }
        pieces.message(&self);
        pieces
    }
}

impl InPieces for proto::RecvTensorResponse {
    /// The tensor comes last, as TensorFlow writes it: a reader knows all else before its
    /// elements arrive.
    fn into_pieces(mut self) -> Pieces {
        let tensor = self.tensor.take();
        let mut pieces = Pieces::default();
        pieces.message(&self);
        if let Some(mut tensor) = tensor {
            if tensor
                .tensor_shape
                .as_ref()
                .is_some_and(|s| s.dim.is_empty())
            {
                // A scalar's shape is not written, as TensorFlow does not.
                tensor.tensor_shape = None;
            }
            pieces.tensor(1, tensor);
        }
        pieces
    }
}

impl InPieces for proto::CleanupGraphResponse {
    fn into_pieces(self) -> Pieces {
        Pieces::of(&self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor_proto::encode_tensor;
    use downpour_tensor::Tensor;

    fn joined(pieces: Pieces) -> Bytes {
        let len = pieces.len();
        let all = Bytes::from(pieces.into_parts().concat());
        assert_eq!(all.len(), len);
        all
    }

    fn tensors() -> Vec<TensorProto> {
        let large = Tensor::vector(vec![1.5f32; 5000]);
        [
            Tensor::scalar(1i64),
            large,
            Tensor::string("abc"),
            Tensor::vector(Vec::<f32>::new()),
        ]
        .iter()
        .map(|t| encode_tensor(t).unwrap())
        .collect()
    }

    #[test]
    fn pieces_are_the_message() {
        let named = |t: &TensorProto| NamedTensorProto {
            name: "n:0".into(),
            tensor: Some(t.clone()),
        };
        let step = proto::RunStepResponse {
            tensor: tensors().iter().map(named).collect(),
            metadata: Some(proto::RunMetadata::default()),
            status_code: 3,
            status_error_message: "why".into(),
        };
        let back = proto::RunStepResponse::decode(joined(step.clone().into_pieces())).unwrap();
        assert_eq!(back, step);
        let graph = proto::RunGraphResponse {
            recv: tensors().iter().map(named).collect(),
            cost_graph: Some(proto::CostGraphDef::default()),
            ..Default::default()
        };
        let back = proto::RunGraphResponse::decode(joined(graph.clone().into_pieces())).unwrap();
        assert_eq!(back, graph);
        let call = proto::RunCallableResponse {
            fetch: tensors(),
            metadata: None,
        };
        let back = proto::RunCallableResponse::decode(joined(call.clone().into_pieces())).unwrap();
        assert_eq!(back, call);
        assert!(Pieces::of(&proto::CleanupGraphResponse {}).is_empty());
    }

    #[test]
    fn large_elements_are_not_copied() {
        let content = Bytes::from(vec![7u8; SHARE]);
        let at = content.as_ptr();
        let reply = proto::RecvTensorResponse {
            tensor: Some(TensorProto {
                dtype: 4,
                tensor_content: content,
                ..Default::default()
            }),
            is_dead: true,
            ..Default::default()
        };
        let parts = reply.clone().into_pieces().into_parts();
        assert_eq!(parts.len(), 2);
        assert_eq!(parts[1].as_ptr(), at);
        let back = proto::RecvTensorResponse::decode(Bytes::from(parts.concat())).unwrap();
        assert_eq!(back, reply);
    }
}
