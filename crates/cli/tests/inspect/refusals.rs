//! What cannot be looked at is refused in one line that says what to do; what stops listening is
//! no failure.

use crate::{command, fixture, refused, run};
use std::io::{BufRead, BufReader};
use std::process::Stdio;

const KINDS: [&str; 4] = ["checkpoint", "events", "graph", "record"];

#[test]
fn what_is_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing").to_str().unwrap().to_owned();
    for kind in KINDS {
        let why = refused(&[kind, &missing], 2);
        assert!(why.contains(&missing), "{kind}: {why}");
    }
    let why = refused(&["checkpoint", &fixture("bundle/mixde")], 2);
    assert!(why.contains("; ") && why.contains("mixed"), "{why}");
    let why = refused(
        &[
            "checkpoint",
            &fixture("bundle/mixed"),
            "--tensor",
            "float32",
        ],
        2,
    );
    assert!(why.ends_with("did you mean t/float32?"), "{why}");
}

#[test]
fn files_of_other_kinds() {
    let dir = tempfile::tempdir().unwrap();
    let junk = dir.path().join("junk");
    std::fs::write(
        &junk,
        "this is a letter to somebody, not a file of numbers\n",
    )
    .unwrap();
    let fifo = dir.path().join("fifo");
    assert!(
        std::process::Command::new("mkfifo")
            .arg(&fifo)
            .status()
            .unwrap()
            .success()
    );
    let others = [
        junk.to_str().unwrap().to_owned(),
        fifo.to_str().unwrap().to_owned(),
        "/dev/zero".to_owned(),
        fixture("bundle/mixed.index"),
        fixture("events/two"),
        fixture("v1/whole"),
    ];
    for kind in KINDS {
        for other in &others {
            let output = command(&[kind, other]).output().unwrap();
            let said = String::from_utf8(output.stderr).unwrap();
            match output.status.code() {
                Some(0) => {}
                Some(1 | 2) => assert_eq!(said.lines().count(), 1, "{kind} {other}: {said}"),
                code => panic!("{kind} {other}: {code:?} {said}"),
            }
            let is_own = kind == "checkpoint" && (other.contains("mixed") || other.contains("v1"))
                || matches!(kind, "events" | "record") && other.contains("events");
            assert_eq!(output.status.success(), is_own, "{kind} {other}");
        }
    }
}

#[test]
fn wrong_flags_exit_with_2_and_name_the_flag() {
    let mixed = fixture("bundle/mixed");
    for (args, want) in [
        (&["checkpoint"][..], "<PATH>"),
        (&["checkpoint", &mixed, "--sats"], "--sats"),
        (&["checkpoint", &mixed, "--verify", "--stats"], "--stats"),
        (
            &["checkpoint", &mixed, "--diff", &mixed, "--tolerance", "-1"],
            "--tolerance",
        ),
        (&["record", &mixed, "--limit", "x"], "--limit"),
        (&["record", &mixed, "--compression", "rar"], "--compression"),
        (&["events"], "<PATH>"),
        (&["nothing"], "nothing"),
    ] {
        let output = run(args, 2);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            said.starts_with("error: ") && said.contains(want),
            "{args:?}: {said}"
        );
        assert!(output.stdout.is_empty());
    }
}

#[cfg(unix)]
#[test]
fn paths_that_are_not_utf8_are_refused() {
    use std::os::unix::ffi::OsStrExt;
    for kind in KINDS {
        let mut command = command(&[kind]);
        command.arg(std::ffi::OsStr::from_bytes(b"/tmp/\xff\xfe"));
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{kind}");
    }
}

#[test]
fn a_reader_that_goes_away_is_no_failure() {
    // More than a pipe holds.
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r");
    let masked = downpour_formats::crc32c::masked;
    let length = 0u64.to_le_bytes();
    let record = [
        &length[..],
        &masked(&length).to_le_bytes(),
        &masked(&[]).to_le_bytes(),
    ]
    .concat();
    std::fs::write(&path, record.repeat(20_000)).unwrap();
    let mut child = command(&["record", path.to_str().unwrap(), "--limit", "-1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut reader = BufReader::with_capacity(64, child.stdout.take().unwrap());
    reader.read_line(&mut line).unwrap();
    assert!(line.starts_with("record 0 at 0"), "{line}");
    drop(reader);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}
