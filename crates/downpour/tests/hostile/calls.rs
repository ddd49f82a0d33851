//! Calls no honest client makes (rows R2–R6 and R14 of the reliability plan): typed errors, and
//! the server goes on serving.

use crate::common::*;
use downpour_wire::proto;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::Code;

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_do_not_exist_are_aborted() {
    let mut c = connect(start().await).await;
    for handle in ["", "0123456789abcdef", "../../etc"] {
        let e = run(&mut c, handle, &[], &["x:0"]).await.unwrap_err();
        assert_eq!(e.code(), Code::Aborted);
        assert_eq!(e.message(), format!("Session {handle} is not found."));
    }
    let session = create(&mut c, graph(vec![placeholder("x")])).await.unwrap();
    let close = proto::CloseSessionRequest {
        session_handle: session.clone(),
    };
    c.close_session(close.clone()).await.unwrap();
    assert_eq!(
        run(&mut c, &session, &[], &[]).await.unwrap_err().code(),
        Code::Aborted
    );
    let e = c.close_session(close).await.unwrap_err();
    assert!(
        e.message()
            .ends_with("Possibly, this master has restarted."),
        "{e:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn feeds_and_fetches_are_checked() {
    let mut c = connect(start().await).await;
    let nodes = vec![
        placeholder("x"),
        node("y", "AddV2", &["x", "x"], &[("T", dtype(1))]),
    ];
    let s = create(&mut c, graph(nodes)).await.unwrap();
    let x = || ("x:0", floats(&[1.0]));
    for (what, feeds, fetches, code) in [
        (
            "wrong type",
            vec![("x:0", ints(&[1]))],
            vec!["y:0"],
            Code::Internal,
        ),
        (
            "fed twice",
            vec![x(), x()],
            vec!["y:0"],
            Code::InvalidArgument,
        ),
        (
            "unknown feed",
            vec![("q:0", floats(&[1.0]))],
            vec!["y:0"],
            Code::NotFound,
        ),
        ("unknown fetch", vec![x()], vec!["q:0"], Code::NotFound),
        ("no output 7", vec![x()], vec!["y:7"], Code::InvalidArgument),
        ("not fed", vec![], vec!["y:0"], Code::InvalidArgument),
    ] {
        let e = run(&mut c, &s, &feeds, &fetches).await.expect_err(what);
        assert_eq!(e.code(), code, "{what}: {e:?}");
    }
    // A million times the same fetch is the same as once.
    let many = vec!["y:0"; 100_000];
    let reply = run(&mut c, &s, &[x()], &many).await.unwrap();
    assert_eq!(reply.tensor.len(), 1);
    let many: Vec<String> = (0..100_000).map(|i| format!("q{i}:0")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    assert_eq!(
        run(&mut c, &s, &[x()], &many).await.unwrap_err().code(),
        Code::NotFound
    );
    assert_serving(&mut c).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_request_is_refused() {
    let mut c = connect(start().await).await;
    let s = create(&mut c, graph(vec![placeholder("x")])).await.unwrap();
    let mut request = run_request(&s, &[("x:0", floats(&[1.0]))], &["x:0"]);
    request.request_id = 77;
    c.run_step(request.clone()).await.unwrap();
    let e = c.run_step(request).await.unwrap_err();
    assert_eq!(e.code(), Code::Aborted);
    assert!(
        e.message()
            .starts_with("The same RunStep (Master) request was received twice.")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn partial_runs_and_callables_are_checked() {
    let mut c = connect(start().await).await;
    let float = [("T", dtype(1))];
    let nodes = vec![
        placeholder("x"),
        placeholder("z"),
        node("y", "AddV2", &["x", "x"], &float),
        node("w", "AddV2", &["y", "z"], &float),
    ];
    let s = create(&mut c, graph(nodes)).await.unwrap();
    let setup = proto::PartialRunSetupRequest {
        session_handle: s.clone(),
        feed: vec!["x:0".into(), "z:0".into()],
        fetch: vec!["y:0".into(), "w:0".into()],
        ..Default::default()
    };
    let handle = c
        .partial_run_setup(setup)
        .await
        .unwrap()
        .into_inner()
        .partial_run_handle;
    let part = |feeds: &[(&str, proto::TensorProto)], fetches: &[&str]| proto::RunStepRequest {
        partial_run_handle: handle.clone(),
        ..run_request(&s, feeds, fetches)
    };
    let x = ("x:0", floats(&[1.0]));
    for (request, text) in [
        (
            part(&[("q:0", floats(&[1.0]))], &[]),
            "The feed q:0 was not specified in partial_run_setup.",
        ),
        (
            part(&[], &["x:0"]),
            "The fetch x:0 was not specified in partial_run_setup.",
        ),
        (
            part(&[], &["y:0"]),
            "Fetch x:0 can't be computed from the feeds that have been fed so far.",
        ),
        (
            proto::RunStepRequest {
                partial_run_handle: "99".into(),
                ..run_request(&s, &[], &[])
            },
            "Must run PartialRunSetup before performing partial runs",
        ),
    ] {
        let e = c.run_step(request).await.unwrap_err();
        assert_eq!((e.code(), e.message()), (Code::InvalidArgument, text));
    }
    c.run_step(part(std::slice::from_ref(&x), &["y:0"]))
        .await
        .unwrap();
    let e = c.run_step(part(&[x], &[])).await.unwrap_err();
    assert_eq!(e.message(), "The feed x:0 has already been fed.");
    c.run_step(part(&[("z:0", floats(&[2.0]))], &["w:0"]))
        .await
        .unwrap();
    let e = c
        .run_callable(proto::RunCallableRequest {
            session_handle: s,
            handle: 5,
            ..Default::default()
        })
        .await
        .unwrap_err();
    assert_eq!(e.message(), "No such callable handle: 5");
}

/// Bytes that are no message, and connections that speak something else.
#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_the_wire_is_answered_or_dropped() {
    let address = start().await;
    let mut c = connect(address).await;
    for garbage in [
        &b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"[..],
        &[0xff; 4096],
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\xff\xff\xff\xff",
    ] {
        let mut raw = tokio::net::TcpStream::connect(address).await.unwrap();
        raw.write_all(garbage).await.unwrap();
        let mut answer = Vec::new();
        let closed = tokio::time::timeout(
            std::time::Duration::from_secs(5),
            raw.read_to_end(&mut answer),
        );
        // Whatever it says, it ends the connection.
        let _ = closed
            .await
            .expect("the server keeps a connection of garbage open");
        assert_serving(&mut c).await;
    }
    // A gRPC frame that promises four gigabytes.
    let promise = [0u8, 0xff, 0xff, 0xff, 0xff, 1, 2, 3];
    let e = raw_call(address, "RunStep", promise.to_vec()).await;
    assert_ne!(e, "0", "the call must fail");
    assert_serving(&mut c).await;
    // A message that is not protobuf.
    let e = raw_call(address, "RunStep", vec![0, 0, 0, 0, 3, 0xff, 0xff, 0xff]).await;
    assert_eq!(e, "13");
    // A method that does not exist.
    let e = raw_call(address, "Explode", vec![0, 0, 0, 0, 0]).await;
    assert_eq!(e, "12");
    assert_serving(&mut c).await;
}

/// Sends a raw gRPC body and returns the status number.
async fn raw_call(address: std::net::SocketAddr, method: &str, body: Vec<u8>) -> String {
    use tower::{Service as _, ServiceExt as _};
    let channel = tonic::transport::Channel::from_shared(format!("http://{address}")).unwrap();
    let mut channel = channel.connect().await.unwrap();
    let request = http::Request::post(format!(
        "http://{address}/tensorflow.MasterService/{method}"
    ))
    .header("content-type", "application/grpc")
    .header("te", "trailers")
    .body(tonic::body::Body::new(Whole(Some(body.into()))))
    .unwrap();
    let response = channel.ready().await.unwrap().call(request).await.unwrap();
    let (parts, body) = response.into_parts();
    if let Some(status) = parts.headers.get("grpc-status") {
        return status.to_str().unwrap().to_owned();
    }
    let mut body = Box::pin(body);
    while let Some(frame) = std::future::poll_fn(|cx| http_body(body.as_mut(), cx)).await {
        if let Ok(trailers) = frame.unwrap().into_trailers() {
            return trailers["grpc-status"].to_str().unwrap().to_owned();
        }
    }
    "none".into()
}

use tonic::codegen::Body as _;

fn http_body(
    body: std::pin::Pin<&mut tonic::body::Body>,
    cx: &mut std::task::Context<'_>,
) -> std::task::Poll<Option<Result<FrameOf, tonic::Status>>> {
    body.poll_frame(cx)
}

type FrameOf = http_body::Frame<bytes::Bytes>;

/// A body that is there at once.
struct Whole(Option<bytes::Bytes>);

impl tonic::codegen::Body for Whole {
    type Data = bytes::Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<FrameOf, tonic::Status>>> {
        std::task::Poll::Ready(self.0.take().map(|b| Ok(http_body::Frame::data(b))))
    }
}
