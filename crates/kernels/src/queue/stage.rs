//! `Stage` and its relatives: tuples in order, which nodes share by name and not by handle.

use super::wait::{Done, Ended, Waiting, tell};
use crate::flow::declared;
use downpour_graph::{Result, Status};
use downpour_runtime::{
    AsyncOp, Built, Cancellation, KernelBuilder, OpContext, Registry, Resource, ResourceManager,
};
use downpour_tensor::{DType, Tensor};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    r.add("Stage", put);
    r.add("Unstage", |b| take(b, false));
    r.add("StagePeek", |b| take(b, true));
    r.add("StageSize", |b| {
        let area = Shared::new(b)?;
        Built::cheap(move |ctx| {
            let size = area.of_ctx(ctx)?.state.lock().items.len();
            ctx.set_output(0, Tensor::scalar(i32::try_from(size).unwrap_or(i32::MAX)));
            Ok(())
        })
    });
    r.add("StageClear", |b| {
        let area = Shared::new(b)?;
        Built::cheap(move |ctx| {
            area.of_ctx(ctx)?.clear();
            Ok(())
        })
    });
}

/// One element.
pub(super) type Tuple = Vec<Tensor>;

/// Bytes as TensorFlow counts them: strings with the 24 of their objects.
pub(super) fn bytes(tensor: &Tensor) -> usize {
    match tensor.dtype() {
        DType::String => tensor
            .num_elements()
            .saturating_mul(24)
            .saturating_add(tensor.byte_len()),
        _ => tensor.byte_len(),
    }
}

/// Refuses what would have to wait for ever.
pub(super) fn check_memory(size: usize, limit: usize) -> Result<()> {
    if limit == 0 || size <= limit {
        return Ok(());
    }
    Err(Status::resource_exhausted(format!(
        "Attempted to insert tensors with combined size of '{size}' bytes into Staging Area with a memory limit of '{limit}'."
    )))
}

/// How much an area may hold; 0 is no limit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) capacity: usize,
    pub(super) memory: usize,
}

impl Limits {
    pub(super) fn of(b: &KernelBuilder<'_>) -> Result<Limits> {
        Ok(Limits {
            capacity: b.attrs().size("capacity")?,
            memory: b.attrs().size("memory_limit")?,
        })
    }

    /// Whether `more` bytes fit besides `used`.
    pub(super) fn admits_bytes(&self, used: usize, more: usize) -> bool {
        self.memory == 0 || used.saturating_add(more) <= self.memory
    }

    /// Whether one more element fits besides `count`.
    pub(super) fn admits_one(&self, count: usize) -> bool {
        self.capacity == 0 || count < self.capacity
    }
}

/// A place in a device's resources, named by a node's attributes or the node itself.
struct Shared {
    container: String,
    name: String,
    limits: Limits,
}

impl Shared {
    fn new(b: &KernelBuilder<'_>) -> Result<Shared> {
        let (container, name) = b.resource_name()?;
        Ok(Shared {
            container,
            name,
            limits: Limits::of(b)?,
        })
    }

    fn of(&self, resources: &ResourceManager) -> Result<Arc<Area>> {
        resources.find_or_create(&self.container, &self.name, || {
            Ok(Area {
                limits: self.limits,
                state: Mutex::default(),
            })
        })
    }

    fn of_ctx(&self, ctx: &OpContext<'_>) -> Result<Arc<Area>> {
        self.of(&ctx.device().resources)
    }

    fn of_op(&self, op: &AsyncOp) -> Result<Arc<Area>> {
        self.of(&op.env().device.resources)
    }
}

/// A staging area.
struct Area {
    limits: Limits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    items: VecDeque<Tuple>,
    bytes: usize,
    puts: Waiting<Tuple, Tuple>,
    takes: Waiting<Take, Tuple>,
}

enum Take {
    First,
    /// Look at this one and leave it.
    At(usize),
}

impl Resource for Area {
    fn type_name(&self) -> &'static str {
        "N10tensorflow12_GLOBAL__N_16BufferE"
    }
}

fn size(tuple: &Tuple) -> usize {
    tuple.iter().map(bytes).sum()
}

impl Area {
    fn put(self: &Arc<Self>, tuple: Tuple, cancellation: &Arc<Cancellation>, done: Done<Tuple>) {
        if let Err(e) = check_memory(size(&tuple), self.limits.memory) {
            return done(Err(e));
        }
        let (refused, ended) = {
            let mut state = self.state.lock();
            let this = self.clone();
            let cancel = move |id| this.cancel(|state| &mut state.puts, id);
            let refused = state.puts.push(tuple, cancellation, cancel, done).err();
            (refused, self.flush(&mut state))
        };
        tell(ended);
        if let Some(done) = refused {
            done(Err(cancelled()));
        }
    }

    fn take(self: &Arc<Self>, work: Take, cancellation: &Arc<Cancellation>, done: Done<Tuple>) {
        let (refused, ended) = {
            let mut state = self.state.lock();
            let this = self.clone();
            let cancel = move |id| this.cancel(|state| &mut state.takes, id);
            let refused = state.takes.push(work, cancellation, cancel, done).err();
            (refused, self.flush(&mut state))
        };
        tell(ended);
        if let Some(done) = refused {
            done(Err(cancelled()));
        }
    }

    fn cancel<W>(&self, list: impl FnOnce(&mut State) -> &mut Waiting<W, Tuple>, id: u64) {
        let gone = list(&mut self.state.lock()).remove(id);
        if let Some(attempt) = gone {
            attempt.end(Err(cancelled())).tell();
        }
    }

