//! Downpour SGD of a model that counts: each example adds one to its own row of a table, by a sparse
//! gradient, and each step adds one to a number, by a dense one. So the model itself says how often
//! it has learned from what, whoever and whatever is lost on the way.

use downpour::train::shards::{Division, Shards};
use downpour::train::{
    Adagrad, DownpourSgd, DownpourTraining, Every, GradientDescent, Minimize, MonitoredSession,
    ShardBatches, Supervision, global_step,
};
use downpour::{
    DType, Draws, Graph, Init, LocalCluster, Output, Result, Server, ServerConfig, SessionOptions,
    Target, Tensor, Variable,
};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

const LEASE: Duration = Duration::from_millis(800);
const EXAMPLES: u64 = 120;
const PORTION: u64 = 20;
const REPLICAS: usize = 3;
const BATCH: usize = 6;

struct Worker {
    ids: Output,
    table: Variable,
    total: Variable,
    step: Variable,
    training: DownpourTraining,
    shards: Shards,
}

/// The table is on the last parameter server, all else on the first.
fn build(task: usize, ps: usize, epochs: u64) -> Worker {
    let g = Graph::new();
    let (step, total, shards) = g.with_device("/job:ps/task:0", || {
        let total = g.variable("total").init(Init::value(0.0f32)).build();
        let division = Division::new(EXAMPLES, PORTION).epochs(epochs);
        let shards = Shards::new(&g, "shards", division).lease(LEASE);
        (global_step(&g), total, shards)
    });
    let table = g.with_device(&format!("/job:ps/task:{}", ps - 1), || {
        let table = g.variable("table").shape([EXAMPLES as usize, 1]);
        table.init(Init::zeros()).build()
    });
    g.with_device(&format!("/job:worker/task:{task}"), || {
        let ids = g.placeholder("ids", DType::Int32, [None]);
        let loss = -(table.gather(&ids).sum(()) + &*total);
        let settings = DownpourSgd::new(REPLICAS, task)
            .fetch_every(2)
            .push_every(3)
            .lease(LEASE);
        let training = settings.minimize(&GradientDescent::new(1.0), &loss, &step);
        Worker {
            ids,
            table,
            total,
            step,
            training: training.unwrap(),
            shards,
        }
    })
}

fn open(target: &Target, task: usize, worker: &Worker, dir: Option<&str>) -> MonitoredSession {
    let own = format!("/job:worker/task:{task}");
    let options = SessionOptions::new().device_filters(["/job:ps".to_owned(), own]);
    let supervision = Supervision::new(target.clone(), worker.training.graph())
        .chief(task == 0)
        .options(options)
        .patience(Duration::from_secs(60))
        .hook(worker.training.hook());
    let supervision = match dir {
        Some(dir) => supervision.checkpoints(dir, Every::Steps(1)),
        None => supervision,
    };
    supervision.open().unwrap()
}

fn ids(batch: Vec<usize>) -> Tensor {
    Tensor::vector(batch.into_iter().map(|i| i as i32).collect())
}

/// How often each example was learned from, and how many steps were, as the model says.
fn learned(worker: &Worker, session: &mut MonitoredSession) -> (Vec<f32>, f32) {
    let session = session.raw().unwrap();
    let step = session.step();
    let [table, total] = step
        .fetch_all([&worker.table, &worker.total].map(|v| v.value()))
        .unwrap();
    let table = table.as_slice::<f32>().unwrap().to_vec();
    (table, total.scalar_value::<f32>().unwrap())
}

#[test]
fn sparse_and_dense_gradients_are_accrued_and_arrive_exactly_once() {
    const EPOCHS: u64 = 3;
    let cluster = LocalCluster::start(2, REPLICAS).unwrap();
    let steps = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (cluster, steps) = (&cluster, &steps);
        for task in 0..REPLICAS {
            scope.spawn(move || {
                let worker = build(task, 2, EPOCHS);
                let mut session = open(&(&cluster.workers()[task]).into(), task, &worker, None);
                let mut replica = worker.training.replica();
                let mut batches = ShardBatches::new(worker.shards.reader(task), BATCH, 5);
                while let Some(batch) = batches.next(&mut session, &mut replica).unwrap() {
                    replica
                        .step(&mut session, &[(&worker.ids, ids(batch))])
                        .unwrap();
                    steps.fetch_add(1, Ordering::Relaxed);
                }
                session.close().unwrap();
            });
        }
    });
    let worker = build(0, 2, EPOCHS);
    let mut session = open(&(&cluster.workers()[0]).into(), 0, &worker, None);
    let (table, total) = learned(&worker, &mut session);
    assert_eq!(table, vec![EPOCHS as f32; EXAMPLES as usize]);
    assert_eq!(total, steps.into_inner() as f32);
    let raw = session.raw().unwrap();
    let updates = raw.fetch(&worker.step).unwrap().scalar_value::<i64>();
    let staleness = worker.training.staleness(&raw).unwrap();
    let counted: u64 = staleness.iter().map(|s| s.updates).sum();
    assert_eq!(counted as i64, updates.unwrap());
}

