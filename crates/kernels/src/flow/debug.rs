//! Ops that a debugger puts between nodes: copies, and what they find in the values that flow by. Nothing is published:
//! a node that names where to is refused.

use crate::summary::doubles;
use crate::types::REALS;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, Host, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Tensor};

const SUMMARIZED: &[DType] = &[
    DType::Float,
    DType::Double,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
    DType::UInt32,
    DType::UInt64,
    DType::Bool,
];

pub(crate) fn register(r: &mut Registry) {
    for op in [
        "Copy",
        "CopyHost",
        "DebugGradientIdentity",
        "DebugGradientRefIdentity",
    ] {
        r.add(op, |_| passing());
    }
    r.add("DebugIdentity", |b| {
        check(b)?;
        passing()
    });
    r.add_typed("DebugNanCount", &[("T", REALS)], |b| {
        check(b)?;
        Built::cheap(|ctx| {
            let mut count = 0i64;
            doubles(ctx.input(0)?, |v| {
                count += i64::from(v.is_nan());
                Ok(())
            })?;
            ctx.set_output(0, Tensor::vector(vec![count]));
            Ok(())
        })
    });
    r.add_typed("DebugNumericSummary", &[("T", SUMMARIZED)], |b| {
        check(b)?;
        let lower = f64::from(b.attrs().float("lower_bound")?);
        let upper = f64::from(b.attrs().float("upper_bound")?);
        Built::cheap(move |ctx| summary(ctx, lower, upper))
    });
    r.add("SyncDevice", |_| Built::cheap(|_| Ok(())));
    r.add("Timestamp", |_| {
        Built::cheap(|ctx| {
            let host = ctx.device().extensions.get::<Host>();
            let host = host.ok_or_else(|| Status::internal("the device has no clock"))?;
            let now = host.now_seconds();
            ctx.set_output(0, Tensor::scalar(now));
            Ok(())
        })
    });
}

fn passing() -> Result<Built> {
    Built::cheap(|ctx| {
        ctx.forward(0, 0);
        Ok(())
    })
}

/// The watched tensor must have a name, and its watchers may ask for nothing to be sent or written.
fn check(b: &KernelBuilder<'_>) -> Result<()> {
    let name = b.attrs().str("tensor_name")?;
    let unparsed = || Status::invalid_argument(format!("Failed to parse tensor name: \"{name}\""));
    match name.split(':').collect::<Vec<_>>()[..] {
        [""] => return Err(unparsed()),
        [_] => {}
        [_, slot] => {
            slot.trim().parse::<i32>().map_err(|_| {
                Status::invalid_argument(format!(
                    "Invalid string value for output_slot: \"{slot}\""
                ))
            })?;
        }
        _ => return Err(unparsed()),
    }
    match b.attrs().byte_strings("debug_urls")?.is_empty() {
        true => Ok(()),
        false => Err(Status::unimplemented(format!(
            "{} publishes nothing here: debug_urls must be empty",
            b.node.op_name()
        ))),
    }
}

/// Counts, extremes, mean and variance of the numbers, then type and shape.
fn summary(ctx: &mut OpContext<'_>, lower: f64, upper: f64) -> Result<()> {
    let input = ctx.input(0)?;
    let mut values = Vec::with_capacity(input.num_elements());
    match input.as_slice::<bool>() {
        Ok(bits) => values.extend(bits.iter().map(|b| f64::from(*b))),
        Err(_) => doubles(input, |v| {
            values.push(v);
            Ok(())
        })?,
    }
    let (mut nan, mut low, mut negative, mut zero, mut positive, mut high) = (0, 0, 0, 0, 0, 0);
    let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
    for &v in &values {
        let class = match v {
            v if v.is_nan() => &mut nan,
            f64::NEG_INFINITY => &mut low,
            f64::INFINITY => &mut high,
            v if lower.is_finite() && v <= lower => &mut low,
            v if upper.is_finite() && v >= upper => &mut high,
            v if v < 0.0 => &mut negative,
            v if v > 0.0 => &mut positive,
            _ => &mut zero,
        };
        *class += 1;
        if v.is_finite() {
            min = if v < min { v } else { min };
            max = if v > max { v } else { max };
        }
    }
    let finite = || values.iter().filter(|v| v.is_finite());
    let count = finite().count() as f64;
    // Of no numbers both are NaN.
    let mean = finite().fold(0.0, |sum, v| sum + v) / count;
    let variance = finite().fold(0.0, |sum, v| sum + (v - mean) * (v - mean)) / count;
    let mut out = vec![1.0, values.len() as f64];
    out.extend([nan, low, negative, zero, positive, high].map(f64::from));
    out.extend([min, max, mean, variance]);
    out.push(f64::from(input.dtype().number()));
    out.push(input.rank() as f64);
    out.extend(input.dims().iter().map(|d| *d as f64));
    ctx.set_output(0, Tensor::vector(out));
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::{AttrValue, Code};
    use downpour_tensor::DType;

    fn attrs(name: &str) -> Vec<(&'static str, AttrValue)> {
        vec![
            ("T", DType::Float.into()),
            ("tensor_name", AttrValue::from(name)),
        ]
    }

    #[test]
    fn a_debugger_finds_what_is_no_number_and_names_must_parse() {
        let values = || floats(&[f32::NAN, 1.0, f32::NEG_INFINITY, 0.0, -2.5]);
        let count = run_op("DebugNanCount", vec![values()], &attrs("a:0")).unwrap();
        assert_eq!(count[0].as_slice::<i64>().unwrap(), [1]);
        let facts = run_op("DebugNumericSummary", vec![values()], &attrs("a")).unwrap();
        let facts = facts[0].as_slice::<f64>().unwrap();
        assert_eq!(
            facts[..10],
            [1.0, 5.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, -2.5, 1.0]
        );
        assert_eq!(facts[10], -0.5);
        assert_eq!(facts[12..], [1.0, 1.0, 5.0]);
        for bad in ["", "a:x", "a:1:2"] {
            let e = run_op("DebugNanCount", vec![values()], &attrs(bad)).unwrap_err();
            assert_eq!(e.code, Code::InvalidArgument, "{bad}");
        }
    }
}
