//! From a job's description and the addresses of its tasks to the processes to start: each with its
//! command, its environment and its place in the cluster. Pure.

use crate::spec::{JobSpec, SpecError, value};
use crate::{TaskName, TaskRole};
use downpour_cluster::ClusterSpec;
use std::collections::BTreeMap;

/// A process to start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Who it is.
    pub name: TaskName,
    /// What it is for.
    pub role: TaskRole,
    /// Whether it says when it listens, as `downpour serve` does.
    pub announces: bool,
    /// Whether it is the process that listens on its task's address; the client of a served task is not.
    pub listens: bool,
    /// Its task's address.
    pub address: Option<String>,
    /// Program and arguments.
    pub command: Vec<String>,
    /// Environment beside the launcher's own.
    pub env: BTreeMap<String, String>,
}

/// All processes of a job, servers first. `server` is the program whose `serve` is a task.
pub fn processes(
    spec: &JobSpec,
    cluster: &ClusterSpec,
    server: &str,
) -> Result<Vec<Planned>, SpecError> {
    spec.check()?;
    let mut servers = Vec::new();
    let mut programs = Vec::new();
    for job in crate::spec::JOBS {
        let Some(group) = spec.tasks.get(job) else {
            continue;
        };
        for index in 0..group.count {
            let here = Here {
                spec,
                cluster,
                job,
                index,
                any: None,
            };
            let has_program = group.has_program(job, spec);
            if group.serves(job) {
                servers.push(here.server(server, has_program));
            }
            if has_program {
                let made = here.program(group.command.as_ref().unwrap_or(&spec.command));
                match made.role {
                    TaskRole::Server => servers.push(made),
                    _ => programs.push(made),
                }
            }
        }
    }
    servers.extend(programs);
    Ok(servers)
}

/// The processes of any one task of a job of the cluster, where a description serves for all of them: `index` stands for its
/// index, and `address` for its address.
pub(crate) fn any_task(
    spec: &JobSpec,
    cluster: &ClusterSpec,
    server: &str,
    job: &str,
    index: &str,
    address: &str,
) -> Vec<Planned> {
    let Some(group) = spec.tasks.get(job) else {
        return Vec::new();
    };
    let here = Here {
        spec,
        cluster,
        job,
        index: 0,
        any: Some((index, address)),
    };
    let mut all = Vec::new();
    let has_program = group.has_program(job, spec);
    if group.serves(job) {
        all.push(here.server(server, has_program));
    }
    if has_program {
        all.push(here.program(group.command.as_ref().unwrap_or(&spec.command)));
    }
    all
}

/// The cluster of a job, with these addresses for the tasks that have none of their own. Evaluators
/// are no part of it, as in TensorFlow.
pub fn cluster(
    spec: &JobSpec,
    mut free: impl Iterator<Item = String>,
) -> Result<ClusterSpec, SpecError> {
    let mut made = ClusterSpec::default();
    for (job, group) in spec.tasks.iter().filter(|(job, _)| *job != "evaluator") {
        let hosts = match &group.hosts {
            Some(hosts) => hosts.clone(),
            None => free.by_ref().take(group.count as usize).collect(),
        };
        let key = format!("tasks.{job}.hosts");
        if let Some(host) = hosts.iter().find(|host| host.contains(',')) {
            return Err(value(&key, host, "like host:port"));
        }
        made.add_hosts(job, &hosts.join(","))
            .map_err(|e| SpecError::Missing(format!("{key}: {e}")))?;
    }
    Ok(made)
}

/// One task of a cluster.
struct Here<'a> {
    spec: &'a JobSpec,
    cluster: &'a ClusterSpec,
    job: &'a str,
    index: u32,
    /// What stands for index and address, if this is any task of its job.
    any: Option<(&'a str, &'a str)>,
}

