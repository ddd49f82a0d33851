//! Where a training keeps the table of its replicas: the names of variables of one scope, by which
//! a task knows it again when it reports. `train::staleness` builds it, `worker` reads it.
//!
//! Each column is an int64 vector with one number for each replica, but [`VARIABLES`], which is text,
//! and [`CLASSES`], which has a row of [`CLASSES_FROM`] for each. Below it, what reports of several tasks
//! say together of staleness: for `inspect cluster` and the dashboard alike.

use crate::control::{StalenessReport, TaskReport};
use std::collections::BTreeMap;

/// Steps of each replica that the parameter servers have; [`PARKED`] of one that takes no part.
pub const CLOCKS: &str = "replica_clocks";
/// Updates of each replica.
pub const UPDATES: &str = "replica_updates";
/// Their staleness, added up.
pub const TOTAL: &str = "replica_staleness";
/// The largest.
pub const WORST: &str = "replica_worst_staleness";
/// How often each class of staleness was seen.
pub const CLASSES: &str = "replica_staleness_classes";
/// The names of the variables that each update changes.
pub const VARIABLES: &str = "replica_variables";

/// The clock of a replica that is absent, or waits to begin.
pub const PARKED: i64 = i64::MAX;

/// The least staleness of each class in which a replica's updates are counted: those of the tasks' own
/// measurements, so that both can be added up.
pub const CLASSES_FROM: [u64; 20] = [
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 32, 64, 128,
];

/// Whoever updates variables, and how stale that was.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Writer {
    /// The task whose master ran the steps; for a replica, where its table is.
    pub task: String,
    /// The training and the number, if it is a replica with a table.
    pub replica: Option<(String, usize)>,
    /// The replica's steps that the parameter servers have; nothing if it takes no part.
    pub clock: Option<u64>,
    /// How stale.
    pub staleness: StalenessReport,
}

/// Whoever updated variables of these tasks: masters, each on all tasks together, then replicas.
pub fn writers<'a>(reports: impl IntoIterator<Item = &'a TaskReport>) -> Vec<Writer> {
    let mut masters: BTreeMap<&str, StalenessReport> = BTreeMap::new();
    let mut replicas = Vec::new();
    for report in reports {
        for writer in &report.writers {
            let sum = masters.entry(&writer.task).or_default();
            sum.add(writer.staleness.as_ref());
        }
        for training in &report.trainings {
            for (number, replica) in training.replicas.iter().enumerate() {
                replicas.push(Writer {
                    task: report.task.clone(),
                    replica: Some((training.name.clone(), number)),
                    clock: replica.takes_part.then_some(replica.clock),
                    staleness: replica.staleness.clone().unwrap_or_default(),
                });
            }
        }
    }
    let masters = masters.into_iter().map(|(task, staleness)| Writer {
        task: task.to_owned(),
        staleness,
        ..Writer::default()
    });
    masters.chain(replicas).collect()
}

/// How stale the updates of variables were that replicas with a table train, by the variables' names:
/// a replica's update changes all of them, whichever task has them.
pub fn trained<'a>(
    reports: impl IntoIterator<Item = &'a TaskReport>,
) -> BTreeMap<&'a str, StalenessReport> {
    let mut all: BTreeMap<&str, StalenessReport> = BTreeMap::new();
    for training in reports.into_iter().flat_map(|r| &r.trainings) {
        let mut sum = StalenessReport::default();
        for replica in &training.replicas {
            sum.add(replica.staleness.as_ref());
        }
        for name in &training.variables {
            all.entry(name).or_default().add(Some(&sum));
        }
    }
    all
}

impl StalenessReport {
    /// The mean; nothing if nothing was measured.
    pub fn mean(&self) -> Option<f64> {
        (self.updates > 0).then(|| self.total as f64 / self.updates as f64)
    }

    fn add(&mut self, other: Option<&StalenessReport>) {
        let Some(other) = other else {
            return;
        };
        self.updates = self.updates.saturating_add(other.updates);
        self.total = self.total.saturating_add(other.total);
        self.worst = self.worst.max(other.worst);
        if self.classes.is_empty() {
            self.classes.clone_from(&other.classes);
        } else if self.classes.len() == other.classes.len() {
            for (sum, n) in self.classes.iter_mut().zip(&other.classes) {
                *sum = sum.saturating_add(*n);
            }
        } else {
            // Of tasks of another version: what cannot be added is not known.
            self.classes.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{ReplicaReport, TrainingReport, WriterReport};

    fn staleness(updates: u64, total: u64, worst: u64) -> StalenessReport {
        StalenessReport {
            updates,
            total,
            worst,
            classes: vec![updates],
        }
    }

    #[test]
    fn who_writes_on_several_tasks_is_one_and_replicas_come_after() {
        let task = |name: &str, worst| TaskReport {
            task: name.to_owned(),
            writers: vec![WriterReport {
                task: "w0".to_owned(),
                staleness: Some(staleness(2, 3, worst)),
            }],
            ..Default::default()
        };
        let mut first = task("ps0", 3);
        let replica = |takes_part, clock| ReplicaReport {
            takes_part,
            clock,
            staleness: Some(staleness(4, 6, 5)),
        };
        first.trainings.push(TrainingReport {
            name: "downpour".to_owned(),
            variables: vec!["a".to_owned(), "b".to_owned()],
            replicas: vec![replica(true, 9), replica(false, 0)],
            ..Default::default()
        });
        let reports = [first, task("ps1", 2)];
        let all = writers(&reports);
        assert_eq!(all.len(), 3);
        assert_eq!(
            all[0].staleness,
            StalenessReport {
                updates: 4,
                total: 6,
                worst: 3,
                classes: vec![4]
            }
        );
        assert_eq!(all[0].staleness.mean(), Some(1.5));
        assert_eq!((all[1].clock, all[2].clock), (Some(9), None));
        assert_eq!(all[2].replica, Some(("downpour".to_owned(), 1)));
        let trained = trained(&reports);
        assert_eq!(trained.keys().copied().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!((trained["b"].updates, trained["b"].worst), (8, 5));
        assert_eq!(StalenessReport::default().mean(), None);
    }
}
