//! Where `Print` and its kin write: whoever wires the process lends a [`Console`] to the device.

use std::fmt;
use std::sync::Arc;

/// One of the process's two output streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// Writes text to the process's streams, whole texts at a time.
#[derive(Clone)]
pub struct Console(pub Arc<Print>);

/// Prints a text to a stream.
pub type Print = dyn Fn(Stream, &str) + Send + Sync;

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Console")
    }
}
