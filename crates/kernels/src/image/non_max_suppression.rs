//! `NonMaxSuppression` in all its versions: boxes by falling score, without those that overlap
//! what was chosen before. Halves are computed in float and rounded after every operation, since
//! equal scores decide.

use crate::args::int;
use crate::nn::float::widen;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};
use half::f16;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

const TYPES: &[DType] = crate::types::FLOAT_HALF;

pub(crate) fn register(r: &mut Registry) {
    r.add("NonMaxSuppression", |b| {
        let iou = b.attrs().float("iou_threshold")?;
        Built::costly(move |ctx| {
            let limit = scalar(ctx, 2, "max_output_size", false)?;
            let limit = int(limit)?;
            let options = Options {
                iou: check_iou(iou)?,
                ..Options::default()
            };
            run(ctx, limit, options)
        })
    });
    let types = &[("T", TYPES)];
    r.add_typed("NonMaxSuppressionV2", types, |b| build(b, 2));
    r.add_typed("NonMaxSuppressionV3", types, |b| build(b, 3));
    r.add_typed("NonMaxSuppressionV4", types, |b| build(b, 4));
    r.add_typed("NonMaxSuppressionV5", types, |b| build(b, 5));
    r.add("NonMaxSuppressionWithOverlaps", |_| {
        Built::costly(|ctx| {
            let limit = int(scalar(ctx, 2, "max_output_size", false)?)?;
            let options = Options {
                iou: number(scalar(ctx, 3, "overlap_threshold", false)?)?,
                score: number(scalar(ctx, 4, "score_threshold", false)?)?,
                overlaps: true,
                ..Options::default()
            };
            run(ctx, limit, options)
        })
    });
}

fn build(b: &KernelBuilder<'_>, version: usize) -> Result<Built> {
    let pad = match version {
        4 | 5 => b.attrs().bool("pad_to_max_output_size")?,
        _ => false,
    };
    let half = b.attrs().dtype("T")? == DType::Half;
    Built::costly(move |ctx| {
        // V3 says more about wrong ranks.
        let limit = int(scalar(ctx, 2, "max_output_size", version == 3)?)?;
        let mut options = Options {
            iou: check_iou(number(scalar(ctx, 3, "iou_threshold", version == 3)?)?)?,
            half,
            version,
            pad,
            ..Options::default()
        };
        if half {
            options.score = f16::MIN.to_f32();
        }
        if version > 2 {
            options.score = number(scalar(ctx, 4, "score_threshold", false)?)?;
        }
        if version == 5 {
            options.sigma = number(scalar(ctx, 5, "soft_nms_sigma", false)?)?;
            if !(options.sigma >= 0.0) {
                return invalid("soft_nms_sigma_val must be >= 0");
            }
        }
        run(ctx, limit, options)
    })
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn scalar<'a>(ctx: &'a OpContext<'_>, i: usize, name: &str, wordy: bool) -> Result<&'a Tensor> {
    let t = ctx.input(i)?;
    if t.rank() == 0 {
        return Ok(t);
    }
    let more = match wordy {
        true => format!(" (Shape must be rank 0 but is rank {})", t.rank()),
        false => String::new(),
    };
    invalid(format!("{name} must be 0-D, got shape {}{more}", t.shape()))
}

fn number(t: &Tensor) -> Result<f32> {
    Ok(widen(t)?.scalar_value::<f32>()?)
}

fn check_iou(value: f32) -> Result<f32> {
    match (0.0..=1.0).contains(&value) {
        true => Ok(value),
        false => invalid("iou_threshold must be in [0, 1]"),
    }
}

#[derive(Clone, Copy)]
struct Options {
    iou: f32,
    score: f32,
    sigma: f32,
    overlaps: bool,
    half: bool,
    pad: bool,
    version: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            iou: 0.0,
            score: f32::MIN,
            sigma: 0.0,
            overlaps: false,
            half: false,
            pad: false,
            version: 1,
        }
    }
}

fn run(ctx: &mut OpContext<'_>, limit: i64, o: Options) -> Result<()> {
    let (boxes, scores) = (ctx.input(0)?, ctx.input(1)?);
    let count = match (o.overlaps, boxes.dims()) {
        (true, [n, m]) if n == m => *n,
        (true, [_, _]) => {
            return invalid(format!("overlaps must be square{}", boxes.shape()));
        }
        (true, _) => return invalid(format!("overlaps must be 2-D{}", boxes.shape())),
        (false, [n, 4]) => *n,
        (false, [_, other]) => {
            return invalid(format!(
                "boxes must have 4 columns (Dimension must be 4 but is {other})"
            ));
        }
        (false, _) => {
            return invalid(format!(
                "boxes must be 2-D{} (Shape must be rank 2 but is rank {})",
                boxes.shape(),
                boxes.rank()
            ));
        }
    };
    match scores.dims() {
        [n] if *n == count => {}
        [n] => {
            return invalid(format!(
                "scores has incompatible shape (Dimensions must be equal, but are {count} and {n})"
            ));
        }
        _ => {
            return invalid(format!(
                "scores must be 1-D{} (Shape must be rank 1 but is rank {})",
                scores.shape(),
                scores.rank()
            ));
        }
    }
    let Ok(limit) = usize::try_from(limit) else {
        return invalid("output size must be non-negative");
    };
    if o.pad {
        ctx.check_alloc(DType::Int32, &Shape::from([limit]))?;
    }
    let (values, scores) = (widen(boxes)?, widen(scores)?);
    let values = values.as_slice::<f32>()?;
    let similarity = |i: usize, j: usize| match o.overlaps {
        true => values[i * count + j],
        false => overlap(&values[i * 4..], &values[j * 4..]),
    };
    let (mut chosen, mut kept) = choose(scores.as_slice()?, limit, o, similarity);
    let valid = chosen.len() as i32;
    if o.pad {
        chosen.resize(limit, 0);
        kept.resize(limit, 0.0);
    }
    ctx.set_output(0, Tensor::vector(chosen));
    if o.version == 5 {
        let scores = match o.half {
            true => Tensor::vector(kept.into_iter().map(f16::from_f32).collect()),
            false => Tensor::vector(kept),
        };
        ctx.set_output(1, scores);
    }
    if o.version > 3 {
        ctx.set_output(o.version - 3, Tensor::scalar(valid));
    }
    Ok(())
}

