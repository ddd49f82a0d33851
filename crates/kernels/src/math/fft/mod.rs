//! Fourier transforms over the innermost axes: `FFT`, `RFFT` and their inverses in one, two and
//! three dimensions, in the precision of the op.

mod plan;

use crate::args::{ints, shape_of};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, parallel_ranges};
use downpour_tensor::{DType, Element, Shape, Tensor};
use num_complex::Complex;
pub(crate) use plan::{Lines, RealPlan};
use plan::{Plans, Real};

/// Numbers worth a thread of their own.
const GRAIN: usize = 8 << 10;

pub(crate) fn register(r: &mut Registry) {
    r.add("FFT", |b| build(b, Kind::Forward, 1));
    r.add("FFT2D", |b| build(b, Kind::Forward, 2));
    r.add("FFT3D", |b| build(b, Kind::Forward, 3));
    r.add("IFFT", |b| build(b, Kind::Inverse, 1));
    r.add("IFFT2D", |b| build(b, Kind::Inverse, 2));
    r.add("IFFT3D", |b| build(b, Kind::Inverse, 3));
    r.add("RFFT", |b| build(b, Kind::RealForward, 1));
    r.add("RFFT2D", |b| build(b, Kind::RealForward, 2));
    r.add("RFFT3D", |b| build(b, Kind::RealForward, 3));
    r.add("IRFFT", |b| build(b, Kind::RealInverse, 1));
    r.add("IRFFT2D", |b| build(b, Kind::RealInverse, 2));
    r.add("IRFFT3D", |b| build(b, Kind::RealInverse, 3));
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Forward,
    Inverse,
    /// Real numbers to the half of their spectrum that determines the rest.
    RealForward,
    /// Back from that half.
    RealInverse,
}

impl Kind {
    fn is_inverse(self) -> bool {
        matches!(self, Kind::Inverse | Kind::RealInverse)
    }

    /// What is left of an innermost axis of length `n` where it is a half spectrum.
    fn half(n: usize) -> usize {
        n / 2 + 1
    }
}

