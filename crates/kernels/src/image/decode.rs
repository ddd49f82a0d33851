//! Image files into tensors: `DecodeJpeg`, `DecodeAndCropJpeg`, `DecodePng`, `DecodeGif`,
//! `DecodeBmp`, `DecodeImage`. Which decoder runs is decided by the first bytes, not by the op, as
//! in TensorFlow; the size a header claims is checked before pixels are made.

use super::{bmp, gif, jpeg, png};
use downpour_graph::{Attrs, Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};

pub(super) fn register(r: &mut Registry) {
    for op in [
        "DecodeJpeg",
        "DecodeAndCropJpeg",
        "DecodePng",
        "DecodeGif",
        "DecodeBmp",
        "DecodeImage",
    ] {
        r.add(op, build);
    }
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// Pixels of one or several frames.
pub(super) struct Pixels {
    /// `[height, width, channels]`, after the number of frames if there may be several.
    pub(super) dims: Vec<usize>,
    pub(super) values: Samples,
}

/// Samples of eight or sixteen bits.
pub(super) enum Samples {
    Eight(Vec<u8>),
    Sixteen(Vec<u16>),
}

/// What the op wants, whatever the file is.
pub(super) struct Wish {
    op: String,
    /// 0: as many as the file has.
    pub(super) channels: usize,
    dtype: DType,
    expand: bool,
    pub(super) jpeg: jpeg::Options,
}

impl Wish {
    fn parse(op: &str, attrs: &Attrs) -> Result<Wish> {
        let is_jpeg = matches!(op, "DecodeJpeg" | "DecodeAndCropJpeg");
        let jpeg = match is_jpeg {
            true => jpeg::Options::parse(attrs)?,
            false => jpeg::Options::default(),
        };
        let dtype = match op {
            "DecodePng" | "DecodeImage" => attrs.dtype("dtype")?,
            _ => DType::UInt8,
        };
        let expand = match op {
            "DecodeImage" => attrs.bool("expand_animations")?,
            _ => true,
        };
        let channels = match op {
            "DecodeGif" => 3,
            _ => attrs.int("channels")?,
        };
        if !matches!(channels, 0 | 1 | 3 | 4) {
            return invalid(format!(
                "`channels` must be 0, 1, 3 or 4 but got {channels}"
            ));
        }
        Ok(Wish {
            op: op.to_owned(),
            channels: channels as usize,
            dtype,
            expand,
            jpeg,
        })
    }

    /// Refuses a file that this op does not decode.
    fn check_format(&self, format: &str) -> Result<()> {
        if self.op == "DecodeAndCropJpeg" && format != "JPEG" {
            return invalid(format!(
                "DecodeAndCropJpeg operation can run on JPEG only, but detected {format}."
            ));
        }
        if self.op == "DecodeBmp" && format != "BMP" {
            return invalid(format!(
                "Trying to decode {format} format using DecodeBmp op. Use `decode_{}` or `decode_image` instead.",
                format.to_ascii_lowercase()
            ));
        }
        if format == "BMP" && !matches!(self.op.as_str(), "DecodeBmp" | "DecodeImage") {
            return invalid(format!(
                "Trying to decode BMP format using a wrong op. Use `decode_bmp` or `decode_image` instead. Op used: {}",
                self.op
            ));
        }
        Ok(())
    }
}

/// Asks whether a tensor of this shape may be made.
pub(super) type Room<'a> = &'a dyn Fn(&[usize]) -> Result<()>;

fn build(b: &KernelBuilder<'_>) -> Result<Built> {
    let wish = Wish::parse(&b.node.op.name, b.attrs())?;
    Built::costly(move |ctx| {
        let pixels = decode(ctx, &wish)?;
        let out = convert(pixels, wish.dtype)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn decode(ctx: &OpContext<'_>, wish: &Wish) -> Result<Pixels> {
    let contents = ctx.input(0)?;
    let (0, [file]) = (contents.rank(), contents.as_strings()?) else {
        return invalid(format!(
            "`contents` must be scalar but got shape{}",
            contents.shape()
        ));
    };
    if file.is_empty() {
        return invalid("Input is empty.");
    }
    let room = |dims: &[usize]| {
        let shape = Shape::checked(dims.iter().map(|d| *d as i64))?;
        ctx.check_alloc(wish.dtype, &shape)
    };
    let mut pixels = if file.starts_with(b"\xff\xd8\xff") {
        if wish.channels == 4 {
            return invalid("JPEG does not support 4 channels");
        }
        let crop = match wish.op.as_str() {
            "DecodeAndCropJpeg" => Some(crop_window(ctx.input(1)?)?),
            _ => None,
        };
        wish.check_format("JPEG")?;
        jpeg::decode(file, wish, crop, &room)?
    } else if file.starts_with(b"\x89PNG\r\n\x1a\n") {
        png::decode(file, wish.channels, wish.dtype != DType::UInt8, &|dims| {
            room(dims)?;
            wish.check_format("PNG")
        })?
    } else if file.starts_with(b"GIF8") {
        if !matches!(wish.channels, 0 | 3) {
            return invalid(format!(
                "channels must be 0 or 3 for GIF, got {}",
                wish.channels
            ));
        }
        wish.check_format("GIF")?;
        return animation(gif::decode(file, wish.expand, &room)?, wish);
    } else if file.starts_with(b"BM") {
        if wish.channels == 1 {
            return invalid("`channels` must be 0, 3 or 4 for BMP, but got 1");
        }
        wish.check_format("BMP")?;
        bmp::decode(file, wish.channels, &room)?
    } else {
        return invalid(
            "Unknown image file format. One of JPEG, JPEG XL, PNG, GIF, BMP, WebP required.",
        );
    };
    if wish.op == "DecodeGif" {
        pixels.dims.insert(0, 1);
    }
    Ok(pixels)
}

/// Frames of a GIF, in the shape the op gives.
fn animation(mut pixels: Pixels, wish: &Wish) -> Result<Pixels> {
    let frames = pixels.dims[0];
    let single = match wish.op.as_str() {
        "DecodePng" | "DecodeJpeg" if frames == 1 => true,
        "DecodePng" | "DecodeJpeg" => {
            return invalid(format!(
                "Got {frames} frames, but animated gifs can only be decoded by tf.io.decode_gif or tf.io.decode_image"
            ));
        }
        _ => !wish.expand,
    };
    if single {
        pixels.dims.remove(0);
    }
    Ok(pixels)
}

fn crop_window(window: &Tensor) -> Result<[i32; 4]> {
    if window.rank() != 1 {
        return invalid(format!(
            "crop_window must be 1-D, got shape {}",
            window.shape()
        ));
    }
    match window.as_slice::<i32>()? {
        &[y, x, height, width] => Ok([y, x, height, width]),
        _ => invalid(format!(
            "crop_size must have four elements {}",
            window.shape()
        )),
    }
}

/// Pixels in the op's type: sixteen bits of eight are multiplied, floats are from 0 to 1.
fn convert(pixels: Pixels, dtype: DType) -> Result<Tensor> {
    let dims = pixels.dims;
    Ok(match (pixels.values, dtype) {
        (Samples::Eight(v), DType::UInt16) => Tensor::from_vec(
            v.iter().map(|v| u16::from(*v) * 256).collect::<Vec<u16>>(),
            dims,
        )?,
        (Samples::Eight(v), DType::Float) => {
            const SCALE: f32 = 1.0 / 255.0;
            Tensor::from_vec(
                v.iter()
                    .map(|v| f32::from(*v) * SCALE)
                    .collect::<Vec<f32>>(),
                dims,
            )?
        }
        (Samples::Eight(v), _) => Tensor::from_vec(v, dims)?,
        (Samples::Sixteen(v), DType::Float) => {
            const SCALE: f32 = 1.0 / 65535.0;
            Tensor::from_vec(
                v.iter()
                    .map(|v| f32::from(*v) * SCALE)
                    .collect::<Vec<f32>>(),
                dims,
            )?
        }
        (Samples::Sixteen(v), _) => Tensor::from_vec(v, dims)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{run_op, text};
    use bytes::Bytes;

    fn encoded(op: &str) -> Bytes {
        let pixels: Vec<u8> = (0..20 * 17 * 3).map(|i| (i * 7 % 256) as u8).collect();
        let image = Tensor::from_vec(pixels, [20, 17, 3]).unwrap();
        let out = run_op(op, vec![image], &[]).unwrap();
        out[0].as_strings().unwrap()[0].clone()
    }

    fn decode(file: impl Into<Bytes>) -> Result<Vec<Tensor>> {
        run_op("DecodeImage", vec![Tensor::string(file)], &[])
    }

    #[test]
    fn what_is_encoded_is_decoded() {
        let out = decode(encoded("EncodePng")).unwrap();
        assert_eq!(out[0].dims(), [20, 17, 3]);
        let values = out[0].as_slice::<u8>().unwrap();
        assert!(
            values
                .iter()
                .enumerate()
                .all(|(i, v)| usize::from(*v) == i * 7 % 256)
        );
        assert_eq!(
            decode(encoded("EncodeJpeg")).unwrap()[0].dims(),
            [20, 17, 3]
        );
    }

    #[test]
    fn sizes_beyond_the_budget_are_refused_before_pixels_are_made() {
        let mut png = encoded("EncodePng").to_vec();
        png[16..24].copy_from_slice(&[0, 0, 0x40, 0, 0, 0, 0x40, 0]);
        // The header's checksum is wrong now, too; either refusal is early.
        assert!(decode(png).is_err());
        let mut gif = b"GIF89a\xff\xff\xff\xff\x80\0\0\0\0\0\x01\x01\x01,\0\0\0\0".to_vec();
        gif.extend(b"\xff\xff\xff\xff\0\x02\x01\x44\0;");
        assert!(text(decode(gif)).starts_with("OOM when allocating tensor"));
        let mut jpeg = encoded("EncodeJpeg").to_vec();
        let at = jpeg.windows(2).position(|w| w == [0xff, 0xc0]).unwrap();
        jpeg[at + 5..at + 9].copy_from_slice(&[0xff; 4]);
        assert!(decode(jpeg).is_err());
    }

    #[test]
    fn damaged_files_are_errors_or_images() {
        let mut seed = 9u64;
        let mut draw = |n: usize| {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            (seed >> 33) as usize % n
        };
        for op in ["EncodePng", "EncodeJpeg"] {
            let good = encoded(op).to_vec();
            for _ in 0..200 {
                let mut bad = good.clone();
                for _ in 0..=draw(3) {
                    let at = draw(bad.len());
                    bad[at] = draw(256) as u8;
                }
                bad.truncate(draw(bad.len()) + 1);
                if let Err(e) = decode(bad) {
                    assert!(!e.message.contains("panicked"), "{op}: {e}");
                }
            }
        }
    }
}