impl Here<'_> {
    fn index(&self) -> String {
        match self.any {
            Some((index, _)) => index.to_owned(),
            None => self.index.to_string(),
        }
    }

    fn address(&self) -> Option<String> {
        if let Some((_, address)) = self.any {
            return (self.job != "evaluator").then(|| address.to_owned());
        }
        let address = self.cluster.address(self.job, self.index);
        address.ok().map(str::to_owned)
    }

    /// `downpour serve`, alone or beside a program.
    fn server(&self, server: &str, is_beside: bool) -> Planned {
        let drain = self.spec.drain.as_millis();
        let command = [
            server,
            "serve",
            "--job",
            self.job,
            "--task",
            &self.index(),
            "--cluster",
            &cluster_json(self.cluster),
            "--drain",
            &format!("{drain}ms"),
        ];
        Planned {
            name: TaskName {
                is_beside,
                ..TaskName::new(self.job, self.index)
            },
            role: TaskRole::Server,
            announces: true,
            listens: true,
            address: self.address(),
            command: command.map(str::to_owned).to_vec(),
            // What is said here is said by flags alone.
            env: BTreeMap::from([("TF_CONFIG".to_owned(), String::new())]),
        }
    }

    fn program(&self, command: &[String]) -> Planned {
        let mut command: Vec<String> = command.iter().map(|word| self.filled(word)).collect();
        if self.spec.flags {
            command.extend(self.flags());
        }
        let mut env = self.spec.env.clone();
        if let Some(group) = self.spec.tasks.get(self.job) {
            env.extend(group.env.clone());
        }
        env.insert("TF_CONFIG".to_owned(), self.tf_config());
        env.insert("DOWNPOUR_JOB".to_owned(), self.spec.name.clone());
        if let Some(address) = self.address() {
            env.insert("DOWNPOUR_TARGET".to_owned(), format!("grpc://{address}"));
        }
        // Programs print through a pipe; python would keep its lines until it ends.
        let unbuffered = env.entry("PYTHONUNBUFFERED".to_owned());
        unbuffered.or_insert_with(|| "1".to_owned());
        Planned {
            name: TaskName::new(self.job, self.index),
            role: match self.job {
                "ps" => TaskRole::Server,
                "evaluator" => TaskRole::Evaluator,
                _ => TaskRole::Trainer,
            },
            announces: false,
            listens: !self
                .spec
                .tasks
                .get(self.job)
                .is_some_and(|g| g.serves(self.job)),
            address: self.address(),
            command,
            env,
        }
    }

    /// `{job}`, `{task}`, `{target}`, `{cluster}`, `{dir}` and `{JOB_hosts}` filled in; any other brace stays.
    fn filled(&self, word: &str) -> String {
        if !word.contains('{') {
            return word.to_owned();
        }
        let target = self.address().map(|a| format!("grpc://{a}"));
        let mut filled = word
            .replace("{job}", self.job)
            .replace("{task}", &self.index())
            .replace("{target}", target.as_deref().unwrap_or(""))
            .replace("{cluster}", &cluster_json(self.cluster));
        if let Some(dir) = &self.spec.dir {
            filled = filled.replace("{dir}", &dir.to_string_lossy());
        }
        for (job, hosts) in self.hosts() {
            filled = filled.replace(&format!("{{{job}_hosts}}"), &hosts);
        }
        filled
    }

    /// As TensorFlow's scripts take them.
    fn flags(&self) -> Vec<String> {
        let mut flags = vec![
            format!("--job_name={}", self.job),
            format!("--task_index={}", self.index()),
        ];
        for (job, hosts) in self.hosts() {
            flags.push(format!("--{job}_hosts={hosts}"));
        }
        flags
    }

    fn hosts(&self) -> Vec<(String, String)> {
        let jobs = self.cluster.jobs().iter();
        let joined = jobs.map(|(job, tasks)| {
            let hosts: Vec<&str> = tasks.values().map(String::as_str).collect();
            (job.clone(), hosts.join(","))
        });
        joined.collect()
    }

    fn tf_config(&self) -> String {
        let (cluster, index) = (cluster_json(self.cluster), self.index());
        let job = serde_json::Value::from(self.job);
        format!(r#"{{"cluster":{cluster},"task":{{"index":{index},"type":{job}}}}}"#)
    }
}

