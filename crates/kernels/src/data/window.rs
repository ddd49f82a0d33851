//! `Window`: runs of elements as datasets of their own.

use super::dataset::{Cardinality, Dataset, Got, Iter, Next, Place, Recipe, Spec, Stream};
use super::define;
use super::sources::Elements;
use super::state::{Restoring, Saving, State};
use downpour_graph::{Result, Status};
use downpour_runtime::{OpContext, Registry};
use downpour_tensor::{DType, PartialShape};
use std::collections::VecDeque;
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    r.add("WindowDataset", |_| define::dataset(window));
    // The elements of one window, component by component, as TensorFlow writes one down in a graph.
    r.add("WindowOp", |b| {
        let spec = define::declared(b)?;
        define::dataset(move |ctx| {
            let width = spec.types.len().max(1);
            let inputs = ctx.inputs(0..ctx.num_inputs())?;
            let parts = inputs.chunks(width);
            let elements = parts.map(|e| e.iter().copied().cloned().collect());
            let recipe = Elements(Arc::new(elements.collect()));
            Dataset::new("Window", spec.clone(), vec![], recipe)
        })
    });
}

fn window(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let input = define::input(ctx, 0)?;
    let mut sizes = [0; 3];
    for (i, (name, what)) in [("size", "size"), ("shift", "shift"), ("stride", "stride")]
        .iter()
        .enumerate()
    {
        sizes[i] = define::int(ctx, i + 1, name)?;
        if sizes[i] <= 0 {
            return Err(Status::invalid_argument(format!(
                "Window {what} must be greater than zero."
            )));
        }
    }
    let [size, shift, stride] = sizes;
    let drop_rest = define::boolean(ctx, 4, "drop_remainder")?;
    let span = (size - 1).saturating_mul(stride).saturating_add(1);
    let n = input.spec().types.len();
    let spec = Spec {
        types: vec![DType::Variant; n],
        shapes: vec![PartialShape::from_dims([]); n],
    };
    let recipe = Window {
        input: input.clone(),
        span,
        shift,
        stride,
        drop_rest,
    };
    Dataset::new("Window", spec, vec![input], recipe)
}

#[derive(Clone)]
struct Window {
    input: Dataset,
    /// Elements from the first of a window to its last.
    span: i64,
    shift: i64,
    stride: i64,
    drop_rest: bool,
}

impl Recipe for Window {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(WindowStream {
            input: self.input.iterate(place)?,
            ended: false,
            window: self.clone(),
            held: VecDeque::new(),
        }))
    }
    fn cardinality(&self) -> Cardinality {
        self.input
            .cardinality()
            .map(|n| match (self.drop_rest, n - self.span) {
                (true, ..0) => 0,
                (true, rest) => rest / self.shift + 1,
                (false, _) => n / self.shift + i64::from(n % self.shift != 0),
            })
    }
}

struct WindowStream {
    input: Iter,
    ended: bool,
    window: Window,
    /// What is in the window or between its elements; one that failed fails every window it is in.
    held: VecDeque<Result<Vec<downpour_tensor::Tensor>>>,
}

impl Stream for WindowStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move {
            let held: Result<Vec<_>> = self.held.iter().cloned().collect();
            let Ok(held) = held else {
                // One that failed has no form to be kept in.
                return Ok(None);
            };
            let mut state = State::of([self.ended.into()]);
            state.put_elements(held.iter());
            Ok(Some(state.with(self.input.save().await?)))
        })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.ended = state.number(0)? != 0;
            self.held = state.take_elements(1)?.into_iter().map(Ok).collect();
            self.input.restore(state.below(0)?).await
        })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            let span = usize::try_from(self.window.span).unwrap_or(usize::MAX);
            while self.held.len() < span && !self.ended {
                match self.input.next().await.transpose() {
                    Some(got) => self.held.push_back(got),
                    None => self.ended = true,
                }
            }
            if self.held.is_empty() || (self.window.drop_rest && self.held.len() < span) {
                return Ok(None);
            }
            let stride = usize::try_from(self.window.stride).unwrap_or(usize::MAX);
            let elements: Result<Vec<_>> = self.held.iter().step_by(stride).cloned().collect();
            let mut shift = usize::try_from(self.window.shift).unwrap_or(usize::MAX);
            shift -= self.held.drain(..shift.min(self.held.len())).len();
            while shift > 0 && !self.ended {
                // What falls between windows may fail unseen.
                self.ended = matches!(self.input.next().await, Ok(None));
                shift -= 1;
            }
            self.datasets(elements?)
        })
    }
}

impl WindowStream {
    /// One dataset for each component.
    fn datasets(&self, elements: Vec<Vec<downpour_tensor::Tensor>>) -> Got {
        let spec = self.window.input.spec();
        let components = spec.types.iter().zip(&spec.shapes).enumerate();
        let datasets = components.map(|(c, (dtype, shape))| {
            let column = elements
                .iter()
                .map(|e| e.get(c).cloned().into_iter().collect());
            let spec = Spec {
                types: vec![*dtype],
                shapes: vec![shape.clone()],
            };
            let recipe = Elements(Arc::new(column.collect()));
            Ok(Dataset::new("Window", spec, vec![], recipe)?.into_tensor())
        });
        Ok(Some(datasets.collect::<Result<_>>()?))
    }
}
