//! The program itself: what it says to wrong settings, how its tasks find one another, how they
//! end. Everything here runs the built binary.
#![allow(
    clippy::print_stderr,
    reason = "a test says why it has nothing to test"
)]
#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

#[path = "../../../downpour/tests/common/mod.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod common;
mod ending;
mod health;
mod process;
mod reach;
mod settings;
