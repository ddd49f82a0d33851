//! Who is the chief: the worker that initialises, restores, saves and writes summaries.
//!
//! A supervised session asks its [`Election`] before every step and whenever it must be made anew,
//! so that duties pass to another worker when the chief is gone.

mod coordinated;
mod fence;
mod lease;
mod shared;

pub use coordinated::CoordinatedElection;
pub use fence::Fence;
pub(crate) use fence::{gives_way, name_in_epoch};
pub use lease::LeaseElection;
pub use shared::SharedElection;

use std::sync::Arc;

/// Chooses the chief among the workers.
///
/// ```
/// use downpour_train::Election;
///
/// /// The chief changes every ten times that it is asked for.
/// struct Turns {
///     asked: usize,
///     me: usize,
///     all: usize,
/// }
///
/// impl Election for Turns {
///     fn is_chief(&mut self) -> bool {
///         self.asked += 1;
///         (self.asked - 1) / 10 % self.all == self.me
///     }
/// }
///
/// let mut second = Turns { asked: 0, me: 1, all: 2 };
/// let terms: Vec<bool> = (0..30).map(|_| second.is_chief()).collect();
/// assert!(!terms[0] && terms[10] && !terms[20]);
/// ```
pub trait Election: Send {
    /// Whether this worker is the chief now. It is asked often, so most answers must come from
    /// memory; whoever cannot be sure is not the chief.
    fn is_chief(&mut self) -> bool;

    /// The epoch in which this worker is the chief now: a later chief's is higher. An election that counts none says 0.
    fn epoch(&mut self) -> Option<u64> {
        self.is_chief().then_some(0)
    }

    /// Where the chief's checkpoints are committed, if not by their files alone.
    fn fence(&self) -> Option<Arc<dyn Fence>> {
        None
    }

    /// Whether the answer can ever change.
    fn may_change(&self) -> bool {
        true
    }

    /// Gives the duties up, at the end of training, so that others need not wait.
    fn resign(&mut self) {}
}

/// The chief is appointed once and for all.
///
/// ```
/// use downpour_train::{Appointed, Election};
/// // As in TensorFlow: the task of the chief job if there is one, else worker 0.
/// assert!(Appointed::by_role("worker", 0, ["ps", "worker"]).is_chief());
/// assert!(!Appointed::by_role("worker", 0, ["ps", "chief", "worker"]).is_chief());
/// assert!(Appointed::by_role("chief", 0, ["ps", "chief", "worker"]).is_chief());
/// assert!(!Appointed::by_role("worker", 1, ["ps", "worker"]).is_chief());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appointed(pub bool);

impl Appointed {
    /// By what a task is in a cluster of these jobs.
    pub fn by_role<'a>(job: &str, task: u32, jobs: impl IntoIterator<Item = &'a str>) -> Appointed {
        let mut jobs = jobs.into_iter();
        let has_chief = jobs.any(|job| matches!(job, "chief" | "master"));
        let leads = match job {
            "chief" | "master" => true,
            "worker" => !has_chief,
            _ => false,
        };
        Appointed(leads && task == 0)
    }
}

impl Election for Appointed {
    fn is_chief(&mut self) -> bool {
        self.0
    }

    fn may_change(&self) -> bool {
        false
    }
}
