//! The chief is lost, and another worker takes over its duties.

use downpour::program::{self, Program};
use downpour::train::hooks::{SaveListener, StopAtStep};
use downpour::train::{
    CoordinatedElection, Election, Every, Fence, LeaseElection, MonitoredSession, Supervision,
    global_step, latest_checkpoint, read_checkpoint,
};
use downpour::{Graph, Init, LocalCluster, Operation, Result, Session, SessionOptions};
use downpour_coordination::{Folder, Member, Office, Record, Register, Version};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

/// Long enough for a chief on a busy machine.
const LEASE: Duration = Duration::from_secs(2);
/// Long enough for one that must not lose it before it is to.
const LONG: Duration = Duration::from_secs(4);
/// So short that it does not matter who loses it.
const SHORT: Duration = Duration::from_millis(500);

/// Writes down who saved which step.
#[derive(Clone, Default)]
struct Saves(Arc<Mutex<Vec<(usize, i64)>>>);

struct By(usize, Saves);

impl SaveListener for By {
    fn after_save(&mut self, _: &Arc<Session>, step: i64, _: &str) -> Result<bool> {
        self.1.0.lock().unwrap().push((self.0, step));
        Ok(false)
    }
}

struct Worker {
    session: MonitoredSession,
    train: Operation,
}

impl Worker {
    fn open(
        cluster: &LocalCluster,
        task: usize,
        dir: &str,
        lease: Duration,
        saves: &Saves,
    ) -> Worker {
        let own = format!("/job:worker/task:{task}");
        Worker::by(
            LeaseElection::new(dir, &own, lease),
            cluster,
            task,
            dir,
            saves,
        )
    }

    fn by(
        election: impl Election + 'static,
        cluster: &LocalCluster,
        task: usize,
        dir: &str,
        saves: &Saves,
    ) -> Worker {
        let g = Graph::new();
        let train = g.with_device("/job:ps/task:0", || {
            let step = global_step(&g);
            let witness = g.variable("witness").init(Init::value(0i64));
            let witness = witness.trainable(false).build();
            let one = g.constant(1i64);
            g.group("both", &[step.assign_add(&one), witness.assign_add(&one)])
        });
        let own = format!("/job:worker/task:{task}");
        let session = Supervision::new(&cluster.workers()[task], &g)
            .election(election)
            .options(SessionOptions::new().device_filters(["/job:ps".to_owned(), own]))
            .checkpoints(dir, Every::Steps(10))
            .patience(Duration::from_secs(60))
            .listener(By(task, saves.clone()))
            .hook(StopAtStep::new(600))
            .open()
            .unwrap();
        Worker { session, train }
    }

    fn step(&mut self) {
        self.session.step().target(&self.train).run().unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn another_worker_saves_and_restores_when_the_chief_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let mut cluster = LocalCluster::start(1, 2).unwrap();
    let saves = Saves::default();
    let mut chief = Worker::open(&cluster, 0, dir, LEASE, &saves);
    let mut other = Worker::open(&cluster, 1, dir, LEASE, &saves);
    assert!(chief.session.is_chief() && !other.session.is_chief());
    while chief.session.global_step().unwrap() < 30 {
        chief.step();
        other.step();
    }
    // Killed: it beats no more, and tells nobody.
    drop(chief);
    while !other.session.is_chief() {
        other.session.global_step().unwrap();
        std::thread::sleep(LEASE / 20);
    }
    let took_over = other.session.global_step().unwrap();
    // The new chief restores what a lost task forgot.
    for _ in 0..20 {
        other.step();
    }
    cluster.restart_ps(0).unwrap();
    for _ in 0..20 {
        other.step();
    }
    assert!(other.session.losses() > 0);
    other.session.request_stop();
    let end = other.session.global_step().unwrap();
    other.session.close().unwrap();
    let saved = latest_checkpoint(dir).unwrap().unwrap();
    let [step, witness] = ["global_step", "witness"]
        .map(|name| read_checkpoint(&saved, name).unwrap())
        .map(|value| value.scalar_value::<i64>().unwrap());
    assert_eq!((step, witness), (end, end));
    let saves = saves.0.lock().unwrap();
    assert!(saves.iter().any(|(task, _)| *task == 0));
    let by_other: Vec<i64> = saves.iter().filter(|s| s.0 == 1).map(|s| s.1).collect();
    assert!(
        by_other.iter().all(|step| *step + 1 >= took_over.min(30)),
        "{saves:?}"
    );
    assert_eq!(by_other.last(), Some(&end));
}

#[test]
fn a_chief_that_comes_back_finds_another_and_both_train_to_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let cluster = LocalCluster::start(1, 3).unwrap();
    let (saves, begun) = (Saves::default(), Barrier::new(3));
    std::thread::scope(|scope| {
        let (cluster, saves, begun) = (&cluster, &saves, &begun);
        for task in 0..3 {
            scope.spawn(move || {
                let mut worker = Worker::open(cluster, task, dir, SHORT, saves);
                begun.wait();
                let first = worker.session.is_chief();
                for _ in 0..20 {
                    worker.step();
                }
                if first {
                    // Lost, and back after a while; the others never stop.
                    drop(worker);
                    std::thread::sleep(2 * SHORT);
                    worker = Worker::open(cluster, task, dir, SHORT, saves);
                }
                while !worker.session.should_stop() {
                    worker.step();
                }
                worker.session.close().unwrap();
            });
        }
    });
    let saved = latest_checkpoint(dir).unwrap().unwrap();
    let [step, witness] = ["global_step", "witness"]
        .map(|name| read_checkpoint(&saved, name).unwrap())
        .map(|value| value.scalar_value::<i64>().unwrap());
    assert!(
        step >= 600 && (witness - step).abs() <= 2,
        "{step} {witness}"
    );
    let saves = saves.0.lock().unwrap();
    let tasks: std::collections::BTreeSet<usize> = saves.iter().map(|s| s.0).collect();
    assert!(tasks.len() >= 2, "only one was ever chief: {saves:?}");
}

