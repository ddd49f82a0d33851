//! Sessions that nobody will close: their client went away without a word. Pure: what is the case
//! is handed in with the time, what to close comes out.
//!
//! A client may lose its connection and go on over another, so a session outlives its connection for
//! as long as its lease says; being used renews it.

use std::collections::HashMap;
use std::time::Duration;

/// A session as it is found.
#[derive(Clone, Debug)]
pub(crate) struct Sight {
    /// Its handle.
    pub(crate) handle: String,
    /// How often it has been used so far.
    pub(crate) uses: u64,
    /// Whether the connection it came over is there, or a call is under way.
    pub(crate) is_held: bool,
}

/// Sessions that may be left alone at once; beyond, the ones longest alone go, whatever their lease.
/// Clients that restart often would otherwise fill the task's memory within one lease.
const MAX_ALONE: usize = 64;

/// Since when each session has been left alone. Times are since any fixed moment.
#[derive(Default)]
pub(crate) struct Leases {
    alone: HashMap<String, (u64, Duration)>,
}

impl Leases {
    /// Returns the sessions that have been left alone for `lease`, or of too many the longest.
    pub(crate) fn look(&mut self, now: Duration, lease: Duration, seen: &[Sight]) -> Vec<String> {
        let mut alone = HashMap::new();
        let mut over = Vec::new();
        for session in seen.iter().filter(|s| !s.is_held) {
            let since = match self.alone.get(&session.handle) {
                Some((uses, since)) if *uses == session.uses => *since,
                _ => now,
            };
            if now.saturating_sub(since) >= lease {
                over.push(session.handle.clone());
            }
            alone.insert(session.handle.clone(), (session.uses, since));
        }
        let excess = (alone.len() - over.len()).saturating_sub(MAX_ALONE);
        if excess > 0 {
            let mut young: Vec<(Duration, &String)> = alone
                .iter()
                .filter(|(handle, _)| !over.contains(handle))
                .map(|(handle, (_, since))| (*since, handle))
                .collect();
            young.sort();
            over.extend(young.into_iter().take(excess).map(|(_, h)| h.clone()));
        }
        self.alone = alone;
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(leases: &mut Leases, seconds: u64, uses: u64, is_held: bool) -> bool {
        let seen = Sight {
            handle: "s".into(),
            uses,
            is_held,
        };
        let (now, lease) = (Duration::from_secs(seconds), Duration::from_secs(60));
        !leases.look(now, lease, &[seen]).is_empty()
    }

    #[test]
    fn a_session_ends_when_it_was_left_alone_for_its_lease() {
        let mut leases = Leases::default();
        assert!(!look(&mut leases, 0, 1, true));
        assert!(!look(&mut leases, 500, 1, false));
        assert!(!look(&mut leases, 559, 1, false));
        assert!(look(&mut leases, 560, 1, false));
    }

    #[test]
    fn of_too_many_the_longest_alone_end_early() {
        let mut leases = Leases::default();
        let (lease, mut seen) = (Duration::from_secs(1000), Vec::new());
        for i in 0..MAX_ALONE + 3 {
            seen.push(Sight {
                handle: format!("{i:04}"),
                uses: 1,
                is_held: false,
            });
            let over = leases.look(Duration::from_secs(i as u64), lease, &seen);
            let Some(first) = i.checked_sub(MAX_ALONE) else {
                assert!(over.is_empty());
                continue;
            };
            assert_eq!(over, [format!("{first:04}")]);
            seen.remove(0);
        }
    }

    #[test]
    fn a_use_or_a_connection_renews_the_lease() {
        let mut leases = Leases::default();
        assert!(!look(&mut leases, 0, 1, false));
        assert!(!look(&mut leases, 50, 2, false));
        assert!(!look(&mut leases, 109, 2, false));
        assert!(!look(&mut leases, 109, 2, true));
        assert!(!look(&mut leases, 110, 2, false));
        assert!(look(&mut leases, 170, 2, false));
        // What is gone is forgotten.
        leases.look(Duration::from_secs(171), Duration::from_secs(60), &[]);
        assert!(!look(&mut leases, 300, 2, false));
    }
}
