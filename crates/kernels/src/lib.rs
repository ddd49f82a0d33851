//! The ops: TensorFlow's kernels for CPU, one folder per family, one file per kind of op.
//!
//! [`register`] is the only public item. A kernel is a closure or a struct built from a node's
//! attributes (see `downpour_runtime::KernelBuilder`) and states TensorFlow's contract: element
//! types, broadcasting, empty tensors, NaN, and the code and text of every error. Kernels know
//! nothing of sessions, graphs or the network.
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        reason = "tests make files and read a clock"
    )
)]
#![expect(
    clippy::clone_on_copy,
    clippy::useless_conversion,
    clippy::unnecessary_cast,
    reason = "loops are written once for all element types, strings and floats of any width"
)]
#![expect(
    clippy::neg_cmp_op_on_partial_ord,
    clippy::nonminimal_bool,
    reason = "a negated comparison says what happens to NaN"
)]

mod args;
mod array;
mod audio;
mod broadcast;
mod data;
mod flow;
mod image;
mod io;
mod linalg;
mod list;
mod math;
mod nn;
mod parse;
mod queue;
mod random;
mod sparse;
mod state;
mod strings;
mod summary;
mod table;
#[cfg(test)]
mod testing;
mod types;
mod uninit;
mod work;
mod xla;

use downpour_runtime::Registry;

/// Registers every kernel of this crate.
pub fn register(registry: &mut Registry) {
    array::register(registry);
    audio::register(registry);
    data::register(registry);
    flow::register(registry);
    image::register(registry);
    io::register(registry);
    linalg::register(registry);
    list::register(registry);
    math::register(registry);
    nn::register(registry);
    parse::register(registry);
    queue::register(registry);
    random::register(registry);
    sparse::register(registry);
    state::register(registry);
    strings::register(registry);
    summary::register(registry);
    table::register(registry);
    work::register(registry);
    xla::register(registry);
}
