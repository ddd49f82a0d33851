//! Tasks as containers, through the `docker` program: so contexts, remote daemons and credentials are those of the
//! user. Containers outlive the launcher; labels tell one that comes after it which are whose.

use crate::engine::{Outlet, Placed};
use crate::launcher::Setup;
use crate::output::{Printed, cleaned};
use crate::plan::{self, Planned};
use crate::remote::{Ending, Reins, Site, Task};
use crate::site::Resources;
use crate::spec::{JobSpec, SpecError};
use crate::state::{Exit, TaskRole};
use crate::supervise::OWN;
use parking_lot::Mutex;
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Read;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Every task listens here: containers have addresses of their own.
const PORT: u16 = 2222;
/// How long a daemon may be away before its containers count as lost.
const AWAY: Duration = Duration::from_secs(60);
/// Between two looks for it.
const RETRY: Duration = Duration::from_secs(1);
/// The daemon must answer by then.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);
const JOB_LABEL: &str = "io.github.downpour.job";
const RUN_LABEL: &str = "io.github.downpour.run";

/// The containers of a job.
pub(crate) struct Docker {
    job: String,
    spec: crate::site::Docker,
    resources: BTreeMap<String, Resources>,
    /// This program on this machine, and the programs of the job.
    files: Vec<PathBuf>,
    /// The image that was built for the job.
    built: Mutex<Option<String>>,
    dir: Mutex<PathBuf>,
}

impl Docker {
    /// Finds out whether the daemon answers and has the image.
    pub(crate) fn prepare(spec: &JobSpec, setup: &Setup) -> Result<Docker, String> {
        let answer = docker_within(
            &["version", "--format", "{{.Server.Version}}"],
            ANSWER_WITHIN,
        );
        answer.map_err(|e| format!("the Docker daemon cannot be used: {e}"))?;
        if let Some(image) = &spec.docker.image {
            docker(&["image", "inspect", "--format", "{{.Id}}", image]).map_err(|_| {
                format!("there is no image '{image}' here; docker pull {image} brings it, if it has a registry")
            })?;
        }
        if let Some(network) = &spec.docker.network {
            docker(&["network", "inspect", "--format", "{{.Id}}", network])
                .map_err(|e| format!("the network '{network}' cannot be used: {e}"))?;
        }
        let mut files = vec![PathBuf::from(&setup.server)];
        let commands = spec
            .tasks
            .values()
            .filter_map(|group| group.command.as_ref());
        for program in commands.chain([&spec.command]).filter_map(|c| c.first()) {
            // What is no file here is to be in a volume.
            if let Ok(found) = Path::new(program).canonicalize()
                && found.is_file()
                && Path::new(program).is_absolute()
            {
                files.push(PathBuf::from(program));
            }
        }
        let groups = spec.tasks.iter();
        Ok(Docker {
            job: spec.name.clone(),
            spec: spec.docker.clone(),
            resources: groups
                .map(|(job, group)| (job.clone(), group.resources.clone()))
                .collect(),
            files,
            built: Mutex::default(),
            dir: Mutex::default(),
        })
    }

    fn network(&self) -> String {
        let made = || format!("downpour-{}", self.job);
        self.spec.network.clone().unwrap_or_else(made)
    }

    fn image(&self) -> String {
        let built = self.built.lock().clone();
        self.spec.image.clone().or(built).unwrap_or_default()
    }

