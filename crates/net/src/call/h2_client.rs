//! One HTTP/2 connection to one address, made when first needed and again whenever it breaks.
//!
//! A call writes its request straight into the connection's queue and is woken by its answer:
//! there is no task between the caller and the one that owns the socket, so a small call costs
//! one wake-up each way. Dropping a call resets its stream, which is how the peer learns of it.

use crate::Limits;
use crate::grpc_frames::{self, Body, Incoming, broken};
use bytes::Bytes;
use downpour_wire::Pieces;
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use parking_lot::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::net::TcpStream;
use tonic::Status;
use tonic::codegen::Service;
use tonic::codegen::http::header::{CONTENT_TYPE, HeaderValue, TE};
use tonic::codegen::http::uri::{Authority, PathAndQuery, Scheme};
use tonic::codegen::http::{HeaderMap, Method, Request, Response, StatusCode, Uri};

/// A connection, shared by whoever calls.
#[derive(Clone)]
pub(crate) struct H2Client(Arc<Inner>);

struct Inner {
    address: String,
    authority: Authority,
    limits: Limits,
    runtime: tokio::runtime::Handle,
    sender: Mutex<Option<SendRequest<Bytes>>>,
    /// Held while connecting: callers wait for one attempt together.
    connecting: tokio::sync::Mutex<()>,
}

impl H2Client {
    /// To `host:port`; `runtime` carries the connection.
    pub(crate) fn new(
        address: &str,
        limits: Limits,
        runtime: tokio::runtime::Handle,
    ) -> Result<H2Client, String> {
        let authority = Authority::try_from(address).map_err(|e| e.to_string())?;
        Ok(H2Client(Arc::new(Inner {
            address: address.to_owned(),
            authority,
            limits,
            runtime,
            sender: Mutex::default(),
            connecting: tokio::sync::Mutex::default(),
        })))
    }

    /// Calls `path` with one message and returns the one of the answer.
    pub(crate) async fn unary(
        &self,
        path: &'static str,
        request: Pieces,
    ) -> Result<(HeaderMap, Bytes), Status> {
        let (headers, mut incoming) = self.open(path, request).await?;
        let Some(len) = incoming.length(self.0.limits.message_bytes).await? else {
            return Err(ended(incoming).await);
        };
        let message = incoming.exactly(len).await?;
        check(incoming).await?;
        Ok((headers, message))
    }

    /// Calls `path` with one message and returns the answer as it comes.
    pub(crate) async fn open(
        &self,
        path: &'static str,
        request: Pieces,
    ) -> Result<(HeaderMap, Incoming), Status> {
        if request.len() > self.0.limits.message_bytes {
            return Err(Status::out_of_range(format!(
                "Error, encoded message length too large: found {} bytes, the limit is: {} bytes",
                request.len(),
                self.0.limits.message_bytes
            )));
        }
        let mut sender = self.ready().await?;
        let mut head = Request::new(());
        *head.method_mut() = Method::POST;
        *head.uri_mut() = self.0.uri(PathAndQuery::from_static(path))?;
        let headers = head.headers_mut();
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        let (answer, mut stream) = sender.send_request(head, false).map_err(broken)?;
        // A peer may answer before it has read everything; its answer counts.
        let _ = grpc_frames::send(&mut stream, request, true);
        answered(answer.await.map_err(broken)?)
    }

    /// A sender of a connection that stands.
    async fn ready(&self) -> Result<SendRequest<Bytes>, Status> {
        if let Some(sender) = self.standing().await {
            return Ok(sender);
        }
        let _turn = self.0.connecting.lock().await;
        if let Some(sender) = self.standing().await {
            return Ok(sender);
        }
        let sender = self.0.connect().await?;
        *self.0.sender.lock() = Some(sender.clone());
        sender.ready().await.map_err(broken)
    }

    async fn standing(&self) -> Option<SendRequest<Bytes>> {
        let sender = self.0.sender.lock().clone()?;
        sender.ready().await.ok()
    }
}

impl Inner {
    fn uri(&self, path: PathAndQuery) -> Result<Uri, Status> {
        Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(self.authority.clone())
            .path_and_query(path)
            .build()
            .map_err(|e| Status::internal(e.to_string()))
    }

