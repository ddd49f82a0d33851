//! Queues between threads that read data and steps that train on it.

use crate::runner::QueueRunner;
use downpour_build::{
    AttrList, AttrValue, DType, Graph, IntoShape, Operation, Output, PartialShape, Result, Tensor,
};

/// A queue of a graph, whose elements are lists of tensors.
///
/// ```
/// use downpour::train::{Queue, Supervision};
/// use downpour::{DType, Graph, Server, ServerConfig, Status, Tensor};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let queue = Queue::fifo(&g, "numbers", 8).component(DType::Float, ()).build();
/// let mut numbers = (1..=6).map(|n| n as f32);
/// queue.fill(move || match numbers.next() {
///     Some(n) => Ok(vec![Tensor::scalar(n)]),
///     None => Err(Status::out_of_range("no more numbers")),
/// });
/// let sum = queue.dequeue_many(2)[0].sum(());
/// let mut sums = Vec::new();
/// Supervision::new(&server, &g).open()?.train(|session| {
///     sums.push(session.step().fetch(&sum)?.as_slice::<f32>().unwrap()[0]);
///     Ok(())
/// })?;
/// assert_eq!(sums, [3.0, 7.0, 11.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Queue {
    handle: Output,
    components: Vec<(DType, PartialShape)>,
}

/// A queue about to be made.
///
/// [`Queue::fifo`] or [`Queue::shuffled`] begins it.
///
/// ```
/// use downpour::train::Queue;
/// use downpour::{DType, Graph, Server, ServerConfig, Session};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let queue = Queue::fifo(&g, "examples", 8)
///     .component(DType::Float, [2])
///     .component(DType::Int64, ())
///     .build();
/// let put = queue.enqueue(&[g.constant([0.5f32, 1.5]), g.constant(7i64)]);
/// let (size, taken) = (queue.size(), queue.dequeue());
/// let session = Session::new(&server, &g)?;
/// session.run(&put)?;
/// assert_eq!(session.fetch(&size)?.scalar_value::<i32>()?, 1);
/// let [features, label] = session.step().fetch_all([&taken[0], &taken[1]])?;
/// assert_eq!(features.as_slice::<f32>()?, [0.5, 1.5]);
/// assert_eq!(label.scalar_value::<i64>()?, 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a queue is made by `build`"]
pub struct QueueBuilder {
    graph: Graph,
    name: String,
    capacity: i64,
    /// How many elements stay behind so that those taken are mixed, and the seed of the mixing.
    shuffle: Option<(i64, i64)>,
    shared_name: String,
    components: Vec<(DType, PartialShape)>,
}

impl Queue {
    /// Begins a queue that keeps the order; it holds so many elements.
    pub fn fifo(graph: &Graph, name: &str, capacity: i64) -> QueueBuilder {
        QueueBuilder {
            graph: graph.clone(),
            name: name.to_owned(),
            capacity,
            shuffle: None,
            shared_name: String::new(),
            components: Vec::new(),
        }
    }

    /// Begins a queue that mixes its elements: while it is open, so many stay behind.
    ///
    /// ```
    /// use downpour_build::{DType, Graph};
    /// use downpour_train::Queue;
    /// let g = Graph::new();
    /// let queue = Queue::shuffled(&g, "mixed", 100, 50, 7).component(DType::Int64, [3]).build();
    /// assert_eq!(queue.dequeue_many(4)[0].shape().to_string(), "[4,3]");
    /// g.check()?;
    /// # Ok::<(), downpour_build::Status>(())
    /// ```
    pub fn shuffled(
        graph: &Graph,
        name: &str,
        capacity: i64,
        behind: i64,
        seed: i64,
    ) -> QueueBuilder {
        QueueBuilder {
            shuffle: Some((behind, seed)),
            ..Queue::fifo(graph, name, capacity)
        }
    }

    /// The queue's handle.
    pub fn handle(&self) -> &Output {
        &self.handle
    }

    /// Puts one element in; waits while the queue is full.
    #[track_caller]
    pub fn enqueue(&self, element: &[Output]) -> Operation {
        self.op("QueueEnqueueV2", |op| op.inputs(element).build())
    }

    /// Puts the rows of these in, each as an element; waits while the queue is full.
    #[track_caller]
    pub fn enqueue_many(&self, rows: &[Output]) -> Operation {
        self.op("QueueEnqueueManyV2", |op| op.inputs(rows).build())
    }

