//! Pods of a Kubernetes cluster. The cluster starts tasks and starts them again; this site makes the job's objects
//! (`manifests`), follows its pods (`pods`) and their logs (`logs`) through `api`, and removes what it made.
//!
//! The objects outlive the launcher. The Service carries the run's directory: one that comes later finds it by that, so it
//! is made last and removed last. Tasks have names of their own wherever they run, so a lost node moves nobody else.

mod api;
mod logs;
mod manifests;
mod pods;
mod room;
mod settings;
#[cfg(test)]
mod site_tests;
pub(crate) mod tfjob;
mod yaml;

pub use manifests::manifests;
pub use settings::{Kubernetes, Pod};

use crate::engine::{Outlet, Placed};
use crate::name::TaskName;
use crate::output::Printed;
use crate::plan;
use crate::remote::{Ending, Reins, Site, Task};
use crate::spec::JobSpec;
use crate::state::Exit;
use crate::supervise::OWN;
use api::{Api, Refused};
use manifests::{ENDED, JOB_LABEL, Manifests, RUN};
use parking_lot::Mutex;
use pods::{Attempt, Fate, Watch};
use rustix::process::Signal;
use serde_json::json;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a change of a pod is waited for before other things are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How often a Job without a pod is asked what keeps it.
const ASK_EVERY: Duration = Duration::from_secs(2);
/// How long the log of a container that has ended may go on.
const LAST_LINES: Duration = Duration::from_secs(3);
/// A pod that was killed is gone by then, or its node is.
const KILLED_WITHIN: Duration = Duration::from_secs(10);

/// A cluster, and the job's objects in it.
pub(crate) struct Cluster {
    api: Arc<Api>,
    namespace: String,
    /// Of the job, as its objects are called.
    name: String,
    spec: JobSpec,
    /// The API server as nodes reach it.
    server: Option<String>,
    run: Mutex<Option<Arc<Run>>>,
    /// Of every process the start that was followed last.
    followed: Mutex<BTreeMap<TaskName, Attempt>>,
    /// Jobs of the cluster that were made, or found.
    made: Mutex<BTreeSet<String>>,
}

/// The job under way.
struct Run {
    manifests: Manifests,
    watch: Watch,
}

impl Cluster {
    /// Finds out whether the cluster answers, would take the job, and could ever run it.
    pub(crate) fn prepare(spec: &JobSpec) -> Result<Cluster, String> {
        let api = Arc::new(Api::start(&spec.kubernetes.options)?);
        let named = spec.kubernetes.namespace.clone();
        let namespace = named.unwrap_or_else(|| usual_namespace(&spec.kubernetes.options));
        Cluster::on(api, namespace, spec)
    }

    /// The same for a cluster that answers.
    fn on(api: Arc<Api>, namespace: String, spec: &JobSpec) -> Result<Cluster, String> {
        let mut spec = spec.clone();
        spec.kubernetes.namespace = Some(namespace.clone());
        let mut cluster = Cluster {
            server: None,
            name: manifests::object_name(&spec.name),
            run: Mutex::default(),
            followed: Mutex::default(),
            made: Mutex::default(),
            namespace,
            spec,
            api,
        };
        match cluster
            .api
            .get(&format!("/api/v1/namespaces/{}", cluster.namespace))
        {
            Err(e) if e.is(404) || e.is(401) => return Err(e.to_string()),
            // Who may not look at namespaces may still use one.
            _ => {}
        }
        cluster.server = cluster.find_server()?;
        cluster.try_out()?;
        Ok(cluster)
    }

