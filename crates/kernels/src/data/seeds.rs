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
    words: Option<Mutex<Words>>,
}

impl Resource for SeedGenerator {
    fn type_name(&self) -> &'static str {
        SEEDS_TYPE
    }
}

impl SeedGenerator {
    pub(super) fn new(seeds: (i64, i64), reshuffle: bool) -> SeedGenerator {
        let seeds = given_or_random(seeds);
        let words = reshuffle.then(|| Mutex::new(words(seeds)));
        SeedGenerator { seeds, words }
    }

    /// The seeds of the next walk.
    pub(super) fn next(&self) -> (u64, u64) {
        match &self.words {
            None => self.seeds,
            Some(words) => {
                let mut words = words.lock();
                (words.u32().into(), words.u32().into())
            }
        }
    }
}

/// The seeds, or unforeseeable ones where both are zero.
pub(super) fn given_or_random(seeds: (i64, i64)) -> (u64, u64) {
    match seeds {
        (0, 0) => (entropy(), entropy()),
        (a, b) => (a as u64, b as u64),
    }
}

/// Single words of the stream of two seeds.
pub(super) fn words((seed, seed2): (u64, u64)) -> Words {
    Words::new(Philox::from_seeds(seed, seed2))
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
