//! A ledger as a line of JSON, so that it can be kept in a variable, saved with the model, and read by
//! people.

use super::ledger::{Counts, Holder, Lease, Ledger};
use super::portion::Division;
use downpour_build::{Result, Status};
use serde_json::{Value, json};
use std::collections::BTreeSet;

impl Ledger {
    /// The ledger as text.
    ///
    /// ```
    /// use downpour::train::shards::{Ledger, Division, Holder};
    /// let division = Division::new(100, 10);
    /// let mut ledger = Ledger::new(division.clone());
    /// ledger.lease(Holder { worker: 3, life: 77 });
    /// let text = ledger.to_text();
    /// assert!(text.contains(r#""out":[[0,3,77,0]]"#), "{text}");
    /// assert_eq!(Ledger::from_text(&text, division)?, ledger);
    /// // What was begun with other portions cannot be gone on with.
    /// assert!(Ledger::from_text(&text, Division::new(100, 20)).is_err());
    /// # Ok::<(), downpour::Status>(())
    /// ```
    pub fn to_text(&self) -> String {
        let c = &self.counts;
        let lease = |l: &Lease| json!([l.sequence, l.holder.worker, l.holder.life, l.beats]);
        let record = json!({
            "examples": self.division.examples,
            "size": self.division.size,
            "next": self.next,
            "out": self.out.iter().map(lease).collect::<Vec<Value>>(),
            "back": self.back,
            "issued": c.issued,
            "reissued": c.reissued,
            "copied": c.copied,
            "expired": c.expired,
            "completed": c.completed,
            "repeated": c.repeated,
        });
        record.to_string()
    }

    /// Reads what [`Ledger::to_text`] wrote; the data must still be divided in the same way.
    pub fn from_text(text: &str, division: Division) -> Result<Ledger> {
        let record: Value = serde_json::from_str(text).map_err(|_| broken())?;
        let number = |name: &str| record.get(name).and_then(Value::as_u64).ok_or_else(broken);
        let (examples, size) = (number("examples")?, number("size")?);
        if (examples, size) != (division.examples, division.size) {
            return Err(Status::failed_precondition(format!(
                "the record is of {examples} examples in portions of {size}, not of {} in \
                 portions of {}: go on with the same data, or begin anew",
                division.examples, division.size
            )));
        }
        let list = |name: &str| {
            record
                .get(name)
                .and_then(Value::as_array)
                .ok_or_else(broken)
        };
        let out: Option<Vec<Lease>> = list("out")?.iter().map(lease).collect();
        let back: Option<BTreeSet<u64>> = list("back")?.iter().map(Value::as_u64).collect();
        let ledger = Ledger {
            division,
            next: number("next")?,
            out: out.ok_or_else(broken)?,
            back: back.ok_or_else(broken)?,
            counts: Counts {
                issued: number("issued")?,
                reissued: number("reissued")?,
                copied: number("copied")?,
                expired: number("expired")?,
                completed: number("completed")?,
                repeated: number("repeated")?,
            },
        };
        let out = ledger.out.iter().map(|l| l.sequence);
        let in_order = out.clone().is_sorted();
        let mut open = out.chain(ledger.back.iter().copied());
        match in_order && open.all(|sequence| sequence < ledger.next) {
            true => Ok(ledger),
            false => Err(broken()),
        }
    }
}

fn broken() -> Status {
    Status::invalid_argument("this is no record of portions")
}

fn lease(value: &Value) -> Option<Lease> {
    let parts = value.as_array()?.iter().map(Value::as_u64);
    let parts: Option<Vec<u64>> = parts.collect();
    match parts?.as_slice() {
        &[sequence, worker, life, beats] => Some(Lease {
            sequence,
            holder: Holder { worker, life },
            beats,
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_record_is_refused() {
        let division = Division::new(10, 5);
        let good = Ledger::new(division.clone()).to_text();
        for bad in [
            "",
            "[]",
            &good.replace(r#""next":0"#, r#""next":-1"#),
            &good.replace(r#""back":[]"#, r#""back":[3]"#),
            &good.replace(r#""out":[]"#, r#""out":[[0,1]]"#),
        ] {
            assert!(Ledger::from_text(bad, division.clone()).is_err(), "{bad}");
        }
        assert!(Ledger::from_text(&good, division).is_ok());
    }
}
