//! What other tasks of ours ask for over their lanes: runs, and values that come unasked.

use crate::Worker;
use crate::lifecycle::{Event, Start};
use downpour_graph::{EdgeId, Status};
use downpour_net::{Canceller, LaneHandler, LaneOffer, RunEnded, StepState, is_waiting_client};
use downpour_runtime::{Delivery, as_own_thread};
use downpour_tensor::Tensor;
use downpour_wire::lane::{Destination, Run};
use std::sync::Arc;

impl LaneHandler for Worker {
    fn run(&self, run: Run, ended: RunEnded) -> Canceller {
        let step_id = run.step_id;
        let started = self.begin(&Start {
            session: &run.session,
            graph: run.graph,
            step_id,
            shared: true,
            partial: false,
            request_id: 0,
        });
        let started = match started {
            Ok(started) => started,
            Err(e) => {
                ended(Err(e));
                return Arc::new(|_| {});
            }
        };
        let (id, rendezvous) = (started.run, started.rendezvous.clone());
        let (machine, stopped) = (self.machine.clone(), self.machine.clone());
        let done = Box::new(move |end: downpour_graph::Result<_>| {
            ended(end.map(|_| {
                // Every value was taken and nobody waits for one: what its master would ask for now
                // is done at once, and the answer says so.
                let is_idle = rendezvous.is_some_and(|rendezvous| rendezvous.is_idle());
                if is_idle {
                    machine.tell(Event::Cleanup { step_id });
                }
                is_idle
            }));
        });
        self.execute(started, step_id, Vec::new(), false, done);
        Arc::new(move |reason| stopped.stop(id, reason))
    }

    fn tensor(&self, step_id: u64, key: &str, tensor: Option<Tensor>) {
        // A step that is over wants nothing more.
        if let Ok(rendezvous) = self.want(step_id, 0) {
            rendezvous.paid_by(&self.config.device.account);
            as_own_thread(is_waiting_client(), || {
                // Refused when the step has been ended, which its execution hears for itself, or when there is no room: then
                // the step ends, as it cannot get on without the value.
                if let Err(e) = rendezvous.send(key, Delivery { tensor }) {
                    rendezvous.abort(e);
                }
            });
        }
    }

    fn edges(&self, peer: &str, step_id: u64, values: Vec<(EdgeId, Option<Tensor>)>) {
        let bytes =
            |(_, tensor): &(EdgeId, Option<Tensor>)| tensor.as_ref().map_or(0, Tensor::byte_len);
        let traffic = self.config.peers.traffic();
        traffic.received_tensors(peer, values.len(), values.iter().map(bytes).sum());
        if let Ok(rendezvous) = self.want(step_id, 0) {
            rendezvous.paid_by(&self.config.device.account);
            as_own_thread(is_waiting_client(), || {
                // As above.
                if let Err(e) = rendezvous.deliver(values.into_iter()) {
                    rendezvous.abort(e);
                }
            });
        }
    }

    fn offer(&self, peer: &str, step_id: u64, to: &Destination, offer: LaneOffer) {
        if let Ok(rendezvous) = self.want(step_id, 0) {
            let traffic = self.config.peers.traffic().clone();
            let sender = matches!(to, Destination::Edge(_)).then(|| peer.to_owned());
            let offer = Box::new(move |receiver: downpour_runtime::Receiver| {
                offer(Box::new(move |tensor| {
                    if let (Some(sender), Ok(Some(tensor))) = (sender, &tensor) {
                        traffic.received_tensors(&sender, 1, tensor.byte_len());
                    }
                    as_own_thread(is_waiting_client(), || {
                        receiver(tensor.map(|tensor| Delivery { tensor }));
                    });
                }));
            });
            // As above.
            match to {
                Destination::Key(key) => drop(rendezvous.offer(key, offer)),
                Destination::Edge(edge) => {
                    if let Err(e) = rendezvous.deliver_offer(*edge, offer) {
                        rendezvous.abort(e);
                    }
                }
            }
        }
    }

    fn lost(&self, peer: &str, steps: &[u64], reason: &Status) {
        for step in steps {
            if let Some(rendezvous) = self.machine.rendezvous(*step) {
                rendezvous.fail_from(peer, reason);
            }
        }
    }

    fn state(&self, step_id: u64) -> StepState {
        self.machine.state(step_id)
    }
}
