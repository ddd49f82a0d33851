//! `InplaceUpdate`, `InplaceAdd`, `InplaceSub`: rows of a tensor changed, in its own memory when
//! nobody else holds it; and copies that are nothing but copies.

use super::scatter::Sum;
use super::units::{Unit, with_unit};
use crate::args::ints;
use crate::types::{NUMBERS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{Element, Tensor};

pub(crate) fn register(r: &mut Registry) {
    r.add("InplaceUpdate", |_| {
        Built::cheap(|ctx| {
            let rows = rows(ctx)?;
            let x = ctx.take(0)?;
            let v = ctx.input(2)?;
            let (dtype, shape) = (x.dtype(), x.shape().clone());
            let out = with_unit!(dtype, U => {
                let mut out = U::view(&x)?.to_vec();
                let src = U::view(v)?;
                let n = src.len().checked_div(rows.len()).unwrap_or(0);
                for (i, &row) in rows.iter().enumerate() {
                    out[row * n..(row + 1) * n].clone_from_slice(&src[i * n..(i + 1) * n]);
                }
                U::tensor(dtype, out, shape)?
            });
            ctx.set_output(0, out);
            Ok(())
        })
    });
    r.add("InplaceAdd", |b| accumulate(b, false));
    r.add("InplaceSub", |b| accumulate(b, true));
    for op in ["GuaranteeConst", "DeepCopy"] {
        r.add(op, |_| {
            Built::cheap(|ctx| {
                ctx.forward(0, 0);
                Ok(())
            })
        });
    }
}

/// The rows that input 1 names; they wrap around, as in TensorFlow.
fn rows(ctx: &OpContext<'_>) -> Result<Vec<usize>> {
    let invalid = |text: String| Err(Status::invalid_argument(text));
    let (x, i, v) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    if i.rank() != 1 {
        return invalid(format!("i must be a vector. {}", i.shape()));
    }
    if x.rank() != v.rank() {
        return invalid(format!(
            "x and v shape doesn't match (ranks differ): {} vs. {}",
            x.shape(),
            v.shape()
        ));
    }
    if let Some(d) = (1..x.rank()).find(|&d| x.dims()[d] != v.dims()[d]) {
        return invalid(format!(
            "x and v shape doesn't match at index {d} : {} vs. {}",
            x.shape(),
            v.shape()
        ));
    }
    if v.dims().first() != Some(&i.dims()[0]) {
        return invalid(format!(
            "i and x shape doesn't match at index 0: {} vs. {}",
            i.shape(),
            v.shape()
        ));
    }
    let n = x.dims().first().copied().unwrap_or(0) as i64;
    if n == 0 {
        return Ok(Vec::new());
    }
    Ok(ints(i)?.iter().map(|&i| i.rem_euclid(n) as usize).collect())
}

fn accumulate(b: &KernelBuilder<'_>, subtract: bool) -> Result<Built> {
    let dtype = b.attrs().dtype("T")?;
    Built::cheap(move |ctx| {
        let rows = rows(ctx)?;
        if !NUMBERS.contains(&dtype) {
            return Err(Status::invalid_argument(format!(
                "Unsupported data type: {dtype}"
            )));
        }
        let x = ctx.take(0)?;
        let v = ctx.input(2)?;
        let out = with_type!(dtype, T in numbers => match subtract {
            true => each_row::<T>(x, v, &rows, T::minus)?,
            false => each_row::<T>(x, v, &rows, T::plus)?,
        });
        ctx.set_output(0, out);
        Ok(())
    })
}

fn each_row<T: Element>(
    mut x: Tensor,
    v: &Tensor,
    rows: &[usize],
    f: impl Fn(T, T) -> T,
) -> Result<Tensor> {
    let src = v.as_slice::<T>()?;
    let n = src.len().checked_div(rows.len()).unwrap_or(0);
    let dst = x.make_mut::<T>()?;
    for (i, &row) in rows.iter().enumerate() {
        let part = &mut dst[row * n..(row + 1) * n];
        part.iter_mut()
            .zip(&src[i * n..])
            .for_each(|(d, s)| *d = f(*d, *s));
    }
    Ok(x)
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::Result;
    use downpour_tensor::{DType, Tensor};

    fn run(op: &str, i: Vec<i32>) -> Result<Vec<f32>> {
        let inputs = vec![
            floats(&[1.0, 2.0, 3.0]),
            Tensor::vector(i),
            floats(&[10.0, 20.0]),
        ];
        Ok(run_op(op, inputs, &[("T", DType::Float.into())])?[0]
            .as_slice::<f32>()?
            .to_vec())
    }

    #[test]
    fn rows_are_named_modulo_their_number() {
        assert_eq!(
            run("InplaceUpdate", vec![0, -1]).unwrap(),
            [10.0, 2.0, 20.0]
        );
        assert_eq!(run("InplaceAdd", vec![0, 3]).unwrap(), [31.0, 2.0, 3.0]);
        assert_eq!(run("InplaceSub", vec![1, 2]).unwrap(), [1.0, -8.0, -17.0]);
        let text = run("InplaceAdd", vec![0]).unwrap_err().message;
        assert!(
            text.starts_with("i and x shape doesn't match at index 0: [1] vs. [2]"),
            "{text}"
        );
    }
}
