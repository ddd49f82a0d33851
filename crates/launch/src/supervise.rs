//! The launcher's half on another host: starts a task there, keeps its output and its end, and tells of both. Started
//! by ssh or srun, it speaks `frames` on its standard streams and never listens on a port.
//!
//! A task has a keeper, a process of its own that outlives the connection: so a launcher that died may come again and
//! finds its tasks as they are. The keeper ends its task when no launcher has granted a lease for too long. A lease
//! counts from when it was *asked for*, a launcher counts from when it *granted* it, later: so once a launcher may
//! start the task elsewhere, it has ended here.

use crate::frames::{self, Again, Frame, Order, Request, Word};
use crate::guard::{Guard, group_of_its_own, signal};
use crate::local::exit_of;
use crate::site::own_folder;
use crate::state::Exit;
use crate::{dir, ports, process_start};
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek as _, SeekFrom, Write};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// What this program is called in the commands of tasks, wherever it lies on a host.
pub(crate) const OWN: &str = "downpour";
/// How often files are looked at.
const POLL: Duration = Duration::from_millis(30);
/// How long a keeper may take to start its task, and an old task to end when it is killed.
const PATIENCE: Duration = Duration::from_secs(20);
/// Most bytes that are read of a file at once.
const PIECE: u64 = 256 << 10;
/// Leases are asked for so often within one.
const ASKS_PER_LEASE: u32 = 4;

/// What is known of a task on its host.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Kept {
    run: String,
    start: u64,
    pid: u32,
    keeper: u32,
    /// With its number it names the keeper for good.
    keeper_started: Option<u64>,
    exit: Option<Exit>,
    /// Why it could not be started.
    error: Option<String>,
}

impl Kept {
    fn read(folder: &Path) -> Option<Kept> {
        let text = std::fs::read(folder.join("state")).ok()?;
        serde_json::from_slice(&text).ok()
    }

    fn write(&self, folder: &Path) -> io::Result<()> {
        write_whole(folder, "state", self)
    }

    /// Whether a keeper is there that will tell of the end.
    fn is_kept(&self) -> bool {
        self.keeper_started.is_some() && process_start(self.keeper) == self.keeper_started
    }

    fn is_alive(&self) -> bool {
        self.exit.is_none() && self.error.is_none() && self.is_kept()
    }
}

/// Writes a file so that nobody reads half of it.
fn write_whole(folder: &Path, name: &str, what: &impl Serialize) -> io::Result<()> {
    let new = folder.join(format!("{name}.new"));
    let _ = std::fs::remove_file(&new);
    let mut file = dir::append(&new)?;
    let text = serde_json::to_vec(what).map_err(io::Error::other)?;
    file.write_all(&text)?;
    std::fs::rename(new, folder.join(name))
}

/// Seconds since the host started: the same clock for all its processes, and nobody sets it.
fn uptime() -> f64 {
    let text = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let first = text.split_whitespace().next();
    first.and_then(|n| n.parse().ok()).unwrap_or(0.0)
}

/// Does what the launcher asks on standard input. `own` is the program whose `supervise --keep FOLDER` calls [`keep`].
pub fn supervise(
    own: &Path,
    input: impl Read + Send + 'static,
    output: impl Write + Send + 'static,
) -> io::Result<()> {
    let mut input = BufReader::new(input);
    let mut output = output;
    frames::greet(&mut output)?;
    let mut line = String::new();
    (&mut input).take(frames::MAX_LINE).read_line(&mut line)?;
    let request: Request = match serde_json::from_str(&line) {
        Ok(request) => request,
        Err(e) => return refuse(&mut output, format!("the request is malformed: {e}")),
    };
    let root = own_folder(Path::new("/tmp"));
    let answered = root.and_then(|root| answer(request, own, &root, input, &mut output));
    match answered {
        Ok(()) => Ok(()),
        Err(e) => refuse(&mut output, e.to_string()),
    }
}

fn refuse(output: &mut impl Write, reason: String) -> io::Result<()> {
    frames::write(output, &Frame::Refused(reason))
}

