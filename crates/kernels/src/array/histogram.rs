//! `HistogramFixedWidth`: how many values fall into each of some equal bins.

use crate::args::{int, int_tensor, shape_of};
use crate::types::{INDEX, REALS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::DType;
use num_traits::ToPrimitive;

pub(crate) fn register(r: &mut Registry) {
    let types = &[("T", REALS), ("dtype", INDEX)];
    r.add_typed("HistogramFixedWidth", types, |b| {
        let dtype = b.attrs().dtype("dtype")?;
        Built::costly(move |ctx| run(ctx, dtype))
    });
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn run(ctx: &mut OpContext<'_>, dtype: DType) -> Result<()> {
    let (values, range, bins) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    if range.rank() != 1 {
        return invalid("value_range should be a vector.");
    }
    if range.num_elements() != 2 {
        return invalid("value_range should be a vector of 2 elements.");
    }
    if bins.rank() != 0 {
        return invalid("nbins should be a scalar.");
    }
    let bins = int(bins)?;
    let mut counts = Vec::new();
    let shape;
    with_type!(values.dtype(), T in reals => {
        let range = range.as_slice::<T>()?;
        let (low, high) = (range[0], range[1]);
        if !(low < high) {
            return invalid(format!(
                "value_range should satisfy value_range[0] < value_range[1], but got '[{low}, {high}]'"
            ));
        }
        if bins <= 0 {
            return invalid(format!("nbins should be a positive number, but got '{bins}'"));
        }
        shape = shape_of(&[bins])?;
        ctx.check_alloc(DType::Int64, &shape)?;
        counts.resize(bins as usize, 0i64);
        let wide = |v: T| ToPrimitive::to_f64(&v).unwrap_or(f64::NAN);
        let step = wide(high - low) / bins as f64;
        for &v in values.as_slice::<T>()? {
            if wide(v).is_nan() {
                return invalid("Histogram values must not contain NaN");
            }
            // The difference is taken in the values' own type, as TensorFlow takes it.
            let above = if v > low { v - low } else { T::default() };
            let bin = (wide(above) / step).min(bins as f64 - 1.0);
            counts[bin as usize] += 1;
        }
    });
    ctx.set_output(0, int_tensor(dtype, counts, shape)?);
    Ok(())
}
