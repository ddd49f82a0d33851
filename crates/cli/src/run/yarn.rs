//! `downpour run --on yarn`: hands the job to YARN and follows it. What is started in YARN's containers is this program, too:
//! `downpour yarn-master` in the first, `downpour yarn-agent` in every other.

use super::conduct::{conduct, origin, setup};
use super::console::{Console, Lines, When};
use super::slurm::interrupts;
use anyhow::{Context as _, Result, anyhow};
use clap::Args;
use downpour_launch::{Exit, JobSpec, Launcher, Outcome, TaskName, YarnConf, YarnMaster};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

/// Files of Hadoop's settings; later ones go before.
const SETTINGS: [&str; 3] = ["core-site.xml", "hdfs-site.xml", "yarn-site.xml"];
/// How often it is told who is waited for.
const TELL_EVERY: Duration = Duration::from_secs(5);
/// How long tasks may take to end whose container YARN has killed.
const KILLED_DRAIN: &str = "1s";

/// Flags of `downpour yarn-master`.
#[derive(Args)]
pub(crate) struct Master {
    /// The container's folder of logs
    #[arg(long, value_name = "FOLDER")]
    logs: PathBuf,
}

/// Flags of `downpour yarn-agent`.
#[derive(Args)]
pub(crate) struct Agent {
    /// The container's folder of logs
    #[arg(long, value_name = "FOLDER")]
    logs: PathBuf,
}

/// Hands the job in, or finds it, and follows it to its end.
pub(super) fn hand_over(
    spec: &JobSpec,
    own: &str,
    kills: &[(TaskName, Duration)],
    console: &Console,
) -> Result<ExitCode> {
    let job = downpour_launch::submit_to_yarn(spec, own, &settings(), &user()?, kills)?;
    let verb = if job.is_adopted { "follows" } else { "has" };
    console.note(&format!("YARN {verb} the job as {}", job.id));
    let interrupts = interrupts()?;
    let note = |text: &str| console.note(text);
    let exit = job.follow(&mut std::io::stdout(), &note, &interrupts);
    Ok(ExitCode::from(exit.map_err(|e| anyhow!(e))?.code()))
}

/// The cluster's settings, where Hadoop's own programs look for them.
fn settings() -> YarnConf {
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
    let folders = [
        path("HADOOP_CONF_DIR"),
        path("YARN_CONF_DIR"),
        path("HADOOP_HOME").map(|home| home.join("etc/hadoop")),
        Some(PathBuf::from("/etc/hadoop/conf")),
    ];
    let has_some = |folder: &PathBuf| SETTINGS.iter().any(|file| folder.join(file).is_file());
    let mut conf = YarnConf::default();
    if let Some(folder) = folders.into_iter().flatten().find(has_some) {
        for file in SETTINGS {
            // Of those that are missing Hadoop takes its defaults.
            if let Ok(text) = std::fs::read_to_string(folder.join(file)) {
                conf.read(&text);
            }
        }
    }
    conf
}

fn user() -> Result<String> {
    let names = ["HADOOP_USER_NAME", "USER", "LOGNAME"];
    let mut found = names.iter().filter_map(|name| std::env::var(name).ok());
    let is_plain = |name: &String| {
        !name.is_empty()
            && name
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
    };
    let own = || {
        let uid = rustix::process::getuid().as_raw();
        let users = std::fs::read_to_string("/etc/passwd").ok()?;
        let is_own = |line: &&str| {
            line.split(':')
                .nth(2)
                .is_some_and(|id| id == uid.to_string())
        };
        users
            .lines()
            .find(is_own)?
            .split(':')
            .next()
            .map(str::to_owned)
    };
    found
        .find(is_plain)
        .or_else(own)
        .context("cannot find out as whom to ask YARN; HADOOP_USER_NAME says it")
}

impl Master {
    /// Is the ApplicationMaster of the job that lies in this folder.
    pub(crate) fn run(self) -> Result<ExitCode> {
        let env: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        let log = self.logs.join("job.log");
        let master = YarnMaster::start(&env, &log, "").map_err(|e| anyhow!(e))?;
        let console = Console::new(When::Never);
        match run(&master, &console) {
            Ok((outcome, summary)) => {
                master.finish(Exit::Code(i32::from(outcome.code())), &summary);
                Ok(ExitCode::SUCCESS)
            }
            Err(e) => {
                let text = format!("{e:#}");
                console.plain(&format!("error: {text}\n"));
                master.finish(Exit::Code(2), &text);
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// Runs the job to its end; how it ended, and that for people.
fn run(master: &YarnMaster, console: &Console) -> Result<(Outcome, String)> {
    let mut setup = setup(master.kills())?;
    setup.yarn = Some(master.clone());
    let (begun, has_begun) = mpsc::channel::<()>();
    let (waiting, teller) = (master.clone(), console.clone());
    std::thread::spawn(move || {
        let mut told = None;
        while has_begun.recv_timeout(TELL_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
            let absent = waiting.absent();
            if let Some(absent) = absent.as_ref().filter(|_| absent != told) {
                teller.note(&format!("waits for containers: {absent}"));
            }
            told = absent;
        }
    });
    let launcher = Launcher::prepare(master.spec().clone(), setup)?;
    drop(begun);
    master.attach(launcher.control());
    let state = launcher.monitor().snapshot();
    let names: Vec<TaskName> = state.tasks.iter().map(|t| t.name.clone()).collect();
    let console = console.clone().beside(&names);
    let (shown, lines) = (console.clone(), Lines::new(&console, &names));
    let origin = origin(&launcher, None);
    let (outcome, state) = conduct(
        launcher,
        &origin,
        move |task, printed, line| lines.show(task, printed, line),
        move |happening| shown.note(&happening.to_string()),
    )?;
    let summary = downpour_launch::summary(&outcome, &state);
    console.plain(&summary);
    Ok((outcome, summary))
}

impl Agent {
    /// Runs tasks in this container until the ApplicationMaster is gone.
    pub(crate) fn run(self) -> Result<()> {
        let own = std::env::current_exe().context("cannot find this program's own file")?;
        let own = own.to_str().context("this program's path is not UTF-8")?;
        let guard = [own, "job-guard", "--drain", KILLED_DRAIN].map(str::to_owned);
        let word = |name: &str| {
            std::env::var(name)
                .with_context(|| format!("{name} is not set: this is no container of YARN"))
        };
        let (master, container) = (word("YARN_JOB_MASTER")?, word("CONTAINER_ID")?);
        let done = downpour_launch::agent(
            &master,
            &container,
            Path::new("job.json"),
            &self.logs,
            &guard,
        );
        done.map_err(|e| anyhow!(e))
    }
}