fn answer(
    request: Request,
    own: &Path,
    root: &Path,
    input: BufReader<impl Read + Send + 'static>,
    output: &mut (impl Write + Send),
) -> io::Result<()> {
    match request {
        Request::Check => {
            let version = env!("CARGO_PKG_VERSION").to_owned();
            frames::write(output, &Frame::Version(version))
        }
        Request::Ports(count) => {
            let seed = u64::from(std::process::id()).wrapping_mul(0x9E37_79B9);
            let found = ports::free(Ipv4Addr::UNSPECIFIED, count as usize, seed)?;
            frames::write(output, &Frame::Ports(found))
        }
        Request::Find(job) => {
            let kept = tasks(root, &job)
                .into_iter()
                .filter_map(|f| Kept::read(&f))
                .filter(Kept::is_alive);
            frames::write(output, &Frame::Found(kept.map(|kept| kept.run).next()))
        }
        Request::Clean { job, run } => {
            for folder in tasks(root, &job) {
                let Some(kept) = Kept::read(&folder).filter(|kept| kept.run == run) else {
                    continue;
                };
                if kept.is_alive() {
                    end(&folder, &kept);
                }
                std::fs::remove_dir_all(&folder)?;
            }
            // Another run of the job may have tasks here.
            let _ = std::fs::remove_dir(root.join("jobs").join(&job));
            frames::write(output, &Frame::Done)
        }
        Request::Task(order) if order.holds => {
            hold(&order, input, output, &Surroundings::default())
        }
        Request::Task(order) => {
            let folder = folder(root, &order)?;
            match place(&folder, *order, own)? {
                Ok((kept, lease, from)) => tell(
                    &folder,
                    &kept,
                    lease,
                    from.unwrap_or_default(),
                    input,
                    output,
                ),
                Err(reason) => refuse(output, reason),
            }
        }
    }
}

