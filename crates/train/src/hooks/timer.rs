//! When something that happens every so often is due.

use crate::Every;
use std::time::Instant;

/// Remembers when something happened last.
#[derive(Debug)]
pub(crate) struct Timer {
    every: Every,
    last: Option<(i64, Instant)>,
}

impl Timer {
    pub(crate) fn new(every: Every) -> Timer {
        Timer { every, last: None }
    }

    /// Whether it is due at this step; never twice at the same.
    pub(crate) fn is_due(&self, step: i64, now: Instant) -> bool {
        match (self.every, self.last) {
            (Every::Never, _) => false,
            (_, None) => true,
            (_, Some((last, _))) if last == step => false,
            // Training went on from a checkpoint: what counts is how far it is from there.
            (Every::Steps(_), Some((last, _))) if step < last => true,
            (Every::Steps(n), Some((last, _))) => step >= last + n,
            (Every::Time(time), Some((_, last))) => now.duration_since(last) >= time,
        }
    }

    /// It has happened; how many steps and seconds after the last time, unless training went back since.
    pub(crate) fn happened(&mut self, step: i64, now: Instant) -> Option<(i64, f64)> {
        let last = self.last.replace((step, now));
        last.filter(|(s, _)| *s <= step)
            .map(|(s, t)| (step - s, now.duration_since(t).as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn due_first_then_after_steps_or_time_and_never_twice_at_a_step() {
        let start = Instant::now();
        let mut steps = Timer::new(Every::Steps(10));
        assert!(steps.is_due(3, start));
        assert_eq!(steps.happened(3, start), None);
        assert!(!steps.is_due(12, start) && steps.is_due(13, start));
        let mut time = Timer::new(Every::Time(Duration::from_secs(2)));
        time.happened(0, start);
        let later = start + Duration::from_secs(2);
        assert!(!time.is_due(1, start) && time.is_due(1, later) && !time.is_due(0, later));
        assert_eq!(time.happened(4, later), Some((4, 2.0)));
        // Back at an earlier step, from a checkpoint.
        assert!(steps.is_due(2, later));
        assert_eq!(steps.happened(2, later), None);
        assert!(!steps.is_due(3, later) && steps.is_due(12, later));
        assert!(!Timer::new(Every::Never).is_due(1, start));
    }
}
