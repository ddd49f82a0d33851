//! Who has used this task: every session by the master that opened it, and every master that ever
//! did. Kept beside the sessions themselves for whoever decides when the task is done.

use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The sessions of a task, by their masters.
#[derive(Default)]
pub(crate) struct AttendanceList(Mutex<Entries>);

#[derive(Default)]
struct Entries {
    /// Handle → master and its incarnation.
    open: HashMap<String, (String, u64)>,
    /// Masters that opened a session at some time.
    seen: BTreeSet<String>,
    changes: u64,
}

/// Most masters that are remembered: tasks of a cluster, not whatever a request names.
const MAX_SEEN: usize = 100_000;

/// Who attends at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attendance {
    /// Every master that ever opened a session, with the handles of its open ones.
    pub masters: BTreeMap<String, BTreeSet<String>>,
    /// Grows with every session that is opened or closed.
    pub changes: u64,
}

impl AttendanceList {
    /// A session was opened. What a former life of its master left behind is over.
    pub(crate) fn enter(&self, handle: &str, master: &str, incarnation: u64) {
        let mut entries = self.0.lock();
        entries.changes += 1;
        if !master.is_empty() {
            let open = &mut entries.open;
            open.retain(|_, (name, life)| name != master || *life == incarnation);
        }
        let value = (master.to_owned(), incarnation);
        entries.open.insert(handle.to_owned(), value);
        if entries.seen.len() < MAX_SEEN {
            entries.seen.insert(master.to_owned());
        }
    }

    /// A session was closed; unknown ones are fine.
    pub(crate) fn leave(&self, handle: &str) {
        let mut entries = self.0.lock();
        if entries.open.remove(handle).is_some() {
            entries.changes += 1;
        }
    }

    pub(crate) fn attendance(&self) -> Attendance {
        let entries = self.0.lock();
        let mut masters: BTreeMap<String, BTreeSet<String>> = entries
            .seen
            .iter()
            .map(|name| (name.clone(), BTreeSet::new()))
            .collect();
        for (handle, (master, _)) in &entries.open {
            let handles = masters.entry(master.clone()).or_default();
            handles.insert(handle.clone());
        }
        Attendance {
            masters,
            changes: entries.changes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_come_and_go() {
        let attendance = AttendanceList::default();
        attendance.enter("a", "w0", 1);
        attendance.enter("b", "w0", 1);
        attendance.enter("c", "w1", 5);
        attendance.leave("c");
        attendance.leave("unknown");
        let handles = |master: &str| {
            let now = attendance.attendance();
            let handles: Vec<String> = now.masters[master].iter().cloned().collect();
            handles.join(" ")
        };
        assert_eq!((handles("w0"), handles("w1")), ("a b".into(), "".into()));
        assert_eq!(attendance.attendance().changes, 4);
        // Another life of the same master: the old sessions will never be closed.
        attendance.enter("d", "w0", 2);
        assert_eq!(handles("w0"), "d");
    }
}
