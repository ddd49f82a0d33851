//! What the ops over batches of matrices share: TensorFlow's checks of the inputs, the loop over
//! the batch, the shapes of the outputs.

use super::field::{Dense, Field};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, parallel_ranges};
use downpour_tensor::{DType, Dims, Shape, Tensor};

/// Multiplications worth a thread of their own.
const GRAIN: usize = 64 << 10;

/// The types most of these ops take.
pub(super) const FOUR: &[DType] = &[
    DType::Complex128,
    DType::Complex64,
    DType::Double,
    DType::Float,
];

/// The same and half.
pub(super) const FIVE: &[DType] = &[
    DType::Complex128,
    DType::Complex64,
    DType::Double,
    DType::Float,
    DType::Half,
];

/// The kernel for real or for complex matrices.
pub(super) fn by_field(
    b: &KernelBuilder<'_>,
    real: impl Fn(&mut OpContext<'_>) -> Result<()> + Send + Sync + 'static,
    complex: impl Fn(&mut OpContext<'_>) -> Result<()> + Send + Sync + 'static,
) -> Result<Built> {
    match b.input_type(0)? {
        DType::Complex64 | DType::Complex128 => Built::costly(complex),
        _ => Built::costly(real),
    }
}

/// INVALID_ARGUMENT.
pub(super) fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// The dimensions before the last two, and those.
pub(super) fn split(t: &Tensor, which: usize) -> Result<(&[usize], usize, usize)> {
    match t.dims() {
        [outer @ .., rows, cols] => Ok((outer, *rows, *cols)),
        other => invalid(format!(
            "Input tensor {which} must have rank >= 2, got {}",
            other.len()
        )),
    }
}

/// The size of a square matrix.
pub(super) fn square(sizes: &[(usize, usize)]) -> Result<usize> {
    match sizes {
        [(rows, cols)] if rows == cols => Ok(*rows),
        _ => invalid("Input matrix must be square."),
    }
}

/// All matrices of a tensor.
pub(super) fn matrices<C: Field>(t: &Tensor, rows: usize, cols: usize) -> Result<Vec<Dense<C>>> {
    let count: usize = t.dims()[..t.rank() - 2].iter().product();
    let values = C::read(t)?;
    let size = rows * cols;
    Ok((0..count)
        .map(|i| Dense::new(rows, cols, values[i * size..(i + 1) * size].to_vec()))
        .collect())
}

/// Runs `f` on the matrices of the first `inputs` inputs, one batch entry at a time. `check` sees
/// the sizes of one entry's matrices and gives the dimensions of its outputs; an output that
/// it does not name becomes a scalar.
pub(super) fn each<C: Field>(
    ctx: &mut OpContext<'_>,
    inputs: usize,
    check: impl FnOnce(&[(usize, usize)]) -> Result<Vec<Dims>>,
    f: impl Fn(Vec<Dense<C>>) -> Result<Vec<Vec<C>>> + Sync,
) -> Result<()> {
    let tensors: Vec<Tensor> = ctx.inputs(0..inputs)?.into_iter().cloned().collect();
    over(ctx, &tensors, check, f)
}

/// As [`each`], over matrices that are not the inputs themselves.
pub(super) fn over<C: Field>(
    ctx: &mut OpContext<'_>,
    tensors: &[Tensor],
    check: impl FnOnce(&[(usize, usize)]) -> Result<Vec<Dims>>,
    f: impl Fn(Vec<Dense<C>>) -> Result<Vec<Vec<C>>> + Sync,
) -> Result<()> {
    let mut sizes = Vec::with_capacity(tensors.len());
    let (outer, ..) = split(&tensors[0], 0)?;
    for (i, t) in tensors.iter().enumerate() {
        if t.rank() != tensors[0].rank() {
            return invalid("All input tensors must have the same rank.");
        }
        let (batch, rows, cols) = split(t, i)?;
        if batch != outer {
            return invalid("All input tensors must have the same outer dimensions.");
        }
        sizes.push((rows, cols));
    }
    let outputs = check(&sizes)?;
    let shape = |inner: &[usize]| -> Result<Shape> {
        let dims = outer.iter().chain(inner);
        Ok(Shape::checked(dims.map(|&d| d as i64))?)
    };
    let shapes = outputs
        .iter()
        .map(|d| shape(d))
        .collect::<Result<Vec<_>>>()?;
    let dtypes: Vec<DType> = (0..ctx.num_outputs())
        .map(|i| ctx.info().node.output_types[i].0)
        .collect();
    for (shape, dtype) in shapes.iter().zip(&dtypes) {
        ctx.check_alloc(*dtype, shape)?;
    }
    let count: usize = outer.iter().product();
    let mut entries: Vec<Entry<C>> = (0..count).map(|_| Entry::default()).collect();
    for (t, &(rows, cols)) in tensors.iter().zip(&sizes) {
        for (entry, m) in entries.iter_mut().zip(matrices::<C>(t, rows, cols)?) {
            entry.given.push(m);
        }
    }
    let cost = sizes.iter().map(|(r, c)| r * c * r.min(c)).sum::<usize>();
    parallel_ranges(&mut entries, 1, GRAIN / cost.max(1) + 1, |_, entries| {
        for entry in entries {
            entry.found = Some(f(std::mem::take(&mut entry.given)));
        }
    });
    let mut values: Vec<Vec<C>> = shapes
        .iter()
        .map(|s| Vec::with_capacity(s.num_elements()))
        .collect();
    for entry in entries {
        let found = entry.found.unwrap_or_else(|| Ok(Vec::new()))?;
        for (to, from) in values.iter_mut().zip(found) {
            to.extend(from);
        }
    }
    let mut results: Vec<Tensor> = Vec::with_capacity(dtypes.len());
    for ((values, shape), dtype) in values.into_iter().zip(shapes).zip(&dtypes) {
        results.push(C::write(values, shape, *dtype)?);
    }
    for (i, dtype) in dtypes.iter().enumerate() {
        match results.get(i) {
            Some(t) => ctx.set_output(i, t.clone()),
            None => ctx.set_output(i, Tensor::zeros(*dtype, Shape::scalar())?),
        }
    }
    Ok(())
}

/// One set of matrices of the batch, and what became of it.
struct Entry<C> {
    given: Vec<Dense<C>>,
    found: Option<Result<Vec<Vec<C>>>>,
}

impl<C> Default for Entry<C> {
    fn default() -> Self {
        Entry {
            given: Vec::new(),
            found: None,
        }
    }
}
