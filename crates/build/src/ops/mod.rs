//! Operations as methods: arithmetic, reductions, rearranging, networks. Whatever has no method
//! here is one call away: `graph.op("Name").input(&x).output()`.

/// Methods that are an op of the tensor alone.
macro_rules! unary {
    ($($(#[$doc:meta])* $name:ident $op:literal;)*) => {
        impl Output {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $name(&self) -> Output {
                self.graph().op($op).input(self).output()
            }
        )*}
    };
}

mod array;
mod math;
mod nn;
mod operators;
mod random;

pub use array::{concat, stack};
pub(crate) use math::add_n;
pub use nn::Padding;
