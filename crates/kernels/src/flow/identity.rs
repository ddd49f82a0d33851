//! Ops whose outputs are their inputs.

use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};

pub(crate) fn register(r: &mut Registry) {
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
