//! What hangs for ever in TensorFlow's clusters and must not here: every wait ends in a value or
//! in an error that says who is missing. `docs/hangs.md` lists them. The bounds are many times what
//! is needed; what they exclude is for ever.

use crate::common::{
    self, Client, attr, connect, create, dtype, floats, free_address, graph, node, placeholder, run,
};
use crate::{proxy, variable};
use downpour::{ClusterSpec, Limits, Server, ServerConfig};
use downpour_wire::proto::{self, NodeDef, attr_value};
use std::io::Write;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tonic::Code;

/// Far longer than anything here takes.
const LONG: Duration = Duration::from_secs(30);

async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(LONG, future).await {
        Ok(value) => value,
        Err(_) => panic!("{what}: not within {LONG:?}"),
    }
}

/// What all tasks of this process have logged at the level users see.
fn log() -> &'static Arc<Mutex<Vec<u8>>> {
    #[derive(Clone)]
    struct Sink(Arc<Mutex<Vec<u8>>>);
    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    static LOG: OnceLock<Arc<Mutex<Vec<u8>>>> = OnceLock::new();
    LOG.get_or_init(|| {
        let lines: Arc<Mutex<Vec<u8>>> = Arc::default();
        let sink = Sink(lines.clone());
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_ansi(false)
            .with_writer(move || sink.clone())
            .init();
        lines
    })
}

