//! The pods of a job as the cluster tells of them, and what became of a container. The first half is pure; the second
//! follows the cluster's tale and wakes those who wait for it.

use super::api::Api;
use super::manifests::{JOB_LABEL, ROLE_LABEL};
use crate::output::cleaned;
use crate::state::Exit;
use parking_lot::{Condvar, Mutex};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Between two attempts to follow the tale.
const RETRY: Duration = Duration::from_secs(1);
const INDEX: &str = "batch.kubernetes.io/job-completion-index";

/// A pod.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Which task it is.
    pub(crate) role: String,
    pub(crate) index: u32,
    /// When it was made, as it sorts.
    pub(crate) created: String,
    pub(crate) node: Option<String>,
    pub(crate) has_failed: bool,
    /// Whether it is to go.
    pub(crate) is_going: bool,
    /// Why it has no node.
    pub(crate) unplaced: Option<String>,
    /// Why it was made to go, or failed as a whole.
    pub(crate) reason: Option<String>,
    pub(crate) containers: BTreeMap<String, Container>,
}

/// A container of it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Container {
    /// How often it was started again in its place.
    pub(crate) restarts: u32,
    pub(crate) state: State,
    /// How the one before it ended.
    pub(crate) last: Option<End>,
}

/// What it does.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum State {
    /// It is to start; why it does not.
    Waiting(String, String),
    Running,
    Ended(End),
}

/// How it ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct End {
    pub(crate) code: i32,
    pub(crate) reason: String,
    pub(crate) message: String,
}

impl End {
    /// As a process of this machine would.
    pub(crate) fn exit(&self) -> Exit {
        match self.code {
            129..=159 => Exit::Signal(self.code - 128),
            code => Exit::Code(code),
        }
    }

    fn read(state: &Value) -> Option<End> {
        let ended = state.get("terminated")?;
        let code = ended["exitCode"].as_i64().unwrap_or(1);
        Some(End {
            code: i32::try_from(code).unwrap_or(1),
            reason: word(&ended["reason"]),
            message: word(&ended["message"]),
        })
    }
}

fn word(value: &Value) -> String {
    let text = value.as_str().unwrap_or_default();
    cleaned(text.trim().split('\n').next().unwrap_or_default())
}

fn some(text: String) -> Option<String> {
    (!text.is_empty()).then_some(text)
}

impl Pod {
    /// Reads what the cluster tells; none if it is no task.
    pub(crate) fn read(object: &Value) -> Option<Pod> {
        let (metadata, status) = (&object["metadata"], &object["status"]);
        let index = metadata["annotations"][INDEX].as_str();
        let index = index.or(metadata["labels"][INDEX].as_str())?;
        let condition = |kind: &str| {
            let all = status["conditions"].as_array().into_iter().flatten();
            all.into_iter().find(|c| c["type"] == kind)
        };
        let unplaced = condition("PodScheduled").filter(|c| c["status"] == "False");
        let disrupted = condition("DisruptionTarget").map(|c| word(&c["message"]));
        let parts = ["initContainerStatuses", "containerStatuses"];
        let statuses = parts
            .iter()
            .flat_map(|part| status[*part].as_array().into_iter().flatten());
        let containers = statuses.filter_map(|status| {
            let name = status["name"].as_str()?.to_owned();
            let state = &status["state"];
            let waiting = || {
                let state = &state["waiting"];
                State::Waiting(word(&state["reason"]), word(&state["message"]))
            };
            let read = Container {
                restarts: u32::try_from(status["restartCount"].as_u64()?).ok()?,
                state: match End::read(state) {
                    Some(end) => State::Ended(end),
                    None if state.get("running").is_some() => State::Running,
                    None => waiting(),
                },
                last: End::read(&status["lastState"]),
            };
            Some((name, read))
        });
        Some(Pod {
            name: metadata["name"].as_str()?.to_owned(),
            uid: metadata["uid"].as_str()?.to_owned(),
            role: metadata["labels"][ROLE_LABEL].as_str()?.to_owned(),
            index: index.parse().ok()?,
            created: word(&metadata["creationTimestamp"]),
            node: some(word(&object["spec"]["nodeName"])),
            has_failed: status["phase"] == "Failed",
            is_going: metadata.get("deletionTimestamp").is_some(),
            unplaced: unplaced.map(|c| word(&c["message"])),
            reason: some(word(&status["message"])).or(disrupted.and_then(some)),
            containers: containers.collect(),
        })
    }
}

