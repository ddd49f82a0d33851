//! Hosts for ssh: network namespaces with Debian's sshd, each with a `/tmp` of its own; the user sits in a third.

use super::{Engine, Place, over, packages, words};
use crate::engines::daemon::Daemon;
use crate::engines::install;
use crate::process::{output, run};
use anyhow::{Context as _, Result};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(super) const ENGINE: Engine = Engine {
    name: "ssh",
    install: |home| {
        let root = packages(home);
        install::debian_all(&["openssh-server"], &root, "usr/sbin/sshd")?;
        accounts(&root)
    },
    start: |home, data| Ok(Box::new(Hosts::start(home, data)?)),
};

/// Namespaces are named so; nobody else's are touched.
const PREFIX: &str = "downpour-ssh";
/// Of the hosts' network, which exists in their namespaces only.
const NET: &str = "10.231.77";
/// A silent host is lost by then.
const LEASE: &str = "5s";
/// For a launcher that comes back on a busy machine.
const LONG_LEASE: &str = "60s";

struct Hosts {
    home: PathBuf,
    data: PathBuf,
    _daemons: Vec<Daemon>,
    _net: Net,
}

/// Its namespaces, removed at the end.
struct Net {
    names: Vec<String>,
}

impl Drop for Net {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
    }
}

/// sshd wants a user of its own, and root's account open for keys.
fn accounts(root: &Path) -> Result<()> {
    let etc = root.join("etc");
    std::fs::create_dir_all(&etc).context("cannot make etc")?;
    let mut passwd = std::fs::read_to_string("/etc/passwd").context("cannot read /etc/passwd")?;
    if !passwd.contains("\nsshd:") {
        let _ = writeln!(passwd, "sshd:x:993:65534::/run/sshd:/usr/sbin/nologin");
    }
    std::fs::write(etc.join("passwd"), passwd).context("cannot write passwd")?;
    let shadow = "root:*:19000:0:99999:7:::\nsshd:!:19000::::::\n";
    std::fs::write(etc.join("shadow"), shadow).context("cannot write shadow")
}

fn ip(network: Option<&str>, line: &str) -> Result<()> {
    let mut command = Command::new("ip");
    if let Some(network) = network {
        command.args(["-n", network]);
    }
    run(command.args(line.split(' ')))
}

impl Net {
    fn start() -> Result<Net> {
        let names: Vec<String> = (0..3).map(|n| format!("{PREFIX}-{n}")).collect();
        for name in &names {
            // What a run that was killed has left.
            let _ = Command::new("ip").args(["netns", "del", name]).output();
        }
        let net = Net { names };
        let user = net.names[0].as_str();
        for name in &net.names {
            ip(None, &format!("netns add {name}"))?;
            ip(Some(name), "link set lo up")?;
        }
        ip(Some(user), "link add hub type bridge")?;
        ip(Some(user), &format!("addr add {NET}.254/24 dev hub"))?;
        ip(Some(user), "link set hub up")?;
        for n in [1, 2] {
            let host = &net.names[n];
            ip(
                Some(user),
                &format!("link add up{n} type veth peer name eth0 netns {host}"),
            )?;
            ip(Some(user), &format!("link set up{n} master hub"))?;
            ip(Some(user), &format!("link set up{n} up"))?;
            ip(Some(host), &format!("addr add {NET}.{n}/24 dev eth0"))?;
            ip(Some(host), "link set eth0 up")?;
        }
        Ok(net)
    }
}

impl Hosts {
    fn start(home: &Path, data: &Path) -> Result<Hosts> {
        let net = Net::start()?;
        for key in ["host", "user"] {
            run(Command::new("ssh-keygen")
                .args(["-q", "-t", "ed25519", "-N", "", "-f"])
                .arg(data.join(key)))?;
        }
        let mut daemons = Vec::new();
        let shown = data.display();
        for (n, name) in [(1, "sshd-1"), (2, "sshd-2")] {
            let config = format!(
                "ListenAddress {NET}.{n}\nHostKey {shown}/host\nAuthorizedKeysFile {shown}/user.pub\n\
                 StrictModes no\nUsePAM no\nPasswordAuthentication no\nPidFile none\nPermitRootLogin yes\n"
            );
            let file = data.join(format!("{name}.conf"));
            std::fs::write(&file, config).context("cannot write sshd's settings")?;
            let own = "mount -t tmpfs tmpfs /tmp\nmount -t tmpfs tmpfs /run\nmkdir /run/sshd";
            let sshd = Path::new("/usr/sbin/sshd");
            let mut command = over(&packages(home), Some(&net.names[n]), own, sshd);
            command.args(["-D", "-e", "-f"]).arg(&file);
            let mut daemon = Daemon::start(name, &command, data)?;
            let user = net.names[0].clone();
            daemon.wait_until(|| answers(&user, n))?;
            daemons.push(daemon);
        }
        Ok(Hosts {
            home: home.to_owned(),
            data: data.to_owned(),
            _daemons: daemons,
            _net: net,
        })
    }

