//! `ImageSummary`: a batch of images as PNG files, floats scaled to bytes as TensorFlow does it.

use super::{numbered, scalar};
use bytes::Bytes;
use downpour_formats::summary::{SummaryContent, SummaryValue, encode_summary};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::{DType, Tensor};
use half::f16;
use num_traits::Float;

const TYPES: &[DType] = &[DType::UInt8, DType::Float, DType::Half, DType::Double];

/// Below this the largest value counts as zero.
const ZERO: f32 = 1e-6;

pub(super) fn register(r: &mut Registry) {
    r.add_typed("ImageSummary", &[("T", TYPES)], image_summary);
}

fn image_summary(b: &KernelBuilder<'_>) -> Result<Built> {
    let most = b.attrs().int("max_images")?;
    let bad_color = b.attrs().tensor("bad_color")?;
    if bad_color.dtype() != DType::UInt8 {
        return Err(Status::invalid_argument(format!(
            "bad_color must be uint8, got {}",
            bad_color.dtype()
        )));
    }
    if bad_color.rank() != 1 {
        return Err(Status::invalid_argument(format!(
            "bad_color must be a vector, got shape {}",
            bad_color.shape()
        )));
    }
    let bad_color = bad_color.as_slice::<u8>()?.to_vec();
    Built::costly(move |ctx| {
        let tag = scalar(ctx, 0, "Tags must be a scalar")?;
        let tensor = ctx.input(1)?;
        let (batch, height, width, depth) = image_dims(tensor)?;
        if batch > 0 && tensor.num_elements() == 0 {
            return Err(Status::invalid_argument(format!(
                "input tensor must have non-zero dims. Found: [{batch}, {height}, {width}, {depth}]."
            )));
        }
        if depth > bad_color.len() {
            return Err(Status::invalid_argument(format!(
                "expected depth <= bad_color.size, got depth = {depth}, bad_color.size = {}",
                bad_color.len()
            )));
        }
        let bytes = encode_summary(image_values(tensor, &tag, most, &bad_color)?)?;
        ctx.set_output(0, Tensor::string(bytes));
        Ok(())
    })
}

/// Batch, height, width and depth of a tensor of images.
fn image_dims(tensor: &Tensor) -> Result<(usize, usize, usize, usize)> {
    match *tensor.dims() {
        [batch, height, width, depth @ (1 | 3 | 4)] => Ok((batch, height, width, depth)),
        _ => Err(Status::invalid_argument(format!(
            "Tensor must be 4-D with last dim 1, 3, or 4, not {}",
            tensor.shape()
        ))),
    }
}

/// The entries of a summary that shows at most `most` images. Bytes need no `bad_color`.
pub(super) fn image_values(
    tensor: &Tensor,
    tag: &[u8],
    most: i64,
    bad_color: &[u8],
) -> Result<Vec<SummaryValue>> {
    let (batch, height, width, depth) = image_dims(tensor)?;
    let bad = bad_color.get(..depth);
    if bad.is_none() && tensor.dtype() != DType::UInt8 {
        return Err(Status::invalid_argument(format!(
            "expected depth <= bad_color.size, got depth = {depth}, bad_color.size = {}",
            bad_color.len()
        )));
    }
    let bad = bad.unwrap_or_default();
    let count = batch.min(usize::try_from(most).unwrap_or(0));
    let size = height * width * depth;
    let mut values = Vec::with_capacity(count);
    for i in 0..count {
        let range = i * size..(i + 1) * size;
        let pixels = match tensor.dtype() {
            DType::UInt8 => tensor.as_slice::<u8>()?[range].to_vec(),
            DType::Half => scaled::<f16>(&tensor.as_slice()?[range], bad),
            DType::Double => scaled::<f64>(&tensor.as_slice()?[range], bad),
            _ => scaled::<f32>(&tensor.as_slice()?[range], bad),
        };
        let content = SummaryContent::Image {
            height: height as i32,
            width: width as i32,
            colorspace: depth as i32,
            encoded: png(&pixels, width, height, depth)?,
        };
        values.push(SummaryValue::new(numbered(tag, "image", i, most), content));
    }
    Ok(values)
}

