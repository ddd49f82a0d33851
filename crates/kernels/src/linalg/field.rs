//! The numbers that decompositions are computed in: double, real or complex, whatever the
//! tensor's own precision.

use super::tile::Tiled;
use crate::nn::float::{narrow, widen};
use downpour_graph::{Result, Status};
use downpour_tensor::{DType, Shape, Tensor};
use num_complex::{Complex32, Complex64};
use std::ops::{Add, Div, Mul, Neg, Sub};

/// Real or complex numbers in double precision.
pub(super) trait Field:
    Copy
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + PartialEq
    + Tiled
{
    /// 0.
    const ZERO: Self;
    /// 1.
    const ONE: Self;
    /// A real number.
    fn real(v: f64) -> Self;
    /// The real part.
    fn re(self) -> f64;
    /// The complex conjugate.
    fn conj(self) -> Self;
    /// The absolute value.
    fn abs(self) -> f64;
    /// The product with a real number.
    fn times_real(self, v: f64) -> Self;
    /// The elements of a tensor.
    fn read(t: &Tensor) -> Result<Vec<Self>>;
    /// A tensor of `dtype` with these elements.
    fn write(values: Vec<Self>, shape: Shape, dtype: DType) -> Result<Tensor>;
}

fn unexpected<T>(dtype: DType) -> Result<T> {
    Err(Status::internal(format!("no decomposition of {dtype}")))
}

impl Field for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;
    fn real(v: f64) -> f64 {
        v
    }
    fn re(self) -> f64 {
        self
    }
    #[inline(always)]
    fn conj(self) -> f64 {
        self
    }
    fn abs(self) -> f64 {
        f64::abs(self)
    }
    #[inline(always)]
    fn times_real(self, v: f64) -> f64 {
        self * v
    }
    fn read(t: &Tensor) -> Result<Vec<f64>> {
        let t = widen(t)?;
        match t.dtype() {
            DType::Float => Ok(t.as_slice::<f32>()?.iter().map(|&v| v.into()).collect()),
            DType::Double => Ok(t.as_slice::<f64>()?.to_vec()),
            other => unexpected(other),
        }
    }
    fn write(values: Vec<f64>, shape: Shape, dtype: DType) -> Result<Tensor> {
        if dtype == DType::Double {
            return Ok(Tensor::from_vec(values, shape)?);
        }
        let single = values.into_iter().map(|v| v as f32).collect();
        narrow(Tensor::from_vec::<f32>(single, shape)?, dtype)
    }
}

impl Field for Complex64 {
    const ZERO: Complex64 = Complex64::new(0.0, 0.0);
    const ONE: Complex64 = Complex64::new(1.0, 0.0);
    fn real(v: f64) -> Complex64 {
        Complex64::new(v, 0.0)
    }
    fn re(self) -> f64 {
        self.re
    }
    fn conj(self) -> Complex64 {
        Complex64::conj(&self)
    }
    fn abs(self) -> f64 {
        self.norm()
    }
    #[inline(always)]
    fn times_real(self, v: f64) -> Complex64 {
        Complex64::new(self.re * v, self.im * v)
    }
    fn read(t: &Tensor) -> Result<Vec<Complex64>> {
        match t.dtype() {
            DType::Complex64 => Ok(t
                .as_slice::<Complex32>()?
                .iter()
                .map(|v| Complex64::new(v.re.into(), v.im.into()))
                .collect()),
            DType::Complex128 => Ok(t.as_slice::<Complex64>()?.to_vec()),
            other => unexpected(other),
        }
    }
    fn write(values: Vec<Complex64>, shape: Shape, dtype: DType) -> Result<Tensor> {
        if dtype == DType::Complex128 {
            return Ok(Tensor::from_vec(values, shape)?);
        }
        let single = values
            .into_iter()
            .map(|v| Complex32::new(v.re as f32, v.im as f32))
            .collect();
        Ok(Tensor::from_vec::<Complex32>(single, shape)?)
    }
}

/// A square or other matrix in row-major order.
pub(super) struct Dense<C> {
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) values: Vec<C>,
}

impl<C: Field> Dense<C> {
    /// A matrix over these values.
    pub(super) fn new(rows: usize, cols: usize, values: Vec<C>) -> Dense<C> {
        Dense { rows, cols, values }
    }

    /// The identity.
    pub(super) fn identity(n: usize) -> Dense<C> {
        let mut m = Dense::new(n, n, vec![C::ZERO; n * n]);
        (0..n).for_each(|i| *m.at(i, i) = C::ONE);
        m
    }

    /// An element.
    #[inline(always)]
    pub(super) fn get(&self, i: usize, j: usize) -> C {
        self.values[i * self.cols + j]
    }

    /// An element, to write.
    #[inline(always)]
    pub(super) fn at(&mut self, i: usize, j: usize) -> &mut C {
        &mut self.values[i * self.cols + j]
    }

    /// The conjugate transpose.
    pub(super) fn adjoint(&self) -> Dense<C> {
        let mut m = Dense::new(self.cols, self.rows, Vec::with_capacity(self.values.len()));
        for j in 0..self.cols {
            m.values
                .extend((0..self.rows).map(|i| self.get(i, j).conj()));
        }
        m
    }

    /// Exchanges rows and columns of a square matrix.
    pub(super) fn transpose(&mut self) {
        for i in 0..self.rows {
            (0..i).for_each(|j| self.values.swap(i * self.cols + j, j * self.cols + i));
        }
    }

    /// Exchanges two rows.
    pub(super) fn swap_rows(&mut self, a: usize, b: usize) {
        if a != b {
            let (low, high) = (a.min(b), a.max(b));
            let (head, tail) = self.values.split_at_mut(high * self.cols);
            head[low * self.cols..(low + 1) * self.cols].swap_with_slice(&mut tail[..self.cols]);
        }
    }
}
