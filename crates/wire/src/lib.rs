//! The border: protobuf bytes in, checked values out. No other crate sees protobuf.
#![warn(clippy::indexing_slicing)]

/// The messages and services, generated from `proto/*.proto` by `cargo xtask proto`.
#[allow(
    missing_docs,
    unreachable_pub,
    unused_qualifications,
    clippy::all,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "generated code"
)]
#[rustfmt::skip]
#[path = "proto/tensorflow.rs"]
pub mod proto;
