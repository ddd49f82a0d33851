//! What the executor must know of ops to choose a thread and memory for them. Most of it is how much ops write whose outputs may be larger than their inputs: pure functions of shapes and, where those are sizes, of
//! values. The executor decides by them which thread runs a kernel; what an op not named here writes is taken to be about what it reads.
//!
//! They see inputs that no kernel has checked: whatever makes no sense counts as nothing, because the kernel will refuse it.

use downpour_graph::Node;
use downpour_runtime::{Inputs, Registry};
use downpour_tensor::{DType, Tensor};

pub(crate) fn register(r: &mut Registry) {
    for op in ON_INTEGERS {
        r.add_integer_work(op);
    }
    for op in HANDING_ON {
        r.add_handing_on(op);
    }
    for op in SHAPE_FIRST {
        r.add_growth(op, |node, inputs| elements(inputs, 0) * output_size(node));
    }
    for op in SHAPE_SECOND {
        r.add_growth(op, |node, inputs| elements(inputs, 1) * output_size(node));
    }
    for op in BROADCASTING {
        r.add_growth(op, broadcast);
    }
    for op in RESIZING {
        r.add_growth(op, |node, inputs| {
            let of = |i: usize| {
                Some(times([
                    dim(inputs, 0, 0)?,
                    dim(inputs, 0, 3)?,
                    elements(inputs, i),
                ]))
            };
            times([of(1).unwrap_or(0), output_size(node).max(4)])
        });
    }
    for op in SEGMENTS {
        r.add_growth(op, |_, inputs| {
            let rows = dim(inputs, 0, 0).map_or(1, |n| n.max(1));
            let row = inputs.get(0).map_or(0, |t| t.byte_len() / rows);
            times([scalar(inputs, inputs_last(inputs)), row])
        });
    }
    r.add_growth("CropAndResize", |_, inputs| {
        let of = || {
            Some(times([
                dim(inputs, 1, 0)?,
                dim(inputs, 0, 3)?,
                elements(inputs, 3),
            ]))
        };
        times([of().unwrap_or(0), 4])
    });
    r.add_growth("ScatterNd", |node, i| elements(i, 2) * output_size(node));
    r.add_growth("Tile", |_, inputs| {
        times([elements(inputs, 1), inputs.get(0).map_or(0, Tensor::weight)])
    });
    for op in ["Pad", "PadV2", "MirrorPad"] {
        r.add_growth(op, padded);
    }
    r.add_growth("Range", |node, inputs| {
        let of = |i| number(inputs.get(i)?, 0);
        let steps = || Some(((of(1)? - of(0)?) / of(2)?).abs());
        saturated(steps().unwrap_or(0.0)) * output_size(node)
    });
    r.add_growth("LinSpace", |node, i| scalar(i, 2) * output_size(node));
    r.add_growth("OneHot", |node, inputs| {
        let count = inputs.get(0).map_or(0, Tensor::num_elements);
        times([scalar(inputs, 1), count, output_size(node)])
    });
    r.add_growth("Bincount", |node, i| scalar(i, 1) * output_size(node));
    for op in ["Multinomial", "StatelessMultinomial"] {
        r.add_growth(op, |_, i| {
            times([scalar(i, 1), dim(i, 0, 0).unwrap_or(0), 8])
        });
    }
    for op in ["RandomGamma", "RandomPoisson", "RandomPoissonV2"] {
        r.add_growth(op, |node, inputs| {
            let each = inputs.get(1).map_or(1, Tensor::num_elements);
            times([elements(inputs, 0), each, output_size(node) * SLOW])
        });
    }
    for op in ["GatherV2", "Gather"] {
        r.add_growth(op, |_, inputs| {
            let rows = dim(inputs, 0, 0).map_or(1, |n| n.max(1));
            let row = inputs.get(0).map_or(0, |t| t.byte_len() / rows);
            times([inputs.get(1).map_or(0, Tensor::num_elements), row])
        });
    }
    for op in ["Diag", "MatrixDiag"] {
        r.add_growth(op, |_, inputs| {
            let last = |t: &Tensor| times([t.dims().last().copied().unwrap_or(1), t.byte_len()]);
            inputs.get(0).map_or(0, last)
        });
    }
    r.add_growth("MatMul", |node, inputs| {
        let side = |i: usize, attr: &str, at: usize| {
            let turned = node.attrs.bool(attr).unwrap_or(false);
            dim(inputs, i, if turned { 1 - at } else { at })
        };
        let rows = side(0, "transpose_a", 0).unwrap_or(0);
        let cols = side(1, "transpose_b", 1).unwrap_or(0);
        times([rows, cols, output_size(node)])
    });
}

