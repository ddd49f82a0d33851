//! Readers: objects that take names of files from a queue and give their records one by one.
//!
//! Reads of one reader are served in the order of their arrival. A read that has to wait for work
//! is parked in the queue and holds no thread; what the file holds is read on executor threads.

mod ops;
mod source;

use crate::queue::queue::{Got, Queue};
use crate::queue::wait::{Done, Waiting};
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Cancellation, Device, Registry, Resource};
use downpour_tensor::DType;
use parking_lot::Mutex;
use source::{Record, Source, Spec};
use std::sync::Arc;

pub(super) fn register(registry: &mut Registry) {
    ops::register(registry);
}

/// TensorFlow's C++ type of all readers.
const READER_TYPE: &str = "N10tensorflow15ReaderInterfaceE";

/// A reader.
struct Reader {
    /// `TextLineReader 'name of its node'`, as errors call it.
    name: String,
    spec: Spec,
    state: Mutex<State>,
    /// Reads that wait for their turn; the flag says that one is under way.
    turn: Mutex<(Waiting<Want, Vec<Record>>, bool)>,
}

impl Resource for Reader {
    fn type_name(&self) -> &'static str {
        READER_TYPE
    }
}

/// What an identity reader writes down of itself, and what all keep.
#[derive(Clone, Debug, Default, PartialEq)]
struct Progress {
    started: i64,
    finished: i64,
    produced: i64,
    work: Bytes,
}

#[derive(Default)]
struct State {
    progress: Progress,
    source: Option<Source>,
}

/// One read: how many records, and where work comes from.
struct Want {
    /// `None` for a single record, which may take several units of work to find.
    up_to: Option<usize>,
    queue: Arc<Queue>,
    device: Arc<Device>,
}

/// What a read needs or has.
enum Outcome {
    Work,
    Records(Vec<Record>),
}

impl Reader {
    fn new(name: String, spec: Spec) -> Reader {
        Reader {
            name,
            spec,
            state: Mutex::default(),
            turn: Mutex::default(),
        }
    }

    fn progress(&self) -> Progress {
        self.state.lock().progress.clone()
    }

    fn reset(&self) {
        *self.state.lock() = State::default();
    }

    fn restore(&self, progress: Progress) {
        *self.state.lock() = State {
            progress,
            source: None,
        };
    }

    /// Reads records when all earlier reads are done.
    fn read(
        self: &Arc<Self>,
        want: Want,
        cancellation: &Arc<Cancellation>,
        done: Done<Vec<Record>>,
    ) {
        let refused = {
            let mut turn = self.turn.lock();
            let reader = self.clone();
            let cancel = move |id| {
                let attempt = reader.turn.lock().0.remove(id);
                if let Some(attempt) = attempt {
                    attempt.end(Err(cancelled())).tell();
                }
            };
            turn.0.push(want, cancellation, cancel, done).err()
        };
        match refused {
            Some(done) => done(Err(cancelled())),
            None => self.serve(),
        }
    }

    /// Serves the next waiting read, unless one is under way.
    fn serve(self: &Arc<Self>) {
        loop {
            let attempt = {
                let mut turn = self.turn.lock();
                if turn.1 {
                    return;
                }
                match turn.0.pop() {
                    Some(attempt) => {
                        turn.1 = true;
                        attempt
                    }
                    None => return,
                }
            };
            let (want, cancellation, done) = attempt.into_parts();
            let reader = self.clone();
            let finished = Box::new(move |outcome: Result<Vec<Record>>| {
                reader.turn.lock().1 = false;
                done(outcome);
            });
            if !self.go_on(want, cancellation, finished) {
                return;
            }
        }
    }

    /// Reads until the read is done (`true`) or waits for work (`false`); in the second case the
    /// rest happens when the work has come, including serving whoever is next.
    fn go_on(
        self: &Arc<Self>,
        want: Want,
        cancellation: Arc<Cancellation>,
        done: Done<Vec<Record>>,
    ) -> bool {
        let outcome = self.advance(&mut self.state.lock(), &want);
        match outcome {
            Err(e) => done(Err(e)),
            Ok(Outcome::Records(records)) => done(Ok(records)),
            Ok(Outcome::Work) => {
                let (reader, queue, device) =
                    (self.clone(), want.queue.clone(), want.device.clone());
                let during = cancellation.clone();
                let arrived = Box::new(move |got: Result<Got>| {
                    device.spawn(move || {
                        let started = got.and_then(work_of).and_then(|work| {
                            let mut state = reader.state.lock();
                            reader.start(&mut state, work, &want.device)
                        });
                        let over = match started {
                            Ok(()) => reader.go_on(want, cancellation, done),
                            Err(e) => {
                                done(Err(e));
                                true
                            }
                        };
                        if over {
                            reader.serve();
                        }
                    });
                });
                queue.dequeue(&during, arrived);
                return false;
            }
        }
        true
    }

    /// Begins a unit of work. One that cannot be opened is dropped.
    fn start(&self, state: &mut State, work: Bytes, device: &Arc<Device>) -> Result<()> {
        state.progress.work = work;
        state.source = None;
        state.source = Some(Source::open(&self.spec, &state.progress.work, device)?);
        state.progress.started += 1;
        Ok(())
    }

    fn advance(&self, state: &mut State, want: &Want) -> Result<Outcome> {
        let mut records = Vec::new();
        let (wanted, limit) = (want.up_to.unwrap_or(1), want.device.room());
        let mut bytes = 0usize;
        while records.len() < wanted {
            let Some(source) = &mut state.source else {
                return Ok(Outcome::Work);
            };
            let (record, at_end) = source.next(&state.progress.work)?;
            if let Some(record) = record {
                bytes = bytes.saturating_add(record.1.len()).saturating_add(64);
                if bytes > limit {
                    return Err(Status::resource_exhausted(format!(
                        "{} was asked for records of more than {limit} bytes in all",
                        self.name
                    )));
                }
                state.progress.produced += 1;
                records.push(record);
            }
            if at_end {
                state.source = None;
                state.progress.finished = state.progress.started;
                if !records.is_empty() {
                    break;
                }
            }
        }
        Ok(Outcome::Records(records))
    }
}

/// The name of the work in an element of the queue.
fn work_of(got: Got) -> Result<Bytes> {
    let Got::One(element) = got else {
        return Err(Status::internal("a dequeue gave no element"));
    };
    let [tensor] = element.as_slice() else {
        return Err(Status::invalid_argument("Expected single component queue"));
    };
    if tensor.dtype() != DType::String {
        return Err(Status::invalid_argument(
            "Expected queue with single string component",
        ));
    }
    match tensor.as_strings()? {
        [work] => Ok(work.clone()),
        _ => Err(Status::invalid_argument(
            "Expected to dequeue a one-element string tensor",
        )),
    }
}

fn cancelled() -> Status {
    Status::cancelled("Dequeue operation was cancelled")
}

#[cfg(test)]
mod tests;
