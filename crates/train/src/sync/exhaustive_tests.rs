//! Every order of events while the lead of synchronous training passes from one worker to another: the rules of `lead`,
//! and around them the servers' claims, words, tokens and waiting steps as `parts` and `chief` use them. A chief that is
//! no longer elected may still do what it had decided to do before, at any time. A chief's worker may be killed.

use super::lead::{Claims, Lead, Next};
use downpour_sim::{World, explore};

const WORKERS: usize = 2;
/// So many updates are made.
const UPDATES: i64 = 2;
/// So often a chief is elected.
const ELECTIONS: i64 = 2;
/// A word that means nothing.
const NOBODY: usize = usize::MAX;

/// What a chief has decided to do next on the servers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Call {
    ReadClaims(i64),
    Claim(i64, bool),
    /// Ends steps that wait.
    Wake(i64, bool),
    ReadStep(i64, bool),
    /// Gives a token of this step to all.
    Give(i64, i64),
    /// Waits for words of all of these workers and makes the update.
    Gate(i64),
}

#[derive(Clone, Hash)]
struct Chief {
    lead: Lead,
    elected: Option<i64>,
    call: Option<Call>,
    /// The step that it gathers.
    step: i64,
    is_alive: bool,
}

/// A step on the servers that waits for words, or has them and makes its update.
#[derive(Clone, Debug, Hash)]
struct Gate {
    chief: usize,
    epoch: i64,
    least: i64,
    workers: Vec<usize>,
    words: Vec<(usize, i64)>,
    is_open: bool,
}

#[derive(Clone, Hash)]
struct Training {
    chiefs: Vec<Chief>,
    /// The step of each worker's gradients, once it computes; none while it waits for a token.
    computing: Vec<Option<i64>>,
    elections: i64,
    may_kill: bool,
    /// Whether the servers look at the claims.
    is_fenced: bool,
    claims: Vec<i64>,
    step: i64,
    ready: Vec<(usize, i64)>,
    tokens: Vec<Vec<i64>>,
    gates: Vec<Gate>,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// Another worker is elected; the last chief is elected no longer.
    Elect(usize),
    /// The process of a worker ends, and what it waits for on the servers.
    Kill(usize),
    /// A chief looks what to do.
    Decide(usize),
    /// What it decided happens.
    Call(usize),
    Push(usize),
    Token(usize),
    /// A waiting step takes a word.
    Take(usize),
    /// A step whose words have come makes its update.
    Update(usize),
    /// Nothing has happened for long: the chief wakes its step, and gives tokens again.
    Look(usize),
}

impl Training {
    fn alive(&self) -> Vec<usize> {
        (0..WORKERS).filter(|w| self.chiefs[*w].is_alive).collect()
    }

    /// All that can happen soon.
    fn soon(&self) -> Vec<Event> {
        let mut events = Vec::new();
        for i in 0..WORKERS {
            let chief = &self.chiefs[i];
            if chief.is_alive && self.elections < ELECTIONS && chief.elected.is_none() {
                events.push(Event::Elect(i));
            }
            if chief.is_alive
                && self.may_kill
                && self.elections < ELECTIONS
                && chief.elected.is_some()
            {
                events.push(Event::Kill(i));
            }
            let waits = self.gates.iter().any(|gate| gate.chief == i);
            let next = chief.lead.clone().next(chief.elected);
            let is_done = next == Next::Gather && chief.step >= UPDATES;
            if chief.is_alive && chief.call.is_none() && !waits && next != Next::Watch && !is_done {
                events.push(Event::Decide(i));
            }
            if chief.call.is_some() {
                events.push(Event::Call(i));
            }
            if chief.is_alive && self.computing[i].is_some_and(|step| step < UPDATES) {
                events.push(Event::Push(i));
            }
            if chief.is_alive && self.computing[i].is_none() && !self.tokens[i].is_empty() {
                events.push(Event::Token(i));
            }
        }
        // Words go to who has waited longest.
        if let Some(first) = self.gates.iter().position(|gate| !gate.is_open)
            && !self.ready.is_empty()
        {
            events.push(Event::Take(first));
        }
        let open = self
            .gates
            .iter()
            .enumerate()
            .filter(|(_, gate)| gate.is_open);
        events.extend(open.map(|(i, _)| Event::Update(i)));
        events
    }

    fn call(&mut self, i: usize, call: Call) {
        match call {
            Call::ReadClaims(epoch) => {
                let claims = Claims::of(&self.claims, i);
                match claims.to_claim(epoch).is_some() {
                    true => self.chiefs[i].call = Some(Call::Claim(epoch, claims.had_chief)),
                    false => self.chiefs[i].lead.refused(epoch),
                }
            }
            Call::Claim(epoch, had_chief) => {
                self.claims[i] = self.claims[i].max(epoch);
                self.chiefs[i].call = Some(match had_chief {
                    true => Call::Wake(epoch, had_chief),
                    false => Call::ReadStep(epoch, had_chief),
                });
            }
            Call::Wake(epoch, had_chief) => {
                self.ready.extend([(NOBODY, -1); WORKERS]);
                self.chiefs[i].call = Some(Call::ReadStep(epoch, had_chief));
            }
            Call::ReadStep(epoch, had_chief) => {
                let step = self.step;
                self.chiefs[i].lead.took_over(epoch);
                self.chiefs[i].step = step;
                let gives = step > 0 || had_chief;
                self.chiefs[i].call = gives.then_some(Call::Give(epoch, step));
            }
            Call::Give(_, step) => {
                for worker in self.alive() {
                    self.tokens[worker].push(step);
                }
            }
            Call::Gate(epoch) => self.gates.push(Gate {
                chief: i,
                epoch,
                least: self.chiefs[i].step,
                workers: self.alive(),
                words: Vec::new(),
                is_open: false,
            }),
        }
    }

