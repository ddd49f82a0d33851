//! Both ends of the transport against each other and against a peer that cuts its frames anywhere.

use crate::call::h2_client::H2Client;
use crate::call::pull::pull;
use crate::serve::admission::Admission;
use crate::serve::h2_server::{Answer, Methods, STEP_IS_OVER};
use crate::{Limits, Listener, serve};
use bytes::Bytes;
use downpour_tensor::{DType, Tensor};
use downpour_wire::messages::{CleanupGraphRequest, RecvTensorRequest, RecvTensorResponse};
use downpour_wire::{Budget, InPieces, Pieces, WireMessage, proto};
use std::sync::Arc;
use tokio::sync::oneshot;
use tonic::codegen::http::{HeaderMap, Response};
use tonic::service::Routes;
use tonic::{Code, Status};

const ECHO: &str = "/test.Echo/Echo";
const REFUSE: &str = "/test.Echo/Refuse";
const WAIT: &str = "/test.Echo/Wait";

/// Says when it is dropped.
struct Dropped(Option<oneshot::Sender<()>>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.take().map(|tell| tell.send(()));
    }
}

struct Server {
    link: H2Client,
    /// Resolves when the call of `WAIT` is dropped.
    dropped: oneshot::Receiver<()>,
    stop: oneshot::Sender<()>,
    ended: tokio::task::JoinHandle<()>,
}

/// Step ids stand in for contents: the echo answers with a tensor of that many bytes.
async fn start(limits: Limits) -> Server {
    let mut methods = Methods::default();
    methods.add(ECHO, |message| async move {
        let request = CleanupGraphRequest::from_bytes(message, &Budget::default()).unwrap();
        Ok(Answer {
            message: tensor_message(bytes_tensor(request.step_id as usize)).into_pieces(),
            is_over: request.step_id == 1,
        })
    });
    methods.add(REFUSE, |_| async { Err(Status::aborted("no")) });
    let (tell, dropped) = oneshot::channel();
    let tell = Arc::new(parking_lot::Mutex::new(Some(tell)));
    methods.add(WAIT, move |_| {
        let dropped = Dropped(tell.lock().take());
        async move {
            std::future::pending::<()>().await;
            drop(dropped);
            Err(Status::internal("unreachable"))
        }
    });
    let listener = Listener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.address().to_string();
    let (stop, stopped) = oneshot::channel();
    let admission = Admission::new("/job:test/replica:0/task:0");
    let ended = tokio::spawn(async move {
        let stop = async {
            let _ = stopped.await;
        };
        serve(
            listener,
            Routes::default(),
            methods,
            limits,
            (admission, None),
            stop,
        )
        .await;
    });
    let runtime = tokio::runtime::Handle::current();
    Server {
        link: H2Client::new(&address, limits, runtime).unwrap(),
        dropped,
        stop,
        ended,
    }
}

fn bytes_tensor(len: usize) -> Tensor {
    Tensor::vector((0..len).map(|i| (i % 251) as u8).collect())
}

fn tensor_message(tensor: Tensor) -> proto::RecvTensorResponse {
    let reply = RecvTensorResponse {
        tensor,
        is_dead: false,
        send_start_micros: 1 << 50,
        require_ack: false,
    };
    reply.encode().unwrap()
}

fn ask(step_id: i64) -> Pieces {
    Pieces::of(&CleanupGraphRequest { step_id }.encode().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_any_size_arrive_whole() {
    let server = start(Limits::default()).await;
    // Empty, within a frame, several frames, and more than a window.
    for len in [0, 1, 5000, 3 << 20, 40 << 20] {
        let (headers, message) = server.link.unary(ECHO, ask(len)).await.unwrap();
        let reply = RecvTensorResponse::from_bytes(message, &Budget::default()).unwrap();
        let want = bytes_tensor(len as usize);
        assert!(reply.tensor.as_slice::<u8>().unwrap() == want.as_slice::<u8>().unwrap());
        assert_eq!(headers.contains_key(STEP_IS_OVER), len == 1);
    }
    let calls: Vec<_> = (0..100)
        .map(|i| {
            let link = server.link.clone();
            tokio::spawn(async move { link.unary(ECHO, ask(i)).await.map(|(_, m)| m.len()) })
        })
        .collect();
    for call in calls {
        assert!(call.await.unwrap().is_ok());
    }
}

#[tokio::test]
async fn refusals_keep_their_code_and_text() {
    let server = start(Limits::default()).await;
    let e = server.link.unary(REFUSE, ask(0)).await.unwrap_err();
    assert_eq!((e.code(), e.message()), (Code::Aborted, "no"));
    let e = server.link.unary("/test.Echo/None", ask(0)).await;
    assert_eq!(e.unwrap_err().code(), Code::Unimplemented);
    let limits = Limits {
        message_bytes: 1000,
        ..Limits::default()
    };
    let server = start(limits).await;
    let e = server.link.unary(ECHO, ask(2000)).await.unwrap_err();
    assert_eq!(e.code(), Code::OutOfRange);
}

#[tokio::test]
async fn a_call_that_is_dropped_ends_at_the_other_side() {
    let server = start(Limits::default()).await;
    let call = server.link.unary(WAIT, ask(0));
    // The answer never comes; the echo proves that the request has.
    tokio::select! {
        biased;
        answer = call => panic!("it answered: {answer:?}"),
        echo = async {
            tokio::task::yield_now().await;
            server.link.unary(ECHO, ask(1)).await
        } => echo.unwrap(),
    };
    server.dropped.await.unwrap();
}

#[tokio::test]
async fn a_stopped_server_is_unavailable_and_its_calls_end() {
    let limits = Limits {
        drain: std::time::Duration::from_millis(50),
        ..Limits::default()
    };
    let server = start(limits).await;
    server.link.unary(ECHO, ask(1)).await.unwrap();
    let link = server.link.clone();
    let waiting = tokio::spawn(async move { link.unary(WAIT, ask(0)).await });
    server.link.unary(ECHO, ask(1)).await.unwrap();
    server.stop.send(()).unwrap();
    server.ended.await.unwrap();
    let e = waiting.await.unwrap().unwrap_err();
    assert_eq!(e.code(), Code::Unavailable, "{e}");
    let e = server.link.unary(ECHO, ask(1)).await.unwrap_err();
    assert_eq!(e.code(), Code::Unavailable);
}

/// Answers one call with these frames.
async fn scripted(frames: Vec<Bytes>, status: &'static str) -> H2Client {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let mut connection = h2::server::handshake(socket).await.unwrap();
        let (_, mut respond) = connection.accept().await.unwrap().unwrap();
        let mut stream = respond.send_response(Response::new(()), false).unwrap();
        for frame in frames {
            stream.send_data(frame, false).unwrap();
        }
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", status.parse().unwrap());
        stream.send_trailers(trailers).unwrap();
        while connection.accept().await.is_some() {}
    });
    let runtime = tokio::runtime::Handle::current();
    H2Client::new(&address, Limits::default(), runtime).unwrap()
}