/// Floats as bytes: values from 0 up are scaled so that the largest becomes 255; with a negative
/// one among them, so that 0 becomes 128. Pixels that are not finite take `bad`.
fn scaled<T: Float>(values: &[T], bad: &[u8]) -> Vec<u8> {
    let narrow = |v: T| v.to_f32().unwrap_or(f32::NAN);
    let of = |v: f32| T::from(v).unwrap_or_else(T::zero);
    let finite = |pixel: &[T]| pixel.iter().all(|v| v.is_finite());
    let (mut low, mut high) = (f32::INFINITY, f32::NEG_INFINITY);
    for value in values
        .chunks_exact(bad.len())
        .filter(|p| finite(p))
        .flatten()
    {
        low = low.min(narrow(*value));
        high = high.max(narrow(*value));
    }
    let (span, most, offset) = match low < 0.0 {
        true => (127.0, low.abs().max(high.abs()), 128.0),
        false => (255.0, high, 0.0),
    };
    let scale = of(if most < ZERO { 0.0 } else { span / most });
    let offset = of(offset);
    let mut out = Vec::with_capacity(values.len());
    for pixel in values.chunks_exact(bad.len()) {
        if finite(pixel) {
            out.extend(
                pixel
                    .iter()
                    .map(|&v| (v * scale + offset).to_u8().unwrap_or(255)),
            );
        } else {
            out.extend_from_slice(bad);
        }
    }
    out
}

fn png(pixels: &[u8], width: usize, height: usize, depth: usize) -> Result<Bytes> {
    let bad = |e: png::EncodingError| Status::internal(format!("PNG encoding failed: {e}"));
    let side = |n: usize| {
        u32::try_from(n)
            .map_err(|_| Status::invalid_argument(format!("an image of {n} pixels is too large")))
    };
    let mut out = Vec::with_capacity(pixels.len() / 2 + 128);
    let mut encoder = png::Encoder::new(&mut out, side(width)?, side(height)?);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_color(match depth {
        1 => png::ColorType::Grayscale,
        3 => png::ColorType::Rgb,
        _ => png::ColorType::Rgba,
    });
    let mut writer = encoder.write_header().map_err(bad)?;
    writer.write_image_data(pixels).map_err(bad)?;
    writer.finish().map_err(bad)?;
    Ok(out.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pixels of TensorFlow 2.21.
    #[test]
    fn floats_are_scaled_as_tensorflow_scales_them() {
        for (values, expect) in [
            (vec![-1.0f32, 0.0, 1.0, 2.0], vec![64, 128, 191, 255]),
            (vec![-1.0, -0.5, -3.0, -2.0], vec![85, 106, 1, 43]),
            (vec![1.0, f32::NAN, 1.0, 2.0], vec![127, 255, 127, 255]),
            (vec![0.0, 1e-20, 2e-20, 0.0], vec![0, 0, 0, 0]),
            (vec![0.0, 1e-5, 2e-5, 0.0], vec![0, 127, 255, 0]),
            (vec![100.0, 255.0, 300.0, 1.0], vec![85, 216, 255, 0]),
        ] {
            assert_eq!(scaled(&values, &[255]), expect, "{values:?}");
        }
        let rgb = [1.0f32, f32::NAN, 1.0, 2.0, 3.0, 4.0];
        assert_eq!(scaled(&rgb, &[255, 0, 0]), [255, 0, 0, 127, 191, 255]);
    }

    #[test]
    fn a_png_reads_back() {
        let pixels: Vec<u8> = (0..12).collect();
        let bytes = png(&pixels, 2, 2, 3).unwrap();
        let mut reader = png::Decoder::new(std::io::Cursor::new(bytes))
            .read_info()
            .unwrap();
        let mut back = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut back).unwrap();
        assert_eq!((info.width, info.height, back), (2, 2, pixels));
    }
}
