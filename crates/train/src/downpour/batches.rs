//! Data for a replica, from a shared ledger: batches of the portions it is given. A portion is done when
//! the parameter servers have the gradients of its last batch.

use super::Replica;
use crate::MonitoredSession;
use crate::shards::{Answer, Portion, Reader};
use downpour_build::Result;
use std::collections::VecDeque;
use std::time::Duration;

/// How long a replica that finds nothing to do waits before it asks again.
const PAUSE: Duration = Duration::from_millis(20);

/// Batches of a replica's portions, as positions in the data.
///
/// ```
/// use downpour::train::shards::{Division, Shards};
/// use downpour::train::{DownpourSgd, GradientDescent, ShardBatches, Supervision, global_step};
/// use downpour::{DType, Graph, Init, Server, ServerConfig, Tensor};
/// let server = Server::start(ServerConfig::local())?;
/// let g = Graph::new();
/// let x = g.placeholder("x", DType::Float, [None]);
/// let mean = g.variable("mean").init(Init::value(0.0f32)).build();
/// let loss = (&x - &*mean).square().mean(());
/// let training = DownpourSgd::new(1, 0).minimize(&GradientDescent::new(0.1), &loss, &global_step(&g))?;
/// let shards = Shards::new(&g, "shards", Division::new(100, 30).epochs(3));
/// let mut session = Supervision::new(&server, &g).hook(training.hook()).open()?;
/// let mut replica = training.replica();
/// let mut batches = ShardBatches::new(shards.reader(0), 10, 42);
/// let mut seen = 0;
/// while let Some(positions) = batches.next(&mut session, &mut replica)? {
///     seen += positions.len();
///     let numbers: Vec<f32> = positions.into_iter().map(|i| i as f32).collect();
///     replica.step(&mut session, &[(&x, Tensor::vector(numbers))])?;
/// }
/// assert_eq!(seen, 300);
/// assert_eq!(shards.ledger(&*session.raw()?)?.epochs_done(), 3);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct ShardBatches {
    reader: Reader,
    size: usize,
    seed: u64,
    /// What is left of the portion that it is at.
    current: Option<(Portion, VecDeque<u64>)>,
    /// Portions all of whose batches were given out, and after how many steps they are pushed.
    unsettled: VecDeque<(u64, Portion)>,
    losses: u64,
    resets: u64,
}

impl ShardBatches {
    /// Batches of up to `size` examples, each epoch mixed by a seed that all replicas must share.
    pub fn new(reader: Reader, size: usize, seed: u64) -> ShardBatches {
        ShardBatches {
            reader,
            size: size.max(1),
            seed,
            current: None,
            unsettled: VecDeque::new(),
            losses: 0,
            resets: 0,
        }
    }

    /// The positions of the next batch, for the replica's next step. None when every portion of every
    /// epoch is done, or training is to stop.
    pub fn next(
        &mut self,
        session: &mut MonitoredSession,
        replica: &mut Replica,
    ) -> Result<Option<Vec<usize>>> {
        loop {
            self.settle(session, replica)?;
            if let Some((portion, rest)) = &mut self.current {
                let count = self.size.min(rest.len());
                let batch = rest.drain(..count).map(|i| i as usize).collect();
                if rest.is_empty() {
                    self.unsettled.push_back((replica.steps() + 1, *portion));
                    self.current = None;
                }
                return Ok(Some(batch));
            }
            let examples = self.reader.shards().division().examples();
            let answer = session.on_session(|session| self.reader.ask(session))?;
            if self.reader.resets() != self.resets {
                // What it was given now may be what it has half done.
                continue;
            }
            match answer {
                Answer::Work(portion) => {
                    let positions = portion.positions(examples, self.seed).collect();
                    self.current = Some((portion, positions));
                }
                Answer::Over | Answer::Wait if !self.unsettled.is_empty() => {
                    replica.flush(session)?;
                }
                Answer::Over => return Ok(None),
                Answer::Wait if session.should_stop() => return Ok(None),
                Answer::Wait => {
                    session.coordinator().wait_for_stop(PAUSE);
                }
            }
        }
    }

    /// Pushes and settles what was begun, and gives the rest back, so that others need not wait for
    /// the lease to end.
    pub fn finish(&mut self, session: &mut MonitoredSession, replica: &mut Replica) -> Result<()> {
        replica.flush(session)?;
        self.settle(session, replica)?;
        self.current = None;
        session.on_session(|session| self.reader.leave(session))
    }

    /// Says which portions are done. When gradients were lost, or the model and the ledger went back
    /// to a checkpoint, gives all back that it held.
    fn settle(&mut self, session: &mut MonitoredSession, replica: &Replica) -> Result<()> {
        loop {
            if replica.losses() != self.losses || self.reader.resets() != self.resets {
                self.losses = replica.losses();
                self.current = None;
                self.unsettled.clear();
                session.on_session(|session| self.reader.leave(session))?;
                self.resets = self.reader.resets();
            }
            let Some((steps, portion)) = self.unsettled.front().copied() else {
                return Ok(());
            };
            if replica.acknowledged() < steps {
                return Ok(());
            }
            session.on_session(|session| self.reader.done(session, &portion))?;
            self.unsettled.pop_front();
        }
    }
}
