//! Lanes between tasks of one process, over real sockets.

use super::*;
use crate::serve::listener::{Listener, serve};
use crate::{Methods, Peers};
use downpour_cluster::ClusterSpec;
use downpour_tensor::{Tensor, TensorMemory, shared};
use std::sync::mpsc;
use std::time::Instant;
use tonic::service::Routes;

/// Values of a step that came together, and from whom.
type Edges = (String, u64, Vec<(EdgeId, Option<Tensor>)>);

/// What a handler was told, and what it does.
struct Heard {
    edges: Mutex<mpsc::Sender<Edges>>,
    tensors: Mutex<mpsc::Sender<(u64, String, Option<Tensor>)>>,
    offers: Mutex<mpsc::Sender<(u64, LaneOffer)>>,
    lost: Mutex<mpsc::Sender<String>>,
    runs: Mutex<mpsc::Sender<(Run, RunEnded)>>,
    stopped: Mutex<mpsc::Sender<Status>>,
    failed: Mutex<mpsc::Sender<(u64, Status)>>,
    /// Whether it is done with every step.
    is_done: AtomicBool,
}

struct Ears {
    edges: mpsc::Receiver<Edges>,
    tensors: mpsc::Receiver<(u64, String, Option<Tensor>)>,
    offers: mpsc::Receiver<(u64, LaneOffer)>,
    lost: mpsc::Receiver<String>,
    runs: mpsc::Receiver<(Run, RunEnded)>,
    stopped: mpsc::Receiver<Status>,
    failed: mpsc::Receiver<(u64, Status)>,
}

impl LaneHandler for Heard {
    fn run(&self, run: Run, ended: RunEnded) -> Canceller {
        self.runs.lock().send((run, ended)).unwrap();
        let stopped = self.stopped.lock().clone();
        Arc::new(move |reason| {
            let _ = stopped.send(reason);
        })
    }
    fn tensor(&self, step_id: u64, key: &str, tensor: Option<Tensor>) {
        let heard = (step_id, key.to_owned(), tensor);
        self.tensors.lock().send(heard).unwrap();
    }
    fn offer(&self, _: &str, step_id: u64, _: &Destination, offer: LaneOffer) {
        let _ = self.offers.lock().send((step_id, offer));
    }
    fn edges(&self, peer: &str, step_id: u64, values: Vec<(EdgeId, Option<Tensor>)>) {
        let heard = (peer.to_owned(), step_id, values);
        self.edges.lock().send(heard).unwrap();
    }
    fn lost(&self, peer: &str, steps: &[u64], reason: &Status) {
        for step in steps {
            let _ = self.failed.lock().send((*step, reason.clone()));
        }
        let _ = self.lost.lock().send(peer.to_owned());
    }
    fn state(&self, _: u64) -> StepState {
        match self.is_done.load(Ordering::Relaxed) {
            true => StepState::Over,
            false => StepState::Running,
        }
    }
}

/// One task with lanes.
struct End {
    lanes: Arc<Lanes>,
    peers: Peers,
    ears: Ears,
    admission: Arc<Admission>,
    handler: Arc<Heard>,
    stop: tokio::sync::oneshot::Sender<()>,
    serving: tokio::task::JoinHandle<()>,
}

const A: &str = "/job:worker/replica:0/task:0";
const B: &str = "/job:ps/replica:0/task:0";

async fn two(limits: Limits, is_near: bool) -> (End, End) {
    let [a, b] = [
        Listener::bind("127.0.0.1:0").await.unwrap(),
        Listener::bind("127.0.0.1:0").await.unwrap(),
    ];
    let mut spec = ClusterSpec::default();
    spec.add_hosts("worker", &a.address().to_string()).unwrap();
    spec.add_hosts("ps", &b.address().to_string()).unwrap();
    (
        end(A, 1, a, &spec, limits, is_near),
        end(B, 2, b, &spec, limits, is_near),
    )
}

