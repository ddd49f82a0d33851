//! Hadoop YARN without Java: what a client asks of a cluster over REST ([`Rm`], [`WebHdfs`]), and what an ApplicationMaster says over
//! Hadoop's RPC ([`Scheduler`] to the ResourceManager, [`NodeManager`] to the nodes), with the tokens that YARN gives it ([`Credentials`]).
//!
//! Messages are protobuf by hand (`pb`): few fields of few messages are used, other fields are passed over, so Hadoop 2 and 3 can be
//! talked to alike. Whatever comes from outside has a limit before memory is asked for, and no input panics. Threads, rules of jobs and
//! retries belong to the caller.

mod conf;
mod hash;
mod http;
mod node;
mod pb;
mod rm;
mod rpc;
mod sasl;
mod scheduler;
mod secret;
mod token;
mod webhdfs;

pub use conf::Conf;
pub use http::HttpError;
pub use node::{Launch, NodeManager, Resource};
pub use pb::{Fields, Message, PbError};
pub use rm::{AppReport, Limits, NewApp, Rm};
pub use rpc::{Client, RpcError};
pub use scheduler::{
    Allocated, Allocation, Ask, Command, Completed, ContainerId, FinalStatus, NodeId, Scheduler,
};
pub use secret::{Secret, random};
pub use token::{Credentials, Token, TokenError};
pub use webhdfs::{FileStatus, WebHdfs};
