//! How old the model may be that a replica computes with, and how old it was.
//!
//! Every replica has a clock, the number of its steps whose gradients the parameter servers have. The
//! clocks stand in a table beside the model (`table`); who reads the model reads the table first, so
//! that what it gets is never older than the table says. [`Bound`] says how far a replica's own step
//! may be ahead of the slowest clock it has read. `view` is what was read, `log` checks what was
//! done.

mod log;
pub(crate) mod table;
mod view;

pub use log::{Read, Violation, check};
pub use table::{CLASSES, ReplicaStaleness};
pub use view::View;

/// How many steps a replica may be ahead of the slowest one (stale synchronous parallel training).
///
/// ```
/// use downpour::train::staleness::Bound;
/// let bound = Bound::Steps(2);
/// assert!(bound.allows(7, Some(5)) && !bound.allows(8, Some(5)));
/// assert!(Bound::Unlimited.allows(1_000_000, Some(0)));
/// assert_eq!("3".parse(), Ok(Bound::Steps(3)));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Bound {
    /// So many. With 0 all replicas compute the same step at the same time.
    Steps(u64),
    /// Nobody waits for anybody.
    #[default]
    Unlimited,
}

impl Bound {
    /// Whether a replica may compute step number `step` with a model for which all replicas had
    /// done `slowest` steps.
    pub fn allows(self, step: u64, slowest: Option<u64>) -> bool {
        match (self, slowest) {
            (Bound::Steps(bound), Some(slowest)) => step <= slowest.saturating_add(bound),
            _ => true,
        }
    }

    /// Whether there is any.
    pub fn is_limited(self) -> bool {
        self != Bound::Unlimited
    }
}

impl std::str::FromStr for Bound {
    type Err = String;

    /// A number, or `unlimited`.
    fn from_str(text: &str) -> Result<Bound, String> {
        match text {
            "unlimited" => Ok(Bound::Unlimited),
            number => match number.parse() {
                Ok(steps) => Ok(Bound::Steps(steps)),
                Err(_) => Err(format!("'{text}' is neither a number nor 'unlimited'")),
            },
        }
    }
}

impl std::fmt::Display for Bound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Bound::Steps(steps) => steps.fmt(f),
            Bound::Unlimited => "unlimited".fmt(f),
        }
    }
}
