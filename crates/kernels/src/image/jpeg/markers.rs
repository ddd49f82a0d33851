//! The markers of a JPEG file: tables, the frame, and where scans begin. Nothing is allocated from
//! a size that a file claims.

use super::huffman::Codes;
use super::source::{Source, Stop};

/// Coefficients are stored in this order; a run that leads beyond the last ends at the last.
pub(super) const ZIGZAG: [u8; 80] = {
    let mut order = [63; 80];
    let mut i = 0;
    while i < 64 {
        order[i] = super::super::jpeg_encode::ZIGZAG[i];
        i += 1;
    }
    order
};

/// The largest side libjpeg takes.
const MAX_SIDE: u16 = 65500;

/// A component as the frame lists it.
#[derive(Clone)]
pub(super) struct Listed {
    pub(super) id: u8,
    /// Samples across and down in each unit.
    pub(super) sampling: [usize; 2],
    pub(super) quantiser: u8,
}

pub(super) struct Frame {
    pub(super) progressive: bool,
    pub(super) arithmetic: bool,
    precision: u8,
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) components: Vec<Listed>,
}

/// What a scan holds.
#[derive(Clone)]
pub(super) struct Scan {
    /// Places of components in the frame, with their DC and AC tables.
    pub(super) parts: Vec<(usize, [usize; 2])>,
    /// The first and the last coefficient.
    pub(super) band: [u8; 2],
    /// The bits known before and after.
    pub(super) bits: [u8; 2],
}

/// What colours the components are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Space {
    Gray,
    Rgb,
    Ycc,
    Cmyk,
    Ycck,
    Unknown,
}

/// What comes next in the file.
pub(super) enum Next {
    Scan(Scan),
    End,
}

/// Everything read so far.
#[derive(Default)]
pub(super) struct Header {
    begun: bool,
    pub(super) frame: Option<Frame>,
    pub(super) quantisers: [Option<[u16; 64]>; 4],
    /// DC, then AC.
    pub(super) codes: [[Option<Codes>; 4]; 2],
    pub(super) restart: usize,
    jfif: bool,
    /// Adobe's colour transform.
    pub(super) adobe: Option<u8>,
}

impl Header {
    /// Reads up to the next scan or to the end.
    pub(super) fn read(&mut self, from: &mut Source<'_>) -> Result<Next, Stop> {
        loop {
            if from.marker == 0 {
                match self.begun {
                    true => from.next_marker()?,
                    false => self.first(from)?,
                }
            }
            match std::mem::take(&mut from.marker) {
                0xd8 if !self.begun => self.begun = true,
                0xc0 | 0xc1 => self.frame(from, false, false)?,
                0xc2 => self.frame(from, true, false)?,
                0xc9 => self.frame(from, false, true)?,
                0xca => self.frame(from, true, true)?,
                0xc4 => self.codes(from)?,
                0xcc | 0xdc | 0xfe | 0xe1..=0xed | 0xef => {
                    let length = from.short()?;
                    pass(from, length, 2)?;
                }
                0xda => return self.scan(from).map(Next::Scan),
                0xd9 => return Ok(Next::End),
                0xdb => self.quantisers(from)?,
                0xdd => {
                    if from.short()? != 4 {
                        return Err(Stop::Bad);
                    }
                    self.restart = from.short()?.into();
                    from.sync();
                }
                marker @ (0xe0 | 0xee) => self.application(from, marker)?,
                0xd0..=0xd7 | 0x01 => {}
                _ => return Err(Stop::Bad),
            }
        }
    }

    fn first(&mut self, from: &mut Source<'_>) -> Result<(), Stop> {
        if from.short()? != 0xffd8 {
            return Err(Stop::Bad);
        }
        from.sync();
        from.marker = 0xd8;
        Ok(())
    }

    fn frame(
        &mut self,
        from: &mut Source<'_>,
        progressive: bool,
        arithmetic: bool,
    ) -> Result<(), Stop> {
        let length = from.short()?;
        let precision = from.byte()?;
        let (height, width) = (from.short()?, from.short()?);
        let count = from.byte()?;
        if self.frame.is_some() || height == 0 || width == 0 || count == 0 {
            return Err(Stop::Bad);
        }
        if usize::from(length) != 8 + 3 * usize::from(count) {
            return Err(Stop::Bad);
        }
        let mut components = Vec::with_capacity(count.into());
        for _ in 0..count {
            let (id, sampling, quantiser) = (from.byte()?, from.byte()?, from.byte()?);
            components.push(Listed {
                id,
                sampling: [sampling >> 4, sampling & 15].map(usize::from),
                quantiser,
            });
        }
        from.sync();
        self.frame = Some(Frame {
            progressive,
            arithmetic,
            precision,
            height: height.into(),
            width: width.into(),
            components,
        });
        Ok(())
    }

