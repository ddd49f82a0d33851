//! A TFJob of Kubeflow (`kubeflow.org/v1`) as a job of ours: replicas, restarts, whose end is the job's, and the pod
//! templates as they are. Pure. The operator itself need not be there; no object of kind TFJob is made.

use super::settings::{Pod, is_name};
use crate::kubernetes::manifests::TENSORFLOW;
use crate::policy::RestartPolicy;
use crate::site::On;
use crate::spec::{DoneWhen, Group, JobSpec, MAX_TEXT, SpecError, value};
use serde::Deserialize as _;
use serde_json::Value;

/// What Kubeflow calls the replicas, in any case, and what a cluster calls them.
const REPLICAS: [(&str, &str); 6] = [
    ("ps", "ps"),
    ("worker", "worker"),
    ("chief", "chief"),
    ("master", "master"),
    ("evaluator", "evaluator"),
    ("eval", "evaluator"),
];

/// What is shown as the command of a container that runs what its image says.
const ENTRYPOINT: &str = "(the image's own command)";

/// Whether a text means to be a TFJob.
pub(crate) fn is_one(text: &str) -> bool {
    text.lines().any(|line| {
        let line: String = line.chars().filter(|c| !c.is_whitespace()).collect();
        let line = line.replace(['"', '\'', ','], "");
        line == "kind:TFJob" || line.starts_with("kind:TFJob#")
    })
}

/// Reads one.
pub(crate) fn read(text: &str) -> Result<JobSpec, SpecError> {
    if text.len() > MAX_TEXT {
        return Err(SpecError::Long);
    }
    let mut documents = Vec::new();
    for document in yaml_serde::Deserializer::from_str(text) {
        let document = Value::deserialize(document).map_err(|e| SpecError::Form {
            form: "YAML",
            reason: e.to_string(),
        })?;
        if !document.is_null() {
            documents.push(document);
        }
    }
    match documents.as_slice() {
        [job] => convert(job),
        all => Err(value(
            "the number of documents",
            all.len(),
            "1: the TFJob alone; what else it needs is for kubectl apply",
        )),
    }
}

fn convert(job: &Value) -> Result<JobSpec, SpecError> {
    if job["kind"] != "TFJob" {
        return Err(value("kind", shown(&job["kind"]), "TFJob"));
    }
    let version = job["apiVersion"].as_str().unwrap_or_default();
    if version != "kubeflow.org/v1" {
        return Err(value("apiVersion", version, "kubeflow.org/v1"));
    }
    let name = job["metadata"]["name"].as_str().unwrap_or_default();
    if !is_name(name) {
        let wanted = "a name of lower-case letters, digits and '-'";
        return Err(value("metadata.name", name, wanted));
    }
    let mut spec = JobSpec::new(name, Vec::new(), &[]);
    spec.on = On::Kubernetes;
    spec.kubernetes.namespace = text_at(&job["metadata"]["namespace"], "metadata.namespace")?;
    let replicas = job["spec"]["tfReplicaSpecs"].as_object();
    let replicas = replicas.filter(|all| !all.is_empty()).ok_or_else(|| {
        let text = "a TFJob needs spec.tfReplicaSpecs with at least a Worker or a Chief";
        SpecError::Missing(text.to_owned())
    })?;
    let mut policies = Vec::new();
    for (kind, replica) in replicas {
        let key = format!("spec.tfReplicaSpecs.{kind}");
        let small = kind.to_ascii_lowercase();
        let Some((_, role)) = REPLICAS.iter().find(|(called, _)| *called == small) else {
            let wanted = "one of PS, Worker, Chief, Master, Evaluator";
            return Err(value("spec.tfReplicaSpecs", kind, wanted));
        };
        let count = match &replica["replicas"] {
            Value::Null => 1,
            given => number(given, &format!("{key}.replicas"))?,
        };
        if count == 0 {
            continue;
        }
        let template = &replica["template"];
        let group = Group {
            count,
            // A TFJob's programs bring their own servers.
            serve: Some(false),
            command: Some(command(template, &key)?),
            ..Group::default()
        };
        let pod = Pod {
            template: Some(template.clone()),
            ..Pod::default()
        };
        if spec.tasks.insert((*role).to_owned(), group).is_some() {
            return Err(value("spec.tfReplicaSpecs", kind, "given once"));
        }
        spec.kubernetes.pods.insert((*role).to_owned(), pod);
        policies.push((*role, key, replica["restartPolicy"].clone()));
    }
    let run = match &job["spec"]["runPolicy"] {
        Value::Null => &job["spec"],
        policy => policy,
    };
    spec.restart = restarts(&policies, run)?;
    // Without a word on success, the chief's end is the job's, or the first worker's.
    spec.done_when = match job["spec"]["successPolicy"].as_str() {
        None | Some("") => DoneWhen::Chief,
        Some("AllWorkers") => DoneWhen::All,
        Some(other) => {
            return Err(value("spec.successPolicy", other, "'' or AllWorkers"));
        }
    };
    spec.kubernetes.keep = match run["cleanPodPolicy"].as_str() {
        // Pods that ended stay; what runs is stopped, whatever is said: a job leaves nothing running.
        None | Some("None" | "Running") => true,
        Some("All") => false,
        Some(other) => {
            return Err(value("cleanPodPolicy", other, "None, Running or All"));
        }
    };
    spec.kubernetes.deadline_seconds = match &run["activeDeadlineSeconds"] {
        Value::Null => None,
        given => Some(u64::from(number(given, "activeDeadlineSeconds")?)),
    };
    spec.check()?;
    Ok(spec)
}

