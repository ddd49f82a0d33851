//! A tensor in parts along one axis, each on its own task: what layers that are split over tasks
//! hand to each other. A part travels only when it is asked for elsewhere.

use crate::partition::pieces;
use crate::{
    Graph, ModelPartitions, Output, PartitionedVariable, Partitioner, Shape, Status,
    VariableBuilder, concat,
};
use std::panic::Location;

/// A tensor in parts along an axis, part `k` on partition `k` of a model.
///
/// ```
/// use downpour::layers::Sharded;
/// use downpour::{Graph, LocalCluster, ModelPartitions, Session};
/// let cluster = LocalCluster::start(0, 2)?;
/// let tasks = ModelPartitions::new(["/job:worker/task:0", "/job:worker/task:1"])?;
/// let g = Graph::new();
/// let x = g.constant([[1.0f32, 2.0, 3.0]]);
/// let squares = Sharded::split(&x, 1, &tasks).map(|part| part.square());
/// assert_eq!(squares.parts()[1].operation().device(), "/job:worker/task:1");
/// assert_eq!(squares.parts()[0].shape().to_string(), "[1,2]");
/// let whole = squares.join();
/// let session = Session::new(&cluster.workers()[0], &g)?;
/// assert_eq!(session.fetch(&whole)?.as_slice::<f32>()?, [1.0, 4.0, 9.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Sharded {
    graph: Graph,
    parts: Vec<Output>,
    axis: usize,
    tasks: ModelPartitions,
}

impl Sharded {
    pub(super) fn of(
        graph: &Graph,
        parts: Vec<Output>,
        axis: usize,
        tasks: &ModelPartitions,
    ) -> Sharded {
        Sharded {
            graph: graph.clone(),
            parts,
            axis,
            tasks: tasks.clone(),
        }
    }

    /// A tensor in as many parts as there are tasks, along an axis whose length is known. It is cut
    /// where it is made, and each part travels to its own task only.
    #[track_caller]
    pub fn split(x: &Output, axis: usize, tasks: &ModelPartitions) -> Sharded {
        let g = x.graph();
        let Some(length) = length_of(x, axis) else {
            let error = Status::invalid_argument(format!(
                "'{}' of shape {} cannot be split along dimension {axis}: its length is not known",
                x.name(),
                x.shape()
            ));
            g.fail(error, Location::caller());
            return Sharded::of(g, Vec::new(), axis, tasks);
        };
        let count = tasks.len().min(length.max(1));
        let parts = pieces(&Shape::from([length]), 0, count)
            .into_iter()
            .map(|(offset, length)| rows(x, axis, offset, length))
            .collect();
        Sharded::of(g, parts, axis, tasks)
    }

    /// The parts, in order.
    pub fn parts(&self) -> &[Output] {
        &self.parts
    }

    /// Along which dimension.
    pub fn axis(&self) -> usize {
        self.axis
    }

    /// The same of every part, on its task: an activation, say. What `f` makes must be cut along
    /// the same axis.
    #[track_caller]
    pub fn map(&self, f: impl Fn(&Output) -> Output) -> Sharded {
        let apply = |(k, part)| self.tasks.on(&self.graph, k, || f(part));
        let parts = self.parts.iter().enumerate().map(apply).collect();
        Sharded::of(&self.graph, parts, self.axis, &self.tasks)
    }

    /// The whole, on the device of the scopes around.
    #[track_caller]
    pub fn join(&self) -> Output {
        match self.parts.as_slice() {
            [] => self.graph.invalid(),
            [one] => one.clone(),
            parts => concat(parts, self.axis as i32),
        }
    }

    /// The tasks of the parts.
    pub fn tasks(&self) -> &ModelPartitions {
        &self.tasks
    }

    /// The length of each part along the axis; nothing if one is not known.
    pub(super) fn lengths(&self) -> Option<Vec<usize>> {
        let length = |part: &Output| length_of(part, self.axis);
        self.parts.iter().map(length).collect()
    }

    pub(super) fn graph(&self) -> &Graph {
        &self.graph
    }
}

/// The length of a dimension, if it is known.
pub(super) fn length_of(x: &Output, axis: usize) -> Option<usize> {
    *x.shape().dims()?.get(axis)?
}

/// Part of a tensor along an axis, cut where the tensor is made.
#[track_caller]
pub(super) fn rows(x: &Output, axis: usize, offset: usize, length: usize) -> Output {
    if offset == 0 && length_of(x, axis) == Some(length) {
        return x.clone();
    }
    let rank = x.rank().unwrap_or(axis + 1);
    let (mut begin, mut size) = (vec![0; rank], vec![-1; rank]);
    if let (Some(begin), Some(size)) = (begin.get_mut(axis), size.get_mut(axis)) {
        (*begin, *size) = (offset as i32, length as i32);
    }
    let g = x.graph().clone();
    g.beside(&x.operation(), || x.slice(&begin, &size))
}

/// A variable in as many parts as there are tasks, part `k` where variables of partition `k` are
/// kept. Checkpoints hold it as one.
#[track_caller]
pub(super) fn cut_variable(
    g: &Graph,
    variable: VariableBuilder,
    axis: usize,
    tasks: &ModelPartitions,
) -> PartitionedVariable {
    g.place_gradients_beside(true);
    let part_of = |op: &crate::NewOp<'_>| -> Option<usize> {
        let (_, number) = op.name.rsplit_once("/part_")?;
        number.parse().ok()
    };
    let partitioner = Partitioner::fixed(tasks.len()).axis(axis);
    g.with_device_function(tasks.each(part_of), || variable.partitioned(&partitioner))
}
