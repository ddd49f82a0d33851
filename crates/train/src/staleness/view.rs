//! The table of replicas as it was at one moment: a plain value.

pub(crate) use downpour_wire::replicas::PARKED;

/// The model's version and the replicas' clocks, as read before the model itself.
///
/// ```
/// use downpour::train::staleness::View;
/// let mut view = View::default();
/// view.clocks = vec![Some(5), None, Some(7)];
/// assert_eq!((view.slowest(), view.quickest()), (Some(5), Some(7)));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// How many updates the model had seen, at least.
    pub version: u64,
    /// How many steps of each replica were in it, at least; nothing for one that takes no part.
    pub clocks: Vec<Option<u64>>,
    /// Which life of each replica is there, 0 for none.
    pub(crate) lives: Vec<i64>,
    /// A number for each replica that changes while it lives.
    pub(crate) beats: Vec<i64>,
}

impl View {
    /// From the columns of the table.
    pub(crate) fn of(version: i64, clocks: &[i64], lives: &[i64], beats: &[i64]) -> View {
        let clock = |c: &i64| (*c != PARKED).then(|| u64::try_from(*c).unwrap_or_default());
        View {
            version: u64::try_from(version).unwrap_or_default(),
            clocks: clocks.iter().map(clock).collect(),
            lives: lives.to_vec(),
            beats: beats.to_vec(),
        }
    }

    /// The clock of the slowest replica that takes part; nothing if none does.
    pub fn slowest(&self) -> Option<u64> {
        self.clocks.iter().flatten().min().copied()
    }

    /// The clock of the quickest.
    pub fn quickest(&self) -> Option<u64> {
        self.clocks.iter().flatten().max().copied()
    }

    /// The first replica that is there, whether or not it has begun.
    pub(crate) fn first_present(&self) -> Option<usize> {
        self.lives.iter().position(|life| *life != 0)
    }

    /// Whether this life of a replica is there.
    pub(crate) fn has(&self, replica: usize, life: i64) -> bool {
        self.lives.get(replica) == Some(&life)
    }

    /// Who is there, by number and life, with what changes while they live.
    pub(crate) fn present(&self) -> impl Iterator<Item = ((usize, i64), u64)> + '_ {
        let all = self.lives.iter().zip(&self.beats).enumerate();
        let present = all.filter(|(_, (life, _))| **life != 0);
        present.map(|(replica, (life, beats))| ((replica, *life), beats.cast_unsigned()))
    }
}
