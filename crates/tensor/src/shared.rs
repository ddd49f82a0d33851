//! Memory that other processes of the host may read in place: what a step sends to a task beside this one lies here, and is
//! not copied on its way.
//!
//! One file in memory (`memfd`) that can neither shrink nor grow, mapped whole and filled only where it is used. The program's allocator
//! ([`crate::TensorMemory`]) takes blocks from it while a thread makes something that is to be sent ([`outgoing`]); what finds no
//! room lies elsewhere and travels as before. Who may read it is the system's decision: it gives the file to those whom it would let read
//! the process' memory anyway.
#![allow(unsafe_code, reason = "hands out blocks of a mapping that it owns")]

use std::cell::Cell;
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Blocks below this size travel in a message; above the other they are copied by threads of their own, to where they are to stay.
pub(crate) const SIZES: std::ops::RangeInclusive<usize> = 64 << 10..=16 << 20;

/// Room for what is on its way at once.
const LEN: usize = 1 << 30;

/// What blocks are multiples of.
const GRAIN: usize = 64 << 10;

/// Bytes of free blocks that keep their pages for the next step.
const KEPT: usize = 256 << 20;

/// Where the memory is, for another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SharedMemory {
    /// The number of its file here.
    pub file: i32,
    /// The address of its first byte here.
    pub base: u64,
    /// How many bytes it has.
    pub len: u64,
}

/// Makes the memory, if that has not been done: from now on blocks are taken from it. `None` where the system has no such thing.
pub fn open() -> Option<SharedMemory> {
    let arena = ARENA.get_or_init(Arena::new).as_ref()?;
    Some(SharedMemory {
        file: arena.file.as_raw_fd(),
        base: arena.base.addr().get() as u64,
        len: LEN as u64,
    })
}

/// Runs `make`, whose result is to be sent.
pub fn outgoing<T>(make: impl FnOnce() -> T) -> T {
    let _end = End(OUTGOING.replace(true));
    make()
}

/// Whether these bytes are in memory that others may be reading.
pub fn holds(bytes: &[u8]) -> bool {
    owns(bytes.as_ptr())
}

thread_local! {
    static OUTGOING: Cell<bool> = const { Cell::new(false) };
}

struct End(bool);

impl Drop for End {
    fn drop(&mut self) {
        OUTGOING.set(self.0);
    }
}

static ARENA: OnceLock<Option<Arena>> = OnceLock::new();

struct Arena {
    file: OwnedFd,
    base: NonNull<u8>,
    blocks: Mutex<Blocks>,
}

// SAFETY: the mapping is the arena's for the life of the process, and blocks of it are handed out once.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

/// Which grains are taken, a bit for each. It lies in the arena itself: the allocator must not allocate.
struct Blocks {
    taken: [u64; LEN / GRAIN / 64],
    /// Bytes of free blocks that have kept their pages.
    kept: usize,
}

/// A block for something that is to be sent, or null if it is not, or if there is no room.
pub(crate) fn allocate(size: usize, align: usize) -> *mut u8 {
    if !SIZES.contains(&size) || align > GRAIN || !OUTGOING.try_with(Cell::get).unwrap_or(false) {
        return null_mut();
    }
    let Some(Some(arena)) = ARENA.get() else {
        return null_mut();
    };
    let grains = size.div_ceil(GRAIN);
    let mut blocks = arena.blocks();
    let Some(first) = blocks.find(grains) else {
        return null_mut();
    };
    blocks.mark(first, grains, true);
    blocks.kept = blocks.kept.saturating_sub(grains * GRAIN);
    // SAFETY: `first + grains` is within the bitmap, which covers the mapping.
    unsafe { arena.base.as_ptr().add(first * GRAIN) }
}

/// Whether a block is from here.
pub(crate) fn owns(block: *const u8) -> bool {
    let Some(Some(arena)) = ARENA.get() else {
        return false;
    };
    (block.addr().wrapping_sub(arena.base.addr().get())) < LEN
}

/// Gives a block back.
///
/// # Safety
/// It must be one from here, of that size, that nobody uses.
pub(crate) unsafe fn free(block: *mut u8, size: usize) {
    let Some(Some(arena)) = ARENA.get() else {
        return;
    };
    let at = block.addr() - arena.base.addr().get();
    let grains = size.div_ceil(GRAIN);
    let mut blocks = arena.blocks();
    if blocks.kept + grains * GRAIN > KEPT {
        // SAFETY: nobody uses the block, and its bytes may become zeros. What the system answers changes nothing.
        unsafe {
            libc::fallocate(
                arena.file.as_raw_fd(),
                libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE,
                at as i64,
                (grains * GRAIN) as i64,
            );
        }
    } else {
        blocks.kept += grains * GRAIN;
    }
    blocks.mark(at / GRAIN, grains, false);
}

