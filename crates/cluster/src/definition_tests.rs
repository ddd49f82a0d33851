//! What sources say, and what they may not.

use super::*;

fn tf_config(text: &str) -> Definition {
    Definition::from_tf_config(text).unwrap()
}

fn refusal(outcome: Result<impl std::fmt::Debug, DefinitionError>) -> String {
    outcome.unwrap_err().to_string()
}

#[test]
fn tf_config_as_platforms_write_it() {
    let kubeflow = tf_config(
        r#"{"cluster": {"chief": ["c:1"], "ps": ["p:1", "q:1"], "worker": ["w:1"]},
            "task": {"type": "ps", "index": 1}, "environment": "cloud"}"#,
    );
    assert_eq!(
        (kubeflow.job.as_deref(), kubeflow.task),
        (Some("ps"), Some(1))
    );
    assert_eq!(kubeflow.cluster.unwrap().num_tasks(), 4);
    let vertex = tf_config(
        r#"{"cluster": {"worker": ["w:1"]}, "environment": "cloud", "job": {"args": []}, "rpc_layer": "grpc",
            "task": {"type": "worker", "index": "0", "trial": "", "cloud": "abc"}}"#,
    );
    assert_eq!(vertex.task, Some(0));
    let dynamic = tf_config(
        r#"{"sparseCluster": {"worker": {"7": "w:1"}, "ps": ["p:1"]}, "task": {"type": "worker", "index": 7}}"#,
    );
    assert_eq!(dynamic.cluster.unwrap().address("worker", 7), Ok("w:1"));
    for nothing in ["", " ", "{}", r#"{"cluster": {}}"#] {
        assert_eq!(tf_config(nothing), Definition::default(), "{nothing:?}");
    }
}

#[test]
fn tf_config_that_is_wrong() {
    for (text, want) in [
        (
            r#"{"clustr": {}}"#,
            "unknown key 'clustr'; did you mean 'cluster'?",
        ),
        (
            r#"{"bananas": {}}"#,
            "unknown key 'bananas'; known are cluster, rpc_layer, sparseCluster, task",
        ),
        (
            r#"{"enviroment": "cloud"}"#,
            "unknown key 'enviroment'; did you mean 'environment'?",
        ),
        (
            r#"{"task": {"typ": "ps"}}"#,
            "unknown key 'task.typ'; did you mean 'type'?",
        ),
        (
            r#"{"task": {"type": "ps", "index": -1}}"#,
            "task.index is -1; it must be a number from 0 up",
        ),
        (
            r#"{"task": "ps"}"#,
            r#"task is 'ps'; it must be like {"type": "ps", "index": 0}"#,
        ),
        ("[]", "it is no object; it must be a JSON object"),
        (
            r#"{"rpc_layer": "grpc+verbs"}"#,
            "rpc_layer is 'grpc+verbs'; it must be 'grpc': others are not spoken here",
        ),
        (
            r#"{"cluster": {"ps": ["h:1"], "ps": ["h:2"]}}"#,
            "'cluster.ps' is given twice",
        ),
        (
            r#"{"cluster": {"ps": ["h:1"]}, "sparseCluster": {}}"#,
            "it has both 'cluster' and 'sparseCluster'",
        ),
        (
            r#"{"cluster": {"chief": ["a:1"], "master": ["b:1"]}}"#,
            "the cluster has both 'chief' and 'master', two names of the same role",
        ),
        (
            r#"{"cluster": {"chief": ["a:1", "b:1"]}}"#,
            "the cluster has 2 tasks of job 'chief'; there must be at most one",
        ),
    ] {
        assert_eq!(refusal(Definition::from_tf_config(text)), want, "{text}");
    }
}

#[test]
fn files_in_both_forms() {
    let toml = "job = 'ps'\ntask = 1\nbind = '0.0.0.0'\nthreads = 3\ndrain = '1m'\nexit_when_done = true\n\
                done_after = 2.5\nwait_for = ['worker:0']\nallow_remote_stop = false\n\
                [cluster]\nps = ['p:1', 'q:1']\nworker = { 7 = 'w:1' }\n";
    let json = r#"{"job": "ps", "task": 1, "bind": "0.0.0.0", "threads": 3, "drain": 60, "exit_when_done": true,
                   "done_after": "2500ms", "wait_for": ["worker:0"], "allow_remote_stop": false,
                   "cluster": {"ps": ["p:1", "q:1"], "worker": {"7": "w:1"}}}"#;
    let made = Definition::from_file(toml).unwrap();
    assert_eq!(made, Definition::from_file(json).unwrap());
    assert_eq!(made.drain, Some(Duration::from_secs(60)));
    assert_eq!(made.done_after, Some(Duration::from_millis(2500)));
    for (text, want) in [
        ("taks = 1", "unknown key 'taks'; did you mean 'task'?"),
        (
            "threads = 'many'",
            "threads is 'many'; it must be a number from 0 up",
        ),
        (
            "drain = 'long'",
            "drain is 'long'; it must be a time like 30s, 500ms or 2m",
        ),
        (
            "exit_when_done = 1",
            "exit_when_done is 1; it must be true or false",
        ),
        (
            "wait_for = 'worker'",
            "wait_for is 'worker'; it must be a list of texts",
        ),
        ("job =", "not valid TOML"),
    ] {
        let shown = refusal(Definition::from_file(text));
        assert!(shown.starts_with(want), "{text}: {shown}");
    }
}

#[test]
fn durations() {
    for (text, want) in [
        ("30", Some(30_000)),
        ("30s", Some(30_000)),
        ("1.5s", Some(1500)),
        ("500ms", Some(500)),
        ("2m", Some(120_000)),
        ("1h", Some(3_600_000)),
        ("0", Some(0)),
        ("-1s", None),
        ("1d", None),
        ("", None),
        ("nan", None),
        ("1e300", None),
    ] {
        assert_eq!(
            parse_duration(text),
            want.map(Duration::from_millis),
            "{text}"
        );
    }
}

#[test]
fn sizes_have_units() {
    use super::parse_bytes;
    for (text, bytes) in [
        ("512M", Some(512 << 20)),
        ("12G", Some(12 << 30)),
        ("1.5GiB", Some(3 << 29)),
        ("65536", Some(65536)),
        ("64k", Some(64 << 10)),
        ("2TB", Some(2 << 40)),
        ("0", None),
        ("-1G", None),
        ("G", None),
        ("12X", None),
        ("1e30", None),
    ] {
        assert_eq!(parse_bytes(text), bytes, "{text}");
    }
    let made = Definition::from_file("memory_limit = \"2G\"\nstep_memory_limit = 100000").unwrap();
    assert_eq!(made.memory_limit, Some(2 << 30));
    assert_eq!(
        (made.step_memory_limit, made.session_memory_limit),
        (Some(100_000), None)
    );
    assert!(Definition::from_file("memory_limit = \"much\"").is_err());
}
