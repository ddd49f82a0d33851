//! Remembers which tensors of a peer were small the last time, so that the request for one can go with
//! the other calls of its step, in one packet, instead of on the connection for large ones.

use parking_lot::Mutex;
use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};

/// Messages up to this size hold nothing up on the way.
const SMALL: usize = 64 << 10;

/// SizeMemory to remember. Graphs have fewer; those of all graphs since the task began may be more.
const MOST: usize = 1 << 16;

/// The edges that carried small tensors.
#[derive(Default)]
pub(crate) struct SizeMemory {
    small: Mutex<HashSet<u64>>,
    random: RandomState,
}

impl SizeMemory {
    /// What of a rendezvous key stays the same from step to step.
    pub(crate) fn edge(&self, key: &str) -> u64 {
        // Sender, its incarnation, receiver, name, frame and iteration.
        let mut parts = key.split(';').skip(2);
        self.random.hash_one((parts.next(), parts.next()))
    }

    pub(crate) fn is_small(&self, edge: u64) -> bool {
        self.small.lock().contains(&edge)
    }

    /// Notes the size of the message that came.
    pub(crate) fn note(&self, edge: u64, bytes: usize) {
        let mut small = self.small.lock();
        if bytes > SMALL {
            small.remove(&edge);
            return;
        }
        if small.len() >= MOST && !small.contains(&edge) {
            small.clear();
        }
        small.insert(edge);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_edge_is_small_if_its_last_tensor_was_whatever_the_iteration() {
        let edges = SizeMemory::default();
        let at = |iteration| {
            let key = format!(
                "/job:ps/task:0/cpu:0;00ab;/job:worker/task:0/cpu:0;edge_1_v;0:{iteration}"
            );
            edges.edge(&key)
        };
        assert!(!edges.is_small(at(0)));
        edges.note(at(0), 100);
        assert!(edges.is_small(at(1)));
        assert!(!edges.is_small(
            edges.edge("/job:ps/task:0/cpu:0;00ab;/job:worker/task:1/cpu:0;edge_1_v;0:0")
        ));
        edges.note(at(1), SMALL + 1);
        assert!(!edges.is_small(at(2)));
    }

    #[test]
    fn memory_is_bounded() {
        let edges = SizeMemory::default();
        for i in 0..3 * MOST as u64 {
            edges.note(i, 1);
        }
        assert!(edges.small.lock().len() <= MOST);
    }
}
