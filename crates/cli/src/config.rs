//! Where the settings of `downpour serve` come from: the command line, then `TF_CONFIG`, then a
//! file. This is the only place that looks at any of them; what they mean is `downpour`'s to say.

use crate::serve::Serve;
use anyhow::{Context, Result, bail};
use downpour::{ClusterSpec, Definition, Role};
use std::collections::BTreeSet;
use std::path::Path;

/// Longest list of tasks that is printed per job.
const MAX_SHOWN: usize = 16;

impl Serve {
    /// Which task to be, by all that was said.
    pub(crate) fn role(&self) -> Result<Role> {
        let mut sources = vec![("the command line".to_owned(), self.flags()?)];
        if let Some((path, said)) = self.cluster_file()? {
            sources.push((format!("--cluster {path}"), said));
        }
        if let Some(text) = environment("TF_CONFIG")? {
            let said = Definition::from_tf_config(&text).context("TF_CONFIG")?;
            sources.push(("TF_CONFIG".into(), said));
        }
        if let Some(path) = &self.config {
            let name = format!("--config {}", path.display());
            let text = read(path).context("--config")?;
            let said = Definition::from_file(&text).with_context(|| name.clone())?;
            sources.push((name, said));
        }
        Ok(Role::resolve(&sources)?)
    }

    /// What the file of `--cluster` says, if it holds more than a cluster: then all of it counts.
    fn cluster_file(&self) -> Result<Option<(&str, Definition)>> {
        let named = self.cluster.as_deref();
        let Some(path) = named.filter(|text| !text.trim_start().starts_with('{')) else {
            return Ok(None);
        };
        let text = read(Path::new(path)).context("--cluster")?;
        if ClusterSpec::from_text(&text).is_ok() {
            return Ok(None);
        }
        let said = Definition::from_file(&text).ok();
        Ok(said.filter(|d| d.cluster.is_some()).map(|d| (path, d)))
    }

    /// What the command line itself says.
    fn flags(&self) -> Result<Definition> {
        let mut made = Definition {
            job: self.job.clone(),
            task: self.task,
            bind: self.bind.clone(),
            threads: self.threads,
            memory_limit: self.memory_limit,
            session_memory_limit: self.session_memory_limit,
            step_memory_limit: self.step_memory_limit,
            drain: self.drain,
            exit_when_done: self.exit_when_done.then_some(true),
            done_after: self.done_after,
            wait_for: self.wait_for.clone(),
            allow_remote_inspect: self.allow_remote_inspect.then_some(true),
            allow_remote_stop: self.allow_remote_stop.then_some(true),
            lost_after: self.lost_after,
            find_within: self.find_within,
            transport: self.transport,
            log: self.log.clone(),
            log_format: self.log_format.clone(),
            ..Default::default()
        };
        if let Some(port) = self.port {
            let job = made.job.get_or_insert_with(|| "localhost".into());
            made.cluster = Some(ClusterSpec::single(job, &format!("127.0.0.1:{port}"))?);
            made.task.get_or_insert(0);
        } else if let Some(text) = &self.cluster {
            if self.cluster_file()?.is_none() {
                made.cluster = Some(cluster(text).context("--cluster")?);
            }
        } else {
            let mut spec = ClusterSpec::default();
            for (job, flag, hosts) in [
                ("chief", "--chief-hosts", &self.chief_hosts),
                ("ps", "--ps-hosts", &self.ps_hosts),
                ("worker", "--worker-hosts", &self.worker_hosts),
                ("evaluator", "--evaluator-hosts", &self.evaluator_hosts),
            ] {
                if let Some(hosts) = hosts {
                    spec.add_hosts(job, hosts).context(flag)?;
                }
            }
            made.cluster = (spec.num_tasks() > 0).then_some(spec);
        }
        Ok(made)
    }
}

/// A cluster as text, or in a file: alone, or among the settings of `--config`.
pub(crate) fn cluster(text: &str) -> Result<ClusterSpec> {
    if text.trim_start().starts_with('{') {
        return Ok(ClusterSpec::from_text(text)?);
    }
    let text = read(Path::new(text))?;
    match ClusterSpec::from_text(&text) {
        Ok(spec) => Ok(spec),
        Err(e) => match Definition::from_file(&text) {
            Ok(Definition {
                cluster: Some(spec),
                ..
            }) => Ok(spec),
            _ => Err(e.into()),
        },
    }
}

/// Longest settings file: a cluster of a hundred thousand tasks fits.
const MAX_FILE: u64 = 16 << 20;

fn read(path: &Path) -> Result<String> {
    let name = path.display();
    let file = std::fs::File::open(path).with_context(|| format!("cannot read '{name}'"))?;
    let mut text = String::new();
    let mut limited = std::io::Read::take(file, MAX_FILE + 1);
    // A device may not be text, and never end.
    std::io::Read::read_to_string(&mut limited, &mut text)
        .with_context(|| format!("cannot read '{name}'"))?;
    if text.len() as u64 > MAX_FILE {
        bail!(
            "'{name}' is longer than {} MiB, more than any settings need",
            MAX_FILE >> 20
        );
    }
    Ok(text)
}

