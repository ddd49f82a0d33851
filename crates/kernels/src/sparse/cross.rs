//! Crosses of features: `SparseCross`, `SparseCrossV2`, `SparseCrossHashed`. Row by row, one
//! feature is taken from each input in every combination; hashes are stored in models and can
//! never change.

use super::form::{Places, invalid, shown, vector};
use crate::strings::hash::{fingerprint64, sip_hash};
use bytes::Bytes;
use downpour_graph::{Attrs, Result};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add("SparseCross", cross);
    r.add("SparseCrossV2", |b| {
        let n = Counts::parse(b.attrs())?;
        Built::cheap(move |ctx| {
            let sep = ctx.input(ctx.num_inputs() - 1)?;
            let sep = match sep.as_strings()? {
                [sep] => sep.clone(),
                _ => {
                    return invalid(format!(
                        "Input separator should be a scalar. Received: {}",
                        shown(sep)
                    ));
                }
            };
            let columns = columns(ctx, n, 1)?;
            check_room(ctx, &columns)?;
            let out = outputs(&columns, words(&columns, &sep)?)?;
            emit(ctx, out);
            Ok(())
        })
    });
    r.add("SparseCrossHashed", |b| {
        let n = Counts::parse(b.attrs())?;
        Built::cheap(move |ctx| hashed(ctx, n))
    });
}

/// The features of one input, row by row.
pub(super) struct Column<'a> {
    pub(super) values: Values<'a>,
    pub(super) is_dense: bool,
    /// Where each row starts, and the end.
    pub(super) starts: Vec<usize>,
}

