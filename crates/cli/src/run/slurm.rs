//! `downpour run --on slurm` outside an allocation: hands the job to sbatch and follows it to its end.

use super::console::Console;
use anyhow::{Context as _, Result, anyhow};
use downpour_launch::{Exit, JobSpec, Submission};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};

/// How often Slurm is asked for the job's state, and the log is read.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// So many looks may fail in a row: a controller that is restarted answers again soon.
const MAX_FAILURES: u32 = 120;

/// The allocation that this process is in: number and nodes.
pub(super) fn allocation() -> Option<(String, String)> {
    let word = |name: &str| std::env::var(name).ok().filter(|w| !w.is_empty());
    Some((word("SLURM_JOB_ID")?, word("SLURM_JOB_NODELIST")?))
}

/// Submits the job, or finds it in the queue, and shows what its launcher says.
pub(super) fn hand_over(spec: &JobSpec, own: &str, console: &Console) -> Result<ExitCode> {
    let submission = downpour_launch::submit(spec, own)?;
    let verb = if submission.is_adopted {
        "follows"
    } else {
        "has"
    };
    console.note(&format!(
        "Slurm {verb} the job as {}: logs in {}",
        submission.id,
        submission.dir.display()
    ));
    let interrupts = interrupts()?;
    let exit = follow(&submission, console, &interrupts)?;
    Ok(ExitCode::from(exit.code()))
}

fn follow(
    submission: &Submission,
    console: &Console,
    interrupts: &mpsc::Receiver<i32>,
) -> Result<Exit> {
    let (mut offset, mut failures, mut asked, mut told) = (0, 0, 0u32, String::new());
    loop {
        // Looked at first: what was printed before the end is read after it.
        let looked = submission.look();
        offset += pass(submission, offset);
        match looked {
            Ok((_, Some(exit))) => return Ok(exit),
            Ok((state, None)) => {
                failures = 0;
                if state != told && state != "RUNNING" {
                    let reason = submission.reason().unwrap_or_default();
                    console.note(&format!(
                        "Slurm's job {} is {state} ({reason})",
                        submission.id
                    ));
                }
                told = state;
            }
            Err(e) => {
                failures += 1;
                if failures > MAX_FAILURES {
                    let id = &submission.id;
                    return Err(anyhow!("Slurm does not tell of its job {id} any more: {e}"));
                }
            }
        }
        if interrupts.recv_timeout(LOOK_EVERY).is_ok() {
            asked += 1;
            if let Err(e) = submission.cancel(asked > 1 || told == "PENDING") {
                console.note(&format!("Slurm's job cannot be cancelled: {e}"));
            }
        }
    }
}

/// Shows what came since; how many bytes.
fn pass(submission: &Submission, offset: u64) -> u64 {
    let read = || -> std::io::Result<u64> {
        let mut file = std::fs::File::open(submission.log())?;
        file.seek(SeekFrom::Start(offset))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let mut out = std::io::stdout().lock();
        out.write_all(&bytes)?;
        out.flush()?;
        Ok(bytes.len() as u64)
    };
    read().unwrap_or(0)
}

/// One message, the signal's number, for every Ctrl-C and SIGTERM.
pub(super) fn interrupts() -> Result<mpsc::Receiver<i32>> {
    let (told, tell) = mpsc::channel();
    let (ready, is_ready) = mpsc::channel();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot watch for signals")?;
    std::thread::spawn(move || {
        runtime.block_on(async {
            let kinds = [SignalKind::interrupt(), SignalKind::terminate()].map(signal);
            let [Ok(mut interrupt), Ok(mut terminate)] = kinds else {
                return;
            };
            let _ = ready.send(());
            loop {
                let kind = tokio::select! {
                    _ = interrupt.recv() => SignalKind::interrupt(),
                    _ = terminate.recv() => SignalKind::terminate(),
                };
                if told.send(kind.as_raw_value()).is_err() {
                    return;
                }
            }
        });
    });
    is_ready.recv().context("cannot watch for signals")?;
    Ok(tell)
}
