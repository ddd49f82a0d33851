//! `Cast` between numbers and bools, and `Bitcast`.
//!
//! Floats to integers as x86's scalar conversion instructions do it, which is what TensorFlow
//! shows: toward zero; NaN and what does not fit gives the 32- or 64-bit "indefinite" integer,
//! of which narrower types keep the low bits.

use super::dtypes::COMMON;
use crate::types::with_type;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, parallel_ranges};
use downpour_tensor::{Buffer, DType, Dims, Element, Tensor};
use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};
use num_complex::{Complex32, Complex64};

/// Elements below which a conversion is not worth splitting.
const GRAIN: usize = 64 << 10;

pub(crate) fn register(r: &mut Registry) {
    r.add("Cast", cast);
    r.add("_HostCast", cast);
    r.add("Bitcast", bitcast);
}

fn cast(b: &KernelBuilder<'_>) -> Result<Built> {
    let (from, to) = (b.attrs().dtype("SrcT")?, b.attrs().dtype("DstT")?);
    if from == to {
        return Built::cheap(|ctx| {
            ctx.forward(0, 0);
            Ok(())
        });
    }
    let known = |t: DType| COMMON.contains(&t);
    if !known(from) || !known(to) {
        return Err(Status::unimplemented(format!(
            "Cast {from} to {to} is not supported"
        )));
    }
    // Only floats have a mantissa to cut; integers round.
    let truncate = from.is_floating() && b.attrs().bool("Truncate")?;
    Built::cheap(move |ctx| {
        let x = ctx.input(0)?;
        ctx.check_alloc(to, x.shape())?;
        let out = with_type!(from, S in plain => converted::<S>(ctx, to, truncate)?);
        ctx.set_output(0, out);
        Ok(())
    })
}

/// One source type to every target. Targets of one width share code where their bits agree.
fn converted<S: Source>(ctx: &OpContext<'_>, to: DType, truncate: bool) -> Result<Tensor> {
    let x = ctx.input(0)?;
    match to {
        DType::Int8 | DType::UInt8 => map(x, to, |v: S| v.int() as u8),
        DType::Int16 | DType::UInt16 => map(x, to, |v: S| v.int() as u16),
        DType::Int32 => map(x, to, |v: S| v.int()),
        DType::UInt32 => map(x, to, |v: S| v.wide() as u32),
        DType::Int64 => map(x, to, |v: S| v.wide()),
        DType::UInt64 => map(x, to, |v: S| v.unsigned()),
        DType::Float if truncate => map(x, to, |v: S| cut(v.double(), 23) as f32),
        DType::Float if x.dtype() == DType::Half => {
            let values = x.as_slice::<f16>()?;
            let mut out = vec![0.0f32; values.len()];
            parallel_ranges(&mut out, 1, GRAIN, |at, part| {
                values[at..at + part.len()].convert_to_f32_slice(part);
            });
            Ok(Tensor::from_buffer(
                to,
                x.shape().clone(),
                Buffer::from_vec(out),
            )?)
        }
        DType::Float => map(x, to, |v: S| v.single()),
        DType::Double => map(x, to, |v: S| v.double()),
        DType::Half if truncate => map(x, to, |v: S| f16::from_f64(cut(v.double(), 10))),
        DType::Half if x.dtype() == DType::Float => {
            let values = x.as_slice::<f32>()?;
            let mut out = vec![f16::ZERO; values.len()];
            parallel_ranges(&mut out, 1, GRAIN, |at, part| {
                part.convert_from_f32_slice(&values[at..at + part.len()]);
            });
            Ok(Tensor::from_buffer(
                to,
                x.shape().clone(),
                Buffer::from_vec(out),
            )?)
        }
        DType::Half => map(x, to, |v: S| f16::from_f32(v.single())),
        DType::BFloat16 if truncate => map(x, to, |v: S| bf16::from_f64(cut(v.double(), 7))),
        DType::BFloat16 => map(x, to, |v: S| bf16::from_f32(v.single())),
        DType::Bool => map(x, to, |v: S| v.truth()),
        DType::Complex64 => map(x, to, |v: S| {
            let v = v.complex();
            Complex32::new(v.re as f32, v.im as f32)
        }),
        DType::Complex128 => map(x, to, |v: S| v.complex()),
        other => Err(Status::internal(format!("no conversion to {other}"))),
    }
}

fn map<S: Source, D: Element>(x: &Tensor, to: DType, f: impl Fn(S) -> D + Sync) -> Result<Tensor> {
    let values = x.as_slice::<S>()?;
    let out: Vec<D> = if values.len() < 2 * GRAIN {
        values.iter().map(|&v| f(v)).collect()
    } else {
        let mut out = vec![D::default(); values.len()];
        parallel_ranges(&mut out, 1, GRAIN, |at, part| {
            part.iter_mut()
                .zip(&values[at..])
                .for_each(|(o, &v)| *o = f(v));
        });
        out
    };
    Ok(Tensor::from_buffer(
        to,
        x.shape().clone(),
        Buffer::from_vec(out),
    )?)
}

