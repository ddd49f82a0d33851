//! Ops that pass values on and mark them for a compiler or a debugger, which are not here.

use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::Tensor;

pub(crate) fn register(r: &mut Registry) {
    for op in [
        "XlaSharding",
        "XlaSpmdShardToFullShape",
        "DebugGradientIdentity",
        "DebugGradientRefIdentity",
    ] {
        r.add(op, pass);
    }
    r.add("XlaOptimizationBarrier", |_| {
        Built::cheap(|ctx| {
            (0..ctx.num_inputs()).for_each(|i| ctx.forward(i, i));
            Ok(())
        })
    });
    for op in ["Copy", "CopyHost"] {
        r.add(op, copy);
    }
    r.add("SyncDevice", |_| Built::cheap(|_| Ok(())));
    r.add("CheckPinned", |_| {
        Built::cheap(|_| {
            Err(Status::failed_precondition(
                "to check pinnedness, must be built with `--config=cuda`",
            ))
        })
    });
    r.add("_SwitchN", switch_n);
    r.add("Fact", |_| {
        Built::cheap(|ctx| {
            ctx.set_output(0, Tensor::string("0! == 1"));
            Ok(())
        })
    });
    r.add("CustomAggregator", aggregate);
}

fn pass(_: &KernelBuilder<'_>) -> Result<Built> {
    Built::cheap(|ctx| {
        ctx.forward(0, 0);
        Ok(())
    })
}

/// What a debugger asks for along with the copy is checked, but done by nobody here.
fn copy(b: &KernelBuilder<'_>) -> Result<Built> {
    for spec in b.attrs().byte_strings("debug_ops_spec")? {
        let spec = String::from_utf8_lossy(spec);
        if spec.matches(';').count() != 2 {
            return Err(Status::internal(format!(
                "Unexpected number of semicolons in debug_ops_spec element: {spec}"
            )));
        }
    }
    pass(b)
}

/// Passes its value on to one output; the others are dead.
fn switch_n(b: &KernelBuilder<'_>) -> Result<Built> {
    let count = b.attrs().int("num_outs")?;
    Built::waiting(move |mut op| {
        let index = op.input(1).and_then(|index| match index.rank() {
            0 => Ok(i64::from(index.scalar_value::<i32>()?)),
            _ => Err(Status::invalid_argument(format!(
                "The second input must be a scalar, but it has shape {}",
                index.shape()
            ))),
        });
        let outcome = index.map(|index| {
            // What is out of range means the last output.
            let to = if (0..count).contains(&index) {
                index
            } else {
                count - 1
            };
            let mut value = op.inputs.first_mut().and_then(Option::take);
            (0..count)
                .map(|i| if i == to { value.take() } else { None })
                .collect()
        });
        op.finish_values(outcome);
    })
}

/// Passes floats on beside what a calibration of their range wants to know.
fn aggregate(b: &KernelBuilder<'_>) -> Result<Built> {
    let method = b.attrs().int("calibration_method")?;
    let bins = b.attrs().int("num_bins")?;
    if method == 0 {
        return Err(Status::new(
            downpour_graph::Code::Aborted,
            "The calibration method must be specified.",
        ));
    }
    if !(1..=5).contains(&method) || (method > 2 && bins <= 0) {
        return Err(Status::unimplemented(format!(
            "calibration method {method} with {bins} bins"
        )));
    }
    Built::cheap(move |ctx| {
        let x = ctx.take(0)?;
        let values = x.as_slice::<f32>()?;
        let min = values.iter().copied().fold(f32::INFINITY, f32::min);
        let max = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let counts = match method {
            1 | 2 => Vec::new(),
            _ => histogram(values, (min, max), bins),
        };
        ctx.set_output(1, Tensor::scalar(min));
        ctx.set_output(2, Tensor::scalar(max));
        ctx.set_output(3, Tensor::vector(counts));
        ctx.set_output(0, x);
        Ok(())
    })
}

/// Counts in bins whose width is a power of two, so that ranges of different batches can be
/// joined; the first begins at a whole number of widths.
fn histogram(values: &[f32], (min, max): (f32, f32), bins: i64) -> Vec<i64> {
    let width = ((max - min) / bins as f32).max(f32::MIN_POSITIVE);
    let width = 2f32.powf(width.log2().ceil());
    let low = (min / width).floor() * width;
    let mut counts = vec![0; bins as usize];
    for v in values {
        let bin = ((v - low) / width) as i64;
        counts[bin.clamp(0, bins - 1) as usize] += 1;
    }
    counts
}
