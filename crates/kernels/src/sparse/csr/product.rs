//! `SparseMatrixMatMul` (with a dense matrix), `SparseMatrixSparseMatMul`,
//! `SparseMatrixTranspose`.

use super::super::form::invalid;
use super::super::number::Number;
use super::{Csr, Part, TYPES, with_csr_type};
use crate::args::shape_of;
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, parallel_ranges};
use downpour_tensor::{DType, Tensor};

/// Products below which a second thread is not worth its start.
const GRAIN: usize = 32 << 10;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("SparseMatrixMatMul", &[("T", TYPES)], with_dense);
    r.add_typed("SparseMatrixSparseMatMul", &[("type", TYPES)], with_sparse);
    r.add_typed("SparseMatrixTranspose", &[("type", TYPES)], transpose);
}

/// How an operand is seen.
#[derive(Clone, Copy)]
struct View {
    transposed: bool,
    conjugated: bool,
}

impl View {
    fn parse(b: &KernelBuilder<'_>, which: &str) -> Result<View> {
        let transpose = b.attrs().bool(&format!("transpose_{which}"))?;
        let adjoint = b.attrs().bool(&format!("adjoint_{which}"))?;
        if transpose && adjoint {
            return invalid(format!(
                "Only one of adjoint_{which} and transpose_{which} may be true."
            ));
        }
        Ok(View {
            transposed: transpose || adjoint,
            conjugated: adjoint,
        })
    }

    fn of<T: Number>(self, csr: &Csr, i: usize) -> Result<Part<T>> {
        let part = csr.part::<T>(i)?;
        match self.transposed {
            true => part.transpose(csr.cols(), self.conjugated),
            false => Ok(part),
        }
    }

    fn size(self, (rows, cols): (usize, usize)) -> (usize, usize) {
        if self.transposed {
            (cols, rows)
        } else {
            (rows, cols)
        }
    }
}

fn expect_type(csr: &Csr, dtype: DType, name: &str) -> Result<()> {
    if csr.dtype != dtype {
        return invalid(format!(
            "dtype of {name} is not equal to 'type': {} vs. {dtype}",
            csr.dtype
        ));
    }
    Ok(())
}

fn with_dense(b: &KernelBuilder<'_>) -> Result<Built> {
    let (left, right) = (View::parse(b, "a")?, View::parse(b, "b")?);
    let turned = b.attrs().bool("transpose_output")?;
    let conjugated = b.attrs().bool("conjugate_output")?;
    Built::costly(move |ctx| {
        let (a, b) = (Csr::input(ctx, 0)?, ctx.input(1)?);
        if a.dtype != b.dtype() {
            return invalid(format!(
                "Input types don't match.  a.dtype == {} vs. b.dtype == {}",
                a.dtype,
                b.dtype()
            ));
        }
        if a.dims.len() != b.rank() {
            return invalid(format!(
                "Ranks of a and b must match, saw: {} vs. {}.",
                a.dims.len(),
                b.rank()
            ));
        }
        if a.outer() != &b.dims()[..b.rank() - 2] {
            return invalid(format!(
                "Batch sizes of a and b must match, saw: {} vs. {}.",
                a.dims[0],
                b.dims()[0]
            ));
        }
        let (m, k) = left.size((a.rows(), a.cols()));
        let own = (b.dims()[b.rank() - 2], b.dims()[b.rank() - 1]);
        let (inner, n) = right.size(own);
        if k != inner {
            return invalid(format!(
                "Inner dimensions of a and b must agree.  a is {}, b is {}",
                shape_of(&a.dims.iter().map(|&d| d as i64).collect::<Vec<_>>())?,
                b.shape()
            ));
        }
        let mut dims: Vec<i64> = a.outer().iter().map(|&d| d as i64).collect();
        dims.extend(if turned {
            [n as i64, m as i64]
        } else {
            [m as i64, n as i64]
        });
        let mut out = ctx.zeros(a.dtype, &shape_of(&dims)?)?;
        with_csr_type!(a.dtype, T => {
            let dense = b.as_slice::<T>()?;
            let size = own.0 * own.1;
            for (batch, to) in out.make_mut::<T>()?.chunks_mut((m * n).max(1)).enumerate() {
                let part = left.of::<T>(a, batch)?;
                let b = seen(&dense[batch * size..(batch + 1) * size], own, right);
                let mut made = multiply(&part, &b, (m, n));
                if conjugated {
                    made.iter_mut().for_each(|v| *v = v.conj());
                }
                match turned {
                    false => to.copy_from_slice(&made),
                    true => (0..m * n).for_each(|i| to[(i % n) * m + i / n] = made[i]),
                }
            }
        });
        ctx.set_output(0, out);
        Ok(())
    })
}

