//! Follows a task through a program that speaks `frames`: `ssh HOST downpour supervise`, or the same under srun.

use crate::engine::Outlet;
use crate::frames::{self, Again, Frame, Order, Request, Word};
use crate::output::Printed;
use crate::remote::{Ending, Reins, Task};
use crate::state::Exit;
use parking_lot::Mutex;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// How long a short question to a host may take.
pub(crate) const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// Between two attempts to reach a host again.
const RETRY: Duration = Duration::from_secs(1);
/// Added to a lease before a task counts as ended: how far clocks of two hosts may run apart in it.
const MARGIN: Duration = Duration::from_secs(2);

/// How to reach the other half.
pub(crate) trait Reach {
    /// Connects with `downpour supervise` at this task.
    fn connect(&self, task: &Task) -> io::Result<Link>;

    /// How long a task outlives the connection; nothing if it ends with it.
    fn lease(&self) -> Option<Duration>;

    /// What became of a task that ended with its connection, without a word: what the program said.
    fn judge(&self, task: &Task, said: &str) -> Ending;
}

/// A connection with the other half.
pub(crate) struct Link {
    pub(crate) input: Box<dyn io::Write + Send>,
    pub(crate) output: Box<dyn Read + Send>,
    /// Ends it; what the program between said on the side.
    pub(crate) close: Box<dyn FnOnce() -> String>,
}

impl Link {
    /// Through the standard streams of a program.
    pub(crate) fn program(mut command: Command) -> io::Result<Link> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let said = gather(child.stderr.take());
        let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
        Ok(Link {
            input: Box::new(child.stdin.take().ok_or_else(gone)?),
            output: Box::new(child.stdout.take().ok_or_else(gone)?),
            close: Box::new(move || {
                let _ = child.kill();
                let _ = child.wait();
                said.join().unwrap_or_default()
            }),
        })
    }
}

/// A question that is answered at once.
pub(crate) fn ask(
    mut command: Command,
    request: &Request,
    within: Duration,
) -> Result<Frame, String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| {
            let program = command.get_program().to_string_lossy();
            format!("cannot start '{program}': {e}")
        })?;
    let said = gather(child.stderr.take());
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let (tell, told) = mpsc::channel();
    let request = serde_json::to_string(request).map_err(|e| e.to_string())?;
    std::thread::spawn(move || {
        let answer = || -> io::Result<Option<Frame>> {
            let (Some(mut stdin), Some(stdout)) = (stdin, stdout) else {
                return Ok(None);
            };
            io::Write::write_all(&mut stdin, format!("{request}\n").as_bytes())?;
            let mut from = BufReader::new(stdout);
            frames::await_greeting(&mut from)?;
            frames::read(&mut from)
        };
        let _ = tell.send(answer());
    });
    let answer = told.recv_timeout(within);
    let is_late = answer.is_err();
    let _ = child.kill();
    let status = child.wait();
    match answer {
        Ok(Ok(Some(Frame::Refused(reason)))) => Err(reason),
        Ok(Ok(Some(frame))) => Ok(frame),
        _ => {
            let said = said.join().unwrap_or_default();
            let last = said.lines().rfind(|line| !line.trim().is_empty());
            Err(match (last, is_late, status) {
                (Some(line), ..) => crate::output::cleaned(line),
                (None, true, _) => {
                    format!("no answer within {} s", within.as_secs())
                }
                (None, false, Ok(status)) => format!("it ended with {status}"),
                (None, false, Err(e)) => e.to_string(),
            })
        }
    }
}

/// Reads what a program says on the side, as far as anybody wants to know.
fn gather(stream: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    const MAX_SAID: u64 = 16 << 10;
    std::thread::spawn(move || {
        let mut said = Vec::new();
        if let Some(mut stream) = stream {
            let _ = (&mut stream).take(MAX_SAID).read_to_end(&mut said);
            // The rest must not block it.
            let _ = io::copy(&mut stream, &mut io::sink());
        }
        String::from_utf8_lossy(&said).into_owned()
    })
}

/// How one connection ended.
enum Broken {
    /// With the task.
    Ended(Ending),
    /// Before it; these were the program's words.
    Early(String),
}

/// Where programs of this machine would run, which is tried first on another.
#[expect(
    clippy::disallowed_methods,
    reason = "a task inherits the launcher's directory, as every child does"
)]
fn own_directory() -> PathBuf {
    std::env::current_dir().unwrap_or_default()
}

/// Starts a task, or finds it, and follows it to its end.
pub(crate) fn conduct(reach: &dyn Reach, task: &Task, reins: &Reins, outlet: &Outlet) -> Ending {
    let log = match outlet.begin() {
        Ok(log) => log,
        Err(e) => return Ending::NotStarted(format!("its log cannot be written: {e}")),
    };
    let mut order = Order {
        job: task.job.clone(),
        run: task.run(),
        task: task.file_name(),
        adopts: task.adopts,
        again: None,
        holds: reach.lease().is_none(),
        command: task.planned.command.clone(),
        env: task.env(),
        cwd: own_directory(),
        lease_ms: u64::try_from(reach.lease().unwrap_or_default().as_millis()).unwrap_or(u64::MAX),
        drain_ms: u64::try_from(task.drain.as_millis()).unwrap_or(u64::MAX),
    };
    // Until when the task may live without another word from here.
    let mut until = Instant::now() + reach.lease().unwrap_or_default();
    let mut place = Again::default();
    let mut is_noted = false;
    loop {
        let connection = Connection {
            reach,
            task,
            reins,
            outlet,
        };
        let broken = connection.follow(&order, &log, &mut place, &mut until);
        reins.drop_contact();
        let said = match broken {
            Broken::Ended(ending) => return ending,
            Broken::Early(said) => said,
        };
        if reach.lease().is_none() {
            return reach.judge(task, &said);
        }
        if place.start > 0 {
            order.again = Some(place);
        } else {
            // It may have been started without our having heard of it.
            order.adopts = true;
        }
        if Instant::now() >= until + MARGIN {
            return Ending::HostLost(said);
        }
        if !std::mem::replace(&mut is_noted, true) {
            let host = &task.host;
            reins.note(format!(
                "cannot be heard: {host}: {said}; it is tried again"
            ));
        }
        std::thread::sleep(RETRY);
    }
}

