//! Numbered edges between tasks: what a step wants along them is asked for together, and what it sends leaves together.
//!
//! ```text
//! _Recv ─► wanted ──(nothing cheap is left)──► rendezvous ──► here: goes on at once
//!                                                       └──► later: `StepShared::receive`
//! _Send ─► outbox of its receiver ──(as many as `BATCH`, or nothing cheap is left)──► sink of the peer
//! ```
//! So a value costs neither a lock nor a look-up of its own, and a receiver can begin while its sender is not done yet.

use crate::blame::blame;
use crate::core::Core;
use crate::drive::StepShared;
use crate::plan::PlanNode;
use crate::run_kernel::record;
use downpour_graph::{EdgeId, Result, Status};
use downpour_runtime::{OpRun, PeerSink, Received, TakenEdges, Value};
use downpour_tensor::Tensor;
use std::sync::Arc;

/// Values that leave together at most: enough to share the cost of a hand-over, few enough that the receiver works
/// on them while the next are made.
const BATCH: usize = 64;

/// The numbered edges of one step.
#[derive(Default)]
pub(crate) struct StepEdges {
    /// Ops whose values are yet to be asked for.
    wanted: Vec<(EdgeId, OpRun)>,
    taken: TakenEdges,
    /// One for each task that the plan sends to.
    outboxes: Vec<Outbox>,
    /// How many values are in the outboxes.
    unsent: usize,
}

#[derive(Default)]
struct Outbox {
    values: Vec<(EdgeId, Option<Tensor>)>,
    /// The node whose value is the last of them.
    last: u32,
    /// Found when the first value leaves.
    sink: Option<Arc<dyn PeerSink>>,
}

impl StepEdges {
    /// Those of a new step, which sends to so many tasks; memory of an earlier one is used again.
    pub(crate) fn reset(&mut self, receivers: usize) {
        self.drop_all();
        self.outboxes.resize_with(receivers, Outbox::default);
    }

    /// Forgets what was to be asked for and sent.
    pub(crate) fn drop_all(&mut self) {
        self.wanted.clear();
        for outbox in &mut self.outboxes {
            outbox.values.clear();
            outbox.sink = None;
        }
        self.unsent = 0;
    }

    /// Notes that an op wants the value of an edge.
    pub(crate) fn want(&mut self, edge: EdgeId, run: OpRun) {
        self.wanted.push((edge, run));
    }
}

impl StepShared {
    /// Sends a value along an edge, together with those that come soon after it.
    pub(crate) fn push(
        &self,
        core: &mut Core,
        (to, edge): (u32, EdgeId),
        tag: &OpRun,
        value: Option<Value>,
    ) {
        let node = &self.plan.nodes[tag.node as usize];
        if let Some(trace) = &self.env_of(node).trace {
            record(trace, &node.info, tag.scheduled_ns, trace.now(), &[]);
        }
        // A dead value arrives as none at all.
        let tensor = match value {
            Some(Value::Tensor(tensor)) => Some(tensor),
            _ => None,
        };
        let outbox = &mut core.edges.outboxes[to as usize];
        outbox.values.push((edge, tensor));
        outbox.last = tag.node;
        core.edges.unsent += 1;
        if outbox.values.len() >= BATCH {
            self.send(core, to as usize);
        }
    }

    /// Lets go of what is to be sent: what the thread does next may take long, or be to wait.
    pub(crate) fn send_all(&self, core: &mut Core) {
        if core.edges.unsent == 0 {
            return;
        }
        for to in 0..core.edges.outboxes.len() {
            self.send(core, to);
        }
    }

    fn send(&self, core: &mut Core, to: usize) {
        let Some(outbox) = core.edges.outboxes.get_mut(to) else {
            return;
        };
        if outbox.values.is_empty() {
            return;
        }
        core.edges.unsent -= outbox.values.len();
        let sent = self.sink(outbox, to);
        let sent = sent.and_then(|sink| sink.push(self.env.step_id, &mut outbox.values));
        if let Err(e) = sent {
            let node: &PlanNode = &self.plan.nodes[outbox.last as usize];
            let message = blame(e.message, node, &self.env);
            core.fail(&self.env, Status { message, ..e });
        }
    }

    fn sink(&self, outbox: &mut Outbox, to: usize) -> Result<Arc<dyn PeerSink>> {
        if let Some(sink) = &outbox.sink {
            return Ok(sink.clone());
        }
        let (Some(remote), Some(receiver)) = (&self.env.remote, self.plan.receivers.get(to)) else {
            let text = "a step without peers has an edge to one";
            return Err(Status::internal(text));
        };
        let sink = remote.sink(&self.env, receiver)?;
        Ok(outbox.sink.insert(sink).clone())
    }

    /// Asks for what ops want; `false` if none does.
    pub(crate) fn take_wanted(self: &Arc<Self>, core: &mut Core) -> bool {
        let wanted = core.edges.wanted.len();
        if wanted == 0 {
            return false;
        }
        let mut taken = std::mem::take(&mut core.edges.taken);
        let edges = core.edges.wanted.drain(..);
        (self.env.rendezvous).take_edges(&self.env, self, edges, &mut taken);
        core.outstanding += wanted - taken.here.len() - taken.failed.len();
        for value in taken.here.drain(..) {
            self.received(core, value);
        }
        for (tag, reason) in taken.failed.drain(..) {
            core.finish(self, tag, Err(reason));
        }
        core.edges.taken = taken;
        true
    }

    /// Gives the value that came for an op to those that use it.
    pub(crate) fn received(self: &Arc<Self>, core: &mut Core, (tag, tensor): Received) {
        if let Some(tensor) = &tensor {
            self.note_received(&tag, tensor);
        }
        core.propagate(self, tag, &mut [tensor.map(Value::Tensor)]);
    }
}
