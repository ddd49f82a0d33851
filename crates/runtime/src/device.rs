//! A device: its name, its resources, its threads, its memory budget, and whatever the wiring
//! crate lends to kernels (storage, clocks) by type.
//!
//! Steps run on the device's own executor threads; loops inside kernels are split over the
//! process' [`crew`]. The two are kept apart on purpose: a thread that waits for its loop must never
//! pick up another step, which might want a lock that the waiting kernel holds.

use crate::{ResourceManager, crew};
use downpour_graph::{Result, Status};
use downpour_tensor::{DType, Shape};
use parking_lot::{Condvar, Mutex};
use std::any::{Any, TypeId};
use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

/// One CPU of one task.
pub struct Device {
    /// Full name, as in `/job:worker/replica:0/task:0/device:CPU:0`.
    pub name: String,
    /// Changes whenever the process restarts.
    pub incarnation: u64,
    /// Default container: the job name.
    pub default_container: String,
    /// Resources that outlive steps.
    pub resources: Arc<ResourceManager>,
    /// Limit on what one kernel may allocate.
    pub memory: MemoryBudget,
    /// Things lent to kernels, by type.
    pub extensions: Extensions,
    threads: Arc<ExecutorThreads>,
}

impl Device {
    /// A CPU device with `threads` executor threads.
    pub fn cpu(
        name: String,
        job: &str,
        incarnation: u64,
        threads: usize,
        memory: MemoryBudget,
        extensions: Extensions,
    ) -> Device {
        Device {
            name,
            incarnation,
            default_container: job.to_owned(),
            resources: Arc::new(ResourceManager::new()),
            memory,
            extensions,
            threads: Arc::new(ExecutorThreads::start(threads.max(1))),
        }
    }

    /// The same device and resources, as a value of its own.
    pub fn shared(&self) -> Device {
        Device {
            name: self.name.clone(),
            incarnation: self.incarnation,
            default_container: self.default_container.clone(),
            resources: self.resources.clone(),
            memory: self.memory,
            extensions: self.extensions.clone(),
            threads: self.threads.clone(),
        }
    }

    /// The same device with resources of its own, for a session that shares none.
    pub fn isolated(&self) -> Device {
        Device {
            resources: Arc::new(ResourceManager::new()),
            ..self.shared()
        }
    }

    /// The device under another name, for a session whose client brought its own cluster.
    pub fn renamed(self, name: String, container: &str) -> Device {
        Device {
            name,
            default_container: container.to_owned(),
            ..self
        }
    }

    /// Runs `job` on an executor thread.
    pub fn spawn(&self, job: impl FnOnce() + Send + 'static) {
        self.threads.spawn(Box::new(job));
    }
}

/// The most bytes one tensor may take.
#[derive(Clone, Copy, Debug)]
pub struct MemoryBudget {
    /// Bytes.
    pub max_tensor_bytes: usize,
}

impl MemoryBudget {
    /// Refuses a tensor that would not fit, in TensorFlow's words.
    pub fn check(&self, dtype: DType, shape: &Shape, device: &str) -> Result<()> {
        // Strings count as their headers; their contents came from checked tensors.
        let size = dtype.size().unwrap_or(32);
        match shape.num_elements().checked_mul(size) {
            Some(bytes) if bytes <= self.max_tensor_bytes => Ok(()),
            _ => Err(Status::resource_exhausted(format!(
                "OOM when allocating tensor with shape{shape} and type {dtype} on {device} by allocator cpu: it needs {} bytes, a tensor may have {}",
                (shape.num_elements() as u128) * (size as u128),
                self.max_tensor_bytes
            ))),
        }
    }
}

/// Values lent to kernels, one of each type.
#[derive(Clone, Default)]
pub struct Extensions(HashMap<TypeId, Arc<dyn Any + Send + Sync>>);

impl Extensions {
    /// Lends `value`.
    pub fn insert<T: Any + Send + Sync>(&mut self, value: T) {
        self.0.insert(TypeId::of::<T>(), Arc::new(value));
    }

    /// What was lent under this type.
    pub fn get<T: Any + Send + Sync>(&self) -> Option<&T> {
        self.0.get(&TypeId::of::<T>())?.downcast_ref()
    }
}

type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    static IS_EXECUTOR: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is one of a device's own. Any other, as one that brings an answer
/// from the network, has duties that a long kernel would keep waiting.
pub(crate) fn on_executor_thread() -> bool {
    IS_EXECUTOR.get()
}

/// Does `work` as a thread that has nothing else to do, if `is_lent`: whatever becomes ready meanwhile
/// runs here, however long it takes.
pub fn as_own_thread<T>(is_lent: bool, work: impl FnOnce() -> T) -> T {
    let before = IS_EXECUTOR.replace(is_lent || IS_EXECUTOR.get());
    let outcome = work();
    IS_EXECUTOR.set(before);
    outcome
}

static BEFORE_LONG: OnceLock<fn()> = OnceLock::new();

/// Says what a thread does before it runs a kernel that takes long: others may wait for what it has to tell them. The
/// first to say so is heard.
pub fn set_before_long(act: fn()) {
    let _ = BEFORE_LONG.set(act);
}

pub(crate) fn before_long() {
    if let Some(act) = BEFORE_LONG.get() {
        act();
    }
}

