//! Sequence examples into tensors. Every feature that is asked for gets a column: its encoded
//! values of all examples are found first, then decoded in one pass, then laid out as the dense,
//! sparse or ragged tensors that were asked for. Only dense feature lists, which are filled up to
//! the longest, can grow beyond the input: they are checked before they are made.

use super::config::{Dense, Ragged, Sparse, shape_after};
use super::values::{Values, splits};
use super::{invalid, shown};
use bytes::Bytes;
use downpour_formats::example::fast::{
    RowError, read_context, read_feature_list, read_sequence_example,
};
use downpour_graph::{Result, Status};
use downpour_runtime::Device;
use downpour_tensor::{DType, Shape, Tensor};
use std::collections::HashMap;

/// What is wanted of the context or of the feature lists. For feature lists, `variable` says
/// that a dense one may be missing, and `shape` is that of one row.
pub(super) struct Wanted {
    pub(super) dense: Vec<Dense>,
    pub(super) sparse: Vec<Sparse>,
    pub(super) ragged: Vec<Ragged>,
}

/// The examples, and the names by which errors call them.
pub(super) struct Examples<'a> {
    pub(super) serialized: &'a [Bytes],
    pub(super) names: &'a [Bytes],
    /// Whether there is a batch dimension.
    pub(super) batch: bool,
}

impl Examples<'_> {
    fn name(&self, i: usize) -> String {
        self.names
            .get(i)
            .map_or("<unknown>".into(), |name| shown(name))
    }

    fn len(&self) -> usize {
        self.serialized.len()
    }

    /// The number of examples as a leading dimension, if there is one.
    fn lead(&self) -> Vec<usize> {
        self.batch.then(|| self.len()).into_iter().collect()
    }
}

/// The tensors of the context or of the feature lists.
pub(super) struct Outputs {
    /// Indices, values and dense shape.
    pub(super) sparse: Vec<[Tensor; 3]>,
    pub(super) dense: Vec<Tensor>,
    /// Rows of each example; for feature lists only.
    pub(super) lengths: Vec<Tensor>,
    /// Values, inner and outer splits; context features have no outer ones.
    pub(super) ragged: Vec<[Tensor; 3]>,
}

/// Context features and feature lists of the examples.
pub(super) fn parse(
    device: &Device,
    examples: &Examples<'_>,
    context: &Wanted,
    lists: &Wanted,
) -> Result<(Outputs, Outputs)> {
    if !examples.names.is_empty() && examples.names.len() != examples.len() {
        return invalid("example_names must be empty or have the correct number of elements");
    }
    let mut context_columns = Columns::new(context, "Context", examples.len())?;
    for d in &context.dense {
        if d.default.num_elements() > 0 && !d.shape.admits(d.default.shape()) {
            return invalid(format!(
                "Default value for context feature {} has an incorrect shape: saw {} but expected {}",
                shown(&d.key),
                d.default.shape(),
                d.shape
            ));
        }
    }
    let mut list_columns = Columns::new(lists, "Sequence", examples.len())?;
    for (i, example) in examples.serialized.iter().enumerate() {
        let each = |is_list: bool, name, value| {
            if is_list {
                list_columns.found(i, name, value);
            } else {
                context_columns.found(i, name, value);
            }
        };
        if read_sequence_example(example, each).is_none() {
            return invalid(format!(
                "Invalid protocol message input, example id: {}",
                examples.name(i)
            ));
        }
    }
    for column in &mut context_columns.columns {
        column.read_context(examples)?;
    }
    for column in &mut list_columns.columns {
        column.read_lists(examples)?;
    }
    let context = context_outputs(device, examples, context, &context_columns)?;
    let lists = list_outputs(device, examples, lists, &list_columns)?;
    Ok((context, lists))
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Dense,
    Sparse,
    Ragged,
}

/// One feature over all examples.
struct Column<'a> {
    key: Bytes,
    dtype: DType,
    form: Form,
    /// The encoded value in each example that has one.
    encoded: Vec<Option<&'a [u8]>>,
    values: Values,
    /// Where the values of each row end; a context feature is one row of each example.
    row_ends: Vec<usize>,
    /// Where the rows of each example end.
    example_ends: Vec<usize>,
}

