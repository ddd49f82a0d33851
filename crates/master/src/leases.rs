//! Sessions that nobody will close: their client went away without a word. Pure: what is the case
//! is handed in with the time, what to close comes out.
//!
//! A client may lose its connection and go on over another, so a session outlives its connection for
//! as long as its lease says; being used renews it. A client whose process has ended goes on over none: its system closes
//! the connection, soon after it was used. gRPC closes one too that nobody has used for half an hour, and a network
//! that fails closes none. So a connection that was closed by its client shortly after a call ([`Presence::has_left`]) leaves its
//! session [`LEFT`] to be used over another; if it is, the client lives, and its session has the whole lease from then on.
//!
//! [`Presence::has_left`]: downpour_net::Presence::has_left

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
    /// Whether its client has closed the connection it came over, soon after it used it.
    pub(crate) has_left: bool,
}

/// How long a session of a client that has left waits for it to come back over another connection.
pub(crate) const LEFT: Duration = Duration::from_secs(10);

/// Sessions that may be left alone at once; beyond, the ones longest alone go, whatever their lease.
/// Clients that restart often would otherwise fill the task's memory within one lease.
const MAX_ALONE: usize = 64;

/// Since when each session has been left alone. Times are since any fixed moment.
#[derive(Default)]
pub(crate) struct Leases {
    alone: HashMap<String, Alone>,
}

#[derive(Clone, Copy)]
struct Alone {
    uses: u64,
    since: Duration,
    /// Whether it has been used since its connection ended.
    came_back: bool,
}

impl Leases {
    /// Returns the sessions that have been left alone for `lease`, or of too many the longest.
    pub(crate) fn look(&mut self, now: Duration, lease: Duration, seen: &[Sight]) -> Vec<String> {
        let mut alone: HashMap<String, Alone> = HashMap::new();
        let mut held: HashMap<String, Alone> = HashMap::new();
        let mut over = Vec::new();
        for session in seen {
            if session.is_held {
                // A call under way is a use over another connection, if its own is gone.
                if let Some(known) = self.alone.get(&session.handle)
                    && session.has_left
                {
                    let came_back = known.came_back || known.uses != session.uses;
                    let (uses, since) = (session.uses, now);
                    held.insert(
                        session.handle.clone(),
                        Alone {
                            uses,
                            since,
                            came_back,
                        },
                    );
                }
                continue;
            }
            let known = self.alone.get(&session.handle).copied();
            let state = match known {
                Some(known) if known.uses == session.uses => known,
                _ => Alone {
                    uses: session.uses,
                    since: now,
                    came_back: known.is_some(),
                },
            };
            let has_left = session.has_left && !state.came_back;
            let lease = if has_left { lease.min(LEFT) } else { lease };
            if now.saturating_sub(state.since) >= lease {
                over.push(session.handle.clone());
            }
            alone.insert(session.handle.clone(), state);
        }
        let excess = (alone.len() - over.len()).saturating_sub(MAX_ALONE);
        if excess > 0 {
            let mut young: Vec<(Duration, &String)> = alone
                .iter()
                .filter(|(handle, _)| !over.contains(handle))
                .map(|(handle, state)| (state.since, handle))
                .collect();
            young.sort();
            over.extend(young.into_iter().take(excess).map(|(_, h)| h.clone()));
        }
        alone.extend(held);
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
            has_left: false,
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
    fn a_session_whose_client_has_left_ends_soon_unless_it_comes_back() {
        let mut leases = Leases::default();
        let (lease, at) = (Duration::from_secs(1000), Duration::from_secs);
        let seen = |uses, is_held| {
            [Sight {
                handle: "s".into(),
                uses,
                is_held,
                has_left: true,
            }]
        };
        assert!(leases.look(at(0), lease, &seen(1, false)).is_empty());
        assert!(leases.look(at(9), lease, &seen(1, false)).is_empty());
        assert_eq!(leases.look(at(10), lease, &seen(1, false)), ["s"]);
        // One that uses it over another connection has the whole lease, also after its calls.
        let mut leases = Leases::default();
        assert!(leases.look(at(0), lease, &seen(1, false)).is_empty());
        assert!(leases.look(at(5), lease, &seen(2, false)).is_empty());
        assert!(leases.look(at(6), lease, &seen(3, true)).is_empty());
        assert!(leases.look(at(7), lease, &seen(3, false)).is_empty());
        assert!(leases.look(at(900), lease, &seen(3, false)).is_empty());
        assert_eq!(leases.look(at(1007), lease, &seen(3, false)), ["s"]);
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
                has_left: false,
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
