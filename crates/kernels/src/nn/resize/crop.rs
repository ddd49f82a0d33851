//! `CropAndResize` and its gradients: boxes of images brought to one size.

use super::{as_floats, from_floats};
use crate::args;
use crate::types::REALS;
use downpour_graph::{Attrs, Code, Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("CropAndResize", &[("T", REALS)], |b| {
        let nearest = is_nearest(b.attrs())?;
        let outside = b.attrs().float("extrapolation_value")?;
        Built::costly(move |ctx| forward(ctx, nearest, outside))
    });
    const TYPES: &[DType] = &[DType::Double, DType::Float, DType::Half];
    r.add_typed("CropAndResizeGradImage", &[("T", TYPES)], |b| {
        let nearest = is_nearest(b.attrs())?;
        let dtype = b.attrs().dtype("T")?;
        Built::costly(move |ctx| image_gradient(ctx, nearest, dtype))
    });
    r.add_typed("CropAndResizeGradBoxes", &[("T", REALS)], |_| {
        Built::costly(box_gradient)
    });
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn is_nearest(attrs: &Attrs) -> Result<bool> {
    match attrs.str("method")? {
        "bilinear" => Ok(false),
        "nearest" => Ok(true),
        _ => invalid("method must be 'bilinear' or 'nearest'"),
    }
}

/// Boxes and the image each is cut from.
struct Boxes {
    corners: Vec<[f32; 4]>,
    image: Vec<usize>,
}

impl Boxes {
    fn parse(boxes: &Tensor, index: &Tensor, batch: usize) -> Result<Boxes> {
        if boxes.num_elements() == 0 && index.num_elements() == 0 {
            return Ok(Boxes {
                corners: Vec::new(),
                image: Vec::new(),
            });
        }
        let &[count, four] = boxes.dims() else {
            return invalid(format!("boxes must be 2-D, got: {}", boxes.shape()));
        };
        if four != 4 {
            return invalid("boxes must have 4 columns");
        }
        let corners: Vec<[f32; 4]> = boxes
            .as_slice::<f32>()?
            .chunks_exact(4)
            .map(|c| [c[0], c[1], c[2], c[3]])
            .collect();
        if corners.iter().flatten().any(|v| !v.is_finite()) {
            return invalid("Boxes contains at least one element that is not finite");
        }
        if index.rank() != 1 {
            return invalid(format!(
                "box_indices must be rank 1 but is shape {}",
                index.shape()
            ));
        }
        if index.dims()[0] != count {
            return invalid("box_index has incompatible shape");
        }
        let image: Option<Vec<usize>> = args::ints(index)?
            .into_iter()
            .map(|i| usize::try_from(i).ok().filter(|&i| i < batch))
            .collect();
        match image {
            Some(image) => Ok(Boxes { corners, image }),
            None => Err(Status::new(
                Code::OutOfRange,
                "box_index has values outside [0, batch_size)",
            )),
        }
    }
}

/// Where crop pixels lie along one axis of the image; `None` outside of it.
fn positions(start: f32, end: f32, size: usize, crop: usize) -> Vec<Option<f32>> {
    let last = (size - 1) as f32;
    let step = if crop > 1 {
        (end - start) * last / (crop - 1) as f32
    } else {
        0.0
    };
    (0..crop)
        .map(|i| {
            let at = if crop > 1 {
                start * last + i as f32 * step
            } else {
                0.5 * (start + end) * last
            };
            (0.0..=last).contains(&at).then_some(at)
        })
        .collect()
}

/// The four pixels around a position, with their weights.
fn corners(y: f32, x: f32, nearest: bool) -> [(usize, usize, f32); 4] {
    if nearest {
        let (y, x) = (y.round() as usize, x.round() as usize);
        return [(y, x, 1.0), (y, x, 0.0), (y, x, 0.0), (y, x, 0.0)];
    }
    let (top, bottom) = (y.floor(), y.ceil());
    let (left, right) = (x.floor(), x.ceil());
    let (ly, lx) = (y - top, x - left);
    [
        (top as usize, left as usize, (1.0 - ly) * (1.0 - lx)),
        (top as usize, right as usize, (1.0 - ly) * lx),
        (bottom as usize, left as usize, ly * (1.0 - lx)),
        (bottom as usize, right as usize, ly * lx),
    ]
}

fn forward(ctx: &mut OpContext<'_>, nearest: bool, outside: f32) -> Result<()> {
    let (image, crop) = (ctx.input(0)?, ctx.input(3)?);
    let &[batch, h, w, c] = image.dims() else {
        return invalid(format!("input image must be 4-D{}", image.shape()));
    };
    if h == 0 || w == 0 {
        return invalid("image dimensions must be positive");
    }
    let boxes = Boxes::parse(ctx.input(1)?, ctx.input(2)?, batch)?;
    if crop.rank() != 1 {
        return invalid(format!("crop_size must be 1-D{}", crop.shape()));
    }
    if crop.num_elements() != 2 {
        return invalid(format!("crop_size must have two elements{}", crop.shape()));
    }
    let size = args::ints(crop)?;
    if size[0] <= 0 || size[1] <= 0 {
        return invalid("crop dimensions must be positive");
    }
    let (ch, cw) = (size[0] as usize, size[1] as usize);
    let shape = Shape::checked([boxes.image.len(), ch, cw, c].map(|d| d as i64))?;
    ctx.check_alloc(DType::Float, &shape)?;
    let values = as_floats(image)?;
    let mut out = vec![outside; shape.num_elements()];
    let mut pixels = out.chunks_exact_mut(c.max(1));
    for (b, n) in boxes.corners.iter().zip(&boxes.image) {
        let (ys, xs) = (positions(b[0], b[2], h, ch), positions(b[1], b[3], w, cw));
        for y in &ys {
            for (x, to) in xs.iter().zip(&mut pixels) {
                let (Some(y), Some(x)) = (y, x) else { continue };
                let four = corners(*y, *x, nearest);
                for (i, to) in to.iter_mut().enumerate() {
                    let at = |k: usize| values[((n * h + four[k].0) * w + four[k].1) * c + i];
                    // Interpolated in TensorFlow's order: along rows, then between them.
                    *to = if nearest {
                        at(0)
                    } else {
                        let (lx, ly) = (x - x.floor(), y - y.floor());
                        let top = at(0) + (at(1) - at(0)) * lx;
                        let bottom = at(2) + (at(3) - at(2)) * lx;
                        top + (bottom - top) * ly
                    };
                }
            }
        }
    }
    ctx.set_output(0, Tensor::from_vec(out, shape)?);
    Ok(())
}

/// Checks gradients against boxes; gives `[boxes, height, width, channels]`.
fn check_gradient(dy: &Tensor, boxes: &Boxes) -> Result<[usize; 4]> {
    let &[n, ch, cw, c] = dy.dims() else {
        return invalid(format!("grads image must be 4-D{}", dy.shape()));
    };
    if ch == 0 || cw == 0 {
        return invalid("grads dimensions must be positive");
    }
    if n != boxes.image.len() {
        return invalid("boxes and grads have incompatible shape");
    }
    Ok([n, ch, cw, c])
}

fn image_gradient(ctx: &mut OpContext<'_>, nearest: bool, dtype: DType) -> Result<()> {
    let (dy, size) = (ctx.input(0)?, ctx.input(3)?);
    if dy.rank() != 4 {
        return invalid(format!("grads image must be 4-D{}", dy.shape()));
    }
    if size.rank() != 1 {
        return invalid(format!("image_size must be 1-D{}", size.shape()));
    }
    if size.num_elements() != 4 {
        return invalid(format!("image_size must have 4 elements{}", size.shape()));
    }
    let shape = Shape::checked(args::ints(size)?)?;
    let [batch, h, w, c] = [shape[0], shape[1], shape[2], shape[3]];
    if h == 0 || w == 0 {
        return invalid("image dimensions must be positive");
    }
    if c != dy.dims()[3] {
        return invalid("image_size and grads are incompatible");
    }
    let boxes = Boxes::parse(ctx.input(1)?, ctx.input(2)?, batch)?;
    let [_, ch, cw, _] = check_gradient(dy, &boxes)?;
    ctx.check_alloc(DType::Float, &shape)?;
    let mut out = vec![0.0f32; shape.num_elements()];
    let mut pixels = dy.as_slice::<f32>()?.chunks_exact(c.max(1));
    for (b, n) in boxes.corners.iter().zip(&boxes.image) {
        let (ys, xs) = (positions(b[0], b[2], h, ch), positions(b[1], b[3], w, cw));
        for y in &ys {
            for (x, pixel) in xs.iter().zip(&mut pixels) {
                let (Some(y), Some(x)) = (y, x) else { continue };
                for (iy, ix, weight) in corners(*y, *x, nearest) {
                    let at = ((n * h + iy) * w + ix) * c;
                    for (to, v) in out[at..at + c].iter_mut().zip(pixel) {
                        *to += v * weight;
                    }
                }
            }
        }
    }
    let out = from_floats(out, shape, dtype)?;
    ctx.set_output(0, out);
    Ok(())
}

fn box_gradient(ctx: &mut OpContext<'_>) -> Result<()> {
    let (dy, image) = (ctx.input(0)?, ctx.input(1)?);
    if dy.rank() != 4 {
        return invalid(format!("grads image must be 4-D{}", dy.shape()));
    }
    let &[batch, h, w, c] = image.dims() else {
        return invalid(format!("input image must be 4-D{}", image.shape()));
    };
    if h == 0 || w == 0 {
        return invalid("image dimensions must be positive");
    }
    if dy.dims()[3] != c {
        return invalid("image, grads depth differ");
    }
    let boxes = Boxes::parse(ctx.input(2)?, ctx.input(3)?, batch)?;
    let [_, ch, cw, _] = check_gradient(dy, &boxes)?;
    let values = as_floats(image)?;
    let mut out = vec![0.0f32; boxes.corners.len() * 4];
    let mut pixels = dy.as_slice::<f32>()?.chunks_exact(c.max(1));
    // How a pixel's position follows the two ends of its box.
    let ends = |i: usize, crop: usize, size: usize| {
        let last = (size - 1) as f32;
        if crop > 1 {
            let far = i as f32 * last / (crop - 1) as f32;
            (last - far, far)
        } else {
            (0.5 * last, 0.5 * last)
        }
    };
    for ((b, n), out) in boxes
        .corners
        .iter()
        .zip(&boxes.image)
        .zip(out.chunks_exact_mut(4))
    {
        let (ys, xs) = (positions(b[0], b[2], h, ch), positions(b[1], b[3], w, cw));
        for (i, y) in ys.iter().enumerate() {
            for ((j, x), pixel) in xs.iter().enumerate().zip(&mut pixels) {
                let (Some(y), Some(x)) = (y, x) else { continue };
                let four = corners(*y, *x, false);
                let (ly, lx) = (y - y.floor(), x - x.floor());
                let ((y1, y2), (x1, x2)) = (ends(i, ch, h), ends(j, cw, w));
                for (k, d) in pixel.iter().enumerate() {
                    let at = |p: usize| values[((n * h + four[p].0) * w + four[p].1) * c + k];
                    let (tl, tr, bl, br) = (at(0), at(1), at(2), at(3));
                    let gy = d * ((1.0 - lx) * (bl - tl) + lx * (br - tr));
                    let gx = d * ((1.0 - ly) * (tr - tl) + ly * (br - bl));
                    out[0] += gy * y1;
                    out[2] += gy * y2;
                    out[1] += gx * x1;
                    out[3] += gx * x2;
                }
            }
        }
    }
    let shape = [boxes.corners.len(), 4];
    ctx.set_output(0, Tensor::from_vec(out, shape)?);
    Ok(())
}
