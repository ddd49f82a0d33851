//! `MutableDenseHashTable`: open addressing in two arrays of buckets. Exports and checkpoints hold
//! the arrays themselves, so hashes, probing and growth are TensorFlow's.

use super::cells::{Keys, Rows, int_keys};
use crate::strings::hash::hash64;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_tensor::{DType, Shape, Tensor};

/// Seed of the hash of strings.
const SEED: u64 = 0xDE_CAFC_AFFE;

/// How many buckets there may be at once: what a tensor may hold.
pub(super) type Limit<'a> = &'a dyn Fn(DType, &Shape) -> Result<()>;

/// What a table's node declares.
#[derive(Clone)]
pub(super) struct Spec {
    pub(super) value_dtype: DType,
    pub(super) key_shape: Shape,
    pub(super) value_shape: Shape,
    /// Grows beyond this share of buckets in use.
    pub(super) max_load: f32,
}

/// The table.
pub(super) struct Dense {
    spec: Spec,
    key_dtype: DType,
    /// Keys that mark buckets: never used, and no longer used.
    empty: Tensor,
    deleted: Tensor,
    keys: Stored,
    values: Rows,
    buckets: usize,
    entries: usize,
}

/// The keys of all buckets, one after the other.
enum Stored {
    Ints(Vec<i64>),
    Strings(Vec<Bytes>),
}

impl Stored {
    fn filled(key: &Tensor, buckets: usize) -> Result<Stored> {
        Ok(match Keys::of(key)? {
            Keys::Ints(key) => Stored::Ints(key.repeat(buckets)),
            Keys::Strings(key) => {
                let key: Vec<Bytes> = key.iter().map(|k| Bytes::copy_from_slice(k)).collect();
                Stored::Strings(
                    key.iter()
                        .cloned()
                        .cycle()
                        .take(key.len() * buckets)
                        .collect(),
                )
            }
        })
    }

    /// Whether bucket `at` holds key `i` of `keys`; a key has `width` elements.
    fn is(&self, at: usize, keys: &Keys<'_>, i: usize, width: usize) -> bool {
        let (mine, theirs) = (at * width..(at + 1) * width, i * width..(i + 1) * width);
        match (self, keys) {
            (Stored::Ints(a), Keys::Ints(b)) => a.get(mine) == b.get(theirs),
            (Stored::Strings(a), Keys::Strings(b)) => a.get(mine) == b.get(theirs),
            _ => false,
        }
    }

    fn set(&mut self, at: usize, keys: &Keys<'_>, i: usize, width: usize) {
        let (to, from) = (at * width..(at + 1) * width, i * width..(i + 1) * width);
        match (self, keys) {
            (Stored::Ints(to_keys), Keys::Ints(from_keys)) => {
                to_keys[to].copy_from_slice(&from_keys[from]);
            }
            (Stored::Strings(to_keys), Keys::Strings(from_keys)) => {
                for (to, from) in to_keys[to].iter_mut().zip(&from_keys[from]) {
                    *to = Bytes::copy_from_slice(from);
                }
            }
            _ => {}
        }
    }
}

fn hash(keys: &Keys<'_>, i: usize, width: usize) -> u64 {
    let one = |at: usize| match keys {
        Keys::Ints(keys) => keys.get(at).map_or(0, |&k| k as u64),
        Keys::Strings(keys) => keys.get(at).map_or(0, |k| hash64(k, SEED)),
    };
    if width == 1 {
        return one(i);
    }
    (i * width..(i + 1) * width).fold(0u64, |a, at| {
        let b = one(at).wrapping_add(0x9e37_79b9_7f4a_7800);
        a ^ b.wrapping_add(a << 10).wrapping_add(a >> 4)
    })
}

fn equal(a: &Keys<'_>, i: usize, b: &Keys<'_>, j: usize, width: usize) -> bool {
    let (mine, theirs) = (i * width..(i + 1) * width, j * width..(j + 1) * width);
    match (a, b) {
        (Keys::Ints(a), Keys::Ints(b)) => a.get(mine) == b.get(theirs),
        (Keys::Strings(a), Keys::Strings(b)) => a.get(mine) == b.get(theirs),
        _ => false,
    }
}

impl Dense {
    pub(super) fn new(
        spec: Spec,
        empty: Tensor,
        deleted: Tensor,
        buckets: i64,
        limit: Limit<'_>,
    ) -> Result<Dense> {
        let width = spec.key_shape.num_elements();
        if equal(&Keys::of(&empty)?, 0, &Keys::of(&deleted)?, 0, width) {
            return Err(Status::invalid_argument(
                "Empty and deleted keys cannot be equal",
            ));
        }
        let mut dense = Dense {
            key_dtype: empty.dtype(),
            keys: Stored::filled(&empty, 0)?,
            values: Rows::new(spec.value_dtype, 1, 0),
            spec,
            empty,
            deleted,
            buckets: 0,
            entries: 0,
        };
        let fits = usize::try_from(buckets).ok();
        let count = fits.filter(|&n| n >= 4 && n.is_power_of_two());
        let count = count.ok_or_else(|| {
            Status::invalid_argument(format!(
                "Number of buckets must be at least 4 and a power of 2, got: {buckets}"
            ))
        })?;
        dense.clear(count, limit)?;
        Ok(dense)
    }

