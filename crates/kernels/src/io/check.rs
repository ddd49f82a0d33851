//! `Assert` and `CheckNumerics`: pass on what is sound, fail on the rest.

use crate::types::{FLOATS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use num_traits::Float;

pub(super) fn register(r: &mut Registry) {
    r.add("Assert", assert);
    r.add_typed("CheckNumerics", &[("T", FLOATS)], |b| {
        check_numerics(b, Found::either)
    });
    r.add_typed("CheckNumericsV2", &[("T", FLOATS)], |b| {
        check_numerics(b, Found::signed)
    });
}

fn assert(b: &KernelBuilder<'_>) -> Result<Built> {
    let summarize = b.attrs().int("summarize")?;
    Built::cheap(move |ctx| {
        let condition = ctx.input(0)?;
        if condition.rank() != 0 {
            return Err(Status::invalid_argument(format!(
                "In[0] should be a scalar: {}",
                condition.shape()
            )));
        }
        if condition.scalar_value::<bool>()? {
            return Ok(());
        }
        let mut message = String::from("assertion failed:");
        for data in ctx.inputs(1..ctx.num_inputs())? {
            message += &format!(" [{}]", data.summarize(summarize));
        }
        Err(Status::invalid_argument(message))
    })
}

/// What a tensor holds besides finite numbers.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
struct Found {
    nan: bool,
    positive: bool,
    negative: bool,
}

impl Found {
    fn of<T: Float>(values: &[T]) -> Found {
        // Almost always everything is finite: one pass that the compiler vectorises says so.
        if values.iter().fold(true, |all, v| all & v.is_finite()) {
            return Found::default();
        }
        let infinite =
            |positive: bool| move |v: &T| v.is_infinite() && v.is_sign_positive() == positive;
        Found {
            nan: values.iter().any(|v| v.is_nan()),
            positive: values.iter().any(infinite(true)),
            negative: values.iter().any(infinite(false)),
        }
    }

    /// What the first version of the op reports.
    fn either(self) -> Option<&'static str> {
        match (self.positive || self.negative, self.nan) {
            (true, true) => Some("Inf and NaN"),
            (true, false) => Some("Inf"),
            (false, true) => Some("NaN"),
            (false, false) => None,
        }
    }

    /// What the second version reports.
    fn signed(self) -> Option<&'static str> {
        match (self.negative, self.positive, self.nan) {
            (true, true, true) => Some("-Inf, +Inf, and NaN"),
            (true, true, false) => Some("-Inf and +Inf"),
            (true, false, true) => Some("-Inf and NaN"),
            (false, true, true) => Some("+Inf and NaN"),
            (true, false, false) => Some("-Inf"),
            (false, true, false) => Some("+Inf"),
            (false, false, true) => Some("NaN"),
            (false, false, false) => None,
        }
    }
}

fn check_numerics(
    b: &KernelBuilder<'_>,
    report: fn(Found) -> Option<&'static str>,
) -> Result<Built> {
    let message = String::from_utf8_lossy(b.attrs().bytes("message")?).into_owned();
    Built::cheap(move |ctx: &mut OpContext<'_>| {
        let tensor = ctx.input(0)?;
        let found = with_type!(tensor.dtype(), T in floats => Found::of(tensor.as_slice::<T>()?));
        if let Some(what) = report(found) {
            return Err(Status::invalid_argument(format!(
                "{message} : Tensor had {what} values"
            )));
        }
        ctx.forward(0, 0);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use bytes::Bytes;
    use downpour_graph::{AttrList, AttrValue, Code};
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn numbers_that_are_none_are_named() {
        let (nan, inf) = (f32::NAN, f32::INFINITY);
        let attrs = [
            ("T", DType::Float.into()),
            ("message", AttrValue::Str(Bytes::from_static(b"M sg"))),
        ];
        for (values, v1, v2) in [
            (vec![nan, 1.0], "NaN", "NaN"),
            (vec![inf, 1.0], "Inf", "+Inf"),
            (vec![-inf], "Inf", "-Inf"),
            (vec![inf, -inf, nan], "Inf and NaN", "-Inf, +Inf, and NaN"),
            (vec![-inf, nan], "Inf and NaN", "-Inf and NaN"),
            (vec![inf, -inf], "Inf", "-Inf and +Inf"),
        ] {
            for (op, what) in [("CheckNumerics", v1), ("CheckNumericsV2", v2)] {
                let e = run_op(op, vec![floats(&values)], &attrs).unwrap_err();
                let text = format!("M sg : Tensor had {what} values");
                assert!(
                    e.message.starts_with(&text),
                    "{op} {values:?}: {}",
                    e.message
                );
                assert_eq!(e.code, Code::InvalidArgument);
            }
        }
        let out = run_op("CheckNumerics", vec![floats(&[1.0, 2.0])], &attrs).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [1.0, 2.0]);
    }

    #[test]
    fn a_failed_assertion_shows_its_data() {
        let data = vec![
            Tensor::scalar(false),
            floats(&[1.0, 2.0, 3.0, 4.0]),
            Tensor::from_vec(vec![1i32, 2, 3, 4], [2, 2]).unwrap(),
        ];
        let types = AttrValue::List(AttrList::Type(vec![DType::Float, DType::Int32]));
        let e = run_op("Assert", data, &[("T", types)]).unwrap_err();
        let text = "assertion failed: [1 2 3...] [[1 2][3...]...]";
        assert!(e.message.starts_with(text), "{}", e.message);
    }
}
