//! `SampleDistortedBoundingBox`: a random crop that covers enough of one of the given boxes.

use crate::random::philox::{Guarded, Philox, Words};
use crate::random::stateless::from_seed;
use crate::types::{INTS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::Tensor;

pub(crate) fn register(r: &mut Registry) {
    let types = &[("T", INTS)];
    for op in ["SampleDistortedBoundingBox", "SampleDistortedBoundingBoxV2"] {
        r.add_typed(op, types, |b| {
            let options = Options::parse(b)?;
            let generator = Guarded::from_attrs(b.attrs())?;
            Built::costly(move |ctx| {
                let words = 4 * options.attempts as u64;
                run(ctx, &options, |_| Ok(generator.reserve_words(words)))
            })
        });
    }
    r.add_typed("StatelessSampleDistortedBoundingBox", types, |b| {
        let options = Options::parse(b)?;
        Built::costly(move |ctx| run(ctx, &options, |ctx| from_seed(ctx, 3)))
    });
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

struct Options {
    /// As an attribute; later versions have an input.
    covered: Option<f32>,
    ratio: [f32; 2],
    area: [f32; 2],
    attempts: i64,
    whole: bool,
}

impl Options {
    fn parse(b: &KernelBuilder<'_>) -> Result<Options> {
        let attrs = b.attrs();
        let covered = match attrs.find("min_object_covered") {
            Some(_) => Some(check_covered(attrs.float("min_object_covered")?)?),
            None => None,
        };
        let Ok(ratio) = <[f32; 2]>::try_from(attrs.floats("aspect_ratio_range")?.to_vec()) else {
            return invalid("Aspect ratio range field must specify 2 dimensions");
        };
        if !(ratio[0] > 0.0 && ratio[1] > 0.0) {
            return invalid(format!(
                "Aspect ratio range must be non-negative: [{}, {}]",
                ratio[0], ratio[1]
            ));
        }
        let Ok(area) = <[f32; 2]>::try_from(attrs.floats("area_range")?.to_vec()) else {
            return invalid("Area range field must specify 2 dimensions");
        };
        if !(area[0] > 0.0 && area[1] > 0.0) {
            return invalid(format!(
                "Area range must be non-negative: [{}, {}]",
                area[0], area[1]
            ));
        }
        if !(area[0] <= 1.0 && area[1] <= 1.0) {
            return invalid(format!(
                "Area range must be less then or equal to 1.0: [{}, {}]",
                area[0], area[1]
            ));
        }
        let attempts = attrs.int("max_attempts")?;
        if attempts <= 0 {
            return invalid(format!("Max attempts must be non-negative: {attempts}"));
        }
        Ok(Options {
            covered,
            ratio,
            area,
            attempts: attempts.min(i64::from(i32::MAX)),
            whole: attrs.bool("use_image_if_no_bounding_boxes")?,
        })
    }
}

fn check_covered(value: f32) -> Result<f32> {
    match value >= 0.0 {
        true => Ok(value),
        false => invalid(format!("Min object covered must be non-negative: {value}")),
    }
}

/// Left, top, right, bottom in pixels.
#[derive(Clone, Copy)]
struct Rect([i32; 4]);

impl Rect {
    fn area(self) -> f32 {
        let [left, top, right, bottom] = self.0;
        (right - left).wrapping_mul(bottom - top) as f32
    }

    fn meet(self, other: Rect) -> Rect {
        let (a, b) = (self.0, other.0);
        let m = [
            a[0].max(b[0]),
            a[1].max(b[1]),
            a[2].min(b[2]),
            a[3].min(b[3]),
        ];
        Rect(if m[0] > m[2] || m[1] > m[3] {
            [0; 4]
        } else {
            m
        })
    }
}

fn run(
    ctx: &mut OpContext<'_>,
    o: &Options,
    generator: impl FnOnce(&OpContext<'_>) -> Result<Philox>,
) -> Result<()> {
    let (size, boxes) = (ctx.input(0)?, ctx.input(1)?);
    if size.rank() != 1 {
        return invalid(format!("image_size must be 1-dimensional{}", size.shape()));
    }
    if size.num_elements() != 3 {
        return invalid(format!(
            "image_size must contain 3 elements{}",
            size.shape()
        ));
    }
    let dtype = size.dtype();
    let sizes: Vec<u64> =
        with_type!(dtype, T in ints => size.as_slice::<T>()?.iter().map(|&v| v as u64).collect());
    for (name, value) in [("height", sizes[0]), ("width", sizes[1])] {
        if value >= i32::MAX as u64 {
            return invalid(format!("image {name} cannot be >= int32 max"));
        }
    }
    let (height, width) = (sizes[0] as i32, sizes[1] as i32);
    if boxes.rank() != 3 {
        return invalid(format!(
            "input boxes must be 3-dimensional [batch, num_boxes, coords]: {}",
            boxes.shape()
        ));
    }
    if boxes.dims()[2] != 4 {
        return invalid(format!(
            "bounding boxes must have shape [4] or [*, 4], got {}",
            boxes.shape()
        ));
    }
    let covered = match o.covered {
        Some(value) => value,
        None => {
            let t = ctx.input(2)?;
            if t.rank() != 0 {
                return invalid(format!(
                    "min_object_covered must be 0-D, got shape {}",
                    t.shape()
                ));
            }
            check_covered(t.scalar_value()?)?
        }
    };
    let mut objects = Vec::new();
    for corners in boxes.as_slice::<f32>()?.chunks(4) {
        if let Some(bad) = corners.iter().find(|v| !(0.0..=1.0).contains(*v)) {
            return invalid(format!(
                "All bounding box coordinates must be in [0.0, 1.0]: {bad}"
            ));
        }
        let (w, h) = (width as f32, height as f32);
        let [top, left, bottom, right] = [
            corners[0] * h,
            corners[1] * w,
            corners[2] * h,
            corners[3] * w,
        ];
        objects.push(Rect([left as i32, top as i32, right as i32, bottom as i32]));
    }
    let image = Rect([0, 0, width, height]);
    if objects.is_empty() {
        if !o.whole {
            return invalid(
                "No bounding boxes provided as input. One must enable use_image_if_no_bounding_boxes if you wish to not provide any bounding boxes.",
            );
        }
        objects.push(image);
    }
    let mut words = Words::new(generator(ctx)?);
    let mut found = image;
    for attempt in 0..o.attempts {
        // Attempts may be billions; a step that nobody waits for must not go through them all.
        if attempt % 4096 == 4095
            && let Some(reason) = ctx.env().cancellation.reason()
        {
            return Err(reason);
        }
        let ratio = words.f32() * (o.ratio[1] - o.ratio[0]) + o.ratio[0];
        match crop((width, height), o.area, ratio, &mut words) {
            Some(rect) if covers(rect, covered, &objects) => {
                found = rect;
                break;
            }
            _ => {}
        }
    }
    let [left, top, right, bottom] = found.0;
    let begin = [i64::from(top), i64::from(left), 0];
    let extent = [i64::from(bottom - top), i64::from(right - left), -1];
    with_type!(dtype, T in ints => {
        ctx.set_output(0, Tensor::vector(begin.iter().map(|&v| v as T).collect::<Vec<T>>()));
        ctx.set_output(1, Tensor::vector(extent.iter().map(|&v| v as T).collect::<Vec<T>>()));
    });
    let (w, h) = (width as f32, height as f32);
    let relative = vec![
        top as f32 / h,
        left as f32 / w,
        bottom as f32 / h,
        right as f32 / w,
    ];
    ctx.set_output(2, Tensor::from_vec(relative, [1, 1, 4])?);
    Ok(())
}

fn covers(crop: Rect, covered: f32, objects: &[Rect]) -> bool {
    crop.area() >= 1.0
        && objects
            .iter()
            .any(|o| o.area() >= 1.0 && crop.meet(*o).area() / o.area() >= covered)
}

/// Rounds halves to even, as the C library does.
fn nearest(v: f32) -> i32 {
    v.round_ties_even() as i32
}

/// A random rectangle of the given relative area and ratio, if one fits.
fn crop(size: (i32, i32), area: [f32; 2], ratio: f32, words: &mut Words) -> Option<Rect> {
    let (full_width, full_height) = size;
    if area[1] <= 0.0 || ratio <= 0.0 || full_width <= 0 || full_height <= 0 || area[0] > area[1] {
        return None;
    }
    let least = area[0] * full_width as f32 * full_height as f32;
    let most = area[1] * full_width as f32 * full_height as f32;
    let mut height = nearest((least / ratio).sqrt());
    let mut highest = nearest((most / ratio).sqrt());
    if nearest(highest as f32 * ratio) > full_width {
        const EPSILON: f32 = 0.000_000_1;
        let wide = f64::from(full_width) + 0.5 - f64::from(EPSILON);
        highest = (wide / f64::from(ratio)) as i32;
    }
    highest = highest.min(full_height);
    if height >= highest {
        height = highest;
    } else {
        height += words.below((highest - height + 1) as u32) as i32;
    }
    let at = |height: i32| {
        let width = nearest(height as f32 * ratio);
        (width, width.wrapping_mul(height) as f32)
    };
    let (mut width, mut now) = at(height);
    if now < least {
        height += 1;
        (width, now) = at(height);
    }
    if now > most {
        height -= 1;
        (width, now) = at(height);
    }
    let fits = now >= least
        && now <= most
        && (1..=full_width).contains(&width)
        && (1..=full_height).contains(&height);
    if !fits {
        return None;
    }
    let mut offset = |free: i32| {
        if free > 0 {
            words.below(free as u32) as i32
        } else {
            0
        }
    };
    let top = offset(full_height - height);
    let left = offset(full_width - width);
    Some(Rect([left, top, left + width, top + height]))
}
