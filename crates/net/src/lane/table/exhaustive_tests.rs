//! Two tasks and their lanes under every order of a bounded set of events: both may call at any time, either may give the
//! other up, each end of a lane learns of its end when it likes, messages arrive when they like or are lost with
//! their lane. One task sends a value in a step, the other waits for it.

use super::*;
use downpour_sim::{World, explore};
use std::collections::VecDeque;

const NAMES: [&str; 2] = ["a", "b"];

/// Which of the two sends; the other waits.
const SENDER: usize = 1;
const RECEIVER: usize = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Frame {
    Value(u64),
    Ask(u64),
    Told(u64, bool),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum End {
    /// The task does not use it yet.
    NotYet,
    Held,
    Gone,
}

/// A connection.
#[derive(Clone, Hash)]
struct Wire {
    caller: usize,
    number: u64,
    said: Option<Seen>,
    /// Lives of both tasks when it was made.
    lives: [u64; 2],
    is_welcome: bool,
    ends: [End; 2],
    /// What is on its way to each.
    to: [VecDeque<Frame>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Part {
    Unknown,
    Running,
    Over,
}

/// How the wait of a step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Outcome {
    NotYet,
    Waits(u64),
    Came,
    Failed,
}

#[derive(Clone, Debug)]
enum Happens {
    Call(usize),
    /// A call arrives, is answered, and its caller uses the lane.
    Hello(usize),
    Go(usize),
    /// The other end uses it too, or has waited for that too long.
    Take(usize),
    Refuse(usize),
    /// A task notices that its peer is silent.
    Silent(usize),
    Restart(usize),
    Deliver(usize, usize),
    /// An end learns that the other is gone; what was on its way is lost.
    Reset(usize, usize),
    Begin(u64),
    Send(u64),
    Wait(u64),
    Look,
}

#[derive(Clone, Hash)]
struct Pair {
    tables: [Table<usize>; 2],
    lives: [u64; 2],
    wires: Vec<Wire>,
    calls: [u8; 2],
    silences: [u8; 2],
    restarts: u8,
    early_looks: u8,
    looks: u8,
    now: u64,
    parts: Vec<Part>,
    outcomes: Vec<Outcome>,
    /// Values that are here and not waited for yet.
    here: Vec<bool>,
}

const PATIENCE: Patience = Patience { ask: 1, give_up: 3 };

/// More than any wait takes when nothing else happens.
const LOOKS: u8 = 12;

impl Pair {
    fn new(calls: [u8; 2], silences: [u8; 2], steps: usize) -> Pair {
        let lives = [1, 2];
        Pair {
            tables: [0, 1].map(|t| Table::new(NAMES[t], lives[t], PATIENCE)),
            lives,
            wires: Vec::new(),
            calls,
            silences,
            restarts: 0,
            early_looks: 1,
            looks: 0,
            now: 10,
            parts: vec![Part::Unknown; steps],
            outcomes: vec![Outcome::NotYet; steps],
            here: vec![false; steps],
        }
    }

    fn index(step: u64) -> usize {
        usize::try_from(step).unwrap()
    }

    fn act(&mut self, task: usize, effects: Effects<usize>) -> Result<(), String> {
        for effect in effects {
            match effect {
                Effect::End(wire) => {
                    let end = &mut self.wires[wire].ends[task];
                    if *end == End::Gone {
                        return Err(format!("{} ends lane {wire} twice", NAMES[task]));
                    }
                    *end = End::Gone;
                }
                Effect::Ask(wire, step) => self.put(wire, task, Frame::Ask(step)),
                Effect::Fail { step, .. } => {
                    let outcome = &mut self.outcomes[Self::index(step)];
                    if !matches!(outcome, Outcome::Waits(_)) {
                        return Err(format!("step {step} fails while it is {outcome:?}"));
                    }
                    *outcome = Outcome::Failed;
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, wire: usize, from: usize, frame: Frame) {
        self.wires[wire].to[1 - from].push_back(frame);
    }

    fn adopt(&mut self, wire: usize, task: usize) -> Result<(), String> {
        let w = &mut self.wires[wire];
        w.ends[task] = End::Held;
        let is_own = w.caller == task;
        let born = Born {
            is_own,
            number: w.number,
            incarnation: w.lives[1 - task],
            said: w.said.filter(|_| !is_own),
        };
        let id = u64::try_from(wire).unwrap();
        let effects = self.tables[task].adopt(NAMES[1 - task], &born, (id, wire));
        self.act(task, effects)
    }

    fn came(&mut self, step: u64) -> Result<(), String> {
        let i = Self::index(step);
        match self.outcomes[i] {
            Outcome::NotYet => self.here[i] = true,
            Outcome::Waits(wait) => {
                self.tables[RECEIVER].over(wait);
                self.outcomes[i] = Outcome::Came;
            }
            Outcome::Failed => {}
            Outcome::Came => return Err(format!("the value of step {step} came twice")),
        }
        Ok(())
    }

    fn handle(&mut self, wire: usize, task: usize, frame: Frame) -> Result<(), String> {
        match frame {
            Frame::Value(step) => self.came(step),
            Frame::Ask(step) => {
                match self.parts[Self::index(step)] {
                    Part::Running => {}
                    part => self.put(wire, task, Frame::Told(step, part == Part::Over)),
                }
                Ok(())
            }
            Frame::Told(step, is_over) => {
                let (table, peer) = (&mut self.tables[task], NAMES[1 - task]);
                let effects = table.told(self.now, peer, step, is_over);
                self.act(task, effects)
            }
        }
    }

    /// The master of the step hears that a part failed, and ends the others.
    fn stopped(&mut self, step: u64) {
        let i = Self::index(step);
        match self.outcomes[i] {
            Outcome::NotYet => self.outcomes[i] = Outcome::Failed,
            Outcome::Waits(wait) => {
                self.tables[RECEIVER].over(wait);
                self.outcomes[i] = Outcome::Failed;
            }
            Outcome::Came | Outcome::Failed => {}
        }
    }

    fn is_calling(&self, task: usize) -> bool {
        let busy = |w: &Wire| w.caller == task && w.ends[task] == End::NotYet;
        self.wires.iter().any(busy)
    }

    fn held(&self, task: usize) -> Vec<usize> {
        let all = self.wires.iter().enumerate();
        all.filter(|(_, w)| w.ends[task] == End::Held)
            .map(|(i, _)| i)
            .collect()
    }
}

impl World for Pair {
    type Event = Happens;

    fn events(&self) -> Vec<Happens> {
        let mut out = Vec::new();
        for task in 0..2 {
            let can_call = self.tables[task].lane(NAMES[1 - task]).is_none();
            if self.calls[task] > 0 && can_call && !self.is_calling(task) {
                out.push(Happens::Call(task));
            }
            if self.silences[task] > 0 && !can_call {
                out.push(Happens::Silent(task));
            }
        }
        if self.restarts > 0 {
            out.push(Happens::Restart(RECEIVER));
        }
        for (i, w) in self.wires.iter().enumerate() {
            let callee = 1 - w.caller;
            match (w.ends[w.caller], w.ends[callee]) {
                (End::NotYet, _) if !w.is_welcome => out.push(Happens::Hello(i)),
                (End::NotYet, _) => out.push(Happens::Go(i)),
                (_, End::NotYet) => out.extend([Happens::Take(i), Happens::Refuse(i)]),
                _ => {}
            }
            for end in 0..2 {
                if w.ends[end] == End::Held && !w.to[end].is_empty() {
                    out.push(Happens::Deliver(i, end));
                }
                if w.ends[end] == End::Held && w.ends[1 - end] == End::Gone {
                    out.push(Happens::Reset(i, end));
                }
            }
        }
        for step in 0..self.parts.len() as u64 {
            match self.parts[Self::index(step)] {
                Part::Unknown => out.push(Happens::Begin(step)),
                Part::Running => out.push(Happens::Send(step)),
                Part::Over => {}
            }
            if self.outcomes[Self::index(step)] == Outcome::NotYet {
                out.push(Happens::Wait(step));
            }
        }
        let waits = |o: &Outcome| matches!(o, Outcome::Waits(_));
        let wants_look = self.looks < LOOKS && self.outcomes.iter().any(waits);
        if wants_look && (self.early_looks > 0 || out.is_empty()) {
            out.push(Happens::Look);
        }
        out
    }

    fn apply(&mut self, event: &Happens) -> Result<(), String> {
        match *event {
            Happens::Call(task) => {
                self.calls[task] -= 1;
                let Err(calling) = self.tables[task].call(NAMES[1 - task], None) else {
                    return Err("a call with a lane".into());
                };
                self.wires.push(Wire {
                    caller: task,
                    number: calling.number,
                    said: calling.seen,
                    lives: self.lives,
                    is_welcome: false,
                    ends: [End::NotYet; 2],
                    to: Default::default(),
                });
            }
            Happens::Hello(wire) => {
                let caller = self.wires[wire].caller;
                self.wires[wire].is_welcome = true;
                self.tables[1 - caller].called(NAMES[caller]);
            }
            Happens::Go(wire) => {
                let caller = self.wires[wire].caller;
                return self.adopt(wire, caller);
            }
            Happens::Take(wire) => {
                let callee = 1 - self.wires[wire].caller;
                return self.adopt(wire, callee);
            }
            Happens::Refuse(wire) => {
                let callee = 1 - self.wires[wire].caller;
                self.wires[wire].ends[callee] = End::Gone;
            }
            Happens::Silent(task) => {
                self.silences[task] -= 1;
                let effects = self.tables[task].silent(NAMES[1 - task]);
                return self.act(task, effects);
            }
            Happens::Restart(task) => {
                self.restarts -= 1;
                self.lives[task] += 10;
                self.tables[task] = Table::new(NAMES[task], self.lives[task], PATIENCE);
                for w in &mut self.wires {
                    // Calls of the dead process that were not taken yet still arrive.
                    w.ends[task] = End::Gone;
                }
                for step in 0..self.outcomes.len() {
                    self.outcomes[step] = Outcome::Failed;
                }
            }
            Happens::Deliver(wire, end) => {
                if let Some(frame) = self.wires[wire].to[end].pop_front() {
                    return self.handle(wire, end, frame);
                }
            }
            Happens::Reset(wire, end) => {
                self.wires[wire].to[end].clear();
                self.wires[wire].ends[end] = End::Gone;
                let id = u64::try_from(wire).unwrap();
                let effects = self.tables[end].ended(NAMES[1 - end], id);
                return self.act(end, effects);
            }
            Happens::Begin(step) => self.parts[Self::index(step)] = Part::Running,
            Happens::Send(step) => {
                self.parts[Self::index(step)] = Part::Over;
                match self.tables[SENDER].lane(NAMES[RECEIVER]) {
                    Some(wire) => self.put(wire, SENDER, Frame::Value(step)),
                    None => self.stopped(step),
                }
            }
            Happens::Wait(step) => {
                let i = Self::index(step);
                let begun = self.tables[RECEIVER].wait(self.now, NAMES[SENDER], step);
                self.outcomes[i] = match begun {
                    Ok((wait, _)) => Outcome::Waits(wait),
                    Err(Lost) => Outcome::Failed,
                };
                if std::mem::take(&mut self.here[i]) {
                    if let Outcome::Waits(wait) = self.outcomes[i] {
                        self.tables[RECEIVER].over(wait);
                    }
                    self.outcomes[i] = Outcome::Came;
                }
            }
            Happens::Look => {
                self.early_looks = self.early_looks.saturating_sub(1);
                self.looks += 1;
                self.now += 1;
                let effects = self.tables[RECEIVER].look(self.now);
                return self.act(RECEIVER, effects);
            }
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        for (task, table) in self.tables.iter().enumerate() {
            let mut known: Vec<usize> = table
                .peers
                .iter()
                .flat_map(|p| p.lanes.iter().map(|l| l.lane))
                .collect();
            known.sort_unstable();
            if known != self.held(task) {
                return Err(format!(
                    "{} holds {:?} but knows {known:?}",
                    NAMES[task],
                    self.held(task)
                ));
            }
            let counted: usize = table.peers.iter().map(|p| p.waits).sum();
            if counted != table.waits.len() {
                return Err(format!("{} miscounts its waits", NAMES[task]));
            }
        }
        for outcome in &self.outcomes {
            if let Outcome::Waits(wait) = outcome
                && !self.tables[RECEIVER].is_waiting(*wait)
            {
                return Err(format!("wait {wait} was forgotten"));
            }
        }
        Ok(())
    }

    fn check_end(&self) -> Result<(), String> {
        for (step, outcome) in self.outcomes.iter().enumerate() {
            if !matches!(outcome, Outcome::Came | Outcome::Failed) {
                return Err(format!("step {step} hangs: {outcome:?}"));
            }
        }
        let used = [0, 1].map(|task| self.tables[task].lane(NAMES[1 - task]));
        if used[0] != used[1] {
            return Err(format!("the ends use different lanes: {used:?}"));
        }
        if !self.tables[RECEIVER].waits.is_empty() {
            return Err("a wait is left".into());
        }
        Ok(())
    }
}

#[track_caller]
fn holds(what: &str, pair: Pair) {
    match explore(pair, 1_500_000) {
        Ok(seen) => println!("lanes, {what}: {seen:?}"),
        Err(history) => panic!("{what}: {history}"),
    }
}

#[test]
fn both_call_at_once_and_one_gives_up() {
    holds("two calls, one silence", Pair::new([1, 1], [1, 0], 1));
    holds("two calls, one silence", Pair::new([1, 1], [0, 1], 1));
}

#[test]
fn an_old_lane_ends_long_after_a_new_one_began() {
    holds("the receiver calls again", Pair::new([2, 0], [1, 0], 1));
    holds("the sender calls again", Pair::new([0, 2], [0, 1], 1));
    holds(
        "the receiver gives up, both call",
        Pair::new([2, 1], [1, 0], 1),
    );
    holds(
        "the sender gives up, both call",
        Pair::new([1, 2], [0, 1], 1),
    );
}

#[test]
fn both_give_up() {
    holds("each gives up once", Pair::new([2, 1], [1, 1], 1));
}

#[test]
fn two_steps_and_a_lane_that_is_replaced() {
    holds("two steps", Pair::new([2, 0], [1, 0], 2));
}

#[test]
fn a_task_that_comes_back_in_another_life() {
    let mut pair = Pair::new([2, 1], [0, 0], 1);
    pair.restarts = 1;
    holds("a restart", pair);
}
