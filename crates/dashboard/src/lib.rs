//! Watches a cluster and shows it: one web page with its assets inside the program, the JSON API
//! that the page uses, and Prometheus metrics.
//!
//! [`Dashboard::start`] is called by the program that knows what to watch ([`Subject`]): the tasks
//! of a cluster, the directories in which a training writes event files and checkpoints, log files,
//! and the launcher's view of the job. A collector asks the tasks once a second; everything that
//! is kept is bounded, and nothing here can change what it watches.
//!
//! *Invariant:* no request is answered that names a host the page is not at, no content is served
//! that was not in the program or escaped by the JSON encoder, and files are read through `formats`.

mod alerts;
mod collector;
mod files;
mod logs;
mod metrics;
mod page;
mod run_file;
mod runs;
mod samples;
mod scalars;
mod state;
mod steps;
mod subject;
mod task;
mod timeline;

pub use logs::LogSink;
pub use subject::{AlertSink, Ending, JobEvent, JobSource, JobTask, JobView, Subject};

use collector::Collector;
use downpour_net::{Listener, serve_http};
use runs::Runs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// A dashboard that is being served; it ends when dropped.
pub struct Dashboard {
    address: SocketAddr,
    token: Option<String>,
    source: Source,
    tasks: [JoinHandle<()>; 2],
}

/// What is shown: one job, or the runs of some directories.
#[derive(Clone)]
pub(crate) enum Source {
    One(Arc<Collector>),
    Runs(Arc<Runs>),
}

impl Dashboard {
    /// Listens on `address` and begins to watch. Inside a tokio runtime.
    ///
    /// On an address that other machines reach, whoever asks must know `token`, which is then part
    /// of [`Dashboard::url`]; on the loopback interface none is needed.
    pub async fn start(
        address: &str,
        token: String,
        subject: Subject,
    ) -> std::io::Result<Dashboard> {
        let collector = Arc::new(Collector::new(subject));
        Dashboard::serve(address, token, Source::One(collector)).await
    }

    /// As [`Dashboard::start`], for the runs in these directories and directly below them.
    pub async fn of_runs(
        address: &str,
        token: String,
        dirs: Vec<PathBuf>,
    ) -> std::io::Result<Dashboard> {
        let runs = Arc::new(Runs::new(dirs));
        Dashboard::serve(address, token, Source::Runs(runs)).await
    }

    async fn serve(address: &str, token: String, source: Source) -> std::io::Result<Dashboard> {
        let listener = Listener::bind(address).await?;
        let address = listener.address();
        let token = (!address.ip().is_loopback()).then_some(token);
        let handler = page::handler(source.clone(), address, token.clone());
        let watching = source.clone();
        let tasks = [
            tokio::spawn(serve_http(listener, handler)),
            tokio::spawn(async move {
                match watching {
                    Source::One(collector) => collector.run().await,
                    Source::Runs(runs) => runs.run().await,
                }
            }),
        ];
        Ok(Dashboard {
            address,
            token,
            source,
            tasks,
        })
    }

    /// What is to be kept of a job that has ended, for [`Dashboard::of_runs`]: to be written to `dashboard.json`
    /// in the run's directory.
    pub fn memory(&self) -> Option<String> {
        match &self.source {
            Source::One(collector) => Some(collector.memory()),
            Source::Runs(_) => None,
        }
    }

    /// Waits until the pages that are open have heard how the job ended, for `at_most`.
    pub async fn settle(&self, at_most: Duration) {
        let Source::One(collector) = &self.source else {
            return;
        };
        let begin = tokio::time::Instant::now();
        while !collector.is_settled() && begin.elapsed() < at_most {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What to open in a browser.
    pub fn url(&self) -> String {
        match &self.token {
            Some(token) => format!("http://{}/?token={token}", self.address),
            None => format!("http://{}/", self.address),
        }
    }
}

impl Drop for Dashboard {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}
