//! From a file to pixels: one row of units at a time, through two rows of units of each component,
//! so that filters find their neighbours. Files of one scan are transformed as they are read; those
//! of several keep their coefficients until the end marker.

use super::color::convert;
use super::idct::{Block, Transform};
use super::markers::{Header, Listed, Next, Scan, Space};
use super::scan::Reader;
use super::smooth::{Progress, estimate, is_divisible};
use super::source::{Source, Stop};
use super::upsample::{Method, upsample};

/// More scans than any encoder writes. Each costs a pass over the coefficients.
const MAX_SCANS: usize = 1000;

/// TensorFlow refuses images of more samples.
const MAX_SAMPLES: usize = 1 << 29;

/// How a file is to be decoded.
pub(super) struct Wanted {
    /// 0: as many as the file has, at most 3.
    pub(super) channels: usize,
    /// One pixel stands for so many along each side: 1, 2, 4 or 8.
    pub(super) ratio: usize,
    /// Whether colours are interpolated.
    pub(super) fancy: bool,
    /// Whether the transform is the fast one.
    pub(super) fast: bool,
    pub(super) recover: bool,
    /// The part of the rows that must be there.
    pub(super) fraction: f32,
    /// Top, left, height and width.
    pub(super) crop: Option<[i32; 4]>,
}

pub(super) struct Image {
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) channels: usize,
    pub(super) values: Vec<u8>,
}

/// Why there is no image.
#[derive(Debug, PartialEq)]
pub(super) enum Failure<E> {
    Bad,
    /// The caller did not allow this much memory.
    Refused(E),
}

impl<E> From<Stop> for Failure<E> {
    fn from(_: Stop) -> Failure<E> {
        Failure::Bad
    }
}

/// Height, width and number of components, from the header alone.
pub(super) fn shape(file: &[u8]) -> Result<[usize; 3], Stop> {
    let mut source = Source::new(file, false);
    let mut header = Header::default();
    match header.read(&mut source)? {
        Next::Scan(_) => {
            let frame = header.check()?;
            Ok([frame.height, frame.width, frame.components.len()])
        }
        Next::End => Err(Stop::Bad),
    }
}

struct Component {
    /// Blocks across and down in a unit.
    sampling: [usize; 2],
    /// Samples along each side of a block.
    size: usize,
    /// Blocks that hold something of the image.
    blocks: [usize; 2],
    /// Blocks up to the end of the last unit.
    padded: [usize; 2],
    quantiser: usize,
    quantisers: Option<[u16; 64]>,
    needed: bool,
    /// Samples that hold something of the image.
    samples: [usize; 2],
    method: Method,
    /// The columns of blocks and of samples that are wanted.
    columns: [usize; 2],
    from: usize,
    wide: usize,
    transform: Option<Transform>,
    /// Two rows of units.
    rows: Vec<u8>,
    coefficients: Vec<Block>,
    progress: Progress,
}

impl Component {
    fn stride(&self) -> usize {
        self.padded[0] * self.size
    }

    fn row(&self, y: usize) -> &[u8] {
        let ring = 2 * self.sampling[1] * self.size;
        let start = (y % ring) * self.stride() + self.from;
        &self.rows[start..start + self.wide]
    }

    /// The averages of the 5x5 blocks around one; those at the edges are repeated.
    fn around(
        &self,
        coefficients: &[Block],
        [x, y]: [usize; 2],
        unit: usize,
        units: usize,
    ) -> [i16; 25] {
        // Rows of the neighbouring units are taken, the farther ones only if there are two units.
        let tall = match unit + 1 == units {
            true => self.blocks[1] - unit * self.sampling[1],
            false => self.sampling[1],
        };
        let row = y - unit * self.sampling[1];
        let up = usize::from(row > 0 || unit > 0);
        let up_more = if row > 1 || unit > 1 { 2 } else { up };
        let down = usize::from(row + 1 < tall || unit + 1 < units);
        let down_more = if row + 2 < tall || unit + 2 < units {
            2
        } else {
            down
        };
        let lines = [y - up_more, y - up, y, y + down, y + down_more];
        std::array::from_fn(|i| {
            let column = (x + i % 5).saturating_sub(2).max(self.columns[0]);
            coefficients[lines[i / 5] * self.padded[0] + column.min(self.blocks[0] - 1)][0]
        })
    }

