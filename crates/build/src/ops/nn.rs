//! Neural networks: activations, convolutions, pools, losses of one example each.

use crate::Output;
use downpour_graph::{AttrList, AttrValue};

unary! {
    /// `max(x, 0)`.
    relu "Relu";
    /// `min(max(x, 0), 6)`.
    relu6 "Relu6";
    /// `x` above 0, `eˣ - 1` below.
    elu "Elu";
    /// Scaled [`Output::elu`].
    selu "Selu";
    /// `ln(1 + eˣ)`.
    softplus "Softplus";
    /// `x / (1 + |x|)`.
    softsign "Softsign";
    /// Probabilities over the last dimension.
    softmax "Softmax";
    /// Logarithms of [`Output::softmax`].
    log_softmax "LogSoftmax";
    /// Half the sum of squares.
    l2_loss "L2Loss";
}

/// What a window does at the border.
///
/// ```
/// use downpour::{Graph, Padding, Server, ServerConfig, Session, Tensor};
/// let g = Graph::new();
/// let image = Tensor::vector((1..=9).map(|n| n as f32).collect()).reshaped([1, 3, 3, 1])?;
/// let image = g.constant(image);
/// let [same, valid] = [Padding::Same, Padding::Valid].map(|padding| image.max_pool(2, 1, padding));
/// assert_eq!(same.shape().to_string(), "[1,3,3,1]");
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// assert_eq!(session.fetch(&valid)?.as_slice::<f32>()?, [5.0, 6.0, 8.0, 9.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Padding {
    /// Zeros around, so that a stride of 1 keeps the size.
    Same,
    /// Only whole windows.
    Valid,
}

impl Padding {
    fn text(self) -> &'static str {
        match self {
            Padding::Same => "SAME",
            Padding::Valid => "VALID",
        }
    }
}

fn square(size: usize) -> AttrValue {
    AttrValue::List(AttrList::Int(vec![1, size as i64, size as i64, 1]))
}

impl Output {
    /// Adds one number per channel, the last dimension.
    #[track_caller]
    pub fn bias_add(&self, bias: &Output) -> Output {
        self.graph().op("BiasAdd").input(self).input(bias).output()
    }

    /// Convolution of images `[batch, height, width, channels]` with a filter
    /// `[height, width, channels, results]`.
    #[track_caller]
    pub fn conv2d(&self, filter: &Output, stride: usize, padding: Padding) -> Output {
        let op = self.graph().op("Conv2D").input(self).input(filter);
        op.attr("strides", square(stride))
            .attr("padding", padding.text())
            .output()
    }

    /// The largest of each window.
    #[track_caller]
    pub fn max_pool(&self, size: usize, stride: usize, padding: Padding) -> Output {
        self.pool("MaxPool", size, stride, padding)
    }

    /// The mean of each window.
    #[track_caller]
    pub fn avg_pool(&self, size: usize, stride: usize, padding: Padding) -> Output {
        self.pool("AvgPool", size, stride, padding)
    }

    #[track_caller]
    fn pool(&self, op: &str, size: usize, stride: usize, padding: Padding) -> Output {
        let op = self.graph().op(op).input(self);
        op.attr("ksize", square(size))
            .attr("strides", square(stride))
            .attr("padding", padding.text())
            .output()
    }

    /// Cross entropy of each row of logits with a row of probabilities.
    #[track_caller]
    pub fn softmax_cross_entropy(&self, labels: &Output) -> Output {
        let op = self.graph().op("SoftmaxCrossEntropyWithLogits");
        op.input(self).input(labels).output()
    }

    /// Cross entropy of each row of logits with the number of its class.
    #[track_caller]
    pub fn sparse_softmax_cross_entropy(&self, labels: &Output) -> Output {
        let op = self.graph().op("SparseSoftmaxCrossEntropyWithLogits");
        op.input(self).input(labels).output()
    }
}
