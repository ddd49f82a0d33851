//! Datasets of several others: `Zip` beside each other, `Concatenate` one after the other.

use super::access::{Beside, InTurn, Opened, count};
use super::dataset::{Cardinality, Dataset, Iter, Next, Place, Recipe, Spec, Stream};
use super::define::{self, widest};
use super::state::{Restoring, Saving, State};
use downpour_graph::{Result, Status};
use downpour_runtime::{OpContext, Registry};

pub(super) fn register(r: &mut Registry) {
    r.add("ZipDataset", |_| define::dataset(zip));
    r.add("ConcatenateDataset", |_| define::dataset(concatenate));
}

fn zip(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let inputs = (0..ctx.num_inputs()).map(|i| define::input(ctx, i));
    let inputs = inputs.collect::<Result<Vec<Dataset>>>()?;
    let mut spec = Spec::default();
    for input in &inputs {
        spec.types.extend_from_slice(&input.spec().types);
        spec.shapes.extend_from_slice(&input.spec().shapes);
    }
    Dataset::new("Zip", spec, inputs.clone(), Zip(inputs))
}

struct Zip(Vec<Dataset>);

impl Recipe for Zip {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let walks = self.0.iter().enumerate().map(|(i, input)| {
            let prefix = format!("{}[{i}]", place.prefix);
            input.iterate(&place.renamed(prefix))
        });
        Ok(Box::new(ZipStream(walks.collect::<Result<_>>()?)))
    }
    fn cardinality(&self) -> Cardinality {
        let mut shortest = Cardinality::Infinite;
        for input in &self.0 {
            shortest = match (shortest, input.cardinality()) {
                (Cardinality::Unknown, _) | (_, Cardinality::Unknown) => Cardinality::Unknown,
                (Cardinality::Infinite, n) => n,
                (n, Cardinality::Infinite) => n,
                (Cardinality::Known(a), Cardinality::Known(b)) => Cardinality::Known(a.min(b)),
            };
        }
        shortest
    }
    fn access(&self, place: &Place) -> Opened {
        let inputs = self.0.iter().map(|input| input.access(place));
        Ok(Box::new(Beside(inputs.collect::<Result<_>>()?)))
    }
}

struct ZipStream(Vec<Iter>);

impl Stream for ZipStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move {
            let mut state = State::default();
            for walk in &mut self.0 {
                state.inner.push(walk.save().await?);
            }
            Ok(Some(state))
        })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move {
            for (i, walk) in self.0.iter_mut().enumerate() {
                walk.restore(state.below(i)?).await?;
            }
            Ok(())
        })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            let mut element = Vec::new();
            let mut failed = None;
            for walk in &mut self.0 {
                // One that fails must not leave the others a step behind.
                match walk.next().await {
                    Ok(Some(part)) => element.extend(part),
                    Ok(None) => return failed.map_or(Ok(None), Err),
                    Err(e) => {
                        failed.get_or_insert(e);
                    }
                }
            }
            match failed {
                Some(e) => Err(e),
                None => Ok(Some(element)),
            }
        })
    }
}

fn concatenate(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let (first, second) = (define::input(ctx, 0)?, define::input(ctx, 1)?);
    let (a, b) = (first.spec(), second.spec());
    if a.types != b.types {
        // The text is TensorFlow's, directives and all.
        let names: Vec<String> = b.types.iter().map(ToString::to_string).collect();
        return Err(Status::invalid_argument(format!(
            "input dataset and dataset to concatenate have different output_types %s and %s{}",
            names.join(", ")
        )));
    }
    let spec = Spec {
        types: a.types.clone(),
        shapes: a
            .shapes
            .iter()
            .zip(&b.shapes)
            .map(|(a, b)| widest(a, b))
            .collect(),
    };
    let inputs = vec![first.clone(), second.clone()];
    Dataset::new("Concatenate", spec, inputs, Concatenate(first, second))
}

struct Concatenate(Dataset, Dataset);

impl Recipe for Concatenate {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let at = |i| place.renamed(format!("{}[{i}]", place.prefix));
        Ok(Box::new(ConcatenateStream {
            walk: self.0.iterate(&at(0))?,
            then: Some((self.1.clone(), at(1))),
        }))
    }
    fn cardinality(&self) -> Cardinality {
        match (self.0.cardinality(), self.1.cardinality()) {
            (Cardinality::Infinite, _) | (_, Cardinality::Infinite) => Cardinality::Infinite,
            (Cardinality::Unknown, _) | (_, Cardinality::Unknown) => Cardinality::Unknown,
            (Cardinality::Known(a), Cardinality::Known(b)) => {
                Cardinality::Known(a.saturating_add(b))
            }
        }
    }
    fn access(&self, place: &Place) -> Opened {
        let second = self.1.cardinality();
        let rest = match second {
            Cardinality::Known(n) => n.max(0) as u64,
            _ => u64::MAX,
        };
        Ok(Box::new(InTurn::new(vec![
            (self.0.access(place)?, count(&self.0)?),
            (self.1.access(place)?, rest),
        ])))
    }
}

struct ConcatenateStream {
    walk: Iter,
    then: Option<(Dataset, Place)>,
}

impl Stream for ConcatenateStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move {
            let state = State::of([self.then.is_some().into()]);
            Ok(Some(state.with(self.walk.save().await?)))
        })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move {
            if state.number(0)? == 0
                && let Some((second, place)) = self.then.take()
            {
                self.walk = second.iterate(&place)?;
            }
            self.walk.restore(state.below(0)?).await
        })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            loop {
                if let Some(element) = self.walk.next().await? {
                    return Ok(Some(element));
                }
                let Some((second, place)) = self.then.take() else {
                    return Ok(None);
                };
                self.walk = second.iterate(&place)?;
            }
        })
    }
}
