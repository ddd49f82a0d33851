//! Examples into tensors, many at once or one alone. The examples of a batch are cut into parts
//! that are parsed side by side; each part gathers the values of every feature, and the parts are
//! then joined in order. Bytes of values never exceed a small multiple of the bytes of the
//! examples, except where rows are filled up to the longest: that is checked before it is made.

use super::config::{Config, Dense, Slot, shape_after};
use super::values::{Values, splits, type_of};
use super::{invalid, shown};
use bytes::Bytes;
use downpour_formats::example::FeatureKind;
use downpour_formats::example::fast::{RawFeature, read_example};
use downpour_graph::{Result, Status};
use downpour_runtime::{Device, parallel_for};
use downpour_tensor::{DType, Shape, Tensor};
use parking_lot::Mutex;

/// Bytes of examples that are worth another thread.
const WORTH_SPLITTING: usize = 64 << 10;

/// The tensors of a batch, in the order of the [`Config`].
pub(crate) struct Parsed {
    /// Indices, values and dense shape.
    pub(crate) sparse: Vec<[Tensor; 3]>,
    pub(crate) dense: Vec<Tensor>,
    /// Values and row splits.
    pub(crate) ragged: Vec<[Tensor; 2]>,
}

impl Parsed {
    /// The tensors in the order of the ops' outputs.
    pub(crate) fn outputs(self) -> Vec<Tensor> {
        let mut out = Vec::new();
        for i in 0..3 {
            out.extend(self.sparse.iter().map(|s| s[i].clone()));
        }
        out.extend(self.dense);
        for i in 0..2 {
            out.extend(self.ragged.iter().map(|r| r[i].clone()));
        }
        out
    }
}

/// Parses a vector of examples; `names` is empty or names each of them.
pub(crate) fn parse_batch(
    device: &Device,
    config: &Config,
    serialized: &[Bytes],
    names: &[Bytes],
) -> Result<Parsed> {
    let n = serialized.len();
    for d in config.dense.iter().filter(|d| !d.variable) {
        check(device, d.dtype, &dense_shape(d, Some(n), None)?)?;
    }
    let count = parts(serialized);
    let results: Vec<Mutex<Option<Result<Part>>>> = (0..count).map(|_| Mutex::default()).collect();
    let bytes: usize = serialized.iter().map(Bytes::len).sum();
    let grain = if bytes < WORTH_SPLITTING { count } else { 1 };
    parallel_for(count, grain, |range| {
        for i in range {
            let examples = n * i / count..n * (i + 1) / count;
            *results[i].lock() = Some(Part::parse(config, serialized, names, examples));
        }
    });
    let mut whole = Part::new(config)?;
    for result in results {
        match result.into_inner() {
            Some(part) => whole.append(part?),
            None => return Err(Status::internal("a part of the batch was not parsed")),
        }
    }
    whole.tensors(device, config, n)
}

/// In how many parts TensorFlow cuts these examples. The texts of some errors depend on it.
fn parts(serialized: &[Bytes]) -> usize {
    const PART: usize = 50_000;
    let (mut count, mut bytes) = (0, 0);
    for example in serialized {
        if bytes == 0 {
            count += 1;
        }
        bytes += example.len() + 1;
        if bytes > PART {
            bytes = 0;
        }
    }
    serialized.len().min(8).max(count.min(64))
}

fn check(device: &Device, dtype: DType, shape: &Shape) -> Result<()> {
    device.check_alloc(dtype, shape)
}

/// The shape of a dense output: examples, if there is a batch, rows, if there are as many as an
/// example has, and the known dimensions.
fn dense_shape(dense: &Dense, examples: Option<usize>, rows: Option<usize>) -> Result<Shape> {
    let lead: Vec<usize> = examples.into_iter().chain(rows).collect();
    shape_after(&lead, dense.shape.dims().unwrap_or_default())
}

/// The values of one feature over some examples, and where each example's end.
struct Column {
    values: Values,
    ends: Vec<usize>,
}

impl Column {
    fn new(dtype: DType) -> Result<Column> {
        Ok(Column {
            values: Values::new(dtype)?,
            ends: Vec::new(),
        })
    }

    fn end_example(&mut self) {
        self.ends.push(self.values.len());
    }

