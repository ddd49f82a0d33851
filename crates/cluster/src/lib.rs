//! Clusters as values: jobs, tasks and addresses ([`ClusterSpec`]), what one source says of a task
//! ([`Definition`]), and the [`Role`] that several sources make together.
//!
//! Pure: text comes in, values or errors come out. The crate opens no socket or file and reads no
//! environment, so that a launcher can use it without linking a network stack.

mod address;
mod config_value;
mod definition;
mod role;
mod spec;
mod transport;
mod units;

pub use address::{canonical, split_address};
pub use config_value::TextError;
pub use definition::{Definition, DefinitionError};
pub use role::Role;
pub use spec::{ClusterError, ClusterSpec};
pub use transport::Transport;
pub use units::{parse_bytes, parse_duration};
