//! Threads that work beside training and end together: the first error stops all, and whoever
//! joins them gets it.
//!
//! Invariant: a thread that ends in an error or a panic has asked all to stop before it counts as
//! ended, so that no error is lost between an end and a join.

use downpour_build::{Code, Result, Status};
use parking_lot::{Condvar, Mutex};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Lets threads stop together. Clones are the same coordinator.
///
/// ```
/// use downpour_train::Coordinator;
/// use downpour_build::{Code, Status};
/// use std::time::Duration;
/// let coordinator = Coordinator::new();
/// coordinator.spawn("patient", |coordinator| {
///     coordinator.wait_for_stop(Duration::from_secs(60));
///     Ok(())
/// })?;
/// coordinator.spawn("broken", |_| Err(Status::data_loss("a torn record")))?;
/// let error = coordinator.join(Duration::from_secs(60)).unwrap_err();
/// assert_eq!((error.code, error.message.as_str()), (Code::DataLoss, "a torn record"));
/// # Ok::<(), Status>(())
/// ```
#[derive(Clone, Default)]
pub struct Coordinator {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    stop: bool,
    error: Option<Status>,
    /// Errors of these codes only stop.
    clean: Vec<Code>,
    /// Threads that have not ended: their numbers and names.
    running: Vec<(u64, String)>,
    started: u64,
    children: Vec<Weak<Shared>>,
}

impl Coordinator {
    /// A coordinator for which the end of data (`OUT_OF_RANGE`) is no error.
    pub fn new() -> Coordinator {
        Coordinator::clean_on(&[Code::OutOfRange])
    }

    /// A coordinator for which errors of these codes only mean that it is time to stop.
    pub fn clean_on(codes: &[Code]) -> Coordinator {
        let coordinator = Coordinator::default();
        coordinator.shared.state.lock().clean = codes.to_vec();
        coordinator
    }

    /// A coordinator that stops when this one does, and may stop before.
    ///
    /// ```
    /// let all = downpour_train::Coordinator::new();
    /// let some = all.child();
    /// some.request_stop();
    /// assert!(!all.should_stop());
    /// let others = all.child();
    /// all.request_stop();
    /// assert!(others.should_stop() && all.child().should_stop());
    /// ```
    pub fn child(&self) -> Coordinator {
        let child = Coordinator::default();
        let mut state = self.shared.state.lock();
        child.shared.state.lock().stop = state.stop;
        state.children.retain(|known| known.strong_count() > 0);
        state.children.push(Arc::downgrade(&child.shared));
        child
    }

    /// Whether it is time to stop.
    pub fn should_stop(&self) -> bool {
        self.shared.state.lock().stop
    }

    /// Asks all to stop.
    pub fn request_stop(&self) {
        self.stop_with(None);
    }

    /// Asks all to stop because of an error. Of several the first counts; one of the clean codes
    /// is no error.
    pub fn fail(&self, error: Status) {
        self.stop_with(Some(error));
    }

    fn stop_with(&self, error: Option<Status>) {
        let children = {
            let mut state = self.shared.state.lock();
            let counts = |e: &Status| !state.stop && !state.clean.contains(&e.code);
            if let Some(error) = error.filter(counts) {
                state.error = Some(error);
            }
            state.stop = true;
            state.children.clone()
        };
        self.shared.changed.notify_all();
        for child in children.iter().filter_map(Weak::upgrade) {
            Coordinator { shared: child }.request_stop();
        }
    }

    /// The error that made all stop, if it was one.
    pub fn error(&self) -> Option<Status> {
        self.shared.state.lock().error.clone()
    }

    /// Waits until it is time to stop, or for so long; whether it is time to stop.
    pub fn wait_for_stop(&self, limit: Duration) -> bool {
        let mut state = self.shared.state.lock();
        let changed = &self.shared.changed;
        changed.wait_while_for(&mut state, |state| !state.stop, limit);
        state.stop
    }

    /// Runs `body` on a thread of its own, until it ends; it must look whether it is time to stop.
    /// Its error or panic stops all.
    ///
    /// # Errors
    /// If the system gives no thread.
    pub fn spawn(
        &self,
        name: &str,
        body: impl FnOnce(&Coordinator) -> Result<()> + Send + 'static,
    ) -> Result<()> {
        let number = {
            let mut state = self.shared.state.lock();
            state.started += 1;
            let number = state.started;
            state.running.push((number, name.to_owned()));
            number
        };
        let running = Running {
            coordinator: self.clone(),
            name: name.to_owned(),
            number,
        };
        let thread = std::thread::Builder::new().name(name.to_owned());
        let spawned = thread.spawn(move || {
            if let Err(error) = body(&running.coordinator) {
                running.coordinator.fail(error);
            }
        });
        match spawned {
            Ok(_) => Ok(()),
            // The closure is dropped, and with it what counts the thread.
            Err(e) => Err(Status::unavailable(format!("no thread for {name}: {e}"))),
        }
    }