#[derive(Clone, Copy)]
pub(super) enum Values<'a> {
    Ints(&'a [i64]),
    Strings(&'a [Bytes]),
}

impl<'a> Values<'a> {
    pub(super) fn of(t: &'a Tensor) -> Result<Values<'a>> {
        Ok(match t.dtype() {
            DType::String => Values::Strings(t.as_strings()?),
            _ => Values::Ints(t.as_slice()?),
        })
    }
}

impl Column<'_> {
    fn text(&self, i: usize, out: &mut Vec<u8>) {
        match self.values {
            Values::Ints(v) => out.extend_from_slice(v[i].to_string().as_bytes()),
            Values::Strings(v) => out.extend_from_slice(&v[i]),
        }
    }
}

/// All inputs but the last `more` as columns of one batch.
fn columns<'a>(ctx: &'a OpContext<'_>, n: Counts, more: usize) -> Result<Vec<Column<'a>>> {
    let Counts { n, values } = n;
    let dense = ctx.inputs(2 * n + values..ctx.num_inputs() - more)?;
    let (indices, shapes) = (ctx.inputs(0..n)?, ctx.inputs(n + values..2 * n + values)?);
    let values = ctx.inputs(n..n + values)?;
    check(&indices, &values, &shapes, &dense)?;
    let mut out = Vec::with_capacity(n + dense.len());
    let batch = match (shapes.first(), dense.first()) {
        (Some(shape), _) => shape.as_slice::<i64>()?[0],
        (None, Some(t)) => t.dims()[0] as i64,
        (None, None) => 0,
    };
    ctx.check_alloc(DType::Int64, &crate::args::shape_of(&[batch])?)?;
    let rows = batch as usize;
    for (t, v) in indices.iter().zip(&values) {
        out.push(Column {
            values: Values::of(v)?,
            is_dense: false,
            starts: row_starts(&Places::new(t)?, rows, v.num_elements()),
        });
    }
    for t in dense {
        let width = t.dims()[1];
        out.push(Column {
            values: Values::of(t)?,
            is_dense: true,
            starts: (0..=rows).map(|r| r * width).collect(),
        });
    }
    Ok(out)
}

/// Where the features of each row start among places that are sorted, of which the first `count` have a value.
pub(super) fn row_starts(places: &Places<'_>, rows: usize, count: usize) -> Vec<usize> {
    let count = places.count.min(count);
    let mut next = 0;
    let mut starts = Vec::with_capacity(rows + 1);
    for row in 0..=rows as i64 {
        // What is outside the batch belongs to no row.
        while next < count && places.row(next)[0] < row {
            next += 1;
        }
        starts.push(next);
    }
    starts
}

/// Sparse inputs: how many are counted, and how many are typed. Nothing but [`check`] says that these
/// agree.
#[derive(Clone, Copy)]
struct Counts {
    n: usize,
    values: usize,
}

impl Counts {
    fn parse(attrs: &Attrs) -> Result<Counts> {
        Ok(Counts {
            n: attrs.size("N")?,
            values: attrs.dtypes("sparse_types")?.len(),
        })
    }
}

fn check(
    indices: &[&Tensor],
    values: &[&Tensor],
    shapes: &[&Tensor],
    dense: &[&Tensor],
) -> Result<()> {
    for (i, at) in indices.iter().enumerate() {
        if at.rank() != 2 {
            return invalid(format!(
                "Input indices should be a matrix but received shape {} at position {i}",
                at.shape()
            ));
        }
        if at.dims()[1] != 2 {
            return invalid(format!(
                "Expected D2 of index to be 2 got {} at position {i}",
                at.dims()[1]
            ));
        }
    }
    if indices.len() != values.len() {
        return invalid(format!(
            "Expected {} input values, got {}",
            indices.len(),
            values.len()
        ));
    }
    for (i, (at, v)) in indices.iter().zip(values).enumerate() {
        if v.rank() != 1 {
            return invalid(format!(
                "Input values should be a vector but received shape {} at position {i}",
                v.shape()
            ));
        }
        if v.num_elements() != at.dims()[0] {
            return invalid(format!(
                "Expected size of values to be {} got {} at position {i}",
                at.dims()[0],
                v.num_elements()
            ));
        }
    }
    let mut batch = None;
    for (i, shape) in shapes.iter().enumerate() {
        if shape.rank() != 1 {
            return invalid(format!(
                "Input shapes should be a vector but received shape {} at position {i}",
                shape.shape()
            ));
        }
        if shape.num_elements() != 2 {
            return invalid(format!(
                "shape should imply a 2D tensor, but got {} at position {i}",
                shape.shape()
            ));
        }
        let rows = shape.as_slice::<i64>()?[0];
        let expected = *batch.get_or_insert(rows);
        if rows != expected {
            return invalid(format!(
                "Expected batch size {expected} got {rows} at position {i}"
            ));
        }
    }
    for (i, t) in dense.iter().enumerate() {
        if t.rank() != 2 {
            return invalid(format!(
                "Dense inputs should be a matrix but received shape {} at position {i}",
                t.shape()
            ));
        }
        let rows = t.dims()[0] as i64;
        let expected = *batch.get_or_insert(rows);
        if rows != expected {
            return invalid(format!(
                "Expected batch size {expected} got {rows} at dense tensor {i}"
            ));
        }
    }
    Ok(())
}

/// Calls `each(combination)` for every combination of features of every row, the last input's
/// feature changing fastest. Stops where `each` fails.
fn combinations(
    columns: &[Column<'_>],
    mut each: impl FnMut(&[usize]) -> Result<()>,
) -> Result<()> {
    let rows = columns.first().map_or(0, |c| c.starts.len() - 1);
    for row in 0..rows {
        let ranges: Vec<_> = columns
            .iter()
            .map(|c| c.starts[row]..c.starts[row + 1])
            .collect();
        if ranges.iter().any(std::ops::Range::is_empty) {
            continue;
        }
        let mut at: Vec<usize> = ranges.iter().map(|r| r.start).collect();
        'row: loop {
            each(&at)?;
            for d in (0..at.len()).rev() {
                at[d] += 1;
                if at[d] < ranges[d].end {
                    continue 'row;
                }
                at[d] = ranges[d].start;
            }
            break;
        }
    }
    Ok(())
}

/// How many combinations each row has.
pub(super) fn counts(columns: &[Column<'_>]) -> Vec<usize> {
    let rows = columns.first().map_or(0, |c| c.starts.len() - 1);
    let count = |row: usize| {
        columns.iter().fold(1usize, |n, c| {
            n.saturating_mul(c.starts[row + 1] - c.starts[row])
        })
    };
    (0..rows).map(count).collect()
}

pub(super) enum Crossed {
    Words(Vec<Bytes>),
    Hashes(Vec<i64>),
}

pub(super) fn words(columns: &[Column<'_>], sep: &[u8]) -> Result<Crossed> {
    let mut out = Vec::new();
    combinations(columns, |at| {
        let mut word = Vec::new();
        for (i, (column, &feature)) in columns.iter().zip(at).enumerate() {
            if i > 0 {
                word.extend_from_slice(sep);
            }
            column.text(feature, &mut word);
        }
        out.push(word.into());
        Ok(())
    })?;
    Ok(Crossed::Words(out))
}

/// Hashes of all combinations of features; `first` is what a chain starts with, if not with its
/// first feature.
pub(super) fn hashes(
    columns: &[Column<'_>],
    first: Option<u64>,
    buckets: i64,
    feature: impl Fn(&Column<'_>, usize) -> u64,
) -> Result<Crossed> {
    let modulus = if buckets > 0 { buckets } else { i64::MAX } as u64;
    let mut out = Vec::new();
    combinations(columns, |at| {
        let features = columns.iter().zip(at).map(|(c, &i)| feature(c, i));
        let chain = first.into_iter().chain(features).reduce(fingerprint_cat);
        out.push((chain.unwrap_or(0) % modulus) as i64);
        Ok(())
    })?;
    Ok(Crossed::Hashes(out))
}

/// What stands for a feature in a chain: a number itself, a string's fingerprint.
pub(super) fn feature_hash(column: &Column<'_>, i: usize) -> u64 {
    match column.values {
        Values::Ints(v) => v[i] as u64,
        Values::Strings(v) => fingerprint64(&v[i]),
    }
}

/// TensorFlow's `FingerprintCat64`.
fn fingerprint_cat(a: u64, b: u64) -> u64 {
    const MUL: u64 = 0xc6a4_a793_5bd1_e995;
    let mix = |v: u64| v ^ (v >> 47);
    let joined = (a ^ MUL) ^ mix(b.wrapping_mul(MUL)).wrapping_mul(MUL);
    mix(mix(joined.wrapping_mul(MUL)).wrapping_mul(MUL))
}

fn cross(b: &KernelBuilder<'_>) -> Result<Built> {
    let n = Counts::parse(b.attrs())?;
    let internal = b.attrs().dtype("internal_type")?;
    let to_hash = b.attrs().bool("hashed_output")?;
    let buckets = b.attrs().int("num_buckets")?;
    let key = b.attrs().int("hash_key")? as u64;
    Built::cheap(move |ctx| {
        if internal == DType::String {
            let Counts { n, values } = n;
            let dense = 2 * n + values..ctx.num_inputs();
            for t in ctx
                .inputs(n..n + values)?
                .into_iter()
                .chain(ctx.inputs(dense)?)
            {
                if t.dtype() != internal {
                    return invalid(format!(
                        "Input values should be of internal type {} but received {}",
                        internal.number(),
                        t.dtype().number()
                    ));
                }
            }
        }
        let columns = columns(ctx, n, 0)?;
        check_room(ctx, &columns)?;
        let made = if to_hash {
            hashes(&columns, Some(key), buckets, feature_hash)?
        } else {
            words(&columns, b"_X_")?
        };
        let out = outputs(&columns, made)?;
        emit(ctx, out);
        Ok(())
    })
}

fn hashed(ctx: &mut OpContext<'_>, n: Counts) -> Result<()> {
    let last = ctx.num_inputs();
    let columns = columns(ctx, n, 3)?;
    let buckets = ctx.input(last - 3)?.scalar_value::<i64>()?;
    let strong = ctx.input(last - 2)?.scalar_value::<bool>()?;
    let salt = ctx.input(last - 1)?;
    let &[key0, key1] = salt.as_slice::<i64>()? else {
        return invalid(format!(
            "Input \"salt\" must have length 2 but has length {}",
            salt.num_elements()
        ));
    };
    check_room(ctx, &columns)?;
    let hash = |bytes: &[u8]| match strong {
        true => sip_hash(key0 as u64, key1 as u64, bytes),
        false => fingerprint64(bytes),
    };
    let made = hashes(&columns, None, buckets, |column, i| match column.values {
        // TensorFlow hashes the lower half of a number only, and not at all if it is dense;
        // models are trained on that.
        Values::Ints(v) if column.is_dense && !strong => v[i] as u64,
        Values::Ints(v) => hash(&v[i].to_le_bytes()[..4]),
        Values::Strings(v) => hash(&v[i]),
    })?;
    let out = outputs(&columns, made)?;
    emit(ctx, out);
    Ok(())
}

/// Refuses more combinations than there is memory for.
pub(super) fn check_room(ctx: &OpContext<'_>, columns: &[Column<'_>]) -> Result<()> {
    let total = counts(columns)
        .into_iter()
        .fold(0usize, usize::saturating_add);
    ctx.check_alloc(DType::String, &Shape::from([total, 2]))
}

/// Places, values and shape of the result.
fn outputs(columns: &[Column<'_>], out: Crossed) -> Result<[Tensor; 3]> {
    let counts = counts(columns);
    let rows = counts.iter().enumerate();
    let at: Vec<i64> = rows
        .flat_map(|(row, n)| (0..*n).flat_map(move |i| [row as i64, i as i64]))
        .collect();
    let widest = counts.iter().copied().max().unwrap_or(0);
    let total = at.len() / 2;
    let values = match out {
        Crossed::Words(words) => Tensor::strings(words, [total])?,
        Crossed::Hashes(hashes) => Tensor::from_vec(hashes, [total])?,
    };
    let shape = vector(&[counts.len() as i64, widest as i64]);
    Ok([Tensor::from_vec(at, [total, 2])?, values, shape])
}

fn emit(ctx: &mut OpContext<'_>, out: [Tensor; 3]) {
    for (i, t) in out.into_iter().enumerate() {
        ctx.set_output(i, t);
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_graph::AttrValue;
    use downpour_tensor::{DType, Tensor};

    fn inputs() -> Vec<Tensor> {
        let at = |v: Vec<i64>| Tensor::from_vec(v, [3, 2]).unwrap();
        let shape = Tensor::vector(vec![2i64, 2]);
        let words = ["a", "b", "c"].map(|s| s.into()).to_vec();
        vec![
            at(vec![0, 0, 0, 1, 1, 0]),
            at(vec![0, 0, 1, 0, 1, 1]),
            Tensor::strings(words, [3]).unwrap(),
            Tensor::vector(vec![11i64, 22, 33]),
            shape.clone(),
            shape,
        ]
    }

    fn attrs() -> Vec<(&'static str, AttrValue)> {
        vec![
            ("N", 2i64.into()),
            (
                "sparse_types",
                AttrValue::List(downpour_graph::AttrList::Type(vec![
                    DType::String,
                    DType::Int64,
                ])),
            ),
            (
                "dense_types",
                AttrValue::List(downpour_graph::AttrList::Type(Vec::new())),
            ),
        ]
    }

    #[test]
    fn every_combination_of_a_row_is_made() {
        let mut inputs = inputs();
        inputs.push(Tensor::string("_"));
        let out = run_op("SparseCrossV2", inputs, &attrs()).unwrap();
        assert_eq!(
            out[1].as_strings().unwrap(),
            ["a_11", "b_11", "c_22", "c_33"]
        );
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [0, 0, 0, 1, 1, 0, 1, 1]);
        assert_eq!(out[2].as_slice::<i64>().unwrap(), [2, 2]);
    }

    #[test]
    fn chained_fingerprints_are_tensorflows() {
        let mut h = 956_888_297_470;
        for v in [1, 11] {
            h = super::fingerprint_cat(h, v);
        }
        assert_eq!(h % i64::MAX as u64, 1_695_445_607_852_559_331);
    }
}
