//! What this task received from others, step by step, for a master that traces: `Logging` turns it
//! on and off and fetches it. Off, it costs one load per value.

use downpour_tensor::{PartialShape, Tensor};
use downpour_wire::messages::{DeviceStepStats, NodeExecStats, NodeOutput, TensorDescription};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Steps that may wait to be fetched. Past it something has gone wrong, and all are dropped, as
/// TensorFlow does.
const MAX_STEPS: usize = 1024;

/// The log of a task.
#[derive(Default)]
pub(crate) struct RpcLog {
    /// How many masters want it.
    wanted: AtomicUsize,
    /// Step → device → what came for it.
    steps: Mutex<BTreeMap<u64, BTreeMap<String, Vec<NodeExecStats>>>>,
}

impl RpcLog {
    /// Whether anything is to be recorded.
    pub(crate) fn is_on(&self) -> bool {
        self.wanted.load(Ordering::Relaxed) > 0
    }

    /// One more master wants it, or one less.
    pub(crate) fn want(&self, more: bool) {
        let change = |n: usize| Some(if more { n + 1 } else { n.saturating_sub(1) });
        let (order, read) = (Ordering::Relaxed, Ordering::Relaxed);
        // The closure always gives a value, so this cannot fail.
        let _ = self.wanted.fetch_update(order, read, change);
    }

    /// Forgets everything.
    pub(crate) fn clear(&self) {
        self.steps.lock().clear();
    }

    /// Takes what was recorded of a step.
    pub(crate) fn take(&self, step_id: u64) -> Option<Vec<DeviceStepStats>> {
        let devices = self.steps.lock().remove(&step_id)?;
        let stats = |(device, nodes)| DeviceStepStats {
            device,
            nodes,
            ..Default::default()
        };
        Some(devices.into_iter().map(stats).collect())
    }

    /// Records the value of a rendezvous key that came between two points in time.
    pub(crate) fn record(&self, step_id: u64, key: &str, value: &Tensor, (start, end): (i64, i64)) {
        let mut parts = key.split(';');
        let mut part = |i| parts.nth(i).unwrap_or_default();
        let (from, to, name) = (part(0), part(1), part(0));
        let bytes = value.buffer().map_or(0, |b| b.len()) as i64;
        let node = NodeExecStats {
            node_name: "RecvTensor".to_owned(),
            timeline_label: label(bytes, end - start, name, from, to),
            all_start_nanos: start,
            op_end_rel_nanos: end - start,
            all_end_rel_nanos: end - start,
            outputs: vec![NodeOutput {
                slot: 0,
                tensor: TensorDescription {
                    dtype: None,
                    shape: PartialShape::from_dims([]),
                    requested_bytes: bytes,
                    ..Default::default()
                },
            }],
            ..Default::default()
        };
        let mut steps = self.steps.lock();
        if steps.len() >= MAX_STEPS && !steps.contains_key(&step_id) {
            steps.clear();
        }
        let devices = steps.entry(step_id).or_default();
        devices.entry(to.to_owned()).or_default().push(node);
    }
}

/// `[4B] [0.008454Mb/s] edge_8_Sum from … to …`, as TensorFlow writes it for timelines.
fn label(bytes: i64, nanos: i64, name: &str, from: &str, to: &str) -> String {
    let size = match bytes as f64 / 1_048_576.0 {
        mega if mega >= 0.1 => format!("[{mega:.1}MB]"),
        _ => format!("[{bytes}B]"),
    };
    let micros = (nanos / 1000).max(1);
    let rate = match 8.0 * bytes as f64 / micros as f64 {
        mega if mega >= 1000.0 => format!("[{:.1}Gb/s]", mega / 1000.0),
        mega => format!("[{mega:.6}Mb/s]"),
    };
    format!("{size} {rate} {name} from {from} to {to}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_tensorflows() {
        assert_eq!(
            label(4, 3_785_000, "a", "x", "y"),
            "[4B] [0.008454Mb/s] a from x to y"
        );
        assert_eq!(
            label(2 << 20, 1_000_000, "a", "x", "y"),
            "[2.0MB] [16.8Gb/s] a from x to y"
        );
    }

    #[test]
    fn a_step_is_kept_until_it_is_fetched_and_not_for_ever() {
        let log = RpcLog::default();
        log.want(false);
        assert!(!log.is_on());
        log.want(true);
        assert!(log.is_on());
        let value = Tensor::vector(vec![1.0f32, 2.0]);
        log.record(7, "ps;1;worker;edge;0:0", &value, (1000, 9000));
        let stats = log.take(7).unwrap();
        assert_eq!((stats.len(), stats[0].device.as_str()), (1, "worker"));
        let node = &stats[0].nodes[0];
        assert_eq!(
            node.timeline_label,
            "[8B] [8.000000Mb/s] edge from ps to worker"
        );
        assert!(log.take(7).is_none());
        for step in 0..3 * MAX_STEPS as u64 {
            log.record(step, "ps;1;worker;edge;0:0", &value, (0, 1));
        }
        assert!(log.steps.lock().len() <= MAX_STEPS);
        log.clear();
        assert!(log.take(3 * MAX_STEPS as u64 - 1).is_none());
    }
}
