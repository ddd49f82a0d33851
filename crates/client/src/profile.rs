//! Placing a model by what it costs: steps are traced, their times and sizes become a graph of
//! costs, and `plan::split` chooses a task for each operation.
//!
//! Invariant: a placement only says where operations run; what a step computes does not change.

use crate::{Run, Runner, Session};
use downpour_build::{DeviceFunction, DeviceName, Graph, NewOp, Result, Status};
use downpour_plan::{CostGraph, Estimate, Machine, Measured, round_robin, split};
use downpour_wire::messages::RunMetadata;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// What the operations of a step were seen to cost.
///
/// ```
/// use downpour::layers::Dense;
/// use downpour::{DType, Graph, LocalCluster, Machine, Run, Session, Tensor};
/// let cluster = LocalCluster::start(0, 2)?;
/// // Built without devices, measured on one task.
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, [None, Some(64)]);
/// let hidden = Dense::new(&g, "hidden", 64, 64).apply(&x).relu();
/// let y = Dense::new(&g, "y", 64, 64).apply(&hidden);
/// let init = g.initialize_variables();
/// let session = Session::new(&cluster.workers()[0], &g)?;
/// session.run(&init)?;
/// let mut run = Run::new();
/// run.feed(&x, Tensor::from_vec(vec![0.5f32; 256], [4, 64])?).fetch(&y);
/// let profile = session.profile(&run, 3)?;
///
/// // Each task keeps one of the two layers, since both together would be too much.
/// let tasks = ["/job:worker/task:0", "/job:worker/task:1"];
/// let placement = profile.place(&g, &tasks, &Machine { memory_slack: 0.1, ..Machine::default() })?;
/// assert_ne!(placement.device("hidden/kernel"), placement.device("y/kernel"));
/// placement.apply(&g);
/// let split = Session::new(&cluster.workers()[0], &g)?;
/// split.run(&init)?;
/// assert_eq!(split.execute(&run)?[0].dims(), [4, 64]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Profile {
    measured: HashMap<String, Measured>,
}

impl Session {
    /// Runs a step so many times and measures what each operation costs. The steps are real ones:
    /// variables change as by any other. One more runs before, unmeasured, so that what is only done
    /// once does not count.
    pub fn profile(&self, run: &Run, steps: usize) -> Result<Profile> {
        self.execute(run)?;
        let mut traced = run.clone();
        traced.trace();
        let mut profile = Profile::default();
        profile.add_ends(run);
        for _ in 0..steps.max(1) {
            if let Some(metadata) = self.perform(&traced)?.metadata {
                profile.add(&metadata);
            }
        }
        Ok(profile)
    }
}

impl Profile {
    /// What a step is fed and what it fetches, by the names of the nodes that the master makes of
    /// them: those are not traced.
    fn add_ends(&mut self, run: &Run) {
        let mut end = |kind: &str, name: &str, outputs: Vec<u64>| {
            let (node, output) = name.rsplit_once(':').unwrap_or((name, "0"));
            let seen = Measured { nanos: 0, outputs };
            self.measured
                .insert(format!("_{kind}_{node}_{output}"), seen);
        };
        for (name, value) in &run.feeds {
            end("recv", name, vec![value.byte_len() as u64]);
        }
        for name in &run.fetches {
            end("send", name, Vec::new());
        }
    }

    /// Takes a traced step into account. Of an operation that was seen before the shortest time
    /// counts, since what made it longer was something else, and the largest sizes.
    pub fn add(&mut self, metadata: &RunMetadata) {
        let devices = metadata.step_stats.iter().flat_map(|s| &s.devices);
        for node in devices.flat_map(|d| &d.nodes) {
            let nanos = node.op_end_rel_nanos - node.op_start_rel_nanos;
            let nanos = u64::try_from(nanos).unwrap_or(0);
            let seen = self.measured.get_mut(&node.node_name);
            let known = match seen {
                Some(seen) => {
                    seen.nanos = seen.nanos.min(nanos);
                    seen
                }
                None => {
                    let name = node.node_name.clone();
                    let entry = self.measured.entry(name).or_default();
                    entry.nanos = nanos;
                    entry
                }
            };
            for output in &node.outputs {
                // A task that is not ours may say anything: sizes beyond reason are left out.
                let slot = usize::try_from(output.slot).unwrap_or(usize::MAX);
                if slot >= MOST_OUTPUTS {
                    continue;
                }
                if known.outputs.len() <= slot {
                    known.outputs.resize(slot + 1, 0);
                }
                let bytes = u64::try_from(output.tensor.requested_bytes).unwrap_or(0);
                known.outputs[slot] = known.outputs[slot].max(bytes);
            }
        }
    }

