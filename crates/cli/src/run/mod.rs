//! `downpour run`: launches a program as a job of many processes.

pub(crate) mod conduct;
pub(crate) mod console;
mod guard;
mod slurm;
mod supervise;
mod yarn;

pub(crate) use guard::Guard;
pub(crate) use supervise::Supervise;
pub(crate) use yarn::{Agent as YarnAgent, Master as YarnMaster};

use crate::coordinator::Coordinator;
use crate::dashboard::{Beside, DashboardFlags};
use crate::serve::duration;
use anyhow::{Context as _, Result, bail};
use clap::{Args, ValueEnum};
use conduct::{conduct, origin, setup};
use console::{Console, When};
use downpour_launch::{DoneWhen, JobSpec, Launcher, MAX_TEXT, On, TaskName};
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Flags of `downpour run`.
#[derive(Args)]
pub(crate) struct Run {
    /// The job as a file, TOML or JSON; flags go before what it says
    #[arg(value_name = "FILE")]
    job: Option<PathBuf>,

    /// Parameter servers [default: 0]
    #[arg(long, value_name = "N", alias = "num_ps")]
    ps: Option<u32>,

    /// Workers [default: 1]
    #[arg(long, value_name = "N", aliases = ["num_worker", "num_workers"])]
    workers: Option<u32>,

    /// A chief beside the workers; otherwise worker 0 is the chief
    #[arg(long)]
    chief: bool,

    /// An evaluator beside the cluster
    #[arg(long)]
    evaluator: bool,

    /// For which jobs `downpour serve` is started: ps (the program brings its own server elsewhere), all (the program
    /// is a client and finds its server in DOWNPOUR_TARGET), none, or a list as in ps,worker [default: ps]
    #[arg(long, value_name = "JOBS", value_delimiter = ',')]
    serve: Option<Vec<String>>,

    /// Append --job_name, --task_index, --ps_hosts, --worker_hosts to the command, as TensorFlow's scripts take them
    #[arg(long)]
    flags: bool,

    /// What the job is called [default: the program's name]
    #[arg(long)]
    name: Option<String>,

    /// Where logs and the summary go [default: downpour-runs/NAME-N]; a URL is what {dir} in the command means, logs stay here
    #[arg(long)]
    dir: Option<PathBuf>,

    /// Where the program keeps checkpoints and event files, for those who look at the job
    #[arg(long, value_name = "DIR")]
    train_dir: Option<PathBuf>,

    /// Where programs of crate `downpour` elect their chief: etcd://HOST:PORT[,…]/JOB, zk://HOST:PORT[,…]/JOB or file:///DIR
    #[arg(long, value_name = "URL")]
    coordinator: Option<Coordinator>,

    /// A variable for the programs' environment
    #[arg(long, value_name = "NAME=VALUE")]
    env: Vec<String>,

    /// Restarts of one failing task within ten minutes [default: 5, but one that fails at once or twice alike is given up]
    #[arg(long, value_name = "N")]
    restarts: Option<u32>,

    /// Pause before the first restart; it doubles with each further one [default: 500ms]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    backoff: Option<Duration>,

    /// How long tasks may take to end when asked; then they are killed [default: 20s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    drain: Option<Duration>,

    /// Whose end is the job's [default: all]
    #[arg(long, value_enum)]
    done_when: Option<Done>,

    /// Kill a task so long after the start, to see recovery: ps:0@5s
    #[arg(long, value_name = "TASK@TIME", value_parser = kill)]
    kill: Vec<(TaskName, Duration)>,

    /// Where the tasks run [default: local]
    #[arg(long, value_enum)]
    on: Option<Place>,

    /// With --on ssh: hosts, as in node1,me@node2:2222
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    hosts: Option<Vec<String>>,

    /// With --on ssh: how long tasks go on without a launcher; a host that is silent for so long is lost [default: 60s]. With
    /// --on kubernetes: how long a task goes on when its node cannot reach the API server [default: 30s]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    lease: Option<Duration>,