    /// Where nodes reach the API server, for the fence.
    fn find_server(&self) -> Result<Option<String>, String> {
        let settings = &self.spec.kubernetes;
        if settings.lease.is_zero() || settings.api.is_some() {
            return Ok(settings.api.clone());
        }
        let wrong = |why: &str| {
            format!(
                "cannot find out how nodes reach the API server ({why}); say kubernetes.api = 'HOST:PORT', or \
                 kubernetes.lease = '0s' for no fence"
            )
        };
        let found = self
            .api
            .get("/api/v1/namespaces/default/endpoints/kubernetes");
        let found = found.map_err(|e| wrong(&e.to_string()))?;
        let addresses = found["subsets"][0]["addresses"].as_array();
        let one = addresses
            .filter(|all| all.len() == 1)
            .and_then(|all| all[0]["ip"].as_str());
        let port = &found["subsets"][0]["ports"][0]["port"];
        if let (Some(ip), Some(port)) = (one, port.as_u64()) {
            return Ok(Some(address(ip, port)));
        }
        // Of several, the one that is asked may be away: the Service finds another.
        let service = self
            .api
            .get("/api/v1/namespaces/default/services/kubernetes");
        let service = service.map_err(|e| wrong(&e.to_string()))?;
        let port = service["spec"]["ports"][0]["port"].as_u64();
        match (service["spec"]["clusterIP"].as_str(), port) {
            (Some(ip), Some(port)) => Ok(Some(address(ip, port))),
            _ => Err(wrong("the Service 'kubernetes' has no address")),
        }
    }

    /// Lets the cluster look at the job's objects without making them, and looks for nodes that are large enough.
    fn try_out(&self) -> Result<(), String> {
        let mut spec = self.spec.clone();
        spec.dir.get_or_insert_with(|| "/".into());
        let made = Manifests::new(&spec, self.server.as_deref(), Some("/"));
        let made = made.map_err(|e| e.to_string())?;
        let parts = [
            Some(("services", &made.service)),
            made.secret.as_ref().map(|s| ("secrets", s)),
        ];
        let parts = parts.into_iter().flatten();
        for (kind, object) in parts.chain(made.jobs.values().map(|job| ("jobs", job))) {
            let path = format!("{}?dryRun=All&fieldValidation=Strict", self.path(kind, ""));
            match self.api.create(&path, object) {
                // A launcher before this one has made it.
                Err(e) if e.is(409) => {}
                Err(e) => return Err(format!("the cluster does not take the job: {e}")),
                Ok(_) => {}
            }
        }
        if self.spec.kubernetes.autoscaled {
            return Ok(());
        }
        // Users who may not look at nodes wait for the scheduler's word.
        let nodes = self.api.get("/api/v1/nodes").unwrap_or_default();
        for (job, object) in &made.jobs {
            room::check(job, &object["spec"]["template"], &nodes)
                .map_err(|e| format!("{e}; kubernetes.autoscaled = true waits for new nodes"))?;
        }
        Ok(())
    }

    /// The API's path of objects of a kind, or of one.
    fn path(&self, kind: &str, name: &str) -> String {
        let group = match kind {
            "jobs" => "/apis/batch/v1",
            _ => "/api/v1",
        };
        let name = match name {
            "" => String::new(),
            name => format!("/{name}"),
        };
        format!("{group}/namespaces/{}/{kind}{name}", self.namespace)
    }

    fn labelled(&self, kind: &str) -> String {
        let label = JOB_LABEL.replace('/', "%2F");
        format!(
            "{}?labelSelector={label}%3D{}",
            self.path(kind, ""),
            self.name
        )
    }

    fn run(&self) -> Result<Arc<Run>, String> {
        let run = self.run.lock().clone();
        run.ok_or_else(|| "the job has no objects yet".to_owned())
    }

    /// Makes the Job of a job of the cluster, if nobody has.
    fn make(&self, run: &Run, job: &str) -> Result<(), String> {
        let mut made = self.made.lock();
        let Some(object) = run.manifests.jobs.get(job).filter(|_| !made.contains(job)) else {
            return Ok(());
        };
        match self.api.create(&self.path("jobs", ""), object) {
            // It is this run's: others' were removed when it began.
            Err(e) if e.is(409) => {}
            Err(e) => return Err(e.to_string()),
            Ok(_) => {}
        }
        made.insert(job.to_owned());
        Ok(())
    }

    /// Removes Jobs with their pods, and waits until they are gone.
    fn remove_jobs(&self, watch: &Watch) {
        let background = json!({"propagationPolicy": "Background"});
        let _ = self.api.delete(&self.labelled("jobs"), &background);
        let are_gone = || {
            let begin = Instant::now();
            let mut gone = None;
            while gone.is_none() && begin.elapsed() < KILLED_WITHIN {
                gone = watch.wait(LOOK, |pods| pods.are_gone().then_some(()));
            }
            gone.is_some()
        };
        if !are_gone() {
            // Nodes that are cut off never say so.
            for pod in watch.look(pods::Pods::names) {
                self.remove_pod(&pod, 0);
            }
            are_gone();
        }
    }