    /// Makes the samples of a block.
    #[inline]
    fn store(&mut self, [x, y]: [usize; 2], block: &Block, flat: bool) {
        if !self.needed || x < self.columns[0] || x >= self.columns[1] {
            return;
        }
        let stride = self.stride();
        let at = (y % (2 * self.sampling[1])) * self.size * stride + x * self.size;
        if let Some(transform) = &self.transform {
            transform.run(block, flat, &mut self.rows[at..], stride);
        }
    }
}

/// The window of the output that is made.
struct Window {
    top: usize,
    left: usize,
    height: usize,
    width: usize,
}

pub(super) fn decode<E>(
    file: &[u8],
    wanted: &Wanted,
    room: &dyn Fn(&[usize]) -> Result<(), E>,
) -> Result<Image, Failure<E>> {
    let mut source = Source::new(file, wanted.recover);
    let mut header = Header::default();
    let Next::Scan(scan) = header.read(&mut source)? else {
        return Err(Failure::Bad);
    };
    let space = header.space();
    let frame = header.check()?;
    let channels = match wanted.channels {
        0 => frame.components.len().min(3),
        n => n,
    };
    let fits = match space {
        Space::Gray | Space::Rgb | Space::Ycc => matches!(channels, 1 | 3),
        Space::Cmyk | Space::Ycck => channels == 3,
        Space::Unknown => false,
    };
    if !fits || frame.arithmetic {
        return Err(Failure::Bad);
    }
    let progressive = frame.progressive;
    let smallest = 8 / wanted.ratio;
    let (height, width) = (frame.height, frame.width);
    let out = [height, width].map(|side| (side * smallest).div_ceil(8));
    if out[0] * out[1] * frame.components.len() >= MAX_SAMPLES {
        return Err(Failure::Bad);
    }
    let window = window(wanted.crop, out).ok_or(Failure::Bad)?;
    room(&[window.height, window.width, channels]).map_err(Failure::Refused)?;
    let most = |i: usize| frame.components.iter().map(|c| c.sampling[i]).max();
    let most = [most(0).unwrap_or(1), most(1).unwrap_or(1)];
    let units = [width.div_ceil(8 * most[0]), height.div_ceil(8 * most[1])];
    let single = frame.components.len() == 1;
    // The window begins at a unit; filters take its edges for the image's.
    let align = if single { smallest } else { smallest * most[0] };
    let left = window.left / align * align;
    let across = window.left - left + window.width;
    let mut components = Vec::with_capacity(frame.components.len());
    for (i, listed) in frame.components.iter().enumerate() {
        let mut c = component(listed, [width, height], most, units, smallest);
        c.needed = i == 0 || channels == 3 || space == Space::Rgb;
        let scaled = |n: usize| n * listed.sampling[0] * c.size / (most[0] * smallest);
        let inside = [0, 1].map(|i| listed.sampling[i] * c.size / smallest);
        c.wide = (across * listed.sampling[0] * c.size).div_ceil(most[0] * smallest);
        c.from = scaled(left);
        // A window of one sample is not filtered, even if the image would be.
        let filtered = match wanted.crop {
            Some(_) if c.wide < 2 => c.wide,
            _ => c.samples[0],
        };
        let fancy = wanted.fancy && smallest > 1;
        if c.needed {
            c.method = Method::choose(inside, most, fancy, filtered).ok_or(Failure::Bad)?;
        }
        c.columns = [c.from / c.size, (c.from + c.wide).div_ceil(c.size)];
        components.push(c);
    }
    for c in &mut components {
        let rows = 2 * c.sampling[1] * c.size;
        room(&[rows, c.stride()]).map_err(Failure::Refused)?;
        c.rows = vec![0; rows * c.stride()];
    }
    let several = scan.parts.len() < components.len() || progressive;
    let mut picture = Picture {
        components,
        units,
        smallest,
        most,
        space,
        adobe: header.adobe.is_some(),
        channels,
        window,
        left,
        fast: wanted.fast,
        next: 0,
        scans: 0,
        reached: 0,
        values: Vec::new(),
        lines: vec![vec![0; across.next_multiple_of(8) + 8]; 4],
        sums: vec![0; across + 8],
    };
    if several {
        for c in &mut picture.components {
            let count = c.padded[0] * c.padded[1];
            room(&[count, 128]).map_err(Failure::Refused)?;
            c.coefficients = vec![[0; 64]; count];
        }
        picture.read_scans(&mut source, &mut header, scan.clone(), progressive)?;
    }
    picture.values = vec![0; picture.window.height * picture.window.width * channels];
    let bottom = picture.window.top + picture.window.height;
    match several {
        true => picture.output_stored(bottom, progressive),
        false => {
            let done = picture.output_direct(&mut source, &header, &scan, bottom);
            match done {
                Ok(()) => {}
                Err(Stop::Bad) => return Err(Failure::Bad),
                Err(Stop::Short) => {
                    let rows = picture.next.saturating_sub(picture.window.top);
                    let part = rows as f32 / picture.window.height as f32;
                    if part < wanted.fraction.min(1.0) {
                        return Err(Failure::Bad);
                    }
                    return Ok(picture.finish());
                }
            }
            // The rest of the file is looked at, unless the window ended before.
            if bottom == out[0] {
                source.drop_bits();
                match header.read(&mut source) {
                    Ok(Next::End) | Err(Stop::Short) => {}
                    Ok(Next::Scan(_)) | Err(Stop::Bad) => return Err(Failure::Bad),
                }
            }
        }
    }
    Ok(picture.finish())
}

