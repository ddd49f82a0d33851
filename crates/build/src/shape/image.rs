//! Shapes of images: decoding, colours, resizing, boxes.

use super::Rule::{self, Compute, Pattern};
use super::dims::{merge_dims, replace, shape, size};
use super::{Context, Dim, Shapes, invalid, one};
use downpour_graph::Result;
use smallvec::smallvec;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "DecodeJpeg" | "DecodePng" | "DecodeBmp" => Compute(|c| {
            c.rank(0, 0)?;
            one(shape([None, None, channels(c)?]))
        }),
        "DecodeImage" => Compute(|c| {
            c.rank(0, 0)?;
            let depth = channels(c)?;
            match c.attrs().bool("expand_animations")? {
                true => one(downpour_tensor::PartialShape::unknown()),
                false => one(shape([None, None, depth])),
            }
        }),
        "DecodeGif" => Pattern("[] -> [_,_,_,3]"),
        "DecodeAndCropJpeg" => Compute(|c| {
            c.rank(0, 0)?;
            let depth = channels(c)?;
            merge_dims(c.rank(1, 1)?[0], Some(4))?;
            let window = c.ints(1).unwrap_or_default();
            let side = |i: usize| match window.get(i).copied().flatten() {
                Some(n) => size(n),
                None => Ok(None),
            };
            one(shape([side(2)?, side(3)?, depth]))
        }),
        "ExtractJpegShape" => Pattern("[] -> [3]"),
        "EncodeJpeg" => Pattern("[_,_,_] -> []"),
        "EncodePng" => Pattern("[B..,_,_,_] -> [B..]"),
        "EncodeJpegVariableQuality" => Pattern("[_,_,_] -> []"),
        "AdjustContrastv2" => Pattern("[B..,h,w,d] [] -> [B..,h,w,d]"),
        "AdjustHue" | "AdjustSaturation" => Pattern("[B..,h,w,d] -> [B..,h,w,d]"),
        "HSVToRGB" | "RGBToHSV" => Pattern("[B..,3] -> [B..,3]"),
        "ResizeArea"
        | "ResizeBicubic"
        | "ResizeBilinear"
        | "ResizeNearestNeighbor"
        | "ScaleAndTranslate" => Compute(|c| {
            let x = c.rank(0, 4)?;
            sized(c, x[0], 1, x[3])
        }),
        "ResizeBicubicGrad" | "ResizeBilinearGrad" | "ScaleAndTranslateGrad" => Pattern("* S -> S"),
        "ResizeNearestNeighborGrad" => Compute(|c| {
            let x = c.with_rank(0, 4)?;
            merge_dims(c.rank(1, 1)?[0], Some(2))?;
            let lengths = c.ints(1).unwrap_or_default();
            let side = |i: usize| match lengths.get(i).copied().flatten() {
                Some(n) => size(n),
                None => Ok(None),
            };
            one(replace(&replace(&x, 1, side(0)?), 2, side(1)?))
        }),
        "CropAndResize" => Compute(|c| {
            let depth = c.rank(0, 4)?[3];
            let (boxes, which) = (c.rank(1, 2)?, c.rank(2, 1)?);
            let count = merge_dims(boxes[0], which[0])?;
            merge_dims(boxes[1], Some(4))?;
            sized(c, count, 3, depth)
        }),
        "CropAndResizeGradImage" => Compute(|c| {
            let out = c.shape_from(3)?;
            match out.rank() {
                None => one(super::dims::of_rank(4)),
                Some(4) => one(out),
                Some(r) => invalid(format!("Shape must be rank 4 but is rank {r}")),
            }
        }),
        "CropAndResizeGradBoxes" => Pattern("* * S -> S"),
        "ExtractGlimpse" | "ExtractGlimpseV2" => Compute(|c| {
            let (x, offsets) = (c.rank(0, 4)?, c.rank(2, 2)?);
            let batch = merge_dims(x[0], offsets[0])?;
            merge_dims(offsets[1], Some(2))?;
            let noise = c.attrs().str("noise")?;
            if c.attrs().bool("uniform_noise")? && !noise.is_empty() && noise != "uniform" {
                return invalid(
                    "The uniform_noise and noise should not be specified at the same time",
                );
            }
            sized(c, batch, 1, x[3])
        }),
        "DrawBoundingBoxes" => Compute(|c| {
            if let Some(depth) = c.rank(0, 4)?[3]
                && ![1, 3, 4].contains(&depth)
            {
                return invalid("Channel depth should be either 1 (GRY), 3 (RGB), or 4 (RGBA)");
            }
            merge_dims(c.rank(1, 3)?[2], Some(4))?;
            one(c.input(0))
        }),
        "DrawBoundingBoxesV2" => Pattern("[B..,h,w,d] -> [B..,h,w,d]"),
        "SampleDistortedBoundingBox" => Pattern("[3] [_,_,4] -> [3] [3] [1,1,4]"),
        "SampleDistortedBoundingBoxV2" => Pattern("[3] [_,_,4] [] -> [3] [3] [1,1,4]"),
        "StatelessSampleDistortedBoundingBox" => Pattern("[3] [_,_,4] [] [2] -> [3] [3] [1,1,4]"),
        "NonMaxSuppression" => Pattern("[n,4] [n] [] -> [_]"),
        "NonMaxSuppressionV2" => Pattern("[n,4] [n] [] [] -> [_]"),
        "NonMaxSuppressionV3" => Pattern("[n,4] [n] [] [] [] -> [_]"),
        "NonMaxSuppressionV4" => Compute(|c| {
            let mut out = super::pattern::apply("[n,4] [n] [] [] [] -> [_] []", c)?;
            if c.attrs().bool("pad_to_max_output_size")? {
                out[0] = shape([c.dim_from(2)?]);
            }
            Ok(out)
        }),
        "NonMaxSuppressionV5" => Compute(|c| {
            let mut out = super::pattern::apply("[n,4] [n] [] [] [] [] -> [_] [_] []", c)?;
            if c.attrs().bool("pad_to_max_output_size")? {
                out[0] = shape([c.dim_from(2)?]);
                out[1] = out[0].clone();
            }
            Ok(out)
        }),
        "NonMaxSuppressionWithOverlaps" => Pattern("[n,n] [n] [] [] [] -> [_]"),
        "CombinedNonMaxSuppression" => Compute(combined),
        "ImageProjectiveTransformV2" | "ImageProjectiveTransformV3" => Compute(|c| {
            let x = c.rank(0, 4)?;
            sized(c, x[0], 2, x[3])
        }),
        _ => return None,
    })
}