/// The policy of those that train; a job has one.
fn restarts(policies: &[(&str, String, Value)], run: &Value) -> Result<RestartPolicy, SpecError> {
    let trains = |role: &str| matches!(role, "chief" | "master" | "worker");
    let mut chosen: Option<(&str, &str)> = None;
    for (role, key, policy) in policies {
        let word = match policy {
            Value::Null => "Never",
            given => given.as_str().unwrap_or_default(),
        };
        if !["Always", "OnFailure", "Never", "ExitCode"].contains(&word) {
            let key = format!("{key}.restartPolicy");
            let wanted = "Always, OnFailure, Never or ExitCode";
            return Err(value(&key, shown(policy), wanted));
        }
        if !trains(role) {
            continue;
        }
        match chosen {
            Some((before, other)) if other != word => {
                let key = format!("{key}.restartPolicy");
                return Err(value(&key, word, format!("{other}, as that of {before}")));
            }
            _ => chosen = Some((role, word)),
        }
    }
    let mut policy = RestartPolicy {
        final_codes: Vec::new(),
        ..RestartPolicy::default()
    };
    match chosen.map(|(_, word)| word) {
        Some("Never") => policy.limit = 0,
        // As Kubeflow has it: from 128 on a signal ended it, and another attempt may go well.
        Some("ExitCode") => policy.final_codes = (1..128).collect(),
        _ => {}
    }
    if !run["backoffLimit"].is_null() && policy.limit > 0 {
        policy.limit = number(&run["backoffLimit"], "backoffLimit")?;
        policy.alike = 0;
    }
    Ok(policy)
}

/// What the task's container runs, as it is shown; checks that there is one.
fn command(template: &Value, key: &str) -> Result<Vec<String>, SpecError> {
    let containers = template["spec"]["containers"].as_array();
    let containers = containers
        .ok_or_else(|| SpecError::Missing(format!("{key}.template.spec.containers is missing")))?;
    let named = containers.iter().find(|c| c["name"] == TENSORFLOW);
    let Some(container) = named else {
        return Err(SpecError::Missing(format!(
            "{key}.template.spec.containers has none that is called '{TENSORFLOW}'"
        )));
    };
    let mut words = Vec::new();
    for part in ["command", "args"] {
        for word in container[part].as_array().into_iter().flatten() {
            let key = format!("{key}.template.spec.containers.{TENSORFLOW}.{part}");
            let word = word.as_str();
            words.push(
                word.ok_or_else(|| value(&key, "a number", "texts: quote it"))?
                    .to_owned(),
            );
        }
    }
    if container["command"].is_null() {
        words.insert(0, ENTRYPOINT.to_owned());
    }
    Ok(words)
}

fn number(given: &Value, key: &str) -> Result<u32, SpecError> {
    let read = given.as_u64().and_then(|n| u32::try_from(n).ok());
    read.ok_or_else(|| value(key, shown(given), "a whole number"))
}