/// The window that is wanted of an output of this size, if it is inside of it.
fn window(crop: Option<[i32; 4]>, [height, width]: [usize; 2]) -> Option<Window> {
    let Some(crop) = crop else {
        return Some(Window {
            top: 0,
            left: 0,
            height,
            width,
        });
    };
    let [top, left, tall, wide] = crop.map(i64::from);
    let fits = tall > 0
        && wide > 0
        && top >= 0
        && left >= 0
        && top + tall <= height as i64
        && left + wide <= width as i64;
    fits.then_some(Window {
        top: top as usize,
        left: left as usize,
        height: tall as usize,
        width: wide as usize,
    })
}

fn component(
    listed: &Listed,
    sides: [usize; 2],
    most: [usize; 2],
    units: [usize; 2],
    smallest: usize,
) -> Component {
    // Colours of a lower resolution are scaled up by their transform as far as it goes.
    let mut size = smallest;
    let fits = |size: usize| {
        (0..2).all(|i| (most[i] * smallest).is_multiple_of(listed.sampling[i] * size * 2))
    };
    while size < 8 && fits(size) {
        size *= 2;
    }
    let part = |i: usize, unit: usize| (sides[i] * listed.sampling[i] * unit).div_ceil(8 * most[i]);
    Component {
        sampling: listed.sampling,
        size,
        blocks: [part(0, 1), part(1, 1)],
        padded: [units[0] * listed.sampling[0], units[1] * listed.sampling[1]],
        quantiser: listed.quantiser.into(),
        quantisers: None,
        needed: false,
        samples: [part(0, size), part(1, size)],
        method: Method::Same,
        columns: [0, 0],
        from: 0,
        wide: 0,
        transform: None,
        rows: Vec::new(),
        coefficients: Vec::new(),
        progress: Progress::default(),
    }
}

struct Picture {
    components: Vec<Component>,
    units: [usize; 2],
    smallest: usize,
    most: [usize; 2],
    space: Space,
    adobe: bool,
    channels: usize,
    window: Window,
    /// Where the components' rows begin, at or before the window.
    left: usize,
    fast: bool,
    /// The next row of the output.
    next: usize,
    /// How many scans began, and the last row of units for which the last one had data.
    scans: usize,
    reached: usize,
    values: Vec<u8>,
    lines: Vec<Vec<u8>>,
    sums: Vec<u16>,
}

impl Picture {
    fn finish(self) -> Image {
        Image {
            height: self.window.height,
            width: self.window.width,
            channels: self.channels,
            values: self.values,
        }
    }

