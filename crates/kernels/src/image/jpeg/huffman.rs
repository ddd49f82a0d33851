//! Huffman codes of a JPEG: made ready from a file's lists, and read.

use super::source::{Source, Stop};

/// Codes as a file lists them: how many of each length, and what they stand for.
#[derive(Clone)]
pub(super) struct Codes {
    pub(super) counts: [u8; 16],
    pub(super) symbols: [u8; 256],
}

/// Codes ready for reading.
pub(super) struct Table {
    /// By the next eight bits: the code's length (0: longer than that) and its symbol.
    near: [(u8, u8); 256],
    /// The largest code of each length; -1 where there is none, and no code is above the last.
    largest: [i32; 18],
    /// What to add to a code of a length for its place in `symbols`.
    offset: [i32; 17],
    symbols: [u8; 256],
}

impl Table {
    /// Refuses codes that overlap. Those of a DC table tell sizes of at most 15 bits.
    pub(super) fn new(codes: &Codes, dc: bool) -> Result<Table, Stop> {
        let mut table = Table {
            near: [(0, 0); 256],
            largest: [-1; 18],
            offset: [0; 17],
            symbols: codes.symbols,
        };
        let (mut code, mut place) = (0usize, 0usize);
        for (length, count) in (1..).zip(codes.counts.map(usize::from)) {
            let symbols = codes.symbols.get(place..place + count).ok_or(Stop::Bad)?;
            if code + count > 1 << length {
                return Err(Stop::Bad);
            }
            if count > 0 {
                table.offset[length] = place as i32 - code as i32;
                table.largest[length] = (code + count - 1) as i32;
            }
            for (i, symbol) in symbols.iter().enumerate() {
                if dc && *symbol > 15 {
                    return Err(Stop::Bad);
                }
                if length <= 8 {
                    let first = (code + i) << (8 - length);
                    let all = &mut table.near[first..first + (1 << (8 - length))];
                    all.fill((length as u8, *symbol));
                }
            }
            place += count;
            code = (code + count) << 1;
        }
        table.largest[17] = i32::MAX;
        Ok(table)
    }

    /// The next symbol; 0 for bits that are no code.
    #[inline]
    pub(super) fn read(&self, from: &mut Source<'_>) -> Result<u8, Stop> {
        match from.peek_byte()? {
            Some(bits) => {
                let (length, symbol) = self.near[usize::from(bits)];
                if length > 0 {
                    from.drop(length.into());
                    return Ok(symbol);
                }
                self.read_long(from, 9)
            }
            None => self.read_long(from, 1),
        }
    }

    #[cold]
    fn read_long(&self, from: &mut Source<'_>, least: u32) -> Result<u8, Stop> {
        let mut length = least as usize;
        let mut code = from.take(least)? as i32;
        while code > self.largest[length] {
            code = code << 1 | from.take(1)? as i32;
            length += 1;
        }
        match self.offset.get(length) {
            Some(offset) => Ok(self.symbols[(code + offset) as usize & 255]),
            None => Ok(0),
        }
    }
}

/// The value that a size and as many bits stand for.
#[inline]
pub(super) fn extend(bits: u32, size: u32) -> i32 {
    let value = bits as i32;
    match value < 1 << (size - 1) {
        true => value - (1 << size) + 1,
        false => value,
    }
}

/// The codes that annex K of the standard gives as examples: files of video frames leave them out.
pub(super) fn usual(dc: bool, index: usize) -> Option<Codes> {
    let (counts, list) = super::super::jpeg_encode::HUFFMAN.get(index * 2 + usize::from(!dc))?;
    let mut symbols = [0; 256];
    symbols[..list.len()].copy_from_slice(list);
    Some(Codes {
        counts: **counts,
        symbols,
    })
}
