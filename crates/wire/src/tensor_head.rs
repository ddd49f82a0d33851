//! The front of a `RecvTensorResponse` whose elements are still arriving: enough to allocate the
//! tensor and copy the rest of the message straight into it. Called by the reader of tensors
//! from peers, with whatever bytes are there; no size is believed before it was checked.

use crate::budget::{Budget, Meter};
use crate::decode_shape;
use crate::proto::TensorShapeProto;
use downpour_tensor::{Buffer, DType, Shape, Tensor, TensorError};
use prost::Message as _;
use prost::encoding::decode_varint;

/// What is known of a tensor before its elements are there.
#[derive(Debug)]
pub struct TensorHead {
    dtype: DType,
    shape: Shape,
    /// Whether it comes from a branch not taken.
    pub is_dead: bool,
    /// Where in the message the elements start; they are the rest of it.
    pub start: usize,
}

impl TensorHead {
    /// Reads the front of a message of `total` bytes. `None` if the message must be decoded as a
    /// whole: its elements are not plain bytes at its end, or too little of it is there, or
    /// something is wrong with it, which decoding will name.
    pub fn parse(front: &[u8], total: usize, budget: &Budget) -> Option<TensorHead> {
        let mut rest = front;
        let mut is_dead = false;
        // Everything before the tensor.
        loop {
            match decode_varint(&mut rest).ok()? {
                0x0a => break,
                0x10 => is_dead = decode_varint(&mut rest).ok()? != 0,
                0x18 | 0x28 => {
                    decode_varint(&mut rest).ok()?;
                }
                0x22 => {
                    let len = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
                    rest = rest.get(len..)?;
                }
                _ => return None,
            }
        }
        ends_at(front, &mut rest, total)?;
        let (mut dtype, mut shape) = (None, None);
        loop {
            match decode_varint(&mut rest).ok()? {
                0x08 => {
                    let number = i32::try_from(decode_varint(&mut rest).ok()?).ok()?;
                    dtype = Some(DType::from_number(number).ok()?);
                }
                0x12 if shape.is_none() => {
                    let len = usize::try_from(decode_varint(&mut rest).ok()?).ok()?;
                    let (message, after) = rest.split_at_checked(len)?;
                    shape = Some(decode_shape(&TensorShapeProto::decode(message).ok()?).ok()?);
                    rest = after;
                }
                0x18 => {
                    decode_varint(&mut rest).ok()?;
                }
                0x22 => break,
                _ => return None,
            }
        }
        let len = ends_at(front, &mut rest, total)?;
        let (dtype, shape) = (dtype?, shape.unwrap_or_else(Shape::scalar));
        // A bool's bytes must be looked at.
        let size = dtype.size().filter(|_| dtype != DType::Bool)?;
        let n = shape.num_elements();
        if n.checked_mul(size) != Some(len) || len == 0 {
            return None;
        }
        Meter::from(budget).tensor(n, size).ok()?;
        Some(TensorHead {
            dtype,
            shape,
            is_dead,
            start: front.len() - rest.len(),
        })
    }

    /// The tensor, once its elements are there.
    pub fn with(self, elements: Buffer) -> Result<Tensor, TensorError> {
        Tensor::from_buffer(self.dtype, self.shape, elements)
    }
}

/// Reads a length; `None` unless what has it ends with the message.
fn ends_at(front: &[u8], rest: &mut &[u8], total: usize) -> Option<usize> {
    let len = usize::try_from(decode_varint(rest).ok()?).ok()?;
    let start = front.len() - rest.len();
    (start.checked_add(len) == Some(total)).then_some(len)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{RecvTensorResponse, WireMessage};
    use crate::{InPieces, proto};
    use bytes::Bytes;

    fn message(tensor: Tensor) -> Vec<u8> {
        let reply = RecvTensorResponse {
            tensor,
            is_dead: true,
            send_start_micros: 1 << 50,
            require_ack: true,
        };
        reply.encode().unwrap().into_pieces().into_parts().concat()
    }

    fn parse(bytes: &[u8]) -> Option<TensorHead> {
        TensorHead::parse(bytes, bytes.len(), &Budget::default())
    }

    #[test]
    fn the_elements_are_the_rest_of_the_message() {
        let tensor = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0], [2, 3]).unwrap();
        let bytes = message(tensor.clone());
        let head = parse(&bytes).unwrap();
        assert!(head.is_dead);
        let elements = Buffer::copy_from(&bytes[head.start..]);
        let back = head.with(elements).unwrap();
        assert_eq!(back.dims(), [2, 3]);
        assert_eq!(
            back.as_slice::<f32>().unwrap(),
            tensor.as_slice::<f32>().unwrap()
        );
        // The elements need not be there yet.
        let head = TensorHead::parse(&bytes[..bytes.len() - 24], bytes.len(), &Budget::default());
        assert_eq!(head.unwrap().start, bytes.len() - 24);
    }

    #[test]
    fn other_forms_are_left_to_the_decoder() {
        for tensor in [
            Tensor::string("abc"),
            Tensor::scalar(true),
            Tensor::vector(Vec::<f32>::new()),
        ] {
            assert!(parse(&message(tensor)).is_none());
        }
        let typed = proto::RecvTensorResponse {
            tensor: Some(proto::TensorProto {
                dtype: 1,
                float_val: vec![1.0],
                ..Default::default()
            }),
            ..Default::default()
        };
        assert!(parse(&typed.encode_to_vec()).is_none());
    }

    #[test]
    fn cuts_and_lies_give_no_head() {
        let bytes = message(Tensor::vector(vec![1.0f64; 4]));
        let start = parse(&bytes).unwrap().start;
        for cut in 0..start {
            assert!(TensorHead::parse(&bytes[..cut], bytes.len(), &Budget::default()).is_none());
        }
        assert!(TensorHead::parse(&bytes, bytes.len() + 1, &Budget::default()).is_none());
        let tight = Budget {
            tensor_bytes: 31,
            ..Budget::default()
        };
        assert!(TensorHead::parse(&bytes, bytes.len(), &tight).is_none());
        for i in 0..start {
            for bit in 0..8 {
                let mut broken = bytes.clone();
                broken[i] ^= 1 << bit;
                // Whatever it says, it never claims more than there is.
                if let Some(head) = parse(&broken) {
                    assert!(head.start <= broken.len());
                    let elements = Buffer::copy_from(&broken[head.start..]);
                    assert!(head.with(elements).is_ok());
                }
            }
        }
        let whole = RecvTensorResponse::from_bytes(Bytes::from(bytes), &Budget::default());
        assert_eq!(whole.unwrap().tensor.num_elements(), 4);
    }
}
