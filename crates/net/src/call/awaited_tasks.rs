//! Tasks that a session waits for before it can open: who they are, where they should be, what was
//! last heard. Filled by the searches, read by whoever logs progress or gives up.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::fmt;

/// The tasks that have not answered.
#[derive(Default)]
pub struct AwaitedTasks(Mutex<BTreeMap<String, (String, String)>>);

/// Most tasks that are named.
const MAX_SHOWN: usize = 10;

impl AwaitedTasks {
    /// The task at `address` has not answered, and this is what is known.
    pub(crate) fn note(&self, task: &str, address: &str, what: &str) {
        let known = (address.to_owned(), what.to_owned());
        self.0.lock().insert(task.to_owned(), known);
    }

    /// The task has answered.
    pub(crate) fn found(&self, task: &str) {
        self.0.lock().remove(task);
    }
}

impl fmt::Display for AwaitedTasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tasks = self.0.lock();
        for (i, (task, (address, what))) in tasks.iter().take(MAX_SHOWN).enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{task} at {address} ({what})")?;
        }
        match tasks.len().saturating_sub(MAX_SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// The part of a failed call's text that says why, without what [`AwaitedTasks`] says itself.
pub(crate) fn reason(message: &str) -> &str {
    let end = message.rfind(" (/job:").unwrap_or(message.len());
    let text = message.get(..end).unwrap_or(message);
    text.rsplit(": ").next().unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_missing_are_named_with_what_is_known() {
        let missing = AwaitedTasks::default();
        missing.note("/job:ps/replica:0/task:1", "h:2", "no answer yet");
        let refused = "failed to connect to all addresses; last error: UNKNOWN: h:2: Failed to connect to remote host: Connection refused (/job:ps/replica:0/task:1)";
        missing.note("/job:ps/replica:0/task:1", "h:2", reason(refused));
        missing.note(
            "/job:ps/replica:0/task:0",
            "h:1",
            reason("Socket closed (/job:ps/replica:0/task:0 at h:1)"),
        );
        missing.note("/job:worker/replica:0/task:0", "h:3", "no answer yet");
        missing.found("/job:worker/replica:0/task:0");
        assert_eq!(
            missing.to_string(),
            "/job:ps/replica:0/task:0 at h:1 (Socket closed), /job:ps/replica:0/task:1 at h:2 (Connection refused)"
        );
        for i in 0..20 {
            missing.note(&format!("/job:w/replica:0/task:{i}"), "h", "x");
        }
        assert!(missing.to_string().ends_with(" and 12 more"));
    }
}
