//! Counting and searching: `Bincount`, `Bucketize`, `LowerBound`, `UnravelIndex`.

use crate::args::{int_tensor, ints};
use crate::array::scatter::Sum;
use crate::types::{INDEX, NUMBERS, REALS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, parallel_ranges};
use downpour_tensor::{DType, Element, Shape, Tensor};
use num_traits::{One, Zero};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Bincount", &[("T", NUMBERS)], bincount);
    r.add_typed(
        "DenseBincount",
        &[("T", NUMBERS), ("Tidx", INDEX)],
        dense_bincount,
    );
    r.add_typed(
        "Bucketize",
        &[(
            "T",
            &[DType::Int32, DType::Int64, DType::Float, DType::Double],
        )],
        bucketize,
    );
    r.add_typed("LowerBound", &[("T", REALS), ("out_type", INDEX)], |b| {
        bound(b, false)
    });
    r.add_typed("UpperBound", &[("T", REALS), ("out_type", INDEX)], |b| {
        bound(b, true)
    });
    r.add_typed("UnravelIndex", &[("Tidx", INDEX)], |_| {
        Built::cheap(unravel)
    });
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

/// Input 1: how many bins there are.
fn bins(ctx: &OpContext<'_>) -> Result<usize> {
    let t = ctx.input(1)?;
    if t.rank() != 0 {
        return invalid(format!("Shape must be rank 0 but is rank {}", t.rank()));
    }
    let size = ints(t)?[0];
    usize::try_from(size).or_else(|_| invalid(format!("size ({size}) must be non-negative")))
}

/// Values worth a thread of their own.
const GRAIN: usize = 32 << 10;

/// A number that may be the place of a bin; one that is not negative.
trait Place: Element {
    fn index(self) -> usize;
    fn is_negative(self) -> bool;
}

impl Place for i32 {
    fn index(self) -> usize {
        self as u32 as usize
    }
    fn is_negative(self) -> bool {
        self < 0
    }
}

impl Place for i64 {
    fn index(self) -> usize {
        self as u64 as usize
    }
    fn is_negative(self) -> bool {
        self < 0
    }
}

/// A negative one of some numbers. Their signs are looked at together first, which takes no branches.
fn negative<I: Place>(values: &[I]) -> Option<I> {
    let any = |part: &[I]| part.iter().fold(false, |any, v| any | v.is_negative());
    let part = values.chunks(1 << 10).find(|part| any(part))?;
    part.iter().copied().find(|v| v.is_negative())
}

/// Rows of `width` values (all but the last shorter rows do not occur) counted into `bins` each.
fn counted<T: Element + Sum + Zero + One, I: Place>(
    ctx: &OpContext<'_>,
    values: &[I],
    width: usize,
    shape: Shape,
    bins: usize,
    binary: bool,
) -> Result<Tensor> {
    let mut out = ctx.zeros(T::DTYPE, &shape)?;
    let weights = ctx.input(2)?.as_slice::<T>()?;
    let (width, bins) = (width.max(1), bins.max(1));
    // A row of bins for a row of values: each is one thread's.
    let rows = GRAIN / width + 1;
    parallel_ranges(out.make_mut::<T>()?, bins, rows, |first, sums| {
        let from = first * width;
        for (row, sums) in sums.chunks_mut(bins).enumerate() {
            let start = (from + row * width).min(values.len());
            let own = &values[start..(start + width).min(values.len())];
            if binary {
                for &v in own {
                    if let Some(sum) = sums.get_mut(v.index()) {
                        *sum = T::one();
                    }
                }
            } else if weights.is_empty() {
                for &v in own {
                    if let Some(sum) = sums.get_mut(v.index()) {
                        *sum = sum.plus(T::one());
                    }
                }
            } else {
                for (&v, &w) in own.iter().zip(&weights[start..]) {
                    if let Some(sum) = sums.get_mut(v.index()) {
                        *sum = sum.plus(w);
                    }
                }
            }
        }
    });
    Ok(out)
}

fn bincount(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("T")?;
    Built::cheap(move |ctx| {
        let size = bins(ctx)?;
        let values = ctx.input(0)?.as_slice::<i32>()?;
        let weights = ctx.input(2)?.num_elements();
        if weights > 0 && weights != values.len() {
            return invalid("Input indices and weights must have the same size.".to_owned());
        }
        if negative(values).is_some() {
            return invalid("Input arr must be non-negative!".to_owned());
        }
        let (width, shape) = (values.len(), Shape::from([size]));
        let out = with_type!(dtype, T in numbers =>
            counted::<T, i32>(ctx, values, width, shape, size, false)?);
        ctx.set_output(0, out);
        Ok(())
    })
}