    /// How long an operation took.
    pub fn nanos(&self, operation: &str) -> Option<u64> {
        self.measured.get(operation).map(|m| m.nanos)
    }

    /// Chooses a task for each operation of the graph that was measured: a short critical path,
    /// little travel, variables spread evenly. The first task must be that of the session's master,
    /// where feeds come from and fetches go to. Operations that were built on a device stay there;
    /// variables stay with what changes them.
    pub fn place<S: AsRef<str>>(
        &self,
        graph: &Graph,
        tasks: &[S],
        machine: &Machine,
    ) -> Result<Placement> {
        self.placed(graph, tasks, machine, |costs| {
            split(costs, tasks.len(), machine)
        })
    }

    /// As [`Profile::place`], but by turns: what a chosen placement is measured against.
    pub fn place_in_turn<S: AsRef<str>>(
        &self,
        graph: &Graph,
        tasks: &[S],
        machine: &Machine,
    ) -> Result<Placement> {
        self.placed(graph, tasks, machine, |costs| {
            round_robin(costs, tasks.len())
        })
    }

    fn placed<S: AsRef<str>>(
        &self,
        graph: &Graph,
        tasks: &[S],
        machine: &Machine,
        choose: impl Fn(&CostGraph) -> Vec<usize>,
    ) -> Result<Placement> {
        let parse = |task: &S| {
            DeviceName::parse(task.as_ref()).map_err(|e| Status::invalid_argument(e.to_string()))
        };
        let devices: Vec<DeviceName> = tasks.iter().map(parse).collect::<Result<_>>()?;
        if devices.is_empty() || self.measured.is_empty() {
            return Err(Status::invalid_argument(
                "a placement needs tasks to choose from and a step that was measured",
            ));
        }
        let whole = downpour_graph::Graph::new(graph.to_graph_def()?)?;
        let costs = CostGraph::new(&whole, &self.measured, &devices)?;
        let places = choose(&costs);
        let assigned = costs.assignment(&whole, &places, devices.len());
        let named = assigned.into_iter().map(|(name, task)| {
            let device = devices[task].to_string();
            (name, device)
        });
        Ok(Placement {
            devices: Arc::new(named.collect()),
            estimate: costs.estimate(&places, devices.len(), machine),
        })
    }
}

/// No op has more outputs.
const MOST_OUTPUTS: usize = 1 << 16;

/// Where each operation of a graph goes.
///
/// ```
/// use downpour::{Graph, LocalCluster, Machine, Run, Session};
/// let cluster = LocalCluster::start(0, 2)?;
/// let build = |g: &Graph| g.constant([1.0f32, 2.0]).square().named("y");
/// let g = Graph::new();
/// let mut run = Run::new();
/// run.fetch(&build(&g));
/// let profile = Session::new(&cluster.workers()[0], &g)?.profile(&run, 1)?;
/// let placement = profile.place(&g, &["/job:worker/task:0", "/job:worker/task:1"], &Machine::default())?;
/// // So little work is best done where its result is wanted.
/// assert_eq!(placement.estimate().bytes, 0);
/// // The same program placed while it is built.
/// let again = Graph::new();
/// let y = again.with_device_function(placement.device_function(), || build(&again));
/// assert_eq!(y.operation().device(), "/job:worker/task:0");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Placement {
    devices: Arc<BTreeMap<String, String>>,
    estimate: Estimate,
}

impl Placement {
    /// The device of an operation, if it was placed.
    pub fn device(&self, operation: &str) -> Option<&str> {
        self.devices.get(operation).map(String::as_str)
    }

    /// What a step should take, by the measured times; beside the tasks, devices that operations
    /// were built on follow in the lists.
    pub fn estimate(&self) -> &Estimate {
        &self.estimate
    }

    /// Moves the operations of the graph. A session that is opened from now on runs them there.
    pub fn apply(&self, graph: &Graph) {
        graph.move_operations(|name| self.device(name).map(str::to_owned));
    }

    /// The same for a graph that is yet to be built by the same program: operations go by name.
    pub fn device_function(&self) -> DeviceFunction {
        let devices = self.devices.clone();
        Arc::new(move |op: &NewOp<'_>| {
            let place = devices.get(op.name).and_then(|d| DeviceName::parse(d).ok());
            place.map_or_else(|| op.device.clone(), |place| op.device.or(&place))
        })
    }
}
