//! `FlatMap` and `Interleave`: the elements of datasets that a function makes of each element,
//! one dataset after the other or several in turn.

use super::dataset::{Dataset, Iter, Next, Place, Recipe, Stream};
use super::define::{self, declared};
use super::function::{Captured, Fun, dataset_name};
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
    inner: Option<Iter>,
}

impl Stream for FlatMapStream {
    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            loop {
                if let Some(inner) = &mut self.inner {
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
                self.inner = Some(self.f.walk(args, &place).await?);
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
            cycle = rayon::current_num_threads() as i64;
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
    given: u64,
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

struct InterleaveStream {
    input: Iter,
    input_ended: bool,
    f: Fun,
    place: Place,
    count: u64,
    /// Grows as slots are used, so that a huge cycle costs nothing.
    slots: Vec<Option<Iter>>,
    cycle: Cycle,
    open: usize,
}

impl Stream for InterleaveStream {
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
                if let Some(inner) = slot {
                    if let Some(element) = inner.next().await? {
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
                            let place = self.place.inner(self.count);
                            self.count += 1;
                            *slot = Some(self.f.walk(args, &place).await?);
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
