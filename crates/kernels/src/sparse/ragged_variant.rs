//! Ragged tensors as variants, which is how they travel through loops and datasets:
//! `RaggedTensorToVariant`, `RaggedTensorFromVariant` and the gradient of the first.

use super::form::shown;
use crate::args::{int_tensor, ints, shape_of};
use crate::array::units::{Unit, with_unit};
use crate::types::INDEX;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Encoded, Shape, Tensor, Variant, VariantValue};
use std::any::Any;

pub(crate) fn register(r: &mut Registry) {
    let types = &[("Tsplits", INDEX)];
    r.add_typed("RaggedTensorToVariant", types, |b| {
        let batched = b.attrs().bool("batched_input")?;
        Built::cheap(move |ctx| to_variant(ctx, batched))
    });
    r.add_typed("RaggedTensorFromVariant", types, from_variant);
    r.add_typed("RaggedTensorToVariantGradient", types, |b| {
        let dtype = b.attrs().dtype("Tvalues")?;
        Built::cheap(move |ctx| gradient(ctx, dtype))
    });
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// A ragged tensor: its row splits from the outermost in, and its values.
#[derive(Clone, Debug)]
pub(crate) struct Ragged {
    pub(crate) splits: Vec<Tensor>,
    pub(crate) values: Tensor,
}

impl VariantValue for Ragged {
    fn type_name(&self) -> &str {
        "RaggedTensorVariant"
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
    fn encoded(&self) -> Option<Encoded> {
        let mut tensors = self.splits.clone();
        tensors.push(self.values.clone());
        Some(Encoded {
            type_name: self.type_name().to_owned(),
            metadata: Bytes::new(),
            tensors,
        })
    }
}

impl Ragged {
    /// A ragged tensor that another task sent.
    pub(crate) fn decoded(encoded: &Encoded) -> Option<Ragged> {
        let (values, splits) = encoded.tensors.split_last()?;
        let is_split = |t: &Tensor| t.rank() == 1 && INDEX.contains(&t.dtype());
        splits.iter().all(is_split).then(|| Ragged {
            splits: splits.to_vec(),
            values: values.clone(),
        })
    }
}

fn to_variant(ctx: &mut OpContext<'_>, batched: bool) -> Result<()> {
    let rank = ctx.num_inputs() - 1;
    let mut splits = Vec::with_capacity(rank);
    for i in 0..rank {
        splits.push(ctx.take(i)?);
    }
    let ragged = Ragged {
        splits,
        values: ctx.take(rank)?,
    };
    verify(&ragged)?;
    if !batched {
        ctx.set_output(0, Tensor::variant(Variant::new(ragged)));
        return Ok(());
    }
    let parts = unbatch(&ragged)?;
    let n = parts.len();
    let parts = parts.into_iter().map(Variant::new).collect();
    ctx.set_output(0, Tensor::variants(parts, [n])?);
    Ok(())
}

/// Refuses splits that do not divide what is below them, the innermost first.
fn verify(ragged: &Ragged) -> Result<()> {
    let mut below = ragged.values.dims().first().map(|&n| n as i64);
    for splits in ragged.splits.iter().rev() {
        let bad = |text: String| invalid(format!("Invalid ragged splits: {text}"));
        if splits.rank() != 1 {
            return bad(format!(
                "ragged splits must be rank 1 but is rank {}",
                splits.rank()
            ));
        }
        let values = ints(splits)?;
        let (Some(&first), Some(&last)) = (values.first(), values.last()) else {
            return bad("ragged splits must have at least one splits, but is empty".into());
        };
        if first != 0 {
            return bad(format!(
                "first element of ragged splits  must be 0 but is {first}"
            ));
        }
        if let Some(i) = (1..values.len()).find(|&i| values[i] < values[i - 1]) {
            return bad(format!(
                "ragged splits must be monotonically increasing, but ragged_splits[{i}]={} is smaller than row_splits[{}]={}",
                values[i],
                i - 1,
                values[i - 1]
            ));
        }
        if let Some(below) = below.filter(|&n| n != last) {
            return bad(format!(
                "last element of ragged splits must be the number of ragged values({below}) but is {last}"
            ));
        }
        below = Some(values.len() as i64 - 1);
    }
    Ok(())
}

/// The rows of the outermost dimension.
fn unbatch(ragged: &Ragged) -> Result<Vec<Ragged>> {
    let cut = |t: &Tensor, start: i64, end: i64| {
        let range = usize::try_from(start).ok().zip(usize::try_from(end).ok());
        range
            .and_then(|(start, end)| t.rows(start, end.checked_sub(start)?))
            .ok_or_else(|| Status::invalid_argument("Invalid split argument."))
    };
    let Some((first, inner)) = ragged.splits.split_first() else {
        let Some(&rows) = ragged.values.dims().first() else {
            return invalid("Can't unbatch rank-0 tensor.");
        };
        let rest = Shape::from(&ragged.values.dims()[1..]);
        let row = |i: usize| {
            let values = cut(&ragged.values, i as i64, i as i64 + 1)?;
            Ok(Ragged {
                splits: Vec::new(),
                values: values.reshaped(rest.clone())?,
            })
        };
        return (0..rows).map(row).collect();
    };
    let first = ints(first)?;
    if first.is_empty() {
        return Err(Status::internal("Invalid split argument."));
    }
    let inner: Vec<(DType, Vec<i64>)> = inner
        .iter()
        .map(|t| Ok((t.dtype(), ints(t)?)))
        .collect::<Result<_>>()?;
    let mut out = Vec::with_capacity(first.len() - 1);
    for row in first.windows(2) {
        let (mut start, mut end) = (row[0], row[1]);
        let mut splits = Vec::with_capacity(inner.len());
        for (dtype, all) in &inner {
            let part = usize::try_from(start)
                .ok()
                .zip(usize::try_from(end).ok())
                .and_then(|(start, end)| all.get(start..=end))
                .filter(|part| !part.is_empty());
            let Some(part) = part else {
                return invalid("Invalid split argument.");
            };
            (start, end) = (part[0], part[part.len() - 1]);
            let moved: Vec<i64> = part.iter().map(|v| v - start).collect();
            let n = moved.len();
            splits.push(int_tensor(*dtype, moved, [n])?);
        }
        out.push(Ragged {
            splits,
            values: cut(&ragged.values, start, end)?,
        });
    }
    Ok(out)
}

/// The ragged tensors in a tensor of variants.
fn parts(t: &Tensor, rank: Option<usize>, dtype: DType, splits: DType) -> Result<Vec<&Ragged>> {
    let mut out = Vec::with_capacity(t.num_elements());
    for (i, variant) in t.as_variants()?.iter().enumerate() {
        let Some(ragged) = variant.downcast::<Ragged>() else {
            return invalid(format!(
                "Input Variant element at index {i} doesn't hold a RaggedTensorVariant: {}",
                variant.0.type_name()
            ));
        };
        if let Some(rank) = rank.filter(|rank| *rank != ragged.splits.len()) {
            return invalid(format!(
                "Encoded input RaggedTensorVariant has ragged_rank={}.  Expected ragged_rank={rank}.",
                ragged.splits.len()
            ));
        }
        if ragged.values.dtype() != dtype {
            return invalid(format!(
                "Expected values Tensor dtype: {dtype}, found: {}",
                ragged.values.dtype()
            ));
        }
        if let Some(other) = ragged.splits.iter().find(|s| s.dtype() != splits) {
            return invalid(format!(
                "Expected row_splits Tensor dtype: {splits}, found: {}",
                other.dtype()
            ));
        }
        out.push(ragged);
    }
    Ok(out)
}

fn from_variant(b: &KernelBuilder<'_>) -> Result<Built> {
    let attrs = b.attrs();
    let (given, output) = (
        attrs.int("input_ragged_rank")?,
        attrs.int("output_ragged_rank")?,
    );
    let (dtype, index) = (attrs.dtype("Tvalues")?, attrs.dtype("Tsplits")?);
    Built::cheap(move |ctx| {
        let encoded = ctx.take(0)?;
        let dims = encoded.rank() as i64;
        let mut input = given;
        if input == -1 {
            input = output - dims;
            if output == 0 && input < 0 {
                input = 0;
            }
            if input < 0 {
                return invalid(format!(
                    "Inferred input_ragged_rank (output_ragged_rank - encoded_variant.dims()) must be >= 0, found output_ragged_rank: {output}, encoded_variant.dims(): {dims}, inferred input_ragged_rank: {input}"
                ));
            }
        }
        if !(output == 0 && input == 0) && output != dims + input {
            return invalid(format!(
                "output_ragged_rank must be equal to input_ragged_rank + encoded_ragged.dims(); output_ragged_rank: {output}, input_ragged_rank: {input}, encoded_variant.dims(): {dims}."
            ));
        }
        let found = parts(&encoded, Some(input as usize), dtype, index)?;
        let ragged = match (dims, found.as_slice()) {
            (0, [one]) => (*one).clone(),
            _ if output == 0 => Ragged {
                splits: Vec::new(),
                values: stack(ctx, &found, encoded.dims(), dtype)?,
            },
            _ => nested(ctx, &found, encoded.dims(), input as usize, dtype, index)?,
        };
        let rank = ragged.splits.len();
        for (i, splits) in ragged.splits.into_iter().enumerate() {
            ctx.set_output(i, splits);
        }
        ctx.set_output(rank, ragged.values);
        Ok(())
    })
}

/// Dense values of one shape under the dimensions of the variants.
fn stack(ctx: &OpContext<'_>, parts: &[&Ragged], outer: &[usize], dtype: DType) -> Result<Tensor> {
    let inner = parts.first().map_or(&[][..], |p| p.values.dims());
    if let Some(other) = parts.iter().find(|p| p.values.dims() != inner) {
        return invalid(format!(
            "All flat_values must have compatible shapes.  Shape at index 0: {}.  Shape at another index: {}.",
            Shape::from(inner),
            other.values.shape()
        ));
    }
    let dims: Vec<i64> = outer.iter().chain(inner).map(|&d| d as i64).collect();
    joined(ctx, parts, shape_of(&dims)?, dtype)
}

/// All values one after the other.
fn joined(ctx: &OpContext<'_>, parts: &[&Ragged], shape: Shape, dtype: DType) -> Result<Tensor> {
    ctx.check_alloc(dtype, &shape)?;
    with_unit!(dtype, U => {
        let mut all = Vec::with_capacity(shape.num_elements());
        for part in parts {
            all.extend_from_slice(U::view(&part.values)?);
        }
        U::tensor(dtype, all, shape)
    })
}

/// The parts as rows of a ragged tensor whose outer dimensions are those of the variants.
fn nested(
    ctx: &OpContext<'_>,
    parts: &[&Ragged],
    outer: &[usize],
    input_rank: usize,
    dtype: DType,
    index: DType,
) -> Result<Ragged> {
    let mut splits = Vec::new();
    let mut put = |values: Vec<i64>| -> Result<()> {
        let n = values.len();
        splits.push(int_tensor(index, values, [n])?);
        Ok(())
    };
    let mut rows = 1usize;
    for pair in outer.windows(2) {
        rows = rows.saturating_mul(pair[0]);
        put((0..=rows).map(|i| (i * pair[1]) as i64).collect())?;
    }
    let mut ends = vec![0i64];
    for (i, part) in parts.iter().enumerate() {
        let count = match part.splits.first() {
            Some(s) => s.num_elements().saturating_sub(1),
            None => match part.values.dims().first() {
                Some(&n) => n,
                None => {
                    return invalid(format!(
                        "Ragged values must have rank >= 1; encoded scalar element at index {i} has values Tensor: {}",
                        shown(&part.values)
                    ));
                }
            },
        };
        ends.push(ends[ends.len() - 1] + count as i64);
    }
    put(ends)?;
    for level in 0..input_rank {
        let mut all = vec![0i64];
        for part in parts {
            let from = ints(&part.splits[level])?;
            let base = all[all.len() - 1];
            all.extend(from.iter().skip(1).map(|v| base + v));
        }
        put(all)?;
    }
    let inner = match parts.first().map(|p| p.values.dims()) {
        Some([_, inner @ ..]) => inner,
        _ => &[],
    };
    let mut count = 0;
    for part in parts {
        match part.values.dims() {
            [n, rest @ ..] if rest == inner => count += n,
            _ => {
                return invalid(format!(
                    "All flat_values must have compatible shapes.  Shape at index 0: {}.  Shape at another index: {}.  If you are using tf.map_fn, then you may need to specify an explicit fn_output_signature with appropriate ragged_rank, and/or convert output tensors to RaggedTensors.",
                    parts[0].values.shape(),
                    part.values.shape()
                ));
            }
        }
    }
    let dims: Vec<i64> = [&count]
        .into_iter()
        .chain(inner)
        .map(|&d| d as i64)
        .collect();
    let values = joined(ctx, parts, shape_of(&dims)?, dtype)?;
    Ok(Ragged { splits, values })
}

/// The gradients of a batch's rows, one after the other, in the shape of its values.
fn gradient(ctx: &mut OpContext<'_>, dtype: DType) -> Result<()> {
    let encoded = ctx.take(0)?;
    let found: Vec<&Ragged> = encoded
        .as_variants()?
        .iter()
        .filter_map(Variant::downcast::<Ragged>)
        .collect();
    if found.len() != encoded.num_elements() {
        return invalid("Input Variant element doesn't hold a RaggedTensorVariant");
    }
    if let Some(other) = found.iter().find(|p| p.values.dtype() != dtype) {
        return invalid(format!(
            "Expected values Tensor dtype: {dtype}, found: {}",
            other.values.dtype()
        ));
    }
    let shape = crate::args::shape(ctx.input(2)?)?;
    let total: usize = found.iter().map(|p| p.values.num_elements()).sum();
    if total != shape.num_elements() {
        return invalid(format!(
            "the gradients of the rows have {total} values, {shape} has {}",
            shape.num_elements()
        ));
    }
    let out = joined(ctx, &found, shape, dtype)?;
    ctx.set_output(0, out);
    Ok(())
}