/// Intersection over union of two boxes of any two opposite corners.
pub(super) fn overlap(a: &[f32], b: &[f32]) -> f32 {
    let sides = |v: &[f32]| {
        [
            v[0].min(v[2]),
            v[1].min(v[3]),
            v[0].max(v[2]),
            v[1].max(v[3]),
        ]
    };
    let (a, b) = (sides(a), sides(b));
    let area = |s: [f32; 4]| (s[2] - s[0]) * (s[3] - s[1]);
    let (area_a, area_b) = (area(a), area(b));
    if area_a <= 0.0 || area_b <= 0.0 {
        return 0.0;
    }
    let height = (a[2].min(b[2]) - a[0].max(b[0])).max(0.0);
    let width = (a[3].min(b[3]) - a[1].max(b[1])).max(0.0);
    let both = height * width;
    both / (area_a + area_b - both)
}

/// A box that may still be chosen.
struct Candidate {
    index: usize,
    score: f32,
    /// How many chosen boxes it was compared with.
    compared: usize,
}

impl PartialEq for Candidate {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Candidate {}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Candidate {
    fn cmp(&self, other: &Self) -> Ordering {
        let by_score = self.score.total_cmp(&other.score);
        by_score.then(other.index.cmp(&self.index))
    }
}

fn choose(
    scores: &[f32],
    limit: usize,
    o: Options,
    similarity: impl Fn(usize, usize) -> f32,
) -> (Vec<i32>, Vec<f32>) {
    let round = |v: f32| if o.half { f16::from_f32(v).to_f32() } else { v };
    let mut heap: BinaryHeap<Candidate> = scores
        .iter()
        .enumerate()
        .filter(|(_, s)| **s > o.score)
        .map(|(index, &score)| Candidate {
            index,
            // Both zeros are equal.
            score: score + 0.0,
            compared: 0,
        })
        .collect();
    let soft = o.sigma > 0.0;
    let scale = if soft { round(-0.5 / o.sigma) } else { 0.0 };
    let weight = |sim: f32| match soft || sim <= o.iou {
        true => round(round(round(scale * sim) * sim).exp()),
        false => 0.0,
    };
    let (mut chosen, mut kept) = (Vec::<i32>::new(), Vec::new());
    while chosen.len() < limit
        && let Some(mut next) = heap.pop()
    {
        let (before, mut suppressed) = (next.score, false);
        for &earlier in chosen[next.compared..].iter().rev() {
            let sim = round(similarity(next.index, earlier as usize));
            next.score = round(next.score * weight(sim));
            if !soft && sim > o.iou {
                suppressed = true;
                break;
            }
            if next.score <= o.score {
                break;
            }
        }
        next.compared = chosen.len();
        if suppressed {
            continue;
        }
        if next.score == before {
            chosen.push(next.index as i32);
            kept.push(next.score);
        } else if next.score > o.score {
            heap.push(next);
        }
    }
    (chosen, kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_of_overlapping_boxes_stays() {
        let boxes: [[f32; 4]; 3] = [
            [0.0, 0.0, 1.0, 1.0],
            [0.0, 0.1, 1.0, 1.1],
            [0.0, 10.0, 1.0, 11.0],
        ];
        let sim = |i: usize, j: usize| overlap(&boxes[i], &boxes[j]);
        let options = Options {
            iou: 0.5,
            ..Options::default()
        };
        let scores = [0.9, 0.95, 0.3];
        assert_eq!(choose(&scores, 3, options, sim).0, [1, 2]);
        assert_eq!(choose(&scores, 1, options, sim).0, [1]);
        assert_eq!(choose(&[0.5; 3], 3, options, sim).0, [0, 2]);
        assert_eq!(overlap(&[1.0, 1.0, 0.0, 0.0], &[0.0, 0.0, 1.0, 1.0]), 1.0);
        assert_eq!(overlap(&[0.0; 4], &[0.0; 4]), 0.0);
        let soft = Options {
            sigma: 0.5,
            score: 0.0,
            ..options
        };
        let (chosen, kept) = choose(&scores, 3, soft, sim);
        // An overlap of 9/11 leaves the second best about half its score: still more than the third.
        assert_eq!(chosen, [1, 0, 2]);
        assert!(kept[1] < 0.5 && kept[1] > 0.3);
    }
}
