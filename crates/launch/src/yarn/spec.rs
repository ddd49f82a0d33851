//! What is to be known for `on = "yarn"`, and whether it can be. Pure.

use crate::site::is_plain;
use crate::spec::{JobSpec, SpecError, value};
use downpour_yarn::Resource;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Memory of a container if nothing is said, and of the ApplicationMaster, in MiB.
const USUAL_MEMORY_MB: u64 = 1024;
const MASTER_MEMORY_MB: u64 = 512;
/// YARN's name of cards.
const GPU: &str = "yarn.io/gpu";
const MAX_FILES: usize = 1000;

/// Containers of a Hadoop YARN cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Yarn {
    /// The queue; the user's usual one if none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// Node labels by role, as in `{ worker = "gpu" }`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Further resources of a role's containers by YARN's names, as in `{ worker = { "yarn.io/fpga" = 1 } }`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: BTreeMap<String, BTreeMap<String, u64>>,
    /// Files that lie in every task's working directory: paths of this machine, or URLs of the cluster's HDFS. `PATH#NAME` gives another name.
    pub files: Vec<String>,
    /// The same, unpacked into a directory of that name: zip, tar, tar.gz, jar.
    pub archives: Vec<String>,
    /// A Docker image for the tasks, where the nodes run containers of Docker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// For the image: `HOST:CONTAINER:ro` or `:rw`.
    pub mounts: Vec<String>,
    /// How often the ApplicationMaster may be started; the cluster may allow less.
    pub attempts: u32,
    /// How long to wait until all containers are there.
    #[serde(with = "crate::time")]
    pub wait: Duration,
    /// Memory of the ApplicationMaster, as in `512M`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub master_memory: Option<String>,
}

impl Default for Yarn {
    fn default() -> Yarn {
        Yarn {
            queue: None,
            labels: BTreeMap::new(),
            resources: BTreeMap::new(),
            files: Vec::new(),
            archives: Vec::new(),
            image: None,
            mounts: Vec::new(),
            attempts: 2,
            wait: Duration::from_secs(600),
            master_memory: None,
        }
    }
}

