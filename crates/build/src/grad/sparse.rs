//! Gradients of operations on sparse tensors: only their values have one.

use super::reduce::kept_dims;
use super::terms::{
    Pick, at, call, count_to, filled, ints, join, of, pick, product_of, rows, shape_as, shape_of,
    transposed, vector,
};
use super::{Back, Grads, Rule};
use crate::Output;
use downpour_graph::Result;
use downpour_tensor::DType;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "SparseReorder" => |b| {
            let (indices, shape) = (b.x(0), b.x(2));
            let numbers = count_to(&at(&shape_of(&indices), 0));
            let moved = call("SparseReorder", &[&indices, &numbers, &shape]).build();
            let back = of("InvertPermutation", &[&moved.output(1)]);
            b.only(1, rows(&b.dy(1), &back))
        },
        "SparseAdd" => |b| {
            let made = call("SparseAddGrad", &[&b.dy(1), &b.x(0), &b.x(3), &b.y(0)]).build();
            b.some([(1, made.output(0)), (4, made.output(1))])
        },
        "SparseTensorDenseAdd" => {
            |b| b.some([(1, of("GatherNd", &[&b.dy(0), &b.x(0)])), (3, b.dy(0))])
        }
        "SparseReduceSum" => |b| {
            let (indices, shape) = (b.x(0), b.x(2));
            let kept = kept_dims(&shape, &b.x(3));
            let scale = shape.floor_div(&kept.cast(DType::Int64));
            let tall = b.dy(0).reshape_to(&kept);
            b.only(1, of("GatherNd", &[&tall, &indices.floor_div(&scale)]))
        },
        "SparseSlice" => |b| {
            let inputs = [&b.dy(1), &b.x(0), &b.x(3), &b.y(0)];
            b.only(1, of("SparseSliceGrad", &inputs))
        },
        "SparseTensorDenseMatMul" => product,
        "SparseDenseCwiseMul" => |b| {
            let Aligned { indices, values } = Aligned::new(b);
            let dx = b.dy(0) * values;
            b.some([(1, dx), (3, scattered(b, &indices, &(b.dy(0) * b.x(1))))])
        },
        "SparseDenseCwiseDiv" => |b| {
            let Aligned { indices, values } = Aligned::new(b);
            let dx = b.dy(0) / &values;
            let dy = b.dy(0) * (-b.x(1) / values.square());
            b.some([(1, dx), (3, scattered(b, &indices, &dy))])
        },
        "SparseDenseCwiseAdd" | "SparseSparseMaximum" | "SparseSparseMinimum" => {
            |b| b.refuse("is not implemented")
        }
        "SparseSoftmax" => |b| {
            let (indices, shape, y, dy) = (b.x(0), b.x(2), b.y(0), b.dy(0));
            let last = ints(b.graph(), &[-1]);
            let op = call("SparseReduceSum", &[&indices, &(&y * &dy), &shape, &last]);
            let sums = -op.attr("keep_dims", true).output();
            let centered = of("SparseDenseCwiseAdd", &[&indices, &dy, &shape, &sums]);
            b.only(1, centered * y)
        },
        "SparseFillEmptyRows" => |b| filled_rows(b, "SparseFillEmptyRowsGrad"),
        "RaggedFillEmptyRows" => |b| filled_rows(b, "RaggedFillEmptyRowsGrad"),
        "SparseToDense" => |b| {
            let values = of("GatherNd", &[&b.dy(0), &b.x(0)]);
            let rest = b.dy(0).sum(()) - values.sum(());
            b.some([(2, values), (3, rest)])
        },
        _ => return None,
    })
}

fn filled_rows(b: &Back, op: &str) -> Result<Grads> {
    let made = call(op, &[&b.y(3), &b.dy(1)]).build();
    b.some([(1, made.output(0)), (3, made.output(1))])
}

/// A product of a sparse and a dense matrix: each value's gradient is one dot product.
fn product(b: &Back) -> Result<Grads> {
    let (indices, values, shape, dense, dy) = (b.x(0), b.x(1), b.x(2), b.x(3), b.dy(0));
    let (adj_a, adj_b) = (b.flag("adjoint_a")?, b.flag("adjoint_b")?);
    let op = call("SparseTensorDenseMatMul", &[&indices, &values, &shape, &dy]);
    let mut d_dense = op.attr("adjoint_a", !adj_a).output();
    if adj_b {
        d_dense = transposed(&d_dense, true);
    }
    let column = |i: i32| pick(&indices, &[Pick::All, Pick::One(i)]);
    let (to, from) = if adj_a { (1, 0) } else { (0, 1) };
    let left = rows(&dy, &column(to));
    let dense = if adj_b {
        transposed(&dense, false)
    } else {
        dense
    };
    let right = rows(&dense, &column(from));
    // Rows as matrices of one row, or of one column.
    let (row, col) = (
        |x: &Output| x.expand_dims(-2),
        |x: &Output| x.expand_dims(-1),
    );
    let dots = match (adj_a, adj_b) {
        (false, false) => product_of(&row(&left), false, &row(&right), true),
        (true, false) => product_of(&col(&left), true, &col(&right), false),
        (false, true) => product_of(&row(&left), false, &col(&right), false),
        (true, true) => product_of(&col(&left), true, &row(&right), true),
    };
    b.some([(1, dots.squeeze(&[-2, -1])), (3, d_dense)])
}

/// The dense operand's elements that meet the sparse one's.
struct Aligned {
    indices: Output,
    values: Output,
}

impl Aligned {
    fn new(b: &Back) -> Aligned {
        let (indices, shape, dense, g) = (b.x(0), b.x(2), b.x(3), b.graph());
        let dims = shape_as(&dense, DType::Int64);
        let added = vector(&[&(shape.size_op() - dims.size_op())]);
        let ones = filled(&added, &shape, 1.0);
        let scale = shape.floor_div(&join(&[&ones, &dims]));
        let begin = join(&[&ints(g, &[0]), &added]);
        let places = indices.floor_div(&scale);
        let places = of("Slice", &[&places, &begin, &ints(g, &[-1, -1])]);
        Aligned {
            values: of("GatherNd", &[&dense, &places]),
            indices: places,
        }
    }
}

/// Values added up at their places in a tensor like the dense operand.
fn scattered(b: &Back, indices: &Output, values: &Output) -> Output {
    let zeros = b.x(3).zeros_like();
    let shape = shape_as(&zeros, DType::Int64);
    of("SparseTensorDenseAdd", &[indices, values, &shape, &zeros])
}
