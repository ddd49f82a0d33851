//! Tasks reach one another whatever the form of their addresses and whatever the environment says
//! about proxies.

use crate::common::{connect, create, dtype, floats, graph, node, placeholder, run, shape};
use crate::process::{Task, downpour};
use downpour_wire::proto::{AttrValue, NodeDef, attr_value};

/// A variable on ps 0 that is assigned and read.
fn variable() -> Vec<NodeDef> {
    let of = AttrValue {
        value: Some(attr_value::Value::Shape(shape(&[2]))),
    };
    let attrs = [("dtype", dtype(1)), ("shape", of)];
    let mut variable = node("v", "VariableV2", &[], &attrs);
    variable.device = "/job:ps/task:0".into();
    vec![
        placeholder("x"),
        variable,
        node("assign", "Assign", &["v", "x"], &[("T", dtype(1))]),
    ]
}

/// Trains nothing, but needs both tasks.
async fn compute_on_both(worker: &str) {
    let mut client = connect(worker).await;
    let session = create(&mut client, graph(variable())).await.unwrap();
    let feed = [("x:0", floats(&[1.0, 2.0]))];
    let reply = run(&mut client, &session, &feed, &["assign:0"])
        .await
        .unwrap();
    let value = reply.tensor[0].tensor.clone().unwrap().tensor_content;
    assert_eq!(value, [1.0f32.to_le_bytes(), 2.0f32.to_le_bytes()].concat());
}

/// An address of this host that nobody listens on.
fn free(host: &str) -> Option<String> {
    let socket = std::net::TcpListener::bind(format!("{host}:0")).ok()?;
    Some(format!("{host}:{}", socket.local_addr().unwrap().port()))
}

async fn two_tasks(host: &str, flags: &[&str]) {
    let (Some(ps), Some(worker)) = (free(host), free(host)) else {
        eprintln!("this machine has no {host}: nothing to test");
        return;
    };
    let hosts = ["--ps_hosts", &ps, "--worker_hosts", &worker];
    let tasks: Vec<Task> = ["ps", "worker"]
        .into_iter()
        .map(|job| {
            let mut command = downpour(&["serve", "--job_name", job, "--task_index", "0"]);
            // Nobody answers there: whoever asked would fail.
            for name in [
                "http_proxy",
                "HTTP_PROXY",
                "https_proxy",
                "all_proxy",
                "grpc_proxy",
            ] {
                command.env(name, "http://127.0.0.1:9");
            }
            Task::start(command.args(hosts).args(flags))
        })
        .collect();
    let port = worker.rsplit(':').next().unwrap();
    assert!(tasks[1].address().ends_with(&format!(":{port}")));
    compute_on_both(&worker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_ipv4_with_proxies_in_the_environment() {
    two_tasks("127.0.0.1", &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_ipv6() {
    two_tasks("[::1]", &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_name() {
    two_tasks("localhost", &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bound_elsewhere_than_advertised() {
    two_tasks("127.0.0.1", &["--bind", "0.0.0.0"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bound_to_every_interface_of_both_families() {
    two_tasks("[::1]", &["--bind", "[::]"]).await;
}
