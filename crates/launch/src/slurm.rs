//! Slurm. Outside an allocation a job becomes a script for sbatch, which runs the launcher inside of one; there every
//! task is a step. Steps end with the launcher: it is started again by the script, and programs go on from their
//! last checkpoint.

use crate::engine::{Outlet, Placed};
use crate::framed::{self, Link, Reach, ask};
use crate::frames::{Frame, Request};
use crate::launcher::{LaunchError, Setup};
use crate::output::cleaned;
use crate::remote::{Ending, Reins, Site, Task, spread};
use crate::site::{Resources, is_plain};
use crate::spec::{JobSpec, SpecError};
use crate::state::Exit;
use crate::{dir, supervise};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long a step may take to start and answer.
const STEP_WITHIN: Duration = Duration::from_secs(30);
/// The same when a node may be gone.
const PROBE_WITHIN: Duration = Duration::from_secs(10);

/// The allocation that this process runs in.
pub(crate) struct Allocation {
    own: String,
    nodes: Vec<String>,
    addresses: BTreeMap<String, String>,
    resources: BTreeMap<String, Resources>,
    job: String,
}

impl Allocation {
    /// Finds the nodes. `setup` says which allocation this is.
    pub(crate) fn prepare(spec: &JobSpec, setup: &Setup) -> Result<Allocation, String> {
        let Some((job, list)) = &setup.allocation else {
            return Err("this is no allocation of Slurm: SLURM_JOB_ID is not set".to_owned());
        };
        let slurm = |e| format!("Slurm cannot be asked for the nodes of job {job}: {e}");
        let names = output("scontrol", &["show", "hostnames", list]).map_err(slurm)?;
        let nodes: Vec<String> = names.lines().map(str::to_owned).collect();
        let mut addresses = BTreeMap::new();
        for node in &nodes {
            let shown = output("scontrol", &["--oneliner", "show", "node", node]).map_err(slurm)?;
            let address = field(&shown, "NodeAddr").unwrap_or(node);
            addresses.insert(node.clone(), address.to_owned());
        }
        let groups = spec.tasks.iter();
        Ok(Allocation {
            own: setup.server.clone(),
            nodes,
            addresses,
            resources: groups
                .map(|(job, group)| (job.clone(), group.resources.clone()))
                .collect(),
            job: job.clone(),
        })
    }

    /// `downpour supervise` as a step on a node.
    fn step(&self, node: &str, name: &str, resources: Option<&Resources>) -> Command {
        let mut command = Command::new("srun");
        command.args(["--jobid", &self.job, "--nodelist", node, "--job-name", name]);
        command.args([
            "--nodes=1",
            "--ntasks=1",
            "--overlap",
            "--unbuffered",
            "--quiet",
        ]);
        command.args(["--immediate=20", "--export=ALL"]);
        if let Some(resources) = resources {
            if let Some(cpus) = resources.cpus {
                // Whole ones, as Slurm gives them.
                command.arg(format!("--cpus-per-task={}", cpus.ceil().max(1.0)));
            }
            if let Some(bytes) = resources.bytes() {
                command.arg(format!("--mem={}K", bytes >> 10));
            }
            if let Some(gpus) = resources.gpus {
                command.arg(format!("--gres=gpu:{gpus}"));
            }
        }
        command.args([&self.own, "supervise"]);
        command
    }
}

impl Reach for Allocation {
    fn connect(&self, task: &Task) -> std::io::Result<Link> {
        let resources = self.resources.get(&task.planned.name.job);
        Link::program(self.step(&task.host, &task.file_name(), resources))
    }

    fn lease(&self) -> Option<Duration> {
        None
    }

    /// Whether the node still answers tells its end from the task's.
    fn judge(&self, task: &Task, said: &str) -> Ending {
        let probe = self.step(&task.host, "probe", None);
        match ask(probe, &Request::Check, PROBE_WITHIN) {
            Ok(_) => Ending::Exited(Exit::Signal(9)),
            Err(_) => Ending::HostLost(said.to_owned()),
        }
    }
}

impl Site for Allocation {
    fn server(&self) -> String {
        supervise::OWN.to_owned()
    }

    fn place(&self, spec: &JobSpec, lost: &BTreeSet<String>) -> Result<Placed, String> {
        let nodes = self.nodes.iter().filter(|n| !lost.contains(*n));
        let nodes: Vec<String> = nodes.cloned().collect();
        let address = |node: &str| {
            self.addresses
                .get(node)
                .map_or(node, String::as_str)
                .to_owned()
        };
        spread(spec, &nodes, address, |node, count| {
            let probe = self.step(node, "ports", None);
            match ask(probe, &Request::Ports(count), STEP_WITHIN) {
                Ok(Frame::Ports(ports)) => Ok(ports),
                Ok(_) => Err(format!("node '{node}' gave no ports")),
                Err(e) => Err(format!("node '{node}' cannot be used: {e}")),
            }
        })
    }

