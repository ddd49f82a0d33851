//! Ops that make, reshape, cut, join, move and convert arrays. Pure data movement works on units
//! (`units.rs`), whatever the element type, mostly through one strided copy (`strided.rs`).

mod bins;
mod cast;
mod choose;
mod concat;
mod diag;
mod dtypes;
mod edit_distance;
mod fill;
mod gather;
mod histogram;
mod inplace;
pub(crate) mod pad;
mod partition;
mod patches;
mod reverse;
mod scatter;
pub(crate) mod shapes;
mod slice;
mod slice_spec;
mod space;
mod split;
mod strided;
mod tile;
mod to_bool;
mod transpose;
mod unique;
pub(crate) mod units;
mod volume_patches;

pub(crate) use dtypes::{ALL, COMMON, COMMON_AND_STRING, PAD, STITCH, STRIDED, TENSOR_LIST};
pub(crate) use gather::{BadIndices, Tuples, gather_rows, gather_slices, position};
pub(crate) use slice::overwrite_slice;
pub(crate) use slice_spec::{Masks, SliceSpec};

use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    bins::register(registry);
    cast::register(registry);
    choose::register(registry);
    concat::register(registry);
    diag::register(registry);
    edit_distance::register(registry);
    fill::register(registry);
    gather::register(registry);
    histogram::register(registry);
    inplace::register(registry);
    pad::register(registry);
    partition::register(registry);
    patches::register(registry);
    reverse::register(registry);
    scatter::register(registry);
    shapes::register(registry);
    slice::register(registry);
    space::register(registry);
    split::register(registry);
    tile::register(registry);
    to_bool::register(registry);
    transpose::register(registry);
    unique::register(registry);
    volume_patches::register(registry);
}
