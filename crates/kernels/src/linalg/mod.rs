//! Matrix products and what is built on them.

mod batch;
mod batch_matmul;
mod blocked;
mod contract;
mod decompose;
mod einsum;
mod equation;
mod exponential;
mod field;
mod functions;
pub(crate) mod fuse;
pub(crate) mod gemm;
mod hermitian;
mod least_squares;
mod lu;
pub(crate) mod matmul;
mod reflect;
mod schur;
mod svd;
pub(crate) mod tile;
mod tridiagonal;
pub(crate) mod wide;

use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    batch_matmul::register(registry);
    contract::register(registry);
    decompose::register(registry);
    einsum::register(registry);
    exponential::register(registry);
    functions::register(registry);
    hermitian::register(registry);
    least_squares::register(registry);
    lu::register(registry);
    matmul::register(registry);
    svd::register(registry);
    tridiagonal::register(registry);
}
