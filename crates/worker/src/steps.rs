//! Steps that several tasks run: where their values meet, and how those of other tasks come.

use downpour_graph::{Result, Status};
use downpour_net::Peers;
use downpour_runtime::{Delivery, Receiver, RemoteSource, Rendezvous, StepEnv};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

/// Steps that may be waiting to be cleaned up. A master that died leaves its steps behind; the
/// oldest make room.
const MAX_STEPS: usize = 10_000;

/// The meeting places of shared steps, made by whoever comes first: a peer that wants a value or
/// the master that starts the step.
#[derive(Default)]
pub(crate) struct Steps {
    table: Mutex<Table>,
}

/// Steps by id, and their ids in the order they came.
type Table = (HashMap<u64, Arc<Rendezvous>>, VecDeque<u64>);

impl Steps {
    pub(crate) fn rendezvous(&self, step_id: u64) -> Arc<Rendezvous> {
        let mut table = self.table.lock();
        let (found, order) = &mut *table;
        if let Some(rendezvous) = found.get(&step_id) {
            return rendezvous.clone();
        }
        let rendezvous: Arc<Rendezvous> = Arc::default();
        found.insert(step_id, rendezvous.clone());
        order.push_back(step_id);
        let mut gone = None;
        if order.len() > MAX_STEPS {
            gone = order.pop_front().and_then(|old| found.remove(&old));
        }
        drop(table);
        if let Some(gone) = gone {
            gone.abort(Status::aborted("the step was forgotten: too many are open"));
        }
        rendezvous
    }

    /// Forgets a step; whoever still waits for a value of it hears so.
    pub(crate) fn cleanup(&self, step_id: u64) {
        let gone = {
            let mut table = self.table.lock();
            let gone = table.0.remove(&step_id);
            if gone.is_some()
                && let Some(at) = table.1.iter().position(|s| *s == step_id)
            {
                table.1.remove(at);
            }
            gone
        };
        if let Some(rendezvous) = gone {
            rendezvous.abort(Status {
                derived: true,
                ..Status::aborted(format!("Cleanup {step_id}"))
            });
        }
    }
}

/// Values of other tasks, asked for by `RecvTensor`.
pub(crate) struct PeerSource {
    pub(crate) peers: Arc<Peers>,
    pub(crate) random: fn() -> u64,
}

impl RemoteSource for PeerSource {
    fn recv(&self, env: &StepEnv, key: &str, receiver: Receiver) {
        // Whichever of answer and cancellation comes first takes the receiver.
        let receiver = Arc::new(Mutex::new(Some(receiver)));
        let finish = {
            let (receiver, device) = (receiver.clone(), env.device.clone());
            move |outcome: Result<Delivery>| {
                if let Some(receiver) = receiver.lock().take() {
                    // What waits for the value may take long: not on a network thread.
                    device.spawn(move || receiver(outcome));
                }
            }
        };
        let call = self
            .peers
            .recv_tensor(env.step_id, key, (self.random)() as i64);
        let cancellation = env.cancellation.clone();
        let (token_tx, token_rx) = tokio::sync::oneshot::channel();
        let answered = {
            let (finish, cancellation) = (finish.clone(), cancellation.clone());
            async move {
                let outcome = call.await.map(|tensor| Delivery { tensor });
                if let Ok(token) = token_rx.await {
                    cancellation.deregister(token);
                }
                finish(outcome);
            }
        };
        let call = self.peers.spawn(answered);
        let on_cancel = {
            let (finish, call) = (finish.clone(), call.clone());
            move |reason: &Status| {
                call.abort();
                finish(Err(reason.clone()));
            }
        };
        match cancellation.register(on_cancel) {
            Ok(token) => {
                // The answer may be there already and have gone on without it.
                let _ = token_tx.send(token);
            }
            Err(reason) => {
                call.abort();
                finish(Err(reason));
            }
        }
    }
}
