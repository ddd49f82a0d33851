//! What other tasks of ours ask for over their lanes: runs, and values that come unasked.

use crate::Worker;
use crate::lifecycle::{Event, Start};
use downpour_graph::Status;
use downpour_net::{Canceller, LaneHandler, LaneOffer, RunEnded, StepState, is_waiting_client};
use downpour_runtime::{Delivery, as_own_thread};
use downpour_tensor::Tensor;
use downpour_wire::lane::Run;
use std::sync::Arc;

impl LaneHandler for Worker {
    fn run(&self, run: Run, ended: RunEnded) -> Canceller {
        let step_id = run.step_id;
        let begun = self.begin(&Start {
            session: &run.session,
            graph: run.graph,
            step_id,
            shared: true,
            partial: false,
            request_id: 0,
        });
        let begun = match begun {
            Ok(begun) => begun,
            Err(e) => {
                ended(Err(e));
                return Arc::new(|_| {});
            }
        };
        let (id, place) = (begun.run, begun.place.clone());
        let (life, stopped) = (self.life.clone(), self.life.clone());
        let done = Box::new(move |end: downpour_graph::Result<_>| {
            ended(end.map(|_| {
                // Every value was taken and nobody waits for one: what its master would ask for now
                // is done at once, and the answer says so.
                let is_idle = place.is_some_and(|place| place.is_idle());
                if is_idle {
                    life.tell(Event::Cleanup { step_id });
                }
                is_idle
            }));
        });
        self.execute(begun, step_id, Vec::new(), false, done);
        Arc::new(move |reason| stopped.stop(id, reason))
    }

    fn tensor(&self, step_id: u64, key: &str, tensor: Option<Tensor>) {
        // A step that is over wants nothing more.
        if let Ok(place) = self.want(step_id, 0) {
            place.paid_by(&self.config.device.account);
            as_own_thread(is_waiting_client(), || {
                // Refused when the step has been ended, which its execution hears for itself, or when there is no room: then
                // the step ends, as it cannot get on without the value.
                if let Err(e) = place.send(key, Delivery { tensor }) {
                    place.abort(e);
                }
            });
        }
    }

    fn offer(&self, step_id: u64, key: &str, offer: LaneOffer) {
        if let Ok(place) = self.want(step_id, 0) {
            let offer = Box::new(move |receiver: downpour_runtime::Receiver| {
                offer(Box::new(move |tensor| {
                    as_own_thread(is_waiting_client(), || {
                        receiver(tensor.map(|tensor| Delivery { tensor }));
                    });
                }));
            });
            // As above.
            let _ = place.offer(key, offer);
        }
    }

    fn lost(&self, peer: &str, steps: &[u64], reason: &Status) {
        for step in steps {
            if let Some(place) = self.life.place(*step) {
                place.fail_from(peer, reason);
            }
        }
    }

    fn state(&self, step_id: u64) -> StepState {
        self.life.state(step_id)
    }
}
