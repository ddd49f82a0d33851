//! Quantization: integers that stand for floats (`codes`), floats rounded as if they had been
//! such integers (`fake`, `rounding`).

mod codes;
mod fake;
mod rounding;

use downpour_graph::{Result, Status};
use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    codes::register(registry);
    fake::register(registry);
    rounding::register(registry);
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// `(elements before, along, after)` the axis of a shape; one run of everything without an axis.
fn slices(dims: &[usize], axis: Option<usize>) -> (usize, usize, usize) {
    match axis {
        None => (1, 1, dims.iter().product()),
        Some(axis) => (
            dims[..axis].iter().product(),
            dims[axis],
            dims[axis + 1..].iter().product(),
        ),
    }
}