    fn append(&mut self, other: Column) {
        let start = self.values.len();
        self.values.append(other.values);
        self.ends.extend(other.ends.iter().map(|end| start + end));
    }

    /// Lengths of the examples.
    fn lengths(&self) -> impl Iterator<Item = usize> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        self.ends.iter().zip(starts).map(|(end, start)| end - start)
    }
}

/// What some consecutive examples gave.
struct Part {
    dense: Vec<Column>,
    sparse: Vec<Column>,
    ragged: Vec<Column>,
}

impl Part {
    fn new(config: &Config) -> Result<Part> {
        let columns = |types: &mut dyn Iterator<Item = DType>| -> Result<Vec<Column>> {
            types.map(Column::new).collect()
        };
        Ok(Part {
            sparse: columns(&mut config.sparse.iter().map(|s| s.dtype))?,
            dense: columns(&mut config.dense.iter().map(|d| d.dtype))?,
            ragged: columns(&mut config.ragged.iter().map(|r| r.dtype))?,
        })
    }

    fn append(&mut self, other: Part) {
        let pairs = (self.dense.iter_mut().zip(other.dense))
            .chain(self.sparse.iter_mut().zip(other.sparse))
            .chain(self.ragged.iter_mut().zip(other.ragged));
        pairs.for_each(|(a, b)| a.append(b));
    }

    fn parse(
        config: &Config,
        serialized: &[Bytes],
        names: &[Bytes],
        examples: std::ops::Range<usize>,
    ) -> Result<Part> {
        let mut part = Part::new(config)?;
        for index in examples {
            let name = names.get(index).map_or(&b"<unknown>"[..], |n| n);
            let place = Place::InBatch { name, index };
            part.example(config, &serialized[index], place)?;
        }
        Ok(part)
    }

    /// Adds the values of one example. Of features of the same name the last counts, so they are
    /// taken from the end.
    fn example(&mut self, config: &Config, example: &Bytes, place: Place<'_>) -> Result<()> {
        let Some(entries) = read_example(example) else {
            return invalid(format!(
                "Could not parse example input, value: '{}'",
                shown(example)
            ));
        };
        let mut seen = Seen::new(config);
        for (key, feature) in entries.into_iter().rev() {
            let Some(slot) = config.find(key) else {
                continue;
            };
            let Ok(kind) = feature.kind() else {
                return invalid("Unsupported datatype.");
            };
            // A feature without a list counts as missing, except that among sparse features of a
            // batch it hides earlier ones of its name.
            let hides = !matches!(slot, Slot::Dense(_)) && matches!(place, Place::InBatch { .. });
            if (kind.is_none() && !hides) || seen.mark(slot) {
                continue;
            }
            let given = kind.map(type_of);
            let feature = Given {
                key,
                dtype: given,
                feature,
                example,
                place,
            };
            match slot {
                Slot::Dense(d) => feature.dense(&config.dense[d], &mut self.dense[d])?,
                Slot::Sparse(d) => {
                    feature.list(config.sparse[d].dtype, &mut self.sparse[d])?;
                }
                Slot::Ragged(d) => {
                    feature.list(config.ragged[d].dtype, &mut self.ragged[d])?;
                }
            }
        }
        for (d, column) in self.dense.iter_mut().enumerate() {
            let dense = &config.dense[d];
            if !seen.dense[d] && !dense.variable {
                if dense.default.num_elements() == 0 {
                    return Err(place.missing(dense));
                }
                column.values.extend(&dense.default)?;
            }
        }
        let columns = (self.dense.iter_mut())
            .chain(&mut self.sparse)
            .chain(&mut self.ragged);
        columns.for_each(Column::end_example);
        Ok(())
    }