    /// An image from scratch: this program, the job's, and the libraries that they load.
    fn build(&self) -> Result<String, String> {
        let mut files = BTreeSet::new();
        for file in &self.files {
            files.extend(libraries(file));
            files.insert(file.clone());
        }
        let mut hash = DefaultHasher::new();
        for file in &files {
            let found = file.metadata().map_err(|e| e.to_string())?;
            (file, found.len(), found.mtime(), found.mtime_nsec()).hash(&mut hash);
        }
        let image = format!("downpour-run:{:016x}", hash.finish());
        if docker(&["image", "inspect", "--format", "{{.Id}}", &image]).is_ok() {
            return Ok(image);
        }
        let mut tar = Command::new("tar");
        // Links are followed: a library is there under the name by which it is looked for.
        tar.args(["--create", "--dereference", "--directory", "/", "--"]);
        tar.args(files.iter().filter_map(|f| f.strip_prefix("/").ok()));
        let mut tar = tar
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|e| format!("cannot start 'tar': {e}"))?;
        let archive = tar.stdout.take().ok_or("tar gave no archive")?;
        let made = Command::new("docker")
            .args([
                "import",
                "--change",
                "ENV PATH=/usr/local/bin:/usr/bin:/bin",
                "-",
                &image,
            ])
            .stdin(archive)
            .output()
            .map_err(|e| format!("cannot start 'docker': {e}"))?;
        let packed = tar.wait().map_err(|e| e.to_string())?;
        match made.status.success() && packed.success() {
            true => Ok(image),
            false => Err(format!(
                "the image cannot be built: {}",
                last_line(&made.stderr)
            )),
        }
    }

    fn run(&self, task: &Task) -> Result<(), String> {
        let mut command = Command::new("docker");
        let name = &task.host;
        command.args([
            "run",
            "--detach",
            "--init",
            "--name",
            name,
            "--network",
            &self.network(),
        ]);
        if let Some(alias) = alias(&task.planned) {
            command.args(["--network-alias", &alias]);
        }
        let dir = task.run();
        command.args(["--label", &format!("{JOB_LABEL}={}", self.job)]);
        command.args(["--label", &format!("{RUN_LABEL}={dir}")]);
        command.args(["--volume", &format!("{dir}:{dir}"), "--workdir", &dir]);
        for volume in &self.spec.volumes {
            command.args(["--volume", volume]);
        }
        let resources = self.resources.get(&task.planned.name.job);
        if let Some(resources) = resources {
            if let Some(cpus) = resources.cpus {
                command.args(["--cpus", &cpus.to_string()]);
            }
            if let Some(bytes) = resources.bytes() {
                command.args(["--memory", &bytes.to_string()]);
            }
            if let Some(gpus) = resources.gpus {
                command.args(["--gpus", &gpus.to_string()]);
            }
        }
        command.args(&self.spec.options);
        // Values pass by the environment, so that no list of processes shows them.
        let env = task.env();
        for name in env.keys() {
            command.args(["--env", name]);
        }
        let (program, args) = task
            .planned
            .command
            .split_first()
            .ok_or("there is no program")?;
        command.args(["--entrypoint", &self.program(program)]);
        command.arg(self.image()).args(args).envs(&env);
        match output(&mut command) {
            Ok(_) => Ok(()),
            Err(e) => {
                let _ = docker(&["rm", "--force", name]);
                Err(e)
            }
        }
    }

    /// In an image of our own this program is where it is on this machine.
    fn program(&self, name: &str) -> String {
        match (name == OWN && self.spec.image.is_none(), self.files.first()) {
            (true, Some(own)) => own.display().to_string(),
            _ => name.to_owned(),
        }
    }

    /// Whether this run of the job has the container already.
    fn has(&self, task: &Task) -> bool {
        let format = format!("{{{{index .Config.Labels \"{RUN_LABEL}\"}}}}");
        docker(&["inspect", "--format", &format, &task.host]).is_ok_and(|run| run == task.run())
    }
}

impl Site for Docker {
    fn server(&self) -> String {
        OWN.to_owned()
    }

    fn place(&self, spec: &JobSpec, lost: &BTreeSet<String>) -> Result<Placed, String> {
        if !lost.is_empty() {
            return Err("the Docker daemon is gone".to_owned());
        }
        let (cluster, planned) = named(spec).map_err(|e| e.to_string())?;
        let name = |p: &Planned| Some(format!("downpour-{}-{}", spec.name, file_name(p)));
        Ok(Placed {
            hosts: planned.iter().map(name).collect(),
            cluster,
        })
    }

