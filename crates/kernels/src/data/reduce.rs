//! `ReduceDataset`: a whole dataset folded into one state.

use super::dataset::{Dataset, Place};
use super::define::{check_shapes, check_types, declared};
use super::function::Captured;
use super::sources::spec_of;
use super::task::run_op;
use downpour_graph::{Result, Status};
use downpour_runtime::{AsyncOp, Built, Callee, KernelBuilder, Registry};
use downpour_tensor::Tensor;

pub(super) fn register(r: &mut Registry) {
    r.add("ReduceDataset", reduce);
}

fn reduce(b: &KernelBuilder<'_>) -> Result<Built> {
    let (spec, f) = (declared(b)?, b.callee("f")?);
    let states = b.attrs().dtypes("Tstate")?.len();
    Built::waiting(move |op| {
        let (dataset, mut state, f) = match ready(&op, states, &f) {
            Ok(ready) => ready,
            Err(e) => return op.finish(Err(e)),
        };
        let device = op.env().device.clone();
        let spec = spec.clone();
        run_op(op, async move {
            let f = f.at(&Place::new(&device, "ReduceIterator"))?;
            let mut walk = dataset.start(&device, "ReduceIterator")?;
            while let Some(element) = walk.next().await? {
                let args = state.iter().cloned().chain(element).collect();
                let next = f.call(args).await?;
                if next.len() != state.len() {
                    return Err(Status::invalid_argument(format!(
                        "The number of components of the initial state and the reduce function output does not match. (initial_state={}, output={}).",
                        state.len(),
                        next.len()
                    )));
                }
                state = next;
            }
            let got = spec_of(&state);
            check_types(&spec.types, &got.types)?;
            check_shapes(&spec.shapes, &got.shapes)?;
            Ok(state)
        });
    })
}

fn ready(op: &AsyncOp, states: usize, f: &Callee) -> Result<(Dataset, Vec<Tensor>, Captured)> {
    let dataset = Dataset::from_tensor(op.input(0)?)?.clone();
    let state = (1..=states).map(|i| op.input(i).cloned());
    let state = state.collect::<Result<Vec<_>>>()?;
    let captured = (1 + states..op.inputs.len()).map(|i| op.input(i).cloned());
    let f = Captured::of(op.env(), f, captured.collect::<Result<Vec<_>>>()?)?;
    Ok((dataset, state, f))
}
