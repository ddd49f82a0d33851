//! `InitializeTableFromDataset`: a table whose keys and values are the pairs of a dataset.

use super::batch::batch_elements;
use super::dataset::Dataset;
use super::task::run_op;
use crate::queue::shared_handle::Access;
use crate::table::{TABLE_TYPE, Table};
use downpour_graph::{Result, Status};
use downpour_runtime::{AsyncOp, Built, KernelBuilder, Registry};
use std::sync::Arc;

pub(super) fn register(r: &mut Registry) {
    r.add("InitializeTableFromDataset", initialize);
}

fn initialize(b: &KernelBuilder<'_>) -> Result<Built> {
    let access = Access::new(b, TABLE_TYPE);
    Built::waiting(move |op| {
        let (table, dataset) = match ready(&op, &access) {
            Ok(ready) => ready,
            Err(e) => return op.finish(Err(e)),
        };
        let device = op.env().device.clone();
        run_op(op, async move {
            let mut walk = dataset.start(&device, "LookupTable")?;
            let mut pairs = Vec::new();
            while let Some(pair) = walk.next().await? {
                pairs.push(pair);
            }
            match &batch_elements(&device, &pairs)?[..] {
                [keys, values] => table.initialize_with(keys, values)?,
                _ => table_is_empty()?,
            }
            Ok(vec![])
        });
    })
}

fn table_is_empty() -> Result<()> {
    Err(Status::invalid_argument(
        "keys and values cannot be empty tensors.",
    ))
}

fn ready(op: &AsyncOp, access: &Access) -> Result<(Arc<Table>, Dataset)> {
    let table: Arc<Table> = access.of_op(op)?;
    if !table.is_initializable() {
        return Err(Status::invalid_argument("the table is not initializable"));
    }
    let dataset = Dataset::from_tensor(op.input(1)?)?;
    let types = &dataset.spec().types[..];
    if types != [table.key_dtype, table.value_dtype] {
        return Err(Status::invalid_argument(format!(
            "a table of {} to {} cannot be filled from a dataset of {types:?}",
            table.key_dtype, table.value_dtype
        )));
    }
    Ok((table, dataset.clone()))
}
