//! `SparseTensorDenseMatMul`: a sparse matrix times a dense one. Elements are first gathered by
//! row of the result, so rows are summed in parallel, each in the order its elements were given.

use super::form::{Places, invalid};
use super::number::{Number, with_number};
use super::segment::{narrowed, widened};
use crate::args::{ints, shape_of};
use crate::types::INDEX;
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, parallel_ranges};
use downpour_tensor::{DType, Shape, Tensor};

const PRODUCTS: &[DType] = &[
    DType::Float,
    DType::Double,
    DType::Int32,
    DType::Complex64,
    DType::Complex128,
    DType::BFloat16,
    DType::Half,
];

/// Products below which a second thread is not worth its start.
const GRAIN: usize = 32 << 10;

pub(crate) fn register(r: &mut Registry) {
    let types = [("T", PRODUCTS), ("Tindices", INDEX)];
    r.add_typed("SparseTensorDenseMatMul", &types, product);
}

fn product(b: &KernelBuilder<'_>) -> Result<Built> {
    let (left, right) = (b.attrs().bool("adjoint_a")?, b.attrs().bool("adjoint_b")?);
    Built::costly(move |ctx| multiply(ctx, left, right))
}

fn multiply(ctx: &mut OpContext<'_>, adjoint_a: bool, adjoint_b: bool) -> Result<()> {
    let (indices, values) = (ctx.input(0)?, ctx.input(1)?);
    let (shape, b) = (ctx.input(2)?, ctx.input(3)?);
    if b.rank() != 2 {
        return invalid("Tensor 'b' is not a matrix");
    }
    if shape.rank() != 1 {
        return invalid("Tensor 'a_shape' is not a vector");
    }
    let &[rows, columns] = shape.as_slice::<i64>()? else {
        return invalid("Tensor 'a_shape' must have 2 elements");
    };
    if values.rank() != 1 {
        return invalid("Tensor 'a_values' is not a vector");
    }
    if indices.rank() != 2 {
        return invalid("Tensor 'a_indices' is not a matrix");
    }
    if indices.dims()[0] != values.num_elements() {
        return invalid("Number of rows of a_indices does not match number of entries in a_values");
    }
    if indices.dims()[1] != 2 {
        return invalid(
            "Number of columns of a_indices does not match number of entries in a_shape",
        );
    }
    let (m, inner) = if adjoint_a {
        (columns, rows)
    } else {
        (rows, columns)
    };
    let (k, width) = if adjoint_b {
        (b.dims()[1], b.dims()[0])
    } else {
        (b.dims()[0], b.dims()[1])
    };
    if inner != k as i64 {
        return invalid(format!(
            "Cannot multiply A and B because inner dimension does not match: {inner} vs. {k}.  Did you forget a transpose?  Dimensions of A: [{rows}, {columns}).  Dimensions of B: {}",
            b.shape()
        ));
    }
    let out_shape = shape_of(&[m, width as i64])?;
    let at = ints(indices)?;
    let places = Places::of(&at, 2, values.num_elements());
    let matrix = Compressed::new(ctx, places, adjoint_a, out_shape[0], k)?;
    let dtype = values.dtype();
    let (a, b) = (widened(values)?, widened(b)?);
    let out = with_number!(a.dtype(), T => {
        let b = if adjoint_b { transposed::<T>(&b)? } else { b };
        matrix.times::<T>(ctx, a.as_slice()?, b.as_slice()?, adjoint_a, out_shape)?
    });
    ctx.set_output(0, narrowed(out, dtype)?);
    Ok(())
}

/// The conjugate transpose.
fn transposed<T: Number>(t: &Tensor) -> Result<Tensor> {
    let (rows, columns) = (t.dims()[0], t.dims()[1]);
    let from = t.as_slice::<T>()?;
    let cells = (0..columns).flat_map(|c| (0..rows).map(move |r| from[r * columns + c].conj()));
    Ok(Tensor::from_vec(cells.collect(), [columns, rows])?)
}

/// The sparse operand by row of the result.
struct Compressed {
    /// Where each row starts in `cells`, and the end.
    starts: Vec<usize>,
    /// Column and number of each element.
    cells: Vec<(usize, usize)>,
}

