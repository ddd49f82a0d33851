//! Layers split over the tasks of a model along one of their axes. Variables are cut like the
//! layer and lie with their part of the work; a checkpoint holds them as those of the whole layer.
//!
//! Columns then rows is the pair to remember: between the two nothing travels, since the columns'
//! results are the rows' arguments.

use super::shard::{Sharded, cut_variable};
use crate::ops::add_n;
use crate::{Graph, Init, ModelPartitions, Output, Padding, PartitionedVariable, Status, Variable};
use std::panic::Location;

/// A dense layer split by its outputs: each task computes some columns of `x · kernel + bias`.
///
/// ```
/// use downpour::layers::{ColumnDense, RowDense};
/// use downpour::{DType, Graph, LocalCluster, ModelPartitions, Session};
/// let cluster = LocalCluster::start(0, 2)?;
/// let tasks = ModelPartitions::new(["/job:worker/task:0", "/job:worker/task:1"])?;
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, [None, Some(3)]);
/// let hidden = ColumnDense::new(&g, "hidden", 3, 8, &tasks).apply(&x).map(|h| h.relu());
/// let y = RowDense::new(&g, "y", 8, 2, &tasks).apply(&hidden);
/// assert_eq!(y.shape().to_string(), "[?,2]");
/// // Checkpoints hold `hidden/kernel` as one, whatever the number of tasks.
/// assert_eq!(g.saved_variables()[1].save_slice(), "3 8 0,3:4,4");
/// let session = Session::new(&cluster.workers()[0], &g)?;
/// session.run(&g.initialize_variables())?;
/// assert_eq!(session.step().feed(&x, [[1.0f32, 2.0, 3.0]]).fetch(&y)?.dims(), [1, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ColumnDense {
    /// `[inputs, outputs]`, cut by columns.
    pub kernel: PartitionedVariable,
    /// `[outputs]`.
    pub bias: PartitionedVariable,
    tasks: ModelPartitions,
}

impl ColumnDense {
    /// A layer with Glorot's initialization and a bias of zeros.
    #[track_caller]
    pub fn new(
        g: &Graph,
        name: &str,
        inputs: usize,
        outputs: usize,
        tasks: &ModelPartitions,
    ) -> ColumnDense {
        let init = Init::glorot_uniform();
        ColumnDense::with_init(g, name, inputs, outputs, init, tasks)
    }

    /// A layer whose kernel begins as said.
    #[track_caller]
    pub fn with_init(
        g: &Graph,
        name: &str,
        inputs: usize,
        outputs: usize,
        init: Init,
        tasks: &ModelPartitions,
    ) -> ColumnDense {
        g.with_scope(name, || {
            let kernel = g.variable("kernel").shape([inputs, outputs]).init(init);
            let bias = g.variable("bias").shape([outputs]).init(Init::zeros());
            ColumnDense {
                kernel: cut_variable(g, kernel, 1, tasks),
                bias: cut_variable(g, bias, 0, tasks),
                tasks: tasks.clone(),
            }
        })
    }

    /// Applies it to rows `[batch, inputs]`, which every task gets: columns of
    /// `[batch, outputs]`.
    #[track_caller]
    pub fn apply(&self, x: &Output) -> Sharded {
        let g = x.graph();
        let parts = self.kernel.parts().iter().zip(self.bias.parts());
        let apply = |(k, (kernel, bias)): (usize, (&Variable, &Variable))| {
            self.tasks.on(g, k, || x.matmul(kernel).bias_add(bias))
        };
        let parts = parts.enumerate().map(apply).collect();
        Sharded::of(g, parts, 1, &self.tasks)
    }
}

/// A dense layer split by its inputs: each task computes what some columns of `x` contribute to
/// `x · kernel + bias`, and the sum of all is made where the layer is applied.
///
/// ```
/// use downpour::layers::{RowDense, Sharded};
/// use downpour::{Graph, Init, LocalCluster, ModelPartitions, Session};
/// let cluster = LocalCluster::start(0, 2)?;
/// let tasks = ModelPartitions::new(["/job:worker/task:0", "/job:worker/task:1"])?;
/// let g = Graph::new();
/// let ones = Init::ones();
/// let layer = RowDense::with_init(&g, "layer", 4, 1, ones, &tasks);
/// let x = Sharded::split(&g.constant([[1.0f32, 2.0, 3.0, 4.0]]), 1, &tasks);
/// let sum = layer.apply(&x);
/// let session = Session::new(&cluster.workers()[0], &g)?;
/// session.run(&g.initialize_variables())?;
/// assert_eq!(session.fetch(&sum)?.as_slice::<f32>()?, [10.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct RowDense {
    /// `[inputs, outputs]`, cut by rows.
    pub kernel: PartitionedVariable,
    /// `[outputs]`.
    pub bias: Variable,
    tasks: ModelPartitions,
}

impl RowDense {
    /// A layer with Glorot's initialization and a bias of zeros.
    #[track_caller]
    pub fn new(
        g: &Graph,
        name: &str,
        inputs: usize,
        outputs: usize,
        tasks: &ModelPartitions,
    ) -> RowDense {
        let init = Init::glorot_uniform();
        RowDense::with_init(g, name, inputs, outputs, init, tasks)
    }

