//! Images: files of pixels into tensors and back, colours, geometry, suppression of boxes. Files
//! are a stranger's: the size a header claims is checked before anything is made of it.

mod bmp;
mod color;
mod combined;
mod decode;
mod distort;
mod draw;
mod gif;
mod glimpse;
mod jpeg;
mod jpeg_encode;
mod non_max_suppression;
mod png;
mod project;
mod scale_and_translate;

use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    color::register(registry);
    combined::register(registry);
    decode::register(registry);
    distort::register(registry);
    draw::register(registry);
    glimpse::register(registry);
    jpeg::register(registry);
    jpeg_encode::register(registry);
    non_max_suppression::register(registry);
    png::register(registry);
    project::register(registry);
    scale_and_translate::register(registry);
}
