//! Files in HDFS and in object stores, by URL: `hdfs:`, `viewfs:`, `s3:`, `gs:`, `az:`. [`Stores`] is one
//! [`Storage`](downpour_formats::Storage) for all of them; [`install`] puts it behind
//! [`downpour_formats::Files`], which everything that takes a path uses. No other crate knows these schemes.
//!
//! The clients are asynchronous, their callers are not: requests run on a small runtime of this crate's own
//! (`call`), which begins with the first of them. A request that fails in passing is made again for as long as
//! [`Patience`] says; a service that has never answered is given up much sooner, so that a wrong address is told at once.

mod call;
mod hdfs;
mod location;
mod object;
mod profile;
mod read;
mod stores;
mod stream;

pub use call::Patience;
pub use stores::{Stores, install};