fn dense_bincount(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("T")?;
    let binary = b.attrs().bool("binary_output")?;
    Built::cheap(move |ctx| {
        let data = ctx.input(0)?;
        if data.rank() > 2 {
            return invalid(format!(
                "Shape must be at most rank 2 but is rank {}",
                data.rank()
            ));
        }
        let weights = ctx.input(2)?;
        if weights.num_elements() > 0 && weights.shape() != data.shape() {
            return invalid(format!(
                "`weights` must be the same shape as `arr` or a length-0 `Tensor`, in which case it acts as all weights equal to 1. Received {}",
                weights.shape()
            ));
        }
        let size = bins(ctx)?;
        let refused = match data.dtype() {
            DType::Int32 => negative(data.as_slice::<i32>()?).map(i64::from),
            _ => negative(data.as_slice::<i64>()?),
        };
        if let Some(v) = refused {
            return invalid(match data.rank() {
                2 => format!("Input 'in' must be non-negative! Negative input value found: {v}"),
                _ => "Input arr must be non-negative!".to_owned(),
            });
        }
        let (width, shape) = match data.dims() {
            [rows, cols] => (*cols, Shape::from([*rows, size])),
            _ => (data.num_elements(), Shape::from([size])),
        };
        let out = with_type!(dtype, T in numbers => match data.dtype() {
            DType::Int32 => counted::<T, i32>(ctx, data.as_slice()?, width, shape, size, binary)?,
            _ => counted::<T, i64>(ctx, data.as_slice()?, width, shape, size, binary)?,
        });
        ctx.set_output(0, out);
        Ok(())
    })
}

fn bucketize(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("T")?;
    let boundaries = b.attrs().floats("boundaries")?.to_vec();
    if !boundaries.is_sorted() {
        return invalid("Expected sorted boundaries".to_owned());
    }
    Built::cheap(move |ctx| {
        let x = ctx.input(0)?;
        let out: Vec<i32> = with_type!(dtype, T in [i32, i64, f32, f64] => {
            (x.as_slice::<T>()?.iter())
                // Integers are compared as floats, doubles with the boundaries widened.
                .map(|&v| boundaries.partition_point(|&b| !((v as f64) < f64::from(b))) as i32)
                .collect()
        });
        let shape = x.shape().clone();
        ctx.set_output(0, Tensor::from_vec(out, shape)?);
        Ok(())
    })
}

fn bound(b: &KernelBuilder<'_>, upper: bool) -> Result<Built> {
    let (dtype, out_type) = (b.attrs().dtype("T")?, b.attrs().dtype("out_type")?);
    Built::cheap(move |ctx| {
        let (sorted, values) = (ctx.input(0)?, ctx.input(1)?);
        for (name, t) in [("sorted_inputs", sorted), ("values", values)] {
            if t.rank() != 2 {
                return invalid(format!(
                    "Shape must be rank 2 but is rank {} for `{name}` argument",
                    t.rank()
                ));
            }
        }
        if sorted.dims()[0] != values.dims()[0] {
            return invalid("Leading dim_size of both tensors must match.".to_owned());
        }
        let (n, m) = (sorted.dims()[1], values.dims()[1]);
        let out: Vec<i64> = with_type!(dtype, T in reals => {
            let sorted = sorted.as_slice::<T>()?;
            (values.as_slice::<T>()?.iter().enumerate())
                .map(|(i, v)| {
                    let row = &sorted[i / m * n..(i / m + 1) * n];
                    let at = match upper {
                        true => row.partition_point(|s| !(v < s)),
                        false => row.partition_point(|s| s < v),
                    };
                    at as i64
                })
                .collect()
        });
        let shape = values.shape().clone();
        ctx.set_output(0, int_tensor(out_type, out, shape)?);
        Ok(())
    })
}

