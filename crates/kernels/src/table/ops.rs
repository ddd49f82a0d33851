//! Kernels of the table ops, with resource handles (`…V2`) and with handles by reference.

use super::cells::element_text;
use super::dense::{self, Dense};
use super::text_file::{self, Spec};
use super::{Body, TABLE_TYPE, Table, map};
use crate::queue::shared_handle::{Anonymous, Home, Signature};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::account::Holding;
use downpour_tensor::{DType, Shape, Tensor};
use parking_lot::RwLock;
use std::sync::Arc;

use DType::{Bool, Double, Float, Int32, Int64, Resource, String, Variant};

/// Types of values by type of key, for one kind of table.
type Types = [(&'static [DType], &'static [DType]); 3];

const FIXED: Types = [
    (&[String], &[String, Int64, Int32, Float, Double, Bool]),
    (&[Int64], &[String, Int64, Int32, Float, Double]),
    (&[Int32], &[String, Int32, Float, Double]),
];
const MUTABLE: Types = [
    (&[String], &[Int64, Int32, Float, Double, Bool]),
    (&[Int64], &[Variant, String, Int64, Int32, Float, Double]),
    (&[Int32], &[Int32, Float, Double]),
];
const OF_TENSORS: Types = [
    (&[String], &[Int64, Int32, Float, Double, Bool]),
    (&[Int64], &[String, Int64, Int32, Float, Double]),
    (&[Int32], &[Int32, Float, Double]),
];
const DENSE: Types = [
    (&[String], &[Resource, Int64, Int32, Float, Double, Bool]),
    (&[Int64], &[Variant, Int64, Int32, Float, Double, Bool]),
    (&[Int32], &[Int32, Float, Double]),
];

pub(super) fn register(r: &mut Registry) {
    let mut tables = |ops: [&'static str; 2], types: &Types, make: fn(&KernelBuilder<'_>) -> _| {
        for op in ops {
            for (keys, values) in types {
                r.add_typed(op, &[("key_dtype", keys), ("value_dtype", values)], make);
            }
        }
    };
    tables(["HashTable", "HashTableV2"], &FIXED, |b| {
        shared(b, fixed(b)?)
    });
    tables(["MutableHashTable", "MutableHashTableV2"], &MUTABLE, |b| {
        shared(b, mutable(b)?)
    });
    tables(
        ["MutableHashTableOfTensors", "MutableHashTableOfTensorsV2"],
        &OF_TENSORS,
        |b| shared(b, of_tensors(b)?),
    );
    tables(
        ["MutableDenseHashTable", "MutableDenseHashTableV2"],
        &DENSE,
        |b| shared(b, dense_table(b)?),
    );
    for (keys, values) in FIXED {
        let types = [("key_dtype", keys), ("value_dtype", values)];
        r.add_typed("AnonymousHashTable", &types, |b| anonymous(b, fixed(b)?));
    }
    for (keys, values) in MUTABLE {
        let types = [("key_dtype", keys), ("value_dtype", values)];
        r.add_typed("AnonymousMutableHashTable", &types, |b| {
            anonymous(b, mutable(b)?)
        });
    }
    for (keys, values) in OF_TENSORS {
        let types = [("key_dtype", keys), ("value_dtype", values)];
        r.add_typed("AnonymousMutableHashTableOfTensors", &types, |b| {
            anonymous(b, of_tensors(b)?)
        });
    }
    for (keys, values) in DENSE {
        let types = [("key_dtype", keys), ("value_dtype", values)];
        r.add_typed("AnonymousMutableDenseHashTable", &types, |b| {
            anonymous(b, dense_table(b)?)
        });
    }
    for op in ["InitializeTable", "InitializeTableV2"] {
        r.add(op, initialize);
    }
    for op in [
        "InitializeTableFromTextFile",
        "InitializeTableFromTextFileV2",
    ] {
        r.add(op, initialize_from_file);
    }
    for op in ["LookupTableFind", "LookupTableFindV2"] {
        r.add(op, find);
    }
    for op in ["LookupTableInsert", "LookupTableInsertV2"] {
        r.add(op, |b| put(b, Put::Insert));
    }
    for op in ["LookupTableImport", "LookupTableImportV2"] {
        r.add(op, |b| put(b, Put::Import));
    }
    r.add("LookupTableRemoveV2", remove);
    for op in ["LookupTableSize", "LookupTableSizeV2"] {
        r.add(op, |b| {
            let signature = Signature::new(b, TABLE_TYPE);
            Built::cheap(move |ctx| {
                let size = signature.access.of_ctx::<Table>(ctx)?.len();
                ctx.set_output(0, Tensor::scalar(size as i64));
                Ok(())
            })
        });
    }
    for op in ["LookupTableExport", "LookupTableExportV2"] {
        r.add(op, export);
    }
}

