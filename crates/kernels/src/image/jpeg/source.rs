//! The bytes and bits of a JPEG file, and what happens where they end.
//!
//! TensorFlow feeds libjpeg from memory. Where the file ends inside of something that was begun,
//! reading stops for good ([`Stop::Short`]): rows that are complete may still be used. Where it
//! ends between two things, the file is refused ([`Stop::Bad`]). With `recover`, what was begun is
//! read once more from its beginning, and between two things an end marker is put in. `sync`
//! marks the places "between two things".

/// Why decoding ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The file is no JPEG that can be decoded.
    Bad,
    /// The bytes ended inside of something.
    Short,
}

/// What is read after the end of a file that is to be recovered.
const END: [u8; 2] = [0xff, 0xd9];

/// More rereads between two `sync`s than any unit of a scan can ask for.
const MAX_REWINDS: u32 = 10_000;

/// As many bits as the buffer is filled with.
const FULL: u32 = 57;

/// Reads bytes for the markers, and bits for the scans.
pub(super) struct Source<'a> {
    data: &'a [u8],
    at: usize,
    synced: usize,
    recover: bool,
    ended: bool,
    rewinds: u32,
    /// The lowest `left` bits are to be read next, the highest of them first.
    bits: u64,
    left: u32,
    /// A marker that was found and not yet acted on; 0 for none.
    pub(super) marker: u8,
    /// Whether a scan needed more bits than there were before a marker.
    pub(super) dry: bool,
}

impl<'a> Source<'a> {
    pub(super) fn new(data: &'a [u8], recover: bool) -> Source<'a> {
        Source {
            data,
            at: 0,
            synced: 0,
            recover,
            ended: false,
            rewinds: 0,
            bits: 0,
            left: 0,
            marker: 0,
            dry: false,
        }
    }

    /// Everything before here is done with.
    pub(super) fn sync(&mut self) {
        self.synced = self.at;
        self.rewinds = 0;
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, Stop> {
        if self.at >= self.data.len() {
            self.refill()?;
        }
        let byte = *self.data.get(self.at).ok_or(Stop::Bad)?;
        self.at += 1;
        Ok(byte)
    }

    pub(super) fn short(&mut self) -> Result<u16, Stop> {
        Ok(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    #[cold]
    fn refill(&mut self) -> Result<(), Stop> {
        if self.synced < self.data.len() {
            if !self.recover {
                return Err(Stop::Short);
            }
            self.rewinds += 1;
            if self.rewinds > MAX_REWINDS {
                return Err(Stop::Bad);
            }
            self.at = self.synced;
            return Ok(());
        }
        if !self.recover || self.ended {
            return Err(Stop::Bad);
        }
        self.ended = true;
        (self.data, self.at, self.synced) = (&END, 0, 0);
        Ok(())
    }

    /// Passes over bytes. Must follow a `sync`.
    pub(super) fn skip(&mut self, count: usize) -> Result<(), Stop> {
        if count > self.data.len() - self.at {
            (self.at, self.synced) = (self.data.len(), self.data.len());
            return self.refill();
        }
        self.at += count;
        self.sync();
        Ok(())
    }

    /// Finds the next marker, whatever is before it.
    pub(super) fn next_marker(&mut self) -> Result<(), Stop> {
        loop {
            while self.byte()? != 0xff {
                self.sync();
            }
            let mut code = self.byte()?;
            while code == 0xff {
                code = self.byte()?;
            }
            self.sync();
            if code != 0 {
                self.marker = code;
                return Ok(());
            }
        }
    }

    /// Forgets what the scan before left.
    pub(super) fn begin_scan(&mut self) {
        (self.left, self.dry) = (0, false);
    }

    /// Drops what is left of the bits: they end with a byte before a marker.
    pub(super) fn drop_bits(&mut self) {
        self.left = 0;
    }

    /// Passes the restart marker of this number, or decides what to do about another one.
    pub(super) fn pass_restart(&mut self, number: u8) -> Result<(), Stop> {
        if self.marker == 0 {
            self.next_marker()?;
        }
        let ahead = |marker: u8| marker.wrapping_sub(0xd0).wrapping_sub(number) & 7;
        loop {
            match self.marker {
                // Nothing that may stand here, or a restart that should have come before.
                m if m < 0xc0 => self.next_marker()?,
                m if (0xd0..=0xd7).contains(&m) => match ahead(m) {
                    6 | 7 => self.next_marker()?,
                    // One of the next: what is between is taken for lost.
                    1 | 2 => return Ok(()),
                    _ => {
                        self.marker = 0;
                        return Ok(());
                    }
                },
                _ => return Ok(()),
            }
        }
    }

    /// Loads bits. If there are fewer than `need` before a marker, zeros stand for the rest.
    #[inline(never)]
    fn fill(&mut self, need: u32) -> Result<(), Stop> {
        if self.marker == 0 {
            if let Some(eight) = self.data.get(self.at..self.at + 8) {
                let word = u64::from_be_bytes(eight.try_into().map_err(|_| Stop::Bad)?);
                // No byte is 0xff: none of the inverted bytes is zero.
                let inverse = !word;
                let ones = 0x0101_0101_0101_0101u64;
                if inverse.wrapping_sub(ones) & word & (ones << 7) == 0 {
                    let count = (64 - self.left) / 8;
                    self.bits = match count {
                        8 => word,
                        _ => self.bits << (8 * count) | word >> (64 - 8 * count),
                    };
                    self.left += 8 * count;
                    self.at += count as usize;
                    return Ok(());
                }
            }
            while self.left < FULL {
                let mut byte = self.byte()?;
                if byte == 0xff {
                    while byte == 0xff {
                        byte = self.byte()?;
                    }
                    if byte != 0 {
                        self.marker = byte;
                        break;
                    }
                    byte = 0xff;
                }
                self.bits = self.bits << 8 | u64::from(byte);
                self.left += 8;
            }
        }
        if need > self.left {
            self.dry = true;
            self.bits <<= FULL - self.left;
            self.left = FULL;
        }
        Ok(())
    }

    /// The next `count` bits, of which there are at most 16.
    #[inline]
    pub(super) fn take(&mut self, count: u32) -> Result<u32, Stop> {
        if self.left < count {
            self.fill(count)?;
        }
        self.left -= count;
        Ok((self.bits >> self.left) as u32 & ((1 << count) - 1))
    }

    /// The next eight bits, which stay; nothing where a marker is nearer than that.
    #[inline]
    pub(super) fn peek_byte(&mut self) -> Result<Option<u8>, Stop> {
        if self.left < 8 {
            self.fill(0)?;
            if self.left < 8 {
                return Ok(None);
            }
        }
        Ok(Some((self.bits >> (self.left - 8)) as u8))
    }

    /// Drops bits that were peeked at.
    #[inline]
    pub(super) fn drop(&mut self, count: u32) {
        self.left -= count;
    }
}
