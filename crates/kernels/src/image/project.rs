//! `ImageProjectiveTransform`: each output pixel is read where a projective map takes it.

use crate::args::{ints, shape_of};
use crate::types::with_type;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, parallel_ranges};
use downpour_tensor::{DType, Element};
use half::{bf16, f16};

const TYPES: &[DType] = &[
    DType::UInt8,
    DType::Int32,
    DType::Int64,
    DType::Half,
    DType::BFloat16,
    DType::Float,
    DType::Double,
];

pub(crate) fn register(r: &mut Registry) {
    for op in ["ImageProjectiveTransformV2", "ImageProjectiveTransformV3"] {
        r.add_typed(op, &[("dtype", TYPES)], build);
    }
}

/// What stands outside the image.
#[derive(Clone, Copy)]
enum Fill {
    Reflect,
    Wrap,
    Constant,
    Nearest,
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn build(b: &KernelBuilder<'_>) -> Result<Built> {
    let bilinear = match b.attrs().str("interpolation")? {
        "NEAREST" => false,
        "BILINEAR" => true,
        other => {
            return invalid(format!(
                "Invalid interpolation {other}. Supported types: NEAREST, BILINEAR"
            ));
        }
    };
    let fill = match b.attrs().str("fill_mode")? {
        "REFLECT" => Fill::Reflect,
        "WRAP" => Fill::Wrap,
        "CONSTANT" => Fill::Constant,
        "NEAREST" => Fill::Nearest,
        other => {
            return invalid(format!(
                "Invalid mode {other}. Supported types: REFLECT, WRAP, CONSTANT, NEAREST"
            ));
        }
    };
    Built::costly(move |ctx| run(ctx, bilinear, fill))
}

fn run(ctx: &mut OpContext<'_>, bilinear: bool, fill: Fill) -> Result<()> {
    let (images, transforms) = (ctx.input(0)?.clone(), ctx.input(1)?);
    let &[batch, height, width, channels] = images.dims() else {
        return invalid("Input images must have rank 4");
    };
    let count = match *transforms.dims() {
        [n, 8] if n == batch || n == 1 => n,
        _ => {
            return invalid("Input transform should be num_images x 8 or 1 x 8");
        }
    };
    let size = ctx.input(2)?;
    if size.rank() != 1 {
        return invalid(format!(
            "output shape must be 1-dimensional{}",
            size.shape()
        ));
    }
    let &[rows, columns] = ints(size)?.as_slice() else {
        return invalid(format!(
            "output shape must have two elements{}",
            size.shape()
        ));
    };
    if rows <= 0 || columns <= 0 {
        return invalid("output dimensions must be positive");
    }
    let constant = match ctx.num_inputs() {
        4 => {
            let fill = ctx.input(3)?;
            if fill.rank() != 0 {
                return invalid("fill_value must be a scalar");
            }
            fill.scalar_value::<f32>()?
        }
        _ => 0.0,
    };
    let shape = shape_of(&[batch as i64, rows, columns, channels as i64])?;
    let mut out = ctx.zeros(images.dtype(), &shape)?;
    let transforms = transforms.as_slice::<f32>()?;
    let (rows, columns) = (rows as usize, columns as usize);
    with_type!(images.dtype(), T in [u8, i32, i64, f16, bf16, f32, f64] => {
        let values = images.as_slice::<T>()?;
        let constant = T::of(constant);
        let row = columns * channels;
        let grain = (16 << 10) / row.max(1) + 1;
        parallel_ranges(out.make_mut::<T>()?, row.max(1), grain, |first, lines| {
            for (i, line) in lines.chunks_mut(row).enumerate() {
                let (image, y) = ((first + i) / rows, (first + i) % rows);
                let t = &transforms[if count == 1 { 0 } else { image * 8 }..][..8];
                let size = height * width * channels;
                let source = Source {
                    values: &values[image * size..(image + 1) * size],
                    size: (height, width, channels),
                    constant,
                };
                for (x, pixel) in line.chunks_mut(channels).enumerate() {
                    match place(t, x as f32, y as f32, (height, width), fill) {
                        None => pixel.fill(constant),
                        Some(at) => source.read(at, bilinear, pixel),
                    }
                }
            }
        });
    });
    ctx.set_output(0, out);
    Ok(())
}

/// Where a pixel is read; `None` at infinity.
fn place(t: &[f32], x: f32, y: f32, size: (usize, usize), fill: Fill) -> Option<(f32, f32)> {
    let projection = t[6] * x + t[7] * y + 1.0;
    if projection == 0.0 {
        return None;
    }
    let in_x = (t[0] * x + t[1] * y + t[2]) / projection;
    let in_y = (t[3] * x + t[4] * y + t[5]) / projection;
    Some((inside(in_y, size.0, fill), inside(in_x, size.1, fill)))
}

/// A coordinate brought into `0..len`, unless the outside is constant.
fn inside(at: f32, len: usize, fill: Fill) -> f32 {
    let (n, last) = (len as f32, len as f32 - 1.0);
    let moved = match fill {
        Fill::Constant => return at,
        Fill::Nearest => at,
        _ if len <= 1 && (at < 0.0 || at > last) => 0.0,
        Fill::Reflect if at < 0.0 => {
            let twice = 2.0 * n;
            let at = twice * (-at / twice).trunc() + at;
            if at < -n { at + twice } else { -at - 1.0 }
        }
        Fill::Reflect if at > last => {
            let twice = 2.0 * n;
            let at = at - twice * (at / twice).trunc();
            if at >= n { twice - at - 1.0 } else { at }
        }
        Fill::Wrap if at < 0.0 => at + n * ((-at / last).trunc() + 1.0),
        Fill::Wrap if at > last => at - n * (at / last).trunc(),
        _ => at,
    };
    // NaN stays and is outside.
    if moved < 0.0 {
        0.0
    } else if moved > last {
        last
    } else {
        moved
    }
}

struct Source<'a, T> {
    values: &'a [T],
    size: (usize, usize, usize),
    constant: T,
}

