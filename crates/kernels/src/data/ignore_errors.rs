//! `IgnoreErrorsDataset`: leaves out the elements that fail.

use super::dataset::{Dataset, Iter, Next, Place, Recipe, Stream};
use super::define;
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, Registry};

pub(super) fn register(r: &mut Registry) {
    for op in ["IgnoreErrorsDataset", "ExperimentalIgnoreErrorsDataset"] {
        r.add(op, ignore_errors);
    }
}

fn ignore_errors(b: &KernelBuilder<'_>) -> Result<Built> {
    let log = b.attrs().bool("log_warning")?;
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let recipe = IgnoreErrors {
            input: input.clone(),
            log,
        };
        Dataset::new("IgnoreErrors", input.spec().clone(), vec![input], recipe)
    })
}

struct IgnoreErrors {
    input: Dataset,
    log: bool,
}

impl Recipe for IgnoreErrors {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(IgnoreErrorsStream {
            input: self.input.iterate(place)?,
            log: self.log,
        }))
    }
}

struct IgnoreErrorsStream {
    input: Iter,
    log: bool,
}

impl Stream for IgnoreErrorsStream {
    fn input(&mut self) -> Option<&mut Iter> {
        Some(&mut self.input)
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            loop {
                match self.input.next().await {
                    Err(e) if self.log => tracing::warn!("an element was left out: {e}"),
                    Err(_) => {}
                    ok => return ok,
                }
            }
        })
    }
}