/// The folders of a job's tasks on this host.
fn tasks(root: &Path, job: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(root.join("jobs").join(job));
    let entries = entries.into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn folder(root: &Path, order: &Order) -> io::Result<PathBuf> {
    let is_name = |name: &str| {
        let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !name.is_empty() && !name.starts_with('.') && name.chars().all(fits)
    };
    if !is_name(&order.job) || !is_name(&order.task) {
        return Err(io::Error::other("job or task has no proper name"));
    }
    let folder = root.join("jobs").join(&order.job).join(&order.task);
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// Kills a task and waits until its keeper has said so.
fn end(folder: &Path, kept: &Kept) {
    signal(kept.pid, Signal::KILL);
    let begin = Instant::now();
    while Kept::read(folder).is_some_and(|now| now.start == kept.start && now.is_alive()) {
        if begin.elapsed() > PATIENCE {
            break;
        }
        std::thread::sleep(POLL);
    }
}

type Found = Result<(Kept, Duration, Option<Again>), String>;

/// Starts a task, or finds it.
fn place(folder: &Path, order: Order, own: &Path) -> io::Result<Found> {
    let lock = dir::append(&folder.join("lock"))?;
    flock(&lock, FlockOperation::LockExclusive)?;
    let lease = Duration::from_millis(order.lease_ms.max(1000));
    let old = Kept::read(folder);
    let is_same_run = old.as_ref().is_some_and(|old| old.run == order.run);
    if let Some(again) = order.again {
        return Ok(match old.filter(|old| old.start == again.start) {
            Some(old) if is_same_run => Ok((old, lease, Some(again))),
            _ => Err("the task is not there any more".to_owned()),
        });
    }
    if let Some(old) = &old {
        if is_same_run && order.adopts && old.error.is_none() {
            grant(folder, uptime() + lease.as_secs_f64())?;
            return Ok(Ok((old.clone(), lease, None)));
        }
        if old.is_alive() {
            end(folder, old);
        }
    }
    let start = old.map_or(1, |old| old.start + 1);
    for name in ["out", "err"] {
        let _ = std::fs::remove_file(folder.join(name));
    }
    grant(folder, uptime() + lease.as_secs_f64())?;
    write_whole(folder, "order", &(start, &order))?;
    let keeper = Command::new(own)
        .args(["supervise", "--keep"])
        .arg(folder)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    // It outlives this process, whose zombies its parent reaps.
    drop(keeper?);
    let begin = Instant::now();
    loop {
        let now = Kept::read(folder).filter(|now| now.start == start);
        match now {
            Some(Kept {
                error: Some(error), ..
            }) => return Ok(Err(error)),
            Some(now) => return Ok(Ok((now, lease, None))),
            None if begin.elapsed() > PATIENCE => {
                return Ok(Err("its keeper did not start".to_owned()));
            }
            None => std::thread::sleep(POLL / 3),
        }
    }
}

fn grant(folder: &Path, until: f64) -> io::Result<()> {
    write_whole(folder, "lease", &until)
}

fn lease_end(folder: &Path) -> Option<f64> {
    let text = std::fs::read(folder.join("lease")).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Starts a task as its keeper, and stays until it has ended.
pub fn keep(folder: &Path) -> io::Result<()> {
    // Whatever ends the connection's session does not reach this one.
    let _ = rustix::process::setsid();
    let text = std::fs::read(folder.join("order"))?;
    // It may hold secrets.
    std::fs::remove_file(folder.join("order"))?;
    let (start, order): (u64, Order) = serde_json::from_slice(&text)?;
    let own = std::process::id();
    let mut kept = Kept {
        run: order.run.clone(),
        start,
        keeper: own,
        keeper_started: process_start(own),
        ..Kept::default()
    };
    let out = dir::append(&folder.join("out"))?;
    let err = dir::append(&folder.join("err"))?;
    let mut child = match spawn(&order, out.into(), err.into()) {
        Ok(child) => child,
        Err(error) => {
            kept.error = Some(error);
            return kept.write(folder);
        }
    };
    kept.pid = child.id();
    kept.write(folder)?;
    let (watched, pid) = (folder.to_owned(), child.id());
    let drain = Duration::from_millis(order.drain_ms);
    std::thread::spawn(move || end_without_lease(&watched, pid, drain));
    kept.exit = Some(ended(&mut child));
    kept.write(folder)
}

fn end_without_lease(folder: &Path, pid: u32, drain: Duration) {
    while lease_end(folder).is_some_and(|until| uptime() < until) {
        std::thread::sleep(POLL * 5);
    }
    signal(pid, Signal::TERM);
    std::thread::sleep(drain);
    signal(pid, Signal::KILL);
}

/// Waits for a process, and ends what it left in its group before its number can be another's.
fn ended(child: &mut Child) -> Exit {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while let Err(rustix::io::Errno::INTR) = waitid(WaitId::Pid(pid), options) {}
    }
    signal(child.id(), Signal::KILL);
    child.wait().map_or(Exit::Code(1), exit_of)
}

#[expect(
    clippy::disallowed_methods,
    reason = "only the process on the task's host knows where its own program lies"
)]
fn spawn(order: &Order, out: Stdio, err: Stdio) -> Result<Child, String> {
    let (program, args) = order.command.split_first().ok_or("there is no program")?;
    let own = std::env::current_exe().map_err(|e| e.to_string())?;
    let mut command = match program == OWN {
        true => Command::new(own),
        false => Command::new(program),
    };
    if order.cwd.is_dir() {
        command.current_dir(&order.cwd);
    }
    // Without a common file system the run's directory is another one on each host.
    if let Some(dir) = order.env.get("DOWNPOUR_DIR") {
        let _ = std::fs::create_dir_all(dir);
    }
    command.args(args).envs(&order.env);
    command.stdin(Stdio::null()).stdout(out).stderr(err);
    let child = group_of_its_own(&mut command).spawn();
    child.map_err(|e| format!("'{}' cannot be started: {e}", program.escape_debug()))
}

