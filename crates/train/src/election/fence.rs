//! What keeps a chief that was replaced from making its checkpoints visible, and which checkpoint to go on from.
//!
//! Checkpoints of a fenced chief have its epoch in their names, so that two chiefs never write to the same files, and
//! they are committed where the chief is elected. Invariant: the `checkpoint` file follows the commit, never leads it.

use downpour_coordination::Office;

/// Stands before a checkpoint's epoch in its name.
const EPOCH: &str = "-e";

/// Commits checkpoints under an election.
///
/// ```
/// use downpour_coordination::{Folder, Member};
/// use downpour_train::Fence;
/// use std::time::Duration;
/// # let dir = tempfile::tempdir()?;
/// let member = Member::start(Folder::open(dir.path())?, "first", Duration::from_secs(60));
/// let epoch = member.office().wait_for(|epoch| epoch.is_some(), Duration::from_secs(30));
/// let fence: &dyn Fence = member.office();
/// assert_eq!(fence.epoch(), epoch);
/// assert!(fence.commit(1, "model.ckpt-e1-100"));
/// assert_eq!(fence.committed().as_deref(), Some("model.ckpt-e1-100"));
/// // Nobody is chief in this epoch.
/// assert!(!fence.commit(9, "model.ckpt-e9-100"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Fence: Send + Sync {
    /// The epoch in which this worker is the chief now.
    fn epoch(&self) -> Option<u64>;

    /// Commits a checkpoint, by its name in the directory; whether it was. It is not once the epoch has ended.
    fn commit(&self, epoch: u64, name: &str) -> bool;

    /// The name of what was committed last, by whichever chief.
    fn committed(&self) -> Option<String>;
}

impl Fence for Office {
    fn epoch(&self) -> Option<u64> {
        Office::epoch(self)
    }

    fn commit(&self, epoch: u64, name: &str) -> bool {
        Office::commit(self, epoch, name)
    }

    fn committed(&self) -> Option<String> {
        self.checkpoint()
            .filter(|checkpoint| !checkpoint.is_empty())
    }
}

/// The name of a checkpoint of a chief's epoch.
pub(crate) fn name_in_epoch(prefix: &str, epoch: u64) -> String {
    format!("{prefix}{EPOCH}{epoch}")
}

/// Whether the latest checkpoint that the `checkpoint` file lists, if any, is superseded by the committed one.
///
/// It does, whichever chief listed it. Only one that no elected chief has written is newer: training went on meanwhile
/// without an election.
pub(crate) fn gives_way(listed: Option<&str>) -> bool {
    let Some(prefix) = listed else {
        return true;
    };
    let name = prefix.rsplit('/').next().unwrap_or(prefix);
    let (rest, _step) = name.rsplit_once('-').unwrap_or((name, ""));
    let epoch = rest.rsplit_once(EPOCH).map_or("", |(_, epoch)| epoch);
    !epoch.is_empty() && epoch.bytes().all(|b| b.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_checkpoint_goes_before_what_a_late_chief_listed() {
        let own = format!("{}-200", name_in_epoch("s3://b/logs/model.ckpt", 3));
        assert_eq!(own, "s3://b/logs/model.ckpt-e3-200");
        for (listed, expected) in [
            (Some(own.as_str()), true),
            (Some("s3://b/e-logs/model.ckpt-e12-150"), true),
            (None, true),
            // Written without an election, later.
            (Some("s3://b/logs-e1-2/model.ckpt-500"), false),
            (Some("s3://b/logs/the-e-500"), false),
            (Some("model.ckpt-e2x-500"), false),
        ] {
            assert_eq!(gives_way(listed), expected, "{listed:?}");
        }
    }
}
