//! `Cache` in memory: the first walk to reach its end leaves what it saw to the later ones. With a
//! file name the elements go to a file instead (`cache_file`).

use super::access::Opened;
use super::anonymous::{Anonymous, delete};
use super::cache_file;
use super::dataset::{Cardinality, Dataset, Element, Iter, Next, Place, Recipe, Stream};
use super::define;
use downpour_graph::Result;
use downpour_runtime::{Built, OpContext, Registry, Resource};
use downpour_tensor::Tensor;
use parking_lot::Mutex;
use std::sync::Arc;

const CACHE_TYPE: &str = "N10tensorflow4data18MemoryCacheManagerE";

pub(super) fn register(r: &mut Registry) {
    r.add("CacheDataset", |_| define::dataset(|ctx| cache(ctx, false)));
    r.add("CacheDatasetV2", |_| {
        define::dataset(|ctx| cache(ctx, true))
    });
    r.add("AnonymousMemoryCache", |b| {
        let home = Anonymous::new(b, "AnonymousMemoryCache", CACHE_TYPE);
        Built::cheap(move |ctx| {
            home.emit(ctx, MemoryCache::default());
            Ok(())
        })
    });
    r.add("DummyMemoryCache", |b| {
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
    r.add("DeleteMemoryCache", |_| {
        Built::cheap(|ctx| delete::<MemoryCache>(ctx))
    });
}

fn cache(ctx: &mut OpContext<'_>, v2: bool) -> Result<Dataset> {
    let input = define::input(ctx, 0)?;
    let file = define::text(ctx, 1, "filename")?;
    let spec = input.spec().clone();
    if !file.is_empty() {
        let recipe = cache_file::Cache::new(input.clone(), file);
        let kind = if v2 { "FileCacheV2" } else { "FileCache" };
        return Dataset::new(("Cache", kind), spec, vec![input], recipe);
    }
    let mut cache = Arc::new(MemoryCache::default());
    if v2 {
        let handle = ctx.handle(2)?;
        let found = ctx.device().resources.find(&handle.container, &handle.name);
        cache = found.unwrap_or(cache);
    }
    let kind = if v2 { "MemoryCacheV2" } else { "MemoryCache" };
    let recipe = Cache {
        input: input.clone(),
        cache,
    };
    Dataset::new(("Cache", kind), spec, vec![input], recipe)
}

/// The elements of one whole walk, once there was one.
#[derive(Default)]
struct MemoryCache(Mutex<Option<Arc<Vec<Element>>>>);

impl Resource for MemoryCache {
    fn type_name(&self) -> &'static str {
        CACHE_TYPE
    }
}

struct Cache {
    input: Dataset,
    cache: Arc<MemoryCache>,
}

impl Recipe for Cache {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let full = self.cache.0.lock().clone();
        if let Some(elements) = full {
            return Ok(Box::new(Full(
                super::sources::Elements(elements).open(place)?,
            )));
        }
        Ok(Box::new(Filling {
            input: self.input.iterate(place)?,
            seen: Vec::new(),
            cache: self.cache.clone(),
        }))
    }
    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }
    fn access(&self, place: &Place) -> Opened {
        let full = self.cache.0.lock().clone();
        match full {
            Some(elements) => super::sources::Elements(elements).access(place),
            None => self.input.access(place),
        }
    }
}

/// A walk over what is cached. It writes down nothing: where it is gone on with there may be no
/// cache yet, or another one.
struct Full(Box<dyn Stream>);

impl Stream for Full {
    fn next(&mut self) -> Next<'_> {
        self.0.next()
    }
}

struct Filling {
    input: Iter,
    seen: Vec<Element>,
    cache: Arc<MemoryCache>,
}

impl Stream for Filling {
    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            let got = self.input.next().await?;
            match &got {
                Some(element) => self.seen.push(element.clone()),
                None => {
                    let seen = std::mem::take(&mut self.seen);
                    self.cache.0.lock().get_or_insert_with(|| Arc::new(seen));
                }
            }
            Ok(got)
        })
    }
}
