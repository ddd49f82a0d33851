//! Sparse tensors and reductions over segments.

mod add;
mod counts;
mod cross;
mod csr;
mod dense;
mod empty_rows;
mod form;
mod join;
mod layout;
mod matmul;
mod number;
mod ragged;
mod ragged_cross;
mod ragged_dense;
pub(crate) mod ragged_variant;
mod reduce;
mod segment;
mod segment_rows;
pub(crate) mod serialize;
mod sets;
mod store;

use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    add::register(registry);
    counts::register(registry);
    cross::register(registry);
    csr::register(registry);
    dense::register(registry);
    empty_rows::register(registry);
    join::register(registry);
    layout::register(registry);
    matmul::register(registry);
    ragged::register(registry);
    ragged_cross::register(registry);
    ragged_dense::register(registry);
    ragged_variant::register(registry);
    reduce::register(registry);
    segment::register(registry);
    segment_rows::register(registry);
    serialize::register(registry);
    sets::register(registry);
    store::register(registry);
}
