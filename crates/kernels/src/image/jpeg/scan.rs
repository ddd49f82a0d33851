//! The entropy-coded data of a scan: coefficients of blocks, sequential and progressive. Damaged
//! data becomes wrong or zero coefficients, as in libjpeg; only a sum that overflows is an error.

use super::huffman::{Table, extend, usual};
use super::idct::Block;
use super::markers::{Header, Scan, ZIGZAG};
use super::source::{Source, Stop};

/// Reads the blocks of one scan.
pub(super) struct Reader {
    /// For each part of the scan: its tables, and the last average.
    parts: Vec<Part>,
    kind: Kind,
    /// Blocks that have nothing in this scan.
    run: u32,
    restart: usize,
    to_go: usize,
    next_restart: u8,
}

struct Part {
    dc: Option<Table>,
    ac: Option<Table>,
    last: i32,
}

#[derive(Clone, Copy)]
enum Kind {
    Sequential,
    Averages { shift: u8 },
    AveragesMore { shift: u8 },
    Band { first: u8, last: u8, shift: u8 },
    BandMore { first: u8, last: u8, shift: u8 },
}

impl Reader {
    pub(super) fn new(scan: &Scan, header: &Header, progressive: bool) -> Result<Reader, Stop> {
        let ([first, last], [known, shift]) = (scan.band, scan.bits);
        let kind = match (progressive, first, known) {
            (false, ..) => Kind::Sequential,
            (true, 0, 0) => Kind::Averages { shift },
            (true, 0, _) => Kind::AveragesMore { shift },
            (true, _, 0) => Kind::Band { first, last, shift },
            (true, ..) => Kind::BandMore { first, last, shift },
        };
        if progressive {
            let band = match first {
                0 => last == 0,
                _ => first <= last && last < 64 && scan.parts.len() == 1,
            };
            if !band || (known != 0 && shift + 1 != known) || shift > 13 {
                return Err(Stop::Bad);
            }
        }
        let (dc, ac) = match kind {
            Kind::Sequential => (true, true),
            Kind::Averages { .. } => (true, false),
            Kind::AveragesMore { .. } => (false, false),
            Kind::Band { .. } | Kind::BandMore { .. } => (false, true),
        };
        let table = |class: usize, index: usize| {
            let codes = header.codes[class].get(index).ok_or(Stop::Bad)?;
            match codes {
                Some(codes) => Table::new(codes, class == 0),
                None if progressive => Err(Stop::Bad),
                None => Table::new(&usual(class == 0, index).ok_or(Stop::Bad)?, class == 0),
            }
        };
        let part = |(_, tables): &(usize, [usize; 2])| {
            Ok(Part {
                dc: dc.then(|| table(0, tables[0])).transpose()?,
                ac: ac.then(|| table(1, tables[1])).transpose()?,
                last: 0,
            })
        };
        Ok(Reader {
            parts: scan.parts.iter().map(part).collect::<Result<_, Stop>>()?,
            kind,
            run: 0,
            restart: header.restart,
            to_go: header.restart,
            next_restart: 0,
        })
    }

    /// Must be called before the blocks of each unit; whether there is anything to read for it.
    #[inline]
    pub(super) fn begin_unit(&mut self, from: &mut Source<'_>) -> Result<bool, Stop> {
        if self.restart > 0 {
            if self.to_go == 0 {
                self.pass_restart(from)?;
            }
            self.to_go -= 1;
        }
        Ok(!from.dry)
    }

    fn pass_restart(&mut self, from: &mut Source<'_>) -> Result<(), Stop> {
        from.drop_bits();
        from.pass_restart(self.next_restart)?;
        self.next_restart = (self.next_restart + 1) & 7;
        for part in &mut self.parts {
            part.last = 0;
        }
        self.run = 0;
        self.to_go = self.restart;
        if from.marker == 0 {
            from.dry = false;
        }
        Ok(())
    }

    /// Reads one block of a part; returns whether only its average may be other than zero.
    #[inline]
    pub(super) fn block(
        &mut self,
        from: &mut Source<'_>,
        part: usize,
        block: &mut Block,
    ) -> Result<bool, Stop> {
        let part = self.parts.get_mut(part).ok_or(Stop::Bad)?;
        match (self.kind, &part.dc, &part.ac) {
            (Kind::Sequential, Some(dc), Some(ac)) => {
                block[0] = average(from, dc, &mut part.last)? as i16;
                return sequential(from, ac, block);
            }
            (Kind::Averages { shift }, Some(dc), _) => {
                block[0] = (average(from, dc, &mut part.last)? << shift) as i16;
            }
            (Kind::AveragesMore { shift }, ..) => {
                if from.take(1)? != 0 {
                    block[0] |= 1 << shift;
                }
            }
            (Kind::Band { first, last, shift }, _, Some(ac)) => {
                band(from, ac, &mut self.run, [first, last], shift, block)?;
            }
            (Kind::BandMore { first, last, shift }, _, Some(ac)) => {
                band_more(from, ac, &mut self.run, [first, last], shift, block)?;
            }
            _ => return Err(Stop::Bad),
        }
        Ok(false)
    }
}

