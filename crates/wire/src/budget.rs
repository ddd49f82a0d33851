//! What one decode may spend. A peer writes counts, sizes and depths freely; each is compared with
//! a limit here before memory follows it. [`Budget`] holds the limits, [`Meter`] what is left.

use crate::scan::ScanError;
use downpour_graph::Status;

/// Limits for one decode, or, carried on with [`Meter::remaining`], for all of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes of all numeric tensors together, after repeated values are written out.
    pub tensor_bytes: u64,
    /// Strings and handles in tensors, after repeated values are written out.
    pub elements: u64,
    /// Nodes of a graph, those in function bodies included.
    pub nodes: u64,
    /// Functions of a library.
    pub functions: u64,
    /// Attributes inside attributes (a function's, given to an attribute, and so on).
    pub attr_depth: u32,
    /// Strings, list entries and sub-messages of a message: what protobuf allocates one by one.
    pub entries: u64,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget {
            // Twice what a message may weigh, so that only written-out repetition can exceed it.
            tensor_bytes: 4 << 30,
            // 32 bytes each: 2 GiB.
            elements: 1 << 26,
            // The largest graphs seen in practice have a few hundred thousand.
            nodes: 1 << 20,
            functions: 1 << 16,
            // Well below the hundred nested messages at which protobuf itself gives up (an
            // attribute in an attribute is three).
            attr_depth: 24,
            // At most about 150 bytes each.
            entries: 1 << 24,
        }
    }
}

impl Budget {
    /// Limits for data that this process wrote itself, or that a user vouches for: only what
    /// protects the stack remains.
    pub fn trusting() -> Budget {
        Budget {
            tensor_bytes: u64::MAX,
            elements: u64::MAX,
            nodes: u64::MAX,
            functions: u64::MAX,
            entries: u64::MAX,
            ..Budget::default()
        }
    }
}

/// A limit that was reached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message needs {wanted} {what}, but only {left} are allowed")]
pub struct Exhausted {
    /// What there was too much of.
    pub what: &'static str,
    /// What was asked for.
    pub wanted: u64,
    /// What was left of the limit.
    pub left: u64,
}

impl From<Exhausted> for Status {
    fn from(e: Exhausted) -> Status {
        Status::resource_exhausted(e.to_string())
    }
}

impl From<ScanError> for Status {
    fn from(e: ScanError) -> Status {
        match e {
            // What TensorFlow's services answer.
            ScanError::Malformed => Status::internal("Unable to parse request"),
            ScanError::Exhausted(e) => e.into(),
        }
    }
}

/// What is left of a [`Budget`].
#[derive(Clone, Debug)]
pub struct Meter {
    left: Budget,
}

impl From<&Budget> for Meter {
    fn from(budget: &Budget) -> Meter {
        Meter { left: *budget }
    }
}

fn pay(left: &mut u64, wanted: u64, what: &'static str) -> Result<(), Exhausted> {
    match left.checked_sub(wanted) {
        Some(rest) => {
            *left = rest;
            Ok(())
        }
        None => Err(Exhausted {
            what,
            wanted,
            left: *left,
        }),
    }
}

impl Meter {
    /// What is left, as the limits for a further decode.
    pub fn remaining(&self) -> Budget {
        self.left
    }

    /// Pays for `count` elements of `size` bytes.
    pub(crate) fn tensor(&mut self, count: usize, size: usize) -> Result<(), Exhausted> {
        let bytes = (count as u64).saturating_mul(size as u64);
        pay(&mut self.left.tensor_bytes, bytes, "bytes of tensors")
    }

    /// Pays for strings or handles.
    pub(crate) fn elements(&mut self, count: usize) -> Result<(), Exhausted> {
        pay(
            &mut self.left.elements,
            count as u64,
            "string or handle elements",
        )
    }

    /// Pays for one node.
    pub(crate) fn node(&mut self) -> Result<(), Exhausted> {
        pay(&mut self.left.nodes, 1, "more nodes")
    }

    /// Pays for one function.
    pub(crate) fn function(&mut self) -> Result<(), Exhausted> {
        pay(&mut self.left.functions, 1, "more functions")
    }

    /// Pays for one entry of a list or map.
    pub(crate) fn entry(&mut self) -> Result<(), Exhausted> {
        pay(&mut self.left.entries, 1, "more entries")
    }

    /// Checks that an attribute at this depth is allowed.
    pub(crate) fn depth(&self, depth: u32) -> Result<(), Exhausted> {
        if depth > self.left.attr_depth {
            return Err(Exhausted {
                what: "levels of attributes",
                wanted: depth.into(),
                left: self.left.attr_depth.into(),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_spent_is_gone_and_what_is_refused_is_not() {
        let mut meter = Meter::from(&Budget {
            tensor_bytes: 100,
            ..Budget::default()
        });
        meter.tensor(10, 8).unwrap();
        let refused = meter.tensor(3, 8).unwrap_err();
        assert_eq!((refused.wanted, refused.left), (24, 20));
        meter.tensor(5, 4).unwrap();
        assert_eq!(meter.remaining().tensor_bytes, 0);
    }

    #[test]
    fn products_do_not_wrap() {
        let mut meter = Meter::from(&Budget::default());
        assert!(meter.tensor(usize::MAX, 16).is_err());
    }

    #[test]
    fn refusals_are_resource_exhausted() {
        let status = Status::from(Meter::from(&Budget::default()).depth(25).unwrap_err());
        assert_eq!(
            status.to_string(),
            "RESOURCE_EXHAUSTED: the message needs 25 levels of attributes, but only 24 are allowed"
        );
    }
}
