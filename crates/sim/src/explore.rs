//! Every order in which things can happen: breadth-first over a state machine and the world around
//! it, each state visited once.
//!
//! A test describes the world: the machine, what may happen to it next, what must hold. The explorer
//! finds the shortest history that breaks a rule, and shows that every history ends well: no state
//! is visited twice by one history, and where nothing more can happen all is as it should be.

use std::collections::HashMap;
use std::collections::VecDeque;
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

/// A state machine and what surrounds it.
pub trait World: Clone + Hash {
    /// Something that can happen.
    type Event: Clone + Debug;

    /// What may happen next, in any order.
    fn events(&self) -> Vec<Self::Event>;

    /// Lets it happen. An error names the rule that was broken on the way.
    fn apply(&mut self, event: &Self::Event) -> Result<(), String>;

    /// What must hold in every state.
    fn check(&self) -> Result<(), String>;

    /// What must hold when nothing more can happen.
    fn check_end(&self) -> Result<(), String>;
}

/// How much was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explored {
    /// Different states.
    pub states: usize,
    /// Steps between them.
    pub transitions: usize,
    /// States in which nothing more can happen.
    pub ends: usize,
    /// Length of the longest of the shortest ways to a state.
    pub depth: usize,
}

/// How a state was first reached.
struct Arrival<E> {
    from: usize,
    event: Option<E>,
    depth: usize,
    /// Ways into the state that have not been walked back yet.
    ways_in: usize,
    next: Vec<usize>,
}

/// Visits every state that `start` can come to, at most `limit` of them.
///
/// # Errors
///
/// The shortest history that breaks a rule, or that there are more states than `limit`, or that
/// a history can go on for ever.
pub fn explore<W: World>(start: W, limit: usize) -> Result<Explored, String> {
    let mut known: HashMap<u128, usize> = HashMap::from([(fingerprint(&start), 0)]);
    let mut seen: Vec<Arrival<W::Event>> = vec![Arrival {
        from: 0,
        event: None,
        depth: 0,
        ways_in: 0,
        next: Vec::new(),
    }];
    let mut queue = VecDeque::from([(0, start)]);
    let (mut transitions, mut ends) = (0, 0);
    while let Some((at, world)) = queue.pop_front() {
        world.check().map_err(|rule| history(&seen, at, &rule))?;
        let events = world.events();
        if events.is_empty() {
            world
                .check_end()
                .map_err(|rule| history(&seen, at, &rule))?;
            ends += 1;
        }
        for event in events {
            let mut next = world.clone();
            let outcome = next.apply(&event);
            transitions += 1;
            let depth = seen[at].depth + 1;
            let new = seen.len();
            let to = *known.entry(fingerprint(&next)).or_insert(new);
            if to == new || outcome.is_err() {
                seen.push(Arrival {
                    from: at,
                    event: Some(event),
                    depth,
                    ways_in: 0,
                    next: Vec::new(),
                });
            }
            outcome.map_err(|rule| history(&seen, seen.len() - 1, &rule))?;
            if to == new {
                queue.push_back((to, next));
            }
            seen[to].ways_in += 1;
            seen[at].next.push(to);
            if seen.len() > limit {
                return Err(format!("more than {limit} states"));
            }
        }
    }
    let depth = seen.iter().map(|s| s.depth).max().unwrap_or(0);
    let states = seen.len();
    check_endless(seen)?;
    Ok(Explored {
        states,
        transitions,
        ends,
        depth,
    })
}

/// 128 bits: two of a billion states share one with a probability below 10⁻²⁰.
fn fingerprint(world: &impl Hash) -> u128 {
    let mut both = Twice(DefaultHasher::new(), DefaultHasher::new());
    both.1.write_u8(1);
    world.hash(&mut both);
    u128::from(both.0.finish()) << 64 | u128::from(both.1.finish())
}

/// Two hashes in one go: walking the state takes longer than hashing it.
struct Twice(DefaultHasher, DefaultHasher);

impl Hasher for Twice {
    fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
        self.1.write(bytes);
    }

    fn finish(&self) -> u64 {
        self.0.finish()
    }
}

fn history<E: Debug>(seen: &[Arrival<E>], mut at: usize, rule: &str) -> String {
    let mut events = Vec::new();
    while let Some(event) = &seen[at].event {
        events.push(format!("  {event:?}"));
        at = seen[at].from;
    }
    events.reverse();
    format!("{rule}, after\n{}", events.join("\n"))
}

/// Takes states away that nothing leads to any more; what is left over is a circle.
fn check_endless<E: Debug>(mut seen: Vec<Arrival<E>>) -> Result<(), String> {
    let mut ready: Vec<usize> = (0..seen.len()).filter(|i| seen[*i].ways_in == 0).collect();
    let mut gone = 0;
    while let Some(at) = ready.pop() {
        gone += 1;
        for to in std::mem::take(&mut seen[at].next) {
            seen[to].ways_in -= 1;
            if seen[to].ways_in == 0 {
                ready.push(to);
            }
        }
    }
    if gone == seen.len() {
        return Ok(());
    }
    let at = (0..seen.len())
        .find(|i| seen[*i].ways_in > 0)
        .unwrap_or_default();
    Err(history(&seen, at, "this can go on for ever"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts up to 3 by ones and twos; may be asked to go back.
    #[derive(Clone, Hash)]
    struct Counter {
        value: u8,
        back: bool,
        forbidden: u8,
    }

    impl World for Counter {
        type Event = i8;

        fn events(&self) -> Vec<i8> {
            let mut events: Vec<i8> = [1, 2]
                .into_iter()
                .filter(|n| self.value + *n as u8 <= 3)
                .collect();
            if self.back && self.value > 0 && self.value < 3 {
                events.push(-1);
            }
            events
        }

        fn apply(&mut self, by: &i8) -> Result<(), String> {
            self.value = self.value.wrapping_add_signed(*by);
            Ok(())
        }

        fn check(&self) -> Result<(), String> {
            match self.value == self.forbidden {
                true => Err(format!("{} is forbidden", self.value)),
                false => Ok(()),
            }
        }

        fn check_end(&self) -> Result<(), String> {
            match self.value {
                3 => Ok(()),
                n => Err(format!("ended at {n}")),
            }
        }
    }

    #[test]
    fn sees_every_state_once_and_the_shortest_way_to_a_broken_rule() {
        let world = |back, forbidden| Counter {
            value: 0,
            back,
            forbidden,
        };
        let seen = explore(world(false, 9), 100).unwrap();
        assert_eq!((seen.states, seen.transitions, seen.ends), (4, 5, 1));
        let broken = explore(world(false, 3), 100).unwrap_err();
        assert_eq!(broken, "3 is forbidden, after\n  1\n  2");
        let endless = explore(world(true, 9), 100).unwrap_err();
        assert!(endless.starts_with("this can go on for ever"), "{endless}");
        assert_eq!(
            explore(world(false, 9), 2).unwrap_err(),
            "more than 2 states"
        );
    }
}