    fn begin(&self, _spec: &JobSpec, dir: &Path) -> Result<(), String> {
        dir.clone_into(&mut self.dir.lock());
        if self.spec.image.is_none() {
            *self.built.lock() = Some(self.build()?);
        }
        let network = self.network();
        if docker(&["network", "inspect", "--format", "{{.Id}}", &network]).is_err() {
            let label = format!("{JOB_LABEL}={}", self.job);
            docker(&["network", "create", "--label", &label, &network])
                .map_err(|e| format!("the network '{network}' cannot be made: {e}"))?;
        }
        Ok(())
    }

    fn conduct(&self, task: &Task, reins: &Reins, outlet: &Outlet) -> Ending {
        let log = match outlet.begin() {
            Ok(log) => log,
            Err(e) => return Ending::NotStarted(format!("its log cannot be written: {e}")),
        };
        let name = &task.host;
        if !(task.adopts && self.has(task)) {
            let _ = docker(&["rm", "--force", name]);
            if let Err(e) = self.run(task) {
                return Ending::NotStarted(e);
            }
        }
        let mut all = true;
        let mut away_since = None;
        loop {
            let mut logs = Command::new("docker");
            logs.args(["logs", "--follow"]);
            if !std::mem::replace(&mut all, false) {
                logs.args(["--tail", "0"]);
            }
            let logs = logs
                .arg(name)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn();
            let mut logs = match logs {
                Ok(logs) => logs,
                Err(e) => return Ending::NotStarted(format!("cannot start 'docker': {e}")),
            };
            let pid = docker(&["inspect", "--format", "{{.State.Pid}}", name]);
            let pid = pid
                .ok()
                .and_then(|pid| pid.parse().ok())
                .filter(|pid| *pid > 0);
            let container = name.clone();
            reins.take(
                pid,
                Box::new(move |signal: Signal| {
                    let number = signal.as_raw().to_string();
                    docker(&["kill", "--signal", &number, &container]).is_ok()
                }),
            );
            let streams = [
                logs.stdout
                    .take()
                    .map(|s| (Box::new(s) as Stream, Printed::Out)),
                logs.stderr
                    .take()
                    .map(|s| (Box::new(s) as Stream, Printed::Err)),
            ];
            std::thread::scope(|scope| {
                for (stream, printed) in streams.into_iter().flatten() {
                    let log = log.try_clone().ok();
                    scope.spawn(move || outlet.copy(stream, log, printed));
                }
            });
            let _ = logs.wait();
            match ended(name) {
                Ok(Some(exit)) => return Ending::Exited(exit),
                Ok(None) => away_since = None,
                Err(reason) => {
                    reins.drop_contact();
                    let since = *away_since.get_or_insert_with(Instant::now);
                    if since.elapsed() > AWAY {
                        return Ending::HostLost(reason);
                    }
                }
            }
            std::thread::sleep(RETRY);
        }
    }

    fn find(&self, job: &str, _hosts: &[Option<String>]) -> Result<Option<String>, String> {
        let filter = format!("label={JOB_LABEL}={job}");
        let format = format!("{{{{.Label \"{RUN_LABEL}\"}}}}");
        let runs = docker(&["ps", "--filter", &filter, "--format", &format])?;
        Ok(runs.lines().next().map(str::to_owned))
    }

    fn clean_up(&self, job: &str, run: &str) {
        let job = format!("label={JOB_LABEL}={job}");
        let run = format!("label={RUN_LABEL}={run}");
        let ours = docker(&["ps", "--all", "--quiet", "--filter", &job, "--filter", &run]);
        let ours = ours.unwrap_or_default();
        if !ours.is_empty() {
            let mut words = vec!["rm", "--force"];
            words.extend(ours.lines());
            let _ = docker(&words);
        }
        if self.spec.network.is_none() {
            let _ = docker(&["network", "rm", &self.network()]);
        }
        if let Some(image) = &*self.built.lock() {
            // Another job of the same programs may use it.
            let _ = docker(&["image", "rm", image]);
        }
    }
}

