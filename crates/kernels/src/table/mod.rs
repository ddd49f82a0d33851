//! Family `table`: lookup tables from keys to values, by handle or by reference to their names.
//!
//! A table is shared by all steps of a task behind one lock: many may look up at once, one writes.
//! `HashTable`s are written once and refuse lookups before; the others may change at any time.

mod cells;
mod dense;
mod map;
mod ops;
mod remap;
mod text_file;

use dense::{Dense, Limit};
use downpour_graph::{Result, Status};
use downpour_runtime::{Held, Registry, Resource};
use downpour_tensor::account::{Holding, Refused};
use downpour_tensor::{DType, Shape, Tensor};
use map::Map;
use parking_lot::RwLock;

pub(crate) fn register(registry: &mut Registry) {
    ops::register(registry);
    remap::register(registry);
}

/// TensorFlow's C++ type of all tables.
pub(crate) const TABLE_TYPE: &str = "N10tensorflow6lookup15LookupInterfaceE";

/// A lookup table.
pub(crate) struct Table {
    pub(crate) key_dtype: DType,
    pub(crate) value_dtype: DType,
    key_shape: Shape,
    value_shape: Shape,
    body: Body,
    held: Holding,
}

enum Body {
    /// Whether it is initialised, and what has come so far.
    Fixed(RwLock<(bool, Map)>),
    Mutable(RwLock<Map>),
    Dense(RwLock<Dense>),
}

impl Resource for Table {
    fn type_name(&self) -> &'static str {
        TABLE_TYPE
    }

    fn held(&self) -> Option<Held> {
        Some(Held {
            kind: "tables",
            bytes: self.held.bytes(),
        })
    }
}

impl Table {
    fn fixed(key_dtype: DType, value_dtype: DType) -> Table {
        let map = Map::new(key_dtype, value_dtype, 1);
        Table {
            key_dtype,
            value_dtype,
            key_shape: Shape::scalar(),
            value_shape: Shape::scalar(),
            body: Body::Fixed(RwLock::new((false, map))),
            held: Holding::new(),
        }
    }

