//! What tasks say of themselves while they are used.

use downpour::train::{GradientDescent, Minimize};
use downpour::{
    DType, Graph, Init, LocalCluster, PartialRun, RunningServer, Session, Tensor, inspect_task,
};
use downpour_wire::control::TaskReport;
use std::time::Duration;

fn report(server: &RunningServer) -> TaskReport {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let address = server.address().to_string();
    let limit = Duration::from_secs(30);
    runtime.block_on(inspect_task(&address, limit)).unwrap()
}

/// Two workers whose steps cross: each reads, then the first updates, then the second.
#[test]
fn who_updates_late_is_known_by_name() {
    const ROUNDS: u64 = 20;
    let cluster = LocalCluster::start(1, 2).unwrap();
    let ps = &cluster.ps()[0];
    let build = |task: usize| {
        let g = Graph::new();
        let w = g.with_device("/job:ps/task:0", || {
            g.variable("w").init(Init::value(0.0f32)).build()
        });
        g.with_device(&format!("/job:worker/task:{task}"), || {
            // Reads, waits for what the test sends, and updates.
            let go = g.placeholder("go", DType::Float, ());
            let read = w.read();
            let update = w.assign_add(&(&read * 0.0 + &go));
            let done = g.with_control(&[update], || go.identity());
            (g.clone(), read, go, done)
        })
    };
    let all = [0, 1].map(build);
    let sessions = [0, 1].map(|i| Session::new(&cluster.workers()[i], &all[i].0).unwrap());
    sessions[0].run(&all[0].0.initialize_variables()).unwrap();
    for _ in 0..ROUNDS {
        // The second's step is begun: it has read, and lacks what it waits for.
        let (_, read, go, done) = &all[1];
        let fetches = [read.clone(), done.clone()];
        let late = PartialRun::new(&sessions[1], std::slice::from_ref(go), &fetches).unwrap();
        late.step(&[], &fetches[..1]).unwrap();
        let (_, _, go_first, done_first) = &all[0];
        let step = sessions[0].step().feed(go_first, 1.0f32);
        step.fetch(done_first).unwrap();
        late.step(&[(go, Tensor::scalar(1.0f32))], &fetches[1..])
            .unwrap();
    }
    let report = report(ps);
    let found: Vec<_> = report
        .writers
        .iter()
        .map(|w| {
            let s = w.staleness.clone().unwrap();
            (w.task.as_str(), s.updates, s.total, s.worst)
        })
        .collect();
    let names = [
        "/job:worker/replica:0/task:0",
        "/job:worker/replica:0/task:1",
    ];
    assert_eq!(
        found,
        [(names[0], ROUNDS, 0, 0), (names[1], ROUNDS, ROUNDS, 1)]
    );
    let stale = report.variables[0].staleness.clone().unwrap();
    assert_eq!(
        (stale.updates, stale.total, stale.worst),
        (2 * ROUNDS, ROUNDS, 1)
    );
}

#[test]
fn tasks_know_their_steps_variables_and_peers() {
    const STEPS: u64 = 20;
    let cluster = LocalCluster::start(1, 1).unwrap();
    let g = Graph::new();
    let x = g.placeholder("x", DType::Float, [None]);
    let a = g.with_device("/job:ps/task:0", || {
        let ones = vec![1.0f32; 100];
        g.variable("a").init(Init::value(ones)).build()
    });
    let train = g.with_device("/job:worker/task:0", || {
        let loss = (&*a - &x).square().mean(());
        GradientDescent::new(0.1).minimize(&loss, None).unwrap()
    });
    let init = g.initialize_variables();
    let (ps, worker) = (&cluster.ps()[0], &cluster.workers()[0]);
    let session = Session::new(worker.target(), &g).unwrap();
    session.run(&init).unwrap();
    let before = report(ps);
    for _ in 0..STEPS {
        let step = session.step().feed(&x, vec![0.0f32; 100]);
        step.target(&train).run().unwrap();
    }
    let step = session.step().feed(&x, vec![0.0f32; 3]);
    step.target(&train).run().unwrap_err();

    let (at_ps, at_worker) = (report(ps), report(worker));
    assert_eq!(at_ps.task, "/job:ps/replica:0/task:0");
    assert_eq!(at_ps.incarnation, before.incarnation);
    assert!(at_ps.resident_bytes > 1 << 20 && at_ps.uptime_millis >= before.uptime_millis);
    let [variable] = &at_ps.variables[..] else {
        panic!("{:?}", at_ps.variables);
    };
    assert_eq!(
        (variable.name.as_str(), &variable.shape[..]),
        ("a", &[100][..])
    );
    assert_eq!((variable.dtype.as_str(), variable.bytes), ("float", 400));
    assert!(variable.is_initialized);
    let totals = at_ps.variable_totals.unwrap();
    assert_eq!((totals.count, totals.bytes), (1, 400));
    // The initial value is an update too.
    assert_eq!(variable.updates, STEPS + 1);
    // A worker alone finds its variables as it read them.
    assert_eq!(at_ps.staleness[0], STEPS);
    assert_eq!(at_ps.staleness.iter().sum::<u64>(), STEPS);
    // By variable, and by whose steps they were.
    let stale = variable.staleness.clone().unwrap();
    assert_eq!((stale.updates, stale.total, stale.worst), (STEPS, 0, 0));
    let [writer] = &at_ps.writers[..] else {
        panic!("{:?}", at_ps.writers);
    };
    assert_eq!(writer.task, at_worker.task);
    assert_eq!(writer.staleness.clone().unwrap().updates, STEPS);
    assert_eq!(at_ps.guests.len(), 1);
    assert_eq!(at_ps.guests[0].master, at_worker.task);

    let steps = at_worker.steps.unwrap();
    // Beside the steps: the initialisation, and the one that fails.
    assert_eq!(
        (steps.started, steps.ended, steps.failed),
        (STEPS + 2, STEPS + 2, 1)
    );
    let runs = at_worker.runs.unwrap();
    assert!(runs.ended > STEPS && runs.failed >= 1, "{runs:?}");
    assert_eq!(at_worker.sessions.len(), 1);
    assert!(at_worker.sessions[0].client_is_there);
    let lane = |report: &TaskReport, peer: &str| {
        let lane = report.peers.iter().find(|p| p.task == peer);
        lane.unwrap_or_else(|| panic!("{:?}", report.peers)).clone()
    };
    let up = lane(&at_worker, &at_ps.task);
    let down = lane(&at_ps, &at_worker.task);
    assert!(
        up.tensors_received >= STEPS && up.bytes_received >= STEPS * 400,
        "{up:?}"
    );
    assert!(
        down.tensors_sent >= STEPS && down.bytes_sent >= STEPS * 400,
        "{down:?}"
    );
    assert!(
        down.tensors_received >= STEPS && down.waiting == 0,
        "{down:?}"
    );
}
