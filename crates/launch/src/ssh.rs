//! Hosts that are reached by ssh. Nothing needs to be installed there: this program is copied where it is missing, and
//! keys, users and ports are those of the user's own ssh configuration.

use crate::engine::{Outlet, Placed};
use crate::framed::{self, ANSWER_WITHIN, Link, Reach, ask};
use crate::frames::{Frame, Request};
use crate::launcher::Setup;
use crate::remote::{Ending, Reins, Site, Task, spread};
use crate::site::is_plain;
use crate::spec::JobSpec;
use crate::supervise;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::hash::{DefaultHasher, Hasher as _};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Arguments that make ssh end instead of asking or waiting. What the user says comes before, and so goes first.
const UNATTENDED: [&str; 5] = [
    "BatchMode=yes",
    "ConnectTimeout=4",
    "ServerAliveInterval=5",
    "ServerAliveCountMax=2",
    "LogLevel=ERROR",
];

/// A host as the user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    /// `user@host`.
    login: String,
    /// Under which tasks reach each other.
    host: String,
    port: Option<u16>,
}

impl Target {
    /// Reads `[user@]host[:port]`.
    pub(crate) fn parse(text: &str) -> Option<Target> {
        if !is_plain(text) {
            return None;
        }
        let (user, place) = match text.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, text),
        };
        let (host, port) = match place.rsplit_once(':') {
            // An IPv6 address in brackets may be without a port.
            Some((host, port)) if !place.ends_with(']') => (host, Some(port.parse().ok()?)),
            _ => (place, None),
        };
        let is_bare = |c: char| !c.is_ascii_alphanumeric() && !"._-".contains(c);
        let inside = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
        let is_host = match inside {
            Some(v6) => v6.parse::<std::net::Ipv6Addr>().is_ok(),
            None => !host.is_empty() && !host.starts_with('-') && !host.contains(is_bare),
        };
        if !is_host || user.is_some_and(|user| user.is_empty() || user.contains(is_bare)) {
            return None;
        }
        let bare = inside.unwrap_or(host);
        Some(Target {
            login: user.map_or(bare.to_owned(), |user| format!("{user}@{bare}")),
            host: host.to_owned(),
            port,
        })
    }
}

/// The hosts of a job.
pub(crate) struct Ssh {
    options: Vec<String>,
    lease: Duration,
    /// By what the user calls them: how to reach them, and how this program is called there.
    hosts: BTreeMap<String, (Target, String)>,
    order: Vec<String>,
}

impl Ssh {
    /// Reaches every host, and brings this program where it is missing.
    pub(crate) fn prepare(spec: &JobSpec, setup: &Setup) -> Result<Ssh, String> {
        let own = &setup.server;
        if !is_plain(own) {
            return Err(format!(
                "the path '{own}' of this program cannot be named to a remote shell"
            ));
        }
        let mut ssh = Ssh {
            options: spec.ssh.options.clone(),
            lease: spec.ssh.lease,
            hosts: BTreeMap::new(),
            order: Vec::new(),
        };
        for name in &spec.ssh.hosts {
            if ssh.order.contains(name) {
                return Err(format!("host '{name}' is named twice"));
            }
            ssh.order.push(name.clone());
        }
        let found = std::thread::scope(|scope| {
            let ssh = &ssh;
            let asked = ssh.order.iter().map(|name| {
                scope.spawn(move || {
                    let target = Target::parse(name).ok_or("is no host")?;
                    let program = ssh.program_at(&target, own)?;
                    Ok::<_, String>((target, program))
                })
            });
            let asked: Vec<_> = asked.collect();
            let answers = asked.into_iter().map(|t| t.join());
            answers
                .map(|a| a.unwrap_or_else(|_| Err("the attempt panicked".to_owned())))
                .collect::<Vec<_>>()
        });
        for (name, found) in ssh.order.clone().into_iter().zip(found) {
            let found = found.map_err(|e| format!("host '{name}' cannot be used: {e}"))?;
            ssh.hosts.insert(name, found);
        }
        Ok(ssh)
    }

    /// `ssh HOST WORDS`; the words are read by a shell there.
    fn command(&self, target: &Target, words: &str) -> Command {
        let mut command = Command::new("ssh");
        command.args(&self.options).arg("-T");
        for option in UNATTENDED {
            command.args(["-o", option]);
        }
        if let Some(port) = target.port {
            command.args(["-p", &port.to_string()]);
        }
        command.arg("--").arg(&target.login).arg(words);
        command
    }

    fn supervise(&self, target: &Target, program: &str) -> Command {
        self.command(target, &format!("exec {program} supervise"))
    }

