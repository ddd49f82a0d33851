//! gRPC messages on HTTP/2 streams, both ways, without copies where the bytes allow it: what is
//! sent are references, what arrives in one frame is a window on it.
//!
//! Callers: `connection` (requests in, answers out), `link` (requests out, answers in).

use bytes::{Bytes, BytesMut};
use downpour_wire::Pieces;
use h2::{Reason, RecvStream, SendStream};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::codegen::http::HeaderMap;
use tonic::{Code, Status};

/// Bytes before a message: whether it is compressed, and its length.
pub(crate) const HEADER: usize = 5;

/// Windows of a stream and of a connection: what may be under way unread. Enough to keep a fast
/// network busy; small enough that a peer cannot fill the memory.
pub(crate) const STREAM_WINDOW: u32 = 16 << 20;
/// See [`STREAM_WINDOW`].
pub(crate) const CONNECTION_WINDOW: u32 = 64 << 20;

/// Largest frame: large ones cost less, but small ones of other streams wait behind them.
pub(crate) const FRAME: u32 = 1 << 20;

/// Queues a message for sending.
pub(crate) fn send(
    stream: &mut SendStream<Bytes>,
    message: Pieces,
    is_last: bool,
) -> Result<(), h2::Error> {
    let len = u32::try_from(message.len()).unwrap_or(u32::MAX);
    let mut parts = message.into_parts().into_iter();
    let first = parts.next().unwrap_or_default();
    let mut front = BytesMut::with_capacity(HEADER + first.len().min(SMALL));
    front.extend_from_slice(&[0]);
    front.extend_from_slice(&len.to_be_bytes());
    let mut rest = None;
    if first.len() <= SMALL {
        front.extend_from_slice(&first);
    } else {
        rest = Some(first);
    }
    let mut parts = rest.into_iter().chain(parts).peekable();
    stream.send_data(front.freeze(), is_last && parts.peek().is_none())?;
    while let Some(part) = parts.next() {
        stream.send_data(part, is_last && parts.peek().is_none())?;
    }
    Ok(())
}

/// A first piece that is joined with the header of its message.
const SMALL: usize = 4 << 10;

/// The bytes of a stream as they come.
pub(crate) struct Incoming {
    stream: RecvStream,
    /// What came and was not used yet.
    rest: Bytes,
}

impl Incoming {
    pub(crate) fn new(stream: RecvStream) -> Incoming {
        Incoming {
            stream,
            rest: Bytes::new(),
        }
    }

    /// The next bytes, not empty; `None` at the end.
    pub(crate) async fn some(&mut self) -> Result<Option<Bytes>, Status> {
        if !self.rest.is_empty() {
            return Ok(Some(std::mem::take(&mut self.rest)));
        }
        while let Some(frame) = self.stream.data().await {
            let frame = match frame {
                Ok(frame) => frame,
                Err(e) if is_harmless(&e) => return Ok(None),
                Err(e) => return Err(broken(e)),
            };
            // What has been taken makes room for more.
            let _ = self.stream.flow_control().release_capacity(frame.len());
            if !frame.is_empty() {
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    /// Reads until `n` bytes are there, or the end.
    pub(crate) async fn at_least(&mut self, n: usize) -> Result<Bytes, Status> {
        let mut frames = Vec::new();
        let mut have = 0;
        while have < n {
            let Some(frame) = self.some().await? else {
                break;
            };
            have += frame.len();
            if have >= n && frames.is_empty() {
                return Ok(frame);
            }
            frames.push(frame);
        }
        // Joined only now: what a peer promises costs nothing before it comes.
        Ok(joined(&frames, have))
    }

    /// Gives bytes back.
    pub(crate) fn unread(&mut self, bytes: Bytes) {
        self.rest = bytes;
    }

    /// The length of the next message; `None` if there is none.
    pub(crate) async fn length(&mut self, limit: usize) -> Result<Option<usize>, Status> {
        let mut front = self.at_least(HEADER).await?;
        if front.is_empty() {
            return Ok(None);
        }
        let Some((&[flag, a, b, c, d], _)) = front.split_first_chunk::<HEADER>() else {
            return Err(Status::internal("Unexpected EOF decoding stream."));
        };
        if flag != 0 {
            return Err(Status::unimplemented(
                "a compressed message on a call that did not announce it",
            ));
        }
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if len > limit {
            return Err(Status::out_of_range(format!(
                "Error, decoded message length too large: found {len} bytes, the limit is: {limit} bytes"
            )));
        }
        let _ = front.split_to(HEADER);
        self.unread(front);
        Ok(Some(len))
    }

    /// The next `len` bytes.
    pub(crate) async fn exactly(&mut self, len: usize) -> Result<Bytes, Status> {
        if len == 0 {
            return Ok(Bytes::new());
        }
        let mut all = self.at_least(len).await?;
        if all.len() < len {
            return Err(Status::internal("Unexpected EOF decoding stream."));
        }
        let message = all.split_to(len);
        self.unread(all);
        Ok(message)
    }

    /// What follows the last message.
    pub(crate) async fn trailers(mut self) -> Result<Option<HeaderMap>, Status> {
        while self.some().await?.is_some() {}
        self.stream.trailers().await.map_err(broken)
    }
}

fn joined(frames: &[Bytes], len: usize) -> Bytes {
    match frames {
        [] => Bytes::new(),
        [only] => only.clone(),
        many => {
            let mut all = BytesMut::with_capacity(len);
            for frame in many {
                all.extend_from_slice(frame);
            }
            all.freeze()
        }
    }
}

/// Whether a stream was only closed early: its peer has said all it had to say.
fn is_harmless(error: &h2::Error) -> bool {
    error.is_reset() && error.reason() == Some(Reason::NO_ERROR)
}

/// What a failed stream or connection means to its caller.
pub(crate) fn broken(error: h2::Error) -> Status {
    let code = match error.reason() {
        _ if error.is_go_away() => Code::Unavailable,
        // The connection is gone.
        None | Some(Reason::REFUSED_STREAM) => Code::Unavailable,
        Some(Reason::CANCEL) => Code::Cancelled,
        Some(Reason::ENHANCE_YOUR_CALM) => Code::ResourceExhausted,
        Some(_) => Code::Internal,
    };
    let mut status = Status::new(code, error.to_string());
    status.set_source(Arc::new(error));
    status
}

/// A stream as the body of a request or an answer, for code that wants one.
pub(crate) struct Body(pub(crate) RecvStream);

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        match self.0.poll_data(context) {
            Poll::Pending => return Poll::Pending,
            Poll::Ready(Some(Ok(bytes))) => {
                let _ = self.0.flow_control().release_capacity(bytes.len());
                return Poll::Ready(Some(Ok(http_body::Frame::data(bytes))));
            }
            Poll::Ready(Some(Err(e))) if !is_harmless(&e) => {
                return Poll::Ready(Some(Err(broken(e))));
            }
            Poll::Ready(_) => {}
        }
        self.0
            .poll_trailers(context)
            .map(|trailers| match trailers {
                Ok(trailers) => trailers.map(|t| Ok(http_body::Frame::trailers(t))),
                Err(e) => Some(Err(broken(e))),
            })
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_end_stream()
    }
}
