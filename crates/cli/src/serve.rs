//! `downpour serve`: one task of a cluster.

use crate::config::{bind_hint, describe};
use crate::dashboard::DashboardFlags;
use crate::log;
use anyhow::{Context, Result, anyhow};
use clap::Args;
use downpour::{
    Console, DONE_GRACE, EndConfig, EndReason, Limits, Role, Server, ServerConfig, ServerError,
    Stream, Transport, WhenDone, parse_bytes, parse_duration,
};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Flags of `downpour serve`.
#[derive(Args)]
pub(crate) struct Serve {
    /// Listen on this port of the loopback interface, as the only task of job `localhost`
    #[arg(long, conflicts_with_all = ["cluster", "chief_hosts", "ps_hosts", "worker_hosts", "evaluator_hosts"])]
    pub(crate) port: Option<u16>,

    /// This task's job
    #[arg(long, visible_alias = "job_name")]
    pub(crate) job: Option<String>,

    /// This task's index in its job
    #[arg(long, visible_alias = "task_index")]
    pub(crate) task: Option<u32>,

    /// The cluster: JSON like {"ps": ["host:port"], "worker": {"7": "host:port"}}, or a file of that in JSON or TOML
    #[arg(long)]
    pub(crate) cluster: Option<String>,

    /// The chief job, as TensorFlow's scripts take it: host:port
    #[arg(
        long,
        value_name = "HOSTS",
        visible_alias = "chief_hosts",
        conflicts_with = "cluster"
    )]
    pub(crate) chief_hosts: Option<String>,

    /// The ps job: host:port,host:port
    #[arg(
        long,
        value_name = "HOSTS",
        visible_alias = "ps_hosts",
        conflicts_with = "cluster"
    )]
    pub(crate) ps_hosts: Option<String>,

    /// The worker job: host:port,host:port
    #[arg(
        long,
        value_name = "HOSTS",
        visible_alias = "worker_hosts",
        conflicts_with = "cluster"
    )]
    pub(crate) worker_hosts: Option<String>,

    /// The evaluator job, if it is to be part of the cluster: host:port
    #[arg(
        long,
        value_name = "HOSTS",
        visible_alias = "evaluator_hosts",
        conflicts_with = "cluster"
    )]
    pub(crate) evaluator_hosts: Option<String>,

    /// A file of settings, TOML or JSON: cluster, job, task, bind, threads and the like
    #[arg(
        long,
        value_name = "FILE",
        env = "DOWNPOUR_CONFIG",
        hide_env_values = true
    )]
    pub(crate) config: Option<PathBuf>,

    /// Listen on this address instead of the task's own, as in 0.0.0.0:2222; a host alone keeps the port
    #[arg(
        long,
        value_name = "HOST:PORT",
        env = "DOWNPOUR_BIND",
        hide_env_values = true
    )]
    pub(crate) bind: Option<String>,

    /// Executor threads [default: the number of cores]
    #[arg(long, env = "DOWNPOUR_THREADS", hide_env_values = true)]
    pub(crate) threads: Option<usize>,

    /// Memory that all tensors of this task may take together, as in 12G or 512M: variables, queues, tables and the values of
    /// steps [default: four fifths of what the machine, or the container, has]
    #[arg(long, value_name = "SIZE", value_parser = bytes, env = "DOWNPOUR_MEMORY_LIMIT", hide_env_values = true)]
    pub(crate) memory_limit: Option<usize>,

    /// Memory that the tensors of one session may take [default: nine tenths of --memory-limit]
    #[arg(long, value_name = "SIZE", value_parser = bytes, env = "DOWNPOUR_SESSION_MEMORY_LIMIT", hide_env_values = true)]
    pub(crate) session_memory_limit: Option<usize>,

    /// Memory that the tensors of one step may take [default: as of a session]
    #[arg(long, value_name = "SIZE", value_parser = bytes, env = "DOWNPOUR_STEP_MEMORY_LIMIT", hide_env_values = true)]
    pub(crate) step_memory_limit: Option<usize>,

    /// CPU devices that the task shows, each with variables of its own, as a TensorFlow server with device_count in its
    /// configuration; they share the threads
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub(crate) cpu_devices: u8,

    /// How long steps under way may take to end when the task stops [default: 20s]
    #[arg(long, value_name = "TIME", value_parser = duration, env = "DOWNPOUR_DRAIN", hide_env_values = true)]
    pub(crate) drain: Option<Duration>,

    /// Exit when the training is done: for a ps, every task that clients train through (all but ps and evaluator) has
    /// had a session here and none is open any more; for another task, its own clients have
    #[arg(long)]
    pub(crate) exit_when_done: bool,

    /// How long no session must be open for --exit-when-done; one whose client or task has died counts as open three
    /// times as long [default: 40s, as TensorFlow's workers may pause for 30s between two sessions]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub(crate) done_after: Option<Duration>,

    /// Tasks that --exit-when-done waits for instead, as in chief,worker:0
    #[arg(long, value_name = "TASKS", value_delimiter = ',')]
    pub(crate) wait_for: Option<Vec<String>>,

    /// Let other machines stop this task with `downpour stop`; otherwise only this one may
    #[arg(long)]
    pub(crate) allow_remote_stop: bool,

    /// Let other machines ask this task what it does, with `downpour inspect cluster` or for their dashboard; otherwise
    /// only this one may
    #[arg(long)]
    pub(crate) allow_remote_inspect: bool,

    /// How long another task may be silent while steps wait for it, before they fail [default: 8s]
    #[arg(long, value_name = "TIME", value_parser = duration, env = "DOWNPOUR_LOST_AFTER", hide_env_values = true)]
    pub(crate) lost_after: Option<Duration>,

    /// How long opening a session may wait for tasks that do not answer [default: as long as its client waits]
    #[arg(long, value_name = "TIME", value_parser = duration, env = "DOWNPOUR_FIND_WITHIN", hide_env_values = true)]
    pub(crate) find_within: Option<Duration>,

    /// How to talk to other tasks of Downpour: auto (lanes, Unix sockets within a host) or grpc (as TensorFlow's tasks do)
    /// [default: auto]
    #[arg(long, value_name = "HOW", value_parser = transport, env = "DOWNPOUR_TRANSPORT", hide_env_values = true)]
    pub(crate) transport: Option<Transport>,

    /// What to log on stderr: off, error, warn, info, debug or trace, for parts too as in info,downpour_net=debug
    /// [default: warn]
    #[arg(
        long,
        value_name = "LEVELS",
        env = "DOWNPOUR_LOG",
        hide_env_values = true
    )]
    pub(crate) log: Option<String>,

    /// How to log: text, or json for one object a line [default: text]
    #[arg(
        long,
        value_name = "FORMAT",
        env = "DOWNPOUR_LOG_FORMAT",
        hide_env_values = true
    )]
    pub(crate) log_format: Option<String>,

    #[command(flatten)]
    pub(crate) dashboard: DashboardFlags,
}