    /// How this program is called on a host: by the same path if it is there, or as a copy.
    fn program_at(&self, target: &Target, own: &str) -> Result<String, String> {
        let is_ours =
            |frame: &Frame| *frame == Frame::Version(env!("CARGO_PKG_VERSION").to_owned());
        let first = ask(self.supervise(target, own), &Request::Check, ANSWER_WITHIN);
        if first.as_ref().is_ok_and(is_ours) {
            return Ok(own.to_owned());
        }
        // What ssh itself says of a host that it does not reach.
        let is_closed = |e: &&String| e.starts_with("ssh: ") || e.contains("Permission denied (");
        if let Some(e) = first.as_ref().err().filter(is_closed) {
            return Err(e.clone());
        }
        // Only a host that answers a shell can be brought something.
        let probe = self
            .command(target, "echo downpour-shell")
            .stdin(Stdio::null())
            .output()
            .map_err(|e| format!("cannot start 'ssh': {e}"))?;
        if !String::from_utf8_lossy(&probe.stdout).contains("downpour-shell") {
            return Err(first.err().unwrap_or_else(|| {
                let said = String::from_utf8_lossy(&probe.stderr);
                crate::output::cleaned(said.lines().last().unwrap_or("it runs no commands"))
            }));
        }
        let mut hash = DefaultHasher::new();
        let bytes = std::fs::read(own).map_err(|e| format!("cannot read '{own}': {e}"))?;
        hash.write(&bytes);
        let name = format!("downpour-{:016x}", hash.finish());
        let copy = format!("~/.cache/downpour/{name}");
        if ask(
            self.supervise(target, &copy),
            &Request::Check,
            ANSWER_WITHIN,
        )
        .is_ok_and(|f| is_ours(&f))
        {
            return Ok(copy);
        }
        // It becomes visible when it is complete.
        let words = format!(
            "mkdir -p ~/.cache/downpour && cat > {copy}.$$ && chmod 700 {copy}.$$ && mv {copy}.$$ {copy}"
        );
        let file = File::open(own).map_err(|e| format!("cannot read '{own}': {e}"))?;
        let brought = self.command(target, &words).stdin(file).output();
        let brought = brought.map_err(|e| format!("cannot start 'ssh': {e}"))?;
        if !brought.status.success() {
            let said = String::from_utf8_lossy(&brought.stderr);
            let line = crate::output::cleaned(said.lines().last().unwrap_or_default());
            return Err(format!("this program cannot be copied there: {line}"));
        }
        match ask(
            self.supervise(target, &copy),
            &Request::Check,
            ANSWER_WITHIN,
        ) {
            Ok(_) => Ok(copy),
            Err(e) => Err(format!("this program does not run there: {e}")),
        }
    }

    fn ask(&self, name: &str, request: &Request) -> Result<Frame, String> {
        let (target, program) = self.hosts.get(name).ok_or("there is no such host")?;
        ask(self.supervise(target, program), request, ANSWER_WITHIN)
    }
}

impl Reach for Ssh {
    fn connect(&self, task: &Task) -> std::io::Result<Link> {
        match self.hosts.get(&task.host) {
            Some((target, program)) => Link::program(self.supervise(target, program)),
            None => Err(std::io::Error::other("there is no such host")),
        }
    }

    fn lease(&self) -> Option<Duration> {
        Some(self.lease)
    }

    fn judge(&self, _task: &Task, said: &str) -> Ending {
        Ending::HostLost(said.to_owned())
    }
}

impl Site for Ssh {
    /// The supervisor knows where it is on its host.
    fn server(&self) -> String {
        supervise::OWN.to_owned()
    }

    fn place(&self, spec: &JobSpec, lost: &BTreeSet<String>) -> Result<Placed, String> {
        let hosts: Vec<String> = self
            .order
            .iter()
            .filter(|h| !lost.contains(*h))
            .cloned()
            .collect();
        let address = |name: &str| {
            self.hosts
                .get(name)
                .map_or(name, |(t, _)| &t.host)
                .to_owned()
        };
        spread(spec, &hosts, address, |name, count| {
            match self.ask(name, &Request::Ports(count)) {
                Ok(Frame::Ports(ports)) => Ok(ports),
                Ok(_) => Err(format!("host '{name}' gave no ports")),
                Err(e) => Err(format!("host '{name}' cannot be used: {e}")),
            }
        })
    }

    fn conduct(&self, task: &Task, reins: &Reins, outlet: &Outlet) -> Ending {
        framed::conduct(self, task, reins, outlet)
    }

    fn find(&self, job: &str, _hosts: &[Option<String>]) -> Result<Option<String>, String> {
        let asked = std::thread::scope(|scope| {
            let asked = self
                .order
                .iter()
                .map(|name| scope.spawn(|| self.ask(name, &Request::Find(job.to_owned()))));
            let asked: Vec<_> = asked.collect();
            asked.into_iter().flat_map(|t| t.join()).collect::<Vec<_>>()
        });
        let found = asked.into_iter().find_map(|answer| match answer {
            Ok(Frame::Found(Some(run))) => Some(run),
            _ => None,
        });
        Ok(found)
    }

    fn clean_up(&self, job: &str, run: &str) {
        std::thread::scope(|scope| {
            for name in &self.order {
                scope.spawn(move || {
                    let (job, run) = (job.to_owned(), run.to_owned());
                    // A host that is not there cleans up itself when the lease is over.
                    let _ = self.ask(name, &Request::Clean { job, run });
                });
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_read_and_options_are_not_smuggled() {
        let target = |login: &str, host: &str, port| {
            Some(Target {
                login: login.to_owned(),
                host: host.to_owned(),
                port,
            })
        };
        assert_eq!(Target::parse("n1"), target("n1", "n1", None));
        assert_eq!(Target::parse("me@n1:22"), target("me@n1", "n1", Some(22)));
        assert_eq!(Target::parse("[::1]:22"), target("::1", "[::1]", Some(22)));
        assert_eq!(Target::parse("me@[::1]"), target("me@::1", "[::1]", None));
        for text in [
            "",
            "-oProxyCommand=x",
            "a b",
            "a;b",
            "@a",
            "a:",
            "a:x",
            "a:99999",
            "[x]",
            "me@-x",
            "$(x)",
            "a/b",
        ] {
            assert_eq!(Target::parse(text), None, "{text}");
        }
    }
}