/// One start of a task's container, so that no start is taken for another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub(crate) pod: String,
    pub(crate) uid: String,
    pub(crate) restarts: u32,
}

/// What has become of an attempt.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fate {
    /// Its pod has no node yet; why.
    Unplaced(String),
    /// It is to start: the cluster's word for why it has not, and more of it.
    Waiting(String, String),
    Running,
    Ended(End),
    /// Its pod is gone, or another has taken its place; why, if that is known.
    Lost(Option<String>),
}

/// The pods that there are, in the order in which they were made.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pods {
    by_name: BTreeMap<String, Pod>,
    /// Whether the cluster has told of all that there are.
    is_complete: bool,
}

impl Pods {
    /// Takes in one event of a watch.
    pub(crate) fn event(&mut self, kind: &str, object: &Value) {
        let Some(pod) = Pod::read(object) else { return };
        match kind {
            "DELETED" => _ = self.by_name.remove(&pod.name),
            _ => _ = self.by_name.insert(pod.name.clone(), pod),
        }
    }

    /// Whether there are none; not before the cluster has said so.
    pub(crate) fn are_gone(&self) -> bool {
        self.is_complete && self.by_name.is_empty()
    }

    pub(crate) fn get(&self, attempt: &Attempt) -> Option<&Pod> {
        let pod = self.by_name.get(&attempt.pod)?;
        (pod.uid == attempt.uid).then_some(pod)
    }

    /// How another container of the same pod ended, if it has.
    pub(crate) fn end_beside(&self, attempt: &Attempt, container: &str) -> Option<End> {
        match &self.get(attempt)?.containers.get(container)?.state {
            State::Ended(end) => Some(end.clone()),
            _ => None,
        }
    }

    /// The newest pod of a task. One that is to go comes after one that stays.
    fn newest(&self, role: &str, index: u32) -> Option<&Pod> {
        let own = self
            .by_name
            .values()
            .filter(|p| p.role == role && p.index == index);
        own.max_by_key(|pod| (&pod.created, !pod.is_going, &pod.name))
    }

    /// The newest attempt of a task that is not this one.
    pub(crate) fn after(
        &self,
        role: &str,
        index: u32,
        container: &str,
        before: Option<&Attempt>,
    ) -> Option<Attempt> {
        let pod = self.newest(role, index)?;
        let restarts = pod.containers.get(container).map_or(0, |c| c.restarts);
        let found = Attempt {
            pod: pod.name.clone(),
            uid: pod.uid.clone(),
            restarts,
        };
        let is_new = before.is_none_or(|before| {
            let is_of_it = before.uid == found.uid;
            // What is on its way out is no new start of its task.
            (is_of_it && before.restarts < found.restarts) || (!is_of_it && !pod.is_going)
        });
        is_new.then_some(found)
    }

    /// What has become of an attempt.
    pub(crate) fn fate(&self, attempt: &Attempt, container: &str) -> Fate {
        let Some(pod) = self.get(attempt) else {
            return Fate::Lost(None);
        };
        if let Some(found) = pod.containers.get(container) {
            match &found.state {
                _ if found.restarts > attempt.restarts => {
                    let is_next = found.restarts == attempt.restarts + 1;
                    return match found.last.clone().filter(|_| is_next) {
                        Some(end) => Fate::Ended(end),
                        None => Fate::Lost(None),
                    };
                }
                State::Ended(end) => return Fate::Ended(end.clone()),
                State::Running if !self.is_replaced(pod) => return Fate::Running,
                State::Waiting(reason, message) if !pod.has_failed && !self.is_replaced(pod) => {
                    return Fate::Waiting(reason.clone(), message.clone());
                }
                _ => {}
            }
        }
        if pod.has_failed || self.is_replaced(pod) {
            return Fate::Lost(pod.reason.clone());
        }
        match &pod.unplaced {
            Some(why) => Fate::Unplaced(why.clone()),
            None => Fate::Waiting(String::new(), String::new()),
        }
    }

