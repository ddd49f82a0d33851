//! `MapStage` and its relatives: tuples by key, which may come and go in parts, and which nodes
//! share by name and not by handle. The ordered kind gives the smallest key first, the other the
//! one that came last, as TensorFlow's hash map mostly does.

use super::staging_area::{Contents, Limits, Shared, Tuple, bytes, clear, count};
use crate::flow::declared;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::Tensor;
use std::collections::{BTreeMap, HashMap};

pub(super) fn register(r: &mut Registry) {
    r.add("MapStage", put::<false>);
    r.add("OrderedMapStage", put::<true>);
    r.add("MapUnstage", |b| take::<false>(b, How::Take));
    r.add("OrderedMapUnstage", |b| take::<true>(b, How::Take));
    r.add("MapPeek", |b| take::<false>(b, How::Peek));
    r.add("OrderedMapPeek", |b| take::<true>(b, How::Peek));
    r.add("MapUnstageNoKey", |b| take::<false>(b, How::Any));
    r.add("OrderedMapUnstageNoKey", |b| take::<true>(b, How::Any));
    r.add("MapSize", |b| count(b, StagingMap::<false>::whole));
    r.add("OrderedMapSize", |b| count(b, StagingMap::<true>::whole));
    r.add("MapIncompleteSize", |b| {
        count(b, StagingMap::<false>::incomplete)
    });
    r.add("OrderedMapIncompleteSize", |b| {
        count(b, StagingMap::<true>::incomplete)
    });
    r.add("MapClear", clear::<StagingMap<false>>);
    r.add("OrderedMapClear", clear::<StagingMap<true>>);
}

/// A map; the two kinds are of different types, so that one name may stand for both.
#[derive(Default)]
struct StagingMap<const ORDERED: bool> {
    /// How many tensors a whole tuple has.
    width: usize,
    /// Whole tuples.
    entries: BTreeMap<i64, Entry>,
    /// Which key came when.
    arrivals: BTreeMap<u64, i64>,
    next: u64,
    /// Tuples that miss tensors still.
    incomplete: HashMap<i64, Entry>,
    bytes: usize,
}

#[derive(Default)]
struct Entry {
    /// The key as it was given: a scalar or a vector of one.
    key: Option<Tensor>,
    parts: Vec<Option<Tensor>>,
    /// What it counts for, and when it came.
    bytes: usize,
    arrival: u64,
}

struct Put {
    key: i64,
    given: Tensor,
    indices: Vec<i32>,
    values: Tuple,
}

struct Take {
    how: How,
    key: i64,
    indices: Vec<i32>,
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    Take,
    Peek,
    /// Of whatever key.
    Any,
}

impl<const ORDERED: bool> Contents for StagingMap<ORDERED> {
    const TYPE_NAME: &'static str = if ORDERED {
        "N10tensorflow12_GLOBAL__N_110StagingMapILb1EEE"
    } else {
        "N10tensorflow12_GLOBAL__N_110StagingMapILb0EEE"
    };
    type Put = Put;
    type Take = Take;

    fn empty(b: &KernelBuilder<'_>) -> Result<Self> {
        Ok(StagingMap {
            width: b.attrs().dtypes("dtypes")?.len(),
            ..Default::default()
        })
    }

    fn emptied(&self) -> Self {
        StagingMap {
            width: self.width,
            // Who comes later still comes later.
            next: self.next,
            ..Default::default()
        }
    }

    fn size(put: &Put) -> usize {
        counted(&put.values)
    }

    fn put(&mut self, limits: &Limits, put: &mut Put) -> Option<Result<Tuple>> {
        let size = counted(&put.values);
        if !limits.admits_bytes(self.bytes, size) {
            return None;
        }
        if put.indices.len() != self.width {
            return Some(self.put_parts(put, size).map(|()| Tuple::new()));
        }
        if !limits.admits_one(self.entries.len()) {
            return None;
        }
        let entry = Entry {
            key: Some(put.given.clone()),
            parts: put.values.drain(..).map(Some).collect(),
            bytes: size,
            arrival: 0,
        };
        self.bytes += size;
        self.add(put.key, entry);
        Some(Ok(Tuple::new()))
    }

    fn take(&mut self, take: &mut Take) -> Option<Result<Tuple>> {
        let key = match take.how {
            How::Any if ORDERED => *self.entries.keys().next()?,
            How::Any => *self.arrivals.values().next_back()?,
            _ => take.key,
        };
        let width = self.width;
        let entry = self.entries.get_mut(&key)?;
        let mut out = Tuple::new();
        for &index in &take.indices {
            let part = place(width, key, index).and_then(|at| {
                let part = entry.parts.get_mut(at).filter(|part| part.is_some());
                let part = part.ok_or_else(|| {
                    Status::invalid_argument(format!(
                        "Tensor at index '{at}' for key '{key}' has already been removed."
                    ))
                })?;
                Ok(match take.how {
                    How::Peek => part.clone(),
                    _ => part.take(),
                })
            });
            match part {
                Ok(part) => out.extend(part),
                Err(e) => return Some(Err(e)),
            }
        }
        let freed = counted_all(&out).min(entry.bytes);
        if take.how == How::Any {
            out.insert(0, entry.key.clone().unwrap_or_else(|| Tensor::scalar(key)));
        }
        if take.how != How::Peek {
            entry.bytes -= freed;
            self.bytes = self.bytes.saturating_sub(freed);
            if entry.parts.iter().all(Option::is_none) {
                self.remove(key);
            }
        }
        Some(Ok(out))
    }
}