impl<'a> Column<'a> {
    fn read_context(&mut self, examples: &'a Examples<'_>) -> Result<()> {
        for (i, encoded) in self.encoded.iter().enumerate() {
            let data = encoded.unwrap_or_default();
            let kind = self.values.kind();
            let sink = &mut self.values.sink(&examples.serialized[i]);
            if read_context(data, kind, sink).is_none() {
                return invalid(format!(
                    "Name: {}, Context feature: {}.  Data types don't match. Expected type: {}",
                    examples.name(i),
                    shown(&self.key),
                    self.dtype
                ));
            }
            self.row_ends.push(self.values.len());
            self.example_ends.push(self.row_ends.len());
        }
        Ok(())
    }

    fn read_lists(&mut self, examples: &'a Examples<'_>) -> Result<()> {
        for (i, encoded) in self.encoded.iter().enumerate() {
            let data = encoded.unwrap_or_default();
            let first = self.row_ends.len();
            let row_ends = &mut self.row_ends;
            let kind = self.values.kind();
            let mut sink = self.values.sink(&examples.serialized[i]);
            let read = read_feature_list(data, kind, &mut sink, |sink| row_ends.push(sink.len()));
            read.map_err(|e| {
                let (name, key) = (examples.name(i), shown(&self.key));
                Status::invalid_argument(match e {
                    RowError::Malformed => {
                        format!("Error in sequence feature {key} in example {name}")
                    }
                    RowError::Kind => format!(
                        "Name: {name}, Feature list: {key}, Index: {}.  Data types don't match. Expected type: {}",
                        self.row_ends.len() - first,
                        self.dtype
                    ),
                })
            })?;
            self.example_ends.push(self.row_ends.len());
        }
        Ok(())
    }

    /// The rows of each example, as a range.
    fn rows(&self) -> impl Iterator<Item = std::ops::Range<usize>> + Clone {
        let starts = std::iter::once(0).chain(self.example_ends.iter().copied());
        starts.zip(&self.example_ends).map(|(a, b)| a..*b)
    }

    fn row_start(&self, row: usize) -> usize {
        match row.checked_sub(1) {
            Some(before) => self.row_ends[before],
            None => 0,
        }
    }

    fn row_length(&self, row: usize) -> usize {
        self.row_ends[row] - self.row_start(row)
    }

    /// Where the values of each example end.
    fn value_ends(&self) -> impl Iterator<Item = usize> + Clone {
        self.rows().map(|rows| self.row_start(rows.end))
    }

    /// Values of the example with the most.
    fn longest(&self) -> usize {
        let lengths = self
            .rows()
            .map(|rows| self.row_start(rows.end) - self.row_start(rows.start));
        lengths.max().unwrap_or(0)
    }
}

/// The columns of the context or of the feature lists, by name.
struct Columns<'a> {
    columns: Vec<Column<'a>>,
    index: HashMap<Bytes, usize>,
}

impl<'a> Columns<'a> {
    fn new(wanted: &Wanted, what: &str, examples: usize) -> Result<Columns<'a>> {
        let all = (wanted
            .sparse
            .iter()
            .map(|s| (&s.key, s.dtype, Form::Sparse)))
        .chain((wanted.ragged.iter()).map(|r| (&r.key, r.dtype, Form::Ragged)))
        .chain((wanted.dense.iter()).map(|d| (&d.key, d.dtype, Form::Dense)));
        let mut columns: Vec<Column<'a>> = Vec::new();
        let mut index = HashMap::new();
        for (key, dtype, form) in all {
            let Some(&known) = index.get(key) else {
                index.insert(key.clone(), columns.len());
                columns.push(Column {
                    key: key.clone(),
                    dtype,
                    form,
                    encoded: vec![None; examples],
                    values: Values::new(dtype)?,
                    row_ends: Vec::new(),
                    example_ends: Vec::new(),
                });
                continue;
            };
            let known: &Column<'_> = &columns[known];
            let clash = match (known.form, form) {
                (a, b) if a == b && known.dtype == dtype => continue,
                (_, Form::Ragged) => "ragged and sparse",
                _ => "dense and sparse",
            };
            return invalid(format!(
                "{what} feature {} cannot be both {clash}",
                shown(key)
            ));
        }
        Ok(Columns { columns, index })
    }

    /// Keeps a value if it was asked for; the last of its name counts.
    fn found(&mut self, example: usize, name: &[u8], value: &'a [u8]) {
        if let Some(&column) = self.index.get(name) {
            self.columns[column].encoded[example] = Some(value);
        }
    }

    fn get(&self, key: &Bytes) -> Result<&Column<'a>> {
        let column = self.index.get(key).and_then(|i| self.columns.get(*i));
        column.ok_or_else(|| Status::internal("a feature has no column"))
    }
}

