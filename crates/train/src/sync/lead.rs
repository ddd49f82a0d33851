//! When a worker leads synchronous training, and what it must do when it begins to: pure, given what an election and the
//! servers say.
//!
//! ```text
//! watching ──elected in an epoch──► taking over ──claimed on the servers──► gathering
//!    ▲                                  │ a later epoch is claimed there        │
//!    └──────────────────────────────────┴── elected no longer, or refused ──────┘
//! ```
//!
//! The servers keep the highest epoch that each worker has claimed. An update is made only in the highest of all, so a
//! chief that was stopped and does not know that it was replaced makes none once its successor has claimed.

/// What a worker that may lead does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Look again later.
    Watch,
    /// Claim this epoch, and find out where training stands.
    TakeOver(i64),
    /// Gather gradients.
    Gather,
}

/// A worker's part in leading.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Lead {
    /// The epoch in which it gathers.
    term: Option<i64>,
    /// The epoch in which servers would make no update for it.
    refused: Option<i64>,
}

/// What servers know of chiefs when a worker takes over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Claims {
    /// The last chief, if it was another worker: its lease is over, so it may be gone.
    pub(super) former: Option<usize>,
    /// Whether there was a chief before, this worker or another. Then steps of its may still wait on the servers, and
    /// workers for their tokens.
    pub(super) had_chief: bool,
    highest: i64,
}

impl Lead {
    /// What to do, given the epoch in which this worker is elected now.
    pub(super) fn next(&mut self, elected: Option<i64>) -> Next {
        if self.term != elected {
            self.term = None;
        }
        match elected {
            None => Next::Watch,
            Some(epoch) if self.refused == Some(epoch) => Next::Watch,
            Some(_) if self.term.is_some() => Next::Gather,
            Some(epoch) => Next::TakeOver(epoch),
        }
    }

    /// It has claimed an epoch and knows where training stands.
    pub(super) fn took_over(&mut self, epoch: i64) {
        self.term = Some(epoch);
    }

    /// The servers make no update for it: a later epoch is claimed there.
    pub(super) fn refused(&mut self, epoch: i64) {
        (self.term, self.refused) = (None, Some(epoch));
    }

    /// What it knew was of a session that is lost.
    pub(super) fn begin_anew(&mut self) {
        *self = Lead::default();
    }

    /// The epoch in which it gathers.
    pub(super) fn term(&self) -> Option<i64> {
        self.term
    }
}

impl Claims {
    /// From the highest epoch of each worker; `worker` is the one that asks.
    pub(super) fn of(epochs: &[i64], worker: usize) -> Claims {
        let all = epochs.iter().enumerate();
        let (last, highest) = all
            .max_by_key(|(_, epoch)| **epoch)
            .map_or((worker, 0), |(last, epoch)| (last, *epoch));
        Claims {
            former: (highest > 0 && last != worker).then_some(last),
            had_chief: highest > 0,
            highest,
        }
    }

    /// The epoch to claim; none if a later one is claimed already. A chief without epochs, 0, which was appointed, leads
    /// in the last one's.
    pub(super) fn to_claim(&self, epoch: i64) -> Option<i64> {
        match epoch {
            0 => Some(self.highest),
            epoch => (epoch >= self.highest).then_some(epoch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_leads_while_it_is_elected_and_the_servers_know_no_later_chief() {
        let mut lead = Lead::default();
        assert_eq!(lead.next(None), Next::Watch);
        assert_eq!(lead.next(Some(3)), Next::TakeOver(3));
        lead.took_over(3);
        assert_eq!((lead.next(Some(3)), lead.term()), (Next::Gather, Some(3)));
        // Elected again without having been replaced: others may have led in between.
        assert_eq!(lead.next(Some(5)), Next::TakeOver(5));
        lead.refused(5);
        assert_eq!(lead.next(Some(5)), Next::Watch);
        assert_eq!(lead.next(None), Next::Watch);
        assert_eq!(lead.next(Some(7)), Next::TakeOver(7));
        lead.took_over(7);
        lead.begin_anew();
        assert_eq!(lead.next(Some(7)), Next::TakeOver(7));
    }

    #[test]
    fn claims_say_who_led_before() {
        let claims = Claims::of(&[0, 0, 0], 1);
        assert_eq!((claims.former, claims.had_chief), (None, false));
        assert_eq!([0, 1].map(|e| claims.to_claim(e)), [Some(0), Some(1)]);
        let claims = Claims::of(&[2, 0, 5], 1);
        assert_eq!((claims.former, claims.had_chief), (Some(2), true));
        assert_eq!([4, 6].map(|e| claims.to_claim(e)), [None, Some(6)]);
        // Appointed, on servers that had elected chiefs before.
        assert_eq!(claims.to_claim(0), Some(5));
        // On a new session of one's own.
        let claims = Claims::of(&[2, 5, 0], 1);
        assert_eq!((claims.former, claims.had_chief), (None, true));
        assert_eq!(claims.to_claim(5), Some(5));
    }
}
