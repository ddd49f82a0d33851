//! `ClipByValue` and `Cross`.

use crate::types::{REALS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::DType::{self, *};
use downpour_tensor::{Element, Tensor};
use half::{bf16, f16};
use num_complex::{Complex, Complex32, Complex64 as Complex128_};

const CLIP: &[DType] = &[
    Float, Double, Half, BFloat16, Int8, Int16, Int32, Int64, UInt8, UInt16, Complex64, Complex128,
];

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("ClipByValue", &[("T", CLIP)], |b| {
        let t = b.attrs().dtype("T")?;
        with_type!(t, T in [f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, Complex32, Complex128_]
            => Built::cheap(clip_by_value::<T>))
    });
    r.add_typed("Cross", &[("T", REALS)], |b| {
        let t = b.attrs().dtype("T")?;
        with_type!(t, T in reals => Built::cheap(cross::<T>))
    });
}

/// Elements that can be cut to a range.
trait Clip: Element {
    /// The smaller one; `self` when they cannot be compared.
    fn smaller(self, other: Self) -> Self;
    /// The larger one; `self` when they cannot be compared.
    fn larger(self, other: Self) -> Self;
}

macro_rules! clip {
    ($($t:ty),*) => {$(
        impl Clip for $t {
            #[inline(always)]
            fn smaller(self, other: $t) -> $t {
                if other < self { other } else { self }
            }
            #[inline(always)]
            fn larger(self, other: $t) -> $t {
                if other > self { other } else { self }
            }
        }
    )*};
}

clip!(f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16);

/// By parts, as TensorFlow does.
impl<T: Clip> Clip for Complex<T>
where
    Complex<T>: Element,
{
    fn smaller(self, other: Self) -> Self {
        Complex::new(self.re.smaller(other.re), self.im.smaller(other.im))
    }
    fn larger(self, other: Self) -> Self {
        Complex::new(self.re.larger(other.re), self.im.larger(other.im))
    }
}

fn clip_by_value<T: Clip>(ctx: &mut OpContext<'_>) -> Result<()> {
    let mut x = ctx.take(0)?;
    let (low, high) = (ctx.take(1)?, ctx.take(2)?);
    let fits = |t: &Tensor| t.shape().is_scalar() || t.shape() == x.shape();
    if !fits(&low) || !fits(&high) {
        return Err(Status::invalid_argument(format!(
            "clip_value_min and clip_value_max must be either of the same shape as input, or a scalar. input shape: {}clip_value_min shape: {}clip_value_max shape: {}",
            x.shape(),
            low.shape(),
            high.shape()
        )));
    }
    let (low, high) = (low.as_slice::<T>()?, high.as_slice::<T>()?);
    let xs = x.make_mut::<T>()?;
    match (low, high) {
        (&[low], &[high]) => xs.iter_mut().for_each(|x| *x = x.smaller(high).larger(low)),
        _ => {
            let at = |bound: &[T], i: usize| bound[if bound.len() == 1 { 0 } else { i }];
            for (i, x) in xs.iter_mut().enumerate() {
                *x = x.smaller(at(high, i)).larger(at(low, i));
            }
        }
    }
    ctx.set_output(0, x);
    Ok(())
}

/// Elements with the arithmetic of a cross product: integers wrap, halves round each operation.
trait Crossed: Element {
    /// `a·b - c·d`.
    fn minor(a: Self, b: Self, c: Self, d: Self) -> Self;
}

macro_rules! crossed {
    ($($t:ty => |$a:ident, $b:ident, $c:ident, $d:ident| $minor:expr;)*) => {$(
        impl Crossed for $t {
            fn minor($a: $t, $b: $t, $c: $t, $d: $t) -> $t {
                $minor
            }
        }
    )*};
}

macro_rules! crossed_ints {
    ($($t:ty),*) => {
        crossed! {$(
            $t => |a, b, c, d| a.wrapping_mul(b).wrapping_sub(c.wrapping_mul(d));
        )*}
    };
}

crossed! {
    f32 => |a, b, c, d| a * b - c * d;
    f64 => |a, b, c, d| a * b - c * d;
    f16 => |a, b, c, d| a * b - c * d;
    bf16 => |a, b, c, d| a * b - c * d;
}
crossed_ints!(i8, i16, i32, i64, u8, u16, u32, u64);

fn cross<T: Crossed>(ctx: &mut OpContext<'_>) -> Result<()> {
    let (a, b) = (ctx.take(0)?, ctx.take(1)?);
    if a.shape() != b.shape() {
        return Err(Status::invalid_argument(format!(
            "Both inputs must be of same shape: {} vs. {}",
            a.shape(),
            b.shape()
        )));
    }
    match a.dims().last() {
        None => {
            return Err(Status::invalid_argument(format!(
                "Input must be at least 1D{}",
                a.shape()
            )));
        }
        Some(3) => {}
        Some(_) => {
            return Err(Status::failed_precondition(
                "Cross-products are only defined for 3-element vectors.",
            ));
        }
    }
    let shape = a.shape().clone();
    let mut out = ctx.vec::<T>(&shape)?;
    let (a, b) = (a.as_slice::<T>()?, b.as_slice::<T>()?);
    for (u, v) in a.as_chunks::<3>().0.iter().zip(b.as_chunks::<3>().0) {
        out.push(T::minor(u[1], v[2], u[2], v[1]));
        out.push(T::minor(u[2], v[0], u[0], v[2]));
        out.push(T::minor(u[0], v[1], u[1], v[0]));
    }
    ctx.set_output(0, Tensor::from_vec(out, shape)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::Code;
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn bounds_are_scalars_or_of_the_inputs_shape() {
        let t = [("T", DType::Float.into())];
        let run = |x: &[f32], low, high| run_op("ClipByValue", vec![floats(x), low, high], &t);
        let values = |out: Vec<Tensor>| out[0].as_slice::<f32>().unwrap().to_vec();
        let scalar = |x: f32| Tensor::scalar(x);
        let out = values(run(&[1.0, 5.0, 9.0, f32::NAN], scalar(2.0), scalar(6.0)).unwrap());
        assert_eq!(out[..3], [2.0, 5.0, 6.0]);
        assert!(out[3].is_nan());
        let out = run(&[1.0, 5.0], floats(&[6.0, 1.0]), floats(&[2.0, 9.0]));
        assert_eq!(values(out.unwrap()), [6.0, 5.0]);
        let out = run(&[1.0, 5.0], scalar(f32::NAN), floats(&[2.0, 9.0]));
        assert_eq!(values(out.unwrap()), [1.0, 5.0]);
        let e = run(&[1.0, 5.0], floats(&[2.0]), scalar(6.0)).unwrap_err();
        assert!(
            e.message.starts_with("clip_value_min and clip_value_max must be either of the same shape as input, or a scalar. input shape: [2]clip_value_min shape: [1]clip_value_max shape: []"),
            "{}", e.message
        );
    }

    #[test]
    fn cross_products_need_vectors_of_three() {
        let t = [("T", DType::Float.into())];
        let run = |a: &[f32], b: &[f32]| run_op("Cross", vec![floats(a), floats(b)], &t);
        let out = run(&[1.0, 2.0, 3.0], &[4.0, 5.0, 6.0]).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [-3.0, 6.0, -3.0]);
        assert_eq!(
            run(&[1.0, 2.0], &[4.0, 5.0]).unwrap_err().code,
            Code::FailedPrecondition
        );
        assert_eq!(
            run(&[1.0, 2.0], &[4.0]).unwrap_err().code,
            Code::InvalidArgument
        );
    }
}
