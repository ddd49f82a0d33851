//! A pipeline: the stages of a model on one task each, and a batch that passes through them in
//! small parts, so that all stages work at the same time on different parts.
//!
//! Nothing but the graph schedules it: within a stage a part waits for the part before it, and
//! everything else follows from the data. The gradients of the parts are added up on each stage's
//! task, so that a step gives what it gives without a pipeline.

use crate::ops::add_n;
use crate::{Graph, ModelPartitions, Operation, Output, Status};
use std::panic::Location;

type Stage<'a> = Box<dyn Fn(&Output) -> Output + 'a>;

/// Stages of a model, one on each partition, and into how many parts a batch is cut for them.
///
/// Layers are made before, each on its partition; stages apply them, once for each part of a batch.
///
/// ```
/// use downpour::layers::Dense;
/// use downpour::{DType, Graph, LocalCluster, ModelPartitions, Pipeline, Session};
/// let cluster = LocalCluster::start(0, 2)?;
/// let tasks = ModelPartitions::new(["/job:worker/task:0", "/job:worker/task:1"])?;
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, [None, Some(3)]);
/// let first = tasks.on(&g, 0, || Dense::new(&g, "first", 3, 8));
/// let second = tasks.on(&g, 1, || Dense::new(&g, "second", 8, 1));
/// let pipeline = Pipeline::new(&tasks, 2)
///     .stage(|x| first.apply(x).relu())
///     .stage(|x| second.apply(x));
/// let parts = pipeline.apply(&x);
/// let whole = second.apply(&first.apply(&x).relu());
/// let session = Session::new(&cluster.workers()[0], &g)?;
/// session.run(&g.initialize_variables())?;
/// let step = session.step().feed(&x, [[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]]);
/// let [a, b, both] = step.fetch_all([&parts[0], &parts[1], &whole])?;
/// let [a, b, both] = [a.as_slice::<f32>()?, b.as_slice::<f32>()?, both.as_slice::<f32>()?];
/// assert_eq!([a, b].concat(), both);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a pipeline is built by `apply` or `mean_loss`"]
pub struct Pipeline<'a> {
    tasks: &'a ModelPartitions,
    parts: usize,
    stages: Vec<Stage<'a>>,
}

impl<'a> Pipeline<'a> {
    /// A pipeline over these tasks for batches cut into `parts`. The number of examples must be a
    /// multiple of that: a step says so otherwise.
    pub fn new(tasks: &'a ModelPartitions, parts: usize) -> Pipeline<'a> {
        Pipeline {
            tasks,
            parts: parts.max(1),
            stages: Vec::new(),
        }
    }

    /// The next stage, on the next task.
    pub fn stage(mut self, apply: impl Fn(&Output) -> Output + 'a) -> Pipeline<'a> {
        self.stages.push(Box::new(apply));
        self
    }

    /// What the last stage makes of each part of a batch.
    #[track_caller]
    pub fn apply(&self, batch: &Output) -> Vec<Output> {
        let g = batch.graph().clone();
        if self.stages.len() > self.tasks.len() {
            let error = Status::invalid_argument(format!(
                "{} stages need as many tasks, but there are {}",
                self.stages.len(),
                self.tasks.len()
            ));
            g.fail(error, Location::caller());
        }
        let mut parts = cut(&g, batch, self.parts);
        for (index, stage) in self.stages.iter().enumerate() {
            let mut before: Option<Operation> = None;
            for (number, part) in parts.iter_mut().enumerate() {
                let scope = format!("stage_{index}_part_{number}");
                let after: Vec<Operation> = before.iter().cloned().collect();
                // Without this the parts would share the task and all arrive at its end together.
                *part = self.tasks.on(&g, index, || {
                    g.with_control(&after, || g.with_scope(&scope, || stage(part)))
                });
                before = Some(part.operation());
            }
        }
        parts
    }

    /// The mean over all examples of a batch of `loss(labels, results)`, which must itself be a
    /// mean over the examples that it is given. It is computed on the last stage's task, and what
    /// minimizes it adds the gradients of all parts up.
    #[track_caller]
    pub fn mean_loss(
        &self,
        batch: &Output,
        labels: &Output,
        loss: impl Fn(&Output, &Output) -> Output,
    ) -> Output {
        let g = batch.graph().clone();
        let results = self.apply(batch);
        let labels = cut(&g, labels, self.parts);
        let last = self.stages.len().saturating_sub(1);
        self.tasks.on(&g, last, || {
            let losses: Vec<Output> = (labels.iter().zip(&results))
                .map(|(labels, results)| loss(labels, results))
                .collect();
            match losses.as_slice() {
                [one] => one.clone(),
                several => {
                    let sum = add_n(several).unwrap_or_else(|| g.invalid());
                    sum * (1.0 / several.len() as f64)
                }
            }
        })
    }
}

/// A batch in equal parts, cut where it is made: only its part travels to a task.
#[track_caller]
fn cut(g: &Graph, batch: &Output, parts: usize) -> Vec<Output> {
    match parts {
        1 => vec![batch.clone()],
        _ => g.beside(&batch.operation(), || batch.split(parts, 0)),
    }
}