    pub(super) fn len(&self) -> usize {
        self.entries
    }

    /// About how much memory it takes.
    pub(super) fn bytes(&self) -> usize {
        let keys = match &self.keys {
            Stored::Ints(keys) => size_of_val(&keys[..]),
            Stored::Strings(keys) => size_of_val(&keys[..]),
        };
        keys + self.values.bytes()
    }

    fn width(&self) -> usize {
        self.spec.key_shape.num_elements()
    }

    fn clear(&mut self, buckets: usize, limit: Limit<'_>) -> Result<()> {
        let width = self.spec.value_shape.num_elements();
        limit(self.key_dtype, &self.bucket_shape(buckets, self.width()))?;
        limit(self.spec.value_dtype, &self.bucket_shape(buckets, width))?;
        self.keys = Stored::filled(&self.empty, buckets)?;
        self.values = Rows::new(self.spec.value_dtype, width, buckets);
        self.buckets = buckets;
        self.entries = 0;
        Ok(())
    }

    fn bucket_shape(&self, buckets: usize, width: usize) -> Shape {
        // A product beyond any limit must not wrap around.
        if buckets.checked_mul(width).is_none() {
            return Shape::from([usize::MAX]);
        }
        Shape::from([buckets, width])
    }

    /// How many keys a tensor holds, whose shape ends with the shape of a key.
    fn count(&self, keys: &Tensor) -> Result<usize> {
        let count = keys.dims().first().copied().unwrap_or(1);
        if keys.num_elements() == count * self.width() {
            return Ok(count);
        }
        let wanted: Shape = std::iter::once(count)
            .chain(self.spec.key_shape.iter().copied())
            .collect();
        Err(Status::invalid_argument(format!(
            "Expected key shape {wanted} got {}",
            keys.shape()
        )))
    }

    /// Refuses the two keys that mark buckets.
    fn check_key(&self, keys: &Keys<'_>, i: usize) -> Result<()> {
        for (marker, name) in [(&self.empty, "empty_key"), (&self.deleted, "deleted_key")] {
            if equal(&Keys::of(marker)?, 0, keys, i, self.width()) {
                return Err(Status::invalid_argument(format!(
                    "Using the {name} as a table key is not allowed"
                )));
            }
        }
        Ok(())
    }

    /// The first bucket along the way of key `i` for which `stop` says so.
    fn probe(
        &self,
        keys: &Keys<'_>,
        i: usize,
        doing: &str,
        stop: impl Fn(usize) -> bool,
    ) -> Result<usize> {
        let mask = self.buckets.wrapping_sub(1) as u64;
        let mut at = (hash(keys, i, self.width()) & mask) as usize;
        for probes in 1..=self.buckets {
            if stop(at) {
                return Ok(at);
            }
            at = (at as u64).wrapping_add(probes as u64) as usize & mask as usize;
        }
        Err(Status::internal(format!(
            "Internal error in MutableDenseHashTable {doing}"
        )))
    }

    pub(super) fn find(&self, keys: &Tensor, default: &Tensor, shape: &Shape) -> Result<Tensor> {
        let (count, width) = (self.count(keys)?, self.width());
        let (named, empty) = (Keys::of(keys)?, Keys::of(&self.empty)?);
        let mut rows = Vec::with_capacity(count);
        for i in 0..count {
            self.check_key(&named, i)?;
            let at = self.probe(&named, i, "lookup", |at| {
                self.keys.is(at, &named, i, width) || self.keys.is(at, &empty, 0, width)
            })?;
            rows.push(self.keys.is(at, &named, i, width).then_some(at));
        }
        self.values.gather(&rows, default, false, shape)
    }

    pub(super) fn insert(
        &mut self,
        keys: &Tensor,
        values: &Tensor,
        limit: Limit<'_>,
    ) -> Result<()> {
        let count = self.count(keys)?;
        // As if every key were new, which is what TensorFlow's buckets show.
        let pending = self.entries.saturating_add(count) as f32;
        if pending > self.buckets as f32 * self.spec.max_load {
            let mut buckets = self.buckets.max(1);
            while pending > buckets as f32 * self.spec.max_load {
                buckets = buckets.checked_mul(2).ok_or_else(|| {
                    Status::resource_exhausted("a table cannot have that many buckets")
                })?;
            }
            let (old_keys, old_values) = self.entries()?;
            self.clear(buckets, limit)?;
            self.put(&old_keys, &old_values)?;
        }
        self.put(keys, values)
    }

