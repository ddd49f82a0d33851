//! A server in this process and a raw client for it: what the behaviour tests stand on.

use downpour::{ClusterSpec, Limits, Server, ServerConfig, Transport};
use downpour_wire::proto::master_service_client::MasterServiceClient;
use downpour_wire::proto::{
    self, AttrValue, CreateSessionRequest, GraphDef, NamedTensorProto, NodeDef, RunStepRequest,
    RunStepResponse, TensorProto, TensorShapeProto, attr_value, tensor_shape_proto,
};
use std::net::SocketAddr;
use tonic::transport::Channel;

pub(crate) type Client = MasterServiceClient<Channel>;

/// Starts a task on a free port; it serves until the test's process ends.
pub(crate) async fn start() -> SocketAddr {
    let config = ServerConfig {
        cluster: ClusterSpec::single("localhost", "127.0.0.1:0").unwrap(),
        job: "localhost".into(),
        task: 0,
        bind: None,
        limits: Limits::default(),
        threads: Some(2),
        console: None,
        ending: Default::default(),
        transport: transport(),
        ..ServerConfig::local()
    };
    let server = Server::bind(config).await.unwrap();
    let address = server.address();
    tokio::spawn(server.serve(std::future::pending()));
    address
}

/// How the tasks of these tests talk to each other. `cargo xtask test` runs them both ways.
pub(crate) fn transport() -> Transport {
    match std::env::var("DOWNPOUR_TEST_TRANSPORT") {
        Ok(name) => Transport::parse(&name).expect("DOWNPOUR_TEST_TRANSPORT is auto or grpc"),
        Err(_) => Transport::Auto,
    }
}

/// An address that nobody listens on. Not one the system would give out: it might do so again, to
/// one of this test's own connections, before the address is used.
pub(crate) fn free_address() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    loop {
        let port = 10_000 + RandomState::new().hash_one(0) % 20_000;
        let address = format!("127.0.0.1:{port}");
        if std::net::TcpListener::bind(&address).is_ok() {
            return address;
        }
    }
}

/// Starts one task of a cluster in this process.
pub(crate) async fn start_task(
    ps: &[&str],
    workers: &[&str],
    (job, task): (&str, usize),
    limits: Limits,
) {
    let mut cluster = ClusterSpec::default();
    cluster.add_hosts("ps", &ps.join(",")).unwrap();
    cluster.add_hosts("worker", &workers.join(",")).unwrap();
    let config = ServerConfig {
        cluster,
        job: job.into(),
        task: task as u32,
        bind: None,
        limits,
        threads: Some(2),
        console: None,
        ending: Default::default(),
        transport: transport(),
        ..ServerConfig::local()
    };
    let server = Server::bind(config).await.unwrap();
    tokio::spawn(server.serve(std::future::pending()));
}

/// Starts `ps` and `worker` tasks in this process; returns their addresses in that order.
pub(crate) async fn start_cluster(ps: usize, workers: usize) -> Vec<String> {
    let addresses: Vec<String> = (0..ps + workers).map(|_| free_address()).collect();
    let all: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let (first, second) = all.split_at(ps);
    for task in 0..ps {
        start_task(first, second, ("ps", task), Limits::default()).await;
    }
    for task in 0..workers {
        start_task(first, second, ("worker", task), Limits::default()).await;
    }
    addresses
}

pub(crate) async fn connect(address: impl std::fmt::Display) -> Client {
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    MasterServiceClient::new(channel.connect().await.unwrap())
        .max_decoding_message_size(1 << 30)
        .max_encoding_message_size(1 << 30)
}

pub(crate) fn attr(value: attr_value::Value) -> AttrValue {
    AttrValue { value: Some(value) }
}

pub(crate) fn dtype(number: i32) -> AttrValue {
    attr(attr_value::Value::Type(number))
}

pub(crate) fn shape(dims: &[i64]) -> TensorShapeProto {
    let dim = dims
        .iter()
        .map(|&size| tensor_shape_proto::Dim {
            size,
            ..Default::default()
        })
        .collect();
    TensorShapeProto {
        dim,
        ..Default::default()
    }
}

pub(crate) fn node(name: &str, op: &str, inputs: &[&str], attrs: &[(&str, AttrValue)]) -> NodeDef {
    NodeDef {
        name: name.into(),
        op: op.into(),
        input: inputs.iter().map(|s| s.to_string()).collect(),
        attr: attrs
            .iter()
            .map(|(k, v)| (k.to_string(), v.clone()))
            .collect(),
        ..Default::default()
    }
}

pub(crate) fn placeholder(name: &str) -> NodeDef {
    node(name, "Placeholder", &[], &[("dtype", dtype(1))])
}

pub(crate) fn graph(nodes: Vec<NodeDef>) -> GraphDef {
    GraphDef {
        node: nodes,
        ..Default::default()
    }
}

pub(crate) fn floats(values: &[f32]) -> TensorProto {
    TensorProto {
        dtype: 1,
        tensor_shape: Some(shape(&[values.len() as i64])),
        float_val: values.to_vec(),
        ..Default::default()
    }
}

pub(crate) fn ints(values: &[i32]) -> TensorProto {
    TensorProto {
        dtype: 3,
        tensor_shape: Some(shape(&[values.len() as i64])),
        int_val: values.to_vec(),
        ..Default::default()
    }
}

pub(crate) async fn create(client: &mut Client, graph: GraphDef) -> Result<String, tonic::Status> {
    let request = CreateSessionRequest {
        graph_def: Some(graph),
        ..Default::default()
    };
    Ok(client
        .create_session(request)
        .await?
        .into_inner()
        .session_handle)
}

pub(crate) fn run_request(
    session: &str,
    feeds: &[(&str, TensorProto)],
    fetches: &[&str],
) -> RunStepRequest {
    RunStepRequest {
        session_handle: session.into(),
        feed: feeds
            .iter()
            .map(|(n, t)| NamedTensorProto {
                name: n.to_string(),
                tensor: Some(t.clone()),
            })
            .collect(),
        fetch: fetches.iter().map(|s| s.to_string()).collect(),
        ..Default::default()
    }
}

pub(crate) async fn run(
    client: &mut Client,
    session: &str,
    feeds: &[(&str, TensorProto)],
    fetches: &[&str],
) -> Result<RunStepResponse, tonic::Status> {
    Ok(client
        .run_step(run_request(session, feeds, fetches))
        .await?
        .into_inner())
}

/// Fails unless the server still computes.
pub(crate) async fn assert_serving(client: &mut Client) {
    let nodes = vec![
        placeholder("x"),
        node("y", "AddV2", &["x", "x"], &[("T", dtype(1))]),
    ];
    let session = create(client, graph(nodes)).await.unwrap();
    let reply = run(client, &session, &[("x:0", floats(&[1.5]))], &["y:0"])
        .await
        .unwrap();
    let tensor = reply.tensor[0].tensor.clone().unwrap();
    assert_eq!(&tensor.tensor_content[..], 3.0f32.to_le_bytes());
    let close = proto::CloseSessionRequest {
        session_handle: session,
    };
    client.close_session(close).await.unwrap();
}
