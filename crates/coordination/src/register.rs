//! The one thing an election needs of a service: a register that is changed by compare-and-swap.

use crate::record::Version;
use std::time::Duration;

/// Why a service did not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The URL names no service.
    #[error(
        "--coordinator {url}: {reason}; expected etcd://HOST:PORT[,HOST:PORT]/PATH, zk://HOST:PORT[,HOST:PORT]/PATH or file:///DIR"
    )]
    Url {
        /// As it was given, without what may be secret.
        url: String,
        /// What is wrong.
        reason: String,
    },
    /// No answer in time.
    #[error("{service} does not answer within {} s; is it running, and is the address right?", .within.as_secs_f32())]
    Silent {
        /// Which one.
        service: String,
        /// How long it was waited for.
        within: Duration,
    },
    /// It answered, but refused.
    #[error("{service}: {reason}")]
    Refused {
        /// Which one.
        service: String,
        /// What it said.
        reason: String,
    },
}

/// What a call of this crate returns.
pub type Result<T> = std::result::Result<T, Error>;

/// Named registers that all members see, changed by compare-and-swap.
///
/// Calls block, at most for a time that the implementation was given. An error says nothing about
/// whether a swap was, or will yet be, carried out.
pub trait Register: Send {
    /// What a register holds, and its version; [`Version::NONE`] and nothing if it was never written.
    fn read(&self, name: &str) -> Result<(Version, Vec<u8>)>;

    /// Puts a value in place of the one of a version. Its own version; `None` if there was another.
    fn swap(&self, name: &str, expected: Version, value: &[u8]) -> Result<Option<Version>>;
}
