//! Arithmetic of two tensors with broadcasting. Integers wrap; integer division by zero is
//! TensorFlow's error.

use super::arcs;
use super::broadcast_loop::{Zipped, check_dims, zip};
use super::elementwise::{Binary, scalar2, vector2, vector2_64};
use super::functions;
use super::isa::Plain;
use super::tables::{FIELDS, WIDE, halves2, pick2};
use crate::broadcast::Broadcast;
use crate::types::{FLOATS, INTS, NUMBERS, REALS};
use bytes::{BufMut, Bytes, BytesMut};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::DType::{self, *};
use downpour_tensor::Tensor;
use half::{bf16, f16};
use num_complex::Complex;
use num_traits::{PrimInt, WrappingMul, Zero};

const ADD: &[DType] = &[
    Float, Double, Half, BFloat16, Int8, Int16, Int32, Int64, UInt8, Complex64, Complex128,
];
const POW: &[DType] = &[
    Float, Double, Half, BFloat16, Int8, Int16, Int32, Int64, Complex64, Complex128,
];
const SQUARED_DIFFERENCE: &[DType] = &[
    Float, Double, Half, BFloat16, Int32, Int64, Complex64, Complex128,
];
const MOD: &[DType] = &[Int32, Int64, Float, Double];

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("AddV2", &[("T", NUMBERS)], |b| arithmetic(b, add));
    r.add_typed("Add", &[("T", ADD)], |b| arithmetic(b, add));
    r.add_typed("Add", &[("T", &[String])], |_| Built::cheap(add_strings));
    r.add_typed("Sub", &[("T", NUMBERS)], |b| arithmetic(b, sub));
    r.add_typed("Mul", &[("T", NUMBERS)], |b| arithmetic(b, mul));
    r.add_typed("MulNoNan", &[("T", FIELDS)], |b| arithmetic(b, mul_no_nan));
    r.add_typed("Div", &[("T", NUMBERS)], |b| arithmetic(b, div));
    r.add_typed("RealDiv", &[("T", FIELDS)], |b| arithmetic(b, div));
    r.add_typed("DivNoNan", &[("T", FIELDS)], |b| arithmetic(b, div_no_nan));
    r.add_typed("FloorDiv", &[("T", REALS)], |b| arithmetic(b, floor_div));
    r.add_typed("FloorMod", &[("T", REALS)], |b| arithmetic(b, floor_mod));
    r.add_typed("Mod", &[("T", MOD)], |b| arithmetic(b, truncate_mod));
    // TensorFlow only expects divisions by zero of ops called "div" or "mod" in its own code, so
    // these two fail in other words.
    r.add_typed("TruncateDiv", &[("T", REALS)], |b| {
        built(b, truncate_div, || Status::internal(UNEXPECTED_DIVISION))
    });
    r.add_typed("TruncateMod", &[("T", MOD)], |b| {
        built(b, truncate_mod, || Status::internal(UNEXPECTED_DIVISION))
    });
    r.add_typed("Pow", &[("T", POW)], |b| {
        built(b, pow, || {
            Status::invalid_argument("Integers to negative integer powers are not allowed")
        })
    });
    r.add_typed("Maximum", &[("T", REALS)], |b| arithmetic(b, maximum));
    r.add_typed("Minimum", &[("T", REALS)], |b| arithmetic(b, minimum));
    r.add_typed("SquaredDifference", &[("T", SQUARED_DIFFERENCE)], |b| {
        arithmetic(b, squared_difference)
    });
    r.add_typed("Xlogy", &[("T", FIELDS)], |b| arithmetic(b, xlogy));
    r.add_typed("Xlog1py", &[("T", FIELDS)], |b| arithmetic(b, xlog1py));
    r.add_typed("Xdivy", &[("T", FIELDS)], |b| arithmetic(b, xdivy));
    r.add_typed("Atan2", &[("T", FLOATS)], |b| arithmetic(b, atan2));
    r.add_typed("NextAfter", &[("T", WIDE)], |b| arithmetic(b, next_after));
    r.add_typed("BitwiseAnd", &[("T", INTS)], |b| arithmetic(b, bitwise_and));
    r.add_typed("BitwiseOr", &[("T", INTS)], |b| arithmetic(b, bitwise_or));
    r.add_typed("BitwiseXor", &[("T", INTS)], |b| arithmetic(b, bitwise_xor));
    r.add_typed("LeftShift", &[("T", INTS)], |b| arithmetic(b, left_shift));
    r.add_typed("RightShift", &[("T", INTS)], |b| arithmetic(b, right_shift));
}

