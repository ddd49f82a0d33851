//! Locally connected layers: windows over images as in a convolution, but with weights of their
//! own at every position. DistBelief's image models were made of them, because they split so well:
//! a task that holds a region of the image needs of its neighbours only the halo around it.

use super::shard::{Sharded, cut_variable, length_of, rows};
use crate::{
    Graph, Init, ModelPartitions, Output, Padding, PartitionedVariable, Status, Variable, concat,
};
use downpour_graph::Result;
use std::ops::Range;
use std::panic::Location;

/// Which windows a locally connected layer looks at.
///
/// ```
/// use downpour_build::layers::Window;
/// let window = Window::new([28, 28], 1, 5, 8).stride(2).same();
/// assert_eq!(window.result(), [14, 14, 8]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Height and width of images.
    pub image: [usize; 2],
    /// Channels of images.
    pub inputs: usize,
    /// Height and width of a window.
    pub size: usize,
    /// Results at each position.
    pub outputs: usize,
    /// How far the window moves.
    pub stride: usize,
    /// What happens at the border.
    pub padding: Padding,
}

impl Window {
    /// Square windows of this size, moved by one, within images of this height and width.
    pub fn new(image: [usize; 2], inputs: usize, size: usize, outputs: usize) -> Window {
        Window {
            image,
            inputs,
            size,
            outputs,
            stride: 1,
            padding: Padding::Valid,
        }
    }

    /// Moved by so much.
    pub fn stride(mut self, stride: usize) -> Window {
        self.stride = stride;
        self
    }

    /// With zeros around images, so that a stride of 1 keeps their size.
    pub fn same(mut self) -> Window {
        self.padding = Padding::Same;
        self
    }

    /// Height, width and channels of results.
    pub fn result(&self) -> [usize; 3] {
        let [height, width] = self.image.map(|length| self.positions(length));
        [height, width, self.outputs]
    }

    /// How many positions a window has along a side.
    fn positions(&self, length: usize) -> usize {
        let stride = self.stride.max(1);
        match self.padding {
            Padding::Same => length.div_ceil(stride),
            Padding::Valid => (length + stride).saturating_sub(self.size) / stride,
        }
    }

    /// How many zeros stand before a side of this length.
    fn before(&self, length: usize) -> usize {
        match self.padding {
            Padding::Same => {
                let last = self.positions(length).saturating_sub(1) * self.stride + self.size;
                last.saturating_sub(length) / 2
            }
            Padding::Valid => 0,
        }
    }

    /// What the positions `made` along a side of this length look at: zeros, a range, zeros.
    fn seen(&self, length: usize, made: &Range<usize>) -> (usize, Range<usize>, usize) {
        let before = self.before(length);
        let first = made.start * self.stride;
        let end = made.end.saturating_sub(1) * self.stride + self.size;
        let range =
            first.saturating_sub(before).min(length)..end.saturating_sub(before).min(length);
        let zeros = before.saturating_sub(first);
        let after = end.saturating_sub(first + zeros + range.len());
        (zeros, range, after)
    }

    fn check(&self) -> Result<()> {
        if self.stride == 0 || self.size == 0 || self.result().contains(&0) || self.inputs == 0 {
            return Err(Status::invalid_argument(format!(
                "a window of {} by {}, moved by {}, has no position in images of {} by {} with {} channels",
                self.size, self.size, self.stride, self.image[0], self.image[1], self.inputs
            )));
        }
        Ok(())
    }

    fn kernel_shape(&self) -> [usize; 4] {
        let [height, width, outputs] = self.result();
        [height, width, self.size * self.size * self.inputs, outputs]
    }

    /// Results `made.start..made.end` of the height, from the image rows that they look at.
    #[track_caller]
    fn compute(&self, x: &Output, made: &Range<usize>, kernel: &Output, bias: &Output) -> Output {
        let [height, width] = self.image;
        let (above, _, below) = self.seen(height, made);
        let columns = self.result()[1];
        let (left, _, right) = self.seen(width, &(0..columns));
        let x = match above + below + left + right {
            0 => x.clone(),
            _ => x.pad(&[
                [0, 0],
                [above as i32, below as i32],
                [left as i32, right as i32],
                [0, 0],
            ]),
        };
        let (down, across) = (made.len(), columns);
        let mut patches = Vec::with_capacity(self.size * self.size);
        for dy in 0..self.size {
            for dx in 0..self.size {
                patches.push(self.strided(&x, [dy, dx], [down, across]));
            }
        }
        // [batch, down, across, size · size · inputs]: a row of inputs for each position's kernel.
        let patches = match patches.as_slice() {
            [one] => one.clone(),
            several => concat(several, 3),
        };
        let products = patches.transpose(&[1, 2, 0, 3]).matmul(kernel);
        products.transpose(&[2, 0, 1, 3]) + bias
    }

