//! Helper threads: they run parts of a kernel's loop beside the thread that runs the kernel.
//!
//! The kernel's thread runs the parts one after the other, and helper threads that are free take some of
//! them meanwhile. It does not wait for a helper that has not begun: on a machine that is busy otherwise a loop takes as long as
//! on one thread, not longer. A helper polls for more work before it sleeps, because kernels follow each
//! other closely, and yields its core on each pass.
//!
//! On two cores the helper is pinned to the one where the loop is not running: a busy system looks for no free core
//! when it wakes a thread, but puts it behind the one that woke it.
#![allow(
    unsafe_code,
    reason = "threads that live on run a closure that borrows from its caller's stack"
)]

use downpour_tensor::account::Context;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

/// How often a thread polls, and yields, before it sleeps: about the time between two kernels of a step, if nobody else
/// wants the core.
const POLLS: usize = 100;

/// How many threads a loop may use at once: the caller's and the helpers.
pub fn num_threads() -> usize {
    HELPERS.threads
}

/// Runs `work` here and, on up to `helpers` helper threads, at the same time. It must share what there is to do among
/// those that run it, and be done when all of them return.
pub(crate) fn together(helpers: usize, work: &(dyn Fn() + Sync)) {
    let helpers = helpers.min(HELPERS.threads - 1);
    if helpers == 0 {
        return work();
    }
    let call = Call::open(work);
    HELPERS.ask(&call, helpers);
    let end = End(&call);
    work();
    drop(end);
    let panic = call.state.lock().panic.take();
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

/// Starts the helper threads, which else the first loop would.
pub(crate) fn start() {
    LazyLock::force(&HELPERS);
}

static HELPERS: LazyLock<Helpers> = LazyLock::new(Helpers::start);

struct Helpers {
    threads: usize,
    calls: Arc<Calls>,
}

/// Loops that want help.
#[derive(Default)]
struct Calls {
    list: Mutex<VecDeque<Arc<Call>>>,
    /// How many are in the list, for those who only look.
    count: AtomicUsize,
    wake: Condvar,
    keep_away: affinity::KeepAway,
}

impl Helpers {
    fn start() -> Helpers {
        let wanted = std::thread::available_parallelism().map_or(1, usize::from);
        let calls = Arc::new(Calls::default());
        let mut threads = 1;
        for i in 1..wanted {
            let calls = calls.clone();
            let thread = std::thread::Builder::new().name(format!("helper-{i}"));
            let thread = thread
                .stack_size(16 << 20)
                .spawn(move || calls.serve(wanted));
            threads += usize::from(thread.is_ok());
        }
        Helpers { threads, calls }
    }

    fn ask(&self, call: &Arc<Call>, helpers: usize) {
        let calls = &self.calls;
        calls.keep_away.pin();
        let mut list = calls.list.lock();
        for _ in 0..helpers {
            list.push_back(call.clone());
        }
        calls.count.store(list.len(), Ordering::Release);
        drop(list);
        for _ in 0..helpers {
            calls.wake.notify_one();
        }
    }

    fn forget(&self, call: &Arc<Call>) {
        let calls = &self.calls;
        if calls.count.load(Ordering::Acquire) > 0 {
            let mut list = calls.list.lock();
            list.retain(|c| !Arc::ptr_eq(c, call));
            calls.count.store(list.len(), Ordering::Release);
        }
    }
}

impl Calls {
    /// What a helper thread does, for ever.
    fn serve(&self, threads: usize) {
        self.keep_away.register(threads);
        loop {
            let mut polls = 0;
            let call = loop {
                if self.count.load(Ordering::Acquire) > 0
                    && let Some(call) = self.next()
                {
                    break call;
                }
                if polls == POLLS {
                    break self.wait();
                }
                polls += 1;
                std::thread::yield_now();
            };
            call.help();
        }
    }

    fn next(&self) -> Option<Arc<Call>> {
        let mut list = self.list.lock();
        let call = list.pop_front();
        self.count.store(list.len(), Ordering::Release);
        call
    }

    fn wait(&self) -> Arc<Call> {
        let mut list = self.list.lock();
        loop {
            if let Some(call) = list.pop_front() {
                self.count.store(list.len(), Ordering::Release);
                return call;
            }
            self.wake.wait(&mut list);
        }
    }
}

/// A loop that others may help with.
struct Call {
    /// Lives as long as the call is open, or somebody is inside.
    work: *const (dyn Fn() + Sync),
    /// Whom the work is done for.
    context: Context,
    state: Mutex<State>,
    left: Condvar,
}

struct State {
    is_open: bool,
    inside: usize,
    panic: Option<Box<dyn std::any::Any + Send>>,
}

// SAFETY: what `work` points to is `Sync`, and alive whenever it is used: see `Call::help`.
unsafe impl Send for Call {}
// SAFETY: as above.
unsafe impl Sync for Call {}

impl Call {
    fn open<'a>(work: &'a (dyn Fn() + Sync + 'a)) -> Arc<Call> {
        let work: *const (dyn Fn() + Sync + 'a) = work;
        // SAFETY: only the lifetime changes; that of the borrow is kept by `End`.
        let work = unsafe {
            std::mem::transmute::<*const (dyn Fn() + Sync + 'a), *const (dyn Fn() + Sync)>(work)
        };
        Arc::new(Call {
            work,
            context: Context::current(),
            state: Mutex::new(State {
                is_open: true,
                inside: 0,
                panic: None,
            }),
            left: Condvar::new(),
        })
    }

    /// Does some of the work, if there may be some left.
    fn help(&self) {
        {
            let mut state = self.state.lock();
            if !state.is_open {
                return;
            }
            state.inside += 1;
        }
        // SAFETY: this thread is counted as inside since the call was open, and until it has left, `End`
        // keeps the caller, whose borrow this is, from returning or unwinding.
        let work = unsafe { &*self.work };
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let _working = self.context.help();
            work();
        }));
        let mut state = self.state.lock();
        state.inside -= 1;
        if let Err(panic) = outcome {
            state.panic = Some(panic);
        }
        if state.inside == 0 {
            self.left.notify_one();
        }
    }
}

