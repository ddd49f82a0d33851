//! Values that other tasks of a step send: each is asked for once, and the wait ends with the
//! step.

use crate::remote_functions::RemoteFunctions;
use crate::rpc_log::RpcLog;
use downpour_graph::{EdgeId, Result, Status};
use downpour_net::{EdgeSink, EdgeWait, Peers, begin_batch, end_batch, flush_batch};
use downpour_runtime::{
    Delivery, PeerSink, PeerWait, Receiver, RemoteCall, RemoteSource, Results, StepEnv,
};
use downpour_tensor::Tensor;
use parking_lot::Mutex;
use std::sync::Arc;

/// Values of other tasks, asked for by `RecvTensor`.
pub(crate) struct PeerSource {
    pub(crate) peers: Arc<Peers>,
    pub(crate) random: fn() -> u64,
    pub(crate) functions: Arc<RemoteFunctions>,
    /// Where to note what came, and by which clock.
    pub(crate) log: (Arc<RpcLog>, fn() -> i64),
}

impl RemoteSource for PeerSource {
    fn recv(&self, env: &StepEnv, key: &str, receiver: Receiver) {
        let call = self
            .peers
            .recv_tensor(env.step_id, key, (self.random)() as i64);
        let (log, clock) = &self.log;
        let wanted =
            (log.is_on() || env.trace.is_some()).then(|| (log.clone(), *clock, key.to_owned()));
        let (step_id, start) = (env.step_id, wanted.as_ref().map_or(0, |w| w.1()));
        let call = async move {
            let tensor = call.await?;
            if let (Some((log, clock, key)), Some(tensor)) = (wanted, &tensor) {
                log.record(step_id, &key, tensor, (start, clock()));
            }
            Ok(Delivery { tensor })
        };
        self.wait(env, call, receiver);
    }

    fn await_pushed(&self, env: &StepEnv, key: &str, receiver: Receiver) {
        let expected = match self.peers.await_pushed(env.step_id, key) {
            Ok(expected) => Arc::new(expected),
            Err(e) => return receiver(Err(e)),
        };
        let (log, clock) = &self.log;
        let wanted =
            (log.is_on() || env.trace.is_some()).then(|| (log.clone(), *clock, key.to_owned()));
        let (step_id, start) = (env.step_id, wanted.as_ref().map_or(0, |w| w.1()));
        // Whichever of value and cancellation comes first takes the receiver.
        let receiver = Arc::new(Mutex::new(Some(receiver)));
        let (device, given_up) = (env.device.clone(), receiver.clone());
        let token = env.cancellation.register(move |reason: &Status| {
            let taken = given_up.lock().take();
            if let Some(receiver) = taken {
                let reason = reason.clone();
                // Whoever cancels may hold what the step needs to end.
                device.spawn(move || receiver(Err(reason)));
            }
        });
        let token = match token {
            Ok(token) => token,
            Err(reason) => {
                let taken = receiver.lock().take();
                return taken.map_or((), |receiver| receiver(Err(reason)));
            }
        };
        let (cancellation, waits) = (env.cancellation.clone(), expected.clone());
        env.rendezvous.recv(key, move |delivery| {
            cancellation.deregister(token);
            let taken = receiver.lock().take();
            if let Ok(Delivery { tensor }) = &delivery {
                waits.came(tensor.as_ref());
                if let (Some((log, clock, key)), Some(tensor)) = (wanted, tensor) {
                    log.record(step_id, &key, tensor, (start, clock()));
                }
            }
            drop(waits);
            if let Some(receiver) = taken {
                receiver(delivery);
            }
        });
        // Its sender may have gone before anybody could tell whoever waits.
        if let Some((peer, reason)) = expected.lost(key) {
            env.rendezvous.fail_from(peer, &reason);
        }
    }

    fn push(&self, env: &StepEnv, key: &str, delivery: Delivery) -> Result<()> {
        let tensor = delivery.tensor.as_ref();
        self.peers.push(env.step_id, key, tensor)
    }

    fn sink(&self, _: &StepEnv, receiver: &str) -> Result<Arc<dyn PeerSink>> {
        Ok(Arc::new(Sink(self.peers.sink(receiver)?)))
    }

    fn wait_for(&self, env: &StepEnv, sender: &str) -> Result<Box<dyn PeerWait>> {
        let wait = self.peers.wait_for(env.step_id, sender)?;
        Ok(Box::new(Waits(wait)))
    }

    fn log_from(&self, env: &StepEnv) -> Option<i64> {
        let (log, clock) = &self.log;
        (log.is_on() || env.trace.is_some()).then(clock)
    }

    fn log(&self, env: &StepEnv, key: &str, value: &Tensor, from: i64) {
        let (log, clock) = &self.log;
        log.record(env.step_id, key, value, (from, clock()));
    }

    fn begin_batch(&self) -> bool {
        begin_batch()
    }

    fn end_batch(&self) {
        end_batch();
    }

    fn flush_batch(&self) {
        flush_batch();
    }

    fn call(&self, env: &StepEnv, call: RemoteCall, done: Results) {
        let call = self.functions.clone().call(env, call);
        self.wait(env, call, done);
    }
}

/// The way to one peer.
struct Sink(EdgeSink);

impl PeerSink for Sink {
    fn push(&self, step_id: u64, values: &mut Vec<(EdgeId, Option<Tensor>)>) -> Result<()> {
        let outcome = self.0.push(step_id, values);
        values.clear();
        outcome
    }
}

/// Waits of a step for one peer.
struct Waits(EdgeWait);

impl PeerWait for Waits {
    fn begin(&self, count: usize) {
        self.0.begin(count);
    }

    fn end(&self, count: usize) {
        self.0.end(count);
    }
}

impl PeerSource {
    /// Waits for a call, or for the end of the step, which ends the call.
    fn wait<T: Send + 'static>(
        &self,
        env: &StepEnv,
        call: impl Future<Output = Result<T>> + Send + 'static,
        receiver: Box<dyn FnOnce(Result<T>) + Send>,
    ) {
        // Whichever of answer and cancellation comes first takes the receiver.
        let receiver = Arc::new(Mutex::new(Some(receiver)));
        let take = move || receiver.lock().take();
        let cancellation = env.cancellation.clone();
        let (token_tx, token_rx) = tokio::sync::oneshot::channel();
        let answered = {
            let (take, cancellation) = (take.clone(), cancellation.clone());
            async move {
                let outcome = call.await;
                if let Ok(token) = token_rx.await {
                    cancellation.deregister(token);
                }
                if let Some(receiver) = take() {
                    // Here, on a network thread: what is short runs on at once, and the executor
                    // moves what is not to a thread of its own.
                    receiver(outcome);
                }
            }
        };
        let call = self.peers.spawn(answered);
        let finish = {
            let device = env.device.clone();
            move |reason: Status| {
                if let Some(receiver) = take() {
                    // Whoever cancels may hold what the step needs to end.
                    device.spawn(move || receiver(Err(reason)));
                }
            }
        };
        let on_cancel = {
            let (finish, call) = (finish.clone(), call.clone());
            move |reason: &Status| {
                call.abort();
                finish(reason.clone());
            }
        };
        match cancellation.register(on_cancel) {
            Ok(token) => {
                // The answer may be there already and have gone on without it.
                let _ = token_tx.send(token);
            }
            Err(reason) => {
                call.abort();
                finish(reason);
            }
        }
    }
}
