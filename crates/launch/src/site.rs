//! Where a job runs, as its description says it: this machine, hosts reached by ssh, containers of a Docker daemon, an
//! allocation of Slurm, pods; and what each task may use there.

use crate::spec::{JobSpec, SpecError, value};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Where tasks run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum On {
    /// On this machine.
    #[default]
    Local,
    /// On hosts that are reached by ssh.
    Ssh,
    /// In containers.
    Docker,
    /// In an allocation of Slurm.
    Slurm,
    /// In pods.
    Kubernetes,
    /// In containers of a Hadoop YARN cluster.
    Yarn,
}

/// Hosts that are reached by ssh. Nothing needs to be installed there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Ssh {
    /// `[user@]host[:port]`. Tasks reach each other by the host's name.
    pub hosts: Vec<String>,
    /// Further arguments of ssh, as in `["-i", "key"]`.
    pub options: Vec<String>,
    /// How long tasks go on without hearing from a launcher. Within it a launcher that died may be run again and finds
    /// them; after it, a host that cannot be reached is taken for lost, and its tasks have ended by themselves.
    #[serde(with = "crate::time")]
    pub lease: Duration,
}

impl Default for Ssh {
    fn default() -> Ssh {
        Ssh {
            hosts: Vec::new(),
            options: Vec::new(),
            lease: Duration::from_secs(60),
        }
    }
}

/// Containers of a Docker daemon: the one that the `docker` program talks to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Docker {
    /// What the containers are made from; one is built from scratch with this program and the job's if none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// `HOST:CONTAINER[:ro]`, for every task. The run's directory is always there.
    pub volumes: Vec<String>,
    /// A network that exists; one is made for the job if none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
    /// Further arguments of `docker run`.
    pub options: Vec<String>,
}

/// An allocation of Slurm.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Slurm {
    /// How many nodes are asked for; one for each task if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Further options of the script, as in `["--partition=gpu", "--time=2:00:00"]`.
    pub options: Vec<String>,
}

/// What a task may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Resources {
    /// Cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    /// Memory, as in `4G`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Cards.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<u32>,
}

impl Resources {
    pub(crate) fn check(&self, key: &str) -> Result<(), SpecError> {
        const MOST_CPUS: f64 = 4096.0;
        if let Some(cpus) = self.cpus
            && !(0.01..=MOST_CPUS).contains(&cpus)
        {
            return Err(value(&format!("{key}.cpus"), cpus, "from 0.01 to 4096"));
        }
        match &self.memory {
            Some(memory) if downpour_cluster::parse_bytes(memory).is_none() => Err(value(
                &format!("{key}.memory"),
                memory,
                "a size like 512M or 12G",
            )),
            _ => Ok(()),
        }
    }

    /// Memory in bytes.
    pub(crate) fn bytes(&self) -> Option<usize> {
        downpour_cluster::parse_bytes(self.memory.as_deref()?)
    }
}

/// Most hosts of a job.
const MAX_HOSTS: usize = 1024;

impl JobSpec {
    /// Says what is wrong with where it is to run.
    pub(crate) fn check_site(&self) -> Result<(), SpecError> {
        let has_hosts = self.tasks.iter().find(|(_, group)| group.hosts.is_some());
        if let (true, Some((job, _))) = (self.on != On::Local, has_hosts) {
            let wanted = "left out: where tasks are is found out";
            return Err(value(&format!("tasks.{job}.hosts"), "given", wanted));
        }
        let bounded = self
            .tasks
            .iter()
            .find(|(_, group)| group.resources != Resources::default());
        if let (On::Local | On::Ssh, Some((job, _))) = (self.on, bounded) {
            let key = format!("tasks.{job}.resources");
            let wanted = "left out: nothing here sees to it; docker, slurm, kubernetes and yarn do";
            return Err(value(&key, "given", wanted));
        }
        match self.on {
            On::Local => Ok(()),
            On::Ssh => self.check_ssh(),
            On::Docker => check_words("docker.options", &self.docker.options).and_then(|()| {
                let image = self.docker.image.iter();
                let names = image.chain(&self.docker.network);
                match names.clone().find(|name| !is_plain(name)) {
                    Some(name) => Err(value("docker.image or .network", name, "a plain name")),
                    None => Ok(()),
                }
            }),
            On::Slurm => check_words("slurm.options", &self.slurm.options),
            On::Kubernetes => self.kubernetes.check(self.tasks.keys().map(String::as_str)),
            On::Yarn => self.yarn.check(self),
        }
    }

    fn check_ssh(&self) -> Result<(), SpecError> {
        check_words("ssh.options", &self.ssh.options)?;
        if self.ssh.hosts.is_empty() || self.ssh.hosts.len() > MAX_HOSTS {
            let wanted = "like ['node1', 'me@node2:2222'], at most 1024; or --hosts node1,node2";
            return Err(value("ssh.hosts", self.ssh.hosts.len(), wanted));
        }
        for host in &self.ssh.hosts {
            if crate::ssh::Target::parse(host).is_none() {
                return Err(value("ssh.hosts", host, "like [user@]host[:port]"));
            }
        }
        let (least, most) = (Duration::from_secs(2), Duration::from_secs(86_400));
        match (least..=most).contains(&self.ssh.lease) {
            true => Ok(()),
            false => Err(value(
                "ssh.lease",
                format!("{:?}", self.ssh.lease),
                "from 2s to 24h",
            )),
        }
    }
}

/// No option, and nothing that a shell or a script would read otherwise.
pub(crate) fn is_plain(word: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-/:@[]".contains(c);
    !word.is_empty() && !word.starts_with('-') && word.chars().all(fits)
}

pub(crate) fn check_words(key: &str, words: &[String]) -> Result<(), SpecError> {
    match words.iter().find(|word| word.contains(['\0', '\n'])) {
        Some(word) => Err(value(key, word, "without line ends")),
        None => Ok(()),
    }
}

/// Where things are kept that are not the job's: nothing of another user is read or written.
pub(crate) fn own_folder(root: &std::path::Path) -> std::io::Result<PathBuf> {
    use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
    let own = rustix::process::geteuid().as_raw();
    let folder = root.join(format!("downpour-{own}"));
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o700).create(&folder)?;
    let found = folder.symlink_metadata()?;
    match found.is_dir() && found.uid() == own && found.mode() & 0o077 == 0 {
        true => Ok(folder),
        false => Err(std::io::Error::other(format!(
            "'{}' is not this user's alone",
            folder.display()
        ))),
    }
}
