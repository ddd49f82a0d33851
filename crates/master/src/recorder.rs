//! What session runs do, recorded on demand for an observer of a running job, without its clients knowing.
//!
//! A recording traces the next runs that begin and keeps the one with the most nodes, because clients also ask for small
//! things beside their steps. While nobody records, a run pays one load.
//!
//! *Invariant:* at most one recording at a time, of a bounded number of runs, and none outlives the one who asked.

use downpour_graph::{Result, Status};
use downpour_wire::messages::{DeviceStepStats, StepStats};
use parking_lot::Mutex;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::Notify;

/// Runs that one recording traces. More than a client asks for between two of its steps.
const RUNS: usize = 8;

/// The recorder of a master.
#[derive(Default)]
pub(crate) struct Recorder {
    /// As `State::left`, for runs that must not wait for a lock.
    left: AtomicUsize,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    is_recording: bool,
    /// Counts recordings: a run that outlives its own has no part in the next.
    number: u64,
    /// Runs that are still to be traced.
    left: usize,
    /// Runs that are being traced.
    open: usize,
    best: Vec<DeviceStepStats>,
}

impl Recorder {
    /// Traces the next runs; resolves when they have ended, or `enough` does, with what the largest did on each device.
    /// Nothing if no run has ended.
    pub(crate) async fn record(
        &self,
        enough: impl Future<Output = ()>,
    ) -> Result<Option<StepStats>> {
        let turn = Turn::begin(self)?;
        let all = async {
            loop {
                let changed = self.changed.notified();
                let is_over = {
                    let state = self.state.lock();
                    state.left == 0 && state.open == 0
                };
                if is_over {
                    return;
                }
                changed.await;
            }
        };
        tokio::select! {
            () = all => {}
            () = enough => {}
        }
        let devices = std::mem::take(&mut self.state.lock().best);
        drop(turn);
        Ok((!devices.is_empty()).then_some(StepStats { devices }))
    }

    /// A run begins; whether it is to be traced.
    pub(crate) fn run(&self) -> Option<RecordedRun<'_>> {
        if self.left.load(Relaxed) == 0 {
            return None;
        }
        let mut state = self.state.lock();
        state.left = state.left.checked_sub(1)?;
        self.left.store(state.left, Relaxed);
        state.open += 1;
        Some(RecordedRun(self, state.number))
    }
}

/// One recording under way.
struct Turn<'a>(&'a Recorder);

impl<'a> Turn<'a> {
    fn begin(recorder: &'a Recorder) -> Result<Turn<'a>> {
        let mut state = recorder.state.lock();
        if state.is_recording {
            return Err(Status::unavailable(
                "another recording of steps is under way on this task; try again when it has ended",
            ));
        }
        *state = State {
            is_recording: true,
            number: state.number + 1,
            left: RUNS,
            ..State::default()
        };
        recorder.left.store(RUNS, Relaxed);
        Ok(Turn(recorder))
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        self.0.left.store(0, Relaxed);
        let number = state.number;
        *state = State {
            number,
            ..State::default()
        };
    }
}

/// A run that is traced; it ends when dropped.
pub(crate) struct RecordedRun<'a>(&'a Recorder, u64);

impl RecordedRun<'_> {
    /// Takes what it did.
    pub(crate) fn did(self, devices: &[DeviceStepStats]) {
        let nodes = |devices: &[DeviceStepStats]| devices.iter().map(|d| d.nodes.len()).sum();
        let mut state = self.0.state.lock();
        let (now, before): (usize, usize) = (nodes(devices), nodes(&state.best));
        if state.number == self.1 && state.is_recording && now > before {
            state.best = devices.to_vec();
        }
    }
}

impl Drop for RecordedRun<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if state.number == self.1 {
            state.open = state.open.saturating_sub(1);
            self.0.changed.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use downpour_wire::messages::NodeExecStats;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn device(nodes: usize) -> [DeviceStepStats; 1] {
        [DeviceStepStats {
            nodes: vec![NodeExecStats::default(); nodes],
            ..Default::default()
        }]
    }

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn the_largest_of_the_next_runs_is_kept() {
        let recorder = Recorder::default();
        assert!(recorder.run().is_none(), "nobody records");
        let mut recording = pin!(recorder.record(std::future::pending()));
        assert!(poll(recording.as_mut()).is_pending());
        for nodes in [1, 9, 3, 0, 2, 2, 2] {
            recorder.run().unwrap().did(&device(nodes));
        }
        let last = recorder.run().unwrap();
        assert!(recorder.run().is_none(), "more than one recording takes");
        assert!(poll(recording.as_mut()).is_pending(), "one is under way");
        drop(last);
        let Poll::Ready(Ok(Some(stats))) = poll(recording) else {
            panic!("all have ended");
        };
        assert_eq!(stats.devices[0].nodes.len(), 9);
    }

    #[test]
    fn a_recording_ends_with_whoever_asked_and_runs_of_an_earlier_one_have_no_part_in_it() {
        let recorder = Recorder::default();
        let stray = {
            let mut given_up = pin!(recorder.record(std::future::pending()));
            assert!(poll(given_up.as_mut()).is_pending());
            let second = pin!(recorder.record(std::future::pending()));
            assert!(matches!(poll(second), Poll::Ready(Err(_))), "one at a time");
            recorder.run().unwrap()
        };
        assert!(recorder.run().is_none(), "nobody records any more");
        let (tx, rx) = tokio::sync::oneshot::channel::<()>();
        let enough = async {
            let _ = rx.await;
        };
        let mut recording = pin!(recorder.record(enough));
        assert!(poll(recording.as_mut()).is_pending());
        stray.did(&device(5));
        tx.send(()).unwrap();
        assert!(matches!(poll(recording), Poll::Ready(Ok(None))));
    }
}