/// Long-lived threads that take jobs from one queue.
struct ExecutorThreads {
    queue: Arc<Queue>,
}

struct Queue {
    state: Mutex<(VecDeque<Job>, bool)>,
    wake: Condvar,
}

impl ExecutorThreads {
    fn start(count: usize) -> ExecutorThreads {
        let queue = Arc::new(Queue {
            state: Mutex::default(),
            wake: Condvar::new(),
        });
        for i in 0..count {
            let queue = queue.clone();
            let started = std::thread::Builder::new()
                .name(format!("executor-{i}"))
                .stack_size(16 << 20)
                .spawn(move || run_jobs(&queue));
            // Without one thread nothing would ever run; with one, everything does.
            assert!(
                i > 0 || started.is_ok(),
                "cannot start an executor thread: {started:?}"
            );
        }
        // Those for parts of kernels too: made by whoever needs them first, they would run only where that one may.
        crew::muster();
        ExecutorThreads { queue }
    }

    fn spawn(&self, job: Job) {
        self.queue.state.lock().0.push_back(job);
        self.queue.wake.notify_one();
    }
}

impl Drop for ExecutorThreads {
    fn drop(&mut self) {
        self.queue.state.lock().1 = true;
        self.queue.wake.notify_all();
    }
}

fn run_jobs(queue: &Queue) {
    IS_EXECUTOR.set(true);
    loop {
        let job = {
            let mut state = queue.state.lock();
            loop {
                if let Some(job) = state.0.pop_front() {
                    break job;
                }
                if state.1 {
                    return;
                }
                queue.wake.wait(&mut state);
            }
        };
        // A job that panics is a bug caught per kernel; the thread must survive any other.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
    }
}

/// Splits `0..total` into ranges of at least `grain` and runs `body` on them, in parallel when
/// there is enough to do. Ranges differ between machines, so `body` must give the same result
/// for any split.
pub fn parallel_for(total: usize, grain: usize, body: impl Fn(Range<usize>) + Sync) {
    let grain = grain.max(1);
    if total <= grain {
        if total > 0 {
            body(0..total);
        }
        return;
    }
    let threads = crew::num_threads();
    let parts = (total / grain).clamp(1, threads * 4);
    if parts == 1 || threads == 1 {
        if total > 0 {
            body(0..total);
        }
        return;
    }
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let part = next.fetch_add(1, Ordering::Relaxed);
            if part >= parts {
                return;
            }
            body(total * part / parts..total * (part + 1) / parts);
        }
    };
    crew::together(threads.min(parts) - 1, &work);
}

/// As [`parallel_for`], over a slice cut into rows of `row` elements: `body` gets the index of
/// its first row and the rows themselves, to write.
pub fn parallel_ranges<T: Send>(
    out: &mut [T],
    row: usize,
    grain_rows: usize,
    body: impl Fn(usize, &mut [T]) + Sync,
) {
    let row = row.max(1);
    let rows = out.len() / row;
    let threads = crew::num_threads();
    let parts = (rows / grain_rows.max(1)).clamp(1, threads * 4);
    if parts == 1 || threads == 1 {
        if !out.is_empty() {
            body(0, out);
        }
        return;
    }
    let mut chunks = Vec::with_capacity(parts);
    let mut rest = out;
    for part in 0..parts {
        let (start, end) = (rows * part / parts, rows * (part + 1) / parts);
        let (head, tail) = rest.split_at_mut((end - start) * row);
        chunks.push(Mutex::new(Some((start, head))));
        rest = tail;
    }
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(chunk) = chunks.get(next.fetch_add(1, Ordering::Relaxed)) {
            if let Some((start, rows)) = chunk.lock().take() {
                body(start, rows);
            }
        }
    };
    crew::together(threads.min(parts) - 1, &work);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_is_visited_once() {
        for (total, grain) in [(0, 1), (1, 1), (7, 100), (1000, 1), (1001, 10)] {
            let hits: Vec<AtomicUsize> = (0..total).map(|_| AtomicUsize::new(0)).collect();
            parallel_for(total, grain, |r| {
                for i in r {
                    hits[i].fetch_add(1, Ordering::Relaxed);
                }
            });
            assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 1));
        }
        let mut out = vec![0usize; 3 * 1001];
        parallel_ranges(&mut out, 3, 1, |first, rows| {
            for (i, row) in rows.chunks_mut(3).enumerate() {
                row.fill(first + i);
            }
        });
        assert!(out.chunks(3).enumerate().all(|(i, r)| r == [i; 3]));
    }

    #[test]
    fn a_panicking_job_leaves_its_thread_alive() {
        let memory = MemoryBudget {
            max_tensor_bytes: 8,
        };
        let d = Device::cpu(
            "/device:CPU:0".into(),
            "j",
            1,
            1,
            memory,
            Extensions::default(),
        );
        d.spawn(|| panic!("expected by the test"));
        let (tx, rx) = std::sync::mpsc::channel();
        d.spawn(move || tx.send(1).unwrap());
        assert_eq!(rx.recv().unwrap(), 1);
        assert!(
            d.memory
                .check(DType::Float, &Shape::from([3]), &d.name)
                .is_err()
        );
    }
}
