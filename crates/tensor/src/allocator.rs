//! An allocator for programs with tensors. Its large blocks are on large pages: a table of a gigabyte has a quarter of a million small
//! pages, so nearly every row of a gather misses the processor's cache of page addresses; and to
//! fill a fresh block page by page takes three times as long. What is to be sent lies where tasks of the same host can read it
//! ([`crate::shared`]).
#![allow(
    unsafe_code,
    reason = "an allocator is unsafe to implement, and tells the system about its own memory"
)]

use crate::shared;
use std::alloc::{GlobalAlloc, Layout};

/// Takes blocks for what is sent to other tasks from shared memory, and asks the system for large pages around other blocks of a megabyte and more;
/// everything else is the inner allocator's.
pub struct TensorMemory<A>(pub A);

/// A program without tensors of this size stays on small pages, and small itself.
const LARGE: usize = 1 << 20;

/// The size and the alignment of a large page.
const PAGE: usize = 2 << 20;

/// Tells the system that large pages are welcome wherever the block reaches: blocks of a step follow each other, and a
/// large page that holds the end of one holds the beginning of the next. What it answers changes nothing:
/// without them the memory is the same, only slower.
fn advise(block: *mut u8, size: usize) {
    if size < LARGE || block.is_null() {
        return;
    }
    let first = block.addr() / PAGE * PAGE;
    let end = (block.addr() + size).next_multiple_of(PAGE);
    #[cfg(target_os = "linux")]
    // SAFETY: advice changes no memory's contents and no access to it, whoever's it is.
    unsafe {
        let first = std::ptr::without_provenance_mut(first);
        libc::madvise(first, end - first.addr(), libc::MADV_HUGEPAGE);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = (first, end);
}

// SAFETY: every block is the inner allocator's, asked for and given back as the caller says, or one of shared memory, which
// has the size and the alignment that were asked for.
unsafe impl<A: GlobalAlloc> GlobalAlloc for TensorMemory<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let block = shared::allocate(layout.size(), layout.align());
        if !block.is_null() {
            return block;
        }
        // SAFETY: the caller's promise.
        let block = unsafe { self.0.alloc(layout) };
        advise(block, layout.size());
        block
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let block = shared::allocate(layout.size(), layout.align());
        if !block.is_null() {
            // SAFETY: the block has that size.
            unsafe { block.write_bytes(0, layout.size()) };
            return block;
        }
        // SAFETY: the caller's promise.
        let block = unsafe { self.0.alloc_zeroed(layout) };
        advise(block, layout.size());
        block
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if shared::SIZES.contains(&layout.size()) && shared::owns(block) {
            // SAFETY: it is from there, and the caller's promise.
            return unsafe { shared::free(block, layout.size()) };
        }
        // SAFETY: the caller's promise.
        unsafe { self.0.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if shared::SIZES.contains(&layout.size()) && shared::owns(block) {
            // SAFETY: the caller promises that the new size fits the alignment; both blocks have room for what is copied, and are
            // not the same.
            return unsafe {
                let layout_then = Layout::from_size_align_unchecked(size, layout.align());
                let moved = self.alloc(layout_then);
                if !moved.is_null() {
                    std::ptr::copy_nonoverlapping(block, moved, size.min(layout.size()));
                    self.dealloc(block, layout);
                }
                moved
            };
        }
        // SAFETY: the caller's promise.
        let block = unsafe { self.0.realloc(block, layout, size) };
        advise(block, size);
        block
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::alloc::System;

    #[test]
    fn blocks_of_every_size_hold_what_is_written() {
        every_size();
        shared::open();
        shared::outgoing(every_size);
    }

    fn every_size() {
        let allocator = TensorMemory(System);
        for size in [2, 4096, 64 << 10, LARGE - 1, LARGE, LARGE + 12345, 16 << 20] {
            let layout = Layout::from_size_align(size, 64).unwrap();
            // SAFETY: the sizes are not zero, every access is within the block, and each block is given back
            // once with its layout.
            unsafe {
                let block = allocator.alloc_zeroed(layout);
                assert!(
                    block.addr().is_multiple_of(64) && *block == 0 && *block.add(size - 1) == 0
                );
                block.write(7);
                block.add(size - 1).write(8);
                let block = allocator.realloc(block, layout, size + 100);
                assert_eq!(*block, 7);
                assert_eq!(*block.add(size - 1), 8);
                allocator.dealloc(block, Layout::from_size_align(size + 100, 64).unwrap());
                let block = allocator.alloc(layout);
                block.write_bytes(1, size);
                allocator.dealloc(block, layout);
            }
        }
    }
}
