//! Statistics of pipelines: aggregators (`StatsAggregatorHandle(V2)`), the dataset that has what is below it report to
//! one (`SetStatsAggregatorDataset`), and what reports: `LatencyStatsDataset`, `BytesProducedStatsDataset`. Reports of the
//! other datasets, which TensorFlow sends unasked, are not made.

use super::dataset::{Cardinality, Dataset, Iter, Next, Place, Recipe, Stream};
use super::define;
use super::prefetch::Through;
use super::state::{Restoring, Saving, State};
use crate::queue::shared_handle::{Access, Home};
use crate::summary::{SummaryWriter, WRITER_TYPE};
use bytes::Bytes;
use downpour_formats::event::encode_step_event;
use downpour_formats::histogram::Histogram;
use downpour_formats::summary::{SummaryContent, SummaryValue, encode_summary};
use downpour_graph::Result;
use downpour_runtime::{Built, Host, KernelBuilder, Registry, Resource};
use downpour_tensor::{DType, Tensor};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// TensorFlow's C++ type.
const AGGREGATOR_TYPE: &str = "N10tensorflow4data23StatsAggregatorResourceE";

pub(super) fn register(r: &mut Registry) {
    for op in ["StatsAggregatorHandle", "ExperimentalStatsAggregatorHandle"] {
        r.add(op, |b| handle(b, false));
    }
    r.add("StatsAggregatorHandleV2", |b| handle(b, true));
    for op in [
        "StatsAggregatorSummary",
        "ExperimentalStatsAggregatorSummary",
    ] {
        r.add(op, |b| {
            let access = Access::new(b, AGGREGATOR_TYPE);
            Built::cheap(move |ctx| {
                let summary = access.of_ctx::<Aggregator>(ctx)?.summary()?;
                ctx.set_output(0, Tensor::string(summary));
                Ok(())
            })
        });
    }
    r.add("StatsAggregatorSetSummaryWriter", |b| {
        let aggregator = Access::new(b, AGGREGATOR_TYPE);
        let writer = Access::at(b, 1, WRITER_TYPE);
        Built::cheap(move |ctx| {
            let writer = writer.of_ctx::<SummaryWriter>(ctx)?;
            aggregator.of_ctx::<Aggregator>(ctx)?.known.lock().writer = Some(writer);
            Ok(())
        })
    });
    for op in [
        "SetStatsAggregatorDataset",
        "ExperimentalSetStatsAggregatorDataset",
    ] {
        r.add(op, |b| {
            let access = Access::at(b, 1, AGGREGATOR_TYPE);
            define::dataset(move |ctx| {
                let input = define::input(ctx, 0)?;
                // Names the counters of a whole process, which are not kept here.
                define::string(ctx, 3, "counter_prefix")?;
                let recipe = SetStats {
                    input: input.clone(),
                    stats: Stats {
                        aggregator: access.of_ctx(ctx)?,
                        tag: define::string(ctx, 2, "tag")?,
                    },
                };
                let spec = input.spec().clone();
                Dataset::new("SetStatsAggregator", spec, vec![input], recipe)
            })
        });
    }
    for op in ["LatencyStatsDataset", "ExperimentalLatencyStatsDataset"] {
        r.add(op, |_| reporting("LatencyStats", Measure::Latency));
    }
    for op in [
        "BytesProducedStatsDataset",
        "ExperimentalBytesProducedStatsDataset",
    ] {
        r.add(op, |_| reporting("BytesProducedStats", Measure::Bytes));
    }
}

fn handle(b: &KernelBuilder<'_>, pushes: bool) -> Result<Built> {
    let home = Home::<Aggregator>::new(b, AGGREGATOR_TYPE)?;
    Built::cheap(move |ctx| {
        home.get(ctx, || Ok(Aggregator::new(pushes)))?;
        home.emit(ctx)
    })
}

/// Histograms by name. The second kind writes them as events instead of showing them when asked.
struct Aggregator {
    pushes: bool,
    known: Mutex<Known>,
}

#[derive(Default)]
struct Known {
    histograms: BTreeMap<Bytes, Histogram>,
    writer: Option<Arc<SummaryWriter>>,
}

impl Resource for Aggregator {
    fn type_name(&self) -> &'static str {
        AGGREGATOR_TYPE
    }
}

impl Aggregator {
    fn new(pushes: bool) -> Aggregator {
        Aggregator {
            pushes,
            known: Mutex::default(),
        }
    }

    fn add(&self, name: Bytes, value: f64, step: i64) -> Result<()> {
        let (writer, histogram) = {
            let mut known = self.known.lock();
            let histogram = known.histograms.entry(name.clone()).or_default();
            histogram.add(value);
            let now = self.pushes.then(|| histogram.clone());
            match (now, &known.writer) {
                (Some(histogram), Some(writer)) => (writer.clone(), histogram),
                _ => return Ok(()),
            }
        };
        let summary = encode_summary(vec![entry(name, histogram)])?;
        writer.write(encode_step_event(
            writer.now_seconds(),
            step,
            Some(&summary),
        ))
    }

