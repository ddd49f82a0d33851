//! The terminal, or whatever standard output and error are: lines with the task that printed them
//! in front, in that task's colour. Nothing here fails: a closed terminal is no reason to stop a job.

use crate::refusal::has_colour;
use clap::ValueEnum;
use downpour_launch::{Printed, TaskName};
use std::io::{IsTerminal as _, Write as _};

/// Whether to colour.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// On a terminal, unless NO_COLOR is set
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}

/// Colours that can be read on dark and on light.
const COLOURS: [u8; 6] = [36, 33, 35, 32, 34, 31];

/// Where the program talks to its user.
#[derive(Clone)]
pub(crate) struct Console {
    out: bool,
    err: bool,
    /// Of the names in front of lines.
    width: usize,
}

/// Who the launcher is, among the tasks.
const OWN: &str = "downpour";

impl Console {
    /// Decides about colours.
    pub(crate) fn new(when: When) -> Console {
        let wanted = |is_terminal: bool| match when {
            When::Always => true,
            When::Never => false,
            When::Auto => has_colour(is_terminal),
        };
        Console {
            out: wanted(std::io::stdout().is_terminal()),
            err: wanted(std::io::stderr().is_terminal()),
            width: OWN.len(),
        }
    }

    /// The same for a job of these tasks: all names are as wide as the widest.
    pub(crate) fn beside(mut self, names: &[TaskName]) -> Console {
        let widest = names.iter().map(|n| n.to_string().len()).max();
        self.width = widest.unwrap_or(0).max(OWN.len());
        self
    }

    /// Says something about the job.
    pub(crate) fn note(&self, text: &str) {
        let name = format!("{OWN:width$} | ", width = self.width);
        self.plain(&format!("{}{text}\n", paint(self.err, 1, &name)));
    }

    /// Writes to standard error as it is.
    pub(crate) fn plain(&self, text: &str) {
        let _ = std::io::stderr().lock().write_all(text.as_bytes());
    }
}

/// Text in a colour or weight of ANSI terminals.
pub(crate) fn paint(is_wanted: bool, code: u8, text: &str) -> String {
    match is_wanted {
        true => format!("\x1b[{code}m{text}\x1b[0m"),
        false => text.to_owned(),
    }
}

/// Shows lines of tasks.
pub(crate) struct Lines {
    console: Console,
    names: Vec<TaskName>,
}

impl Lines {
    /// Shows those of these tasks.
    pub(crate) fn new(console: &Console, names: &[TaskName]) -> Lines {
        Lines {
            console: console.clone(),
            names: names.to_vec(),
        }
    }

    /// Shows a line on the same stream as the task did.
    pub(crate) fn show(&self, task: &TaskName, printed: Printed, line: &str) {
        let place = self.names.iter().position(|n| n == task).unwrap_or(0);
        let colour = COLOURS[place % COLOURS.len()];
        let colours = match printed {
            Printed::Out => self.console.out,
            Printed::Err => self.console.err,
        };
        let name = format!("{task:width$} | ", width = self.console.width);
        let text = format!("{}{line}\n", paint(colours, colour, &name));
        // One call, so that lines of several tasks do not mix.
        let _ = match printed {
            Printed::Out => std::io::stdout().lock().write_all(text.as_bytes()),
            Printed::Err => std::io::stderr().lock().write_all(text.as_bytes()),
        };
    }
}