    async fn connect(&self) -> Result<SendRequest<Bytes>, Status> {
        let attempt = async {
            let socket = TcpStream::connect(&self.address).await?;
            socket.set_nodelay(true)?;
            h2::client::Builder::new()
                .initial_window_size(grpc_frames::STREAM_WINDOW)
                .initial_connection_window_size(grpc_frames::CONNECTION_WINDOW)
                .max_frame_size(grpc_frames::FRAME)
                .max_header_list_size(self.limits.header_bytes)
                .enable_push(false)
                .handshake::<_, Bytes>(socket)
                .await
                .map_err(|e| e.into_io().unwrap_or_else(|| io::Error::other("no HTTP/2")))
        };
        let made = tokio::time::timeout(self.limits.connect, attempt)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let (sender, connection) = made.map_err(|e| {
            let mut status = Status::unavailable(format!("cannot connect to {}", self.address));
            status.set_source(Arc::new(e));
            status
        })?;
        self.runtime.spawn(async move {
            // Calls that are open hear of the end themselves.
            let _ = connection.await;
        });
        Ok(sender)
    }
}

/// The body of an answer that was not refused.
fn answered(answer: Response<RecvStream>) -> Result<(HeaderMap, Incoming), Status> {
    if answer.status() != StatusCode::OK {
        return Err(Status::unavailable(format!(
            "the peer answered with HTTP status {}",
            answer.status().as_u16()
        )));
    }
    match Status::from_header_map(answer.headers()) {
        Some(status) if status.code() != tonic::Code::Ok => Err(status),
        _ => {
            let (head, stream) = answer.into_parts();
            Ok((head.headers, Incoming::new(stream)))
        }
    }
}

/// Takes the status after the message.
pub(crate) async fn check(incoming: Incoming) -> Result<(), Status> {
    let status = incoming
        .trailers()
        .await?
        .as_ref()
        .and_then(Status::from_header_map);
    match status {
        Some(status) if status.code() != tonic::Code::Ok => Err(status),
        _ => Ok(()),
    }
}

/// Why an answer has no message.
pub(crate) async fn ended(incoming: Incoming) -> Status {
    match check(incoming).await {
        Err(status) => status,
        Ok(()) => Status::internal("Missing response message."),
    }
}

/// For the generated client: calls that are rare.
impl Service<Request<tonic::body::Body>> for H2Client {
    type Response = Response<tonic::body::Body>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        let link = self.clone();
        Box::pin(async move {
            let (mut parts, mut body) = request.into_parts();
            let path = parts.uri.path_and_query().cloned();
            let path = path.ok_or_else(|| Status::internal("a call without a path"))?;
            parts.uri = link.0.uri(path)?;
            let mut frames = Vec::new();
            while let Some(frame) = next_frame(&mut body).await {
                if let Ok(data) = frame?.into_data() {
                    frames.push(data);
                }
            }
            let mut sender = link.ready().await?;
            let head = Request::from_parts(parts, ());
            let (answer, mut stream) = sender.send_request(head, false).map_err(broken)?;
            send_all(&mut stream, frames);
            let answer = answer.await.map_err(broken)?;
            Ok(answer.map(|stream| tonic::body::Body::new(Body(stream))))
        })
    }
}

/// Queues the frames of a request. The last one ends it: a peer that had to wait for the end in a
/// frame of its own might have answered and closed the stream by then. If it has, its answer counts.
fn send_all(stream: &mut SendStream<Bytes>, frames: Vec<Bytes>) {
    let mut frames = frames.into_iter().peekable();
    loop {
        let frame = frames.next().unwrap_or_default();
        let is_last = frames.peek().is_none();
        if stream.send_data(frame, is_last).is_err() || is_last {
            return;
        }
    }
}

/// The next frame of a body.
pub(crate) async fn next_frame(
    body: &mut tonic::body::Body,
) -> Option<Result<http_body::Frame<Bytes>, Status>> {
    std::future::poll_fn(|context| http_body::Body::poll_frame(Pin::new(body), context)).await
}