type Stream = Box<dyn Read + Send>;

fn file_name(planned: &Planned) -> String {
    let log = planned.name.log_file();
    log.trim_end_matches(".log").to_owned()
}

/// The name of a task in the job's network; it is that of the process that listens.
fn alias(planned: &Planned) -> Option<String> {
    let name = planned.address.as_deref()?.rsplit_once(':')?.0;
    planned.listens.then(|| name.to_owned())
}

/// The cluster by names, and its processes.
fn named(spec: &JobSpec) -> Result<(downpour_cluster::ClusterSpec, Vec<Planned>), SpecError> {
    let mut addresses = Vec::new();
    for (job, group) in spec.tasks.iter().filter(|(job, _)| *job != "evaluator") {
        addresses.extend((0..group.count).map(|index| format!("{job}-{index}:{PORT}")));
    }
    let cluster = plan::cluster(spec, addresses.into_iter())?;
    let planned = plan::processes(spec, &cluster, OWN)?;
    Ok((cluster, planned))
}

/// How a container ended, if it has.
fn ended(name: &str) -> Result<Option<Exit>, String> {
    let state = docker(&[
        "inspect",
        "--format",
        "{{.State.Status}} {{.State.ExitCode}}",
        name,
    ]);
    let state = match state {
        Ok(state) => state,
        // Somebody has removed it.
        Err(e) if e.contains("No such") => return Ok(Some(Exit::Signal(9))),
        Err(e) => return Err(e),
    };
    let (status, code) = state.split_once(' ').unwrap_or((&state, "1"));
    if !matches!(status, "exited" | "dead") {
        return Ok(None);
    }
    let code = code.trim().parse().unwrap_or(1);
    Ok(Some(match code {
        129..=159 => Exit::Signal(code - 128),
        code => Exit::Code(code),
    }))
}

/// The libraries that a program loads, and what loads them; none of one that is static.
fn libraries(program: &Path) -> Vec<PathBuf> {
    let listed = Command::new("ldd").arg(program).output();
    let text = listed.map(|l| String::from_utf8_lossy(&l.stdout).into_owned());
    let text = text.unwrap_or_default();
    let path = |line: &str| {
        let place = line.split_once("=>").map_or(line, |(_, place)| place);
        let place = place.split_whitespace().next()?;
        place.starts_with('/').then(|| PathBuf::from(place))
    };
    text.lines().filter_map(path).collect()
}

fn docker(words: &[&str]) -> Result<String, String> {
    output(Command::new("docker").args(words))
}

fn docker_within(words: &[&str], within: Duration) -> Result<String, String> {
    let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = tell.send(output(Command::new("docker").args(words)));
    });
    let late = || Err(format!("no answer within {} s", within.as_secs()));
    told.recv_timeout(within).unwrap_or_else(|_| late())
}

fn output(command: &mut Command) -> Result<String, String> {
    let program = command.get_program().to_string_lossy().into_owned();
    let out = command
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("cannot start '{program}': {e}"))?;
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned()),
        false => Err(last_line(&out.stderr)),
    }
}

/// What a program said last that is no hint for its usage.
fn last_line(said: &[u8]) -> String {
    let said = String::from_utf8_lossy(said);
    let is_hint = |line: &str| line.starts_with("See '") || line.starts_with("Run 'docker");
    let told = |line: &&str| !line.trim().is_empty() && !is_hint(line);
    cleaned(said.lines().rfind(told).unwrap_or("it said nothing"))
}

