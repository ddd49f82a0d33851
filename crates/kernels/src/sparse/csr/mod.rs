//! Sparse matrices by rows (CSR), which travel between ops as variants: conversions (`convert`),
//! products and transposes (`product`), a factorisation (`cholesky`).
//!
//! A value of rank 3 is a batch of matrices of one size. Column numbers stay in the order in which
//! they came, as in TensorFlow; no op here relies on their being sorted.

mod cholesky;
mod convert;
mod product;

use super::number::Number;
use downpour_graph::{Result, Status};
use downpour_runtime::{OpContext, Registry};
use downpour_tensor::{DType, Tensor, Variant, VariantValue};
use std::any::Any;

pub(crate) fn register(registry: &mut Registry) {
    cholesky::register(registry);
    convert::register(registry);
    product::register(registry);
}

const TYPES: &[DType] = &[
    DType::Float,
    DType::Double,
    DType::Complex64,
    DType::Complex128,
];

/// Runs `$body` with `$T` for one of [`TYPES`].
macro_rules! with_csr_type {
    ($dtype:expr, $T:ident => $body:expr) => {
        $crate::types::with_type!($dtype, $T in [f32, f64,
            ::num_complex::Complex32, ::num_complex::Complex64] => $body)
    };
}
use with_csr_type;

/// One matrix or a batch of them.
#[derive(Clone, Debug)]
struct Csr {
    dtype: DType,
    /// `[rows, columns]`, or with the size of the batch before them.
    dims: Vec<usize>,
    parts: Vec<Stored>,
}

/// One matrix: where each row begins, the columns, the values (a vector).
#[derive(Clone, Debug)]
struct Stored {
    starts: Vec<i32>,
    columns: Vec<i32>,
    values: Tensor,
}

/// One matrix in the type of its values.
#[derive(Default)]
struct Part<T> {
    starts: Vec<i32>,
    columns: Vec<i32>,
    values: Vec<T>,
}

impl VariantValue for Csr {
    fn type_name(&self) -> &str {
        "tensorflow::CSRSparseMatrix"
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

impl Csr {
    fn of<T: Number>(dims: Vec<usize>, parts: Vec<Part<T>>) -> Csr {
        let stored = |p: Part<T>| Stored {
            starts: p.starts,
            columns: p.columns,
            values: Tensor::vector(p.values),
        };
        Csr {
            dtype: T::DTYPE,
            dims,
            parts: parts.into_iter().map(stored).collect(),
        }
    }

    /// The matrix in input `i`.
    fn input<'a>(ctx: &'a OpContext<'_>, i: usize) -> Result<&'a Csr> {
        let t = ctx.input(i)?;
        let found = t.as_variants()?.first().and_then(Variant::downcast::<Csr>);
        match found {
            Some(csr) if t.rank() == 0 => Ok(csr),
            _ => Err(Status::invalid_argument(format!(
                "Unable to retrieve CSRSparseMatrix from input {i}: expected a scalar variant that holds one, got {}",
                t.shape()
            ))),
        }
    }

    fn tensor(self) -> Tensor {
        Tensor::variant(Variant::new(self))
    }

    fn rows(&self) -> usize {
        self.dims[self.dims.len() - 2]
    }

    fn cols(&self) -> usize {
        self.dims[self.dims.len() - 1]
    }

    /// `[batch]` or nothing.
    fn outer(&self) -> &[usize] {
        &self.dims[..self.dims.len() - 2]
    }

    fn part<T: Number>(&self, i: usize) -> Result<Part<T>> {
        let Some(p) = self.parts.get(i) else {
            return Err(Status::internal("a batch has as many matrices as it says"));
        };
        Ok(Part {
            starts: p.starts.clone(),
            columns: p.columns.clone(),
            values: p.values.as_slice::<T>()?.to_vec(),
        })
    }

    fn parts<T: Number>(&self) -> Result<Vec<Part<T>>> {
        (0..self.parts.len()).map(|i| self.part(i)).collect()
    }
}

impl<T: Number> Part<T> {
    /// The elements of a row.
    fn row(&self, i: usize) -> impl Iterator<Item = (usize, T)> + '_ {
        let range = self.starts[i] as usize..self.starts[i + 1] as usize;
        range.map(|at| (self.columns[at] as usize, self.values[at].clone()))
    }

    /// A matrix given row by row.
    fn from_rows(rows: impl IntoIterator<Item = Vec<(usize, T)>>) -> Result<Part<T>> {
        let mut part = Part {
            starts: vec![0],
            columns: Vec::new(),
            values: Vec::new(),
        };
        for row in rows {
            for (column, value) in row {
                part.columns.push(column as i32);
                part.values.push(value);
            }
            let end = i32::try_from(part.columns.len())
                .map_err(|_| Status::invalid_argument("more than 2^31 elements in a matrix"))?;
            part.starts.push(end);
        }
        Ok(part)
    }

    /// Rows and columns exchanged; conjugated if asked.
    fn transpose(&self, columns: usize, conjugate: bool) -> Result<Part<T>> {
        let mut turned: Vec<Vec<(usize, T)>> = vec![Vec::new(); columns];
        for i in 0..self.starts.len() - 1 {
            for (j, v) in self.row(i) {
                turned[j].push((i, if conjugate { v.conj() } else { v }));
            }
        }
        Part::from_rows(turned)
    }
}
