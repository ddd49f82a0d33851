//! What a debugger inserts to look at values: `DebugIdentity` and its versions pass them on,
//! `DebugNanCount` and `DebugNumericSummary` say what is in them. Values go to the step's outputs;
//! dumps to the places that `debug_urls` names are not written here.

use crate::types::{REALS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, Host, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Element, Tensor};
use num_traits::ToPrimitive;

const SUMMARY: &[DType] = &[
    DType::Bool,
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
];
const ALL: &[DType] = &[
    DType::Bool,
    DType::BFloat16,
    DType::Half,
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
];

pub(crate) fn register(r: &mut Registry) {
    for op in ["DebugGradientIdentity", "DebugGradientRefIdentity"] {
        r.add(op, |_| passing());
    }
    for op in ["Copy", "CopyHost"] {
        r.add(op, |b| {
            watchers(b)?;
            passing()
        });
    }
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
    r.add("DebugIdentity", |b| {
        named(b)?;
        identity(b)
    });
    r.add("DebugIdentityV2", identity);
    r.add("DebugIdentityV3", |b| {
        if b.attrs().str("io_of_node")?.is_empty() {
            return unnamed("");
        }
        identity(b)
    });
    r.add_typed("DebugNanCount", &[("T", REALS)], |b| {
        named(b)?;
        to_nobody(b)?;
        Built::costly(|ctx| {
            let counts = Counts::of(ctx.input(0)?, f64::NEG_INFINITY, f64::INFINITY)?;
            ctx.set_output(0, Tensor::vector(vec![counts.nan as i64]));
            Ok(())
        })
    });
    r.add_typed("DebugNumericSummary", &[("T", SUMMARY)], |b| {
        named(b)?;
        to_nobody(b)?;
        let low = f64::from(b.attrs().float("lower_bound")?);
        let high = f64::from(b.attrs().float("upper_bound")?);
        Built::costly(move |ctx| summary(ctx, low, high))
    });
    r.add_typed(
        "DebugNumericSummaryV2",
        &[("T", ALL), ("output_dtype", &[DType::Float, DType::Double])],
        summary_v2,
    );
}

fn unnamed<T>(name: &str) -> Result<T> {
    Err(Status::invalid_argument(format!(
        "Failed to parse tensor name: \"{name}\""
    )))
}

/// A copy says who watches it: op, place and whether it waits for the place to open, between semicolons.
fn watchers(b: &KernelBuilder<'_>) -> Result<()> {
    for watcher in b.attrs().byte_strings("debug_ops_spec")? {
        if watcher.iter().filter(|c| **c == b';').count() != 2 {
            return Err(Status::internal(format!(
                "Unexpected number of semicolons in debug_ops_spec element: {}",
                String::from_utf8_lossy(watcher)
            )));
        }
    }
    Ok(())
}

/// The watched tensor must have a name: a node's, and an output's number if there is more.
fn named(b: &KernelBuilder<'_>) -> Result<()> {
    let name = b.attrs().str("tensor_name")?;
    match name.split(':').collect::<Vec<_>>()[..] {
        [""] => unnamed(name),
        [_] => Ok(()),
        [_, slot] => match slot.trim().parse::<i32>() {
            Ok(_) => Ok(()),
            Err(_) => Err(Status::invalid_argument(format!(
                "Invalid string value for output_slot: \"{slot}\""
            ))),
        },
        _ => unnamed(name),
    }
}

/// Refuses to promise dumps that nobody writes.
fn to_nobody(b: &KernelBuilder<'_>) -> Result<()> {
    match b.attrs().byte_strings("debug_urls")?.first() {
        None => Ok(()),
        Some(url) => Err(Status::unimplemented(format!(
            "This server does not write debug dumps, here to {}",
            String::from_utf8_lossy(url)
        ))),
    }
}

fn identity(b: &KernelBuilder<'_>) -> Result<Built> {
    to_nobody(b)?;
    passing()
}

fn passing() -> Result<Built> {
    Built::cheap(|ctx| {
        ctx.forward(0, 0);
        Ok(())
    })
}

/// How many elements are what.
#[derive(Default)]
struct Counts {
    nan: u64,
    low: u64,
    negative: u64,
    zero: u64,
    positive: u64,
    high: u64,
    min: f64,
    max: f64,
    /// Finite elements, their sum and the sum of their squares.
    finite: u64,
    values: Vec<f64>,
}

