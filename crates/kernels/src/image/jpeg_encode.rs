//! `EncodeJpeg` and `EncodeJpegVariableQuality`: baseline JPEG with the standard tables, in
//! libjpeg's arithmetic. A progressive or size-optimised file is written as a baseline one, which
//! every reader takes: the attributes change bytes, not pixels.

use downpour_graph::{Attrs, Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::Tensor;

pub(super) fn register(r: &mut Registry) {
    r.add("EncodeJpeg", |b| {
        let options = Options::parse(b.attrs())?;
        let format = b.attrs().str("format")?.to_owned();
        Built::costly(move |ctx| {
            let channels = check(ctx.input(0)?, &format)?;
            write(ctx, &options, channels)
        })
    });
    r.add("EncodeJpegVariableQuality", |_| {
        Built::costly(|ctx| {
            let channels = check(ctx.input(0)?, "")?;
            let quality = ctx.input(1)?;
            if quality.rank() != 0 {
                return invalid(format!("quality must be scalar: {}", quality.shape()));
            }
            let quality = quality.scalar_value::<i32>()?;
            if !(0..=100).contains(&quality) {
                return invalid(format!("quality must be in [0,100], got {quality}"));
            }
            let options = Options {
                quality,
                ..Options::default()
            };
            write(ctx, &options, channels)
        })
    });
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

struct Options {
    quality: i32,
    /// Whether colour has half the resolution.
    downsample: bool,
    /// 1 for inches, 2 for centimetres.
    unit: u8,
    density: [u16; 2],
    metadata: Vec<u8>,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            quality: 95,
            downsample: true,
            unit: 1,
            density: [300, 300],
            metadata: Vec::new(),
        }
    }
}

impl Options {
    fn parse(attrs: &Attrs) -> Result<Options> {
        let quality = attrs.int("quality")?;
        if !(0..=100).contains(&quality) {
            return invalid(format!("quality must be in [0,100], got {quality}"));
        }
        let unit = match attrs.bytes("density_unit")?.as_ref() {
            b"cm" => 2,
            _ => 1,
        };
        let density = |name: &str| attrs.int(name).map(|v| v as u16);
        Ok(Options {
            quality: quality as i32,
            downsample: attrs.bool("chroma_downsampling")?,
            unit,
            density: [density("x_density")?, density("y_density")?],
            metadata: attrs.bytes("xmp_metadata")?.to_vec(),
        })
    }
}

/// The number of channels, which must be what the format says.
fn check(image: &Tensor, format: &str) -> Result<usize> {
    let &[_, _, channels] = image.dims() else {
        return invalid(format!("image must be 3-dimensional{}", image.shape()));
    };
    if image.num_elements() >= i32::MAX as usize {
        return invalid("Cannot encode images with >= max int32 elements");
    }
    let expected = match format {
        "grayscale" => 1,
        "rgb" => 3,
        _ if matches!(channels, 1 | 3) => channels,
        _ => {
            return invalid(format!(
                "image must have 1 or 3 channels, got {}",
                image.shape()
            ));
        }
    };
    match channels == expected {
        true => Ok(channels),
        false => invalid(format!(
            "format {format} expects {expected} channels, got {}",
            image.shape()
        )),
    }
}

fn write(ctx: &mut OpContext<'_>, options: &Options, channels: usize) -> Result<()> {
    let image = ctx.input(0)?;
    let (height, width) = (image.dims()[0], image.dims()[1]);
    let (Ok(h), Ok(w)) = (u16::try_from(height), u16::try_from(width)) else {
        return Err(Status::internal("JPEG encoding failed"));
    };
    if h == 0 || w == 0 {
        return Err(Status::internal("JPEG encoding failed"));
    }
    let bytes = encode(image.as_slice()?, [h, w], channels, options);
    ctx.set_output(0, Tensor::string(bytes));
    Ok(())
}

pub(super) const ZIGZAG: [u8; 64] = [
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5, 12, 19, 26, 33, 40, 48, 41, 34, 27, 20,
    13, 6, 7, 14, 21, 28, 35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51, 58, 59,
    52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63,
];

