//! Datasets that say something about another and give its elements unchanged: options, hints for
//! the optimizer, and checks of how a pipeline is built.

use super::access::Opened;
use super::dataset::{Cardinality, Dataset, Iter, Next, Place, Recipe, Stream};
use super::define;
use super::prefetch::Through;
use super::state::{Restoring, Saving, State};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};

pub(super) fn register(r: &mut Registry) {
    r.add("OptionsDataset", options);
    r.add("RewriteDataset", |_| same("Rewrite"));
    r.add("FinalizeDataset", |_| same("Finalize"));
    r.add("ModelDataset", |_| same("Model"));
    r.add("OptimizeDataset", |_| {
        define::dataset(move |ctx| {
            if ctx.input(1)?.rank() != 1 {
                return Err(Status::invalid_argument("optimizations must be a vector"));
            }
            pass("Optimize", define::input(ctx, 0)?)
        })
    });
    r.add("OptimizeDatasetV2", |_| same("OptimizeV2"));
    for op in ["AssertNextDataset", "ExperimentalAssertNextDataset"] {
        r.add(op, |_| define::dataset(assert_next));
    }
    for op in [
        "NonSerializableDataset",
        "ExperimentalNonSerializableDataset",
    ] {
        r.add(op, |_| same("NonSerializable"));
    }
    for op in [
        "MaxIntraOpParallelismDataset",
        "ExperimentalMaxIntraOpParallelismDataset",
    ] {
        r.add(op, |_| {
            limited("MaxIntraOpParallelism", "max_intra_op_parallelism")
        });
    }
    for op in [
        "PrivateThreadPoolDataset",
        "ExperimentalPrivateThreadPoolDataset",
    ] {
        r.add(op, |_| limited("PrivateThreadPool", "num_threads"));
    }
    r.add("AssertCardinalityDataset", |_| {
        define::dataset(assert_cardinality)
    });
}

fn pass(kind: &'static str, input: Dataset) -> Result<Dataset> {
    let recipe = Pass(input.clone());
    Dataset::new((kind, ""), input.spec().clone(), vec![input], recipe)
}

fn same(kind: &'static str) -> Result<Built> {
    define::dataset(move |ctx| pass(kind, define::input(ctx, 0)?))
}

/// Our threads are the device's and serve all pipelines alike, so the number is only checked.
fn limited(kind: &'static str, name: &'static str) -> Result<Built> {
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        if define::int(ctx, 1, name)? < 0 {
            return Err(Status::invalid_argument(format!("`{name}` must be >= 0")));
        }
        pass(kind, input)
    })
}

struct Pass(Dataset);

impl Recipe for Pass {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(Through(self.0.iterate(place)?)))
    }
    fn cardinality(&self) -> Cardinality {
        self.0.cardinality()
    }
    fn access(&self, place: &Place) -> Opened {
        self.0.access(place)
    }
}

fn options(b: &KernelBuilder<'_>) -> Result<Built> {
    let deterministic = deterministic(b.attrs().bytes("serialized_options")?);
    define::dataset(move |ctx| {
        let made = pass("Options", define::input(ctx, 0)?)?;
        Ok(match deterministic {
            Some(value) => made.with_deterministic(value),
            None => made,
        })
    })
}

/// The field `deterministic` of a serialized `tf.data.Options`, the only option that changes what
/// a pipeline gives. Bytes that are no such message say nothing.
fn deterministic(options: &[u8]) -> Option<bool> {
    downpour_formats::data_options::deterministic(options)
}

fn assert_next(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let input = define::input(ctx, 0)?;
    let wanted = ctx.input(1)?;
    if wanted.rank() != 1 {
        return Err(Status::invalid_argument("transformations must be a vector"));
    }
    let wanted = wanted.as_strings()?.iter();
    let wanted = wanted
        .map(|w| String::from_utf8_lossy(w).into_owned())
        .collect();
    let recipe = AssertNext {
        input: input.clone(),
        wanted,
    };
    Dataset::new("AssertNext", input.spec().clone(), vec![input], recipe)
}

struct AssertNext {
    input: Dataset,
    wanted: Vec<String>,
}

impl Recipe for AssertNext {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        // The names that follow, nearest first, as the prefix of an iterator has them.
        let mut found = Vec::new();
        let mut at = Some(self.input.clone());
        while let Some(dataset) = at {
            found.push(dataset.kind());
            at = dataset.inputs().first().cloned();
        }
        if found.len() < self.wanted.len() {
            return Err(Status::invalid_argument(format!(
                "Asserted next {} transformations but encountered only {}.",
                self.wanted.len(),
                found.len()
            )));
        }
        for (i, (wanted, found)) in self.wanted.iter().zip(&found).enumerate() {
            if wanted != found {
                return Err(Status::invalid_argument(format!(
                    "Asserted transformation matching '{wanted}', but found '{found}' at offset {i}."
                )));
            }
        }
        Ok(Box::new(Through(self.input.iterate(place)?)))
    }
    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }
}

fn assert_cardinality(ctx: &mut OpContext<'_>) -> Result<Dataset> {
    let input = define::input(ctx, 0)?;
    let expected = define::int(ctx, 1, "cardinality")?;
    let recipe = AssertCardinality {
        input: input.clone(),
        expected,
    };
    Dataset::new(
        "AssertCardinality",
        input.spec().clone(),
        vec![input],
        recipe,
    )
}

struct AssertCardinality {
    input: Dataset,
    expected: i64,
}

impl Recipe for AssertCardinality {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(Counting {
            input: self.input.iterate(place)?,
            expected: self.expected,
            count: 0,
        }))
    }
    fn cardinality(&self) -> Cardinality {
        match self.expected {
            -1 => Cardinality::Infinite,
            -2 => Cardinality::Unknown,
            n => Cardinality::Known(n),
        }
    }
}

struct Counting {
    input: Iter,
    expected: i64,
    count: i64,
}

impl Stream for Counting {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move { Ok(Some(State::of([self.count]).with(self.input.save().await?))) })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.count = state.number(0)?;
            self.input.restore(state.below(0)?).await
        })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            let got = self.input.next().await?;
            let known = self.expected != -2;
            if got.is_some() {
                self.count += 1;
                if known && self.expected != -1 && self.count > self.expected {
                    return Err(Status::failed_precondition(format!(
                        "Input dataset was expected to contain {} but contained at least {}.",
                        elements(self.expected),
                        elements(self.count)
                    )));
                }
            } else if known && self.count != self.expected {
                return Err(Status::failed_precondition(format!(
                    "Input dataset was expected to contain {} but contained only {}.",
                    elements(self.expected),
                    elements(self.count)
                )));
            }
            Ok(got)
        })
    }
}

fn elements(n: i64) -> String {
    match n {
        -1 => "an infinite number of elements".into(),
        1 => "1 element".into(),
        n => format!("{n} elements"),
    }
}
