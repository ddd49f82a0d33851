//! JPEG into pixels, and the shape of a JPEG. The decoder's inverse transform and upsampling are
//! not libjpeg-turbo's to the bit: samples may differ from TensorFlow's by a few steps of 255.

use super::decode::{Pixels, Room, Samples, Wish};
use downpour_graph::{Attrs, Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::{DType, Tensor};
use jpeg_decoder::{Decoder, PixelFormat};

pub(super) fn register(r: &mut Registry) {
    r.add("ExtractJpegShape", extract_shape);
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// How a JPEG is to be read.
pub(super) struct Options {
    /// One pixel stands for so many along each side.
    ratio: i64,
    recover: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            ratio: 1,
            recover: false,
        }
    }
}

impl Options {
    pub(super) fn parse(attrs: &Attrs) -> Result<Options> {
        let ratio = attrs.int("ratio")?;
        if !matches!(ratio, 1 | 2 | 4 | 8) {
            return invalid(format!("ratio must be 1, 2, 4, or 8, got {ratio}"));
        }
        let method = attrs.bytes("dct_method")?.as_ref();
        if !matches!(method, b"" | b"INTEGER_FAST" | b"INTEGER_ACCURATE") {
            return invalid("dct_method must be one of {'', 'INTEGER_FAST', 'INTEGER_ACCURATE'}");
        }
        Ok(Options {
            ratio,
            recover: attrs.bool("try_recover_truncated")?,
        })
    }
}

fn failed() -> Status {
    Status::invalid_argument("jpeg::Uncompress failed. Invalid JPEG data or crop window.")
}

/// The pixels of a file, of the whole or of a window of it.
pub(super) fn decode(
    file: &[u8],
    wish: &Wish,
    crop: Option<[i32; 4]>,
    room: Room<'_>,
) -> Result<Pixels> {
    match read(file, wish, crop, room) {
        Err(e) if wish.jpeg.recover && e == failed() => {
            // A truncated file is ended here; what is missing comes out grey.
            let ended = [file, &[0xff, 0xd9]].concat();
            read(&ended, wish, crop, room)
        }
        other => other,
    }
}

fn read(file: &[u8], wish: &Wish, crop: Option<[i32; 4]>, room: Room<'_>) -> Result<Pixels> {
    let mut decoder = Decoder::new(file);
    decoder.read_info().map_err(|_| failed())?;
    let info = decoder.info().ok_or_else(failed)?;
    let given = match info.pixel_format {
        PixelFormat::L8 => 1,
        PixelFormat::RGB24 => 3,
        PixelFormat::CMYK32 => 4,
        PixelFormat::L16 => return Err(failed()),
    };
    let channels = match wish.channels {
        0 => given.min(3),
        n => n,
    };
    if given == 4 && channels == 1 {
        return Err(failed());
    }
    let side = |n: u16| (i64::from(n) + wish.jpeg.ratio - 1) / wish.jpeg.ratio;
    let (mut width, mut height) = (side(info.width) as usize, side(info.height) as usize);
    if width == 0 || height == 0 || width * height * given >= 1 << 29 {
        return Err(failed());
    }
    let window = window(crop, width, height)?;
    room(&[window[2], window[3], channels])?;
    // The whole is decoded even if a window is wanted.
    room(&[height, width, given])?;
    if wish.jpeg.ratio > 1 {
        let scaled = decoder.scale(width as u16, height as u16);
        let (w, h) = scaled.map_err(|_| failed())?;
        (width, height) = (w.into(), h.into());
    }
    let raw = decoder.decode().map_err(|_| failed())?;
    if raw.len() != width * height * given {
        return Err(failed());
    }
    let adobe = file.windows(5).take(4096).any(|w| w == b"Adobe");
    let [top, left, tall, wide] = window;
    if top + tall > height || left + wide > width {
        return Err(failed());
    }
    let mut values = Vec::with_capacity(tall * wide * channels);
    for y in top..top + tall {
        let start = (y * width + left) * given;
        for pixel in raw[start..start + wide * given].chunks_exact(given) {
            match *pixel {
                [v] => values.extend(std::iter::repeat_n(v, channels)),
                [r, g, b] if channels == 1 => values.push(luminance([r, g, b])),
                [r, g, b] => values.extend([r, g, b]),
                [c, m, y, k] => values.extend([c, m, y].map(|v| from_cmyk(v, k, adobe))),
                _ => {}
            }
        }
    }
    Ok(Pixels {
        dims: vec![tall, wide, channels],
        values: Samples::Eight(values),
    })
}

fn luminance(rgb: [u8; 3]) -> u8 {
    let [r, g, b] = rgb.map(u32::from);
    ((19595 * r + 38470 * g + 7471 * b + 32768) >> 16) as u8
}

/// Adobe stores its inks inverted, and the decoder turns all of them around.
fn from_cmyk(ink: u8, black: u8, adobe: bool) -> u8 {
    let (ink, black) = match adobe {
        true => (255 - u16::from(ink), 255 - u16::from(black)),
        false => (u16::from(ink), u16::from(black)),
    };
    (ink * black / 255) as u8
}

/// `[top, left, height, width]` of what is wanted.
fn window(crop: Option<[i32; 4]>, width: usize, height: usize) -> Result<[usize; 4]> {
    let Some(crop) = crop else {
        return Ok([0, 0, height, width]);
    };
    let [top, left, tall, wide] = crop.map(i64::from);
    let fits = tall > 0
        && wide > 0
        && top >= 0
        && left >= 0
        && top + tall <= height as i64
        && left + wide <= width as i64;
    match fits {
        true => Ok([top, left, tall, wide].map(|v| v as usize)),
        false => Err(failed()),
    }
}

fn extract_shape(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("output_type")?;
    Built::cheap(move |ctx| {
        let contents = ctx.input(0)?;
        let (0, [file]) = (contents.rank(), contents.as_strings()?) else {
            return invalid(format!(
                "contents must be scalar, got shape {}",
                contents.shape()
            ));
        };
        let bad = || Status::invalid_argument(format!("Invalid JPEG data, size {}", file.len()));
        let mut decoder = Decoder::new(file.as_ref());
        decoder.read_info().map_err(|_| bad())?;
        let info = decoder.info().ok_or_else(bad)?;
        let channels = match info.pixel_format {
            PixelFormat::L8 | PixelFormat::L16 => 1,
            PixelFormat::RGB24 => 3,
            PixelFormat::CMYK32 => 4,
        };
        let shape = [i64::from(info.height), i64::from(info.width), channels];
        let out = match dtype {
            DType::Int64 => Tensor::vector(shape.to_vec()),
            _ => Tensor::vector(shape.map(|v| v as i32).to_vec()),
        };
        ctx.set_output(0, out);
        Ok(())
    })
}
