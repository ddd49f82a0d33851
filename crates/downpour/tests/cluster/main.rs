//! Several tasks as one: graphs that span them give what one task gives, state is shared, and
//! failures say where they happened.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod common;
mod hangs;

use common::{
    Client, connect, create, dtype, floats, graph, node, placeholder, run, start_cluster,
};
use downpour_wire::proto::{AttrValue, NodeDef, attr_value};

const DEVICES: [&str; 5] = [
    "",
    "/job:ps/task:0",
    "/job:ps/task:1",
    "/job:worker/task:0",
    "/job:worker/task:1",
];

/// A small generator, so that a failure can be repeated.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }
}

/// A graph of arithmetic on two placeholders, with control edges, over random devices.
fn random_graph(random: &mut Random) -> (Vec<NodeDef>, Vec<String>) {
    let mut nodes = vec![placeholder("x"), placeholder("y")];
    let mut names = vec!["x".to_owned(), "y".to_owned()];
    for i in 0..12 + random.below(20) {
        let name = format!("n{i}");
        let ops = ["AddV2", "Sub", "Maximum", "Neg", "Identity"];
        let op = ops[random.below(ops.len())];
        let mut inputs = vec![names[random.below(names.len())].clone()];
        if matches!(op, "AddV2" | "Sub" | "Maximum") {
            inputs.push(names[random.below(names.len())].clone());
        }
        if random.below(4) == 0 {
            inputs.push(format!("^{}", names[random.below(names.len())]));
        }
        let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
        let mut made = node(&name, op, &inputs, &[("T", dtype(1))]);
        made.device = DEVICES[random.below(DEVICES.len())].into();
        nodes.push(made);
        names.push(name);
    }
    let fetches = (0..4)
        .map(|_| format!("{}:0", names[2 + random.below(names.len() - 2)]))
        .collect();
    (nodes, fetches)
}

async fn evaluate(
    client: &mut Client,
    nodes: Vec<NodeDef>,
    fetches: &[String],
) -> Vec<(String, Vec<u8>)> {
    let session = create(client, graph(nodes)).await.unwrap();
    let feeds = [("x:0", floats(&[1.5, -2.0])), ("y:0", floats(&[0.25, 8.0]))];
    let mut wanted: Vec<&str> = fetches.iter().map(String::as_str).collect();
    wanted.sort_unstable();
    wanted.dedup();
    let mut values = Vec::new();
    // The second run finds everything registered.
    for _ in 0..2 {
        let reply = run(client, &session, &feeds, &wanted).await.unwrap();
        values = reply
            .tensor
            .into_iter()
            .map(|t| (t.name, t.tensor.unwrap().tensor_content.to_vec()))
            .collect();
    }
    values.sort();
    values
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graph_over_many_tasks_gives_what_one_task_gives() {
    let addresses = start_cluster(2, 2).await;
    let mut spread = connect(&addresses[2]).await;
    let mut single = connect(common::start().await).await;
    let mut random = Random(20261115);
    for round in 0..40 {
        let (nodes, fetches) = random_graph(&mut random);
        let mut local = nodes.clone();
        for node in &mut local {
            node.device.clear();
        }
        let want = evaluate(&mut single, local, &fetches).await;
        let got = evaluate(&mut spread, nodes, &fetches).await;
        assert_eq!(want, got, "round {round}");
    }
}

fn variable(device: &str) -> Vec<NodeDef> {
    let shape = AttrValue {
        value: Some(attr_value::Value::Shape(common::shape(&[2]))),
    };
    let mut nodes = vec![
        placeholder("x"),
        node(
            "v",
            "VariableV2",
            &[],
            &[("dtype", dtype(1)), ("shape", shape)],
        ),
        node("assign", "Assign", &["v", "x"], &[("T", dtype(1))]),
        node("add", "AssignAdd", &["v", "x"], &[("T", dtype(1))]),
        node("read", "Identity", &["v"], &[("T", dtype(1))]),
    ];
    nodes[1].device = device.into();
    nodes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_masters_share_the_variables_of_a_ps() {
    let addresses = start_cluster(2, 2).await;
    let mut clients = [connect(&addresses[2]).await, connect(&addresses[3]).await];
    let mut sessions = Vec::new();
    for client in &mut clients {
        let nodes = variable("/job:ps/task:1");
        sessions.push(create(client, graph(nodes)).await.unwrap());
    }
    let feed = [("x:0", floats(&[1.0, 2.0]))];
    run(&mut clients[0], &sessions[0], &feed, &["assign:0"])
        .await
        .unwrap();
    run(&mut clients[1], &sessions[1], &feed, &["add:0"])
        .await
        .unwrap();
    let reply = run(&mut clients[0], &sessions[0], &[], &["read:0"])
        .await
        .unwrap();
    let value = reply.tensor[0].tensor.clone().unwrap().tensor_content;
    assert_eq!(value, [2.0f32.to_le_bytes(), 4.0f32.to_le_bytes()].concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_on_another_task_names_the_task_and_the_node() {
    let addresses = start_cluster(1, 1).await;
    let mut client = connect(&addresses[1]).await;
    let nodes = variable("/job:ps/task:0");
    let session = create(&mut client, graph(nodes)).await.unwrap();
    for _ in 0..3 {
        let e = run(&mut client, &session, &[], &["read:0"])
            .await
            .unwrap_err();
        assert_eq!(e.code(), tonic::Code::FailedPrecondition);
        let text = e.message();
        // From the ps, or from the worker that heard it from the ps first.
        assert!(text.starts_with("From /job:"), "{text}");
        assert!(
            text.contains("Attempting to use uninitialized value v"),
            "{text}"
        );
    }
    // The session goes on.
    let feed = [("x:0", floats(&[1.0, 2.0]))];
    run(&mut client, &session, &feed, &["assign:0"])
        .await
        .unwrap();
}

/// A proxy in front of `to` that forwards until it is told to freeze; the connection stays up.
async fn proxy(to: String, freeze: tokio::sync::watch::Receiver<bool>) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let far = tokio::net::TcpStream::connect(&to).await.unwrap();
            let (near_in, near_out) = near.into_split();
            let (far_in, far_out) = far.into_split();
            tokio::spawn(forward(near_in, far_out, freeze.clone()));
            tokio::spawn(forward(far_in, near_out, freeze.clone()));
        }
    });
    address
}

