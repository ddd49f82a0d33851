//! Neural networks: convolutions, pools, normalisation, biases, losses.

mod batch_norm;
mod batch_sums;
mod bias;
mod conv;
mod exp;
pub(crate) mod float;
mod pool;
mod softmax;
mod window;
mod xent;

use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    batch_norm::register(registry);
    bias::register(registry);
    conv::register(registry);
    pool::register(registry);
    softmax::register(registry);
    xent::register(registry);
}
