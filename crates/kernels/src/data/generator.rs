//! `Generator`: elements out of three functions that share a state: one starts it, one makes the
//! next element of it, one ends it.

use super::dataset::{Dataset, Next, Place, Recipe, Stream};
use super::define::{self, declared};
use super::function::{Captured, Fun};
use super::state::Saving;
use super::task::spawn_detached;
use downpour_graph::{Code, Result, Status};
use downpour_runtime::{Built, Device, KernelBuilder, Registry};
use downpour_tensor::Tensor;
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    r.add("GeneratorDataset", generator);
}

fn generator(b: &KernelBuilder<'_>) -> Result<Built> {
    let spec = declared(b)?;
    let names = ["init_func", "next_func", "finalize_func"];
    let mut parts = Vec::new();
    for name in names {
        let captured = b.attrs().dtypes(&format!("T{name}_args"))?.len();
        parts.push((b.callee(name)?, captured));
    }
    define::dataset(move |ctx| {
        let mut from = 0;
        let mut functions = Vec::new();
        for (callee, captured) in &parts {
            functions.push(Captured::new(ctx, callee, from..from + captured)?);
            from += captured;
        }
        Dataset::new("Generator", spec.clone(), vec![], Generator(functions))
    })
}

struct Generator(Vec<Captured>);

impl Recipe for Generator {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let functions = self.0.iter().map(|f| f.at(place));
        let functions = functions.collect::<Result<Vec<_>>>()?;
        Ok(Box::new(GeneratorStream {
            functions: functions
                .try_into()
                .map_err(|_| Status::internal("a generator has lost a function"))?,
            device: place.device.clone(),
            state: None,
        }))
    }
}

struct GeneratorStream {
    functions: [Fun; 3],
    device: Arc<Device>,
    /// What the first function returned; there until the last one has run.
    state: Option<Vec<Tensor>>,
}

impl Stream for GeneratorStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(std::future::ready(Err(Status::unimplemented(
            "GeneratorDataset does not support checkpointing.",
        ))))
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            let [init, next, finalize] = &self.functions;
            if self.state.is_none() {
                self.state = Some(init.call(vec![]).await?);
            }
            let state = self.state.clone().unwrap_or_default();
            match next.call(state.clone()).await {
                // The generator's way to say that it is at its end.
                Err(e) if e.code == Code::OutOfRange => {
                    self.state = None;
                    finalize.call(state).await?;
                    Ok(None)
                }
                Err(e) => Err(e),
                Ok(element) => Ok(Some(element)),
            }
        })
    }
}

impl Drop for GeneratorStream {
    fn drop(&mut self) {
        // Whoever stops half way still owes the generator its end.
        if let Some(state) = self.state.take() {
            let finalize = self.functions[2].clone();
            spawn_detached(&self.device, async move {
                if let Err(e) = finalize.call(state).await {
                    tracing::warn!("finalizing a generator failed: {e}");
                }
            });
        }
    }
}
