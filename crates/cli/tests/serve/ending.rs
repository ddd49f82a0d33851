//! How tasks end: by signals, by request, and by themselves when the training is done.

use crate::common::{
    Client, attr, connect, create, dtype, floats, free_address, graph, node, placeholder, run,
    run_request, shape,
};
use crate::process::{Task, downpour, run as run_program};
use downpour_wire::proto::attr_value::{ListValue, Value};
use downpour_wire::proto::worker_service_client::WorkerServiceClient;
use downpour_wire::proto::{
    AttrValue, CloseSessionRequest, CreateWorkerSessionRequest, GetStatusRequest, GraphDef,
    NodeDef, RunStepResponse, TensorProto,
};
use std::io::{BufRead as _, BufReader};
use std::process::Stdio;
use tokio::task::JoinHandle;
use tonic::Code;

const FLOAT: i32 = 1;
const STRING: i32 = 7;

fn text(value: &'static str) -> AttrValue {
    attr(Value::S(value.as_bytes().into()))
}

fn on(device: &str, mut node: NodeDef) -> NodeDef {
    node.device = device.into();
    node
}

/// `print` says "begun" on the standard output of `far`, where `assign` waits for what `take` gets
/// from a queue on `near`; `put` fills the queue.
pub(crate) fn waiting_graph(near: &str, far: &str) -> GraphDef {
    let types = attr(Value::List(Box::new(ListValue {
        r#type: vec![FLOAT],
        ..Default::default()
    })));
    let word = TensorProto {
        dtype: STRING,
        tensor_shape: Some(shape(&[])),
        string_val: vec!["begun".into()],
        ..Default::default()
    };
    let word = attr(Value::Tensor(Box::new(word)));
    let float = [("T", dtype(FLOAT))];
    let queue = [
        ("component_types", types.clone()),
        ("shared_name", text("q")),
    ];
    let put = [("Tcomponents", types.clone())];
    let take = [("component_types", types)];
    let variable = [
        ("dtype", dtype(FLOAT)),
        ("shape", attr(Value::Shape(shape(&[1])))),
    ];
    graph(vec![
        placeholder("x"),
        on(near, node("queue", "FIFOQueueV2", &[], &queue)),
        on(near, node("put", "QueueEnqueueV2", &["queue", "x"], &put)),
        on(near, node("take", "QueueDequeueV2", &["queue"], &take)),
        on(
            far,
            node(
                "word",
                "Const",
                &[],
                &[("dtype", dtype(STRING)), ("value", word)],
            ),
        ),
        on(
            far,
            node(
                "print",
                "PrintV2",
                &["word"],
                &[("output_stream", text("stdout"))],
            ),
        ),
        on(far, node("v", "VariableV2", &[], &variable)),
        on(far, node("assign", "Assign", &["v", "take"], &float)),
        on(far, node("set", "Assign", &["v", "x"], &float)),
    ])
}

/// Starts the step that waits; it has begun when "begun" is printed.
pub(crate) fn begin(
    client: &Client,
    session: &str,
) -> JoinHandle<Result<RunStepResponse, tonic::Status>> {
    let mut client = client.clone();
    let mut request = run_request(session, &[], &["assign:0"]);
    request.target = vec!["print".into()];
    tokio::spawn(async move { Ok(client.run_step(request).await?.into_inner()) })
}

/// A step that only fills the queue.
async fn put(client: &mut Client, session: &str, value: f32) {
    let mut request = run_request(session, &[("x:0", floats(&[value]))], &[]);
    request.target = vec!["put".into()];
    client.run_step(request).await.unwrap();
}

async fn close(client: &mut Client, session: String) {
    let session_handle = session;
    let request = CloseSessionRequest { session_handle };
    client.close_session(request).await.unwrap();
}

/// Waits for a task's end, off the threads that carry calls.
async fn ended(mut task: Task) -> (Option<i32>, String) {
    tokio::task::spawn_blocking(move || task.wait())
        .await
        .unwrap()
}