    /// The tensors of `n` examples.
    fn tensors(self, device: &Device, config: &Config, n: usize) -> Result<Parsed> {
        let mut dense = Vec::with_capacity(self.dense.len());
        for (d, column) in config.dense.iter().zip(self.dense) {
            dense.push(if d.variable {
                let longest = column.lengths().max().unwrap_or(0);
                let shape = dense_shape(d, Some(n), Some(rows(d, longest)))?;
                check(device, d.dtype, &shape)?;
                let ends = column.ends.iter().copied();
                let padded = column.values.padded(ends, longest, Some(&d.default))?;
                padded.tensor(shape)?
            } else {
                column.values.tensor(dense_shape(d, Some(n), None)?)?
            });
        }
        let mut sparse = Vec::with_capacity(self.sparse.len());
        for column in self.sparse {
            let (count, longest) = (column.values.len(), column.lengths().max().unwrap_or(0));
            check(device, DType::Int64, &Shape::from([count, 2]))?;
            let mut indices = Vec::with_capacity(count * 2);
            for (example, length) in column.lengths().enumerate() {
                indices.extend((0..length).flat_map(|i| [example as i64, i as i64]));
            }
            sparse.push([
                Tensor::from_vec(indices, [count, 2])?,
                column.values.vector()?,
                Tensor::vector(vec![n as i64, longest as i64]),
            ]);
        }
        let mut ragged = Vec::with_capacity(self.ragged.len());
        for (r, column) in config.ragged.iter().zip(self.ragged) {
            let splits = splits(r.splits, column.ends.iter().copied())?;
            ragged.push([column.values.vector()?, splits]);
        }
        Ok(Parsed {
            sparse,
            dense,
            ragged,
        })
    }
}

/// Rows of a variable feature with so many values.
fn rows(dense: &Dense, values: usize) -> usize {
    values.checked_div(dense.stride).unwrap_or(0)
}

/// Which features an example has shown.
struct Seen {
    dense: Vec<bool>,
    sparse: Vec<bool>,
    ragged: Vec<bool>,
}

impl Seen {
    fn new(config: &Config) -> Seen {
        Seen {
            dense: vec![false; config.dense.len()],
            sparse: vec![false; config.sparse.len()],
            ragged: vec![false; config.ragged.len()],
        }
    }

    /// Marks a feature, and says whether it was seen before.
    fn mark(&mut self, slot: Slot) -> bool {
        let flag = match slot {
            Slot::Dense(d) => &mut self.dense[d],
            Slot::Sparse(d) => &mut self.sparse[d],
            Slot::Ragged(d) => &mut self.ragged[d],
        };
        std::mem::replace(flag, true)
    }
}

/// Where an example stands, for errors.
#[derive(Clone, Copy)]
enum Place<'a> {
    InBatch { name: &'a [u8], index: usize },
    Alone,
}

impl Place<'_> {
    fn error(self, key: &[u8], text: &str) -> Status {
        let key = shown(key);
        Status::invalid_argument(match self {
            Place::InBatch { name, index } => {
                format!("Name: {}, Key: {key}, Index: {index}.  {text}", shown(name))
            }
            Place::Alone => format!("Key: {key}.  {text}"),
        })
    }

    fn missing(self, dense: &Dense) -> Status {
        let name = match self {
            Place::InBatch { name, .. } => format!("Name: {}, ", shown(name)),
            Place::Alone => String::new(),
        };
        Status::invalid_argument(format!(
            "{name}Feature: {} (data type: {}) is required but could not be found.",
            shown(&dense.key),
            dense.dtype
        ))
    }
}

/// What is wrong with a list.
#[derive(Clone, Copy)]
enum Why {
    Failed,
    Uncounted,
    Count,
}

/// What errors call values of this type.
fn noun(dtype: DType) -> &'static str {
    match dtype {
        DType::String => "bytes",
        other => other.name(),
    }
}

/// A feature of an example that was asked for.
#[derive(Clone, Copy)]
struct Given<'a> {
    key: &'a [u8],
    /// The type of its values, if it has a list at all.
    dtype: Option<DType>,
    feature: RawFeature<'a>,
    example: &'a Bytes,
    place: Place<'a>,
}

