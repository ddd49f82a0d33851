//! `XlaGather`: windows of a tensor, each begun where a vector of indices says, clamped to it.

use super::{invalid, positions};
use crate::args::{ints, shape_of};
use crate::array::units::{Unit, with_unit};
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_wire::IntFields;

pub(crate) fn register(r: &mut Registry) {
    r.add("XlaGather", gather);
}

/// XLA's names for the dimensions of operand, indices and result.
struct Numbers {
    offset: Vec<i64>,
    collapsed: Vec<i64>,
    start: Vec<i64>,
    vector: i64,
}

fn gather(b: &KernelBuilder<'_>) -> Result<Built> {
    let Some(fields) = IntFields::decode(b.attrs().bytes("dimension_numbers")?) else {
        return invalid("Failed to parse dimension_numbers");
    };
    let numbers = Numbers {
        offset: fields.list(1),
        collapsed: fields.list(2),
        start: fields.list(3),
        vector: fields.one(4),
    };
    Built::costly(move |ctx| run(ctx, &numbers))
}

fn run(ctx: &mut OpContext<'_>, numbers: &Numbers) -> Result<()> {
    let (x, indices) = (ctx.input(0)?, ctx.input(1)?);
    let sizes = ints(ctx.input(2)?)?;
    let rank = x.rank();
    let fits = |(size, dim): (&i64, &usize)| *size >= 0 && *size <= *dim as i64;
    if sizes.len() != rank || !sizes.iter().zip(x.dims()).all(fits) {
        return invalid(format!(
            "slice_sizes must have one entry within each dimension of {}",
            x.shape()
        ));
    }
    let size: Vec<usize> = sizes.iter().map(|&v| v as usize).collect();
    let vector = match usize::try_from(numbers.vector) {
        Ok(v) if v <= indices.rank() => v,
        _ => return invalid("index_vector_dim is out of range"),
    };
    let depth = indices.dims().get(vector).copied().unwrap_or(1);
    let in_operand = |d: &i64| (0..rank as i64).contains(d);
    if numbers.start.len() != depth || !numbers.start.iter().all(in_operand) {
        return invalid("start_index_map must name a dimension for each index of a vector");
    }
    let one = |d: &i64| in_operand(d) && size[*d as usize] <= 1;
    if !numbers.collapsed.iter().all(one) {
        return invalid("collapsed_slice_dims must name dimensions of size one");
    }
    let kept: Vec<usize> = (0..rank)
        .filter(|d| !numbers.collapsed.contains(&(*d as i64)))
        .collect();
    let mut batch: Vec<usize> = indices.dims().to_vec();
    if vector < batch.len() {
        batch.remove(vector);
    }
    let out_rank = batch.len() + kept.len();
    let in_result = |d: &i64| (0..out_rank as i64).contains(d);
    let rising = numbers.offset.windows(2).all(|w| w[0] < w[1]);
    if numbers.offset.len() != kept.len() || !numbers.offset.iter().all(in_result) || !rising {
        return invalid("offset_dims must name, rising, a dimension for each kept one");
    }
    let (mut dims, mut of_batch, mut of_window) = (Vec::new(), Vec::new(), Vec::new());
    let (mut next_batch, mut next_window) = (batch.iter(), kept.iter());
    for d in 0..out_rank {
        if numbers.offset.contains(&(d as i64)) {
            of_window.push(d);
            dims.push(next_window.next().map_or(0, |k| size[*k]) as i64);
        } else {
            of_batch.push(d);
            dims.push(next_batch.next().copied().unwrap_or(0) as i64);
        }
    }
    let shape = shape_of(&dims)?;
    ctx.check_alloc(x.dtype(), &shape)?;
    let at_index = ints(indices)?;
    let index_strides = indices.shape().strides();
    let strides = x.shape().strides();
    let vector_stride = index_strides.get(vector).copied().unwrap_or(1);
    let outer: Vec<usize> = (0..indices.rank()).filter(|d| *d != vector).collect();
    let dtype = x.dtype();
    let out = with_unit!(dtype, U => {
        let from = U::view(x)?;
        let mut out = Vec::with_capacity(shape.num_elements());
        positions(shape.dims(), |at| {
            let row: usize = of_batch
                .iter()
                .zip(&outer)
                .map(|(d, o)| at[*d] * index_strides[*o])
                .sum();
            let mut place: usize = of_window
                .iter()
                .zip(&kept)
                .map(|(d, k)| at[*d] * strides[*k])
                .sum();
            for (i, d) in numbers.start.iter().enumerate() {
                let d = *d as usize;
                let most = (x.dims()[d] - size[d]) as i64;
                let start = at_index[row + i * vector_stride].clamp(0, most);
                place += start as usize * strides[d];
            }
            out.push(from[place].clone());
        });
        U::tensor(dtype, out, shape)?
    });
    ctx.set_output(0, out);
    Ok(())
}