/// The job as a file for `docker compose`.
///
/// ```
/// let text = "on = 'docker'\ncommand = ['/train']\n[docker]\nimage = 'me/train'\n[tasks.worker]\ncount = 1\n";
/// let spec = downpour_launch::JobSpec::from_text(text)?;
/// assert!(downpour_launch::compose(&spec)?.contains("  worker-0:\n    image: \"me/train\"\n"));
/// # Ok::<(), downpour_launch::SpecError>(())
/// ```
pub fn compose(spec: &JobSpec) -> Result<String, SpecError> {
    let Some(image) = &spec.docker.image else {
        let text = "a compose file needs --image: one that has 'downpour' and the program";
        return Err(SpecError::Missing(text.to_owned()));
    };
    let (_, planned) = named(spec)?;
    let quoted = |text: &str| serde_json::Value::from(text).to_string().replace('$', "$$");
    let mut out = format!("name: {}\nservices:\n", quoted(&spec.name.to_lowercase()));
    let servers: Vec<String> = planned
        .iter()
        .filter(|p| p.role == TaskRole::Server)
        .map(file_name)
        .collect();
    for task in &planned {
        let words = task.command.iter().map(|w| quoted(w));
        let words: Vec<String> = words.collect();
        let (program, args) = words.split_first().map_or(("", &[][..]), |(p, a)| (p, a));
        let mut line = |text: String| writeln!(out, "{text}").unwrap_or(());
        line(format!("  {}:", file_name(task)));
        line(format!("    image: {}", quoted(image)));
        line(format!("    entrypoint: [{program}]"));
        line(format!("    command: [{}]", args.join(", ")));
        line("    init: true".to_owned());
        if let Some(alias) = alias(task) {
            line(format!(
                "    networks: {{default: {{aliases: [{}]}}}}",
                quoted(&alias)
            ));
        }
        // A server goes when the job does: `docker compose down` when the programs are done.
        line(format!(
            "    restart: {}",
            match task.role {
                TaskRole::Server => "unless-stopped",
                _ => "on-failure",
            }
        ));
        if task.role != TaskRole::Server && !servers.is_empty() {
            let names: Vec<String> = servers.iter().map(|s| quoted(s)).collect();
            line(format!("    depends_on: [{}]", names.join(", ")));
        }
        if !spec.docker.volumes.is_empty() {
            let volumes: Vec<String> = spec.docker.volumes.iter().map(|v| quoted(v)).collect();
            line(format!("    volumes: [{}]", volumes.join(", ")));
        }
        if let Some(group) = spec.tasks.get(&task.name.job) {
            if let Some(cpus) = group.resources.cpus {
                line(format!("    cpus: {cpus}"));
            }
            if let Some(bytes) = group.resources.bytes() {
                line(format!("    mem_limit: {bytes}"));
            }
        }
        let env: Vec<String> = task
            .env
            .iter()
            .map(|(name, value)| format!("      {}: {}", quoted(name), quoted(value)))
            .collect();
        if !env.is_empty() {
            line(format!("    environment:\n{}", env.join("\n")));
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compose_file_names_tasks_and_hides_no_dollar() {
        let text = "name = 'Mnist'\non = 'docker'\ncommand = ['/train', '--price=$5']\n[docker]\nimage = 'me/train:1'\n\
            volumes = ['/data:/data:ro']\n[tasks.ps]\ncount = 1\n[tasks.worker]\ncount = 1\nserve = true\n\
            resources = { cpus = 0.5, memory = '64M' }\n";
        let spec = JobSpec::from_text(text).unwrap();
        let want = include_str!("../tests/compose.yaml");
        assert_eq!(compose(&spec).unwrap(), want);
    }

    #[test]
    fn a_program_s_libraries_are_found() {
        let found = libraries(Path::new("/bin/sh"));
        assert!(
            found
                .iter()
                .any(|f| f.to_string_lossy().contains("libc.so")),
            "{found:?}"
        );
    }
}
