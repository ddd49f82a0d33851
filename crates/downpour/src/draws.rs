//! Numbers that follow from a seed: for data that must be the same on every machine and in every
//! run, such as that of examples and tests. Nothing here is secret or secure.

/// An endless sequence of random numbers (Steele's SplitMix).
///
/// ```
/// use downpour::Draws;
/// let (mut one, mut same) = (Draws::new(7), Draws::new(7));
/// assert_eq!(one.below(10), same.below(10));
/// assert!((0.0..1.0).contains(&one.uniform()));
/// ```
#[derive(Clone, Debug)]
pub struct Draws {
    state: u64,
}

impl Draws {
    /// The sequence of a seed.
    pub fn new(seed: u64) -> Draws {
        Draws { state: seed }
    }

    /// Any number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// One of `0 .. limit`; 0 if that is empty.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next_u64()) * limit as u128) >> 64) as usize
    }

    /// A number in `[0, 1)`.
    pub fn uniform(&mut self) -> f32 {
        (self.next_u64() >> 40) as f32 / (1u64 << 24) as f32
    }

    /// One of these.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<'a, T>(&mut self, among: &'a [T]) -> &'a T {
        &among[self.below(among.len())]
    }

    /// Puts these in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Draws;

    #[test]
    fn numbers_stay_in_bounds_and_reach_all_of_them() {
        let mut draws = Draws::new(1);
        let mut seen = [0; 7];
        for _ in 0..700 {
            seen[draws.below(7)] += 1;
            assert!((0.0..1.0).contains(&draws.uniform()));
        }
        assert!(seen.iter().all(|n| *n > 50), "{seen:?}");
        assert_eq!(draws.below(0), 0);
    }

    #[test]
    fn a_shuffle_keeps_everything() {
        let mut items: Vec<usize> = (0..100).collect();
        Draws::new(2).shuffle(&mut items);
        assert!(items.iter().enumerate().any(|(i, x)| i != *x));
        items.sort_unstable();
        assert!(items.into_iter().eq(0..100));
    }
}