/// The quantisers of the standard's annex K, for luminance and for colour.
const QUANT: [[u16; 64]; 2] = [
    [
        16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69,
        56, 14, 17, 22, 29, 51, 87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81,
        104, 113, 92, 49, 64, 78, 87, 103, 121, 120, 101, 72, 92, 95, 98, 112, 100, 103, 99,
    ],
    [
        17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99,
        99, 47, 66, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
        99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
    ],
];

/// Numbers of codes of each length, and the symbols: DC and AC for luminance, then for colour.
pub(super) const HUFFMAN: [(&[u8; 16], &[u8]); 4] = [
    (
        &[0, 1, 5, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0],
        &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    ),
    (
        &[0, 2, 1, 3, 3, 2, 4, 3, 5, 5, 4, 4, 0, 0, 1, 0x7d],
        &AC_LUMINANCE,
    ),
    (
        &[0, 3, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0],
        &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    ),
    (
        &[0, 2, 1, 2, 4, 4, 3, 4, 7, 5, 4, 4, 0, 1, 2, 0x77],
        &AC_COLOR,
    ),
];

const AC_LUMINANCE: [u8; 162] = [
    0x01, 0x02, 0x03, 0x00, 0x04, 0x11, 0x05, 0x12, 0x21, 0x31, 0x41, 0x06, 0x13, 0x51, 0x61, 0x07,
    0x22, 0x71, 0x14, 0x32, 0x81, 0x91, 0xa1, 0x08, 0x23, 0x42, 0xb1, 0xc1, 0x15, 0x52, 0xd1, 0xf0,
    0x24, 0x33, 0x62, 0x72, 0x82, 0x09, 0x0a, 0x16, 0x17, 0x18, 0x19, 0x1a, 0x25, 0x26, 0x27, 0x28,
    0x29, 0x2a, 0x34, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48, 0x49,
    0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, 0x69,
    0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x89,
    0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9a, 0xa2, 0xa3, 0xa4, 0xa5, 0xa6, 0xa7,
    0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3, 0xc4, 0xc5,
    0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda, 0xe1, 0xe2,
    0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xf1, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8,
    0xf9, 0xfa,
];

const AC_COLOR: [u8; 162] = [
    0x00, 0x01, 0x02, 0x03, 0x11, 0x04, 0x05, 0x21, 0x31, 0x06, 0x12, 0x41, 0x51, 0x07, 0x61, 0x71,
    0x13, 0x22, 0x32, 0x81, 0x08, 0x14, 0x42, 0x91, 0xa1, 0xb1, 0xc1, 0x09, 0x23, 0x33, 0x52, 0xf0,
    0x15, 0x62, 0x72, 0xd1, 0x0a, 0x16, 0x24, 0x34, 0xe1, 0x25, 0xf1, 0x17, 0x18, 0x19, 0x1a, 0x26,
    0x27, 0x28, 0x29, 0x2a, 0x35, 0x36, 0x37, 0x38, 0x39, 0x3a, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
    0x49, 0x4a, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, 0x59, 0x5a, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68,
    0x69, 0x6a, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, 0x79, 0x7a, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87,
    0x88, 0x89, 0x8a, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x9a, 0xa2, 0xa3, 0xa4, 0xa5,
    0xa6, 0xa7, 0xa8, 0xa9, 0xaa, 0xb2, 0xb3, 0xb4, 0xb5, 0xb6, 0xb7, 0xb8, 0xb9, 0xba, 0xc2, 0xc3,
    0xc4, 0xc5, 0xc6, 0xc7, 0xc8, 0xc9, 0xca, 0xd2, 0xd3, 0xd4, 0xd5, 0xd6, 0xd7, 0xd8, 0xd9, 0xda,
    0xe2, 0xe3, 0xe4, 0xe5, 0xe6, 0xe7, 0xe8, 0xe9, 0xea, 0xf2, 0xf3, 0xf4, 0xf5, 0xf6, 0xf7, 0xf8,
    0xf9, 0xfa,
];

