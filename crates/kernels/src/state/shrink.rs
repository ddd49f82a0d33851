//! `SdcaShrinkL1`: weights drawn towards zero by the quotient of the two regularizations, as the end
//! of a pass of stochastic dual coordinate ascent.

use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};

pub(crate) fn register(r: &mut Registry) {
    r.add("SdcaShrinkL1", shrink);
}

fn shrink(b: &KernelBuilder<'_>) -> Result<Built> {
    let by = b.attrs().float("l1")? / b.attrs().float("l2")?;
    Built::costly(move |ctx| {
        for i in 0..ctx.num_inputs() {
            ctx.input_ref(i)?.update(|value| {
                let Some(weights) = value else {
                    return Err(Status::failed_precondition(
                        "Attempting to use uninitialized value",
                    ));
                };
                for w in weights.make_mut::<f32>()? {
                    *w = (w.abs() - by).max(0.0).copysign(*w);
                }
                Ok(())
            })?;
        }
        Ok(())
    })
}
