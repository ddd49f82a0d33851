//! An election through files that all workers see, such as the checkpoints' directory.
//!
//! Every term of office is a directory `election/term-N`, and making a directory is the vote: of
//! two who try only one succeeds. The chief writes a beat into its directory several times a lease.
//! Others watch the beat by their own clock; when it has not changed for a lease, they try for the
//! next term. Numbers of terms only grow, so a chief that slept through its lease finds a higher
//! one and knows that it is deposed.
//!
//! ```text
//! watching ──beat unchanged for a lease, directory made──► chief ──higher term, or unsure──► watching
//! ```

use super::Election;
use downpour_build::{Code, Result, Status};
use downpour_formats::storage::{join, read_bounded};
use downpour_formats::{Files, Storage};
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tracing::{info, warn};

/// What a directory of a term is called, before its number.
const TERM: &str = "term-";
/// The file that the chief writes again and again.
const BEAT: &str = "beat";
/// What a beat begins with once its writer has resigned.
const LEFT: &str = "left";
/// No beat is longer.
const LONGEST_BEAT: u64 = 1 << 12;
/// How often the chief beats, and others look, in one lease.
const BEATS: u32 = 4;

/// Elects by a lease in a directory that all workers see.
///
/// ```
/// use downpour_train::{Election, LeaseElection};
/// use std::time::Duration;
/// # let dir = tempfile::tempdir()?;
/// # let dir = dir.path().to_str().unwrap();
/// let lease = Duration::from_millis(400);
/// let mut first = LeaseElection::new(dir, "/job:worker/task:0", lease);
/// let mut second = LeaseElection::new(dir, "/job:worker/task:1", lease);
/// assert!(first.is_chief() && !second.is_chief());
/// first.resign();
/// while !second.is_chief() {
///     std::thread::sleep(lease / 10);
/// }
/// assert!(!first.is_chief() && second.term() == Some(2));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct LeaseElection {
    place: Arc<Place>,
    lease: Duration,
    held: Option<Held>,
    watched: Option<Watched>,
    looked: Option<Instant>,
    resigned: bool,
}

/// Where the election is held, and who this is.
struct Place {
    storage: Arc<dyn Storage>,
    dir: String,
    name: String,
}

/// What was last seen of the chief.
struct Watched {
    term: u64,
    beat: Vec<u8>,
    since: Instant,
}

/// A term of one's own.
struct Held {
    term: u64,
    beating: Arc<Beating>,
    thread: Option<JoinHandle<()>>,
}

struct Beating {
    state: Mutex<Pulse>,
    changed: Condvar,
}

struct Pulse {
    /// When the last beat that is known to count began.
    last: Instant,
    count: u64,
    deposed: bool,
    end: bool,
}

impl LeaseElection {
    /// Takes part under a name, in an election held in a directory. A chief that has been silent
    /// for the lease is replaced. All should be given the same.
    pub fn new(dir: &str, name: &str, lease: Duration) -> LeaseElection {
        LeaseElection::on(Arc::new(Files::new()), dir, name, lease)
    }

    /// As [`Self::new`], on another storage.
    pub fn on(storage: Arc<dyn Storage>, dir: &str, name: &str, lease: Duration) -> LeaseElection {
        LeaseElection {
            place: Arc::new(Place {
                storage,
                dir: join(dir, "election"),
                name: name.to_owned(),
            }),
            lease,
            held: None,
            watched: None,
            looked: None,
            resigned: false,
        }
    }

    /// The number of the term that this worker holds. A later chief's is higher.
    pub fn term(&self) -> Option<u64> {
        self.held.as_ref().map(|held| held.term)
    }

    /// Whether the term that is held still counts.
    fn holds(&self, held: &Held) -> bool {
        {
            let pulse = held.beating.state.lock();
            if pulse.deposed {
                return false;
            }
            if pulse.last.elapsed() < self.lease {
                return true;
            }
        }
        // It slept, or the storage did: nothing is known without a look.
        self.place.beat(held.term, &held.beating).unwrap_or(false)
    }

