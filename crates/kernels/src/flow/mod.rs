//! Ops that pass values on: constants, placeholders, identities, control-flow helpers.
//! `Switch`, `Merge`, `Enter`, `Exit`, `NextIteration`, `_Arg` and `_Retval` have no kernel: the
//! executor itself runs them.

mod batching;
mod branch;
mod call;
mod collective;
mod debug;
mod identity;
mod map_defun;
mod marks;
mod mutex;
mod repeat;
pub(crate) mod series;
mod source;
#[cfg(test)]
mod tests;
mod transfer;

pub(crate) use call::declared;
use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    batching::register(registry);
    branch::register(registry);
    call::register(registry);
    collective::register(registry);
    debug::register(registry);
    identity::register(registry);
    map_defun::register(registry);
    marks::register(registry);
    mutex::register(registry);
    repeat::register(registry);
    source::register(registry);
    transfer::register(registry);
}
