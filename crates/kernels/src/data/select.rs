//! Datasets that pass some elements of another on: `Take`, `Skip`, `Shard`, and `Repeat`.

use super::access::{Opened, Renumbered, count};
use super::dataset::{Cardinality, Dataset, Iter, Next, Place, Recipe, Stream};
use super::define::{self, now};
use super::state::{Restoring, Saving, State};
use super::task::yield_now;
use downpour_graph::{Code, Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};

pub(super) fn register(r: &mut Registry) {
    r.add("TakeDataset", |_| {
        define::dataset(|ctx| {
            let input = define::input(ctx, 0)?;
            let count = define::int(ctx, 1, "count")?;
            let walk = if count == 0 {
                "EmptyTake"
            } else {
                "FiniteTake"
            };
            let recipe = Take {
                input: input.clone(),
                count,
            };
            Dataset::new(("Take", walk), input.spec().clone(), vec![input], recipe)
        })
    });
    r.add("SkipDataset", |_| {
        define::dataset(|ctx| {
            let input = define::input(ctx, 0)?;
            let count = define::int(ctx, 1, "count")?;
            let walk = if count < 0 { "EmptySkip" } else { "FiniteSkip" };
            let recipe = Skip {
                input: input.clone(),
                count,
            };
            Dataset::new(("Skip", walk), input.spec().clone(), vec![input], recipe)
        })
    });
    r.add("RepeatDataset", |_| {
        define::dataset(|ctx| {
            let input = define::input(ctx, 0)?;
            let count = define::int(ctx, 1, "count")?;
            let walk = match count {
                0 => "EmptyRepeat",
                ..0 => "ForeverRepeat",
                _ => "FiniteRepeat",
            };
            let recipe = Repeat {
                input: input.clone(),
                count,
            };
            Dataset::new(("Repeat", walk), input.spec().clone(), vec![input], recipe)
        })
    });
    r.add("ShardDataset", shard);
}

/// An iterator that is at its end.
pub(super) struct Empty;

impl Stream for Empty {
    fn next(&mut self) -> Next<'_> {
        now(Ok(None))
    }
}

struct Take {
    input: Dataset,
    count: i64,
}

impl Recipe for Take {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        if self.count == 0 {
            return Ok(Box::new(Empty));
        }
        let input = self.input.iterate(place)?;
        let left = u64::try_from(self.count).ok();
        Ok(Box::new(TakeStream { input, left }))
    }
    fn cardinality(&self) -> Cardinality {
        match self.input.cardinality() {
            Cardinality::Infinite if self.count >= 0 => Cardinality::Known(self.count),
            Cardinality::Known(n) if self.count >= 0 => Cardinality::Known(n.min(self.count)),
            other => other,
        }
    }
    fn access(&self, place: &Place) -> Opened {
        self.input.access(place)
    }
}

struct TakeStream {
    input: Iter,
    /// How many more, or `None` for all.
    left: Option<u64>,
}

impl Stream for TakeStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move {
            let state = State::of([self.left.map_or(-1, |n| n as i64)]);
            Ok(Some(state.with(self.input.save().await?)))
        })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.left = state.option(0)?;
            self.input.restore(state.below(0)?).await
        })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            if self.left == Some(0) {
                return Ok(None);
            }
            let got = self.input.next().await?;
            if let Some(left) = &mut self.left {
                *left -= 1;
            }
            Ok(got)
        })
    }
}

struct Skip {
    input: Dataset,
    count: i64,
}

impl Recipe for Skip {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let Ok(left) = u64::try_from(self.count) else {
            return Ok(Box::new(Empty));
        };
        let input = self.input.iterate(place)?;
        Ok(Box::new(SkipStream { input, left }))
    }
    fn cardinality(&self) -> Cardinality {
        let (all, none) = (self.input.cardinality(), Cardinality::Known(0));
        match (self.count, all) {
            (_, Cardinality::Infinite | Cardinality::Unknown) => all,
            (..0, _) => none,
            (count, _) => all.map(|n| (n - count.min(n)).max(0)),
        }
    }
    fn access(&self, place: &Place) -> Opened {
        let first = self.count.max(0) as u64;
        Ok(Box::new(Renumbered {
            input: self.input.access(place)?,
            number: move |i: u64| i.saturating_add(first),
        }))
    }
}

struct SkipStream {
    input: Iter,
    left: u64,
}

impl Stream for SkipStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move {
            let state = State::of([self.left as i64]);
            Ok(Some(state.with(self.input.save().await?)))
        })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.left = state.option(0)?.unwrap_or(0);
            self.input.restore(state.below(0)?).await
        })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            while self.left > 0 {
                if self.input.next().await?.is_none() {
                    return Ok(None);
                }
                self.left -= 1;
            }
            self.input.next().await
        })
    }
}

struct Repeat {
    input: Dataset,
    /// How often; forever if negative.
    count: i64,
}

impl Recipe for Repeat {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        if self.count == 0 {
            return Ok(Box::new(Empty));
        }
        Ok(Box::new(RepeatStream {
            walk: self.input.iterate(&epoch(place, 0))?,
            input: self.input.clone(),
            place: place.clone(),
            left: u64::try_from(self.count).ok(),
            begun: 1,
            fresh: true,
        }))
    }
    fn cardinality(&self) -> Cardinality {
        let all = self.input.cardinality();
        match (self.count, all) {
            (0, _) | (_, Cardinality::Known(0)) => Cardinality::Known(0),
            (..0, Cardinality::Unknown) => Cardinality::Infinite,
            (..0, _) => Cardinality::Infinite,
            (count, _) => all.map(|n| n.saturating_mul(count)),
        }
    }
    fn access(&self, place: &Place) -> Opened {
        let each = count(&self.input)?.max(1);
        Ok(Box::new(Renumbered {
            input: self.input.access(place)?,
            number: move |i: u64| i % each,
        }))
    }
}

