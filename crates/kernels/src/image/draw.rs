//! `DrawBoundingBoxes`: outlines of boxes on copies of images.

use crate::types::with_type;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Element};
use half::f16;

const TYPES: &[DType] = crate::types::FLOAT_HALF;

/// Colours used in turn when none are given; of images of one channel the first number counts.
const COLOURS: [[f32; 4]; 10] = [
    [1.0, 1.0, 0.0, 1.0],
    [0.0, 0.0, 1.0, 1.0],
    [1.0, 0.0, 0.0, 1.0],
    [0.0, 1.0, 0.0, 1.0],
    [0.5, 0.0, 0.5, 1.0],
    [0.5, 0.5, 0.0, 1.0],
    [0.5, 0.0, 0.0, 1.0],
    [0.0, 0.0, 0.5, 1.0],
    [0.0, 1.0, 1.0, 1.0],
    [1.0, 0.0, 1.0, 1.0],
];

pub(crate) fn register(r: &mut Registry) {
    for op in ["DrawBoundingBoxes", "DrawBoundingBoxesV2"] {
        r.add_typed(op, &[("T", TYPES)], |_| Built::costly(run));
    }
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn run(ctx: &mut OpContext<'_>) -> Result<()> {
    let mut images = ctx.take(0)?;
    let boxes = ctx.input(1)?;
    let &[batch, height, width, depth] = images.dims() else {
        return invalid("The rank of the images should be 4".into());
    };
    if boxes.rank() != 3 {
        return invalid("The rank of the boxes tensor should be 3".into());
    }
    if boxes.dims()[0] != batch {
        return invalid("The batch sizes should be the same".into());
    }
    if !matches!(depth, 1 | 3 | 4) {
        return invalid("Channel depth should be either 1 (GRY), 3 (RGB), or 4 (RGBA)".into());
    }
    if boxes.dims()[2] != 4 {
        return invalid(format!(
            "The size of the third dimension of the box must be 4. Received: {}",
            boxes.dims()[2]
        ));
    }
    let mut colours: Vec<Vec<f32>> = Vec::new();
    if ctx.num_inputs() == 3 {
        let given = ctx.input(2)?;
        let &[_, channels] = given.dims() else {
            return invalid(format!("colors must be a 2-D matrix{}", given.shape()));
        };
        if channels < depth {
            return invalid(format!(
                "colors must have equal or more channels than the image provided: {}",
                given.shape()
            ));
        }
        if given.num_elements() != 0 {
            let rows = given.as_slice::<f32>()?.chunks(channels);
            colours = rows.map(<[f32]>::to_vec).collect();
        }
    }
    if colours.is_empty() {
        colours = COLOURS.iter().map(|c| c.to_vec()).collect();
        if depth == 1 {
            colours.iter_mut().for_each(|c| c[0] = 1.0);
        }
    }
    let per_image = boxes.dims()[1];
    let boxes = boxes.as_slice::<f32>()?.to_vec();
    with_type!(images.dtype(), T in [f32, f16] => {
        let canvas = images.make_mut::<T>()?;
        for (i, corners) in boxes.chunks(4).enumerate() {
            let (image, colour) = (i / per_image, &colours[i % per_image % colours.len()]);
            let colour: Vec<T> = colour.iter().map(|&v| <T as Paint>::of(v)).collect();
            let size = height * width * depth;
            let image = &mut canvas[image * size..(image + 1) * size];
            outline(image, (height, width), &colour[..depth], corners);
        }
    });
    ctx.set_output(0, images);
    Ok(())
}

trait Paint: Element {
    fn of(value: f32) -> Self;
}

impl Paint for f32 {
    fn of(value: f32) -> f32 {
        value
    }
}

impl Paint for f16 {
    fn of(value: f32) -> f16 {
        f16::from_f32(value)
    }
}

/// A float as a row or column. What no 64 bits hold, NaN among it, is the lowest number, as in TensorFlow on x86.
fn whole(v: f32) -> i64 {
    const END: f32 = 9_223_372_036_854_775_808.0;
    match (-END..END).contains(&v) {
        true => v as i64,
        false => i64::MIN,
    }
}

fn outline<T: Paint>(
    image: &mut [T],
    (height, width): (usize, usize),
    colour: &[T],
    corners: &[f32],
) {
    let (height, width) = (height as i64, width as i64);
    let along = |v: f32, n: i64| whole(v * (n - 1) as f32);
    let (top, bottom) = (along(corners[0], height), along(corners[2], height));
    let (left, right) = (along(corners[1], width), along(corners[3], width));
    let inverted = top > bottom || left > right;
    if inverted || top >= height || bottom < 0 || left >= width || right < 0 {
        return;
    }
    let mut paint = |y: i64, x: i64| {
        let at = (y * width + x) as usize * colour.len();
        image[at..at + colour.len()].copy_from_slice(colour);
    };
    let rows = top.max(0)..=bottom.min(height - 1);
    let columns = left.max(0)..=right.min(width - 1);
    for y in [top, bottom] {
        if (0..height).contains(&y) {
            columns.clone().for_each(|x| paint(y, x));
        }
    }
    for x in [left, right] {
        if (0..width).contains(&x) {
            rows.clone().for_each(|y| paint(y, x));
        }
    }
}
