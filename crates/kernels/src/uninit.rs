//! Outputs that are written once and never zeroed first. Loops that produce their elements in
//! order get a [`Filler`] for their part; a vector is made of the parts only if each of them was
//! filled to its end, so memory that nobody wrote is never shown.
#![allow(
    unsafe_code,
    reason = "a vector is made of memory whose every part was counted as written"
)]

use downpour_runtime::parallel_ranges;
use downpour_tensor::account::{STRIDE, stop_point};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A part of an output, filled from its beginning.
pub(crate) struct Filler<'a, U> {
    room: &'a mut [MaybeUninit<U>],
    at: usize,
}

/// Elements that are copied without a call: a line of memory, if they are floats.
const LINE: usize = 16;

/// Elements above which a call to copy them pays.
const SHORT: usize = 8 * LINE;

impl<U: Clone> Filler<'_, U> {
    /// Elements that are still missing.
    #[inline]
    pub(crate) fn missing(&self) -> usize {
        self.room.len() - self.at
    }

    /// Appends elements. Panics if there is no room.
    #[inline]
    pub(crate) fn extend_from_slice(&mut self, values: &[U]) {
        if size_of_val(values) > STRIDE {
            return self.extend_in_strides(values);
        }
        let room = &mut self.room[self.at..self.at + values.len()];
        let (from, from_end) = values.as_chunks::<LINE>();
        if values.len() <= SHORT && from_end.is_empty() {
            for (to, from) in room.as_chunks_mut::<LINE>().0.iter_mut().zip(from) {
                to.write_clone_of_slice(from);
            }
        } else {
            room.write_clone_of_slice(values);
        }
        self.at += values.len();
    }

    /// Appends what an iterator gives, as far as there is room.
    #[inline]
    pub(crate) fn extend(&mut self, values: impl Iterator<Item = U>) {
        let mut count = 0;
        for (to, value) in self.room[self.at..].iter_mut().zip(values) {
            to.write(value);
            count += 1;
        }
        self.at += count;
    }

    #[cold]
    fn extend_in_strides(&mut self, values: &[U]) {
        for part in values.chunks(stride::<U>()) {
            self.extend_from_slice(part);
            stop_point();
        }
    }

    /// Appends `n` times the same. Panics if there is no room.
    #[inline]
    pub(crate) fn repeat(&mut self, value: &U, n: usize) {
        for part in self.room[self.at..self.at + n].chunks_mut(stride::<U>()) {
            for to in &mut *part {
                to.write(value.clone());
            }
            if part.len() == stride::<U>() {
                stop_point();
            }
        }
        self.at += n;
    }
}

/// Elements after which a loop asks whether to go on.
const fn stride<U>() -> usize {
    let size = if size_of::<U>() == 0 {
        1
    } else {
        size_of::<U>()
    };
    STRIDE / size
}

/// Elements below which filling is not worth splitting.
const GRAIN: usize = 64 << 10;

/// `n` times the same.
pub(crate) fn repeated<U: Clone + Send + Sync>(value: &U, n: usize) -> Vec<U> {
    if n < GRAIN {
        return vec![value.clone(); n];
    }
    filled(Vec::new(), n, 1, GRAIN, |_, f| {
        let missing = f.missing();
        f.repeat(value, missing);
    })
}

/// The elements that `nth` gives for `0..n`, in the memory of `room`.
pub(crate) fn numbered<U: Clone + Send>(
    room: Vec<U>,
    n: usize,
    nth: impl Fn(usize) -> U + Sync,
) -> Vec<U> {
    filled(room, n, 1, GRAIN, |first, f| {
        let missing = f.missing();
        f.extend((first..first + missing).map(&nth));
    })
}

/// Appends to a vector that has the room, a stride at a time.
pub(crate) fn append<U: Clone>(out: &mut Vec<U>, values: &[U]) {
    if size_of_val(values) <= STRIDE {
        return out.extend_from_slice(values);
    }
    for part in values.chunks(stride::<U>()) {
        out.extend_from_slice(part);
        stop_point();
    }
}