impl Given<'_> {
    fn error(&self, text: &str) -> Status {
        self.place.error(self.key, text)
    }

    /// The list is malformed, or has not the values it should have. A single example is told
    /// which list and why.
    fn unparsed(&self, kind: FeatureKind, why: Why) -> Status {
        let list = match kind {
            FeatureKind::Bytes => "bytes_list",
            FeatureKind::Float => "float_list",
            FeatureKind::Int64 => "int64_list",
        };
        self.error(&match (self.place, why) {
            (Place::InBatch { .. }, _) => "Can't parse serialized Example.".to_owned(),
            (_, Why::Failed) => format!("Can't parse serialized Example: Parsing {list} failed."),
            (_, Why::Uncounted) => {
                format!("Can't parse serialized Example: Could not get num elements in {list}.")
            }
            (_, Why::Count) => {
                format!("Can't parse serialized Example: Some {list} slice was not parsed.")
            }
        })
    }

    /// Appends the values and says how many they are.
    fn read(&self, values: &mut Values, malformed: Why) -> Result<usize> {
        let before = values.len();
        let kind = values.kind();
        match self.feature.read(kind, &mut values.sink(self.example)) {
            Some(()) => Ok(values.len() - before),
            None => Err(self.unparsed(kind, malformed)),
        }
    }

    fn dense(&self, dense: &Dense, column: &mut Column) -> Result<()> {
        if let Some(given) = self.dtype.filter(|t| *t != dense.dtype) {
            return Err(self.error(&format!(
                "Data types don't match. Data type: {given} but expected type: {}",
                dense.dtype
            )));
        }
        if dense.variable {
            return self.dense_rows(dense, column);
        }
        let count = self.read(&mut column.values, Why::Failed)?;
        if count == dense.stride {
            return Ok(());
        }
        let kind = column.values.kind();
        // Too many strings are noticed while they are read.
        if kind == FeatureKind::Bytes && count > dense.stride {
            return Err(self.unparsed(kind, Why::Failed));
        }
        Err(match self.place {
            Place::Alone => self.unparsed(kind, Why::Count),
            Place::InBatch { .. } => self.error(&format!(
                "Number of {} values != expected.  Values size: {count} but output shape: {}",
                noun(dense.dtype),
                dense.shape
            )),
        })
    }

    /// A dense feature with as many rows as the example has.
    fn dense_rows(&self, dense: &Dense, column: &mut Column) -> Result<()> {
        let why = self.why_list(&column.values);
        let count = self.read(&mut column.values, why)?;
        // TensorFlow counts what the examples before it in the same part had, too.
        let total = column.values.len();
        if total.checked_rem(dense.stride) == Some(0) {
            return Ok(());
        }
        Err(match self.place {
            Place::Alone => Status::invalid_argument(format!(
                "Error while parsing feature with key {}: number of elements should be divisible by {}, found {count} instead",
                shown(self.key),
                dense.stride
            )),
            Place::InBatch { .. } => self.error(&format!(
                "Number of {} values is not a multiple of stride length. Saw {total} values but output shape is: {}",
                noun(dense.dtype),
                dense.shape
            )),
        })
    }

    /// Strings of unknown number are counted before they are read.
    fn why_list(&self, values: &Values) -> Why {
        match values.kind() {
            FeatureKind::Bytes => Why::Uncounted,
            _ => Why::Failed,
        }
    }

    fn list(&self, expected: DType, column: &mut Column) -> Result<()> {
        match self.dtype {
            None => Ok(()),
            Some(given) if given != expected => Err(self.error(&format!(
                "Data types don't match. Expected type: {expected}, Actual type: {given}"
            ))),
            Some(_) => {
                let why = self.why_list(&column.values);
                self.read(&mut column.values, why).map(drop)
            }
        }
    }
}

/// Parses one example that stands alone: its tensors have no batch dimension.
pub(crate) fn parse_single(device: &Device, config: &Config, example: &Bytes) -> Result<Parsed> {
    for d in config.dense.iter().filter(|d| !d.variable) {
        check(device, d.dtype, &dense_shape(d, None, None)?)?;
    }
    let mut part = Part::new(config)?;
    part.example(config, example, Place::Alone)?;
    let mut dense = Vec::with_capacity(config.dense.len());
    for (d, column) in config.dense.iter().zip(part.dense) {
        let lead = d.variable.then(|| rows(d, column.values.len()));
        dense.push(column.values.tensor(dense_shape(d, None, lead)?)?);
    }
    let mut sparse = Vec::with_capacity(config.sparse.len());
    for column in part.sparse {
        let n = column.values.len();
        sparse.push([
            Tensor::from_vec((0..n as i64).collect(), [n, 1])?,
            column.values.vector()?,
            Tensor::vector(vec![n as i64]),
        ]);
    }
    let mut ragged = Vec::with_capacity(config.ragged.len());
    for (r, column) in config.ragged.iter().zip(part.ragged) {
        ragged.push([
            column.values.vector()?,
            Tensor::zeros(r.splits, Shape::from([0]))?,
        ]);
    }
    Ok(Parsed {
        sparse,
        dense,
        ragged,
    })
}
