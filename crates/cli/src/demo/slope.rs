//! How fast the global step grows: its slope over the last seconds, from what workers say. Not the
//! sum of the workers' own speeds: several of them may make one step together.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Over how long.
const WINDOW: Duration = Duration::from_secs(5);
/// When nothing was said for so long, the training stands.
const SILENCE: Duration = Duration::from_secs(2);

/// Steps over time.
#[derive(Clone, Default)]
pub(super) struct Slope {
    points: VecDeque<(Instant, i64)>,
    first: Option<(Instant, i64)>,
}

impl Slope {
    /// Takes a step that was reached. One that is less than another before says nothing new:
    /// workers speak in any order.
    pub(super) fn add(&mut self, at: Instant, step: i64) {
        self.first.get_or_insert((at, step));
        if self.points.back().is_some_and(|(_, last)| *last > step) {
            return;
        }
        self.points.push_back((at, step));
        while let Some((oldest, _)) = self.points.front()
            && at.saturating_duration_since(*oldest) > WINDOW
            && self.points.len() > 2
        {
            self.points.pop_front();
        }
    }

    /// The training was set back: what was before is no part of the slope.
    pub(super) fn restart(&mut self) {
        self.points.clear();
    }

    /// Steps a second, now.
    pub(super) fn per_second(&self, now: Instant) -> f64 {
        let (Some((begin, from)), Some((end, to))) = (self.points.front(), self.points.back())
        else {
            return 0.0;
        };
        let silence = now.saturating_duration_since(*end);
        // Steps that take long are told of as seldom.
        let usual = (*end - *begin) / u32::try_from(self.points.len()).unwrap_or(u32::MAX);
        let end = match silence > SILENCE.max(3 * usual) {
            true => now,
            false => *end,
        };
        over(*from, *to, end.saturating_duration_since(*begin))
    }

    /// Steps a second from the first to the last that was heard of.
    pub(super) fn mean(&self) -> f64 {
        match (self.first, self.points.back()) {
            (Some((begin, from)), Some((end, to))) => {
                over(from, *to, end.saturating_duration_since(begin))
            }
            _ => 0.0,
        }
    }
}

fn over(from: i64, to: i64, time: Duration) -> f64 {
    match time.is_zero() {
        true => 0.0,
        false => (to - from).max(0) as f64 / time.as_secs_f64(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_slope_whoever_speaks() {
        let begin = Instant::now();
        let at = |millis: u64| begin + Duration::from_millis(millis);
        let mut slope = Slope::default();
        for i in 0..100u64 {
            // Two workers of one synchronous training, the second a little behind.
            slope.add(at(200 * i), 20 * i as i64);
            slope.add(at(200 * i + 10), 20 * i as i64 - 1);
        }
        assert!((slope.per_second(at(19_900)) - 100.0).abs() < 1.0);
        assert!((slope.mean() - 100.0).abs() < 1.0);
        // Nothing is heard for ten seconds.
        assert!(slope.per_second(at(29_900)) < 40.0);
        slope.restart();
        assert_eq!(slope.per_second(at(30_000)), 0.0);
        slope.add(at(31_000), 500);
        slope.add(at(32_000), 600);
        assert_eq!(slope.per_second(at(32_000)), 100.0);
    }
}
