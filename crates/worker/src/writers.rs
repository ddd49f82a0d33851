//! How stale the updates of each master's steps were on this task. A session takes its master's counter
//! when it is made; a step adds to it without a lock.

use downpour_runtime::Staleness;
use downpour_wire::control::WriterReport;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Most masters that are told apart; whoever comes later is counted together, without a name.
const MAX_WRITERS: usize = 1000;

/// The counters, by the name of the master's task.
#[derive(Default)]
pub(crate) struct Writers(Mutex<BTreeMap<String, Arc<Staleness>>>);

impl Writers {
    /// The counter of a master; one without a name is that of the task itself.
    pub(crate) fn of(&self, master: &str, own: &str) -> Arc<Staleness> {
        let name = if master.is_empty() { own } else { master };
        let mut all = self.0.lock();
        let name = match all.len() < MAX_WRITERS || all.contains_key(name) {
            true => name,
            false => "",
        };
        all.entry(name.to_owned()).or_default().clone()
    }

    /// Those whose updates were measured.
    pub(crate) fn report(&self) -> Vec<WriterReport> {
        let all = self.0.lock();
        let measured = all.iter().map(|(task, s)| (task, s.facts()));
        let measured = measured.filter(|(_, facts)| facts.updates() > 0);
        measured
            .map(|(task, facts)| WriterReport {
                task: task.clone(),
                staleness: Some(crate::report::staleness(&facts, true)),
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masters_are_told_apart_and_their_number_is_bounded() {
        let writers = Writers::default();
        writers.of("a", "own").note(3);
        writers.of("a", "own").note(0);
        writers.of("", "own").note(1);
        writers.of("silent", "own");
        let report = writers.report();
        let seen = report.iter().map(|w| {
            let s = w.staleness.clone().unwrap();
            (w.task.as_str(), s.updates, s.total, s.worst)
        });
        assert_eq!(seen.collect::<Vec<_>>(), [("a", 2, 3, 3), ("own", 1, 1, 1)]);
        for i in 0..2 * MAX_WRITERS {
            writers.of(&format!("m{i}"), "own").note(0);
        }
        assert!(writers.report().len() <= MAX_WRITERS + 1);
        assert_eq!(writers.of("a", "own").facts().updates(), 2);
    }
}
