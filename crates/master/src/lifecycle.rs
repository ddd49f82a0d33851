//! The life of a session as a state machine: an [`Event`] in, what the shell must do out. No I/O, no
//! lock, no clock. The shell is `session.rs`; every order of events, together with the steps of
//! `step.rs`, is tried in `lifecycle/explored.rs`.
//!
//! A session that closes ends its steps, waits for them, and is then deleted on its tasks: once,
//! and only after its last user.

use downpour_graph::{Result, Status};
use smallvec::{SmallVec, smallvec};
use std::collections::BTreeMap;

#[cfg(test)]
mod exhaustive_tests;

/// One request that uses the session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct UseId(u64);

/// What happened to the session. `C` ends a step.
pub(crate) enum Event<C> {
    /// A request begins.
    Begin,
    /// Its step is under way and can be ended.
    Attach(UseId, C),
    /// It is over, with everything it had started.
    End(UseId),
    /// A graph was built on top of this version.
    Extend { expected: i64 },
    /// The client, a reset, a lease that has run out or the end of the task closes the session.
    Close(Status),
}

/// What the shell must now do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Effect<C> {
    /// Go on with the request.
    Begun(UseId),
    /// Take the new graph, of this version.
    Extended(i64),
    /// Answer the request with this error.
    Refuse(Status),
    /// End a step.
    Stop(C, Status),
    /// Delete the session on its tasks.
    Delete,
}

/// Mostly one.
pub(crate) type Effects<C> = SmallVec<[Effect<C>; 1]>;

/// ```text
///   Open ── Close, in use ──► Closing ── End of the last use ──► Closed: deleted on its tasks
///    └───── Close, not in use ─────────────────────────────────►   ▲
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Phase {
    Open,
    Closing(Status),
    Closed(Status),
}

/// ```text
///           Attach                 Close
///   Begun ──────────► Running ──────────────► Stopping
///     └──── Attach after Close ─────────────────► ▲       any ── End ──► gone
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Use<C> {
    Begun,
    Running(C),
    Stopping,
}

/// The machine.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Lifecycle<C> {
    phase: Phase,
    version: i64,
    uses: BTreeMap<UseId, Use<C>>,
    next: u64,
}

impl<C> Lifecycle<C> {
    /// An open session that nobody uses.
    pub(crate) fn new() -> Self {
        Lifecycle {
            phase: Phase::Open,
            version: 0,
            uses: BTreeMap::new(),
            next: 0,
        }
    }

    /// Why the session is closed, if it is.
    pub(crate) fn closed(&self) -> Option<&Status> {
        match &self.phase {
            Phase::Open => None,
            Phase::Closing(reason) | Phase::Closed(reason) => Some(reason),
        }
    }

    /// Whether a graph of this version may be built upon.
    pub(crate) fn check_version(&self, expected: i64) -> Result<()> {
        if self.closed().is_some() {
            return Err(Status::failed_precondition("Session is closed."));
        }
        if self.version != expected {
            return Err(Status::aborted(format!(
                "Current version is {} but caller expected {expected}.",
                self.version
            )));
        }
        Ok(())
    }

    /// Advances by one event.
    pub(crate) fn step(&mut self, event: Event<C>) -> Effects<C> {
        match event {
            Event::Begin => {
                if let Some(reason) = self.closed() {
                    return smallvec![Effect::Refuse(reason.clone())];
                }
                self.next += 1;
                let id = UseId(self.next);
                self.uses.insert(id, Use::Begun);
                smallvec![Effect::Begun(id)]
            }
            Event::Attach(id, stop) => {
                let reason = self.closed().cloned();
                match (self.uses.get_mut(&id), reason) {
                    (Some(found @ Use::Begun), None) => *found = Use::Running(stop),
                    (Some(found @ Use::Begun), Some(reason)) => {
                        *found = Use::Stopping;
                        return smallvec![Effect::Stop(stop, reason)];
                    }
                    // Over before it could be stopped.
                    _ => {}
                }
                Effects::new()
            }
            Event::End(id) => {
                self.uses.remove(&id);
                self.delete_if_unused()
            }
            Event::Extend { expected } => match self.check_version(expected) {
                Ok(()) => {
                    self.version += 1;
                    smallvec![Effect::Extended(self.version)]
                }
                Err(e) => smallvec![Effect::Refuse(e)],
            },
            Event::Close(reason) => self.close(reason),
        }
    }

    fn close(&mut self, reason: Status) -> Effects<C> {
        if self.closed().is_some() {
            return Effects::new();
        }
        let mut out = Effects::new();
        for used in self.uses.values_mut() {
            if !matches!(used, Use::Running(_)) {
                continue;
            }
            if let Use::Running(stop) = std::mem::replace(used, Use::Stopping) {
                out.push(Effect::Stop(stop, reason.clone()));
            }
        }
        self.phase = Phase::Closing(reason);
        out.extend(self.delete_if_unused());
        out
    }

    fn delete_if_unused(&mut self) -> Effects<C> {
        match &self.phase {
            Phase::Closing(reason) if self.uses.is_empty() => {
                self.phase = Phase::Closed(reason.clone());
                smallvec![Effect::Delete]
            }
            _ => Effects::new(),
        }
    }
}