    fn remove_pod(&self, pod: &str, grace: u32) -> bool {
        let options = json!({"gracePeriodSeconds": grace});
        match self.api.delete(&self.path("pods", pod), &options) {
            Ok(_) => true,
            Err(e) => e.is(404),
        }
    }

    /// What keeps a task from having a pod.
    fn ask_job(&self, job: &str) -> Result<Obstacle, Refused> {
        let name = manifests::job_name(&self.spec, job);
        let object = match self.api.get(&self.path("jobs", &name)) {
            Err(e) if e.is(404) => {
                return Ok(Obstacle::Final(format!(
                    "somebody has removed the Job '{name}'"
                )));
            }
            other => other?,
        };
        for condition in object["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let text = |key: &str| condition[key].as_str().unwrap_or_default();
            match (text("type"), text("status")) {
                ("Failed" | "FailureTarget", "True") => {
                    let why = format!("{}: {}", text("reason"), text("message"));
                    let why = format!("Kubernetes has given up the Job '{name}': {why}");
                    return Ok(Obstacle::Final(crate::output::cleaned(&why)));
                }
                ("Complete" | "SuccessCriteriaMet", "True") => return Ok(Obstacle::Done),
                _ => {}
            }
        }
        let field = format!("involvedObject.name%3D{name}%2Creason%3DFailedCreate");
        let events = self.api.get(&format!(
            "{}?fieldSelector={field}",
            self.path("events", "")
        ))?;
        let last = events["items"].as_array().and_then(|all| all.last());
        let last = last.and_then(|event| event["message"].as_str());
        Ok(match last {
            // Others may give back what they use.
            Some(why) if why.contains("exceeded quota") => {
                Obstacle::Now(crate::output::cleaned(why))
            }
            Some(why) => Obstacle::Final(crate::output::cleaned(why)),
            None => Obstacle::None,
        })
    }

    /// Waits until a start of the task has its container, and the container runs or has.
    fn await_start(
        &self,
        run: &Run,
        task: &Task,
        container: &str,
        reins: &Reins,
    ) -> Result<Attempt, Ending> {
        let name = &task.planned.name;
        let before = self.followed.lock().get(name).cloned();
        let mut told = String::new();
        let mut tell = |text: String| {
            if told != text {
                reins.note(text.clone());
                told = text;
            }
        };
        let mut asked = Instant::now();
        loop {
            if let Some(signal) = reins.pending() {
                let attempt = run
                    .watch
                    .look(|pods| pods.after(&name.job, name.index, container, before.as_ref()));
                match (signal, attempt) {
                    (Signal::KILL, Some(attempt)) => _ = self.remove_pod(&attempt.pod, 0),
                    _ => _ = self.suspend(&name.job),
                }
                return Err(Ending::Exited(Exit::Signal(signal.as_raw())));
            }
            let found = run.watch.wait(LOOK, |pods| {
                let attempt = pods.after(&name.job, name.index, container, before.as_ref())?;
                let fate = pods.fate(&attempt, container);
                Some((attempt, fate))
            });
            match found {
                None if asked.elapsed() >= ASK_EVERY => {
                    asked = Instant::now();
                    // A server that is away is asked again.
                    match self.ask_job(&name.job).unwrap_or(Obstacle::None) {
                        Obstacle::None => {}
                        Obstacle::Done => return Err(Ending::Exited(Exit::Code(0))),
                        Obstacle::Now(why) => tell(format!("waits for its pod: {why}")),
                        Obstacle::Final(why) => return Err(Ending::NotStarted(why)),
                    }
                }
                None => {}
                Some((_, Fate::Unplaced(why))) => {
                    tell(format!("waits for a node: {why}"));
                    std::thread::sleep(LOOK);
                }
                Some((attempt, Fate::Waiting(reason, message))) => {
                    if let Some(why) = hopeless(&reason, &message) {
                        self.followed.lock().insert(name.clone(), attempt);
                        return Err(Ending::NotStarted(why));
                    }
                    std::thread::sleep(LOOK / 5);
                }
                Some((attempt, fate)) => {
                    self.followed.lock().insert(name.clone(), attempt.clone());
                    return match fate {
                        Fate::Ended(end) if end.reason == "StartError" => {
                            Err(Ending::NotStarted(end.message))
                        }
                        Fate::Lost(why) => Err(self.lost(run, &attempt, reins, why)),
                        _ => Ok(attempt),
                    };
                }
            }
        }
    }

