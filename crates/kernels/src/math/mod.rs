//! Elementwise mathematics, comparisons, activations, reductions.
//!
//! `elementwise` holds the inner loops, `broadcast_loop` runs them over tensors, `tables` chooses them by
//! element type, `isa` compiles them for several instruction sets. The other files are ops.

mod activation;
mod add_n;
mod arcs;
mod argmax;
mod bessel;
mod binary;
mod broadcast_loop;
mod clip;
mod clustering;
mod compare;
mod composition;
mod convert;
mod elementwise;
pub(crate) mod fft;
mod fit;
pub(crate) mod functions;
mod fused_arithmetic;
mod gamma;
mod grad;
mod halves;
mod integrals;
pub(crate) mod isa;
mod neighbors;
mod reduce;
mod reducers;
mod scan;
mod special;
mod tables;
mod trig;
mod unary;

pub(crate) use add_n::sum;

use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    activation::register(registry);
    add_n::register(registry);
    argmax::register(registry);
    bessel::register(registry);
    binary::register(registry);
    clip::register(registry);
    clustering::register(registry);
    compare::register(registry);
    composition::register(registry);
    convert::register(registry);
    fft::register(registry);
    fused_arithmetic::register(registry);
    gamma::register(registry);
    grad::register(registry);
    integrals::register(registry);
    neighbors::register(registry);
    reduce::register(registry);
    scan::register(registry);
    unary::register(registry);
}
