//! A job as objects of Kubernetes: one Indexed Job for each job of the cluster, a headless Service that gives tasks their
//! names, a Secret with what the user puts into the environment. Pure; `downpour run --print-manifests` prints them.
//!
//! All tasks of an Indexed Job share one description. What differs is the index, which Kubernetes fills in for
//! `$(JOB_COMPLETION_INDEX)`; every other dollar sign is the user's and is doubled, as Kubernetes wants it.
//!
//! Fence: a pod on a node that is cut off runs on, and Kubernetes starts another. So the kubelet, which still works there,
//! ends a task that has not reached the API server for the lease, and Kubernetes is told to wait longer than that.

use super::settings::{Kind, Pod, Toleration, Volume, host_port};
use crate::plan::{self, Planned};
use crate::site::Resources;
use crate::spec::{JobSpec, SpecError};
use crate::supervise::OWN;
use downpour_cluster::ClusterSpec;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::time::Duration;

/// Every task listens here: pods have addresses of their own.
pub(crate) const PORT: u16 = 2222;
/// On every object of a job: its name.
pub(crate) const JOB_LABEL: &str = "downpour/job";
/// On pods and Jobs: which job of the cluster.
pub(crate) const ROLE_LABEL: &str = "downpour/tasks";
/// On the Service: the directory of the run, on the launcher's machine.
pub(crate) const RUN: &str = "downpour/run";
/// On the Service: the run is over, and is being removed.
pub(crate) const ENDED: &str = "downpour/ended";
/// The container of a program, if no template names another.
const TASK: &str = "task";
/// The container of a server beside a program.
const SERVER: &str = "server";
/// Which container of a pod template is the task, as in a TFJob.
pub(crate) const TENSORFLOW: &str = "tensorflow";
/// Stands for the index while a description is made. No text of a user's holds this character: it is checked.
const INDEX: char = '\u{f8ff}';
/// So many checks fail in a row before a task on a node that is cut off is ended.
const CHECKS: u64 = 5;
/// How long one check may take; how long a task that failed them may take to end.
const CHECK_WITHIN: u64 = 2;
/// Added to the lease before another pod takes a task's place.
const MARGIN: Duration = Duration::from_secs(10);
/// Restarts of a task while a launcher counts them.
const UNCOUNTED: u32 = 1_000_000;

/// A job's objects.
pub(crate) struct Manifests {
    pub(crate) service: Value,
    pub(crate) secret: Option<Value>,
    /// By job of the cluster.
    pub(crate) jobs: BTreeMap<String, Value>,
}

/// The job's objects as YAML, for `kubectl apply`.
///
/// ```
/// let text = "on = 'kubernetes'\ncommand = ['/train']\n[kubernetes]\nimage = 'me/train'\n[tasks.worker]\ncount = 2\n";
/// let spec = downpour_launch::JobSpec::from_text(text)?;
/// assert!(downpour_launch::manifests(&spec)?.contains("completionMode: Indexed\n"));
/// # Ok::<(), downpour_launch::SpecError>(())
/// ```
pub fn manifests(spec: &JobSpec) -> Result<String, SpecError> {
    let mut spec = spec.clone();
    if let Some(dir) = &spec.kubernetes.dir {
        spec.dir = Some(dir.into());
    }
    let names_dir = |word: &String| word.contains("{dir}");
    let commands = spec
        .tasks
        .values()
        .filter_map(|group| group.command.as_ref());
    if spec.dir.is_none() && commands.chain([&spec.command]).flatten().any(names_dir) {
        let text = "say what {dir} is in pods: kubernetes.dir, or --dir with a URL";
        return Err(SpecError::Missing(text.to_owned()));
    }
    let made = Manifests::new(&spec, spec.kubernetes.api.as_deref(), None)?;
    let mut out = String::new();
    if spec.kubernetes.api.is_none() && !spec.kubernetes.lease.is_zero() {
        out.push_str(
            "# No fence: without kubernetes.api = 'HOST:PORT' a pod on a node that is cut off runs on beside its replacement.\n",
        );
    }
    let all = [Some(&made.service), made.secret.as_ref()];
    let parts = all.into_iter().flatten().chain(made.jobs.values());
    for (at, part) in parts.enumerate() {
        if at > 0 {
            out.push_str("---\n");
        }
        super::yaml::write(&mut out, part);
    }
    Ok(out)
}

