//! `MutexLock`: a lock held by a value. Whoever has the value has the lock; when the last copy of
//! it is gone, the next in line gets the lock. `tf.CriticalSection` is built on it.

use crate::queue::wait::Waiting;
use downpour_graph::{Result, Status};
use downpour_runtime::{AsyncOp, Built, Device, KernelBuilder, Registry, Resource};
use downpour_tensor::{ResourceHandle, Tensor, Variant, VariantValue};
use parking_lot::Mutex;
use std::any::Any;
use std::fmt;
use std::sync::Arc;

const TYPE: &str = "N10tensorflow12_GLOBAL__N_15MutexE";

pub(crate) fn register(r: &mut Registry) {
    r.add("MutexV2", mutex);
    r.add("MutexLock", |b| {
        let wanted = b.handle("", "", TYPE, Vec::new());
        Built::waiting(move |op| lock(op, &wanted))
    });
    r.add("ConsumeMutexLock", |_| {
        Built::cheap(|ctx| {
            let held = ctx.take(0)?;
            if held.rank() != 0 {
                return Err(Status::invalid_argument(format!(
                    "Expected input to be a scalar, saw shape: {}",
                    held.shape()
                )));
            }
            let value = &held.as_variants()?[0];
            match value.downcast::<Held>() {
                Some(_) => Ok(()),
                None => Err(Status::invalid_argument(format!(
                    "Expected input to contain a SharedLockReleaser object, but saw variant: '{}'",
                    value.0.type_name()
                ))),
            }
        })
    });
}

fn mutex(b: &KernelBuilder<'_>) -> Result<Built> {
    let (container, name) = b.resource_name()?;
    let handle = Tensor::resource(b.handle(&container, &name, TYPE, Vec::new()));
    Built::cheap(move |ctx| {
        ctx.set_output(0, handle.clone());
        Ok(())
    })
}

#[derive(Default)]
struct Lock {
    state: Mutex<LockState>,
}

#[derive(Default)]
struct LockState {
    locked: bool,
    waiting: Waiting<Arc<Device>, Tensor>,
}

impl Resource for Lock {
    fn type_name(&self) -> &'static str {
        TYPE
    }
}

impl Lock {
    /// The value that stands for having the lock.
    fn hold(self: &Arc<Self>, device: Arc<Device>) -> Tensor {
        let lock = self.clone();
        Tensor::variant(Variant::new(Held { lock, device }))
    }

    /// Gives the lock to the next in line.
    fn release(self: &Arc<Self>) {
        let next = {
            let mut state = self.state.lock();
            let next = state.waiting.pop();
            state.locked = next.is_some();
            next
        };
        if let Some(attempt) = next {
            let held = self.hold(attempt.work.clone());
            attempt.end(Ok(held)).tell();
        }
    }
}

/// Held while any copy of it lives.
struct Held {
    lock: Arc<Lock>,
    device: Arc<Device>,
}

impl VariantValue for Held {
    fn type_name(&self) -> &str {
        "SharedLockReleaser"
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedLockReleaser")
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        // Values are dropped in all sorts of places, some of them under locks of their own.
        let lock = self.lock.clone();
        self.device.spawn(move || lock.release());
    }
}

fn lock(op: AsyncOp, wanted: &ResourceHandle) {
    let found = op.input(0).and_then(|t| {
        let handles = t.as_resources()?;
        let handle = handles.first().ok_or_else(|| {
            Status::invalid_argument("MutexLock's input holds no resource handle")
        })?;
        crate::queue::check_handle_type(handle, wanted)?;
        let resources = &op.env().device.resources;
        resources.find_or_create(&handle.container, &handle.name, || Ok(Lock::default()))
    });
    let lock: Arc<Lock> = match found {
        Ok(lock) => lock,
        Err(e) => return op.finish(Err(e)),
    };
    let device = op.env().device.clone();
    let mut state = lock.state.lock();
    if !state.locked {
        state.locked = true;
        drop(state);
        return op.finish(Ok(vec![lock.hold(device)]));
    }
    let cancellation = op.env().cancellation.clone();
    let cancelled = || Status::cancelled("Lock acquisition cancelled.");
    let place = lock.clone();
    let cancel = move |id| {
        let gone = place.state.lock().waiting.remove(id);
        if let Some(attempt) = gone {
            attempt.end(Err(cancelled())).tell();
        }
    };
    let done = Box::new(move |held: Result<Tensor>| op.finish(held.map(|t| vec![t])));
    let refused = state.waiting.push(device, &cancellation, cancel, done);
    drop(state);
    if let Err(done) = refused {
        done(Err(cancelled()));
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{device, node, run_on, start};
    use downpour_graph::{NodeDef, Status};
    use downpour_runtime::Cancellation;
    use std::sync::mpsc;
    use std::time::Duration;

    fn locked() -> Vec<NodeDef> {
        vec![
            node("m", "MutexV2", &[], &[("shared_name", "one".into())]),
            node("l", "MutexLock", &["m"], &[]),
        ]
    }

    #[test]
    fn the_lock_is_free_again_when_its_value_is_gone() {
        let device = device();
        let mut nodes = locked();
        nodes.push(node("c", "ConsumeMutexLock", &["l"], &[]));
        for _ in 0..3 {
            run_on(&device, nodes.clone(), vec![]).unwrap();
        }
    }

    #[test]
    fn who_waits_for_the_lock_ends_with_its_step() {
        // The second lock waits for the first, whose value the step keeps.
        let mut nodes = locked();
        nodes.push(node("l2", "MutexLock", &["m", "^l"], &[]));
        nodes.push(node("c", "ConsumeMutexLock", &["l", "^l2"], &[]));
        let (cancellation, (tx, rx)) = (Cancellation::new(), mpsc::channel());
        start(
            &device(),
            nodes,
            vec![],
            vec![],
            cancellation.clone(),
            move |r| {
                tx.send(r).unwrap();
            },
        )
        .unwrap();
        assert!(rx.recv_timeout(Duration::from_millis(20)).is_err());
        cancellation.cancel(Status::cancelled("stop"));
        assert!(rx.recv_timeout(Duration::from_secs(10)).unwrap().is_err());
    }
}
