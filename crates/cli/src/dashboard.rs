//! `--dashboard`: the flags of commands that show a web page of their cluster, and what it watches.

use crate::config::bind_hint;
use anyhow::{Result, anyhow, bail};
use clap::Args;
use downpour::Role;
use downpour_dashboard::{Dashboard, Subject};
use std::net::SocketAddr;
use std::path::PathBuf;

/// Flags of commands that have a dashboard.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct DashboardFlags {
    /// Show the cluster on a web page at this port of the loopback interface (0: any free one), with a JSON API and
    /// Prometheus /metrics; HOST:PORT listens elsewhere, and then asks for a token that is printed
    #[arg(long = "dashboard", value_name = "PORT")]
    at: Option<String>,

    /// A directory whose event files and checkpoints the dashboard shows; may be given often
    #[arg(long = "dashboard-dir", value_name = "DIR", requires = "at")]
    dirs: Vec<PathBuf>,
}

impl DashboardFlags {
    /// Serves a dashboard if one is wanted. It ends when dropped.
    pub(crate) async fn start(&self, mut subject: Subject) -> Result<Option<Dashboard>> {
        let Some(at) = &self.at else {
            return Ok(None);
        };
        subject.dirs.extend(self.dirs.iter().cloned());
        let address = address(at)?;
        match Dashboard::start(&address, token(), subject).await {
            Ok(dashboard) => Ok(Some(dashboard)),
            Err(e) => Err(anyhow!("--dashboard: {}", bind_hint(&address, &e))),
        }
    }

    /// The tasks of a cluster, one of which is this process.
    pub(crate) fn cluster(role: &Role, own: SocketAddr) -> Subject {
        let mut tasks = Vec::new();
        for (job, members) in role.cluster.jobs() {
            for (task, address) in members {
                let is_own = *job == role.job && *task == role.task;
                let address = match is_own && own.ip().is_loopback() {
                    true => own.to_string(),
                    false => address.clone(),
                };
                tasks.push((format!("/job:{job}/replica:0/task:{task}"), address));
            }
        }
        Subject {
            title: format!("{}:{}", role.job, role.task),
            tasks,
            ..Default::default()
        }
    }
}

/// `127.0.0.1:PORT`, or an address as it is.
fn address(text: &str) -> Result<String> {
    match text.parse::<u16>() {
        Ok(port) => Ok(format!("127.0.0.1:{port}")),
        Err(_) if text.contains(':') => Ok(text.to_owned()),
        Err(_) => bail!("--dashboard is '{text}'; it must be a port, or HOST:PORT"),
    }
}

/// What nobody can guess.
fn token() -> String {
    use std::hash::{BuildHasher as _, RandomState};
    let word = |i: u64| format!("{:016x}", RandomState::new().hash_one(i));
    word(0) + &word(1)
}