    /// With --on docker: the containers' image [default: one from scratch with this program and the job's]; with --on
    /// kubernetes: one that has `downpour` and the program
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,

    /// With --on docker: a volume for every task, HOST:CONTAINER, or HOST:CONTAINER:ro; with --on kubernetes also
    /// pvc/CLAIM:PATH, secret/NAME:PATH, config/NAME:PATH, empty:PATH
    #[arg(long, value_name = "VOLUME")]
    volume: Vec<String>,

    /// With --on slurm: nodes to ask for [default: one for each task]
    #[arg(long, value_name = "N")]
    nodes: Option<u32>,

    /// With --on kubernetes: where the job's objects are [default: that of kubectl's context]
    #[arg(long, value_name = "NAME")]
    namespace: Option<String>,

    /// With --on yarn: the queue [default: this user's]
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,

    /// With --on yarn: a file for every task's working directory, a path here or a URL of the cluster's HDFS; PATH#NAME renames it
    #[arg(long, value_name = "FILE")]
    file: Vec<String>,

    /// With --on yarn: the same, unpacked into a directory: venv.tar.gz#venv
    #[arg(long, value_name = "FILE")]
    archive: Vec<String>,

    /// A further argument of ssh, `docker run`, kubectl or the Slurm script: --option=--partition=gpu
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    option: Vec<String>,

    #[command(flatten)]
    dashboard: DashboardFlags,

    /// Print the job as a file for `docker compose`, and exit
    #[arg(long)]
    print_compose: bool,

    /// Print the job's objects for `kubectl apply`, and exit
    #[arg(long)]
    print_manifests: bool,

    /// Print the script that --on slurm hands to sbatch, and exit
    #[arg(long)]
    print_script: bool,

    /// Print what the job amounts to, as a file that `downpour run` takes, and exit
    #[arg(long)]
    print_spec: bool,

    /// Do not show what the tasks print; the logs hold it
    #[arg(long, short)]
    quiet: bool,

    /// Whether to colour
    #[arg(long, value_enum, default_value_t = When::Auto)]
    color: When,

