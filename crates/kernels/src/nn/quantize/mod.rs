//! Quantization: integers that stand for floats (`codes`), floats rounded as if they had been
//! such integers (`fake`, `rounding`), layers of them in one op (`fused`).

mod arithmetic;
mod codes;
mod fake;
mod fused;
mod layers;
mod levels;
mod requantize;
mod rounding;
mod shapes;
mod uniform;
mod uniform_conv;

use downpour_graph::{Result, Status};
use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    arithmetic::register(registry);
    codes::register(registry);
    fake::register(registry);
    fused::register(registry);
    layers::register(registry);
    requantize::register(registry);
    rounding::register(registry);
    shapes::register(registry);
    uniform::register(registry);
    uniform_conv::register(registry);
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// A float as TensorFlow's messages print it.
fn shown(v: f32) -> String {
    downpour_tensor::Tensor::scalar(v).summarize(1)
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
