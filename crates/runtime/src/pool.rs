//! A device's executor threads: they take jobs from one queue.
//!
//! As many run at once as the device has threads, and one more for each that is in a long kernel, up to a bound: what is short
//! gets its turn beside what is long, across sessions, and the system shares the cores among them.

use crate::device::become_executor;
use crate::helper_threads;
use parking_lot::{Condvar, Mutex};
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

type Job = Box<dyn FnOnce() + Send>;

/// Threads beyond those of the device, at most: each has a stack, and long kernels gain nothing from more.
const SPARE: usize = 8;

/// Long-lived threads that take jobs from one queue.
pub(crate) struct ExecutorThreads {
    queue: Arc<Queue>,
}

struct Queue {
    state: Mutex<State>,
    wake: Condvar,
    /// How many run at once if none is in a long kernel.
    usual: usize,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    closed: bool,
    threads: usize,
    /// Threads that run a job.
    running: usize,
    /// Those of them that are in a long kernel.
    long: usize,
}

thread_local! {
    /// The queue that the thread takes its jobs from.
    static SERVES: Cell<*const Queue> = const { Cell::new(std::ptr::null()) };
}

impl ExecutorThreads {
    pub(crate) fn start(count: usize) -> ExecutorThreads {
        let queue = Arc::new(Queue {
            state: Mutex::default(),
            wake: Condvar::new(),
            usual: count,
        });
        for i in 0..count {
            let started = add_thread(&queue, &mut queue.state.lock());
            // Without one thread nothing would ever run; with one, everything does.
            assert!(i > 0 || started, "cannot start an executor thread");
        }
        // Those for parts of kernels too: made by whoever needs them first, they would run only where that one may.
        helper_threads::start();
        ExecutorThreads { queue }
    }

    pub(crate) fn spawn(&self, job: Job) {
        let mut state = self.queue.state.lock();
        state.jobs.push_back(job);
        self.queue.rouse(&mut state);
    }

    /// Runs something long; meanwhile the thread, if it is one of these, does not count.
    pub(crate) fn at_length<T>(&self, run: impl FnOnce() -> T) -> T {
        if !std::ptr::eq(SERVES.get(), Arc::as_ptr(&self.queue)) {
            return run();
        }
        let mut state = self.queue.state.lock();
        state.long += 1;
        self.queue.rouse(&mut state);
        drop(state);
        let _end = Long(&self.queue);
        run()
    }
}

struct Long<'a>(&'a Queue);

impl Drop for Long<'_> {
    fn drop(&mut self) {
        self.0.state.lock().long -= 1;
    }
}

impl Drop for ExecutorThreads {
    fn drop(&mut self) {
        self.queue.state.lock().closed = true;
        self.queue.wake.notify_all();
    }
}

impl Queue {
    /// Whether one more job may run.
    fn has_turn(&self, state: &State) -> bool {
        !state.jobs.is_empty() && state.running < self.usual + state.long.min(SPARE)
    }

    /// Finds a thread for a job that may run.
    fn rouse(self: &Arc<Self>, state: &mut State) {
        if !self.has_turn(state) {
            return;
        }
        if state.running == state.threads && state.threads < self.usual + SPARE {
            // Without it the job waits for one of the others.
            add_thread(self, state);
        }
        self.wake.notify_one();
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.state.lock();
        loop {
            if self.has_turn(&state)
                && let Some(job) = state.jobs.pop_front()
            {
                state.running += 1;
                return Some(job);
            }
            if state.closed && state.jobs.is_empty() {
                return None;
            }
            self.wake.wait(&mut state);
        }
    }
}

fn add_thread(queue: &Arc<Queue>, state: &mut State) -> bool {
    let serves = queue.clone();
    let started = std::thread::Builder::new()
        .name(format!("executor-{}", state.threads))
        .stack_size(16 << 20)
        .spawn(move || run_jobs(&serves));
    state.threads += usize::from(started.is_ok());
    started.is_ok()
}

fn run_jobs(queue: &Arc<Queue>) {
    become_executor();
    SERVES.set(Arc::as_ptr(queue));
    while let Some(job) = queue.next() {
        // A job that panics is a bug caught per kernel; the thread must survive any other.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
        let mut state = queue.state.lock();
        state.running -= 1;
        // Whoever did not have a turn before may have one now, and this thread may be about to end.
        if state.closed {
            queue.wake.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    #[test]
    fn short_jobs_run_while_every_thread_is_in_a_long_one() {
        let pool = Arc::new(ExecutorThreads::start(2));
        let (release, hold) = channel::<()>();
        let hold = Arc::new(Mutex::new(hold));
        for _ in 0..3 {
            let (pool2, hold) = (pool.clone(), hold.clone());
            pool.spawn(Box::new(move || {
                pool2.at_length(|| {
                    let _ = hold.lock().recv();
                });
            }));
        }
        let (done, all) = channel();
        for i in 0..20 {
            let done = done.clone();
            pool.spawn(Box::new(move || done.send(i).unwrap()));
        }
        for _ in 0..20 {
            all.recv_timeout(Duration::from_secs(20)).unwrap();
        }
        drop(release);
        let done = done.clone();
        pool.spawn(Box::new(move || done.send(99).unwrap()));
        assert_eq!(all.recv_timeout(Duration::from_secs(20)).unwrap(), 99);
    }
}
