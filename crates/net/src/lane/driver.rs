//! Who reads the lanes: one thread at a time. Usually it is a thread of its own; a client that waits for
//! its step takes over and reads for everyone, so that what comes for the step is done where it is
//! waited for, and no thread wakes another.
//!
//! ```text
//!            a client waits                       it is done, and others wait
//!   thread ─────────────────► client ─────────────────────────────────────────► other client
//!      ▲                          │ it is done, and nothing has been read for `CLAIM_FOR`
//!      └──────────────────────────┘
//! ```
//! The reader spins for `SPIN_FOR` before it sleeps, because a message that finds its receiver asleep costs a wake-up of a
//! core, several times what handling it does. It yields on each pass. If another program then keeps the core, the reader
//! stops spinning (`NO_SPIN_FOR`) and its threads are no longer pinned (`NO_PIN_FOR`).

use super::affinity::Pinned;
use super::lane::Lane;
use super::reader::Arrival;
use super::{Lanes, nanos, pulse, write_batch};
use parking_lot::{Mutex, MutexGuard};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use std::cell::Cell;
use std::io;
use std::os::fd::OwnedFd;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long to spin before sleeping. Messages between tasks of a host, with what the other does before it answers, take less.
const SPIN_FOR: Duration = Duration::from_micros(60);

/// The most that one yield counts towards `SPIN_FOR`, however long others had the core: they may be what is waited for, and
/// a pass costs little.
const YIELD_COUNTS_AT_MOST: Duration = Duration::from_micros(30);

/// A yield that takes this long met a program with work of its own, if it happens twice within `NO_SPIN_FOR` or such a
/// program was there before: once may have been the system.
const FOREIGN_LOAD_AFTER: Duration = Duration::from_millis(1);

/// How long to sleep at once instead of spinning when such a program is there: a thread that yields to it gets the core back
/// only after a whole time slice, one that sleeps as soon as something comes.
const NO_SPIN_FOR: Duration = Duration::from_millis(40);

/// How often a client's thread is moved back to its task's core.
const REPIN_EVERY: Duration = Duration::from_millis(2);

/// How long threads stay unpinned after such a program was there.
const NO_PIN_FOR: Duration = Duration::from_millis(200);

/// How long the lanes remain a client's after it last read them: the time to its next step.
const CLAIM_FOR: Duration = Duration::from_millis(1);

/// How often the lanes' own thread polls whether a client still reads them.
const POLL_CLAIM_EVERY: Duration = Duration::from_millis(2);

