//! Shapes of arithmetic, reductions, matrix products and segments.

use super::common::{axis, binary, merge, merge_dim, same, scalar};
use super::{Context, Rule, Shapes, broadcast, invalid, one};
use downpour_graph::Result;
use downpour_tensor::PartialShape;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "Neg" | "Abs" | "Sign" | "Square" | "Sqrt" | "Rsqrt" | "Exp" | "Expm1" | "Log"
        | "Log1p" | "Sin" | "Cos" | "Tan" | "Sinh" | "Cosh" | "Tanh" | "Asin" | "Acos" | "Atan"
        | "Asinh" | "Acosh" | "Atanh" | "Sigmoid" | "Erf" | "Erfc" | "Lgamma" | "Digamma"
        | "Ndtri" | "Erfinv" | "Floor" | "Ceil" | "Round" | "Rint" | "Reciprocal" | "Inv"
        | "LogicalNot" | "Invert" | "IsNan" | "IsInf" | "IsFinite" | "Cast" | "Conj" | "Real"
        | "Imag" | "ComplexAbs" | "Angle" | "Relu" | "Relu6" | "Elu" | "Selu" | "LeakyRelu"
        | "Softplus" | "Softsign" | "Softmax" | "LogSoftmax" | "Cumsum" | "Cumprod"
        | "ClipByValue" | "CheckNumerics" | "Bucketize" => same,
        "Add" | "AddV2" | "Sub" | "Mul" | "MulNoNan" | "Div" | "DivNoNan" | "RealDiv"
        | "TruncateDiv" | "FloorDiv" | "FloorMod" | "Mod" | "TruncateMod" | "Pow" | "Maximum"
        | "Minimum" | "SquaredDifference" | "Atan2" | "Xdivy" | "Xlogy" | "Xlog1py" | "Equal"
        | "NotEqual" | "Less" | "LessEqual" | "Greater" | "GreaterEqual" | "LogicalAnd"
        | "LogicalOr" | "BitwiseAnd" | "BitwiseOr" | "BitwiseXor" | "LeftShift" | "RightShift"
        | "Complex" | "Igamma" | "Igammac" | "Zeta" | "Polygamma" | "NextAfter"
        | "ApproximateEqual" => binary,
        "SqrtGrad" | "RsqrtGrad" | "TanhGrad" | "SigmoidGrad" | "InvGrad" | "ReciprocalGrad"
        | "ReluGrad" | "Relu6Grad" | "EluGrad" | "SeluGrad" | "LeakyReluGrad" | "SoftplusGrad"
        | "SoftsignGrad" | "AddN" | "AccumulateNV2" => super::common::merged,
        "Sum" | "Mean" | "Max" | "Min" | "Prod" | "All" | "Any" | "EuclideanNorm" => reduction,
        "ArgMax" | "ArgMin" => arg_extremum,
        "MatMul" => matmul,
        "BatchMatMul" | "BatchMatMulV2" | "BatchMatMulV3" => batch_matmul,
        "Select" => select,
        "SelectV2" => |c| {
            one(broadcast(
                &broadcast(&c.input(0), &c.input(1))?,
                &c.input(2),
            )?)
        },
        "Range" | "LinSpace" => sequence,
        "L2Loss" => scalar,
        "SegmentSum" | "SegmentMean" | "SegmentMax" | "SegmentMin" | "SegmentProd" => segment,
        "UnsortedSegmentSum"
        | "UnsortedSegmentMax"
        | "UnsortedSegmentMin"
        | "UnsortedSegmentProd" => unsorted_segment,
        _ => return None,
    })
}

fn reduction(c: &mut Context<'_>) -> Result<Shapes> {
    let (input, keep) = (c.input(0), c.attrs().bool("keep_dims")?);
    let Some(dims) = input.dims() else {
        return one(PartialShape::unknown());
    };
    let Some(axes) = c.known_ints(1) else {
        return one(match keep {
            true => PartialShape::from_dims(std::iter::repeat_n(None, dims.len())),
            false => PartialShape::unknown(),
        });
    };
    let mut reduced = vec![false; dims.len()];
    for a in axes {
        reduced[axis(a, dims.len())?] = true;
    }
    let mut out = Vec::new();
    for (&d, &reduced) in dims.iter().zip(&reduced) {
        match reduced {
            false => out.push(d),
            true if keep => out.push(Some(1)),
            true => {}
        }
    }
    one(PartialShape::from_dims(out))
}