/// How much longer than to copy an element it takes to draw one from a distribution.
const SLOW: usize = 8;

/// The shape of the output is the first input.
const SHAPE_FIRST: &[&str] = &[
    "Empty",
    "Fill",
    "ParameterizedTruncatedNormal",
    "RandomStandardNormal",
    "RandomUniform",
    "RandomUniformInt",
    "StatelessRandomNormal",
    "StatelessRandomNormalV2",
    "StatelessRandomUniform",
    "StatelessRandomUniformFullInt",
    "StatelessRandomUniformFullIntV2",
    "StatelessRandomUniformInt",
    "StatelessRandomUniformIntV2",
    "StatelessRandomUniformV2",
    "StatelessTruncatedNormal",
    "StatelessTruncatedNormalV2",
    "TruncatedNormal",
];

/// The shape of the output is the second input.
const SHAPE_SECOND: &[&str] = &["BroadcastTo", "SparseToDense"];

/// The size of the output image is the second input.
const RESIZING: &[&str] = &[
    "ResizeArea",
    "ResizeBicubic",
    "ResizeBilinear",
    "ResizeNearestNeighbor",
    "ResizeNearestNeighborGrad",
];

/// The number of rows of the output is the last input.
const SEGMENTS: &[&str] = &[
    "SparseSegmentMeanWithNumSegments",
    "SparseSegmentSqrtNWithNumSegments",
    "SparseSegmentSumWithNumSegments",
    "UnsortedSegmentMax",
    "UnsortedSegmentMin",
    "UnsortedSegmentProd",
    "UnsortedSegmentSum",
];

/// The output has every dimension's larger size.
const BROADCASTING: &[&str] = &[
    "Add",
    "AddV2",
    "Div",
    "Equal",
    "FloorDiv",
    "FloorMod",
    "Greater",
    "GreaterEqual",
    "Less",
    "LessEqual",
    "LogicalAnd",
    "LogicalOr",
    "Maximum",
    "Minimum",
    "Mul",
    "NotEqual",
    "Pow",
    "RealDiv",
    "SelectV2",
    "SquaredDifference",
    "Sub",
];

/// Counts are kept below this, so that products of a few of them stay what they are: huge.
const HUGE: usize = 1 << 40;

fn times<const N: usize>(factors: [usize; N]) -> usize {
    factors.into_iter().fold(1, usize::saturating_mul)
}

fn saturated(count: f64) -> usize {
    (count as usize).min(HUGE)
}

fn output_size(node: &Node) -> usize {
    let dtype = node.output_types.first().map(|t| t.0);
    dtype.and_then(DType::size).unwrap_or(32)
}

fn dim(inputs: Inputs<'_>, i: usize, at: usize) -> Option<usize> {
    inputs.get(i)?.dims().get(at).copied()
}

fn inputs_last(inputs: Inputs<'_>) -> usize {
    (0..4).take_while(|i| inputs.get(*i).is_some()).count() - 1
}

/// Element `at` of a tensor of numbers.
fn number(tensor: &Tensor, at: usize) -> Option<f64> {
    Some(match tensor.dtype() {
        DType::Int32 => f64::from(*tensor.as_slice::<i32>().ok()?.get(at)?),
        DType::Int64 => *tensor.as_slice::<i64>().ok()?.get(at)? as f64,
        DType::Float => f64::from(*tensor.as_slice::<f32>().ok()?.get(at)?),
        DType::Double => *tensor.as_slice::<f64>().ok()?.get(at)?,
        _ => return None,
    })
}

fn scalar(inputs: Inputs<'_>, i: usize) -> usize {
    let value = inputs.get(i).and_then(|t| number(t, 0));
    saturated(value.unwrap_or(0.0))
}

/// The product of the sizes in input `i`.
fn elements(inputs: Inputs<'_>, i: usize) -> usize {
    /// More dimensions than a shape has are no shape.
    const MOST: usize = 256;
    let Some(sizes) = inputs.get(i).filter(|t| t.num_elements() <= MOST) else {
        return 0;
    };
    let each = (0..sizes.num_elements()).map(|at| number(sizes, at).unwrap_or(0.0).max(0.0));
    saturated(each.product())
}

fn broadcast(node: &Node, inputs: Inputs<'_>) -> usize {
    let Some(first) = inputs.get(0) else { return 0 };
    let rest = || (1..3).map_while(|i| inputs.get(i));
    // By far the most: one of them has the shape of the output.
    if rest().all(|t| t.shape() == first.shape() || t.rank() == 0) || first.rank() == 0 {
        return 0;
    }
    let rank = rest().fold(first.rank(), |rank, t| rank.max(t.rank()));
    let size = |back: usize| {
        let of = |t: &Tensor| t.rank().checked_sub(back).map_or(1, |d| t.dims()[d]);
        rest().fold(of(first), |size, t| size.max(of(t))) as f64
    };
    saturated((1..=rank).map(size).product()) * output_size(node)
}

