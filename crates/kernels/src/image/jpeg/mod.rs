//! JPEG into pixels, and the shape of a JPEG: to the bit what libjpeg-turbo makes of a file inside
//! of TensorFlow, damaged files included. Nothing panics on a stranger's bytes, and memory is asked
//! for before it is taken.

mod color;
mod decoder;
mod huffman;
mod idct;
mod markers;
mod scan;
mod smooth;
mod source;
#[cfg(test)]
mod tests;
mod upsample;

use super::decode::{Pixels, Room, Samples, Wish};
use decoder::{Failure, Wanted};
use downpour_graph::{Attrs, Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::{DType, Tensor};

pub(super) fn register(r: &mut Registry) {
    r.add("ExtractJpegShape", extract_shape);
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// How a JPEG is to be read.
pub(super) struct Options {
    /// One pixel stands for so many along each side.
    ratio: usize,
    fancy: bool,
    fast: bool,
    recover: bool,
    fraction: f32,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            ratio: 1,
            fancy: true,
            fast: true,
            recover: false,
            fraction: 1.0,
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
            ratio: ratio as usize,
            fancy: attrs.bool("fancy_upscaling")?,
            fast: method != b"INTEGER_ACCURATE",
            recover: attrs.bool("try_recover_truncated")?,
            fraction: attrs.float("acceptable_fraction")?,
        })
    }
}

/// The pixels of a file, of the whole or of a window of it.
pub(super) fn decode(
    file: &[u8],
    wish: &Wish,
    crop: Option<[i32; 4]>,
    room: Room<'_>,
) -> Result<Pixels> {
    let wanted = Wanted {
        channels: wish.channels,
        ratio: wish.jpeg.ratio,
        fancy: wish.jpeg.fancy,
        fast: wish.jpeg.fast,
        recover: wish.jpeg.recover,
        fraction: wish.jpeg.fraction,
        crop,
    };
    match decoder::decode(file, &wanted, room) {
        Ok(image) => Ok(Pixels {
            dims: vec![image.height, image.width, image.channels],
            values: Samples::Eight(image.values),
        }),
        Err(Failure::Bad) => invalid("jpeg::Uncompress failed. Invalid JPEG data or crop window."),
        Err(Failure::Refused(status)) => Err(status),
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
        let shape = decoder::shape(file).map_err(|_| bad())?.map(|n| n as i64);
        let out = match dtype {
            DType::Int64 => Tensor::vector(shape.to_vec()),
            _ => Tensor::vector(shape.map(|v| v as i32).to_vec()),
        };
        ctx.set_output(0, out);
        Ok(())
    })
}