impl Arena {
    #[cfg(target_os = "linux")]
    fn new() -> Option<Arena> {
        let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
        // SAFETY: a name that ends with a zero; the answer is a file of ours or an error.
        let file = unsafe { libc::memfd_create(c"downpour-tensors".as_ptr(), flags) };
        if file < 0 {
            return None;
        }
        // SAFETY: just made, and nobody else's.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        // SAFETY: calls about our own file; a new mapping of it, where the system likes.
        let base = unsafe {
            if libc::ftruncate(file.as_raw_fd(), LEN as i64) != 0
                || libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) != 0
            {
                return None;
            }
            libc::mmap(
                null_mut(),
                LEN,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return None;
        }
        Some(Arena {
            file,
            base: NonNull::new(base.cast())?,
            blocks: Mutex::new(Blocks {
                taken: [0; LEN / GRAIN / 64],
                kept: 0,
            }),
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn new() -> Option<Arena> {
        None
    }

    fn blocks(&self) -> MutexGuard<'_, Blocks> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Blocks {
    /// The first of so many free grains in a row.
    fn find(&self, grains: usize) -> Option<usize> {
        let (mut first, mut at) = (0, 0);
        while at < self.taken.len() * 64 {
            let word = self.taken[at / 64];
            if word == u64::MAX {
                at = (at / 64 + 1) * 64;
                first = at;
            } else if word >> (at % 64) & 1 == 1 {
                at += 1;
                first = at;
            } else {
                at += 1;
                if at - first == grains {
                    return Some(first);
                }
            }
        }
        None
    }

    fn mark(&mut self, first: usize, grains: usize, is_taken: bool) {
        for grain in first..first + grains {
            let bit = 1 << (grain % 64);
            if is_taken {
                self.taken[grain / 64] |= bit;
            } else {
                self.taken[grain / 64] &= !bit;
            }
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn blocks_for_what_is_sent_are_found_again_in_the_file() {
        let place = open().unwrap();
        assert_eq!(open(), Some(place));
        let least = *SIZES.start();
        assert!(allocate(least, 64).is_null(), "nothing is to be sent");
        let sizes = [least, least + 1, 5 << 20, *SIZES.end()];
        let blocks: Vec<*mut u8> = sizes
            .iter()
            .map(|size| outgoing(|| allocate(*size, 64)))
            .collect();
        for (i, (block, size)) in blocks.iter().zip(sizes).enumerate() {
            assert!(owns(*block) && block.addr().is_multiple_of(GRAIN));
            // SAFETY: the block is ours, and has that size.
            unsafe { block.write_bytes(i as u8 + 1, size) };
        }
        for (i, (block, size)) in blocks.iter().zip(sizes).enumerate() {
            let mut byte = [0u8];
            let at = block.addr() as u64 - place.base + size as u64 - 1;
            // SAFETY: reads one byte to where there is room for it.
            let n = unsafe { libc::pread(place.file, byte.as_mut_ptr().cast(), 1, at as i64) };
            assert_eq!((n, byte), (1, [i as u8 + 1]));
            // SAFETY: each is given back once.
            unsafe { free(*block, size) };
        }
        outgoing(|| {
            assert!(allocate(least - 1, 64).is_null());
            assert!(allocate(SIZES.end() + 1, 64).is_null());
        });
        assert!(!owns(std::ptr::from_ref(&place).cast()));
    }

    #[test]
    fn free_grains_are_found_between_others_until_there_are_none() {
        let mut blocks = Blocks {
            taken: [0; LEN / GRAIN / 64],
            kept: 0,
        };
        assert_eq!(blocks.find(70), Some(0));
        blocks.mark(0, 70, true);
        blocks.mark(73, 2, true);
        assert_eq!(
            (blocks.find(3), blocks.find(4)),
            (Some(70), Some(75)),
            "a gap is used by what fits"
        );
        blocks.mark(64, 3, false);
        assert_eq!(blocks.find(2), Some(64));
        let all = LEN / GRAIN;
        blocks.mark(0, all, true);
        assert_eq!(blocks.find(1), None);
        blocks.mark(all - 2, 2, false);
        assert_eq!((blocks.find(2), blocks.find(3)), (Some(all - 2), None));
    }

    #[test]
    fn the_file_can_be_neither_cut_nor_made_longer() {
        let place = open().unwrap();
        // SAFETY: calls about our own file that change nothing, or are refused.
        unsafe {
            assert_eq!(libc::ftruncate(place.file, 4096), -1);
            assert_eq!(libc::ftruncate(place.file, 2 * place.len as i64), -1);
        }
    }
}
