//! Elementwise mathematics, comparisons, activations, reductions.
//!
//! `elementwise` holds the inner loops, `drive` runs them over tensors, `tables` chooses them by
//! element type, `isa` compiles them for several instruction sets. The other files are ops.

mod activation;
mod add_n;
mod arcs;
mod argmax;
mod bessel;
mod binary;
mod clip;
mod clustering;
mod compare;
mod composition;
mod convert;
mod drive;
mod elementwise;
pub(crate) mod fft;
mod fit;
pub(crate) mod functions;
mod gamma;
mod grad;
mod integrals;
pub(crate) mod isa;
mod neighbors;
mod reduce;
mod reducers;
mod runs;
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
    gamma::register(registry);
    grad::register(registry);
    integrals::register(registry);
    neighbors::register(registry);
    reduce::register(registry);
    runs::register(registry);
    scan::register(registry);
    unary::register(registry);
}
