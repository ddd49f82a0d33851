//! Training by real processes, some of which are killed or stopped: it resumes unattended, reaches
//! its end, counts no step twice, and says whom it waits for.
//!
//! Every process is this test's own executable: told by the environment which task to be, the
//! "test" [`be_a_task`] trains instead of testing.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "how long it took, and what a failed task said, is worth reading"
)]

mod kills;
mod line;
mod stops;
mod takeovers;
mod tasks;

use downpour::program::{self, Args};
use line::Line;

/// Trains as one task, when the environment says which; otherwise there is nothing to test.
#[test]
fn be_a_task() {
    let Ok(task) = std::env::var(tasks::TASK) else {
        return;
    };
    program::log_to_stderr();
    let args = Args::parse(task.split(' ').map(str::to_owned), None).unwrap();
    let report = program::run(&Line::from_env(), &args.options).unwrap();
    println!("report {report:?}");
}