    /// What the table holds, in the order of its buckets.
    fn entries(&self) -> Result<(Tensor, Tensor)> {
        let width = self.width();
        let (empty, deleted) = (Keys::of(&self.empty)?, Keys::of(&self.deleted)?);
        let used = |at: &usize| {
            !self.keys.is(*at, &empty, 0, width) && !self.keys.is(*at, &deleted, 0, width)
        };
        let rows: Vec<usize> = (0..self.buckets).filter(used).collect();
        let shape = Shape::from([rows.len(), width]);
        let of = |at: &usize| at * width..(at + 1) * width;
        let keys = match &self.keys {
            Stored::Ints(keys) => {
                let keys = rows.iter().flat_map(|at| keys[of(at)].iter().copied());
                int_keys(self.key_dtype, keys.collect(), shape)?
            }
            Stored::Strings(keys) => {
                let keys = rows.iter().flat_map(|at| keys[of(at)].iter().cloned());
                Tensor::strings(keys.collect(), shape)?
            }
        };
        let wide = self.spec.value_shape.num_elements();
        let values = self
            .values
            .tensor(&rows, &Shape::from([rows.len(), wide]))?;
        Ok((keys, values))
    }

    fn put(&mut self, keys: &Tensor, values: &Tensor) -> Result<()> {
        let (count, width) = (keys.num_elements() / self.width().max(1), self.width());
        let named = Keys::of(keys)?;
        let markers = (self.empty.clone(), self.deleted.clone());
        let (empty, deleted) = (Keys::of(&markers.0)?, Keys::of(&markers.1)?);
        for i in 0..count {
            self.check_key(&named, i)?;
            let at = self.probe(&named, i, "insert", |at| {
                self.keys.is(at, &named, i, width)
                    || self.keys.is(at, &empty, 0, width)
                    || self.keys.is(at, &deleted, 0, width)
            })?;
            if !self.keys.is(at, &named, i, width) {
                self.entries += 1;
                self.keys.set(at, &named, i, width);
            }
            self.values.set(at, values, i)?;
        }
        Ok(())
    }

    pub(super) fn remove(&mut self, keys: &Tensor) -> Result<()> {
        let (count, width) = (self.count(keys)?, self.width());
        let named = Keys::of(keys)?;
        let markers = (self.empty.clone(), self.deleted.clone());
        let (empty, deleted) = (Keys::of(&markers.0)?, Keys::of(&markers.1)?);
        for i in 0..count {
            self.check_key(&named, i)?;
            let at = self.probe(&named, i, "remove", |at| {
                self.keys.is(at, &named, i, width) || self.keys.is(at, &empty, 0, width)
            })?;
            if self.keys.is(at, &named, i, width) {
                self.entries = self.entries.saturating_sub(1);
                self.keys.set(at, &deleted, 0, width);
            }
        }
        Ok(())
    }

    /// The buckets, empty ones included.
    pub(super) fn export(&self) -> Result<(Tensor, Tensor)> {
        let shape = Shape::from([self.buckets, self.width()]);
        let keys = match &self.keys {
            Stored::Ints(keys) => int_keys(self.key_dtype, keys.clone(), shape)?,
            Stored::Strings(keys) => Tensor::strings(keys.clone(), shape)?,
        };
        let width = self.spec.value_shape.num_elements();
        let rows: Vec<usize> = (0..self.buckets).collect();
        Ok((
            keys,
            self.values
                .tensor(&rows, &Shape::from([self.buckets, width]))?,
        ))
    }

    /// Takes the buckets of another table over.
    pub(super) fn import(&mut self, keys: &Tensor, values: &Tensor) -> Result<()> {
        let (&[buckets, wide], width) = (keys.dims(), self.width()) else {
            return Err(no_buckets(keys));
        };
        // TensorFlow takes any number of buckets, and reads beyond them when there are none.
        if wide != width || buckets == 0 {
            return Err(no_buckets(keys));
        }
        let named = Keys::of(keys)?;
        let mut stored = Stored::filled(&self.empty, buckets)?;
        let mut rows = Rows::new(
            self.spec.value_dtype,
            self.spec.value_shape.num_elements(),
            0,
        );
        let (empty, deleted) = (Keys::of(&self.empty)?, Keys::of(&self.deleted)?);
        let mut entries = 0;
        for i in 0..buckets {
            stored.set(i, &named, i, width);
            rows.set(i, values, i)?;
            let marks = equal(&empty, 0, &named, i, width) || equal(&deleted, 0, &named, i, width);
            entries += usize::from(!marks);
        }
        (self.keys, self.values) = (stored, rows);
        (self.buckets, self.entries) = (buckets, entries);
        Ok(())
    }
}

fn no_buckets(keys: &Tensor) -> Status {
    Status::invalid_argument(format!("{} is no shape of buckets of keys", keys.shape()))
}