    /// Looks at the chief; whether this worker has taken its place.
    fn look(&mut self) -> Result<bool> {
        let Some(term) = self.place.newest()? else {
            return self.stand(1);
        };
        let beat = self.place.read(term)?;
        if beat.starts_with(LEFT.as_bytes()) {
            return self.stand(term + 1);
        }
        match &self.watched {
            Some(seen) if (seen.term, &seen.beat) == (term, &beat) => {
                let silent = seen.since.elapsed();
                if silent < self.lease {
                    return Ok(false);
                }
                info!(term, ?silent, "the chief is silent");
                self.stand(term + 1)
            }
            _ => {
                self.watched = Some(Watched {
                    term,
                    beat,
                    since: Instant::now(),
                });
                Ok(false)
            }
        }
    }

    /// Tries for a term.
    fn stand(&mut self, term: u64) -> Result<bool> {
        self.watched = None;
        if Files::is_remote(&self.place.dir) {
            return Err(Status::unimplemented(format!(
                "{} is no place for an election: directories there cannot be made by one of several only; use a coordinator",
                self.place.dir
            )));
        }
        let start = Instant::now();
        crate::saver::make_dirs(&*self.place.storage, &self.place.dir)?;
        match self.place.storage.create_dir(&self.place.term(term)) {
            Err(e) if e.code == Code::AlreadyExists => return Ok(false),
            made => made?,
        }
        let beating = Arc::new(Beating {
            state: Mutex::new(Pulse {
                last: start,
                count: 0,
                deposed: false,
                end: false,
            }),
            changed: Condvar::new(),
        });
        // Whoever slept before making the directory may have made one of long ago.
        if !self.place.beat(term, &beating)? {
            return Ok(false);
        }
        info!(term, name = self.place.name, "elected chief");
        self.place.forget_before(term);
        let (place, pulse, pause) = (self.place.clone(), beating.clone(), self.lease / BEATS);
        let thread = std::thread::Builder::new().name("election".to_owned());
        let thread = thread.spawn(move || place.keep_beating(term, &pulse, pause));
        let thread = thread.map_err(|e| Status::unavailable(e.to_string()))?;
        self.held = Some(Held {
            term,
            beating,
            thread: Some(thread),
        });
        Ok(true)
    }
}

impl Election for LeaseElection {
    fn is_chief(&mut self) -> bool {
        if let Some(held) = self.held.take() {
            if self.holds(&held) {
                self.held = Some(held);
                return true;
            }
            warn!(term = held.term, "another is chief now");
        }
        let pause = self.lease / BEATS;
        if self.resigned || self.looked.is_some_and(|looked| looked.elapsed() < pause) {
            return false;
        }
        self.looked = Some(Instant::now());
        self.look().unwrap_or_else(|why| {
            warn!(%why, "cannot look who is chief");
            false
        })
    }

    fn epoch(&mut self) -> Option<u64> {
        self.is_chief().then(|| self.term()).flatten()
    }

    fn resign(&mut self) {
        self.resigned = true;
        let Some(held) = self.held.take() else {
            return;
        };
        let term = held.term;
        drop(held);
        if let Err(why) = self
            .place
            .write(term, &format!("{LEFT} {}", self.place.name))
        {
            warn!(%why, "others will wait for the lease to end");
        }
    }
}

/// Without a word to the others: they see it by the silence.
impl Drop for Held {
    fn drop(&mut self) {
        self.beating.state.lock().end = true;
        self.beating.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread was reported when it happened.
            let _ = thread.join();
        }
    }
}

impl Place {
    fn term(&self, term: u64) -> String {
        join(&self.dir, &format!("{TERM}{term:010}"))
    }

    /// The numbers of all terms that there are directories of, in order.
    fn terms(&self) -> Result<Vec<u64>> {
        let names = match self.storage.list(&self.dir) {
            Err(e) if e.code == Code::NotFound => return Ok(Vec::new()),
            names => names?,
        };
        let number = |name: &String| name.strip_prefix(TERM)?.trim_end_matches('/').parse().ok();
        let mut terms: Vec<u64> = names.iter().filter_map(number).collect();
        terms.sort_unstable();
        Ok(terms)
    }

    fn newest(&self) -> Result<Option<u64>> {
        Ok(self.terms()?.pop())
    }

    /// A term's beat; nothing if its chief has not beaten yet.
    fn read(&self, term: u64) -> Result<Vec<u8>> {
        match read_bounded(&*self.storage, &join(&self.term(term), BEAT), LONGEST_BEAT) {
            Err(e) if e.code == Code::NotFound => Ok(Vec::new()),
            beat => beat,
        }
    }

    fn write(&self, term: u64, beat: &str) -> Result<()> {
        let mut file = self.storage.create(&join(&self.term(term), BEAT))?;
        file.write(beat.as_bytes())?;
        file.publish()
    }

