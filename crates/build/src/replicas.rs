//! Where a model goes that is too large, or too slow, for one task: the tasks that one replica is
//! split over, and a cluster of such replicas around parameter servers.
//!
//! Invariant: which task an operation goes to follows from its scope and its type alone, so that
//! replicas which build the same model agree on every variable's place without talking.

use crate::place::PS_OPS;
use crate::{
    DeviceFunction, DeviceName, Graph, NewOp, ReplicaDeviceSetter, Result, Spread, Status,
};
use std::panic::Location;
use std::sync::Arc;

/// The tasks that one replica's model is split over: a stage of the model, or a slice of a layer,
/// on each.
///
/// ```
/// use downpour_build::{DType, Graph, ModelPartitions, layers::Dense};
/// let tasks = ModelPartitions::new(["/job:worker/task:0", "/job:worker/task:1"])?;
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, [None, Some(784)]);
/// let hidden = tasks.on(&g, 0, || Dense::new(&g, "hidden", 784, 100).apply(&x).relu());
/// let logits = tasks.on(&g, 1, || Dense::new(&g, "logits", 100, 10).apply(&hidden));
/// assert_eq!(logits.operation().device(), "/job:worker/task:1");
/// assert_eq!(g.variables()[0].handle().operation().device(), "/job:worker/task:0");
/// # Ok::<(), downpour_build::Status>(())
/// ```
#[derive(Clone, Debug)]
pub struct ModelPartitions {
    devices: Vec<DeviceName>,
    state: State,
}

/// Where variables made on a partition are kept.
#[derive(Clone, Debug)]
enum State {
    /// On its task.
    Beside,
    /// On the same partition's task of another replica, with which they are shared.
    At(Vec<DeviceName>),
    /// Where outer scopes say: on parameter servers.
    Outside,
}

impl ModelPartitions {
    /// These tasks, which keep the variables that are made on them too.
    pub fn new<S: AsRef<str>>(devices: impl IntoIterator<Item = S>) -> Result<ModelPartitions> {
        let parse = |device: S| {
            DeviceName::parse(device.as_ref()).map_err(|e| Status::invalid_argument(e.to_string()))
        };
        let devices: Vec<DeviceName> = devices.into_iter().map(parse).collect::<Result<_>>()?;
        if devices.is_empty() {
            return Err(Status::invalid_argument(
                "a model needs at least one task to be split over",
            ));
        }
        Ok(ModelPartitions {
            devices,
            state: State::Beside,
        })
    }

    /// The same tasks without the variables: scopes around [`ModelPartitions::on`] place those, as
    /// a [`ReplicaDeviceSetter`] does.
    pub fn state_outside(mut self) -> ModelPartitions {
        self.state = State::Outside;
        self
    }

    /// How many there are; never 0.
    #[expect(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.devices.len()
    }

    /// The task of partition `part`; that of the last one if there are fewer.
    pub fn device(&self, part: usize) -> String {
        let device = self.devices.get(part).or(self.devices.last());
        device.map(ToString::to_string).unwrap_or_default()
    }

    /// Places what `body` makes on partition `part`, as far as inner scopes leave it open. Its
    /// gradients will be computed there too.
    #[track_caller]
    pub fn on<R>(&self, g: &Graph, part: usize, body: impl FnOnce() -> R) -> R {
        if part >= self.len() {
            let count = self.len();
            let error = Status::invalid_argument(format!(
                "there is no partition {part} of {count}: they count from 0"
            ));
            g.fail(error, Location::caller());
            return body();
        }
        g.place_gradients_beside(true);
        g.with_device_function(self.each(move |_| Some(part)), body)
    }

    /// Places operations on the partitions that a function chooses, or leaves them.
    pub(crate) fn each(
        &self,
        choose: impl Fn(&NewOp<'_>) -> Option<usize> + Send + Sync + 'static,
    ) -> DeviceFunction {
        let (devices, state) = (self.devices.clone(), self.state.clone());
        Arc::new(move |op: &NewOp<'_>| {
            let Some(part) = choose(op) else {
                return op.device.clone();
            };
            let place = match (&state, PS_OPS.contains(&op.op)) {
                (State::Outside, true) => None,
                (State::At(devices), true) => devices.get(part),
                _ => devices.get(part),
            };
            place.map_or_else(|| op.device.clone(), |place| op.device.or(place))
        })
    }
}

