//! The program on directories that are URLs: trained there, looked into, through an outage, and refused at once when
//! wrong. `cargo xtask engines s3 hdfs` starts the services and runs this, each those tests that
//! are its own.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use serde_json::Value;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// What nobody may ever read again.
const SECRET: &str = "wJalrXUtnFEMI-K7MDENG-bPxRfiCYEXAMPLEKEY";
/// Every mistake is told within this; the rest is for a busy machine to start a program.
const PROMPT: Duration = Duration::from_secs(5 + 5);
/// Ends a program that hangs.
const PATIENCE: &str = "240";

fn s3() -> String {
    std::env::var("DOWNPOUR_TEST_S3")
        .expect("`cargo xtask engines s3` starts the server and runs this")
}

fn hdfs() -> String {
    std::env::var("DOWNPOUR_TEST_HDFS").expect("`cargo xtask engines hdfs` starts it and runs this")
}

/// The program, in a directory of its own, with the credentials of a server at `endpoint`.
fn downpour(endpoint: &str, dir: &tempfile::TempDir, args: &[&str]) -> Command {
    let mut command = Command::new("timeout");
    command
        .args([PATIENCE, env!("CARGO_BIN_EXE_downpour")])
        .args(args);
    command.current_dir(dir.path());
    for (name, value) in [
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_ACCESS_KEY_ID", "test"),
        ("AWS_SECRET_ACCESS_KEY", SECRET),
        ("AWS_REGION", "us-east-1"),
    ] {
        command.env(name, value);
    }
    command.stdin(Stdio::null());
    command
}

fn run(endpoint: &str, dir: &tempfile::TempDir, args: &[&str]) -> Output {
    downpour(endpoint, dir, args).output().unwrap()
}

/// Asserts success; what was printed.
fn printed(output: &Output) -> String {
    let (out, err) = (&output.stdout, &output.stderr);
    let (out, err) = (String::from_utf8_lossy(out), String::from_utf8_lossy(err));
    assert!(output.status.success(), "{}\n{out}\n{err}", output.status);
    assert!(!out.contains(SECRET) && !err.contains(SECRET));
    out.into_owned()
}

/// Asks the server for one thing by its own protocol.
fn ask(endpoint: &str, what: &str) -> Vec<u8> {
    let host = endpoint.strip_prefix("http://").unwrap();
    let mut stream = TcpStream::connect(host).unwrap();
    let authorization = "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0";
    write!(
        stream,
        "{what} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\nConnection: close\r\nAuthorization: {authorization}\r\n\r\n"
    )
    .unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    answer
}

fn bucket(endpoint: &str, name: &str) -> String {
    let answer = ask(endpoint, &format!("PUT /{name}"));
    assert!(String::from_utf8_lossy(&answer).contains(" 200 "));
    format!("s3://{name}")
}

/// Trains in one command, looks at what is there, and goes on from it in another.
fn train_and_look(endpoint: &str, url: &str) {
    let dir = tempfile::tempdir().unwrap();
    let flags = ["demo", "mnist", "--json", "--ps=1", "--workers=2"];
    let mut first = 0.0;
    for steps in ["--steps=150", "--steps=300"] {
        let args = [&flags[..], &["--dir", url, steps]].concat();
        let report: Value = serde_json::from_str(&printed(&run(endpoint, &dir, &args))).unwrap();
        let checkpoint = report["checkpoint"].as_str().unwrap();
        assert!(
            checkpoint.starts_with(&format!("{url}/train/model.ckpt-")),
            "{report}"
        );
        let reached = report["steps"].as_f64().unwrap();
        assert!(reached > first, "{report}");
        first = reached;
        let seen = printed(&run(endpoint, &dir, &["inspect", "checkpoint", checkpoint]));
        assert!(seen.contains("global_step"), "{seen}");
        let seen = printed(&run(
            endpoint,
            &dir,
            &["inspect", "checkpoint", "--verify", &format!("{url}/train")],
        ));
        assert!(!seen.is_empty());
    }
    let seen = printed(&run(
        endpoint,
        &dir,
        &["inspect", "events", &format!("{url}/train")],
    ));
    assert!(seen.contains("loss"), "{seen}");
    // The logs stayed here.
    assert!(dir.path().join("downpour-runs").is_dir());
}

