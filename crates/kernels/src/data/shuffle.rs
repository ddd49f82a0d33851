//! `Shuffle` and `ShuffleAndRepeat`: a buffer from which elements are drawn at random, in exactly
//! TensorFlow's order for given seeds.
//!
//! The buffer is a ring; each epoch in it is a slice of it, and elements are drawn from the
//! oldest slice only, so that an epoch is given out whole before the next one begins.

use super::dataset::{Cardinality, Dataset, Element, Got, Iter, Next, Place, Recipe, Stream};
use super::define;
use super::seeds::{self, SeedGenerator};
use super::task::yield_now;
use crate::random::philox::Words;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use std::collections::VecDeque;
use std::sync::Arc;

/// The buffer size that stands for the size of the input.
const UNKNOWN: i64 = -2;

/// Epochs that may be in the buffer at once.
const MAX_EPOCHS: usize = 3;

pub(super) fn register(r: &mut Registry) {
    r.add("ShuffleDataset", |b| {
        shuffle(
            b,
            &Form {
                kind: "Shuffle",
                seeds: true,
                count: false,
                generator: None,
            },
        )
    });
    r.add("ShuffleDatasetV2", |b| {
        shuffle(
            b,
            &Form {
                kind: "ShuffleV2",
                seeds: false,
                count: false,
                generator: Some(2),
            },
        )
    });
    r.add("ShuffleDatasetV3", |b| {
        shuffle(
            b,
            &Form {
                kind: "ShuffleV3",
                seeds: true,
                count: false,
                generator: Some(4),
            },
        )
    });
    r.add("ShuffleAndRepeatDataset", |b| {
        shuffle(
            b,
            &Form {
                kind: "ShuffleAndRepeat",
                seeds: true,
                count: true,
                generator: None,
            },
        )
    });
    r.add("ShuffleAndRepeatDatasetV2", |b| {
        shuffle(
            b,
            &Form {
                kind: "ShuffleAndRepeatV2",
                seeds: true,
                count: true,
                generator: Some(5),
            },
        )
    });
}

/// What a version of the op is given.
#[derive(Clone)]
struct Form {
    kind: &'static str,
    seeds: bool,
    count: bool,
    /// Which input is the handle of a generator.
    generator: Option<usize>,
}

fn shuffle(b: &KernelBuilder<'_>, form: &Form) -> Result<Built> {
    let reshuffle = match b.attrs().find("reshuffle_each_iteration") {
        Some(_) => b.attrs().bool("reshuffle_each_iteration")?,
        None => true,
    };
    let form = form.clone();
    define::dataset(move |ctx| make(ctx, &form, reshuffle))
}

fn make(ctx: &mut OpContext<'_>, form: &Form, reshuffle: bool) -> Result<Dataset> {
    let input = define::input(ctx, 0)?;
    let size = define::int(ctx, 1, "buffer_size")?;
    if size < 1 && size != UNKNOWN {
        return Err(Status::invalid_argument(
            "buffer_size must be greater than zero or UNKNOWN_CARDINALITY",
        ));
    }
    let mut given = (0, 0);
    if form.seeds {
        given = (define::int(ctx, 2, "seed")?, define::int(ctx, 3, "seed2")?);
    }
    let mut count = 1;
    if form.count {
        count = define::int(ctx, 4, "count")?;
        if count <= 0 && count != -1 {
            return Err(Status::invalid_argument(
                "count must be greater than zero or equal to -1.",
            ));
        }
    }
    let own = || SeedGenerator::new(given, reshuffle);
    let seeds = match form.generator {
        Some(i) => seeds::find(ctx, i, own)?,
        None => Arc::new(own()),
    };
    let recipe = Shuffle {
        input: input.clone(),
        size,
        count,
        seeds,
    };
    Dataset::new(form.kind, input.spec().clone(), vec![input], recipe)
}

struct Shuffle {
    input: Dataset,
    /// Of the buffer; as large as the input if negative.
    size: i64,
    /// How many epochs; no end if negative.
    count: i64,
    seeds: Arc<SeedGenerator>,
}

