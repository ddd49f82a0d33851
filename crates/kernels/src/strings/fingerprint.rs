//! `Fingerprint`: eight bytes for each row of a tensor, which stay the same for ever.

use super::hash::fingerprint64;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Tensor};

pub(super) fn register(r: &mut Registry) {
    r.add("Fingerprint", |_| Built::costly(run));
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn run(ctx: &mut OpContext<'_>) -> Result<()> {
    let (data, method) = (ctx.input(0)?, ctx.input(1)?);
    let Some(&rows) = data.dims().first() else {
        return invalid(format!(
            "`data` should have at least one dimension: {}",
            data.shape()
        ));
    };
    let method = match (method.rank(), method.as_strings()?.first()) {
        (0, Some(name)) => name,
        _ => {
            return invalid(format!(
                "`method` should be a scalar string: {}",
                method.shape()
            ));
        }
    };
    if method.as_ref() != b"farmhash64" {
        return invalid(format!(
            "Unsupported fingerprint method: {}",
            String::from_utf8_lossy(method)
        ));
    }
    let width = data.num_elements().checked_div(rows).unwrap_or(0);
    let mut out = Vec::with_capacity(rows * 8);
    if data.dtype() == DType::String {
        let strings = data.as_strings()?;
        for row in 0..rows {
            let row = &strings[row * width..(row + 1) * width];
            let each = |s: &bytes::Bytes| fingerprint64(s).to_le_bytes();
            // A row of several strings is the fingerprint of theirs.
            match row {
                [one] => out.extend(each(one)),
                many => {
                    let all: Vec<u8> = many.iter().flat_map(each).collect();
                    out.extend(fingerprint64(&all).to_le_bytes());
                }
            }
        }
    } else {
        let Some(buffer) = data.buffer() else {
            return invalid(format!("no fingerprint of {}", data.dtype()));
        };
        let size = width * data.dtype().size().unwrap_or(0);
        for row in 0..rows {
            let bytes = &buffer.as_bytes()[row * size..(row + 1) * size];
            out.extend(fingerprint64(bytes).to_le_bytes());
        }
    }
    ctx.set_output(0, Tensor::from_vec::<u8>(out, [rows, 8])?);
    Ok(())
}