    /// `count` pixels from `begin` on, `stride` apart, down and across.
    #[track_caller]
    fn strided(&self, x: &Output, begin: [usize; 2], count: [usize; 2]) -> Output {
        let g = x.graph();
        let end = |i: usize| begin[i] + (count[i].saturating_sub(1)) * self.stride + 1;
        let ints = |a: usize, b: usize| g.constant([0, a as i32, b as i32, 0]);
        let step = self.stride as i32;
        g.op("StridedSlice")
            .input(x)
            .input(&ints(begin[0], begin[1]))
            .input(&ints(end(0), end(1)))
            .input(&g.constant([1, step, step, 1]))
            .attr("begin_mask", 0b1001i64)
            .attr("end_mask", 0b1001i64)
            .output()
    }
}

/// Windows over images with weights of their own at every position.
///
/// ```
/// use downpour::layers::{LocallyConnected2D, Window};
/// use downpour::{DType, Graph, Server, ServerConfig, Session};
/// let g = Graph::new();
/// let layer = LocallyConnected2D::new(&g, "local", Window::new([3, 3], 1, 2, 1));
/// // 2 by 2 positions, each with the 2 by 2 weights of its window.
/// assert_eq!(layer.kernel.shape().to_string(), "[2,2,4,1]");
/// let y = layer.apply(&g.filled(DType::Float, [5, 3, 3, 1], 1.0));
/// let server = Server::start(ServerConfig::local())?;
/// let session = Session::new(&server, &g)?;
/// session.run(&g.initialize_variables())?;
/// assert_eq!(session.fetch(&y)?.dims(), [5, 2, 2, 1]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct LocallyConnected2D {
    /// `[height, width, size · size · inputs, outputs]`, height and width being those of results.
    pub kernel: Variable,
    /// `[height, width, outputs]`.
    pub bias: Variable,
    window: Window,
}

impl LocallyConnected2D {
    /// A layer with Glorot's initialization of each position and biases of zeros.
    #[track_caller]
    pub fn new(g: &Graph, name: &str, window: Window) -> LocallyConnected2D {
        LocallyConnected2D::with_init(g, name, window, own_glorot(&window))
    }

    /// A layer whose kernel begins as said.
    #[track_caller]
    pub fn with_init(g: &Graph, name: &str, window: Window, init: Init) -> LocallyConnected2D {
        if let Err(e) = window.check() {
            g.fail(e, Location::caller());
        }
        g.with_scope(name, || {
            let kernel = g.variable("kernel").shape(window.kernel_shape());
            let bias = g.variable("bias").shape(window.result());
            LocallyConnected2D {
                kernel: kernel.init(init).build(),
                bias: bias.init(Init::zeros()).build(),
                window,
            }
        })
    }

    /// Applies it to images `[batch, height, width, inputs]`.
    #[track_caller]
    pub fn apply(&self, images: &Output) -> Output {
        let made = 0..self.window.result()[0];
        let rows_seen = self.window.seen(self.window.image[0], &made).1;
        let seen = rows(images, 1, rows_seen.start, rows_seen.len());
        self.window.compute(&seen, &made, &self.kernel, &self.bias)
    }
}

/// A locally connected layer split by regions of the image, from top to bottom: each task holds
/// the weights of its region.
///
/// Applied to what another such layer made, a task gets from its neighbours only the rows around
/// its region that its windows look at.
///
/// ```
/// use downpour::layers::{SplitLocallyConnected2D, Window};
/// use downpour::{DType, Graph, LocalCluster, ModelPartitions, Session};
/// let cluster = LocalCluster::start(0, 2)?;
/// let tasks = ModelPartitions::new(["/job:worker/task:0", "/job:worker/task:1"])?;
/// let g = Graph::new();
/// let first = SplitLocallyConnected2D::new(&g, "first", Window::new([8, 8], 1, 3, 4).same(), &tasks);
/// let second = SplitLocallyConnected2D::new(&g, "second", Window::new([8, 8], 4, 3, 2), &tasks);
/// let images = g.filled(DType::Float, [1, 8, 8, 1], 1.0);
/// let whole = second.apply_to_parts(&first.apply(&images).map(|part| part.relu())).join();
/// let session = Session::new(&cluster.workers()[0], &g)?;
/// session.run(&g.initialize_variables())?;
/// assert_eq!(session.fetch(&whole)?.dims(), [1, 6, 6, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct SplitLocallyConnected2D {
    /// As that of [`LocallyConnected2D`], cut by height.
    pub kernel: PartitionedVariable,
    /// As that of [`LocallyConnected2D`], cut by height.
    pub bias: PartitionedVariable,
    window: Window,
    tasks: ModelPartitions,
}

impl SplitLocallyConnected2D {
    /// A layer with Glorot's initialization of each position and biases of zeros.
    #[track_caller]
    pub fn new(
        g: &Graph,
        name: &str,
        window: Window,
        tasks: &ModelPartitions,
    ) -> SplitLocallyConnected2D {
        SplitLocallyConnected2D::with_init(g, name, window, own_glorot(&window), tasks)
    }

