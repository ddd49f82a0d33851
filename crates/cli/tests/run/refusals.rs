//! What cannot be done ends with one clear line and code 2, before anything is started.

use crate::process::{downpour, run};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Runs, and checks that it is refused in one line that holds these words.
fn refused(dir: &Path, args: &[&str], words: &str) {
    let (code, out, err) = run(dir, args);
    assert_eq!(code, Some(2), "{args:?}: {err}");
    let first = err.lines().next().unwrap_or_default();
    assert!(
        first.starts_with("error: ") && first.contains(words),
        "{args:?}: {err}"
    );
    assert!(
        out.is_empty() && !err.contains("panicked"),
        "{args:?}: {out}{err}"
    );
    assert!(
        !dir.join("downpour-runs").exists(),
        "{args:?} left a directory"
    );
}

#[test]
fn wrong_flags() {
    let dir = tempfile::tempdir().unwrap();
    for (flags, words) in [
        (vec!["--ps=-1"], "--ps"),
        (vec!["--ps=99999999999"], "--ps"),
        (vec!["--ps="], "--ps"),
        (vec!["--ps=many"], "--ps"),
        (vec!["--workers=2000"], "tasks.worker.count is '2000'"),
        (vec!["--workers=0"], "at least one task that trains"),
        (vec!["--wrokers=2"], "--wrokers"),
        (vec!["--drain=soon"], "not a time like 30s"),
        (vec!["--backoff=-1s"], "not a time like 30s"),
        (vec!["--kill=ps:0"], "ps:0@5s"),
        (vec!["--kill=ps:x@5s"], "ps:0@5s"),
        (vec!["--kill=../ps:0@5s"], "ps:0@5s"),
        (vec!["--kill=ps:7@5s"], "no task ps:7; it has worker:0"),
        (vec!["--serve=gpu"], "--serve names 'gpu'"),
        (vec!["--env=NOTHING"], "--env takes NAME=VALUE"),
        (vec!["--env==x"], "names without '='"),
        (vec!["--done-when=never"], "--done-when"),
        (vec!["--name="], "name is ''"),
        (vec!["--name=../up"], "name is '../up'"),
        (
            vec!["--name=-oProxyCommand=x"],
            "name is '-oProxyCommand=x'",
        ),
        (vec!["--name=a\nb"], "name is 'a\\nb'"),
        (vec!["--name=$(touch x)"], "name is '$(touch x)'"),
    ] {
        let args = [vec!["run"], flags, vec!["--", "true"]].concat();
        refused(dir.path(), &args, words);
    }
    refused(dir.path(), &["run", "--ps", "1"], "say what to run");
    refused(dir.path(), &["run", "--"], "say what to run");
}

#[test]
fn an_argument_that_is_not_text() {
    let dir = tempfile::tempdir().unwrap();
    let odd = OsStr::from_bytes(b"\xff\xfe");
    for before in [vec!["run", "--name"], vec!["run", "--"]] {
        let out = downpour(dir.path(), &before).arg(odd).output().unwrap();
        assert_eq!(out.status.code(), Some(2), "{out:?}");
    }
}

#[test]
fn missing_programs() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("plain"), "").unwrap();
    for (program, words) in [
        (
            "no-such-program",
            "worker:0: there is no program 'no-such-program' on the PATH",
        ),
        ("./no/such", "the program './no/such' cannot be started"),
        ("./plain", "'./plain' is not executable"),
        ("plain", "did you mean './plain'?"),
        ("/", "no program but a directory"),
        ("", "a program and its arguments"),
        ("evil\x1b[2J\nname", "evil"),
    ] {
        refused(dir.path(), &["run", "--ps=1", "--", program], words);
    }
}

#[test]
fn directories_that_will_not_do() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let around = dir.path().join("loop");
    std::os::unix::fs::symlink(&around, &around).unwrap();
    for path in [
        "/",
        "/proc/nowhere",
        file.to_str().unwrap(),
        around.to_str().unwrap(),
    ] {
        let words = format!("the directory '{path}' cannot be used: ");
        refused(dir.path(), &["run", "--dir", path, "--", "true"], &words);
    }
    refused(dir.path(), &["run", "--dir", "", "--", "true"], "--dir");
}

#[test]
fn files_that_hold_no_job() {
    let dir = tempfile::tempdir().unwrap();
    let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = format!(
        "command = ['true']\n[tasks.worker]\ncount = 1\nhosts = ['{}']\n",
        held.local_addr().unwrap()
    );
    let long = format!("name = '{}'", "x".repeat(5 << 20));
    for (text, words) in [
        ("", "missing field `tasks`"),
        ("{", "not a job in JSON"),
        (
            "command = ['true']\n[tasks.worker]\ncuont = 1\n",
            "unknown field `cuont`, expected one of `count`",
        ),
        (
            "[tasks.worker]\ncount = 1\ncount = 2\n",
            "duplicate key at line 3",
        ),
        (
            "command = 'true'\n[tasks.worker]\ncount = 1\n",
            "not a job in TOML",
        ),
        (
            "command = ['true']\n[tasks.worker]\ncount = 1\nhosts = ['a:0:0']\n",
            "tasks.worker.hosts",
        ),
        (
            "command = ['true']\n[tasks.worker]\ncount = 2\nhosts = ['127.0.0.1:1', '127.0.0.1:1']\n",
            "tasks.worker.hosts",
        ),
        (&taken, "Address already in use"),
        (&long, "longer than"),
        ("\u{0}", "not a job in TOML"),
    ] {
        std::fs::write(dir.path().join("job.toml"), text).unwrap();
        refused(dir.path(), &["run", "job.toml"], words);
    }
    refused(
        dir.path(),
        &["run", "nowhere.toml"],
        "cannot read 'nowhere.toml'",
    );
    refused(dir.path(), &["run", "/"], "cannot read '/'");
}