/// A job's name as Kubernetes takes it for a Service.
pub(crate) fn object_name(name: &str) -> String {
    let fitted = name.chars().map(|c| match c.is_ascii_alphanumeric() {
        true => c.to_ascii_lowercase(),
        false => '-',
    });
    let fitted: String = fitted.collect();
    let fitted = fitted.trim_end_matches('-');
    match fitted.starts_with(|c: char| c.is_ascii_lowercase()) {
        true => fitted.to_owned(),
        false => format!("j{fitted}"),
    }
}

/// The name of a task in the cluster's DNS, and of its Job without the index.
pub(crate) fn job_name(spec: &JobSpec, job: &str) -> String {
    format!("{}-{job}", object_name(&spec.name))
}

/// The address of a task. A pod knows its own full name at once; a short one is looked up in the DNS, which may not know
/// it yet when the task wants to listen there.
fn address(spec: &JobSpec, job: &str, index: impl std::fmt::Display) -> String {
    let (service, settings) = (object_name(&spec.name), &spec.kubernetes);
    let within = match &settings.namespace {
        Some(namespace) => format!(".{namespace}.svc.{}", settings.domain),
        None => String::new(),
    };
    format!("{}-{index}.{service}{within}:{PORT}", job_name(spec, job))
}

/// The cluster by names.
pub(crate) fn cluster(spec: &JobSpec) -> Result<ClusterSpec, SpecError> {
    let mut addresses = Vec::new();
    for (job, group) in spec.tasks.iter().filter(|(job, _)| *job != "evaluator") {
        addresses.extend((0..group.count).map(|index| address(spec, job, index)));
    }
    plan::cluster(spec, addresses.into_iter())
}

/// The container of a process.
pub(crate) fn container(spec: &JobSpec, process: &Planned) -> String {
    match process.name.is_beside {
        true => SERVER.to_owned(),
        false => task_container(spec, &process.name.job),
    }
}

/// The container of a job's program.
pub(crate) fn task_container(spec: &JobSpec, job: &str) -> String {
    let template = spec
        .kubernetes
        .pods
        .get(job)
        .and_then(|pod| pod.template.as_ref());
    let Some(containers) = template.and_then(|t| t["spec"]["containers"].as_array()) else {
        return TASK.to_owned();
    };
    let named = containers.iter().find(|c| c["name"] == TENSORFLOW);
    let task = named.or(containers.first());
    let name = task.and_then(|c| c["name"].as_str());
    name.unwrap_or(TASK).to_owned()
}

impl Manifests {
    /// `api` is the server as nodes reach it, `run` the directory of the launcher that conducts the job, if one does.
    pub(crate) fn new(
        spec: &JobSpec,
        api: Option<&str>,
        run: Option<&str>,
    ) -> Result<Manifests, SpecError> {
        let mut spec = spec.clone();
        // Flags may put any job here; what is not said for Kubernetes is found out by its own check.
        spec.on = crate::site::On::Kubernetes;
        spec.check()?;
        check_index(&spec)?;
        let made = Made {
            cluster: cluster(&spec)?,
            name: object_name(&spec.name),
            api: api
                .and_then(host_port)
                .filter(|_| !spec.kubernetes.lease.is_zero()),
            run,
            spec: &spec,
        };
        let mut jobs = BTreeMap::new();
        for job in spec.tasks.keys() {
            jobs.insert(job.clone(), made.job(job)?);
        }
        Ok(Manifests {
            service: made.service(),
            secret: made.secret()?,
            jobs,
        })
    }
}

