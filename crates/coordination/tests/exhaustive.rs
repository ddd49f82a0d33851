//! Every order of events in a small election: two members, one register, requests and replies that
//! are late or lost, a member that is paused. A chief commits a checkpoint meanwhile.

use downpour_coordination::{Candidate, Record, Reply, Request, Version};
use downpour_sim::{World, explore};
use std::collections::BTreeMap;
use std::time::Duration;

/// So long is a lease. A member may look and renew every tick.
const LEASE: u32 = 2;
/// So long is looked on: two leases, and a margin.
const END: u32 = 5;
/// So many requests a member makes: enough to be elected, to renew, and to watch and take over.
const REQUESTS: u32 = 4;
/// So many requests or replies are lost.
const LOSSES: u32 = 1;
/// So many checkpoints a member commits while it is chief.
const COMMITS: u32 = 1;

const fn at(tick: u32) -> Duration {
    Duration::from_secs(tick as u64)
}

#[derive(Clone, Hash)]
struct Member {
    candidate: Candidate,
    /// On its way to the register, and whether its sender still waits.
    request: Option<(Request, bool)>,
    reply: Option<Reply>,
    /// How many more requests it makes; after them it is stopped.
    left: u32,
    /// What it wants to be committed, until it knows that it is.
    committing: Option<String>,
    commits: u32,
}

#[derive(Clone, Hash)]
struct Election {
    now: u32,
    members: Vec<Member>,
    register: (u64, Record),
    losses: u32,
    /// How many checkpoints a member commits.
    commits: u32,
    /// Whether it is an error that two held an office.
    checks_office: bool,
    /// Who held each epoch.
    held: BTreeMap<u64, usize>,
    /// How many checkpoints were ever committed, and of how many their chief knows it.
    committed: u32,
    known: u32,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Tick,
    /// A member looks what it wants, if it is its time.
    Poll(usize),
    Arrive(usize),
    Reply(usize),
    /// The sender hears nothing; what it sent may still arrive.
    GiveUp(usize),
    /// A chief has written a checkpoint.
    Commit(usize),
}

impl World for Election {
    type Event = Event;

    fn events(&self) -> Vec<Event> {
        let mut events = Vec::new();
        if self.now < END {
            events.push(Event::Tick);
        }
        for (i, member) in self.members.iter().enumerate() {
            let is_free = member.request.is_none() && member.reply.is_none() && member.left > 0;
            if is_free && member.candidate.clone().poll(at(self.now)).is_some() {
                events.push(Event::Poll(i));
            }
            let is_chief = member.candidate.epoch(at(self.now)).is_some();
            if is_free && is_chief && member.commits < self.commits {
                events.push(Event::Commit(i));
            }
            if let Some((_, is_awaited)) = member.request {
                events.push(Event::Arrive(i));
                if is_awaited && self.losses < LOSSES {
                    events.push(Event::GiveUp(i));
                }
            }
            if member.reply.is_some() {
                events.push(Event::Reply(i));
            }
        }
        events
    }

