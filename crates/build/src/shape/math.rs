//! Shapes of arithmetic, reductions, matrix products and segments.

use super::Rule::{self, Compute, Pattern};
use super::dims::{
    axis, binary, broadcast, concatenate, dims_of, merge, merge_dim, merge_dims, merge_prefix,
    merged, of_rank, rest, shape,
};
use super::{Context, Dim, Shapes, invalid, one};
use downpour_graph::Result;
use downpour_tensor::PartialShape;

pub(super) fn rule(op: &str) -> Option<Rule> {
    elementwise(op).or_else(|| computed(op))
}

fn elementwise(op: &str) -> Option<Rule> {
    Some(match op {
        "Neg"
        | "Abs"
        | "Sign"
        | "Square"
        | "Sqrt"
        | "Rsqrt"
        | "Exp"
        | "Expm1"
        | "Log"
        | "Log1p"
        | "Sin"
        | "Cos"
        | "Tan"
        | "Sinh"
        | "Cosh"
        | "Tanh"
        | "Asin"
        | "Acos"
        | "Atan"
        | "Asinh"
        | "Acosh"
        | "Atanh"
        | "Sigmoid"
        | "Erf"
        | "Erfc"
        | "Lgamma"
        | "Digamma"
        | "Ndtri"
        | "Erfinv"
        | "Floor"
        | "Ceil"
        | "Round"
        | "Rint"
        | "Reciprocal"
        | "Inv"
        | "LogicalNot"
        | "Invert"
        | "IsNan"
        | "IsInf"
        | "IsFinite"
        | "Cast"
        | "Conj"
        | "Real"
        | "Imag"
        | "ComplexAbs"
        | "Angle"
        | "Relu"
        | "Relu6"
        | "Elu"
        | "Selu"
        | "LeakyRelu"
        | "Softplus"
        | "Softsign"
        | "Cumsum"
        | "Cumprod"
        | "CumulativeLogsumexp"
        | "ClipByValue"
        | "CheckNumerics"
        | "CheckNumericsV2"
        | "Bucketize"
        | "PopulationCount"
        | "BesselI0"
        | "BesselI0e"
        | "BesselI1"
        | "BesselI1e"
        | "BesselJ0"
        | "BesselJ1"
        | "BesselK0"
        | "BesselK0e"
        | "BesselK1"
        | "BesselK1e"
        | "BesselY0"
        | "BesselY1"
        | "Dawsn"
        | "Expint"
        | "FresnelCos"
        | "FresnelSin"
        | "Spence"
        | "SqrtGrad"
        | "RsqrtGrad"
        | "TanhGrad"
        | "SigmoidGrad"
        | "InvGrad"
        | "ReciprocalGrad"
        | "_UnaryOpsComposition" => Pattern("S -> S"),
        "Add" | "AddV2" | "Sub" | "Mul" | "MulNoNan" | "Div" | "DivNoNan" | "RealDiv"
        | "TruncateDiv" | "FloorDiv" | "FloorMod" | "Mod" | "TruncateMod" | "Pow" | "Maximum"
        | "Minimum" | "SquaredDifference" | "Atan2" | "Xdivy" | "Xlogy" | "Xlog1py" | "Less"
        | "LessEqual" | "Greater" | "GreaterEqual" | "LogicalAnd" | "LogicalOr" | "BitwiseAnd"
        | "BitwiseOr" | "BitwiseXor" | "LeftShift" | "RightShift" | "Complex" | "Igamma"
        | "Igammac" | "IgammaGradA" | "RandomGammaGrad" | "Zeta" | "Polygamma" | "NextAfter" => {
            Compute(binary)
        }
        "Equal" | "NotEqual" => Compute(equal),
        "ReluGrad" | "Relu6Grad" | "EluGrad" | "SeluGrad" | "LeakyReluGrad" | "SoftplusGrad"
        | "SoftsignGrad" | "ApproximateEqual" => Pattern("S S -> S"),
        "AddN" => Compute(merged),
        "AccumulateNV2" => Compute(|c| one(c.attrs().shape("shape")?.clone())),
        "SelectV2" => Compute(|c| {
            let values = broadcast(&c.input(1), &c.input(2))?;
            one(broadcast(&c.input(0), &values)?)
        }),
        "Select" => Compute(select),
        "Betainc" => Compute(betainc),
        _ => return None,
    })
}

