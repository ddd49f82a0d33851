//! A Docker daemon of Debian's, in a network namespace of its own: nothing of the machine's network is touched.

use super::{Engine, Place, over, packages, words};
use crate::engines::daemon::Daemon;
use crate::engines::install;
use crate::process::{output, root, target_dir};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) const ENGINE: Engine = Engine {
    name: "docker",
    install: |home| {
        let root = packages(home);
        install::debian_all(&["docker.io"], &root, "usr/sbin/dockerd")?;
        // The daemon keeps a key there; it gets a place in memory.
        std::fs::create_dir_all(root.join("etc/docker"))?;
        // What Debian's alternatives would make.
        for name in ["iptables", "ip6tables"] {
            let link = root.join("usr/sbin").join(name);
            if link.symlink_metadata().is_err() {
                std::os::unix::fs::symlink("xtables-nft-multi", link)?;
            }
        }
        Ok(())
    },
    start: |home, data| Ok(Box::new(Containers::start(home, data)?)),
};

struct Containers {
    home: PathBuf,
    socket: String,
    _daemon: Daemon,
}

impl Containers {
    fn start(home: &Path, data: &Path) -> Result<Containers> {
        let shown = data.display();
        // A path of a socket is short.
        let socket = format!("unix:///run/downpour-engines-{}.sock", std::process::id());
        let own = "ip link set lo up\nmount -t tmpfs tmpfs /etc/docker";
        let mut command = Command::new("unshare");
        command.arg("--net");
        let inner = over(&packages(home), None, own, Path::new("/usr/sbin/dockerd"));
        command.arg(inner.get_program()).args(inner.get_args());
        command.args(["--host", &socket, "--group", "root"]);
        command.args(["--data-root", &format!("{shown}/data")]);
        command.args(["--exec-root", &format!("{shown}/exec")]);
        command.args(["--pidfile", &format!("{shown}/dockerd.pid")]);
        let mut daemon = Daemon::start("dockerd", &command, data)?;
        let ask = |socket: &str| {
            let mut docker = over(&packages(home), None, "", Path::new("/usr/bin/docker"));
            docker.env("DOCKER_HOST", socket).arg("version");
            docker.output().is_ok_and(|out| out.status.success())
        };
        daemon.wait_until(|| ask(&socket))?;
        Ok(Containers {
            home: home.to_owned(),
            socket,
            _daemon: daemon,
        })
    }

    fn docker(&self, words: &[&str]) -> Result<String> {
        let mut command = self.user(Path::new("/usr/bin/docker"));
        let out = output(command.args(words))?;
        Ok(String::from_utf8_lossy(&out).trim().to_owned())
    }
}

impl Drop for Containers {
    fn drop(&mut self) {
        let path = self.socket.trim_start_matches("unix://");
        let _ = std::fs::remove_file(path);
    }
}

impl Place for Containers {
    fn user(&self, program: &Path) -> Command {
        let mut command = over(&packages(&self.home), None, "", program);
        command.env("DOCKER_HOST", &self.socket);
        command
    }

    /// The image is built from scratch; what python needs is the machine's.
    fn flags(&self, _is_patient: bool) -> Vec<String> {
        let mut flags = words(&["--on=docker"]);
        let root = root().display().to_string();
        let target = target_dir().display().to_string();
        for folder in ["/usr", "/lib", "/lib64"] {
            flags.push(format!("--volume={folder}:{folder}:ro"));
        }
        flags.push(format!("--volume={root}:{root}:ro"));
        // Where the interpreter of the environment with TensorFlow really lies.
        let python = crate::venv::ensure().and_then(|p| Ok(p.canonicalize()?));
        let prefix = python
            .ok()
            .and_then(|p| Some(p.parent()?.parent()?.to_owned()));
        if let Some(prefix) = prefix.filter(|p| !p.starts_with("/usr")) {
            let prefix = prefix.display();
            flags.push(format!("--volume={prefix}:{prefix}:ro"));
        }
        if !target.starts_with(&root) {
            flags.push(format!("--volume={target}:{target}:ro"));
        }
        flags
    }

    fn lose_host(&mut self) -> Result<bool> {
        Ok(false)
    }

    fn heal(&mut self) -> Result<()> {
        Ok(())
    }

    fn adopts(&self) -> bool {
        true
    }

    fn left(&self) -> Result<String> {
        let containers = self.docker(&["ps", "--all", "--quiet"])?;
        let networks = self.docker(&["network", "ls", "--quiet", "--filter", "name=downpour"])?;
        let images = self.docker(&["images", "--quiet"])?;
        Ok(format!("{containers}{networks}{images}"))
    }

    fn refusals(&self) -> Vec<(Vec<String>, &'static str)> {
        vec![
            (
                words(&[
                    "--on=docker",
                    "--image=no/such",
                    "--workers=1",
                    "--",
                    "true",
                ]),
                "there is no image 'no/such'",
            ),
            (
                words(&[
                    "--on=docker",
                    "--image=--privileged",
                    "--workers=1",
                    "--",
                    "true",
                ]),
                "a plain name",
            ),
            (
                words(&[
                    "--on=docker",
                    "--workers=1",
                    "--restarts=0",
                    "--",
                    "/no/such",
                ]),
                "/no/such",
            ),
            (
                words(&[
                    "--on=docker",
                    "--option=--memory=1",
                    "--workers=1",
                    "--",
                    "downpour",
                ]),
                "memory",
            ),
        ]
    }
}
