//! Family `data`.

use downpour_runtime::Registry;

pub(crate) fn register(_registry: &mut Registry) {}
