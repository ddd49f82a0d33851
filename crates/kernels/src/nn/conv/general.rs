//! `Conv`: a convolution over two or three spatial dimensions, told apart by the rank of what it is given.

use super::{Direction, Params, convolve};
use crate::nn::volume;
use downpour_graph::{AttrList, AttrValue, Attrs, Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Tensor};

const TYPES: &[DType] = &[
    DType::Half,
    DType::BFloat16,
    DType::Float,
    DType::Double,
    DType::Int32,
];

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Conv", &[("T", TYPES)], conv);
}

fn invalid<T>(text: impl Into<String>) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn conv(b: &KernelBuilder<'_>) -> Result<Built> {
    let attrs = b.attrs().clone();
    if attrs.str("data_format")? == "CHANNELS_FIRST" {
        return Err(Status::unimplemented(
            "Conv on a CPU takes data with its channels last (data_format CHANNELS_LAST)",
        ));
    }
    let batch_dims = attrs.int("batch_dims")?;
    if batch_dims < 1 {
        return invalid(format!("batch_dims must be at least 1, got {batch_dims}"));
    }
    Built::costly(move |ctx| {
        let (x, filter) = (ctx.take(0)?, ctx.take(1)?);
        let out = run(ctx, &attrs, x, &filter)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn run(ctx: &OpContext<'_>, attrs: &Attrs, x: Tensor, filter: &Tensor) -> Result<Tensor> {
    let batches = attrs.size("batch_dims")?;
    let dims = x.dims().to_vec();
    let spatial = filter.rank().saturating_sub(2);
    if !(2..=3).contains(&spatial) || dims.len() != batches + spatial + 1 {
        return invalid(format!(
            "the filter must have 2 or 3 spatial dimensions and the input {batches} batch dimensions beside as many and one of channels, but their shapes are {} and {}",
            filter.shape(),
            x.shape()
        ));
    }
    // Several batch dimensions are one.
    let (outer, inner) = dims.split_at(batches);
    let flat: Vec<usize> = std::iter::once(outer.iter().product())
        .chain(inner.iter().copied())
        .collect();
    let plain = plain(attrs, spatial)?;
    let x = x.reshaped(flat)?;
    let out = match spatial {
        2 => {
            let p = Params::parse(&plain, Direction::Forward)?;
            convolve(ctx, &p, &x, filter, None)?
        }
        _ => volume::convolve(ctx, &plain, &x, filter)?,
    };
    let made: Vec<usize> = outer.iter().chain(&out.dims()[1..]).copied().collect();
    Ok(out.reshaped(made)?)
}

/// The attributes in the words of `Conv2D` and `Conv3D`.
fn plain(attrs: &Attrs, spatial: usize) -> Result<Attrs> {
    let mut plain = attrs.clone();
    let format = if spatial == 2 { "NHWC" } else { "NDHWC" };
    plain.set("data_format", AttrValue::Str(format.into()));
    if attrs.ints("dilations")?.is_empty() {
        plain.set(
            "dilations",
            AttrValue::List(AttrList::Int(vec![1; spatial + 2])),
        );
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn the_rank_says_which_convolution_it_is() {
        let numbers = |dims: &[usize]| {
            let n: usize = dims.iter().product();
            let values = (0..n).map(|i| (i % 7) as f32 - 3.0).collect();
            Tensor::from_vec(values, dims).unwrap()
        };
        for (op, x, f) in [
            ("Conv2D", vec![2usize, 5, 6, 3], vec![3usize, 2, 3, 4]),
            ("Conv3D", vec![2, 4, 5, 6, 3], vec![2, 3, 2, 3, 4]),
        ] {
            let strides = vec![1i64; x.len()];
            let attrs = [
                ("T", DType::Float.into()),
                ("strides", strides.into()),
                ("padding", "SAME".into()),
            ];
            let inputs = vec![numbers(&x), numbers(&f)];
            let want = run_op(op, inputs.clone(), &attrs).unwrap();
            let got = run_op("Conv", inputs, &attrs).unwrap();
            assert_eq!(
                got[0].as_slice::<f32>().unwrap(),
                want[0].as_slice::<f32>().unwrap()
            );
            // A batch of two rows is two batches of one.
            let mut split = vec![2, 1];
            split.extend(&x[1..]);
            let mut attrs = attrs.to_vec();
            attrs.push(("batch_dims", 2i64.into()));
            let got = run_op("Conv", vec![numbers(&split), numbers(&f)], &attrs).unwrap();
            assert_eq!(got[0].dims()[..2], [2, 1]);
            assert_eq!(
                got[0].as_slice::<f32>().unwrap(),
                want[0].as_slice::<f32>().unwrap()
            );
        }
        let attrs = [
            ("T", DType::Float.into()),
            ("strides", vec![1i64; 4].into()),
            ("padding", "SAME".into()),
        ];
        let e = run_op(
            "Conv",
            vec![numbers(&[2, 3, 3]), numbers(&[2, 2, 3, 4])],
            &attrs,
        );
        assert!(
            e.unwrap_err()
                .message
                .starts_with("the filter must have 2 or 3 spatial")
        );
    }
}
