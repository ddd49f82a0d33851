//! `FlatMap` and `Interleave`: the elements of datasets that a function makes of each element,
//! one dataset after the other or several in turn.

use super::dataset::{Dataset, Element, Iter, Next, Place, Recipe, Stream};
use super::define::{self, declared};
use super::function::{Captured, Fun, dataset_name};
use super::state::{Restoring, Saving, State};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};

pub(super) fn register(r: &mut Registry) {
    r.add("FlatMapDataset", flat_map);
    r.add("InterleaveDataset", interleave);
}

fn flat_map(b: &KernelBuilder<'_>) -> Result<Built> {
    let (spec, f, naming) = (declared(b)?, b.callee("f")?, dataset_name(b)?);
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let recipe = FlatMap {
            input: input.clone(),
            f: Captured::new(ctx, &f, 1..ctx.num_inputs())?,
            name: naming.next(),
        };
        Dataset::new("FlatMap", spec.clone(), vec![input], recipe)
    })
}

struct FlatMap {
    input: Dataset,
    f: Captured,
    name: String,
}

impl Recipe for FlatMap {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(FlatMapStream {
            input: self.input.iterate(place)?,
            f: self.f.at(place)?.of(&self.name, place),
            place: place.clone(),
            count: 0,
            inner: None,
        }))
    }
}

struct FlatMapStream {
    input: Iter,
    f: Fun,
    place: Place,
    /// Elements taken.
    count: u64,
    /// The walk over what the function made, and what it made it of.
    inner: Option<(Element, Iter)>,
}

impl Stream for FlatMapStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move {
            let mut state = State::of([self.count as i64, self.inner.is_some().into()]);
            if let Some((args, inner)) = &mut self.inner {
                state.tensors = args.clone();
                state = state.with(inner.save().await?);
            }
            Ok(Some(state.with(self.input.save().await?)))
        })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.count = state.option(0)?.unwrap_or(0);
            let open = state.number(1)? != 0;
            if open {
                let args = std::mem::take(&mut state.tensors);
                let place = self.place.inner(self.count.saturating_sub(1));
                let mut inner = self.f.walk(args.clone(), &place).await?;
                inner.restore(state.below(0)?).await?;
                self.inner = Some((args, inner));
            }
            self.input.restore(state.below(open.into())?).await
        })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            loop {
                if let Some((_, inner)) = &mut self.inner {
                    if let Some(element) = inner.next().await? {
                        return Ok(Some(element));
                    }
                    self.inner = None;
                }
                let Some(args) = self.input.next().await? else {
                    return Ok(None);
                };
                let place = self.place.inner(self.count);
                self.count += 1;
                self.inner = Some((args.clone(), self.f.walk(args, &place).await?));
            }
        })
    }
}

/// Cycle and block lengths of an interleave, checked.
pub(super) fn lengths(cycle: i64, block: i64) -> Result<(usize, u64)> {
    if cycle <= 0 {
        return Err(Status::invalid_argument(
            "cycle_length must be greater than zero.",
        ));
    }
    if block <= 0 {
        return Err(Status::invalid_argument(
            "block_length must be greater than zero.",
        ));
    }
    Ok((usize::try_from(cycle).unwrap_or(usize::MAX), block as u64))
}

fn interleave(b: &KernelBuilder<'_>) -> Result<Built> {
    let (spec, f, naming) = (declared(b)?, b.callee("f")?, dataset_name(b)?);
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let last = ctx.num_inputs() - 2;
        let mut cycle = define::int(ctx, last, "cycle_length")?;
        if cycle == -1 {
            cycle = downpour_runtime::num_threads() as i64;
        }
        let (cycle, block) = lengths(cycle, define::int(ctx, last + 1, "block_length")?)?;
        let recipe = Interleave {
            input: input.clone(),
            f: Captured::new(ctx, &f, 1..last)?,
            name: naming.next(),
            cycle,
            block,
        };
        Dataset::new("Interleave", spec.clone(), vec![input], recipe)
    })
}

struct Interleave {
    input: Dataset,
    f: Captured,
    name: String,
    cycle: usize,
    block: u64,
}

