//! `CombinedNonMaxSuppression`: suppression for each image and class, then the best of all.

use super::non_max_suppression::overlap;
use crate::args::int;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add("CombinedNonMaxSuppression", |b| {
        let (pad, clip) = (
            b.attrs().bool("pad_per_class")?,
            b.attrs().bool("clip_boxes")?,
        );
        Built::costly(move |ctx| run(ctx, pad, clip))
    });
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn scalar<'a>(ctx: &'a OpContext<'_>, i: usize, name: &str) -> Result<&'a Tensor> {
    let t = ctx.input(i)?;
    match t.rank() {
        0 => Ok(t),
        _ => invalid(format!("{name} must be 0-D, got shape {}", t.shape())),
    }
}

struct Found<'a> {
    score: f32,
    class: usize,
    corners: &'a [f32],
}

fn run(ctx: &mut OpContext<'_>, pad: bool, clip: bool) -> Result<()> {
    let (boxes, scores) = (ctx.input(0)?, ctx.input(1)?);
    if boxes.rank() != 4 {
        return invalid(format!("boxes must be 4-D{}", boxes.shape()));
    }
    if scores.rank() != 3 {
        return invalid(format!("scores must be 3-D{}", scores.shape()));
    }
    if boxes.dims()[0] != scores.dims()[0] {
        return invalid("boxes and scores must have same batch size");
    }
    let per_class = int(scalar(ctx, 2, "max_size_per_class")?)?;
    if per_class <= 0 {
        return invalid("max_size_per_class must be positive");
    }
    let total = int(scalar(ctx, 3, "max_total_size")?)?;
    if total <= 0 {
        return invalid("max_total_size must be > 0");
    }
    let iou = scalar(ctx, 4, "iou_threshold")?.scalar_value::<f32>()?;
    let least = scalar(ctx, 5, "score_threshold")?.scalar_value::<f32>()?;
    if !(0.0..=1.0).contains(&iou) {
        return invalid("iou_threshold must be in [0, 1]");
    }
    let &[batch, count, shared, corners] = boxes.dims() else {
        return Err(Status::internal("the rank was checked"));
    };
    let classes = scores.dims()[2];
    if shared != 1 && shared != classes {
        return invalid("third dimension of boxes must be either 1 or num classes");
    }
    if corners != 4 {
        return invalid("boxes must have 4 columns");
    }
    if scores.dims()[1] != count {
        return invalid("scores has incompatible shape");
    }
    let (per_class, total) = (per_class as usize, total as usize);
    let size = match pad {
        true => total.min(per_class.saturating_mul(classes)),
        false => total,
    };
    ctx.check_alloc(
        DType::Float,
        &crate::args::shape_of(&[batch as i64, size as i64, 4])?,
    )?;
    let (values, marks) = (boxes.as_slice::<f32>()?, scores.as_slice::<f32>()?);
    let mut out_boxes = Vec::with_capacity(batch * size * 4);
    let (mut out_scores, mut out_classes) = (Vec::new(), Vec::new());
    let mut valid = Vec::with_capacity(batch);
    for b in 0..batch {
        let mut found = Vec::new();
        for class in 0..classes {
            let corners = |i: usize| {
                let which = if shared > 1 { class } else { 0 };
                &values[((b * count + i) * shared + which) * 4..][..4]
            };
            let score = |i: usize| marks[(b * count + i) * classes + class];
            let mut order: Vec<usize> = (0..count).filter(|&i| score(i) > least).collect();
            order.sort_by(|&i, &j| score(j).total_cmp(&score(i)));
            let mut chosen: Vec<&[f32]> = Vec::new();
            for i in order {
                if chosen.len() == per_class {
                    break;
                }
                if chosen.iter().rev().any(|c| overlap(corners(i), c) > iou) {
                    continue;
                }
                chosen.push(corners(i));
                found.push(Found {
                    score: score(i),
                    class,
                    corners: corners(i),
                });
            }
        }
        found.sort_by(|x, y| y.score.total_cmp(&x.score));
        found.truncate(size);
        valid.push(found.len() as i32);
        for f in &found {
            let cut = |v: &f32| if clip { v.clamp(0.0, 1.0) } else { *v };
            out_boxes.extend(f.corners.iter().map(cut));
            out_scores.push(f.score);
            out_classes.push(f.class as f32);
        }
        out_boxes.resize((b + 1) * size * 4, 0.0);
        out_scores.resize((b + 1) * size, 0.0);
        out_classes.resize((b + 1) * size, 0.0);
    }
    let shape = Shape::from([batch, size]);
    ctx.set_output(0, Tensor::from_vec(out_boxes, [batch, size, 4])?);
    ctx.set_output(1, Tensor::from_vec(out_scores, shape.clone())?);
    ctx.set_output(2, Tensor::from_vec(out_classes, shape)?);
    ctx.set_output(3, Tensor::vector(valid));
    Ok(())
}
