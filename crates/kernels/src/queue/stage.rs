//! `Stage` and its relatives: tuples in order, which nodes share by name and not by handle.

use super::staging_area::{Contents, Limits, Shared, Tuple, bytes, clear, count};
use crate::flow::declared;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use std::collections::VecDeque;

pub(super) fn register(r: &mut Registry) {
    r.add("Stage", put);
    r.add("Unstage", |b| take(b, false));
    r.add("StagePeek", |b| take(b, true));
    r.add("StageSize", |b| count::<Buffer>(b, |b| b.items.len()));
    r.add("StageClear", clear::<Buffer>);
}

/// The tuples of an area, in order.
#[derive(Default)]
struct Buffer {
    items: VecDeque<Tuple>,
    bytes: usize,
}

enum Take {
    First,
    /// Look at this one and leave it.
    At(usize),
}

fn size(tuple: &Tuple) -> usize {
    tuple.iter().map(bytes).sum()
}

impl Contents for Buffer {
    const TYPE_NAME: &'static str = "N10tensorflow12_GLOBAL__N_16BufferE";
    type Put = Tuple;
    type Take = Take;

    fn empty(_: &KernelBuilder<'_>) -> Result<Buffer> {
        Ok(Buffer::default())
    }

    fn emptied(&self) -> Buffer {
        Buffer::default()
    }

    fn size(put: &Tuple) -> usize {
        size(put)
    }

    fn put(&mut self, limits: &Limits, tuple: &mut Tuple) -> Option<Result<Tuple>> {
        let more = size(tuple);
        if !limits.admits_bytes(self.bytes, more) || !limits.admits_one(self.items.len()) {
            return None;
        }
        self.bytes += more;
        self.items.push_back(std::mem::take(tuple));
        Some(Ok(Tuple::new()))
    }

    fn take(&mut self, take: &mut Take) -> Option<Result<Tuple>> {
        match take {
            Take::First => {
                let tuple = self.items.pop_front()?;
                self.bytes = self.bytes.saturating_sub(size(&tuple));
                Some(Ok(tuple))
            }
            Take::At(index) => self.items.get(*index).map(|tuple| Ok(tuple.clone())),
        }
    }
}

fn put(b: &KernelBuilder<'_>) -> Result<Built> {
    let area = Shared::<Buffer>::new(b)?;
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
    let area = Shared::<Buffer>::new(b)?;
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
    use super::super::staging_area::Area;
    use super::super::wait::Done;
    use super::*;
    use downpour_runtime::Cancellation;
    use downpour_tensor::Tensor;
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, channel};

    fn area(capacity: usize, memory: usize) -> Arc<Area<Buffer>> {
        let limits = Limits { capacity, memory };
        Arc::new(Area::new(limits, Buffer::default()))
    }

    fn answer() -> (Done<Tuple>, Receiver<Result<Vec<usize>>>) {
        let (tx, rx) = channel();
        let sizes = |t: Tuple| t.iter().map(Tensor::num_elements).collect();
        (Box::new(move |r| tx.send(r.map(sizes)).unwrap()), rx)
    }

    fn put(
        a: &Arc<Area<Buffer>>,
        c: &Arc<Cancellation>,
        length: usize,
    ) -> Receiver<Result<Vec<usize>>> {
        let (done, rx) = answer();
        a.put(vec![Tensor::vector(vec![0u8; length])], c, done);
        rx
    }

    fn get(a: &Arc<Area<Buffer>>, c: &Arc<Cancellation>) -> Receiver<Result<Vec<usize>>> {
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
