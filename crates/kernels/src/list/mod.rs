//! Family `list`: values that hold tensors. Stacks and tensor arrays live in a step and are reached
//! by handles; tensor lists, maps and optionals travel along edges as variants.

mod array;
mod array_ops;
mod pieces;
mod shapes;
mod stack;
mod step;

use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    array_ops::register(registry);
    stack::register(registry);
}
