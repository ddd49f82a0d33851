//! Functions of one tensor whose result has another type: tests, parts of complex numbers,
//! counts of bits.

use super::binary::{incompatible, no_code};
use super::broadcast_loop::{Zipped, map_to, zip};
use super::elementwise::{Binary, Convert, convert, convert2};
use super::tables::COMPLEX;
use super::unary::elementwise;
use crate::types::{FLOATS, INTS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::DType::{self, *};
use num_complex::{Complex32, Complex64 as Complex128_};

const C64: &[DType] = &[Complex64];
const C128: &[DType] = &[Complex128];
const F32: &[DType] = &[Float];
const F64: &[DType] = &[Double];

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("IsNan", &[("T", FLOATS)], |b| {
        test(b, f32::is_nan, f64::is_nan)
    });
    r.add_typed("IsInf", &[("T", FLOATS)], |b| {
        test(b, f32::is_infinite, f64::is_infinite)
    });
    r.add_typed("IsFinite", &[("T", FLOATS)], |b| {
        test(b, f32::is_finite, f64::is_finite)
    });
    r.add_typed("Conj", &[("T", COMPLEX)], |b| {
        elementwise(match b.attrs().dtype("T")? {
            Complex64 => super::elementwise::scalar(|x: Complex32| x.conj()),
            _ => super::elementwise::scalar(|x: Complex128_| x.conj()),
        })
    });
    // A conjugate of a variant is that of the tensors inside; real tensors are their own.
    for (narrow, wide) in [(C64, F32), (C128, F64)] {
        let types = [("T", narrow), ("Tout", wide)];
        r.add_typed("ComplexAbs", &types, |b| {
            part(b, |x| x.re.hypot(x.im), |x| x.re.hypot(x.im))
        });
        r.add_typed("Real", &types, |b| part(b, |x| x.re, |x| x.re));
        r.add_typed("Imag", &types, |b| part(b, |x| x.im, |x| x.im));
        r.add_typed("Angle", &types, |b| part(b, |x| x.arg(), |x| x.arg()));
        r.add_typed("Complex", &[("T", wide), ("Tout", narrow)], |b| {
            compose(match b.attrs().dtype("T")? {
                Float => convert2(Complex64, |re: f32, im: f32| Complex32::new(re, im)),
                _ => convert2(Complex128, |re: f64, im: f64| Complex128_::new(re, im)),
            })
        });
    }
    r.add_typed("PopulationCount", &[("T", INTS)], |b| {
        let t = b.attrs().dtype("T")?;
        converting(with_type!(t, T in ints => convert(UInt8, |x: T| x.count_ones() as u8)))
    });
}

fn converting(kernel: Box<dyn Convert>) -> Result<Built> {
    Built::cheap(move |ctx| {
        let out = map_to(ctx, &*kernel, ctx.input(0)?)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The functions' own types, not pointers to them: a call for each element would not vectorise.
fn test(
    b: &KernelBuilder<'_>,
    narrow: impl Fn(f32) -> bool + Send + Sync + 'static,
    wide: impl Fn(f64) -> bool + Send + Sync + 'static,
) -> Result<Built> {
    converting(match b.attrs().dtype("T")? {
        Float => convert(Bool, move |x: f32| narrow(x)),
        Double => convert(Bool, move |x: f64| wide(x)),
        Half => convert(Bool, move |x: half::f16| narrow(x.to_f32())),
        BFloat16 => convert(Bool, move |x: half::bf16| narrow(x.to_f32())),
        t => return Err(no_code(t)),
    })
}

fn part(
    b: &KernelBuilder<'_>,
    narrow: impl Fn(Complex32) -> f32 + Send + Sync + 'static,
    wide: impl Fn(Complex128_) -> f64 + Send + Sync + 'static,
) -> Result<Built> {
    converting(match b.attrs().dtype("T")? {
        Complex64 => convert(Float, narrow),
        Complex128 => convert(Double, wide),
        t => return Err(no_code(t)),
    })
}

fn compose(kernel: Box<dyn Binary>) -> Result<Built> {
    Built::cheap(move |ctx| {
        let (x, y) = (ctx.take(0)?, ctx.take(1)?);
        match zip(ctx, &*kernel, x, y)? {
            Zipped::Done(out) => ctx.set_output(0, out),
            Zipped::Refused => return Err(Status::internal("composing refuses nothing")),
            Zipped::Mismatch(x, y) => return Err(incompatible(&x, &y)),
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::{Complex32, DType, Tensor, f16};

    #[test]
    fn tests_know_every_float() {
        let x = [0.0, f32::NAN, f32::INFINITY, -1.0];
        for (op, want) in [
            ("IsNan", [false, true, false, false]),
            ("IsInf", [false, false, true, false]),
            ("IsFinite", [true, false, false, true]),
        ] {
            let wide = Tensor::vector(x.to_vec());
            let narrow = Tensor::vector(x.iter().map(|&v| f16::from_f32(v)).collect());
            for x in [wide, narrow] {
                let attrs = [("T", x.dtype().into())];
                let out = run_op(op, vec![x], &attrs).unwrap();
                assert_eq!(out[0].as_slice::<bool>().unwrap(), want, "{op}");
            }
        }
    }

    #[test]
    fn complex_numbers_come_apart_and_together() {
        let z = Tensor::vector(vec![Complex32::new(3.0, 4.0)]);
        let attrs = [
            ("T", DType::Complex64.into()),
            ("Tout", DType::Float.into()),
        ];
        for (op, want) in [
            ("Real", 3.0),
            ("Imag", 4.0),
            ("ComplexAbs", 5.0),
            ("Angle", 0.927_295_2),
        ] {
            let out = run_op(op, vec![z.clone()], &attrs).unwrap();
            assert_eq!(out[0].as_slice::<f32>().unwrap(), [want], "{op}");
        }
        let attrs = [
            ("T", DType::Float.into()),
            ("Tout", DType::Complex64.into()),
        ];
        let inputs = vec![Tensor::vector(vec![1.0f32, 2.0]), Tensor::scalar(3.0f32)];
        let out = run_op("Complex", inputs, &attrs).unwrap();
        let want = [Complex32::new(1.0, 3.0), Complex32::new(2.0, 3.0)];
        assert_eq!(out[0].as_slice::<Complex32>().unwrap(), want);
    }

    #[test]
    fn bits_are_counted() {
        let attrs = [("T", DType::Int8.into())];
        let out = run_op(
            "PopulationCount",
            vec![Tensor::vector(vec![-1i8, 7])],
            &attrs,
        )
        .unwrap();
        assert_eq!(out[0].as_slice::<u8>().unwrap(), [8, 3]);
    }
}
