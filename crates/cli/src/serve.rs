//! `downpour serve`: one task of a cluster.

use crate::config::{bind_hint, describe};
use anyhow::{Context, Result, anyhow};
use clap::Args;
use downpour::{Console, Limits, Role, Server, ServerConfig, ServerError, Stream};
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;

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
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,

    /// Listen on this address instead of the task's own, as in 0.0.0.0:2222; a host alone keeps the port
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) bind: Option<String>,

    /// Executor threads [default: the number of cores]
    #[arg(long)]
    pub(crate) threads: Option<usize>,
}

/// Shown below the flags.
pub(crate) const SOURCES: &str = "\
What is not given as a flag is taken from the environment variable TF_CONFIG, then from the file of --config.
Other tasks are reached directly: proxies named in the environment are not used.";

impl Serve {
    /// Serves until interrupted.
    pub(crate) fn run(self) -> Result<()> {
        let filter = tracing_subscriber::EnvFilter::try_from_env("DOWNPOUR_LOG")
            .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .init();
        let role = self.role()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("cannot start the network threads")?;
        runtime.block_on(async {
            let server = Server::bind(server_config(&role))
                .await
                .map_err(|e| match e {
                    ServerError::Bind { address, source } => anyhow!(bind_hint(&address, &source)),
                    other => other.into(),
                })?;
            let mut out = std::io::stdout();
            // A closed standard output is no reason not to serve.
            let _ = out.write_all(describe(&role, server.address()).as_bytes());
            let _ = out.flush();
            server.serve(interrupted()).await?;
            anyhow::Ok(())
        })?;
        // Kernels that run on must not keep the process.
        runtime.shutdown_background();
        Ok(())
    }
}

fn server_config(role: &Role) -> ServerConfig {
    ServerConfig {
        cluster: role.cluster.clone(),
        job: role.job.clone(),
        task: role.task,
        bind: Some(role.listen.clone()),
        limits: Limits::default(),
        threads: role.settings.threads,
        console: Some(Console(Arc::new(print))),
    }
}

/// Writes what graphs print. A closed stream is no reason for a step to fail.
fn print(stream: Stream, text: &str) {
    let _ = match stream {
        Stream::Stdout => std::io::stdout().write_all(text.as_bytes()),
        Stream::Stderr => std::io::stderr().write_all(text.as_bytes()),
    };
    let _ = std::io::stdout().flush();
}

/// Resolves at the first Ctrl-C or SIGTERM.
async fn interrupted() {
    let interrupt = tokio::signal::ctrl_c();
    let mut terminate =
        match tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()) {
            Ok(signal) => signal,
            Err(_) => {
                let _ = interrupt.await;
                return;
            }
        };
    tokio::select! {
        _ = interrupt => {}
        _ = terminate.recv() => {}
    }
}