fn text_at(given: &Value, key: &str) -> Result<Option<String>, SpecError> {
    match given {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        other => Err(value(key, shown(other), "a text")),
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "missing".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = include_str!("../../tests/tfjob.yaml");

    #[test]
    fn a_tfjob_is_a_job() {
        assert!(is_one(JOB));
        let spec = read(JOB).unwrap();
        assert_eq!(spec.name, "dist-mnist");
        assert_eq!(spec.kubernetes.namespace.as_deref(), Some("kubeflow"));
        let counts = spec
            .tasks
            .iter()
            .map(|(job, group)| (job.as_str(), group.count));
        let counts: Vec<_> = counts.collect();
        assert_eq!(
            counts,
            [("chief", 1), ("evaluator", 1), ("ps", 2), ("worker", 4)]
        );
        assert_eq!(spec.done_when, DoneWhen::Chief);
        assert_eq!((spec.restart.limit, spec.restart.alike), (3, 0));
        assert!(
            spec.restart.final_codes.contains(&127) && !spec.restart.final_codes.contains(&137)
        );
        assert!(!spec.kubernetes.keep);
        assert_eq!(spec.kubernetes.deadline_seconds, Some(3600));
        assert_eq!(
            spec.tasks["worker"].command.as_ref().unwrap()[1],
            "/var/tf_dist_mnist/dist_mnist.py"
        );
        assert_eq!(spec.tasks["ps"].command.as_ref().unwrap(), &[ENTRYPOINT]);
        // And it can be written as a file of ours.
        assert_eq!(JobSpec::from_text(&spec.to_json()).unwrap(), spec);
    }

    #[test]
    fn its_objects_are_as_they_are() {
        let spec = read(JOB).unwrap();
        let made = crate::manifests(&spec).unwrap();
        assert_eq!(made, include_str!("../../tests/tfjob_manifests.yaml"));
    }

    #[test]
    fn what_is_wrong_with_a_tfjob_is_said_with_its_place() {
        for (old, new, want) in [
            (
                "kubeflow.org/v1",
                "kubeflow.org/v2",
                "apiVersion is 'kubeflow.org/v2'",
            ),
            (
                "kind: TFJob",
                "kind: PyTorchJob",
                "kind is 'PyTorchJob'; it must be TFJob",
            ),
            ("name: dist-mnist", "name: Dist", "metadata.name is 'Dist'"),
            (
                "tfReplicaSpecs",
                "replicas",
                "a TFJob needs spec.tfReplicaSpecs",
            ),
            (
                "Worker:",
                "Workers:",
                "spec.tfReplicaSpecs is 'Workers'; it must be one of PS",
            ),
            (
                "replicas: 4",
                "replicas: four",
                "spec.tfReplicaSpecs.Worker.replicas is 'four'",
            ),
            (
                "replicas: 4",
                "replicas: -1",
                "spec.tfReplicaSpecs.Worker.replicas is '-1'",
            ),
            (
                "restartPolicy: ExitCode",
                "restartPolicy: Sometimes",
                "restartPolicy is 'Sometimes'",
            ),
            (
                "cleanPodPolicy: All",
                "cleanPodPolicy: Some",
                "cleanPodPolicy is 'Some'",
            ),
            (
                "name: tensorflow",
                "name: tf",
                "has none that is called 'tensorflow'",
            ),
            ("image: ", "picture: ", "containers[0].image"),
            ("spec:", "spec: [", "not a job in YAML"),
            ("spec:", "---\nspec:", "the number of documents is '2'"),
        ] {
            let text = JOB.replacen(old, new, 1);
            assert_ne!(text, JOB, "{old}");
            let error = read(&text).unwrap_err().to_string();
            assert!(
                error.contains(want) && !error.contains('\n'),
                "{new}: {error}"
            );
        }
    }

    #[test]
    fn aliases_that_multiply_do_not() {
        let mut text = "kind: TFJob\na0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for n in 1..12 {
            let of = format!("*a{}", n - 1);
            text += &format!("a{n}: &a{n} [{}]\n", [of.as_str(); 9].join(", "));
        }
        assert!(read(&text).is_err());
    }
}
