//! `ExtractImagePatches`: every window of an image laid out as one row.

use super::units::{Unit, room, with_unit};
use crate::types::NUMBERS;
use downpour_graph::{Code, Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::Shape;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("ExtractImagePatches", &[("T", NUMBERS)], extract);
}

/// Rows and columns of a list attribute over (batch, rows, columns, depth).
fn spatial(b: &KernelBuilder<'_>, name: &str) -> Result<(usize, usize)> {
    let list = b.attrs().ints(name)?;
    let &[batch, rows, cols, depth] = list else {
        return Err(Status::invalid_argument(format!(
            "{name} field must specify 4 dimensions"
        )));
    };
    if batch != 1 || depth != 1 {
        return Err(Status::unimplemented(format!(
            "Only support {name} across space."
        )));
    }
    match (usize::try_from(rows), usize::try_from(cols)) {
        (Ok(rows), Ok(cols)) if rows >= 1 && cols >= 1 => Ok((rows, cols)),
        _ => Err(Status::new(
            Code::OutOfRange,
            format!("{name} is out of range."),
        )),
    }
}

/// How many windows fit, and how much padding comes before the first.
pub(super) fn windows(
    size: usize,
    reach: usize,
    stride: usize,
    same: bool,
) -> Result<(usize, usize)> {
    if same {
        let n = size.div_ceil(stride);
        let need = ((n.max(1) - 1) * stride + reach).saturating_sub(size);
        return Ok((n, need / 2));
    }
    match (size + stride).checked_sub(reach) {
        Some(room) => Ok((room / stride, 0)),
        None => Err(Status::invalid_argument(format!(
            "Computed output size would be negative: {} [input_size: {size}, effective_filter_size: {reach}, stride: {stride}]",
            (size as i64 + stride as i64 - reach as i64) / stride as i64
        ))),
    }
}

fn extract(b: &KernelBuilder<'_>) -> Result<Built> {
    let (kr, kc) = spatial(b, "ksizes")?;
    let (sr, sc) = spatial(b, "strides")?;
    let (rr, rc) = spatial(b, "rates")?;
    let same = b.attrs().str("padding")? == "SAME";
    Built::cheap(move |ctx| {
        let x = ctx.input(0)?;
        let &[n, h, w, c] = x.dims() else {
            return Err(Status::invalid_argument(format!(
                "input must be 4-dimensional{}",
                x.shape()
            )));
        };
        let reach = |k: usize, r: usize| (k - 1).saturating_mul(r).saturating_add(1);
        let (out_h, top) = windows(h, reach(kr, rr), sr, same)?;
        let (out_w, left) = windows(w, reach(kc, rc), sc, same)?;
        let dims = [n, out_h, out_w, kr.saturating_mul(kc).saturating_mul(c)];
        let shape = Shape::checked(dims.map(|d| d.min(i64::MAX as usize) as i64))?;
        let dtype = x.dtype();
        let out = with_unit!(dtype, U => {
            let src = U::view(x)?;
            let zero = U::zero()?;
            let mut out = room::<U>(ctx, dtype, &shape)?;
            for (image, i) in (0..n).flat_map(|image| (0..out_h).map(move |i| (image, i))) {
                for (j, di) in (0..out_w).flat_map(|j| (0..kr).map(move |di| (j, di))) {
                    let row = (i * sr + di * rr).checked_sub(top).filter(|&r| r < h);
                    for dj in 0..kc {
                        let col = (j * sc + dj * rc).checked_sub(left).filter(|&c| c < w);
                        match (row, col) {
                            (Some(r), Some(k)) => {
                                let at = ((image * h + r) * w + k) * c;
                                out.extend_from_slice(&src[at..at + c]);
                            }
                            _ => out.resize(out.len() + c, zero.clone()),
                        }
                    }
                }
            }
            U::tensor(dtype, out, shape)?
        });
        ctx.set_output(0, out);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_graph::Result;
    use downpour_tensor::{DType, Tensor};

    fn run(k: i64, stride: i64, rate: i64, size: usize, padding: &str) -> Result<Tensor> {
        let x = Tensor::from_vec(
            (0..size * size).map(|i| i as f32).collect(),
            [1, size, size, 1],
        )?;
        let list = |v: i64| vec![1, v, v, 1];
        let attrs = [
            ("T", DType::Float.into()),
            ("ksizes", list(k).into()),
            ("strides", list(stride).into()),
            ("rates", list(rate).into()),
            ("padding", padding.into()),
        ];
        run_op("ExtractImagePatches", vec![x], &attrs).map(|mut o| o.remove(0))
    }

    #[test]
    fn windows_slide_and_are_padded() {
        let out = run(2, 1, 1, 3, "VALID").unwrap();
        assert_eq!(out.dims(), [1, 2, 2, 4]);
        assert_eq!(
            out.as_slice::<f32>().unwrap()[..8],
            [0.0, 1.0, 3.0, 4.0, 1.0, 2.0, 4.0, 5.0]
        );
        let out = run(2, 2, 1, 3, "SAME").unwrap();
        assert_eq!(out.as_slice::<f32>().unwrap()[4..8], [2.0, 0.0, 5.0, 0.0]);
        let out = run(2, 1, 2, 4, "VALID").unwrap();
        assert_eq!(out.as_slice::<f32>().unwrap()[..4], [0.0, 2.0, 8.0, 10.0]);
        let text = run(5, 1, 1, 3, "VALID").unwrap_err().message;
        assert!(text.starts_with(
            "Computed output size would be negative: -1 [input_size: 3, effective_filter_size: 5, stride: 1]"
        ), "{text}");
    }
}
