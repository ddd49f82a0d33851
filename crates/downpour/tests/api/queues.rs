//! Training from queues that threads of the program fill.

use downpour::train::{
    Coordinator, Every, GradientDescent, Minimize, Queue, QueueRunner, Supervision, global_step,
    latest_checkpoint, read_checkpoint,
};
use downpour::{
    Code, DType, Graph, Init, LocalCluster, Operation, Server, ServerConfig, Status, Tensor,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

/// A line fitted to what a queue on the worker brings; variables on the ps.
fn model(count: usize) -> (Graph, Operation, Arc<AtomicUsize>) {
    let g = Graph::new();
    let (step, slope) = g.with_device("/job:ps/task:0", || {
        let slope = g.variable("slope").init(Init::value(0.0f32)).build();
        (global_step(&g), slope)
    });
    let brought = Arc::new(AtomicUsize::new(0));
    let train = g.with_device("/job:worker/task:0", || {
        let queue = Queue::fifo(&g, "input", 4)
            .component(DType::Float, ())
            .component(DType::Float, ())
            .build();
        let seen = brought.clone();
        queue.fill(move || match seen.load(Ordering::Relaxed) {
            n if n < count => {
                seen.store(n + 1, Ordering::Relaxed);
                let x = (n % 3) as f32 + 1.0;
                Ok(vec![Tensor::scalar(x), Tensor::scalar(3.0 * x)])
            }
            _ => Err(Status::out_of_range("no more data")),
        });
        let batch = queue.dequeue_many(2);
        let loss = (&*slope * &batch[0] - &batch[1]).square().mean(());
        let descent = GradientDescent::new(0.05);
        descent.minimize(&loss, Some(&step)).unwrap()
    });
    (g, train, brought)
}

#[test]
fn training_from_a_queue_ends_with_the_data() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let cluster = LocalCluster::start(1, 1).unwrap();
    let (g, train, brought) = model(101);
    let session = Supervision::new(&cluster.workers()[0], &g)
        .checkpoints(path, Every::Never)
        .patience(LONG)
        .open()
        .unwrap();
    session
        .train(|session| session.step().target(&train).run())
        .unwrap();
    assert_eq!(brought.load(Ordering::Relaxed), 101);
    let saved = latest_checkpoint(path).unwrap().unwrap();
    // The odd one of the elements makes no batch.
    assert!(saved.ends_with("model.ckpt-50"), "{saved}");
    let slope = read_checkpoint(&saved, "slope").unwrap();
    assert!((slope.scalar_value::<f32>().unwrap() - 3.0).abs() < 0.01);
}

#[test]
fn a_queue_is_filled_on_after_a_ps_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    let mut cluster = LocalCluster::start(1, 1).unwrap();
    let (g, train, brought) = model(200);
    let mut session = Supervision::new(&cluster.workers()[0], &g)
        .checkpoints(path, Every::Steps(5))
        .patience(LONG)
        .open()
        .unwrap();
    let mut runs = 0;
    let end = loop {
        match session.step().target(&train).run() {
            Ok(()) => runs += 1,
            Err(e) => break e,
        }
        if runs == 40 {
            cluster.restart_ps(0).unwrap();
        }
    };
    assert_eq!(end.code, Code::OutOfRange, "{end}");
    assert!(session.losses() > 0, "nothing was lost");
    assert_eq!(brought.load(Ordering::Relaxed), 200);
    // Of what was in the queue, or on the way to a step that was lost, little may be missing.
    assert!((90..=100).contains(&runs), "{runs}");
    session.close().unwrap();
}

#[test]
fn what_goes_wrong_in_a_source_ends_a_step_that_waits_for_it() {
    let server = Server::start(ServerConfig::local()).unwrap();
    let g = Graph::new();
    let queue = Queue::fifo(&g, "input", 4)
        .component(DType::Int64, ())
        .build();
    let mut first = true;
    queue.fill(move || match std::mem::replace(&mut first, false) {
        true => Ok(vec![Tensor::scalar(7i64)]),
        false => Err(Status::data_loss("the file is torn")),
    });
    let two = queue.dequeue_many(2)[0].clone();
    let mut session = Supervision::new(&server, &g).open().unwrap();
    let error = session.step().fetch(&two).unwrap_err();
    assert_eq!(
        (error.code, error.message.as_str()),
        (Code::DataLoss, "the file is torn")
    );
    assert_eq!(session.close().unwrap_err().code, Code::DataLoss);
}

#[test]
fn threads_that_wait_at_a_full_queue_end_with_training() {
    let server = Server::start(ServerConfig::local()).unwrap();
    let g = Graph::new();
    let queue = Queue::fifo(&g, "input", 1)
        .component(DType::Int64, ())
        .build();
    let put = || queue.enqueue(&[g.constant(5i64)]);
    QueueRunner::new(&queue, &[put(), put(), put()]).register();
    let one = queue.dequeue()[0].clone();
    let mut session = Supervision::new(&server, &g).grace(LONG).open().unwrap();
    let value = session.step().fetch(&one).unwrap();
    assert_eq!(value.scalar_value::<i64>().unwrap(), 5);
    let start = Instant::now();
    session.close().unwrap();
    assert!(start.elapsed() < LONG / 2, "the threads did not end");
}

#[test]
fn an_error_beside_training_ends_it_and_training_takes_its_threads_along() {
    let server = Server::start(ServerConfig::local()).unwrap();
    let g = Graph::new();
    let count = global_step(&g).assign_add(&g.constant(1i64));
    let coordinator = Coordinator::new();
    let supervision = || Supervision::new(&server, &g).coordinator(&coordinator);
    let mut session = supervision().open().unwrap();
    coordinator
        .spawn("watch", |_| {
            Err(Status::resource_exhausted("the disk is full"))
        })
        .unwrap();
    let error = loop {
        if let Err(e) = session.step().target(&count).run() {
            break e;
        }
    };
    assert_eq!(error.message, "the disk is full");
    drop(session);
    let patient = Coordinator::new();
    patient
        .spawn("patient", |c| {
            while !c.wait_for_stop(LONG) {}
            Ok(())
        })
        .unwrap();
    let session = Supervision::new(&server, &g).coordinator(&patient);
    session.open().unwrap().close().unwrap();
    patient.join(LONG).unwrap();
}