    /// Runs `body` at once and then again after each such time, on a thread of its own, until it
    /// is time to stop.
    ///
    /// ```
    /// use std::sync::atomic::{AtomicUsize, Ordering};
    /// use std::sync::Arc;
    /// use std::time::Duration;
    /// let (coordinator, count) = (downpour_train::Coordinator::new(), Arc::new(AtomicUsize::new(0)));
    /// let (seen, stop) = (count.clone(), coordinator.clone());
    /// coordinator.spawn_every("count", Duration::from_millis(1), move || {
    ///     if seen.fetch_add(1, Ordering::Relaxed) == 4 {
    ///         stop.request_stop();
    ///     }
    ///     Ok(())
    /// })?;
    /// coordinator.join(Duration::from_secs(60))?;
    /// assert_eq!(count.load(Ordering::Relaxed), 5);
    /// # Ok::<(), downpour_build::Status>(())
    /// ```
    pub fn spawn_every(
        &self,
        name: &str,
        interval: Duration,
        mut body: impl FnMut() -> Result<()> + Send + 'static,
    ) -> Result<()> {
        self.spawn(name, move |coordinator| {
            let mut next = Instant::now();
            while !coordinator.wait_for_stop(next.saturating_duration_since(Instant::now())) {
                body()?;
                // Turns that took too long are not made up for.
                next = (next + interval).max(Instant::now());
            }
            Ok(())
        })
    }

    /// Waits until all threads have ended, and, once it is time to stop, for at most `grace`.
    ///
    /// # Errors
    /// The first error of a thread, or `DEADLINE_EXCEEDED` with the names of those that still run.
    pub fn join(&self, grace: Duration) -> Result<()> {
        let (shared, mut state) = (&self.shared, self.shared.state.lock());
        while !state.running.is_empty() && !state.stop {
            shared.changed.wait(&mut state);
        }
        let changed = &shared.changed;
        changed.wait_while_for(&mut state, |state| !state.running.is_empty(), grace);
        if let Some(error) = &state.error {
            return Err(error.clone());
        }
        if state.running.is_empty() {
            return Ok(());
        }
        let names: Vec<&str> = state.running.iter().map(|(_, n)| n.as_str()).collect();
        Err(Status::deadline_exceeded(format!(
            "Coordinator stopped with threads still running: {}",
            names.join(" ")
        )))
    }
}

/// Counts a thread until it ends, however it ends.
struct Running {
    coordinator: Coordinator,
    name: String,
    number: u64,
}

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let text = format!("the thread {} panicked", self.name);
            self.coordinator.fail(Status::internal(text));
        }
        let shared = &self.coordinator.shared;
        shared
            .state
            .lock()
            .running
            .retain(|(n, _)| *n != self.number);
        shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn the_first_error_wins() {
        let coordinator = Coordinator::new();
        coordinator.fail(Status::internal("first"));
        coordinator.fail(Status::internal("second"));
        assert_eq!(coordinator.join(LONG).unwrap_err().message, "first");
        let stopped = Coordinator::new();
        stopped.request_stop();
        stopped.fail(Status::internal("because it stopped"));
        assert!(stopped.join(LONG).is_ok());
    }

    #[test]
    fn the_end_of_data_stops_without_an_error() {
        let coordinator = Coordinator::new();
        coordinator
            .spawn("reader", |_| Err(Status::out_of_range("end")))
            .unwrap();
        assert!(coordinator.wait_for_stop(LONG));
        assert!(coordinator.join(LONG).is_ok() && coordinator.error().is_none());
        let strict = Coordinator::clean_on(&[]);
        strict.fail(Status::out_of_range("end"));
        assert_eq!(strict.join(LONG).unwrap_err().code, Code::OutOfRange);
    }

    #[test]
    fn a_panic_stops_all_and_names_the_thread() {
        let coordinator = Coordinator::new();
        coordinator
            .spawn("fragile", |_| panic!("on purpose"))
            .unwrap();
        let error = coordinator.join(LONG).unwrap_err();
        assert_eq!(error.message, "the thread fragile panicked");
    }

    #[test]
    fn who_does_not_stop_in_time_is_named() {
        let coordinator = Coordinator::new();
        let (go, wait) = mpsc::channel::<()>();
        coordinator
            .spawn("stubborn", move |_| {
                let _ = wait.recv();
                Ok(())
            })
            .unwrap();
        coordinator.request_stop();
        let error = coordinator.join(Duration::from_millis(1)).unwrap_err();
        assert_eq!(error.code, Code::DeadlineExceeded);
        assert!(error.message.contains("stubborn"), "{error}");
        go.send(()).unwrap();
        assert!(coordinator.join(LONG).is_ok());
    }
}
