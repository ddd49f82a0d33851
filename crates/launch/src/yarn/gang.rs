//! The containers of a job as a state machine: what the ResourceManager and the containers said goes in, what must be done comes out. No
//! clock, no socket. A container belongs to a role (`ps`, `worker`, …); a job can begin when every role has its containers and each of
//! them has registered. What is given beyond that is given back.

use std::collections::BTreeMap;

/// Containers of one role that may end before they have registered, between two that do.
const MAX_FAILURES: u32 = 3;

/// What happened.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// So many containers of each role are wanted.
    Want(BTreeMap<String, u32>),
    /// A container was given: its name, its node, the role it was asked for.
    Allocated {
        id: String,
        node: String,
        role: String,
    },
    /// What runs in it has registered.
    Registered(String),
    /// It is over, or could not be started: what is said of that.
    Gone(String, String),
    /// The ResourceManager has forgotten what was wanted.
    Resync,
}

/// What must be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Ask for so many more containers of a role, instead of what was asked for before.
    Ask(String, u32),
    /// Start what runs in a container.
    Launch(String),
    /// Give a container back.
    Release(String),
}

/// A container that the job has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) role: String,
    pub(crate) node: String,
    pub(crate) is_ready: bool,
}

/// The containers of a job.
#[derive(Debug, Default)]
pub(crate) struct Gang {
    wanted: BTreeMap<String, u32>,
    slots: BTreeMap<String, Slot>,
    failures: BTreeMap<String, (u32, String)>,
}

impl Gang {
    /// Advances by one event.
    pub(crate) fn step(&mut self, event: Event) -> Vec<Effect> {
        match event {
            Event::Want(wanted) => {
                self.wanted = wanted;
                self.failures.clear();
                self.ask_all()
            }
            Event::Resync => self.ask_all(),
            Event::Allocated { id, node, role } => {
                if self.missing(&role) == 0 || self.slots.contains_key(&id) {
                    return vec![Effect::Release(id)];
                }
                let slot = Slot {
                    role,
                    node,
                    is_ready: false,
                };
                self.slots.insert(id.clone(), slot);
                vec![Effect::Launch(id)]
            }
            Event::Registered(id) => {
                if let Some(slot) = self.slots.get_mut(&id) {
                    slot.is_ready = true;
                    self.failures.remove(&slot.role);
                }
                Vec::new()
            }
            Event::Gone(id, reason) => self.gone(&id, &reason),
        }
    }

    fn gone(&mut self, id: &str, reason: &str) -> Vec<Effect> {
        let Some(slot) = self.slots.remove(id) else {
            return Vec::new();
        };
        if slot.is_ready {
            // Others are asked for when the job wants to go on.
            return Vec::new();
        }
        let (count, last) = self.failures.entry(slot.role.clone()).or_default();
        *count += 1;
        *last = format!("{id} on {}: {reason}", slot.node);
        let missing = self.missing(&slot.role);
        match self.failure() {
            Some(_) => Vec::new(),
            None => vec![Effect::Ask(slot.role, missing)],
        }
    }

    fn ask_all(&self) -> Vec<Effect> {
        let roles = self.wanted.keys().map(|role| (role, self.missing(role)));
        roles
            .filter(|(_, missing)| *missing > 0)
            .map(|(role, missing)| Effect::Ask(role.clone(), missing))
            .collect()
    }

    /// How many containers of a role there are not.
    pub(crate) fn missing(&self, role: &str) -> u32 {
        let wanted = self.wanted.get(role).copied().unwrap_or(0);
        let there = self.slots.values().filter(|slot| slot.role == role).count();
        wanted.saturating_sub(u32::try_from(there).unwrap_or(u32::MAX))
    }

    /// A container, if the job has it.
    pub(crate) fn slot(&self, id: &str) -> Option<&Slot> {
        self.slots.get(id)
    }

    /// The containers of each role that have registered, if none is missing.
    pub(crate) fn complete(&self) -> Option<BTreeMap<String, Vec<String>>> {
        let is_full = self.wanted.keys().all(|role| self.missing(role) == 0);
        if !is_full || self.slots.values().any(|slot| !slot.is_ready) {
            return None;
        }
        let mut made: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for (id, slot) in &self.slots {
            made.entry(slot.role.clone()).or_default().push(id.clone());
        }
        Some(made)
    }

