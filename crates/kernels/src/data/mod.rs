//! Family `data`: datasets and iterators (`tf.data`).
//!
//! A dataset is an immutable recipe that travels along edges as a variant; an iterator is a resource
//! that holds a walk over one. Asking a walk for its next element is a future (`dataset`), driven by
//! tasks on the device's executor threads (`task`).
//!
//! **Why futures.** An element may have to be waited for: a function has a queue inside, a buffer
//! is being filled, the calls of a parallel map are under way. A thread per waiting walk, as
//! TensorFlow has, would let a client make threads without bound, and executor threads must not
//! block. Callbacks by hand would turn each loop ("skip until the predicate holds") inside out, and
//! would recurse wherever an element is there at once. Futures keep the loops; the compiler makes
//! the state machines; dropping one is cancellation, all the way down to the call of a function that
//! waits. The price is an allocation for each level of the pipeline and element.
//!
//! Work that runs beside its consumer (prefetching, parallel maps and interleaves) is a task that
//! the stream owns: dropping the iterator stops it.

mod access;
mod anonymous;
mod auto_shard;
mod batch;
mod beside;
mod cache;
mod cache_file;
mod combine;
mod compress;
mod consume;
mod csv;
mod dataset;
mod define;
mod dense_to_sparse;
mod examples;
mod files;
mod fill_table;
mod flat;
mod function;
mod generator;
mod get_options;
mod graph;
mod group;
mod ignore_errors;
mod interleave;
mod iterator;
mod lmdb;
mod map;
mod matching_files;
mod multi_device;
mod options;
mod padded;
mod parallel_map;
mod prefetch;
mod random;
mod rebatch;
mod reduce;
mod seeds;
mod select;
mod shuffle;
mod sliding_window;
mod snapshot;
mod sources;
mod state;
mod stats;
mod task;
#[cfg(test)]
mod tests;
mod unique;
mod window;

use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    access::register(registry);
    auto_shard::register(registry);
    batch::register(registry);
    beside::register(registry);
    cache::register(registry);
    combine::register(registry);
    compress::register(registry);
    consume::register(registry);
    csv::register(registry);
    dense_to_sparse::register(registry);
    examples::register(registry);
    files::register(registry);
    fill_table::register(registry);
    flat::register(registry);
    generator::register(registry);
    get_options::register(registry);
    graph::register(registry);
    group::register(registry);
    ignore_errors::register(registry);
    interleave::register(registry);
    iterator::register(registry);
    lmdb::register(registry);
    map::register(registry);
    matching_files::register(registry);
    multi_device::register(registry);
    options::register(registry);
    padded::register(registry);
    parallel_map::register(registry);
    prefetch::register(registry);
    random::register(registry);
    rebatch::register(registry);
    reduce::register(registry);
    seeds::register(registry);
    select::register(registry);
    shuffle::register(registry);
    sliding_window::register(registry);
    sources::register(registry);
    unique::register(registry);
    snapshot::register(registry);
    stats::register(registry);
    window::register(registry);
}
