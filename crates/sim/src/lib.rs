//! Worlds to test state machines in. Only tests use it; no product crate depends on it.

mod explore;

pub use explore::{Explored, World, explore};