    /// Follows a start to its end.
    fn await_end(
        &self,
        run: &Run,
        attempt: &Attempt,
        container: &str,
        reins: &Reins,
        asked: &Asked,
    ) -> Ending {
        loop {
            let fate = run
                .watch
                .wait(LOOK, |pods| match pods.fate(attempt, container) {
                    Fate::Running | Fate::Waiting(..) | Fate::Unplaced(_) => None,
                    fate => Some(fate),
                });
            match fate {
                Some(Fate::Ended(end)) => {
                    if end.reason == "OOMKilled" {
                        reins.note("was killed: it used more memory than its limit".to_owned());
                    }
                    return Ending::Exited(end.exit());
                }
                Some(Fate::Lost(why)) => return self.lost(run, attempt, reins, why),
                _ => {}
            }
            let is_due = |at: &Instant| at.elapsed() > KILLED_WITHIN;
            if asked.killed.lock().as_ref().is_some_and(is_due) {
                self.remove_pod(&attempt.pod, 0);
                return Ending::Exited(Exit::Signal(9));
            }
        }
    }

    /// A server goes with its program. When that is done there is nothing to start again, so its end is not told before
    /// the job asks for it.
    fn await_leave(&self, run: &Run, attempt: &Attempt, job: &str, asked: &Asked) {
        let program = manifests::task_container(&self.spec, job);
        let is_done = |pods: &pods::Pods| {
            let end = pods.end_beside(attempt, &program);
            end.is_some_and(|end| end.code == 0)
        };
        while run.watch.look(is_done) && !asked.to_end.load(Ordering::Acquire) {
            std::thread::sleep(LOOK / 5);
        }
    }

    /// A task whose pod is gone, or was given to another node.
    fn lost(&self, run: &Run, attempt: &Attempt, reins: &Reins, why: Option<String>) -> Ending {
        let node = run.watch.look(|pods| pods.get(attempt)?.node.clone());
        match (why, node) {
            (Some(why), Some(node)) => reins.note(format!("is lost with {node}: {why}")),
            (Some(why), None) => reins.note(format!("is lost: {why}")),
            (None, _) => reins.note(format!("is lost: its pod {} is gone", attempt.pod)),
        }
        Ending::Exited(Exit::Signal(9))
    }

    /// Asks all tasks of a job of the cluster to end, and starts none of them again.
    fn suspend(&self, job: &str) -> bool {
        suspend(
            &self.api,
            &self.path("jobs", &manifests::job_name(&self.spec, job)),
        )
    }

    /// How signals come to a pod. Its task is not alone: what is asked to end does so with its job.
    fn deliver(
        &self,
        job: &str,
        attempt: &Attempt,
        asked: Arc<Asked>,
    ) -> Box<dyn FnMut(Signal) -> bool + Send> {
        let api = self.api.clone();
        let job = self.path("jobs", &manifests::job_name(&self.spec, job));
        let pod = self.path("pods", &attempt.pod);
        Box::new(move |signal| {
            asked.to_end.store(true, Ordering::Release);
            if signal != Signal::KILL {
                return suspend(&api, &job);
            }
            // The second time nobody waits for the node's word.
            let grace = i32::from(asked.killed.lock().replace(Instant::now()).is_none());
            match api.delete(&pod, &json!({"gracePeriodSeconds": grace})) {
                Ok(_) => true,
                Err(e) => e.is(404),
            }
        })
    }

