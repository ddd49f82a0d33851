//! A member of an election: a thread that drives a [`Candidate`] against a [`Register`], and what
//! others see of it. Holds no rule of its own.

use crate::candidate::{Candidate, Reply, Request};
use crate::record::Record;
use crate::register::Register;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// The register that says who is chief.
const CHIEF: &str = "chief";

/// Takes part in an election until it is dropped, which is silent, or has resigned.
///
/// ```
/// use downpour_coordination::{Folder, Member};
/// use std::time::Duration;
/// # let dir = tempfile::tempdir()?;
/// let lease = Duration::from_millis(400);
/// let member = |name| Folder::open(dir.path()).map(|folder| Member::start(folder, name, lease));
/// let mut first = member("first")?;
/// let elected = first.office().wait_for(|epoch| epoch.is_some(), Duration::from_secs(30));
/// assert_eq!(elected, Some(1));
/// let second = member("second")?;
/// first.resign();
/// let elected = second.office().wait_for(|epoch| epoch.is_some(), Duration::from_secs(30));
/// assert_eq!((first.office().epoch(), elected), (None, Some(2)));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Member {
    office: Office,
    thread: Option<JoinHandle<()>>,
}

/// Whether a member is chief, for whoever wants to know.
#[derive(Clone)]
pub struct Office(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// Held by who commits: one at a time.
    committing: Mutex<()>,
}

#[derive(Default)]
struct State {
    /// The epoch that is held, and until when.
    held: Option<(u64, Instant)>,
    /// What was committed last, as far as is known.
    checkpoint: Option<String>,
    /// What is to be committed, and in which epoch.
    to_commit: Option<(u64, String)>,
    resign: bool,
    end: bool,
}

impl Office {
    /// The epoch in which the member is chief now.
    pub fn epoch(&self) -> Option<u64> {
        self.0.state.lock().epoch()
    }

    /// What was committed last, by this chief or one before: the register's own word, as of when this
    /// member last asked. `None` until it has.
    pub fn checkpoint(&self) -> Option<String> {
        self.0.state.lock().checkpoint.clone()
    }

    /// Commits a checkpoint in an epoch that is held; whether it was. Once another is chief, or the
    /// office has ended, it is not, and will not be unless the register has it already.
    pub fn commit(&self, epoch: u64, checkpoint: &str) -> bool {
        let _only = self.0.committing.lock();
        let mut state = self.0.state.lock();
        state.to_commit = Some((epoch, checkpoint.to_owned()));
        self.0.changed.notify_all();
        loop {
            let is_known = state.checkpoint.as_deref() == Some(checkpoint);
            let (true, Some((_, until))) = (state.epoch() == Some(epoch), state.held) else {
                // The last reply may have been that it is.
                return is_known;
            };
            if is_known {
                return true;
            }
            self.0.changed.wait_until(&mut state, until);
        }
    }

    /// Waits until the epoch is as wanted, at most so long; what it is then.
    pub fn wait_for(&self, wanted: impl Fn(Option<u64>) -> bool, limit: Duration) -> Option<u64> {
        let end = Instant::now() + limit;
        let mut state = self.0.state.lock();
        loop {
            let epoch = state.epoch();
            let now = Instant::now();
            if wanted(epoch) || now >= end {
                return epoch;
            }
            // An office may also end by the clock, which tells nobody.
            let ends = state.held.filter(|_| epoch.is_some());
            let wake = ends.map_or(end, |(_, until)| until.min(end));
            self.0.changed.wait_until(&mut state, wake);
        }
    }
}

impl State {
    fn epoch(&self) -> Option<u64> {
        let (epoch, until) = self.held?;
        (Instant::now() < until).then_some(epoch)
    }
}

impl Member {
    /// Begins to take part, under a name that no other member has. All must be given the same lease.
    pub fn start(register: impl Register + 'static, name: &str, lease: Duration) -> Member {
        Member::start_boxed(Box::new(register), name, lease)
    }

    /// As [`Self::start`].
    pub fn start_boxed(register: Box<dyn Register>, name: &str, lease: Duration) -> Member {
        let office = Office(Arc::new(Shared {
            state: Mutex::default(),
            changed: Condvar::new(),
            committing: Mutex::default(),
        }));
        let candidate = Candidate::new(name, lease);
        let shared = office.0.clone();
        let thread = std::thread::Builder::new().name("election".to_owned());
        let thread = thread.spawn(move || take_part(&*register, candidate, &shared));
        if let Err(why) = &thread {
            warn!(%why, "no thread for the election: this member is never chief");
        }
        Member {
            office,
            thread: thread.ok(),
        }
    }

    /// Whether this member is chief, to be asked from anywhere.
    pub fn office(&self) -> &Office {
        &self.office
    }

