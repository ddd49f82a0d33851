//! Tensors of a task on the same host, read straight from its memory: where they are, if they are in memory that it shares
//! (`downpour_tensor::shared`), else copied by the system once, instead of into a socket and out of it.
//!
//! The system allows it to processes of one user that it does not keep apart (`ptrace`); where it refuses, the bytes come
//! over the lane. What an offer names stays as it is until the offer is declined, so a read sees one value; if the lane is lost before that, as
//! long as the process that may be reading it lives.
#![allow(
    unsafe_code,
    reason = "the only ways to read another process' memory are calls of the system"
)]

use super::affinity;
use bytes::Bytes;
use downpour_tensor::BufferWriter;
use downpour_tensor::shared::SharedMemory;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::io;
use std::mem::MaybeUninit;
use std::num::NonZeroU64;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::{Arc, OnceLock};

/// Tensors up to this size are read at once, on the thread that wants them; the reading of others has threads of its own.
pub(crate) const BRIEF: usize = 1 << 20;

/// Threads that read: more do not get more out of the memory of a small machine.
const THREADS: usize = 2;

/// Tensors from this size on are read by two threads, if there is nothing else to read.
const SPLIT: usize = 8 << 20;

/// Fills `tensor` from `address` on in the memory of process `pid`; `is_alone` says that no other is being read.
pub(crate) fn read(
    pid: i32,
    address: NonZeroU64,
    tensor: &mut BufferWriter,
    is_alone: bool,
) -> io::Result<()> {
    let from = address.get();
    tensor.fill(usize::MAX, |free| {
        if !is_alone || free.len() < SPLIT {
            return whole(pid, from, free);
        }
        let half = (free.len() / 2).next_multiple_of(4096);
        let (front, back) = free.split_at_mut(half);
        let from_half = from + half as u64;
        let (mine, other) = std::thread::scope(|scope| {
            let read_back = || {
                affinity::avoid_this_core();
                whole(pid, from_half, back).map(drop)
            };
            let thread = std::thread::Builder::new().name("lane-read-half".to_owned());
            let other = thread.spawn_scoped(scope, read_back).ok();
            let mine = whole(pid, from, front).map(drop);
            (mine, other.map(std::thread::ScopedJoinHandle::join))
        });
        mine?;
        match other {
            Some(Ok(other)) => other?,
            Some(Err(_)) => return Err(io::ErrorKind::Other.into()),
            // No thread was to be had.
            None => drop(whole(pid, from_half, &mut free[half..])?),
        }
        // SAFETY: both halves have been written.
        Ok(unsafe { &mut *(std::ptr::from_mut(free) as *mut [u8]) })
    })?;
    Ok(())
}

