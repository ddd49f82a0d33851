//! Comparisons and logic. `Equal` and `NotEqual` compare anything plain and strings, and can
//! answer for shapes that do not broadcast.

use super::binary::{arithmetic, incompatible, no_code};
use super::broadcast_loop::{Zipped, check_dims, zip};
use super::elementwise::{Binary, plain_test, plain2, vector_test};
use super::tables::{WIDE, pick2};
use crate::broadcast::Broadcast;
use crate::types::REALS;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::DType::{self, *};
use downpour_tensor::Tensor;

const EQUALITY: &[DType] = &[
    Float, Double, Half, BFloat16, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64, Bool,
    String, Complex64, Complex128, QInt8, QUInt8, QInt16, QUInt16, QInt32,
];

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Equal", &[("T", EQUALITY)], |b| equality(b, true));
    r.add_typed("NotEqual", &[("T", EQUALITY)], |b| equality(b, false));
    r.add_typed("Less", &[("T", REALS)], |b| arithmetic(b, less));
    r.add_typed("LessEqual", &[("T", REALS)], |b| arithmetic(b, less_equal));
    r.add_typed("Greater", &[("T", REALS)], |b| arithmetic(b, greater));
    r.add_typed("GreaterEqual", &[("T", REALS)], |b| {
        arithmetic(b, greater_equal)
    });
    r.add("LogicalAnd", |_| logic(plain2(|a: u8, b: u8| a & b)));
    r.add("LogicalOr", |_| logic(plain2(|a: u8, b: u8| a | b)));
    r.add_typed("ApproximateEqual", &[("T", WIDE)], approximate_equal);
}

fn less(t: DType) -> Option<Box<dyn Binary>> {
    pick2!(t; float_tests => |a, b| a < b; int_tests => |a, b| a < b)
}

fn less_equal(t: DType) -> Option<Box<dyn Binary>> {
    pick2!(t; float_tests => |a, b| a <= b; int_tests => |a, b| a <= b)
}

fn greater(t: DType) -> Option<Box<dyn Binary>> {
    pick2!(t; float_tests => |a, b| a > b; int_tests => |a, b| a > b)
}

fn greater_equal(t: DType) -> Option<Box<dyn Binary>> {
    pick2!(t; float_tests => |a, b| a >= b; int_tests => |a, b| a >= b)
}

fn equal(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        float_tests => |a, b| a == b;
        bit_tests => |a, b| a == b;
        complex_tests => |a, b| a == b
    }
}

fn not_equal(t: DType) -> Option<Box<dyn Binary>> {
    pick2! { t;
        float_tests => |a, b| a != b;
        bit_tests => |a, b| a != b;
        complex_tests => |a, b| a != b
    }
}

fn logic(kernel: Box<dyn Binary>) -> Result<Built> {
    Built::cheap(move |ctx| {
        let (x, y) = (ctx.take(0)?, ctx.take(1)?);
        match zip(ctx, &*kernel, x, y)? {
            Zipped::Done(out) => ctx.set_output(0, out),
            Zipped::Refused => return Err(Status::internal("logic refuses nothing")),
            Zipped::Mismatch(x, y) => return Err(incompatible(&x, &y)),
        }
        Ok(())
    })
}

/// `Equal` or, if not `want`, `NotEqual`.
fn equality(b: &KernelBuilder<'_>, want: bool) -> Result<Built> {
    let strict = b.attrs().bool("incompatible_shape_error")?;
    let t = b.attrs().dtype("T")?;
    let mismatch = move |ctx: &mut OpContext<'_>, x: &Tensor, y: &Tensor| {
        if strict {
            return Err(incompatible(x, y));
        }
        ctx.set_output(0, Tensor::scalar(!want));
        Ok(())
    };
    if t == String {
        return Built::cheap(move |ctx| {
            let (x, y) = (ctx.take(0)?, ctx.take(1)?);
            let Some(bc) = Broadcast::new(x.dims(), y.dims()) else {
                return mismatch(ctx, &x, &y);
            };
            check_dims(&bc, &x, &y)?;
            let same = compare_strings(x.as_strings()?, y.as_strings()?, &bc, want);
            ctx.set_output(0, Tensor::from_vec(same, bc.shape)?);
            Ok(())
        });
    }
    let kernel = if want { equal(t) } else { not_equal(t) }.ok_or_else(|| no_code(t))?;
    Built::cheap(move |ctx| {
        let (x, y) = (ctx.take(0)?, ctx.take(1)?);
        match zip(ctx, &*kernel, x, y)? {
            Zipped::Done(out) => {
                ctx.set_output(0, out);
                Ok(())
            }
            Zipped::Refused => Err(Status::internal("a comparison refuses nothing")),
            Zipped::Mismatch(x, y) => mismatch(ctx, &x, &y),
        }
    })
}