/// The character that stands for the index is nobody's.
fn check_index(spec: &JobSpec) -> Result<(), SpecError> {
    match spec.to_json().contains(INDEX) {
        true => Err(SpecError::Missing(format!(
            "the job's description holds the character U+{:04X}, which is taken on Kubernetes",
            INDEX as u32
        ))),
        false => Ok(()),
    }
}

/// What the objects are made from.
struct Made<'a> {
    spec: &'a JobSpec,
    cluster: ClusterSpec,
    name: String,
    api: Option<(&'a str, u16)>,
    run: Option<&'a str>,
}

impl Made<'_> {
    fn service(&self) -> Value {
        let annotations = self.run.map(|run| json!({ RUN: run }));
        let mut metadata = json!({"name": self.name, "labels": {JOB_LABEL: self.name}});
        set(&mut metadata, "annotations", annotations);
        self.placed(&mut metadata);
        json!({
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": metadata,
            "spec": {
                "clusterIP": "None",
                // Tasks look for each other before they are ready.
                "publishNotReadyAddresses": true,
                "selector": {JOB_LABEL: self.name},
                "ports": [{"name": "tf", "port": PORT}],
            },
        })
    }

    fn placed(&self, metadata: &mut Value) {
        let namespace = self.spec.kubernetes.namespace.clone();
        set(metadata, "namespace", namespace.map(Value::from));
    }

    /// The user's environment by job of the cluster: values may be secrets, and pods' descriptions are read by many.
    fn environment(&self, job: &str) -> BTreeMap<String, String> {
        let mut env = self.spec.env.clone();
        if let Some(group) = self.spec.tasks.get(job) {
            env.extend(group.env.clone());
        }
        env
    }

    fn secret(&self) -> Result<Option<Value>, SpecError> {
        let mut data = Map::new();
        for job in self.spec.tasks.keys() {
            for (name, text) in self.environment(job) {
                let fits = |c: char| c.is_ascii_alphanumeric() || "-._".contains(c);
                if !name.chars().all(fits) {
                    let wanted = "of letters, digits, '-', '_' or '.' on Kubernetes";
                    return Err(crate::spec::value("env", &name, wanted));
                }
                data.insert(format!("{job}.{name}"), Value::from(text));
            }
        }
        if data.is_empty() {
            return Ok(None);
        }
        let mut metadata = json!({"name": self.name, "labels": {JOB_LABEL: self.name}});
        self.placed(&mut metadata);
        Ok(Some(json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "stringData": data,
        })))
    }

    fn job(&self, job: &str) -> Result<Value, SpecError> {
        let count = self.spec.tasks.get(job).map_or(0, |group| group.count);
        let labels = json!({JOB_LABEL: self.name, ROLE_LABEL: job});
        let mut metadata = json!({"name": format!("{}-{job}", self.name), "labels": labels});
        self.placed(&mut metadata);
        let limit = match (self.run, self.spec.restart.limit) {
            (_, 0) => 0,
            (Some(_), _) => UNCOUNTED,
            (None, limit) => limit,
        };
        let mut spec = json!({
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            "backoffLimitPerIndex": limit,
            // A pod on a node that is cut off never ends; the fence sees to it that it does not train.
            "podReplacementPolicy": "TerminatingOrFailed",
            "template": self.pod(job, &labels)?,
        });
        let deadline = self.spec.kubernetes.deadline_seconds;
        set(
            &mut spec,
            "activeDeadlineSeconds",
            deadline.map(Value::from),
        );
        if self.run.is_none() {
            // One task that fails for good ends the rest of its Job.
            set(&mut spec, "maxFailedIndexes", Some(Value::from(0)));
        }
        Ok(json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}))
    }

    fn pod(&self, job: &str, labels: &Value) -> Result<Value, SpecError> {
        let settings = &self.spec.kubernetes;
        let usual = Pod::default();
        let own = settings.pods.get(job).unwrap_or(&usual);
        let mut pod = match &own.template {
            Some(template) => template.clone(),
            None => json!({"spec": {
                "enableServiceLinks": false,
                // A program that is the first process of its namespace would not hear that it is to end.
                "shareProcessNamespace": true,
            }}),
        };
        merge(&mut pod["metadata"]["labels"], labels);
        let spec = &mut pod["spec"];
        let index = INDEX.to_string();
        let address = address(self.spec, job, &index);
        let tasks = plan::any_task(self.spec, &self.cluster, OWN, job, &index, &address);
        for task in &tasks {
            match (task.name.is_beside, own.template.is_some()) {
                (false, true) => self.fill(spec, job, task),
                (false, false) => push(spec, "containers", self.container(job, own, task)?),
                // A sidecar: it is there before the program, and goes with it.
                (true, _) => {
                    let mut server = self.container(job, own, task)?;
                    server["name"] = Value::from(SERVER);
                    server["restartPolicy"] = Value::from("Always");
                    server["startupProbe"] = json!({
                        "tcpSocket": {"port": PORT}, "periodSeconds": 1, "failureThreshold": 600,
                    });
                    push(spec, "initContainers", server);
                }
            }
        }
        spec["subdomain"] = Value::from(self.name.clone());
        spec["restartPolicy"] = Value::from("Never");
        default(spec, "terminationGracePeriodSeconds", || {
            Value::from(self.spec.drain.as_secs().max(1))
        });
        if let Some(account) = &settings.service_account {
            spec["serviceAccountName"] = Value::from(account.clone());
        }
        for name in &settings.pull_secrets {
            push(spec, "imagePullSecrets", json!({ "name": name }));
        }
        if !own.nodes.is_empty() {
            merge(&mut spec["nodeSelector"], &json!(own.nodes));
        }
        for text in &own.tolerations {
            push(
                spec,
                "tolerations",
                toleration(&Toleration::parse(job, text)?),
            );
        }
        self.fence(spec);
        self.volumes(spec)?;
        spread(spec, &self.name);
        Ok(pod)
    }

    fn container(&self, job: &str, own: &Pod, task: &Planned) -> Result<Value, SpecError> {
        let settings = &self.spec.kubernetes;
        let image = own.image.as_ref().or(settings.image.as_ref());
        let command: Vec<String> = task.command.iter().map(|word| filled(word)).collect();
        let mut made = json!({
            "name": TASK, "image": image, "command": command, "env": self.env(job, task),
        });
        set(
            &mut made,
            "imagePullPolicy",
            settings.pull.clone().map(Value::from),
        );
        if !settings.secrets.is_empty() {
            let from = settings
                .secrets
                .iter()
                .map(|name| json!({"secretRef": {"name": name}}));
            made["envFrom"] = from.collect();
        }
        if task.listens && task.address.is_some() {
            made["ports"] = json!([{"name": "tf", "containerPort": PORT}]);
        }
        // The server computes, the client beside it hardly does.
        let group = self.spec.tasks.get(job);
        let computes = task.name.is_beside || !group.is_some_and(|g| g.serves(job) && job != "ps");
        if let Some(resources) = group
            .filter(|_| computes)
            .and_then(|g| resources(&g.resources))
        {
            made["resources"] = resources;
        }
        Ok(made)
    }

    /// What a task is told, in an order in which Kubernetes can fill it in: the index comes first.
    fn env(&self, job: &str, task: &Planned) -> Value {
        let own = self.environment(job);
        let annotation = "metadata.annotations['batch.kubernetes.io/job-completion-index']";
        let mut env = vec![json!({
            "name": "JOB_COMPLETION_INDEX", "valueFrom": {"fieldRef": {"fieldPath": annotation}},
        })];
        for (name, text) in &task.env {
            let is_own = own.contains_key(name);
            let reference =
                json!({"secretKeyRef": {"name": self.name, "key": format!("{job}.{name}")}});
            env.push(match is_own {
                true => json!({"name": name, "valueFrom": reference}),
                false => json!({"name": name, "value": filled(text)}),
            });
        }
        if let Some(dir) = &self.spec.dir {
            env.push(json!({"name": "DOWNPOUR_DIR", "value": filled(&dir.to_string_lossy())}));
        }
        Value::Array(env)
    }

    /// Tells the task of a template its place; all else stays as it is.
    fn fill(&self, spec: &mut Value, job: &str, task: &Planned) {
        let name = task_container(self.spec, job);
        let ours = self.env(job, task);
        for container in each(spec, "containers").filter(|c| c["name"] == name.as_str()) {
            let theirs = container["env"].as_array().cloned().unwrap_or_default();
            let has = |env: &Value| theirs.iter().any(|t| t["name"] == env["name"]);
            let ours = ours.as_array().into_iter().flatten();
            // Their TF_CONFIG would name another cluster.
            let ours = ours
                .filter(|env| env["name"] == "TF_CONFIG" || !has(env))
                .cloned();
            let theirs = theirs.iter().filter(|t| t["name"] != "TF_CONFIG").cloned();
            container["env"] = ours.chain(theirs).collect();
        }
    }

    /// The kubelet ends a task whose node has not reached the API server for the lease; another comes after that.
    fn fence(&self, spec: &mut Value) {
        let Some((host, port)) = self.api else { return };
        let lease = self.spec.kubernetes.lease;
        let probe = json!({
            "tcpSocket": {"host": host, "port": port},
            "periodSeconds": (lease.as_secs() / CHECKS).max(1),
            "timeoutSeconds": CHECK_WITHIN.min(lease.as_secs() / CHECKS).max(1),
            "failureThreshold": CHECKS,
            "terminationGracePeriodSeconds": 1,
        });
        for part in ["containers", "initContainers"] {
            for container in each(spec, part) {
                // Only sidecars among the first ones may have one.
                if part == "containers" || container["restartPolicy"] == "Always" {
                    container["livenessProbe"] = probe.clone();
                }
            }
        }
        for key in [
            "node.kubernetes.io/unreachable",
            "node.kubernetes.io/not-ready",
        ] {
            let seconds = (lease + MARGIN).as_secs();
            let wait = json!({
                "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds,
            });
            push(spec, "tolerations", wait);
        }
    }

    fn volumes(&self, spec: &mut Value) -> Result<(), SpecError> {
        for (at, text) in self.spec.kubernetes.volumes.iter().enumerate() {
            let volume = Volume::parse(text)?;
            let name = format!("volume-{at}");
            let source = volume.source;
            let mut from = match volume.kind {
                Kind::Host => json!({"hostPath": {"path": source}}),
                Kind::Claim => json!({"persistentVolumeClaim": {"claimName": source}}),
                Kind::Secret => json!({"secret": {"secretName": source}}),
                Kind::Config => json!({"configMap": {"name": source}}),
                Kind::Empty => json!({"emptyDir": {}}),
            };
            from["name"] = Value::from(name.clone());
            push(spec, "volumes", from);
            let mut mount = json!({"name": name, "mountPath": volume.path});
            if volume.is_read_only {
                mount["readOnly"] = Value::from(true);
            }
            for part in ["containers", "initContainers"] {
                for container in each(spec, part) {
                    push(container, "volumeMounts", mount.clone());
                }
            }
        }
        Ok(())
    }
}

