//! An S3 server: moto, in a python environment of its own.

use super::daemon::{Daemon, free_ports, get};
use super::{Engine, Service, install};
use anyhow::Result;
use std::path::Path;
use std::process::Command;

const PACKAGES: &[&str] = &["moto[server]==5.1.15"];

pub(super) const ENGINE: Engine = Engine {
    name: "s3",
    install: |home| install::python(PACKAGES, home).map(|_| ()),
    start,
    tests: &[
        &["s3", "--", "--nocapture"],
        &["stores", "--", "--skip", "hdfs"],
    ],
};

fn start(home: &Path, data: &Path) -> Result<Service> {
    let [port] = free_ports()?;
    let mut command = Command::new(home.join("venv/bin/moto_server"));
    command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
    let mut daemon = Daemon::start("moto", &command, data)?;
    let serves = || get(port, "/moto-api/").is_some_and(|a| a.contains(" 200 "));
    daemon.wait_until(serves)?;
    Ok(Service {
        daemons: vec![daemon],
        environment: vec![
            ("DOWNPOUR_TEST_S3", format!("http://127.0.0.1:{port}")),
            (
                "DOWNPOUR_TEST_PYTHON",
                crate::venv::ensure()?.display().to_string(),
            ),
        ],
    })
}