/// A program that only counts.
struct Count;

impl Program for Count {
    type Model = Operation;

    fn build(&self, worker: &program::Worker) -> Result<Operation> {
        let g = worker.graph();
        Ok(worker.global_step().assign_add(&g.constant(1i64)))
    }

    fn step(&self, count: &mut Operation, session: &mut MonitoredSession) -> Result<()> {
        session.step().target(count).run()
    }
}

#[test]
fn a_program_elects_its_chief_if_it_has_a_place_for_it() {
    let dir = tempfile::tempdir().unwrap();
    let options = program::Options {
        workers: 2,
        steps: 40,
        dir: Some(dir.path().to_str().unwrap().to_owned()),
        elect: Some(LEASE),
        ..Default::default()
    };
    let report = program::run(&Count, &options).unwrap();
    assert!(report["steps"] >= 40.0, "{report:?}");
    let nowhere = program::Options {
        dir: None,
        ..options.clone()
    };
    let error = program::run(&Count, &nowhere).unwrap_err().to_string();
    assert!(error.contains("needs a directory"), "{error}");
}

#[test]
fn a_program_elects_its_chief_in_a_service_and_names_one_that_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let url = format!("file://{}/service", dir.path().display());
    let options = program::Options {
        workers: 2,
        steps: 40,
        dir: Some(dir.path().to_str().unwrap().to_owned()),
        coordinator: Some(url.parse().unwrap()),
        ..Default::default()
    };
    let report = program::run(&Count, &options).unwrap();
    assert!(report["steps"] >= 40.0, "{report:?}");
    // Somebody was elected there, and has resigned at the end.
    let record = record(&dir.path().join("service"));
    assert!(record.epoch > 0 && record.holder.is_empty(), "{record:?}");
    // And what it committed last is what its directory names.
    let latest = latest_checkpoint(dir.path().to_str().unwrap())
        .unwrap()
        .unwrap();
    assert!(latest.ends_with(&record.checkpoint), "{latest} {record:?}");
    let lost = program::Options {
        coordinator: Some("file:///proc/none/service".parse().unwrap()),
        ..options.clone()
    };
    let error = program::run(&Count, &lost).unwrap_err().to_string();
    assert!(error.contains("/proc/none/service"), "{error}");
}

/// What the register of an election holds.
fn record(service: &std::path::Path) -> Record {
    let (_, value) = Folder::open(service).unwrap().read("chief").unwrap();
    Record::parse(&String::from_utf8(value).unwrap()).unwrap()
}

/// A register that a member may be cut off from.
struct Cut(Folder, Arc<AtomicBool>);

impl Cut {
    fn check(&self) -> downpour_coordination::Result<()> {
        match self.1.load(Ordering::SeqCst) {
            false => Ok(()),
            true => Err(downpour_coordination::Error::Silent {
                service: "a service that is cut off".to_owned(),
                within: Duration::ZERO,
            }),
        }
    }
}

impl Register for Cut {
    fn read(&self, name: &str) -> downpour_coordination::Result<(Version, Vec<u8>)> {
        self.check().and_then(|()| self.0.read(name))
    }

    fn swap(
        &self,
        name: &str,
        expected: Version,
        value: &[u8],
    ) -> downpour_coordination::Result<Option<Version>> {
        self.check()
            .and_then(|()| self.0.swap(name, expected, value))
    }
}

/// A chief that is stopped when it has written its first checkpoint, and goes on when another has saved one.
struct Stopped {
    member: Member,
    fence: Arc<StoppedFence>,
}