fn check(device: &Device, dtype: DType, shape: &Shape) -> Result<()> {
    device.check_alloc(dtype, shape)
}

fn context_outputs(
    device: &Device,
    examples: &Examples<'_>,
    wanted: &Wanted,
    columns: &Columns<'_>,
) -> Result<Outputs> {
    let mut dense = Vec::with_capacity(wanted.dense.len());
    for d in &wanted.dense {
        dense.push(context_dense(device, examples, d, columns.get(&d.key)?)?);
    }
    let mut sparse = Vec::with_capacity(wanted.sparse.len());
    for s in &wanted.sparse {
        let column = columns.get(&s.key)?;
        let count = column.values.len();
        let rank = if examples.batch { 2 } else { 1 };
        check(device, DType::Int64, &Shape::from([count, rank]))?;
        let mut indices = Vec::with_capacity(count * rank);
        for (example, rows) in column.rows().enumerate() {
            for i in 0..column.row_length(rows.start) {
                indices.extend(examples.batch.then_some(example as i64));
                indices.push(i as i64);
            }
        }
        let mut shape: Vec<i64> = examples.lead().iter().map(|n| *n as i64).collect();
        shape.push(column.longest() as i64);
        sparse.push([
            Tensor::from_vec(indices, [count, rank])?,
            column.values.clone().vector()?,
            Tensor::vector(shape),
        ]);
    }
    let mut ragged = Vec::with_capacity(wanted.ragged.len());
    for r in &wanted.ragged {
        let column = columns.get(&r.key)?;
        let inner = match examples.batch {
            true => splits(r.splits, column.value_ends())?,
            false => Tensor::zeros(r.splits, Shape::scalar())?,
        };
        ragged.push([column.values.clone().vector()?, inner.clone(), inner]);
    }
    Ok(Outputs {
        sparse,
        dense,
        lengths: Vec::new(),
        ragged,
    })
}

fn context_dense(
    device: &Device,
    examples: &Examples<'_>,
    dense: &Dense,
    column: &Column<'_>,
) -> Result<Tensor> {
    let expected = column.longest().max(dense.default.num_elements());
    if expected != dense.stride {
        return invalid(format!(
            "Inconsistent max number of elements for feature {}: expected {}, but found {expected}",
            shown(&dense.key),
            dense.stride
        ));
    }
    let shape = shape_after(&examples.lead(), dense.shape.dims().unwrap_or_default())?;
    check(device, dense.dtype, &shape)?;
    // Where the feature is missing, its default stands in; the rest is there already.
    if column.encoded.iter().all(Option::is_some) {
        for i in 0..examples.len() {
            if column.row_length(i) != expected {
                return unexpected(examples, i);
            }
        }
        return column.values.clone().tensor(shape);
    }
    let mut values = Values::new(dense.dtype)?;
    for (i, encoded) in column.encoded.iter().enumerate() {
        if encoded.is_none() {
            if dense.default.num_elements() == 0 {
                return invalid(format!(
                    "Feature: {} (data type: {}) is required but could not be found.",
                    shown(&dense.key),
                    dense.dtype
                ));
            }
            values.extend(&dense.default)?;
        } else if column.row_length(i) != expected {
            return unexpected(examples, i);
        } else {
            values.copy(&column.values, column.row_start(i)..column.row_ends[i]);
        }
    }
    values.tensor(shape)
}

fn unexpected<T>(examples: &Examples<'_>, i: usize) -> Result<T> {
    invalid(format!(
        "Unexpected number of elements in example {}",
        examples.name(i)
    ))
}