    /// A layer whose kernel begins as said.
    #[track_caller]
    pub fn with_init(
        g: &Graph,
        name: &str,
        inputs: usize,
        outputs: usize,
        init: Init,
        tasks: &ModelPartitions,
    ) -> RowDense {
        g.with_scope(name, || {
            let kernel = g.variable("kernel").shape([inputs, outputs]).init(init);
            RowDense {
                kernel: cut_variable(g, kernel, 0, tasks),
                bias: g
                    .variable("bias")
                    .shape([outputs])
                    .init(Init::zeros())
                    .build(),
                tasks: tasks.clone(),
            }
        })
    }

    /// Applies it to columns of `[batch, inputs]` that lie where the kernel's rows do, such as a
    /// [`ColumnDense`] makes them: `[batch, outputs]`.
    #[track_caller]
    pub fn apply(&self, x: &Sharded) -> Output {
        let g = x.graph();
        let rows = |kernel: &Variable| kernel.shape().dims().and_then(|d| d[0]);
        let fits = self
            .kernel
            .parts()
            .iter()
            .map(rows)
            .collect::<Option<Vec<_>>>();
        if x.axis() != 1 || x.lengths() != fits {
            let error = Status::invalid_argument(format!(
                "'{}' takes columns in parts of {:?}, not parts of {:?} along dimension {}",
                self.kernel.name(),
                fits.unwrap_or_default(),
                x.lengths().unwrap_or_default(),
                x.axis()
            ));
            g.fail(error, Location::caller());
            return g.invalid();
        }
        let shares: Vec<Output> = (x.parts().iter().zip(self.kernel.parts()))
            .enumerate()
            .map(|(k, (x, kernel))| self.tasks.on(g, k, || x.matmul(kernel)))
            .collect();
        let sum = add_n(&shares).unwrap_or_else(|| g.invalid());
        sum.bias_add(&self.bias)
    }
}

/// A convolution split by its results: each task computes some channels of the new images.
///
/// ```
/// use downpour::layers::SplitConv2D;
/// use downpour::{DType, Graph, LocalCluster, ModelPartitions, Session};
/// let cluster = LocalCluster::start(0, 2)?;
/// let tasks = ModelPartitions::new(["/job:worker/task:0", "/job:worker/task:1"])?;
/// let g = Graph::new();
/// let images = g.filled(DType::Float, [1, 8, 8, 1], 1.0);
/// let conv = SplitConv2D::new(&g, "conv", 3, 1, 6, &tasks);
/// let channels = conv.apply(&images).map(|part| part.relu().max_pool(2, 2, downpour::Padding::Same));
/// let whole = channels.join();
/// let session = Session::new(&cluster.workers()[0], &g)?;
/// session.run(&g.initialize_variables())?;
/// assert_eq!(session.fetch(&whole)?.dims(), [1, 4, 4, 6]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SplitConv2D {
    /// `[size, size, inputs, outputs]`, cut by outputs.
    pub kernel: PartitionedVariable,
    /// `[outputs]`.
    pub bias: PartitionedVariable,
    /// How far the window moves.
    pub stride: usize,
    /// What happens at the border.
    pub padding: Padding,
    tasks: ModelPartitions,
}

impl SplitConv2D {
    /// A layer with square windows, moved by one, that keeps the size of images.
    #[track_caller]
    pub fn new(
        g: &Graph,
        name: &str,
        size: usize,
        inputs: usize,
        outputs: usize,
        tasks: &ModelPartitions,
    ) -> SplitConv2D {
        let (init, shape) = (Init::glorot_uniform(), [size, size, inputs, outputs]);
        SplitConv2D::with_init(g, name, shape, init, tasks)
    }

    /// A layer whose kernel has this shape and begins as said.
    #[track_caller]
    pub fn with_init(
        g: &Graph,
        name: &str,
        shape: [usize; 4],
        init: Init,
        tasks: &ModelPartitions,
    ) -> SplitConv2D {
        g.with_scope(name, || {
            let kernel = g.variable("kernel").shape(shape).init(init);
            let bias = g.variable("bias").shape([shape[3]]).init(Init::zeros());
            SplitConv2D {
                kernel: cut_variable(g, kernel, 3, tasks),
                bias: cut_variable(g, bias, 0, tasks),
                stride: 1,
                padding: Padding::Same,
                tasks: tasks.clone(),
            }
        })
    }

    /// Applies it to images `[batch, height, width, inputs]`, which every task gets: channels of
    /// the new ones.
    #[track_caller]
    pub fn apply(&self, images: &Output) -> Sharded {
        let g = images.graph();
        let parts = self.kernel.parts().iter().zip(self.bias.parts());
        let apply = |(k, (kernel, bias)): (usize, (&Variable, &Variable))| {
            self.tasks.on(g, k, || {
                let product = images.conv2d(kernel, self.stride, self.padding);
                product.bias_add(bias)
            })
        };
        let parts = parts.enumerate().map(apply).collect();
        Sharded::of(g, parts, 3, &self.tasks)
    }
}
