//! Tensors of a task on the same host, read straight from its memory: the system copies them once, instead of into a
//! socket and out of it.
//!
//! The system allows it to processes of one user that it does not keep apart (`ptrace`); where it refuses, the bytes come
//! over the lane. What an offer names stays as it is until the offer is declined, so a read sees one value.
#![allow(
    unsafe_code,
    reason = "the only way to read another process' memory is a call of the system"
)]

use super::seat;
use downpour_tensor::BufferWriter;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::sync::{Arc, OnceLock};

/// Tensors up to this size are read at once, on the thread that wants them; the reading of others has threads of its own.
pub(crate) const BRIEF: usize = 1 << 20;

/// Threads that read: more do not get more out of the memory of a small machine.
const THREADS: usize = 2;

/// Fills `tensor` from `address` on in the memory of process `pid`.
pub(crate) fn read(pid: i32, address: NonZeroU64, tensor: &mut BufferWriter) -> io::Result<()> {
    let mut from = address.get();
    while tensor.missing() > 0 {
        let n = tensor.fill(usize::MAX, |free| piece(pid, from, free))?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        from += n as u64;
    }
    Ok(())
}

/// Reads what the system gives at once.
fn piece(pid: i32, from: u64, free: &mut [MaybeUninit<u8>]) -> io::Result<&mut [u8]> {
    let local = libc::iovec {
        iov_base: free.as_mut_ptr().cast(),
        iov_len: free.len(),
    };
    let remote = libc::iovec {
        iov_base: std::ptr::without_provenance_mut(from as usize),
        iov_len: free.len(),
    };
    // SAFETY: the one local piece is `free`, which is ours to write for its whole length; the remote one is only an
    // address, which the system checks in the other process.
    let n = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
    let Ok(n) = usize::try_from(n) else {
        return Err(io::Error::last_os_error());
    };
    let (filled, _) = free.split_at_mut(n);
    // SAFETY: the system has written these `n` bytes.
    Ok(unsafe { &mut *(std::ptr::from_mut(filled) as *mut [u8]) })
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads for long reads, made when first needed.
#[derive(Default)]
pub(crate) struct Reads(OnceLock<Option<Arc<Queue>>>);

impl Reads {
    /// Does `job` beside everything else; gives it back if the system has no threads.
    pub(crate) fn spawn(&self, job: Job) -> Result<(), Job> {
        match self.0.get_or_init(start) {
            Some(queue) => {
                queue.state.lock().jobs.push_back(job);
                // Each keeps to a core: whoever's is free takes it.
                queue.wake.notify_all();
                Ok(())
            }
            None => Err(job),
        }
    }
}

impl Drop for Reads {
    fn drop(&mut self) {
        if let Some(Some(queue)) = self.0.get() {
            queue.state.lock().is_closed = true;
            queue.wake.notify_all();
        }
    }
}

#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    is_closed: bool,
}

fn start() -> Option<Arc<Queue>> {
    let queue = Arc::new(Queue::default());
    for i in 0..THREADS {
        let queue = queue.clone();
        let name = format!("lane-read-{i}");
        let started = std::thread::Builder::new().name(name).spawn(move || {
            seat::leave();
            seat::keep_to(i, THREADS);
            work(&queue);
        });
        if started.is_err() && i == 0 {
            return None;
        }
    }
    Some(queue)
}

/// Ends when the lanes are gone.
fn work(queue: &Queue) {
    loop {
        let mut state = queue.state.lock();
        let job = loop {
            if let Some(job) = state.jobs.pop_front() {
                break job;
            }
            if state.is_closed {
                return;
            }
            queue.wake.wait(&mut state);
        };
        drop(state);
        job();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_of_a_process_is_read_or_refused() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        let own = i32::try_from(std::process::id()).unwrap();
        let address = NonZeroU64::new(bytes.as_ptr() as u64).unwrap();
        let mut tensor = BufferWriter::new(bytes.len());
        read(own, address, &mut tensor).unwrap();
        assert_eq!(tensor.finish().unwrap().as_bytes(), bytes);
        // An address where nothing is, and a process that is not there.
        let mut tensor = BufferWriter::new(8);
        assert!(read(own, NonZeroU64::new(16).unwrap(), &mut tensor).is_err());
        assert!(read(i32::MAX, address, &mut tensor).is_err());
        assert!(tensor.finish().is_none());
    }
}