/// The place of walk `i` of a repetition.
fn epoch(place: &Place, i: u64) -> Place {
    place.renamed(format!("{}[{i}]", place.prefix))
}

struct RepeatStream {
    input: Dataset,
    place: Place,
    walk: Iter,
    /// How many more walks, this one included, or `None` for no end.
    left: Option<u64>,
    begun: u64,
    /// Whether this walk has given nothing yet.
    fresh: bool,
}

impl Stream for RepeatStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move {
            let left = self.left.map_or(-1, |n| n as i64);
            let state = State::of([left, self.begun as i64, self.fresh.into()]);
            Ok(Some(state.with(self.walk.save().await?)))
        })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.left = state.option(0)?;
            self.begun = state.option(1)?.unwrap_or(1);
            self.fresh = state.number(2)? != 0;
            let place = epoch(&self.place, self.begun.saturating_sub(1));
            self.walk = self.input.iterate(&place)?;
            self.walk.restore(state.below(0)?).await
        })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            loop {
                if self.left == Some(0) {
                    return Ok(None);
                }
                let got = self.walk.next().await;
                let ended = matches!(got, Ok(None));
                if !ended {
                    self.fresh = false;
                    return got;
                }
                if self.fresh {
                    // Nothing, for ever, would never be known to be nothing.
                    if self.left.is_none() {
                        return Ok(None);
                    }
                    yield_now().await;
                }
                self.fresh = true;
                if let Some(left) = &mut self.left {
                    *left -= 1;
                }
                if self.left != Some(0) {
                    self.walk = self.input.iterate(&epoch(&self.place, self.begun))?;
                    self.begun += 1;
                }
            }
        })
    }
}

fn shard(b: &KernelBuilder<'_>) -> Result<Built> {
    let non_empty = b.attrs().bool("require_non_empty")?;
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let shards = define::int(ctx, 1, "num_shards")?;
        if shards <= 0 && shards != SHARD_HINT {
            return Err(Status::invalid_argument(format!(
                "Number of shards must be greater than zero (currently num_shards = {shards})."
            )));
        }
        let index = define::int(ctx, 2, "index")?;
        if shards != SHARD_HINT && !(0..shards).contains(&index) {
            return Err(Status::invalid_argument(format!(
                "Index must be between 0 and {} (currently index = {index}).",
                shards - 1
            )));
        }
        let recipe = Shard {
            input: input.clone(),
            shards,
            index,
            non_empty,
        };
        Dataset::new("Shard", input.spec().clone(), vec![input], recipe)
    })
}

struct Shard {
    input: Dataset,
    shards: i64,
    index: i64,
    non_empty: bool,
}

/// The number of shards, and the index, of a dataset that `AutoShardDataset` is to shard.
pub(super) const SHARD_HINT: i64 = -1;

impl Recipe for Shard {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        if self.shards == SHARD_HINT {
            return Err(Status::failed_precondition(
                "`tf.data.Dataset.shard(SHARD_HINT, ...)` can only be used in `tf.distribute.Strategy.experimental_distribute_dataset()` with `tf.data.experimental.AutoShardPolicy.HINT` policy, or tf.data service with `tf.data.experimental.service.ShardingPolicy.HINT` processing mode.",
            ));
        }
        Ok(Box::new(ShardStream {
            input: self.input.iterate(place)?,
            shards: self.shards,
            index: self.index,
            non_empty: self.non_empty,
            next: 0,
        }))
    }
    fn cardinality(&self) -> Cardinality {
        if self.shards == SHARD_HINT {
            return self.input.cardinality();
        }
        let all = self.input.cardinality();
        all.map(|n| n / self.shards + i64::from(self.index < n % self.shards))
    }
    fn access(&self, place: &Place) -> Opened {
        let (shards, index) = (self.shards.max(1) as u64, self.index.max(0) as u64);
        Ok(Box::new(Renumbered {
            input: self.input.access(place)?,
            number: move |i: u64| i.saturating_mul(shards).saturating_add(index),
        }))
    }
}

struct ShardStream {
    input: Iter,
    shards: i64,
    index: i64,
    non_empty: bool,
    /// Number, among all, of the element that comes next.
    next: i64,
}

impl Stream for ShardStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move { Ok(Some(State::of([self.next]).with(self.input.save().await?))) })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.next = state.number(0)?;
            self.input.restore(state.below(0)?).await
        })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            while self.next % self.shards != self.index {
                if self.input.next().await?.is_none() {
                    return Ok(None);
                }
                self.next += 1;
            }
            let Some(element) = self.input.next().await? else {
                return Ok(None);
            };
            self.next += 1;
            let found = self.next;
            while self.non_empty && self.next < self.shards {
                let missing = match self.input.next().await {
                    Ok(more) => more.is_none(),
                    Err(e) if e.code == Code::OutOfRange => true,
                    Err(e) => return Err(e),
                };
                if missing {
                    return Err(Status::invalid_argument(format!(
                        "Could not apply FILE based sharding: the dataset only has {found} file(s), which is not enough for the required {} shards/workers. If you are using datasets with distribution strategy, consider setting the auto sharding policy to either DATA or OFF using the `experimental_distribute.auto_shard_policy` option of `tf.data.Options()`. Or, split your input files into a larger number of small files such that number of files is greater than number of shards/workers.",
                        self.shards
                    )));
                }
                self.next += 1;
            }
            Ok(Some(element))
        })
    }
}
