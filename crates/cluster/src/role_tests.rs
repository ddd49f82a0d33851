//! What becomes of several sources.

use super::*;

fn tf_config(text: &str) -> Definition {
    Definition::from_tf_config(text).unwrap()
}

fn refusal(outcome: Result<impl std::fmt::Debug, DefinitionError>) -> String {
    outcome.unwrap_err().to_string()
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
    assert_eq!(
        role.notes,
        ["the cluster lists an evaluator: sessions without device filters wait for it too"]
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
