//! What the register of an election holds, and its text.
//!
//! The checkpoint stands in the same register as the chief, so that one compare-and-swap tells both:
//! a chief that was replaced cannot commit one. Every change carries it over.

use std::fmt;

/// Which of a register's values is meant; grows with every change. [`Version::NONE`]: it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Version {
    /// Of a register that was never written.
    pub const NONE: Version = Version(0);
}

/// Who is chief, and in which epoch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Record {
    /// Grows by one whenever another member takes over.
    pub epoch: u64,
    /// Differs in each renewal.
    pub beat: u64,
    /// The chief's name; empty if it has resigned, or none was ever elected.
    pub holder: String,
    /// What a chief committed last, this one or one before; empty if nothing.
    pub checkpoint: String,
}

impl Record {
    /// A record of an office that is held.
    pub fn of(holder: &str, epoch: u64, beat: u64) -> Record {
        Record {
            epoch,
            beat,
            holder: holder.to_owned(),
            checkpoint: String::new(),
        }
    }

    /// A record of an office that was given up in this epoch.
    pub fn vacant(epoch: u64) -> Record {
        Record::of("", epoch, 0)
    }

    /// With what was committed last.
    pub fn with_checkpoint(mut self, checkpoint: &str) -> Record {
        self.checkpoint = checkpoint.to_owned();
        self
    }

    /// Reads a record's text; `None` if it is not one.
    ///
    /// ```
    /// use downpour_coordination::Record;
    /// let record = Record::of("/job:worker/task:1", 7, 42);
    /// assert_eq!(Record::parse(&record.to_string()), Some(record.clone()));
    /// let record = record.with_checkpoint("s3://b/a job/model.ckpt-e7-100");
    /// assert_eq!(Record::parse(&record.to_string()), Some(record));
    /// assert_eq!(Record::parse("seven"), None);
    /// ```
    pub fn parse(text: &str) -> Option<Record> {
        let (office, checkpoint) = text.split_once('\n').unwrap_or((text, ""));
        let mut parts = office.splitn(3, ' ');
        let epoch = parts.next()?.parse().ok()?;
        let beat = parts.next()?.parse().ok()?;
        Some(Record::of(parts.next()?, epoch, beat).with_checkpoint(checkpoint))
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.epoch, self.beat, self.holder)?;
        match self.checkpoint.as_str() {
            "" => Ok(()),
            checkpoint => write!(f, "\n{checkpoint}"),
        }
    }
}