impl Recipe for Interleave {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        Ok(Box::new(InterleaveStream {
            input: self.input.iterate(place)?,
            input_ended: false,
            f: self.f.at(place)?.of(&self.name, place),
            place: place.clone(),
            count: 0,
            slots: Vec::new(),
            cycle: Cycle::new(self.cycle, self.block),
            open: 0,
        }))
    }
}

/// Whose turn it is.
pub(super) struct Cycle {
    pub(super) length: usize,
    pub(super) at: usize,
    block: u64,
    pub(super) given: u64,
}

impl Cycle {
    pub(super) fn new(length: usize, block: u64) -> Cycle {
        Cycle {
            length,
            at: 0,
            block,
            given: 0,
        }
    }

    /// The one whose turn it is gave an element.
    pub(super) fn gave(&mut self) {
        self.given += 1;
        if self.given >= self.block {
            self.turn();
        }
    }

    /// It is the next one's turn.
    pub(super) fn turn(&mut self) {
        self.given = 0;
        self.at += 1;
        if self.at >= self.length {
            self.at = 0;
        }
    }
}

/// A dataset whose turn comes again and again.
struct Open {
    number: u64,
    args: Element,
    walk: Iter,
}

struct InterleaveStream {
    input: Iter,
    input_ended: bool,
    f: Fun,
    place: Place,
    count: u64,
    /// Grows as slots are used, so that a huge cycle costs nothing.
    slots: Vec<Option<Open>>,
    cycle: Cycle,
    open: usize,
}

impl Stream for InterleaveStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move {
            let numbers = [
                self.count,
                self.input_ended.into(),
                self.cycle.at as u64,
                self.cycle.given,
            ];
            let mut state = State::of(numbers.map(|n| n as i64)).with(self.input.save().await?);
            for slot in &mut self.slots {
                let below = match slot {
                    None => State::of([0]),
                    Some(open) => State {
                        numbers: vec![1, open.number as i64],
                        tensors: open.args.clone(),
                        inner: vec![open.walk.save().await?],
                    },
                };
                state = state.with(below);
            }
            Ok(Some(state))
        })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.count = state.option(0)?.unwrap_or(0);
            self.input_ended = state.number(1)? != 0;
            self.cycle.at = state.size(2)?.min(self.cycle.length - 1);
            self.cycle.given = state.option(3)?.unwrap_or(0);
            self.input.restore(state.below(0)?).await?;
            for i in 1..state.inner.len() {
                let mut below = state.below(i)?;
                if below.number(0)? == 0 {
                    self.slots.push(None);
                    continue;
                }
                let number = below.option(1)?.unwrap_or(0);
                let args = std::mem::take(&mut below.tensors);
                let mut walk = self.f.walk(args.clone(), &self.place.inner(number)).await?;
                walk.restore(below.below(0)?).await?;
                self.slots.push(Some(Open { number, args, walk }));
                self.open += 1;
            }
            Ok(())
        })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            loop {
                if self.open == 0 && self.input_ended {
                    return Ok(None);
                }
                // Past the slots ever used there is nothing to find.
                if self.cycle.at >= self.slots.len() {
                    if self.input_ended {
                        self.cycle.at = self.cycle.length - 1;
                        self.cycle.turn();
                        continue;
                    }
                    self.slots.push(None);
                }
                let Some(slot) = self.slots.get_mut(self.cycle.at) else {
                    return Err(Status::internal("an interleave has lost its place"));
                };
                if let Some(open) = slot {
                    if let Some(element) = open.walk.next().await? {
                        self.cycle.gave();
                        return Ok(Some(element));
                    }
                    *slot = None;
                    self.open -= 1;
                    self.cycle.turn();
                } else if !self.input_ended {
                    match self.input.next().await? {
                        None => self.input_ended = true,
                        Some(args) => {
                            let number = self.count;
                            self.count += 1;
                            let place = self.place.inner(number);
                            let walk = self.f.walk(args.clone(), &place).await?;
                            *slot = Some(Open { number, args, walk });
                            self.open += 1;
                        }
                    }
                } else {
                    self.cycle.turn();
                }
            }
        })
    }
}
