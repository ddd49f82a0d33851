//! What `run` and `demo` have in common: signals to the job, happenings to the console.

use anyhow::{Context as _, Result};
use downpour_launch::{
    Control, Happening, JobPhase, JobState, Launcher, Listener, Monitor, Origin, Outcome, Printed,
    Setup, TaskName, write_record,
};
use parking_lot::Mutex;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How long the tasks of a killed launcher may take to end.
const ORPHANS_DRAIN: &str = "10s";

/// What a launcher needs to know of this program.
pub(crate) fn setup(kills: Vec<(TaskName, Duration)>) -> Result<Setup> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let own = own.to_str().context("this program's path is not UTF-8")?;
    Ok(Setup {
        server: own.to_owned(),
        guard: [own, "job-guard", "--drain", ORPHANS_DRAIN]
            .map(str::to_owned)
            .to_vec(),
        path: std::env::var_os("PATH").unwrap_or_default(),
        kills,
        allocation: None,
        yarn: None,
        unlogged: None,
    })
}

/// What this run is made from; it is put on the list of this user's runs.
pub(crate) fn origin(local: &Launcher, dashboard: Option<String>) -> Origin {
    let origin = Origin {
        command: std::env::args().collect(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        code: std::env::current_dir()
            .ok()
            .and_then(|dir| downpour_launch::checked_out(&dir)),
        dashboard,
    };
    if let Some(list) = list() {
        // Without a home the run is found by its directory only.
        let _ = downpour_launch::enlist(&list, &local.monitor().snapshot().dir);
    }
    origin
}

/// Where this user's runs are listed.
pub(crate) fn list() -> Option<PathBuf> {
    let path = |name: &str| std::env::var_os(name).map(PathBuf::from);
    downpour_launch::list_dir(path("HOME").as_deref(), path("XDG_STATE_HOME").as_deref())
}

/// Runs a job to its end. `line` hears what tasks print, `happened` what befalls them.
pub(crate) fn conduct(
    local: Launcher,
    origin: &Origin,
    line: impl Fn(&TaskName, Printed, &str) + Send + Sync + 'static,
    happened: impl Fn(&Happening) + Send + 'static,
) -> Result<(Outcome, JobState)> {
    pass_signals(local.control())?;
    let teller = Arc::new(Teller {
        monitor: local.monitor(),
        told: Mutex::default(),
        happened: Mutex::new(Box::new(happened)),
        origin: origin.clone(),
    });
    let speaking = teller.clone();
    let listener: Listener = Arc::new(move |task, printed, text| {
        // A task is said to have started before what it says.
        speaking.catch_up();
        line(task, printed, text);
    });
    let teller = std::thread::spawn(move || teller.tell());
    let ended = local.run(&listener);
    if ended.is_ok() {
        // The state says that the job has ended, so it ends, too.
        let _ = teller.join();
    }
    let (outcome, state) = ended?;
    let _ = write_record(origin, &state, Some(&outcome));
    let _ = downpour_launch::write_summary(&outcome, &state);
    Ok((outcome, state))
}

/// Hears of every happening.
type Happened = Box<dyn Fn(&Happening) + Send>;

/// Passes on every happening once, in order.
struct Teller {
    monitor: Monitor,
    /// How many were told, and of which version of the state those are all.
    told: Mutex<(u64, Option<u64>)>,
    happened: Mutex<Happened>,
    origin: Origin,
}

impl Teller {
    /// Tells what has not been told; the job's state by then, if that is another.
    fn catch_up(&self) -> Option<JobState> {
        let mut told = self.told.lock();
        if told.1 == Some(self.monitor.version()) {
            return None;
        }
        let state = self.monitor.snapshot();
        let first = told.0.saturating_sub(state.forgotten);
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let happened = self.happened.lock();
        for happening in state.happenings.iter().skip(first) {
            happened(happening);
        }
        told.0 = state.forgotten + state.happenings.len() as u64;
        told.1 = Some(state.version);
        // A full disk is no reason to stop a job.
        let _ = write_record(&self.origin, &state, None);
        Some(state)
    }

    /// Tells until the job has ended.
    fn tell(&self) {
        let mut state = self.monitor.snapshot();
        while state.phase != JobPhase::Ended {
            self.catch_up();
            state = self.monitor.wait(state.version, Duration::from_secs(60));
        }
        self.catch_up();
    }
}

/// Hands SIGINT, SIGTERM and SIGHUP to the job, from now on and as often as they come.
fn pass_signals(control: Control) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot watch for signals")?;
    let (ready, is_ready) = mpsc::channel();
    std::thread::spawn(move || {
        runtime.block_on(async {
            let kinds = [
                SignalKind::interrupt(),
                SignalKind::terminate(),
                SignalKind::hangup(),
            ];
            let streams = kinds.map(signal);
            let [Ok(mut interrupt), Ok(mut terminate), Ok(mut hangup)] = streams else {
                return;
            };
            let _ = ready.send(());
            loop {
                let kind = tokio::select! {
                    _ = interrupt.recv() => kinds[0],
                    _ = terminate.recv() => kinds[1],
                    _ = hangup.recv() => kinds[2],
                };
                control.interrupt(kind.as_raw_value());
            }
        });
    });
    is_ready.recv().context("cannot watch for signals")
}