/// The next average: the last one and a difference.
#[inline]
fn average(from: &mut Source<'_>, table: &Table, last: &mut i32) -> Result<i32, Stop> {
    let size = u32::from(table.read(from)?);
    if size > 0 {
        let difference = extend(from.take(size)?, size);
        *last = last.checked_add(difference).ok_or(Stop::Bad)?;
    }
    Ok(*last)
}

#[inline]
fn sequential(from: &mut Source<'_>, table: &Table, block: &mut Block) -> Result<bool, Stop> {
    let (mut k, mut flat) = (1, true);
    while k < 64 {
        let symbol = table.read(from)?;
        let (run, size) = (usize::from(symbol >> 4), u32::from(symbol & 15));
        if size > 0 {
            k += run;
            let value = extend(from.take(size)?, size);
            block[usize::from(ZIGZAG[k] & 63)] = value as i16;
            flat = false;
            k += 1;
        } else if run == 15 {
            k += 16;
        } else {
            break;
        }
    }
    Ok(flat)
}

/// The first bits of a band of coefficients.
fn band(
    from: &mut Source<'_>,
    table: &Table,
    run: &mut u32,
    [first, last]: [u8; 2],
    shift: u8,
    block: &mut Block,
) -> Result<(), Stop> {
    if *run > 0 {
        *run -= 1;
        return Ok(());
    }
    let (mut k, last) = (usize::from(first), usize::from(last));
    while k <= last {
        let symbol = table.read(from)?;
        let (zeros, size) = (u32::from(symbol >> 4), u32::from(symbol & 15));
        if size > 0 {
            k += zeros as usize;
            let value = extend(from.take(size)?, size);
            block[usize::from(ZIGZAG[k] & 63)] = (value << shift) as i16;
            k += 1;
        } else if zeros == 15 {
            k += 16;
        } else {
            *run = (1 << zeros) - 1;
            if zeros > 0 {
                *run += from.take(zeros)?;
            }
            break;
        }
    }
    Ok(())
}

/// One bit more of a band of coefficients, and those that were zero until now.
fn band_more(
    from: &mut Source<'_>,
    table: &Table,
    run: &mut u32,
    [first, last]: [u8; 2],
    shift: u8,
    block: &mut Block,
) -> Result<(), Stop> {
    let bit = 1i16 << shift;
    let (mut k, last) = (usize::from(first), usize::from(last));
    if *run == 0 {
        while k <= last {
            let symbol = table.read(from)?;
            let (mut zeros, size) = (i32::from(symbol >> 4), symbol & 15);
            let mut value = 0;
            if size > 0 {
                value = if from.take(1)? != 0 { bit } else { -bit };
            } else if zeros != 15 {
                *run = 1 << zeros;
                if zeros > 0 {
                    *run += from.take(zeros as u32)?;
                }
                break;
            }
            while k <= last {
                let coefficient = &mut block[usize::from(ZIGZAG[k] & 63)];
                if *coefficient != 0 {
                    correct(from, coefficient, bit)?;
                } else {
                    zeros -= 1;
                    if zeros < 0 {
                        break;
                    }
                }
                k += 1;
            }
            if value != 0 {
                block[usize::from(ZIGZAG[k] & 63)] = value;
            }
            k += 1;
        }
    }
    if *run > 0 {
        for at in &ZIGZAG[k.min(64)..=last.max(k.min(64) - 1)] {
            let coefficient = &mut block[usize::from(at & 63)];
            if *coefficient != 0 {
                correct(from, coefficient, bit)?;
            }
        }
        *run -= 1;
    }
    Ok(())
}

#[inline]
fn correct(from: &mut Source<'_>, coefficient: &mut i16, bit: i16) -> Result<(), Stop> {
    if from.take(1)? != 0 && *coefficient & bit == 0 {
        let by = if *coefficient >= 0 { bit } else { -bit };
        *coefficient = coefficient.wrapping_add(by);
    }
    Ok(())
}
