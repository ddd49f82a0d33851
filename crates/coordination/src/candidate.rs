//! The rules of an election, without I/O: time is an argument, requests come out, replies go in.
//!
//! All members share one register that is changed by compare-and-swap. The chief renews its record
//! several times a lease. Others watch the record by their own clock; once it has not changed for a
//! lease and a margin, one of them swaps in its own with the next epoch.
//!
//! ```text
//! watching ──unchanged for lease + margin (or vacant), swap succeeds──► chief, epoch + 1
//!    ▲                                                                    │
//!    └── a lease since the last renewal that succeeded was *sent*, or another's record ──┘
//! ```
//!
//! At most one member holds the office at a time: the chief counts its lease from when it sent a
//! renewal, others theirs from when they saw it, which is later. Clocks need not agree, only run at
//! the same rate within the margin.
//!
//! A chief commits a checkpoint by a renewal that names it. Every record after it carries the name on. So
//! what a chief commits is there before the next epoch begins, or never: its swap finds another version.

use crate::record::{Record, Version};
use std::time::Duration;

/// How often the chief renews, and others look, in one lease.
const BEATS: u32 = 4;
/// The part of a lease that others wait longer, for clocks that run at different rates.
const MARGIN: u32 = 8;

/// What the register is to be asked.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// What it holds.
    Read,
    /// Put a record in place of the one of this version.
    Swap(Version, Record),
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// What the register holds.
    Holds(Version, Record),
    /// The swap succeeded; the record has this version now.
    Swapped(Version),
    /// The register held another version.
    Conflict,
    /// No answer in time: it may have been carried out, or may yet be.
    Unknown,
}

/// One member's part in an election.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    name: String,
    lease: Duration,
    /// The epoch that is held, and until when.
    office: Option<(u64, Duration)>,
    /// What was last seen, and when first.
    seen: Option<(Version, Record, Duration)>,
    /// When the request that is under way was sent.
    asked: Option<(Duration, Request)>,
    /// Not before this time is the register asked again.
    next: Duration,
    /// Makes records of one holder differ.
    beat: u64,
    /// What the next renewal commits.
    to_commit: Option<String>,
    is_leaving: bool,
    has_left: bool,
}

impl Candidate {
    /// A member that stands for election.
    pub fn new(name: &str, lease: Duration) -> Candidate {
        Candidate {
            name: name.to_owned(),
            lease,
            office: None,
            seen: None,
            asked: None,
            next: Duration::ZERO,
            beat: 0,
            to_commit: None,
            is_leaving: false,
            has_left: false,
        }
    }

    /// The epoch in which this member is chief now. A later chief's is higher.
    pub fn epoch(&self, now: Duration) -> Option<u64> {
        self.office
            .filter(|(_, until)| now < *until)
            .map(|(epoch, _)| epoch)
    }

    /// Until when it is chief if nothing is heard.
    pub fn until(&self) -> Option<Duration> {
        self.office.map(|(_, until)| until)
    }

    /// Who was last seen as the chief, and in which epoch.
    pub fn chief(&self) -> Option<(&str, u64)> {
        let (_, record, _) = self.seen.as_ref()?;
        (!record.holder.is_empty()).then_some((record.holder.as_str(), record.epoch))
    }

    /// What was committed last, as far as this member has seen.
    pub fn checkpoint(&self) -> Option<&str> {
        let (_, record, _) = self.seen.as_ref()?;
        Some(record.checkpoint.as_str())
    }

    /// Commits a checkpoint if the office is held in this epoch; whether it is. It is committed once
    /// [`Self::checkpoint`] says so, and never if the office ends before.
    pub fn commit(&mut self, epoch: u64, checkpoint: &str, now: Duration) -> bool {
        let is_chief = self.epoch(now) == Some(epoch);
        if is_chief {
            self.to_commit = Some(checkpoint.to_owned());
            self.next = now;
        }
        is_chief
    }

    fn lose_office(&mut self) {
        (self.office, self.to_commit) = (None, None);
    }