/// Ends a call: from now on nobody begins, and those inside have left when it is dropped.
struct End<'a>(&'a Arc<Call>);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        state.is_open = false;
        let mut polls = 0;
        while state.inside > 0 {
            if polls == POLLS {
                self.0.left.wait(&mut state);
            } else {
                polls += 1;
                parking_lot::MutexGuard::unlocked(&mut state, std::thread::yield_now);
            }
        }
        drop(state);
        HELPERS.forget(self.0);
    }
}

/// Affinity: on which core the helper runs.
#[cfg(target_os = "linux")]
mod affinity {
    use parking_lot::Mutex;
    use rustix::thread::{CpuSet, Pid, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Keeps the only helper thread away from the core of whoever calls it.
    pub(super) struct KeepAway {
        /// The thread and where it may run.
        thread: Mutex<Option<(Pid, CpuSet)>>,
        /// The core it keeps away from.
        from: AtomicUsize,
    }

    impl Default for KeepAway {
        fn default() -> KeepAway {
            KeepAway {
                thread: Mutex::new(None),
                from: AtomicUsize::new(usize::MAX),
            }
        }
    }

    impl KeepAway {
        /// Said by the thread itself. With more than two cores the system finds a free one.
        pub(super) fn register(&self, threads: usize) {
            if threads == 2
                && let Ok(allowed) = sched_getaffinity(None)
                && allowed.count() == 2
            {
                *self.thread.lock() = Some((gettid(), allowed));
            }
        }

        /// Pins the thread to the core where the caller is not.
        pub(super) fn pin(&self) {
            let here = sched_getcpu();
            if self.from.load(Ordering::Relaxed) == here {
                return;
            }
            let thread = self.thread.lock();
            let Some((thread, allowed)) = &*thread else {
                return;
            };
            let mut other = *allowed;
            other.unset(here);
            // Where the system refuses, it knows better.
            if other.count() == 1 && sched_setaffinity(Some(*thread), &other).is_ok() {
                self.from.store(here, Ordering::Relaxed);
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod affinity {
    #[derive(Default)]
    pub(super) struct KeepAway;

    impl KeepAway {
        pub(super) fn register(&self, _: usize) {}
        pub(super) fn pin(&self) {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    /// Adds up numbers by parts, on as many threads as there are.
    fn sum(parts: usize) -> u64 {
        let (next, total) = (AtomicUsize::new(0), AtomicU64::new(0));
        together(8, &|| {
            loop {
                let part = next.fetch_add(1, Ordering::Relaxed);
                if part >= parts {
                    return;
                }
                total.fetch_add(part as u64, Ordering::Relaxed);
            }
        });
        total.into_inner()
    }

    #[test]
    fn every_part_is_done_once_however_many_call() {
        let threads: Vec<_> = (0..8)
            .map(|_| {
                std::thread::spawn(|| {
                    for parts in 0..500 {
                        let want = (0..parts as u64).sum();
                        assert_eq!(sum(parts), want);
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_loop_within_a_loop_ends() {
        let total = AtomicU64::new(0);
        together(8, &|| {
            total.fetch_add(sum(10), Ordering::Relaxed);
        });
        assert!(total.into_inner().is_multiple_of(45));
    }

    #[test]
    fn a_panic_of_any_thread_reaches_the_caller_after_the_others_have_left() {
        for _ in 0..50 {
            let inside = AtomicUsize::new(0);
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                together(8, &|| {
                    inside.fetch_add(1, Ordering::SeqCst);
                    std::thread::sleep(std::time::Duration::from_micros(200));
                    inside.fetch_sub(1, Ordering::SeqCst);
                    panic!("expected by the test");
                });
            }));
            assert!(outcome.is_err());
            assert_eq!(inside.into_inner(), 0);
        }
        assert_eq!(sum(100), 4950);
    }
}