    /// Takes one element; waits for one. `OUT_OF_RANGE` when there is none and none will come.
    #[track_caller]
    pub fn dequeue(&self) -> Vec<Output> {
        let types = self.types();
        self.op("QueueDequeueV2", |op| {
            op.attr("component_types", types).outputs()
        })
    }

    /// Takes so many elements as rows; waits for them. `OUT_OF_RANGE` when fewer will come.
    #[track_caller]
    pub fn dequeue_many(&self, count: i32) -> Vec<Output> {
        self.several("QueueDequeueManyV2", count)
    }

    /// Takes so many elements as rows, or the last fewer ones.
    #[track_caller]
    pub fn dequeue_up_to(&self, count: i32) -> Vec<Output> {
        self.several("QueueDequeueUpToV2", count)
    }

    #[track_caller]
    fn several(&self, op: &str, count: i32) -> Vec<Output> {
        let types = self.types();
        let count = self.handle.graph().constant(count);
        self.op(op, |op| {
            op.input(&count).attr("component_types", types).outputs()
        })
    }

    /// How many elements it holds.
    pub fn size(&self) -> Output {
        self.op("QueueSizeV2", |op| op.output())
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> Output {
        self.op("QueueIsClosedV2", |op| op.output())
    }

    /// Lets no more elements in; what is there can be taken, and what waits to be put in gets in.
    pub fn close(&self) -> Operation {
        self.closing("close", false)
    }

    /// Lets no more elements in, not even those that wait.
    pub fn cancel(&self) -> Operation {
        self.closing("cancel", true)
    }

    fn closing(&self, name: &str, cancel: bool) -> Operation {
        self.op("QueueCloseV2", |op| {
            let op = op.name(name).attr("cancel_pending_enqueues", cancel);
            op.build()
        })
    }

    /// Lets a supervised session fill the queue with what a function brings, on a thread beside
    /// training: an element each time. `OUT_OF_RANGE` ends the data and closes the queue, another
    /// error ends training. What a lost session did not put in, the next one does.
    pub fn fill(&self, bring: impl FnMut() -> Result<Vec<Tensor>> + Send + 'static) {
        let g = self.handle.graph().clone();
        let scope = format!("{}_fill", self.handle.operation().name());
        let (fed, enqueue) = g.without_control(|| {
            g.with_scope(&scope, || {
                let place = |(dtype, shape): &(DType, PartialShape)| {
                    g.placeholder("element", *dtype, shape)
                };
                let fed: Vec<Output> = self.components.iter().map(place).collect();
                let enqueue = self.enqueue(&fed);
                (fed, enqueue)
            })
        });
        QueueRunner::new(self, &[enqueue])
            .feeding(&fed, bring)
            .register();
    }

    fn types(&self) -> AttrValue {
        let types = self.components.iter().map(|(dtype, _)| *dtype);
        AttrValue::List(AttrList::Type(types.collect()))
    }

    /// An operation on the queue, on the queue's device.
    #[track_caller]
    fn op<R>(&self, op: &str, build: impl FnOnce(downpour_build::OpBuilder) -> R) -> R {
        let g = self.handle.graph();
        g.with_colocation(&self.handle.operation(), || {
            build(g.op(op).input(&self.handle))
        })
    }
}

impl QueueBuilder {
    /// Adds a tensor to each element.
    pub fn component(mut self, dtype: DType, shape: impl IntoShape) -> QueueBuilder {
        self.components.push((dtype, shape.into_shape()));
        self
    }

    /// Shares the queue with all graphs that give this name to one on the same device.
    pub fn shared(mut self, name: &str) -> QueueBuilder {
        name.clone_into(&mut self.shared_name);
        self
    }

    /// Makes the queue.
    #[track_caller]
    pub fn build(self) -> Queue {
        let g = &self.graph;
        let types = self.components.iter().map(|(dtype, _)| *dtype).collect();
        let shapes = self.components.iter().map(|(_, shape)| shape.clone());
        let handle = g.without_control(|| {
            let op = match self.shuffle {
                None => g.op("FIFOQueueV2"),
                Some((behind, seed)) => g
                    .op("RandomShuffleQueueV2")
                    .attr("min_after_dequeue", behind)
                    .attr("seed", seed)
                    .attr("seed2", seed),
            };
            op.name(self.name.as_str())
                .attr("component_types", AttrValue::List(AttrList::Type(types)))
                .attr("shapes", AttrValue::List(AttrList::Shape(shapes.collect())))
                .attr("capacity", self.capacity)
                .attr("shared_name", self.shared_name.as_str())
                .output()
        });
        Queue {
            handle,
            components: self.components,
        }
    }
}
