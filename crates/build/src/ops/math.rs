//! Arithmetic, comparisons, reductions, products.

use crate::literal::Axes;
use crate::{Graph, Output};
use downpour_tensor::DType;

unary! {
    /// Absolute value.
    abs "Abs";
    /// -1, 0 or 1.
    sign "Sign";
    /// `x²`.
    square "Square";
    /// `√x`.
    sqrt "Sqrt";
    /// `1 / √x`.
    rsqrt "Rsqrt";
    /// `1 / x`.
    reciprocal "Reciprocal";
    /// `eˣ`.
    exp "Exp";
    /// `eˣ - 1`, exact near 0.
    expm1 "Expm1";
    /// Natural logarithm.
    log "Log";
    /// `ln(1 + x)`, exact near 0.
    log1p "Log1p";
    /// Sine.
    sin "Sin";
    /// Cosine.
    cos "Cos";
    /// Tangent.
    tan "Tan";
    /// Hyperbolic tangent.
    tanh "Tanh";
    /// `1 / (1 + e⁻ˣ)`.
    sigmoid "Sigmoid";
    /// The error function.
    erf "Erf";
    /// Largest integer that is not larger.
    floor "Floor";
    /// Smallest integer that is not smaller.
    ceil "Ceil";
    /// Nearest integer, halves to even.
    round "Round";
    /// Whether it is not a number.
    is_nan "IsNan";
    /// Whether it is finite.
    is_finite "IsFinite";
    /// Logical not.
    logical_not "LogicalNot";
    /// Zeros of the same shape and type.
    zeros_like "ZerosLike";
    /// Ones of the same shape and type.
    ones_like "OnesLike";
    /// The same value, through which no gradient flows.
    stop_gradient "StopGradient";
    /// The same value.
    identity "Identity";
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident $op:literal;)*) => {
        impl Output {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self, other: &Output) -> Output {
                self.binary($op, other)
            }
        )*}
    };
}

binary! {
    /// The larger of the two.
    maximum "Maximum";
    /// The smaller of the two.
    minimum "Minimum";
    /// `self` to the power of `other`.
    pow "Pow";
    /// `(self - other)²`.
    squared_difference "SquaredDifference";
    /// `self / other`, 0 where `other` is 0.
    div_no_nan "DivNoNan";
    /// Division towards minus infinity.
    floor_div "FloorDiv";
    /// Whether equal.
    equal "Equal";
    /// Whether not equal.
    not_equal "NotEqual";
    /// Whether smaller.
    less "Less";
    /// Whether smaller or equal.
    less_equal "LessEqual";
    /// Whether larger.
    greater "Greater";
    /// Whether larger or equal.
    greater_equal "GreaterEqual";
    /// Logical and.
    logical_and "LogicalAnd";
    /// Logical or.
    logical_or "LogicalOr";
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident $keep:ident $op:literal;)*) => {
        impl Output {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self, axes: impl Into<Axes>) -> Output {
                self.reduce($op, &axes.into(), false)
            }

            $(#[$doc])*
            ///
            /// Reduced dimensions stay, with length 1.
            #[track_caller]
            pub fn $keep(&self, axes: impl Into<Axes>) -> Output {
                self.reduce($op, &axes.into(), true)
            }
        )*}
    };
}

reductions! {
    /// Sum over dimensions.
    sum sum_keep "Sum";
    /// Mean over dimensions.
    mean mean_keep "Mean";
    /// Largest over dimensions.
    max max_keep "Max";
    /// Smallest over dimensions.
    min min_keep "Min";
    /// Product over dimensions.
    prod prod_keep "Prod";
    /// Whether all over dimensions are true.
    all all_keep "All";
    /// Whether any over dimensions is true.
    any any_keep "Any";
}

impl Output {
    #[track_caller]
    fn reduce(&self, op: &str, axes: &Axes, keep: bool) -> Output {
        let graph = self.graph();
        let axes = match (&axes.0, self.rank()) {
            (Some(axes), _) => graph.constant(axes.clone()),
            (None, Some(rank)) => graph.constant((0..rank as i32).collect::<Vec<_>>()),
            (None, None) => graph.range_to_rank(self),
        };
        let op = graph.op(op).input(self).input(&axes);
        op.attr("keep_dims", keep).output()
    }

    /// Product of two matrices.
    #[track_caller]
    pub fn matmul(&self, other: &Output) -> Output {
        self.matmul_as(other, false, false)
    }

    /// Product of two matrices, either of them transposed.
    #[track_caller]
    pub fn matmul_as(&self, other: &Output, transpose_self: bool, transpose_other: bool) -> Output {
        let batched = self.rank().is_some_and(|r| r > 2) || other.rank().is_some_and(|r| r > 2);
        let graph = self.graph();
        match batched {
            false => graph
                .op("MatMul")
                .input(self)
                .input(other)
                .attr("transpose_a", transpose_self)
                .attr("transpose_b", transpose_other)
                .output(),
            true => graph
                .op("BatchMatMulV2")
                .input(self)
                .input(other)
                .attr("adj_x", transpose_self)
                .attr("adj_y", transpose_other)
                .output(),
        }
    }

    /// The same numbers in another type.
    #[track_caller]
    pub fn cast(&self, dtype: DType) -> Output {
        if self.dtype() == dtype {
            return self.clone();
        }
        self.graph()
            .op("Cast")
            .input(self)
            .attr("DstT", dtype)
            .output()
    }

    /// Position of the largest along an axis.
    #[track_caller]
    pub fn argmax(&self, axis: i32) -> Output {
        let axis = self.graph().constant(axis);
        self.graph().op("ArgMax").input(self).input(&axis).output()
    }

    /// Position of the smallest along an axis.
    #[track_caller]
    pub fn argmin(&self, axis: i32) -> Output {
        let axis = self.graph().constant(axis);
        self.graph().op("ArgMin").input(self).input(&axis).output()
    }

    /// `yes` where this is true, `no` elsewhere; they broadcast.
    #[track_caller]
    pub fn select(&self, yes: &Output, no: &Output) -> Output {
        let op = self.graph().op("SelectV2").input(self).input(yes);
        op.input(no).output()
    }

    /// Values kept between two bounds.
    #[track_caller]
    pub fn clip(&self, low: f64, high: f64) -> Output {
        let (low, high) = (self.scalar_like(low), self.scalar_like(high));
        self.minimum(&high).maximum(&low)
    }
}

impl Graph {
    /// `0 .. rank of x`.
    #[track_caller]
    pub(crate) fn range_to_rank(&self, x: &Output) -> Output {
        let rank = self.op("Rank").input(x).output();
        let (zero, one) = (self.constant(0i32), self.constant(1i32));
        self.op("Range")
            .input(&zero)
            .input(&rank)
            .input(&one)
            .output()
    }
}

/// The sum of tensors of one shape.
#[track_caller]
pub(crate) fn add_n(parts: &[Output]) -> Option<Output> {
    match parts {
        [] => None,
        [one] => Some(one.clone()),
        [first, ..] => Some(first.graph().op("AddN").inputs(parts).output()),
    }
}
