//! `downpour demo` as a user meets it. How well it trains is measured with the release program
//! (`cargo xtask launch`); here it must run, report and refuse.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod modes;

use std::path::Path;
use std::process::{Command, Output, Stdio};

fn demo(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_downpour"))
        .args(["demo", "mnist"])
        .args(args)
        .current_dir(dir)
        .env("XDG_CACHE_HOME", dir.join("cache"))
        .env_remove("TF_CONFIG")
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

#[test]
fn a_cluster_trains_together_and_says_how_it_went() {
    let dir = tempfile::tempdir().unwrap();
    let out = demo(
        dir.path(),
        &["--ps=1", "--workers=2", "--sync", "--steps=40", "--json"],
    );
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{err}");
    let line: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(line["test_accuracy"].as_f64().unwrap() > 0.5, "{line}");
    assert!(line["steps"].as_f64().unwrap() >= 40.0, "{line}");
    let checkpoint = line["checkpoint"].as_str().unwrap();
    assert!(Path::new(&format!("{checkpoint}.index")).exists(), "{line}");
    let train = Path::new(line["dir"].as_str().unwrap()).join("train");
    let mut events = std::fs::read_dir(train)
        .unwrap()
        .map(|e| e.unwrap().file_name());
    assert!(events.any(|name| name.to_string_lossy().starts_with("events.out.tfevents.")));
}

/// Runs the demo of another method; what it ends with.
fn other(method: &str, dir: &Path, args: &[&str]) -> serde_json::Value {
    let out = Command::new(env!("CARGO_BIN_EXE_downpour"))
        .args(["demo", method, "--ps=1", "--json"])
        .args(args)
        .current_dir(dir)
        .env_remove("TF_CONFIG")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(0), "{err}");
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn replicas_pour() {
    let dir = tempfile::tempdir().unwrap();
    let line = other(
        "downpour",
        dir.path(),
        &["--workers=2", "--steps=80", "--warm-start=10", "--bound=64"],
    );
    let number = |name: &str| {
        line[name]
            .as_f64()
            .unwrap_or_else(|| panic!("{name}: {line}"))
    };
    assert!(number("test_accuracy") > 0.5, "{line}");
    assert!(number("steps") >= 80.0, "{line}");
    assert!(number("mean_staleness") >= 0.0, "{line}");
}

/// How far it comes in its time depends on the machine; that it ends well does not.
#[test]
fn a_replica_that_is_killed_while_others_pour_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let line = other(
        "downpour",
        dir.path(),
        &["--workers=2", "--kill=worker:1@1s"],
    );
    assert_eq!(line["restarts"].as_f64(), Some(1.0), "{line}");
    assert!(line["portions_again"].as_f64().is_some(), "{line}");
}

#[test]
fn a_coordinator_and_replicas_minimize() {
    let dir = tempfile::tempdir().unwrap();
    let line = other(
        "sandblaster",
        dir.path(),
        &["--workers=2", "--steps=6", "--images=2000"],
    );
    assert_eq!(line["steps"].as_f64(), Some(6.0), "{line}");
    assert!(line["test_accuracy"].as_f64().unwrap() > 0.7, "{line}");
    // Each evaluation hands out every portion, the last ones twice.
    let number = |name: &str| line[name].as_f64().unwrap();
    assert!(
        number("portions_handed_out") >= number("portions") * number("evaluations"),
        "{line}"
    );
    let checkpoint = line["checkpoint"].as_str().unwrap();
    assert!(checkpoint.ends_with("model.ckpt-6"), "{line}");
}

/// The second coordinator goes on where the first was, and all end well.
#[test]
fn a_coordinator_that_is_killed_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--workers=2", "--images=2000", "--kill=chief:0@1500ms"];
    let line = other("sandblaster", dir.path(), &args);
    assert_eq!(line["restarts"].as_f64(), Some(1.0), "{line}");
    assert!(line["test_accuracy"].as_f64().unwrap() > 0.7, "{line}");
}

