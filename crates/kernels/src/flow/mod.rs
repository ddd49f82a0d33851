//! Ops that pass values on: constants, placeholders, identities, control-flow helpers.
//! `Switch`, `Merge`, `Enter`, `Exit`, `NextIteration`, `_Arg` and `_Retval` have no kernel: the
//! executor itself runs them.

mod identity;
mod source;
mod transfer;

use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    identity::register(registry);
    source::register(registry);
    transfer::register(registry);
}
