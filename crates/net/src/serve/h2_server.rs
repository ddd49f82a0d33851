//! One connection of a server: accepts calls, answers them, notices when the other side is gone.
//!
//! The calls of which a step is made are [`Methods`]: message in, message out in pieces, straight
//! on the stream. All others go through the generated services. Both get the same limits, the
//! same deadlines, and end when their caller resets the stream or the connection breaks.

use crate::Limits;
use crate::call::h2_client::next_frame;
use crate::grpc_frames::{self, Body, Incoming};
use crate::lane::Lanes;
use crate::serve::admission::{Admission, Admitted};
use crate::serve::deadline::{Deadline, limit_of};
use crate::serve::presence::Alive;
use crate::spin::Spinner;
use bytes::Bytes;
use downpour_wire::Pieces;
use h2::server::{Connection, SendResponse};
use h2::{Ping, PingPong, RecvStream};
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;
use tonic::Status;
use tonic::codegen::Service;
use tonic::codegen::http::header::{CONTENT_TYPE, HeaderValue};
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::service::Routes;
use tonic::transport::server::Connected as _;

/// What a method answers.
pub struct Answer {
    /// The message.
    pub message: Pieces,
    /// Whether to say that the call left nothing to clean up.
    pub is_over: bool,
}

impl From<Pieces> for Answer {
    fn from(message: Pieces) -> Answer {
        Answer {
            message,
            is_over: false,
        }
    }
}

/// The header of an answer that says that a step has left nothing behind on the task, so that
/// its master need not ask for it to be cleaned up. TensorFlow knows nothing of it.
pub(crate) const STEP_IS_OVER: &str = "downpour-step-is-over";

/// The header of a task's status that says that it has lanes.
pub const HAS_LANES: &str = "downpour-lanes";

type Working = Pin<Box<dyn Future<Output = Result<Answer, Status>> + Send>>;

type Method = Arc<dyn Fn(Bytes) -> Working + Send + Sync>;

