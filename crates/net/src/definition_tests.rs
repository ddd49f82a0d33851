//! What sources say, and what becomes of several.

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

const CLUSTER: &str =
    r#"{"chief": ["c:1"], "ps": ["p:1", "q:1"], "worker": ["w:1", "x:1"], "evaluator": ["e:1"]}"#;

fn flags(job: Option<&str>, task: Option<u32>) -> (String, Definition) {
    let made = Definition {
        job: job.map(str::to_owned),
        task,
        ..Default::default()
    };
    ("the flags".into(), made)
}

fn environment(task: &str) -> (String, Definition) {
    let text = format!(r#"{{"cluster": {CLUSTER}, "task": {task}}}"#);
    ("TF_CONFIG".into(), tf_config(&text))
}

#[test]
fn the_first_source_that_speaks_wins() {
    let worker = r#"{"type": "worker", "index": 0}"#;
    let role = Role::resolve(&[flags(None, Some(1)), environment(worker)]).unwrap();
    assert_eq!((role.job.as_str(), role.task), ("worker", 1));
    assert_eq!(
        (role.cluster_from.as_str(), role.listen.as_str()),
        ("TF_CONFIG", "x:1")
    );
    // A job with one task needs no index; another job's index is not used.
    let role = Role::resolve(&[flags(Some("chief"), None), environment(worker)]).unwrap();
    assert_eq!((role.job.as_str(), role.task), ("chief", 0));
    let shown = refusal(Role::resolve(&[
        flags(Some("ps"), None),
        environment(worker),
    ]));
    assert_eq!(
        shown,
        "--task is needed: which task of job 'ps' is this? (TF_CONFIG names task 0 of job 'worker')"
    );
}

#[test]
fn a_cluster_that_is_overridden_is_mentioned_if_it_differs() {
    let mut strong = flags(Some("ps"), Some(0));
    strong.1.cluster = Some(ClusterSpec::from_json(r#"{"ps": ["z:1"]}"#).unwrap());
    let role =
        Role::resolve(&[strong.clone(), environment(r#"{"type": "ps", "index": 1}"#)]).unwrap();
    assert_eq!((role.task, role.listen.as_str()), (0, "z:1"));
    assert_eq!(
        role.notes,
        ["the cluster of TF_CONFIG differs and is not used: the flags goes before it"]
    );
    let same = ("file".to_owned(), strong.1.clone());
    assert!(Role::resolve(&[strong, same]).unwrap().notes.is_empty());
}

#[test]
fn roles_that_cannot_be() {
    let evaluator = tf_config(
        r#"{"cluster": {"ps": ["p:1"], "chief": ["c:1"]}, "task": {"type": "evaluator", "index": 0}}"#,
    );
    let zero = tf_config(
        r#"{"cluster": {"ps": ["p:1"], "worker": ["w:0"]}, "task": {"type": "ps", "index": 0}}"#,
    );
    let bind = Definition {
        bind: Some(":2".into()),
        ..tf_config(r#"{"cluster": {"ps": ["p:1"]}}"#)
    };
    for (definition, want) in [
        (
            Definition::default(),
            "say where to listen: --port N for a single task, or --cluster with --job and --task",
        ),
        (
            environment("{}").1,
            "--job is needed: which job of the cluster (chief, evaluator, ps, worker) is this task in?",
        ),
        (
            environment(r#"{"type": "ps", "index": 2}"#).1,
            "job 'ps' has no task 2; it has tasks 0-1",
        ),
        (
            evaluator,
            "this task is the evaluator, which is not in the cluster: it reads checkpoints and needs no server, so run its program alone",
        ),
        (
            zero,
            "task 0 of job 'worker' has address 'w:0': port 0 takes any free one, and the other tasks could not find it",
        ),
        (
            bind,
            "--bind is ':2'; it must be host:port or host, as in 0.0.0.0:2222 or [::]:2222",
        ),
    ] {
        assert_eq!(refusal(Role::resolve(&[("it".into(), definition)])), want);
    }
}

#[test]
fn a_host_alone_listens_on_the_tasks_own_port() {
    for (bind, want) in [
        ("0.0.0.0", "0.0.0.0:1"),
        ("[::]", "[::]:1"),
        ("[::]:7", "[::]:7"),
    ] {
        let definition = Definition {
            bind: Some(bind.into()),
            ..tf_config(r#"{"cluster": {"ps": ["p:1"]}}"#)
        };
        let role = Role::resolve(&[("it".into(), definition)]).unwrap();
        assert_eq!(role.listen, want);
    }
}

#[test]
fn who_is_waited_for() {
    let wait = |task: &str, names: Option<&[&str]>| {
        let mut source = environment(task);
        source.1.exit_when_done = Some(true);
        source.1.wait_for = names.map(|n| n.iter().map(|s| s.to_string()).collect());
        Role::resolve(&[source]).map(|role| {
            let names = role
                .wait_for
                .iter()
                .map(|(job, task)| format!("{job}{task}"));
            names.collect::<Vec<_>>().join(" ")
        })
    };
    let (ps, worker) = (
        r#"{"type": "ps", "index": 0}"#,
        r#"{"type": "worker", "index": 1}"#,
    );
    assert_eq!(wait(ps, None).unwrap(), "chief0 worker0 worker1");
    assert_eq!(wait(worker, None).unwrap(), "worker1");
    let evaluator = r#"{"type": "evaluator", "index": 0}"#;
    assert_eq!(wait(evaluator, None).unwrap(), "evaluator0");
    assert_eq!(
        wait(ps, Some(&["chief", "worker:1"])).unwrap(),
        "chief0 worker1"
    );
    assert_eq!(
        refusal(wait(ps, Some(&["worker:x"]))),
        "--wait-for is 'worker:x'; it must be like worker or worker:0"
    );
    assert_eq!(
        refusal(wait(ps, Some(&["worker:9"]))),
        "job 'worker' has no task 9; it has tasks 0-1"
    );
}