/// A file's place, and its name in a container.
pub(super) fn named(entry: &str) -> Option<(&str, &str)> {
    let (place, name) = match entry.rsplit_once('#') {
        Some((place, name)) => (place, name),
        None => (entry, entry.rsplit('/').next().unwrap_or_default()),
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-+".contains(c);
    let is_name = !name.is_empty() && !name.starts_with('.') && name.chars().all(fits);
    (is_name && !place.is_empty()).then_some((place, name))
}

/// Whole MiB.
fn megabytes(bytes: usize) -> u64 {
    (bytes as u64).div_ceil(1 << 20)
}

impl Yarn {
    /// Says what is wrong.
    pub(crate) fn check(&self, spec: &JobSpec) -> Result<(), SpecError> {
        for (key, names) in [("yarn.queue", &self.queue), ("yarn.image", &self.image)] {
            if let Some(name) = names.iter().find(|name| !is_plain(name)) {
                return Err(value(key, name, "a plain name"));
            }
        }
        for (key, roles) in [
            ("yarn.labels", self.labels.keys().collect::<Vec<_>>()),
            ("yarn.resources", self.resources.keys().collect()),
        ] {
            if let Some(role) = roles
                .into_iter()
                .find(|role| !spec.tasks.contains_key(*role))
            {
                return Err(value(key, role, "a role of the job"));
            }
        }
        if let Some(label) = self.labels.values().find(|label| !is_plain(label)) {
            return Err(value("yarn.labels", label, "a plain name"));
        }
        if let Some(mount) = self
            .mounts
            .iter()
            .find(|mount| mount.contains([',', '\n', '\0']))
        {
            return Err(value("yarn.mounts", mount, "HOST:CONTAINER:ro or :rw"));
        }
        let files = self.files.iter().chain(&self.archives);
        if let Some(entry) = files.clone().find(|entry| named(entry).is_none()) {
            let wanted = "a path or URL whose last part is a name of letters, digits and '._-+', or PATH#NAME";
            return Err(value("yarn.files or .archives", entry, wanted));
        }
        if files.count() > MAX_FILES {
            return Err(value("yarn.files", "long", format!("at most {MAX_FILES}")));
        }
        if !(1..=100).contains(&self.attempts) {
            return Err(value("yarn.attempts", self.attempts, "from 1 to 100"));
        }
        match &self.master_memory {
            Some(memory) if downpour_cluster::parse_bytes(memory).is_none() => {
                Err(value("yarn.master_memory", memory, "a size like 512M"))
            }
            _ => Ok(()),
        }
    }

    /// What the ApplicationMaster has.
    pub(super) fn master(&self) -> Resource {
        let memory = self
            .master_memory
            .as_deref()
            .and_then(downpour_cluster::parse_bytes);
        Resource {
            memory_mb: memory.map_or(MASTER_MEMORY_MB, megabytes),
            cores: 1,
            others: Vec::new(),
        }
    }

    /// What a container of a role has.
    pub(super) fn container(&self, spec: &JobSpec, role: &str) -> Resource {
        let given = spec
            .tasks
            .get(role)
            .map(|group| group.resources.clone())
            .unwrap_or_default();
        let mut others = self.resources.get(role).cloned().unwrap_or_default();
        if let Some(gpus) = given.gpus {
            others.insert(GPU.to_owned(), u64::from(gpus));
        }
        Resource {
            memory_mb: given.bytes().map_or(USUAL_MEMORY_MB, megabytes),
            // Whole ones, as YARN gives them; the check of the job has bounded them.
            cores: given.cpus.map_or(1, |cpus| cpus.ceil().max(1.0) as u32),
            others: others.into_iter().collect(),
        }
    }

    /// What makes a node run a container of Docker.
    pub(super) fn runtime(&self) -> BTreeMap<String, String> {
        let mut env = BTreeMap::new();
        if let Some(image) = &self.image {
            let mut put = |name: &str, value: String| {
                env.insert(format!("YARN_CONTAINER_RUNTIME_{name}"), value)
            };
            put("TYPE", "docker".to_owned());
            put("DOCKER_IMAGE", image.clone());
            if !self.mounts.is_empty() {
                put("DOCKER_MOUNTS", self.mounts.join(","));
            }
        }
        env
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "on = 'yarn'\ncommand = ['./train']\n[yarn]\nqueue = 'gpu'\nlabels = { worker = 'v100' }\n\
        files = ['/a/b.py', 'hdfs:///x/y#z']\narchives = ['venv.tar.gz#venv']\nimage = 'me/tf:2'\nmounts = ['/data:/data:ro']\n\
        [tasks.ps]\ncount = 1\n[tasks.worker]\ncount = 2\nresources = { cpus = 1.5, memory = '1500M', gpus = 2 }\n";

    #[test]
    fn what_a_role_has_is_told_in_yarns_words() {
        let spec = JobSpec::from_text(TEXT).unwrap();
        let worker = spec.yarn.container(&spec, "worker");
        assert_eq!((worker.memory_mb, worker.cores), (1500, 2));
        assert_eq!(worker.others, [("yarn.io/gpu".to_owned(), 2)]);
        assert_eq!(spec.yarn.container(&spec, "ps").memory_mb, USUAL_MEMORY_MB);
        let env = spec.yarn.runtime();
        assert_eq!(
            env["YARN_CONTAINER_RUNTIME_DOCKER_MOUNTS"],
            "/data:/data:ro"
        );
        assert_eq!(JobSpec::from_text(&spec.to_json()).unwrap(), spec);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (from, to, want) in [
            ("queue = 'gpu'", "queue = '-x'", "yarn.queue"),
            ("worker = 'v100'", "wroker = 'v100'", "a role of the job"),
            ("'/a/b.py'", "'/a/'", "PATH#NAME"),
            ("#venv'", "#../x'", "PATH#NAME"),
            ("image = 'me/tf:2'", "image = 'a b'", "yarn.image"),
            ("1500M", "1500X", "a size like"),
            ("queue = 'gpu'", "attempts = 0", "yarn.attempts"),
        ] {
            let error = JobSpec::from_text(&TEXT.replace(from, to))
                .unwrap_err()
                .to_string();
            assert!(error.contains(want), "{to}: {error}");
        }
    }
}
