//! Many small strings at once: written one after the other into pieces of memory that they share, instead of one piece
//! each. Pieces are small, so that a string which outlives the others keeps little of them.

use bytes::Bytes;
use downpour_runtime::parallel_ranges;

/// A piece is full with this many bytes.
const PIECE: usize = 4 << 10;

/// Strings worth a thread of their own.
const GRAIN: usize = 1 << 10;

/// For each value the string that `write` appends.
pub(super) fn packed<T: Sync>(values: &[T], write: impl Fn(&T, &mut Vec<u8>) + Sync) -> Vec<Bytes> {
    let mut out = vec![Bytes::new(); values.len()];
    parallel_ranges(&mut out, 1, GRAIN, |first, out| {
        let values = &values[first..first + out.len()];
        let (mut piece, mut ends, mut done) = (Vec::with_capacity(PIECE), Vec::new(), 0);
        for (i, value) in values.iter().enumerate() {
            write(value, &mut piece);
            ends.push(piece.len());
            if piece.len() >= PIECE || i + 1 == values.len() {
                let room = Vec::with_capacity(PIECE);
                let whole = Bytes::from(std::mem::replace(&mut piece, room));
                let mut start = 0;
                for (to, end) in out[done..].iter_mut().zip(ends.drain(..)) {
                    *to = whole.slice(start..end);
                    start = end;
                }
                done = i + 1;
            }
        }
    });
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_come_out_as_they_were_written() {
        let values: Vec<usize> = (0..5000).collect();
        let strings = packed(&values, |v, out| {
            out.extend(std::iter::repeat_n(b'x', v % 7));
        });
        assert_eq!(strings.len(), 5000);
        assert!(strings.iter().zip(&values).all(|(s, v)| s.len() == v % 7));
        assert!(packed(&[] as &[u8], |_, _| {}).is_empty());
    }
}
