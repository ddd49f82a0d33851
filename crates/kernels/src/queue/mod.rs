//! Family `queue`: objects through which steps wait for one another — queues, accumulators, barriers, staging areas — and
//! the per-step stores of loops.
//!
//! No op of this family holds a thread while it waits: an attempt is parked in the object together
//! with its op, and whoever makes progress possible completes it. Every wait ends when the step is
//! cancelled, and waiters are served in the order of their arrival.

mod accumulator;
mod barrier;
pub(crate) mod element;
mod gradient;
pub(crate) mod items;
mod ops;
#[expect(
    clippy::module_inception,
    reason = "the queue proper, in the family named after it"
)]
pub(crate) mod queue;
pub(crate) mod shared_handle;
mod stage;
mod stage_map;
mod staging_area;
pub(crate) mod wait;

pub(crate) use shared_handle::check_handle_type;

use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    accumulator::register(registry);
    barrier::register(registry);
    ops::register(registry);
    stage::register(registry);
    stage_map::register(registry);
}
