//! Slurm from Debian's packages: a controller, two nodes on this machine, and munge between them.

use super::{Engine, Place, over, packages, words};
use crate::engines::daemon::{Daemon, free_ports, kill_tree};
use crate::engines::install;
use crate::process::output;
use anyhow::{Context as _, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) const ENGINE: Engine = Engine {
    name: "slurm",
    install: |home| {
        let root = packages(home);
        install::debian_all(&["slurm-wlm", "munge"], &root, "usr/sbin/slurmctld-wlm")?;
        // What Debian's alternatives would make.
        for name in ["slurmctld", "slurmd", "slurmstepd"] {
            let link = root.join("usr/sbin").join(name);
            if link.symlink_metadata().is_err() {
                std::os::unix::fs::symlink(format!("{name}-wlm"), link)?;
            }
        }
        Ok(())
    },
    start: |home, data| Ok(Box::new(Cluster::start(home, data)?)),
};

struct Cluster {
    home: PathBuf,
    data: PathBuf,
    /// The second node, while it is there.
    second: Option<Daemon>,
    _daemons: Vec<Daemon>,
}

fn settings(data: &Path, ports: [u16; 3]) -> String {
    let data = data.display();
    let [controller, first, second] = ports;
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim().split('.').next().unwrap_or_default().to_owned();
    format!(
        "ClusterName=t\nSlurmctldHost={host}(127.0.0.1)\nSlurmUser=root\nAuthType=auth/munge\n\
         AuthInfo=socket={data}/munge.sock\nCredType=cred/munge\nSlurmctldPort={controller}\n\
         ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nStateSaveLocation={data}/state\n\
         SlurmdSpoolDir={data}/spool-%n\nSlurmctldPidFile={data}/ctld.pid\nSlurmdPidFile={data}/slurmd-%n.pid\n\
         ReturnToService=2\nSlurmdTimeout=20\nKillWait=5\nSelectType=select/cons_tres\nSelectTypeParameters=CR_Core\n\
         NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=1\n\
         NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=1\n\
         PartitionName=p Nodes=n1,n2 Default=YES MaxTime=10 State=UP\n"
    )
}

impl Cluster {
    fn start(home: &Path, data: &Path) -> Result<Cluster> {
        for folder in ["state", "spool-n1", "spool-n2"] {
            std::fs::create_dir_all(data.join(folder)).context("cannot make a folder")?;
        }
        let key: Vec<u8> = {
            use std::io::Read as _;
            let mut key = vec![0; 1024];
            let mut random = std::fs::File::open("/dev/urandom").context("no randomness")?;
            random.read_exact(&mut key).context("no randomness")?;
            key
        };
        let file = data.join("munge.key");
        std::fs::write(&file, key).context("cannot write munge's key")?;
        {
            use std::os::unix::fs::PermissionsExt as _;
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600))?;
        }
        std::fs::write(data.join("slurm.conf"), settings(data, free_ports()?))
            .context("cannot write Slurm's settings")?;
        let mut cluster = Cluster {
            home: home.to_owned(),
            data: data.to_owned(),
            second: None,
            _daemons: Vec::new(),
        };
        let shown = data.display();
        let mut munged = cluster.user(Path::new("/usr/sbin/munged"));
        munged.args(["--foreground", "--force"]);
        for (flag, name) in [
            ("key-file", "munge.key"),
            ("socket", "munge.sock"),
            ("pid-file", "munge.pid"),
            ("log-file", "munge.log"),
            ("seed-file", "munge.seed"),
        ] {
            munged.arg(format!("--{flag}={shown}/{name}"));
        }
        let mut munged = Daemon::start("munged", &munged, data)?;
        munged.wait_until(|| data.join("munge.sock").exists())?;
        cluster._daemons.push(munged);
        let mut controller = cluster.user(Path::new("/usr/sbin/slurmctld"));
        controller.arg("-D");
        let controller = Daemon::start("slurmctld", &controller, data)?;
        cluster._daemons.push(controller);
        let first = cluster.node("n1")?;
        cluster._daemons.push(first);
        cluster.heal()?;
        Ok(cluster)
    }

    fn node(&self, name: &'static str) -> Result<Daemon> {
        let mut node = self.user(Path::new("/usr/sbin/slurmd"));
        node.args(["-D", "-N", name]);
        Daemon::start(name, &node, &self.data)
    }

    fn ask(&self, program: &str, words: &[&str]) -> String {
        let mut command = self.user(&Path::new("/usr/bin").join(program));
        let out = command.args(words).output();
        out.map_or(String::new(), |out| {
            String::from_utf8_lossy(&out.stdout).trim().to_owned()
        })
    }
}

impl Place for Cluster {
    fn user(&self, program: &Path) -> Command {
        let mut command = over(&packages(&self.home), None, "", program);
        command.env("SLURM_CONF", self.data.join("slurm.conf"));
        command
    }

    fn flags(&self, _is_patient: bool) -> Vec<String> {
        words(&["--on=slurm", "--nodes=2"])
    }

    /// Kills the second node's daemon and what it had started.
    fn lose_host(&mut self) -> Result<bool> {
        self.second = None;
        let ours = format!("SLURM_CONF={}/slurm.conf", self.data.display());
        for process in with_environment(&[&ours, "SLURMD_NODENAME=n2"]) {
            // The process of Slurm's that keeps the step goes, too.
            if let Some(parent) = parent(process, "slurmstepd") {
                kill_tree(parent);
            }
        }
        Ok(true)
    }

    fn heal(&mut self) -> Result<()> {
        if self.second.is_none() {
            let node = self.node("n2")?;
            self.second = Some(node);
        }
        let mut node = self.second.take().context("no second node")?;
        let is_idle = || {
            let states = self.ask("sinfo", &["--noheader", "--Node", "--format=%T"]);
            states == "idle\nidle"
        };
        let up = node.wait_until(is_idle);
        self.second = Some(node);
        up
    }

    fn adopts(&self) -> bool {
        false
    }

    fn left(&self) -> Result<String> {
        let mut queue = self.user(Path::new("/usr/bin/squeue"));
        let left = output(queue.args(["--noheader", "--steps"]))?;
        Ok(String::from_utf8_lossy(&left).into_owned())
    }

    fn refusals(&self) -> Vec<(Vec<String>, &'static str)> {
        let with = |flag: &str| words(&["--on=slurm", flag, "--workers=1", "--", "true"]);
        vec![(
            with("--option=--partition=none"),
            "Invalid partition name specified",
        )]
    }
}

/// Processes that were started with all of these in their environment.
pub(super) fn with_environment(wanted: &[&str]) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    let has_all = |process: &u32| {
        let text = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        let variables: Vec<&[u8]> = text.split(|byte| *byte == 0).collect();
        wanted.iter().all(|w| variables.contains(&w.as_bytes()))
    };
    numbers.filter(has_all).collect()
}

/// The process that started this one, if it is of this program.
fn parent(process: u32, program: &str) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let parent = rest.split_whitespace().nth(1)?.parse().ok()?;
    let line = std::fs::read(format!("/proc/{parent}/cmdline")).ok()?;
    let is_meant = String::from_utf8_lossy(&line).starts_with(program);
    is_meant.then_some(parent)
}