fn computed(op: &str) -> Option<Rule> {
    Some(match op {
        "Sum" | "Mean" | "Max" | "Min" | "Prod" | "All" | "Any" | "EuclideanNorm"
        | "ReduceJoin" => Compute(reduction),
        "ArgMax" | "ArgMin" => Compute(arg_extremum),
        "MatMul" | "SparseMatMul" | "_FusedMatMul" => Compute(matmul),
        "BatchMatMul" => Compute(|c| batch_matmul(c, merge)),
        "BatchMatMulV2" | "BatchMatMulV3" => Compute(|c| batch_matmul(c, broadcast)),
        "Range" => Compute(sequence),
        "LinSpace" => Compute(|c| {
            c.scalars(0..3)?;
            match c.known_int(2) {
                Some(n) if n <= 0 => invalid(format!("Requires num > 0: {n}")),
                n => one(shape([n.map(|n| n as usize)])),
            }
        }),
        "L2Loss" => Pattern("* -> []"),
        "Cross" => Pattern("[B..,3] [B..,3] -> [B..,3]"),
        "SegmentSum" | "SegmentMean" | "SegmentMax" | "SegmentMin" | "SegmentProd" => {
            Pattern("[_,S..] [_] -> [_,S..]")
        }
        "SparseSegmentSum" | "SparseSegmentMean" | "SparseSegmentSqrtN" => {
            Pattern("[_,S..] [n] [n] -> [_,S..]")
        }
        "SparseSegmentSumWithNumSegments"
        | "SparseSegmentMeanWithNumSegments"
        | "SparseSegmentSqrtNWithNumSegments"
        | "SparseSegmentSumGrad"
        | "SparseSegmentMeanGrad"
        | "SparseSegmentSqrtNGrad" => Compute(|c| {
            c.rank(3, 0)?;
            let rows = one_for_each_index(c)?;
            one(concatenate(&shape([c.dim_from(3)?]), &rows))
        }),
        "SparseSegmentSumGradV2" | "SparseSegmentMeanGradV2" | "SparseSegmentSqrtNGradV2" => {
            Compute(|c| {
                c.rank(3, 0)?;
                let rows = one_for_each_index(c)?;
                let grads = concatenate(&shape([None]), &rows);
                Ok([grads, shape([None])].into_iter().collect())
            })
        }
        "UnsortedSegmentSum"
        | "UnsortedSegmentMax"
        | "UnsortedSegmentMin"
        | "UnsortedSegmentProd"
        | "UnsortedSegmentJoin" => Compute(unsorted_segment),
        "SegmentSumV2" | "SegmentMaxV2" | "SegmentMinV2" | "SegmentProdV2" => {
            Compute(unsorted_segment)
        }
        "Bincount" => Compute(|c| {
            c.rank(1, 0)?;
            one(shape([c.dim_from(1)?]))
        }),
        "DenseBincount" => Compute(dense_bincount),
        "SparseBincount" => Compute(|c| sparse_bincount(c, 3)),
        "RaggedBincount" => Compute(|c| one(shape([None, c.dim_from(2)?]))),
        "HistogramFixedWidth" => Compute(histogram),
        _ => return None,
    })
}

fn equal(c: &mut Context<'_>) -> Result<Shapes> {
    let strict = c.attrs().bool("incompatible_shape_error").unwrap_or(true);
    match broadcast(&c.input(0), &c.input(1)) {
        // What cannot be compared is not equal: one answer for all.
        Err(_) if !strict => one(shape([])),
        Ok(both) if !strict && both.dims().is_some_and(|d| d.contains(&None)) => {
            one(PartialShape::unknown())
        }
        outcome => one(outcome?),
    }
}

