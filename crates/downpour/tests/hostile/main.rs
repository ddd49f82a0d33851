//! What no honest client sends: the server answers with a typed error and goes on serving.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod calls;
mod common;
mod graphs;