    /// Beats once; whether the term still counts.
    fn beat(&self, term: u64, beating: &Beating) -> Result<bool> {
        let start = Instant::now();
        let count = {
            let mut pulse = beating.state.lock();
            pulse.count += 1;
            pulse.count
        };
        if self.newest()? == Some(term) {
            self.write(term, &format!("{} {count}", self.name))?;
        }
        // Only what is seen after the beat tells that nobody took over meanwhile.
        let counts = self.newest()? == Some(term);
        let mut pulse = beating.state.lock();
        match counts {
            true => pulse.last = start,
            false => pulse.deposed = true,
        }
        Ok(counts)
    }

    fn keep_beating(&self, term: u64, beating: &Beating, pause: Duration) {
        loop {
            {
                let mut pulse = beating.state.lock();
                let changed = &beating.changed;
                changed.wait_while_for(&mut pulse, |pulse| !pulse.end, pause);
                if pulse.end || pulse.deposed {
                    return;
                }
            }
            if let Err(why) = self.beat(term, beating) {
                warn!(%why, "the chief's beat failed");
            }
        }
    }

    /// Clears what earlier terms left.
    fn forget_before(&self, term: u64) {
        let terms = self.terms().unwrap_or_default();
        for old in terms.into_iter().filter(|old| *old < term) {
            let path = self.term(old);
            // Another may clear it too, or its late chief may be writing: it does no harm there.
            let _ = self.storage.delete(&join(&path, BEAT));
            let _ = self.storage.remove_dir(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(2);

    fn wait_until(mut elected: impl FnMut() -> bool) {
        let start = Instant::now();
        while !elected() {
            assert!(start.elapsed() < Duration::from_secs(60), "nobody elected");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn one_of_many_is_chief_and_another_follows_when_it_falls_silent() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().to_str().unwrap();
        let mut all: Vec<LeaseElection> = (0..4)
            .map(|i| LeaseElection::new(dir, &format!("worker {i}"), LEASE))
            .collect();
        let chiefs = |all: &mut Vec<LeaseElection>| -> Vec<usize> {
            let held = all.iter_mut().enumerate();
            held.filter_map(|(i, e)| e.is_chief().then_some(i))
                .collect()
        };
        assert_eq!(chiefs(&mut all), [0]);
        // It beats: after its lease it is still the chief.
        let start = Instant::now();
        while start.elapsed() < LEASE * 3 / 2 {
            assert_eq!(chiefs(&mut all), [0]);
            std::thread::sleep(LEASE / 8);
        }
        let first = all.remove(0);
        assert_eq!(first.term(), Some(1));
        drop(first);
        wait_until(|| !chiefs(&mut all).is_empty());
        assert_eq!(chiefs(&mut all).len(), 1);
        assert_eq!(
            all.iter()
                .filter_map(LeaseElection::term)
                .collect::<Vec<_>>(),
            [2]
        );
    }

    #[test]
    fn a_chief_that_slept_finds_itself_deposed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        let mut first = LeaseElection::new(path, "first", Duration::from_secs(600));
        assert!(first.is_chief());
        // Another saw it silent for longer than a lease.
        std::fs::create_dir(dir.path().join("election/term-0000000002")).unwrap();
        let held = first.held.as_ref().unwrap();
        held.beating.state.lock().last = Instant::now()
            .checked_sub(Duration::from_secs(700))
            .unwrap();
        assert!(!first.is_chief() && first.term().is_none());
    }

    #[test]
    fn a_term_of_long_ago_is_worth_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        std::fs::create_dir_all(dir.path().join("election/term-0000000005")).unwrap();
        let mut late = LeaseElection::new(path, "late", LEASE);
        // It believed term 2 to be the newest when it fell asleep.
        assert!(!late.stand(3).unwrap());
        assert!(late.term().is_none());
    }

    #[test]
    fn many_who_try_at_once_elect_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().to_str().unwrap();
        let elected: Vec<LeaseElection> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|i| {
                    scope.spawn(move || {
                        let name = format!("worker {i}");
                        let mut election =
                            LeaseElection::new(path, &name, Duration::from_secs(600));
                        election.is_chief();
                        election
                    })
                })
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        let terms: Vec<u64> = elected.iter().filter_map(LeaseElection::term).collect();
        assert_eq!(terms, [1]);
    }
}