    /// Whether the cluster has given the task to another pod.
    fn is_replaced(&self, pod: &Pod) -> bool {
        let newest = self.newest(&pod.role, pod.index);
        pod.is_going && newest.is_some_and(|newest| newest.uid != pod.uid)
    }

    /// Pods that are there.
    pub(crate) fn names(&self) -> Vec<String> {
        self.by_name.keys().cloned().collect()
    }
}

/// The pods of a job, as long as somebody wants to know.
pub(crate) struct Watch {
    shared: Arc<Shared>,
}

struct Shared {
    pods: Mutex<Pods>,
    changed: Condvar,
    is_over: AtomicBool,
}

impl Watch {
    /// Follows the pods of a job. `pods` is the API's path of all of its namespace.
    pub(crate) fn start(api: Arc<Api>, pods: &str, job: &str) -> Watch {
        let shared = Arc::new(Shared {
            pods: Mutex::default(),
            changed: Condvar::new(),
            is_over: AtomicBool::new(false),
        });
        let path = format!(
            "{pods}?labelSelector={}%3D{job}",
            JOB_LABEL.replace('/', "%2F")
        );
        let own = shared.clone();
        std::thread::spawn(move || {
            while !own.is_over.load(Ordering::Acquire) {
                own.follow(&api, &path);
                let mut pods = own.pods.lock();
                if !own.is_over.load(Ordering::Acquire) {
                    own.changed.wait_for(&mut pods, RETRY);
                }
            }
        });
        Watch { shared }
    }

    /// The pods as they are.
    pub(crate) fn look<T>(&self, at: impl FnOnce(&Pods) -> T) -> T {
        at(&self.shared.pods.lock())
    }