/// Methods that are answered without the generated services, by path.
#[derive(Clone, Default)]
pub struct Methods(HashMap<&'static str, Method>);

impl Methods {
    /// Answers calls of `path` with `method`, which gets the bytes of the request's message.
    pub fn add<F>(
        &mut self,
        path: &'static str,
        method: impl Fn(Bytes) -> F + Send + Sync + 'static,
    ) where
        F: Future<Output = Result<Answer, Status>> + Send + 'static,
    {
        let method = move |message| Box::pin(method(message)) as Working;
        self.0.insert(path, Arc::new(method));
    }
}

/// What all connections of a server share.
#[derive(Clone)]
pub(crate) struct Services {
    pub(crate) methods: Arc<Methods>,
    pub(crate) routes: Deadline<Admitted<Routes>>,
    pub(crate) admission: Arc<Admission>,
    pub(crate) limits: Limits,
    pub(crate) spinner: Spinner,
    pub(crate) lanes: Option<Arc<Lanes>>,
}

/// How long a ping may go unanswered.
const PONG: Duration = Duration::from_secs(20);

/// Serves a connection until it ends; from when `stop` says so, no new calls are taken.
pub(crate) async fn serve(
    socket: TcpStream,
    services: Services,
    mut stop: tokio::sync::watch::Receiver<bool>,
) {
    let limits = services.limits;
    let from = socket.connect_info();
    let mut builder = h2::server::Builder::new();
    builder
        .initial_window_size(grpc_frames::STREAM_WINDOW)
        .initial_connection_window_size(grpc_frames::CONNECTION_WINDOW)
        .max_frame_size(grpc_frames::FRAME)
        .max_concurrent_streams(limits.streams_per_connection)
        .max_pending_accept_reset_streams(limits.pending_resets)
        .max_header_list_size(limits.header_bytes);
    // One that connects and says nothing must not stay for ever.
    let hello = tokio::time::timeout(limits.keepalive, builder.handshake::<_, Bytes>(socket));
    let Ok(Ok(mut connection)) = hello.await else {
        return;
    };
    let alive = Alive::new(Instant::now());
    let silence = silence(connection.ping_pong(), limits.keepalive);
    tokio::pin!(silence);
    let mut stopping = false;
    loop {
        tokio::select! {
            call = connection.accept() => match call {
                Some(Ok((mut request, respond))) => {
                    alive.used(Instant::now());
                    // Who asks, for services that want to know.
                    request.extensions_mut().insert(from.clone());
                    request.extensions_mut().insert(alive.presence());
                    tokio::spawn(answer(services.clone(), request, respond));
                }
                Some(Err(e)) if !e.is_io() => return,
                Some(Err(_)) | None => {
                    if !stopping {
                        alive.closed(Instant::now());
                    }
                    return;
                }
            },
            // A server that is gone wants no more calls either.
            _ = stop.changed(), if !stopping => {
                stopping = true;
                connection.graceful_shutdown();
            }
            () = &mut silence => return close(connection),
        }
    }
}

fn close(mut connection: Connection<TcpStream, Bytes>) {
    connection.abrupt_shutdown(h2::Reason::NO_ERROR);
}

/// Ends when the other side leaves a ping unanswered.
async fn silence(pings: Option<PingPong>, every: Duration) {
    let Some(mut pings) = pings else {
        return std::future::pending().await;
    };
    loop {
        tokio::time::sleep(every).await;
        if pings.send_ping(Ping::opaque()).is_err() {
            return;
        }
        let pong = std::future::poll_fn(|context| pings.poll_pong(context));
        match tokio::time::timeout(PONG, pong).await {
            Ok(Ok(_)) => {}
            _ => return,
        }
    }
}

/// Answers one call; the work ends when the caller goes away.
async fn answer(
    services: Services,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
) {
    let headers = request.headers();
    let is_plain = headers
        .get(CONTENT_TYPE)
        .is_some_and(|t| t.as_bytes().starts_with(b"application/grpc"))
        && headers.get("grpc-encoding").is_none_or(|e| e == "identity");
    let method = match is_plain {
        true => services.methods.0.get(request.uri().path()).cloned(),
        false => None,
    };
    match method {
        Some(method) => {
            let path = request.uri().path().to_owned();
            let _open = services.spinner.open();
            let work = direct(method, request, services.limits.message_bytes);
            let work = services.admission.pass(&path, work);
            if let Some(outcome) = unless_gone(&mut respond, work).await {
                // The caller may go at any moment.
                let _ = reply(respond, outcome);
            }
        }
        None => {
            let request = request.map(|stream| tonic::body::Body::new(Body(stream)));
            let mut routes = services.routes;
            let work = routes.call(request);
            if let Some(Ok(answer)) = unless_gone(&mut respond, work).await {
                let _ = forward(respond, answer).await;
            }
        }
    }
}

/// Waits for `work`; `None` if the caller resets the stream before.
async fn unless_gone<T>(
    respond: &mut SendResponse<Bytes>,
    work: impl Future<Output = T>,
) -> Option<T> {
    tokio::pin!(work);
    tokio::select! {
        biased;
        done = &mut work => Some(done),
        _ = std::future::poll_fn(|context| respond.poll_reset(context)) => None,
    }
}

async fn direct(
    method: Method,
    request: Request<RecvStream>,
    limit: usize,
) -> Result<Answer, Status> {
    let (head, stream) = request.into_parts();
    let work = async move {
        let mut incoming = Incoming::new(stream);
        let len = incoming
            .length(limit)
            .await?
            .ok_or_else(|| Status::internal("Missing request message."))?;
        let message = incoming.exactly(len).await?;
        let answer = method(message).await?;
        if answer.message.len() > limit {
            return Err(Status::out_of_range(format!(
                "Error, encoded message length too large: found {} bytes, the limit is: {limit} bytes",
                answer.message.len()
            )));
        }
        Ok(answer)
    };
    match limit_of(&head.headers) {
        None => work.await,
        Some(limit) => match tokio::time::timeout(limit, work).await {
            Ok(outcome) => outcome,
            Err(_) => Err(Status::deadline_exceeded("Deadline Exceeded")),
        },
    }
}

/// Sends headers, message and status at once: they leave in one packet if they fit.
fn reply(
    mut respond: SendResponse<Bytes>,
    outcome: Result<Answer, Status>,
) -> Result<(), h2::Error> {
    match outcome {
        Err(status) => {
            respond.send_response(status.into_http::<()>(), true)?;
        }
        Ok(answer) => {
            let mut head = Response::new(());
            let grpc = HeaderValue::from_static("application/grpc");
            head.headers_mut().insert(CONTENT_TYPE, grpc);
            if answer.is_over {
                let yes = HeaderValue::from_static("1");
                head.headers_mut().insert(STEP_IS_OVER, yes);
            }
            let mut stream = respond.send_response(head, false)?;
            grpc_frames::send(&mut stream, answer.message, false)?;
            let mut trailers = HeaderMap::with_capacity(1);
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            stream.send_trailers(trailers)?;
        }
    }
    Ok(())
}

/// Sends what a generated service answers.
async fn forward(
    mut respond: SendResponse<Bytes>,
    answer: Response<tonic::body::Body>,
) -> Result<(), h2::Error> {
    let (head, mut body) = answer.into_parts();
    let head = Response::from_parts(head, ());
    if http_body::Body::is_end_stream(&body) {
        respond.send_response(head, true)?;
        return Ok(());
    }
    let mut stream = respond.send_response(head, false)?;
    while let Some(frame) = next_frame(&mut body).await {
        let Ok(frame) = frame else {
            stream.send_reset(h2::Reason::INTERNAL_ERROR);
            return Ok(());
        };
        match frame.into_data() {
            Ok(data) => stream.send_data(data, false)?,
            Err(frame) => {
                if let Ok(trailers) = frame.into_trailers() {
                    return stream.send_trailers(trailers);
                }
            }
        }
    }
    stream.send_data(Bytes::new(), true)
}
