//! The words that gradient rules are written in: small pieces of graph with TensorFlow's meaning,
//! and what an operation's inputs receive. What is known of shapes while building becomes
//! constants, so that steps do not compute it.

use super::{Back, Gradient, Grads};
use crate::{Graph, OpBuilder, Output};
use downpour_graph::{Result, Status};
use downpour_tensor::DType;

impl Back {
    /// A gradient for input `i` alone.
    pub(crate) fn only(&self, i: usize, dx: impl Into<Gradient>) -> Result<Grads> {
        let mut grads: Grads = vec![None; self.op().num_inputs()];
        if let Some(place) = grads.get_mut(i) {
            *place = Some(dx.into());
        }
        Ok(grads)
    }

    /// Gradients for some inputs.
    pub(crate) fn some<const N: usize>(&self, given: [(usize, Output); N]) -> Result<Grads> {
        let mut grads: Grads = vec![None; self.op().num_inputs()];
        for (i, dx) in given {
            if let Some(place) = grads.get_mut(i) {
                *place = Some(dx.into());
            }
        }
        Ok(grads)
    }

    /// No gradients at all.
    pub(crate) fn nothing(&self) -> Result<Grads> {
        Ok(vec![None; self.op().num_inputs()])
    }

    /// A boolean attribute.
    pub(crate) fn flag(&self, name: &str) -> Result<bool> {
        self.op().attrs().bool(name)
    }

    /// An integer attribute.
    pub(crate) fn int(&self, name: &str) -> Result<i64> {
        self.op().attrs().int(name)
    }

    /// A text attribute; empty if it has none.
    pub(crate) fn text(&self, name: &str) -> String {
        let attrs = self.op().attrs();
        attrs.str(name).map(str::to_owned).unwrap_or_default()
    }

    /// Refuses, as TensorFlow does, what has no gradient in this form.
    pub(crate) fn refuse<T>(&self, why: &str) -> Result<T> {
        Err(Status::unimplemented(format!(
            "The gradient of '{}' (op type: {}): {why}",
            self.op().name(),
            self.op().op()
        )))
    }
}

/// `op` of these inputs, about to be made.
#[track_caller]
pub(super) fn call(op: &str, inputs: &[&Output]) -> OpBuilder {
    let mut made = inputs[0].graph().op(op);
    for input in inputs {
        made = made.input(input);
    }
    made
}

/// `op` of these inputs: its first output.
#[track_caller]
pub(super) fn of(op: &str, inputs: &[&Output]) -> Output {
    call(op, inputs).output()
}

/// The complex conjugate; a real tensor is its own.
pub(super) fn conj(x: &Output) -> Output {
    match x.dtype().is_complex() {
        true => of("Conj", &[x]),
        false => x.clone(),
    }
}

/// The type of a complex type's parts; another type is its own.
pub(super) fn real_type(dtype: DType) -> DType {
    match dtype {
        DType::Complex64 => DType::Float,
        DType::Complex128 => DType::Double,
        other => other,
    }
}

/// The real part.
pub(super) fn real(z: &Output) -> Output {
    call("Real", &[z])
        .attr("Tout", real_type(z.dtype()))
        .output()
}

/// The imaginary part.
pub(super) fn imag(z: &Output) -> Output {
    call("Imag", &[z])
        .attr("Tout", real_type(z.dtype()))
        .output()
}

/// A complex tensor of two real ones.
pub(super) fn complex(re: &Output, im: &Output) -> Output {
    let dtype = match re.dtype() {
        DType::Double => DType::Complex128,
        _ => DType::Complex64,
    };
    call("Complex", &[re, im]).attr("Tout", dtype).output()
}

/// A vector of integers.
pub(super) fn ints(g: &Graph, values: &[i32]) -> Output {
    g.constant(values)
}

/// What integers a tensor will hold, if that is known now.
pub(super) fn known_ints(x: &Output) -> Option<Vec<i64>> {
    if x.is_invalid() {
        return None;
    }
    let inner = x.graph().inner.lock();
    crate::shape::ints(&inner, x.endpoint())?
        .into_iter()
        .collect()
}

/// A shape as int32: a constant if all of it is known.
pub(super) fn shape_of(x: &Output) -> Output {
    shape_as(x, DType::Int32)
}

/// A shape as int32 or int64.
pub(super) fn shape_as(x: &Output, dtype: DType) -> Output {
    let known: Option<Vec<i32>> = x
        .shape()
        .to_shape()
        .and_then(|s| s.iter().map(|d| i32::try_from(*d).ok()).collect());
    match (known, dtype) {
        (Some(dims), DType::Int64) => {
            let dims: Vec<i64> = dims.into_iter().map(i64::from).collect();
            x.graph().constant(dims)
        }
        (Some(dims), _) => x.graph().constant(dims),
        (None, _) => x.computed_shape(dtype),
    }
}

/// Number of dimensions.
pub(super) fn rank_of(x: &Output) -> Output {
    match x.rank() {
        Some(rank) => x.graph().constant(rank as i32),
        None => of("Rank", &[x]),
    }
}

/// `start, start + step, …` below `limit`.
pub(super) fn range(start: &Output, limit: &Output, step: &Output) -> Output {
    of("Range", &[start, limit, step])
}

/// `0, 1, …` below `limit`.
pub(super) fn count_to(limit: &Output) -> Output {
    range(&limit.scalar_like(0.0), limit, &limit.scalar_like(1.0))
}

/// One dimension's part in [`pick`].
#[derive(Clone, Copy)]
pub(super) enum Pick {
    All,
    One(i32),
    From(i32),
    To(i32),
    Between(i32, i32),
}

/// `x[a, b, …]`, of the leading dimensions.
pub(super) fn pick(x: &Output, picks: &[Pick]) -> Output {
    strided(x, picks, false)
}

