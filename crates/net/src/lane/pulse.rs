//! When a peer counts as lost: pure, times in nanoseconds of the shell's clock.
//!
//! A peer that is waited for and silent is asked for a sign of life. Its answer may be slow for two reasons that are no
//! loss: the question is still on its way, behind what was sent before on a slow link, and then the other side's system
//! acknowledges more and more of it; or this task itself did not run and could not hear.
//!
//! ```text
//! heard ──silent for 1/8──► asked ──more was acknowledged──► asked, from now on
//!   ▲                         │ anything came: heard
//!   └─────────────────────────┘ nothing for 5/8: lost
//! ```
//! Looks come every 1/16. So a loss is noticed within the whole limit: 1/8 + 5/8 and three looks.

use std::sync::atomic::{AtomicU64, Ordering};

/// What is known of one peer's silence.
pub(super) struct Pulse {
    heard: AtomicU64,
    /// When a sign of life was asked for, or the way to the peer was last seen to work since; 0: not asked.
    asked: AtomicU64,
    /// Bytes that the other side's system had acknowledged then, and with how many it has the question: what is acknowledged
    /// beyond says nothing of the peer.
    acked: AtomicU64,
    mark: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Fine,
    /// Ask for a sign of life.
    Ask,
    Lost,
}

/// How often to look, as a part of the limit.
pub(super) const LOOKS: u64 = 16;

impl Pulse {
    pub(super) fn new(now: u64) -> Pulse {
        Pulse {
            heard: AtomicU64::new(now),
            asked: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            mark: AtomicU64::new(u64::MAX),
        }
    }

    /// Something came.
    pub(super) fn heard(&self, now: u64) {
        self.heard.store(now, Ordering::Relaxed);
        self.asked.store(0, Ordering::Relaxed);
    }

    /// The question ends after so many bytes.
    pub(super) fn asked_until(&self, mark: u64) {
        self.mark.store(mark, Ordering::Relaxed);
    }

    /// When something last came.
    pub(super) fn last(&self) -> u64 {
        self.heard.load(Ordering::Relaxed)
    }

    /// Decides about a peer that is waited for; `acked` bytes have been acknowledged so far. `was_away` says that this task
    /// did not look for long.
    pub(super) fn look(&self, now: u64, limit: u64, acked: u64, was_away: bool) -> Verdict {
        let asked = self.asked.load(Ordering::Relaxed);
        if asked == 0 {
            if now.saturating_sub(self.last()) <= limit / 8 {
                return Verdict::Fine;
            }
            self.asked.store(now.max(1), Ordering::Relaxed);
            self.acked.store(acked, Ordering::Relaxed);
            self.asked_until(u64::MAX);
            return Verdict::Ask;
        }
        let acked = acked.min(self.mark.load(Ordering::Relaxed));
        if self.acked.swap(acked, Ordering::Relaxed) < acked || was_away {
            self.asked.store(now.max(1), Ordering::Relaxed);
            return Verdict::Fine;
        }
        match now.saturating_sub(asked) > limit / 8 * 5 {
            true => Verdict::Lost,
            false => Verdict::Fine,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1600;

    /// Looks every sixteenth of the limit; when the peer was asked and when it was lost.
    fn watch(pulse: &Pulse, from: u64, acked: impl Fn(u64) -> u64) -> (Option<u64>, Option<u64>) {
        let mut asked = None;
        for now in (from..20 * LIMIT).step_by(100) {
            match pulse.look(now, LIMIT, acked(now), false) {
                Verdict::Ask => asked = asked.or(Some(now)),
                Verdict::Lost => return (asked, Some(now)),
                Verdict::Fine => {}
            }
        }
        (asked, None)
    }

    #[test]
    fn a_silent_peer_is_lost_within_the_limit_whether_its_system_answers_or_not() {
        // Cut off: nothing is acknowledged.
        let (asked, lost) = watch(&Pulse::new(0), 0, |_| 7);
        assert_eq!(asked, Some(300));
        assert!(lost.unwrap() <= LIMIT, "{lost:?}");
        // Stopped: its system takes the question.
        let (_, lost) = watch(&Pulse::new(0), 0, |now| u64::from(now > 300));
        assert!(lost.unwrap() <= LIMIT, "{lost:?}");
        // And whatever else it is sent.
        let pulse = Pulse::new(0);
        assert_eq!(pulse.look(300, LIMIT, 5, false), Verdict::Ask);
        pulse.asked_until(7);
        let (_, lost) = watch(&pulse, 400, |now| now);
        assert!(lost.unwrap() <= LIMIT, "{lost:?}");
        // Waited for only long after it last said something: it gets its time.
        let (_, lost) = watch(&Pulse::new(0), 5 * LIMIT, |_| 7);
        assert!(lost.unwrap() > 5 * LIMIT + LIMIT / 8 * 5, "{lost:?}");
    }

    #[test]
    fn a_slow_link_is_no_loss_as_long_as_it_carries_something() {
        let slow = |now: u64| now.min(8 * LIMIT) / 500;
        let (asked, lost) = watch(&Pulse::new(0), 0, slow);
        assert!(asked.is_some());
        assert!(lost.unwrap() > 8 * LIMIT, "{lost:?}");
    }

    #[test]
    fn who_did_not_listen_does_not_judge() {
        let pulse = Pulse::new(0);
        assert_eq!(pulse.look(300, LIMIT, 7, false), Verdict::Ask);
        assert_eq!(pulse.look(9000, LIMIT, 7, true), Verdict::Fine);
        assert_eq!(pulse.look(9900, LIMIT, 7, false), Verdict::Fine);
        assert_eq!(pulse.look(10_100, LIMIT, 7, false), Verdict::Lost);
        pulse.heard(10_200);
        assert_eq!(pulse.look(10_300, LIMIT, 7, false), Verdict::Fine);
    }
}
