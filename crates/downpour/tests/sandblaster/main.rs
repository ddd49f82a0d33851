//! Sandblaster on real clusters: replicas and coordinators that are killed, servers that are lost.
//!
//! Processes that are to be killed are this test's own executable: told by the environment which task
//! to be, the "test" [`be_a_task`] works instead of testing.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![expect(
    clippy::print_stdout,
    reason = "how a task that may be killed says how far it is"
)]

mod batch;
mod coordinator;
mod problem;
mod tasks;

/// Works as one task, when the environment says which; otherwise there is nothing to test.
#[test]
fn be_a_task() {
    tasks::be();
}