impl<T: Sample> Source<'_, T> {
    fn at(&self, y: f32, x: f32, channel: usize) -> T {
        let (height, width, channels) = self.size;
        let (y, x) = (y as i64, x as i64);
        if y < 0 || x < 0 || y as usize >= height || x as usize >= width {
            return self.constant;
        }
        self.values[(y as usize * width + x as usize) * channels + channel]
    }

    fn read(&self, (y, x): (f32, f32), bilinear: bool, pixel: &mut [T]) {
        for (channel, to) in pixel.iter_mut().enumerate() {
            if !bilinear {
                *to = self.at(y.round(), x.round(), channel);
                continue;
            }
            let (top, left) = (y.floor(), x.floor());
            let (bottom, right) = (top + 1.0, left + 1.0);
            let line = |y: f32| {
                (right - x) * self.at(y, left, channel).wide()
                    + (x - left) * self.at(y, right, channel).wide()
            };
            *to = T::of((bottom - y) * line(top) + (y - top) * line(bottom));
        }
    }
}

/// A pixel's number, computed in float.
trait Sample: Element {
    fn of(value: f32) -> Self;
    fn wide(self) -> f32;
}

macro_rules! samples {
    ($($t:ty),*) => {
        $(impl Sample for $t {
            fn of(value: f32) -> $t {
                value as $t
            }
            fn wide(self) -> f32 {
                self as f32
            }
        })*
    };
}

samples!(u8, i32, i64, f32, f64);

impl Sample for f16 {
    fn of(value: f32) -> f16 {
        f16::from_f32(value)
    }
    fn wide(self) -> f32 {
        self.to_f32()
    }
}

impl Sample for bf16 {
    fn of(value: f32) -> bf16 {
        bf16::from_f32(value)
    }
    fn wide(self) -> f32 {
        self.to_f32()
    }
}