    /// Why waiting would not help.
    pub(crate) fn failure(&self) -> Option<String> {
        let (role, (_, reason)) = self
            .failures
            .iter()
            .find(|(_, (n, _))| *n >= MAX_FAILURES)?;
        Some(format!(
            "{MAX_FAILURES} containers for {role} ended before they had registered; the last, {reason}"
        ))
    }

    /// Who is missing, for people.
    pub(crate) fn absent(&self) -> String {
        let mut parts = Vec::new();
        for (role, wanted) in &self.wanted {
            let missing = self.missing(role);
            if missing > 0 {
                parts.push(format!(
                    "{role}: {missing} of {wanted} containers were not given"
                ));
            }
        }
        for (id, slot) in self.slots.iter().filter(|(_, slot)| !slot.is_ready) {
            parts.push(format!(
                "{}: {id} on {} has not registered",
                slot.role, slot.node
            ));
        }
        parts.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(id: &str, role: &str) -> Event {
        Event::Allocated {
            id: id.to_owned(),
            node: "n1".to_owned(),
            role: role.to_owned(),
        }
    }

    fn gang() -> Gang {
        let mut gang = Gang::default();
        let asked = gang.step(Event::Want(BTreeMap::from([
            ("ps".to_owned(), 1),
            ("worker".to_owned(), 2),
        ])));
        assert_eq!(
            asked,
            [
                Effect::Ask("ps".to_owned(), 1),
                Effect::Ask("worker".to_owned(), 2)
            ]
        );
        gang
    }

    fn ready(gang: &mut Gang, id: &str, role: &str) {
        assert_eq!(gang.step(given(id, role)), [Effect::Launch(id.to_owned())]);
        gang.step(Event::Registered(id.to_owned()));
    }

    #[test]
    fn a_job_begins_when_all_have_registered_and_surplus_goes_back() {
        let mut gang = gang();
        ready(&mut gang, "c1", "worker");
        ready(&mut gang, "c2", "ps");
        gang.step(given("c3", "worker"));
        assert_eq!(gang.complete(), None);
        assert_eq!(gang.absent(), "worker: c3 on n1 has not registered");
        assert_eq!(
            gang.step(given("c4", "worker")),
            [Effect::Release("c4".to_owned())]
        );
        assert_eq!(
            gang.step(given("c5", "none")),
            [Effect::Release("c5".to_owned())]
        );
        gang.step(Event::Registered("c3".to_owned()));
        assert_eq!(gang.complete().unwrap()["worker"], ["c1", "c3"]);
    }

    #[test]
    fn a_container_that_goes_is_replaced_when_the_job_wants_it() {
        let mut gang = gang();
        for (id, role) in [("c1", "worker"), ("c2", "ps"), ("c3", "worker")] {
            ready(&mut gang, id, role);
        }
        assert!(
            gang.step(Event::Gone("c1".to_owned(), "lost node".to_owned()))
                .is_empty()
        );
        assert_eq!(gang.complete(), None);
        let again = Event::Want(BTreeMap::from([
            ("ps".to_owned(), 1),
            ("worker".to_owned(), 2),
        ]));
        assert_eq!(gang.step(again), [Effect::Ask("worker".to_owned(), 1)]);
        ready(&mut gang, "c9", "worker");
        assert_eq!(gang.complete().unwrap()["worker"], ["c3", "c9"]);
    }

    #[test]
    fn what_cannot_start_is_given_up_by_name() {
        let mut gang = gang();
        for id in ["c1", "c2"] {
            gang.step(given(id, "ps"));
            let asked = gang.step(Event::Gone(id.to_owned(), "no such image".to_owned()));
            assert_eq!(asked, [Effect::Ask("ps".to_owned(), 1)]);
        }
        gang.step(given("c3", "ps"));
        assert!(
            gang.step(Event::Gone("c3".to_owned(), "no such image".to_owned()))
                .is_empty()
        );
        assert_eq!(
            gang.failure().unwrap(),
            "3 containers for ps ended before they had registered; the last, c3 on n1: no such image"
        );
        assert_eq!(gang.step(Event::Gone("c3".to_owned(), String::new())), []);
    }

    #[test]
    fn a_resource_manager_that_forgot_is_told_again() {
        let mut gang = gang();
        ready(&mut gang, "c1", "worker");
        assert_eq!(
            gang.step(Event::Resync),
            [
                Effect::Ask("ps".to_owned(), 1),
                Effect::Ask("worker".to_owned(), 1)
            ]
        );
    }
}
