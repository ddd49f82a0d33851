//! Sparse tensors and reductions over segments.

mod segment;
mod segment_rows;

use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    segment::register(registry);
    segment_rows::register(registry);
}