/// A cluster of replicas, each of several tasks: model parallelism within a replica, data
/// parallelism between them.
///
/// Replica `r` of `p` partitions is tasks `r·p` to `r·p + p - 1`; the first of them leads: its
/// client builds the replica's graph and runs its steps. Variables are on parameter servers,
/// spread by size, or without those on the tasks of the first replica.
///
/// ```
/// use downpour_build::{Graph, Replicas, layers::Dense};
/// let cluster = Replicas::new(2, 2)?.ps(1);
/// assert_eq!(cluster.lead(1), "/job:worker/task:2");
/// assert_eq!(cluster.filters(1), ["/job:ps", "/job:worker/task:2", "/job:worker/task:3"]);
/// let g = Graph::new();
/// let tasks = cluster.partitions(1)?;
/// let (x, y) = g.with_device_function(cluster.device_function(1)?, || {
///     let x = g.constant([[1.0f32, 2.0]]);
///     let y = tasks.on(&g, 1, || Dense::new(&g, "layer", 2, 1).apply(&x));
///     (x, y)
/// });
/// assert_eq!(x.operation().device(), "/job:worker/task:2");
/// assert_eq!(y.operation().device(), "/job:worker/task:3");
/// assert_eq!(g.variables()[0].handle().operation().device(), "/job:ps/task:0");
/// # Ok::<(), downpour_build::Status>(())
/// ```
#[derive(Clone, Debug)]
pub struct Replicas {
    workers: Vec<String>,
    partitions: usize,
    ps: Vec<u32>,
}

impl Replicas {
    /// So many replicas, each of so many tasks of the job `worker`.
    pub fn new(replicas: usize, partitions: usize) -> Result<Replicas> {
        let count = replicas.saturating_mul(partitions);
        let workers = (0..count).map(|task| format!("/job:worker/task:{task}"));
        Replicas::over(workers, partitions)
    }

    /// Replicas over these tasks, `partitions` of them at a time.
    pub fn over(workers: impl IntoIterator<Item = String>, partitions: usize) -> Result<Replicas> {
        let workers: Vec<String> = workers.into_iter().collect();
        let count = workers.len();
        if partitions == 0 || count == 0 || !count.is_multiple_of(partitions) {
            return Err(Status::invalid_argument(format!(
                "{count} workers cannot form replicas of {partitions} tasks each"
            )));
        }
        Ok(Replicas {
            workers,
            partitions,
            ps: Vec::new(),
        })
    }

    /// With so many parameter servers.
    pub fn ps(self, tasks: u32) -> Replicas {
        self.ps_tasks(0..tasks)
    }

    /// With the parameter servers of these numbers.
    pub fn ps_tasks(mut self, tasks: impl IntoIterator<Item = u32>) -> Replicas {
        self.ps = tasks.into_iter().collect();
        self
    }

    /// Number of replicas.
    pub fn count(&self) -> usize {
        self.workers.len() / self.partitions
    }

    /// The task that leads a replica.
    pub fn lead(&self, replica: usize) -> String {
        let lead = self.workers.get(replica * self.partitions);
        lead.cloned().unwrap_or_default()
    }

    fn tasks(&self, replica: usize) -> Result<&[String]> {
        let (first, count) = (replica.saturating_mul(self.partitions), self.count());
        let found = self
            .workers
            .get(first..first.saturating_add(self.partitions));
        let none = || {
            Status::invalid_argument(format!(
                "there is no replica {replica} of {count}: they count from 0"
            ))
        };
        found.ok_or_else(none)
    }

    /// The tasks that a replica's model is split over.
    pub fn partitions(&self, replica: usize) -> Result<ModelPartitions> {
        let mut tasks = ModelPartitions::new(self.tasks(replica)?)?;
        tasks.state = match self.ps.is_empty() {
            true => State::At(ModelPartitions::new(self.tasks(0)?)?.devices),
            false => State::Outside,
        };
        Ok(tasks)
    }

