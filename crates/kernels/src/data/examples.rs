//! `ParseExampleDataset`: batches of serialized `tf.Example`s, parsed beside each other.

use super::dataset::{Cardinality, Dataset, Element, Next, Place, Recipe, Stream};
use super::define::{self, declared};
use super::function::{Fun, Native};
use super::parallel_map::{Calls, Taken, ordered, parallelism, tuned};
use super::state::{Restoring, Saving, State};
use crate::parse::batch::{Parsed, parse_batch};
use crate::parse::config::{Config, DenseShape, dense, ragged, sparse};
use crate::sparse::ragged_variant::Ragged;
use crate::sparse::serialize::Held;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, Device, KernelBuilder, Registry};
use downpour_tensor::{DType, Tensor, Variant};
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    for op in ["ParseExampleDataset", "ExperimentalParseExampleDataset"] {
        r.add(op, |b| parse_example(b, "ParseExample"));
    }
    r.add("ParseExampleDatasetV2", |b| {
        parse_example(b, "ParseExampleV2")
    });
}

/// Which output of the parser is a component.
#[derive(Clone, Copy)]
enum Part {
    Dense(usize),
    Sparse(usize),
    Ragged(usize),
}

fn parse_example(b: &KernelBuilder<'_>, kind: &'static str) -> Result<Built> {
    let attrs = b.attrs();
    let spec = declared(b)?;
    let types = |name: &str| match attrs.find(name) {
        Some(_) => attrs.dtypes(name).map(<[DType]>::to_vec),
        None => Ok(vec![]),
    };
    let keys = |name: &str| match attrs.find(name) {
        Some(_) => attrs.byte_strings(name).map(<[Bytes]>::to_vec),
        None => Ok(vec![]),
    };
    let (sparse_keys, dense_keys, ragged_keys) = (
        keys("sparse_keys")?,
        keys("dense_keys")?,
        keys("ragged_keys")?,
    );
    let (sparse_types, dense_types) = (types("sparse_types")?, types("Tdense")?);
    let (ragged_types, split_types) = (types("ragged_value_types")?, types("ragged_split_types")?);
    let shapes = DenseShape::parse(attrs.shapes("dense_shapes")?)?;
    let deterministic = ordered(b)?;
    // Components come in the order of their keys.
    let mut order = BTreeMap::new();
    let dense_parts = dense_keys
        .iter()
        .enumerate()
        .map(|(i, k)| (k, Part::Dense(i)));
    let sparse_parts = sparse_keys
        .iter()
        .enumerate()
        .map(|(i, k)| (k, Part::Sparse(i)));
    let ragged_parts = ragged_keys
        .iter()
        .enumerate()
        .map(|(i, k)| (k, Part::Ragged(i)));
    for (key, part) in dense_parts.chain(sparse_parts).chain(ragged_parts) {
        order.insert(key.clone(), part);
    }
    let order: Arc<[Part]> = order.into_values().collect();
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        if input.spec().types != [DType::String] {
            return Err(Status::invalid_argument(
                "Input dataset should be a dataset of vectors of strings",
            ));
        }
        let calls = parallelism(define::int(ctx, 1, "num_parallel_calls")?)?;
        let defaults = ctx.inputs(2..2 + dense_keys.len())?;
        let config = Config::new(
            dense(&dense_keys, &dense_types, &shapes, &defaults)?,
            sparse(&sparse_keys, &sparse_types),
            ragged(&ragged_keys, &ragged_types, &split_types),
        )?;
        let recipe = Parse {
            input: input.clone(),
            config: Arc::new(config),
            order: order.clone(),
            calls,
            deterministic,
        };
        Dataset::new(kind, spec.clone(), vec![input], recipe)
    })
}

struct Parse {
    input: Dataset,
    config: Arc<Config>,
    order: Arc<[Part]>,
    calls: Option<usize>,
    deterministic: Option<bool>,
}

impl Recipe for Parse {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let input = self.input.iterate(place)?;
        let (config, order, device) = (
            self.config.clone(),
            self.order.clone(),
            place.device.clone(),
        );
        let work: Native = Arc::new(move |element| parse(&device, &config, &order, &element));
        let ordered = self.deterministic.unwrap_or(place.deterministic);
        let calls = Calls::new(place, input, Fun::native(work), tuned(self.calls), ordered);
        Ok(Box::new(ParseStream(calls)))
    }
    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }
    fn is_ahead(&self, _: &Place) -> bool {
        true
    }
}

struct ParseStream(Calls);

impl Stream for ParseStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move { self.0.save().await.map(Some) })
    }

    fn restore(&mut self, state: State) -> Restoring<'_> {
        Box::pin(self.0.restore(state))
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            match self.0.next().await {
                Taken::End => Ok(None),
                Taken::Input(e) => Err(e),
                Taken::Call(outcome) => outcome.map(Some),
            }
        })
    }
}

fn parse(device: &Device, config: &Config, order: &[Part], element: &[Tensor]) -> Result<Element> {
    let [serialized] = element else {
        return Err(Status::internal(
            "an element to parse has other than one component",
        ));
    };
    if serialized.rank() != 1 {
        return Err(Status::invalid_argument(format!(
            "Expected serialized to be a vector, got shape: {}",
            serialized.shape()
        )));
    }
    let Parsed {
        sparse,
        dense,
        ragged,
    } = parse_batch(device, config, serialized.as_strings()?, &[])?;
    let lost = || Status::internal("a parsed feature is missing");
    let part = |part: &Part| match *part {
        Part::Dense(i) => dense.get(i).cloned().ok_or_else(lost),
        Part::Sparse(i) => {
            let three = sparse.get(i).ok_or_else(lost)?;
            let three = three.iter().map(|t| Variant::new(Held(t.clone())));
            Ok(Tensor::variants(three.collect(), [3])?)
        }
        Part::Ragged(i) => {
            let [values, splits] = ragged.get(i).ok_or_else(lost)?.clone();
            let splits = vec![splits];
            Ok(Tensor::variant(Variant::new(Ragged { values, splits })))
        }
    };
    order.iter().map(part).collect()
}