    fn mutable(key_dtype: DType, value_dtype: DType, value_shape: Shape) -> Table {
        let map = Map::new(key_dtype, value_dtype, value_shape.num_elements());
        Table {
            key_dtype,
            value_dtype,
            key_shape: Shape::scalar(),
            value_shape,
            body: Body::Mutable(RwLock::new(map)),
            held: Holding::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match &self.body {
            Body::Fixed(table) => match &*table.read() {
                (true, map) => map.len(),
                _ => 0,
            },
            Body::Mutable(table) => table.read().len(),
            Body::Dense(table) => table.read().len(),
        }
    }

    /// Changes what the table holds; `more` is what that adds at most.
    fn change<T>(
        &self,
        more: usize,
        change: impl FnOnce() -> Result<T>,
    ) -> Result<Result<T>, Refused> {
        self.held.add(more)?;
        let outcome = change();
        self.held.set(match &self.body {
            Body::Fixed(table) => table.read().1.bytes(),
            Body::Mutable(table) => table.read().bytes(),
            Body::Dense(table) => table.read().bytes(),
        });
        Ok(outcome)
    }

    /// Whether a table that is initialised once has been.
    fn is_initialized(&self) -> bool {
        matches!(&self.body, Body::Fixed(table) if table.read().0)
    }

    /// Whether the table is one that is initialised once.
    pub(crate) fn is_initializable(&self) -> bool {
        matches!(self.body, Body::Fixed(_))
    }

    /// Initialises the table with everything there is: `end` says whether the keys and values
    /// came to their end, and if not, why. Those before stay in the table either way.
    pub(crate) fn initialize(
        &self,
        keys: &Tensor,
        values: &Tensor,
        total: usize,
        end: Result<()>,
    ) -> Result<()> {
        let Body::Fixed(table) = &self.body else {
            return Err(Status::internal("this table is not initialised"));
        };
        let (initialized, map) = &mut *table.write();
        if *initialized {
            if total == map.len() {
                return Ok(());
            }
            return Err(Status::failed_precondition(
                "Table was already initialized with different data.",
            ));
        }
        map.insert_new(keys, values)?;
        end?;
        *initialized = true;
        Ok(())
    }

    /// The shape of the values for keys of shape `keys`, which ends with the shape of a key.
    fn values_shape(&self, keys: &Shape) -> Result<Shape> {
        let (outer, inner) = keys
            .split_at_checked(keys.rank().saturating_sub(self.key_shape.rank()))
            .unwrap_or_default();
        if inner != self.key_shape.dims() {
            return Err(Status::invalid_argument(format!(
                "Input key shape {keys} must end with the table's key shape {}",
                self.key_shape
            )));
        }
        Ok(outer
            .iter()
            .chain(self.value_shape.iter())
            .copied()
            .collect())
    }

    fn find(&self, keys: &Tensor, default: &Tensor) -> Result<Tensor> {
        let shape = self.values_shape(keys.shape())?;
        if *default.shape() != self.value_shape && *default.shape() != shape {
            return Err(Status::invalid_argument(format!(
                "Expected shape {} or {shape} for default value, got {}",
                self.value_shape,
                default.shape()
            )));
        }
        // Only the plain mutable tables give each key a default of its own.
        match &self.body {
            Body::Fixed(table) => match &*table.read() {
                (true, map) => map.find(keys, default, false, &shape),
                _ => Err(Status::failed_precondition("Table not initialized.")),
            },
            Body::Mutable(table) => {
                let each = default.num_elements() == shape.num_elements();
                table.read().find(keys, default, each, &shape)
            }
            Body::Dense(table) => table.read().find(keys, default, &shape),
        }
    }

    fn check_values(&self, keys: &Tensor, values: &Tensor) -> Result<()> {
        let wanted = self.values_shape(keys.shape())?;
        if *values.shape() == wanted {
            return Ok(());
        }
        Err(Status::invalid_argument(format!(
            "Expected shape {wanted} for value, got {}",
            values.shape()
        )))
    }

    /// Refuses to hold more than a tensor may, or the table could never be exported.
    fn check_growth(&self, map: &Map, more: &Tensor, limit: Limit<'_>) -> Result<()> {
        let rows = map.len().saturating_add(more.num_elements());
        let dims = std::iter::once(rows).chain(self.value_shape.iter().copied());
        limit(self.value_dtype, &dims.collect())
    }

    fn insert(&self, keys: &Tensor, values: &Tensor, limit: Limit<'_>) -> Result<()> {
        self.check_values(keys, values)?;
        match &self.body {
            Body::Fixed(_) => Err(unsupported("Insert")),
            Body::Mutable(table) => {
                let mut table = table.write();
                self.check_growth(&table, keys, limit)?;
                table.insert(keys, values)
            }
            Body::Dense(table) => table.write().insert(keys, values, limit),
        }
    }

    fn remove(&self, keys: &Tensor) -> Result<()> {
        self.values_shape(keys.shape())?;
        match &self.body {
            Body::Fixed(_) => Err(unsupported("Remove")),
            Body::Mutable(table) => table.write().remove(keys),
            Body::Dense(table) => table.write().remove(keys),
        }
    }

    /// All keys and values; of a dense table, its buckets.
    fn export(&self) -> Result<(Tensor, Tensor)> {
        match &self.body {
            Body::Fixed(table) => match &*table.read() {
                (true, map) => map.export(&self.value_shape),
                _ => Err(Status::aborted("HashTable is not initialized.")),
            },
            Body::Mutable(table) => table.read().export(&self.value_shape),
            Body::Dense(table) => table.read().export(),
        }
    }

    /// Replaces what the table holds by what an export gave.
    fn import(&self, keys: &Tensor, values: &Tensor, limit: Limit<'_>) -> Result<()> {
        match &self.body {
            Body::Fixed(_) => {
                self.check_values(keys, values)?;
                self.initialize_with(keys, values)
            }
            Body::Mutable(table) => {
                self.check_values(keys, values)?;
                let width = self.value_shape.num_elements();
                let mut fresh = Map::new(self.key_dtype, self.value_dtype, width);
                self.check_growth(&fresh, keys, limit)?;
                fresh.insert(keys, values)?;
                *table.write() = fresh;
                Ok(())
            }
            Body::Dense(table) => {
                self.check_buckets(keys, values)?;
                table.write().import(keys, values)
            }
        }
    }

    /// Initialises the table with tensors of keys and values.
    pub(crate) fn initialize_with(&self, keys: &Tensor, values: &Tensor) -> Result<()> {
        if keys.num_elements() == 0 {
            return Err(Status::invalid_argument(
                "keys and values cannot be empty tensors.",
            ));
        }
        self.initialize(keys, values, keys.num_elements(), Ok(()))
    }

    /// Buckets hold vectors even where keys or values are scalars.
    fn check_buckets(&self, keys: &Tensor, values: &Tensor) -> Result<()> {
        self.values_shape(keys.shape())?;
        let vector = |shape: &Shape| match shape.rank() {
            0 => Shape::from([1]),
            _ => shape.clone(),
        };
        let inner = vector(&self.key_shape).rank();
        let outer = keys.rank().saturating_sub(inner);
        let wanted: Shape = (keys.dims().iter().take(outer).copied())
            .chain(vector(&self.value_shape).iter().copied())
            .collect();
        if *values.shape() == wanted {
            return Ok(());
        }
        Err(Status::invalid_argument(format!(
            "Expected shape {wanted} for value, got {}",
            values.shape()
        )))
    }
}

fn unsupported(what: &str) -> Status {
    Status::unimplemented(format!(
        "{what} not supported by InitializableLookupTable implementations"
    ))
}

#[cfg(test)]
mod tests;