/// A vector of `len` elements in the memory of `room`, whose contents are dropped. `body` gets the
/// index of its first row of `row` elements and must fill all the rows it is given; parts of at least
/// `grain_rows` rows are filled in parallel.
///
/// Panics if a part is not filled, as one is not when `len` is no whole number of rows.
pub(crate) fn filled<U: Clone + Send>(
    mut room: Vec<U>,
    len: usize,
    row: usize,
    grain_rows: usize,
    body: impl Fn(usize, &mut Filler<'_, U>) + Sync,
) -> Vec<U> {
    room.clear();
    room.reserve_exact(len);
    let written = AtomicUsize::new(0);
    let spare = &mut room.spare_capacity_mut()[..len];
    parallel_ranges(spare, row, grain_rows, |first, room| {
        let mut filler = Filler { room, at: 0 };
        body(first, &mut filler);
        written.fetch_add(filler.at, Ordering::Relaxed);
    });
    assert_eq!(written.into_inner(), len, "an output was not filled");
    // SAFETY: the parts are disjoint pieces of the first `len` places of the spare capacity, a filler
    // counts only places it wrote, and together they wrote `len` places: all of them.
    unsafe { room.set_len(len) };
    room
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_fill_gives_what_was_put_in() {
        let out = filled(vec![7u8; 3], 6, 6, 1, |first, f| {
            assert_eq!((first, f.missing()), (0, 6));
            f.extend_from_slice(&[1, 2, 3]);
            f.repeat(&4, 2);
            f.extend([5, 6, 7].into_iter());
        });
        assert_eq!(out, [1, 2, 3, 4, 4, 5]);
        assert!(filled(Vec::<u32>::new(), 0, 4, 1, |_, _| ()).is_empty());
        for len in [
            0,
            1,
            LINE - 1,
            LINE,
            2 * LINE,
            2 * LINE + 1,
            SHORT,
            3 * SHORT,
        ] {
            let texts: Vec<String> = (0..len).map(|i| i.to_string()).collect();
            let out = filled(Vec::new(), len, len.max(1), 1, |_, f| {
                f.extend_from_slice(&texts)
            });
            assert_eq!(out, texts);
        }
    }

    #[test]
    fn long_fills_are_whole() {
        let n = 3 * GRAIN + 1;
        assert_eq!(repeated(&7u8, n), vec![7; n]);
        assert_eq!(repeated(&"x".to_owned(), 2), ["x", "x"]);
        let out = numbered(Vec::new(), n, |i| i as u32);
        assert!(out.iter().enumerate().all(|(i, v)| i as u32 == *v) && out.len() == n);
        let long = vec![5u8; 2 * STRIDE + 3];
        let mut copy = Vec::new();
        append(&mut copy, &long);
        assert_eq!(copy, long);
        let all = filled(Vec::new(), long.len() + 2, long.len() + 2, 1, |_, f| {
            f.extend_from_slice(&long);
            f.repeat(&6, 2);
        });
        assert_eq!((all.len(), all[0], all[long.len()]), (long.len() + 2, 5, 6));
    }

    #[test]
    fn parts_know_their_rows() {
        let (row, rows) = (3, 1000);
        let out = filled(Vec::new(), row * rows, row, 10, |first, f| {
            let mut r = first;
            while f.missing() > 0 {
                f.repeat(&r.to_string(), row);
                r += 1;
            }
        });
        assert_eq!(out.len(), row * rows);
        assert!(
            out.iter()
                .enumerate()
                .all(|(i, s)| *s == (i / row).to_string())
        );
    }

    #[test]
    fn a_part_that_is_not_filled_is_no_output() {
        let short = || filled(Vec::new(), 2, 2, 1, |_, f| f.repeat(&1u8, 1));
        assert!(std::panic::catch_unwind(short).is_err());
    }
}