impl Counts {
    /// Elements at or beyond the bounds count as infinite.
    fn of(t: &Tensor, low: f64, high: f64) -> Result<Counts> {
        if t.dtype() == DType::Bool {
            let values = t
                .as_slice::<bool>()?
                .iter()
                .map(|v| f64::from(u8::from(*v)));
            return Ok(Counts::over(values, low, high));
        }
        fn widened<T: Element + ToPrimitive>(t: &Tensor) -> Result<Vec<f64>> {
            let values = t.as_slice::<T>()?.iter();
            Ok(values.map(|v| v.to_f64().unwrap_or(f64::NAN)).collect())
        }
        let values = with_type!(t.dtype(), T in reals => widened::<T>(t)?);
        Ok(Counts::over(values.into_iter(), low, high))
    }

    fn over(values: impl Iterator<Item = f64>, low: f64, high: f64) -> Counts {
        let mut c = Counts {
            min: f64::INFINITY,
            max: f64::NEG_INFINITY,
            ..Counts::default()
        };
        for v in values {
            match v {
                v if v.is_nan() => c.nan += 1,
                v if v <= low => c.low += 1,
                v if v >= high => c.high += 1,
                v if v < 0.0 => c.negative += 1,
                0.0 => c.zero += 1,
                _ => c.positive += 1,
            }
            if v.is_finite() {
                c.finite += 1;
                c.min = c.min.min(v);
                c.max = c.max.max(v);
                c.values.push(v);
            }
        }
        c
    }
}

fn summary(ctx: &mut OpContext<'_>, low: f64, high: f64) -> Result<()> {
    let t = ctx.input(0)?;
    let c = Counts::of(t, low, high)?;
    let count = c.finite as f64;
    let mean = c.values.iter().sum::<f64>() / count;
    let spread = c.values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / count;
    let mut out = vec![
        1.0,
        t.num_elements() as f64,
        c.nan as f64,
        c.low as f64,
        c.negative as f64,
        c.zero as f64,
        c.positive as f64,
        c.high as f64,
        c.min,
        c.max,
        mean,
        spread,
        f64::from(t.dtype().number()),
        t.rank() as f64,
    ];
    out.extend(t.dims().iter().map(|d| *d as f64));
    ctx.set_output(0, Tensor::vector(out));
    Ok(())
}

fn summary_v2(b: &KernelBuilder<'_>) -> Result<Built> {
    let mode = b.attrs().int("tensor_debug_mode")?;
    let id = b.attrs().int("tensor_id")?;
    let dtype = b.attrs().dtype("output_dtype")?;
    let most = if dtype == DType::Float { 24 } else { 53 };
    if id > 1 << most {
        return Err(Status::invalid_argument(format!(
            "DebugNumericSummaryV2Op requires tensor_id to be less than or equal to (2^{most}). Given tensor_id:{id}"
        )));
    }
    Built::costly(move |ctx| {
        let out = slots(ctx.input(0)?, mode, id as f64)?;
        let out = match dtype {
            DType::Double => Tensor::vector(out),
            _ => Tensor::vector(out.into_iter().map(|v| v as f32).collect::<Vec<_>>()),
        };
        ctx.set_output(0, out);
        Ok(())
    })
}

/// What each mode says.
fn slots(t: &Tensor, mode: i64, id: f64) -> Result<Vec<f64>> {
    let counts = || Counts::of(t, f64::NEG_INFINITY, f64::INFINITY);
    let (size, rank) = (t.num_elements() as f64, t.rank() as f64);
    let kind = f64::from(t.dtype().number());
    Ok(match mode {
        2 => {
            let c = counts()?;
            let sick = c.nan + c.low + c.high > 0;
            vec![id, f64::from(u8::from(sick))]
        }
        3 => {
            let c = counts()?;
            vec![id, size, c.low as f64, c.high as f64, c.nan as f64]
        }
        4 => {
            let c = counts()?;
            let mut out = vec![id, -1.0, kind, rank, size];
            let found = [c.low, c.high, c.nan, c.negative, c.zero, c.positive];
            out.extend(found.map(|n| n as f64));
            out
        }
        5 => {
            let mut out = vec![id, kind, rank, size];
            let dims = &t.dims()[t.rank().saturating_sub(6)..];
            out.extend(dims.iter().map(|d| *d as f64));
            out.resize(10, 0.0);
            out
        }
        8 => {
            let c = counts()?;
            let shown = |n: u64, v: f64| if n > 0 { v } else { 0.0 };
            vec![
                shown(c.low, f64::NEG_INFINITY),
                shown(c.high, f64::INFINITY),
                shown(c.nan, f64::NAN),
            ]
        }
        other => {
            return Err(Status::unimplemented(format!(
                "Unimplemented tensor debug mode: {other}"
            )));
        }
    })
}