/// Makes a table when its node runs: some take inputs.
type Make = Box<dyn Fn(&OpContext<'_>) -> Result<Table> + Send + Sync>;

/// A table that nodes find by name.
fn shared(b: &KernelBuilder<'_>, make: Make) -> Result<Built> {
    let home = Home::<Table>::new(b, TABLE_TYPE)?;
    let (key, value) = (
        b.attrs().dtype("key_dtype")?,
        b.attrs().dtype("value_dtype")?,
    );
    Built::cheap(move |ctx| {
        let table = home.get(ctx, || make(ctx))?;
        if (table.key_dtype, table.value_dtype) != (key, value) {
            return Err(Status::invalid_argument(format!(
                "Conflicting key/value dtypes {key}->{value} with {}-{} for table {}",
                table.key_dtype,
                table.value_dtype,
                home.name()
            )));
        }
        home.emit(ctx)
    })
}

/// A new table in every run.
fn anonymous(b: &KernelBuilder<'_>, make: Make) -> Result<Built> {
    let home = Anonymous::<Table>::new(b, TABLE_TYPE);
    Built::cheap(move |ctx| {
        let table = make(ctx)?;
        home.emit(ctx, table);
        Ok(())
    })
}

fn dtypes(b: &KernelBuilder<'_>) -> Result<(DType, DType)> {
    Ok((
        b.attrs().dtype("key_dtype")?,
        b.attrs().dtype("value_dtype")?,
    ))
}

fn fixed(b: &KernelBuilder<'_>) -> Result<Make> {
    let (key, value) = dtypes(b)?;
    Ok(Box::new(move |_| Ok(Table::fixed(key, value))))
}

fn mutable(b: &KernelBuilder<'_>) -> Result<Make> {
    let (key, value) = dtypes(b)?;
    Ok(Box::new(move |_| {
        Ok(Table::mutable(key, value, Shape::scalar()))
    }))
}

/// The shape of a value; one that is not known is that of a scalar.
fn value_shape(b: &KernelBuilder<'_>) -> Result<Shape> {
    let shape = b.attrs().shape("value_shape")?.to_shape();
    Ok(shape.unwrap_or_else(Shape::scalar))
}

fn of_tensors(b: &KernelBuilder<'_>) -> Result<Make> {
    let (key, value) = dtypes(b)?;
    let shape = value_shape(b)?;
    Ok(Box::new(move |_| {
        if shape.rank() != 1 {
            return Err(Status::invalid_argument(format!(
                "Default value must be a vector, got shape {shape}"
            )));
        }
        Ok(Table::mutable(key, value, shape.clone()))
    }))
}

fn dense_table(b: &KernelBuilder<'_>) -> Result<Make> {
    let (key_dtype, value_dtype) = dtypes(b)?;
    let value_shape = value_shape(b)?;
    let max_load = b.attrs().float("max_load_factor")?;
    let buckets = b.attrs().int("initial_num_buckets")?;
    Ok(Box::new(move |ctx| {
        if !(max_load > 0.0 && max_load < 1.0) {
            return Err(Status::invalid_argument(format!(
                "max_load_factor must be between 0 and 1, got: {}",
                element_text(&Tensor::scalar(max_load))
            )));
        }
        if value_shape.rank() > 1 {
            return Err(Status::invalid_argument(format!(
                "Empty value must be a scalar or a vector, got shape {value_shape}"
            )));
        }
        let empty = ctx.input(0)?;
        if empty.rank() > 1 {
            return Err(Status::invalid_argument(format!(
                "Empty key must be a scalar or a vector, got shape {}",
                empty.shape()
            )));
        }
        if ctx.num_inputs() < 2 {
            // The op by reference has no such input.
            return Err(Status::invalid_argument("Unknown input name: deleted_key"));
        }
        let deleted = ctx.input(1)?;
        if deleted.shape() != empty.shape() {
            return Err(Status::invalid_argument(format!(
                "Empty and deleted keys must have same shape, got shapes: {} and {}",
                empty.shape(),
                deleted.shape()
            )));
        }
        let spec = dense::Spec {
            value_dtype,
            key_shape: empty.shape().clone(),
            value_shape: value_shape.clone(),
            max_load,
        };
        let (empty, deleted) = (empty.clone(), deleted.clone());
        let key_shape = spec.key_shape.clone();
        let limit = |dtype, shape: &Shape| ctx.check_alloc(dtype, shape);
        let dense = Dense::new(spec, empty, deleted, buckets, &limit)?;
        Ok(Table {
            key_dtype,
            value_dtype,
            key_shape,
            value_shape: value_shape.clone(),
            body: Body::Dense(RwLock::new(dense)),
            held: Holding::new(),
        })
    }))
}

/// The table of a node that initialises one.
fn initializable(signature: &Signature, ctx: &OpContext<'_>) -> Result<Arc<Table>> {
    let table = signature.access.of_ctx::<Table>(ctx)?;
    if table.is_initializable() {
        return Ok(table);
    }
    let (container, name) = signature.access.names(ctx)?;
    Err(Status::invalid_argument(format!(
        "Table {container} {name} is not initializable"
    )))
}

fn initialize(b: &KernelBuilder<'_>) -> Result<Built> {
    let signature = Signature::new(b, TABLE_TYPE);
    Built::costly(move |ctx| {
        let table = initializable(&signature, ctx)?;
        signature.check(&[table.key_dtype, table.value_dtype], &[])?;
        let (keys, values) = (ctx.input(1)?, ctx.input(2)?);
        for (tensor, name) in [(keys, "Keys"), (values, "Values")] {
            if tensor.rank() != 1 {
                return Err(Status::invalid_argument(format!(
                    "{name} must be a vector, but received shape{}",
                    tensor.shape()
                )));
            }
        }
        let (n, m) = (keys.num_elements(), values.num_elements());
        if n != m {
            return Err(Status::invalid_argument(format!(
                "Keys and values must have the same size {n} vs {m}"
            )));
        }
        changed(ctx, &table, keys, values, || {
            table.initialize_with(keys, values)
        })
    })
}

fn initialize_from_file(b: &KernelBuilder<'_>) -> Result<Built> {
    let signature = Signature::new(b, TABLE_TYPE);
    let attrs = b.attrs();
    let &[delimiter] = attrs.bytes("delimiter")?.as_ref() else {
        return Err(Status::invalid_argument("delimiter should be only 1 char"));
    };
    let spec = Spec {
        key_index: attrs.int("key_index")?,
        value_index: attrs.int("value_index")?,
        vocab_size: attrs.int("vocab_size")?,
        delimiter,
        offset: attrs.int("offset")?,
    };
    Built::costly(move |ctx| {
        let table = initializable(&signature, ctx)?;
        let name = ctx.input(1)?;
        let path = match (name.rank(), name.as_strings()?) {
            (0, [path]) if path.is_empty() => {
                return Err(Status::invalid_argument("filename cannot be empty."));
            }
            (0, [path]) => crate::io::path(path)?,
            _ => {
                return Err(Status::invalid_argument(format!(
                    "filename should be a single string, but got {}",
                    name.shape()
                )));
            }
        };
        let read = || text_file::initialize(&table, ctx.device(), path, &spec);
        let refused = |e| ctx.device().exhausted("OOM when reading a table", &e);
        table.change(0, read).map_err(refused)?
    })
}

fn find(b: &KernelBuilder<'_>) -> Result<Built> {
    let signature = Signature::new(b, TABLE_TYPE);
    Built::costly(move |ctx| {
        let table = signature.access.of_ctx::<Table>(ctx)?;
        signature.check(&[table.key_dtype, table.value_dtype], &[table.value_dtype])?;
        let found = table.find(ctx.input(1)?, ctx.input(2)?)?;
        ctx.set_output(0, found);
        Ok(())
    })
}

#[derive(Clone, Copy)]
enum Put {
    Insert,
    Import,
}

fn put(b: &KernelBuilder<'_>, how: Put) -> Result<Built> {
    let signature = Signature::new(b, TABLE_TYPE);
    Built::costly(move |ctx| {
        let table = signature.access.of_ctx::<Table>(ctx)?;
        signature.check(&[table.key_dtype, table.value_dtype], &[])?;
        let (keys, values) = (ctx.input(1)?, ctx.input(2)?);
        // What a tensor may hold, or the table could never be exported. Whether there is room is asked of the table's account.
        let device = ctx.device();
        let limit = |dtype, shape: &Shape| device.memory.check(dtype, shape, &device.name);
        changed(ctx, &table, keys, values, || match how {
            Put::Insert => table.insert(keys, values, &limit),
            Put::Import => table.import(keys, values, &limit),
        })
    })
}

/// Changes a table by these keys and values, if there is memory for them.
fn changed(
    ctx: &OpContext<'_>,
    table: &Table,
    keys: &Tensor,
    values: &Tensor,
    change: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let count = keys.num_elements();
    let text = |t: &Tensor| t.byte_len() + t.as_strings().map_or(0, size_of_val);
    let more = count * map::ENTRY + text(keys) + text(values);
    let changed = table.change(more, change);
    changed.map_err(|refused| {
        let what = format!("OOM when adding {count} keys to a table of {}", table.len());
        ctx.device().exhausted(&what, &refused)
    })?
}

fn remove(b: &KernelBuilder<'_>) -> Result<Built> {
    let signature = Signature::new(b, TABLE_TYPE);
    Built::costly(move |ctx| {
        let table = signature.access.of_ctx::<Table>(ctx)?;
        signature.check(&[table.key_dtype], &[])?;
        let keys = ctx.input(1)?;
        let refused = |e| ctx.device().exhausted("OOM when removing keys", &e);
        table.change(0, || table.remove(keys)).map_err(refused)?
    })
}

fn export(b: &KernelBuilder<'_>) -> Result<Built> {
    let signature = Signature::new(b, TABLE_TYPE);
    Built::costly(move |ctx| {
        let table = signature.access.of_ctx::<Table>(ctx)?;
        // TensorFlow aborts here.
        signature.check(&[], &[table.key_dtype, table.value_dtype])?;
        let (keys, values) = table.export()?;
        ctx.set_output(0, keys);
        ctx.set_output(1, values);
        Ok(())
    })
}