impl<const ORDERED: bool> StagingMap<ORDERED> {
    fn whole(&self) -> usize {
        self.entries.len()
    }

    fn incomplete(&self) -> usize {
        self.incomplete.len()
    }

    fn add(&mut self, key: i64, mut entry: Entry) {
        if self.entries.contains_key(&key) {
            // The first one stays.
            self.bytes = self.bytes.saturating_sub(entry.bytes);
            return;
        }
        entry.arrival = self.next;
        self.next += 1;
        self.arrivals.insert(entry.arrival, key);
        self.entries.insert(key, entry);
    }

    fn remove(&mut self, key: i64) {
        if let Some(entry) = self.entries.remove(&key) {
            self.arrivals.remove(&entry.arrival);
            self.bytes = self.bytes.saturating_sub(entry.bytes);
        }
    }

    /// Adds to a tuple that is not whole; once it is, it moves over, whatever the capacity.
    fn put_parts(&mut self, put: &mut Put, size: usize) -> Result<()> {
        let key = put.key;
        let mut entry = self.incomplete.remove(&key).unwrap_or_default();
        let is_new = entry.parts.is_empty();
        entry.parts.resize_with(self.width, || None);
        entry.key.get_or_insert_with(|| put.given.clone());
        for (&index, value) in put.indices.iter().zip(put.values.drain(..)) {
            let set = place(self.width, key, index).and_then(|at| match &mut entry.parts[at] {
                Some(_) => Err(Status::invalid_argument(format!(
                    "The tensor for index '{at}' for key '{key}' was already initialized '{}'.",
                    self.width
                ))),
                empty => {
                    *empty = Some(value);
                    Ok(())
                }
            });
            if let Err(e) = set {
                // What came in earlier calls stays.
                if !is_new {
                    self.incomplete.insert(key, entry);
                }
                return Err(e);
            }
        }
        entry.bytes += size;
        self.bytes += size;
        if entry.parts.iter().all(Option::is_some) {
            self.add(key, entry);
        } else {
            self.incomplete.insert(key, entry);
        }
        Ok(())
    }
}

/// Where in a tuple of `width` tensors the one of an index is.
fn place(width: usize, key: i64, index: i32) -> Result<usize> {
    // As TensorFlow's text shows it: without a sign.
    let index = i64::from(index) as usize;
    if index < width {
        return Ok(index);
    }
    Err(Status::invalid_argument(format!(
        "Index '{index}' for key '{key}' was out of bounds '{width}'."
    )))
}

/// What a put counts for: TensorFlow counts its last tensor only, and shows that in errors.
fn counted(values: &Tuple) -> usize {
    values.last().map_or(0, bytes)
}

fn counted_all(values: &Tuple) -> usize {
    values.iter().map(bytes).sum()
}

/// Indices, which must be in order.
fn indices(tensor: &Tensor) -> Result<Vec<i32>> {
    let indices = tensor.as_slice::<i32>()?;
    if indices.is_empty() {
        return Err(Status::invalid_argument("Indices are empty"));
    }
    if !indices.is_sorted_by(|a, b| a < b) {
        return Err(Status::invalid_argument("Indices are not strictly ordered"));
    }
    Ok(indices.to_vec())
}

fn put<const ORDERED: bool>(b: &KernelBuilder<'_>) -> Result<Built> {
    let map = Shared::<StagingMap<ORDERED>>::new(b)?;
    let count = b.node.input_types.len().saturating_sub(2);
    Built::waiting(move |mut op| {
        let ready = map.of_op(&op).and_then(|map| {
            let given = op.take(0)?;
            let key = match given.as_slice::<i64>()? {
                [] => return Err(Status::invalid_argument("key must not be empty")),
                &[key] => key,
                _ => {
                    return Err(Status::invalid_argument(format!(
                        "key must be an int64 scalar, got tensor with shape: {}",
                        given.shape()
                    )));
                }
            };
            let indices = indices(op.input(1)?)?;
            // TensorFlow reads beyond its values here.
            if count < indices.len() {
                return Err(Status::invalid_argument(format!(
                    "MapStage was given {} indices but {count} values",
                    indices.len()
                )));
            }
            let values = (0..indices.len())
                .map(|i| op.take(i + 2))
                .collect::<Result<Tuple>>()?;
            Ok((
                map,
                Put {
                    key,
                    given,
                    indices,
                    values,
                },
            ))
        });
        match ready {
            Err(e) => op.finish(Err(e)),
            Ok((map, put)) => {
                let cancellation = op.env().cancellation.clone();
                map.put(put, &cancellation, Box::new(move |r| op.finish(r)));
            }
        }
    })
}