thread_local! {
    static IS_WAITING_CLIENT: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread waits for a step and has nothing else to do.
pub fn is_waiting_client() -> bool {
    IS_WAITING_CLIENT.get()
}

/// The right to read.
pub(crate) struct Driver {
    start: Instant,
    role: Mutex<Role>,
    /// Ends a sleep.
    bell: OwnedFd,
    /// Whether the reader may be asleep.
    is_asleep: AtomicBool,
    /// Whether the lanes' own thread reads.
    is_attended: AtomicBool,
    /// Until when the lanes are a client's, in nanoseconds from `start`.
    claimed: AtomicU64,
    /// When another program last kept the core, and until when not to spin, in nanoseconds from `start`.
    foreign_load: AtomicU64,
    no_spin_until: AtomicU64,
    /// When a client's thread was last moved to its task's core.
    repinned: AtomicU64,
    /// Clients that wait while another reads.
    waiting: Mutex<Vec<Thread>>,
}

/// What the reader needs: only the thread that holds it reads.
#[derive(Default)]
struct Role {
    lanes: Vec<Arc<Lane>>,
    version: u64,
    last: u64,
}

impl Driver {
    pub(crate) fn new() -> io::Result<Driver> {
        Ok(Driver {
            start: Instant::now(),
            role: Mutex::default(),
            bell: rustix::event::eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            is_asleep: AtomicBool::new(false),
            is_attended: AtomicBool::new(false),
            claimed: AtomicU64::new(0),
            foreign_load: AtomicU64::new(0),
            no_spin_until: AtomicU64::new(0),
            repinned: AtomicU64::new(0),
            waiting: Mutex::default(),
        })
    }

    /// Nanoseconds since the driver was made.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Wakes the reader, if it sleeps.
    pub(crate) fn kick(&self) {
        if self.is_asleep.load(Ordering::SeqCst) {
            // One that rings already is enough.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Whether nobody else wants the cores.
    fn is_calm(&self, now: u64) -> bool {
        let until = self.no_spin_until.load(Ordering::Relaxed);
        until == 0 || now > until + nanos(NO_PIN_FOR)
    }

    /// Pins the lanes' own thread to its core, unless another program wants it.
    fn pin(&self, lanes: &Lanes, pinned: &mut Option<Pinned>) {
        if !self.is_calm(self.now()) {
            *pinned = None;
        } else if pinned.is_none()
            && let Some(affinity) = lanes.affinity.get()
        {
            *pinned = affinity.pin();
        }
    }

    /// Moves a client's thread to its task's core, every `REPIN_EVERY`: it is never pinned, since it may start others.
    fn repin(&self, lanes: &Lanes) {
        let now = self.now();
        if now < self.repinned.load(Ordering::Relaxed) + nanos(REPIN_EVERY) || !self.is_calm(now) {
            return;
        }
        self.repinned.store(now, Ordering::Relaxed);
        if let Some(affinity) = lanes.affinity.get() {
            affinity.move_here();
        }
    }

    fn claim(&self) {
        self.claimed
            .store(self.now() + nanos(CLAIM_FOR), Ordering::Relaxed);
    }

    /// The lanes' own thread.
    pub(crate) fn attend(lanes: &Weak<Lanes>) {
        let mut pinned = None;
        loop {
            let Some(lanes) = lanes.upgrade() else {
                return;
            };
            if lanes.is_closed() {
                return;
            }
            let driver = &lanes.driver;
            if driver.now() < driver.claimed.load(Ordering::Relaxed) {
                drop(lanes);
                std::thread::sleep(POLL_CLAIM_EVERY);
                continue;
            }
            let Some(role) = driver.role.try_lock() else {
                drop(lanes);
                std::thread::sleep(POLL_CLAIM_EVERY);
                continue;
            };
            let is_claimed = || driver.now() < driver.claimed.load(Ordering::Relaxed);
            let from = role.last;
            driver.is_attended.store(true, Ordering::SeqCst);
            driver.pin(&lanes, &mut pinned);
            driver.turn(role, &lanes, from, &is_claimed);
            driver.is_attended.store(false, Ordering::SeqCst);
            if is_claimed() {
                driver.wake_next();
            }
        }
    }

    /// Reads once: spins until something comes or `SPIN_FOR` from `from` on is spent, then sleeps. Handles what came;
    /// `leave` says when to give up.
    fn turn(
        &self,
        mut role: MutexGuard<'_, Role>,
        lanes: &Lanes,
        from: u64,
        leave: &dyn Fn() -> bool,
    ) {
        role.refresh(lanes);
        let mut arrivals = Vec::new();
        let mut since = self.now();
        let idle = since.saturating_sub(from.max(role.last));
        // What was spun already, and what is spun now.
        let mut spent = idle.min(nanos(SPIN_FOR));
        loop {
            let ended = role.read(self, &mut arrivals);
            if !arrivals.is_empty() || !ended.is_empty() {
                role.last = self.now();
                drop(role);
                write_batch::batching(|| {
                    // What came before the end counts.
                    for (lane, arrival) in arrivals {
                        lane.handle(arrival, lanes);
                    }
                    for (lane, reason) in ended {
                        lanes.end(&lane, reason);
                    }
                });
                // Also when there is always something to do: one peer may be silent while others are not.
                return lanes.look_after();
            }
            if leave() {
                return;
            }
            if spent >= nanos(SPIN_FOR) || since < self.no_spin_until.load(Ordering::Relaxed) {
                return self.sleep(role, lanes, leave);
            }
            std::thread::yield_now();
            let now = self.now();
            if now - since > nanos(FOREIGN_LOAD_AFTER) {
                let last = self.foreign_load.swap(now, Ordering::Relaxed);
                if last != 0 && now < last + nanos(NO_SPIN_FOR) || !self.is_calm(now) {
                    self.no_spin_until
                        .store(now + nanos(NO_SPIN_FOR), Ordering::Relaxed);
                }
            }
            spent += (now - since).min(nanos(YIELD_COUNTS_AT_MOST));
            since = now;
        }
    }

    /// Sleeps until something comes.
    fn sleep(&self, role: MutexGuard<'_, Role>, lanes: &Lanes, leave: &dyn Fn() -> bool) {
        self.is_asleep.store(true, Ordering::SeqCst);
        // A thread that wants something said so before, or sees that this one sleeps.
        if !leave() && role.version == lanes.version() {
            role.wait(&self.bell, lanes);
        }
        self.is_asleep.store(false, Ordering::SeqCst);
        let mut rings = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut rings);
        drop(role);
        lanes.look_after();
    }

    /// Waits for `future` on this thread, and reads the lanes meanwhile.
    pub(crate) fn block_on<T>(&self, lanes: &Lanes, future: impl Future<Output = T>) -> T {
        let signal = Arc::new(Signal {
            is_woken: AtomicBool::new(false),
            thread: std::thread::current(),
            bell: lanes.me.clone(),
        });
        let waker = Waker::from(signal.clone());
        let mut context = Context::from_waker(&waker);
        let mut future = pin!(future);
        let before = IS_WAITING_CLIENT.replace(true);
        let outcome = loop {
            if let Poll::Ready(outcome) =
                write_batch::batching(|| future.as_mut().poll(&mut context))
            {
                break outcome;
            }
            // A wait within another must not leave the outer one's frames unflushed.
            write_batch::flush_batch();
            let from = self.now();
            let is_woken = || signal.is_woken.load(Ordering::SeqCst);
            while !signal.is_woken.swap(false, Ordering::SeqCst) {
                self.claim();
                self.repin(lanes);
                match self.role.try_lock() {
                    Some(role) => self.turn(role, lanes, from, &is_woken),
                    None => {
                        self.wait_in_line(&signal.thread);
                        if self.is_attended.load(Ordering::SeqCst) {
                            self.kick();
                        }
                        if !is_woken() {
                            std::thread::park_timeout(POLL_CLAIM_EVERY);
                        }
                    }
                }
            }
        };
        IS_WAITING_CLIENT.set(before);
        self.claim();
        self.waiting.lock().retain(|t| t.id() != signal.thread.id());
        // Someone else may wait for what comes.
        self.wake_next();
        outcome
    }

    fn wait_in_line(&self, thread: &Thread) {
        let mut waiting = self.waiting.lock();
        if waiting.iter().all(|t| t.id() != thread.id()) {
            waiting.push(thread.clone());
        }
    }

    fn wake_next(&self) {
        let next = self.waiting.lock().pop();
        if let Some(next) = next {
            next.unpark();
        }
    }
}

/// Wakes a client that reads, or waits for another to read.
struct Signal {
    is_woken: AtomicBool,
    thread: Thread,
    bell: Weak<Lanes>,
}

impl Wake for Signal {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.is_woken.store(true, Ordering::SeqCst);
        if std::thread::current().id() == self.thread.id() {
            return;
        }
        self.thread.unpark();
        if let Some(lanes) = self.bell.upgrade() {
            lanes.driver.kick();
        }
    }
}

type Read = Vec<(Arc<Lane>, Arrival)>;

impl Role {
    fn refresh(&mut self, lanes: &Lanes) {
        if self.version != lanes.version() {
            (self.version, self.lanes) = lanes.current();
        }
    }

    /// Reads every lane; those that have ended come back.
    fn read(&self, driver: &Driver, out: &mut Read) -> Vec<(Arc<Lane>, io::Error)> {
        let mut ended = Vec::new();
        let mut found = Vec::new();
        for lane in &self.lanes {
            match lane.read(&mut found) {
                Ok(0) => {}
                Ok(_) => {
                    lane.pulse.heard(driver.now());
                }
                Err(e) => ended.push((lane.clone(), e)),
            }
            out.extend(found.drain(..).map(|arrival| (lane.clone(), arrival)));
            if lane.is_full() {
                lane.writable();
            }
        }
        ended
    }

    /// Sleeps until a lane has something, or the bell rings.
    fn wait(&self, bell: &OwnedFd, lanes: &Lanes) {
        let mut watched: Vec<PollFd<'_>> = Vec::with_capacity(self.lanes.len() + 1);
        watched.push(PollFd::new(bell, PollFlags::IN));
        for lane in &self.lanes {
            let mut events = PollFlags::IN;
            if lane.is_full() {
                events |= PollFlags::OUT;
            }
            watched.push(PollFd::new(&lane.socket, events));
        }
        // Someone may begin to wait for a peer meanwhile, whose silence must be noticed.
        let tick = lanes.silence() / pulse::LOOKS as u32;
        let tick = Timespec {
            tv_sec: tick.as_secs() as i64,
            tv_nsec: i64::from(tick.subsec_nanos()),
        };
        // The next pass reads whatever ended the sleep.
        let _ = rustix::event::poll(&mut watched, Some(&tick));
    }
}
