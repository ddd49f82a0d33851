//! `Dilation2D` and its gradients: the largest sum of input and filter over each window.

use crate::nn::bias::Sum;
use crate::nn::window::{Axis, Format, Padding};
use crate::types::{REALS, with_type};
use downpour_graph::{Attrs, Result, Status};
use downpour_runtime::{Built, OpContext, Registry, parallel_ranges};
use downpour_tensor::{Element, Shape, Tensor};

/// Sums worth a thread of their own.
const GRAIN: usize = 16 << 10;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Dilation2D", &[("T", REALS)], |b| {
        let p = Params::parse(b.attrs())?;
        Built::costly(move |ctx| run(ctx, &p, Wanted::Output))
    });
    r.add_typed("Dilation2DBackpropInput", &[("T", REALS)], |b| {
        let p = Params::parse(b.attrs())?;
        Built::costly(move |ctx| run(ctx, &p, Wanted::Input))
    });
    r.add_typed("Dilation2DBackpropFilter", &[("T", REALS)], |b| {
        let p = Params::parse(b.attrs())?;
        Built::costly(move |ctx| run(ctx, &p, Wanted::Filter))
    });
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

#[derive(Clone, Copy, PartialEq)]
enum Wanted {
    Output,
    Input,
    Filter,
}

struct Params {
    strides: [usize; 2],
    rates: [usize; 2],
    padding: Padding,
}

impl Params {
    fn parse(attrs: &Attrs) -> Result<Params> {
        let inner = |name: &str, what: &str| -> Result<[i64; 2]> {
            let &[n, h, w, c] = attrs.ints(name)? else {
                return invalid(format!(
                    "Sliding window {name} field must specify 4 dimensions"
                ));
            };
            if n != 1 || c != 1 {
                return Err(Status::unimplemented(format!(
                    "{what} is only supported across spatial dimensions."
                )));
            }
            Ok([h, w])
        };
        let positive = |name: &str, [h, w]: [i64; 2]| match (usize::try_from(h), usize::try_from(w))
        {
            (Ok(h), Ok(w)) if h > 0 && w > 0 => Ok([h, w]),
            _ => invalid(format!("{name} must be positive")),
        };
        let (strides, rates) = (inner("strides", "Stride")?, inner("rates", "Rate")?);
        Ok(Params {
            strides: positive("strides", strides)?,
            rates: positive("rates", rates)?,
            padding: Padding::parse(attrs, Format::Nhwc)?,
        })
    }
}

fn run(ctx: &mut OpContext<'_>, p: &Params, wanted: Wanted) -> Result<()> {
    let (x, filter) = (ctx.take(0)?, ctx.take(1)?);
    let &[n, h, w, c] = x.dims() else {
        return invalid(format!("input must be 4-dimensional{}", x.shape()));
    };
    let &[fh, fw, fc] = filter.dims() else {
        return invalid(format!("filter must be 3-dimensional: {}", filter.shape()));
    };
    if fc != c {
        return invalid(format!(
            "input and filter must have the same depth: {c} vs {fc}"
        ));
    }
    let axis = |i: usize, size: usize, window: usize| {
        Axis::new(size, window, p.strides[i], p.rates[i], &p.padding, i)
    };
    let walk = Walk {
        batch: n,
        h: axis(0, h, fh)?,
        w: axis(1, w, fw)?,
        channels: c,
    };
    let out_dims = Shape::from([n, walk.h.output, walk.w.output, c]);
    let grad = match wanted {
        Wanted::Output => None,
        _ => {
            let dy = ctx.take(2)?;
            if dy.shape() != &out_dims {
                return invalid("out_backprop has incompatible size.");
            }
            Some(dy)
        }
    };
    let shape = match wanted {
        Wanted::Output => &out_dims,
        Wanted::Input => x.shape(),
        Wanted::Filter => filter.shape(),
    };
    ctx.check_alloc(x.dtype(), shape)?;
    let out = with_type!(x.dtype(), T in reals => {
        compute::<T>(&walk, &x, &filter, grad.as_ref(), wanted, shape.clone())?
    });
    ctx.set_output(0, out);
    Ok(())
}

struct Walk {
    batch: usize,
    h: Axis,
    w: Axis,
    channels: usize,
}

impl Walk {
    /// The largest sum of every window. All channels of a window together, so that the loop runs along neighbours.
    fn largest<T: Element + PartialOrd + Sum + Lowest>(
        &self,
        x: &[T],
        filter: &[T],
        out: &mut [T],
    ) {
        let (c, row) = (self.channels, self.w.output * self.channels);
        let place = |a: &Axis, o: usize, k: usize| {
            let at = (o * a.stride + k * a.dilation).checked_sub(a.before)?;
            (at < a.input).then_some(at)
        };
        let work = row * self.h.window * self.w.window;
        parallel_ranges(out, row, GRAIN / work.max(1) + 1, |first, rows| {
            for (i, row) in rows.chunks_exact_mut(row).enumerate() {
                let (n, y) = ((first + i) / self.h.output, (first + i) % self.h.output);
                row.fill(T::LOWEST);
                for ky in 0..self.h.window {
                    let Some(iy) = place(&self.h, y, ky) else {
                        continue;
                    };
                    let line = &x[(n * self.h.input + iy) * self.w.input * c..];
                    for kx in 0..self.w.window {
                        let taps = &filter[(ky * self.w.window + kx) * c..][..c];
                        for (ox, out) in row.chunks_exact_mut(c).enumerate() {
                            let Some(ix) = place(&self.w, ox, kx) else {
                                continue;
                            };
                            for ((o, x), f) in out.iter_mut().zip(&line[ix * c..]).zip(taps) {
                                let v = x.sum(*f);
                                *o = if v > *o { v } else { *o };
                            }
                        }
                    }
                }
            }
        });
    }

