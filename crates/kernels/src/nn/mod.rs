//! Neural networks: convolutions, pools, normalisation, biases, losses.

mod batch_norm;
mod batch_sums;
pub(crate) mod bias;
mod conv;
mod ctc;
mod data_format;
mod depthwise;
mod dilation;
mod exp;
pub(crate) mod float;
mod global_norm;
mod layer;
mod lrn;
mod pool;
mod quantize;
mod resize;
mod rnn;
mod softmax;
mod top_k;
mod volume;
mod window;
mod xent;

use downpour_runtime::Registry;

pub(crate) fn register(registry: &mut Registry) {
    batch_norm::register(registry);
    bias::register(registry);
    conv::register(registry);
    ctc::register(registry);
    data_format::register(registry);
    depthwise::register(registry);
    dilation::register(registry);
    global_norm::register(registry);
    layer::register(registry);
    lrn::register(registry);
    pool::register(registry);
    quantize::register(registry);
    resize::register(registry);
    rnn::register(registry);
    softmax::register(registry);
    top_k::register(registry);
    volume::register(registry);
    xent::register(registry);
}