impl Compressed {
    fn new(
        ctx: &OpContext<'_>,
        places: Places<'_>,
        adjoint: bool,
        rows: usize,
        columns: usize,
    ) -> Result<Compressed> {
        let (m_at, k_at) = if adjoint { (1, 0) } else { (0, 1) };
        ctx.check_alloc(DType::Int64, &Shape::from([rows]))?;
        let mut starts = vec![0usize; rows + 1];
        for (i, place) in places.rows().enumerate() {
            let (m, k) = (place[m_at], place[k_at]);
            if !(0..columns as i64).contains(&k) {
                return invalid(format!(
                    "k ({k}) from index[{i},{k_at}] out of bounds (>={columns})"
                ));
            }
            if !(0..rows as i64).contains(&m) {
                return invalid(format!(
                    "m ({m}) from index[{i},{m_at}] out of bounds (>={rows})"
                ));
            }
            starts[m as usize + 1] += 1;
        }
        for row in 0..rows {
            starts[row + 1] += starts[row];
        }
        let mut next = starts.clone();
        let mut cells = vec![(0, 0); places.count];
        for (i, place) in places.rows().enumerate() {
            let slot = &mut next[place[m_at] as usize];
            cells[*slot] = (place[k_at] as usize, i);
            *slot += 1;
        }
        Ok(Compressed { starts, cells })
    }

    fn times<T: Number>(
        &self,
        ctx: &OpContext<'_>,
        values: &[T],
        b: &[T],
        adjoint: bool,
        shape: Shape,
    ) -> Result<Tensor> {
        let (rows, width) = (shape[0], shape[1]);
        let mut out = ctx.zeros(T::DTYPE, &shape)?;
        if width == 0 || rows == 0 {
            return Ok(out);
        }
        let work = (self.cells.len() * width / rows).max(1);
        parallel_ranges(out.make_mut::<T>()?, width, GRAIN / work, |first, part| {
            for (r, total) in part.chunks_exact_mut(width).enumerate() {
                let row = first + r;
                for &(k, i) in &self.cells[self.starts[row]..self.starts[row + 1]] {
                    let by = if adjoint { values[i].conj() } else { values[i] };
                    let from = &b[k * width..(k + 1) * width];
                    total
                        .iter_mut()
                        .zip(from)
                        .for_each(|(t, v)| *t = t.plus(by.times(*v)));
                }
            }
        });
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::Result;
    use downpour_tensor::{DType, Tensor};

    fn run(at: Vec<i64>, adjoint_a: bool, adjoint_b: bool) -> Result<Tensor> {
        let inputs = vec![
            Tensor::from_vec(at, [3, 2])?,
            floats(&[1.0, 2.0, 3.0]),
            Tensor::vector(vec![2i64, 2]),
            Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], [2, 2])?,
        ];
        let attrs = [
            ("T", DType::Float.into()),
            ("Tindices", DType::Int64.into()),
            ("adjoint_a", adjoint_a.into()),
            ("adjoint_b", adjoint_b.into()),
        ];
        Ok(run_op("SparseTensorDenseMatMul", inputs, &attrs)?.remove(0))
    }

    #[test]
    fn products_agree_with_dense_ones() {
        // [[0, 1], [5, 0]] (the two last elements share a place) times [[1, 2], [3, 4]].
        let at = vec![0, 1, 1, 0, 1, 0];
        let values = |a, b| {
            let t = run(at.clone(), a, b).unwrap();
            t.as_slice::<f32>().unwrap().to_vec()
        };
        assert_eq!(values(false, false), [3.0, 4.0, 5.0, 10.0]);
        assert_eq!(values(true, false), [15.0, 20.0, 1.0, 2.0]);
        assert_eq!(values(false, true), [2.0, 4.0, 5.0, 15.0]);
        let text = run(vec![0, 2, 1, 0, 1, 0], false, false)
            .unwrap_err()
            .message;
        assert!(
            text.starts_with("k (2) from index[0,1] out of bounds (>=2)"),
            "{text}"
        );
    }
}