#[test]
fn a_demo_trains_in_an_object_store_and_goes_on_there_and_tensorflow_reads_it() {
    let endpoint = s3();
    train_and_look(&endpoint, &format!("{}/job", bucket(&endpoint, "demo")));
    tensorflow_reads(&endpoint, "demo", "job/train/");
}

/// Lets TensorFlow load a copy of the latest checkpoint: values, and a saver that goes on from it.
fn tensorflow_reads(endpoint: &str, bucket: &str, prefix: &str) {
    let copy = tempfile::tempdir().unwrap();
    let listed = ask(
        endpoint,
        &format!("GET /{bucket}?list-type=2&prefix={prefix}"),
    );
    let listed = String::from_utf8_lossy(&listed).into_owned();
    for rest in listed.split("<Key>").skip(1) {
        let key = rest.split('<').next().unwrap();
        let answer = ask(endpoint, &format!("GET /{bucket}/{key}"));
        let body = answer.windows(4).position(|w| w == b"\r\n\r\n").unwrap() + 4;
        let name = key.rsplit('/').next().unwrap();
        std::fs::write(copy.path().join(name), &answer[body..]).unwrap();
    }
    let python = std::env::var("DOWNPOUR_TEST_PYTHON").expect("a python with TensorFlow");
    let program = "
import sys
import tensorflow.compat.v1 as tf
tf.disable_eager_execution()
latest = tf.train.latest_checkpoint(sys.argv[1])
reader = tf.train.load_checkpoint(latest)
step = reader.get_tensor('global_step')
assert str(step) == latest.rsplit('-', 1)[1], (step, latest)
saver = tf.train.import_meta_graph(latest + '.meta', clear_devices=True)
with tf.Session() as session:
    saver.restore(session, latest)
    saver.save(session, sys.argv[1] + '/again', global_step=int(step) + 1)
print('read', len(reader.get_variable_to_shape_map()))
";
    let mut command = Command::new("timeout");
    command
        .args([PATIENCE, &python, "-c", program])
        .arg(copy.path());
    let output = command.env("CUDA_VISIBLE_DEVICES", "").output().unwrap();
    let read = String::from_utf8_lossy(&output.stdout);
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && read.contains("read "),
        "{read}\n{told}"
    );
}

#[test]
fn a_demo_trains_in_hdfs_and_goes_on_there() {
    let url = hdfs();
    train_and_look("", &format!("{url}/demo"));
}

/// Stands before the server; while it is out, it answers that it cannot.
struct Outage {
    endpoint: String,
    is_out: Arc<AtomicBool>,
    refused: Arc<AtomicUsize>,
}

impl Outage {
    fn before(endpoint: &str) -> Outage {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let outage = Outage {
            endpoint: format!("http://{}", listener.local_addr().unwrap()),
            is_out: Arc::default(),
            refused: Arc::default(),
        };
        let host = endpoint.strip_prefix("http://").unwrap().to_owned();
        let (is_out, refused) = (outage.is_out.clone(), outage.refused.clone());
        std::thread::spawn(move || {
            for mut near in listener.incoming().flatten() {
                let (host, is_out, refused) = (host.clone(), is_out.clone(), refused.clone());
                std::thread::spawn(move || {
                    if is_out.load(Ordering::SeqCst) {
                        refused.fetch_add(1, Ordering::SeqCst);
                        let mut some = [0; 1 << 16];
                        let _ = near.read(&mut some);
                        let answer = "HTTP/1.1 503 Slow Down\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
                        let _ = near.write_all(answer.as_bytes());
                        return;
                    }
                    let Ok(far) = TcpStream::connect(host) else {
                        return;
                    };
                    let pairs = [
                        (near.try_clone().unwrap(), far.try_clone().unwrap()),
                        (far, near),
                    ];
                    for (mut from, mut to) in pairs {
                        let is_out = is_out.clone();
                        std::thread::spawn(move || {
                            let mut buffer = [0; 1 << 14];
                            while let Ok(n @ 1..) = from.read(&mut buffer) {
                                // What was kept open from before ends with the outage.
                                if is_out.load(Ordering::SeqCst)
                                    || to.write_all(&buffer[..n]).is_err()
                                {
                                    break;
                                }
                            }
                            let _ = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
                        });
                    }
                });
            }
        });
        outage
    }
}

