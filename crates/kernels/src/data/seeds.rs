//! Seed generators: what gives each walk over a shuffled dataset its seeds. One that reshuffles
//! draws new ones from Philox each time, as TensorFlow does, so that the order of every epoch
//! follows from the seeds the user gave.

use super::anonymous::Anonymous;
use super::define;
use crate::random::philox::{Philox, Words, entropy};
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, Resource};
use downpour_tensor::Tensor;
use parking_lot::Mutex;
use std::sync::Arc;

/// TensorFlow's C++ type.
pub(super) const SEEDS_TYPE: &str = "N10tensorflow4data20SeedGeneratorManagerE";

pub(super) fn register(r: &mut Registry) {
    r.add("AnonymousSeedGenerator", |b| anonymous(b, true));
    r.add("AnonymousRandomSeedGenerator", |b| anonymous(b, false));
    for op in ["DeleteSeedGenerator", "DeleteRandomSeedGenerator"] {
        r.add(op, |_| {
            Built::cheap(|ctx| super::anonymous::delete::<SeedGenerator>(ctx))
        });
    }
    r.add("DummySeedGenerator", |b| {
        // Names nothing: whoever is given it makes a generator of its own.
        let handle = b.handle(
            "",
            "dummy_resource",
            "N10tensorflow4data13DummyResourceE",
            vec![],
        );
        Built::cheap(move |ctx| {
            ctx.set_output(0, Tensor::resource(handle.clone()));
            Ok(())
        })
    });
}

fn anonymous(b: &KernelBuilder<'_>, has_reshuffle: bool) -> Result<Built> {
    let home = Anonymous::new(b, "AnonymousSeedGenerator", SEEDS_TYPE);
    Built::cheap(move |ctx| {
        let (seed, seed2) = (define::int(ctx, 0, "seed")?, define::int(ctx, 1, "seed2")?);
        let reshuffle = !has_reshuffle || define::boolean(ctx, 2, "reshuffle")?;
        home.emit(ctx, SeedGenerator::new((seed, seed2), reshuffle));
        Ok(())
    })
}

/// Gives seeds to walks.
pub(super) struct SeedGenerator {
    seeds: (u64, u64),
    /// Absent where every walk gets the same seeds.
    words: Option<Mutex<Draws>>,
}

impl Resource for SeedGenerator {
    fn type_name(&self) -> &'static str {
        SEEDS_TYPE
    }
}

impl SeedGenerator {
    pub(super) fn new(seeds: (i64, i64), reshuffle: bool) -> SeedGenerator {
        let seeds = given_or_random(seeds);
        let words = reshuffle.then(|| Mutex::new(Draws::new(seeds)));
        SeedGenerator { seeds, words }
    }

    /// The seeds of the next walk.
    pub(super) fn next(&self) -> (u64, u64) {
        match &self.words {
            None => self.seeds,
            Some(words) => {
                let mut words = words.lock();
                let first = words.u32();
                (first.into(), words.u32().into())
            }
        }
    }
}

impl SeedGenerator {
    /// Where the generator is.
    pub(super) fn position(&self) -> [i64; 3] {
        match &self.words {
            None => [self.seeds.0 as i64, self.seeds.1 as i64, 0],
            Some(words) => words.lock().position(),
        }
    }

    /// Goes where another generator of the same kind was.
    pub(super) fn go_to(&self, position: [i64; 3]) {
        if let Some(words) = &self.words {
            *words.lock() = Draws::at(position);
        }
    }
}

/// Single words of the stream of two seeds, counted.
pub(super) struct Draws {
    seeds: (u64, u64),
    count: u64,
    words: Words,
}

impl Draws {
    pub(super) fn new(seeds: (u64, u64)) -> Draws {
        let words = Words::new(Philox::from_seeds(seeds.0, seeds.1));
        Draws {
            seeds,
            count: 0,
            words,
        }
    }

    pub(super) fn u32(&mut self) -> u32 {
        self.count += 1;
        self.words.u32()
    }

    /// A float in [0, 1).
    pub(super) fn f32(&mut self) -> f32 {
        self.count += 1;
        self.words.f32()
    }

    /// The seeds, and how many words have been drawn.
    pub(super) fn position(&self) -> [i64; 3] {
        [self.seeds.0 as i64, self.seeds.1 as i64, self.count as i64]
    }

    /// The stream at such a position.
    pub(super) fn at([seed, seed2, count]: [i64; 3]) -> Draws {
        let mut draws = Draws::new((seed as u64, seed2 as u64));
        let count = count as u64;
        let philox = Philox::from_seeds(seed as u64, seed2 as u64).skipped(count / 4);
        draws.words = Words::new(philox);
        for _ in 0..count % 4 {
            draws.words.u32();
        }
        draws.count = count;
        draws
    }
}

/// The seeds, or unforeseeable ones where both are zero.
pub(super) fn given_or_random(seeds: (i64, i64)) -> (u64, u64) {
    match seeds {
        (0, 0) => (entropy(), entropy()),
        (a, b) => (a as u64, b as u64),
    }
}

/// The generator that the handle at input `i` names; `otherwise` if it names none.
pub(super) fn find(
    ctx: &OpContext<'_>,
    i: usize,
    otherwise: impl FnOnce() -> SeedGenerator,
) -> Result<Arc<SeedGenerator>> {
    let handle = ctx.handle(i)?;
    let found = ctx.device().resources.find(&handle.container, &handle.name);
    Ok(found.unwrap_or_else(|| Arc::new(otherwise())))
}