/// A dense operand as the product reads it.
fn seen<T: Number>(b: &[T], (rows, cols): (usize, usize), view: View) -> Vec<T> {
    if !view.transposed {
        return b.to_vec();
    }
    let mut out = Vec::with_capacity(b.len());
    for j in 0..cols {
        out.extend((0..rows).map(|i| match view.conjugated {
            true => b[i * cols + j].clone().conj(),
            false => b[i * cols + j].clone(),
        }));
    }
    out
}

fn multiply<T: Number>(a: &Part<T>, b: &[T], (m, n): (usize, usize)) -> Vec<T> {
    let mut out = vec![T::ZERO; m * n];
    let cost = a.values.len() * n / m.max(1);
    parallel_ranges(
        &mut out,
        n.max(1),
        GRAIN / cost.max(1) + 1,
        |first, rows| {
            for (i, row) in rows.chunks_mut(n.max(1)).enumerate() {
                for (k, v) in a.row(first + i) {
                    for (to, w) in row.iter_mut().zip(&b[k * n..(k + 1) * n]) {
                        *to = to.clone().plus(v.clone().times(w.clone()));
                    }
                }
            }
        },
    );
    out
}

fn with_sparse(b: &KernelBuilder<'_>) -> Result<Built> {
    let (left, right) = (View::parse(b, "a")?, View::parse(b, "b")?);
    let dtype = b.attrs().dtype("type")?;
    Built::costly(move |ctx| {
        let (a, b) = (Csr::input(ctx, 0)?, Csr::input(ctx, 1)?);
        expect_type(a, dtype, "a")?;
        expect_type(b, dtype, "b")?;
        if a.outer() != b.outer() {
            return invalid(format!(
                "Batch sizes of a and b must match, saw: {:?} vs. {:?}.",
                a.outer(),
                b.outer()
            ));
        }
        let (m, k) = left.size((a.rows(), a.cols()));
        let (inner, n) = right.size((b.rows(), b.cols()));
        if k != inner {
            return invalid(format!(
                "Inner dimensions of a and b must agree, saw: {k} vs. {inner}"
            ));
        }
        let mut dims = a.outer().to_vec();
        dims.extend([m, n]);
        let made = with_csr_type!(dtype, T => {
            let parts = (0..a.parts.len()).map(|i| {
                sparse_product(&left.of::<T>(a, i)?, &right.of::<T>(b, i)?, m)
            });
            Csr::of(dims, parts.collect::<Result<_>>()?).tensor()
        });
        ctx.set_output(0, made);
        Ok(())
    })
}

fn sparse_product<T: Number>(a: &Part<T>, b: &Part<T>, rows: usize) -> Result<Part<T>> {
    let row = |i: usize| {
        let mut sums: std::collections::BTreeMap<usize, T> = std::collections::BTreeMap::new();
        for (k, v) in a.row(i) {
            for (j, w) in b.row(k) {
                let sum = sums.entry(j).or_insert(T::ZERO);
                *sum = sum.clone().plus(v.clone().times(w));
            }
        }
        sums.into_iter().collect()
    };
    Part::from_rows((0..rows).map(row))
}

fn transpose(b: &KernelBuilder<'_>) -> Result<Built> {
    let conjugate = b.attrs().bool("conjugate")?;
    let dtype = b.attrs().dtype("type")?;
    Built::costly(move |ctx| {
        let made = turned(ctx, dtype, conjugate)?;
        ctx.set_output(0, made);
        Ok(())
    })
}

fn turned(ctx: &OpContext<'_>, dtype: DType, conjugate: bool) -> Result<Tensor> {
    let csr = Csr::input(ctx, 0)?;
    expect_type(csr, dtype, "input")?;
    let mut dims = csr.outer().to_vec();
    dims.extend([csr.cols(), csr.rows()]);
    Ok(with_csr_type!(dtype, T => {
        let parts = csr.parts::<T>()?;
        let parts = parts.iter().map(|p| p.transpose(csr.cols(), conjugate));
        Csr::of(dims, parts.collect::<Result<_>>()?).tensor()
    }))
}
