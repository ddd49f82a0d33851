//! Tensors made from little: fills, zeros, ones, ranges.

use super::dtypes::{COMMON, COMMON_AND_STRING, FILL, RANGE};
use super::units::{Unit, with_unit};
use crate::args::{int, shape};
use crate::types::{INDEX, with_type};
use crate::uninit::{numbered, repeated};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Element, Shape, Tensor};
use half::{bf16, f16};
use num_traits::{One, Zero};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Fill", &[("T", FILL), ("index_type", INDEX)], |_| {
        Built::cheap(fill)
    });
    r.add_typed("ZerosLike", &[("T", COMMON_AND_STRING)], |_| {
        Built::cheap(zeros_like)
    });
    r.add_typed("OnesLike", &[("T", COMMON)], ones_like);
    r.add_typed("Empty", &[("dtype", COMMON_AND_STRING)], empty);
    r.add_typed("Range", &[("Tidx", RANGE)], range);
    r.add_typed(
        "LinSpace",
        &[("T", &[DType::Float, DType::Double]), ("Tidx", INDEX)],
        lin_space,
    );
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn fill(ctx: &mut OpContext<'_>) -> Result<()> {
    let (dims, value) = (ctx.input(0)?, ctx.input(1)?);
    if dims.rank() > 1 {
        return invalid(format!(
            "dims must represent a vector, got shape {}",
            dims.shape()
        ));
    }
    // A vector of one element passes for a scalar, as it did in old graphs.
    if value.rank() > 1 || value.num_elements() != 1 {
        return invalid(format!(
            "value must represent a scalar, got shape {}",
            value.shape()
        ));
    }
    let shape = shape(dims)?;
    let dtype = value.dtype();
    ctx.check_alloc(dtype, &shape)?;
    let out = with_unit!(dtype, U => {
        let n = shape.num_elements();
        // Fresh memory is zero already.
        let is_zero = value.buffer().is_some_and(|b| b.as_bytes().iter().all(|b| *b == 0));
        let filled = match U::view(value)?.first() {
            Some(v) if !is_zero => repeated(v, n),
            _ => U::zeros(n)?,
        };
        U::tensor(dtype, filled, shape)?
    });
    ctx.set_output(0, out);
    Ok(())
}

fn zeros_like(ctx: &mut OpContext<'_>) -> Result<()> {
    let mut x = ctx.take(0)?;
    if x.is_unique()
        && let Some(bytes) = x.buffer_mut()
    {
        bytes.fill(0);
        ctx.set_output(0, x);
        return Ok(());
    }
    let out = ctx.zeros(x.dtype(), x.shape())?;
    ctx.set_output(0, out);
    Ok(())
}

