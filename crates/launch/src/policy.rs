//! When a process that failed is started again: a budget per process over a sliding window, with
//! growing pauses. Pure: time is an argument.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::Duration;

/// How often, and how soon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RestartPolicy {
    /// Restarts of one process within `window`; 0 never restarts.
    pub limit: u32,
    /// Failures longer ago than this are forgotten.
    #[serde(with = "crate::time")]
    pub window: Duration,
    /// Pause before the first restart; doubles with each further one within `window`.
    #[serde(with = "crate::time")]
    pub backoff: Duration,
    /// Longest pause.
    #[serde(with = "crate::time")]
    pub backoff_max: Duration,
    /// Exit codes after which another attempt would end the same way.
    pub final_codes: Vec<i32>,
}

impl Default for RestartPolicy {
    fn default() -> RestartPolicy {
        RestartPolicy {
            limit: 5,
            window: Duration::from_secs(600),
            backoff: Duration::from_millis(500),
            backoff_max: Duration::from_secs(30),
            // Wrong usage; and what shells say for programs that are not there or not executable.
            final_codes: vec![2, 126, 127],
        }
    }
}

/// The failures of one process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures {
    recent: VecDeque<Duration>,
}

impl Failures {
    /// Counts a failure; the pause before the next start, or `None` when the budget is spent.
    pub(crate) fn count(&mut self, policy: &RestartPolicy, now: Duration) -> Option<Duration> {
        while let Some(first) = self.recent.front()
            && now.saturating_sub(*first) > policy.window
        {
            self.recent.pop_front();
        }
        if self.recent.len() >= policy.limit as usize {
            return None;
        }
        let doublings = u32::try_from(self.recent.len()).unwrap_or(u32::MAX).min(30);
        self.recent.push_back(now);
        let pause = policy.backoff.saturating_mul(1 << doublings);
        Some(pause.min(policy.backoff_max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    #[test]
    fn pauses_double_up_to_the_longest_until_the_budget_is_spent() {
        let policy = RestartPolicy {
            limit: 4,
            backoff: seconds(1),
            backoff_max: seconds(5),
            ..RestartPolicy::default()
        };
        let mut failures = Failures::default();
        let pauses: Vec<_> = (0..5)
            .map(|i| failures.count(&policy, seconds(i)))
            .collect();
        let want = [Some(1), Some(2), Some(4), Some(5), None];
        assert_eq!(pauses, want.map(|p| p.map(seconds)));
    }

    #[test]
    fn old_failures_are_forgotten() {
        let policy = RestartPolicy {
            limit: 1,
            window: seconds(60),
            ..RestartPolicy::default()
        };
        let mut failures = Failures::default();
        assert!(failures.count(&policy, seconds(0)).is_some());
        assert!(failures.count(&policy, seconds(60)).is_none());
        assert!(failures.count(&policy, seconds(61)).is_some());
    }

    #[test]
    fn a_budget_of_none_never_restarts() {
        let policy = RestartPolicy {
            limit: 0,
            ..RestartPolicy::default()
        };
        assert_eq!(Failures::default().count(&policy, seconds(0)), None);
    }
}
