//! Fourier transforms over the innermost axes: `FFT`, `RFFT` and their inverses in one, two and
//! three dimensions. Computed in double precision, given in the op's own.

mod plan;

use crate::args::{ints, shape_of};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, parallel_ranges};
use downpour_tensor::{DType, Shape, Tensor};
use num_complex::{Complex32, Complex64};
pub(crate) use plan::Plan;

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
    Built::costly(move |ctx| run(ctx, kind, rank, dtype))
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

fn run(ctx: &mut OpContext<'_>, kind: Kind, rank: usize, dtype: DType) -> Result<()> {
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
    let mut work = Work {
        data: cut(&x, outer, &dims)?,
        dims,
        inverse: kind.is_inverse(),
    };
    drop(x);
    // The half spectrum is where the innermost axis has not been transformed back yet.
    if kind == Kind::RealForward {
        work.transform(rank - 1);
        work.keep(Kind::half(n));
    }
    (0..rank - 1).for_each(|axis| work.transform(axis));
    if kind == Kind::RealInverse {
        work.mirror(n);
    }
    if kind != Kind::RealForward {
        work.transform(rank - 1);
    }
    if kind.is_inverse() {
        let scale = 1.0 / lengths.iter().map(|&n| n as f64).product::<f64>();
        work.data.iter_mut().for_each(|v| *v *= scale);
    }
    ctx.set_output(0, finish(work.data, shape, dtype)?);
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

/// The first `dims` of the innermost axes of `x`.
fn cut(x: &Tensor, outer: usize, dims: &[usize]) -> Result<Vec<Complex64>> {
    let from = &x.dims()[outer..];
    let all: Vec<Complex64> = match x.dtype() {
        DType::Float => real(x.as_slice::<f32>()?),
        DType::Double => real(x.as_slice::<f64>()?),
        DType::Complex128 => x.as_slice::<Complex64>()?.to_vec(),
        _ => x
            .as_slice::<Complex32>()?
            .iter()
            .map(|v| Complex64::new(v.re.into(), v.im.into()))
            .collect(),
    };
    if from == dims {
        return Ok(all);
    }
    let batch: usize = x.dims()[..outer].iter().product();
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
    Ok(out)
}

fn real<T: Copy + Into<f64>>(values: &[T]) -> Vec<Complex64> {
    let complex = |&v: &T| Complex64::new(v.into(), 0.0);
    values.iter().map(complex).collect()
}

/// Numbers on their way through the axes.
struct Work {
    dims: Vec<usize>,
    data: Vec<Complex64>,
    inverse: bool,
}

impl Work {
    fn transform(&mut self, axis: usize) {
        let n = self.dims[axis];
        let inner: usize = self.dims[axis + 1..].iter().product();
        if n < 2 || inner == 0 {
            return;
        }
        let plan = Plan::new(n, self.inverse);
        let block = n * inner;
        parallel_ranges(&mut self.data, block, GRAIN / block + 1, |_, blocks| {
            let (mut line, mut room) = (vec![Complex64::default(); n], Vec::new());
            for block in blocks.chunks_mut(block) {
                if inner == 1 {
                    plan.run(block, &mut room);
                    continue;
                }
                for i in 0..inner {
                    let column = block.iter().skip(i).step_by(inner);
                    line.iter_mut()
                        .zip(column)
                        .for_each(|(to, from)| *to = *from);
                    plan.run(&mut line, &mut room);
                    let column = block.iter_mut().skip(i).step_by(inner);
                    column.zip(&line).for_each(|(to, from)| *to = *from);
                }
            }
        });
    }

    /// Makes rows of half a spectrum into rows of `n`, the second half mirroring the first.
    fn mirror(&mut self, n: usize) {
        let half = Kind::half(n);
        let mut out = Vec::with_capacity(self.data.len() / half * n);
        for row in self.data.chunks(half) {
            out.extend_from_slice(&row[..half.min(n)]);
            out.extend((half..n).map(|k| row[n - k].conj()));
        }
        self.data = out;
        if let Some(last) = self.dims.last_mut() {
            *last = n;
        }
    }

    /// Keeps the first `n` elements of each row.
    fn keep(&mut self, n: usize) {
        if let Some(last) = self.dims.last_mut() {
            let rows = self.data.chunks((*last).max(1));
            self.data = rows.flat_map(|r| r[..n].iter().copied()).collect();
            *last = n;
        }
    }
}

fn finish(data: Vec<Complex64>, shape: Shape, dtype: DType) -> Result<Tensor> {
    Ok(match dtype {
        DType::Float => Tensor::from_vec::<f32>(data.iter().map(|v| v.re as f32).collect(), shape)?,
        DType::Double => Tensor::from_vec::<f64>(data.iter().map(|v| v.re).collect(), shape)?,
        DType::Complex128 => Tensor::from_vec(data, shape)?,
        _ => {
            let narrow = |v: &Complex64| Complex32::new(v.re as f32, v.im as f32);
            Tensor::from_vec::<Complex32>(data.iter().map(narrow).collect(), shape)?
        }
    })
}