fn arg_extremum(c: &mut Context<'_>) -> Result<Shapes> {
    let input = c.input(0);
    let Some(dims) = input.dims() else {
        return one(PartialShape::unknown());
    };
    let mut dims = dims.to_vec();
    match c.known_int(1) {
        Some(a) => {
            dims.remove(axis(a, dims.len())?);
        }
        None => dims = vec![None; dims.len().saturating_sub(1)],
    }
    one(PartialShape::from_dims(dims))
}

fn matmul(c: &mut Context<'_>) -> Result<Shapes> {
    let (a, b) = (c.with_rank(0, 2)?, c.with_rank(1, 2)?);
    let flip = |name: &str| c.attrs().bool(name);
    let (rows, inner_a) = ends(&a, flip("transpose_a")?);
    let (inner_b, columns) = ends(&b, flip("transpose_b")?);
    if merge_dim(inner_a, inner_b).is_none() {
        return invalid(format!(
            "Dimensions must be equal, but are {} and {}",
            inner_a.unwrap_or(0),
            inner_b.unwrap_or(0)
        ));
    }
    one(PartialShape::from_dims([rows, columns]))
}

/// The last two dimensions, in the order they are multiplied.
fn ends(shape: &PartialShape, flipped: bool) -> (Option<usize>, Option<usize>) {
    match (shape.dims(), flipped) {
        (Some([.., a, b]), false) => (*a, *b),
        (Some([.., a, b]), true) => (*b, *a),
        _ => (None, None),
    }
}

fn batch_matmul(c: &mut Context<'_>) -> Result<Shapes> {
    let (a, b) = (c.input(0), c.input(1));
    let (Some(x), Some(y)) = (a.dims(), b.dims()) else {
        return one(PartialShape::unknown());
    };
    if x.len() < 2 || y.len() < 2 {
        return invalid("both inputs must have at least two dimensions");
    }
    let lead = |d: &[Option<usize>]| PartialShape::from_dims(d[..d.len() - 2].iter().copied());
    let batch = broadcast(&lead(x), &lead(y))?;
    let flip = |name: &str| c.attrs().bool(name);
    let (rows, inner_a) = ends(&a, flip("adj_x")?);
    let (inner_b, columns) = ends(&b, flip("adj_y")?);
    if merge_dim(inner_a, inner_b).is_none() {
        return invalid(format!(
            "Dimensions must be equal, but are {} and {}",
            inner_a.unwrap_or(0),
            inner_b.unwrap_or(0)
        ));
    }
    let batch = batch.dims().unwrap_or_default().iter().copied();
    one(PartialShape::from_dims(batch.chain([rows, columns])))
}

fn select(c: &mut Context<'_>) -> Result<Shapes> {
    let values = merge(&c.input(1), &c.input(2))?;
    let condition = c.input(0);
    let fits = match (condition.dims(), values.dims()) {
        (Some([]), _) | (None, _) | (_, None) => true,
        (Some([n]), Some([first, ..])) => merge_dim(*n, *first).is_some(),
        _ => merge(&condition, &values).is_ok(),
    };
    if !fits {
        return invalid(format!("the condition {condition} does not fit {values}"));
    }
    one(values)
}

fn sequence(c: &mut Context<'_>) -> Result<Shapes> {
    for i in 0..3 {
        c.with_rank(i, 0)?;
    }
    let bounds = (c.known_int(0), c.known_int(1), c.known_int(2));
    let count = match (c.num_inputs(), bounds) {
        (_, (Some(start), Some(limit), Some(step))) if step != 0 => {
            let span = (i128::from(limit) - i128::from(start)) as f64 / step as f64;
            Some(span.ceil().max(0.0) as usize)
        }
        _ => None,
    };
    one(PartialShape::from_dims([count]))
}

/// The dimensions of the rows of input 0, without the first.
fn row(c: &Context<'_>) -> Option<Vec<Option<usize>>> {
    let shape = c.input(0);
    Some(shape.dims()?.get(1..)?.to_vec())
}

fn segment(c: &mut Context<'_>) -> Result<Shapes> {
    c.with_rank(1, 1)?;
    one(match row(c) {
        Some(row) => PartialShape::from_dims(std::iter::once(None).chain(row)),
        None => PartialShape::unknown(),
    })
}

fn unsorted_segment(c: &mut Context<'_>) -> Result<Shapes> {
    let count = c.known_int(2).and_then(|n| usize::try_from(n).ok());
    let (data, ids) = (c.input(0), c.input(1));
    let (Some(data), Some(ids)) = (data.dims(), ids.dims()) else {
        return one(PartialShape::unknown());
    };
    let rest = data
        .get(ids.len()..)
        .ok_or(())
        .or_else(|()| invalid("the segment ids have more dimensions than the data"))?;
    one(PartialShape::from_dims(
        std::iter::once(count).chain(rest.iter().copied()),
    ))
}
