//! `NearestNeighbors`, `IsotonicRegression`, `ApproxTopK`.

use crate::types::{FLOATS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, parallel_ranges};
use downpour_tensor::{DType, Element, Shape, Tensor};
use num_traits::ToPrimitive;

pub(crate) fn register(r: &mut Registry) {
    r.add("NearestNeighbors", |_| Built::costly(nearest));
    let pairs: [(&'static [DType], &'static [DType]); 6] = [
        (&[DType::BFloat16], &[DType::BFloat16]),
        (&[DType::Double], &[DType::Double]),
        (&[DType::Float], &[DType::Float]),
        (&[DType::Half], &[DType::Half]),
        (&[DType::Int16, DType::Int8], &[DType::Float]),
        (&[DType::Int32, DType::Int64], &[DType::Double]),
    ];
    for (from, to) in pairs {
        r.add_typed(
            "IsotonicRegression",
            &[("T", from), ("output_dtype", to)],
            |b| {
                let dtype = b.attrs().dtype("output_dtype")?;
                Built::costly(move |ctx| isotonic(ctx, dtype))
            },
        );
    }
    r.add_typed("ApproxTopK", &[("T", FLOATS)], approximate);
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn nearest(ctx: &mut OpContext<'_>) -> Result<()> {
    let (points, centers, k) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let &[n, depth] = points.dims() else {
        return invalid("Input points should be a matrix.");
    };
    let &[count, width] = centers.dims() else {
        return invalid("Input centers should be a matrix.");
    };
    if k.rank() != 0 {
        return invalid("Input k should be a scalar.");
    }
    let k = k.scalar_value::<i64>()?;
    if depth != width {
        return invalid(format!(
            "Expected point_dimensions == center_dimensions: {depth} vs {width}."
        ));
    }
    let Ok(k) = usize::try_from(k) else {
        return invalid(format!("k must be a non-negative integer: {k}"));
    };
    let k = k.min(count);
    let (from, to) = (points.as_slice::<f32>()?, centers.as_slice::<f32>()?);
    let square = |v: &[f32]| v.iter().map(|x| x * x).sum::<f32>();
    let lengths: Vec<f32> = (0..count)
        .map(|c| 0.5 * square(&to[c * width..(c + 1) * width]))
        .collect();
    let mut found = vec![(0i64, 0f32); n * k];
    if k > 0 {
        let grain = (16 << 10) / (count * depth).max(1) + 1;
        parallel_ranges(&mut found, k, grain, |first, rows| {
            for (i, row) in rows.chunks_mut(k).enumerate() {
                let point = &from[(first + i) * depth..(first + i + 1) * depth];
                let own = 0.5 * square(point);
                let mut all: Vec<(f32, usize)> = (0..count)
                    .map(|c| {
                        let center = &to[c * width..(c + 1) * width];
                        let product: f32 = point.iter().zip(center).map(|(a, b)| a * b).sum();
                        (lengths[c] - product, c)
                    })
                    .collect();
                all.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
                for (slot, (distance, c)) in row.iter_mut().zip(all) {
                    // Rounding must not make a squared distance negative.
                    *slot = (c as i64, (2.0 * (distance + own)).max(0.0));
                }
            }
        });
    }
    let shape = Shape::from([n, k]);
    let places = found.iter().map(|f| f.0).collect();
    let distances = found.iter().map(|f| f.1).collect();
    ctx.set_output(0, Tensor::from_vec::<i64>(places, shape.clone())?);
    ctx.set_output(1, Tensor::from_vec::<f32>(distances, shape)?);
    Ok(())
}

/// The nearest falling sequence to each row: neighbours that rise are pooled to their mean.
fn isotonic(ctx: &mut OpContext<'_>, dtype: DType) -> Result<()> {
    fn widened<T: Element + ToPrimitive>(t: &Tensor) -> Result<Vec<f64>> {
        let values = t.as_slice::<T>()?.iter();
        Ok(values.map(|v| v.to_f64().unwrap_or(f64::NAN)).collect())
    }
    let x = ctx.input(0)?;
    let values = with_type!(x.dtype(), T in reals => widened::<T>(x)?);
    let width = x.dims().last().copied().unwrap_or(1);
    let mut out = Vec::with_capacity(values.len());
    let mut segments: Vec<i32> = Vec::with_capacity(values.len());
    for row in values.chunks(width.max(1)) {
        let mut pools: Vec<(f64, usize)> = Vec::new();
        for v in row {
            pools.push((*v, 1));
            while let [.., (a, n), (b, m)] = pools[..] {
                if !(a / (n as f64) < b / (m as f64)) {
                    break;
                }
                pools.truncate(pools.len() - 2);
                pools.push((a + b, n + m));
            }
        }
        for (i, (sum, n)) in pools.into_iter().enumerate() {
            out.extend(std::iter::repeat_n(sum / n as f64, n));
            segments.extend(std::iter::repeat_n(i as i32, n));
        }
    }
    let shape = x.shape().clone();
    let made = match dtype {
        DType::Double => Tensor::from_vec(out, shape.clone())?,
        _ => {
            let single = out.into_iter().map(|v| v as f32).collect();
            crate::nn::float::narrow(Tensor::from_vec::<f32>(single, shape.clone())?, dtype)?
        }
    };
    ctx.set_output(0, made);
    ctx.set_output(1, Tensor::from_vec(segments, shape)?);
    Ok(())
}

/// On a CPU the exact largest ones, along the last dimension.
fn approximate(b: &KernelBuilder<'_>) -> Result<Built> {
    if b.attrs().int("reduction_dimension")? != -1 || !b.attrs().bool("is_max_k")? {
        return Err(Status::unimplemented(
            "ApproxTopK on CPUs finds the largest along the last dimension only",
        ));
    }
    let k = b.attrs().int("k")?;
    Built::costly(move |ctx| {
        let x = ctx.input(0)?;
        let Some(&width) = x.dims().last() else {
            return invalid("input must be >= 1-D, got shape []");
        };
        let Some(k) = usize::try_from(k).ok().filter(|k| *k <= width) else {
            return invalid(format!(
                "input must have at least k({k}) columns. Had {width}"
            ));
        };
        let mut dims = x.dims().to_vec();
        if let Some(last) = dims.last_mut() {
            *last = k;
        }
        let (values, places) =
            with_type!(x.dtype(), T in floats => largest::<T>(x, width, k, &dims)?);
        ctx.set_output(0, values);
        ctx.set_output(1, places);
        Ok(())
    })
}

fn largest<T: Element + PartialOrd>(
    x: &Tensor,
    width: usize,
    k: usize,
    dims: &[usize],
) -> Result<(Tensor, Tensor)> {
    let (mut values, mut places) = (Vec::new(), Vec::new());
    for row in x.as_slice::<T>()?.chunks(width.max(1)) {
        let mut order: Vec<usize> = (0..row.len()).collect();
        order.sort_by(|a, b| {
            let by_value = row[*b].partial_cmp(&row[*a]);
            by_value.unwrap_or(std::cmp::Ordering::Equal).then(a.cmp(b))
        });
        values.extend(order.iter().take(k).map(|i| row[*i]));
        places.extend(order.iter().take(k).map(|i| *i as i32));
    }
    let shape = Shape::from(dims);
    Ok((
        Tensor::from_vec(values, shape.clone())?,
        Tensor::from_vec(places, shape)?,
    ))
}