    fn conduct(&self, task: &Task, reins: &Reins, outlet: &Outlet) -> Ending {
        framed::conduct(self, task, reins, outlet)
    }

    /// Steps end with their connections.
    fn clean_up(&self, _job: &str, _run: &str) {}
}

/// A value of `scontrol --oneliner show`.
fn field<'a>(shown: &'a str, key: &str) -> Option<&'a str> {
    let pairs = shown.split_whitespace().filter_map(|w| w.split_once('='));
    pairs.into_iter().find(|(k, _)| *k == key).map(|(_, v)| v)
}

/// The script that runs a job's launcher in an allocation. `own` is this program, `dir` the run's directory, in which
/// the job lies as `job.json`; nodes must have both under these paths.
///
/// ```
/// let spec = downpour_launch::JobSpec::from_text("on = 'slurm'\ncommand = ['./train']\n[tasks.worker]\ncount = 2\n")?;
/// let text = downpour_launch::script(&spec, "/opt/downpour", "/home/me/run".as_ref())?;
/// assert!(text.contains("#SBATCH --nodes=2\n"));
/// # Ok::<(), downpour_launch::SpecError>(())
/// ```
pub fn script(spec: &JobSpec, own: &str, dir: &Path) -> Result<String, SpecError> {
    let shown = dir.display().to_string();
    for path in [own, &shown] {
        if !is_plain(path) {
            let wanted =
                "a path of letters, digits and '._-/': Slurm's scripts cannot quote others";
            return Err(crate::spec::value("a path", path, wanted));
        }
    }
    let count: u32 = spec.tasks.values().map(|group| group.count).sum();
    let nodes = spec.slurm.nodes.unwrap_or(count).max(1);
    let mut out = String::from("#!/bin/sh\n");
    let mut option = |text: &str| writeln!(out, "#SBATCH {text}").unwrap_or(());
    option(&format!("--job-name={}", spec.name));
    option(&format!("--nodes={nodes}"));
    // A lost node ends the tasks on it; the launcher gives them other places.
    option("--no-kill");
    option("--open-mode=append");
    option(&format!("--output={shown}/slurm.log"));
    for word in &spec.slurm.options {
        option(word);
    }
    let _ = write!(
        out,
        "\n# A launcher that was killed is started again; programs go on from their last checkpoint.\n\
         for attempt in 1 2 3 4 5; do\n  \
           {own} run --on slurm {shown}/job.json &\n  \
           launcher=$!\n  \
           trap 'kill -TERM $launcher' TERM INT\n  \
           wait $launcher\n  \
           code=$?\n  \
           while kill -0 $launcher 2>/dev/null; do wait $launcher; code=$?; done\n  \
           [ $code = 137 ] || break\n\
         done\n\
         exit $code\n"
    );
    Ok(out)
}

/// A job in Slurm's hands.
pub struct Submission {
    /// Slurm's number of it.
    pub id: String,
    /// Where its run is kept.
    pub dir: PathBuf,
    /// Whether it was there before.
    pub is_adopted: bool,
}