#[test]
fn training_goes_on_through_an_outage_and_saves_after_it() {
    let endpoint = s3();
    let seconds = std::env::var("DOWNPOUR_TEST_OUTAGE").map_or(5, |s| s.parse().unwrap());
    bucket(&endpoint, "outage-demo");
    let outage = Outage::before(&endpoint);
    let dir = tempfile::tempdir().unwrap();
    let steps = "--steps=1000000";
    let args = [
        "demo",
        "mnist",
        "--json",
        "--ps=1",
        "--workers=2",
        "--dir",
        "s3://outage-demo",
        steps,
    ];
    let child = downpour(&outage.endpoint, &dir, &args)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let saved = || {
        let listed = ask(
            &endpoint,
            "GET /outage-demo?list-type=2&prefix=train/model.ckpt-",
        );
        let listed = String::from_utf8_lossy(&listed);
        let names = listed
            .split("<Key>")
            .skip(1)
            .filter_map(|rest| rest.split(".index<").next());
        let steps = names.filter_map(|name| name.strip_prefix("train/model.ckpt-")?.parse().ok());
        steps.max().unwrap_or(-1_i64)
    };
    let until = |what: &str, holds: &dyn Fn() -> bool| {
        let end = Instant::now() + Duration::from_secs(120);
        while !holds() {
            assert!(Instant::now() < end, "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    until("a first checkpoint of trained values", &|| saved() > 0);
    outage.is_out.store(true, Ordering::SeqCst);
    until("requests are refused", &|| {
        outage.refused.load(Ordering::SeqCst) > 0
    });
    let before = saved();
    let (end, refused) = (
        Instant::now() + Duration::from_secs(seconds),
        &outage.refused,
    );
    until("the outage lasts", &|| {
        Instant::now() >= end && refused.load(Ordering::SeqCst) > 3
    });
    assert_eq!(saved(), before);
    outage.is_out.store(false, Ordering::SeqCst);
    until("another checkpoint", &|| saved() > before);
    let id = child.id().to_string();
    // `timeout` passes it on; the launcher then asks its tasks to save and end.
    assert!(
        Command::new("kill")
            .args(["-INT", &id])
            .status()
            .unwrap()
            .success()
    );
    let output = child.wait_with_output().unwrap();
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    let report: Value = serde_json::from_str(out.lines().last().unwrap_or_default())
        .unwrap_or_else(|e| panic!("{e}: {out}\n{err}"));
    assert_eq!(report["restarts"], 0, "{report}\n{err}");
    assert!(saved() > before, "{report}");
}

#[test]
fn a_wrong_directory_is_one_line_at_once_and_credentials_are_in_none() {
    let endpoint = s3();
    let port = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let dir = tempfile::tempdir().unwrap();
    for (endpoint, url, expected) in [
        (
            endpoint.as_str(),
            "s3://no-such-bucket/x",
            "there is no bucket 'no-such-bucket'",
        ),
        (&format!("http://{port}"), "s3://b/x", "refused"),
        (&endpoint, "s3:///x", "names no bucket"),
        (
            &endpoint,
            &format!("s3://AKIA:{SECRET}@b/x"),
            "may not name a user or a password",
        ),
        (&endpoint, "ftp://b/x", "scheme 'ftp' not implemented"),
        (&endpoint, &format!("hdfs://{port}/x"), "refused"),
    ] {
        for args in [
            &["demo", "mnist", "--dir", url][..],
            &["inspect", "checkpoint", url],
        ] {
            let begin = Instant::now();
            let output = run(endpoint, &dir, args);
            let took = begin.elapsed();
            let told = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success(), "{args:?}");
            assert!(told.contains(expected), "{args:?}: {told}");
            assert_eq!(told.trim_end().lines().count(), 1, "{told}");
            assert!(!told.contains(SECRET) && output.stdout.is_empty(), "{told}");
            assert!(took < PROMPT, "{args:?} took {took:?}");
        }
    }
    assert!(!dir.path().join("downpour-runs").exists());
}