async fn forward(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut freeze: tokio::sync::watch::Receiver<bool>,
) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let mut buffer = vec![0; 64 << 10];
    loop {
        let n = match from.read(&mut buffer).await {
            Ok(n) if n > 0 => n,
            _ => return,
        };
        // A frozen one keeps what it has until it may go on.
        if freeze.wait_for(|frozen| !frozen).await.is_err()
            || to.write_all(&buffer[..n]).await.is_err()
        {
            return;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_falls_silent_is_reported_and_may_come_back() {
    let (freeze, frozen) = tokio::sync::watch::channel(false);
    let ps = common::free_address();
    let worker = common::free_address();
    let through = proxy(ps.clone(), frozen).await;
    let limits = downpour::Limits {
        silence: std::time::Duration::from_millis(400),
        ..Default::default()
    };
    common::start_task(&[&ps], &[&worker], ("ps", 0), limits).await;
    common::start_task(&[&through], &[&worker], ("worker", 0), limits).await;
    let mut client = connect(&worker).await;
    let nodes = variable("/job:ps/task:0");
    let session = create(&mut client, graph(nodes)).await.unwrap();
    let feed = [("x:0", floats(&[1.0, 2.0]))];
    run(&mut client, &session, &feed, &["assign:0"])
        .await
        .unwrap();
    freeze.send(true).unwrap();
    let e = run(&mut client, &session, &[], &["read:0"])
        .await
        .unwrap_err();
    assert_eq!(e.code(), tonic::Code::Unavailable);
    let text = e.message();
    assert!(text.contains("/job:ps/replica:0/task:0"), "{text}");
    assert!(text.contains("has not answered for 400ms"), "{text}");
    freeze.send(false).unwrap();
    let reply = run(&mut client, &session, &[], &["read:0"]).await.unwrap();
    let value = reply.tensor[0].tensor.clone().unwrap().tensor_content;
    assert_eq!(value, [1.0f32.to_le_bytes(), 2.0f32.to_le_bytes()].concat());
}