/// Fills `free`.
fn whole(pid: i32, from: u64, free: &mut [MaybeUninit<u8>]) -> io::Result<&mut [u8]> {
    let mut at = 0;
    while let Some(rest) = free.get_mut(at..).filter(|rest| !rest.is_empty()) {
        let n = piece(pid, from + at as u64, rest)?.len();
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        at += n;
    }
    // SAFETY: the pieces have been written one after the other, to the end.
    Ok(unsafe { &mut *(std::ptr::from_mut(free) as *mut [u8]) })
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

/// The shared memory of another process.
pub(crate) struct Mapping {
    base: *const u8,
    len: usize,
    /// Where it is in the other process.
    theirs: u64,
}

// SAFETY: memory that is only read, by whoever holds the mapping.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps what process `pid` says that it shares.
    pub(crate) fn open(pid: i32, what: SharedMemory) -> io::Result<Mapping> {
        let bad = || io::Error::from(io::ErrorKind::InvalidData);
        let len = usize::try_from(what.len).map_err(|_| bad())?;
        what.base.checked_add(what.len).ok_or_else(bad)?;
        let path = format!("/proc/{pid}/fd/{}", what.file);
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let file: OwnedFd = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
        // A file that could shrink could end this process.
        let seals = rustix::fs::fcntl_get_seals(&file)?;
        let size = rustix::fs::fstat(&file)?.st_size;
        if !seals.contains(rustix::fs::SealFlags::SHRINK) || size < what.len as i64 || len == 0 {
            return Err(bad());
        }
        let (read, shared) = (libc::PROT_READ, libc::MAP_SHARED | libc::MAP_NORESERVE);
        // SAFETY: a new mapping, where the system likes; the file has that length and keeps it.
        let base =
            unsafe { libc::mmap(std::ptr::null_mut(), len, read, shared, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Mapping {
            base: base.cast(),
            len,
            theirs: what.base,
        })
    }

    /// What is at `address` in the other process, if that is shared.
    pub(crate) fn find(&self, address: NonZeroU64, len: usize) -> Option<Found> {
        let at = usize::try_from(address.get().checked_sub(self.theirs)?).ok()?;
        (at.checked_add(len)? <= self.len).then_some(Found { at, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: our own mapping, and whoever reads it holds it.
        unsafe { libc::munmap(self.base.cast_mut().cast(), self.len) };
    }
}

/// A place in a mapping.
#[derive(Clone, Copy)]
pub(crate) struct Found {
    at: usize,
    len: usize,
}

/// Bytes of another process, which it leaves alone until `offer` is dropped.
pub(crate) struct Borrowed<O> {
    pub(crate) mapping: Arc<Mapping>,
    pub(crate) place: Found,
    /// Tells the other process when it is dropped.
    #[expect(dead_code, reason = "held only to be dropped")]
    pub(crate) offer: O,
}

impl<O> AsRef<[u8]> for Borrowed<O> {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `Mapping::find` has checked the place; the other process, which could as well write to our own memory, keeps what it has offered
        // as it is.
        unsafe { std::slice::from_raw_parts(self.mapping.base.add(self.place.at), self.place.len) }
    }
}

/// Keeps what a process may still be reading, though it can no longer say so, until that process has ended.
pub(crate) fn keep_for(pid: i32, offers: impl Iterator<Item = Bytes>) {
    let offers: Vec<Bytes> = offers
        .filter(|b| downpour_tensor::shared::holds(b))
        .collect();
    let mut kept = KEPT.lock();
    kept.retain(|(process, _)| !has_ended(process));
    if offers.is_empty() {
        return;
    }
    let Some(pid) = rustix::process::Pid::from_raw(pid) else {
        return;
    };
    let flags = rustix::process::PidfdFlags::empty();
    // One that is gone reads nothing.
    if let Ok(process) = rustix::process::pidfd_open(pid, flags) {
        kept.push((process, offers));
    }
}

static KEPT: Mutex<Vec<(OwnedFd, Vec<Bytes>)>> = Mutex::new(Vec::new());

/// Whether the process behind a descriptor has ended.
fn has_ended(process: &OwnedFd) -> bool {
    let mut end = [rustix::event::PollFd::new(
        process,
        rustix::event::PollFlags::IN,
    )];
    let now = rustix::event::Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut end, Some(&now)).is_ok_and(|n| n > 0)
}

/// Told whether it is the only one.
type Job = Box<dyn FnOnce(bool) + Send>;

/// Threads for long reads, made when first needed.
#[derive(Default)]
pub(crate) struct Reads(OnceLock<Option<Arc<Queue>>>);

impl Reads {
    /// Does `job` beside everything else; gives it back if the system has no threads.
    pub(crate) fn spawn(&self, job: Job) -> Result<(), Job> {
        match self.0.get_or_init(start) {
            Some(queue) => {
                queue.state.lock().jobs.push_back(job);
                // Each is pinned to a core: the one whose core is free takes it.
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
    /// How many are being done.
    under_way: usize,
    is_closed: bool,
}

fn start() -> Option<Arc<Queue>> {
    let queue = Arc::new(Queue::default());
    for i in 0..THREADS {
        let queue = queue.clone();
        let name = format!("lane-read-{i}");
        let started = std::thread::Builder::new().name(name).spawn(move || {
            affinity::unpin();
            affinity::pin_nth(i, THREADS);
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
        let is_alone = state.jobs.is_empty() && state.under_way == 0;
        state.under_way += 1;
        drop(state);
        job(is_alone);
        queue.state.lock().under_way -= 1;
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
        read(own, address, &mut tensor, true).unwrap();
        assert_eq!(tensor.finish().unwrap().as_bytes(), bytes);
        // By two threads.
        let long: Vec<u8> = (0..SPLIT + 12345).map(|i| (i / 7) as u8).collect();
        let there = NonZeroU64::new(long.as_ptr() as u64).unwrap();
        for is_alone in [true, false] {
            let mut tensor = BufferWriter::new(long.len());
            read(own, there, &mut tensor, is_alone).unwrap();
            assert!(tensor.finish().unwrap().as_bytes() == long);
        }
        // Memory whose second half cannot be read.
        let (private, any) = (
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            std::ptr::null_mut(),
        );
        // SAFETY: a new mapping, which is used by nobody else.
        let gone = unsafe { libc::mmap(any, 2 * SPLIT, libc::PROT_READ, private, -1, 0) };
        // SAFETY: within that mapping.
        unsafe { libc::mprotect(gone.byte_add(SPLIT), SPLIT, libc::PROT_NONE) };
        let mut tensor = BufferWriter::new(2 * SPLIT);
        let gone = NonZeroU64::new(gone.addr() as u64).unwrap();
        assert!(read(own, gone, &mut tensor, true).is_err());
        assert!(tensor.finish().is_none());
        // An address where nothing is, and a process that is not there.
        let mut tensor = BufferWriter::new(8);
        assert!(read(own, NonZeroU64::new(16).unwrap(), &mut tensor, true).is_err());
        assert!(read(i32::MAX, address, &mut tensor, true).is_err());
        assert!(tensor.finish().is_none());
    }

    #[test]
    fn shared_memory_is_read_where_it_is_and_nothing_beside_it() {
        let own = i32::try_from(std::process::id()).unwrap();
        let what = downpour_tensor::shared::open().unwrap();
        let mapping = Arc::new(Mapping::open(own, what).unwrap());
        let at = |address: u64, len| mapping.find(NonZeroU64::new(address).unwrap(), len);
        assert!(at(what.base - 1, 1).is_none());
        assert!(at(what.base + what.len - 1, 2).is_none());
        assert!(at(what.base, usize::MAX).is_none());
        let place = at(what.base + what.len - 10, 10).unwrap();
        let dropped = Arc::new(());
        let borrowed = Borrowed {
            mapping: mapping.clone(),
            place,
            offer: dropped.clone(),
        };
        let bytes = Bytes::from_owner(borrowed);
        assert_eq!(bytes, [0; 10].as_slice());
        assert_eq!(Arc::strong_count(&dropped), 2);
        drop(bytes);
        assert_eq!(Arc::strong_count(&dropped), 1);
        // Files that are not there, or may shrink, or are shorter than is said.
        assert!(Mapping::open(own, SharedMemory { file: 9999, ..what }).is_err());
        let plain = std::fs::File::open("/proc/self/exe").unwrap();
        let file = plain.as_raw_fd();
        assert!(Mapping::open(own, SharedMemory { file, ..what }).is_err());
        let len = what.len + 1;
        assert!(Mapping::open(own, SharedMemory { len, ..what }).is_err());
    }

    #[test]
    fn what_a_process_may_be_reading_is_kept_until_it_has_ended() {
        let what = downpour_tensor::shared::open().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        let mapping = Arc::new(Mapping::open(own, what).unwrap());
        /// Bytes of the shared memory itself.
        struct Lent(u64, #[expect(dead_code, reason = "counted")] Arc<()>);
        impl AsRef<[u8]> for Lent {
            fn as_ref(&self) -> &[u8] {
                // SAFETY: mapped for the life of the process, and nobody writes there in this test.
                unsafe { std::slice::from_raw_parts(self.0 as *const u8, 1) }
            }
        }
        let lent = Arc::new(());
        let offers = |base| {
            let elsewhere = Bytes::from_static(b"not shared");
            [Bytes::from_owner(Lent(base, lent.clone())), elsewhere].into_iter()
        };
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let pid = i32::try_from(child.id()).unwrap();
        keep_for(pid, offers(what.base));
        keep_for(own, [].into_iter());
        assert_eq!(Arc::strong_count(&lent), 2);
        child.kill().unwrap();
        child.wait().unwrap();
        keep_for(own, [].into_iter());
        assert_eq!(Arc::strong_count(&lent), 1);
        drop(mapping);
        keep_for(pid, offers(what.base));
        assert_eq!(Arc::strong_count(&lent), 1, "that process is gone");
    }
}
