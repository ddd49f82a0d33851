//! What is left to say when a job has ended: one line for the outcome, one for each process, and the
//! same as JSON beside the logs.

use crate::job::Outcome;
use crate::state::JobState;
use std::io::Write as _;

/// The outcome and what became of every process, as lines.
pub fn summary(outcome: &Outcome, state: &JobState) -> String {
    let took = state.ended.unwrap_or_default().as_secs_f64();
    let name = |id: &usize| {
        state
            .tasks
            .get(*id)
            .map_or(String::new(), |t| t.name.to_string())
    };
    let head = match outcome {
        Outcome::Done => "done".to_owned(),
        Outcome::Failed(id, exit) => format!("FAILED: {} ended with {exit}", name(id)),
        Outcome::NotStarted(id, reason) => {
            format!("FAILED: {} could not be started: {reason}", name(id))
        }
        Outcome::Interrupted(signal) => format!("interrupted by {}", crate::Exit::Signal(*signal)),
    };
    let mut out = format!("job '{}' {head} after {took:.1} s\n", state.name);
    let width = state.tasks.iter().map(|t| t.name.to_string().len()).max();
    for task in &state.tasks {
        let restarts = match task.restarts() {
            0 => String::new(),
            1 => ", 1 restart".to_owned(),
            n => format!(", {n} restarts"),
        };
        let exit = match task.exit {
            Some(exit) if !exit.is_success() => format!(" ({exit})"),
            _ => String::new(),
        };
        let (name, width) = (task.name.to_string(), width.unwrap_or(0));
        out += &format!("  {name:width$}  {}{exit}{restarts}\n", task.phase);
    }
    out += &format!("logs: {}\n", state.dir.join("logs").display());
    if let Some(cause) = crate::cause::block(outcome, state) {
        out += &cause;
    }
    out
}

/// Writes `summary.json` into the run's directory.
pub fn write_summary(outcome: &Outcome, state: &JobState) -> std::io::Result<()> {
    let text = serde_json::json!({
        "outcome": outcome.word(),
        "exit_code": outcome.code(),
        "job": state,
    });
    let path = state.dir.join("summary.json");
    // A second run in the same directory replaces the first one's.
    let _ = std::fs::remove_file(&path);
    let mut file = crate::dir::append(&path)?;
    writeln!(file, "{text:#}")
}