    /// Keeps the quantisers that are valid when a component's first scan begins.
    fn begin_scan(&mut self, scan: &Scan, header: &Header) -> Result<(), Stop> {
        if scan.parts.len() > 1 {
            let blocks = |c: usize| self.components[c].sampling.iter().product::<usize>();
            if scan.parts.iter().map(|(c, _)| blocks(*c)).sum::<usize>() > 10 {
                return Err(Stop::Bad);
            }
        }
        for (c, _) in &scan.parts {
            let c = &mut self.components[*c];
            if c.quantisers.is_none() {
                let table = header.quantisers.get(c.quantiser).ok_or(Stop::Bad)?;
                c.quantisers = Some(table.ok_or(Stop::Bad)?);
            }
        }
        Ok(())
    }

    fn make_transforms(&mut self) {
        for c in &mut self.components {
            let quantisers = c.quantisers.unwrap_or([0; 64]);
            c.transform = Some(Transform::new(c.size, self.fast, &quantisers));
        }
    }

    /// Reads all scans into the coefficients.
    fn read_scans(
        &mut self,
        source: &mut Source<'_>,
        header: &mut Header,
        mut scan: Scan,
        progressive: bool,
    ) -> Result<(), Stop> {
        for _ in 0..MAX_SCANS {
            self.begin_scan(&scan, header)?;
            let mut reader = Reader::new(&scan, header, progressive)?;
            source.begin_scan();
            self.scans += 1;
            for (c, _) in &scan.parts {
                self.components[*c].progress.note(&scan, self.scans == 1);
            }
            self.read_scan(source, &mut reader, &scan, header.restart > 0)?;
            source.drop_bits();
            match header.read(source)? {
                Next::Scan(next) => scan = next,
                Next::End => return Ok(()),
            }
        }
        Err(Stop::Bad)
    }

    fn read_scan(
        &mut self,
        source: &mut Source<'_>,
        reader: &mut Reader,
        scan: &Scan,
        restarts: bool,
    ) -> Result<(), Stop> {
        let alone = scan.parts.len() == 1;
        let [across, down] = match alone {
            true => self.components[scan.parts[0].0].blocks,
            false => self.units,
        };
        let rows_in_unit = match alone {
            true => self.components[scan.parts[0].0].sampling[1],
            false => 1,
        };
        for y in 0..down {
            for x in 0..across {
                if !reader.begin_unit(source)? {
                    // Nothing but a restart marker brings more.
                    if !restarts || !(0xd0..=0xd7).contains(&source.marker) {
                        return Ok(());
                    }
                    continue;
                }
                self.reached = y / rows_in_unit;
                for (part, (c, _)) in scan.parts.iter().enumerate() {
                    let c = &mut self.components[*c];
                    let [wide, tall] = if alone { [1, 1] } else { c.sampling };
                    for dy in 0..tall {
                        let at = (y * tall + dy) * c.padded[0] + x * wide;
                        for block in &mut c.coefficients[at..at + wide] {
                            reader.block(source, part, block)?;
                        }
                    }
                }
                source.sync();
            }
        }
        Ok(())
    }

    /// Makes the output from the coefficients.
    fn output_stored(&mut self, bottom: usize, progressive: bool) {
        self.make_transforms();
        let smooth = progressive && self.needs_estimates();
        let (scans, reached, rows) = (self.scans, self.reached, self.units[1]);
        for unit in 0..self.units[1] {
            for c in self.components.iter_mut().filter(|c| c.needed) {
                let tall = c.sampling[1];
                let coefficients = std::mem::take(&mut c.coefficients);
                for y in unit * tall..(unit * tall + tall).min(c.blocks[1]) {
                    for x in c.columns[0]..c.columns[1].min(c.blocks[0]) {
                        let mut block = coefficients[y * c.padded[0] + x];
                        if smooth {
                            let bits = c.progress.bits(unit <= reached, scans);
                            let around = c.around(&coefficients, [x, y], unit, rows);
                            let quantisers = c.quantisers.unwrap_or([0; 64]);
                            estimate(&mut block, &around, &bits, &quantisers);
                        }
                        let flat = block[1..].iter().all(|v| *v == 0);
                        c.store([x, y], &block, flat);
                    }
                }
                c.coefficients = coefficients;
            }
            self.emit(unit, bottom);
            if self.next >= bottom {
                return;
            }
        }
    }