impl Recipe for Shuffle {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(ShuffleStream {
            input: self.input.clone(),
            place: place.clone(),
            walk: None,
            size: usize::try_from(self.size).unwrap_or(usize::MAX),
            epochs_left: u64::try_from(self.count).ok(),
            produced: false,
            ring: Vec::new(),
            held: 0,
            slices: VecDeque::new(),
            words: seeds::words(self.seeds.next()),
            seeds: self.seeds.clone(),
        }))
    }
    fn cardinality(&self) -> Cardinality {
        let all = self.input.cardinality();
        match (self.count, all) {
            (_, Cardinality::Known(0)) => all,
            (..=0, _) => Cardinality::Infinite,
            (1, _) => all,
            (count, _) => all.map(|n| n.saturating_mul(count)),
        }
    }
}

/// An epoch in the ring: positions `start..end`, counted without wrapping.
struct Slice {
    start: usize,
    end: usize,
    whole: bool,
}

struct ShuffleStream {
    input: Dataset,
    place: Place,
    walk: Option<Iter>,
    size: usize,
    /// How many more epochs to begin, or `None` for no end.
    epochs_left: Option<u64>,
    produced: bool,
    ring: Vec<Option<Element>>,
    held: usize,
    slices: VecDeque<Slice>,
    words: Words,
    seeds: Arc<SeedGenerator>,
}

impl Stream for ShuffleStream {
    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            self.fill().await?;
            self.draw()
        })
    }
}

impl ShuffleStream {
    async fn fill(&mut self) -> Result<()> {
        while self.held < self.size {
            if self.slices.len() > MAX_EPOCHS && self.held > 0 {
                return Ok(());
            }
            if self.walk.is_none() {
                if self.epochs_left == Some(0) {
                    return Ok(());
                }
                let start = self.slices.back().map_or(0, |s| s.end);
                self.walk = Some(self.input.iterate(&self.place)?);
                self.slices.push_back(Slice {
                    start,
                    end: start,
                    whole: false,
                });
                if let Some(left) = &mut self.epochs_left {
                    *left -= 1;
                }
            }
            let (Some(walk), Some(slice)) = (&mut self.walk, self.slices.back_mut()) else {
                return Ok(());
            };
            match walk.next().await? {
                Some(element) => {
                    self.produced = true;
                    let at = slice.end % self.size;
                    match self.ring.get_mut(at) {
                        Some(place) => *place = Some(element),
                        None => self.ring.push(Some(element)),
                    }
                    slice.end += 1;
                    self.held += 1;
                }
                None => {
                    slice.whole = true;
                    self.walk = None;
                    // Without this, an empty input would be asked again for ever.
                    if !self.produced && self.epochs_left.is_none() {
                        self.epochs_left = Some(0);
                    }
                    if self.held == 0 {
                        self.leave_finished();
                        yield_now().await;
                    }
                }
            }
        }
        Ok(())
    }

    /// Leaves epochs that have been given out; the next one has seeds of its own.
    fn leave_finished(&mut self) {
        while self
            .slices
            .front()
            .is_some_and(|s| s.start == s.end && s.whole)
        {
            // The next epoch goes on where this one ended, so the last one marks the place.
            if self.slices.len() == 1 {
                return;
            }
            self.slices.pop_front();
            self.words = seeds::words(self.seeds.next());
        }
    }

    fn draw(&mut self) -> Got {
        if self.held == 0 {
            return Ok(None);
        }
        self.leave_finished();
        let lost = || Status::internal("the shuffle buffer has lost an element");
        let slice = self.slices.front_mut().ok_or_else(lost)?;
        let length = slice.end - slice.start;
        if length == 0 {
            return Err(lost());
        }
        let at = (slice.start + self.words.u32() as usize % length) % self.size;
        let first = slice.start % self.size;
        slice.start += 1;
        self.held -= 1;
        let element = self.ring.get_mut(at).and_then(Option::take);
        self.ring.swap(at, first);
        Ok(Some(element.ok_or_else(lost)?))
    }
}
