//! Gradients of sums, means, products and extremes of segments.

use super::terms::{at, call, filled, join, of, rank_of, rows, shape_of, vector};
use super::{Back, Gradient, Grads, IndexedSlices, Rule};
use crate::Output;
use downpour_graph::Result;
use downpour_tensor::DType;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "SegmentSum" => |b| b.only(0, rows(&b.dy(0), &b.x(1))),
        "SegmentMean" => |b| {
            let ids = b.x(1);
            let rest = vector(&[&(rank_of(&b.x(0)) - 1)]);
            let ones = filled(&rest, &b.graph().constant(0i32), 1.0);
            let ones = filled(&join(&[&shape_of(&ids), &ones]), &b.dy(0), 1.0);
            let scaled = b.dy(0) / of("SegmentSum", &[&ones, &ids]);
            b.only(0, rows(&scaled, &ids))
        },
        "SegmentMax" | "SegmentMin" => |b| {
            let (x, ids) = (b.x(0), b.x(1));
            let hit = x.equal(&rows(&b.y(0), &ids));
            let number = of("SegmentSum", &[&hit.cast(b.dy(0).dtype()), &ids]);
            let shared = rows(&(b.dy(0) / number), &ids);
            b.only(0, hit.select(&shared, &x.zeros_like()))
        },
        "SegmentProd" => |b| prod(b, false),
        "UnsortedSegmentSum" => |b| b.only(0, Kept::new(&b.dy(0), &b.x(1)).gathered),
        "UnsortedSegmentMax" | "UnsortedSegmentMin" => |b| {
            let Kept {
                gathered,
                ids,
                kept,
            } = Kept::new(&b.y(0), &b.x(1));
            let hit = b.x(0).equal(&gathered).logical_and(&kept);
            let counted = hit.cast(b.dy(0).dtype());
            let number = of("UnsortedSegmentSum", &[&counted, &b.x(1), &b.x(2)]);
            let shared = rows(&(b.dy(0) / number), &ids);
            b.only(0, hit.select(&shared, &shared.zeros_like()))
        },
        "UnsortedSegmentProd" => |b| prod(b, true),
        "SparseSegmentSum" | "SparseSegmentSumWithNumSegments" => {
            |b| sparse(b, "SparseSegmentSumGrad")
        }
        "SparseSegmentMean" | "SparseSegmentMeanWithNumSegments" => {
            |b| sparse(b, "SparseSegmentMeanGrad")
        }
        "SparseSegmentSqrtN" | "SparseSegmentSqrtNWithNumSegments" => {
            |b| sparse(b, "SparseSegmentSqrtNGrad")
        }
        _ => return None,
    })
}

/// Rows taken by positions of which negative ones mean none.
struct Kept {
    /// The rows, zeros where there is none.
    gathered: Output,
    /// The positions, 0 in place of negative ones.
    ids: Output,
    /// Whether there is a row, for each of its elements.
    kept: Output,
}

impl Kept {
    fn new(from: &Output, ids: &Output) -> Kept {
        let g = from.graph();
        let safe = ids.maximum(&ids.zeros_like());
        let gathered = rows(from, &safe);
        let kept = ids.greater_equal(&ids.scalar_like(0.0));
        let more = vector(&[&(rank_of(&gathered) - rank_of(ids))]);
        let ones = filled(&more, &g.constant(0i32), 1.0);
        let tall = kept.reshape_to(&join(&[&shape_of(&kept), &ones]));
        let kept = of("BroadcastTo", &[&tall, &shape_of(&gathered)]);
        Kept {
            gathered: kept.select(&gathered, &gathered.zeros_like()),
            ids: safe,
            kept,
        }
    }
}

/// The product of the others: by division, apart from zeros.
fn prod(b: &Back, unsorted: bool) -> Result<Grads> {
    let (x, ids) = (b.x(0), b.x(1));
    let segments = |op: &str, x: &Output| match unsorted {
        true => of(&format!("Unsorted{op}"), &[x, &ids, &b.x(2)]),
        false => of(op, &[x, &ids]),
    };
    let is_zero = x.equal(&x.scalar_like(0.0));
    let zeros = segments("SegmentSum", &is_zero.cast(DType::Int32));
    let several = zeros.greater(&zeros.scalar_like(1.0));
    let dy = several.select(&b.dy(0).zeros_like(), &b.dy(0));
    let nonzero = is_zero.select(&x.ones_like(), &x);
    let others = segments("SegmentProd", &nonzero);
    let safe = match unsorted {
        true => ids.maximum(&ids.zeros_like()),
        false => ids.clone(),
    };
    // Where an element is 0 the quotient is not looked at.
    let divisor = if unsorted { &x } else { &nonzero };
    let quotient = rows(&b.y(0), &safe) / divisor;
    let slope = is_zero.select(&rows(&others, &safe), &quotient);
    let spread = match unsorted {
        true => Kept::new(&dy, &ids).gathered,
        false => rows(&dy, &ids),
    };
    b.only(0, spread * slope)
}

/// The kernel sums the gradients of rows; only those that were used if asked for.
fn sparse(b: &Back, op: &str) -> Result<Grads> {
    let shape = shape_of(&b.x(0));
    let rows = at(&shape, 0);
    let inputs = [&b.dy(0), &b.x(1), &b.x(2), &rows];
    if !b.flag("sparse_gradient").unwrap_or(false) {
        return b.only(0, of(op, &inputs));
    }
    let made = call(&format!("{op}V2"), &inputs).build();
    let slices = IndexedSlices {
        values: made.output(0),
        indices: made.output(1),
        shape,
    };
    b.only(0, Gradient::Sparse(slices))
}