/// What the launcher says to tasks, what programs of the crate `downpour` read, and what our own tests set.
/// Settings of commands are known by their flags.
const VARIABLES: [&str; 7] = [
    "COORDINATOR",
    "DIR",
    "JOB",
    "SCIPY_PYTHON",
    "START",
    "TARGET",
    "TB_PYTHON",
];
/// How names of settings in the environment begin.
const PREFIX: &str = "DOWNPOUR_";
/// Beginnings of names that are others' own business.
const OTHERS: [&str; 2] = ["TEST_", "TF_"];

/// Refuses variables that look like settings and are none: a misspelled one would silently say nothing.
pub(crate) fn check_environment(
    command: &clap::Command,
    names: impl Iterator<Item = String>,
) -> Result<()> {
    let commands = command.get_subcommands();
    let flags = commands.flat_map(|c| c.get_arguments());
    let variables = flags.filter_map(|flag| flag.get_env()?.to_str()?.strip_prefix(PREFIX));
    let known: BTreeSet<&str> = variables.chain(VARIABLES).collect();
    for name in names {
        let Some(rest) = name.strip_prefix(PREFIX) else {
            continue;
        };
        if known.contains(rest) || OTHERS.iter().any(|o| rest.starts_with(o)) {
            continue;
        }
        let nearest = known.iter().min_by_key(|known| distance(known, rest));
        let meant = nearest.filter(|known| distance(known, rest) <= 3);
        let hint = meant.map_or(String::new(), |known| {
            format!("; did you mean {PREFIX}{known}?")
        });
        bail!("the environment holds {name}, which is no setting{hint}");
    }
    Ok(())
}

/// How many letters must be changed, left out or put in to make one word of another.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let change = before + usize::from(x != y);
            before = row[j + 1];
            row[j + 1] = change.min(before + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}

/// A variable of the environment.
pub(crate) fn environment(name: &str) -> Result<Option<String>> {
    match std::env::var(name) {
        Ok(text) => Ok(Some(text)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => bail!("{name} is not UTF-8"),
    }
}

/// What is printed once at the start: who this task is and who the others are.
pub(crate) fn describe(role: &Role, address: std::net::SocketAddr) -> String {
    let (job, task) = (&role.job, role.task);
    let mut out = format!("/job:{job}/replica:0/task:{task} listens on grpc://{address}\n");
    if role.cluster.num_tasks() > 1 {
        out += &format!("cluster, from {}:\n", role.cluster_from);
        for (job, tasks) in role.cluster.jobs() {
            for (task, at) in tasks.iter().take(MAX_SHOWN) {
                let own = match *job == role.job && *task == role.task {
                    true => "  (this task)",
                    false => "",
                };
                out += &format!("  /job:{job}/task:{task}  {at}{own}\n");
            }
            if tasks.len() > MAX_SHOWN {
                out += &format!("  … {} more of job {job}\n", tasks.len() - MAX_SHOWN);
            }
        }
    }
    if !role.wait_for.is_empty() {
        let names = role.wait_for.iter().take(MAX_SHOWN);
        let names: Vec<String> = names.map(|(j, t)| format!("/job:{j}/task:{t}")).collect();
        let more = match role.wait_for.len().saturating_sub(MAX_SHOWN) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        out += &format!(
            "exits when the clients of {}{more} are done\n",
            names.join(", ")
        );
    }
    for note in &role.notes {
        out += &format!("note: {note}\n");
    }
    out
}

/// What to do about an address that cannot be listened on.
pub(crate) fn bind_hint(address: &str, reason: &std::io::Error) -> String {
    let port = address.rsplit(':').next().unwrap_or_default();
    match reason.kind() {
        std::io::ErrorKind::AddrInUse => format!(
            "cannot listen on {address}: the port is in use; `ss -ltnp 'sport = :{port}'` shows by whom"
        ),
        std::io::ErrorKind::AddrNotAvailable => format!(
            "cannot listen on {address}: it is not an address of this machine; say which to listen on, as in --bind 0.0.0.0:{port}"
        ),
        std::io::ErrorKind::PermissionDenied => format!(
            "cannot listen on {address}: the system does not permit it; take a port from 1024 up"
        ),
        _ => format!(
            "cannot listen on {address}: {reason}; say where to listen, as in --bind 0.0.0.0:{port}"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::check_environment;
    use clap::CommandFactory as _;

    #[test]
    fn misspelled_settings_are_refused() {
        let command = crate::Cli::command();
        let check = |name: &str| check_environment(&command, [name.to_owned()].into_iter());
        for good in [
            "DOWNPOUR_LOG",
            "DOWNPOUR_MEMORY_LIMIT",
            "DOWNPOUR_STEP_MEMORY_LIMIT",
            "DOWNPOUR_COORDINATOR",
            "DOWNPOUR_TF_PYTHON",
            "DOWNPOUR_TEST_X",
            "HOME",
            "DOWNPOURS",
        ] {
            assert!(check(good).is_ok(), "{good}");
        }
        for (bad, want) in [
            ("DOWNPOUR_LOGS", "did you mean DOWNPOUR_LOG?"),
            ("DOWNPOUR_TRANSPROT", "did you mean DOWNPOUR_TRANSPORT?"),
            ("DOWNPOUR_LOGFORMAT", "did you mean DOWNPOUR_LOG_FORMAT?"),
            ("DOWNPOUR_COLOUR_OF_THE_SKY", "which is no setting"),
        ] {
            let said = check(bad).unwrap_err().to_string();
            assert!(said.contains(want), "{said}");
        }
    }
}
