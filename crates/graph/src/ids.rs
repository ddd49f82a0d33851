//! Numbers that several crates pass on, as types of their own.

/// An edge between two tasks: its number among those by which values come to the receiving task in a step. The split of a graph
/// gives it, and the frames between the tasks carry it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EdgeId(pub u32);
