//! When a process that failed is started again: a budget per process over a sliding window, with
//! growing pauses, and an eye for failures that repeat. Pure: time is an argument.

use crate::state::Exit;
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
    /// So many failures in a row that are alike, or come at once, are enough; 0 counts none.
    pub alike: u32,
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
            alike: 2,
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

/// A process that lived no longer than this has failed at once: a wrong import, a missing file.
const AT_ONCE: Duration = Duration::from_secs(5);
/// One that lived longer has done something: its next failure is another one.
const LONG: Duration = Duration::from_secs(120);

/// How a process failed.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) exit: Exit,
    /// The last thing that it printed.
    pub(crate) words: Option<String>,
    /// Whether it was made to go.
    pub(crate) is_victim: bool,
    /// How long it was there.
    pub(crate) lived: Duration,
}

/// Failures in a row that are alike.
#[derive(Clone, Debug, Default)]
pub(crate) struct Alike {
    last: Option<Fault>,
    count: u32,
}

impl Alike {
    /// Counts a failure; why another attempt would end the same way, if that is to be expected.
    pub(crate) fn count(&mut self, policy: &RestartPolicy, fault: Fault) -> Option<String> {
        // What ends a process from outside says nothing about the next one.
        let is_own = !fault.is_victim && !matches!(fault.exit, Exit::Signal(9 | 15));
        if !is_own || fault.lived > LONG {
            *self = Alike::default();
            return None;
        }
        let is_quick = |fault: &Fault| fault.lived <= AT_ONCE;
        let both_quick = self.last.as_ref().is_some_and(is_quick) && is_quick(&fault);
        let is_same = self.last.as_ref().is_some_and(|last| {
            last.exit == fault.exit
                && last.words.as_deref().map(gist) == fault.words.as_deref().map(gist)
        });
        self.count = match both_quick || is_same {
            true => self.count + 1,
            false => 1,
        };
        self.last = Some(fault);
        let enough = policy.alike > 0 && policy.limit > 0 && self.count >= policy.alike;
        enough.then(|| {
            let how = if is_same {
                "in the same way"
            } else {
                "at once"
            };
            let times = match self.count {
                2 => "twice".to_owned(),
                n => format!("{n} times"),
            };
            format!("it failed {times} {how}, and would again")
        })
    }
}

/// A line without its numbers: times, addresses and process ids differ from one attempt to the next.
fn gist(line: &str) -> String {
    line.chars().filter(|c| !c.is_ascii_digit()).collect()
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

    fn fault(seconds_lived: u64, exit: Exit, words: &str) -> Fault {
        Fault {
            exit,
            words: Some(words.to_owned()),
            is_victim: false,
            lived: seconds(seconds_lived),
        }
    }

    #[test]
    fn failures_that_are_alike_are_not_repeated_until_the_budget_is_spent() {
        let policy = RestartPolicy::default();
        let one = Exit::Code(1);
        let judged = |faults: &[Fault]| -> Vec<bool> {
            let mut alike = Alike::default();
            let judge = |f: &Fault| alike.count(&policy, f.clone()).is_some();
            faults.iter().map(judge).collect()
        };
        let lost = |n| fault(60, one, &format!("error 17:0{n} ps:0 is gone"));
        assert_eq!(judged(&[lost(1), lost(2)]), [false, true]);
        // Whatever it says, a program that twice does not get anywhere will not.
        let quick = [fault(1, one, "a"), fault(2, Exit::Code(3), "b")];
        assert_eq!(judged(&quick), [false, true]);
        let other = [
            fault(60, one, "a"),
            fault(60, one, "b"),
            fault(60, one, "a"),
        ];
        assert_eq!(judged(&other), [false; 3]);
        let worked_between = [lost(1), fault(600, one, "error"), lost(2)];
        assert_eq!(judged(&worked_between), [false; 3]);
        let killed = [fault(1, Exit::Signal(9), ""), fault(1, Exit::Signal(9), "")];
        assert_eq!(judged(&killed), [false; 2]);
        let said = |n| {
            let mut alike = Alike::default();
            let mut again = || alike.count(&policy, fault(n, one, "x"));
            again();
            again().unwrap()
        };
        assert_eq!(said(60), "it failed twice in the same way, and would again");
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
