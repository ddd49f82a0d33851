//! ZooKeeper, one server, by Maven.

use super::daemon::{Daemon, ask, free_ports};
use super::{Engine, Service, install};
use anyhow::{Context as _, Result};
use std::path::Path;
use std::process::Command;

/// The server, and the classes of its metrics, which it will not start without.
const ARTIFACTS: &[&str] = &[
    "org.apache.zookeeper:zookeeper:3.8.4",
    "io.dropwizard.metrics:metrics-core:4.1.12.1",
    "org.xerial.snappy:snappy-java:1.1.10.5",
];

pub(super) const ENGINE: Engine = Engine {
    name: "zookeeper",
    install: |home| install::maven(ARTIFACTS, home).map(|_| ()),
    start,
    tests: &[&["zookeeper"], &["elections", "--", "zookeeper"]],
};

fn start(home: &Path, data: &Path) -> Result<Service> {
    let [port] = free_ports()?;
    // Sessions last 2 to 20 ticks: a lease of a second needs short ones.
    let config = format!(
        "tickTime=200\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\n\
         admin.enableServer=false\n4lw.commands.whitelist=srvr\n",
        data.join("data").display()
    );
    let file = data.join("zoo.cfg");
    std::fs::write(&file, config).context("cannot write zoo.cfg")?;
    let mut command = Command::new("java");
    command
        .args([
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            "-cp",
        ])
        .arg(home.join("lib").join("*"))
        .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
        .arg(file);
    let mut daemon = Daemon::start("zookeeper", &command, data)?;
    // It answers `ruok` before it serves; `srvr` has a mode only then.
    let serves = || ask(port, "srvr").is_some_and(|a| a.contains("Mode:"));
    daemon.wait_until(serves)?;
    Ok(Service {
        daemons: vec![daemon],
        environment: vec![("DOWNPOUR_TEST_ZOOKEEPER", format!("127.0.0.1:{port}"))],
    })
}