/// A quantiser of the quality asked for, as libjpeg scales it.
fn quantiser(table: &[u16; 64], quality: i32) -> [i32; 64] {
    let quality = quality.clamp(1, 100);
    let scale = match quality < 50 {
        true => 5000 / quality,
        false => 200 - quality * 2,
    };
    table.map(|v| ((i32::from(v) * scale + 50) / 100).clamp(1, 255))
}

/// A component's samples, padded to whole blocks.
struct Plane {
    values: Vec<u8>,
    width: usize,
}

fn encode(pixels: &[u8], [h, w]: [u16; 2], channels: usize, options: &Options) -> Vec<u8> {
    let (height, width) = (usize::from(h), usize::from(w));
    let color = channels == 3;
    let factor = if color && options.downsample { 2 } else { 1 };
    let quants = [
        quantiser(&QUANT[0], options.quality),
        quantiser(&QUANT[1], options.quality),
    ];
    let mut out = Vec::with_capacity(pixels.len() / 4 + 1024);
    header(&mut out, [h, w], channels, factor as u8, &quants, options);
    let mcu = 8 * factor;
    let (down, across) = (height.div_ceil(mcu), width.div_ceil(mcu));
    let sample = |component: usize| {
        let full = plane(
            pixels,
            [height, width],
            channels,
            component,
            [down * mcu, across * mcu],
        );
        match component > 0 && factor == 2 {
            true => halved(&full),
            false => full,
        }
    };
    let planes: Vec<Plane> = (0..channels).map(sample).collect();
    let codes: Vec<Vec<Code>> = HUFFMAN.iter().map(|(n, s)| code_table(n, s)).collect();
    let mut bits = Bits {
        out: &mut out,
        word: 0,
        count: 0,
    };
    let mut previous = [0; 3];
    for y in 0..down {
        for x in 0..across {
            for (c, plane) in planes.iter().enumerate() {
                let blocks = if c == 0 { factor } else { 1 };
                let kind = usize::from(c > 0);
                for block in 0..blocks * blocks {
                    let top = (y * blocks + block / blocks) * 8;
                    let left = (x * blocks + block % blocks) * 8;
                    // Blocks wholly outside of the image repeat the average before them.
                    let values = match c == 0 && (top >= height || left >= width) {
                        true => std::array::from_fn(|i| if i == 0 { previous[c] } else { 0 }),
                        false => transform(plane, top, left, &quants[kind]),
                    };
                    let tables = (&codes[2 * kind][..], &codes[2 * kind + 1][..]);
                    bits.block(&values, &mut previous[c], tables);
                }
            }
        }
    }
    bits.finish();
    out.extend([0xff, 0xd9]);
    out
}

fn segment(out: &mut Vec<u8>, marker: u8, data: &[u8]) {
    out.extend([0xff, marker]);
    out.extend((data.len() as u16 + 2).to_be_bytes());
    out.extend_from_slice(data);
}

fn header(
    out: &mut Vec<u8>,
    [h, w]: [u16; 2],
    channels: usize,
    factor: u8,
    quants: &[[i32; 64]; 2],
    options: &Options,
) {
    out.extend([0xff, 0xd8]);
    let [dx, dy] = options.density.map(u16::to_be_bytes);
    let mut app = b"JFIF\0\x01\x01".to_vec();
    app.extend([options.unit, dx[0], dx[1], dy[0], dy[1], 0, 0]);
    segment(out, 0xe0, &app);
    const XMP: &[u8] = b"http://ns.adobe.com/xap/1.0/\0";
    if !options.metadata.is_empty() && options.metadata.len() + XMP.len() < 65533 {
        segment(out, 0xe1, &[XMP, &options.metadata].concat());
    }
    let kinds = if channels == 3 { 2 } else { 1 };
    for (i, quant) in quants.iter().enumerate().take(kinds) {
        let mut table = vec![i as u8];
        table.extend(ZIGZAG.iter().map(|at| quant[usize::from(*at)] as u8));
        segment(out, 0xdb, &table);
    }
    let mut frame = vec![8];
    frame.extend(h.to_be_bytes());
    frame.extend(w.to_be_bytes());
    frame.push(channels as u8);
    let mut scan = vec![channels as u8];
    for c in 0..channels as u8 {
        let sampling = if c == 0 { factor << 4 | factor } else { 0x11 };
        let kind = u8::from(c > 0);
        frame.extend([c + 1, sampling, kind]);
        scan.extend([c + 1, kind << 4 | kind]);
    }
    segment(out, 0xc0, &frame);
    for (i, (counts, symbols)) in HUFFMAN.iter().enumerate().take(2 * kinds) {
        let class = (i as u8 % 2) << 4 | (i as u8 / 2);
        segment(out, 0xc4, &[&[class], &counts[..], symbols].concat());
    }
    scan.extend([0, 63, 0]);
    segment(out, 0xda, &scan);
}