type Input = Box<dyn io::Write + Send>;

struct Connection<'a> {
    reach: &'a dyn Reach,
    task: &'a Task,
    reins: &'a Reins,
    outlet: &'a Outlet,
}

impl Connection<'_> {
    fn follow(&self, order: &Order, log: &File, place: &mut Again, until: &mut Instant) -> Broken {
        let link = match self.reach.connect(self.task) {
            Ok(link) => link,
            // What would be connected to is gone.
            Err(e) if e.kind() == io::ErrorKind::NotConnected => {
                return Broken::Early(e.to_string());
            }
            Err(e) => {
                let reason = format!("cannot start what connects to it: {e}");
                return Broken::Ended(Ending::NotStarted(reason));
            }
        };
        let input = Arc::new(Mutex::new(link.input));
        let ended = self.hear(input, link.output, order, log, place, until);
        let said = (link.close)();
        match ended {
            Ok(ending) => Broken::Ended(ending),
            Err(e) => {
                let last = said.lines().rfind(|line| !line.trim().is_empty());
                let last = last.map(crate::output::cleaned);
                Broken::Early(last.unwrap_or_else(|| e.to_string()))
            }
        }
    }

    fn hear(
        &self,
        input: Arc<Mutex<Input>>,
        output: Box<dyn Read + Send>,
        order: &Order,
        log: &File,
        place: &mut Again,
        until: &mut Instant,
    ) -> io::Result<Ending> {
        let gone = || io::Error::from(io::ErrorKind::UnexpectedEof);
        let mut from = BufReader::new(output);
        let request = serde_json::json!({ "task": order });
        frames::say(&mut *input.lock(), &request)?;
        frames::await_greeting(&mut from)?;
        let streams = Streams::new(self.outlet, log);
        let ending = loop {
            match frames::read(&mut from)?.ok_or_else(gone)? {
                Frame::Started { start, pid } => {
                    place.start = start;
                    self.take(pid, &input);
                }
                Frame::Out(bytes) => {
                    place.out += bytes.len() as u64;
                    streams.out(bytes);
                }
                Frame::Err(bytes) => {
                    place.err += bytes.len() as u64;
                    streams.err(bytes);
                }
                Frame::Lease(number) => {
                    frames::say(&mut *input.lock(), &Word::Lease(number))?;
                    *until = Instant::now() + self.reach.lease().unwrap_or_default();
                }
                Frame::Exit(exit) => break Ending::Exited(exit),
                Frame::Refused(reason) if order.again.is_some() => {
                    // It ended while it could not be heard, and another took its place.
                    break Ending::Exited(self.lost_exit(&reason));
                }
                Frame::Refused(reason) => break Ending::NotStarted(reason),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        };
        streams.finish();
        Ok(ending)
    }

    fn lost_exit(&self, reason: &str) -> Exit {
        self.reins.note(format!("ended unseen: {reason}"));
        Exit::Signal(9)
    }

    fn take(&self, pid: u32, input: &Arc<Mutex<Input>>) {
        let input = input.clone();
        let deliver = move |signal: rustix::process::Signal| {
            frames::say(&mut *input.lock(), &Word::Signal(signal.as_raw())).is_ok()
        };
        self.reins.take(Some(pid), Box::new(deliver));
    }
}

/// Cuts what comes in frames into lines: each stream has a thread that reads it as it would a pipe.
struct Streams {
    senders: [mpsc::Sender<Vec<u8>>; 2],
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Streams {
    fn new(outlet: &Outlet, log: &File) -> Streams {
        let mut threads = Vec::new();
        let senders = [Printed::Out, Printed::Err].map(|printed| {
            let (sender, pieces) = mpsc::channel();
            let (outlet, log) = (outlet.clone(), log.try_clone().ok());
            threads.push(std::thread::spawn(move || {
                outlet.copy(Pieces::new(pieces), log, printed);
            }));
            sender
        });
        Streams { senders, threads }
    }

    fn out(&self, bytes: Vec<u8>) {
        let _ = self.senders[0].send(bytes);
    }

    fn err(&self, bytes: Vec<u8>) {
        let _ = self.senders[1].send(bytes);
    }

    /// Everything has been passed on then.
    fn finish(self) {
        drop(self.senders);
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// What comes through a channel, as a stream.
struct Pieces {
    from: mpsc::Receiver<Vec<u8>>,
    piece: io::Cursor<Vec<u8>>,
}

impl Pieces {
    fn new(from: mpsc::Receiver<Vec<u8>>) -> Pieces {
        Pieces {
            from,
            piece: io::Cursor::default(),
        }
    }
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.piece.fill_buf()?.is_empty() {
            match self.from.recv() {
                Ok(piece) => self.piece = io::Cursor::new(piece),
                Err(_) => return Ok(0),
            }
        }
        self.piece.read(buffer)
    }
}
