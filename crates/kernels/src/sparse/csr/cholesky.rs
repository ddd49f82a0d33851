//! `SparseMatrixSparseCholesky`: the lower triangular factor of a matrix whose rows and columns
//! are first put into the given order. Row by row; only what is or becomes non-zero is kept.

use super::super::form::invalid;
use super::super::number::Number;
use super::{Csr, Part, TYPES, with_csr_type};
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, Registry};
use std::collections::BTreeMap;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("SparseMatrixSparseCholesky", &[("type", TYPES)], factor);
}

fn factor(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("type")?;
    Built::costly(move |ctx| {
        let (csr, order) = (Csr::input(ctx, 0)?, ctx.input(1)?);
        if csr.dtype != dtype {
            return invalid(format!(
                "dtype of input is not equal to 'type': {} vs. {dtype}",
                csr.dtype
            ));
        }
        if csr.dims.len() != order.rank() + 1 {
            return invalid(format!(
                "sparse matrix must have the same rank as permutation; got: {} != {} + 1.",
                csr.dims.len(),
                order.rank()
            ));
        }
        let n = csr.rows();
        if csr.cols() != n {
            return invalid(format!(
                "sparse matrix must be square; got: {n} != {}",
                csr.cols()
            ));
        }
        if order.dims() != &csr.dims[..csr.dims.len() - 1] {
            return invalid(format!(
                "permutation must have the sizes of the matrix; got: {}",
                order.shape()
            ));
        }
        let orders = order.as_slice::<i32>()?;
        let made = with_csr_type!(dtype, T => {
            let mut parts = Vec::with_capacity(csr.parts.len());
            for (i, part) in csr.parts::<T>()?.iter().enumerate() {
                let places = inverse(&orders[i * n..(i + 1) * n])?;
                match decompose(part, &orders[i * n..(i + 1) * n], &places) {
                    Some(rows) => parts.push(Part::from_rows(rows)?),
                    None => return invalid(format!(
                        "Sparse Cholesky factorization failed for batch index {i}. The input might not be valid."
                    )),
                }
            }
            Csr::of(csr.dims.clone(), parts).tensor()
        });
        ctx.set_output(0, made);
        Ok(())
    })
}

/// Where each row goes; refused (TensorFlow's process ends) unless every row goes somewhere.
fn inverse(order: &[i32]) -> Result<Vec<usize>> {
    let mut places = vec![usize::MAX; order.len()];
    for (to, &from) in order.iter().enumerate() {
        match usize::try_from(from).ok().and_then(|i| places.get_mut(i)) {
            Some(place) if *place == usize::MAX => *place = to,
            _ => return invalid("permutation must hold every row once"),
        }
    }
    Ok(places)
}

/// The rows of the factor; `None` if the matrix is not positive definite.
fn decompose<T: Root>(
    a: &Part<T>,
    order: &[i32],
    places: &[usize],
) -> Option<Vec<Vec<(usize, T)>>> {
    let mut rows: Vec<Vec<(usize, T)>> = Vec::with_capacity(order.len());
    // The rows that have something in a column below the diagonal, with what they have.
    let mut below: Vec<Vec<(usize, T)>> = vec![Vec::new(); order.len()];
    for (i, &from) in order.iter().enumerate() {
        let mut row: BTreeMap<usize, T> = BTreeMap::new();
        for (column, v) in a.row(from as usize) {
            let j = places[column];
            if j <= i {
                row.insert(j, v);
            }
        }
        let mut diagonal = row.remove(&i).unwrap_or(T::ZERO);
        let mut done: Vec<(usize, T)> = Vec::new();
        while let Some((j, v)) = row.pop_first() {
            let (_, pivot) = rows[j].last()?.clone();
            let v = v.over(pivot);
            for (later, w) in &below[j] {
                let change = v.clone().times(w.clone().conj()).negated();
                let to = row.entry(*later).or_insert(T::ZERO);
                *to = to.clone().plus(change);
            }
            diagonal = diagonal.plus(v.clone().times(v.clone().conj()).negated());
            done.push((j, v));
        }
        let root = diagonal.root()?;
        for (j, v) in &done {
            below[*j].push((i, v.clone()));
        }
        done.push((i, root));
        rows.push(done);
    }
    Some(rows)
}

/// Numbers of which a pivot's root can be taken.
trait Root: Number {
    /// The root of a positive (real) number.
    fn root(self) -> Option<Self>;
    fn negated(self) -> Self;
}

macro_rules! roots {
    ($($t:ty: $re:expr, $make:expr;)*) => {
        $(impl Root for $t {
            fn root(self) -> Option<Self> {
                let real = $re(self);
                (real > 0.0).then(|| $make(real.sqrt()))
            }
            fn negated(self) -> Self { -self }
        })*
    };
}
roots! {
    f32: |v: f32| v, |v: f32| v;
    f64: |v: f64| v, |v: f64| v;
    num_complex::Complex32: |v: num_complex::Complex32| v.re, |v: f32| num_complex::Complex32::new(v, 0.0);
    num_complex::Complex64: |v: num_complex::Complex64| v.re, |v: f64| num_complex::Complex64::new(v, 0.0);
}