/// One component of the image; the edges are repeated up to `padded`.
fn plane(
    pixels: &[u8],
    [height, width]: [usize; 2],
    channels: usize,
    component: usize,
    padded: [usize; 2],
) -> Plane {
    let mut values = Vec::with_capacity(padded[0] * padded[1]);
    for y in 0..padded[0] {
        let row = y.min(height - 1) * width;
        for x in 0..padded[1] {
            let at = (row + x.min(width - 1)) * channels;
            values.push(match channels {
                1 => pixels[at],
                _ => component_of([pixels[at], pixels[at + 1], pixels[at + 2]], component),
            });
        }
    }
    Plane {
        values,
        width: padded[1],
    }
}

/// Luminance, blue or red difference of a pixel, in fixed point of 16 bits.
fn component_of(rgb: [u8; 3], component: usize) -> u8 {
    const HALF: i32 = 1 << 15;
    const CENTER: i32 = 128 << 16;
    let [r, g, b] = rgb.map(i32::from);
    let sum = match component {
        0 => 19595 * r + 38470 * g + 7471 * b + HALF,
        1 => -11059 * r - 21709 * g + 32768 * b + CENTER + HALF - 1,
        _ => 32768 * r - 27439 * g - 5329 * b + CENTER + HALF - 1,
    };
    (sum >> 16) as u8
}

/// Half the size each way; the rounding alternates so that it favours neither side.
fn halved(plane: &Plane) -> Plane {
    let width = plane.width / 2;
    let rows = plane.values.len() / plane.width / 2;
    let mut values = Vec::with_capacity(width * rows);
    for y in 0..rows {
        for x in 0..width {
            let at = |dy: usize, dx: usize| {
                u16::from(plane.values[(2 * y + dy) * plane.width + 2 * x + dx])
            };
            let bias = 1 + (x % 2) as u16;
            values.push(((at(0, 0) + at(0, 1) + at(1, 0) + at(1, 1) + bias) >> 2) as u8);
        }
    }
    Plane { values, width }
}

/// A block's quantised coefficients in zigzag order.
fn transform(plane: &Plane, top: usize, left: usize, quant: &[i32; 64]) -> [i32; 64] {
    let mut block = [0i32; 64];
    for (y, row) in block.chunks_exact_mut(8).enumerate() {
        let start = (top + y) * plane.width + left;
        for (to, v) in row.iter_mut().zip(&plane.values[start..start + 8]) {
            *to = i32::from(*v) - 128;
        }
    }
    for y in 0..8 {
        butterfly(&mut block, y * 8, 1, Pass::Rows);
    }
    for x in 0..8 {
        butterfly(&mut block, x, 8, Pass::Columns);
    }
    let mut out = [0; 64];
    for (to, at) in out.iter_mut().zip(ZIGZAG) {
        // The transform leaves values eight times as large.
        let (v, q) = (block[usize::from(at)], quant[usize::from(at)] * 8);
        let magnitude = (v.abs() + q / 2) / q;
        *to = if v < 0 { -magnitude } else { magnitude };
    }
    out
}

#[derive(Clone, Copy, PartialEq)]
enum Pass {
    Rows,
    Columns,
}