    fn follow(
        &self,
        run: &Run,
        task: &Task,
        reins: &Reins,
        outlet: &Outlet,
        log: std::fs::File,
    ) -> Ending {
        let container = manifests::container(&self.spec, &task.planned);
        let attempt = match self.await_start(run, task, &container, reins) {
            Ok(attempt) => attempt,
            Err(ending) => return ending,
        };
        let asked = Arc::<Asked>::default();
        let job = &task.planned.name.job;
        reins.take(None, self.deliver(job, &attempt, asked.clone()));
        let node = run.watch.look(|pods| pods.get(&attempt)?.node.clone());
        reins.note(format!(
            "is pod {} on {}",
            attempt.pod,
            node.as_deref().unwrap_or("a node that is gone")
        ));
        let (has_ended, is_over) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
        let path = format!(
            "{}/log?container={container}&timestamps=true",
            self.path("pods", &attempt.pod)
        );
        let logs = logs::Logs::new(self.api.clone(), path, has_ended.clone(), is_over.clone());
        std::thread::scope(|scope| {
            let copy = scope.spawn(move || outlet.copy(logs, Some(log), Printed::Out));
            let ending = self.await_end(run, &attempt, &container, reins, &asked);
            if task.planned.name.is_beside {
                self.await_leave(run, &attempt, job, &asked);
            }
            has_ended.store(true, Ordering::Release);
            let ended = Instant::now();
            while !copy.is_finished() && ended.elapsed() < LAST_LINES {
                std::thread::sleep(LOOK / 25);
            }
            is_over.store(true, Ordering::Release);
            ending
        })
    }
}

/// What a start was asked for.
#[derive(Default)]
struct Asked {
    to_end: AtomicBool,
    killed: Mutex<Option<Instant>>,
}

/// What keeps a task from having a pod.
enum Obstacle {
    None,
    /// All of the Job's tasks are done.
    Done,
    /// Something that may pass.
    Now(String),
    /// Something that will not.
    Final(String),
}

impl Site for Cluster {
    fn server(&self) -> String {
        OWN.to_owned()
    }

    fn place(&self, spec: &JobSpec, _lost: &BTreeSet<String>) -> Result<Placed, String> {
        let mut spec = spec.clone();
        spec.kubernetes.namespace = Some(self.namespace.clone());
        let cluster = manifests::cluster(&spec).map_err(|e| e.to_string())?;
        let planned = plan::processes(&spec, &cluster, OWN).map_err(|e| e.to_string())?;
        let host = |name: &TaskName| {
            Some(format!(
                "{}-{}",
                manifests::job_name(&spec, &name.job),
                name.index
            ))
        };
        Ok(Placed {
            hosts: planned.iter().map(|p| host(&p.name)).collect(),
            cluster,
        })
    }

    fn find(&self, job: &str, _hosts: &[Option<String>]) -> Result<Option<String>, String> {
        let service = match self.api.get(&self.path("services", &self.name)) {
            Ok(service) => service,
            Err(e) if e.is(404) => return Ok(None),
            Err(e) => return Err(e.to_string()),
        };
        let notes = &service["metadata"]["annotations"];
        if !notes[ENDED].is_null() {
            // The launcher before this one was about to.
            self.clean_up(job, "");
            return Ok(None);
        }
        match notes[RUN].as_str() {
            Some(run) => Ok(Some(run.to_owned())),
            None => Err(format!(
                "there is a Service '{}' in namespace '{}' that no launcher made; remove it, or take another --name",
                self.name, self.namespace
            )),
        }
    }

