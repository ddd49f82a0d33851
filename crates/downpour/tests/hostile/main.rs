//! What no honest client sends: the server answers with a typed error and goes on serving.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod calls;
#[path = "../common/mod.rs"]
#[allow(dead_code, reason = "shared with other tests")]
mod common;
mod graphs;
mod memory;