    fn options(&self) -> Vec<String> {
        let shown = self.data.display();
        [
            "-F".to_owned(),
            "none".to_owned(),
            "-i".to_owned(),
            format!("{shown}/user"),
            "-o".to_owned(),
            format!("UserKnownHostsFile={shown}/known"),
            "-o".to_owned(),
            "StrictHostKeyChecking=accept-new".to_owned(),
        ]
        .to_vec()
    }

    fn link(&self, how: &str) -> Result<()> {
        ip(Some(&format!("{PREFIX}-0")), &format!("link set up1 {how}"))
    }

    fn flags_for(&self, hosts: &str, key: &str, lease: &str) -> Vec<String> {
        let mut flags = words(&["--on=ssh", "--hosts", hosts, "--lease", lease]);
        let options = self.options();
        flags.extend(
            options
                .iter()
                .map(|o| format!("--option={}", o.replace("/user", key))),
        );
        flags
    }
}

/// Whether sshd answers.
fn answers(user: &str, n: usize) -> bool {
    let script = format!("exec 3<>/dev/tcp/{NET}.{n}/22 && head -c 3 <&3");
    let mut command = Command::new("nsenter");
    command.arg(format!("--net=/run/netns/{user}"));
    let out = command.args(["bash", "-c", &script]).output();
    out.is_ok_and(|out| out.stdout == b"SSH")
}

impl Place for Hosts {
    fn user(&self, program: &Path) -> Command {
        let user = format!("{PREFIX}-0");
        over(&packages(&self.home), Some(&user), "", program)
    }

    fn flags(&self, is_patient: bool) -> Vec<String> {
        let lease = if is_patient { LONG_LEASE } else { LEASE };
        self.flags_for(&format!("{NET}.1,{NET}.2"), "/user", lease)
    }

    /// Cuts the first host off; its tasks run on, until their lease is over.
    fn lose_host(&mut self) -> Result<bool> {
        self.link("down").map(|()| true)
    }

    fn heal(&mut self) -> Result<()> {
        self.link("up")
    }

    fn adopts(&self) -> bool {
        true
    }

    fn left(&self) -> Result<String> {
        let mut left = String::new();
        for n in [1, 2] {
            let mut command = self.user(Path::new("ssh"));
            command.args(self.options()).arg(format!("{NET}.{n}"));
            // A host that was cut off when the job ended keeps small files, and no process.
            command.arg("find /tmp/downpour-0/jobs -name order 2>/dev/null || true");
            left += &String::from_utf8_lossy(&output(&mut command)?);
        }
        Ok(left)
    }

    fn refusals(&self) -> Vec<(Vec<String>, &'static str)> {
        let with = |flags: Vec<String>, program: &str| {
            let mut all = flags;
            all.extend(words(&["--workers=1", "--", program]));
            all
        };
        let one = format!("{NET}.1");
        vec![
            (with(words(&["--on=ssh"]), "true"), "ssh.hosts is '0'"),
            (
                with(words(&["--on=ssh", "--hosts=-oProxyCommand=x"]), "true"),
                "like [user@]host[:port]",
            ),
            (
                with(self.flags_for(&format!("{NET}.9"), "/user", LEASE), "true"),
                "host '10.231.77.9' cannot be used",
            ),
            (
                with(self.flags_for(&one, "/nokey", LEASE), "true"),
                "Permission denied",
            ),
            (
                with(self.flags_for(&one, "/user", LEASE), "/no/such"),
                "'/no/such' cannot be started: No such file",
            ),
        ]
    }
}