fn unravel(ctx: &mut OpContext<'_>) -> Result<()> {
    let (indices, dims) = (ctx.input(0)?, ctx.input(1)?);
    if indices.num_elements() == 0 {
        return invalid(format!(
            "received empty tensor indices: Tensor<type: {} shape: {} values: >",
            indices.dtype(),
            indices.shape()
        ));
    }
    if indices.rank() > 1 {
        return invalid(format!(
            "The indices can only be scalar or vector, got \"{}\"",
            indices.shape()
        ));
    }
    // The text speaks of indices and means dims; it is TensorFlow's.
    if dims.rank() != 1 {
        return invalid(format!(
            "The indices can only be 1-D, got \"{}\"",
            dims.shape()
        ));
    }
    let sizes = ints(dims)?;
    let mut product = 1i64;
    for (i, &d) in sizes.iter().enumerate() {
        if d == 0 {
            return invalid(format!(
                "Input dims cannot contain a dim of zero, but dims contains zero at index {i}"
            ));
        }
        if d < 0 {
            return invalid(format!(
                "Input dims cannot be negative. Got dim = {d} at index {i}"
            ));
        }
        let limit = if dims.dtype() == DType::Int32 {
            i64::from(i32::MAX)
        } else {
            i64::MAX
        };
        product = match product.checked_mul(d).filter(|&p| p <= limit) {
            Some(p) => p,
            None => {
                let list: Vec<String> = sizes.iter().map(i64::to_string).collect();
                return invalid(format!(
                    "Input dims product is causing integer overflow: ({})",
                    list.join(" ")
                ));
            }
        };
    }
    let values = ints(indices)?;
    if values.iter().any(|&v| v >= product) {
        return invalid("index is out of bound as with dims".to_owned());
    }
    let (n, rank) = (values.len(), sizes.len());
    let mut out = vec![0i64; rank * n];
    for (i, &v) in values.iter().enumerate() {
        let mut rest = v;
        for d in (0..rank).rev() {
            out[d * n + i] = rest % sizes[d];
            rest /= sizes[d];
        }
    }
    let shape = match indices.rank() {
        0 => Shape::from([rank]),
        _ => Shape::from([rank, n]),
    };
    let dtype = indices.dtype();
    ctx.set_output(0, int_tensor(dtype, out, shape)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::AttrValue;
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn values_are_counted_or_weighed() {
        let attrs = [("T", DType::Float.into()), ("Tidx", DType::Int32.into())];
        let rows = Tensor::from_vec(vec![0i32, 1, 1, 2, 2, 5], [2, 3]).unwrap();
        let run = |x: Tensor, w: Tensor| {
            run_op("DenseBincount", vec![x, Tensor::scalar(3i32), w], &attrs)
        };
        let out = run(rows.clone(), floats(&[])).unwrap();
        assert_eq!(
            out[0].as_slice::<f32>().unwrap(),
            [1.0, 2.0, 0.0, 0.0, 0.0, 2.0]
        );
        let weights = Tensor::from_vec(vec![0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0], [2, 3]).unwrap();
        let out = run(rows, weights).unwrap();
        assert_eq!(
            out[0].as_slice::<f32>().unwrap(),
            [0.0, 3.0, 0.0, 0.0, 0.0, 7.0]
        );
        let e = run(Tensor::vector(vec![0i32, -1]), floats(&[])).unwrap_err();
        assert!(e.message.starts_with("Input arr must be non-negative!"));
    }

    #[test]
    fn searches_find_the_edges_of_equal_runs() {
        let sorted = Tensor::from_vec(vec![1.0f32, 1.0, 2.0, 2.0], [1, 4]).unwrap();
        let values = Tensor::from_vec(vec![0.0, 1.0, 2.0, 3.0, f32::NAN], [1, 5]).unwrap();
        let attrs = [("T", DType::Float.into())];
        let run = |op| run_op(op, vec![sorted.clone(), values.clone()], &attrs).unwrap();
        assert_eq!(
            run("LowerBound")[0].as_slice::<i32>().unwrap(),
            [0, 0, 2, 4, 0]
        );
        assert_eq!(
            run("UpperBound")[0].as_slice::<i32>().unwrap(),
            [0, 2, 4, 4, 4]
        );
        let list = AttrValue::List(downpour_graph::AttrList::Float(vec![1.0, 3.0]));
        let attrs = [("T", DType::Float.into()), ("boundaries", list)];
        let x = floats(&[0.0, 1.0, 2.0, 3.0, 4.0, f32::NAN]);
        let out = run_op("Bucketize", vec![x], &attrs).unwrap();
        assert_eq!(out[0].as_slice::<i32>().unwrap(), [0, 1, 1, 2, 2, 2]);
    }

    #[test]
    fn flat_indices_are_unravelled_by_column() {
        let attrs = [("Tidx", DType::Int32.into())];
        let run = |i: Vec<i32>| {
            run_op(
                "UnravelIndex",
                vec![Tensor::vector(i), Tensor::vector(vec![2i32, 3])],
                &attrs,
            )
        };
        assert_eq!(
            run(vec![3, 5]).unwrap()[0].as_slice::<i32>().unwrap(),
            [1, 1, 0, 2]
        );
        assert!(
            run(vec![6])
                .unwrap_err()
                .message
                .starts_with("index is out of bound as with dims")
        );
    }
}