fn take<const ORDERED: bool>(b: &KernelBuilder<'_>, how: How) -> Result<Built> {
    let map = Shared::<StagingMap<ORDERED>>::new(b)?;
    let keys = usize::from(how == How::Any);
    let wanted = b.node.output_types.len() - keys;
    Built::waiting(move |op| {
        let ready = map.of_op(&op).and_then(|map| {
            let key = match how {
                How::Any => 0,
                _ => op.input(0)?.scalar_value::<i64>()?,
            };
            let indices = indices(op.input(1 - keys)?)?;
            // TensorFlow aborts here; it has words for outputs that are missing.
            if indices.len() > wanted {
                return Err(Status::invalid_argument(format!(
                    "output/indices size mismatch: {wanted} vs. {}",
                    indices.len()
                )));
            }
            Ok((map, Take { how, key, indices }))
        });
        match ready {
            Err(e) => op.finish(Err(e)),
            Ok((map, work)) => {
                let cancellation = op.env().cancellation.clone();
                let done = move |got: Result<Tuple>| {
                    let checked = got.and_then(|tuple| declared(&op, tuple));
                    op.finish(checked);
                };
                map.take(work, &cancellation, Box::new(done));
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
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, channel};

    fn map(capacity: usize, memory: usize) -> Arc<Area<StagingMap<false>>> {
        let limits = Limits { capacity, memory };
        let empty = StagingMap {
            width: 2,
            ..Default::default()
        };
        Arc::new(Area::new(limits, empty))
    }

    fn answer() -> (Done<Tuple>, Receiver<Result<usize>>) {
        let (tx, rx) = channel();
        (Box::new(move |r| tx.send(r.map(|t| t.len())).unwrap()), rx)
    }

    fn put(
        m: &Arc<Area<StagingMap<false>>>,
        c: &Arc<Cancellation>,
        key: i64,
        indices: &[i32],
    ) -> Receiver<Result<usize>> {
        let (done, rx) = answer();
        let put = Put {
            key,
            given: Tensor::scalar(key),
            indices: indices.to_vec(),
            values: vec![Tensor::vector(vec![0u8; 4]); indices.len()],
        };
        m.put(put, c, done);
        rx
    }

    fn take(
        m: &Arc<Area<StagingMap<false>>>,
        c: &Arc<Cancellation>,
        how: How,
        key: i64,
    ) -> Receiver<Result<usize>> {
        let (done, rx) = answer();
        let indices = vec![0, 1];
        m.take(Take { how, key, indices }, c, done);
        rx
    }

    #[test]
    fn a_take_waits_for_its_key_and_ends_with_its_step() {
        let (m, mine, other) = (map(0, 0), Cancellation::new(), Cancellation::new());
        let (first, second) = (
            take(&m, &mine, How::Take, 5),
            take(&m, &other, How::Take, 5),
        );
        put(&m, &other, 4, &[0, 1]);
        put(&m, &other, 5, &[0]);
        assert!(first.try_recv().is_err() && second.try_recv().is_err());
        mine.cancel(Status::cancelled("stop"));
        assert!(first.try_recv().unwrap().is_err());
        put(&m, &other, 5, &[1]);
        assert_eq!(second.try_recv().unwrap().unwrap(), 2);
        assert_eq!(m.look(StagingMap::whole), 1);
    }

    #[test]
    fn what_is_counted_is_given_back() {
        let (m, c) = (map(0, 4), Cancellation::new());
        put(&m, &c, 1, &[0, 1]);
        let waiting = put(&m, &c, 2, &[0, 1]);
        assert!(waiting.try_recv().is_err());
        // A look at it frees nothing.
        assert_eq!(take(&m, &c, How::Peek, 1).try_recv().unwrap().unwrap(), 2);
        assert!(waiting.try_recv().is_err());
        assert_eq!(take(&m, &c, How::Any, 0).try_recv().unwrap().unwrap(), 3);
        assert!(waiting.try_recv().unwrap().is_ok());
        assert_eq!(m.look(|map| map.bytes), 4);
        m.clear();
        assert_eq!(m.look(|map| map.bytes), 0);
    }
}