const UNEXPECTED_DIVISION: &str =
    "Unexpected error in binary operator (only integer div and mod should have errors)";

/// Which kernel an op has for a type.
pub(crate) type Choice = fn(DType) -> Option<Box<dyn Binary>>;

/// A broadcasting op of attribute `T`.
pub(crate) fn arithmetic(b: &KernelBuilder<'_>, choice: Choice) -> Result<Built> {
    built(b, choice, || {
        Status::invalid_argument("Integer division by zero")
    })
}

fn built(b: &KernelBuilder<'_>, choice: Choice, refused: fn() -> Status) -> Result<Built> {
    let t = b.attrs().dtype("T")?;
    let kernel = choice(t).ok_or_else(|| no_code(t))?;
    Built::cheap(move |ctx| {
        let (x, y) = (ctx.take(0)?, ctx.take(1)?);
        match zip(ctx, &*kernel, x, y)? {
            Zipped::Done(out) => {
                ctx.set_output(0, out);
                Ok(())
            }
            Zipped::Refused => Err(refused()),
            Zipped::Mismatch(x, y) => Err(incompatible(&x, &y)),
        }
    })
}

/// A type list and a kernel table that disagree.
pub(crate) fn no_code(t: DType) -> Status {
    Status::internal(format!("this kernel has no code for type {t}"))
}

/// TensorFlow's text for shapes that do not broadcast.
pub(crate) fn incompatible(x: &Tensor, y: &Tensor) -> Status {
    Status::invalid_argument(format!(
        "Incompatible shapes: {} vs. {}",
        x.shape(),
        y.shape()
    ))
}

pub(crate) fn add(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        floats => |a, b| a + b;
        wrapping => |a, b| a.wrapping_add(b);
        complex => |a, b| a + b
    }
}

fn sub(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        floats => |a, b| a - b;
        wrapping => |a, b| a.wrapping_sub(b);
        complex => |a, b| a - b
    }
}

fn mul(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        floats => |a, b| a * b;
        wrapping => |a, b| a.wrapping_mul(b);
        complex => |a, b| a * b
    }
}

fn mul_no_nan(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        floats => |a, b| if b == 0.0 { 0.0 } else { a * b };
        complex => |a, b| if b.is_zero() { b } else { a * b }
    }
}

fn div(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        floats => |a, b| a / b;
        checked_signed => |a, b| (b != 0).then(|| a.wrapping_div(b));
        checked_unsigned => |a, b| a.checked_div(b);
        complex => |a, b| a / b
    }
}

fn div_no_nan(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        floats => |a, b| if b == 0.0 { 0.0 } else { a / b };
        complex => |a, b| if b.is_zero() { b } else { a / b }
    }
}

fn floor_div(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        floats => |a, b| (a / b).floor();
        checked_signed => |a, b| (b != 0).then(|| {
            let q = a.wrapping_div(b);
            let inexact = a.wrapping_rem(b) != 0 && (a < 0) != (b < 0);
            if inexact { q - 1 } else { q }
        });
        checked_unsigned => |a, b| a.checked_div(b)
    }
}

fn truncate_div(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        floats => |a, b| (a / b).trunc();
        checked_signed => |a, b| (b != 0).then(|| a.wrapping_div(b));
        checked_unsigned => |a, b| a.checked_div(b)
    }
}

fn floor_mod(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        float => |a, b| {
            let r = a % b;
            if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
        };
        double => |a, b| {
            let r = a % b;
            if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
        };
        checked_signed => |a, b| (b != 0).then(|| {
            let r = a.wrapping_rem(b);
            if r != 0 && (r < 0) != (b < 0) { r + b } else { r }
        });
        checked_unsigned => |a, b| a.checked_rem(b)
    }
}

fn truncate_mod(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        float => |a, b| a % b;
        double => |a, b| a % b;
        checked_signed => |a, b| (b != 0).then(|| a.wrapping_rem(b))
    }
}