    /// Gives the office up: at once here, and in the register as soon as it answers.
    pub fn resign(&mut self, now: Duration) {
        self.is_leaving = true;
        self.has_left = self.epoch(now).is_none() && self.asked.is_none();
        self.lose_office();
        self.next = now;
    }

    /// Whether nothing more is to be asked after [`Self::resign`].
    pub fn has_left(&self) -> bool {
        self.has_left
    }

    /// When to look again, if there is nothing to ask now.
    pub fn next(&self) -> Duration {
        self.next
    }

    /// What to ask of the register now. Nothing while a request is under way.
    pub fn poll(&mut self, now: Duration) -> Option<Request> {
        if self.office.is_some_and(|(_, until)| now >= until) {
            self.lose_office();
        }
        if self.asked.is_some() || self.has_left || now < self.next {
            return None;
        }
        let request = self.wanted(now);
        self.asked = Some((now, request.clone()));
        Some(request)
    }

    fn wanted(&mut self, now: Duration) -> Request {
        let Some((version, record, since)) = &self.seen else {
            return Request::Read;
        };
        let is_own = record.holder == self.name;
        if self.is_leaving {
            return match is_own {
                true => {
                    let vacant = Record::vacant(record.epoch);
                    Request::Swap(*version, vacant.with_checkpoint(&record.checkpoint))
                }
                false => Request::Read,
            };
        }
        let is_silent = now.saturating_sub(*since) >= self.lease + self.lease / MARGIN;
        let epoch = match (is_own && self.office.is_some(), record.holder.is_empty()) {
            (true, _) => record.epoch,
            (false, true) => record.epoch + 1,
            // Its own record of an office that it has lost is another's: the epoch must change.
            (false, false) if is_silent => record.epoch + 1,
            (false, false) => return Request::Read,
        };
        let version = *version;
        let checkpoint = self.to_commit.as_ref().unwrap_or(&record.checkpoint);
        let new = Record::of(&self.name, epoch, self.beat + 1).with_checkpoint(checkpoint);
        self.beat += 1;
        Request::Swap(version, new)
    }

    /// Takes the reply to the request under way.
    pub fn answered(&mut self, reply: Reply, now: Duration) {
        let Some((sent, request)) = self.asked.take() else {
            return;
        };
        self.next = now + self.lease / BEATS;
        match (reply, request) {
            (Reply::Holds(version, record), _) => self.saw(version, record, now),
            (Reply::Swapped(version), Request::Swap(_, record)) => {
                if record.holder == self.name && !self.is_leaving {
                    self.office = Some((record.epoch, sent + self.lease));
                    if self.to_commit.as_ref() == Some(&record.checkpoint) {
                        self.to_commit = None;
                    }
                    // What is to be committed since then need not wait for the next renewal.
                    self.next = match self.to_commit {
                        Some(_) => now,
                        None => sent + self.lease / BEATS,
                    };
                }
                self.has_left = record.holder.is_empty() && self.is_leaving;
                self.seen = Some((version, record, now));
                if self.is_leaving && !self.has_left {
                    self.next = now;
                }
            }
            // Who swapped, and whether it was a request of one's own that came late, only a look tells.
            (Reply::Conflict | Reply::Swapped(_), _) => {
                self.seen = None;
                self.next = now;
            }
            // The office lasts as long as the last renewal that is known to have succeeded.
            (Reply::Unknown, Request::Swap(..)) => self.seen = None,
            (Reply::Unknown, Request::Read) => {}
        }
    }

    fn saw(&mut self, version: Version, record: Record, now: Duration) {
        let is_own = record.holder == self.name;
        // A record of one's own epoch is a renewal whose reply was lost: the office goes on.
        if self
            .office
            .is_some_and(|(epoch, _)| !is_own || record.epoch != epoch)
        {
            self.lose_office();
        }
        self.has_left = self.is_leaving && !is_own;
        let wants_now = (is_own && self.office.is_some())
            || record.holder.is_empty()
            || (is_own && self.is_leaving);
        if wants_now {
            self.next = now;
        }
        match &self.seen {
            Some((had, ..)) if *had == version => {}
            _ => self.seen = Some((version, record, now)),
        }
    }
}