fn end(
    name: &str,
    life: u64,
    listener: Listener,
    spec: &ClusterSpec,
    limits: Limits,
    is_near: bool,
) -> End {
    let lanes = Lanes::new(name, life + listener_port(&listener), limits).unwrap();
    if !is_near {
        // A name that nobody listens on: lanes stay on TCP.
        let _ = lanes
            .near
            .set(format!("downpour-nobody-{}", listener_port(&listener)));
    }
    let (edges, e) = mpsc::channel();
    let (tensors, t) = mpsc::channel();
    let (offers, o) = mpsc::channel();
    let (lost, l) = mpsc::channel();
    let (runs, r) = mpsc::channel();
    let (stopped, s) = mpsc::channel();
    let (failed, f) = mpsc::channel();
    let handler = Arc::new(Heard {
        edges: Mutex::new(edges),
        tensors: Mutex::new(tensors),
        offers: Mutex::new(offers),
        lost: Mutex::new(lost),
        runs: Mutex::new(runs),
        stopped: Mutex::new(stopped),
        failed: Mutex::new(failed),
        is_done: AtomicBool::new(false),
    });
    let weak: Weak<Heard> = Arc::downgrade(&handler);
    lanes.handled_by(weak);
    let peers = Peers::new(spec, name, limits).with_lanes(Some(lanes.clone()));
    let admission = Admission::new(name);
    let (stop, stopping) = tokio::sync::oneshot::channel();
    let doors = (admission.clone(), Some(lanes.clone()));
    let serving = tokio::spawn(async move {
        let stop = async {
            let _ = stopping.await;
        };
        serve(
            listener,
            Routes::default(),
            Methods::default(),
            limits,
            doors,
            stop,
        )
        .await;
    });
    End {
        lanes,
        peers,
        ears: Ears {
            edges: e,
            tensors: t,
            offers: o,
            lost: l,
            runs: r,
            stopped: s,
            failed: f,
        },
        admission,
        handler,
        stop,
        serving,
    }
}

fn listener_port(listener: &Listener) -> u64 {
    u64::from(listener.address().port())
}

fn key(from: &str, to: &str) -> String {
    format!("{from}/device:CPU:0;01;{to}/device:CPU:0;v;0:0")
}

/// Longer than anything here takes on a machine that does a lot else.
const PATIENCE: Duration = Duration::from_secs(60);

async fn both_ways(is_near: bool) {
    let (a, b) = two(Limits::default(), is_near).await;
    a.peers.open_lane(B, None).await.unwrap();
    // A small value is there; a large one when it is wanted, and whole.
    let small = Tensor::vector(vec![1.0f32, 2.0]);
    a.peers.push(7, &key(A, B), Some(&small)).unwrap();
    a.peers.push(7, &key(A, B), None).unwrap();
    let (step, k, tensor) = b.ears.tensors.recv_timeout(PATIENCE).unwrap();
    assert_eq!((step, k), (7, key(A, B)));
    assert_eq!(tensor.unwrap().as_slice::<f32>().unwrap(), [1.0, 2.0]);
    assert!(b.ears.tensors.recv_timeout(PATIENCE).unwrap().2.is_none());
    // The other side answers on the same lane.
    let large: Vec<u32> = (0..3_000_001).collect();
    for step in 0..3 {
        let tensor = Tensor::vector(large.clone());
        b.peers.push(step, &key(B, A), Some(&tensor)).unwrap();
    }
    let (got, tensors) = mpsc::channel();
    for _ in 0..3 {
        let (step, offer) = a.ears.offers.recv_timeout(PATIENCE).unwrap();
        let got = got.clone();
        if step == 1 {
            drop(offer);
        } else {
            offer(Box::new(move |tensor| {
                got.send(tensor.unwrap().unwrap()).unwrap()
            }));
        }
    }
    for _ in 0..2 {
        let tensor = tensors.recv_timeout(PATIENCE).unwrap();
        assert_eq!(tensor.as_slice::<u32>().unwrap(), large);
    }
    // What was declined is let go of.
    lets_go(&b.lanes.to(A).unwrap()).await;
}

