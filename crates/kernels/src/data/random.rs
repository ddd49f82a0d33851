//! Datasets with chance in them: `Random`, `Sampling`, and `DirectedInterleave`, which follows a
//! dataset of choices.

use super::dataset::{Cardinality, Dataset, Iter, Next, Place, Recipe, Spec, Stream};
use super::define::{self, compatible, now, widest};
use super::seeds::{self, Draws, SeedGenerator};
use super::state::{Restoring, Saving, State};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, PartialShape, Tensor};
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    for op in ["RandomDataset", "ExperimentalRandomDataset"] {
        r.add(op, |_| define::dataset(|ctx| random(ctx, false)));
    }
    r.add("RandomDatasetV2", |b| {
        let again = b.attrs().bool("rerandomize_each_iteration")?;
        define::dataset(move |ctx| random_v2(ctx, again))
    });
    r.add("SamplingDataset", |_| define::dataset(sampling));
    for op in [
        "DirectedInterleaveDataset",
        "ExperimentalDirectedInterleaveDataset",
    ] {
        r.add(op, directed);
    }
}

fn random(ctx: &mut OpContext<'_>, again: bool) -> Result<Dataset> {
    let given = (define::int(ctx, 0, "seed")?, define::int(ctx, 1, "seed2")?);
    random_of("Random", Arc::new(SeedGenerator::new(given, again)))
}

fn random_v2(ctx: &mut OpContext<'_>, again: bool) -> Result<Dataset> {
    let given = (define::int(ctx, 0, "seed")?, define::int(ctx, 1, "seed2")?);
    let seeds = seeds::find(ctx, 2, || SeedGenerator::new(given, again))?;
    random_of("RandomV2", seeds)
}

fn random_of(kind: &'static str, seeds: Arc<SeedGenerator>) -> Result<Dataset> {
    let spec = Spec {
        types: vec![DType::Int64],
        shapes: vec![PartialShape::from_dims([])],
    };
    Dataset::new(kind, spec, vec![], Random(seeds))
}

struct Random(Arc<SeedGenerator>);

impl Recipe for Random {
    fn open(&self, _: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(RandomStream(Draws::new(self.0.next()))))
    }
    fn cardinality(&self) -> Cardinality {
        Cardinality::Infinite
    }
}

struct RandomStream(Draws);

impl Stream for RandomStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move { Ok(Some(State::of(self.0.position()))) })
    }

    fn restore(&mut self, state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.0 = Draws::at(position(&state, 0)?);
            Ok(())
        })
    }

    fn next(&mut self) -> Next<'_> {
        now(Ok(Some(vec![Tensor::scalar(i64::from(self.0.u32()))])))
    }
}

/// The position of a generator in a state, from number `i` on.
pub(super) fn position(state: &State, i: usize) -> Result<[i64; 3]> {
    Ok([state.number(i)?, state.number(i + 1)?, state.number(i + 2)?])
}

fn sampling(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let input = define::input(ctx, 0)?;
    let rate = ctx.input(1)?;
    if !rate.shape().is_scalar() {
        return Err(Status::invalid_argument("rate must be a scalar"));
    }
    let rate = rate.scalar_value::<f32>()?;
    let given = (define::int(ctx, 2, "seed")?, define::int(ctx, 3, "seed2")?);
    let recipe = Sampling {
        input: input.clone(),
        rate,
        seeds: seeds::given_or_random(given),
    };
    Dataset::new("Sampling", input.spec().clone(), vec![input], recipe)
}

struct Sampling {
    input: Dataset,
    rate: f32,
    seeds: (u64, u64),
}

impl Recipe for Sampling {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(SamplingStream {
            input: self.input.iterate(place)?,
            rate: self.rate,
            words: Draws::new(self.seeds),
        }))
    }
}

struct SamplingStream {
    input: Iter,
    rate: f32,
    words: Draws,
}

impl Stream for SamplingStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move {
            let state = State::of(self.words.position());
            Ok(Some(state.with(self.input.save().await?)))
        })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.words = Draws::at(position(&state, 0)?);
            self.input.restore(state.below(0)?).await
        })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            loop {
                let got = self.input.next().await?;
                if got.is_none() || self.words.f32() < self.rate {
                    return Ok(got);
                }
            }
        })
    }
}

