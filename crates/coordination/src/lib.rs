//! Who is chief: an election by a lease in a register that all members share, wherever that is.
//!
//! [`Candidate`] holds all rules and does no I/O; [`Member`] drives one on a thread of its own
//! against a [`Register`]: a folder ([`Folder`]), etcd or ZooKeeper ([`open`] chooses by URL).
//! The loss of the service pauses elections and nothing else; a chief that cannot reach it gives its
//! office up by its own clock before another can take it. Of product crates it uses none.

mod candidate;
#[cfg(feature = "etcd")]
mod etcd;
mod folder;
mod member;
mod record;
mod register;
mod url;
#[cfg(feature = "zookeeper")]
mod zookeeper;

pub use candidate::{Candidate, Reply, Request};
#[cfg(feature = "etcd")]
pub use etcd::Etcd;
pub use folder::Folder;
pub use member::{Member, Office};
pub use record::{Record, Version};
pub use register::{Error, Register, Result};
pub use url::{Coordinator, open};
#[cfg(feature = "zookeeper")]
pub use zookeeper::ZooKeeper;
