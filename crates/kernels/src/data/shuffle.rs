//! `Shuffle` and `ShuffleAndRepeat`: a buffer from which elements are drawn at random, in exactly
//! TensorFlow's order for given seeds.
//!
//! The buffer is a ring; each epoch in it is a slice of it, and elements are drawn from the
//! oldest slice only, so that an epoch is given out whole before the next one begins.

use super::dataset::{Cardinality, Dataset, Element, Got, Iter, Next, Place, Recipe, Stream};
use super::define;
use super::random::position;
use super::seeds::{self, Draws, SeedGenerator};
use super::state::{Restoring, Saving, State, misfit};
use super::task::yield_now;
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
            words: Draws::new(self.seeds.next()),
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
    words: Draws,
    seeds: Arc<SeedGenerator>,
}

impl Stream for ShuffleStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(self.save_state())
    }

    fn restore(&mut self, state: State) -> Restoring<'_> {
        Box::pin(self.restore_state(state))
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            self.fill().await?;
            self.draw()
        })
    }
}

impl ShuffleStream {
    async fn save_state(&mut self) -> Result<Option<State>> {
        let epochs = self.epochs_left.map_or(-1, |n| n as i64);
        let mut state = State::of([self.walk.is_some().into(), epochs, self.produced.into()]);
        state.numbers.extend(self.words.position());
        state.numbers.extend(self.seeds.position());
        state.numbers.push(self.slices.len() as i64);
        let mut held = Vec::new();
        for slice in &self.slices {
            let numbers = [slice.start as i64, slice.end as i64, slice.whole.into()];
            state.numbers.extend(numbers);
            for at in slice.start..slice.end {
                held.extend(self.ring.get(at % self.size).and_then(Option::as_ref));
            }
        }
        state.put_elements(held.into_iter());
        if let Some(walk) = &mut self.walk {
            state = state.with(walk.save().await?);
        }
        Ok(Some(state))
    }

    async fn restore_state(&mut self, mut state: State) -> Result<()> {
        self.epochs_left = state.option(1)?;
        self.produced = state.number(2)? != 0;
        self.words = Draws::at(position(&state, 3)?);
        self.seeds.go_to(position(&state, 6)?);
        let slices = state.size(9)?;
        let mut elements = state.take_elements(10 + 3 * slices)?.into_iter();
        self.held = elements.len();
        // Slices follow each other, so the ring may as well begin with the first.
        let mut base = 0;
        for i in 0..slices {
            let at = 10 + 3 * i;
            let (start, end) = (state.size(at)?, state.size(at + 1)?);
            base = if i == 0 { start } else { base };
            let place = (start.checked_sub(base), end.checked_sub(start));
            let (Some(start), Some(length)) = place else {
                return Err(misfit());
            };
            if start != self.ring.len() || length > elements.len() {
                return Err(misfit());
            }
            self.ring.extend(elements.by_ref().take(length).map(Some));
            self.slices.push_back(Slice {
                start,
                end: start + length,
                whole: state.number(at + 2)? != 0,
            });
        }
        if self.held > self.size || elements.len() > 0 {
            return Err(misfit());
        }
        if state.number(0)? != 0 {
            let mut walk = self.input.iterate(&self.place)?;
            walk.restore(state.below(0)?).await?;
            self.walk = Some(walk);
        }
        Ok(())
    }

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
                    while self.ring.len() <= at {
                        self.ring.push(None);
                    }
                    self.ring[at] = Some(element);
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
            self.words = Draws::new(self.seeds.next());
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
