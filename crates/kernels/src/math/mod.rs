//! Elementwise mathematics, comparisons, reductions.

mod binary;

use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    binary::register(registry);
}