    /// The program and its arguments; {job}, {task}, {target}, {cluster}, {ps_hosts}, {worker_hosts} and {dir} are filled in
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// Whose end is the job's.
#[derive(Clone, Copy, ValueEnum)]
enum Done {
    /// All that train
    All,
    /// The chief's, or worker 0's
    Chief,
}

/// Where tasks run.
#[derive(Clone, Copy, ValueEnum)]
enum Place {
    /// On this machine
    Local,
    /// On the hosts of --hosts; nothing needs to be installed there
    Ssh,
    /// In containers of the daemon that `docker` talks to
    Docker,
    /// In an allocation of Slurm: of this script or shell, or one that sbatch is asked for
    Slurm,
    /// In pods of the cluster that `kubectl` talks to
    Kubernetes,
    /// In containers of the Hadoop YARN cluster that HADOOP_CONF_DIR describes
    Yarn,
}

/// Shown below the flags.
pub(crate) const EXAMPLES: &str = "\
Each program finds its place in TF_CONFIG, as TensorFlow's do. Examples:
  downpour run --ps 2 --workers 2 -- ./my-trainer --steps 1000          a Rust program of crate `downpour`
  downpour run --ps 2 --workers 2 --serve all -- python3 client.py      a client: tf.compat.v1.Session(os.environ['DOWNPOUR_TARGET'])
  downpour run --ps 1 --workers 2 --flags -- python3 between_graph.py   a script with tf.train.Server
  downpour run job.toml
  downpour run --on ssh --hosts node1,node2 --ps 2 --workers 2 -- ./my-trainer
  downpour run --on docker --image me/trainer --ps 2 --workers 2 -- /my-trainer
  downpour run --on slurm --nodes 4 --ps 2 --workers 2 -- ./my-trainer
  downpour run --on kubernetes --image me/trainer --ps 2 --workers 2 -- /my-trainer
  downpour run --on yarn --queue gpu --file my-trainer --ps 2 --workers 2 -- ./my-trainer

A task that fails is started again, with growing pauses, until --restarts are used up; without --restarts, one that fails at
once or in the same way as before is not tried again. When all that train are done the rest is
stopped and the exit code is 0; otherwise it is that of the task at fault. Ctrl-C asks the programs to save and end, then the
servers (code 130); a second one kills them, as does the end of --drain. Wrong flags, missing programs, taken ports and the like end with code 2 before anything is started.";

/// Reads `ps:0@5s`.
pub(crate) fn kill(text: &str) -> Result<(TaskName, Duration), String> {
    let wrong = || "not a task and a time like ps:0@5s".to_owned();
    let (task, time) = text.split_once('@').ok_or_else(wrong)?;
    let task = TaskName::parse(task).ok_or_else(wrong)?;
    Ok((task, duration(time)?))
}

impl Run {
    /// Runs the job to its end; its exit code.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let spec = self.spec()?;
        if self.print_spec {
            let _ = writeln!(std::io::stdout(), "{}", spec.to_json());
            return Ok(ExitCode::SUCCESS);
        }
        if let Some(dir) = &spec.dir {
            crate::storage::check(dir)?;
        }
        // Elsewhere the service may have another way.
        if let Some(service) = self.coordinator.as_ref().filter(|_| spec.on == On::Local) {
            service.answering()?;
        }
        if self.print_compose {
            let _ = write!(std::io::stdout(), "{}", downpour_launch::compose(&spec)?);
            return Ok(ExitCode::SUCCESS);
        }
        if self.print_manifests {
            let _ = write!(std::io::stdout(), "{}", downpour_launch::manifests(&spec)?);
            return Ok(ExitCode::SUCCESS);
        }
        let mut setup = setup(self.kill)?;
        if self.print_script {
            let dir = spec.dir.clone().unwrap_or_else(|| "/run/directory".into());
            let script = downpour_launch::script(&spec, &setup.server, &dir)?;
            let _ = write!(std::io::stdout(), "{script}");
            return Ok(ExitCode::SUCCESS);
        }
        if spec.on == On::Slurm {
            setup.allocation = slurm::allocation();
            if setup.allocation.is_none() {
                return slurm::hand_over(&spec, &setup.server, &Console::new(self.color));
            }
        }
        if spec.on == On::Yarn {
            let console = Console::new(self.color);
            return yarn::hand_over(&spec, &setup.server, &setup.kills, &console);
        }
        let local = Launcher::prepare(spec, setup)?;
        let state = local.monitor().snapshot();
        let names: Vec<TaskName> = state.tasks.iter().map(|t| t.name.clone()).collect();
        let console = Console::new(self.color).beside(&names);
        console.note(&format!(
            "job '{}': logs in {}",
            state.name,
            state.dir.join("logs").display()
        ));
        let subject = DashboardFlags::job(&local.monitor());
        let dashboard = self.dashboard.start_beside(subject)?;
        if let Some(dashboard) = &dashboard {
            console.note(&format!("dashboard at {}", dashboard.url()));
        }
        let quiet = self.quiet;
        let shown = console.clone();
        let lines = console::Lines::new(&console, &names);
        let origin = origin(&local, dashboard.as_ref().map(Beside::url));
        let (outcome, state) = conduct(
            local,
            &origin,
            move |task, printed, line| {
                if !quiet {
                    lines.show(task, printed, line);
                }
            },
            move |happening| shown.note(&happening.to_string()),
        )?;
        console.plain(&downpour_launch::summary(&outcome, &state));
        if let Some(dashboard) = &dashboard {
            dashboard.end(&outcome, &state, |url| {
                console.note(&format!("the dashboard stays at {url}; Ctrl-C ends it"));
            });
        }
        Ok(ExitCode::from(outcome.code()))
    }

