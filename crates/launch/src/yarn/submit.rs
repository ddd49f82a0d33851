//! The user's side: brings files to HDFS, hands the application in, or finds the one of the same name that runs, and follows it to its end.

use super::hello::{Peer, introduce};
use super::spec::named;
use super::{ORDER, ORDER_ENV, Order, PROGRAM, Placed};
use crate::TaskName;
use crate::frames::{self, Frame, Word};
use crate::launcher::LaunchError;
use crate::spec::JobSpec;
use crate::state::Exit;
use downpour_yarn::{AppReport, Conf, Launch, Limits, NewApp, Resource, Rm, Secret, WebHdfs};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Of which kind applications are.
const KIND: &str = "DOWNPOUR";
/// How often the ResourceManager is asked.
const LOOK_EVERY: Duration = Duration::from_millis(300);
/// How long it may be away.
const AWAY: Duration = Duration::from_secs(120);
/// How long YARN may take to end an application whose job is over.
const END_WITHIN: Duration = Duration::from_secs(60);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// An ApplicationMaster says something more often than that.
const SILENT_FOR: Duration = Duration::from_secs(20);
/// What somebody killed from outside ends with.
const KILLED: Exit = Exit::Signal(9);

/// A job in YARN's hands.
pub struct YarnJob {
    /// The application's number.
    pub id: String,
    /// Whether it was there before.
    pub is_adopted: bool,
    rm: Rm,
    files: WebHdfs,
    staging: String,
    secret: Secret,
}

fn place(text: impl Into<String>) -> LaunchError {
    LaunchError::Place(text.into())
}

/// A word by which applications of a job are found. YARN keeps lower case only.
fn tag(name: &str) -> String {
    format!("downpour-job-{}", name.to_ascii_lowercase())
}

fn is_same(a: &JobSpec, b: &JobSpec) -> bool {
    let bare = |spec: &JobSpec| JobSpec {
        dir: None,
        ..spec.clone()
    };
    bare(a) == bare(b)
}

/// Hands a job in, unless one of its name runs: then that is taken over. `own` is this program, `conf` the cluster's settings.
pub fn submit_to_yarn(
    spec: &JobSpec,
    own: &str,
    conf: &Conf,
    user: &str,
    kills: &[(TaskName, Duration)],
) -> Result<YarnJob, LaunchError> {
    spec.check()?;
    let missing = |what: &str, key: &str| {
        place(format!(
            "the cluster's {what} is not known: set HADOOP_CONF_DIR to a folder whose files have {key}"
        ))
    };
    let (web, schedulers) = (conf.rm_web(), conf.rm_scheduler());
    if web.is_empty() || schedulers.is_empty() {
        return Err(missing("ResourceManager", "yarn.resourcemanager.hostname"));
    }
    let file_system = conf.file_system().filter(|url| url.starts_with("hdfs://"));
    let file_system = file_system.ok_or_else(|| missing("HDFS", "fs.defaultFS = hdfs://…"))?;
    let name_nodes = conf.name_nodes();
    let rm = Rm::new(web, user);
    let files = WebHdfs::new(name_nodes.clone(), &file_system, user);
    let unreachable = |e: downpour_yarn::HttpError| place(format!("YARN cannot be used: {e}"));
    let root = format!("/user/{user}/.downpour");
    for app in rm.find(&tag(&spec.name)).map_err(unreachable)? {
        if let Some(job) = adopt(&app, spec, &rm, &files, &root)? {
            return Ok(job);
        }
    }
    let (id, limits) = rm.new_application().map_err(unreachable)?;
    fits(spec, limits)?;
    let staging = format!("{root}/{id}");
    let secret = Secret::new().map_err(|e| place(format!("no randomness: {e}")))?;
    let mut spec = spec.clone();
    if spec.dir.is_none() {
        // Of all places only this one is seen by all tasks.
        let dir = format!("{file_system}/user/{user}/downpour-runs/{}-{id}", spec.name);
        spec.dir = Some(dir.into());
    }
    let job = YarnJob {
        id,
        is_adopted: false,
        rm,
        files,
        staging,
        secret,
    };
    match job.hand_in(
        spec,
        own,
        (schedulers, name_nodes, file_system, user),
        kills,
    ) {
        Ok(()) => Ok(job),
        Err(e) => {
            job.clear();
            Err(e)
        }
    }
}

