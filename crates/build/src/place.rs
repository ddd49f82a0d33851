//! Where operations go in a cluster of parameter servers and workers: TensorFlow's
//! `replica_device_setter` as a device function, and the strategies that spread variables.
//!
//! Invariant: strategies see operations in the order they are made, and nothing else decides, so
//! that workers which build the same graph agree on every variable's place without talking.

use crate::{DeviceFunction, DeviceName, NewOp, Result, Status};
use downpour_graph::AttrValue;
use downpour_tensor::DType;
use parking_lot::Mutex;
use std::sync::Arc;

/// Ops that hold state which all workers share.
pub(crate) const PS_OPS: [&str; 14] = [
    "Variable",
    "VariableV2",
    "AutoReloadVariable",
    "MutableHashTable",
    "MutableHashTableV2",
    "MutableHashTableOfTensors",
    "MutableHashTableOfTensorsV2",
    "MutableDenseHashTable",
    "MutableDenseHashTableV2",
    "VarHandleOp",
    "BoostedTreesEnsembleResourceHandleOp",
    "BoostedTreesQuantileStreamResourceHandleOp",
    "ResourceConditionalAccumulator",
    "DecisionTreeResource",
];

/// Chooses the parameter server of the next operation that holds state.
///
/// ```
/// use downpour_build::{ReplicaDeviceSetter, Spread};
/// let big_ones_last = Spread::by(|op| if op.name.starts_with("table") { 1 } else { 0 });
/// let setter = ReplicaDeviceSetter::new(2).strategy(big_ones_last).build()?;
/// # drop(setter);
/// # Ok::<(), downpour_build::Status>(())
/// ```
pub struct Spread(Box<dyn FnMut(&NewOp<'_>) -> u32 + Send>);

impl Spread {
    /// One after the other. Every variable takes a turn, also an optimizer's slot, which goes
    /// where its variable is all the same.
    pub fn round_robin(tasks: u32) -> Spread {
        let mut next = 0;
        Spread::by(move |_| {
            let task = next;
            next = (next + 1) % tasks.max(1);
            task
        })
    }

    /// Where there is least so far, by a measure of your own; the first of equals.
    pub fn greedy(tasks: u32, mut load: impl FnMut(&NewOp<'_>) -> u64 + Send + 'static) -> Spread {
        let mut loads = vec![0u64; tasks.max(1) as usize];
        Spread::by(move |op| {
            let least = (0..loads.len()).min_by_key(|i| loads[*i]).unwrap_or(0);
            loads[least] = loads[least].saturating_add(load(op));
            least as u32
        })
    }

    /// Where there are fewest bytes of variables so far.
    pub fn by_bytes(tasks: u32) -> Spread {
        Spread::greedy(tasks, bytes_of)
    }

    /// The same over tasks with these numbers: a cluster's need not be without gaps.
    ///
    /// ```
    /// use downpour_build::{Graph, ReplicaDeviceSetter, Spread};
    /// let g = Graph::new();
    /// let setter = ReplicaDeviceSetter::new(2).strategy(Spread::by_bytes_over(vec![3, 7])).build()?;
    /// let devices = g.with_device_function(setter, || {
    ///     [1000, 10, 10].map(|n| g.variable("v").shape([n]).build().handle().operation().device())
    /// });
    /// assert_eq!(devices, ["/job:ps/task:3", "/job:ps/task:7", "/job:ps/task:7"]);
    /// # Ok::<(), downpour_build::Status>(())
    /// ```
    pub fn by_bytes_over(tasks: Vec<u32>) -> Spread {
        let mut loads = vec![0u64; tasks.len()];
        Spread::by(move |op| {
            let least = (0..loads.len()).min_by_key(|i| loads[*i]).unwrap_or(0);
            if let Some(load) = loads.get_mut(least) {
                *load = load.saturating_add(bytes_of(op));
            }
            tasks.get(least).copied().unwrap_or(0)
        })
    }

    /// As a function says.
    pub fn by(choose: impl FnMut(&NewOp<'_>) -> u32 + Send + 'static) -> Spread {
        Spread(Box::new(choose))
    }
}

/// Size of a variable; 0 for what has no shape, such as a table.
///
/// A string counts as 16 bytes, as for partitioners.
///
/// ```
/// use downpour_build::{Graph, ReplicaDeviceSetter, Spread, bytes_of};
/// let g = Graph::new();
/// // By size, but nothing counts for less than a kilobyte.
/// let spread = Spread::greedy(2, |op| bytes_of(op).max(1 << 10));
/// let setter = ReplicaDeviceSetter::new(2).strategy(spread).build()?;
/// let devices = g.with_device_function(setter, || {
///     [1000, 10, 10].map(|n| g.variable("v").shape([n]).build().handle().operation().device())
/// });
/// assert_eq!(devices, ["/job:ps/task:0", "/job:ps/task:1", "/job:ps/task:1"]);
/// # Ok::<(), downpour_build::Status>(())
/// ```
pub fn bytes_of(op: &NewOp<'_>) -> u64 {
    let dtype = match op.attrs.find("dtype") {
        Some(AttrValue::Type(dtype)) => *dtype,
        _ => return 0,
    };
    let shape = match op.attrs.find("shape") {
        Some(AttrValue::Shape(shape)) => shape.to_shape(),
        _ => None,
    };
    let elements = shape.map_or(0, |s| s.num_elements() as u64);
    elements.saturating_mul(element_size(dtype, 16))
}

/// Bytes of an element.
pub(crate) fn element_size(dtype: DType, string: u64) -> u64 {
    dtype.size().map_or(string, |s| s as u64)
}

/// Puts what holds state on parameter servers and everything else on a worker.
///
/// ```
/// use downpour_build::{Graph, ReplicaDeviceSetter};
/// let g = Graph::new();
/// let setter = ReplicaDeviceSetter::new(2).worker_device("/job:worker/task:1").build()?;
/// let (a, b, sum) = g.with_device_function(setter, || {
///     let (a, b) = (g.variable("a").shape([2]).build(), g.variable("b").shape([2]).build());
///     let sum = &*a + &*b;
///     (a, b, sum)
/// });
/// assert_eq!(a.handle().operation().device(), "/job:ps/task:0");
/// assert_eq!(b.handle().operation().device(), "/job:ps/task:1");
/// assert_eq!(sum.operation().device(), "/job:worker/task:1");
/// # Ok::<(), downpour_build::Status>(())
/// ```
#[must_use = "a device function is made by `build`"]
pub struct ReplicaDeviceSetter {
    tasks: u32,
    ps: String,
    worker: String,
    merge: bool,
    ops: Vec<String>,
    spread: Option<Spread>,
}

impl ReplicaDeviceSetter {
    /// For this number of parameter servers, one variable after the other. Without any, the
    /// function changes nothing: all operations run on the task that the session talks to.
    pub fn new(ps_tasks: u32) -> ReplicaDeviceSetter {
        ReplicaDeviceSetter {
            tasks: ps_tasks,
            ps: "/job:ps".to_owned(),
            worker: "/job:worker".to_owned(),
            merge: true,
            ops: PS_OPS.map(str::to_owned).to_vec(),
            spread: None,
        }
    }

    /// The parameter servers' job, and what else their devices have in common.
    pub fn ps_device(mut self, device: &str) -> ReplicaDeviceSetter {
        self.ps = device.to_owned();
        self
    }

    /// Where everything else goes.
    pub fn worker_device(mut self, device: &str) -> ReplicaDeviceSetter {
        self.worker = device.to_owned();
        self
    }

    /// Whether inner device scopes that leave parts open are completed; otherwise they stand.
    pub fn merge_devices(mut self, merge: bool) -> ReplicaDeviceSetter {
        self.merge = merge;
        self
    }

    /// The types of op that go on parameter servers.
    pub fn ps_ops<S: Into<String>>(
        mut self,
        ops: impl IntoIterator<Item = S>,
    ) -> ReplicaDeviceSetter {
        self.ops = ops.into_iter().map(Into::into).collect();
        self
    }

    /// How operations spread over the parameter servers.
    pub fn strategy(mut self, spread: Spread) -> ReplicaDeviceSetter {
        self.spread = Some(spread);
        self
    }

    /// The function, for [`crate::Graph::with_device_function`].
    pub fn build(self) -> Result<DeviceFunction> {
        let parse = |device: &str| {
            DeviceName::parse(device).map_err(|e| Status::invalid_argument(e.to_string()))
        };
        let (ps, worker) = (parse(&self.ps)?, parse(&self.worker)?);
        if self.tasks == 0 {
            return Ok(Arc::new(|op: &NewOp<'_>| op.device.clone()));
        }
        let spread = self
            .spread
            .unwrap_or_else(|| Spread::round_robin(self.tasks));
        let (spread, merge, ops) = (Mutex::new(spread), self.merge, self.ops);
        Ok(Arc::new(move |op: &NewOp<'_>| {
            if !merge && *op.device != DeviceName::default() {
                return op.device.clone();
            }
            if !ops.iter().any(|o| o == op.op) {
                return op.device.or(&worker);
            }
            let mut place = ps.clone();
            if ps.job.is_some() && (op.device.job.is_none() || op.device.job == ps.job) {
                place.task = Some((spread.lock().0)(op));
            }
            op.device.or(&place)
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Graph, IntoTensor, Output};

    /// Where variables and constants go under scopes of all kinds.
    fn places(setter: ReplicaDeviceSetter) -> Vec<(String, String)> {
        let g = Graph::new();
        let variable = |name: &str| g.variable(name).shape([2]).build().handle().clone();
        let constant = |name: &str| {
            let op = g.op("Const").name(name).attr("dtype", DType::Float);
            op.attr("value", AttrValue::Tensor(1.0f32.into_tensor()))
                .output()
        };
        let setter = setter.worker_device("/job:worker/task:1/device:CPU:0");
        let made: Vec<Output> = g.with_device_function(setter.build().unwrap(), || {
            let a = variable("a");
            let on = |device: &str, names: &[&str]| -> Vec<Output> {
                g.with_device(device, || {
                    let make = |name: &&str| match name.len() {
                        1 => variable(name),
                        _ => constant(name),
                    };
                    names.iter().map(make).collect()
                })
            };
            let mut made = vec![a.clone()];
            made.extend(on("/device:GPU:1", &["b", "cb"]));
            made.extend(on("/job:ps/task:2", &["c"]));
            made.extend(on("/job:other", &["d", "cd"]));
            made.extend(on("/task:7", &["e", "ce"]));
            made.push(variable("f"));
            made.push(g.without_device(|| variable("n")));
            made.extend([variable("h"), constant("ch")]);
            made.push(g.with_colocation(&a.operation(), || variable("i")));
            made.push(variable("j"));
            made
        });
        g.check().unwrap();
        let place = |o: &Output| (o.operation().name(), o.operation().device());
        made.iter().map(place).collect()
    }

    fn check(setter: ReplicaDeviceSetter, expected: &[(&str, &str)]) {
        let found = places(setter);
        let found: Vec<(&str, &str)> = found.iter().map(|(n, d)| (&**n, &**d)).collect();
        assert_eq!(found, expected);
    }

    // Expected places: tf.compat.v1.train.replica_device_setter in TensorFlow 2.21 for the same
    // operations in the same order.
    #[test]
    fn inner_scopes_win_and_still_take_turns() {
        check(
            ReplicaDeviceSetter::new(3),
            &[
                ("a", "/job:ps/task:0"),
                ("b", "/job:ps/task:1/device:GPU:1"),
                ("cb", "/job:worker/task:1/device:GPU:1"),
                ("c", "/job:ps/task:2"),
                ("d", "/job:other"),
                ("cd", "/job:other/task:1/device:CPU:0"),
                ("e", "/job:ps/task:7"),
                ("ce", "/job:worker/task:7/device:CPU:0"),
                ("f", "/job:ps/task:1"),
                ("n", ""),
                ("h", "/job:ps/task:2"),
                ("ch", "/job:worker/task:1/device:CPU:0"),
                ("i", "/job:ps/task:0"),
                ("j", "/job:ps/task:1"),
            ],
        );
    }

    #[test]
    fn without_merging_inner_scopes_stand_alone() {
        check(
            ReplicaDeviceSetter::new(3).merge_devices(false),
            &[
                ("a", "/job:ps/task:0"),
                ("b", "/device:GPU:1"),
                ("cb", "/device:GPU:1"),
                ("c", "/job:ps/task:2"),
                ("d", "/job:other"),
                ("cd", "/job:other"),
                ("e", "/task:7"),
                ("ce", "/task:7"),
                ("f", "/job:ps/task:1"),
                ("n", ""),
                ("h", "/job:ps/task:2"),
                ("ch", "/job:worker/task:1/device:CPU:0"),
                ("i", "/job:ps/task:0"),
                ("j", "/job:ps/task:1"),
            ],
        );
    }

    #[test]
    fn the_least_loaded_comes_next_and_any_function_may_choose() {
        let g = Graph::new();
        let task = |setter: ReplicaDeviceSetter, rows: &[usize]| -> Vec<String> {
            g.with_device_function(setter.build().unwrap(), || {
                let make = |rows: &usize| g.variable("v").shape([*rows]).build();
                let device = |v: crate::Variable| v.handle().operation().device();
                rows.iter().map(|r| device(make(r))).collect()
            })
        };
        let tasks = |numbers: &[u32]| -> Vec<String> {
            numbers
                .iter()
                .map(|n| format!("/job:ps/task:{n}"))
                .collect()
        };
        let greedy = ReplicaDeviceSetter::new(3).strategy(Spread::by_bytes(3));
        assert_eq!(
            task(greedy, &[10, 1, 2, 1, 1, 9]),
            tasks(&[0, 1, 2, 1, 1, 2])
        );
        let odd = Spread::by(|op| u32::from(op.name.ends_with('1')));
        let odd = ReplicaDeviceSetter::new(2).strategy(odd);
        assert_eq!(task(odd, &[1]), tasks(&[0]));
        assert!(ReplicaDeviceSetter::new(1).ps_device("ps").build().is_err());
    }
}
