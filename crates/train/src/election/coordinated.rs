//! An election that a coordination service holds: etcd, ZooKeeper, or a folder. The rules are those
//! of `downpour-coordination`; here they only become an [`Election`].

use super::{Election, Fence};
use downpour_build::{Result, Status};
use downpour_coordination::{Coordinator, Member, Office, open};
use std::sync::Arc;
use std::time::Duration;

/// Elects by a lease in a coordination service.
///
/// While the service is lost nobody is elected and training goes on. A chief that cannot reach it
/// stops being one when its lease ends by its own clock, which is before another can be elected.
///
/// ```
/// use downpour_train::{CoordinatedElection, Election};
/// use std::time::Duration;
/// # let dir = tempfile::tempdir()?;
/// let url = format!("file://{}", dir.path().display()).parse()?;
/// let lease = Duration::from_millis(400);
/// let mut first = CoordinatedElection::join(&url, "/job:worker/task:0", lease)?;
/// assert_eq!(first.office().wait_for(|epoch| epoch.is_some(), Duration::from_secs(30)), Some(1));
/// let mut second = CoordinatedElection::join(&url, "/job:worker/task:1", lease)?;
/// assert!(!second.is_chief());
/// first.resign();
/// second.office().wait_for(|epoch| epoch.is_some(), Duration::from_secs(30));
/// assert!(second.is_chief() && !first.is_chief());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CoordinatedElection(Member);

impl CoordinatedElection {
    /// Takes part under a name that no other member has. All must be given the same lease.
    ///
    /// # Errors
    /// `UNAVAILABLE` if the service does not answer within seconds, or refuses.
    pub fn join(service: &Coordinator, name: &str, lease: Duration) -> Result<CoordinatedElection> {
        let register = open(service, lease).map_err(|e| Status::unavailable(e.to_string()))?;
        Ok(CoordinatedElection(Member::start_boxed(
            register, name, lease,
        )))
    }

    /// Sees that the service answers, before a job begins that needs it.
    ///
    /// # Errors
    /// `UNAVAILABLE` as of [`Self::join`], within seconds.
    pub fn check(service: &Coordinator) -> Result<()> {
        let opened = open(service, Duration::from_secs(1));
        opened
            .map(drop)
            .map_err(|e| Status::unavailable(e.to_string()))
    }

    /// Whether this worker is the chief, to be asked and waited for from anywhere.
    pub fn office(&self) -> &Office {
        self.0.office()
    }
}

impl Election for CoordinatedElection {
    fn is_chief(&mut self) -> bool {
        self.0.office().epoch().is_some()
    }

    fn epoch(&mut self) -> Option<u64> {
        self.0.office().epoch()
    }

    fn fence(&self) -> Option<Arc<dyn Fence>> {
        Some(Arc::new(self.0.office().clone()))
    }

    fn resign(&mut self) {
        self.0.resign();
    }
}
