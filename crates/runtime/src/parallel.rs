//! Loops of kernels, cut into ranges that several threads run: how many parts, and who gets which.
//!
//! The threads are those of [`helper_threads`]. Between two parts a loop asks whether its step was cancelled; if so
//! the rest is left undone and the kernel unwound.
#![allow(
    unsafe_code,
    reason = "threads write disjoint parts of one slice through its address"
)]

use crate::helper_threads;
use downpour_tensor::account;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The most grains of a part of a loop. Between parts a loop asks whether anybody still waits for it.
const PART_GRAINS: usize = 64;

/// How many parts to cut `grains` into.
fn num_parts(grains: usize, threads: usize) -> usize {
    grains.clamp(1, (threads * 4).max(grains / PART_GRAINS))
}

/// Splits `0..total` into ranges of at least `grain` and runs `body` on them, in parallel when
/// there is enough to do. Ranges differ between machines, so `body` must give the same result
/// for any split.
///
/// The body is called through a pointer: kernels have a thousand loops, and a copy of the code
/// that shares a loop among threads for each of them costs more to compile than it saves to run.
pub fn parallel_for(total: usize, grain: usize, body: impl Fn(Range<usize>) + Sync) {
    if total <= grain.max(1) {
        if total > 0 {
            body(0..total);
        }
        return;
    }
    share_ranges(total, grain, &body);
}

/// As [`parallel_for`], over a slice cut into rows of `row` elements: `body` gets the index of
/// its first row and the rows themselves, to write.
pub fn parallel_ranges<T: Send>(
    out: &mut [T],
    row: usize,
    grain_rows: usize,
    body: impl Fn(usize, &mut [T]) + Sync,
) {
    if out.is_empty() {
        return;
    }
    let row = row.max(1);
    let (rows, len) = (out.len() / row, out.len());
    if rows <= grain_rows.max(1) {
        return body(0, out);
    }
    let start = Start(out.as_mut_ptr());
    share_ranges(rows, grain_rows, &|range: Range<usize>| {
        // What does not fill a row goes with the last one.
        let end = if range.end == rows {
            len
        } else {
            range.end * row
        };
        let first = range.start * row;
        // SAFETY: `first..end` lies in the slice, which is borrowed for as long as this runs; ranges do not
        // overlap and `T` may be written by another thread.
        let part = unsafe { std::slice::from_raw_parts_mut(start.get().add(first), end - first) };
        body(range.start, part);
    });
}

/// The memory that threads write in disjoint parts.
struct Start<T>(*mut T);

impl<T> Start<T> {
    fn get(&self) -> *mut T {
        self.0
    }
}

// SAFETY: only `parallel_ranges` uses it, to give each thread elements of its own.
unsafe impl<T: Send> Sync for Start<T> {}

/// Runs `body` on ranges of `0..total`, more than one grain, on this and other threads.
fn share_ranges(total: usize, grain: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
    let threads = helper_threads::num_threads();
    let parts = num_parts(total / grain.max(1), threads);
    if parts == 1 {
        return body(0..total);
    }
    let next = AtomicUsize::new(0);
    let work = || {
        loop {
            let part = next.fetch_add(1, Ordering::Relaxed);
            if part >= parts || account::is_stopped() {
                return;
            }
            body(part_start(total, part, parts)..part_start(total, part + 1, parts));
        }
    };
    helper_threads::together(threads.min(parts) - 1, &work);
    // What was left undone is nobody's result.
    account::stop_point();
}

/// Where a part begins. Totals may be so large that a product with the number of parts is not.
fn part_start(total: usize, part: usize, parts: usize) -> usize {
    (total as u128 * part as u128 / parts as u128) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_index_is_visited_once() {
        for (total, grain) in [
            (0, 1),
            (1, 1),
            (7, 100),
            (1000, 1),
            (1001, 10),
            (100_003, 7),
        ] {
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
    fn what_fills_no_row_goes_with_the_last_one() {
        let mut out = vec![0u8; 3 * 1000 + 2];
        parallel_ranges(&mut out, 3, 1, |_, rows| rows.fill(1));
        assert!(out.iter().all(|&x| x == 1));
        parallel_ranges(&mut [0u8; 0], 3, 1, |_, _| panic!("there are no rows"));
    }
}
