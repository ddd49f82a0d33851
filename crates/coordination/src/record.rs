//! What the register of an election holds, and its text.

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
}

impl Record {
    /// A record of an office that is held.
    pub fn of(holder: &str, epoch: u64, beat: u64) -> Record {
        Record {
            epoch,
            beat,
            holder: holder.to_owned(),
        }
    }

    /// A record of an office that was given up in this epoch.
    pub fn vacant(epoch: u64) -> Record {
        Record::of("", epoch, 0)
    }

    /// Reads a record's text; `None` if it is not one.
    ///
    /// ```
    /// use downpour_coordination::Record;
    /// let record = Record::of("/job:worker/task:1", 7, 42);
    /// assert_eq!(Record::parse(&record.to_string()), Some(record));
    /// assert_eq!(Record::parse("seven"), None);
    /// ```
    pub fn parse(text: &str) -> Option<Record> {
        let mut parts = text.splitn(3, ' ');
        let epoch = parts.next()?.parse().ok()?;
        let beat = parts.next()?.parse().ok()?;
        Some(Record::of(parts.next()?, epoch, beat))
    }
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.epoch, self.beat, self.holder)
    }
}
