//! Hadoop YARN. The program that the user starts hands the job in and follows it (`submit`); in a container of its own the launcher runs as
//! the application's ApplicationMaster (`master`), so that a job needs nobody outside of the cluster; in every other container an agent
//! (`agent`) connects to it, and runs what it is told. One program is all three. `gang` decides about containers, without I/O.
//!
//! A task ends with its connection to the ApplicationMaster, or when that has been silent for [`LEASE`]: what is started elsewhere has
//! ended before.

mod agent;
mod gang;
mod hello;
mod log;
mod master;
mod place;
mod spec;
mod submit;

pub use agent::agent;
pub use downpour_yarn::Conf as YarnConf;
pub use master::YarnMaster;
pub use spec::Yarn;
pub use submit::{YarnJob, submit_to_yarn};

use crate::spec::JobSpec;
use downpour_yarn::{FileStatus, Secret};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long a task goes on without a word of its ApplicationMaster.
const LEASE: Duration = Duration::from_secs(15);
/// What an application is made from, as it lies in every container.
const ORDER: &str = "job.json";
/// This program, there.
const PROGRAM: &str = "downpour";
/// Says in a container which order lies there: its URL, length and time.
const ORDER_ENV: &str = "YARN_JOB_ORDER";
/// Says in a container where the ApplicationMaster listens.
const MASTER_ENV: &str = "YARN_JOB_MASTER";

/// A file of the job's on HDFS.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Placed {
    url: String,
    length: u64,
    modified: i64,
    is_archive: bool,
}

impl Placed {
    fn new(status: FileStatus, is_archive: bool) -> Placed {
        Placed {
            url: status.url,
            length: status.length,
            modified: status.modified,
            is_archive,
        }
    }

    fn status(&self) -> (FileStatus, bool) {
        let status = FileStatus {
            url: self.url.clone(),
            length: self.length,
            modified: self.modified,
        };
        (status, self.is_archive)
    }
}

/// What an application is made from.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Order {
    spec: JobSpec,
    secret: String,
    schedulers: Vec<String>,
    name_nodes: Vec<String>,
    file_system: String,
    user: String,
    /// Its folder on HDFS, which goes with it.
    staging: String,
    files: BTreeMap<String, Placed>,
    /// Tasks to be lost, and after how many milliseconds.
    kills: Vec<(String, u64)>,
}

impl Order {
    fn read(bytes: &[u8]) -> Result<(Order, Secret), String> {
        let order: Order =
            serde_json::from_slice(bytes).map_err(|e| format!("{ORDER} is malformed: {e}"))?;
        let secret =
            Secret::from_hex(&order.secret).ok_or_else(|| format!("{ORDER} holds no secret"))?;
        Ok((order, secret))
    }
}