/// Tells of a task that its keeper keeps, to its end or that of the connection.
fn tell(
    folder: &Path,
    kept: &Kept,
    lease: Duration,
    from: Again,
    input: BufReader<impl Read + Send + 'static>,
    output: &mut impl Write,
) -> io::Result<()> {
    let (start, pid) = (kept.start, kept.pid);
    frames::write(output, &Frame::Started { start, pid })?;
    let asked: Arc<Mutex<Vec<(u64, f64)>>> = Arc::default();
    let is_over = Arc::new(AtomicBool::new(false));
    let (granted, over, place) = (asked.clone(), is_over.clone(), folder.to_owned());
    std::thread::spawn(move || {
        hear(input, |word| match word {
            Word::Lease(number) => {
                let mut asked = granted.lock();
                let when = asked.iter().find(|(n, _)| *n == number).map(|(_, at)| *at);
                asked.retain(|(n, _)| *n > number);
                if let Some(at) = when {
                    let _ = grant(&place, at + lease.as_secs_f64());
                }
            }
            Word::Signal(number) => pass(&place, start, number),
        });
        over.store(true, Ordering::Release);
    });
    let mut out = Tail::new(folder.join("out"), from.out);
    let mut err = Tail::new(folder.join("err"), from.err);
    let (mut number, mut ask_at) = (0, Instant::now());
    while !is_over.load(Ordering::Acquire) {
        // Looked at first: what was printed before the end is read after it.
        let now = Kept::read(folder).filter(|now| now.start == start);
        while out.pass(output, Frame::Out)? | err.pass(output, Frame::Err)? {}
        match now {
            Some(Kept {
                exit: Some(exit), ..
            }) => return frames::write(output, &Frame::Exit(exit)),
            Some(now) if now.is_kept() => {}
            _ => {
                // Without its keeper nobody would see its end.
                signal(pid, Signal::KILL);
                return frames::write(output, &Frame::Exit(Exit::Signal(9)));
            }
        }
        if ask_at <= Instant::now() {
            ask_at = Instant::now() + lease / ASKS_PER_LEASE;
            number += 1;
            asked.lock().push((number, uptime()));
            frames::write(output, &Frame::Lease(number))?;
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Hears the launcher until it is gone.
fn hear(mut input: BufReader<impl Read>, mut word: impl FnMut(Word)) {
    let mut line = String::new();
    loop {
        line.clear();
        match (&mut input).take(frames::MAX_LINE).read_line(&mut line) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        if let Ok(heard) = serde_json::from_str(&line) {
            word(heard);
        }
    }
}

/// Signals a task, if this start of it runs.
fn pass(folder: &Path, start: u64, number: i32) {
    let kept = Kept::read(folder).filter(|kept| kept.start == start && kept.is_alive());
    if let (Some(kept), Some(number)) = (kept, Signal::from_named_raw(number)) {
        signal(kept.pid, number);
    }
}

/// A file that grows.
struct Tail {
    path: PathBuf,
    file: Option<File>,
    offset: u64,
}

impl Tail {
    fn new(path: PathBuf, offset: u64) -> Tail {
        Tail {
            path,
            file: None,
            offset,
        }
    }

    /// Passes on what came since, or a piece of it; whether there was anything.
    fn pass(&mut self, to: &mut impl Write, frame: fn(Vec<u8>) -> Frame) -> io::Result<bool> {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        let Some(file) = &mut self.file else {
            return Ok(false);
        };
        file.seek(SeekFrom::Start(self.offset))?;
        let mut bytes = Vec::new();
        file.take(PIECE).read_to_end(&mut bytes)?;
        if bytes.is_empty() {
            return Ok(false);
        }
        self.offset += bytes.len() as u64;
        frames::write(to, &frame(bytes))?;
        Ok(true)
    }
}

/// What is done around tasks that end with their connections.
#[derive(Default)]
pub(crate) struct Surroundings {
    /// Where output is kept, too.
    logs: Option<PathBuf>,
    guard: Option<Mutex<Guard>>,
    /// How long a task goes on without a word from the launcher; for ever if nothing is said.
    lease: Option<Duration>,
    /// Tasks that run here, and their processes.
    running: Mutex<BTreeMap<String, u32>>,
}

impl Surroundings {
    pub(crate) fn new(logs: &Path, guard: Option<Guard>, lease: Duration) -> Surroundings {
        Surroundings {
            logs: Some(logs.to_owned()),
            guard: guard.map(Mutex::new),
            lease: Some(lease),
            running: Mutex::default(),
        }
    }

    /// The processes of tasks that run.
    pub(crate) fn running(&self) -> Vec<u32> {
        self.running.lock().values().copied().collect()
    }

    /// Ends the process that ran before as this task, whose connection broke.
    fn replace(&self, task: &str) {
        let before = self.running.lock().get(task).copied();
        let Some(pid) = before else { return };
        signal(pid, Signal::KILL);
        let begin = Instant::now();
        while self.running.lock().get(task) == Some(&pid) && begin.elapsed() < PATIENCE {
            std::thread::sleep(POLL);
        }
    }

    fn add(&self, task: &str, pid: u32) {
        self.running.lock().insert(task.to_owned(), pid);
        if let Some(guard) = &self.guard {
            guard.lock().add(pid);
        }
    }

    fn remove(&self, task: &str, pid: u32) {
        let mut running = self.running.lock();
        if running.get(task) == Some(&pid) {
            running.remove(task);
        }
        if let Some(guard) = &self.guard {
            guard.lock().remove(pid);
        }
    }

    /// Where one of a task's streams is kept.
    fn log(&self, task: &str, stream: &str) -> Option<File> {
        let path = self.logs.as_ref()?.join(format!("{task}.{stream}"));
        dir::append(&path).ok()
    }
}

/// Runs a task that ends with this connection.
pub(crate) fn hold(
    order: &Order,
    input: BufReader<impl Read + Send + 'static>,
    output: &mut (impl Write + Send),
    around: &Surroundings,
) -> io::Result<()> {
    around.replace(&order.task);
    let mut child = match spawn(order, Stdio::piped(), Stdio::piped()) {
        Ok(child) => child,
        Err(reason) => return refuse(output, reason),
    };
    let pid = child.id();
    around.add(&order.task, pid);
    let told = frames::write(output, &Frame::Started { start: 1, pid });
    let drain = Duration::from_millis(order.drain_ms);
    let is_over = Arc::new(AtomicBool::new(false));
    let over = is_over.clone();
    std::thread::spawn(move || {
        hear(input, |word| {
            if let Word::Signal(number) = word
                && let Some(number) = Signal::from_named_raw(number)
                && !over.load(Ordering::Acquire)
            {
                signal(pid, number);
            }
        });
        // The launcher is gone.
        for (number, patience) in [(Signal::TERM, drain), (Signal::KILL, Duration::ZERO)] {
            if !over.load(Ordering::Acquire) {
                signal(pid, number);
                std::thread::sleep(patience);
            }
        }
    });
    let streams = [
        child
            .stdout
            .take()
            .map(|s| (Box::new(s) as Stream, Frame::Out as Make, "stdout")),
        child
            .stderr
            .take()
            .map(|s| (Box::new(s) as Stream, Frame::Err as Make, "stderr")),
    ];
    let output = Mutex::new(output);
    let exit = std::thread::scope(|scope| {
        let (over, is_over) = mpsc::channel::<()>();
        if let Some(lease) = around.lease {
            let output = &output;
            scope.spawn(move || {
                let every = lease / ASKS_PER_LEASE;
                while is_over.recv_timeout(every) == Err(RecvTimeoutError::Timeout) {
                    // A peer that has gone is noticed by the reading side.
                    let _ = frames::write(&mut **output.lock(), &Frame::Lease(0));
                }
            });
        }
        for (mut stream, frame, name) in streams.into_iter().flatten() {
            let output = &output;
            let mut log = around.log(&order.task, name);
            scope.spawn(move || {
                let mut is_heard = true;
                let mut buffer = vec![0; 64 << 10];
                while let Ok(read @ 1..) = stream.read(&mut buffer) {
                    let bytes = buffer.get(..read).unwrap_or_default().to_vec();
                    if let Some(log) = &mut log {
                        // A full disk is no reason to stop a task.
                        let _ = log.write_all(&bytes);
                    }
                    is_heard =
                        is_heard && frames::write(&mut **output.lock(), &frame(bytes)).is_ok();
                    if !is_heard && log.is_none() {
                        return;
                    }
                }
            });
        }
        let exit = ended(&mut child);
        drop(over);
        exit
    });
    is_over.store(true, Ordering::Release);
    around.remove(&order.task, pid);
    told?;
    let mut output = output.lock();
    frames::write(&mut **output, &Frame::Exit(exit))
}

type Stream = Box<dyn Read + Send>;
type Make = fn(Vec<u8>) -> Frame;
