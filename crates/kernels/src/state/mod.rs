//! Variables and the ops that change them.

mod ref_variable;
mod resource_variable;

use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    ref_variable::register(registry);
    resource_variable::register(registry);
}
