//! The program with a real service that elects the chief. `cargo xtask engines etcd zookeeper` starts them and runs this,
//! each those tests that are its own.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::TcpListener;
use std::process::{Command, Output, Stdio};

/// Ends a program that hangs.
const PATIENCE: &str = "240";

fn demo(dir: &tempfile::TempDir, args: &[&str]) -> Output {
    Command::new("timeout")
        .args([PATIENCE, env!("CARGO_BIN_EXE_downpour"), "demo", "mnist"])
        .args(args)
        .current_dir(dir.path())
        .env_remove("TF_CONFIG")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// Trains with a chief that is elected there: each worker on its own, then all together.
fn train(scheme: &str, variable: &str) {
    let hosts = std::env::var(variable).expect("`cargo xtask engines` names the service");
    for how in ["--workers=2", "--sync"] {
        let dir = tempfile::tempdir().unwrap();
        let url = format!("{scheme}://{hosts}/demo{how}");
        let flags = [
            "--json",
            "--ps=1",
            "--steps=150",
            how,
            "--coordinator",
            &url,
        ];
        let output = demo(&dir, &flags);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{told}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(report["steps"].as_f64().unwrap() >= 150.0, "{report}");
        assert_eq!(report["restarts"], 0, "{report}\n{told}");
        // It was committed by an elected chief.
        let checkpoint = report["checkpoint"].as_str().unwrap();
        assert!(checkpoint.contains("/model.ckpt-e"), "{report}");
    }
}

#[test]
fn a_demo_elects_its_chief_by_etcd() {
    train("etcd", "DOWNPOUR_TEST_ETCD");
}

#[test]
fn a_demo_elects_its_chief_by_zookeeper() {
    train("zk", "DOWNPOUR_TEST_ZOOKEEPER");
}

/// Nothing is started for a service that is not there, or a URL that names none.
fn refuse(scheme: &str) {
    let dir = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap().to_string();
    drop(free);
    for (url, expected) in [
        (format!("{scheme}://{address}/job"), address.as_str()),
        (format!("{scheme}://{address}"), "no path"),
        (
            format!("{scheme}://me:geheim@{address}/job"),
            "password may not stand",
        ),
    ] {
        let output = demo(&dir, &["--json", "--coordinator", &url]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty());
        assert!(
            told.contains(expected) && !told.contains("geheim"),
            "{told}"
        );
        assert!(!dir.path().join("downpour-runs").exists(), "{told}");
    }
    let url = format!("{scheme}://{address}/job");
    let output = demo(&dir, &["--json", "--coordinator", &url]);
    let told = String::from_utf8_lossy(&output.stderr);
    assert_eq!(told.trim_end().lines().count(), 1, "{told}");
}

#[test]
fn a_demo_is_not_begun_when_etcd_is_away() {
    refuse("etcd");
}

#[test]
fn a_demo_is_not_begun_when_zookeeper_is_away() {
    refuse("zk");
}