/// `v` with only the first `bits` bits of its mantissa.
fn cut(v: f64, bits: u32) -> f64 {
    f64::from_bits(v.to_bits() & !((1 << (52 - bits)) - 1))
}

/// What a value becomes.
pub(super) trait Source: Element {
    /// As a 32-bit integer, of which 8- and 16-bit targets keep the low bits.
    fn int(self) -> i32;
    /// As a 64-bit integer.
    fn wide(self) -> i64;
    /// As an unsigned 64-bit integer.
    fn unsigned(self) -> u64;
    /// As a float.
    fn single(self) -> f32;
    /// As a double.
    fn double(self) -> f64;
    /// Whether it is not zero. TensorFlow computes with denormal floats and doubles flushed to
    /// zero, so those are false.
    fn truth(self) -> bool;
    /// As a complex number.
    fn complex(self) -> Complex64 {
        Complex64::new(self.double(), 0.0)
    }
}

macro_rules! integer_sources {
    ($($t:ty),*) => {
        $(impl Source for $t {
            fn int(self) -> i32 { self as i32 }
            fn wide(self) -> i64 { self as i64 }
            fn unsigned(self) -> u64 { self as u64 }
            fn single(self) -> f32 { self as f32 }
            fn double(self) -> f64 { self as f64 }
            fn truth(self) -> bool { self != 0 }
        })*
    };
}
integer_sources!(i8, i16, i32, i64, u8, u16, u32, u64);

macro_rules! float_sources {
    ($($t:ty: $single:expr, $double:expr, $truth:expr, $int:expr;)*) => {
        $(impl Source for $t {
            fn int(self) -> i32 { $int(self) }
            fn wide(self) -> i64 { to_i64(self.double()) }
            fn unsigned(self) -> u64 { to_u64(self.double()) }
            fn single(self) -> f32 { $single(self) }
            fn double(self) -> f64 { $double(self) }
            fn truth(self) -> bool { $truth(self) }
        })*
    };
}
float_sources! {
    f32: |v| v, f64::from, |v: f32| !(v.abs() < f32::MIN_POSITIVE), single_to_i32;
    f64: |v| v as f32, |v| v, |v: f64| !(v.abs() < f64::MIN_POSITIVE), to_i32;
    f16: f32::from, f64::from, |v: f16| v != f16::ZERO, |v: f16| to_i32(v.into());
    bf16: f32::from, f64::from, |v: bf16| v != bf16::ZERO, |v: bf16| to_i32(v.into());
}

macro_rules! complex_sources {
    ($($t:ty),*) => {
        $(impl Source for $t {
            fn int(self) -> i32 { self.re.int() }
            fn wide(self) -> i64 { self.re.wide() }
            fn unsigned(self) -> u64 { self.re.unsigned() }
            fn single(self) -> f32 { self.re as f32 }
            fn double(self) -> f64 { f64::from(self.re) }
            fn truth(self) -> bool { self.re.truth() || self.im.truth() }
            fn complex(self) -> Complex64 {
                Complex64::new(f64::from(self.re), f64::from(self.im))
            }
        })*
    };
}
complex_sources!(Complex32, Complex64);

impl Source for bool {
    fn int(self) -> i32 {
        i32::from(self)
    }
    fn wide(self) -> i64 {
        i64::from(self)
    }
    fn unsigned(self) -> u64 {
        u64::from(self)
    }
    fn single(self) -> f32 {
        f32::from(u8::from(self))
    }
    fn double(self) -> f64 {
        f64::from(u8::from(self))
    }
    fn truth(self) -> bool {
        self
    }
}

/// `cvttss2si`: as `to_i32`, in a form that loops vectorise.
#[inline(always)]
#[allow(
    unsafe_code,
    reason = "a saturating conversion takes four instructions more"
)]
fn single_to_i32(v: f32) -> i32 {
    let fits = v.abs() < 2_147_483_648.0;
    // SAFETY: a number of that size fits, and so does 0.
    let int = unsafe { (if fits { v } else { 0.0 }).to_int_unchecked::<i32>() };
    if fits { int } else { i32::MIN }
}

/// `cvttsd2si` with a 32-bit target. Every f32 is a f64, so one form serves both.
fn to_i32(v: f64) -> i32 {
    if v > -2_147_483_649.0 && v < 2_147_483_648.0 {
        v as i32
    } else {
        i32::MIN
    }
}

/// `cvttsd2si` with a 64-bit target.
fn to_i64(v: f64) -> i64 {
    const TOP: f64 = 9_223_372_036_854_775_808.0;
    if (-TOP..TOP).contains(&v) {
        v as i64
    } else {
        i64::MIN
    }
}

/// What compilers emit for a conversion that has no instruction.
fn to_u64(v: f64) -> u64 {
    let low = to_i64(v);
    let high = to_i64(v - 9_223_372_036_854_775_808.0);
    (low | (high & (low >> 63))) as u64
}