    /// Calls `f(output, input, tap)` with the places of every window's first largest sum.
    fn each<T: Element + PartialOrd + Sum>(
        &self,
        x: &[T],
        filter: &[T],
        mut f: impl FnMut(usize, Option<(usize, usize)>),
    ) {
        let place = |a: &Axis, o: usize, k: usize| {
            let at = (o * a.stride + k * a.dilation).checked_sub(a.before)?;
            (at < a.input).then_some(at)
        };
        let mut out = 0;
        for n in 0..self.batch {
            for y in 0..self.h.output {
                for ox in 0..self.w.output {
                    for c in 0..self.channels {
                        let mut best: Option<(T, usize, usize)> = None;
                        for ky in 0..self.h.window {
                            let Some(iy) = place(&self.h, y, ky) else {
                                continue;
                            };
                            for kx in 0..self.w.window {
                                let Some(ix) = place(&self.w, ox, kx) else {
                                    continue;
                                };
                                let at = ((n * self.h.input + iy) * self.w.input + ix)
                                    * self.channels
                                    + c;
                                let tap = (ky * self.w.window + kx) * self.channels + c;
                                let v = x[at].sum(filter[tap]);
                                if best.is_none_or(|(b, ..)| v > b) {
                                    best = Some((v, at, tap));
                                }
                            }
                        }
                        f(out, best.map(|(_, at, tap)| (at, tap)));
                        out += 1;
                    }
                }
            }
        }
    }
}

fn compute<T: Element + PartialOrd + Sum + Lowest>(
    walk: &Walk,
    x: &Tensor,
    filter: &Tensor,
    grad: Option<&Tensor>,
    wanted: Wanted,
    shape: Shape,
) -> Result<Tensor> {
    let (x, filter) = (x.as_slice::<T>()?, filter.as_slice::<T>()?);
    let mut out = vec![T::default(); shape.num_elements()];
    match grad {
        None => walk.largest(x, filter, &mut out),
        Some(dy) => {
            let dy = dy.as_slice::<T>()?;
            walk.each(x, filter, |o, found| {
                if let Some((at, tap)) = found {
                    let to = if wanted == Wanted::Input { at } else { tap };
                    out[to] = out[to].sum(dy[o]);
                }
            });
        }
    }
    Ok(Tensor::from_vec(out, shape)?)
}

/// The least value of a type, which an empty window gives.
trait Lowest {
    const LOWEST: Self;
}

macro_rules! lowest {
    ($($t:ty),*) => { $(impl Lowest for $t { const LOWEST: Self = <$t>::MIN; })* };
}
lowest!(
    f32,
    f64,
    half::f16,
    half::bf16,
    i8,
    i16,
    i32,
    i64,
    u8,
    u16,
    u32,
    u64
);

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_graph::AttrValue;
    use downpour_tensor::{DType, Tensor};

    fn x() -> Tensor {
        let v = (0..25).map(|i| ((i * 7) % 11) as f32).collect();
        Tensor::from_vec(v, [1, 5, 5, 1]).unwrap()
    }

    fn filter() -> Tensor {
        Tensor::from_vec(vec![0.0f32, 1.0, 2.0, 0.0], [2, 2, 1]).unwrap()
    }

    fn attrs(step: i64, padding: &str) -> Vec<(&'static str, AttrValue)> {
        vec![
            ("T", DType::Float.into()),
            ("strides", vec![1, step, step, 1].into()),
            ("rates", vec![1, step, step, 1].into()),
            ("padding", padding.into()),
        ]
    }

    // Values: tf.raw_ops.Dilation2D and its backprops.
    #[test]
    fn values_agree_with_tensorflow() {
        let run = |op: &str, inputs: Vec<Tensor>, a: &[(&str, AttrValue)]| {
            run_op(op, inputs, a).unwrap()[0]
                .as_slice::<f32>()
                .unwrap()
                .to_vec()
        };
        let same = attrs(1, "SAME");
        let y = run("Dilation2D", vec![x(), filter()], &same);
        assert_eq!(y[..5], [9.0, 11.0, 11.0, 10.0, 10.0]);
        assert_eq!(y[20..], [8.0, 4.0, 8.0, 7.0, 3.0]);
        let y = run("Dilation2D", vec![x(), filter()], &attrs(2, "VALID"));
        assert_eq!(y, [7.0, 10.0, 10.0, 11.0]);
        let dy = (0..25).map(|i| (i % 5) as f32).collect();
        let dy = Tensor::from_vec(dy, [1, 5, 5, 1]).unwrap();
        let inputs = vec![x(), filter(), dy.clone()];
        let df = run("Dilation2DBackpropFilter", inputs, &same);
        assert_eq!(df, [18.0, 8.0, 20.0, 4.0]);
        let dx = run("Dilation2DBackpropInput", vec![x(), filter(), dy], &same);
        assert_eq!(dx[..10], [0.0, 0.0, 0.0, 5.0, 0.0, 0.0, 2.0, 0.0, 0.0, 4.0]);
        let short = Tensor::zeros(DType::Float, [1, 3, 5, 1]).unwrap();
        let e = run_op("Dilation2DBackpropInput", vec![x(), filter(), short], &same);
        assert!(
            e.unwrap_err()
                .message
                .starts_with("out_backprop has incompatible size.")
        );
    }
}