    /// Gives the office up, so that others need not wait for the lease, and ends its part.
    pub fn resign(&mut self) {
        self.end(|state| state.resign = true);
    }

    fn end(&mut self, how: impl FnOnce(&mut State)) {
        {
            let mut state = self.office.0.state.lock();
            state.held = None;
            how(&mut state);
        }
        self.office.0.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.end(|state| state.end = true);
    }
}

/// The thread of a member.
fn take_part(register: &dyn Register, mut candidate: Candidate, shared: &Shared) {
    let begin = Instant::now();
    let (mut is_lost, mut is_leaving) = (false, false);
    loop {
        {
            let mut state = shared.state.lock();
            let now = begin.elapsed();
            if state.resign {
                (state.resign, is_leaving) = (false, true);
                candidate.resign(now);
            }
            if state.end || candidate.has_left() {
                return;
            }
            if let Some((epoch, checkpoint)) = state.to_commit.take() {
                candidate.commit(epoch, &checkpoint, now);
            }
            if now < candidate.next() {
                let wake = begin + candidate.next();
                shared.changed.wait_until(&mut state, wake);
                continue;
            }
        }
        let Some(request) = candidate.poll(begin.elapsed()) else {
            continue;
        };
        let reply = ask(register, &request).unwrap_or_else(|why| {
            if !is_lost {
                warn!(%why, "elections pause; training goes on");
            }
            Reply::Unknown
        });
        if is_lost && reply != Reply::Unknown {
            info!("the coordination service answers again");
        }
        is_lost = reply == Reply::Unknown;
        let before = candidate.epoch(begin.elapsed());
        candidate.answered(reply, begin.elapsed());
        let after = candidate.epoch(begin.elapsed());
        if before != after {
            info!(?after, chief = ?candidate.chief(), "the office of chief");
        }
        let mut state = shared.state.lock();
        if let Some(checkpoint) = candidate.checkpoint() {
            state.checkpoint = Some(checkpoint.to_owned());
        }
        // Who resigned meanwhile is chief no more, whatever the register said.
        state.held = match (after, candidate.until()) {
            (Some(epoch), Some(until)) if !state.resign && !state.end && !is_leaving => {
                Some((epoch, begin + until))
            }
            _ => None,
        };
        drop(state);
        shared.changed.notify_all();
        if is_leaving && is_lost {
            // Others wait for the lease to end; who leaves does not wait for the service.
            return;
        }
    }
}

fn ask(register: &dyn Register, request: &Request) -> crate::Result<Reply> {
    match request {
        Request::Read => {
            let (version, value) = register.read(CHIEF)?;
            let text = String::from_utf8_lossy(&value);
            // What is no record was not written by a member: it is as good as none.
            let record = Record::parse(&text).unwrap_or_default();
            Ok(Reply::Holds(version, record))
        }
        Request::Swap(expected, record) => {
            let value = record.to_string();
            let swapped = register.swap(CHIEF, *expected, value.as_bytes())?;
            Ok(swapped.map_or(Reply::Conflict, Reply::Swapped))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Version;
    use crate::register::{Error, Result};
    use std::sync::mpsc::{Sender, channel};

    /// Lets one member be elected, and never answers again.
    struct LostAfterElection {
        swaps: Mutex<u64>,
        lost: Sender<()>,
    }

    impl LostAfterElection {
        fn silent<T>(&self) -> Result<T> {
            // The test may be over.
            let _ = self.lost.send(());
            Err(Error::Silent {
                service: "a lost one".to_owned(),
                within: Duration::ZERO,
            })
        }
    }

    impl Register for LostAfterElection {
        fn read(&self, _: &str) -> Result<(Version, Vec<u8>)> {
            match *self.swaps.lock() {
                0 => Ok((Version::NONE, Vec::new())),
                _ => self.silent(),
            }
        }

        fn swap(&self, _: &str, _: Version, _: &[u8]) -> Result<Option<Version>> {
            let mut swaps = self.swaps.lock();
            *swaps += 1;
            match *swaps {
                1 => Ok(Some(Version(1))),
                _ => self.silent(),
            }
        }
    }

    #[test]
    fn who_resigns_does_not_wait_for_a_service_that_is_lost() {
        let (lost, is_lost) = channel();
        let swaps = Mutex::new(0);
        let lease = Duration::from_secs(4);
        let register = LostAfterElection { swaps, lost };
        let mut member = Member::start(register, "a member", lease);
        // It is chief, its renewal was not answered, and its lease has not ended.
        let patience = Duration::from_secs(60);
        is_lost.recv_timeout(patience).expect("a renewal is tried");
        let (left, has_left) = channel();
        std::thread::spawn(move || {
            member.resign();
            // The test may have given up.
            let _ = left.send(member.office().epoch());
        });
        let epoch = has_left.recv_timeout(patience);
        assert_eq!(epoch.expect("resigning hangs"), None);
    }
}