    /// The pods once something has changed, or so much later.
    pub(crate) fn wait<T>(&self, at_most: Duration, at: impl Fn(&Pods) -> Option<T>) -> Option<T> {
        let mut pods = self.shared.pods.lock();
        if let Some(found) = at(&pods) {
            return Some(found);
        }
        self.shared.changed.wait_for(&mut pods, at_most);
        at(&pods)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// Lists all, then hears of changes until the connection ends.
    fn follow(self: &Arc<Shared>, api: &Api, path: &str) {
        let Ok(list) = api.get(path) else { return };
        let mut fresh = Pods::default();
        for object in list["items"].as_array().into_iter().flatten() {
            fresh.event("ADDED", object);
        }
        fresh.is_complete = true;
        *self.pods.lock() = fresh;
        self.changed.notify_all();
        let version = list["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default();
        let own = self.clone();
        let watch = format!("{path}&watch=1&timeoutSeconds=300&resourceVersion={version}");
        let is_over = Box::new(move || own.is_over.load(Ordering::Acquire));
        let Ok(stream) = api.stream(&watch, is_over) else {
            return;
        };
        for line in BufReader::new(stream).lines() {
            let event = line
                .ok()
                .and_then(|line| serde_json::from_str::<Value>(&line).ok());
            let Some(event) = event else { return };
            let kind = event["type"].as_str().unwrap_or_default();
            if kind == "ERROR" {
                return;
            }
            self.pods.lock().event(kind, &event["object"]);
            self.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn pod(name: &str, created: u32, state: Value) -> Value {
        json!({
            "metadata": {
                "name": name, "uid": format!("u-{name}"), "creationTimestamp": format!("2026-01-01T00:00:{created:02}Z"),
                "labels": {ROLE_LABEL: "ps"}, "annotations": {INDEX: "1"},
            },
            "spec": {"nodeName": "node0"},
            "status": {"phase": "Running", "containerStatuses": [
                {"name": "task", "restartCount": 0, "state": state},
            ]},
        })
    }

    fn running() -> Value {
        json!({"running": {"startedAt": "x"}})
    }

    fn pods(all: &[Value]) -> Pods {
        let mut pods = Pods::default();
        for object in all {
            pods.event("ADDED", object);
        }
        pods
    }

    #[test]
    fn a_start_is_not_taken_for_the_one_before_it() {
        let ended = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled"}});
        let mut all = pods(&[pod("a", 1, ended)]);
        let first = all.after("ps", 1, "task", None).unwrap();
        let Fate::Ended(end) = all.fate(&first, "task") else {
            panic!("it has ended");
        };
        assert_eq!(
            (end.exit(), end.reason.as_str()),
            (Exit::Signal(9), "OOMKilled")
        );
        assert_eq!(all.after("ps", 1, "task", Some(&first)), None);
        assert_eq!(all.after("ps", 0, "task", None), None);
        all.event("ADDED", &pod("b", 9, running()));
        let second = all.after("ps", 1, "task", Some(&first)).unwrap();
        assert_eq!(
            (second.pod.as_str(), all.fate(&second, "task")),
            ("b", Fate::Running)
        );
        // A launcher that comes later finds the newest.
        assert_eq!(all.after("ps", 1, "task", None).as_ref(), Some(&second));
        all.event("DELETED", &pod("b", 9, running()));
        assert_eq!(all.fate(&second, "task"), Fate::Lost(None));
    }

    #[test]
    fn a_pod_on_a_node_that_is_cut_off_is_lost_when_another_is_there() {
        let mut old = pod("a", 1, running());
        let mut all = pods(&[old.clone()]);
        let first = all.after("ps", 1, "task", None).unwrap();
        old["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
        old["status"]["conditions"] = json!([{
            "type": "DisruptionTarget", "status": "True", "message": "Taint manager: deleting due to NoExecute taint",
        }]);
        all.event("MODIFIED", &old);
        // It may still save what it has.
        assert_eq!(all.fate(&first, "task"), Fate::Running);
        all.event(
            "ADDED",
            &pod("b", 50, json!({"waiting": {"reason": "ContainerCreating"}})),
        );
        let why = Some("Taint manager: deleting due to NoExecute taint".to_owned());
        assert_eq!(all.fate(&first, "task"), Fate::Lost(why));
        let second = all.after("ps", 1, "task", Some(&first)).unwrap();
        let waits = Fate::Waiting("ContainerCreating".to_owned(), String::new());
        assert_eq!(all.fate(&second, "task"), waits);
    }

    #[test]
    fn a_container_that_starts_again_in_its_place_is_another_start() {
        let mut object = pod("a", 1, running());
        let all = pods(&[object.clone()]);
        let first = all.after("ps", 1, "task", None).unwrap();
        object["status"]["containerStatuses"][0]["restartCount"] = json!(1);
        object["status"]["containerStatuses"][0]["lastState"] =
            json!({"terminated": {"exitCode": 3, "reason": "Error"}});
        let all = pods(&[object]);
        assert!(matches!(all.fate(&first, "task"), Fate::Ended(end) if end.code == 3));
        let second = all.after("ps", 1, "task", Some(&first)).unwrap();
        assert_eq!(
            (second.restarts, all.fate(&second, "task")),
            (1, Fate::Running)
        );
    }

    #[test]
    fn a_pod_without_a_node_says_why() {
        let mut object = pod("a", 1, Value::Null);
        object["status"] = json!({"phase": "Pending", "conditions": [
            {"type": "PodScheduled", "status": "False", "message": "0/2 nodes are available: 2 Insufficient cpu.\n"},
        ]});
        let all = pods(&[object]);
        let first = all.after("ps", 1, "task", None).unwrap();
        let want = "0/2 nodes are available: 2 Insufficient cpu.".to_owned();
        assert_eq!(all.fate(&first, "task"), Fate::Unplaced(want));
    }

    #[test]
    fn what_is_no_task_is_left_alone() {
        let mut object = pod("a", 1, running());
        object["metadata"]["labels"] = json!({});
        let mut none = pods(&[object]);
        assert!(none.names().is_empty() && !none.are_gone());
        none.is_complete = true;
        assert!(none.are_gone());
    }
}