fn cluster_value(cluster: &ClusterSpec) -> serde_json::Value {
    let jobs = cluster.jobs().iter();
    let jobs = jobs.map(|(job, tasks)| {
        let hosts: Vec<&String> = tasks.values().collect();
        (job.clone(), serde_json::json!(hosts))
    });
    serde_json::Value::Object(jobs.collect())
}

pub(crate) fn cluster_json(cluster: &ClusterSpec) -> String {
    cluster_value(cluster).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn planned(spec: &JobSpec) -> Vec<Planned> {
        let free = (1..).map(|n| format!("127.0.0.1:{n}"));
        processes(spec, &cluster(spec, free).unwrap(), "downpour").unwrap()
    }

    fn names(planned: &[Planned]) -> Vec<String> {
        planned.iter().map(|p| p.name.to_string()).collect()
    }

    fn job(words: &[&str]) -> JobSpec {
        let words = words.iter().map(|w| (*w).to_owned()).collect();
        JobSpec::new(
            "job",
            words,
            &[("ps", 1), ("chief", 1), ("worker", 2), ("evaluator", 1)],
        )
    }

    #[test]
    fn a_ps_is_served_and_the_program_is_the_others() {
        let planned = planned(&job(&["train"]));
        assert_eq!(
            names(&planned),
            ["ps:0", "chief:0", "worker:0", "worker:1", "evaluator:0"]
        );
        assert_eq!(planned[0].command[..2], ["downpour", "serve"]);
        let config = &planned[3].env["TF_CONFIG"];
        assert_eq!(
            config,
            r#"{"cluster":{"chief":["127.0.0.1:1"],"ps":["127.0.0.1:2"],"worker":["127.0.0.1:3","127.0.0.1:4"]},"task":{"index":1,"type":"worker"}}"#
        );
        assert_eq!(planned[4].address, None);
        assert!(planned[4].env["TF_CONFIG"].contains(r#""type":"evaluator""#));
    }

    #[test]
    fn a_served_worker_is_a_server_and_its_client() {
        let mut spec = job(&[
            "train",
            "--target={target}",
            "{worker_hosts}",
            "{json: [1]}",
        ]);
        spec.tasks.get_mut("worker").unwrap().serve = Some(true);
        let planned = planned(&spec);
        assert_eq!(
            names(&planned)[1..3],
            ["worker:0/server", "worker:1/server"]
        );
        let client = planned
            .iter()
            .find(|p| p.name == TaskName::new("worker", 1))
            .unwrap();
        let want = [
            "train",
            "--target=grpc://127.0.0.1:4",
            "127.0.0.1:3,127.0.0.1:4",
            "{json: [1]}",
        ];
        assert_eq!(client.command, want);
    }

    #[test]
    fn a_program_may_bring_every_server_and_take_flags() {
        let mut spec = job(&["train"]);
        spec.tasks.get_mut("ps").unwrap().serve = Some(false);
        spec.flags = true;
        let planned = planned(&spec);
        assert_eq!(planned[0].role, TaskRole::Server);
        assert_eq!(
            planned[0].command,
            [
                "train",
                "--job_name=ps",
                "--task_index=0",
                "--chief_hosts=127.0.0.1:1",
                "--ps_hosts=127.0.0.1:2",
                "--worker_hosts=127.0.0.1:3,127.0.0.1:4"
            ]
        );
    }

    #[test]
    fn addresses_of_ones_own_are_checked() {
        let mut spec = job(&["x"]);
        for (host, want) in [
            ("a:1,b:2", "like host:port"),
            ("nothing", "tasks.ps.hosts"),
            ("a:99999", "tasks.ps.hosts"),
        ] {
            spec.tasks.get_mut("ps").unwrap().hosts = Some(vec![host.to_owned()]);
            let free = (1..).map(|n| format!("127.0.0.1:{n}"));
            let error = cluster(&spec, free).unwrap_err().to_string();
            assert!(error.contains(want), "{error}");
        }
    }
}