/// Steps that use the task until one is refused; returns what that one was told.
async fn until_refused(client: &mut Client, session: &str) -> String {
    loop {
        match run(client, session, &[("x:0", floats(&[1.0]))], &["set:0"]).await {
            Ok(_) => {}
            Err(e) => {
                assert_eq!(e.code(), Code::Unavailable, "{e}");
                return e.message().to_owned();
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sigterm_lets_a_step_end_and_refuses_others() {
    let (ps, worker) = (free_address(), free_address());
    let hosts = [
        "serve",
        "--ps_hosts",
        &ps,
        "--worker_hosts",
        &worker,
        "--job",
    ];
    let mut far = Task::start(downpour(&hosts).args(["ps", "--drain", "10m"]));
    let _near = Task::start(downpour(&hosts).arg("worker"));
    for _ in 0..3 {
        far.line();
    }
    let mut client = connect(&worker).await;
    let graph = waiting_graph("/job:worker/task:0", "/job:ps/task:0");
    let session = create(&mut client, graph).await.unwrap();
    // Known graphs, so that nothing is registered while the task drains.
    put(&mut client, &session, 1.0).await;
    begin(&client, &session).await.unwrap().unwrap();
    assert_eq!(far.line(), "begun\n");
    let step = begin(&client, &session);
    assert_eq!(far.line(), "begun\n");
    far.signal("TERM");
    let told = until_refused(&mut client, &session).await;
    let shutting = "/job:ps/replica:0/task:0 is shutting down";
    assert!(told.ends_with(shutting), "{told}");
    assert!(!step.is_finished());
    put(&mut client, &session, 2.5).await;
    let reply = step.await.unwrap().unwrap();
    let value = reply.tensor[0].tensor.clone().unwrap().tensor_content;
    assert_eq!(&value[..], 2.5f32.to_le_bytes());
    assert_eq!(ended(far).await, (Some(0), "stopped\n".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_step_that_does_not_end_is_cut_off_with_an_answer() {
    let mut task = Task::start(&mut downpour(&["serve", "--port", "0", "--drain", "200ms"]));
    let mut client = connect(task.address()).await;
    let session = create(&mut client, waiting_graph("", "")).await.unwrap();
    let step = begin(&client, &session);
    assert_eq!(task.line(), "begun\n");
    task.signal("INT");
    let e = step.await.unwrap().unwrap_err();
    assert_eq!(e.code(), Code::Unavailable);
    assert_eq!(
        e.message(),
        "/job:localhost/replica:0/task:0 is shutting down and did not wait longer for what was under way"
    );
    assert_eq!(ended(task).await, (Some(0), "stopped\n".into()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_at_once() {
    let mut command = downpour(&["serve", "--port", "0", "--drain", "1h"]);
    let mut task = Task::start(command.stderr(Stdio::piped()));
    let mut errors = BufReader::new(task.child.stderr.take().unwrap());
    let mut client = connect(task.address()).await;
    let session = create(&mut client, waiting_graph("", "")).await.unwrap();
    let step = begin(&client, &session);
    assert_eq!(task.line(), "begun\n");
    task.signal("TERM");
    let mut line = String::new();
    errors.read_line(&mut line).unwrap();
    assert_eq!(
        line,
        "stopping when the steps under way have ended; a second signal ends at once\n"
    );
    task.signal("TERM");
    assert_eq!(ended(task).await.0, Some(128 + 15));
    assert!(step.await.unwrap().is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_is_stopped_by_request() {
    let mut task = Task::start(&mut downpour(&["serve", "--port", "0"]));
    let address = task.address();
    let mut client = connect(&address).await;
    let session = create(&mut client, waiting_graph("", "")).await.unwrap();
    let step = begin(&client, &session);
    assert_eq!(task.line(), "begun\n");
    let stop = |flags: &'static [&str]| {
        let address = format!("grpc://{address}");
        tokio::task::spawn_blocking(move || run_program(downpour(&["stop", &address]).args(flags)))
    };
    let output = stop(&["--drain", "100ms"]).await.unwrap();
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "/job:localhost/replica:0/task:0 has stopped\n"
    );
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(step.await.unwrap().unwrap_err().code(), Code::Unavailable);
    assert_eq!(ended(task).await, (Some(0), "stopped as asked\n".into()));
    let output = stop(&[]).await.unwrap();
    assert_eq!(
        String::from_utf8(output.stderr).unwrap(),
        format!("error: nobody answers at {address}: Connection refused (os error 111)\n")
    );
    assert_eq!(output.status.code(), Some(2));
}

/// A ps and two workers that exit when the training is done.
struct Training {
    ps: Task,
    workers: Vec<Task>,
    clients: Vec<Client>,
    sessions: Vec<String>,
}

impl Training {
    async fn start(grace: &str) -> Training {
        let [ps, first, second] = [free_address(), free_address(), free_address()];
        let workers = format!("{first},{second}");
        let start = |job: &str, task: &str| {
            Task::start(downpour(&["serve", "--job", job, "--task", task]).args([
                "--ps_hosts",
                &ps,
                "--worker_hosts",
                &workers,
                "--exit-when-done",
                "--done-after",
                grace,
            ]))
        };
        let mut training = Training {
            ps: start("ps", "0"),
            workers: vec![start("worker", "0"), start("worker", "1")],
            clients: vec![connect(&first).await, connect(&second).await],
            sessions: Vec::new(),
        };
        for client in &mut training.clients {
            let graph = waiting_graph("", "/job:ps/task:0");
            let session = create(client, graph).await.unwrap();
            let feed = [("x:0", floats(&[1.0]))];
            run(client, &session, &feed, &["set:0"]).await.unwrap();
            training.sessions.push(session);
        }
        training
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_exit_when_the_training_is_done() {
    let mut training = Training::start("300ms").await;
    let second = training.sessions.pop().unwrap();
    let first = training.sessions.pop().unwrap();
    close(&mut training.clients[0], first).await;
    // Far longer than the grace, in which nothing may happen: the other worker's session keeps
    // all of them.
    tokio::time::sleep(std::time::Duration::from_millis(1500)).await;
    let client = &mut training.clients[1];
    let feed = [("x:0", floats(&[1.0]))];
    run(client, &second, &feed, &["set:0"]).await.unwrap();
    assert!(!training.ps.has_ended());
    close(client, second).await;
    for task in training.workers.into_iter().chain([training.ps]) {
        let (code, said) = ended(task).await;
        assert_eq!(code, Some(0));
        assert!(said.ends_with("the training is done\n"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_died_does_not_keep_the_others_for_ever() {
    let mut training = Training::start("200ms").await;
    let first = training.sessions.remove(0);
    close(&mut training.clients[0], first).await;
    training.workers[1].signal("KILL");
    let lost = training.workers.pop().unwrap();
    assert_eq!(ended(lost).await.0, None);
    for task in training.workers.into_iter().chain([training.ps]) {
        let (code, said) = ended(task).await;
        assert_eq!(code, Some(0));
        assert!(said.ends_with("the training is done\n"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_died_does_not_keep_its_worker_for_ever() {
    let args = [
        "serve",
        "--port",
        "0",
        "--exit-when-done",
        "--done-after",
        "200ms",
    ];
    let task = Task::start(&mut downpour(&args));
    let mut client = connect(task.address()).await;
    create(&mut client, waiting_graph("", "")).await.unwrap();
    // The connection goes with it; the session is not closed.
    drop(client);
    let (code, said) = ended(task).await;
    assert_eq!(code, Some(0));
    assert!(said.ends_with("the training is done\n"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_whose_end_was_never_heard_of_does_not_keep_a_ps_for_ever() {
    let (ps, worker) = (free_address(), free_address());
    let hosts = [
        "serve",
        "--ps_hosts",
        &ps,
        "--worker_hosts",
        &worker,
        "--job",
    ];
    let ending = ["ps", "--exit-when-done", "--done-after", "200ms"];
    let far = Task::start(downpour(&hosts).args(ending));
    let _near = Task::start(downpour(&hosts).arg("worker"));
    let mut client = connect(&worker).await;
    let graph = waiting_graph("", "/job:ps/task:0");
    let session = create(&mut client, graph).await.unwrap();
    // As if the worker's master had opened and closed it, and the second call was lost.
    let mut status = WorkerServiceClient::connect(format!("http://{worker}"))
        .await
        .unwrap();
    let status = status.get_status(GetStatusRequest {}).await.unwrap();
    let mut service = WorkerServiceClient::connect(format!("http://{ps}"))
        .await
        .unwrap();
    let stray = CreateWorkerSessionRequest {
        session_handle: "stray".into(),
        master_task: "/job:worker/replica:0/task:0".into(),
        master_incarnation: status.into_inner().device_attributes[0].incarnation as i64,
        ..Default::default()
    };
    service.create_worker_session(stray).await.unwrap();
    let feed = [("x:0", floats(&[1.0]))];
    run(&mut client, &session, &feed, &["set:0"]).await.unwrap();
    close(&mut client, session).await;
    let (code, said) = ended(far).await;
    assert_eq!(code, Some(0));
    assert!(said.ends_with("the training is done\n"), "{said}");
}
