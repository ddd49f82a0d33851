//! Images and boxes on them: colours, geometry, suppression of overlapping boxes.

mod color;
mod combined;
mod distort;
mod draw;
mod glimpse;
mod project;
mod spans;
mod suppress;

use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    color::register(registry);
    combined::register(registry);
    distort::register(registry);
    draw::register(registry);
    glimpse::register(registry);
    project::register(registry);
    spans::register(registry);
    suppress::register(registry);
}