fn ones_like(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("T")?;
    Built::cheap(move |ctx| {
        let shape = ctx.input(0)?.shape().clone();
        ctx.check_alloc(dtype, &shape)?;
        let n = shape.num_elements();
        let out = match dtype {
            DType::Bool => Tensor::from_vec(repeated(&true, n), shape)?,
            _ => {
                with_type!(dtype, T in numbers => Tensor::from_vec(repeated(&T::one(), n), shape)?)
            }
        };
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Memory is always cleared: what another tensor left there must not be seen.
fn empty(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("dtype")?;
    Built::cheap(move |ctx| {
        let dims = ctx.input(0)?;
        if dims.rank() != 1 {
            return invalid(format!(
                "shape must be a vector of int32, got shape {}",
                dims.shape()
            ));
        }
        let out = ctx.zeros(dtype, &shape(dims)?)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// A number that can count.
trait RangeNumber: Element + Zero + PartialOrd + std::fmt::Display {
    /// How many steps of `delta` lead from `start` to `limit`; `None` if more than an i64 holds.
    fn count(start: Self, limit: Self, delta: Self) -> Option<u64>;
    /// `start + i * delta`.
    fn nth(start: Self, i: u64, delta: Self) -> Self;
}

macro_rules! integer_steps {
    ($($t:ty),*) => {
        $(impl RangeNumber for $t {
            fn count(start: Self, limit: Self, delta: Self) -> Option<u64> {
                let n = limit.abs_diff(start).div_ceil(delta.unsigned_abs()) as u64;
                (n <= i64::MAX as u64).then_some(n)
            }
            fn nth(start: Self, i: u64, delta: Self) -> Self {
                start.wrapping_add((i as $t).wrapping_mul(delta))
            }
        })*
    };
}
integer_steps!(i32, i64);

macro_rules! float_steps {
    ($($t:ty),*) => {
        $(impl RangeNumber for $t {
            fn count(start: Self, limit: Self, delta: Self) -> Option<u64> {
                float_count(f64::from((limit - start) / delta))
            }
            fn nth(start: Self, i: u64, delta: Self) -> Self {
                start + <$t as num_traits::FromPrimitive>::from_u64(i).unwrap_or_default() * delta
            }
        })*
    };
}
float_steps!(f32, f64, f16, bf16);

fn float_count(ratio: f64) -> Option<u64> {
    let n = ratio.abs().ceil();
    (n <= i64::MAX as f64).then_some(n as u64)
}

fn range(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("Tidx")?;
    with_type!(dtype, T in [i32, i64, f32, f64, f16, bf16] => Built::cheap(counted::<T>))
}

fn counted<T: RangeNumber>(ctx: &mut OpContext<'_>) -> Result<()> {
    for (i, name) in ["start", "limit", "delta"].into_iter().enumerate() {
        let t = ctx.input(i)?;
        if t.rank() > 1 || t.num_elements() != 1 {
            return invalid(format!("{name} must be a scalar, not shape {}", t.shape()));
        }
    }
    let value = |i: usize| -> Result<T> { Ok(ctx.input(i)?.scalar_value::<T>()?) };
    let (start, limit, delta) = (value(0)?, value(1)?, value(2)?);
    if delta == T::zero() {
        return invalid(format!("Requires delta != 0: {delta}"));
    }
    // Comparisons with NaN fail on purpose: TensorFlow refuses them with these texts.
    let text = |v: T| v.to_string().replace("NaN", "nan");
    if delta > T::zero() {
        if !(start <= limit) {
            return invalid(format!(
                "Requires start <= limit when delta > 0: {}/{}",
                text(start),
                text(limit)
            ));
        }
    } else if !(start >= limit) {
        return invalid(format!(
            "Requires start >= limit when delta < 0: {}/{}",
            text(start),
            text(limit)
        ));
    }
    let Some(n) = T::count(start, limit, delta) else {
        return invalid(format!(
            "Requires ((limit - start) / delta) <= {}",
            i64::MAX
        ));
    };
    let shape = Shape::from([n as usize]);
    let out = ctx.vec::<T>(&shape)?;
    let out = numbered(out, n as usize, |i| T::nth(start, i as u64, delta));
    ctx.set_output(0, Tensor::from_vec(out, shape)?);
    Ok(())
}

fn lin_space(b: &KernelBuilder<'_>) -> Result<Built> {
    let dtype = b.attrs().dtype("T")?;
    with_type!(dtype, T in [f32, f64] => Built::cheap(|ctx| {
        for (i, name) in ["start", "stop", "num"].into_iter().enumerate() {
            let t = ctx.input(i)?;
            if t.rank() != 0 {
                return invalid(format!("{name} must be a scalar, not shape {}", t.shape()));
            }
        }
        let start = ctx.input(0)?.scalar_value::<T>()?;
        let stop = ctx.input(1)?.scalar_value::<T>()?;
        let num = int(ctx.input(2)?)?;
        if num <= 0 {
            return invalid(format!("Requires num > 0: {num}"));
        }
        let shape = Shape::from([num as usize]);
        let out = ctx.vec::<T>(&shape)?;
        let (last, step) = (num as usize - 1, (stop - start) / (num - 1) as T);
        let mut out = match i32::try_from(last) {
            // A conversion that vectors have.
            Ok(_) => numbered(out, num as usize, |i| start + step * (i as i32) as T),
            Err(_) => numbered(out, num as usize, |i| start + step * i as T),
        };
        // Exact whatever the steps rounded to; a single number is the first.
        if let Some(end) = out.get_mut(last) {
            *end = stop;
        }
        if let Some(first) = out.first_mut() {
            *first = start;
        }
        ctx.set_output(0, Tensor::from_vec(out, shape)?);
        Ok(())
    }))
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_graph::{Code, Result};
    use downpour_tensor::{DType, Element, Tensor};

    fn range<T: Element>(a: T, b: T, c: T) -> Result<Vec<T>> {
        let attrs = [("Tidx", T::DTYPE.into())];
        let inputs = [a, b, c].map(Tensor::scalar).to_vec();
        Ok(run_op("Range", inputs, &attrs)?[0]
            .as_slice::<T>()?
            .to_vec())
    }

    #[test]
    fn ranges_count_up_down_and_not_at_all() {
        assert_eq!(range(0, 5, 2).unwrap(), [0, 2, 4]);
        assert_eq!(range(5, 0, -2).unwrap(), [5, 3, 1]);
        assert!(range(3, 3, 1).unwrap().is_empty());
        assert_eq!(
            range(0.0f32, 1.0, 0.3).unwrap(),
            [0.0, 0.3, 0.6, 0.900_000_04]
        );
        assert_eq!(
            range(i64::MIN, i64::MAX, 1 << 62).unwrap(),
            [i64::MIN, -(1 << 62), 0, 1 << 62]
        );
        let text = |r: Result<Vec<f32>>| r.unwrap_err().message;
        assert!(
            text(range(0.0, f32::NAN, 1.0))
                .starts_with("Requires start <= limit when delta > 0: 0/nan")
        );
        assert!(text(range(0.0, 5.0, 0.0)).starts_with("Requires delta != 0: 0"));
        assert!(
            text(range(0.0, f32::INFINITY, 1.0))
                .starts_with("Requires ((limit - start) / delta) <= 9223372036854775807")
        );
        assert_eq!(
            range(0i64, 1 << 62, 1).unwrap_err().code,
            Code::ResourceExhausted
        );
    }

    #[test]
    fn fills_refuse_hostile_shapes() {
        let attrs = [
            ("T", DType::Float.into()),
            ("index_type", DType::Int64.into()),
        ];
        let fill = |dims: Vec<i64>| {
            run_op(
                "Fill",
                vec![Tensor::vector(dims), Tensor::scalar(4.0f32)],
                &attrs,
            )
        };
        assert_eq!(
            fill(vec![2, 1]).unwrap()[0].as_slice::<f32>().unwrap(),
            [4.0, 4.0]
        );
        assert!(
            fill(vec![2, -3])
                .unwrap_err()
                .message
                .starts_with("Dimension -3 must be >= 0")
        );
        assert!(
            fill(vec![1 << 40, 1 << 40])
                .unwrap_err()
                .message
                .starts_with(
                    "Shape [1099511627776,1099511627776] would have more than 2**63 - 1 elements"
                )
        );
        assert_eq!(
            fill(vec![1 << 40]).unwrap_err().code,
            Code::ResourceExhausted
        );
        assert!(
            fill(vec![1; 255])
                .unwrap_err()
                .message
                .starts_with("Too many dimensions")
        );
    }
}