    /// What flags and file amount to, checked.
    fn spec(&self) -> Result<JobSpec> {
        let mut spec = match &self.job {
            Some(path) => read(path)?,
            None => JobSpec::new(&self.usual_name(), Vec::new(), &[("worker", 1)]),
        };
        for (job, count) in [
            ("ps", self.ps),
            ("worker", self.workers),
            ("chief", self.chief.then_some(1)),
            ("evaluator", self.evaluator.then_some(1)),
        ] {
            match count {
                Some(0) => _ = spec.tasks.remove(job),
                Some(count) => spec.tasks.entry(job.to_owned()).or_default().count = count,
                None => {}
            }
        }
        if let Some(serve) = &self.serve {
            served(&mut spec, serve)?;
        }
        if !self.command.is_empty() {
            spec.command.clone_from(&self.command);
        }
        spec.flags |= self.flags;
        if let Some(service) = &self.coordinator {
            let named = (
                "DOWNPOUR_COORDINATOR".to_owned(),
                service.url()?.to_string(),
            );
            spec.env.extend([named]);
        }
        spec.env.extend(environment(&self.env)?);
        let keep = |given: &Option<PathBuf>, was: Option<PathBuf>| given.clone().or(was);
        spec.dir = keep(&self.dir, spec.dir.take());
        spec.train_dir = keep(&self.train_dir, spec.train_dir.take());
        spec.name = self.name.clone().unwrap_or(spec.name);
        if let Some(limit) = self.restarts {
            // An explicit number of restarts is taken literally.
            (spec.restart.limit, spec.restart.alike) = (limit, 0);
        }
        spec.restart.backoff = self.backoff.unwrap_or(spec.restart.backoff);
        spec.drain = self.drain.unwrap_or(spec.drain);
        self.place(&mut spec)?;
        match self.done_when {
            Some(Done::All) => spec.done_when = DoneWhen::All,
            Some(Done::Chief) => spec.done_when = DoneWhen::Chief,
            None => {}
        }
        let trains = spec.tasks.iter().any(|(job, group)| !group.serves(job));
        let has_own = spec.tasks.values().any(|group| group.command.is_some());
        if trains && spec.command.is_empty() && !has_own {
            bail!("say what to run: downpour run --ps 2 --workers 2 -- COMMAND…");
        }
        spec.check()?;
        Ok(spec)
    }