    /// Whether a progressive file lacks coefficients that can be estimated.
    fn needs_estimates(&self) -> bool {
        let partial = |c: &Component| c.progress.is_partial();
        let divisible = |c: &Component| c.quantisers.is_some_and(|q| is_divisible(&q));
        self.components
            .iter()
            .all(|c| divisible(c) && partial(c).is_some())
            && self.components.iter().any(|c| partial(c) == Some(true))
    }

    /// Makes the output while reading the only scan.
    fn output_direct(
        &mut self,
        source: &mut Source<'_>,
        header: &Header,
        scan: &Scan,
        bottom: usize,
    ) -> Result<(), Stop> {
        self.begin_scan(scan, header)?;
        let mut reader = Reader::new(scan, header, false)?;
        source.begin_scan();
        self.make_transforms();
        let alone = scan.parts.len() == 1;
        for unit in 0..self.units[1] {
            if alone {
                let c = &self.components[scan.parts[0].0];
                let rows = unit * c.sampling[1]..((unit + 1) * c.sampling[1]).min(c.blocks[1]);
                let across = c.blocks[0];
                for y in rows {
                    self.read_row(source, &mut reader, scan, [across, y])?;
                }
            } else {
                self.read_row(source, &mut reader, scan, [self.units[0], unit])?;
            }
            self.emit(unit, bottom);
            if self.next >= bottom {
                return Ok(());
            }
        }
        Ok(())
    }

    /// Reads a row of units, which are single blocks if a component is alone.
    fn read_row(
        &mut self,
        source: &mut Source<'_>,
        reader: &mut Reader,
        scan: &Scan,
        [across, y]: [usize; 2],
    ) -> Result<(), Stop> {
        let alone = scan.parts.len() == 1;
        for x in 0..across {
            let has_data = reader.begin_unit(source)?;
            for (part, (c, _)) in scan.parts.iter().enumerate() {
                let c = &mut self.components[*c];
                let [wide, tall] = if alone { [1, 1] } else { c.sampling };
                for dy in 0..tall {
                    for dx in 0..wide {
                        let mut block = [0; 64];
                        let flat = match has_data {
                            true => reader.block(source, part, &mut block)?,
                            false => true,
                        };
                        c.store([x * wide + dx, y * tall + dy], &block, flat);
                    }
                }
            }
            if has_data {
                source.sync();
            }
        }
        Ok(())
    }

    /// Makes the rows of pixels for which everything is there after a row of units.
    fn emit(&mut self, unit: usize, bottom: usize) {
        let tall = self.most[1] * self.smallest;
        let last = unit + 1 == self.units[1];
        let context = self.components.iter().any(|c| c.method.has_context());
        let ready = match (last, context) {
            (true, _) => bottom,
            (false, false) => (unit + 1) * tall,
            (false, true) => (unit + 1) * tall - self.most[1],
        };
        for y in self.next..ready.min(bottom) {
            if y >= self.window.top {
                self.emit_row(y);
            }
        }
        self.next = self.next.max(ready.min(bottom));
    }

    fn emit_row(&mut self, y: usize) {
        let skip = self.window.left - self.left;
        let across = skip + self.window.width;
        for (c, line) in self.components.iter().zip(&mut self.lines) {
            if c.needed && c.method != Method::Same {
                let [near, far] = c.method.rows(y, c.samples[1]);
                let line = &mut line[..across];
                let rows = (c.row(near), c.row(far));
                upsample(
                    c.method,
                    rows.0,
                    rows.1,
                    y.is_multiple_of(2),
                    &mut self.sums,
                    line,
                );
            }
        }
        let mut lines: [&[u8]; 4] = [&[]; 4];
        for ((to, c), line) in lines.iter_mut().zip(&self.components).zip(&self.lines) {
            if c.needed {
                *to = match c.method {
                    Method::Same => &c.row(y)[skip..across],
                    _ => &line[skip..across],
                };
            }
        }
        let length = self.window.width * self.channels;
        let start = (y - self.window.top) * length;
        let out = &mut self.values[start..start + length];
        let count = self.components.len().min(4);
        convert(self.space, self.adobe, &lines[..count], self.channels, out);
    }
}
