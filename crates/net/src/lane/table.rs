//! Which lanes a task has to each peer, which of them it uses, and which waits hang on which, as a state machine: what
//! happened in, [`Effect`]s out. No I/O, no lock, no clock. `mod.rs` is its shell; every order of events between two
//! tasks is tried in `table/exhaustive_tests.rs`.
//!
//! A lane has two ends that learn of its end at different times, and a pair of tasks may have several: both may have
//! called at once, or one has given a lane up (silence, a cut network) and called again while the other still
//! holds the old one. Three rules keep the two ends together:
//!
//! - **Which is used.** Of several live lanes both ends use the one that the task with the greater name has called for.
//! - **What a call says.** A task calls only when it has no lane. So a call says that every lane before it is dead at the
//!   caller's end: those it has called for itself, by their numbers, and those of the other's that it had taken, by the
//!   highest number of them. The other end lets go of exactly those, and takes no lane that comes late.
//! - **What a wait hangs on.** A wait for a value hangs on the lane in use when it began, and fails with it; a wait
//!   without any lane fails when none comes. A value may yet be lost on a lane that its receiver has given up. So a wait
//!   that lasts is asked after: a sender that is done with the step has sent all that it will, and if that is still not
//!   here at the second answer, it is lost.

use std::collections::BTreeMap;

#[cfg(test)]
mod exhaustive_tests;

/// How a lane began.
#[derive(Clone, Debug, Hash)]
pub(super) struct Born {
    /// Whether this task called.
    pub(super) is_own: bool,
    /// Which call of the caller it was; later ones have higher numbers.
    pub(super) number: u64,
    /// Which life of the peer is at the other end.
    pub(super) incarnation: u64,
    /// What the peer said, if it called.
    pub(super) said: Option<Seen>,
}

/// The highest number of a peer's calls that were taken, and in which of its lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    pub(super) incarnation: u64,
    pub(super) number: u64,
}

/// What a task is about to say when it calls.
#[derive(Clone, Copy, Debug)]
pub(super) struct Calling {
    pub(super) number: u64,
    pub(super) seen: Option<Seen>,
}

/// What a peer knows of a step that runs on both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StepState {
    /// Nothing: it is yet to begin there, or long over.
    Unknown,
    /// It is under way.
    Running,
    /// It is over there.
    Over,
}

/// What the shell must now do.
#[derive(Clone, Debug)]
pub(super) enum Effect<L> {
    /// End a lane; it is no longer in the table.
    End(L),
    /// Fail a step's waits for values of `peer`.
    Fail { peer: String, step: u64, why: Why },
    /// Ask the peer at the other end what it knows of a step.
    Ask(L, u64),
}

/// Why a value will not come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Why {
    /// The lane it was waited for on has ended.
    LaneLost,
    /// No lane has come.
    NoLane,
    /// Its sender is done with the step.
    SenderDone,
}

pub(super) type Effects<L> = Vec<Effect<L>>;

/// There is no lane, and none is expected.
#[derive(Debug)]
pub(super) struct Lost;

/// Times of the shell's clock.
#[derive(Clone, Copy, Debug, Hash)]
pub(super) struct Patience {
    /// How long a wait lasts before it is asked after, and between answers.
    pub(super) ask: u64,
    /// How long a wait goes on without a lane, or with a sender that knows nothing of the step.
    pub(super) give_up: u64,
}

/// Peers that are remembered: a cluster's, not whatever strangers call themselves.
const MOST_PEERS: usize = 10_000;

/// Earlier lives of a peer that are remembered: a lane of theirs may come late.
const PAST_LIVES: usize = 4;

/// The machine. `L` is a lane, which it passes on without looking inside.
#[derive(Clone, Hash)]
pub(super) struct Table<L> {
    own: String,
    incarnation: u64,
    patience: Patience,
    names: BTreeMap<String, usize>,
    peers: Vec<Peer<L>>,
    free: Vec<usize>,
    waits: BTreeMap<u64, Wait>,
    next_wait: u64,
    next_call: u64,
}

