//! Data in portions, handed out to whoever is idle: who works on what, what came back, and which
//! epochs are over, also when workers die with a portion in their hands.
//!
//! [`Books`] is the record, a plain value whose transitions know no clock and do no I/O. [`Desk`] puts a
//! clock beside it, for a coordinator that keeps its books in its own memory. [`Shards`] keeps them in
//! a variable on a parameter server, where every worker turns the pages itself.
//!
//! Invariant: of every epoch each portion is completed exactly once in the books. It may be handed
//! out more often, and every time more is counted.

mod books;
mod desk;
#[cfg(test)]
mod explored;
mod portion;
mod record;
mod shared;
mod watch;

pub use books::{Answer, Books, Counts, Done, Holder};
pub use desk::Desk;
pub use portion::{Division, Portion, Shuffle};
pub(crate) use shared::{Era, life};
pub use shared::{Reader, Shards};
pub use watch::Watch;
