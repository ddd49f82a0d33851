//! Variables and the ops that change them. An op that exists for references and for handles is
//! written once and reaches them through [`variable_access`].

mod arith;
mod assign;
mod count;
mod gather;
mod number;
mod optimizer;
pub(crate) mod pass;
mod ref_variable;
mod resource_variable;
mod rows;
mod scatter;
mod scatter_nd;
mod session_handle;
mod shrink;
mod strided_assign;
mod temporary;
#[cfg(test)]
mod testing;
mod variable_access;

use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    ref_variable::register(registry);
    resource_variable::register(registry);
    temporary::register(registry);
    assign::register(registry);
    count::register(registry);
    gather::register(registry);
    scatter::register(registry);
    scatter_nd::register(registry);
    session_handle::register(registry);
    shrink::register(registry);
    strided_assign::register(registry);
    optimizer::register(registry);
}
