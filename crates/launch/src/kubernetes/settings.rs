//! What a job's description says for `on = "kubernetes"`. Pure; its checks let nothing through that would be refused
//! only after objects of the job exist.

use crate::spec::{SpecError, value};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// A cluster of Kubernetes: the one that `kubectl` talks to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Kubernetes {
    /// Where the job's objects are; that of kubectl's context if none is named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// What containers are made from: an image with `downpour` (if tasks are served) and the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// When the image is pulled: `Always`, `IfNotPresent` or `Never`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pull: Option<String>,
    /// Secrets with the credentials of registries.
    pub pull_secrets: Vec<String>,
    /// On whose account pods run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// For every task: `/HOST:/PATH`, `pvc/CLAIM:/PATH`, `secret/NAME:/PATH`, `config/NAME:/PATH` or `empty:/PATH`, with
    /// `:ro` behind it if wanted.
    pub volumes: Vec<String>,
    /// Secrets whose keys become variables of every task's environment.
    pub secrets: Vec<String>,
    /// What `{dir}` is in pods, if it is neither a URL nor the run's directory under its own path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// How long a task goes on when its node cannot reach the API server. Its replacement comes later than that. 0
    /// leaves both to Kubernetes, which may run a task twice.
    #[serde(with = "crate::time")]
    pub lease: Duration,
    /// The cluster's own domain in the DNS.
    pub domain: String,
    /// The API server as nodes reach it, `HOST:PORT`; found out if not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api: Option<String>,
    /// Whether new nodes come when pods have no room: then a job that no node has room for waits.
    pub autoscaled: bool,
    /// Whether pods that ended stay, with their logs, when the job is over.
    pub keep: bool,
    /// Longest time of the job in seconds; then Kubernetes ends it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deadline_seconds: Option<u64>,
    /// Further arguments of kubectl, as in `["--context=cluster"]`.
    pub options: Vec<String>,
    /// What differs between the tasks of one job of the cluster and another's.
    pub pods: BTreeMap<String, Pod>,
}

/// The pods of one job of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Pod {
    /// Instead of the job's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Labels that a node must have.
    pub nodes: BTreeMap<String, String>,
    /// Taints of nodes that do not matter: `KEY`, `KEY=VALUE`, either with `:EFFECT`.
    pub tolerations: Vec<String>,
    /// A pod template as Kubernetes has it. Its container `tensorflow`, or else its first, is the task; what it runs is
    /// said there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<serde_json::Value>,
}

impl Default for Kubernetes {
    fn default() -> Kubernetes {
        Kubernetes {
            namespace: None,
            image: None,
            pull: None,
            pull_secrets: Vec::new(),
            service_account: None,
            volumes: Vec::new(),
            secrets: Vec::new(),
            dir: None,
            lease: Duration::from_secs(30),
            domain: "cluster.local".to_owned(),
            api: None,
            autoscaled: false,
            keep: false,
            deadline_seconds: None,
            options: Vec::new(),
            pods: BTreeMap::new(),
        }
    }
}