/// `x[..., a, b]`, of the last dimensions.
pub(super) fn pick_last(x: &Output, picks: &[Pick]) -> Output {
    strided(x, picks, true)
}

fn strided(x: &Output, picks: &[Pick], ellipsis: bool) -> Output {
    let first = usize::from(ellipsis);
    let n = picks.len() + first;
    let (mut begin, mut end) = (vec![0i32; n], vec![0i32; n]);
    let (mut open_begin, mut open_end, mut shrink) = (0i64, 0i64, 0i64);
    for (i, pick) in picks.iter().enumerate() {
        let (i, bit) = (i + first, 1i64 << (i + first));
        match *pick {
            Pick::All => (open_begin, open_end) = (open_begin | bit, open_end | bit),
            Pick::One(at) => {
                (begin[i], end[i]) = (at, at + 1);
                shrink |= bit;
            }
            Pick::From(at) => {
                begin[i] = at;
                open_end |= bit;
            }
            Pick::To(at) => {
                end[i] = at;
                open_begin |= bit;
            }
            Pick::Between(from, to) => (begin[i], end[i]) = (from, to),
        }
    }
    let g = x.graph();
    let (begin, end, step) = (ints(g, &begin), ints(g, &end), ints(g, &vec![1; n]));
    call("StridedSlice", &[x, &begin, &end, &step])
        .attr("begin_mask", open_begin)
        .attr("end_mask", open_end)
        .attr("ellipsis_mask", i64::from(ellipsis))
        .attr("shrink_axis_mask", shrink)
        .output()
}

/// Element `i` of a vector, from the end if negative.
pub(super) fn at(v: &Output, i: i32) -> Output {
    pick(v, &[Pick::One(i)])
}

/// Elements of a vector from `i` on.
pub(super) fn from(v: &Output, i: i32) -> Output {
    pick(v, &[Pick::From(i)])
}

/// Elements of a vector before `i`.
pub(super) fn to(v: &Output, i: i32) -> Output {
    pick(v, &[Pick::To(i)])
}

/// Vectors, one after the other.
pub(super) fn join(parts: &[&Output]) -> Output {
    let parts: Vec<Output> = parts.iter().map(|p| (*p).clone()).collect();
    crate::concat(&parts, 0)
}

/// Scalars as a vector.
pub(super) fn vector(parts: &[&Output]) -> Output {
    let parts: Vec<Output> = parts.iter().map(|p| (*p).clone()).collect();
    crate::stack(&parts, 0)
}

/// The sum over dimensions that a tensor says.
pub(super) fn sum_over(x: &Output, axes: &Output, keep: bool) -> Output {
    call("Sum", &[x, axes]).attr("keep_dims", keep).output()
}

/// The product of a vector.
pub(super) fn product(v: &Output) -> Output {
    of("Prod", &[v, &v.graph().constant(0i32)])
}

/// Rows at these positions.
pub(super) fn rows(x: &Output, positions: &Output) -> Output {
    x.gather(positions, 0)
}

/// A tensor of this shape, filled with a number of `like`'s type.
pub(super) fn filled(shape: &Output, like: &Output, value: f64) -> Output {
    of("Fill", &[shape, &like.scalar_like(value)])
}

/// The transpose of the last two dimensions, conjugate if asked for.
pub(super) fn transposed(x: &Output, conjugate: bool) -> Output {
    let g = x.graph();
    let order = match x.rank() {
        Some(rank) if rank >= 2 => {
            let mut order: Vec<i32> = (0..rank as i32).collect();
            order.swap(rank - 1, rank - 2);
            ints(g, &order)
        }
        _ => {
            let rank = rank_of(x);
            let ends = vector(&[&(&rank - 1), &(&rank - 2)]);
            join(&[&count_to(&(&rank - 2)), &ends])
        }
    };
    match conjugate && x.dtype().is_complex() {
        true => of("ConjugateTranspose", &[x, &order]),
        false => of("Transpose", &[x, &order]),
    }
}

/// The conjugate transpose of the last two dimensions.
pub(super) fn adjoint(x: &Output) -> Output {
    transposed(x, true)
}

/// The product of (batches of) matrices, either of them conjugate transposed.
pub(super) fn product_of(a: &Output, adjoint_a: bool, b: &Output, adjoint_b: bool) -> Output {
    call("BatchMatMulV2", &[a, b])
        .attr("adj_x", adjoint_a)
        .attr("adj_y", adjoint_b)
        .output()
}

/// A gradient summed over the dimensions along which its input was broadcast to it.
pub(super) fn reduced_to(grad: &Output, x: &Output) -> Output {
    let (full, known) = (grad.shape(), x.shape());
    if known.to_shape().is_some() && known == full {
        return grad.clone();
    }
    let shape = shape_of(x);
    let axes = call("BroadcastGradientArgs", &[&shape_of(grad), &shape]).build();
    sum_over(grad, &axes.output(1), true).reshape_to(&shape)
}

/// Gradients of two inputs that were broadcast against each other.
pub(super) fn reduced_pair(x: &Output, y: &Output, dx: Output, dy: Output) -> [(usize, Output); 2] {
    let (known_x, known_y) = (x.shape(), y.shape());
    if known_x.to_shape().is_some() && known_x == known_y {
        return [(0, dx), (1, dy)];
    }
    let (shape_x, shape_y) = (shape_of(x), shape_of(y));
    let axes = call("BroadcastGradientArgs", &[&shape_x, &shape_y]).build();
    let back = |grad: Output, i: usize, shape: &Output| {
        sum_over(&grad, &axes.output(i), true).reshape_to(shape)
    };
    [(0, back(dx, 0, &shape_x)), (1, back(dy, 1, &shape_y))]
}