/// `base` to the power of a non-negative exponent, wrapping; `None` for a negative one.
fn int_pow<T: PrimInt + WrappingMul>(mut base: T, mut exponent: T) -> Option<T> {
    if exponent < T::zero() {
        return None;
    }
    let mut result = T::one();
    while exponent > T::zero() {
        if exponent & T::one() == T::one() {
            result = result.wrapping_mul(&base);
        }
        base = base.wrapping_mul(&base);
        exponent = exponent >> 1;
    }
    Some(result)
}

fn pow(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        float => f32::powf;
        double => f64::powf;
        checked_signed => int_pow;
        complex => |a, b| a.powc(b)
    }
}

fn maximum(t: DType) -> Option<Box<dyn Binary>> {
    // A NaN on either side is the result. `|` rather than `||`: the loop has no branch.
    pick2! { t;
        floats => |a, b| if (a < b) | b.is_nan() { b } else { a };
        ints => |a, b| if a < b { b } else { a }
    }
}

fn minimum(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        floats => |a, b| if (b < a) | b.is_nan() { b } else { a };
        ints => |a, b| if b < a { b } else { a }
    }
}

fn squared_difference(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        floats => |a, b| (a - b) * (a - b);
        wrapping => |a, b| {
            let d = a.wrapping_sub(b);
            d.wrapping_mul(d)
        };
        complex => |a, b| Complex::new((a - b).norm_sqr(), 0.0)
    }
}

/// Products with a logarithm that is rounded to the op's type first.
fn log_product(
    t: DType,
    log: impl Fn(f32) -> f32 + Copy + Send + Sync + 'static,
) -> Option<Box<dyn Binary>> {
    match t {
        Float => Some(vector2(move |a, b| {
            let product = a * log(b);
            if a == 0.0 { 0.0 } else { product }
        })),
        Half => Some(scalar2(move |a: f16, b: f16| match a == f16::ZERO {
            true => f16::ZERO,
            false => a * f16::from_f32(log(b.to_f32())),
        })),
        BFloat16 => Some(scalar2(move |a: bf16, b: bf16| match a == bf16::ZERO {
            true => bf16::ZERO,
            false => a * bf16::from_f32(log(b.to_f32())),
        })),
        _ => None,
    }
}

fn xlogy(t: DType) -> Option<Box<dyn Binary>> {
    let narrow = log_product(t, functions::log::<Plain>);
    narrow.or_else(|| {
        pick2! { t;
            double => |a, b| if a == 0.0 { 0.0 } else { a * b.ln() };
            complex => |a, b| if a.is_zero() { a } else { a * b.ln() }
        }
    })
}

fn xlog1py(t: DType) -> Option<Box<dyn Binary>> {
    let narrow = log_product(t, functions::log1p::<Plain>);
    narrow.or_else(|| {
        pick2! { t;
            double => |a, b| if a == 0.0 { 0.0 } else { a * b.ln_1p() };
            complex => |a, b| if a.is_zero() { a } else { a * (b + 1.0).ln() }
        }
    })
}

fn xdivy(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        floats => |a, b| if a == 0.0 { 0.0 } else { a / b };
        complex => |a, b| if a.is_zero() { a } else { a / b }
    }
}

fn atan2(t: DType) -> Option<Box<dyn Binary>> {
    if t == Float {
        return Some(vector2(arcs::atan2::<Plain>));
    }
    if t == Double {
        return Some(vector2_64(arcs::atan2_double));
    }
    halves2(t, arcs::atan2::<Plain>)
}

fn next_after(t: DType) -> Option<Box<dyn Binary>> {
    pick2!(t; float => libm::nextafterf; double => libm::nextafter)
}

fn bitwise_and(t: DType) -> Option<Box<dyn Binary>> {
    pick2!(t; wrapping => |a, b| a & b)
}

fn bitwise_or(t: DType) -> Option<Box<dyn Binary>> {
    pick2!(t; wrapping => |a, b| a | b)
}

fn bitwise_xor(t: DType) -> Option<Box<dyn Binary>> {
    pick2!(t; wrapping => |a, b| a ^ b)
}