/// The job of an application that runs, if it is this one.
fn adopt(
    app: &AppReport,
    spec: &JobSpec,
    rm: &Rm,
    files: &WebHdfs,
    root: &str,
) -> Result<Option<YarnJob>, LaunchError> {
    let (name, id) = (&spec.name, &app.id);
    let staging = format!("{root}/{id}");
    let bytes = files.read(&format!("{staging}/{ORDER}"));
    let bytes = bytes.map_err(|e| {
        place(format!(
            "application {id} has the job '{name}' already, and cannot be looked at: {e}"
        ))
    })?;
    // Without a folder it is about to end.
    let Some(bytes) = bytes else { return Ok(None) };
    let (order, secret) = Order::read(&bytes).map_err(place)?;
    if order.spec.name != spec.name {
        return Ok(None);
    }
    match is_same(&order.spec, spec) {
        true => Ok(Some(YarnJob {
            id: id.clone(),
            is_adopted: true,
            rm: rm.clone(),
            files: files.clone(),
            staging,
            secret,
        })),
        false => Err(place(format!(
            "YARN has a job '{name}' already, {id}, of another description; take another --name, or yarn application -kill {id}"
        ))),
    }
}

/// Says which task asks for more than a container of this cluster may have.
fn fits(spec: &JobSpec, limits: Limits) -> Result<(), LaunchError> {
    let roles = spec
        .tasks
        .keys()
        .map(|role| (role.as_str(), spec.yarn.container(spec, role)));
    for (role, wanted) in roles.chain([("the ApplicationMaster", spec.yarn.master())]) {
        let Resource {
            memory_mb, cores, ..
        } = wanted;
        if memory_mb > limits.memory_mb || u64::from(cores) > limits.cores {
            return Err(place(format!(
                "{role} asks for {memory_mb} MiB and {cores} cores; a container of this cluster has at most {} MiB and {} cores",
                limits.memory_mb, limits.cores
            )));
        }
    }
    Ok(())
}

type Cluster<'a> = (Vec<String>, Vec<String>, String, &'a str);

impl YarnJob {
    fn hand_in(
        &self,
        spec: JobSpec,
        own: &str,
        (schedulers, name_nodes, file_system, user): Cluster<'_>,
        kills: &[(TaskName, Duration)],
    ) -> Result<(), LaunchError> {
        let wrong = |e: downpour_yarn::HttpError| place(format!("HDFS cannot be used: {e}"));
        self.files.make_dir(&self.staging).map_err(wrong)?;
        let mut files = BTreeMap::from([(PROGRAM.to_owned(), self.bring(own, PROGRAM, false)?)]);
        for (entries, is_archive) in [(&spec.yarn.files, false), (&spec.yarn.archives, true)] {
            for entry in entries {
                let (from, name) = named(entry).unwrap_or((entry, entry));
                let file = self.bring(from, name, is_archive)?;
                if files.insert(name.to_owned(), file).is_some() || name == ORDER {
                    return Err(place(format!(
                        "two files for tasks are called '{name}'; PATH#NAME gives another name"
                    )));
                }
            }
        }
        let order = Order {
            secret: self.secret.to_hex(),
            schedulers,
            name_nodes,
            file_system,
            user: user.to_owned(),
            staging: self.staging.clone(),
            files,
            kills: kills
                .iter()
                .map(|(name, after)| (name.to_string(), after.as_millis() as u64))
                .collect(),
            spec,
        };
        let text = serde_json::to_vec(&order).map_err(|e| place(e.to_string()))?;
        let placed = self
            .files
            .write(&format!("{}/{ORDER}", self.staging), &text)
            .map_err(wrong)?;
        let known = format!("{} {} {}", placed.url, placed.length, placed.modified);
        let mut local: BTreeMap<_, _> = order
            .files
            .iter()
            .map(|(name, file)| (name.clone(), file.status()))
            .collect();
        local.insert(ORDER.to_owned(), (placed, false));
        let app = NewApp {
            id: self.id.clone(),
            name: order.spec.name.clone(),
            kind: KIND.to_owned(),
            tags: vec![tag(&order.spec.name)],
            queue: order.spec.yarn.queue.clone(),
            label: None,
            attempts: order.spec.yarn.attempts,
            resource: order.spec.yarn.master(),
            launch: Launch {
                command: format!(
                    "exec ./{PROGRAM} yarn-master --logs <LOG_DIR> 1><LOG_DIR>/job.log 2>&1"
                ),
                env: BTreeMap::from([(ORDER_ENV.to_owned(), known)]),
                files: local,
                ..Launch::default()
            },
        };
        self.rm
            .submit(&app)
            .map_err(|e| place(format!("YARN does not take the job: {e}")))
    }