/// One dimension of the forward cosine transform after Loeffler, Ligtenberg and Moschytz, in 13
/// bits of fraction; rows keep two bits more for the columns.
fn butterfly(b: &mut [i32; 64], start: usize, step: usize, pass: Pass) {
    const BITS: i32 = 13;
    const EXTRA: i32 = 2;
    let v: [i32; 8] = std::array::from_fn(|i| b[start + i * step]);
    let round = |x: i32, n: i32| (x + (1 << (n - 1))) >> n;
    let (shift, scale): (i32, fn(i32) -> i32) = match pass {
        Pass::Rows => (BITS - EXTRA, |x| x << EXTRA),
        Pass::Columns => (BITS + EXTRA, |x| (x + (1 << (EXTRA - 1))) >> EXTRA),
    };
    let (s0, s1, s2, s3) = (v[0] + v[7], v[1] + v[6], v[2] + v[5], v[3] + v[4]);
    let (d0, d1, d2, d3) = (v[0] - v[7], v[1] - v[6], v[2] - v[5], v[3] - v[4]);
    let mut set = |i: usize, value: i32| b[start + i * step] = value;
    let (t0, t3) = (s0 + s3, s0 - s3);
    let (t1, t2) = (s1 + s2, s1 - s2);
    set(0, scale(t0 + t1));
    set(4, scale(t0 - t1));
    let z = (t2 + t3) * 4433;
    set(2, round(z + t3 * 6270, shift));
    set(6, round(z - t2 * 15137, shift));
    let (z1, z2, z3, z4) = (d3 + d0, d2 + d1, d3 + d1, d2 + d0);
    let z5 = (z3 + z4) * 9633;
    let (z1, z2) = (z1 * -7373, z2 * -20995);
    let (z3, z4) = (z3 * -16069 + z5, z4 * -3196 + z5);
    set(7, round(d3 * 2446 + z1 + z3, shift));
    set(5, round(d2 * 16819 + z2 + z4, shift));
    set(3, round(d1 * 25172 + z2 + z3, shift));
    set(1, round(d0 * 12299 + z1 + z4, shift));
}

/// A Huffman code and its length.
type Code = (u16, u8);

/// The code of every symbol.
fn code_table(counts: &[u8; 16], symbols: &[u8]) -> Vec<Code> {
    let mut table = vec![(0, 0); 256];
    let (mut code, mut symbols) = (0u16, symbols.iter());
    for (i, count) in counts.iter().enumerate() {
        for symbol in symbols.by_ref().take(usize::from(*count)) {
            table[usize::from(*symbol)] = (code, i as u8 + 1);
            code += 1;
        }
        code <<= 1;
    }
    table
}

/// Bits of the scan, with a zero after every 0xff.
struct Bits<'a> {
    out: &'a mut Vec<u8>,
    word: u32,
    count: u32,
}

impl Bits<'_> {
    fn put(&mut self, value: u32, count: u32) {
        self.word = self.word << count | (value & ((1 << count) - 1));
        self.count += count;
        while self.count >= 8 {
            self.count -= 8;
            let byte = (self.word >> self.count) as u8;
            self.out.push(byte);
            if byte == 0xff {
                self.out.push(0);
            }
        }
    }

    fn symbol(&mut self, table: &[Code], symbol: usize) {
        let (code, length) = table[symbol];
        self.put(code.into(), length.into());
    }

    /// The bits of a value after its size.
    fn value(&mut self, value: i32, size: u32) {
        if size > 0 {
            let bits = if value < 0 { value - 1 } else { value };
            self.put(bits as u32, size);
        }
    }

    fn block(&mut self, values: &[i32; 64], previous: &mut i32, (dc, ac): (&[Code], &[Code])) {
        let size = |v: i32| 32 - v.unsigned_abs().leading_zeros();
        let difference = values[0] - std::mem::replace(previous, values[0]);
        self.symbol(dc, size(difference) as usize);
        self.value(difference, size(difference));
        let mut zeros = 0;
        for &v in &values[1..] {
            if v == 0 {
                zeros += 1;
                continue;
            }
            while zeros > 15 {
                self.symbol(ac, 0xf0);
                zeros -= 16;
            }
            self.symbol(ac, zeros << 4 | size(v) as usize);
            self.value(v, size(v));
            zeros = 0;
        }
        if zeros > 0 {
            self.symbol(ac, 0);
        }
    }

    fn finish(mut self) {
        if self.count > 0 {
            let fill = 8 - self.count;
            self.put((1 << fill) - 1, fill);
        }
    }
}
