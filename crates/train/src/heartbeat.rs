//! A worker's sign of life: a thread that counts beside the model, so that one whose step takes long is not taken for dead.

use downpour_build::{Result, Status};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Thread;
use std::time::Duration;

/// Beats until it is dropped, or a beat fails: then the session is lost, and the next one beats anew.
pub(crate) struct Heartbeat {
    go_on: Arc<AtomicBool>,
    thread: Thread,
}

impl Heartbeat {
    /// Starts the thread `name`, which calls `beat` every so often, the first time after `first`.
    pub(crate) fn start(
        name: &str,
        first: Duration,
        every: Duration,
        mut beat: impl FnMut() -> Result<()> + Send + 'static,
    ) -> Result<Heartbeat> {
        let go_on = Arc::new(AtomicBool::new(true));
        let alive = go_on.clone();
        let thread = std::thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || {
            let mut pause = first;
            loop {
                if !pause.is_zero() {
                    std::thread::park_timeout(pause);
                }
                pause = every;
                if !alive.load(Ordering::Relaxed) || beat().is_err() {
                    return;
                }
            }
        });
        let thread = thread.map_err(|e| Status::unavailable(e.to_string()))?;
        Ok(Heartbeat {
            go_on,
            thread: thread.thread().clone(),
        })
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.go_on.store(false, Ordering::Relaxed);
        self.thread.unpark();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn beats_until_it_is_dropped_or_a_beat_fails() {
        let (beat, beats) = channel();
        let hour = Duration::from_secs(3600);
        let moment = Duration::from_millis(1);
        let heartbeat = Heartbeat::start("test", Duration::ZERO, moment, move || {
            let _ = beat.send(());
            Ok(())
        });
        beats.recv().unwrap();
        beats.recv().unwrap();
        drop(heartbeat);
        // The thread ends, and with it what it sends by.
        while beats.recv().is_ok() {}

        let (beat, beats) = channel();
        let waits = Heartbeat::start("test", hour, hour, move || {
            let _ = beat.send(());
            Ok(())
        });
        drop(waits);
        assert!(beats.recv().is_err());

        let (beat, beats) = channel();
        let _fails = Heartbeat::start("test", Duration::ZERO, moment, move || {
            let _ = beat.send(());
            Err(Status::unavailable("the session is lost"))
        });
        assert_eq!((beats.recv().is_ok(), beats.recv().is_err()), (true, true));
    }
}