/// Hands a job to sbatch, unless one of its name is in the queue: then that is taken over.
pub fn submit(spec: &JobSpec, own: &str) -> Result<Submission, LaunchError> {
    spec.check()?;
    let place = LaunchError::Place;
    let queue = ["--noheader", "--me", "--format=%i", "--name", &spec.name];
    let queued =
        output("squeue", &queue).map_err(|e| place(format!("Slurm cannot be reached: {e}")))?;
    if let Some(id) = queued.lines().next().map(str::trim) {
        let shown = output("scontrol", &["--oneliner", "show", "job", id]);
        let shown =
            shown.map_err(|e| place(format!("Slurm's job {id} cannot be looked at: {e}")))?;
        let log = field(&shown, "StdOut").map(PathBuf::from);
        let dir = log.as_deref().and_then(Path::parent).map(Path::to_owned);
        let was = dir
            .as_ref()
            .and_then(|dir| std::fs::read_to_string(dir.join("job.json")).ok())
            .and_then(|text| JobSpec::from_text(&text).ok());
        let same = |was: &JobSpec| {
            JobSpec {
                dir: None,
                ..was.clone()
            } == JobSpec {
                dir: None,
                ..spec.clone()
            }
        };
        let name = &spec.name;
        return match (dir, was) {
            (Some(dir), Some(was)) if same(&was) => Ok(Submission {
                id: id.to_owned(),
                dir,
                is_adopted: true,
            }),
            _ => Err(place(format!(
                "Slurm has a job '{name}' already, {id}, of another description; take another --name or scancel {id}"
            ))),
        };
    }
    let folder = dir::make(spec.dir.as_deref(), &spec.name)?;
    let job = JobSpec {
        dir: Some(folder.clone()),
        ..spec.clone()
    };
    let script = script(&job, own, &folder)?;
    let unwritten = |source| LaunchError::Dir {
        path: folder.clone(),
        source,
    };
    for (name, text) in [("job.json", job.to_json()), ("job.sh", script)] {
        let path = folder.join(name);
        let _ = std::fs::remove_file(&path);
        let mut file = dir::append(&path).map_err(unwritten)?;
        file.write_all(text.as_bytes()).map_err(unwritten)?;
    }
    let script = folder.join("job.sh");
    let id = output("sbatch", &["--parsable", &script.display().to_string()])
        .map_err(|e| place(format!("Slurm does not take the job: {e}")))?;
    let id = id.split(';').next().unwrap_or(&id).to_owned();
    Ok(Submission {
        id,
        dir: folder,
        is_adopted: false,
    })
}

impl Submission {
    /// The job's state as Slurm calls it, and how it ended, once it has.
    pub fn look(&self) -> Result<(String, Option<Exit>), String> {
        let shown = output("scontrol", &["--oneliner", "show", "job", &self.id])?;
        let state = field(&shown, "JobState").unwrap_or("UNKNOWN").to_owned();
        let is_under_way = [
            "PENDING",
            "CONFIGURING",
            "RUNNING",
            "COMPLETING",
            "SUSPENDED",
            "REQUEUED",
        ]
        .contains(&state.as_str());
        let code = field(&shown, "ExitCode").and_then(|c| c.split_once(':'));
        let exit = match code.map(|(code, signal)| (code.parse(), signal.parse())) {
            Some((_, Ok(signal @ 1..))) => Exit::Signal(signal),
            Some((Ok(0), _)) if state != "COMPLETED" => Exit::Code(1),
            Some((Ok(code), _)) => Exit::Code(code),
            _ => Exit::Code(1),
        };
        Ok((state, (!is_under_way).then_some(exit)))
    }

    /// Why it waits, in Slurm's word.
    pub fn reason(&self) -> Option<String> {
        let shown = output("scontrol", &["--oneliner", "show", "job", &self.id]).ok()?;
        field(&shown, "Reason").map(str::to_owned)
    }

    /// Asks the launcher in the allocation to end the job; `again` ends it at once.
    pub fn cancel(&self, again: bool) -> Result<(), String> {
        let gentle = ["--batch", "--signal=TERM", &self.id];
        let words = if again { &gentle[2..] } else { &gentle[..] };
        output("scancel", words).map(drop)
    }

    /// What the launcher in the allocation says.
    pub fn log(&self) -> PathBuf {
        self.dir.join("slurm.log")
    }
}

fn output(program: &str, words: &[&str]) -> Result<String, String> {
    let out = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("cannot start '{program}': {e}"))?;
    let said = String::from_utf8_lossy(&out.stderr);
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned()),
        false => Err(cleaned(
            said.lines()
                .rfind(|l| !l.trim().is_empty())
                .unwrap_or("it said nothing"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_asks_for_what_the_job_needs_and_quotes_nothing_unfit() {
        let text = "on = 'slurm'\nname = 'mnist'\ncommand = ['./train']\n[slurm]\noptions = ['--partition=p']\n\
            [tasks.ps]\ncount = 1\n[tasks.worker]\ncount = 2\n";
        let spec = JobSpec::from_text(text).unwrap();
        let made = script(&spec, "/opt/downpour", Path::new("/run/mnist-1")).unwrap();
        assert_eq!(made, include_str!("../tests/slurm.sh"));
        assert!(script(&spec, "/opt/$(x)", Path::new("/run")).is_err());
        assert!(script(&spec, "/opt/x", Path::new("/run dir")).is_err());
    }

    #[test]
    fn values_are_found_in_what_scontrol_shows() {
        let shown = "NodeName=n1 Arch=x86_64 NodeAddr=127.0.0.1 NodeHostName=h";
        assert_eq!(field(shown, "NodeAddr"), Some("127.0.0.1"));
        assert_eq!(field(shown, "State"), None);
    }
}