/// Waits for a line of the log that has all of `parts`.
async fn logged(parts: &[&str]) -> String {
    soon("a line in the log", async {
        loop {
            let text = String::from_utf8_lossy(&log().lock().unwrap()).into_owned();
            let found = text.lines().find(|l| parts.iter().all(|p| l.contains(p)));
            if let Some(line) = found {
                return line.to_owned();
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
}

fn settings(timeout_ms: i64, filters: &[&str]) -> proto::ConfigProto {
    proto::ConfigProto {
        operation_timeout_in_ms: timeout_ms,
        device_filters: filters.iter().map(|f| f.to_string()).collect(),
        ..Default::default()
    }
}

async fn create_with(
    client: &mut Client,
    nodes: Vec<NodeDef>,
    config: proto::ConfigProto,
) -> Result<String, tonic::Status> {
    let request = proto::CreateSessionRequest {
        graph_def: Some(graph(nodes)),
        config: Some(config),
        ..Default::default()
    };
    let reply = soon("CreateSession", client.create_session(request)).await?;
    Ok(reply.into_inner().session_handle)
}

async fn close(client: &mut Client, session: &str) -> Result<(), tonic::Status> {
    let request = proto::CloseSessionRequest {
        session_handle: session.into(),
    };
    soon("CloseSession", client.close_session(request)).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_a_deadline_hears_which_task_is_missing() {
    let (ps, worker) = (free_address(), free_address());
    common::start_task(&[&ps], &[&worker], ("worker", 0), Limits::default()).await;
    let mut client = connect(&worker).await;
    let nodes = variable("/job:ps/task:0");
    let e = create_with(&mut client, nodes, settings(400, &[])).await;
    let e = e.unwrap_err();
    assert_eq!(e.code(), Code::DeadlineExceeded, "{e:?}");
    let wanted = format!("/job:ps/replica:0/task:0 at {ps} (Connection refused)");
    assert!(e.message().contains(&wanted), "{}", e.message());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_can_limit_how_long_sessions_wait_and_a_silent_one_is_named() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let ps = silent.local_addr().unwrap().to_string();
    let worker = free_address();
    let limits = Limits {
        silence: Duration::from_millis(50),
        find: Some(Duration::from_millis(500)),
        ..Default::default()
    };
    common::start_task(&[&ps], &[&worker], ("worker", 0), limits).await;
    let mut client = connect(&worker).await;
    let nodes = variable("/job:ps/task:0");
    let e = create_with(&mut client, nodes, settings(0, &[])).await;
    let e = e.unwrap_err();
    assert_eq!(e.code(), Code::DeadlineExceeded, "{e:?}");
    let wanted =
        format!("/job:ps/replica:0/task:0 at {ps} (it accepts connections but does not answer)");
    assert!(e.message().contains(&wanted), "{}", e.message());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_log_names_who_is_waited_for_and_the_session_opens_when_they_come() {
    log();
    let (ps, worker) = (free_address(), free_address());
    let limits = Limits {
        progress: Duration::from_millis(50),
        ..Default::default()
    };
    common::start_task(&[&ps], &[&worker], ("worker", 0), limits).await;
    let mut client = connect(&worker).await;
    let opening = tokio::spawn(async move {
        create_with(&mut client, variable("/job:ps/task:0"), settings(0, &[])).await
    });
    let line = logged(&["CreateSession has been waiting", &ps]).await;
    assert!(
        line.contains(&format!(
            "/job:ps/replica:0/task:0 at {ps} (Connection refused)"
        )),
        "{line}"
    );
    common::start_task(&[&ps], &[&worker], ("ps", 0), Limits::default()).await;
    opening.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn filters_leave_missing_tasks_out() {
    let worker = free_address();
    let (missing, other) = (free_address(), free_address());
    common::start_task(
        &[&missing],
        &[&worker, &other],
        ("worker", 0),
        Limits::default(),
    )
    .await;
    let mut client = connect(&worker).await;
    let filters = ["/job:worker/task:0"];
    let session = create_with(&mut client, vec![placeholder("x")], settings(0, &filters)).await;
    session.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_and_resetting_do_not_wait_for_a_task_that_is_stuck() {
    let (freeze, frozen) = tokio::sync::watch::channel(false);
    let (ps, worker) = (free_address(), free_address());
    let through = proxy(ps.clone(), frozen).await;
    let limits = Limits {
        silence: Duration::from_millis(300),
        ..Default::default()
    };
    common::start_task(&[&ps], &[&worker], ("ps", 0), limits).await;
    common::start_task(&[&through], &[&worker], ("worker", 0), limits).await;
    let mut client = connect(&worker).await;
    let nodes = variable("/job:ps/task:0");
    let session = create(&mut client, graph(nodes.clone())).await.unwrap();
    let other = create(&mut client, graph(nodes)).await.unwrap();
    freeze.send(true).unwrap();
    close(&mut client, &session).await.unwrap();
    let mut stuck = client.clone();
    let handle = other.clone();
    let step = tokio::spawn(async move { run(&mut stuck, &handle, &[], &["read:0"]).await });
    let reset = proto::ResetRequest::default();
    soon("Reset", client.reset(reset)).await.unwrap();
    let e = soon("a step of a reset session", step).await.unwrap();
    e.unwrap_err();
    let e = run(&mut client, &other, &[], &[]).await.unwrap_err();
    assert_eq!(e.code(), Code::Aborted);
}

/// A queue on a ps that nobody fills, and an op that waits for it.
fn queue() -> Vec<NodeDef> {
    let types = attr(attr_value::Value::List(Box::new(attr_value::ListValue {
        r#type: vec![1],
        ..Default::default()
    })));
    let name = attr(attr_value::Value::S("tokens".as_bytes().to_vec().into()));
    let attrs = [("component_types", types.clone()), ("shared_name", name)];
    let mut made = vec![
        node("queue", "FIFOQueueV2", &[], &attrs),
        node(
            "take",
            "QueueDequeueV2",
            &["queue"],
            &[("component_types", types)],
        ),
    ];
    made[0].device = "/job:ps/task:0".into();
    made[1].device = "/job:ps/task:0".into();
    made
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_waits_for_a_lost_worker_is_reported_and_ends_at_its_deadline() {
    log();
    let (ps, worker, lost) = (free_address(), free_address(), free_address());
    let limits = Limits {
        progress: Duration::from_millis(100),
        ..Default::default()
    };
    for (job, task) in [("ps", 0), ("worker", 0)] {
        common::start_task(&[&ps], &[&worker, &lost], (job, task), limits).await;
    }
    let mut client = connect(&worker).await;
    let filters = ["/job:ps", "/job:worker/task:0"];
    let session = create_with(&mut client, queue(), settings(0, &filters)).await;
    let session = session.unwrap();
    let mut waiting = client.clone();
    let handle = session.clone();
    let step = tokio::spawn(async move { run(&mut waiting, &handle, &[], &["take:0"]).await });
    let line = logged(&["has not ended for", &lost]).await;
    for part in [
        "take (QueueDequeueV2) on /job:ps/replica:0/task:0",
        &format!("no answer from /job:worker/replica:0/task:1 at {lost}"),
    ] {
        assert!(line.contains(part), "{line}");
    }
    let mut request = common::run_request(&session, &[], &["take:0"]);
    request.options = Some(proto::RunOptions {
        timeout_in_ms: 100,
        ..Default::default()
    });
    let e = soon("a step with a deadline", client.run_step(request)).await;
    assert_eq!(e.unwrap_err().code(), Code::DeadlineExceeded);
    close(&mut client, &session).await.unwrap();
    let e = soon("a step of a closed session", step).await.unwrap();
    assert_eq!(e.unwrap_err().code(), Code::Cancelled);
}

/// Starts a ps that can be stopped; the sender stops it, the task ends when its port is free.
async fn mortal_ps(
    ps: &str,
    worker: &str,
) -> (
    tokio::sync::oneshot::Sender<()>,
    tokio::task::JoinHandle<()>,
) {
    let mut cluster = ClusterSpec::default();
    cluster.add_hosts("ps", ps).unwrap();
    cluster.add_hosts("worker", worker).unwrap();
    let config = ServerConfig {
        cluster,
        job: "ps".into(),
        task: 0,
        bind: None,
        limits: Limits::default(),
        threads: Some(2),
        console: None,
        ending: Default::default(),
        transport: common::transport(),
        ..ServerConfig::local()
    };
    let server = Server::bind(config).await.unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let serving = tokio::spawn(async move {
        let _ = server.serve(async { drop(stopped.await) }).await;
    });
    (stop, serving)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_ps_is_recognised_and_recoverable_codes_say_so() {
    let (ps, worker) = (free_address(), free_address());
    let (stop, ended) = mortal_ps(&ps, &worker).await;
    common::start_task(&[&ps], &[&worker], ("worker", 0), Limits::default()).await;
    let mut client = connect(&worker).await;
    let nodes = variable("/job:ps/task:0");
    let session = create(&mut client, graph(nodes.clone())).await.unwrap();
    let feed = [("x:0", floats(&[1.0, 2.0]))];
    run(&mut client, &session, &feed, &["assign:0"])
        .await
        .unwrap();
    stop.send(()).unwrap();
    soon("the end of a ps", ended).await.unwrap();
    let e = soon("a step", run(&mut client, &session, &[], &["read:0"])).await;
    assert_eq!(e.unwrap_err().code(), Code::Unavailable);
    // The port is free again, and the new life is not mistaken for the old one.
    let (_stop, _serving) = mortal_ps(&ps, &worker).await;
    for _ in 0..3 {
        let e = soon("a step", run(&mut client, &session, &[], &["read:0"])).await;
        let e = e.unwrap_err();
        assert_eq!(e.code(), Code::Aborted, "{e:?}");
        let text = e.message();
        assert!(
            text.contains("just restarted") || text.contains("different device incarnation"),
            "{text}"
        );
    }
    // A new session works, and the state is gone.
    let session = create(&mut client, graph(nodes)).await.unwrap();
    let e = run(&mut client, &session, &[], &["read:0"]).await;
    assert_eq!(e.unwrap_err().code(), Code::FailedPrecondition);
    run(&mut client, &session, &feed, &["assign:0"])
        .await
        .unwrap();
}

/// A variable of `n` floats on the ps, set from a feed and read back.
async fn round_trip(client: &mut Client, n: usize) -> Result<usize, tonic::Status> {
    let of = attr(attr_value::Value::Shape(common::shape(&[n as i64])));
    let mut nodes = vec![
        placeholder("x"),
        node(
            "v",
            "VariableV2",
            &[],
            &[("dtype", dtype(1)), ("shape", of)],
        ),
        node("assign", "Assign", &["v", "x"], &[("T", dtype(1))]),
        node("read", "Identity", &["v"], &[("T", dtype(1))]),
    ];
    nodes[1].device = "/job:ps/task:0".into();
    let name = attr(attr_value::Value::S(format!("v{n}").into_bytes().into()));
    nodes[1].attr.insert("shared_name".into(), name);
    let session = create(client, graph(nodes)).await.unwrap();
    let value = proto::TensorProto {
        dtype: 1,
        tensor_shape: Some(common::shape(&[n as i64])),
        tensor_content: vec![1; n * 4].into(),
        ..Default::default()
    };
    let feed = [("x:0", value)];
    soon("a big feed", run(client, &session, &feed, &["assign:0"])).await?;
    let reply = soon("a big fetch", run(client, &session, &[], &["read:0"])).await?;
    close(client, &session).await.unwrap();
    Ok(reply.tensor[0].tensor.clone().unwrap().tensor_content.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tensors_beyond_the_usual_limits_of_grpc_and_protobuf_pass() {
    let addresses = common::start_cluster(1, 1).await;
    let mut client = connect(&addresses[1]).await;
    // Past gRPC's 4 MiB and past protobuf's 64 MB.
    for n in [(5 << 20) / 4, 70_000_000 / 4] {
        assert_eq!(round_trip(&mut client, n).await.unwrap(), n * 4);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_over_the_limit_is_an_error_that_says_so() {
    let (ps, worker) = (free_address(), free_address());
    let small = Limits {
        message_bytes: 1 << 20,
        ..Default::default()
    };
    // Only the worker is strict: what the ps sends it is too long.
    common::start_task(&[&ps], &[&worker], ("ps", 0), Limits::default()).await;
    common::start_task(&[&ps], &[&worker], ("worker", 0), small).await;
    let mut client = connect(&worker).await;
    let e = round_trip(&mut client, 1 << 20).await.unwrap_err();
    assert!(
        matches!(e.code(), Code::OutOfRange | Code::ResourceExhausted),
        "{e:?}"
    );
    assert!(e.message().contains("1048576"), "{}", e.message());
    // The task goes on.
    assert_eq!(round_trip(&mut client, 1000).await.unwrap(), 4000);
}

/// Resident memory of this process.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = text.split(' ').nth(1).and_then(|n| n.parse::<usize>().ok());
    pages.unwrap_or(0) * 4096
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_of_clients_that_vanish_end_and_leave_no_memory_behind() {
    let (ps, worker) = (free_address(), free_address());
    let limits = Limits {
        lease: Duration::from_millis(200),
        ..Default::default()
    };
    for job in ["ps", "worker"] {
        common::start_task(&[&ps], &[&worker], (job, 0), limits).await;
    }
    let before = resident();
    let mut sessions = Vec::new();
    for i in 0..200 {
        // Four megabytes on the ps, in a graph that only this session has.
        let value = proto::TensorProto {
            dtype: 1,
            tensor_shape: Some(common::shape(&[1 << 20])),
            tensor_content: vec![i as u8; 1 << 22].into(),
            ..Default::default()
        };
        let attrs = [
            ("dtype", dtype(1)),
            ("value", attr(attr_value::Value::Tensor(Box::new(value)))),
        ];
        let mut nodes = vec![
            node("big", "Const", &[], &attrs),
            node("size", "Size", &["big"], &[("T", dtype(1))]),
        ];
        for node in &mut nodes {
            node.device = "/job:ps/task:0".into();
        }
        let mut client = connect(&worker).await;
        let session = create(&mut client, graph(nodes)).await.unwrap();
        run(&mut client, &session, &[], &["size:0"]).await.unwrap();
        sessions.push(session);
        // The client goes without closing it.
    }
    let mut client = connect(&worker).await;
    soon("the end of the sessions", async {
        for session in &sessions {
            while run(&mut client, session, &[], &["size:0"]).await.is_ok() {
                // Asking renews the lease.
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
        }
    })
    .await;
    let e = run(&mut client, &sessions[0], &[], &["size:0"]).await;
    assert_eq!(e.unwrap_err().code(), Code::Aborted);
    // Kept, they would take 800 MB or more; other tests run beside this one.
    let grown = resident().saturating_sub(before);
    assert!(grown < 600 << 20, "{} MB more", grown >> 20);
}
