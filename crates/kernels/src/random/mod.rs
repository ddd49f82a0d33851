//! Random numbers: TensorFlow's Philox streams, bit for bit.
//!
//! A stateful op owns a [`philox::Guarded`] generator; each run reserves a block of it whose
//! size depends only on the output, so that results depend neither on threads nor on how steps
//! interleave their work. Stateless ops derive the generator from their inputs.

mod binomial;
mod candidate;
mod crop;
mod distribution;
mod gamma;
mod generator;
pub(crate) mod index_shuffle;
mod multinomial;
pub(crate) mod philox;
mod poisson;
mod sampler;
mod shuffle;
mod stateful;
pub(crate) mod stateless;
mod stochastic_cast;
mod truncated;

use downpour_graph::{Result, Status};
use downpour_runtime::Registry;
use downpour_tensor::{Shape, Tensor};

pub(crate) fn register(registry: &mut Registry) {
    binomial::register(registry);
    candidate::register(registry);
    crop::register(registry);
    gamma::register(registry);
    generator::register(registry);
    index_shuffle::register(registry);
    multinomial::register(registry);
    poisson::register(registry);
    shuffle::register(registry);
    stateful::register(registry);
    stateless::register(registry);
    stochastic_cast::register(registry);
    truncated::register(registry);
}

/// The output shape given by a vector of integers.
fn shape_arg(tensor: &Tensor) -> Result<Shape> {
    if tensor.rank() != 1 {
        return Err(Status::invalid_argument(format!(
            "shape must be a vector of {{int32,int64}}, got shape {}",
            tensor.shape()
        )));
    }
    crate::args::shape(tensor)
}
