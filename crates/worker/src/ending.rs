//! When a task's work is done: the rule behind `--exit-when-done`. Pure: who is here and who
//! answers is handed in, with the time; nothing is asked, nothing ends here.
//!
//! A task is done when every master it waits for has opened a session here at some time, no session
//! is open any more, and that has stayed so for a while. The while must outlast the pauses of
//! clients that are not done: TensorFlow's close a session and open another 30 s later when they
//! wait for the chief's variables, and after a failure they close it before they recover.
//! A master that dies leaves its sessions open, as does one whose farewell was lost. They count
//! until their master has not known them for longer, in which it could have been restarted.
//!
//! ```text
//! waiting ──all seen, none open──► quiet ──grace over──► done
//!    ▲                               │
//!    └──────── any session ──────────┘
//! ```

use crate::attendance::Attendance;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long to wait for what.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// How long no session must have been open.
    pub grace: Duration,
    /// How long a session's master must not have known it before it counts as closed.
    pub lost: Duration,
}

/// Decides when a task is done. Times are since any fixed moment.
pub struct Ending {
    patience: Patience,
    /// Masters that must have been here.
    wanted: BTreeSet<String>,
    /// Sessions that their masters do not know, or whose masters do not answer, and since when.
    stray: BTreeMap<String, Duration>,
    changes: u64,
    quiet_since: Option<Duration>,
}

/// What is the case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// These masters have not been here yet.
    Unseen(Vec<String>),
    /// These have sessions open, or something is under way (then it may be nobody).
    Busy(Vec<String>),
    /// No session is open, not for long enough yet.
    Quiet,
    /// Done.
    Done,
}

impl Ending {
    /// Waits for these masters, `/job:J/replica:0/task:N`.
    pub fn new(wanted: BTreeSet<String>, patience: Patience) -> Ending {
        Ending {
            patience,
            wanted,
            stray: BTreeMap::new(),
            changes: 0,
            quiet_since: None,
        }
    }

    /// Takes note of whether the master of a session knows it.
    pub fn answered(&mut self, now: Duration, handle: &str, is_known: bool) {
        match is_known {
            true => drop(self.stray.remove(handle)),
            false => drop(self.stray.entry(handle.to_owned()).or_insert(now)),
        }
    }