    fn summary(&self) -> Result<Vec<u8>> {
        if self.pushes {
            return Ok(Vec::new());
        }
        let known = self.known.lock();
        let entries = known.histograms.iter();
        encode_summary(
            entries
                .map(|(name, h)| entry(name.clone(), h.clone()))
                .collect(),
        )
    }
}

fn entry(name: Bytes, histogram: Histogram) -> SummaryValue {
    SummaryValue::new(name, SummaryContent::Histogram(histogram))
}

/// Where a walk reports to, and under which name.
#[derive(Clone)]
pub(super) struct Stats {
    aggregator: Arc<Aggregator>,
    tag: Bytes,
}

impl Stats {
    fn name(&self, of: &[u8]) -> Bytes {
        match self.tag.is_empty() {
            true => Bytes::copy_from_slice(of),
            false => [&self.tag, &b"::"[..], of].concat().into(),
        }
    }
}

struct SetStats {
    input: Dataset,
    stats: Stats,
}

impl Recipe for SetStats {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let place = place.reporting(self.stats.clone());
        Ok(Box::new(Through(self.input.iterate(&place)?)))
    }
    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }
}

#[derive(Clone, Copy)]
enum Measure {
    /// Microseconds from asking for an element to its being there.
    Latency,
    /// Of an element.
    Bytes,
}

fn reporting(kind: &'static str, measure: Measure) -> Result<Built> {
    define::dataset(move |ctx| {
        let input = define::input(ctx, 0)?;
        let recipe = Reporting {
            input: input.clone(),
            tag: define::string(ctx, 1, "tag")?,
            measure,
        };
        Dataset::new(kind, input.spec().clone(), vec![input], recipe)
    })
}

struct Reporting {
    input: Dataset,
    tag: Bytes,
    measure: Measure,
}

impl Recipe for Reporting {
    fn open(&self, place: &Place) -> Result<Box<dyn Stream>> {
        let input = self.input.iterate(place)?;
        let Some(stats) = place.stats() else {
            return Ok(Box::new(Through(input)));
        };
        Ok(Box::new(ReportingStream {
            input,
            name: stats.name(&self.tag),
            aggregator: stats.aggregator.clone(),
            measure: self.measure,
            host: place.device.extensions.get::<Host>().cloned(),
            given: 0,
        }))
    }
    fn cardinality(&self) -> Cardinality {
        self.input.cardinality()
    }
}

struct ReportingStream {
    input: Iter,
    name: Bytes,
    aggregator: Arc<Aggregator>,
    measure: Measure,
    host: Option<Host>,
    given: i64,
}

impl Stream for ReportingStream {
    fn save(&mut self) -> Saving<'_> {
        Box::pin(async move { Ok(Some(State::of([self.given]).with(self.input.save().await?))) })
    }

    fn restore(&mut self, mut state: State) -> Restoring<'_> {
        Box::pin(async move {
            self.given = state.number(0)?;
            self.input.restore(state.below(0)?).await
        })
    }

    fn next(&mut self) -> Next<'_> {
        Box::pin(async move {
            let now = |host: &Option<Host>| host.as_ref().map_or(0, Host::now_micros);
            let start = now(&self.host);
            let got = self.input.next().await?;
            if let Some(element) = &got {
                let value = match self.measure {
                    Measure::Latency => now(&self.host).saturating_sub(start) as f64,
                    Measure::Bytes => element.iter().map(bytes_of).sum::<usize>() as f64,
                };
                self.aggregator.add(self.name.clone(), value, self.given)?;
                self.given += 1;
            }
            Ok(got)
        })
    }
}

/// Bytes of a tensor as TensorFlow counts them: of strings also what lies elsewhere, and 24 for each that says where.
fn bytes_of(t: &Tensor) -> usize {
    match (t.dtype(), t.as_strings()) {
        (DType::String, Ok(strings)) => strings.iter().map(|s| 24 + s.len()).sum(),
        _ => t.num_elements() * t.dtype().size().unwrap_or(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_aggregator_shows_what_it_was_told_under_its_tags() {
        let aggregator = Arc::new(Aggregator::new(false));
        let stats = |tag: &'static str| Stats {
            aggregator: aggregator.clone(),
            tag: tag.into(),
        };
        assert_eq!(stats("").name(b"bytes"), "bytes");
        let name = stats("train").name(b"bytes");
        assert_eq!(name, "train::bytes");
        aggregator.add(name, 8.0, 0).unwrap();
        aggregator.add("other".into(), 1.0, 0).unwrap();
        let summary = aggregator.summary().unwrap();
        let (tags, _) = downpour_formats::summary::summary_values(&summary).unwrap();
        assert_eq!(tags, ["other", "train::bytes"]);
        assert!(Aggregator::new(true).summary().unwrap().is_empty());
    }
}