    /// Brings a file to HDFS, if it is not there.
    fn bring(&self, from: &str, name: &str, is_archive: bool) -> Result<Placed, LaunchError> {
        let there = |path: &str| match self.files.status(path) {
            Ok(Some(status)) => Ok(Placed::new(status, is_archive)),
            Ok(None) => Err(place(format!("there is no file '{}'", from.escape_debug()))),
            Err(e) => Err(place(format!("HDFS cannot be used: {e}"))),
        };
        if let Some(path) = from
            .strip_prefix(&self.files.url(""))
            .filter(|path| path.starts_with('/'))
        {
            return there(path);
        }
        if let Some(path) = from.strip_prefix("hdfs:///") {
            return there(&format!("/{path}"));
        }
        let shown = from.escape_debug();
        let file = File::open(Path::new(from))
            .map_err(|e| place(format!("cannot read the file '{shown}': {e}")))?;
        let found = file
            .metadata()
            .map_err(|e| place(format!("cannot read the file '{shown}': {e}")))?;
        if !found.is_file() {
            return Err(place(format!(
                "'{shown}' is no file; of a directory, make an archive"
            )));
        }
        let is_program = found.permissions().mode() & 0o111 != 0;
        let path = format!("{}/{name}", self.staging);
        let status = self.files.bring(&path, &file, is_program);
        let status =
            status.map_err(|e| place(format!("'{shown}' cannot be brought to HDFS: {e}")))?;
        Ok(Placed::new(status, is_archive))
    }

    /// Removes what the job has on HDFS.
    fn clear(&self) {
        // A name node that is away keeps it; it is this user's alone.
        let _ = self.files.remove(&self.staging);
    }

    /// Follows the job to its end: what it prints goes to `out`, what befalls it to `note`. Every message of `interrupts` asks it to end.
    pub fn follow(
        &self,
        out: &mut dyn Write,
        note: &dyn Fn(&str),
        interrupts: &Receiver<i32>,
    ) -> Result<Exit, String> {
        let mut following: Option<Following> = None;
        let (mut offset, mut master, mut told) = (0, String::new(), String::new());
        let (mut heard, mut asked) = (Instant::now(), 0);
        let mut exit: Option<(Exit, Instant)> = None;
        loop {
            match self.rm.report(&self.id) {
                Ok(report) if report.has_ended() => {
                    self.clear();
                    return Ok(exit.map_or_else(|| ended(&report, note), |(exit, _)| exit));
                }
                Ok(report) => {
                    heard = Instant::now();
                    if told != report.state {
                        note(&format!("YARN's {} is {}", self.id, report.state));
                        told.clone_from(&report.state);
                    }
                    if let (None, None, Some(address)) = (&following, &exit, report.master) {
                        if master != address {
                            // Another attempt begins its log anew.
                            (offset, master) = (0, address);
                        }
                        following = Following::start(&master, &self.secret, offset).ok();
                    }
                }
                Err(e) if heard.elapsed() > AWAY => {
                    return Err(format!("YARN does not tell of {} any more: {e}", self.id));
                }
                Err(_) => {}
            }
            if let Some((exit, at)) = exit
                && at.elapsed() > END_WITHIN
            {
                return Ok(exit);
            }
            // What comes is passed on at once, until it is time to look again.
            let look = Instant::now() + LOOK_EVERY;
            while Instant::now() < look {
                if let Ok(signal) = interrupts.try_recv() {
                    asked += 1;
                    self.interrupt(following.as_ref(), signal, asked, note);
                }
                let Some(at) = &following else {
                    std::thread::sleep(LOOK_EVERY / 6);
                    continue;
                };
                match at.heard.recv_timeout(LOOK_EVERY / 6) {
                    Ok(Frame::Out(bytes)) => {
                        offset += bytes.len() as u64;
                        // A closed terminal is no reason to stop.
                        let _ = out.write_all(&bytes).and_then(|()| out.flush());
                    }
                    Ok(Frame::Exit(code)) => {
                        exit = Some((code, Instant::now()));
                        following = None;
                    }
                    Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => following = None,
                }
            }
        }
    }

