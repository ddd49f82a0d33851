//! What each task did per second over the last minutes: one row a second, a bounded number of
//! them, older ones thinned out so that a long job is still seen as a whole.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// Rows that are kept; when there are more, every other one of the older half goes.
const MAX_ROWS: usize = 900;

/// One moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Row {
    /// Grows by one with every row that was ever added.
    pub(crate) id: u64,
    /// Seconds since 1970.
    pub(crate) time: f64,
    /// The global step, and its slope.
    pub(crate) step: Option<i64>,
    pub(crate) steps_per_second: f64,
    /// Session runs: a value per task, in their order; nothing for one that did not answer.
    pub(crate) runs: Vec<Option<f32>>,
    /// Processors that it kept busy.
    pub(crate) cpu: Vec<Option<f32>>,
    /// Variables' updates.
    pub(crate) updates: Vec<Option<f32>>,
    /// Bytes that arrived.
    pub(crate) received: Vec<Option<f32>>,
    /// Bytes of memory.
    pub(crate) memory: Vec<Option<u64>>,
}

/// The rows.
#[derive(Default)]
pub(crate) struct Samples {
    rows: VecDeque<Row>,
    next: u64,
}

impl Samples {
    /// Adds a row; its id is set here.
    pub(crate) fn add(&mut self, mut row: Row) {
        row.id = self.next;
        self.next += 1;
        self.rows.push_back(row);
        if self.rows.len() > MAX_ROWS {
            let half = self.rows.len() / 2;
            let mut place = 0;
            self.rows.retain(|_| {
                place += 1;
                place > half || place % 2 == 1
            });
        }
    }

    /// Rows from `id` on.
    pub(crate) fn since(&self, id: u64) -> Vec<&Row> {
        self.rows.iter().filter(|row| row.id >= id).collect()
    }

    /// The id of the next row.
    pub(crate) fn next(&self) -> u64 {
        self.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_job_is_kept_as_a_whole_in_bounded_room() {
        let mut samples = Samples::default();
        for i in 0..10 * MAX_ROWS {
            samples.add(Row {
                id: 0,
                time: i as f64,
                step: None,
                steps_per_second: 0.0,
                runs: vec![],
                cpu: vec![],
                updates: vec![],
                received: vec![],
                memory: vec![],
            });
        }
        let rows = samples.since(0);
        assert!(rows.len() <= MAX_ROWS);
        assert_eq!(rows[0].time, 0.0);
        assert_eq!(samples.since(samples.next() - 3).len(), 3);
        assert!(rows.windows(2).all(|w| w[0].id < w[1].id));
    }
}
