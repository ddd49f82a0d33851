//! Operations as methods: arithmetic, reductions, rearranging, networks. Whatever has no method
//! here is one call away: `graph.op("Name").input(&x).output()`.

mod array;
mod math;
mod nn;
mod operators;
mod random;

pub use array::{concat, stack};
pub(crate) use math::add_n;
pub use nn::Padding;