    /// Where it runs.
    fn place(&self, spec: &mut JobSpec) -> Result<()> {
        spec.on = match self.on {
            Some(Place::Local) => On::Local,
            Some(Place::Ssh) => On::Ssh,
            Some(Place::Docker) => On::Docker,
            Some(Place::Slurm) => On::Slurm,
            Some(Place::Kubernetes) => On::Kubernetes,
            Some(Place::Yarn) => On::Yarn,
            None => spec.on,
        };
        let needs = |flag: &str, given: bool, on: On, name: &str| match given && spec.on != on {
            true => bail!("{flag} is for --on {name}"),
            false => Ok(()),
        };
        needs("--hosts", self.hosts.is_some(), On::Ssh, "ssh")?;
        let named = self.namespace.is_some();
        needs("--namespace", named, On::Kubernetes, "kubernetes")?;
        let pods = spec.on == On::Kubernetes;
        let (containers, name) = match pods {
            true => (On::Kubernetes, "kubernetes"),
            false => (On::Docker, "docker or kubernetes"),
        };
        let leased = if pods { On::Kubernetes } else { On::Ssh };
        needs("--lease", self.lease.is_some(), leased, "ssh or kubernetes")?;
        needs("--image", self.image.is_some(), containers, name)?;
        needs("--volume", !self.volume.is_empty(), containers, name)?;
        needs("--nodes", self.nodes.is_some(), On::Slurm, "slurm")?;
        needs("--queue", self.queue.is_some(), On::Yarn, "yarn")?;
        needs("--file", !self.file.is_empty(), On::Yarn, "yarn")?;
        needs("--archive", !self.archive.is_empty(), On::Yarn, "yarn")?;
        if let Some(hosts) = &self.hosts {
            spec.ssh.hosts.clone_from(hosts);
        }
        let lease = match pods {
            true => &mut spec.kubernetes.lease,
            false => &mut spec.ssh.lease,
        };
        *lease = self.lease.unwrap_or(*lease);
        let (image, volumes) = match pods {
            true => (&mut spec.kubernetes.image, &mut spec.kubernetes.volumes),
            false => (&mut spec.docker.image, &mut spec.docker.volumes),
        };
        *image = self.image.clone().or(image.take());
        volumes.extend(self.volume.iter().cloned());
        let namespace = &mut spec.kubernetes.namespace;
        *namespace = self.namespace.clone().or(namespace.take());
        spec.slurm.nodes = self.nodes.or(spec.slurm.nodes);
        spec.yarn.queue = self.queue.clone().or(spec.yarn.queue.take());
        spec.yarn.files.extend(self.file.iter().cloned());
        spec.yarn.archives.extend(self.archive.iter().cloned());
        let options = self.option.iter().cloned();
        match spec.on {
            On::Ssh => spec.ssh.options.extend(options),
            On::Docker => spec.docker.options.extend(options),
            On::Kubernetes => spec.kubernetes.options.extend(options),
            On::Slurm => spec.slurm.options.extend(options),
            _ if !self.option.is_empty() => {
                bail!("--option is for --on ssh, docker, kubernetes or slurm")
            }
            _ => {}
        }
        Ok(())
    }

    /// The program's name, as far as a job may be called so.
    fn usual_name(&self) -> String {
        let program = self.command.first().map_or("job", String::as_str);
        // Of an interpreter's command the script says more.
        let script = self.command.iter().skip(1).find(|w| w.ends_with(".py"));
        let word = script.map_or(program, String::as_str);
        let stem = Path::new(word).file_stem().and_then(|s| s.to_str());
        let fits = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
        let name: String = stem
            .unwrap_or("job")
            .chars()
            .filter(fits)
            .take(32)
            .collect();
        match name.starts_with(|c: char| c.is_ascii_alphanumeric()) {
            true => name,
            false => "job".to_owned(),
        }
    }
}

/// Says which jobs are served.
fn served(spec: &mut JobSpec, serve: &[String]) -> Result<()> {
    let all = serve == ["all"];
    let none = serve == ["none"];
    if !all && !none {
        for job in serve {
            if !spec.tasks.contains_key(job) {
                let known: Vec<&str> = spec.tasks.keys().map(String::as_str).collect();
                bail!(
                    "--serve names '{}'; it takes all, none, or jobs that there are: {}",
                    job.escape_debug(),
                    known.join(", ")
                );
            }
        }
    }
    for (job, group) in &mut spec.tasks {
        let is_meant = all || serve.iter().any(|s| s == job);
        group.serve = Some(is_meant && !none && (job != "evaluator" || !all));
    }
    Ok(())
}

fn environment(given: &[String]) -> Result<BTreeMap<String, String>> {
    let pairs = given.iter().map(|pair| match pair.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => bail!("--env takes NAME=VALUE, not '{}'", pair.escape_debug()),
    });
    pairs.collect()
}

/// Reads a job's file.
fn read(path: &Path) -> Result<JobSpec> {
    let shown = format!("'{}'", path.display());
    let file = std::fs::File::open(path).with_context(|| format!("cannot read {shown}"))?;
    let mut text = String::new();
    file.take(MAX_TEXT as u64 + 1)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read {shown}"))?;
    JobSpec::from_text(&text).with_context(|| shown)
}