struct StoppedFence {
    office: Office,
    cut: Arc<AtomicBool>,
    /// Whether another has committed a checkpoint.
    replaced: Box<dyn Fn() -> bool + Send + Sync>,
    outcomes: Mutex<Vec<(String, bool)>>,
}

impl Fence for StoppedFence {
    fn epoch(&self) -> Option<u64> {
        self.office.epoch()
    }

    fn commit(&self, epoch: u64, name: &str) -> bool {
        if self.outcomes.lock().unwrap().is_empty() {
            self.cut.store(true, Ordering::SeqCst);
            let begin = std::time::Instant::now();
            while !(self.replaced)() {
                assert!(
                    begin.elapsed() < Duration::from_secs(120),
                    "nobody took over"
                );
                std::thread::sleep(SHORT / 20);
            }
            self.cut.store(false, Ordering::SeqCst);
        }
        let outcome = self.office.commit(epoch, name);
        let outcome_of = (name.to_owned(), outcome);
        self.outcomes.lock().unwrap().push(outcome_of);
        outcome
    }

    fn committed(&self) -> Option<String> {
        Fence::committed(&self.office)
    }
}

impl Election for Stopped {
    fn is_chief(&mut self) -> bool {
        self.member.office().epoch().is_some()
    }

    fn fence(&self) -> Option<Arc<dyn Fence>> {
        Some(self.fence.clone())
    }
}

#[test]
fn a_chief_that_is_stopped_in_the_middle_of_a_save_cannot_commit_it_after_another_took_over() {
    let place = tempfile::tempdir().unwrap();
    let (dir, service) = (place.path().join("model"), place.path().join("service"));
    let dir = dir.to_str().unwrap();
    let url = format!("file://{}", service.display()).parse().unwrap();
    let cluster = LocalCluster::start(1, 2).unwrap();
    let saves = Saves::default();
    let cut = Arc::new(AtomicBool::new(false));
    let register = Cut(Folder::open(&service).unwrap(), cut.clone());
    let member = Member::start(register, "/job:worker/task:0", LONG);
    let office = member.office().clone();
    assert_eq!(
        office.wait_for(|epoch| epoch.is_some(), Duration::from_secs(60)),
        Some(1)
    );
    let looked_at = service.clone();
    let fence = Arc::new(StoppedFence {
        office: office.clone(),
        cut,
        replaced: Box::new(move || {
            let committed = record(&looked_at).checkpoint;
            !committed.is_empty() && !committed.starts_with("model.ckpt-e1-")
        }),
        outcomes: Mutex::default(),
    });
    let stopped = Stopped {
        member,
        fence: fence.clone(),
    };
    std::thread::scope(|scope| {
        let (cluster, saves) = (&cluster, &saves);
        let first = scope.spawn(move || {
            // Its first save, of which only the commit is left, is what it is stopped in.
            let mut worker = Worker::by(stopped, cluster, 0, dir, saves);
            for _ in 0..20 {
                worker.step();
            }
            worker.session.close().unwrap();
        });
        let election = CoordinatedElection::join(&url, "/job:worker/task:1", LONG).unwrap();
        let mut second = Worker::by(election, cluster, 1, dir, saves);
        while !second.session.is_chief() {
            second.step();
        }
        first.join().unwrap();
        for _ in 0..20 {
            second.step();
        }
        second.session.close().unwrap();
    });
    let outcomes = fence.outcomes.lock().unwrap().clone();
    // Of which step depends on whether the other had made one already.
    let (unmade, was_committed) = outcomes.first().unwrap();
    assert!(
        unmade.starts_with("model.ckpt-e1-") && !was_committed,
        "{outcomes:?}"
    );
    // It was written, and is named nowhere.
    assert!(std::path::Path::new(&format!("{dir}/{unmade}.index")).exists());
    let state = std::fs::read_to_string(format!("{dir}/checkpoint")).unwrap();
    assert!(!state.contains(&format!("{unmade}\"")), "{state}");
    let last = record(&service).checkpoint;
    let latest = latest_checkpoint(dir).unwrap().unwrap();
    assert!(
        latest.ends_with(&last),
        "{latest} is listed, {last} committed"
    );

    // Should a late chief have listed its own all the same, the committed one is restored.
    let late = [
        format!("model_checkpoint_path: \"{unmade}\"\n"),
        format!("all_model_checkpoint_paths: \"{unmade}\"\n"),
    ]
    .concat();
    std::fs::write(format!("{dir}/checkpoint"), late).unwrap();
    let cluster = LocalCluster::start(1, 1).unwrap();
    let election = CoordinatedElection::join(&url, "/job:worker/task:0", LONG).unwrap();
    let mut again = Worker::by(election, &cluster, 0, dir, &saves);
    let step = again.session.global_step().unwrap();
    assert_eq!(last.rsplit('-').next().unwrap(), step.to_string());
}