#[derive(Clone, Hash)]
struct Peer<L> {
    name: String,
    lanes: Vec<Held<L>>,
    /// Whether its last lane has ended and it has not called since.
    is_lost: bool,
    seen: Option<Seen>,
    past: Vec<u64>,
    waits: usize,
}

#[derive(Clone, Hash)]
struct Held<L> {
    id: u64,
    lane: L,
    is_own: bool,
    number: u64,
    incarnation: u64,
}

#[derive(Clone, Hash)]
struct Wait {
    peer: usize,
    step: u64,
    /// The lane that was in use when it began.
    lane: Option<u64>,
    since: u64,
    /// When it was last asked after.
    asked: u64,
    /// Whether the sender has said that it does not run the step any more.
    is_over: bool,
}

impl<L: Clone> Table<L> {
    pub(super) fn new(own: &str, incarnation: u64, patience: Patience) -> Table<L> {
        Table {
            own: own.to_owned(),
            incarnation,
            patience,
            names: BTreeMap::new(),
            peers: Vec::new(),
            free: Vec::new(),
            waits: BTreeMap::new(),
            next_wait: 0,
            next_call: 0,
        }
    }

    fn peer(&self, name: &str) -> Option<&Peer<L>> {
        self.peers.get(*self.names.get(name)?)
    }