fn list_outputs(
    device: &Device,
    examples: &Examples<'_>,
    wanted: &Wanted,
    columns: &Columns<'_>,
) -> Result<Outputs> {
    let (mut dense, mut lengths) = (Vec::new(), Vec::new());
    for d in &wanted.dense {
        let (values, rows) = list_dense(device, examples, d, columns.get(&d.key)?)?;
        dense.push(values);
        lengths.push(rows);
    }
    let mut sparse = Vec::with_capacity(wanted.sparse.len());
    for s in &wanted.sparse {
        sparse.push(list_sparse(device, examples, columns.get(&s.key)?)?);
    }
    let mut ragged = Vec::with_capacity(wanted.ragged.len());
    for r in &wanted.ragged {
        let column = columns.get(&r.key)?;
        let outer = match examples.batch {
            true => splits(r.splits, column.example_ends.iter().copied())?,
            false => Tensor::zeros(r.splits, Shape::scalar())?,
        };
        ragged.push([
            column.values.clone().vector()?,
            splits(r.splits, column.row_ends.iter().copied())?,
            outer,
        ]);
    }
    Ok(Outputs {
        sparse,
        dense,
        lengths,
        ragged,
    })
}

fn list_dense(
    device: &Device,
    examples: &Examples<'_>,
    dense: &Dense,
    column: &Column<'_>,
) -> Result<(Tensor, Tensor)> {
    let longest = column.longest();
    let row = shape_after(&[], dense.shape.dims().unwrap_or_default())?;
    if longest
        .checked_rem(dense.stride)
        .is_none_or(|rest| rest != 0)
    {
        let dims: String = row.iter().map(|d| format!(",{d}")).collect();
        return invalid(format!(
            "Feature list '{}' has an unexpected number of values.  Total values size: {longest} is not consistent with output shape: [?{dims}]",
            shown(&dense.key)
        ));
    }
    for (example, rows) in column.rows().enumerate() {
        if column.encoded[example].is_none() && !dense.variable {
            return invalid(format!(
                "Name: {}, Feature list '{}' is required but could not be found.  Did you mean to include it in feature_list_dense_missing_assumed_empty or feature_list_dense_defaults?",
                examples.name(example),
                shown(&dense.key)
            ));
        }
        for (index, r) in rows.enumerate() {
            let count = column.row_length(r);
            if count != dense.stride {
                return invalid(format!(
                    "Name: {}, Key: {}, Index: {index}.  Number of values != expected.  values size: {count} but output shape: {row}",
                    examples.name(example),
                    shown(&dense.key)
                ));
            }
        }
    }
    let mut lead = examples.lead();
    lead.push(longest / dense.stride);
    let shape = shape_after(&lead, dense.shape.dims().unwrap_or_default())?;
    check(device, dense.dtype, &shape)?;
    let values = column.values.padded(column.value_ends(), longest, None)?;
    let rows: Vec<i64> = column.rows().map(|rows| rows.len() as i64).collect();
    let rows = Tensor::from_vec(rows, Shape::from(examples.lead()))?;
    Ok((values.tensor(shape)?, rows))
}

fn list_sparse(
    device: &Device,
    examples: &Examples<'_>,
    column: &Column<'_>,
) -> Result<[Tensor; 3]> {
    let count = column.values.len();
    let rank = if examples.batch { 3 } else { 2 };
    check(device, DType::Int64, &Shape::from([count, rank]))?;
    let mut indices = Vec::with_capacity(count * rank);
    let (mut most_rows, mut most_columns) = (0, 0);
    for (example, rows) in column.rows().enumerate() {
        most_rows = most_rows.max(rows.len());
        for (row, r) in rows.enumerate() {
            let length = column.row_length(r);
            most_columns = most_columns.max(length);
            for i in 0..length {
                indices.extend(examples.batch.then_some(example as i64));
                indices.extend([row as i64, i as i64]);
            }
        }
    }
    let mut shape: Vec<i64> = examples.lead().iter().map(|n| *n as i64).collect();
    shape.extend([most_rows as i64, most_columns as i64]);
    Ok([
        Tensor::from_vec(indices, [count, rank])?,
        column.values.clone().vector()?,
        Tensor::vector(shape),
    ])
}