    fn apply(&mut self, event: &Event) -> Result<(), String> {
        let now = at(self.now);
        match *event {
            Event::Tick => self.now += 1,
            Event::Poll(i) => {
                let member = &mut self.members[i];
                member.left -= 1;
                member.request = member.candidate.poll(now).map(|r| (r, true));
            }
            Event::Arrive(i) => {
                let (version, record) = &mut self.register;
                let Some((request, is_awaited)) = self.members[i].request.take() else {
                    return Err("nothing was sent".to_owned());
                };
                let reply = match request {
                    Request::Read => Reply::Holds(Version(*version), record.clone()),
                    Request::Swap(expected, new) if expected == Version(*version) => {
                        if new.checkpoint != record.checkpoint {
                            let owner = (new.epoch, &new.holder);
                            if owner != (record.epoch, &record.holder) {
                                return Err(format!(
                                    "{new:?} commits a checkpoint in place of {record:?}"
                                ));
                            }
                            self.committed += 1;
                        }
                        *version += 1;
                        *record = new;
                        Reply::Swapped(Version(*version))
                    }
                    Request::Swap(..) => Reply::Conflict,
                };
                self.members[i].reply = is_awaited.then_some(reply);
            }
            Event::Reply(i) => {
                let member = &mut self.members[i];
                if let Some(reply) = member.reply.take() {
                    member.candidate.answered(reply, now);
                }
                let seen = member.candidate.checkpoint();
                if member.committing.is_some() && member.committing.as_deref() == seen {
                    member.committing = None;
                    self.known += 1;
                    if self.known > self.committed {
                        return Err(format!("{i} believes to have committed {seen:?}"));
                    }
                }
            }
            Event::Commit(i) => {
                let member = &mut self.members[i];
                member.commits += 1;
                let Some(epoch) = member.candidate.epoch(now) else {
                    return Err("no chief commits".to_owned());
                };
                let name = format!("{epoch}-{}", member.commits);
                if !member.candidate.commit(epoch, &name, now) {
                    return Err(format!("{i} may not commit in its own epoch {epoch}"));
                }
                member.committing = Some(name);
            }
            Event::GiveUp(i) => {
                self.losses += 1;
                let member = &mut self.members[i];
                member.candidate.answered(Reply::Unknown, now);
                member.request = member.request.take().map(|(r, _)| (r, false));
            }
        }
        if !self.checks_office {
            return Ok(());
        }
        for (i, member) in self.members.iter().enumerate() {
            let Some(epoch) = member.candidate.epoch(at(self.now)) else {
                continue;
            };
            let newest = self.held.last_key_value().map_or(0, |(epoch, _)| *epoch);
            let holder = *self.held.entry(epoch).or_insert(i);
            if holder != i {
                return Err(format!("{holder} and {i} both held epoch {epoch}"));
            }
            if epoch < newest {
                return Err(format!("{i} holds epoch {epoch} after {newest} began"));
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        let chiefs = self.members.iter().enumerate();
        let chiefs: Vec<_> = chiefs
            .filter_map(|(i, m)| Some((i, m.candidate.epoch(at(self.now))?)))
            .collect();
        match chiefs.len() {
            0 | 1 => Ok(()),
            _ => Err(format!("chiefs at {}: {chiefs:?}", self.now)),
        }
    }

    fn check_end(&self) -> Result<(), String> {
        // Who is never stopped before its requests are made has been elected, or has seen who was.
        match (
            self.register.1.epoch,
            self.members.iter().all(|m| m.left == 0),
        ) {
            (0, true) => Err("nobody was ever elected".to_owned()),
            _ => Ok(()),
        }
    }
}

fn election(losses: u32, commits: u32) -> Election {
    let member = |name| Member {
        candidate: Candidate::new(name, at(LEASE)),
        request: None,
        reply: None,
        left: REQUESTS,
        committing: None,
        commits: 0,
    };
    Election {
        now: 0,
        members: vec![member("a"), member("b")],
        register: (0, Record::default()),
        losses,
        commits,
        checks_office: true,
        held: BTreeMap::new(),
        committed: 0,
        known: 0,
    }
}

#[test]
fn no_order_of_events_makes_two_chiefs() {
    let seen = explore(election(0, 0), 3_000_000).unwrap();
    assert!(seen.states > 10_000 && seen.ends > 0, "{seen:?}");
}

#[test]
fn no_chief_commits_a_checkpoint_once_another_epoch_has_begun() {
    // Requests that are late are enough of a fault: what a chief sent before it was replaced arrives after.
    let seen = explore(election(LOSSES, COMMITS), 3_000_000).unwrap();
    assert!(seen.states > 10_000 && seen.ends > 0, "{seen:?}");
}

/// The explorer would see a commit that is not fenced.
#[test]
fn a_commit_that_is_written_without_the_version_is_found_out() {
    /// As [`Election`], but what is under way is made to fit the register that it finds.
    #[derive(Clone, Hash)]
    struct Unfenced(Election);

    impl World for Unfenced {
        type Event = Event;

        fn events(&self) -> Vec<Event> {
            self.0.events()
        }

        fn apply(&mut self, event: &Event) -> Result<(), String> {
            if let Event::Arrive(i) = *event {
                let now = Version(self.0.register.0);
                if let Some((Request::Swap(expected, _), _)) = &mut self.0.members[i].request {
                    *expected = now;
                }
            }
            self.0.apply(event)
        }

        fn check(&self) -> Result<(), String> {
            Ok(())
        }

        fn check_end(&self) -> Result<(), String> {
            Ok(())
        }
    }
    let mut start = election(LOSSES, COMMITS);
    // Only commits are looked at.
    start.checks_office = false;
    let found = explore(Unfenced(start), 3_000_000).unwrap_err();
    assert!(
        found.contains("commits a checkpoint in place of"),
        "{found}"
    );
}

/// The explorer would see two chiefs if the rules allowed them.
#[test]
fn a_chief_that_believes_longer_than_its_lease_is_found_out() {
    /// As [`Election`], but a chief believes for two ticks longer.
    #[derive(Clone, Hash)]
    struct Late(Election);

    impl World for Late {
        type Event = Event;

        fn events(&self) -> Vec<Event> {
            self.0.events()
        }

        fn apply(&mut self, event: &Event) -> Result<(), String> {
            self.0.apply(event)
        }

        fn check(&self) -> Result<(), String> {
            let believes = |m: &&Member| {
                m.candidate
                    .until()
                    .is_some_and(|u| at(self.0.now) < u + at(2))
            };
            match self.0.members.iter().filter(believes).count() {
                0 | 1 => Ok(()),
                _ => Err("two believe".to_owned()),
            }
        }

        fn check_end(&self) -> Result<(), String> {
            Ok(())
        }
    }
    let found = explore(Late(election(0, 0)), 3_000_000).unwrap_err();
    assert!(found.contains("two believe"), "{found}");
}
