//! What no honest client sends: the server answers with a typed error and goes on serving.

mod calls;
mod common;
mod graphs;
