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

mod collector;
mod files;
mod logs;
mod metrics;
mod page;
mod samples;
mod scalars;
mod state;
mod steps;
mod subject;
mod task;

pub use logs::LogSink;
pub use subject::{JobEvent, JobSource, JobTask, JobView, Subject};

use collector::Collector;
use downpour_net::{Listener, serve_http};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::task::JoinHandle;

/// A dashboard that is being served; it ends when dropped.
pub struct Dashboard {
    address: SocketAddr,
    token: Option<String>,
    tasks: [JoinHandle<()>; 2],
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
        let listener = Listener::bind(address).await?;
        let address = listener.address();
        let token = (!address.ip().is_loopback()).then_some(token);
        let collector = Arc::new(Collector::new(subject));
        let handler = page::handler(collector.clone(), address, token.clone());
        let tasks = [
            tokio::spawn(serve_http(listener, handler)),
            tokio::spawn(async move { collector.run().await }),
        ];
        Ok(Dashboard {
            address,
            token,
            tasks,
        })
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