#[test]
fn without_a_terminal_plain_lines_tell_of_loss_and_recovery() {
    let dir = tempfile::tempdir().unwrap();
    let out = demo(dir.path(), &["--ps=1", "--workers=1", "--kill=ps:0@1s"]);
    let (text, err) = (
        String::from_utf8(out.stdout).unwrap(),
        String::from_utf8_lossy(&out.stderr),
    );
    assert_eq!(out.status.code(), Some(0), "{text}{err}");
    for words in [
        "MNIST, softmax: 1 ps + 1 worker, asynchronous\n",
        "ps:0 is killed, as was asked for",
        "ps:0 started again",
        "ps:0 was lost at step ",
        ": the model was restored from step ",
        "; training went on after ",
        " steps/s  loss ",
        "test accuracy ",
        ", 1 restart\n",
        "checkpoint   ",
        "tensorboard --logdir ",
    ] {
        assert!(text.contains(words), "'{words}' is not in:\n{text}{err}");
    }
    assert!(!text.contains('\x1b'), "{text}");
    // What is said and what was saved are the same step.
    let after = text.split(" % after ").nth(1).unwrap();
    let steps = after.split(" steps").next().unwrap().replace(',', "");
    assert!(text.contains(&format!("model.ckpt-{steps}\n")), "{text}");
    // The log is for people, and the images are not in the run.
    let log = std::fs::read_to_string(dir.path().join("downpour-runs/mnist-1/logs/worker-0.log"));
    let log = log.unwrap();
    assert!(
        !log.contains("@progress") && log.contains("  loss "),
        "{log}"
    );
    assert!(!dir.path().join("downpour-runs/mnist-1/data").exists());
    assert!(dir.path().join("cache/downpour/mnist").is_dir());
}

#[test]
fn who_is_interrupted_saves_before_the_end() {
    let dir = tempfile::tempdir().unwrap();
    for args in [
        &["mnist", "--ps=1", "--workers=2"][..],
        &["mnist", "--ps=1", "--workers=2", "--sync"],
        &["downpour", "--ps=1", "--workers=2"],
        &["sandblaster", "--ps=1", "--workers=2", "--images=1000"],
    ] {
        let mut child = Command::new(env!("CARGO_BIN_EXE_downpour"))
            .arg("demo")
            .args(args)
            .args(["--steps=1000000000", "--dir=run"])
            .current_dir(dir.path())
            .env("XDG_CACHE_HOME", dir.path().join("cache"))
            .env_remove("TF_CONFIG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
        let mut text = String::new();
        // Some seconds of training.
        while text.matches(" loss ").count() < 3 {
            assert!(
                std::io::BufRead::read_line(&mut out, &mut text).unwrap() > 0,
                "{text}"
            );
        }
        let id = child.id().to_string();
        let sent = Command::new("kill").args(["-s", "TERM", &id]).status();
        assert!(sent.unwrap().success());
        std::io::Read::read_to_string(&mut out, &mut text).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(143), "{text}");
        assert!(
            !text.contains("what did not end is killed"),
            "{args:?}: {text}"
        );
        let told = |line: &str| {
            let mut words = line.split_whitespace();
            let is_step = matches!(words.next(), Some("step" | "iteration"));
            words
                .next()
                .filter(|_| is_step)?
                .replace(',', "")
                .parse::<i64>()
                .ok()
        };
        let last = text.lines().filter_map(told).max().unwrap();
        let saved = text
            .split("model.ckpt-")
            .nth(1)
            .unwrap_or_else(|| panic!("{args:?}: {text}"));
        let saved: i64 = saved.lines().next().unwrap().parse().unwrap();
        assert!(saved >= last, "{args:?}: saved {saved} of {last}\n{text}");
        std::fs::remove_dir_all(dir.path().join("run")).unwrap();
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (args, words) in [
        (vec!["--workers=0"], "at least one task that trains"),
        (vec!["--steps=0"], "--steps"),
        (vec!["--steps=-5"], "--steps"),
        (vec!["--backup-workers=1"], "--sync"),
        (
            vec!["--sync", "--backup-workers=2"],
            "leaves nobody to wait for",
        ),
        (vec!["--model=gpt"], "--model"),
        (vec!["--kill=ps:9@1s"], "no task ps:9"),
        (vec!["--dir=/"], "the directory '/' cannot be used"),
    ] {
        let out = demo(dir.path(), &args);
        let err = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {err}");
        assert!(err.contains(words), "{args:?}: {err}");
    }
}
