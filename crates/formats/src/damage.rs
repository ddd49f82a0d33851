//! What is wrong with a damaged file: a kind that programs act on, beside TensorFlow's words for it.

use downpour_graph::{Code, Status};

/// What kind of damage it is: what can be done about it follows from that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DamageKind {
    /// The file is not there.
    Missing,
    /// The file ends too early.
    CutShort,
    /// Bytes are not those that were written; both checksums, where the format shows them.
    Changed {
        /// The checksum of what was written, and of what was read.
        sums: Option<(u32, u32)>,
    },
    /// What the file says cannot be.
    Inconsistent,
}

/// Why something cannot be read as it was written.
#[derive(Clone, Debug)]
pub struct Fault {
    /// What kind of damage it is.
    pub kind: DamageKind,
    /// The same as an error, in TensorFlow's words.
    pub status: Status,
}

impl Fault {
    /// Bytes whose checksum is another than the file says.
    pub(crate) fn changed(sums: Option<(u32, u32)>, text: impl Into<String>) -> Fault {
        Fault {
            kind: DamageKind::Changed { sums },
            status: Status::data_loss(text),
        }
    }

    /// The same, with more words.
    pub(crate) fn map(self, more: impl FnOnce(Status) -> Status) -> Fault {
        Fault {
            status: more(self.status),
            ..self
        }
    }
}

impl From<Status> for Fault {
    /// Of a status that storage or a decoder made: those have a code for each kind but that of changed bytes.
    fn from(status: Status) -> Fault {
        let kind = match status.code {
            Code::NotFound => DamageKind::Missing,
            Code::OutOfRange => DamageKind::CutShort,
            _ => DamageKind::Inconsistent,
        };
        Fault { kind, status }
    }
}

impl From<Fault> for Status {
    fn from(fault: Fault) -> Status {
        fault.status
    }
}