async fn lets_go(lane: &Lane) {
    let until = Instant::now() + PATIENCE;
    while lane.is_holding() {
        assert!(Instant::now() < until, "what nobody uses any more is kept");
        tokio::task::yield_now().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_go_both_ways_over_a_unix_socket() {
    both_ways(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_go_both_ways_over_tcp() {
    both_ways(false).await;
}

/// As programs that train use it.
#[global_allocator]
static MEMORY: TensorMemory<std::alloc::System> = TensorMemory(std::alloc::System);

/// The next value that `end` is offered.
fn taken(end: &End) -> Tensor {
    let (_, offer) = end.ears.offers.recv_timeout(PATIENCE).unwrap();
    let (got, tensor) = mpsc::channel();
    offer(Box::new(move |tensor| {
        got.send(tensor.unwrap().unwrap()).unwrap();
    }));
    tensor.recv_timeout(PATIENCE).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_values_are_used_where_they_are_and_kept_until_they_are_not() {
    let (a, b) = two(Limits::default(), true).await;
    a.peers.open_lane(B, None).await.unwrap();
    let large: Vec<u32> = (0..100_000).collect();
    let tensor = shared::outgoing(|| Tensor::vector(large.clone()));
    let at = tensor.buffer().unwrap().as_bytes();
    assert!(shared::holds(at));
    a.peers.push(1, &key(A, B), Some(&tensor)).unwrap();
    drop(tensor);
    let got = taken(&b);
    assert!(got.buffer().unwrap().is_borrowed());
    assert_eq!(got.as_slice::<u32>().unwrap(), large);
    let lane = a.lanes.to(B).unwrap();
    assert!(lane.is_holding());
    // Sent back, whole and in part: what leaves the lane last may be the last of what came over it.
    b.peers.push(2, &key(B, A), Some(&got)).unwrap();
    let rows = got.rows(10, 5).unwrap();
    b.peers.push(3, &key(B, A), Some(&rows)).unwrap();
    drop((got, rows));
    let back = taken(&a);
    assert_eq!(back.as_slice::<u32>().unwrap(), large);
    let (_, _, part) = a.ears.tensors.recv_timeout(PATIENCE).unwrap();
    assert_eq!(
        part.unwrap().as_slice::<u32>().unwrap(),
        [10, 11, 12, 13, 14]
    );
    drop(back);
    lets_go(&lane).await;
    lets_go(&b.lanes.to(A).unwrap()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_value_stays_as_it_is_though_the_lane_is_lost() {
    let (a, b) = two(Limits::default(), true).await;
    a.peers.open_lane(B, None).await.unwrap();
    let large = vec![7u32; 100_000];
    let tensor = shared::outgoing(|| Tensor::vector(large.clone()));
    a.peers.push(1, &key(A, B), Some(&tensor)).unwrap();
    drop(tensor);
    let got = taken(&b);
    a.lanes.to(B).unwrap().socket.shut_down();
    b.ears.lost.recv_timeout(PATIENCE).unwrap();
    a.ears.lost.recv_timeout(PATIENCE).unwrap();
    // Who offered it makes more of the same size, which go elsewhere.
    for _ in 0..10 {
        drop(shared::outgoing(|| Tensor::vector(vec![8u32; 100_000])));
    }
    assert_eq!(got.as_slice::<u32>().unwrap(), large);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_thread_holds_back_leaves_together_and_in_order() {
    let (a, b) = two(Limits::default(), true).await;
    a.peers.open_lane(B, None).await.unwrap();
    let lane = a.lanes.to(B).unwrap();
    let push = |step: u64| {
        let tensor = Tensor::scalar(step as f32);
        a.peers.push(step, &key(A, B), Some(&tensor)).unwrap();
    };
    write_batch::batching(|| {
        push(1);
        // Within another it is the outer one that lets go.
        write_batch::batching(|| push(2));
        assert!(lane.unsent() > 0);
        flush_batch();
        assert_eq!(lane.unsent(), 0);
        push(3);
        assert!(lane.unsent() > 0);
    });
    assert_eq!(lane.unsent(), 0);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        write_batch::batching(|| {
            push(4);
            panic!("expected by the test");
        });
    }));
    assert!(panicked.is_err());
    push(5);
    for step in 1..=5 {
        assert_eq!(b.ears.tensors.recv_timeout(PATIENCE).unwrap().0, step);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_along_numbered_edges_keep_their_order_among_other_frames() {
    let (a, b) = two(Limits::default(), true).await;
    a.peers.open_lane(B, None).await.unwrap();
    let push = |step: u64, edge: u32, tensor: Option<&Tensor>| {
        let sink = a.peers.sink(B).unwrap();
        sink.push(step, &[(EdgeId(edge), tensor.cloned())]).unwrap();
    };
    // Copied into the batch, beside it, and offered.
    let small = Tensor::scalar(1.5f32);
    let beside = Tensor::vector((0..5_000u32).collect::<Vec<_>>());
    let large = Tensor::vector((0..100_000u32).collect::<Vec<_>>());
    write_batch::batching(|| {
        push(1, 0, Some(&small));
        push(1, 1, None);
        push(1, 2, Some(&beside));
        push(1, 3, Some(&small));
        a.peers.push(1, &key(A, B), Some(&small)).unwrap();
        push(2, 0, Some(&small));
        push(2, 1, Some(&large));
    });
    let mut heard = Vec::new();
    while heard.len() < 5 {
        let (peer, step, values) = b.ears.edges.recv_timeout(PATIENCE).unwrap();
        assert_eq!(peer, A);
        for (EdgeId(edge), value) in values {
            let bytes = value.map(|v| v.buffer().unwrap().as_bytes().to_vec());
            heard.push((step, edge, bytes));
        }
    }
    let bytes = |t: &Tensor| Some(t.buffer().unwrap().as_bytes().to_vec());
    let sent = [
        (1, 0, bytes(&small)),
        (1, 1, None),
        (1, 2, bytes(&beside)),
        (1, 3, bytes(&small)),
        (2, 0, bytes(&small)),
    ];
    assert_eq!(heard, sent);
    assert_eq!(b.ears.tensors.recv_timeout(PATIENCE).unwrap().0, 1);
    assert_eq!(
        taken(&b).as_slice::<u32>().unwrap(),
        large.as_slice::<u32>().unwrap()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn values_of_a_lost_peer_are_waited_for_as_soon_as_it_calls_again() {
    let (a, b) = two(Limits::default(), true).await;
    b.peers.open_lane(A, None).await.unwrap();
    a.lanes.state.lock().table.silent(B);
    for _ in 0..20 {
        let lane = b.lanes.to(A).unwrap();
        b.lanes.end(&lane, io::ErrorKind::ConnectionReset.into());
        assert_eq!(a.ears.lost.recv_timeout(PATIENCE).unwrap(), B);
        // Whether or not the other end of the new lane is there when this one is.
        b.peers.open_lane(A, None).await.unwrap();
        assert!(a.lanes.await_from(B, 1).is_ok());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_are_answered_stopped_and_refused() {
    let (a, b) = two(Limits::default(), true).await;
    a.peers.open_lane(B, None).await.unwrap();
    let lane = a.lanes.to(B).unwrap();
    let run = Run {
        step_id: 3,
        graph: 4,
        session: "s".into(),
    };
    let (tx, outcomes) = mpsc::channel();
    let call = |tx: &mpsc::Sender<_>| {
        let tx = tx.clone();
        lane.run(&run, Box::new(move |outcome| tx.send(outcome).unwrap()))
    };
    call(&tx);
    let (heard, ended) = b.ears.runs.recv_timeout(PATIENCE).unwrap();
    assert_eq!(heard, run);
    assert_eq!(b.admission.steps(), 1);
    ended(Ok(true));
    assert_eq!(outcomes.recv_timeout(PATIENCE).unwrap(), Ok(true));
    call(&tx);
    let (_, ended) = b.ears.runs.recv_timeout(PATIENCE).unwrap();
    ended(Err(Status::aborted("no")));
    let failed = outcomes.recv_timeout(PATIENCE).unwrap();
    assert_eq!(failed.unwrap_err().message, "no");
    // Stopped while it runs: the task hears of it.
    let number = call(&tx);
    let (_, ended) = b.ears.runs.recv_timeout(PATIENCE).unwrap();
    lane.stop(number);
    b.ears.stopped.recv_timeout(PATIENCE).unwrap();
    ended(Err(hung()));
    assert!(outcomes.recv_timeout(PATIENCE).unwrap().is_err());
    // A task that is about to end waits for what runs and takes nothing new.
    call(&tx);
    let (_, ended) = b.ears.runs.recv_timeout(PATIENCE).unwrap();
    b.admission.drain();
    call(&tx);
    let refused = outcomes.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert!(refused.message.ends_with("is shutting down"), "{refused:?}");
    b.admission.cut();
    b.ears.stopped.recv_timeout(PATIENCE).unwrap();
    ended(Ok(false));
    assert_eq!(outcomes.recv_timeout(PATIENCE).unwrap(), Ok(false));
}

fn hung() -> Status {
    Status::cancelled("RunGraph was cancelled by the master")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_task_ends_what_waits_for_it() {
    let (a, b) = two(Limits::default(), true).await;
    a.peers.open_lane(B, None).await.unwrap();
    let lane = a.lanes.to(B).unwrap();
    // One that was never there may come yet.
    assert!(
        a.peers
            .await_pushed(1, "/job:ps/replica:0/task:9/device:CPU:0;01")
            .is_ok()
    );
    let (tx, outcomes) = mpsc::channel();
    let run = Run {
        step_id: 3,
        graph: 4,
        session: "s".into(),
    };
    lane.run(&run, Box::new(move |outcome| tx.send(outcome).unwrap()));
    let (_, ended) = b.ears.runs.recv_timeout(PATIENCE).unwrap();
    let waits = a.peers.await_pushed(3, &key(B, A)).unwrap();
    assert!(waits.lost(&key(B, A)).is_none());
    b.stop.send(()).unwrap();
    b.serving.await.unwrap();
    let lost = outcomes.recv_timeout(PATIENCE).unwrap().unwrap_err();
    assert!(lost.message.contains("Socket closed"), "{lost:?}");
    assert_eq!(a.ears.lost.recv_timeout(PATIENCE).unwrap(), B);
    assert!(waits.lost(&key(B, A)).is_some());
    assert!(a.peers.push(1, &key(A, B), None).is_err());
    assert!(a.peers.await_pushed(4, &key(B, A)).is_err());
    // The run that it had asked for is told, whoever it is.
    b.ears.stopped.recv_timeout(PATIENCE).unwrap();
    ended(Ok(true));
    // And a new connection needs someone at the other end.
    assert!(a.peers.open_lane(B, None).await.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_waits_does_what_comes() {
    let (a, b) = two(Limits::default(), true).await;
    a.peers.open_lane(B, None).await.unwrap();
    let lane = a.lanes.to(B).unwrap();
    let lanes = a.lanes.clone();
    // Several clients at once, each with a few hundred calls; the other end answers at once.
    let answering = std::thread::spawn(move || {
        while let Ok((_, ended)) = b.ears.runs.recv_timeout(Duration::from_secs(2)) {
            ended(Ok(true));
        }
        (b.stop, b.serving)
    });
    let clients: Vec<_> = (0..3)
        .map(|_| {
            let (lanes, lane) = (lanes.clone(), lane.clone());
            std::thread::spawn(move || {
                for step_id in 0..300 {
                    let run = Run {
                        step_id,
                        graph: 1,
                        session: String::new(),
                    };
                    let (tx, rx) = tokio::sync::oneshot::channel();
                    lane.run(&run, Box::new(move |outcome| tx.send(outcome).unwrap()));
                    assert_eq!(lanes.block_on(rx).unwrap(), Ok(true));
                }
            })
        })
        .collect();
    for client in clients {
        client.join().unwrap();
    }
    answering.join().unwrap();
}

/// Whether a task that says hello and nothing more is noticed by one that waits for it and, if it is, meanwhile always has
/// something to do.
async fn silence_is_noticed(is_busy: bool) {
    let limits = Limits {
        silence: Duration::from_millis(400),
        ..Limits::default()
    };
    const MUTE: &str = "/job:mute/replica:0/task:0";
    let [own, busy] = [
        Listener::bind("127.0.0.1:0").await.unwrap(),
        Listener::bind("127.0.0.1:0").await.unwrap(),
    ];
    let mute = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut spec = ClusterSpec::default();
    for (job, address) in [
        ("worker", own.address()),
        ("ps", busy.address()),
        ("mute", mute.local_addr().unwrap()),
    ] {
        spec.add_hosts(job, &address.to_string()).unwrap();
    }
    let a = end(A, 1, own, &spec, limits, true);
    let b = end(B, 2, busy, &spec, limits, true);
    let mute = tokio::spawn(async move {
        let (socket, _) = mute.accept().await.unwrap();
        let other = Lanes::new(MUTE, 5, Limits::default()).unwrap();
        handshake::mute(socket, &other).await
    });
    a.peers.open_lane(MUTE, None).await.unwrap();
    let _kept = mute.await.unwrap();
    b.peers.open_lane(A, None).await.unwrap();
    let waits = a.peers.await_pushed(1, &key(MUTE, A)).unwrap();
    let is_over = AtomicBool::new(!is_busy);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                b.peers.push(1, &key(B, A), None).unwrap();
            }
        });
        let lost = a.ears.lost.recv_timeout(PATIENCE);
        is_over.store(true, Ordering::Relaxed);
        assert_eq!(lost.as_deref(), Ok(MUTE));
    });
    assert!(waits.lost(&key(MUTE, A)).is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_is_noticed_while_someone_waits() {
    silence_is_noticed(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silence_is_noticed_among_others_that_are_busy() {
    silence_is_noticed(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_has_nothing_to_say_is_not_lost() {
    let limits = Limits {
        silence: Duration::from_secs(1),
        ..Limits::default()
    };
    let (a, _b) = two(limits, true).await;
    a.peers.open_lane(B, None).await.unwrap();
    let waits = a.peers.await_pushed(1, &key(B, A)).unwrap();
    let lost = a.ears.lost.recv_timeout(4 * limits.silence);
    assert!(lost.is_err() && waits.lost(&key(B, A)).is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_task_or_life_is_refused_and_garbage_ends_the_lane() {
    let (a, b) = two(Limits::default(), true).await;
    let wrong = a.peers.open_lane(B, Some(77)).await.unwrap_err();
    assert!(
        wrong.message.contains("was probably restarted"),
        "{wrong:?}"
    );
    let refused = a
        .lanes
        .connect(
            "/job:ps/replica:0/task:9",
            (a.peers.address(B).unwrap(), "?"),
            None,
        )
        .await;
    let refused = refused.err().unwrap();
    assert!(refused.message.contains("this is /job:ps"), "{refused:?}");
    let address = b.peers.address(B).unwrap();
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    handshake::as_task(&mut socket, "/job:worker/replica:0/task:3", B).await;
    tokio::io::AsyncWriteExt::write_all(&mut socket, &[0xff; 64])
        .await
        .unwrap();
    let lost = b.ears.lost.recv_timeout(PATIENCE).unwrap();
    assert_eq!(lost, "/job:worker/replica:0/task:3");
    // The one that behaves goes on.
    a.peers.open_lane(B, None).await.unwrap();
    a.peers.push(1, &key(A, B), None).unwrap();
    b.ears.tensors.recv_timeout(PATIENCE).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_that_is_lost_is_asked_after_and_fails_its_step() {
    let limits = Limits {
        silence: Duration::from_secs(1),
        ..Limits::default()
    };
    let (a, b) = two(limits, true).await;
    a.peers.open_lane(B, None).await.unwrap();
    let wait = a.peers.await_pushed(7, &key(B, A)).unwrap();
    // As long as its sender is at it, it may come.
    assert!(a.ears.failed.recv_timeout(3 * limits.silence).is_err());
    b.handler.is_done.store(true, Ordering::Relaxed);
    let (step, reason) = a.ears.failed.recv_timeout(PATIENCE).unwrap();
    assert_eq!(step, 7);
    assert!(reason.message.contains("lost on the way"), "{reason:?}");
    assert!(wait.lost(&key(B, A)).is_some());
    // The lane itself is fine.
    a.peers.push(8, &key(A, B), None).unwrap();
    b.ears.tensors.recv_timeout(PATIENCE).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_value_of_a_peer_that_never_comes_is_not_waited_for_for_ever() {
    let limits = Limits {
        silence: Duration::from_millis(300),
        ..Limits::default()
    };
    let (a, _b) = two(limits, true).await;
    a.peers.open_lane(B, None).await.unwrap();
    let key = "/job:ps/replica:0/task:9/device:CPU:0;01;x;v;0:0";
    let wait = a.peers.await_pushed(7, key).unwrap();
    let (step, reason) = a.ears.failed.recv_timeout(PATIENCE).unwrap();
    assert_eq!(step, 7);
    assert!(reason.message.contains("has not connected"), "{reason:?}");
    drop(wait);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signs_of_life_that_nobody_reads_do_not_pile_up() {
    let (_a, b) = two(Limits::default(), true).await;
    const MUTE: &str = "/job:worker/replica:0/task:3";
    let address = b.peers.address(B).unwrap();
    let mut socket = tokio::net::TcpStream::connect(address).await.unwrap();
    handshake::as_task(&mut socket, MUTE, B).await;
    let ping = downpour_wire::lane::empty(downpour_wire::lane::Kind::Ping, 0);
    let pings = ping.repeat(1000);
    for _ in 0..1500 {
        tokio::io::AsyncWriteExt::write_all(&mut socket, &pings)
            .await
            .unwrap();
    }
    let lane = b.lanes.to(MUTE).unwrap();
    assert!(lane.unsent() <= 1, "{} wait", lane.unsent());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lane_whose_other_end_is_gone_is_not_used_again() {
    let limits = Limits {
        silence: Duration::from_secs(2),
        ..Limits::default()
    };
    let (a, b) = two(limits, false).await;
    a.peers.open_lane(B, None).await.unwrap();
    let old = a.lanes.to(B).unwrap();
    while b.lanes.to(A).is_none() {
        tokio::task::yield_now().await;
    }
    // The other end has given it up, and this one does not hear of it: its driver looks elsewhere.
    a.lanes.state.lock().all.clear();
    a.lanes.version.fetch_add(1, Ordering::AcqRel);
    b.lanes.silent(&b.lanes.to(A).unwrap());
    assert!(b.peers.await_pushed(1, &key(A, B)).is_err());
    // A call for a lane asks the old one first, gets no answer, and makes another.
    tokio::time::sleep(limits.silence / 4).await;
    a.peers.open_lane(B, None).await.unwrap();
    assert!(!old.is_live());
    assert!(b.peers.await_pushed(1, &key(A, B)).is_ok());
    a.peers.push(1, &key(A, B), None).unwrap();
    b.ears.tensors.recv_timeout(PATIENCE).unwrap();
}