    /// The devices that a replica's session needs: a replica that is down is then not waited for by
    /// the others.
    pub fn filters(&self, replica: usize) -> Vec<String> {
        let mut filters: Vec<String> = Vec::new();
        if !self.ps.is_empty() {
            filters.push("/job:ps".to_owned());
        } else if replica != 0 {
            // The variables are there.
            filters.extend(self.tasks(0).unwrap_or_default().iter().cloned());
        }
        filters.extend(self.tasks(replica).unwrap_or_default().iter().cloned());
        filters
    }

    /// Where what is made outside partitions goes: what holds state to the parameter servers, all
    /// else to the task that leads. For [`Graph::with_device_function`].
    pub fn device_function(&self, replica: usize) -> Result<DeviceFunction> {
        self.tasks(replica)?;
        let lead = self.lead(replica);
        if self.ps.is_empty() {
            let first = self.lead(0);
            let job = first.split("/task:").next().unwrap_or(&first).to_owned();
            let task = DeviceName::parse(&first).ok().and_then(|d| d.task);
            let setter = ReplicaDeviceSetter::new(1)
                .worker_device(&lead)
                .ps_device(&job);
            return setter
                .strategy(Spread::by(move |_| task.unwrap_or(0)))
                .build();
        }
        let setter = ReplicaDeviceSetter::new(self.ps.len() as u32).worker_device(&lead);
        let by_bytes = Spread::by_bytes_over(self.ps.clone());
        setter.strategy(by_bytes).build()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Variable, gradients};

    fn device_of(v: &Variable) -> String {
        v.handle().operation().device()
    }

    #[test]
    fn without_parameter_servers_replicas_share_the_first_ones_variables() {
        let cluster = Replicas::new(2, 2).unwrap();
        let places: Vec<String> = (0..2)
            .flat_map(|replica| {
                let g = Graph::new();
                let tasks = cluster.partitions(replica).unwrap();
                let function = cluster.device_function(replica).unwrap();
                let [a, b] = g.with_device_function(function, || {
                    let make = |name| g.variable(name).shape([2]).build();
                    [make("a"), tasks.on(&g, 1, || make("b"))]
                });
                g.check().unwrap();
                [device_of(&a), device_of(&b)]
            })
            .collect();
        let (first, second) = ("/job:worker/task:0", "/job:worker/task:1");
        assert_eq!(places, [first, second, first, second]);
        assert_eq!(cluster.filters(1).len(), 4);
    }

    #[test]
    fn mistakes_are_named() {
        for (workers, partitions) in [(3, 2), (0, 1), (2, 0)] {
            let workers = (0..workers).map(|w| format!("/job:worker/task:{w}"));
            let error = Replicas::over(workers, partitions).unwrap_err();
            assert!(error.message.contains("cannot form replicas"), "{error}");
        }
        assert!(Replicas::new(2, 2).unwrap().partitions(2).is_err());
        assert!(ModelPartitions::new(Vec::<String>::new()).is_err());
        assert!(ModelPartitions::new(["worker"]).is_err());
        let (g, tasks) = (Graph::new(), ModelPartitions::new(["/task:0"]).unwrap());
        tasks.on(&g, 1, || g.constant(1.0f32));
        let error = g.check().unwrap_err();
        assert!(error.message.contains("no partition 1 of 1"), "{error}");
    }

    #[test]
    fn gradients_of_one_device_are_added_up_there() {
        let g = Graph::new();
        let tasks = ModelPartitions::new(["/task:0", "/task:1"]).unwrap();
        let w = g.with_device("/job:ps/task:0", || g.variable("w").shape([2]).build());
        let loss: Vec<crate::Output> = [0, 1, 1]
            .into_iter()
            .map(|part| tasks.on(&g, part, || w.square().sum(())))
            .collect();
        let dw = gradients(&loss, &[w.handle().clone()]).unwrap();
        let sum = dw[0].clone().unwrap().to_dense().operation();
        assert_eq!((sum.op().as_str(), sum.num_inputs()), ("AddN", 2));
        assert_eq!(sum.device(), "/job:ps/task:0");
        let mut inputs: Vec<(String, String)> = (sum.inputs().iter())
            .map(|i| (i.operation().op(), i.operation().device()))
            .collect();
        inputs.sort();
        assert_eq!(inputs[0], ("AddN".to_owned(), "/task:1".to_owned()));
        assert_eq!(inputs[1].1, "/task:0");
    }
}
