//! `downpour serve`: one task of a cluster.

use anyhow::{Context, Result, bail};
use clap::Args;
use downpour::{ClusterSpec, Console, Limits, Server, ServerConfig, Stream};
use std::io::Write;
use std::sync::Arc;

/// Flags of `downpour serve`.
#[derive(Args)]
pub(crate) struct Serve {
    /// Listen on this port of the loopback interface, as the only task of job `localhost`
    #[arg(long, conflicts_with_all = ["cluster", "ps_hosts", "worker_hosts"])]
    port: Option<u16>,

    /// This task's job
    #[arg(long, visible_alias = "job_name")]
    job: Option<String>,

    /// This task's index in its job
    #[arg(long, visible_alias = "task_index")]
    task: Option<u32>,

    /// The cluster: JSON like {"ps": ["host:port"], "worker": {"7": "host:port"}}, or a file of it
    #[arg(long)]
    cluster: Option<String>,

    /// TensorFlow's form of the ps job: host:port,host:port
    #[arg(long, alias = "ps_hosts", conflicts_with = "cluster")]
    ps_hosts: Option<String>,

    /// TensorFlow's form of the worker job: host:port,host:port
    #[arg(long, alias = "worker_hosts", conflicts_with = "cluster")]
    worker_hosts: Option<String>,

    /// Listen on this address instead of the task's own, as in 0.0.0.0:2222
    #[arg(long)]
    bind: Option<String>,

    /// Executor threads [default: the number of cores]
    #[arg(long)]
    threads: Option<usize>,
}

impl Serve {
    /// Serves until interrupted.
    pub(crate) fn run(self) -> Result<()> {
        let filter = tracing_subscriber::EnvFilter::try_from_env("DOWNPOUR_LOG")
            .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
        tracing_subscriber::fmt()
            .with_env_filter(filter)
            .with_writer(std::io::stderr)
            .init();
        let config = self.config()?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .context("cannot start the network threads")?;
        runtime.block_on(async {
            let server = Server::bind(config).await?;
            let mut out = std::io::stdout();
            // A closed standard output is no reason not to serve.
            let _ = writeln!(
                out,
                "{} listens on grpc://{}",
                server.name(),
                server.address()
            );
            let _ = out.flush();
            server.serve(interrupted()).await?;
            anyhow::Ok(())
        })?;
        // Kernels that run on must not keep the process.
        runtime.shutdown_background();
        Ok(())
    }

    fn config(self) -> Result<ServerConfig> {
        let mut job = self.job;
        let cluster = if let Some(port) = self.port {
            let job = job.get_or_insert_with(|| "localhost".into());
            ClusterSpec::single(job, &format!("127.0.0.1:{port}"))?
        } else if let Some(text) = self.cluster {
            let text = match text.trim_start().starts_with('{') {
                true => text,
                false => std::fs::read_to_string(&text)
                    .with_context(|| format!("--cluster: cannot read '{text}'"))?,
            };
            ClusterSpec::from_json(&text).context("--cluster")?
        } else if self.ps_hosts.is_some() || self.worker_hosts.is_some() {
            let mut spec = ClusterSpec::default();
            spec.add_hosts("ps", &self.ps_hosts.unwrap_or_default())
                .context("--ps-hosts")?;
            spec.add_hosts("worker", &self.worker_hosts.unwrap_or_default())
                .context("--worker-hosts")?;
            spec
        } else {
            bail!(
                "say where to listen: --port N for a single task, or --cluster with --job and --task"
            );
        };
        let Some(job) = job else {
            bail!("--job is needed: which job of the cluster is this task in?")
        };
        let task = match self.task {
            Some(task) => task,
            None if cluster.num_tasks() == 1 => 0,
            None => bail!("--task is needed: which task of job '{job}' is this?"),
        };
        cluster.address(&job, task).context("--job/--task")?;
        if self.threads == Some(0) {
            bail!("--threads must be at least 1");
        }
        Ok(ServerConfig {
            cluster,
            job,
            task,
            bind: self.bind,
            limits: Limits::default(),
            threads: self.threads,
            console: Some(Console(Arc::new(print))),
        })
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