/// Shown below the flags.
pub(crate) const SOURCES: &str = "\
Examples:
  downpour serve --port 2222                                     a task alone; clients: tf.compat.v1.Session('grpc://127.0.0.1:2222')
  downpour serve --job ps --task 0 --cluster '{\"ps\": [\"10.0.0.1:2222\"], \"worker\": [\"10.0.0.2:2222\"]}'
  downpour serve --job_name=ps --task_index=0 --ps_hosts=10.0.0.1:2222 --worker_hosts=10.0.0.2:2222
  downpour serve --config cluster.toml --job ps --task 0 --log info --exit-when-done

What is not given as a flag is taken from the environment variable TF_CONFIG, then from the file of --config.
The port also answers grpc.health.v1.Health and, over HTTP/1, GET /healthz (it lives), /readyz (it takes new work)
and /metrics (its figures for Prometheus, for this machine or with --allow-remote-inspect).
Other tasks are reached directly: proxies named in the environment are not used.

SIGTERM, Ctrl-C or `downpour stop` end the task: new steps are refused, those under way may end within --drain, the rest is
answered UNAVAILABLE; the exit code is 0. A second signal ends it at once.";

/// Reads a time like `30s`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "not a time like 30s, 500ms or 2m".into())
}

/// Reads a size like `512M`.
fn bytes(text: &str) -> Result<usize, String> {
    parse_bytes(text).ok_or_else(|| "not a size like 512M, 12G or 1000000".into())
}

/// A transport as it is written on a command line.
fn transport(text: &str) -> Result<Transport, String> {
    Transport::parse(text).ok_or_else(|| "not one of auto, grpc".into())
}