fn padded(node: &Node, inputs: Inputs<'_>) -> usize {
    let (Some(input), Some(pads)) = (inputs.get(0), inputs.get(1)) else {
        return 0;
    };
    let size = |d: usize| {
        let pad = |side| number(pads, 2 * d + side).unwrap_or(0.0).max(0.0);
        input.dims()[d] as f64 + pad(0) + pad(1)
    };
    saturated((0..input.rank()).map(size).product()) * output_size(node)
}

/// Ops that compute on integers too, and do not just make something of the size that they are given.
const ON_INTEGERS: &[&str] = &[
    "Add",
    "AddN",
    "AddV2",
    "All",
    "Any",
    "ArgMax",
    "ArgMin",
    "Cast",
    "ConcatV2",
    "Equal",
    "FloorDiv",
    "FloorMod",
    "Gather",
    "GatherNd",
    "GatherV2",
    "Greater",
    "GreaterEqual",
    "Less",
    "LessEqual",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "Max",
    "Maximum",
    "Mean",
    "Min",
    "Minimum",
    "Mul",
    "Neg",
    "NotEqual",
    "Pack",
    "Prod",
    "RealDiv",
    "Select",
    "SelectV2",
    "Slice",
    "Split",
    "Square",
    "StridedSlice",
    "Sub",
    "Sum",
    "Transpose",
    "Unique",
    "UniqueV2",
    "Unpack",
    "UnsortedSegmentMax",
    "Where",
];

/// Ops that hand on the memory of their first input.
const HANDING_ON: &[&str] = &[
    "ExpandDims",
    "Identity",
    "PreventGradient",
    "Reshape",
    "Snapshot",
    "Squeeze",
    "StopGradient",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run_growth;

    fn ints(values: &[i32]) -> Tensor {
        Tensor::vector(values.to_vec())
    }

    fn zeros(dims: &[usize]) -> Tensor {
        Tensor::zeros(DType::Float, dims.to_vec()).unwrap()
    }

    #[test]
    fn what_an_op_will_write_is_known_before_it_runs() {
        let float = |name| (name, DType::Float.into());
        let one = Tensor::scalar(1.0f32);
        let t = [float("T")];
        assert_eq!(
            run_growth("Fill", &[ints(&[1 << 14, 1 << 14]), one.clone()], &t),
            1 << 30
        );
        assert_eq!(run_growth("Fill", &[ints(&[-4, 3]), one.clone()], &t), 0);
        assert!(run_growth("Fill", &[ints(&[i32::MAX; 20]), one.clone()], &t) >= HUGE);
        assert_eq!(
            run_growth("Tile", &[zeros(&[10]), ints(&[1000])], &t),
            40_000
        );
        let resize = [zeros(&[1, 2, 2, 3]), ints(&[1000, 2000])];
        assert_eq!(run_growth("ResizeNearestNeighbor", &resize, &t), 24_000_000);
        let pads = Tensor::from_vec(vec![5i32, 5, 0, 10], [2, 2]).unwrap();
        assert_eq!(run_growth("Pad", &[zeros(&[10, 10]), pads], &t), 1600);
        assert_eq!(
            run_growth("AddV2", &[zeros(&[100, 1]), zeros(&[1, 200])], &t),
            80_000
        );
        assert_eq!(run_growth("AddV2", &[zeros(&[100]), one.clone()], &t), 0);
        let num = Tensor::scalar(1000i32);
        assert_eq!(
            run_growth("LinSpace", &[one.clone(), one.clone(), num], &t),
            4000
        );
        let range = [0i32, 1 << 20, 2].map(Tensor::scalar);
        assert_eq!(run_growth("Range", &range, &[]), 2 << 20);
        let hot = [ints(&[1, 2, 3]), Tensor::scalar(100i32), one.clone(), one];
        let types = [float("T"), ("TI", DType::Int32.into())];
        assert_eq!(run_growth("OneHot", &hot, &types), 1200);
        assert_eq!(
            run_growth("Tile", &[zeros(&[1 << 22]), ints(&[i32::MAX])], &t),
            (1 << 24) * i32::MAX as usize
        );
        assert_eq!(
            run_growth("MatMul", &[zeros(&[300, 1]), zeros(&[1, 200])], &t),
            240_000
        );
    }
}