/// The distance of a shift: cut to what the type can bear, as TensorFlow does.
fn distance<T: PrimInt>(by: T) -> usize {
    let bits = T::zero().count_zeros() as usize;
    by.max(T::zero()).to_usize().unwrap_or(bits).min(bits - 1)
}

fn left_shift(t: DType) -> Option<Box<dyn Binary>> {
    pick2!(t; ints => |a, b| a << distance(b))
}

fn right_shift(t: DType) -> Option<Box<dyn Binary>> {
    pick2!(t; ints => |a, b| a >> distance(b))
}

fn add_strings(ctx: &mut OpContext<'_>) -> Result<()> {
    let (x, y) = (ctx.input(0)?, ctx.input(1)?);
    let bc = Broadcast::new(x.dims(), y.dims()).ok_or_else(|| incompatible(x, y))?;
    check_dims(&bc, x, y)?;
    ctx.check_alloc(String, &bc.shape)?;
    let (a, b) = (x.as_strings()?, y.as_strings()?);
    let (n, (sl, sr)) = (bc.row_len(), bc.steps());
    let mut out = Vec::with_capacity(bc.shape.num_elements());
    bc.rows(|_, l, r| {
        out.extend((0..n).map(|i| {
            let (a, b) = (&a[l + i * sl], &b[r + i * sr]);
            let mut sum = BytesMut::with_capacity(a.len() + b.len());
            sum.put_slice(a);
            sum.put_slice(b);
            Bytes::from(sum)
        }))
    });
    let out = Tensor::strings(out, bc.shape)?;
    ctx.set_output(0, out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::Code;
    use downpour_tensor::{DType, Element, Tensor};

    fn op<T: Element>(op: &str, a: &[T], b: &[T]) -> Vec<T> {
        let inputs = vec![Tensor::vector(a.to_vec()), Tensor::vector(b.to_vec())];
        let out = run_op(op, inputs, &[("T", T::DTYPE.into())]).unwrap();
        out[0].as_slice::<T>().unwrap().to_vec()
    }

    fn fails(op: &str, a: Tensor, b: Tensor) -> (Code, Box<str>) {
        let e = run_op(op, vec![a.clone(), b], &[("T", a.dtype().into())]).unwrap_err();
        (e.code, e.message.into())
    }

    #[test]
    fn addition_broadcasts_and_names_shapes_that_do_not() {
        let t = [("T", DType::Float.into())];
        let a = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2]).unwrap();
        let out = run_op("AddV2", vec![a.clone(), floats(&[10.0, 20.0])], &t).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [11.0, 22.0, 13.0, 24.0]);
        let (_, message) = fails("AddV2", a, floats(&[1.0, 2.0, 3.0]));
        assert!(
            message.starts_with("Incompatible shapes: [2,2] vs. [3]"),
            "{message}"
        );
    }

    #[test]
    fn every_broadcast_agrees_with_the_definition() {
        // Long and short rows, either side repeated, results in place and fresh.
        for (a, b) in [
            (vec![100, 200], vec![200]),
            (vec![200], vec![100, 200]),
            (vec![100, 200], vec![100, 1]),
            (vec![300, 10], vec![10]),
            (vec![300, 10], vec![300, 1]),
            (vec![300, 1], vec![300, 10]),
            (vec![5, 1, 7], vec![1, 6, 1]),
            (vec![100_000], vec![]),
            (vec![], vec![100_000]),
            (vec![70_001], vec![70_001]),
            (vec![1, 1], vec![1]),
        ] {
            let (na, nb): (usize, usize) = (a.iter().product(), b.iter().product());
            let x: Vec<i32> = (0..na as i32).collect();
            let y: Vec<i32> = (0..nb as i32).map(|v| v * 1000 + 7).collect();
            let bc = crate::broadcast::Broadcast::new(&a, &b).unwrap();
            let mut want = vec![0; bc.shape.num_elements()];
            let (n, (sl, sr)) = (bc.row_len(), bc.steps());
            bc.rows(|o, l, r| {
                (0..n).for_each(|i| want[o + i] = x[l + i * sl].wrapping_sub(y[r + i * sr]))
            });
            let (x, y) = (
                Tensor::from_vec(x, a.clone()).unwrap(),
                Tensor::from_vec(y, b.clone()).unwrap(),
            );
            let attrs = [("T", DType::Int32.into())];
            for inputs in [vec![x.clone(), y.clone()], vec![x, y]] {
                let out = run_op("Sub", inputs, &attrs).unwrap();
                assert_eq!(out[0].as_slice::<i32>().unwrap(), want, "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn integers_wrap_and_divide_as_tensorflows_do() {
        assert_eq!(op("AddV2", &[i32::MAX], &[1]), [i32::MIN]);
        assert_eq!(op("Mul", &[200u8], &[2]), [144]);
        assert_eq!(
            op("FloorDiv", &[7, -7, 7, -7, i32::MIN], &[2, 2, -2, -2, -1]),
            [3, -4, -4, 3, i32::MIN]
        );
        assert_eq!(
            op("TruncateDiv", &[7, -7, 7, -7], &[2, 2, -2, -2]),
            [3, -3, -3, 3]
        );
        assert_eq!(
            op("FloorMod", &[7, -7, 7, -7], &[2, 2, -2, -2]),
            [1, 1, -1, -1]
        );
        assert_eq!(op("Mod", &[7, -7, 7, -7], &[2, 2, -2, -2]), [1, -1, 1, -1]);
        assert_eq!(
            op("Pow", &[2, 3, -2, 0, 2, 3], &[3, 2, 3, 0, 40, 41]),
            [8, 9, -8, 1, 0, 2069870691]
        );
        assert_eq!(
            op("LeftShift", &[1, 1, 1, -1], &[32, -1, 31, 4]),
            [i32::MIN, 1, i32::MIN, -16]
        );
        assert_eq!(
            op("RightShift", &[-8, -8, 8, 8], &[40, -1, 1, 31]),
            [-1, -8, 4, 0]
        );
        assert_eq!(op("LeftShift", &[1u8, 1, 1], &[8, 7, 200]), [128, 128, 128]);
    }

    #[test]
    fn refused_operands_give_tensorflows_errors() {
        let (one, zero) = (Tensor::vector(vec![1i32]), Tensor::scalar(0i32));
        for name in ["Div", "FloorDiv", "FloorMod", "Mod"] {
            let (code, message) = fails(name, one.clone(), zero.clone());
            assert_eq!(code, Code::InvalidArgument);
            assert!(message.starts_with("Integer division by zero"), "{message}");
        }
        let (code, message) = fails("TruncateDiv", one.clone(), zero);
        assert_eq!(code, Code::Internal);
        assert!(message.starts_with(super::UNEXPECTED_DIVISION), "{message}");
        let (_, message) = fails("Pow", one, Tensor::scalar(-1i32));
        let want = "Integers to negative integer powers are not allowed";
        assert!(message.starts_with(want), "{message}");
    }

    #[test]
    fn special_floats_follow_tensorflow() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let max = op("Maximum", &[1.0, nan, 3.0], &[nan, 1.0, 4.0]);
        assert!(max[0].is_nan() && max[1].is_nan() && max[2] == 4.0);
        assert_eq!(
            op("DivNoNan", &[1.0, 0.0, nan, inf], &[0.0f32; 4]),
            [0.0; 4]
        );
        assert_eq!(op("MulNoNan", &[1.0, nan, inf], &[0.0f32; 3]), [0.0; 3]);
        assert_eq!(
            op("Xlogy", &[0.0, 0.0, 2.0], &[0.0, nan, 0.0])[..2],
            [0.0; 2]
        );
        assert_eq!(
            op("FloorMod", &[5.0, -5.0, 5.0], &[inf, inf, -inf]),
            [5.0, inf, -inf]
        );
        assert_eq!(op("NextAfter", &[1.0f32], &[2.0]), [1.0 + f32::EPSILON]);
    }

    #[test]
    fn strings_are_joined() {
        let a = Tensor::strings(vec!["a".into(), "b".into()], [2]).unwrap();
        let out = run_op(
            "Add",
            vec![a, Tensor::string("x")],
            &[("T", DType::String.into())],
        );
        assert_eq!(out.unwrap()[0].as_strings().unwrap(), ["ax", "bx"]);
    }
}
