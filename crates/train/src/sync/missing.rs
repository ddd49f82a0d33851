//! Who holds synchronous training up: told on standard error by the log, and to whoever asks.

use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::warn;

/// The workers that hold synchronous training up, as one of them sees it. Clones show the same.
///
/// The chief names those whose gradients it waits for; any other worker names those that it hears
/// nothing of, the chief among them.
///
/// ```
/// use downpour_train::MissingWorkers;
/// use std::time::Duration;
/// let missing = MissingWorkers::default();
/// assert!(missing.names().is_empty());
/// // Waits until others than these are missing, or for this long.
/// assert!(missing.changed_from(&[], Duration::from_millis(1)).is_empty());
/// ```
#[derive(Clone, Default)]
pub struct MissingWorkers(Arc<Inner>);

#[derive(Default)]
struct Inner {
    names: Mutex<Vec<String>>,
    changed: Condvar,
}

impl MissingWorkers {
    /// Their names, `/job:J/task:N`; empty as long as training goes on.
    pub fn names(&self) -> Vec<String> {
        self.0.names.lock().clone()
    }

    /// Waits until the names are others than `seen`, or time is up; the names then.
    pub fn changed_from(&self, seen: &[String], limit: Duration) -> Vec<String> {
        let end = Instant::now() + limit;
        let mut names = self.0.names.lock();
        while *names == seen && !self.0.changed.wait_until(&mut names, end).timed_out() {}
        names.clone()
    }

    /// Who is missing now, and what is known of each. Tells when that is news.
    pub(crate) fn tell(&self, missing: &[(String, String)]) {
        let names: Vec<String> = missing.iter().map(|(name, _)| name.clone()).collect();
        let mut told = self.0.names.lock();
        if *told == names {
            return;
        }
        if names.is_empty() {
            warn!(
                "synchronous training goes on: it waited for {}",
                told.join(", ")
            );
        } else {
            let known = missing
                .iter()
                .map(|(name, what)| format!("{name} ({what})"));
            let known = known.collect::<Vec<_>>().join(", ");
            warn!("synchronous training waits for {known}");
        }
        *told = names;
        self.0.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_waits_hears_of_a_change() {
        let missing = MissingWorkers::default();
        let other = missing.clone();
        let thread = std::thread::spawn(move || other.changed_from(&[], Duration::from_secs(60)));
        missing.tell(&[("/job:worker/task:1".to_owned(), "silent for 3s".to_owned())]);
        assert_eq!(thread.join().unwrap(), ["/job:worker/task:1"]);
        let seen = missing.names();
        missing.tell(&[]);
        assert!(
            missing
                .changed_from(&seen, Duration::from_secs(60))
                .is_empty()
        );
    }
}
