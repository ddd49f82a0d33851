//! Family `list`: values that hold tensors. Stacks and tensor arrays live in a step and are reached
//! by handles; tensor lists, maps and optionals travel along edges as variants.

mod array;
mod array_ops;
mod composite;
mod list_cuts;
mod list_ops;
mod map;
pub(crate) mod optional;
pub(crate) mod pieces;
mod primitive;
mod shapes;
mod stack;
mod step_handle;
mod tensor_list;
pub(crate) mod travel;
mod values;

use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    array_ops::register(registry);
    composite::register(registry);
    list_cuts::register(registry);
    list_ops::register(registry);
    map::register(registry);
    optional::register(registry);
    stack::register(registry);
    values::register(registry);
}
