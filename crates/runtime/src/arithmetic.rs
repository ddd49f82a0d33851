//! Arithmetic that ops declare, so that runs of such ops can be computed at once.

/// What an op does to `float` numbers: exactly what its kernel does to them.
#[derive(Clone, Copy)]
pub enum Arithmetic {
    /// Of one number; and of each of a row of them.
    Unary(fn(f32) -> f32, fn(&[f32], &mut [f32])),
    /// Of two numbers; and of the pairs of two rows.
    Binary(fn(f32, f32) -> f32, fn(&[f32], &[f32], &mut [f32])),
    /// Nothing, but gives a number the shape that a second input names.
    Spread {
        /// The number must have as many dimensions already, each of 1.
        same_rank: bool,
    },
}

impl Arithmetic {
    /// How many of the first inputs are numbers.
    pub fn numbers(self) -> usize {
        match self {
            Arithmetic::Unary(..) | Arithmetic::Spread { .. } => 1,
            Arithmetic::Binary(..) => 2,
        }
    }
}