    /// A waiting step has taken as many words as it waits for.
    fn judge(&mut self, at: usize) -> Result<(), String> {
        let gate = &self.gates[at];
        let newest = |w: &usize| {
            let of = gate.words.iter().filter(|(worker, _)| worker == w);
            of.map(|(_, step)| *step).max().unwrap_or(i64::MIN)
        };
        let all_came = gate.workers.iter().all(|w| newest(w) >= gate.least);
        let highest = self.claims.iter().copied().max().unwrap_or(0);
        if all_came && (gate.epoch == highest || !self.is_fenced) {
            let epoch = gate.epoch;
            self.gates[at].is_open = true;
            return match epoch < highest {
                true => Err(format!("epoch {epoch} begins an update after {highest}")),
                false => Ok(()),
            };
        }
        // Its words are lost, but to the chief.
        let gate = self.gates.remove(at);
        let chief = &mut self.chiefs[gate.chief];
        if all_came && chief.lead.term() == Some(gate.epoch) {
            chief.lead.refused(gate.epoch);
        }
        Ok(())
    }
}

impl World for Training {
    type Event = Event;

    fn events(&self) -> Vec<Event> {
        let soon = self.soon();
        if !soon.is_empty() || self.step >= UPDATES {
            return soon;
        }
        let leads = |i: &usize| {
            let chief = &self.chiefs[*i];
            chief.is_alive && chief.lead.clone().next(chief.elected) == Next::Gather
        };
        (0..WORKERS).filter(leads).map(Event::Look).collect()
    }

    fn apply(&mut self, event: &Event) -> Result<(), String> {
        match *event {
            Event::Elect(i) => {
                self.elections += 1;
                for chief in &mut self.chiefs {
                    chief.elected = None;
                }
                self.chiefs[i].elected = Some(self.elections);
            }
            Event::Kill(i) => {
                self.may_kill = false;
                let chief = &mut self.chiefs[i];
                (chief.is_alive, chief.elected, chief.call) = (false, None, None);
                self.computing[i] = None;
                self.gates.retain(|gate| gate.chief != i || gate.is_open);
            }
            Event::Decide(i) => {
                let chief = &mut self.chiefs[i];
                chief.call = match chief.lead.next(chief.elected) {
                    Next::Watch => None,
                    Next::TakeOver(epoch) => Some(Call::ReadClaims(epoch)),
                    Next::Gather => chief.lead.term().map(Call::Gate),
                };
            }
            Event::Call(i) => {
                if let Some(call) = self.chiefs[i].call.take() {
                    self.call(i, call);
                }
            }
            Event::Push(i) => {
                if let Some(step) = self.computing[i].take() {
                    self.ready.push((i, step));
                }
            }
            Event::Token(i) => {
                // The newest counts.
                self.computing[i] = self.tokens[i].pop();
                self.tokens[i].clear();
            }
            Event::Take(at) => {
                let word = self.ready.remove(0);
                self.gates[at].words.push(word);
                if self.gates[at].words.len() >= self.gates[at].workers.len() {
                    self.judge(at)?;
                }
            }
            Event::Update(at) => {
                let gate = self.gates.remove(at);
                self.step += 1;
                for &worker in &gate.workers {
                    self.tokens[worker].push(self.step);
                }
                self.chiefs[gate.chief].step = self.step;
            }
            Event::Look(i) => {
                self.gates.retain(|gate| gate.chief != i);
                let step = self.chiefs[i].step.max(self.step);
                self.chiefs[i].step = step;
                for worker in self.alive() {
                    self.tokens[worker].push(step);
                }
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        Ok(())
    }

    fn check_end(&self) -> Result<(), String> {
        match self.step >= UPDATES {
            true => Ok(()),
            false => Err(format!("nobody goes on after step {}", self.step)),
        }
    }
}

fn training(may_kill: bool) -> Training {
    let chief = || Chief {
        lead: Lead::default(),
        elected: None,
        call: None,
        step: 0,
        is_alive: true,
    };
    Training {
        chiefs: (0..WORKERS).map(|_| chief()).collect(),
        computing: vec![Some(0); WORKERS],
        elections: 0,
        may_kill,
        is_fenced: true,
        claims: vec![0; WORKERS],
        step: 0,
        ready: Vec::new(),
        tokens: vec![Vec::new(); WORKERS],
        gates: Vec::new(),
    }
}

#[test]
fn however_the_lead_passes_all_updates_are_made_and_no_earlier_chief_begins_one_after_a_later() {
    let seen = explore(training(false), 2_000_000).unwrap();
    assert!(seen.states > 1_000 && seen.ends > 0, "{seen:?}");
}

#[test]
fn a_killed_chief_holds_nobody_up() {
    let seen = explore(training(true), 2_000_000).unwrap();
    assert!(seen.states > 1_000 && seen.ends > 0, "{seen:?}");
}

#[test]
fn without_the_claims_an_earlier_chief_would_begin_an_update_after_a_later() {
    let mut unfenced = training(false);
    unfenced.is_fenced = false;
    let found = explore(unfenced, 2_000_000).unwrap_err();
    assert!(found.contains("begins an update after"), "{found}");
}