/// What the attribute `channels` says; 0 leaves it to the file.
fn channels(c: &Context<'_>) -> Result<Dim> {
    match c.attrs().int("channels")? {
        0 => Ok(None),
        n if n < 0 => invalid(format!("channels must be non-negative, got {n}")),
        n => size(n),
    }
}

/// Images of the height and width that input `i` holds.
fn sized(c: &Context<'_>, batch: Dim, i: usize, depth: Dim) -> Result<Shapes> {
    merge_dims(c.rank(i, 1)?[0], Some(2))?;
    let lengths = c.ints(i).unwrap_or_default();
    let side = |i: usize| match lengths.get(i).copied().flatten() {
        Some(n) => size(n),
        None => Ok(None),
    };
    one(shape([batch, side(0)?, side(1)?, depth]))
}

fn combined(c: &mut Context<'_>) -> Result<Shapes> {
    let (boxes, scores) = (c.rank(0, 4)?, c.rank(1, 3)?);
    c.scalars(2..6)?;
    let batch = merge_dims(boxes[0], scores[0])?;
    merge_dims(boxes[1], scores[1])?;
    merge_dims(boxes[3], Some(4))?;
    if let (Some(d), Some(classes)) = (boxes[2], scores[2])
        && d != 1
        && d != classes
    {
        return invalid(
            "third dimension of boxes must be either 1 or equal to the third dimension of scores",
        );
    }
    let (total, each) = (c.dim_from(3)?, c.dim_from(2)?);
    if total == Some(0) {
        return invalid("max_total_size should be > 0");
    }
    let mut count = total;
    if c.attrs().bool("pad_per_class")? {
        if each == Some(0) {
            return invalid(
                "max_output_size_per_class must be > 0 if pad_per_class is set to true",
            );
        }
        count = match (total, each, scores[2]) {
            (Some(total), Some(each), Some(classes)) => {
                Some(total.min(each.saturating_mul(classes)))
            }
            _ => None,
        };
    }
    Ok(smallvec![
        shape([batch, count, Some(4)]),
        shape([batch, count]),
        shape([batch, count]),
        shape([batch])
    ])
}
