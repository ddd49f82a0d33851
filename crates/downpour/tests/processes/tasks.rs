//! The processes of one cluster: started, killed, stopped, and asked what they have seen.

use downpour_coordination::{Folder, Record, Register as _};
use std::io::Read as _;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Arguments of a task's program, separated by spaces.
pub(crate) const TASK: &str = "DOWNPOUR_TEST_TASK";
/// Where a worker writes down what it does.
pub(crate) const TRACE: &str = "DOWNPOUR_TEST_TRACE";
/// After how many steps a worker's data ends.
pub(crate) const DATA: &str = "DOWNPOUR_TEST_DATA";
/// Nothing here takes longer, even on a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);

/// Parameter servers and workers, each a process.
pub(crate) struct Tasks {
    dir: tempfile::TempDir,
    flags: String,
    running: Vec<(&'static str, usize, Child)>,
}

/// Not one of those that the system gives out: it might do so again, to a connection, before the
/// task listens there.
fn free_port() -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let turn = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + (std::process::id().wrapping_mul(61) + turn) % 20_000;
        let port = u16::try_from(port).unwrap();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

/// Waits until `condition` gives a value.
pub(crate) fn wait<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(start.elapsed() < LIMIT, "{what}: not within {LIMIT:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Tasks {
    /// Starts all, with checkpoints every second and these flags, in which `{dir}` is a folder of theirs.
    pub(crate) fn start(ps: usize, workers: usize, flags: &str) -> Tasks {
        let dir = tempfile::tempdir().unwrap();
        let at: Vec<String> = (0..ps + workers)
            .map(|_| format!("127.0.0.1:{}", free_port()))
            .collect();
        let flags = flags.replace("{dir}", &dir.path().display().to_string());
        let flags = format!(
            "--ps_hosts={} --worker_hosts={} --save-seconds=1 --dir={} {flags}",
            at[..ps].join(","),
            at[ps..].join(","),
            dir.path().join("checkpoints").display()
        );
        let mut tasks = Tasks {
            dir,
            flags,
            running: Vec::new(),
        };
        for task in 0..ps {
            tasks.spawn("ps", task);
        }
        for task in 0..workers {
            tasks.spawn("worker", task);
        }
        tasks
    }

    fn path(&self, kind: &str, job: &str, task: usize) -> PathBuf {
        self.dir.path().join(format!("{kind}-{job}-{task}"))
    }

    pub(crate) fn spawn(&mut self, job: &'static str, task: usize) {
        self.spawn_with_data(job, task, usize::MAX);
    }

    /// Starts a task whose data ends after so many steps.
    pub(crate) fn spawn_with_data(&mut self, job: &'static str, task: usize, steps: usize) {
        let flags = format!("{} --job_name={job} --task_index={task}", self.flags);
        let mut log = std::fs::File::options();
        log.append(true).create(true);
        let log = log.open(self.path("log", job, task)).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "be_a_task", "--nocapture"])
            .env(TASK, flags)
            .env(TRACE, self.path("trace", job, task))
            .env(DATA, steps.to_string())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        self.running.push((job, task, child));
    }

    fn find(&mut self, job: &str, task: usize) -> &mut Child {
        let is = |t: &&mut (&str, usize, Child)| (t.0, t.1) == (job, task);
        &mut self.running.iter_mut().find(is).unwrap().2
    }

    pub(crate) fn kill(&mut self, job: &str, task: usize) {
        let child = self.find(job, task);
        child.kill().unwrap();
        child.wait().unwrap();
        self.running.retain(|t| (t.0, t.1) != (job, task));
    }

    /// Sends `STOP` or `CONT`.
    pub(crate) fn signal(&mut self, job: &str, task: usize, signal: &str) {
        let kill = format!("kill -{signal} {}", self.find(job, task).id());
        let sent = Command::new("sh").args(["-c", &kill]).status().unwrap();
        assert!(sent.success());
    }

    /// Waits until a checkpoint of a step at least this high exists.
    pub(crate) fn reach(&self, step: i64) {
        let dir = self.dir.path().join("checkpoints");
        wait(&format!("a checkpoint of step {step}"), || {
            let latest = downpour::train::latest_checkpoint(dir.to_str().unwrap()).ok()?;
            let reached = latest?.rsplit('-').next()?.parse::<i64>().ok()?;
            (reached >= step).then_some(())
        });
    }

    /// What the register of the election in `{dir}/service` holds.
    pub(crate) fn record(&self) -> Record {
        record(&self.dir.path().join("service"))
    }

    /// Waits until there is a chief in an epoch after this one: which worker, and the epoch.
    pub(crate) fn chief_after(&self, epoch: u64) -> (usize, u64) {
        wait(&format!("a chief after epoch {epoch}"), || {
            let record = self.record();
            let worker = record.holder.rsplit(':').next()?.parse().ok()?;
            (record.epoch > epoch).then_some((worker, record.epoch))
        })
    }

    /// Calls this with what the register holds, again and again, until it is dropped.
    pub(crate) fn watch_record(&self, mut look: impl FnMut(Record) + Send + 'static) -> Watch {
        let service = self.dir.path().join("service");
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            while ended.recv_timeout(Duration::from_millis(10)) == Err(RecvTimeoutError::Timeout) {
                look(record(&service));
            }
        });
        Watch(Some((end, thread)))
    }

    /// What a worker wrote down: when, of which kind, what.
    fn trace(&self, worker: usize) -> Vec<(f64, String, String)> {
        let text = std::fs::read_to_string(self.path("trace", "worker", worker));
        let text = text.unwrap_or_default();
        let lines = text.split_inclusive('\n').filter(|l| l.ends_with('\n'));
        lines
            .map(|line| {
                let mut words = line.trim_end_matches('\n').splitn(3, ' ');
                let mut word = || words.next().unwrap_or_default().to_owned();
                (word().parse().unwrap(), word(), word())
            })
            .collect()
    }

    /// The steps that a worker made since then.
    pub(crate) fn steps(&self, worker: usize, since: f64) -> Vec<(f64, i64)> {
        let all = self.trace(worker).into_iter();
        let steps = all.filter(|(t, kind, _)| kind == "step" && *t >= since);
        steps
            .map(|(t, _, step)| (t, step.parse().unwrap()))
            .collect()
    }

    /// Waits until a worker has made so many steps since then.
    pub(crate) fn trained(&self, worker: usize, since: f64, count: usize) {
        wait(&format!("{count} steps of worker {worker}"), || {
            (self.steps(worker, since).len() >= count).then_some(())
        });
    }

    /// Waits until a worker says since then that exactly these hold it up; when it did.
    pub(crate) fn missing(&self, worker: usize, since: f64, names: &str) -> f64 {
        wait(&format!("worker {worker} misses '{names}'"), || {
            let all = self.trace(worker).into_iter();
            let mut told = all.filter(|(t, kind, _)| kind == "missing" && *t >= since);
            told.find(|(_, _, who)| who == names).map(|(t, _, _)| t)
        })
    }

    /// What a task wrote on standard error.
    pub(crate) fn log(&self, job: &str, task: usize) -> String {
        std::fs::read_to_string(self.path("log", job, task)).unwrap()
    }

    /// Waits until a task has ended; whether well, and what it said.
    pub(crate) fn end(&mut self, job: &str, task: usize) -> (bool, String) {
        let child = self.find(job, task);
        let status = wait("the end of a task", || child.try_wait().unwrap());
        let mut text = String::new();
        let mut said = child.stdout.take().unwrap();
        said.read_to_string(&mut text).unwrap();
        (status.success(), text)
    }
}

fn record(service: &Path) -> Record {
    let read = Folder::open(service).and_then(|folder| folder.read("chief"));
    let text = read.map(|(_, value)| String::from_utf8(value).unwrap());
    Record::parse(&text.unwrap_or_default()).unwrap_or_default()
}

/// Looks on until it is dropped.
pub(crate) struct Watch(Option<(Sender<()>, JoinHandle<()>)>);

impl Watch {
    /// Ends it; fails if it did.
    pub(crate) fn end(mut self) {
        if let Some((end, thread)) = self.0.take() {
            drop(end);
            thread.join().unwrap();
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for (_, _, child) in &mut self.running {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            for (job, task, _) in &self.running {
                let log = std::fs::read_to_string(self.path("log", job, *task));
                eprintln!("---- {job} {task}\n{}", log.unwrap_or_default());
            }
        }
    }
}