impl Serve {
    /// Serves until interrupted.
    pub(crate) fn run(self) -> Result<()> {
        let role = self.role()?;
        let settings = &role.settings;
        log::start(settings.log.as_deref(), settings.log_format.as_deref())?;
        // One: a message that wakes a second thread costs more than what that one could do meanwhile.
        // Whatever takes long runs on the executor's threads.
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("cannot start the network threads")?;
        runtime.block_on(async {
            let server = Server::bind(server_config(&role, self.cpu_devices))
                .await
                .map_err(|e| match e {
                    ServerError::Bind { address, source } => anyhow!(bind_hint(&address, &source)),
                    other => other.into(),
                })?;
            tracing::info!(
                job = role.job,
                task = role.task,
                address = %server.address(),
                version = env!("CARGO_PKG_VERSION"),
                "the task has started"
            );
            let interrupted = interrupted();
            let mut out = std::io::stdout();
            log::say(&mut out, &describe(&role, server.address()));
            let subject = DashboardFlags::cluster(&role, server.address());
            let dashboard = self.dashboard.start(subject).await?;
            if let Some(dashboard) = &dashboard {
                log::say(&mut out, &format!("dashboard at {}\n", dashboard.url()));
            }
            let _ = out.flush();
            downpour_tensor::release_code_pages();
            let reason = server.serve(interrupted).await?;
            let farewell = match reason {
                EndReason::Done => "the training is done\n",
                EndReason::Asked => "stopped as asked\n",
                _ => "stopped\n",
            };
            log::say(&mut out, farewell);
            anyhow::Ok(())
        })?;
        // Kernels that run on must not keep the process.
        runtime.shutdown_background();
        Ok(())
    }
}

fn server_config(role: &Role, cpu_devices: u8) -> ServerConfig {
    let usual = Limits::default();
    ServerConfig {
        cluster: role.cluster.clone(),
        job: role.job.clone(),
        task: role.task,
        bind: Some(role.listen.clone()),
        limits: Limits {
            silence: role.settings.lost_after.unwrap_or(usual.silence),
            find: role.settings.find_within,
            ..usual
        },
        threads: role.settings.threads,
        memory_limit: role.settings.memory_limit,
        session_memory_limit: role.settings.session_memory_limit,
        step_memory_limit: role.settings.step_memory_limit,
        cpu_devices: cpu_devices.into(),
        console: Some(Console(Arc::new(print))),
        transport: role.settings.transport.unwrap_or_default(),
        ending: end_config(role),
        allow_remote_inspect: role.settings.allow_remote_inspect == Some(true),
    }
}

fn end_config(role: &Role) -> EndConfig {
    let settings = &role.settings;
    let mut ending = EndConfig::default();
    ending.drain = settings.drain.unwrap_or(ending.drain);
    ending.allow_remote_stop = settings.allow_remote_stop == Some(true);
    ending.when_done = (!role.wait_for.is_empty()).then(|| WhenDone {
        wait_for: role.wait_for.clone(),
        grace: settings.done_after.unwrap_or(DONE_GRACE),
    });
    ending
}

/// Writes what graphs print. A closed stream is no reason for a step to fail.
fn print(stream: Stream, text: &str) {
    let _ = match stream {
        Stream::Stdout => std::io::stdout().write_all(text.as_bytes()),
        Stream::Stderr => std::io::stderr().write_all(text.as_bytes()),
    };
    let _ = std::io::stdout().flush();
}

/// Resolves at the first Ctrl-C or SIGTERM; the second ends the process. Both are caught from now
/// on, not only once somebody waits.
fn interrupted() -> impl Future<Output = ()> {
    let signals = signal(SignalKind::interrupt()).and_then(|interrupt| {
        let terminate = signal(SignalKind::terminate())?;
        Ok((interrupt, terminate))
    });
    async move {
        let Ok((mut interrupt, mut terminate)) = signals else {
            // Then they end the process as they do any other.
            return std::future::pending().await;
        };
        next(&mut interrupt, &mut terminate).await;
        log::say(
            std::io::stderr(),
            "stopping when the steps under way have ended; a second signal ends at once\n",
        );
        tokio::spawn(async move {
            let number = next(&mut interrupt, &mut terminate).await;
            // The code that a shell shows for a process ended by a signal.
            std::process::exit(128 + number);
        });
    }
}

/// The number of the next signal.
async fn next(interrupt: &mut Signal, terminate: &mut Signal) -> i32 {
    tokio::select! {
        _ = interrupt.recv() => SignalKind::interrupt().as_raw_value(),
        _ = terminate.recv() => SignalKind::terminate().as_raw_value(),
    }
}