    fn scan(&mut self, from: &mut Source<'_>) -> Result<Scan, Stop> {
        let frame = self.frame.as_ref().ok_or(Stop::Bad)?;
        let length = from.short()?;
        let count = usize::from(from.byte()?);
        if usize::from(length) != 2 * count + 6 || !(1..=4).contains(&count) {
            return Err(Stop::Bad);
        }
        let mut parts: Vec<(usize, [usize; 2])> = Vec::with_capacity(4);
        for _ in 0..count {
            let (id, tables) = (from.byte()?, from.byte()?);
            // Of components of one name, those are meant whose place has no part yet.
            let found = (frame.components.iter().take(4).enumerate())
                .find(|(i, c)| c.id == id && *i >= parts.len());
            let (place, _) = found.ok_or(Stop::Bad)?;
            if parts.iter().any(|(p, _)| *p == place) {
                return Err(Stop::Bad);
            }
            parts.push((place, [tables >> 4, tables & 15].map(usize::from)));
        }
        let band = [from.byte()?, from.byte()?];
        let bits = from.byte()?;
        from.sync();
        Ok(Scan {
            parts,
            band,
            bits: [bits >> 4, bits & 15],
        })
    }

    fn codes(&mut self, from: &mut Source<'_>) -> Result<(), Stop> {
        let mut left = from.short()?.checked_sub(2).ok_or(Stop::Bad)? as usize;
        while left > 16 {
            let index = from.byte()?;
            let mut counts = [0; 16];
            for count in &mut counts {
                *count = from.byte()?;
            }
            left -= 17;
            let total: usize = counts.iter().map(|c| usize::from(*c)).sum();
            if total > 256 || total > left {
                return Err(Stop::Bad);
            }
            let mut symbols = [0; 256];
            for symbol in &mut symbols[..total] {
                *symbol = from.byte()?;
            }
            left -= total;
            let class = &mut self.codes[usize::from(index & 0x10 != 0)];
            let slot = class.get_mut(usize::from(index & !0x10)).ok_or(Stop::Bad)?;
            *slot = Some(Codes { counts, symbols });
        }
        from.sync();
        match left {
            0 => Ok(()),
            _ => Err(Stop::Bad),
        }
    }

    fn quantisers(&mut self, from: &mut Source<'_>) -> Result<(), Stop> {
        let mut left = i32::from(from.short()?) - 2;
        while left > 0 {
            let kind = from.byte()?;
            let mut table = [0; 64];
            for at in &ZIGZAG[..64] {
                table[usize::from(*at)] = match kind >> 4 {
                    0 => from.byte()?.into(),
                    _ => from.short()?,
                };
            }
            let slot = self
                .quantisers
                .get_mut(usize::from(kind & 15))
                .ok_or(Stop::Bad)?;
            *slot = Some(table);
            left -= if kind >> 4 == 0 { 65 } else { 129 };
        }
        from.sync();
        match left {
            0 => Ok(()),
            _ => Err(Stop::Bad),
        }
    }

    /// JFIF's or Adobe's segment, or one that is named like it.
    fn application(&mut self, from: &mut Source<'_>, marker: u8) -> Result<(), Stop> {
        let length = from.short()?;
        let mut head = [0; 14];
        let known = usize::from(length.saturating_sub(2)).min(14);
        for byte in &mut head[..known] {
            *byte = from.byte()?;
        }
        match marker {
            0xe0 if known >= 14 && head.starts_with(b"JFIF\0") => self.jfif = true,
            0xee if known >= 12 && head.starts_with(b"Adobe") => self.adobe = Some(head[11]),
            _ => {}
        }
        pass(from, length, 2 + known)
    }

    /// Looks at the frame when the first scan begins.
    pub(super) fn check(&self) -> Result<&Frame, Stop> {
        let frame = self.frame.as_ref().ok_or(Stop::Bad)?;
        let sides = frame.height.max(frame.width) <= MAX_SIDE.into();
        let factors = |c: &Listed| c.sampling.iter().all(|s| (1..=4).contains(s));
        match sides
            && frame.precision == 8
            && frame.components.len() <= 10
            && frame.components.iter().all(factors)
        {
            true => Ok(frame),
            false => Err(Stop::Bad),
        }
    }

    /// The colours, by what the file says and by the components' names.
    pub(super) fn space(&self) -> Space {
        let Some(frame) = &self.frame else {
            return Space::Unknown;
        };
        let ids: Vec<u8> = frame.components.iter().map(|c| c.id).collect();
        match (ids.len(), self.adobe) {
            (1, _) => Space::Gray,
            (3, _) if self.jfif => Space::Ycc,
            (3, Some(0)) => Space::Rgb,
            (3, None) if ids == *b"RGB" => Space::Rgb,
            (3, _) => Space::Ycc,
            (4, None | Some(0)) => Space::Cmyk,
            (4, _) => Space::Ycck,
            _ => Space::Unknown,
        }
    }
}

/// Passes the rest of a segment, of which so many bytes were read.
fn pass(from: &mut Source<'_>, length: u16, read: usize) -> Result<(), Stop> {
    from.sync();
    match usize::from(length).checked_sub(read) {
        Some(rest) if rest > 0 => from.skip(rest),
        _ => Ok(()),
    }
}
