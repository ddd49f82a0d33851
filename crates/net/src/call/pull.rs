//! Asking a peer for a tensor. A large one is copied once: from the frames in which it arrives
//! into the memory that the kernels will read.

use crate::Limits;
use crate::call::h2_client::{H2Client, check, ended};
use crate::grpc_frames::Incoming;
use downpour_tensor::{BufferWriter, Tensor};
use downpour_wire::messages::{RecvTensorRequest, RecvTensorResponse};
use downpour_wire::{Budget, Pieces, TensorHead, WireMessage, to_tonic};
use tonic::Status;

const RECV_TENSOR: &str = "/tensorflow.WorkerService/RecvTensor";

/// Messages that are decoded as a whole: their copy costs less than the detour.
const SMALL: usize = 16 << 10;

/// Bytes that hold everything before a tensor's elements, whatever its rank.
const FRONT: usize = 4 << 10;

/// The tensor that `request` names, `None` if it is a dead one, and the size of its message.
pub(crate) async fn pull(
    link: &H2Client,
    request: RecvTensorRequest,
    limits: &Limits,
) -> Result<(Option<Tensor>, usize), Status> {
    let request = Pieces::of(&request.encode().map_err(to_tonic)?);
    let (_, mut incoming) = link.open(RECV_TENSOR, request).await?;
    let Some(total) = incoming.length(limits.message_bytes).await? else {
        return Err(ended(incoming).await);
    };
    let tensor = read(&mut incoming, total).await?;
    check(incoming).await?;
    Ok((tensor, total))
}

async fn read(incoming: &mut Incoming, total: usize) -> Result<Option<Tensor>, Status> {
    let budget = Budget::default();
    if total > SMALL {
        let front = incoming.at_least(FRONT).await?;
        if let Some(head) = TensorHead::parse(&front, total, &budget) {
            let mut elements = BufferWriter::new(total - head.start);
            let mut bytes = front.slice(head.start..);
            loop {
                let used = elements.write(&bytes);
                if elements.missing() == 0 {
                    incoming.unread(bytes.slice(used..));
                    break;
                }
                bytes = incoming
                    .some()
                    .await?
                    .ok_or_else(|| Status::internal("Unexpected EOF decoding stream."))?;
            }
            let lost = || Status::internal("a received tensor does not fit its shape");
            let is_dead = head.is_dead;
            let tensor = head.with(elements.finish().ok_or_else(lost)?);
            let tensor = tensor.map_err(|_| lost())?;
            return Ok((!is_dead).then_some(tensor));
        }
        incoming.unread(front);
    }
    let message = incoming.exactly(total).await?;
    let reply = RecvTensorResponse::from_bytes(message, &budget).map_err(to_tonic)?;
    Ok((!reply.is_dead).then_some(reply.tensor))
}
