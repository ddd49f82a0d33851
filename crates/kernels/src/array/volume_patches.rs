//! `ExtractVolumePatches`: every window of a volume laid out as one row.

use super::patches::windows;
use super::units::{Unit, room, with_unit};
use crate::types::REALS;
use downpour_graph::{Code, Result, Status};
use downpour_runtime::{Built, KernelBuilder, Registry};
use downpour_tensor::Shape;

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("ExtractVolumePatches", &[("T", REALS)], extract);
}

/// Planes, rows and columns of a list attribute over (batch, planes, rows, columns, depth).
fn spatial(b: &KernelBuilder<'_>, name: &str) -> Result<[usize; 3]> {
    let &[batch, planes, rows, columns, depth] = b.attrs().ints(name)? else {
        return Err(Status::invalid_argument(format!(
            "{name} field must specify 5 dimensions"
        )));
    };
    if batch != 1 || depth != 1 {
        return Err(Status::unimplemented(format!(
            "Only support {name} across space."
        )));
    }
    if planes < 1 || rows < 1 || columns < 1 {
        return Err(Status::new(
            Code::OutOfRange,
            format!("{name} is out of range."),
        ));
    }
    Ok([planes, rows, columns].map(|v| v as usize))
}

fn extract(b: &KernelBuilder<'_>) -> Result<Built> {
    let (sizes, strides) = (spatial(b, "ksizes")?, spatial(b, "strides")?);
    let same = b.attrs().str("padding")? == "SAME";
    Built::costly(move |ctx| {
        let x = ctx.input(0)?;
        let &[batch, planes, rows, columns, depth] = x.dims() else {
            return Err(Status::invalid_argument(format!(
                "input must be 5-dimensional{}",
                x.shape()
            )));
        };
        let volume = [planes, rows, columns];
        let mut counts = [0; 3];
        let mut before = [0; 3];
        for d in 0..3 {
            (counts[d], before[d]) = windows(volume[d], sizes[d], strides[d], same)?;
        }
        let window = sizes.iter().fold(depth, |p, &n| p.saturating_mul(n));
        let dims = [batch, counts[0], counts[1], counts[2], window];
        let shape = Shape::checked(dims.map(|d| d.min(i64::MAX as usize) as i64))?;
        let dtype = x.dtype();
        let out = with_unit!(dtype, U => {
            let src = U::view(x)?;
            let zero = U::zero()?;
            let mut out = room::<U>(ctx, dtype, &shape)?;
            let places = batch * counts.iter().product::<usize>();
            for place in 0..places {
                let at = [
                    place / (counts[1] * counts[2]) % counts[0],
                    place / counts[2] % counts[1],
                    place % counts[2],
                ];
                let volume_at = place / counts.iter().product::<usize>();
                for tap in 0..sizes.iter().product::<usize>() {
                    let offset = [
                        tap / (sizes[1] * sizes[2]),
                        tap / sizes[2] % sizes[1],
                        tap % sizes[2],
                    ];
                    // The element's row in the input, if it is inside.
                    let found = (0..3).try_fold(volume_at, |row, d| {
                        let i = (at[d] * strides[d] + offset[d]).checked_sub(before[d])?;
                        (i < volume[d]).then_some(row * volume[d] + i)
                    });
                    match found {
                        Some(row) => out.extend_from_slice(&src[row * depth..(row + 1) * depth]),
                        None => out.resize(out.len() + depth, zero.clone()),
                    }
                }
            }
            U::tensor(dtype, out, shape)?
        });
        ctx.set_output(0, out);
        Ok(())
    })
}
