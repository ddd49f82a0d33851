//! Data in portions, handed out to whoever is idle: who works on what, what came back, and which
//! epochs are over, also when workers die with a portion in their hands.
//!
//! [`Ledger`] is the record, a plain value whose transitions know no clock and do no I/O. [`LeaseDesk`] puts a
//! clock beside it, for a coordinator that keeps its ledger in its own memory. [`Shards`] keeps it in
//! a variable on a parameter server, where every worker turns the pages itself.
//!
//! Invariant: of every epoch each portion is completed exactly once in the ledger. It may be handed
//! out more often, and every time more is counted.

#[cfg(test)]
mod exhaustive_tests;
mod lease_desk;
mod ledger;
mod portion;
mod record;
mod shared;
mod watch;

pub use lease_desk::LeaseDesk;
pub use ledger::{Answer, Counts, Done, Holder, Ledger};
pub use portion::{Division, Portion, Shuffle};
pub(crate) use shared::{Era, life};
pub use shared::{Reader, Shards};
pub use watch::Watch;
