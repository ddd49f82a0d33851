//! Curves: the scalars of event files, by run and tag. Bounded in number and length; a curve that
//! grows too long is thinned out evenly.

use downpour_tensor::DType;
use downpour_wire::proto::{Event, event, summary};
use downpour_wire::{Budget, Meter, decode_tensor};
use serde::Serialize;
use std::collections::BTreeMap;

/// Curves that are kept; more are only counted.
const MAX_CURVES: usize = 200;
/// Points of one.
const MAX_POINTS: usize = 500;
/// Characters of a tag.
const MAX_TAG: usize = 200;

/// All curves.
#[derive(Default)]
pub(crate) struct Scalars {
    curves: BTreeMap<(String, String), Curve>,
    version: u64,
    left_out: u64,
    /// The step of the newest event.
    step: Option<i64>,
}

#[derive(Default)]
struct Curve {
    points: Vec<Point>,
    /// Of how many points one is kept.
    stride: u64,
    seen: u64,
    /// The newest point, if it is not among the kept.
    last: Option<Point>,
}

/// Step, wall time and value; a value that is no number shows as a gap.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct Point(pub(crate) i64, pub(crate) f64, pub(crate) Option<f32>);

/// A curve as the page gets it.
#[derive(Serialize)]
pub(crate) struct Shown<'a> {
    run: &'a str,
    tag: &'a str,
    points: Vec<Point>,
}

impl Scalars {
    /// Takes an event of a run.
    pub(crate) fn add(&mut self, run: &str, event: &Event) {
        let Some(event::What::Summary(summary)) = &event.what else {
            return;
        };
        if !event.wall_time.is_finite() {
            return;
        }
        for value in &summary.value {
            if let Some(number) = scalar(value) {
                self.step = Some(event.step);
                let tag: String = value.tag.chars().take(MAX_TAG).collect();
                self.point(run, tag, event.step, event.wall_time, number);
            }
        }
    }

    fn point(&mut self, run: &str, tag: String, step: i64, time: f64, value: f32) {
        let key = (run.to_owned(), tag);
        if self.curves.len() >= MAX_CURVES && !self.curves.contains_key(&key) {
            self.left_out += 1;
            return;
        }
        self.version += 1;
        let value = value.is_finite().then_some(value);
        let curve = self.curves.entry(key).or_default();
        curve.add(Point(step, time, value));
    }

    /// The step of which the newest event tells.
    pub(crate) fn step(&self) -> Option<i64> {
        self.step
    }

    /// Changes whenever a point is added.
    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    /// The last number of every tag; of several runs with the same tag, the last one's.
    pub(crate) fn results(&self) -> BTreeMap<String, f32> {
        let last = self.curves.iter().filter_map(|((_, tag), curve)| {
            let points = curve.points.iter().chain(curve.last.iter());
            Some((tag.clone(), points.rev().find_map(|p| p.2)?))
        });
        last.collect()
    }

    /// Tags whose newest value is no number.
    pub(crate) fn broken(&self) -> Vec<&str> {
        let curves = self.curves.iter().filter(|(_, curve)| {
            let newest = curve.last.or(curve.points.last().copied());
            newest.is_some_and(|p| p.2.is_none())
        });
        curves.map(|((_, tag), _)| tag.as_str()).collect()
    }

    /// All curves.
    pub(crate) fn shown(&self) -> Vec<Shown<'_>> {
        let curves = self.curves.iter();
        curves
            .map(|((run, tag), curve)| {
                let mut points = curve.points.clone();
                points.extend(curve.last);
                Shown { run, tag, points }
            })
            .collect()
    }
}

impl Curve {
    fn add(&mut self, point: Point) {
        // A training that went back to a checkpoint goes through its steps again.
        let newest = self.last.as_ref().or(self.points.last());
        if newest.is_some_and(|p| p.0 >= point.0) {
            self.points.retain(|p| p.0 < point.0);
            self.last = None;
        }
        self.stride = self.stride.max(1);
        self.last = Some(point);
        if self.seen.is_multiple_of(self.stride) {
            self.points.extend(self.last.take());
        }
        self.seen += 1;
        if self.points.len() >= MAX_POINTS {
            let mut place = 0;
            self.points.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            self.stride *= 2;
        }
    }
}

/// The number that a summary's value is, in the old form or the new.
fn scalar(value: &summary::Value) -> Option<f32> {
    match value.value.as_ref()? {
        summary::value::Value::SimpleValue(number) => Some(*number),
        summary::value::Value::Tensor(tensor) => {
            let plugin = value.metadata.as_ref()?.plugin_data.as_ref()?;
            if plugin.plugin_name != "scalars" {
                return None;
            }
            let mut meter = Meter::from(&Budget::default());
            let tensor = decode_tensor(tensor.clone(), &mut meter).ok()?;
            match tensor.dtype() {
                DType::Float => tensor.as_slice::<f32>().ok()?.first().copied(),
                DType::Double => Some(*tensor.as_slice::<f64>().ok()?.first()? as f32),
                _ => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_wire::proto::Summary;

    fn event(step: i64, tag: &str, value: f32) -> Event {
        let value = summary::Value {
            tag: tag.into(),
            value: Some(summary::value::Value::SimpleValue(value)),
            ..Default::default()
        };
        Event {
            wall_time: step as f64,
            step,
            what: Some(event::What::Summary(Summary { value: vec![value] })),
            ..Default::default()
        }
    }

    #[test]
    fn a_long_curve_is_thinned_out_and_keeps_its_ends() {
        let mut scalars = Scalars::default();
        for step in 0..100_000 {
            scalars.add("train", &event(step, "loss", step as f32));
        }
        let shown = scalars.shown();
        let points = &shown[0].points;
        assert!((MAX_POINTS / 3..=MAX_POINTS).contains(&points.len()));
        assert_eq!(points[0].0, 0);
        assert_eq!(points.last().unwrap().0, 99_999);
        let gaps: Vec<i64> = points.windows(2).map(|w| w[1].0 - w[0].0).collect();
        assert!(gaps[..gaps.len() - 1].iter().all(|g| *g == gaps[0]));
    }

    #[test]
    fn steps_that_are_done_again_replace_the_old_ones() {
        let mut scalars = Scalars::default();
        for step in [0, 10, 20, 30, 15, 25] {
            scalars.add("train", &event(step, "loss", 0.0));
        }
        let steps: Vec<i64> = scalars.shown()[0].points.iter().map(|p| p.0).collect();
        assert_eq!(steps, [0, 10, 15, 25]);
    }

    #[test]
    fn hostile_events_are_bounded() {
        let mut scalars = Scalars::default();
        let mut late = event(1, "a", 1.0);
        late.wall_time = f64::NAN;
        scalars.add("r", &late);
        assert!(scalars.shown().is_empty());
        scalars.add("r", &event(i64::MIN, "nan", f32::NAN));
        assert_eq!(scalars.shown()[0].points[0].2, None);
        for i in 0..2 * MAX_CURVES {
            scalars.add("r", &event(0, &format!("{i}{}", "x".repeat(10_000)), 0.0));
        }
        assert_eq!(scalars.shown().len(), MAX_CURVES);
        assert!(scalars.shown().iter().all(|c| c.tag.len() <= MAX_TAG));
    }
}