/// Tasks of a job keep apart if they can: a node that is lost takes fewer of them along.
fn spread(spec: &mut Value, name: &str) {
    default(spec, "topologySpreadConstraints", || {
        json!([{
            "maxSkew": 1,
            "topologyKey": "kubernetes.io/hostname",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {JOB_LABEL: name}},
        }])
    });
}

fn resources(asked: &Resources) -> Option<Value> {
    let mut amounts = Map::new();
    if let Some(cpus) = asked.cpus {
        amounts.insert(
            "cpu".to_owned(),
            Value::from(format!("{:.0}m", cpus * 1000.0)),
        );
    }
    if let Some(bytes) = asked.bytes() {
        amounts.insert("memory".to_owned(), Value::from(bytes.to_string()));
    }
    if let Some(gpus) = asked.gpus {
        amounts.insert("nvidia.com/gpu".to_owned(), Value::from(gpus.to_string()));
    }
    (!amounts.is_empty()).then(|| json!({"limits": amounts, "requests": amounts}))
}

fn toleration(said: &Toleration<'_>) -> Value {
    let mut made = json!({"key": said.key, "operator": "Exists"});
    if let Some(value) = said.value {
        made["operator"] = Value::from("Equal");
        made["value"] = Value::from(value);
    }
    set(&mut made, "effect", said.effect.map(Value::from));
    made
}

