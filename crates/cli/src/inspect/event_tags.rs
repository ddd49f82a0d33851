//! What an event file says, tag by tag, as TensorBoard would sort it: scalars, histograms, images, audio,
//! tensors; and what is not under a tag: graphs, sessions, traced steps. Values are kept for scalars only.

use downpour_formats::tensor_proto;
use downpour_wire::proto::{self, event::What, summary::value};
use std::collections::BTreeMap;

/// Tags that are kept; more are only counted. A hostile file may use a new one in every event.
const MAX_TAGS: usize = 100_000;
/// Scalars that are kept of all tags together.
const MAX_POINTS: usize = 20_000_000;

/// A value at a step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Point {
    pub(super) step: i64,
    pub(super) wall_time: f64,
    pub(super) value: f64,
}

/// What was written under one tag.
#[derive(Debug, Default, Clone)]
pub(super) struct Tag {
    /// As TensorBoard's plugins are called.
    pub(super) kind: &'static str,
    pub(super) count: u64,
    pub(super) first_step: i64,
    pub(super) last_step: i64,
    pub(super) points: Vec<Point>,
}

/// Everything that the events of some files say.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) events: u64,
    pub(super) version: String,
    pub(super) tags: BTreeMap<String, Tag>,
    pub(super) more_tags: u64,
    pub(super) graphs: u64,
    pub(super) meta_graphs: u64,
    /// Status, step and checkpoint of sessions.
    pub(super) sessions: Vec<(&'static str, i64, String)>,
    pub(super) traces: Vec<String>,
    pub(super) messages: Vec<String>,
    pub(super) times: Option<(f64, f64)>,
    /// Where a step was smaller than one before it: a restart.
    pub(super) steps_back: u64,
    last_step: i64,
    points: usize,
}

/// Of lists that are shown whole.
const MAX_LISTED: usize = 10_000;

impl Seen {
    pub(super) fn add(&mut self, event: proto::Event) {
        self.events += 1;
        if event.wall_time.is_finite() && event.wall_time > 0.0 {
            let (from, to) = self.times.unwrap_or((event.wall_time, event.wall_time));
            self.times = Some((from.min(event.wall_time), to.max(event.wall_time)));
        }
        let step = event.step;
        match event.what {
            None => {}
            Some(What::FileVersion(version)) => self.version = version,
            Some(What::GraphDef(_)) => self.graphs += 1,
            Some(What::MetaGraphDef(_)) => self.meta_graphs += 1,
            Some(What::SessionLog(log)) if self.sessions.len() < MAX_LISTED => {
                use proto::session_log::SessionStatus;
                let status = match log.status() {
                    SessionStatus::Start => "start",
                    SessionStatus::Stop => "stop",
                    SessionStatus::Checkpoint => "checkpoint",
                    SessionStatus::StatusUnspecified => "unspecified",
                };
                let detail = match log.checkpoint_path.is_empty() {
                    true => log.msg,
                    false => log.checkpoint_path,
                };
                self.sessions.push((status, step, detail));
            }
            Some(What::TaggedRunMetadata(run)) if self.traces.len() < MAX_LISTED => {
                self.traces.push(run.tag)
            }
            Some(What::LogMessage(log)) if self.messages.len() < MAX_LISTED => {
                self.messages.push(log.message)
            }
            Some(What::SessionLog(_) | What::TaggedRunMetadata(_) | What::LogMessage(_)) => {}
            Some(What::Summary(summary)) => {
                self.steps_back += u64::from(step < self.last_step);
                self.last_step = step;
                for value in summary.value {
                    self.value(step, event.wall_time, value);
                }
            }
        }
    }

    fn value(&mut self, step: i64, wall_time: f64, value: proto::summary::Value) {
        let (kind, number) = content(&value);
        if !self.tags.contains_key(&value.tag) && self.tags.len() >= MAX_TAGS {
            self.more_tags += 1;
            return;
        }
        let keep = self.points < MAX_POINTS;
        let tag = self.tags.entry(value.tag).or_default();
        if tag.count == 0 {
            tag.first_step = step;
        }
        // TensorFlow 2 says what a tag is in its first value only.
        if tag.count == 0 || tag.kind == "tensors" {
            tag.kind = kind;
        }
        tag.count += 1;
        tag.last_step = step;
        if let Some(value) = number
            && tag.kind == "scalars"
            && keep
        {
            self.points += 1;
            tag.points.push(Point {
                step,
                wall_time,
                value,
            });
        }
    }
}

/// What kind a value is, and its number if it is one.
fn content(value: &proto::summary::Value) -> (&'static str, Option<f64>) {
    let plugin = value.metadata.as_ref().and_then(|m| m.plugin_data.as_ref());
    let plugin = plugin.map_or("", |p| p.plugin_name.as_str());
    match &value.value {
        Some(value::Value::SimpleValue(x)) => ("scalars", Some(f64::from(*x))),
        Some(value::Value::Histo(_)) => ("histograms", None),
        Some(value::Value::Image(_)) => ("images", None),
        Some(value::Value::Audio(_)) => ("audio", None),
        Some(value::Value::Tensor(tensor)) => {
            let kind = match plugin {
                "scalars" => "scalars",
                "histograms" => "histograms",
                "images" => "images",
                "audio" => "audio",
                "text" => "text",
                "graphs" => "graphs",
                _ => "tensors",
            };
            (kind, scalar(tensor))
        }
        _ => ("other", None),
    }
}

/// A tensor of one number.
fn scalar(tensor: &proto::TensorProto) -> Option<f64> {
    let tensor = tensor_proto::decode(tensor.clone(), 16).ok()?;
    if tensor.num_elements() != 1 {
        return None;
    }
    let mut found = None;
    super::statistics::each(&tensor, |x| found = Some(x))?;
    found
}