async fn pulled(frames: Vec<Bytes>) -> Result<Option<Tensor>, Status> {
    let link = scripted(frames, "0").await;
    let pulled = pull(&link, RecvTensorRequest::default(), &Limits::default()).await;
    pulled.map(|(tensor, _)| tensor)
}

fn framed(message: &[u8]) -> Bytes {
    let mut all = vec![0];
    all.extend_from_slice(&(message.len() as u32).to_be_bytes());
    all.extend_from_slice(message);
    all.into()
}

#[tokio::test]
async fn tensors_are_read_however_the_peer_cuts_them() {
    let values: Vec<f32> = (0..10_000).map(|i| i as f32).collect();
    let tensor = Tensor::from_vec(values.clone(), [100, 100]).unwrap();
    let reply = tensor_message(tensor);
    let message = reply.clone().into_pieces().into_parts().concat();
    let all = framed(&message);
    for cuts in [vec![], vec![1, 3, 5, 6, 40, 45, 4100], vec![7, 30_000]] {
        let mut frames = Vec::new();
        let mut from = 0;
        for cut in cuts.into_iter().chain([all.len()]) {
            frames.push(all.slice(from..cut));
            frames.push(Bytes::new());
            from = cut;
        }
        let got = pulled(frames).await.unwrap().unwrap();
        assert_eq!(got.dims(), [100, 100]);
        assert_eq!(got.as_slice::<f32>().unwrap(), values);
    }
    // Elements first, as another writer might order the fields; and in a typed list.
    let tensor = reply.tensor.unwrap();
    let elements = proto::TensorProto {
        tensor_content: tensor.tensor_content.clone(),
        ..Default::default()
    };
    let rest = proto::TensorProto {
        tensor_content: Bytes::new(),
        ..tensor.clone()
    };
    let odd = [Pieces::of(&elements), Pieces::of(&rest)].map(|p| p.into_parts().concat());
    let odd = odd.concat();
    let mut reordered = vec![0x0a];
    reordered.extend(varint(odd.len()));
    reordered.extend(odd);
    let listed = proto::RecvTensorResponse {
        tensor: Some(proto::TensorProto {
            tensor_content: Bytes::new(),
            float_val: values.clone(),
            ..tensor
        }),
        ..Default::default()
    };
    let listed = Pieces::of(&listed).into_parts().concat();
    for message in [reordered, listed] {
        let got = pulled(vec![framed(&message)]).await.unwrap().unwrap();
        assert_eq!(got.as_slice::<f32>().unwrap(), values);
    }
}

fn varint(mut n: usize) -> Vec<u8> {
    let mut out = Vec::new();
    while n > 127 {
        out.push(n as u8 | 128);
        n >>= 7;
    }
    out.push(n as u8);
    out
}

#[tokio::test]
async fn broken_answers_are_errors() {
    let message = tensor_message(bytes_tensor(30_000)).into_pieces();
    let all = framed(&message.into_parts().concat());
    let short = all.slice(..all.len() - 1);
    assert_eq!(
        pulled(vec![short]).await.unwrap_err().code(),
        Code::Internal
    );
    assert_eq!(pulled(vec![]).await.unwrap_err().code(), Code::Internal);
    let compressed = Bytes::from([&[1], &all[1..]].concat());
    let e = pulled(vec![compressed]).await.unwrap_err();
    assert_eq!(e.code(), Code::Unimplemented);
    let huge = Bytes::from_static(&[0, 0xff, 0xff, 0xff, 0xff, 1]);
    assert_eq!(
        pulled(vec![huge]).await.unwrap_err().code(),
        Code::OutOfRange
    );
    let garbage = framed(&[0xff; 20_000]);
    assert!(pulled(vec![garbage]).await.is_err());
    // A failure after the tensor is a failure.
    let link = scripted(vec![all], "13").await;
    let e = pull(&link, RecvTensorRequest::default(), &Limits::default()).await;
    assert_eq!(e.unwrap_err().code(), Code::Internal);
    let dead = RecvTensorResponse {
        tensor: Tensor::zeros(DType::Float, [0]).unwrap(),
        is_dead: true,
        send_start_micros: 0,
        require_ack: false,
    };
    let dead = dead.encode().unwrap().into_pieces().into_parts().concat();
    assert!(pulled(vec![framed(&dead)]).await.unwrap().is_none());
}
