//! What replicas read and did, and whether it kept within a bound: what tests and suspicious users
//! check afterwards.

use super::Bound;

/// One step of a replica: which model it computed with.
///
/// [`check`] looks through many.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Read {
    /// The replica.
    pub worker: usize,
    /// The number of its step.
    pub step: u64,
    /// How many updates the model had seen when it was read, at least.
    pub version: u64,
    /// How many steps of each replica were in it, at least; nothing for one that took no part.
    pub clocks: Vec<Option<u64>>,
}

/// A step that must not have been taken.
///
/// ```
/// use downpour::train::staleness::{Bound, Read, check};
/// let read = Read { worker: 1, step: 9, version: 20, clocks: vec![Some(6), Some(9)] };
/// assert!(check(&[read.clone()], Bound::Steps(3)).is_ok());
/// let found = check(&[read], Bound::Steps(2)).unwrap_err();
/// assert!(found.to_string().starts_with("step 9 of replica 1 read a model without step 6 of replica 0"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The model lacked a step that it had to have.
    TooOld {
        /// The step.
        read: Read,
        /// Whose steps were missing.
        of: usize,
    },
    /// A replica's steps, or what it read, went backwards.
    Backwards {
        /// The step.
        read: Read,
        /// The one before it.
        before: Read,
    },
}

impl std::fmt::Display for Violation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Violation::TooOld { read, of } => {
                let (step, worker) = (read.step, read.worker);
                let clock = read.clocks.get(*of).copied().flatten().unwrap_or_default();
                write!(
                    f,
                    "step {step} of replica {worker} read a model without step {clock} of replica {of}"
                )
            }
            Violation::Backwards { read, before } => {
                write!(
                    f,
                    "replica {} went from {before:?} to {read:?}",
                    read.worker
                )
            }
        }
    }
}

impl std::error::Error for Violation {}

/// Looks whether any step read a model older than the bound allows. The steps of each replica must
/// be in the order they were taken.
pub fn check(log: &[Read], bound: Bound) -> Result<(), Violation> {
    let mut last: Vec<Option<&Read>> = Vec::new();
    for read in log {
        for (of, clock) in read.clocks.iter().enumerate() {
            if clock.is_some() && !bound.allows(read.step, *clock) {
                let read = read.clone();
                return Err(Violation::TooOld { read, of });
            }
        }
        if last.len() <= read.worker {
            last.resize(read.worker + 1, None);
        }
        let before = last.get_mut(read.worker).and_then(|l| l.replace(read));
        if let Some(before) = before.filter(|before| read.version < before.version) {
            let (read, before) = (read.clone(), before.clone());
            return Err(Violation::Backwards { read, before });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(step: u64, version: u64, other: Option<u64>) -> Read {
        Read {
            worker: 0,
            step,
            version,
            clocks: vec![Some(step), other],
        }
    }

    #[test]
    fn who_takes_no_part_holds_nobody_up() {
        assert!(check(&[read(50, 50, None)], Bound::Steps(0)).is_ok());
        assert!(check(&[read(50, 50, Some(49))], Bound::Steps(0)).is_err());
        assert!(check(&[read(50, 50, Some(0))], Bound::Unlimited).is_ok());
    }

    #[test]
    fn a_model_does_not_grow_younger() {
        let log = [read(1, 9, Some(1)), read(2, 8, Some(1))];
        let found = check(&log, Bound::Steps(5)).unwrap_err();
        assert!(matches!(found, Violation::Backwards { .. }));
    }
}
