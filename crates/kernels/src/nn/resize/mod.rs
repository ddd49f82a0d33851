//! Resizing images: checks and coordinates shared by the methods in the files beside this one.

mod area;
mod bicubic;
mod bilinear;
mod crop;
mod nearest;

use crate::args;
pub(crate) use bilinear::{lerp, lerp_codes};
use downpour_graph::{Attrs, Result, Status};
use downpour_runtime::{OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    area::register(r);
    bicubic::register(r);
    bilinear::register(r);
    crop::register(r);
    nearest::register(r);
}

/// How output pixels map to input positions.
#[derive(Clone, Copy)]
pub(crate) struct Mapping {
    align_corners: bool,
    half_pixel: bool,
}

impl Mapping {
    pub(crate) fn new(align_corners: bool, half_pixel: bool) -> Mapping {
        Mapping {
            align_corners,
            half_pixel,
        }
    }

    pub(crate) fn parse(attrs: &Attrs) -> Result<Mapping> {
        let half_pixel = match attrs.find("half_pixel_centers") {
            Some(_) => attrs.bool("half_pixel_centers")?,
            None => false,
        };
        let align_corners = attrs.bool("align_corners")?;
        if half_pixel && align_corners {
            return Err(Status::invalid_argument(
                "If half_pixel_centers is True, align_corners must be False.",
            ));
        }
        Ok(Mapping {
            align_corners,
            half_pixel,
        })
    }

    /// Input pixels for each output pixel.
    fn scale(self, input: usize, output: usize) -> f32 {
        if self.align_corners && output > 1 {
            (input - 1) as f32 / (output - 1) as f32
        } else {
            input as f32 / output as f32
        }
    }

    /// Where output pixel `i` lies in the input.
    fn position(self, i: usize, scale: f32) -> f32 {
        if self.half_pixel {
            (i as f32 + 0.5) * scale - 0.5
        } else {
            i as f32 * scale
        }
    }
}

/// Input and output sizes: `[batch, height, width, channels]` and `[height, width]`.
struct Sizes {
    input: [usize; 4],
    output: [usize; 2],
}

impl Sizes {
    /// Checks an image and the size it is to have.
    fn check(ctx: &OpContext<'_>) -> Result<Sizes> {
        let (image, size) = (ctx.input(0)?, ctx.input(1)?);
        let input = four(image, "input")?;
        let output = two(size)?;
        let invalid = |text: &str| Err(Status::invalid_argument(text));
        let Some(output) = positive(&output) else {
            return invalid("output dimensions must be positive");
        };
        if input[3] == 0 {
            return invalid("image must have at least one channel");
        }
        if input[1] == 0 || input[2] == 0 {
            return invalid("input image must be of non-zero size");
        }
        Ok(Sizes { input, output })
    }

    fn shape(&self) -> Shape {
        let [n, _, _, c] = self.input;
        Shape::from([n, self.output[0], self.output[1], c])
    }
}

fn four(t: &Tensor, what: &str) -> Result<[usize; 4]> {
    <[usize; 4]>::try_from(t.dims())
        .map_err(|_| Status::invalid_argument(format!("{what} must be 4-dimensional{}", t.shape())))
}

fn two(t: &Tensor) -> Result<Vec<i64>> {
    if t.rank() != 1 {
        return Err(Status::invalid_argument(format!(
            "shape_t must be 1-dimensional{}",
            t.shape()
        )));
    }
    if t.num_elements() != 2 {
        return Err(Status::invalid_argument(format!(
            "shape_t must have two elements{}",
            t.shape()
        )));
    }
    args::ints(t)
}

fn positive(size: &[i64]) -> Option<[usize; 2]> {
    let one = |v: i64| usize::try_from(v).ok().filter(|&v| v > 0);
    Some([one(size[0])?, one(size[1])?])
}

/// Any real image as floats.
fn as_floats(t: &Tensor) -> Result<Vec<f32>> {
    let wide = crate::nn::float::widen(t)?;
    Ok(match wide.dtype() {
        DType::Float => wide.as_slice::<f32>()?.to_vec(),
        other => {
            crate::types::with_type!(other, T in [f64, i8, i16, i32, i64, u8, u16, u32, u64] => {
                wide.as_slice::<T>()?.iter().map(|&v| v as f32).collect()
            })
        }
    })
}

/// Floats as a tensor of a floating type.
fn from_floats(values: Vec<f32>, shape: impl Into<Shape>, dtype: DType) -> Result<Tensor> {
    let shape = shape.into();
    if dtype == DType::Double {
        let wide = values.into_iter().map(f64::from).collect();
        return Ok(Tensor::from_vec::<f64>(wide, shape)?);
    }
    crate::nn::float::narrow(Tensor::from_vec(values, shape)?, dtype)
}

#[cfg(test)]
mod tests;
