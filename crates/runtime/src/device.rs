//! A device: its name, its resources, its threads, its memory budget, and whatever the wiring
//! crate lends to kernels (storage, clocks) by type.
//!
//! Steps run on the device's own executor threads; loops inside kernels are split over the
//! process' [`helper_threads`]. The two are kept apart on purpose: a thread that waits for its loop must never
//! pick up another step, which might want a lock that the waiting kernel holds.

use crate::ResourceManager;
use crate::memory::MemoryBudget;
use crate::pool::ExecutorThreads;
use downpour_tensor::account::{Account, Holder};
use std::any::{Any, TypeId};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;

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
    /// Limits on what kernels may allocate.
    pub memory: MemoryBudget,
    /// What the process holds, of what it may.
    pub account: Arc<Account>,
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
            account: Account::new(Holder::Process, memory.process),
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
            account: self.account.clone(),
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

    /// Runs something long. If this is one of the device's own threads, another may take its place meanwhile: long kernels of
    /// one session must not keep the short ones of others waiting.
    pub fn at_length<T>(&self, run: impl FnOnce() -> T) -> T {
        self.threads.at_length(run)
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

thread_local! {
    static IS_EXECUTOR: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is one of a device's own. Any other, as one that brings an answer
/// from the network, has duties that a long kernel would keep waiting.
pub fn on_executor_thread() -> bool {
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

/// Marks the calling thread as a device's own.
pub(crate) fn become_executor() {
    IS_EXECUTOR.set(true);
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_tensor::{DType, Shape};

    #[test]
    fn a_panicking_job_leaves_its_thread_alive() {
        let memory = MemoryBudget::per_tensor(8);
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
        assert!(d.check_alloc(DType::Float, &Shape::from([3])).is_err());
    }
}