fn build(b: &KernelBuilder<'_>, kind: Kind, rank: usize) -> Result<Built> {
    let dtype = b.output_type(0)?;
    match dtype {
        DType::Float | DType::Complex64 => {
            let plans = Plans::<f32>::default();
            Built::costly(move |ctx| run(ctx, kind, rank, dtype, &plans))
        }
        _ => {
            let plans = Plans::<f64>::default();
            Built::costly(move |ctx| run(ctx, kind, rank, dtype, &plans))
        }
    }
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// How long the transforms are, from the innermost axes' first to their last.
fn lengths(ctx: &OpContext<'_>, kind: Kind, rank: usize, x: &Tensor) -> Result<Vec<usize>> {
    let dims = x.dims();
    if dims.len() < rank {
        return invalid(format!(
            "Input must have rank of at least {rank} but got: {}",
            x.shape()
        ));
    }
    let outer = dims.len() - rank;
    if matches!(kind, Kind::Forward | Kind::Inverse) {
        return Ok(dims[outer..].to_vec());
    }
    let given = ctx.input(1)?;
    if given.dims() != [rank] {
        return invalid(format!("fft_length must have shape [{rank}]"));
    }
    let mut out = Vec::with_capacity(rank);
    for (i, n) in ints(given)?.into_iter().enumerate() {
        let Ok(n) = usize::try_from(n) else {
            return invalid(format!("fft_length[{i}] must >= 0, but got: {n}"));
        };
        let least = match kind {
            Kind::RealInverse if i + 1 == rank => Kind::half(n),
            _ => n,
        };
        let has = dims[outer + i];
        if has != 0 && has < least {
            return invalid(format!(
                "Input dimension {} must have length of at least {least} but got: {has}",
                outer + i
            ));
        }
        out.push(n);
    }
    Ok(out)
}

fn run<T: Number>(
    ctx: &mut OpContext<'_>,
    kind: Kind,
    rank: usize,
    dtype: DType,
    plans: &Plans<T>,
) -> Result<()> {
    let x = ctx.take(0)?;
    let lengths = lengths(ctx, kind, rank, &x)?;
    let outer = x.rank() - rank;
    let mut dims: Vec<i64> = x.dims().iter().map(|&d| d as i64).collect();
    for (to, &n) in dims[outer..].iter_mut().zip(&lengths) {
        *to = n as i64;
    }
    if let (Kind::RealForward, Some(last)) = (kind, dims.last_mut().filter(|n| **n != 0)) {
        *last = *last / 2 + 1;
    }
    let shape = shape_of(&dims)?;
    ctx.check_alloc(DType::Complex128, &shape)?;
    check_types(kind, x.dtype(), dtype)?;
    if x.num_elements() == 0 || shape.num_elements() == 0 {
        let out = ctx.zeros(dtype, &shape)?;
        ctx.set_output(0, out);
        return Ok(());
    }
    // What is read of each axis; the rest of a longer input is left out.
    let n = lengths[rank - 1];
    let mut dims = lengths.clone();
    if kind == Kind::RealInverse {
        dims[rank - 1] = Kind::half(n);
    }
    let inverse = kind.is_inverse();
    let mut work = Work::<T> {
        data: Vec::new(),
        dims,
        inverse,
    };
    if kind == Kind::RealForward {
        let rows = cut(x.as_slice::<T>()?, x.dims(), outer, &work.dims);
        drop(x);
        work.data = half_spectra(&rows, n, &plans.real(n, false));
        work.dims[rank - 1] = Kind::half(n);
    } else {
        work.data = cut(T::complex(&x)?, x.dims(), outer, &work.dims);
        drop(x);
    }
    (0..rank - 1).for_each(|axis| work.transform(axis, plans));
    let scale = T::of(1.0 / lengths.iter().map(|&n| n as f64).product::<f64>());
    if kind == Kind::RealInverse {
        let rows = from_half_spectra(&work.data, n, scale, &plans.real(n, true));
        ctx.set_output(0, Tensor::from_vec(rows, shape)?);
        return Ok(());
    }
    if kind != Kind::RealForward {
        work.transform(rank - 1, plans);
    }
    if inverse {
        work.data.iter_mut().for_each(|v| *v = *v * scale);
    }
    ctx.set_output(0, T::tensor(work.data, shape)?);
    Ok(())
}

fn check_types(kind: Kind, from: DType, to: DType) -> Result<()> {
    let pair = (from, to);
    let (what, fits) = match kind {
        Kind::RealForward => (
            "forward real ",
            [
                (DType::Float, DType::Complex64),
                (DType::Double, DType::Complex128),
            ]
            .contains(&pair),
        ),
        Kind::RealInverse => (
            "backward real ",
            [
                (DType::Complex64, DType::Float),
                (DType::Complex128, DType::Double),
            ]
            .contains(&pair),
        ),
        _ => ("", from == to),
    };
    if fits {
        return Ok(());
    }
    invalid(format!(
        "Wrong types for {what}FFT: in={} out={}",
        from.number(),
        to.number()
    ))
}

/// A precision that tensors have.
trait Number: Real + Element {
    fn complex(t: &Tensor) -> Result<&[Complex<Self>]>;
    fn tensor(values: Vec<Complex<Self>>, shape: Shape) -> Result<Tensor>;
}

impl Number for f32 {
    fn complex(t: &Tensor) -> Result<&[Complex<f32>]> {
        Ok(t.as_slice()?)
    }
    fn tensor(values: Vec<Complex<f32>>, shape: Shape) -> Result<Tensor> {
        Ok(Tensor::from_vec(values, shape)?)
    }
}

impl Number for f64 {
    fn complex(t: &Tensor) -> Result<&[Complex<f64>]> {
        Ok(t.as_slice()?)
    }
    fn tensor(values: Vec<Complex<f64>>, shape: Shape) -> Result<Tensor> {
        Ok(Tensor::from_vec(values, shape)?)
    }
}

/// The first `dims` of the innermost axes of `all`, whose dimensions are `given`.
fn cut<T: Copy>(all: &[T], given: &[usize], outer: usize, dims: &[usize]) -> Vec<T> {
    let from = &given[outer..];
    if from == dims {
        return all.to_vec();
    }
    let batch: usize = given[..outer].iter().product();
    let last = dims.len() - 1;
    let (row, rows) = (dims[last], dims[..last].iter().product::<usize>());
    let mut out = Vec::with_capacity(batch * rows * row);
    for i in 0..batch * rows {
        // The row's number in the input.
        let (mut rest, mut at, mut scale) = (i % rows, 0, 1);
        for d in (0..last).rev() {
            at += rest % dims[d] * scale;
            rest /= dims[d];
            scale *= from[d];
        }
        let start = (i / rows * scale + at) * from[last];
        out.extend_from_slice(&all[start..start + row]);
    }
    out
}

/// The first half of the spectrum of each row of `n` real numbers.
fn half_spectra<T: Real>(rows: &[T], n: usize, plan: &RealPlan<T>) -> Vec<Complex<T>> {
    let half = Kind::half(n);
    let mut out = vec![Complex::<T>::default(); rows.len() / n * half];
    parallel_ranges(&mut out, half, GRAIN / half + 1, |first, out| {
        let mut lines = Lines::default();
        let group = plan.lanes();
        for (g, out) in out.chunks_mut(group * half).enumerate() {
            let start = (first + g * group) * n;
            let rows = &rows[start..start + out.len() / half * n];
            plan.forward(rows, out, &mut lines);
        }
    });
    out
}

/// Rows of `n` real numbers from the first halves of their spectra.
fn from_half_spectra<T: Real>(
    data: &[Complex<T>],
    n: usize,
    scale: T,
    plan: &RealPlan<T>,
) -> Vec<T> {
    let half = Kind::half(n);
    let mut out = vec![T::zero(); data.len() / half * n];
    parallel_ranges(&mut out, n, GRAIN / n + 1, |first, out| {
        let mut lines = Lines::default();
        let group = plan.lanes();
        for (g, out) in out.chunks_mut(group * n).enumerate() {
            let start = (first + g * group) * half;
            let rows = &data[start..start + out.len() / n * half];
            plan.backward(rows, out, scale, &mut lines);
        }
    });
    out
}

/// Numbers on their way through the axes.
struct Work<T> {
    dims: Vec<usize>,
    data: Vec<Complex<T>>,
    inverse: bool,
}

impl<T: Real> Work<T> {
    fn transform(&mut self, axis: usize, plans: &Plans<T>) {
        let n = self.dims[axis];
        let inner: usize = self.dims[axis + 1..].iter().product();
        if n < 2 || inner == 0 {
            return;
        }
        let plan = plans.get(n, self.inverse);
        let block = n * inner;
        let lanes = plan.lanes();
        parallel_ranges(&mut self.data, block, GRAIN / block + 1, |_, blocks| {
            let mut lines = Lines::default();
            if inner == 1 {
                for rows in blocks.chunks_mut(lanes * n) {
                    lines.open(n, rows.len() / n);
                    let count = rows.len() / n;
                    for i in 0..n {
                        (0..count).for_each(|lane| lines.set(i, lane, rows[lane * n + i]));
                    }
                    plan.run(&mut lines);
                    for i in 0..n {
                        (0..count).for_each(|lane| rows[lane * n + i] = lines.get(i, lane));
                    }
                }
                return;
            }
            for block in blocks.chunks_mut(block) {
                for start in (0..inner).step_by(lanes) {
                    let count = lanes.min(inner - start);
                    lines.open(n, count);
                    for (i, row) in block.chunks(inner).enumerate() {
                        let row = &row[start..start + count];
                        (0..count).for_each(|lane| lines.set(i, lane, row[lane]));
                    }
                    plan.run(&mut lines);
                    for (i, row) in block.chunks_mut(inner).enumerate() {
                        let row = &mut row[start..start + count];
                        (0..count).for_each(|lane| row[lane] = lines.get(i, lane));
                    }
                }
            }
        });
    }
}