impl Kubernetes {
    /// Says what is wrong with it, for tasks of these jobs.
    pub(crate) fn check<'a>(&self, jobs: impl Iterator<Item = &'a str>) -> Result<(), SpecError> {
        for (key, name) in [
            ("kubernetes.namespace", &self.namespace),
            ("kubernetes.service_account", &self.service_account),
        ] {
            if let Some(name) = name.as_ref().filter(|name| !is_name(name)) {
                return Err(value(key, name, NAME));
            }
        }
        let named = self.pull_secrets.iter().chain(&self.secrets);
        if let Some(name) = named.into_iter().find(|name| !is_name(name)) {
            return Err(value("kubernetes.secrets or .pull_secrets", name, NAME));
        }
        let (least, most) = (Duration::from_secs(5), Duration::from_secs(3600));
        if !self.lease.is_zero() && !(least..=most).contains(&self.lease) {
            let lease = format!("{:?}", self.lease);
            return Err(value("kubernetes.lease", lease, "0s, or from 5s to 1h"));
        }
        if !is_name(&self.domain) {
            return Err(value("kubernetes.domain", &self.domain, NAME));
        }
        if let Some(pull) = &self.pull
            && !["Always", "IfNotPresent", "Never"].contains(&pull.as_str())
        {
            let wanted = "Always, IfNotPresent or Never";
            return Err(value("kubernetes.pull", pull, wanted));
        }
        if let Some(api) = self.api.as_ref().filter(|api| host_port(api).is_none()) {
            return Err(value("kubernetes.api", api, "like 10.0.0.1:6443"));
        }
        if let Some(dir) = self.dir.as_ref().filter(|dir| !dir.starts_with('/')) {
            return Err(value("kubernetes.dir", dir, "an absolute path"));
        }
        for volume in &self.volumes {
            Volume::parse(volume)?;
        }
        crate::site::check_words("kubernetes.options", &self.options)?;
        let images = self.pods.values().filter_map(|pod| pod.image.as_ref());
        for image in images.chain(&self.image) {
            let fits = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
            if image.is_empty() || !image.chars().all(fits) || image.starts_with('-') {
                return Err(value("kubernetes.image", image, "an image's name"));
            }
        }
        let jobs: Vec<&str> = jobs.collect();
        for (job, pod) in &self.pods {
            let key = format!("kubernetes.pods.{job}");
            if !jobs.contains(&job.as_str()) {
                let wanted = format!("one of the job's tasks: {}", jobs.join(", "));
                return Err(value("kubernetes.pods", job, wanted));
            }
            for toleration in &pod.tolerations {
                Toleration::parse(&key, toleration)?;
            }
            if let Some(template) = &pod.template {
                check_template(&key, template)?;
            }
        }
        for job in jobs {
            let pod = self.pods.get(job);
            let has_image = pod.is_some_and(|pod| pod.image.is_some() || pod.template.is_some());
            if !has_image && self.image.is_none() {
                let text =
                    "a job on Kubernetes needs --image: one that has 'downpour' and the program";
                return Err(SpecError::Missing(text.to_owned()));
            }
        }
        Ok(())
    }
}

fn check_template(key: &str, template: &serde_json::Value) -> Result<(), SpecError> {
    let containers = template["spec"]["containers"].as_array();
    let Some(containers) = containers.filter(|all| !all.is_empty()) else {
        let wanted = "a pod template with spec.containers";
        return Err(value(&format!("{key}.template"), "given", wanted));
    };
    for (at, container) in containers.iter().enumerate() {
        for part in ["name", "image"] {
            if container[part].as_str().is_none_or(str::is_empty) {
                let key = format!("{key}.template.spec.containers[{at}].{part}");
                return Err(value(&key, "", "given"));
            }
        }
    }
    Ok(())
}

const NAME: &str = "lower-case letters, digits, '-' or '.', a letter or digit first and last";

/// What Kubernetes takes as the name of most objects.
pub(crate) fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    let is_end = |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
    name.len() <= 253
        && name.chars().all(fits)
        && is_end(name.chars().next())
        && is_end(name.chars().last())
}

/// An address, cut in two.
pub(crate) fn host_port(text: &str) -> Option<(&str, u16)> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host
        .strip_prefix('[')
        .map_or(Some(host), |h| h.strip_suffix(']'))?;
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | ':');
    let port = port.parse().ok().filter(|port| *port > 0)?;
    (!host.is_empty() && host.chars().all(fits)).then_some((host, port))
}

/// A volume of every task.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Volume<'a> {
    pub(crate) kind: Kind,
    /// Of the claim, secret or host's folder; empty for an empty one.
    pub(crate) source: &'a str,
    pub(crate) path: &'a str,
    pub(crate) is_read_only: bool,
}

/// Where a volume comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Host,
    Claim,
    Secret,
    Config,
    Empty,
}

