//! Tables that map each key to a row through an index: `HashTable` and the mutable ones.

use super::cells::{Keys, Rows, int_keys};
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::parallel_ranges;
use downpour_tensor::{DType, Shape, Tensor};
use foldhash::fast::RandomState;
use std::hash::Hash;

/// Keys come by the thousand: a quick hash, seeded at random against keys chosen to collide.
type HashMap<K, V> = std::collections::HashMap<K, V, RandomState>;

/// Keys worth a thread of their own.
const GRAIN: usize = 2 << 10;

/// Keys and their rows.
#[derive(Clone)]
pub(super) struct Map {
    key_dtype: DType,
    index: Index,
    rows: Rows,
    /// Rows whose keys were removed.
    free: Vec<usize>,
    /// Rows in use or free.
    made: usize,
    /// Bytes of keys that are strings.
    text: usize,
}

/// What an entry takes beside its key's text and its value.
pub(super) const ENTRY: usize = 64;

#[derive(Clone)]
enum Index {
    Ints(HashMap<i64, usize>),
    Strings(HashMap<Bytes, usize>),
}

impl Map {
    /// A map without keys; a value has `width` elements.
    pub(super) fn new(key_dtype: DType, value_dtype: DType, width: usize) -> Map {
        Map {
            key_dtype,
            index: match key_dtype {
                DType::String => Index::Strings(HashMap::default()),
                _ => Index::Ints(HashMap::default()),
            },
            rows: Rows::new(value_dtype, width, 0),
            free: Vec::new(),
            made: 0,
            text: 0,
        }
    }

    /// About how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        self.made * ENTRY + self.text + self.rows.bytes()
    }

    pub(super) fn len(&self) -> usize {
        match &self.index {
            Index::Ints(index) => index.len(),
            Index::Strings(index) => index.len(),
        }
    }

    /// The values of `keys`; see [`Rows::gather`] for those without.
    pub(super) fn find(
        &self,
        keys: &Tensor,
        defaults: &Tensor,
        each: bool,
        shape: &Shape,
    ) -> Result<Tensor> {
        let rows: Vec<Option<usize>> = match (Keys::of(keys)?, &self.index) {
            (Keys::Ints(keys), Index::Ints(index)) => look_up(&keys, index),
            (Keys::Strings(keys), Index::Strings(index)) => look_up(keys, index),
            _ => return Err(other_keys()),
        };
        self.rows.gather(&rows, defaults, each, shape)
    }

    /// Puts values in, in place of those that keys have.
    pub(super) fn insert(&mut self, keys: &Tensor, values: &Tensor) -> Result<()> {
        self.put(keys, |rows, at, i, _| rows.set(at, values, i))
    }

    /// Puts values in; a key that has another value already is an error.
    pub(super) fn insert_new(&mut self, keys: &Tensor, values: &Tensor) -> Result<()> {
        let named = Keys::of(keys)?;
        self.put(keys, |rows, at, i, is_new| {
            if is_new {
                return rows.set(at, values, i);
            }
            if rows.is_same(at, values, i)? {
                return Ok(());
            }
            let mut wanted = Rows::new(values.dtype(), 1, 0);
            wanted.set(0, values, i)?;
            Err(Status::failed_precondition(format!(
                "HashTable has different value for same key. Key {} has {} and trying to add value {}",
                named.text(i),
                rows.text(at)?,
                wanted.text(0)?
            )))
        })
    }

    /// Finds or makes the row of each key and has `write(rows, row, number of the key, is new)`.
    fn put(
        &mut self,
        keys: &Tensor,
        mut write: impl FnMut(&mut Rows, usize, usize, bool) -> Result<()>,
    ) -> Result<()> {
        let (rows, free, made) = (&mut self.rows, &mut self.free, &mut self.made);
        let mut place = |found: Option<usize>, i: usize| {
            if let Some(at) = found {
                return write(rows, at, i, false).map(|()| at);
            }
            let at = free.pop().unwrap_or(*made);
            *made = (*made).max(at + 1);
            write(rows, at, i, true).map(|()| at)
        };
        match (Keys::of(keys)?, &mut self.index) {
            (Keys::Ints(keys), Index::Ints(index)) => {
                for (i, key) in keys.iter().enumerate() {
                    let at = place(index.get(key).copied(), i)?;
                    index.insert(*key, at);
                }
            }
            (Keys::Strings(keys), Index::Strings(index)) => {
                for (i, key) in keys.iter().enumerate() {
                    let found = index.get(key).copied();
                    let at = place(found, i)?;
                    if found.is_none() {
                        self.text += key.len();
                        index.insert(Bytes::copy_from_slice(key), at);
                    }
                }
            }
            _ => return Err(other_keys()),
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, keys: &Tensor) -> Result<()> {
        match (Keys::of(keys)?, &mut self.index) {
            (Keys::Ints(keys), Index::Ints(index)) => {
                self.free
                    .extend(keys.iter().filter_map(|k| index.remove(k)));
            }
            (Keys::Strings(keys), Index::Strings(index)) => {
                for key in keys.iter() {
                    if let Some(at) = index.remove(key) {
                        self.text -= key.len();
                        self.free.push(at);
                    }
                }
            }
            _ => return Err(other_keys()),
        }
        Ok(())
    }

    /// All keys and values, in the order of their rows; `value_shape` is that of one value.
    pub(super) fn export(&self, value_shape: &Shape) -> Result<(Tensor, Tensor)> {
        let dims = std::iter::once(self.len()).chain(value_shape.iter().copied());
        let (keys, rows) = match &self.index {
            Index::Ints(index) => {
                let (keys, rows) = in_order(index);
                (int_keys(self.key_dtype, keys, [rows.len()])?, rows)
            }
            Index::Strings(index) => {
                let (keys, rows) = in_order(index);
                (Tensor::strings(keys, [rows.len()])?, rows)
            }
        };
        Ok((keys, self.rows.tensor(&rows, &dims.collect())?))
    }
}

/// The row of each key.
fn look_up<K: Hash + Eq + Sync>(keys: &[K], index: &HashMap<K, usize>) -> Vec<Option<usize>> {
    let mut rows = vec![None; keys.len()];
    parallel_ranges(&mut rows, 1, GRAIN, |first, rows| {
        for (row, key) in rows.iter_mut().zip(&keys[first..]) {
            *row = index.get(key).copied();
        }
    });
    rows
}

fn in_order<K: Clone + Hash + Eq>(index: &HashMap<K, usize>) -> (Vec<K>, Vec<usize>) {
    let mut pairs: Vec<(usize, &K)> = index.iter().map(|(k, &row)| (row, k)).collect();
    pairs.sort_unstable_by_key(|p| p.0);
    pairs.into_iter().map(|(row, k)| (k.clone(), row)).unzip()
}

fn other_keys() -> Status {
    Status::internal("keys of another type than the table's")
}
