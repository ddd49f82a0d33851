//! Elements by key: `GroupByWindow` and `GroupByReducer`.

use super::dataset::{Dataset, Element, Iter, Next, Place, Recipe, Spec, Stream};
use super::define::{self, declared};
use super::function::{Captured, Fun, only};
use super::sources::Elements;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, Callee, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Tensor};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    for op in ["GroupByWindowDataset", "ExperimentalGroupByWindowDataset"] {
        r.add(op, by_window);
    }
    for op in ["GroupByReducerDataset", "ExperimentalGroupByReducerDataset"] {
        r.add(op, by_reducer);
    }
}

const NO_KEY: &str = "`key_func` must return a scalar int64.";

/// A function's name and how many inputs it captures.
struct Part {
    callee: Callee,
    captured: usize,
}

fn parts(b: &KernelBuilder<'_>, names: &[&str]) -> Result<Vec<Part>> {
    let part = |name: &&str| {
        let types = format!("T{name}_other_arguments");
        Ok(Part {
            callee: b.callee(name)?,
            captured: b.attrs().dtypes(&types)?.len(),
        })
    };
    names.iter().map(part).collect()
}

/// The functions with what they capture, from input 1 on.
fn capture(ctx: &OpContext<'_>, parts: &[Part]) -> Result<Vec<Captured>> {
    let mut from = 1;
    let captured = parts.iter().map(|part| {
        let range: Range<usize> = from..from + part.captured;
        from = range.end;
        Captured::new(ctx, &part.callee, range)
    });
    captured.collect()
}

fn by_window(b: &KernelBuilder<'_>) -> Result<Built> {
    let spec = declared(b)?;
    let parts = parts(b, &["key_func", "reduce_func", "window_size_func"])?;
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let functions = capture(ctx, &parts)?;
        let recipe = ByWindow {
            input: input.clone(),
            functions,
        };
        Dataset::new("GroupByWindow", spec.clone(), vec![input], recipe)
    })
}

struct ByWindow {
    input: Dataset,
    functions: Vec<Captured>,
}

impl Recipe for ByWindow {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let [key, reduce, size] = functions(&self.functions, place)?;
        Ok(Box::new(ByWindowStream {
            input: self.input.iterate(place)?,
            spec: self.input.spec().clone(),
            ended: false,
            key,
            reduce,
            size,
            place: place.clone(),
            windows: 0,
            groups: BTreeMap::new(),
            sizes: HashMap::new(),
            current: None,
        }))
    }
}

fn functions<const N: usize>(captured: &[Captured], place: &Place) -> Result<[Fun; N]> {
    let all = captured.iter().map(|f| f.at(place));
    let all = all.collect::<Result<Vec<_>>>()?;
    all.try_into()
        .map_err(|_| Status::internal("a dataset has lost a function"))
}

struct ByWindowStream {
    input: Iter,
    spec: Spec,
    ended: bool,
    key: Fun,
    reduce: Fun,
    size: Fun,
    place: Place,
    windows: u64,
    groups: BTreeMap<i64, Vec<Element>>,
    sizes: HashMap<i64, usize>,
    /// The walk over what a full group became.
    current: Option<Iter>,
}

impl Stream for ByWindowStream {
    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            loop {
                if let Some(current) = &mut self.current {
                    if let Some(element) = current.next().await? {
                        return Ok(Some(element));
                    }
                    self.current = None;
                }
                let Some(key) = self.full_group().await? else {
                    return Ok(None);
                };
                self.flush(key).await?;
            }
        })
    }
}

impl ByWindowStream {
    /// Takes elements until a group is full, or, at the end, any group that is left.
    async fn full_group(&mut self) -> Result<Option<i64>> {
        while !self.ended {
            let Some(element) = self.input.next().await? else {
                self.ended = true;
                break;
            };
            let key_out = self.key.call(element.clone()).await?;
            let key = only::<i64>(&key_out, NO_KEY)?;
            if !self.sizes.contains_key(&key) {
                let size = self.size.call(key_out).await?;
                let size = only::<i64>(&size, "`window_size_func` must return a scalar int64.")?;
                let size = usize::try_from(size)
                    .ok()
                    .filter(|s| *s > 0)
                    .ok_or_else(|| {
                        Status::invalid_argument(format!(
                            "Window size must be greater than zero, but got {size}."
                        ))
                    })?;
                self.sizes.insert(key, size);
            }
            let group = self.groups.entry(key).or_default();
            group.push(element);
            if self.sizes.get(&key) == Some(&group.len()) {
                return Ok(Some(key));
            }
        }
        Ok(self.groups.keys().next().copied())
    }

    /// Starts the walk over what a group becomes.
    async fn flush(&mut self, key: i64) -> Result<()> {
        let group = self.groups.remove(&key).unwrap_or_default();
        let recipe = Elements(Arc::new(group));
        let window = Dataset::new("Window", self.spec.clone(), vec![], recipe)?;
        let place = self.place.inner(self.windows);
        self.windows += 1;
        let args = vec![Tensor::scalar(key), window.into_tensor()];
        let made = self.reduce.call(args).await?;
        match made.as_slice() {
            [one] if one.dtype() == DType::Variant && one.shape().is_scalar() => {
                self.current = Some(Dataset::from_tensor(one)?.iterate(&place)?);
                Ok(())
            }
            _ => Err(Status::invalid_argument(
                "`reduce_func` must return a single scalar of dtype DT_VARIANT.",
            )),
        }
    }
}

fn by_reducer(b: &KernelBuilder<'_>) -> Result<Built> {
    let spec = declared(b)?;
    let parts = parts(
        b,
        &["key_func", "init_func", "reduce_func", "finalize_func"],
    )?;
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let functions = capture(ctx, &parts)?;
        let recipe = ByReducer {
            input: input.clone(),
            functions,
        };
        Dataset::new("GroupByReducer", spec.clone(), vec![input], recipe)
    })
}

struct ByReducer {
    input: Dataset,
    functions: Vec<Captured>,
}

impl Recipe for ByReducer {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let [key, init, reduce, finalize] = functions(&self.functions, place)?;
        Ok(Box::new(ByReducerStream {
            input: Some(self.input.iterate(place)?),
            key,
            init,
            reduce,
            finalize,
            states: BTreeMap::new(),
        }))
    }
}

struct ByReducerStream {
    /// Gone once everything has been reduced.
    input: Option<Iter>,
    key: Fun,
    init: Fun,
    reduce: Fun,
    finalize: Fun,
    states: BTreeMap<i64, Vec<Tensor>>,
}

impl Stream for ByReducerStream {
    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            while let Some(input) = &mut self.input {
                let Some(element) = input.next().await? else {
                    self.input = None;
                    break;
                };
                let key_out = self.key.call(element.clone()).await?;
                let key = only::<i64>(&key_out, NO_KEY)?;
                let state = match self.states.get(&key) {
                    Some(state) => state.clone(),
                    None => self.init.call(vec![Tensor::scalar(key)]).await?,
                };
                let args = state.into_iter().chain(element).collect();
                let state = self.reduce.call(args).await?;
                self.states.insert(key, state);
            }
            match self.states.pop_first() {
                Some((_, state)) => Ok(Some(self.finalize.call(state).await?)),
                None => Ok(None),
            }
        })
    }
}