impl Volume<'_> {
    pub(crate) fn parse(text: &str) -> Result<Volume<'_>, SpecError> {
        let wrong = || {
            let wanted = "/HOST:/PATH, pvc/CLAIM:/PATH, secret/NAME:/PATH, config/NAME:/PATH or empty:/PATH, then :ro if so";
            value("kubernetes.volumes", text, wanted)
        };
        let (rest, is_read_only) = match text.strip_suffix(":ro") {
            Some(rest) => (rest, true),
            None => (text, false),
        };
        let (source, path) = rest.split_once(':').ok_or_else(wrong)?;
        let (kind, source) = match source.split_once('/') {
            Some(("", _)) => (Kind::Host, source),
            Some(("pvc", name)) if is_name(name) => (Kind::Claim, name),
            Some(("secret", name)) if is_name(name) => (Kind::Secret, name),
            Some(("config", name)) if is_name(name) => (Kind::Config, name),
            None if source == "empty" => (Kind::Empty, ""),
            _ => return Err(wrong()),
        };
        match path.starts_with('/') && !path.contains(':') {
            true => Ok(Volume {
                kind,
                source,
                path,
                is_read_only,
            }),
            false => Err(wrong()),
        }
    }
}

/// A taint that does not matter.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Toleration<'a> {
    pub(crate) key: &'a str,
    pub(crate) value: Option<&'a str>,
    pub(crate) effect: Option<&'a str>,
}

impl Toleration<'_> {
    pub(crate) fn parse<'a>(key: &str, text: &'a str) -> Result<Toleration<'a>, SpecError> {
        const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
        let (rest, effect) = match text.rsplit_once(':') {
            Some((rest, effect)) => (rest, Some(effect)),
            None => (text, None),
        };
        let (taint, wanted) = match rest.split_once('=') {
            Some((taint, wanted)) => (taint, Some(wanted)),
            None => (rest, None),
        };
        if taint.is_empty() || effect.is_some_and(|effect| !EFFECTS.contains(&effect)) {
            let wanted = "KEY, KEY=VALUE, KEY:EFFECT or KEY=VALUE:EFFECT, EFFECT one of NoSchedule, PreferNoSchedule, NoExecute";
            return Err(value(&format!("{key}.tolerations"), text, wanted));
        }
        Ok(Toleration {
            key: taint,
            value: wanted,
            effect,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_say_where_they_come_from() {
        for (text, kind, source, path, is_read_only) in [
            ("/data:/in:ro", Kind::Host, "/data", "/in", true),
            ("pvc/big:/data", Kind::Claim, "big", "/data", false),
            ("secret/keys:/keys:ro", Kind::Secret, "keys", "/keys", true),
            ("config/c:/etc/c", Kind::Config, "c", "/etc/c", false),
            ("empty:/scratch", Kind::Empty, "", "/scratch", false),
        ] {
            let want = Volume {
                kind,
                source,
                path,
                is_read_only,
            };
            assert_eq!(Volume::parse(text).unwrap(), want);
        }
        for text in [
            "", "x", "/a", "pvc/:/x", "pvc/A:/x", "empty:x", "nfs/a:/b", "/a:/b:/c",
        ] {
            let error = Volume::parse(text).unwrap_err().to_string();
            assert!(error.starts_with("kubernetes.volumes is '"), "{error}");
        }
    }

    #[test]
    fn tolerations_read_as_kubectl_prints_taints() {
        let parse = |text| Toleration::parse("pods", text);
        let full = parse("gpu=a100:NoSchedule").unwrap();
        assert_eq!(
            (full.key, full.value, full.effect),
            ("gpu", Some("a100"), Some("NoSchedule"))
        );
        assert_eq!(parse("spot").unwrap().effect, None);
        assert!(parse("gpu:Never").is_err() && parse("=x").is_err());
    }

    #[test]
    fn addresses_have_a_port() {
        assert_eq!(host_port("10.0.0.1:6443"), Some(("10.0.0.1", 6443)));
        assert_eq!(host_port("[::1]:6443"), Some(("::1", 6443)));
        for text in ["", "a", ":1", "a:0", "a b:1", "[::1:1"] {
            assert_eq!(host_port(text), None, "{text}");
        }
    }
}
