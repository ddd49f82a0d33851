//! Counting steps: started, ended, failed. Additions only, so that a step pays next to nothing.

use downpour_wire::control::StepCounts;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counts of something that starts and ends.
#[derive(Default)]
pub struct StepCounter {
    started: AtomicU64,
    ended: AtomicU64,
    failed: AtomicU64,
}

impl StepCounter {
    /// One starts; [`StepCounter::ended`] follows.
    pub fn started(&self) {
        self.started.fetch_add(1, Relaxed);
    }

    /// One ended.
    pub fn ended(&self, is_failure: bool) {
        if is_failure {
            self.failed.fetch_add(1, Relaxed);
        }
        self.ended.fetch_add(1, Relaxed);
    }

    /// One starts, and ends when what is returned is dropped.
    pub fn begin(&self) -> CountedStep<'_> {
        self.started();
        CountedStep(self, true)
    }

    /// All of it.
    pub fn counts(&self) -> StepCounts {
        // In this order one that ends meanwhile is not seen to end without a start.
        let (failed, ended) = (self.failed.load(Relaxed), self.ended.load(Relaxed));
        let started = self.started.load(Relaxed).max(ended);
        StepCounts {
            started,
            ended,
            failed: failed.min(ended),
        }
    }
}

/// A step under way; one that is dropped has failed, unless it was said to have succeeded.
pub struct CountedStep<'a>(&'a StepCounter, bool);

impl CountedStep<'_> {
    /// It succeeded.
    pub fn succeeded(mut self) {
        self.1 = false;
    }
}

impl Drop for CountedStep<'_> {
    fn drop(&mut self) {
        self.0.ended(self.1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_is_given_up_has_failed() {
        let counter = StepCounter::default();
        counter.begin().succeeded();
        drop(counter.begin());
        let _running = counter.begin();
        let counts = counter.counts();
        assert_eq!((counts.started, counts.ended, counts.failed), (3, 2, 1));
    }
}
