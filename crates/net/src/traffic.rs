//! How much this task exchanges with each other one. Counting is a look-up in a table that hardly
//! ever changes and a few relaxed additions, because every tensor passes here.

use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Most tasks that are told apart: a cluster's, not whatever a request names.
const MAX_TASKS: usize = 10_000;

/// The counts of one task, by peer. Clones share them.
#[derive(Clone, Default)]
pub struct Traffic(Arc<RwLock<BTreeMap<String, Arc<PeerCounts>>>>);

/// To and from one peer.
#[derive(Default)]
struct PeerCounts {
    bytes_sent: AtomicU64,
    bytes_received: AtomicU64,
    tensors_sent: AtomicU64,
    tensors_received: AtomicU64,
    waiting: AtomicU64,
}

/// What was exchanged with one peer so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PeerTraffic {
    /// The other task.
    pub task: String,
    /// Bytes to it.
    pub bytes_sent: u64,
    /// Bytes from it.
    pub bytes_received: u64,
    /// Tensors to it.
    pub tensors_sent: u64,
    /// Tensors from it.
    pub tensors_received: u64,
    /// Values asked of it that have not come.
    pub waiting: u64,
}

impl Traffic {
    /// A tensor went to the task of `device`.
    pub fn sent_tensor(&self, device: &str, bytes: usize) {
        let task = device.rsplit_once("/device:").map_or(device, |(t, _)| t);
        self.with(task, |peer| {
            peer.tensors_sent.fetch_add(1, Relaxed);
            peer.bytes_sent.fetch_add(bytes as u64, Relaxed);
        });
    }

    /// A message of a step went to a task, and an answer came.
    pub(crate) fn exchanged(&self, task: &str, sent: usize, received: usize) {
        self.with(task, |peer| {
            peer.bytes_sent.fetch_add(sent as u64, Relaxed);
            peer.bytes_received.fetch_add(received as u64, Relaxed);
        });
    }

    /// A value is asked of a task; it counts as awaited until what is returned is dropped.
    pub(crate) fn asks(&self, task: &str) -> Asked {
        let asked = Asked(self.peer(task));
        if let Some(peer) = &asked.0 {
            peer.waiting.fetch_add(1, Relaxed);
        }
        asked
    }

    /// Tensors came from a task unasked.
    pub fn received_tensors(&self, task: &str, count: usize, bytes: usize) {
        self.with(task, |peer| {
            peer.tensors_received.fetch_add(count as u64, Relaxed);
            peer.bytes_received.fetch_add(bytes as u64, Relaxed);
        });
    }

    /// A task is waited for.
    pub(crate) fn awaits(&self, task: &str) -> Awaiting {
        Awaiting(self.peer(task), AtomicU64::new(0))
    }

    /// Counts what goes to a task.
    pub(crate) fn to(&self, task: &str) -> Outgoing {
        Outgoing(self.peer(task))
    }

    /// All counts, in the order of the tasks' names.
    pub fn counts(&self) -> Vec<PeerTraffic> {
        let peers = self.0.read();
        let counts = peers.iter().map(|(task, peer)| PeerTraffic {
            task: task.clone(),
            bytes_sent: peer.bytes_sent.load(Relaxed),
            bytes_received: peer.bytes_received.load(Relaxed),
            tensors_sent: peer.tensors_sent.load(Relaxed),
            tensors_received: peer.tensors_received.load(Relaxed),
            waiting: peer.waiting.load(Relaxed),
        });
        counts.collect()
    }

    fn with(&self, task: &str, count: impl FnOnce(&PeerCounts)) {
        if let Some(peer) = self.0.read().get(task) {
            return count(peer);
        }
        if let Some(peer) = self.peer(task) {
            count(&peer);
        }
    }

    fn peer(&self, task: &str) -> Option<Arc<PeerCounts>> {
        if let Some(peer) = self.0.read().get(task) {
            return Some(peer.clone());
        }
        let mut peers = self.0.write();
        if peers.len() >= MAX_TASKS && !peers.contains_key(task) {
            return None;
        }
        Some(peers.entry(task.to_owned()).or_default().clone())
    }
}

/// Values of a task that are waited for.
pub(crate) struct Awaiting(Option<Arc<PeerCounts>>, AtomicU64);

impl Awaiting {
    /// So many more.
    pub(crate) fn begin(&self, count: usize) {
        self.1.fetch_add(count as u64, Relaxed);
        if let Some(peer) = &self.0 {
            peer.waiting.fetch_add(count as u64, Relaxed);
        }
    }

    /// So many less.
    pub(crate) fn end(&self, count: usize) {
        self.1.fetch_sub(count as u64, Relaxed);
        if let Some(peer) = &self.0 {
            peer.waiting.fetch_sub(count as u64, Relaxed);
        }
    }
}

impl Drop for Awaiting {
    fn drop(&mut self) {
        if let Some(peer) = &self.0 {
            peer.waiting.fetch_sub(*self.1.get_mut(), Relaxed);
        }
    }
}

/// What goes to a peer.
pub(crate) struct Outgoing(Option<Arc<PeerCounts>>);

impl Outgoing {
    /// Tensors went.
    pub(crate) fn sent(&self, count: usize, bytes: usize) {
        if let Some(peer) = &self.0 {
            peer.tensors_sent.fetch_add(count as u64, Relaxed);
            peer.bytes_sent.fetch_add(bytes as u64, Relaxed);
        }
    }
}

/// A value that was asked for.
pub(crate) struct Asked(Option<Arc<PeerCounts>>);

impl Asked {
    /// It came.
    pub(crate) fn came(&self, bytes: usize) {
        if let Some(peer) = &self.0 {
            peer.tensors_received.fetch_add(1, Relaxed);
            peer.bytes_received.fetch_add(bytes as u64, Relaxed);
        }
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        if let Some(peer) = &self.0 {
            peer.waiting.fetch_sub(1, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_awaited_until_it_comes_or_is_given_up() {
        let traffic = Traffic::default();
        let shared = traffic.clone();
        let (first, second) = (shared.asks("/job:ps/task:0"), shared.asks("/job:ps/task:0"));
        assert_eq!(traffic.counts()[0].waiting, 2);
        first.came(40);
        drop((first, second));
        traffic.sent_tensor("/job:ps/task:0/device:CPU:0", 5);
        traffic.exchanged("/job:ps/task:0", 2, 3);
        let expected = PeerTraffic {
            task: "/job:ps/task:0".into(),
            bytes_sent: 7,
            bytes_received: 43,
            tensors_sent: 1,
            tensors_received: 1,
            waiting: 0,
        };
        assert_eq!(traffic.counts(), [expected]);
    }

    #[test]
    fn names_that_a_stranger_invents_are_bounded() {
        let traffic = Traffic::default();
        for i in 0..MAX_TASKS + 5 {
            traffic.sent_tensor(&format!("/job:x{i}/device:CPU:0"), 1);
        }
        assert_eq!(traffic.counts().len(), MAX_TASKS);
    }
}
