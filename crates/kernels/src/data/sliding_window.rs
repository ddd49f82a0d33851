//! `SlidingWindowDataset`: batches of elements that lie a stride apart, each begun a shift after the one before.

use super::batch::batch_elements;
use super::dataset::{Cardinality, Dataset, Element, Iter, Next, Place, Recipe, Spec, Stream};
use super::define::{self, batched};
use super::state::{Restoring, Saving, State};
use downpour_graph::{Result, Status};
use downpour_runtime::{Device, OpContext, Registry};
use std::collections::VecDeque;
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    for op in ["SlidingWindowDataset", "ExperimentalSlidingWindowDataset"] {
        r.add(op, |_| define::dataset(sliding));
    }
}

fn sliding(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let input = define::input(ctx, 0)?;
    let mut sizes = [0; 3];
    let names = ["window_size", "window_shift", "window_stride"];
    let texts = ["Window size", "Window shift", "window_stride"];
    for (i, (name, text)) in names.iter().zip(texts).enumerate() {
        sizes[i] = define::int(ctx, i + 1, name)?;
        if sizes[i] <= 0 {
            return Err(Status::invalid_argument(format!(
                "{text} must be greater than zero."
            )));
        }
    }
    let [size, shift, stride] = sizes;
    let spec = Spec {
        types: input.spec().types.clone(),
        shapes: input
            .spec()
            .shapes
            .iter()
            .map(|s| batched(None, s))
            .collect(),
    };
    let recipe = Sliding {
        input: input.clone(),
        size,
        shift,
        stride,
    };
    Dataset::new(("SlidingWindow", "Slide"), spec, vec![input], recipe)
}

struct Sliding {
    input: Dataset,
    size: i64,
    shift: i64,
    stride: i64,
}

impl Recipe for Sliding {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let span = (self.size - 1)
            .saturating_mul(self.stride)
            .saturating_add(1);
        let size = |n: i64| usize::try_from(n).unwrap_or(usize::MAX);
        Ok(Box::new(SlidingStream {
            input: self.input.iterate(place)?,
            device: place.device.clone(),
            span: size(span),
            shift: size(self.shift),
            stride: size(self.stride),
            held: VecDeque::new(),
        }))
    }
    fn cardinality(&self) -> Cardinality {
        self.input.cardinality().map(|n| n / self.shift)
    }
}

struct SlidingStream {
    input: Iter,
    device: Arc<Device>,
    span: usize,
    shift: usize,
    stride: usize,
    held: VecDeque<Element>,
}

impl Stream for SlidingStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move {
            let mut state = State::default();
            state.put_elements(self.held.iter());
            Ok(Some(state.with(self.input.save().await?)))
        })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.held = state.take_elements(0)?.into();
            self.input.restore(state.below(0)?).await
        })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            while self.held.len() < self.span {
                match self.input.next().await? {
                    Some(element) => self.held.push_back(element),
                    None => return Ok(None),
                }
            }
            let window: Vec<Element> = self.held.iter().step_by(self.stride).cloned().collect();
            let kept = self.shift.min(self.held.len());
            self.held.drain(..kept);
            for _ in kept..self.shift {
                if self.input.next().await?.is_none() {
                    break;
                }
            }
            batch_elements(&self.device, &window).map(Some)
        })
    }
}
