//! etcd, one member, from Debian's package.

use super::daemon::{Daemon, free_ports, get};
use super::{Engine, Service, install};
use anyhow::Result;
use std::path::Path;
use std::process::Command;

pub(super) const ENGINE: Engine = Engine {
    name: "etcd",
    install: |home| install::debian("etcd-server", home, "usr/bin/etcd").map(|_| ()),
    start,
    tests: &[&["etcd"], &["elections", "--", "etcd"]],
};

fn start(home: &Path, data: &Path) -> Result<Service> {
    let [client, peer] = free_ports()?;
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let mut command = Command::new(home.join("usr/bin/etcd"));
    command
        .args(["--name", "n1", "--data-dir"])
        .arg(data.join("data"));
    for (flag, value) in [
        ("--listen-client-urls", url(client)),
        ("--advertise-client-urls", url(client)),
        ("--listen-peer-urls", url(peer)),
        ("--initial-advertise-peer-urls", url(peer)),
        ("--initial-cluster", format!("n1={}", url(peer))),
    ] {
        command.arg(flag).arg(value);
    }
    let mut daemon = Daemon::start("etcd", &command, data)?;
    let is_healthy = || get(client, "/health").is_some_and(|a| a.contains("\"true\""));
    daemon.wait_until(is_healthy)?;
    Ok(Service {
        daemons: vec![daemon],
        environment: vec![("DOWNPOUR_TEST_ETCD", format!("127.0.0.1:{client}"))],
    })
}