fn compare_strings(a: &[Bytes], b: &[Bytes], bc: &Broadcast, want: bool) -> Vec<bool> {
    let (n, (sl, sr)) = (bc.row_len(), bc.steps());
    let mut out = Vec::new();
    bc.rows(|_, l, r| {
        out.extend((0..n).map(|i| (a[l + i * sl] == b[r + i * sr]) == want));
    });
    out
}

fn approximate_equal(b: &KernelBuilder<'_>) -> Result<Built> {
    let tolerance = b.attrs().float("tolerance")?;
    let kernel = match b.attrs().dtype("T")? {
        Float => vector_test(move |a, b| (a - b).abs() <= tolerance),
        _ => plain_test(move |a: f64, b: f64| (a - b).abs() <= f64::from(tolerance)),
    };
    Built::cheap(move |ctx| {
        let (x, y) = (ctx.take(0)?, ctx.take(1)?);
        if x.shape() != y.shape() {
            return Err(Status::invalid_argument(format!(
                "x and y must be of the same shape. x shape: {}. y shape: {}",
                x.shape(),
                y.shape()
            )));
        }
        if let Zipped::Done(out) = zip(ctx, &*kernel, x, y)? {
            ctx.set_output(0, out);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::{AttrValue, Code};
    use downpour_tensor::{DType, Tensor};

    fn truth(out: &Tensor) -> Vec<bool> {
        out.as_slice::<bool>().unwrap().to_vec()
    }

    fn equal(op: &str, x: Tensor, y: Tensor, strict: bool) -> downpour_graph::Result<Tensor> {
        let attrs = [
            ("T", x.dtype().into()),
            ("incompatible_shape_error", strict.into()),
        ];
        Ok(run_op(op, vec![x, y], &attrs)?.remove(0))
    }

    #[test]
    fn nan_is_unlike_everything() {
        let nan = floats(&[f32::NAN]);
        assert_eq!(
            truth(&equal("Equal", nan.clone(), nan.clone(), true).unwrap()),
            [false]
        );
        assert_eq!(
            truth(&equal("NotEqual", nan.clone(), nan.clone(), true).unwrap()),
            [true]
        );
        for op in ["Less", "LessEqual", "Greater", "GreaterEqual"] {
            let out = run_op(
                op,
                vec![nan.clone(), nan.clone()],
                &[("T", DType::Float.into())],
            );
            assert_eq!(truth(&out.unwrap()[0]), [false], "{op}");
        }
    }

    #[test]
    fn any_plain_type_and_strings_are_compared() {
        let strings = |v: &[&'static str]| {
            Tensor::strings(v.iter().map(|s| (*s).into()).collect(), [v.len()]).unwrap()
        };
        let out = equal("Equal", strings(&["a", "b"]), Tensor::string("a"), true).unwrap();
        assert_eq!(truth(&out), [true, false]);
        let bools = Tensor::vector(vec![true, false]);
        let out = equal("NotEqual", bools, Tensor::scalar(true), true).unwrap();
        assert_eq!(truth(&out), [false, true]);
        let out = equal(
            "Equal",
            Tensor::vector(vec![1u64, 2]),
            Tensor::scalar(2u64),
            true,
        )
        .unwrap();
        assert_eq!(truth(&out), [false, true]);
    }

    #[test]
    fn shapes_that_do_not_meet_are_an_error_or_unequal() {
        let (x, y) = (floats(&[1.0, 2.0]), floats(&[1.0, 2.0, 3.0]));
        let e = equal("Equal", x.clone(), y.clone(), true).unwrap_err();
        assert!(
            e.message.starts_with("Incompatible shapes: [2] vs. [3]"),
            "{}",
            e.message
        );
        let out = equal("NotEqual", x, y, false).unwrap();
        assert_eq!((out.rank(), truth(&out)), (0, vec![true]));
    }

    #[test]
    fn shapes_that_alternate_too_often_are_refused() {
        let x = Tensor::zeros(DType::Float, [2, 1, 2, 1, 2, 1]).unwrap();
        let y = Tensor::zeros(DType::Float, [1, 2, 1, 2, 1, 2]).unwrap();
        let e = equal("Equal", x, y, true).unwrap_err();
        assert_eq!(e.code, Code::Unimplemented);
        let want = "Broadcast between [2,1,2,1,2,1] and [1,2,1,2,1,2] is not supported yet.";
        assert!(e.message.starts_with(want), "{}", e.message);
    }

    #[test]
    fn tolerance_counts_its_edge() {
        let attrs = [
            ("T", DType::Float.into()),
            ("tolerance", AttrValue::Float(0.5)),
        ];
        let inputs = vec![floats(&[1.0, 2.0]), floats(&[1.5, 2.6])];
        let out = run_op("ApproximateEqual", inputs, &attrs).unwrap();
        assert_eq!(truth(&out[0]), [true, false]);
    }
}
