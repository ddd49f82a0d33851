//! What the processes of a job are called: in messages, in flags, in the names of log files.

use std::fmt;

/// A process: `ps:0`, `worker:1`, or `worker:1/server` for the server beside a client.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskName {
    /// Job.
    pub job: String,
    /// Index in the job.
    pub index: u32,
    /// Whether it is the server that a client of the same task talks to.
    pub is_beside: bool,
}

impl TaskName {
    /// The process that is the task.
    pub fn new(job: &str, index: u32) -> TaskName {
        TaskName {
            job: job.to_owned(),
            index,
            is_beside: false,
        }
    }

    /// Reads what [`fmt::Display`] writes.
    pub fn parse(text: &str) -> Option<TaskName> {
        let (text, is_beside) = match text.strip_suffix("/server") {
            Some(text) => (text, true),
            None => (text, false),
        };
        let (job, index) = text.split_once(':')?;
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let digits = !index.is_empty() && index.bytes().all(|b| b.is_ascii_digit());
        if job.is_empty() || !job.chars().all(is_word) || !digits {
            return None;
        }
        Some(TaskName {
            job: job.to_owned(),
            index: index.parse().ok()?,
            is_beside,
        })
    }

    /// The name of its log file.
    pub fn log_file(&self) -> String {
        match self.is_beside {
            true => format!("{}-{}-server.log", self.job, self.index),
            false => format!("{}-{}.log", self.job, self.index),
        }
    }
}

impl fmt::Display for TaskName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_beside {
            true => f.pad(&format!("{}:{}/server", self.job, self.index)),
            false => f.pad(&format!("{}:{}", self.job, self.index)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::TaskName;

    #[test]
    fn a_name_reads_as_it_prints() {
        for text in ["ps:0", "worker:12", "chief:0/server"] {
            assert_eq!(TaskName::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(TaskName::new("ps", 1).log_file(), "ps-1.log");
    }

    #[test]
    fn what_is_no_name_is_refused() {
        for text in [
            "",
            "ps",
            "ps:",
            ":0",
            "ps:-1",
            "ps:+1",
            "ps:x",
            "../p:0",
            "ps:0/x",
            "ps:99999999999",
            "p s:0",
        ] {
            assert_eq!(TaskName::parse(text), None, "{text}");
        }
    }
}
