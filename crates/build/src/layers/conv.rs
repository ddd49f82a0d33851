//! Convolutions.

use crate::{Graph, Init, Output, Padding, Variable};

/// A convolution of images with a bias.
///
/// ```
/// use downpour::{DType, Graph, Server, ServerConfig, Session, layers::Conv2D};
/// let g = Graph::new();
/// let conv = Conv2D::new(&g, "conv", 3, 1, 1);
/// let sums = conv.apply(&g.filled(DType::Float, [1, 3, 3, 1], 1.0));
/// let all_ones = conv.kernel.assign(&g.filled(DType::Float, [3, 3, 1, 1], 1.0));
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// session.run(&all_ones)?;
/// // Each pixel becomes how many pixels are around it.
/// let sums = session.fetch(&sums)?;
/// assert_eq!(sums.as_slice::<f32>()?, [4.0, 6.0, 4.0, 6.0, 9.0, 6.0, 4.0, 6.0, 4.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Conv2D {
    /// `[size, size, inputs, outputs]`.
    pub kernel: Variable,
    /// `[outputs]`.
    pub bias: Variable,
    /// How far the window moves.
    pub stride: usize,
    /// What happens at the border.
    pub padding: Padding,
}

impl Conv2D {
    /// A layer with square windows, moved by one, that keeps the size of images.
    #[track_caller]
    pub fn new(g: &Graph, name: &str, size: usize, inputs: usize, outputs: usize) -> Conv2D {
        g.with_scope(name, || Conv2D {
            kernel: g
                .variable("kernel")
                .shape([size, size, inputs, outputs])
                .build(),
            bias: g
                .variable("bias")
                .shape([outputs])
                .init(Init::zeros())
                .build(),
            stride: 1,
            padding: Padding::Same,
        })
    }

    /// Applies it to images `[batch, height, width, inputs]`.
    #[track_caller]
    pub fn apply(&self, images: &Output) -> Output {
        let product = images.conv2d(&self.kernel, self.stride, self.padding);
        product.bias_add(&self.bias)
    }
}
