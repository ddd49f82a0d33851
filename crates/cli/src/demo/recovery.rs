//! What the loss of a task cost: what was lost, to which step the model was restored, and how long it
//! took until training went on. Heard from the launcher (the loss) and from workers (the rest).

use super::sketch::thousands;
use downpour_launch::TaskName;
use serde::Serialize;
use std::time::Instant;

/// A loss, and how it was got over.
#[derive(Clone, Debug)]
pub(crate) struct Recovery {
    task: TaskName,
    lost: Instant,
    /// How far the training was.
    at_step: i64,
    /// From where it went on.
    restored: Option<i64>,
    /// When it did, and how far the others had come by then.
    back: Option<(Instant, i64)>,
}

/// The same for machines.
#[derive(Serialize)]
pub(crate) struct Told {
    task: String,
    at_step: i64,
    restored_step: Option<i64>,
    lost_steps: Option<i64>,
    seconds: Option<f64>,
}

impl Recovery {
    /// Of a task that was lost at this step.
    pub(super) fn new(task: TaskName, at_step: i64, lost: Instant) -> Recovery {
        Recovery {
            task,
            lost,
            at_step,
            restored: None,
            back: None,
        }
    }

    /// A worker has a new session, on a model at this step.
    pub(super) fn session(&mut self, task: &TaskName, step: i64) {
        let is_about = self.holds_parameters() || *task == self.task;
        if self.back.is_none() && self.restored.is_none() && is_about {
            self.restored = Some(step);
        }
    }

    /// A worker trains, at this step.
    pub(super) fn trains(&mut self, task: &TaskName, step: i64, now: Instant) {
        let is_back = match self.holds_parameters() {
            // Steps that were on their way when the task was lost are no sign of its return.
            true => self.restored.is_some(),
            false => *task == self.task,
        };
        if self.back.is_none() && is_back {
            self.back = Some((now, step));
        }
    }

    fn holds_parameters(&self) -> bool {
        self.task.job == "ps"
    }

    fn seconds(&self) -> Option<f64> {
        let (back, _) = self.back?;
        Some(back.saturating_duration_since(self.lost).as_secs_f64())
    }

    /// For machines.
    pub(super) fn told(&self) -> Told {
        Told {
            task: self.task.to_string(),
            at_step: self.at_step,
            restored_step: self.restored,
            lost_steps: self.restored.map(|step| (self.at_step - step).max(0)),
            seconds: self.seconds(),
        }
    }

    /// For people, in units like `step`.
    pub(super) fn text(&self, unit: &str) -> String {
        let (task, number) = (&self.task, |n: i64| thousands(n as f64));
        let at = format!("{task} was lost at {unit} {}", number(self.at_step));
        let Some((_, step)) = self.back else {
            return format!("{at}; training has not gone on since");
        };
        let seconds = self.seconds().unwrap_or_default();
        let restored = self.restored.unwrap_or(step);
        match (self.at_step - restored).max(0) {
            lost if self.holds_parameters() || lost > 0 => format!(
                "{at}: the model was restored from {unit} {}, {} {unit}s were lost; training went on after {seconds:.1} s",
                number(restored),
                number(lost),
            ),
            _ => format!(
                "{at}: nothing of the model was lost; it trained again after {seconds:.1} s, {} {unit}s later",
                number((step - self.at_step).max(0)),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_lost_server_takes_steps_along_and_a_lost_worker_does_not() {
        let begin = Instant::now();
        let (chief, other) = (TaskName::new("worker", 0), TaskName::new("worker", 1));
        let later = |millis| begin + Duration::from_millis(millis);
        let mut ps = Recovery::new(TaskName::new("ps", 0), 3210, begin);
        ps.trains(&other, 3215, later(10));
        assert_eq!(
            ps.text("step"),
            "ps:0 was lost at step 3,210; training has not gone on since"
        );
        ps.session(&chief, 2980);
        ps.session(&other, 2990);
        ps.trains(&chief, 2991, later(2300));
        assert_eq!(
            ps.text("step"),
            "ps:0 was lost at step 3,210: the model was restored from step 2,980, 230 steps were lost; \
             training went on after 2.3 s"
        );
        let told = serde_json::to_value(ps.told()).unwrap();
        assert_eq!(
            (&told["lost_steps"], &told["seconds"]),
            (&230.into(), &2.3.into())
        );
        let mut worker = Recovery::new(other.clone(), 100, begin);
        worker.trains(&chief, 150, later(100));
        worker.session(&other, 700);
        worker.trains(&other, 710, later(1500));
        assert_eq!(
            worker.text("step"),
            "worker:1 was lost at step 100: nothing of the model was lost; it trained again after 1.5 s, 610 steps later"
        );
    }
}