    fn interrupt(
        &self,
        following: Option<&Following>,
        signal: i32,
        asked: u32,
        note: &dyn Fn(&str),
    ) {
        let is_told = asked <= 2 && following.is_some_and(|at| at.signal(signal));
        if !is_told && let Err(e) = self.rm.kill(&self.id) {
            note(&format!("YARN's {} cannot be killed: {e}", self.id));
        }
    }
}

/// How an application ended that was not heard to its end.
fn ended(report: &AppReport, note: &dyn Fn(&str)) -> Exit {
    let text = report.diagnostics.trim();
    let code = text.strip_prefix("exit code ").and_then(|rest| {
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next();
        digits.and_then(|n| n.parse::<u8>().ok())
    });
    if !text.is_empty() {
        note(&crate::output::cleaned(&text.replace('\n', "; ")));
    }
    match (code, report.state.as_str(), report.final_status.as_str()) {
        (Some(code), ..) => Exit::Code(i32::from(code)),
        (None, "FINISHED", "SUCCEEDED") => Exit::Code(0),
        (None, "KILLED", _) => KILLED,
        _ => Exit::Code(1),
    }
}

/// A connection to the ApplicationMaster.
struct Following {
    stream: Arc<Mutex<TcpStream>>,
    heard: Receiver<Frame>,
}

impl Following {
    fn start(address: &str, secret: &Secret, offset: u64) -> io::Result<Following> {
        let address = address
            .to_socket_addrs()?
            .next()
            .ok_or_else(|| io::Error::other("the name has no address"))?;
        let mut stream = TcpStream::connect_timeout(&address, CONNECT_WITHIN)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SILENT_FOR))?;
        stream.set_write_timeout(Some(SILENT_FOR))?;
        let mut from = BufReader::new(stream.try_clone()?);
        introduce(secret, &Peer::Launcher(offset), &mut from, &mut stream)?;
        let (tell, heard) = mpsc::sync_channel(64);
        std::thread::spawn(move || {
            while let Ok(Some(frame)) = frames::read(&mut from) {
                if tell.send(frame).is_err() {
                    return;
                }
            }
        });
        Ok(Following {
            stream: Arc::new(Mutex::new(stream)),
            heard,
        })
    }

    fn signal(&self, signal: i32) -> bool {
        frames::say(&mut *self.stream.lock(), &Word::Signal(signal)).is_ok()
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        let _ = self.stream.lock().shutdown(Shutdown::Both);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_that_was_not_heard_is_read_from_yarn() {
        let report = |state: &str, status: &str, text: &str| AppReport {
            state: state.to_owned(),
            final_status: status.to_owned(),
            diagnostics: text.to_owned(),
            ..AppReport::default()
        };
        let code = |report: AppReport| ended(&report, &|_| {});
        assert_eq!(
            code(report("FINISHED", "FAILED", "exit code 7\nroot cause")),
            Exit::Code(7)
        );
        assert_eq!(code(report("FINISHED", "SUCCEEDED", "")), Exit::Code(0));
        assert_eq!(code(report("KILLED", "KILLED", "by user")), KILLED);
        assert_eq!(
            code(report("FAILED", "FAILED", "AM Container exited with 137")),
            Exit::Code(1)
        );
        assert_eq!(
            code(report("FINISHED", "FAILED", "exit code 999")),
            Exit::Code(1)
        );
    }

    #[test]
    fn a_job_that_fits_nowhere_is_told_so() {
        let text = "on = 'yarn'\ncommand = ['x']\n[tasks.worker]\ncount = 1\nresources = { memory = '1T' }\n";
        let spec = JobSpec::from_text(text).unwrap();
        let limits = Limits {
            memory_mb: 2048,
            cores: 4,
        };
        let error = fits(&spec, limits).unwrap_err().to_string();
        assert!(
            error.starts_with("worker asks for 1048576 MiB")
                || error.starts_with("worker asks for 953"),
            "{error}"
        );
    }
}