    fn slot(&mut self, name: &str) -> usize {
        if let Some(slot) = self.names.get(name) {
            return *slot;
        }
        let peer = Peer {
            name: name.to_owned(),
            lanes: Vec::new(),
            is_lost: false,
            seen: None,
            past: Vec::new(),
            waits: 0,
        };
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => self.peers.len(),
        };
        match self.peers.get_mut(slot) {
            Some(place) => *place = peer,
            None => self.peers.push(peer),
        }
        self.names.insert(name.to_owned(), slot);
        slot
    }

    /// Forgets a peer that nothing hangs on, if too many are known.
    fn tidy(&mut self, slot: usize) {
        let Some(peer) = self.peers.get(slot) else {
            return;
        };
        if self.names.len() > MOST_PEERS && peer.lanes.is_empty() && peer.waits == 0 {
            let name = peer.name.clone();
            if self.names.remove(&name).is_some() {
                self.free.push(slot);
            }
        }
    }

    /// Of several, the one that both ends choose.
    fn chosen<'a>(&self, peer: &'a Peer<L>) -> Option<&'a Held<L>> {
        let own_first = self.own > peer.name;
        peer.lanes
            .iter()
            .max_by_key(|l| (l.is_own == own_first, l.number))
    }

    /// The lane to use for a peer.
    pub(super) fn lane(&self, peer: &str) -> Option<L> {
        let held = self.chosen(self.peer(peer)?)?;
        Some(held.lane.clone())
    }

    /// The lane to a peer, in this life of it if that is known; else what to say when calling for one.
    pub(super) fn call(&mut self, peer: &str, life: Option<u64>) -> Result<L, Calling> {
        let known = self.peer(peer);
        let held = known.and_then(|p| self.chosen(p));
        if let Some(held) = held.filter(|l| life.is_none_or(|life| life == l.incarnation)) {
            return Ok(held.lane.clone());
        }
        let seen = known.and_then(|p| p.seen);
        self.next_call += 1;
        Err(Calling {
            number: self.next_call,
            seen,
        })
    }

    /// A peer calls. Known before it is answered: waits for its values may begin as soon as it has the answer,
    /// before the lane is there.
    pub(super) fn called(&mut self, peer: &str) {
        if let Some(slot) = self.names.get(peer)
            && let Some(peer) = self.peers.get_mut(*slot)
        {
            peer.is_lost = false;
        }
    }

    /// A lane is there; `id` is not that of any other, ever.
    pub(super) fn adopt(&mut self, peer: &str, born: &Born, (id, lane): (u64, L)) -> Effects<L> {
        let slot = self.slot(peer);
        let own_life = self.incarnation;
        let Some(peer) = self.peers.get_mut(slot) else {
            return Effects::new();
        };
        let is_older = |seen: &Seen| {
            !born.is_own && seen.incarnation == born.incarnation && seen.number >= born.number
        };
        if peer.past.contains(&born.incarnation) || peer.seen.as_ref().is_some_and(is_older) {
            // It was on its way while its caller gave it up and called again.
            return vec![Effect::End(lane)];
        }
        let is_dead = |held: &Held<L>| {
            let said = |s: &Seen| s.incarnation == own_life && held.number <= s.number;
            held.incarnation != born.incarnation
                || !born.is_own && (!held.is_own || born.said.as_ref().is_some_and(said))
        };
        let (dead, live): (Vec<_>, Vec<_>) = peer.lanes.drain(..).partition(is_dead);
        peer.lanes = live;
        for held in &dead {
            if held.incarnation != born.incarnation && !peer.past.contains(&held.incarnation) {
                peer.past.push(held.incarnation);
            }
        }
        if peer.past.len() > PAST_LIVES {
            peer.past.remove(0);
        }
        peer.lanes.push(Held {
            id,
            lane,
            is_own: born.is_own,
            number: born.number,
            incarnation: born.incarnation,
        });
        peer.is_lost = false;
        if !born.is_own {
            peer.seen = Some(Seen {
                incarnation: born.incarnation,
                number: born.number,
            });
        }
        let mut out = Effects::new();
        for held in dead {
            out.extend(self.fail(slot, Why::LaneLost, |w| w.lane == Some(held.id)));
            out.push(Effect::End(held.lane));
        }
        for wait in self.waits.values_mut() {
            if wait.peer == slot && wait.lane.is_none() {
                wait.lane = Some(id);
            }
        }
        out
    }

    /// A lane has come to its end.
    pub(super) fn ended(&mut self, peer: &str, id: u64) -> Effects<L> {
        let Some(slot) = self.names.get(peer).copied() else {
            return Effects::new();
        };
        let Some(peer) = self.peers.get_mut(slot) else {
            return Effects::new();
        };
        let before = peer.lanes.len();
        peer.lanes.retain(|l| l.id != id);
        if peer.lanes.len() == before {
            return Effects::new();
        }
        let is_last = peer.lanes.is_empty();
        peer.is_lost |= is_last;
        let out = self.fail(slot, Why::LaneLost, |w| is_last || w.lane == Some(id));
        self.tidy(slot);
        out
    }

    /// A peer gives no sign of life: none of its lanes is of use.
    pub(super) fn silent(&mut self, peer: &str) -> Effects<L> {
        let Some(slot) = self.names.get(peer).copied() else {
            return Effects::new();
        };
        let Some(peer) = self.peers.get_mut(slot) else {
            return Effects::new();
        };
        peer.is_lost = true;
        let lanes: Vec<L> = peer.lanes.drain(..).map(|l| l.lane).collect();
        let mut out = self.fail(slot, Why::LaneLost, |_| true);
        out.extend(lanes.into_iter().map(Effect::End));
        self.tidy(slot);
        out
    }

    /// Someone waits for a value of a peer. One that was never there is about to come: who sends makes the lane.
    pub(super) fn wait(
        &mut self,
        now: u64,
        peer: &str,
        step: u64,
    ) -> Result<(u64, Option<L>), Lost> {
        let slot = self.slot(peer);
        let Some(peer) = self.peers.get(slot) else {
            return Err(Lost);
        };
        let held = self.chosen(peer).map(|l| (l.id, l.lane.clone()));
        if held.is_none() && peer.is_lost {
            return Err(Lost);
        }
        let wait = Wait {
            peer: slot,
            step,
            lane: held.as_ref().map(|(id, _)| *id),
            since: now,
            asked: now,
            is_over: false,
        };
        self.next_wait += 1;
        self.waits.insert(self.next_wait, wait);
        if let Some(peer) = self.peers.get_mut(slot) {
            peer.waits += 1;
        }
        Ok((self.next_wait, held.map(|(_, lane)| lane)))
    }

    /// Whether a wait that nobody has ended here goes on.
    pub(super) fn is_waiting(&self, wait: u64) -> bool {
        self.waits.contains_key(&wait)
    }

    /// A wait is over, however it ended.
    pub(super) fn over(&mut self, wait: u64) {
        if let Some(wait) = self.waits.remove(&wait)
            && let Some(peer) = self.peers.get_mut(wait.peer)
        {
            peer.waits -= 1;
            self.tidy(wait.peer);
        }
    }

    /// Asks after waits that last, and ends those that have no lane.
    pub(super) fn look(&mut self, now: u64) -> Effects<L> {
        let mut out = Effects::new();
        if self.waits.is_empty() {
            return out;
        }
        let Patience { ask, give_up } = self.patience;
        let mut asked: Vec<(usize, u64)> = Vec::new();
        let mut hopeless: Vec<usize> = Vec::new();
        for wait in self.waits.values_mut() {
            if wait.lane.is_none() {
                if now.saturating_sub(wait.since) >= give_up {
                    hopeless.push(wait.peer);
                }
            } else if now.saturating_sub(wait.asked) >= ask {
                wait.asked = now;
                asked.push((wait.peer, wait.step));
            }
        }
        hopeless.dedup();
        for slot in hopeless {
            out.extend(self.fail(slot, Why::NoLane, |w| {
                w.lane.is_none() && now.saturating_sub(w.since) >= give_up
            }));
        }
        asked.sort_unstable();
        asked.dedup();
        for (slot, step) in asked {
            let lane = self.peers.get(slot).and_then(|p| self.chosen(p));
            out.extend(lane.map(|l| Effect::Ask(l.lane.clone(), step)));
        }
        out
    }

    /// A peer has answered that it does not run a step: it is over there, or nothing is known of it.
    pub(super) fn told(&mut self, now: u64, peer: &str, step: u64, is_over: bool) -> Effects<L> {
        let Some(slot) = self.names.get(peer).copied() else {
            return Effects::new();
        };
        let Patience { ask, give_up } = self.patience;
        let mut is_lost = false;
        for wait in self.waits.values_mut() {
            // One that began after the question is none of its business.
            if wait.peer != slot || wait.step != step || wait.asked == wait.since {
                continue;
            }
            // Of one that is not known the order to begin may be on its way.
            let patience = if is_over { 2 * ask } else { give_up };
            if is_over || now.saturating_sub(wait.since) >= patience {
                // What it sent before its answer may yet be on its way through here, or on another lane.
                is_lost |= wait.is_over && now.saturating_sub(wait.since) >= patience;
                wait.is_over = true;
            }
        }
        match is_lost {
            true => self.fail(slot, Why::SenderDone, |w| w.step == step),
            false => Effects::new(),
        }
    }

    fn fail(&mut self, slot: usize, why: Why, which: impl Fn(&Wait) -> bool) -> Effects<L> {
        let mut steps: Vec<u64> = Vec::new();
        self.waits.retain(|_, wait| {
            let goes = wait.peer == slot && which(wait);
            if goes {
                steps.push(wait.step);
            }
            !goes
        });
        let Some(peer) = self.peers.get_mut(slot) else {
            return Effects::new();
        };
        peer.waits -= steps.len();
        steps.sort_unstable();
        steps.dedup();
        let fail = |step| Effect::Fail {
            peer: peer.name.clone(),
            step,
            why,
        };
        steps.into_iter().map(fail).collect()
    }
}
