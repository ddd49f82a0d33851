//! How far a long look has come, on stderr: one line that redraws itself on a terminal, a line for
//! every tenth elsewhere, nothing for what is short.

use super::output::bytes;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// Less than this is over before anybody wonders.
const WORTH: u64 = 256 << 20;
/// How often a terminal's line is drawn again.
const PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Progress {
    verb: &'static str,
    total: u64,
    done: u64,
    said: u64,
    drawn: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    pub(super) fn new(verb: &'static str, total: u64) -> Progress {
        Progress {
            verb,
            total,
            done: 0,
            said: 0,
            drawn: None,
            is_terminal: std::io::stderr().is_terminal(),
        }
    }

    /// `more` bytes are done.
    pub(super) fn advance(&mut self, more: u64) {
        self.done = self.done.saturating_add(more);
        if self.total < WORTH {
            return;
        }
        let line = format!(
            "{}: {} of {}",
            self.verb,
            bytes(self.done),
            bytes(self.total)
        );
        let tenth = u128::from(self.done) * 10 / u128::from(self.total.max(1));
        if self.is_terminal {
            if self.drawn.is_none_or(|at| at.elapsed() >= PAUSE) {
                let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
                self.drawn = Some(Instant::now());
            }
        } else if tenth as u64 > self.said {
            self.said = tenth as u64;
            let _ = writeln!(std::io::stderr(), "{line}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}
