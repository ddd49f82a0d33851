//! Ops whose outputs are their inputs.

use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};

pub(crate) fn register(r: &mut Registry) {
    r.add("RefSelect", |_| {
        Built::cheap(|ctx| {
            let (index, count) = (ctx.input(0)?, ctx.num_inputs() - 1);
            if index.rank() != 0 {
                return Err(Status::invalid_argument(format!(
                    "Index must be a scalar, but it has shape {}",
                    index.shape()
                )));
            }
            let index = index.scalar_value::<i32>()?;
            match usize::try_from(index).ok().filter(|i| *i < count) {
                Some(i) => {
                    ctx.forward(i + 1, 0);
                    Ok(())
                }
                None => Err(Status::invalid_argument(format!(
                    "Index must be in the range [0, {count}) but got {index}"
                ))),
            }
        })
    });
    for op in [
        "Identity",
        "RefIdentity",
        "StopGradient",
        "PreventGradient",
        "LoopCond",
        "PlaceholderWithDefault",
        "_EagerConst",
    ] {
        r.add(op, |_| {
            Built::cheap(|ctx| {
                ctx.forward(0, 0);
                Ok(())
            })
        });
    }
    r.add_typed("Snapshot", &[("T", crate::array::COMMON)], |_| {
        Built::cheap(|ctx| {
            ctx.forward(0, 0);
            Ok(())
        })
    });
    for op in ["IdentityN", "_ListToArray", "_ArrayToList"] {
        r.add(op, |_| {
            Built::cheap(|ctx| {
                for i in 0..ctx.num_inputs() {
                    ctx.forward(i, i);
                }
                Ok(())
            })
        });
    }
    r.add("NoOp", |_| Built::cheap(|_| Ok(())));
    r.add("EnsureShape", ensure_shape);
}

fn ensure_shape(b: &KernelBuilder<'_>) -> Result<Built> {
    let wanted = b.attrs().shape("shape")?.clone();
    Built::cheap(move |ctx| {
        let shape = ctx.input(0)?.shape();
        if !wanted.admits(shape) {
            return Err(Status::invalid_argument(format!(
                "Shape of tensor {} {shape} is not compatible with expected shape {wanted}.",
                ctx.info().input_names.first().map_or("", String::as_str)
            )));
        }
        ctx.forward(0, 0);
        Ok(())
    })
}