/// A text as Kubernetes leaves it, but for the index.
fn filled(text: &str) -> String {
    text.replace('$', "$$")
        .replace(INDEX, "$(JOB_COMPLETION_INDEX)")
}

/// The entries of a list that may be there.
fn each<'a>(of: &'a mut Value, key: &str) -> impl Iterator<Item = &'a mut Value> {
    let list = of.get_mut(key).and_then(Value::as_array_mut);
    list.into_iter().flatten()
}

fn set(to: &mut Value, key: &str, value: Option<Value>) {
    if let Some(value) = value {
        to[key] = value;
    }
}

fn default(to: &mut Value, key: &str, value: impl FnOnce() -> Value) {
    if to[key].is_null() {
        to[key] = value();
    }
}

fn push(to: &mut Value, key: &str, value: Value) {
    match to[key].as_array_mut() {
        Some(list) => list.push(value),
        None => to[key] = json!([value]),
    }
}

/// Entries of the second go before those of the first.
pub(super) fn merge(to: &mut Value, from: &Value) {
    if !to.is_object() {
        *to = json!({});
    }
    for (key, value) in from.as_object().into_iter().flatten() {
        to[key] = value.clone();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "name = 'Mnist_1'\non = 'kubernetes'\ncommand = ['/train', '--price=$5', '--task={task}', '--at={target}']\n\
        [env]\nTOKEN = 'very $(secret)'\n\
        [kubernetes]\nnamespace = 'team'\nimage = 'me/train:1'\nvolumes = ['pvc/data:/data:ro']\napi = '10.0.0.1:6443'\n\
        [kubernetes.pods.worker]\nnodes = { gpu = 'a100' }\ntolerations = ['gpu=yes:NoSchedule']\n\
        [tasks.ps]\ncount = 2\n[tasks.worker]\ncount = 2\nserve = true\nresources = { cpus = 0.5, memory = '64M', gpus = 1 }\n";

    #[test]
    fn a_job_is_two_indexed_jobs_a_service_and_a_secret() {
        let spec = JobSpec::from_text(JOB).unwrap();
        let made = manifests(&spec).unwrap();
        assert_eq!(made, include_str!("../../tests/manifests.yaml"));
    }

    #[test]
    fn the_example_is_what_its_description_prints() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy");
        let read = |name: &str| std::fs::read_to_string(format!("{folder}/{name}")).unwrap();
        let spec = JobSpec::from_text(&read("kubernetes.toml")).unwrap();
        let text = read("kubernetes.yaml");
        let (_, rest) = text.split_once("\n\n").unwrap();
        assert_eq!(rest, manifests(&spec).unwrap());
    }

    #[test]
    fn names_are_such_as_a_service_may_have() {
        for (name, want) in [
            ("mnist", "mnist"),
            ("Train_MNIST.2", "train-mnist-2"),
            ("2nd", "j2nd"),
            ("a--", "a"),
        ] {
            assert_eq!(object_name(name), want);
        }
    }

    #[test]
    fn the_fence_ends_a_task_before_another_comes() {
        let spec = JobSpec::from_text(JOB).unwrap();
        for lease in [5, 7, 30, 3600] {
            let mut spec = spec.clone();
            spec.kubernetes.lease = Duration::from_secs(lease);
            let made = Manifests::new(&spec, Some("h:1"), Some("/run")).unwrap();
            let pod = &made.jobs["ps"]["spec"]["template"]["spec"];
            let probe = &pod["containers"][0]["livenessProbe"];
            let number = |key: &str| probe[key].as_u64().unwrap();
            let ended = number("periodSeconds") * number("failureThreshold")
                + number("timeoutSeconds")
                + number("terminationGracePeriodSeconds");
            let replaced = pod["tolerations"][0]["tolerationSeconds"].as_u64().unwrap();
            assert!(ended < replaced, "{lease}: {ended} {replaced}");
        }
        let mut none = spec;
        none.kubernetes.lease = Duration::ZERO;
        let made = Manifests::new(&none, Some("h:1"), None).unwrap();
        assert!(!made.jobs["ps"].to_string().contains("livenessProbe"));
    }

    #[test]
    fn a_template_keeps_what_is_its_own() {
        let mut spec = JobSpec::new("t", vec!["x".to_owned()], &[("worker", 1)]);
        let template = json!({
            "metadata": {"labels": {"team": "a"}},
            "spec": {"nodeSelector": {"disk": "ssd"}, "containers": [
                {"name": "side", "image": "s"},
                {"name": "tensorflow", "image": "i", "args": ["$(HOME)"],
                 "env": [{"name": "A", "value": "$(DOWNPOUR_JOB)"}, {"name": "TF_CONFIG", "value": "{}"}]},
            ]},
        });
        let pod = Pod {
            template: Some(template),
            ..Pod::default()
        };
        spec.kubernetes.pods.insert("worker".to_owned(), pod);
        let made = Manifests::new(&spec, None, None).unwrap();
        let pod = &made.jobs["worker"]["spec"]["template"];
        assert_eq!(pod["metadata"]["labels"]["team"], "a");
        assert_eq!(pod["spec"]["nodeSelector"]["disk"], "ssd");
        let task = &pod["spec"]["containers"][1];
        assert_eq!(task["args"][0], "$(HOME)");
        let env = task["env"].as_array().unwrap();
        let named = |name: &str| env.iter().filter(|e| e["name"] == name).collect::<Vec<_>>();
        assert_eq!(named("TF_CONFIG").len(), 1);
        let config = named("TF_CONFIG")[0]["value"].as_str().unwrap();
        assert!(
            config.contains(r#""index":$(JOB_COMPLETION_INDEX),"type":"worker""#),
            "{config}"
        );
        assert_eq!(named("A")[0]["value"], "$(DOWNPOUR_JOB)");
        assert_eq!(env[0]["name"], "JOB_COMPLETION_INDEX");
    }

    #[test]
    fn what_cannot_be_said_on_kubernetes_is_refused() {
        for (more, want) in [
            ("", "needs --image"),
            ("image = '-x'\n", "kubernetes.image is '-x'"),
            (
                "image = 'x'\nnamespace = 'A b'\n",
                "kubernetes.namespace is 'A b'",
            ),
            ("image = 'x'\nlease = '1s'\n", "kubernetes.lease is '1s'"),
            (
                "image = 'x'\nvolumes = ['x']\n",
                "kubernetes.volumes is 'x'",
            ),
            (
                "image = 'x'\npull = 'Often'\n",
                "kubernetes.pull is 'Often'",
            ),
            ("image = 'x'\napi = 'x'\n", "kubernetes.api is 'x'"),
            (
                "image = 'x'\n[kubernetes.pods.gpu]\n",
                "kubernetes.pods is 'gpu'",
            ),
            (
                "image = 'x'\n[kubernetes.pods.worker]\ntemplate = { spec = { containers = [] } }\n",
                "a pod template with spec.containers",
            ),
        ] {
            let text = format!(
                "on = 'kubernetes'\ncommand = ['x']\n[tasks.worker]\ncount = 1\n[kubernetes]\n{more}"
            );
            let error = JobSpec::from_text(&text).unwrap_err().to_string();
            assert!(error.contains(want), "{more}: {error}");
        }
        let text = "command = ['{dir}']\n[kubernetes]\nimage = 'x'\n[tasks.worker]\ncount = 1\n";
        let error = manifests(&JobSpec::from_text(text).unwrap()).unwrap_err();
        assert!(error.to_string().contains("say what {dir} is"));
    }
}