fn directed(b: &KernelBuilder<'_>) -> Result<Built> {
    let stop = match b.attrs().find("stop_on_empty_dataset") {
        Some(_) => b.attrs().bool("stop_on_empty_dataset")?,
        None => false,
    };
    define::dataset(move |ctx| {
        let choices = define::input(ctx, 0)?;
        let spec = choices.spec();
        let scalar = PartialShape::from_dims([]);
        if spec.types != [DType::Int64] || !spec.shapes.iter().all(|s| compatible(s, &scalar)) {
            return Err(Status::invalid_argument(
                "The selector input must be a dataset of scalar int64 elements.",
            ));
        }
        let inputs = (1..ctx.num_inputs()).map(|i| define::input(ctx, i));
        let inputs = inputs.collect::<Result<Vec<Dataset>>>()?;
        let Some(first) = inputs.first() else {
            return Err(Status::invalid_argument(
                "there is no dataset to choose from",
            ));
        };
        let mut spec = first.spec().clone();
        for (i, input) in inputs.iter().enumerate() {
            if input.spec().types != spec.types {
                return Err(Status::invalid_argument(format!(
                    "All inputs must have the same output_dtypes. First input has types {}, and input {i} has types {}",
                    names(&spec.types),
                    names(&input.spec().types)
                )));
            }
            let shapes = spec.shapes.iter().zip(&input.spec().shapes);
            spec.shapes = shapes.map(|(a, b)| widest(a, b)).collect();
        }
        let below = std::iter::once(choices.clone()).chain(inputs.iter().cloned());
        let below = below.collect();
        let recipe = Directed {
            choices,
            inputs,
            stop,
        };
        Dataset::new("DirectedInterleave", spec, below, recipe)
    })
}

fn names(types: &[DType]) -> String {
    let names: Vec<String> = types.iter().map(ToString::to_string).collect();
    names.join(", ")
}

struct Directed {
    choices: Dataset,
    inputs: Vec<Dataset>,
    stop: bool,
}

impl Recipe for Directed {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let inputs = self.inputs.iter().enumerate().map(|(i, input)| {
            let place = place.renamed(format!("{}[{i}]", place.prefix));
            input.iterate(&place).map(Some)
        });
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        Ok(Box::new(DirectedStream {
            choices: self
                .choices
                .iterate(&place.renamed(format!("{}.selector", place.prefix)))?,
            open: inputs.len(),
            inputs,
            stop: self.stop,
        }))
    }
    fn cardinality(&self) -> Cardinality {
        // As long as the choices, where no input can run out before.
        if self.stop
            && self
                .inputs
                .iter()
                .all(|i| i.cardinality() == Cardinality::Infinite)
        {
            return self.choices.cardinality();
        }
        let mut sum = 0i64;
        for input in &self.inputs {
            match input.cardinality() {
                Cardinality::Infinite if !self.stop => return Cardinality::Infinite,
                Cardinality::Known(n) if !self.stop => sum = sum.saturating_add(n),
                _ => return Cardinality::Unknown,
            }
        }
        if self.choices.cardinality() == Cardinality::Infinite {
            return Cardinality::Known(sum);
        }
        Cardinality::Unknown
    }
}

struct DirectedStream {
    choices: Iter,
    inputs: Vec<Option<Iter>>,
    /// How many inputs have not ended.
    open: usize,
    stop: bool,
}

impl Stream for DirectedStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move {
            let mut state = State::default().with(self.choices.save().await?);
            for input in &mut self.inputs {
                let below = match input {
                    Some(input) => State::of([1]).with(input.save().await?),
                    None => State::of([0]),
                };
                state = state.with(below);
            }
            Ok(Some(state))
        })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.choices.restore(state.below(0)?).await?;
            for (i, slot) in self.inputs.iter_mut().enumerate() {
                let mut below = state.below(i + 1)?;
                match slot {
                    Some(input) if below.number(0)? != 0 => input.restore(below.below(0)?).await?,
                    _ => {
                        *slot = None;
                        self.open -= 1;
                    }
                }
            }
            Ok(())
        })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            while self.open > 0 {
                let Some(choice) = self.choices.next().await? else {
                    return Ok(None);
                };
                let choice =
                    super::function::only::<i64>(&choice, "a choice must be a scalar int64.")?;
                let count = self.inputs.len();
                let chosen = usize::try_from(choice)
                    .ok()
                    .and_then(|c| self.inputs.get_mut(c));
                let Some(slot) = chosen else {
                    return Err(Status::invalid_argument(format!(
                        "Selector index out of range: {choice} >= {count}"
                    )));
                };
                if let Some(input) = slot {
                    if let Some(element) = input.next().await? {
                        return Ok(Some(element));
                    }
                    *slot = None;
                    self.open -= 1;
                }
                if self.stop {
                    return Ok(None);
                }
            }
            Ok(None)
        })
    }
}
