//! Matrix products and what is built on them.

mod batch_matmul;
mod decompose;
mod einsum;
mod equation;
mod field;
pub(crate) mod fuse;
pub(crate) mod gemm;
mod matmul;
pub(crate) mod tile;
pub(crate) mod wide;

use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    batch_matmul::register(registry);
    decompose::register(registry);
    einsum::register(registry);
    matmul::register(registry);
}
