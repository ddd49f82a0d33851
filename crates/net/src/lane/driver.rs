//! Who reads the lanes: one thread at a time. Usually it is a thread of its own; a client that waits for
//! its step takes over and reads for everyone, so that what comes for the step is done where it is
//! waited for, and no thread wakes another.
//!
//! ```text
//!            a client waits                       it is done, and others wait
//!   thread ─────────────────► client ─────────────────────────────────────────► other client
//!      ▲                          │ it is done, and nothing has been read for a moment
//!      └──────────────────────────┘
//! ```
//! Whoever reads looks for a moment before it sleeps, because a message that finds its receiver asleep costs
//! a wake-up of a core; meanwhile it gives way to whoever wants the core.

use super::one::Lane;
use super::reader::Arrival;
use super::seat::Seated;
use super::{Lanes, held, pulse};
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

/// How long to look before sleeping. Messages between tasks of a host, with what the other does before it answers, take less.
const MOMENT: u64 = 60_000;

/// What giving way counts for, however long others had the core: then they are what is waited for, and each pass costs
/// little.
const GIVEN_WAY: u64 = 30_000;

/// Whoever keeps the core for so long after it was given has work of its own, if it does so twice within `WARY`, or was there
/// before: once may have been the system.
const HOG: u64 = 1_000_000;

/// How long not to give way to such a one: it takes the core for a whole turn, while who sleeps gets it as soon as something
/// comes.
const WARY: u64 = 40_000_000;

/// How often a client's thread goes to its task's core.
const VISIT: u64 = 2_000_000;

/// How long after such a one was there threads do not keep to their core.
const AWAY: u64 = 200_000_000;

/// How long after a client's last look the lanes are still its own: the time to its next step.
const CLAIM: u64 = 1_000_000;

/// How often the lanes' own thread looks whether a client still reads them.
const GLANCE: Duration = Duration::from_millis(2);

thread_local! {
    static IS_LENT: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread waits for a step and has nothing else to do.
pub fn is_lent() -> bool {
    IS_LENT.get()
}

/// The right to read.
pub(crate) struct Driver {
    start: Instant,
    role: Mutex<Role>,
    /// Ends a sleep.
    bell: OwnedFd,
    /// Whether whoever reads may be asleep.
    is_asleep: AtomicBool,
    /// Whether the lanes' own thread reads.
    is_attended: AtomicBool,
    /// Until when the lanes are a client's, in nanoseconds from `start`.
    claimed: AtomicU64,
    /// When the core was last kept for long by another, and until when to sleep at once, in nanoseconds from `start`.
    hogged: AtomicU64,
    wary: AtomicU64,
    /// When a client's thread last went to its task's core.
    visited: AtomicU64,
    /// Clients that wait while another reads.
    waiting: Mutex<Vec<Thread>>,
}

/// What whoever reads needs.
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
            hogged: AtomicU64::new(0),
            wary: AtomicU64::new(0),
            visited: AtomicU64::new(0),
            waiting: Mutex::default(),
        })
    }

    /// Nanoseconds since the driver was made.
    pub(crate) fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Wakes whoever reads, to look at what has changed.
    pub(crate) fn kick(&self) {
        if self.is_asleep.load(Ordering::SeqCst) {
            // One that rings already is enough.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    /// Whether nobody else wants the cores.
    fn is_calm(&self, now: u64) -> bool {
        let wary = self.wary.load(Ordering::Relaxed);
        wary == 0 || now > wary + AWAY
    }

    /// Keeps the lanes' own thread to its core.
    fn sit(&self, lanes: &Lanes, seated: &mut Option<Seated>) {
        if !self.is_calm(self.now()) {
            *seated = None;
        } else if seated.is_none()
            && let Some(seat) = lanes.seat.get()
        {
            *seated = seat.take();
        }
    }

    /// Brings a client's thread to its task's core, now and then: it is never bound.
    fn visit(&self, lanes: &Lanes) {
        let now = self.now();
        if now < self.visited.load(Ordering::Relaxed) + VISIT || !self.is_calm(now) {
            return;
        }
        self.visited.store(now, Ordering::Relaxed);
        if let Some(seat) = lanes.seat.get() {
            seat.visit();
        }
    }

    fn claim(&self) {
        self.claimed.store(self.now() + CLAIM, Ordering::Relaxed);
    }

    /// The lanes' own thread.
    pub(crate) fn attend(lanes: &Weak<Lanes>) {
        let mut seated = None;
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
                std::thread::sleep(GLANCE);
                continue;
            }
            let Some(role) = driver.role.try_lock() else {
                drop(lanes);
                std::thread::sleep(GLANCE);
                continue;
            };
            let is_claimed = || driver.now() < driver.claimed.load(Ordering::Relaxed);
            let from = role.last;
            driver.is_attended.store(true, Ordering::SeqCst);
            driver.sit(&lanes, &mut seated);
            driver.turn(role, &lanes, from, &is_claimed);
            driver.is_attended.store(false, Ordering::SeqCst);
            if is_claimed() {
                driver.wake_next();
            }
        }
    }

    /// Looks for something that has come, awake for a moment from `from` on, and does what it asks for;
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
        // What it has looked for already, and what it looks now.
        let mut spent = idle.min(MOMENT);
        loop {
            let ended = role.read(self, &mut arrivals);
            if !arrivals.is_empty() || !ended.is_empty() {
                role.last = self.now();
                drop(role);
                held::holding(|| {
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
            if spent >= MOMENT || since < self.wary.load(Ordering::Relaxed) {
                return self.sleep(role, lanes, leave);
            }
            std::thread::yield_now();
            let now = self.now();
            if now - since > HOG {
                let last = self.hogged.swap(now, Ordering::Relaxed);
                if last != 0 && now < last + WARY || !self.is_calm(now) {
                    self.wary.store(now + WARY, Ordering::Relaxed);
                }
            }
            spent += (now - since).min(GIVEN_WAY);
            since = now;
        }
    }

    /// Sleeps until something comes.
    fn sleep(&self, role: MutexGuard<'_, Role>, lanes: &Lanes, leave: &dyn Fn() -> bool) {
        self.is_asleep.store(true, Ordering::SeqCst);
        // Whoever wanted something said so before, or sees that this thread sleeps.
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
        let before = IS_LENT.replace(true);
        let outcome = loop {
            if let Poll::Ready(outcome) = held::holding(|| future.as_mut().poll(&mut context)) {
                break outcome;
            }
            // One that waits within another must not keep what the other holds back.
            held::let_go();
            let from = self.now();
            let is_woken = || signal.is_woken.load(Ordering::SeqCst);
            while !signal.is_woken.swap(false, Ordering::SeqCst) {
                self.claim();
                self.visit(lanes);
                match self.role.try_lock() {
                    Some(role) => self.turn(role, lanes, from, &is_woken),
                    None => {
                        self.wait_in_line(&signal.thread);
                        if self.is_attended.load(Ordering::SeqCst) {
                            self.kick();
                        }
                        if !is_woken() {
                            std::thread::park_timeout(GLANCE);
                        }
                    }
                }
            }
        };
        IS_LENT.set(before);
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
        // Whatever ends the sleep is looked at by whoever looks next.
        let _ = rustix::event::poll(&mut watched, Some(&tick));
    }
}
