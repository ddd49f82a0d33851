//! PNG both ways. Reading follows libpng as TensorFlow sets it up: palettes and small greys are
//! widened, alpha is added or dropped as the wanted channels say, sixteen bits lose their low byte
//! when eight are wanted.

use super::decode::{Pixels, Room, Samples};
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::{DType, Tensor};
use png::{BitDepth, ColorType, Transformations};
use std::io::Cursor;

const TYPES: &[DType] = &[DType::UInt8, DType::UInt16];

pub(super) fn register(r: &mut Registry) {
    r.add_typed("EncodePng", &[("T", TYPES)], encode);
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// The pixels of a file; `wide` asks for sixteen bits.
pub(super) fn decode(file: &[u8], wanted: usize, wide: bool, room: Room<'_>) -> Result<Pixels> {
    let mut decoder = png::Decoder::new(Cursor::new(file));
    decoder.set_transformations(Transformations::EXPAND);
    let Ok(mut reader) = decoder.read_info() else {
        return invalid("Invalid PNG. Failed to initialize decoder.");
    };
    let info = reader.info();
    let (width, height) = (info.width as usize, info.height as usize);
    if width >= 1 << 27 || height >= 1 << 27 || width.saturating_mul(height) >= 1 << 29 {
        return invalid(format!("PNG size too large for int: {width} by {height}"));
    }
    let (color, depth) = (info.color_type, info.bit_depth as u32);
    let transparent = info.trns.is_some();
    let channels = match (wanted, color) {
        (0, ColorType::Indexed) if transparent => 4,
        (0, ColorType::Indexed | ColorType::Rgb) => 3,
        (0, ColorType::Grayscale) => 1,
        (0, ColorType::GrayscaleAlpha) => 2,
        (0, ColorType::Rgba) => 4,
        (n, _) => n,
    };
    room(&[height, width, channels])?;
    let broken = || Status::invalid_argument(format!("Invalid PNG data, size {}", file.len()));
    let (given, bits) = reader.output_color_type();
    let size = reader.output_buffer_size().ok_or_else(broken)?;
    let mut raw = vec![0; size];
    reader.next_frame(&mut raw).map_err(|_| broken())?;
    reader.finish().map_err(|_| broken())?;
    let form = Form {
        from: given.samples(),
        to: channels,
        // libpng fills alpha in with the largest value of the file's own depth.
        opaque: ((1u32 << depth) - 1) as u16,
        rounding: if bits == BitDepth::Sixteen { 16384 } else { 0 },
    };
    let values = match (bits == BitDepth::Sixteen, wide) {
        (true, true) => Samples::Sixteen(form.convert(&words(&raw))),
        (true, false) => {
            let pixels = form.convert(&words(&raw));
            Samples::Eight(pixels.into_iter().map(|v| (v >> 8) as u8).collect())
        }
        (false, wide) => {
            let pixels = form.convert(&raw.iter().map(|v| u16::from(*v)).collect::<Vec<u16>>());
            match wide {
                true => Samples::Sixteen(pixels.into_iter().map(|v| v * 257).collect()),
                false => Samples::Eight(pixels.into_iter().map(|v| v as u8).collect()),
            }
        }
    };
    Ok(Pixels {
        dims: vec![height, width, channels],
        values,
    })
}

fn words(bytes: &[u8]) -> Vec<u16> {
    let pairs = bytes.as_chunks::<2>().0;
    pairs.iter().map(|b| u16::from_be_bytes(*b)).collect()
}

/// From one number of channels to another.
struct Form {
    from: usize,
    to: usize,
    opaque: u16,
    /// Added before a luminance is cut off: libpng rounds sixteen bits only.
    rounding: u32,
}

impl Form {
    fn convert(&self, values: &[u16]) -> Vec<u16> {
        if self.from == self.to {
            return values.to_vec();
        }
        let mut out = Vec::with_capacity(values.len() / self.from * self.to);
        for pixel in values.chunks_exact(self.from) {
            let (color, alpha) = match *pixel {
                [v] => ([v; 3], None),
                [v, a] => ([v; 3], Some(a)),
                [r, g, b] => ([r, g, b], None),
                [r, g, b, a] => ([r, g, b], Some(a)),
                _ => ([0; 3], None),
            };
            match self.to {
                1 | 2 => out.push(gray(color, self.rounding)),
                _ => out.extend(color),
            }
            if self.to.is_multiple_of(2) {
                out.push(alpha.unwrap_or(self.opaque));
            }
        }
        out
    }
}

/// Luminance in libpng's fixed-point arithmetic.
fn gray([r, g, b]: [u16; 3], rounding: u32) -> u16 {
    const RED: u32 = 9797;
    const GREEN: u32 = 19234;
    const BLUE: u32 = 32768 - RED - GREEN;
    if r == g && g == b {
        return r;
    }
    let sum = RED * u32::from(r) + GREEN * u32::from(g) + BLUE * u32::from(b);
    ((sum + rounding) >> 15) as u16
}

fn encode(b: &KernelBuilder<'_>) -> Result<Built> {
    let compression = b.attrs().int("compression")?;
    if !(-1..=9).contains(&compression) {
        return invalid(format!(
            "compression should be in [-1,9], got {compression}"
        ));
    }
    Built::costly(move |ctx| {
        let image = ctx.input(0)?;
        let &[ref batch @ .., height, width, channels] = image.dims() else {
            return invalid(format!("images must be at least rank 3{}", image.shape()));
        };
        if image.num_elements() >= i32::MAX as usize {
            return invalid("image cannot have >= int32 max elements");
        }
        let color = match channels {
            1 => ColorType::Grayscale,
            2 => ColorType::GrayscaleAlpha,
            3 => ColorType::Rgb,
            4 => ColorType::Rgba,
            _ => {
                return invalid(format!(
                    "image must have 1, 2, 3, or 4 channels, got {channels}"
                ));
            }
        };
        let failed = || Status::internal("PNG encoding failed");
        if width == 0 || height == 0 {
            return Err(failed());
        }
        let (depth, bytes) = match image.dtype() {
            DType::UInt16 => {
                let words = image.as_slice::<u16>()?.iter();
                let bytes: Vec<u8> = words.flat_map(|v| v.to_be_bytes()).collect();
                (BitDepth::Sixteen, bytes)
            }
            _ => (BitDepth::Eight, image.as_slice::<u8>()?.to_vec()),
        };
        let one = height * width * channels * if depth == BitDepth::Sixteen { 2 } else { 1 };
        let mut files = Vec::with_capacity(bytes.len() / one);
        for pixels in bytes.chunks_exact(one) {
            let mut out = Vec::with_capacity(one / 2 + 128);
            let mut encoder = png::Encoder::new(&mut out, width as u32, height as u32);
            encoder.set_depth(depth);
            encoder.set_color(color);
            encoder.set_compression(match compression {
                0 => png::Compression::NoCompression,
                1..=3 => png::Compression::Fast,
                7..=9 => png::Compression::High,
                _ => png::Compression::Balanced,
            });
            let written = encoder.write_header().and_then(|mut writer| {
                writer.write_image_data(pixels)?;
                writer.finish()
            });
            written.map_err(|_| failed())?;
            files.push(Bytes::from(out));
        }
        let out = Tensor::strings(files, batch)?;
        ctx.set_output(0, out);
        Ok(())
    })
}