    /// Decides. `busy` says that something is under way that may yet become a session.
    pub fn look(&mut self, now: Duration, attendance: &Attendance, busy: bool) -> Verdict {
        let changed =
            std::mem::replace(&mut self.changes, attendance.changes) != attendance.changes;
        let is_open = |handle: &String| attendance.masters.values().any(|h| h.contains(handle));
        self.stray.retain(|handle, _| is_open(handle));
        let is_lost = |handle: &String| {
            let since = self.stray.get(handle);
            since.is_some_and(|t| now.saturating_sub(*t) >= self.patience.lost)
        };
        let open: Vec<String> = attendance
            .masters
            .iter()
            .filter(|(_, handles)| !handles.iter().all(&is_lost))
            .map(|(master, _)| master.clone())
            .collect();
        if busy || !open.is_empty() {
            self.quiet_since = None;
            return Verdict::Busy(open);
        }
        let unseen: Vec<String> = self
            .wanted
            .iter()
            .filter(|m| !attendance.masters.contains_key(*m))
            .cloned()
            .collect();
        if !unseen.is_empty() {
            self.quiet_since = None;
            return Verdict::Unseen(unseen);
        }
        if changed {
            // A session that came and went between two looks.
            self.quiet_since = None;
        }
        let since = *self.quiet_since.get_or_insert(now);
        match now.saturating_sub(since) >= self.patience.grace {
            true => Verdict::Done,
            false => Verdict::Quiet,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attendance::AttendanceList;

    const W0: &str = "/job:worker/replica:0/task:0";
    const W1: &str = "/job:worker/replica:0/task:1";

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    struct Test {
        attendance: AttendanceList,
        ending: Ending,
    }

    impl Test {
        fn new() -> Test {
            let patience = Patience {
                grace: at(40),
                lost: at(120),
            };
            let wanted = [W0, W1].map(str::to_owned).into();
            Test {
                attendance: AttendanceList::default(),
                ending: Ending::new(wanted, patience),
            }
        }

        fn look(&mut self, seconds: u64) -> Verdict {
            let attendance = self.attendance.attendance();
            self.ending.look(at(seconds), &attendance, false)
        }

        fn knows(&mut self, seconds: u64, handle: &str, is_known: bool) {
            self.ending.answered(at(seconds), handle, is_known);
        }
    }

    #[test]
    fn done_when_all_have_been_here_and_stay_away() {
        let mut test = Test::new();
        assert_eq!(test.look(0), Verdict::Unseen(vec![W0.into(), W1.into()]));
        test.attendance.enter("a", W0, 1);
        assert_eq!(test.look(1), Verdict::Busy(vec![W0.into()]));
        test.attendance.leave("a");
        // The other has not begun: it may be slow to start.
        assert_eq!(test.look(1000), Verdict::Unseen(vec![W1.into()]));
        test.attendance.enter("b", W1, 2);
        assert_eq!(test.look(1001), Verdict::Busy(vec![W1.into()]));
        test.attendance.leave("b");
        assert_eq!(test.look(1002), Verdict::Quiet);
        assert_eq!(test.look(1041), Verdict::Quiet);
        assert_eq!(test.look(1042), Verdict::Done);
    }

    #[test]
    fn a_session_that_is_made_again_starts_the_wait_again() {
        let mut test = Test::new();
        for (handle, master) in [("a", W0), ("b", W1)] {
            test.attendance.enter(handle, master, 1);
            test.attendance.leave(handle);
        }
        assert_eq!(test.look(0), Verdict::Quiet);
        // As a worker does that waits for the chief's variables: open, not ready, close, 30 s.
        test.attendance.enter("c", W1, 1);
        assert_eq!(test.look(30), Verdict::Busy(vec![W1.into()]));
        test.attendance.leave("c");
        assert_eq!(test.look(31), Verdict::Quiet);
        // And one so short that nobody looked meanwhile.
        test.attendance.enter("d", W1, 1);
        test.attendance.leave("d");
        assert_eq!(test.look(61), Verdict::Quiet);
        assert_eq!(test.look(100), Verdict::Quiet);
        assert_eq!(test.look(101), Verdict::Done);
    }

    #[test]
    fn something_under_way_is_not_quiet() {
        let mut test = Test::new();
        for (handle, master) in [("a", W0), ("b", W1)] {
            test.attendance.enter(handle, master, 1);
            test.attendance.leave(handle);
        }
        assert_eq!(test.look(0), Verdict::Quiet);
        let attendance = test.attendance.attendance();
        assert_eq!(
            test.ending.look(at(39), &attendance, true),
            Verdict::Busy(Vec::new())
        );
        assert_eq!(test.look(40), Verdict::Quiet);
        assert_eq!(test.look(80), Verdict::Done);
    }

    #[test]
    fn a_master_that_died_counts_as_gone_only_after_long() {
        let mut test = Test::new();
        test.attendance.enter("a", W0, 1);
        test.attendance.enter("b", W1, 1);
        test.attendance.leave("b");
        test.knows(10, "a", true);
        test.knows(20, "a", false);
        test.knows(60, "a", false);
        assert_eq!(test.look(139), Verdict::Busy(vec![W0.into()]));
        assert_eq!(test.look(140), Verdict::Quiet);
        assert_eq!(test.look(180), Verdict::Done);
    }

    #[test]
    fn one_that_comes_back_in_time_is_not_gone() {
        let mut test = Test::new();
        test.attendance.enter("a", W0, 1);
        test.attendance.enter("b", W1, 1);
        test.attendance.leave("b");
        test.knows(0, "a", false);
        // It was only cut off: the session goes on.
        test.knows(100, "a", true);
        test.knows(110, "a", false);
        assert_eq!(test.look(229), Verdict::Busy(vec![W0.into()]));
        // Restarted, and its client has come again.
        test.attendance.enter("c", W0, 2);
        test.knows(225, "c", true);
        assert_eq!(test.look(1000), Verdict::Busy(vec![W0.into()]));
        test.attendance.leave("c");
        assert_eq!(test.look(1001), Verdict::Quiet);
    }

    #[test]
    fn one_lost_session_does_not_hide_another() {
        let mut test = Test::new();
        for (handle, master) in [("a", W0), ("b", W0), ("c", W1)] {
            test.attendance.enter(handle, master, 1);
        }
        test.attendance.leave("c");
        test.knows(0, "a", false);
        test.knows(0, "b", true);
        assert_eq!(test.look(500), Verdict::Busy(vec![W0.into()]));
        test.attendance.leave("b");
        assert_eq!(test.look(501), Verdict::Quiet);
        assert_eq!(test.look(541), Verdict::Done);
    }

    #[test]
    fn sessions_of_others_count_too() {
        let mut test = Test::new();
        for (handle, master) in [("a", W0), ("b", W1)] {
            test.attendance.enter(handle, master, 1);
            test.attendance.leave(handle);
        }
        test.attendance.enter("c", "", 0);
        assert_eq!(test.look(100), Verdict::Busy(vec![String::new()]));
        test.attendance.leave("c");
        assert_eq!(test.look(101), Verdict::Quiet);
    }
}