    fn begin(&self, spec: &JobSpec, dir: &Path) -> Result<(), String> {
        let mut spec = spec.clone();
        spec.kubernetes.namespace = Some(self.namespace.clone());
        if let Some(dir) = &self.spec.kubernetes.dir {
            spec.dir = Some(dir.into());
        }
        let run = dir.display().to_string();
        let manifests = Manifests::new(&spec, self.server.as_deref(), Some(&run));
        let manifests = manifests.map_err(|e| e.to_string())?;
        let watch = Watch::start(self.api.clone(), &self.path("pods", ""), &self.name);
        let wrong = |e: Refused| format!("the cluster does not take the job: {e}");
        match self.api.get(&self.path("services", &self.name)) {
            Ok(_) => {}
            Err(e) if e.is(404) => {
                // What a run before this one has kept.
                let jobs = self.api.get(&self.labelled("jobs")).map_err(wrong)?;
                if jobs["items"].as_array().is_some_and(|all| !all.is_empty()) {
                    self.remove_jobs(&watch);
                }
                if let Some(secret) = &manifests.secret {
                    let _ = self
                        .api
                        .delete(&self.path("secrets", &self.name), &json!({}));
                    self.api
                        .create(&self.path("secrets", ""), secret)
                        .map_err(wrong)?;
                }
                let made = self
                    .api
                    .create(&self.path("services", ""), &manifests.service);
                made.map_err(wrong)?;
            }
            Err(e) => return Err(e.to_string()),
        }
        *self.run.lock() = Some(Arc::new(Run { manifests, watch }));
        Ok(())
    }

    fn conduct(&self, task: &Task, reins: &Reins, outlet: &Outlet) -> Ending {
        let log = match outlet.begin() {
            Ok(log) => log,
            Err(e) => return Ending::NotStarted(format!("its log cannot be written: {e}")),
        };
        let run = match self.run() {
            Ok(run) => run,
            Err(e) => return Ending::NotStarted(e),
        };
        match self.make(&run, &task.planned.name.job) {
            Ok(()) => self.follow(&run, task, reins, outlet, log),
            Err(e) => Ending::NotStarted(e),
        }
    }

    fn clean_up(&self, _job: &str, _run: &str) {
        let service = self.path("services", &self.name);
        let ended = json!({"metadata": {"annotations": {ENDED: "true"}}});
        let _ = self.api.patch(&service, &ended);
        let run = self.run.lock().take();
        if !self.spec.kubernetes.keep {
            match &run {
                Some(run) => self.remove_jobs(&run.watch),
                None => {
                    let pods = self.path("pods", "");
                    self.remove_jobs(&Watch::start(self.api.clone(), &pods, &self.name));
                }
            }
        }
        let _ = self
            .api
            .delete(&self.path("secrets", &self.name), &json!({}));
        let _ = self.api.delete(&service, &json!({}));
    }
}

fn suspend(api: &Api, job: &str) -> bool {
    match api.patch(job, &json!({"spec": {"suspend": true}})) {
        Ok(_) => true,
        Err(e) => e.is(404),
    }
}

fn address(ip: &str, port: u64) -> String {
    match ip.contains(':') {
        true => format!("[{ip}]:{port}"),
        false => format!("{ip}:{port}"),
    }
}

/// What kubectl's context says.
fn usual_namespace(options: &[String]) -> String {
    let mut command = Command::new("kubectl");
    command.args([
        "config",
        "view",
        "--minify",
        "--output",
        "jsonpath={..namespace}",
    ]);
    let said = command.args(options).stdin(Stdio::null()).output();
    let said = said.map(|said| String::from_utf8_lossy(&said.stdout).trim().to_owned());
    match said {
        Ok(name) if settings::is_name(&name) => name,
        _ => "default".to_owned(),
    }
}

/// Why a container that waits will wait for ever, if it will.
fn hopeless(reason: &str, message: &str) -> Option<String> {
    let is_final = match reason {
        "ErrImageNeverPull"
        | "InvalidImageName"
        | "ImagePullBackOff"
        | "ImageInspectError"
        | "CreateContainerConfigError"
        | "CreateContainerError"
        | "RunContainerError" => true,
        "ErrImagePull" => [
            "not found",
            "denied",
            "unauthorized",
            "authorization failed",
            "no such host",
        ]
        .iter()
        .any(|word| message.to_lowercase().contains(word)),
        _ => false,
    };
    is_final.then(|| match message {
        "" => reason.to_owned(),
        message => format!("{reason}: {message}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_is_not_there_is_hopeless_and_a_slow_one_is_not() {
        let gone = "rpc error: pull access denied, repository does not exist";
        assert!(hopeless("ErrImagePull", gone).is_some());
        assert_eq!(hopeless("ErrImagePull", "i/o timeout"), None);
        assert_eq!(hopeless("ContainerCreating", ""), None);
        assert!(hopeless("ErrImageNeverPull", "").is_some());
    }
}