    /// A layer whose kernel begins as said.
    #[track_caller]
    pub fn with_init(
        g: &Graph,
        name: &str,
        window: Window,
        init: Init,
        tasks: &ModelPartitions,
    ) -> SplitLocallyConnected2D {
        if let Err(e) = window.check() {
            g.fail(e, Location::caller());
        }
        g.with_scope(name, || {
            let kernel = g.variable("kernel").shape(window.kernel_shape());
            let bias = g.variable("bias").shape(window.result());
            SplitLocallyConnected2D {
                kernel: cut_variable(g, kernel.init(init), 0, tasks),
                bias: cut_variable(g, bias.init(Init::zeros()), 0, tasks),
                window,
                tasks: tasks.clone(),
            }
        })
    }

    /// Applies it to images `[batch, height, width, inputs]`, of which each task gets the rows that
    /// its windows look at: regions of the results.
    #[track_caller]
    pub fn apply(&self, images: &Output) -> Sharded {
        self.regions(images.graph(), |seen, _| {
            rows(images, 1, seen.start, seen.len())
        })
    }

    /// Applies it to images that are in regions already.
    #[track_caller]
    pub fn apply_to_parts(&self, images: &Sharded) -> Sharded {
        let g = images.graph();
        let lengths = images.lengths();
        let (Some(lengths), 1) = (&lengths, images.axis()) else {
            let error = Status::invalid_argument(format!(
                "'{}' takes regions from top to bottom, not parts along dimension {}",
                self.kernel.name(),
                images.axis()
            ));
            g.fail(error, Location::caller());
            return Sharded::of(g, Vec::new(), 1, &self.tasks);
        };
        self.regions(g, |seen, on_task| {
            let mut begin = 0;
            let mut found = Vec::new();
            for (part, length) in images.parts().iter().zip(lengths) {
                let range = seen.start.max(begin)..seen.end.min(begin + length);
                if !range.is_empty() {
                    // Cut on the neighbour's task: only the halo travels.
                    found.push(rows(part, 1, range.start - begin, range.len()));
                }
                begin += length;
            }
            match found.as_slice() {
                [] => g.invalid(),
                [one] => one.clone(),
                several => self.tasks.on(g, on_task, || concat(several, 1)),
            }
        })
    }

    /// Each region, given what finds image rows for a task.
    #[track_caller]
    fn regions(&self, g: &Graph, find: impl Fn(&Range<usize>, usize) -> Output) -> Sharded {
        let mut begin = 0;
        let mut parts = Vec::new();
        let variables = self.kernel.parts().iter().zip(self.bias.parts());
        for (k, (kernel, bias)) in variables.enumerate() {
            let made = begin..begin + length_of(kernel, 0).unwrap_or(0);
            begin = made.end;
            let seen = self.window.seen(self.window.image[0], &made).1;
            let x = find(&seen, k);
            parts.push(
                self.tasks
                    .on(g, k, || self.window.compute(&x, &made, kernel, bias)),
            );
        }
        Sharded::of(g, parts, 1, &self.tasks)
    }
}

/// Glorot's initialization of the weights of one position.
fn own_glorot(window: &Window) -> Init {
    let inputs = window.size * window.size * window.inputs;
    let limit = (6.0 / (inputs + window.outputs).max(1) as f64).sqrt();
    Init::uniform(-limit, limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_see_what_a_convolution_of_the_same_padding_sees() {
        let window = Window::new([7, 7], 1, 3, 1).same();
        assert_eq!(window.result(), [7, 7, 1]);
        assert_eq!(window.seen(7, &(0..7)), (1, 0..7, 1));
        assert_eq!(window.seen(7, &(3..5)), (0, 2..6, 0));
        assert_eq!(window.seen(7, &(5..7)), (0, 4..7, 1));
        // TensorFlow pads one row, below: (4 - 1) · 2 + 2 - 7.
        let window = Window::new([7, 7], 1, 2, 1).stride(2).same();
        assert_eq!(window.seen(7, &(0..4)), (0, 0..7, 1));
        let window = Window::new([7, 7], 1, 3, 1).stride(2);
        assert_eq!(window.result(), [3, 3, 1]);
        assert_eq!(window.seen(7, &(1..3)), (0, 2..7, 0));
    }

    #[test]
    fn windows_without_a_position_are_refused() {
        for window in [
            Window::new([2, 2], 1, 3, 1),
            Window::new([4, 4], 1, 2, 1).stride(0),
            Window::new([4, 4], 0, 2, 1),
        ] {
            let g = Graph::new();
            LocallyConnected2D::new(&g, "local", window);
            let error = g.check().unwrap_err();
            assert!(error.message.contains("has no position"), "{error}");
        }
    }
}
