//! XLA's own ops, which TensorFlow compiles one at a time when a plain session runs them. What they
//! do is defined by XLA: starts of slices are clamped, sorts order NaN, padding may be negative.

mod fold;
mod gather;
mod precision;
mod slices;
mod sort;

use downpour_graph::{Result, Status};
use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    fold::register(registry);
    gather::register(registry);
    precision::register(registry);
    slices::register(registry);
    sort::register(registry);
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// Calls `f` with every position below `dims`, the last dimension fastest.
fn positions(dims: &[usize], mut f: impl FnMut(&[usize])) {
    if dims.contains(&0) {
        return;
    }
    let mut at = vec![0; dims.len()];
    loop {
        f(&at);
        let mut d = dims.len();
        loop {
            let Some(next) = d.checked_sub(1) else {
                return;
            };
            d = next;
            at[d] += 1;
            if at[d] < dims[d] {
                break;
            }
            at[d] = 0;
        }
    }
}