    fn clear(&self) {
        let (items, ended) = {
            let mut state = self.state.lock();
            let items = std::mem::take(&mut state.items);
            state.bytes = 0;
            (items, self.flush(&mut state))
        };
        drop(items);
        tell(ended);
    }

    /// Serves whoever can be served, in order of arrival, until nobody can.
    fn flush(&self, state: &mut State) -> Vec<Ended<Tuple>> {
        let State {
            items,
            bytes,
            puts,
            takes,
        } = state;
        let mut ended = Vec::new();
        loop {
            let before = ended.len();
            puts.serve(&mut ended, |tuple| {
                let more = size(tuple);
                let fits = self.limits.admits_bytes(*bytes, more);
                if !fits || !self.limits.admits_one(items.len()) {
                    return None;
                }
                *bytes += more;
                items.push_back(std::mem::take(tuple));
                Some(Ok(Tuple::new()))
            });
            takes.serve(&mut ended, |work| match work {
                Take::First => {
                    let tuple = items.pop_front()?;
                    *bytes = bytes.saturating_sub(size(&tuple));
                    Some(Ok(tuple))
                }
                Take::At(index) => items.get(*index).map(|tuple| Ok(tuple.clone())),
            });
            if ended.len() == before {
                return ended;
            }
        }
    }
}

fn cancelled() -> Status {
    Status::cancelled("Staging operation was cancelled")
}

fn put(b: &KernelBuilder<'_>) -> Result<Built> {
    let area = Shared::new(b)?;
    let count = b.node.input_types.len();
    Built::waiting(move |mut op| {
        let ready = area.of_op(&op).and_then(|area| {
            let tuple = (0..count).map(|i| op.take(i)).collect::<Result<Tuple>>()?;
            Ok((area, tuple))
        });
        match ready {
            Err(e) => op.finish(Err(e)),
            Ok((area, tuple)) => {
                let cancellation = op.env().cancellation.clone();
                area.put(tuple, &cancellation, Box::new(move |r| op.finish(r)));
            }
        }
    })
}

fn take(b: &KernelBuilder<'_>, peek: bool) -> Result<Built> {
    let area = Shared::new(b)?;
    let wanted = b.node.output_types.len();
    Built::waiting(move |op| {
        let ready = area.of_op(&op).and_then(|area| {
            Ok(match peek {
                false => (area, Take::First),
                true => {
                    let index = op.input(0)?;
                    if index.rank() != 0 {
                        return Err(Status::invalid_argument("index must be scalar"));
                    }
                    let index = index.scalar_value::<i32>()?;
                    // Nothing will ever be at a negative index.
                    (area, Take::At(usize::try_from(index).unwrap_or(usize::MAX)))
                }
            })
        });
        match ready {
            Err(e) => op.finish(Err(e)),
            Ok((area, work)) => {
                let cancellation = op.env().cancellation.clone();
                let done = move |got: Result<Tuple>| {
                    let checked = got.and_then(|tuple| match tuple.len() {
                        n if n == wanted => declared(&op, tuple),
                        n => Err(Status::invalid_argument(format!(
                            "Mismatch stage/unstage: {n} vs. {wanted}"
                        ))),
                    });
                    op.finish(checked);
                };
                area.take(work, &cancellation, Box::new(done));
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, channel};

    fn area(capacity: usize, memory: usize) -> Arc<Area> {
        Arc::new(Area {
            limits: Limits { capacity, memory },
            state: Mutex::default(),
        })
    }

    fn answer() -> (Done<Tuple>, Receiver<Result<Vec<usize>>>) {
        let (tx, rx) = channel();
        let sizes = |t: Tuple| t.iter().map(Tensor::num_elements).collect();
        (Box::new(move |r| tx.send(r.map(sizes)).unwrap()), rx)
    }

    fn put(a: &Arc<Area>, c: &Arc<Cancellation>, length: usize) -> Receiver<Result<Vec<usize>>> {
        let (done, rx) = answer();
        a.put(vec![Tensor::vector(vec![0u8; length])], c, done);
        rx
    }

    fn get(a: &Arc<Area>, c: &Arc<Cancellation>) -> Receiver<Result<Vec<usize>>> {
        let (done, rx) = answer();
        a.take(Take::First, c, done);
        rx
    }

    #[test]
    fn a_smaller_tuple_may_pass_one_that_does_not_fit() {
        let (a, c) = (area(0, 10), Cancellation::new());
        assert!(put(&a, &c, 8).try_recv().unwrap().is_ok());
        let large = put(&a, &c, 5);
        assert!(large.try_recv().is_err());
        assert!(put(&a, &c, 2).try_recv().unwrap().is_ok());
        assert_eq!(get(&a, &c).try_recv().unwrap().unwrap(), [8]);
        assert!(large.try_recv().unwrap().is_ok());
        assert!(put(&a, &c, 11).try_recv().unwrap().is_err());
    }

    #[test]
    fn waits_end_when_the_step_is_cancelled() {
        let (a, mine, other) = (area(1, 0), Cancellation::new(), Cancellation::new());
        let first = get(&a, &mine);
        mine.cancel(Status::cancelled("stop"));
        assert!(first.try_recv().unwrap().is_err());
        assert!(get(&a, &mine).try_recv().unwrap().is_err());
        put(&a, &other, 1);
        let mine = Cancellation::new();
        let full = put(&a, &mine, 2);
        assert!(full.try_recv().is_err());
        mine.cancel(Status::cancelled("stop"));
        assert!(full.try_recv().unwrap().is_err());
        assert_eq!(get(&a, &other).try_recv().unwrap().unwrap(), [1]);
    }
}
