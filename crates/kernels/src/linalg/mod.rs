//! Matrix products and what is built on them.

mod gemm;
mod matmul;

use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    matmul::register(registry);
}