fn bitcast(b: &KernelBuilder<'_>) -> Result<Built> {
    let to = b.attrs().dtype("type")?;
    Built::cheap(move |ctx| {
        let x = ctx.take(0)?;
        let size = |t: DType| {
            t.size()
                .ok_or_else(|| Status::internal(format!("bitcast of {t}")))
        };
        let (from, into) = (size(x.dtype())?, size(to)?);
        let mut dims = Dims::from_slice(x.dims());
        if from > into {
            dims.push(from / into);
        } else if from < into {
            // The last dimension holds the pieces of one wider element.
            if dims.last().map(|&d| d * from) != Some(into) {
                return Err(Status::invalid_argument(format!(
                    "Cannot bitcast from {} to {}",
                    x.dtype().number(),
                    to.number()
                )));
            }
            dims.pop();
        }
        let Some(buffer) = x.buffer() else {
            return Err(Status::internal("bitcast of a type without bytes"));
        };
        let out = Tensor::from_buffer(to, dims, buffer.clone())?;
        ctx.set_output(0, out);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{floats, run_op};

    fn cast(x: Tensor, to: DType) -> Tensor {
        let attrs = [("SrcT", x.dtype().into()), ("DstT", to.into())];
        run_op("Cast", vec![x], &attrs).unwrap().remove(0)
    }

    #[test]
    fn floats_become_integers_as_on_x86() {
        let x = floats(&[
            f32::NAN,
            f32::INFINITY,
            1e10,
            -1e10,
            300.7,
            -300.7,
            3e9,
            1e19,
            -1e19,
        ]);
        let min = i32::MIN;
        assert_eq!(
            cast(x.clone(), DType::Int32).as_slice::<i32>().unwrap(),
            [min, min, min, min, 300, -300, min, min, min]
        );
        assert_eq!(
            cast(x.clone(), DType::UInt8).as_slice::<u8>().unwrap(),
            [0, 0, 0, 0, 44, 212, 0, 0, 0]
        );
        assert_eq!(
            cast(x.clone(), DType::UInt32).as_slice::<u32>().unwrap(),
            [
                0, 0, 1410065408, 2884901888, 300, 4294966996, 3000000000, 0, 0
            ]
        );
        let top = 1u64 << 63;
        assert_eq!(
            cast(x, DType::UInt64).as_slice::<u64>().unwrap(),
            [
                top,
                top,
                10000000000,
                18446744063709551616,
                300,
                18446744073709551316,
                3000000000,
                9999999980506447872,
                top
            ]
        );
    }

    #[test]
    fn other_conversions_keep_what_they_can() {
        let x = Tensor::vector(vec![Complex32::new(1.5, 2.0), Complex32::new(0.0, 1.0)]);
        assert_eq!(
            cast(x.clone(), DType::Float).as_slice::<f32>().unwrap(),
            [1.5, 0.0]
        );
        assert_eq!(
            cast(x, DType::Bool).as_slice::<bool>().unwrap(),
            [true, true]
        );
        let x = Tensor::vector(vec![true, false]);
        assert_eq!(
            cast(x, DType::Double).as_slice::<f64>().unwrap(),
            [1.0, 0.0]
        );
        let x = Tensor::vector(vec![-1i32, 300]);
        assert_eq!(
            cast(x.clone(), DType::UInt16).as_slice::<u16>().unwrap(),
            [65535, 300]
        );
        assert_eq!(
            cast(x, DType::UInt64).as_slice::<u64>().unwrap(),
            [u64::MAX, 300]
        );
        let attrs = [
            ("SrcT", DType::String.into()),
            ("DstT", DType::Float.into()),
        ];
        let e = run_op("Cast", vec![Tensor::string("1")], &attrs).unwrap_err();
        assert!(
            e.message
                .starts_with("Cast string to float is not supported"),
            "{}",
            e.message
        );
    }

    #[test]
    fn bits_are_regrouped() {
        let attrs = [("T", DType::Float.into()), ("type", DType::UInt8.into())];
        let out = run_op("Bitcast", vec![floats(&[0.0, 1.0])], &attrs)
            .unwrap()
            .remove(0);
        assert_eq!(out.dims(), [2, 4]);
        assert_eq!(out.as_slice::<u8>().unwrap(), [0, 0, 0, 0, 0, 0, 128, 63]);
        let attrs = [("T", DType::UInt8.into()), ("type", DType::Float.into())];
        let back = run_op("Bitcast", vec![out], &attrs).unwrap().remove(0);
        assert_eq!(back.as_slice::<f32>().unwrap(), [0.0, 1.0]);
        let e = run_op("Bitcast", vec![Tensor::vector(vec![0u8; 3])], &attrs).unwrap_err();
        assert!(
            e.message.starts_with("Cannot bitcast from 4 to 1"),
            "{}",
            e.message
        );
    }
}
