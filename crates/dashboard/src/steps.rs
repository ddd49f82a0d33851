//! The global step and its slope: what a training is measured by. Session runs are not: several
//! workers run for one step, or one run is no step at all.

use serde::Serialize;
use std::collections::VecDeque;

/// Over how long the slope is taken, in seconds.
const WINDOW: f64 = 10.0;
/// Points that are kept to tell at which step something happened: ten minutes.
const MAX_POINTS: usize = 600;

/// What the API says of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct StepShown {
    /// Nothing if no task holds a global step and no event file names one.
    pub(crate) value: Option<i64>,
    /// Its slope over the last seconds; 0 when it stands.
    pub(crate) per_second: f64,
    /// From the first step that was seen to the last, without what was done again.
    pub(crate) mean_per_second: f64,
    /// When it last moved, in seconds since 1970.
    pub(crate) moved: Option<f64>,
}

/// The global step over time.
#[derive(Default)]
pub(crate) struct GlobalStep {
    /// Time and step, oldest first.
    points: VecDeque<(f64, i64)>,
    /// Where the training was last set back, or began.
    since: f64,
    first: Option<(f64, i64)>,
    moved: Option<(f64, i64)>,
}

impl GlobalStep {
    /// Takes what was seen at a time. A step that is less than before is one that was restored.
    pub(crate) fn add(&mut self, time: f64, step: i64) {
        if let Some((last, before)) = self.points.back().copied() {
            // The clock of a machine may be set back.
            if time <= last {
                return;
            }
            if step < before {
                self.since = time;
            }
        }
        self.first.get_or_insert((time, step));
        if self.moved.is_none_or(|(_, before)| before != step) {
            self.moved = Some((time, step));
        }
        self.points.push_back((time, step));
        if self.points.len() > MAX_POINTS {
            self.points.pop_front();
        }
    }

    /// The step that was current at a time, if that is known.
    pub(crate) fn at(&self, time: f64) -> Option<i64> {
        let before = self.points.iter().rev().find(|(t, _)| *t <= time);
        before.map(|(_, step)| *step)
    }

    /// What is shown at a time.
    pub(crate) fn shown(&self, now: f64) -> StepShown {
        let recent = |(t, _): &&(f64, i64)| *t >= self.since && *t >= now - WINDOW;
        let begin = self.points.iter().find(recent).copied();
        let end = self.points.back().copied();
        let slope = |from: Option<(f64, i64)>, to: Option<(f64, i64)>| match (from, to) {
            (Some((t0, s0)), Some((t1, s1))) if t1 > t0 => (s1 - s0).max(0) as f64 / (t1 - t0),
            _ => 0.0,
        };
        StepShown {
            value: end.map(|(_, step)| step),
            per_second: slope(begin, end),
            mean_per_second: slope(self.first, self.moved),
            moved: self.moved.map(|(time, _)| time),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slope_is_that_of_the_last_seconds() {
        let mut steps = GlobalStep::default();
        assert_eq!(steps.shown(0.0), StepShown::default());
        for second in 0..100 {
            // Slow at first, then 50 steps a second.
            let step = if second < 60 {
                second
            } else {
                60 + (second - 60) * 50
            };
            steps.add(second as f64, step);
        }
        let shown = steps.shown(99.0);
        assert_eq!((shown.value, shown.per_second), (Some(2010), 50.0));
        assert_eq!(steps.at(30.5), Some(30));
        // It stands still: the slope goes to zero, the value stays.
        for second in 100..115 {
            steps.add(second as f64, 2010);
        }
        let shown = steps.shown(114.0);
        assert_eq!((shown.value, shown.per_second), (Some(2010), 0.0));
        assert_eq!(shown.moved, Some(99.0));
        assert!((shown.mean_per_second - 2010.0 / 99.0).abs() < 1e-9);
    }

    #[test]
    fn a_training_that_is_set_back_has_no_negative_slope() {
        let mut steps = GlobalStep::default();
        for (time, step) in [(0.0, 0), (1.0, 100), (2.0, 200), (5.0, 150), (6.0, 250)] {
            steps.add(time, step);
        }
        let shown = steps.shown(6.0);
        assert_eq!((shown.value, shown.per_second), (Some(250), 100.0));
    }
}
