//! Waiting for other replicas: for one's turn in a warm start, or for slower ones under a bound. Who is
//! waited for and falls silent is given up, so that every wait ends.

use super::DownpourSgd;
use super::parts::Parts;
use crate::Coordinator;
use crate::shards::Watch;
use crate::staleness::View;
use crate::staleness::table::{EXPELLED, Member};
use downpour_build::{Code, Result, Status};
use downpour_client::Session;
use std::time::{Duration, Instant};
use tracing::warn;

/// How long to wait before looking again, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_micros(200), Duration::from_millis(10));

/// One replica's patience with the others.
pub(super) struct Waiting {
    watch: Watch<(usize, i64)>,
}

impl Waiting {
    pub(super) fn new(lease: Duration) -> Waiting {
        Waiting {
            watch: Watch::new(lease),
        }
    }

    /// Looks at the table until it is as wanted.
    pub(super) fn until(
        &mut self,
        session: &Session,
        parts: &Parts,
        member: Member,
        stop: &Coordinator,
        is_ready: impl Fn(&View) -> bool,
    ) -> Result<View> {
        let mut pause = PAUSES.0;
        loop {
            let view = parts.table.look(session)?;
            if !view.has(member.replica, member.life) {
                return Err(expelled());
            }
            if is_ready(&view) {
                return Ok(view);
            }
            self.watch.look(view.present(), Instant::now());
            for (replica, life) in self.watch.silent() {
                if replica != member.replica {
                    warn!("training goes on without replica {replica}: it is silent");
                    let heard = view.beats.get(replica).copied();
                    parts
                        .table
                        .remove(session, Member { replica, life }, heard)?;
                }
            }
            if stop.wait_for_stop(pause) {
                return Err(stop.error().unwrap_or_else(stopped));
            }
            pause = (pause * 2).min(PAUSES.1);
        }
    }
}

/// Whether a replica may train: while the model is warmed up, only the first that is there.
pub(super) fn has_turn(settings: &DownpourSgd, view: &View) -> bool {
    let is_warm = view.version >= settings.warm_start;
    is_warm
        || view
            .first_present()
            .is_none_or(|first| first >= settings.replica)
}

/// Others have given this replica up: what it computed meanwhile is too old.
pub(super) fn expelled() -> Status {
    Status::invalid_argument(EXPELLED)
}

/// Whether a step was refused because of that.
pub(super) fn is_expelled(error: &Status) -> bool {
    error.code == Code::InvalidArgument && error.message.contains(EXPELLED)
}

fn stopped() -> Status {
    Status::out_of_range("training was stopped while this replica waited for others")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_is_there_warms_the_model_up() {
        let second = DownpourSgd::new(3, 1).warm_start(100);
        let view = |version, lives: [i64; 3]| View::of(version, &[0; 3], &lives, &[0; 3]);
        assert!(!has_turn(&second, &view(99, [7, 8, 0])));
        assert!(has_turn(&second, &view(99, [0, 8, 9])));
        assert!(has_turn(&second, &view(100, [7, 8, 9])));
    }
}