fn reduction(c: &mut Context<'_>) -> Result<Shapes> {
    c.at_most(1, 1)?;
    let (input, keep) = (c.input(0), c.attrs().bool("keep_dims")?);
    let Some(dims) = input.dims() else {
        return one(PartialShape::unknown());
    };
    let Some(axes) = c.known_ints(1) else {
        return one(match keep {
            true => of_rank(dims.len()),
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
    one(shape(out))
}

fn arg_extremum(c: &mut Context<'_>) -> Result<Shapes> {
    c.rank(1, 0)?;
    let Some(mut dims) = dims_of(&c.input(0)) else {
        return one(PartialShape::unknown());
    };
    if dims.len() <= 1 {
        return one(shape([]));
    }
    match c.known_int(1) {
        Some(a) => {
            dims.remove(axis(a, dims.len())?);
        }
        None => dims = vec![None; dims.len() - 1],
    }
    one(shape(dims))
}

fn matmul(c: &mut Context<'_>) -> Result<Shapes> {
    let (a, b) = (c.with_rank(0, 2)?, c.with_rank(1, 2)?);
    let flip = |name: &str| c.attrs().bool(name);
    let (rows, inner_a) = ends(&a, flip("transpose_a")?);
    let (inner_b, columns) = ends(&b, flip("transpose_b")?);
    merge_dims(inner_a, inner_b)?;
    one(shape([rows, columns]))
}

/// The last two dimensions, in the order they are multiplied.
fn ends(shape: &PartialShape, flipped: bool) -> (Dim, Dim) {
    match (shape.dims(), flipped) {
        (Some([.., a, b]), false) => (*a, *b),
        (Some([.., a, b]), true) => (*b, *a),
        _ => (None, None),
    }
}

fn batch_matmul(
    c: &mut Context<'_>,
    join: fn(&PartialShape, &PartialShape) -> Result<PartialShape>,
) -> Result<Shapes> {
    let (a, b) = (c.at_least(0, 2)?, c.at_least(1, 2)?);
    let flip = |name: &str| c.attrs().bool(name);
    let (rows, inner_a) = ends(&a, flip("adj_x")?);
    let (inner_b, columns) = ends(&b, flip("adj_y")?);
    merge_dims(inner_a, inner_b)?;
    let lead = |s: &PartialShape| match s.dims() {
        Some([lead @ .., _, _]) => shape(lead.iter().copied()),
        _ => PartialShape::unknown(),
    };
    let batch = join(&lead(&a), &lead(&b))?;
    one(concatenate(&batch, &shape([rows, columns])))
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

fn betainc(c: &mut Context<'_>) -> Result<Shapes> {
    let (mut out, mut scalars, mut open) = (PartialShape::unknown(), 0, false);
    for i in 0..3 {
        let input = c.input(i);
        match input.rank() {
            None => open = true,
            Some(0) => scalars += 1,
            Some(_) => out = merge(&out, &input)?,
        }
    }
    one(match (scalars, open) {
        (3, _) => shape([]),
        (2, true) => PartialShape::unknown(),
        _ => out,
    })
}

fn sequence(c: &mut Context<'_>) -> Result<Shapes> {
    c.scalars(0..3)?;
    let number = |i: usize| {
        let exact = c.known_int(i).map(|v| v as f64);
        exact.or_else(|| super::value::number(c.constant(i)?))
    };
    let (Some(start), Some(limit), Some(step)) = (number(0), number(1), number(2)) else {
        return one(shape([None]));
    };
    if step == 0.0 {
        return invalid("Requires delta != 0");
    }
    if (step > 0.0 && start > limit) || (step < 0.0 && start < limit) {
        return invalid(format!(
            "Requires start <= limit when delta > 0, and start >= limit when delta < 0: \
             {start}/{limit}"
        ));
    }
    let count = ((limit - start) / step).ceil().max(0.0);
    if !count.is_finite() || count > i64::MAX as f64 {
        return invalid(format!(
            "Requires ((limit - start) / delta) <= {}",
            i64::MAX
        ));
    }
    one(shape([Some(count as usize)]))
}

/// The rows of input 0 when inputs 1 and 2 hold one number for each index.
fn one_for_each_index(c: &Context<'_>) -> Result<PartialShape> {
    let (data, indices) = (c.at_least(0, 1)?, c.with_rank(1, 1)?);
    merge(&indices, &c.input(2))?;
    Ok(rest(&data, 1))
}

fn unsorted_segment(c: &mut Context<'_>) -> Result<Shapes> {
    c.rank(2, 0)?;
    let (data, ids) = (c.input(0), c.input(1));
    let Some(rank) = ids.rank() else {
        return one(PartialShape::unknown());
    };
    let data = merge_prefix(&data, &ids)?;
    one(concatenate(&shape([c.dim_from(2)?]), &rest(&data, rank)))
}

fn dense_bincount(c: &mut Context<'_>) -> Result<Shapes> {
    c.at_most(0, 2)?;
    c.rank(1, 0)?;
    let count = c.dim_from(1)?;
    one(match c.input(0).dims() {
        None => PartialShape::unknown(),
        Some(dims) if count.is_none() => of_rank(dims.len()),
        Some([rows, _]) => shape([*rows, count]),
        Some(_) => shape([count]),
    })
}

fn sparse_bincount(c: &mut Context<'_>, size: usize) -> Result<Shapes> {
    let count = c.dim_from(size)?;
    let length = match c.input(2).dims() {
        Some([n]) => *n,
        _ => None,
    };
    one(match length {
        None => PartialShape::unknown(),
        Some(1) => shape([count]),
        Some(_) => {
            let rows = c.ints(2).and_then(|d| d.first().copied().flatten());
            shape([rows.and_then(|n| usize::try_from(n).ok()), count])
        }
    })
}

fn histogram(c: &mut Context<'_>) -> Result<Shapes> {
    if c.rank(1, 1)?[0].is_some_and(|n| n != 2) {
        return invalid("Dimension must be 2: the range has a lower and an upper end");
    }
    c.rank(2, 0)?;
    match c.known_int(2) {
        Some(n) if n <= 0 => invalid(format!("Requires nbins > 0: {n}")),
        n => one(shape([n.map(|n| n as usize)])),
    }
}
