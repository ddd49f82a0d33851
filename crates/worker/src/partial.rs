//! A step that is fed and fetched bit by bit by the master of the same process.

use crate::lifecycle::{Event, RunId};
use crate::worker::{Machine, StartedRun, Worker};
use downpour_executor::Step;
use downpour_graph::{Result, Status};
use downpour_net::PartialStep;
use downpour_runtime::{Delivery, Rendezvous};
use downpour_tensor::Tensor;
use parking_lot::Mutex;
use std::sync::Arc;

type EndCallback = Box<dyn FnOnce(Result<()>) + Send>;

/// Either the outcome or who waits for it.
#[derive(Default)]
enum End {
    #[default]
    Running,
    Waiting(Vec<EndCallback>),
    Over(Result<()>),
}

/// The step, and its rendezvous.
pub(crate) struct LocalPartialStep {
    machine: Machine,
    run: RunId,
    rendezvous: Arc<Rendezvous>,
    end: Mutex<End>,
}

impl LocalPartialStep {
    /// Executes a run that was started.
    pub(crate) fn start(
        worker: &Worker,
        started: StartedRun,
        step_id: u64,
    ) -> Arc<LocalPartialStep> {
        let env = started.env(step_id, || None);
        let step = Arc::new(LocalPartialStep {
            machine: worker.machine.clone(),
            run: started.run,
            rendezvous: env.rendezvous.clone(),
            end: Mutex::default(),
        });
        let ended = step.clone();
        let device = env.device.clone();
        device.spawn(move || {
            Step::start(started.plan, Arc::new(env), vec![], move |outcome| {
                let (run, error) = (ended.run, outcome.as_ref().err().cloned());
                ended.machine.tell(Event::Finished { run, error });
                ended.ended(outcome.map(|_| ()));
            });
        });
        step
    }

    fn ended(&self, outcome: Result<()>) {
        let previous = std::mem::replace(&mut *self.end.lock(), End::Over(outcome.clone()));
        if let End::Waiting(callbacks) = previous {
            for callback in callbacks {
                callback(outcome.clone());
            }
        }
    }
}

impl PartialStep for LocalPartialStep {
    fn feed(&self, key: &str, value: Tensor) -> Result<()> {
        self.rendezvous.send(
            key,
            Delivery {
                tensor: Some(value),
            },
        )
    }

    fn fetch(&self, key: &str, done: Box<dyn FnOnce(Result<Tensor>) + Send>) {
        let name = key.rsplit(';').nth(1).unwrap_or(key).to_owned();
        self.rendezvous.recv(key, move |delivery| {
            done(delivery.and_then(|d| {
                d.tensor.ok_or_else(|| {
                    Status::invalid_argument(format!(
                        "The tensor returned for {name} was not valid."
                    ))
                })
            }));
        });
    }

    fn cancel(&self, reason: Status) {
        self.rendezvous.abort(reason.clone());
        self.machine.stop(self.run, reason);
    }

    fn on_end(&self, done: EndCallback) {
        let mut end = self.end.lock();
        match &mut *end {
            End::Running => *end = End::Waiting(vec![done]),
            End::Waiting(callbacks) => callbacks.push(done),
            End::Over(outcome) => {
                let outcome = outcome.clone();
                drop(end);
                done(outcome);
            }
        }
    }
}