#[test]
fn an_embedding_learns_by_downpour_what_it_learns_by_plain_steps() -> Result<()> {
    let batches: Vec<[i32; 5]> = {
        let mut draws = Draws::new(7);
        let draw = |draws: &mut Draws| std::array::from_fn(|_| draws.below(6) as i32);
        (0..12).map(|_| draw(&mut draws)).collect()
    };
    // Words that are among the first three want to be near one vector, others near another.
    let model = |g: &Graph| {
        let words = g.placeholder("words", DType::Int32, [5]);
        let values: Vec<f32> = (0..12).map(|i| (i as f32).sin()).collect();
        let first = Tensor::from_vec(values, [6, 2]).unwrap();
        let rows = g.variable("rows").init(Init::value(first)).build();
        let bias = g.variable("bias").init(Init::value([0.1f32, -0.1])).build();
        let side = words
            .less(&g.constant(3))
            .cast(DType::Float)
            .reshape(&[5, 1]);
        let loss = (rows.gather(&words) + &*bias - side).square().mean(());
        (words, loss)
    };
    let all = |g: &Graph| -> Vec<Output> {
        let all = ["rows", "bias"].map(|name| g.find_variable(name).unwrap());
        all.iter().map(|v| v.value().clone()).collect()
    };
    let server = Server::start(ServerConfig::local()).unwrap();
    let plain = Graph::new();
    let (words, loss) = model(&plain);
    let train = Adagrad::new(0.3).minimize(&loss, None)?;
    let session = downpour::Session::new(&server, &plain)?;
    session.run(&plain.initialize_variables())?;
    for batch in &batches {
        session.step().feed(&words, *batch).target(&train).run()?;
    }
    let wanted = session
        .step()
        .fetch_all::<2>([&all(&plain)[0], &all(&plain)[1]])?;

    let server = Server::start(ServerConfig::local()).unwrap();
    let g = Graph::new();
    let (words, loss) = model(&g);
    let settings = DownpourSgd::new(1, 0).in_turn();
    let training = settings.minimize(&Adagrad::new(0.3), &loss, &global_step(&g))?;
    let mut session = Supervision::new(&server, &g).open()?;
    let mut replica = training.replica();
    for batch in &batches {
        let batch = Tensor::vector(batch.to_vec());
        replica.step(&mut session, &[(&words, batch)])?;
    }
    let found = session
        .raw()?
        .step()
        .fetch_all::<2>([&all(&g)[0], &all(&g)[1]])?;
    for (wanted, found) in wanted.iter().zip(&found) {
        assert_eq!(wanted.as_slice::<f32>(), found.as_slice::<f32>());
    }
    Ok(())
}

/// What a replica waits for, so that nobody is done before a parameter server is lost.
struct Fate {
    /// Before which of its batches it saves.
    save_at: Option<usize>,
    /// Before which it waits for the loss.
    wait_at: usize,
    ready: mpsc::Sender<()>,
    lost: mpsc::Receiver<()>,
}

/// What a replica does until a parameter server is lost, and after.
fn survive(target: &Target, task: usize, dir: &str, fate: &Fate) -> usize {
    let worker = build(task, 2, 4);
    let mut session = open(target, task, &worker, Some(dir));
    let mut replica = worker.training.replica();
    let mut batches = ShardBatches::new(worker.shards.reader(task), BATCH, 5);
    for taken in 0.. {
        let Some(batch) = batches.next(&mut session, &mut replica).unwrap() else {
            break;
        };
        let batch = ids(batch);
        if Some(taken) == fate.save_at {
            // Hooks see a step: a checkpoint of what was done so far, with a portion in hand.
            replica.flush(&mut session).unwrap();
            let step = session.step().feed(&worker.ids, &batch);
            step.fetch(&worker.step).unwrap();
        }
        if taken == fate.wait_at {
            fate.ready.send(()).unwrap();
            fate.lost.recv().unwrap();
        }
        replica.step(&mut session, &[(&worker.ids, batch)]).unwrap();
    }
    let losses = session.losses();
    session.close().unwrap();
    losses
}

#[test]
fn a_lost_parameter_server_takes_books_and_model_back_together() {
    for (seed, lost) in [(1, 0), (2, 1), (3, 1)] {
        let mut draws = Draws::new(seed);
        let save_at = 1 + draws.below(8);
        let lose_at = save_at + draws.below(8);
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().to_str().unwrap();
        let mut cluster = LocalCluster::start(2, REPLICAS).unwrap();
        let targets: Vec<Target> = cluster.workers().iter().map(Target::from).collect();
        let (ready, is_ready) = mpsc::channel();
        let losses: usize = std::thread::scope(|scope| {
            let mut gone = Vec::new();
            let mut replicas = Vec::new();
            for (task, target) in targets.iter().enumerate() {
                let (tell, lost) = mpsc::channel();
                gone.push(tell);
                let fate = Fate {
                    save_at: (task == 0).then_some(save_at),
                    wait_at: if task == 0 { lose_at } else { 8 },
                    ready: ready.clone(),
                    lost,
                };
                replicas.push(scope.spawn(move || survive(target, task, dir, &fate)));
            }
            (0..REPLICAS).for_each(|_| is_ready.recv().unwrap());
            cluster.restart_ps(lost).unwrap();
            gone.iter().for_each(|tell| tell.send(()).unwrap());
            replicas.into_iter().map(|r| r.join().unwrap()).sum()
        });
        let worker = build(0, 2, 4);
        let mut session = open(&targets[0], 0, &worker, None);
        let ledger = worker.shards.ledger(&session.raw().unwrap()).unwrap();
        let counts = ledger.counts();
        let (table, _) = learned(&worker, &mut session);
        let about = format!("seed {seed}, {save_at} {lose_at}: {losses} {counts:?} {table:?}");
        assert!(losses >= 1, "{about}");
        assert!(ledger.is_over() && ledger.epochs_done() == 4, "{about}");
        let portions = 4 * EXAMPLES / PORTION;
        assert_eq!(counts.completed, portions, "{about}");
        assert_eq!(counts.issued, portions + counts.reissued, "{about}");
        // What the replicas held went out again: none of it may count as learned from.
        assert!(counts.reissued >= 1, "{about}");
        assert!(table.iter().all(|n| *n >= 4.0), "{about}");
    }
}
