//! Shapes of windows that move over images: convolutions, pools, patches.

use super::Rule::{self, Compute, Pattern};
use super::dims::{divide, merge, merge_dims, multiply, of_rank, shape, size};
use super::{Context, Dim, Shapes, invalid, one};
use downpour_graph::Result;
use downpour_tensor::PartialShape;
use smallvec::smallvec;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "Conv2D" | "_FusedConv2D" => Compute(|c| convolution(c, 2)),
        "Conv3D" => Compute(|c| convolution(c, 3)),
        "DepthwiseConv2dNative" => Compute(depthwise),
        "Conv2DBackpropInput" => Compute(backprop_input),
        "DepthwiseConv2dNativeBackpropInput" | "AvgPoolGrad" => Compute(|c| sized(c, 0, 4)),
        "Conv3DBackpropInputV2" | "AvgPool3DGrad" => Compute(|c| sized(c, 0, 5)),
        "Conv2DBackpropFilter" | "DepthwiseConv2dNativeBackpropFilter" => {
            Compute(|c| sized(c, 1, 4))
        }
        "Conv3DBackpropFilterV2" => Compute(|c| sized(c, 1, 5)),
        "MaxPool" | "AvgPool" => Compute(|c| pool(c, 2)),
        "MaxPool3D" | "AvgPool3D" => Compute(|c| pool(c, 3)),
        "MaxPoolV2" => Compute(|c| pool_by_inputs(c, 1)),
        "MaxPoolWithArgmax" => Compute(|c| {
            let out = pool(c, 2)?;
            Ok(smallvec![out[0].clone(), out[0].clone()])
        }),
        "MaxPoolGrad" | "MaxPoolGradV2" | "MaxPoolGradWithArgmax" | "FractionalMaxPoolGrad" => {
            Pattern("[a,b,c,d] -> [a,b,c,d]")
        }
        "MaxPool3DGrad" => Pattern("[a,b,c,d,e] -> [a,b,c,d,e]"),
        "MaxPoolGradGrad" | "MaxPoolGradGradWithArgmax" => Compute(|c| grad_grad(c, 2)),
        "MaxPoolGradGradV2" => Compute(|c| {
            let out = pool_by_inputs(c, 3)?;
            fits_gradient(c, &out[0])?;
            Ok(out)
        }),
        "MaxPool3DGradGrad" => Compute(|c| grad_grad(c, 3)),
        "FractionalAvgPool" | "FractionalMaxPool" => Compute(fractional),
        "FractionalAvgPoolGrad" => Compute(|c| {
            one(match c.ints(0) {
                Some(_) => c.shape_from(0)?,
                None => of_rank(4),
            })
        }),
        "Dilation2D" => Compute(dilation),
        "Dilation2DBackpropInput" => Pattern("S -> S"),
        "Dilation2DBackpropFilter" => Pattern("* S -> S"),
        "ExtractImagePatches" => Compute(|c| patches(c, 2)),
        "ExtractVolumePatches" => Compute(|c| patches(c, 3)),
        "SpaceToBatchND" => Compute(|c| space_batch(c, None, true)),
        "BatchToSpaceND" => Compute(|c| space_batch(c, None, false)),
        "SpaceToBatch" | "BatchToSpace" => Compute(|c| {
            let block = c.attrs().int("block_size")?;
            let forward = c.attrs().find("Tpaddings").is_some();
            space_batch(c, Some(vec![Some(block); 2]), forward)
        }),
        _ => return None,
    })
}

/// Length of one dimension after a window has moved over it.
fn window(
    input: Dim,
    size: Dim,
    stride: i64,
    dilation: i64,
    padding: &str,
    around: (i64, i64),
) -> Result<Dim> {
    if stride <= 0 {
        return invalid(format!("Stride must be > 0, but got {stride}"));
    }
    if dilation < 1 {
        return invalid(format!("Dilation rate must be >= 1, but got {dilation}"));
    }
    let Some(input) = input else {
        return Ok(None);
    };
    let stride = stride as usize;
    if padding == "SAME" {
        return Ok(Some(input.div_ceil(stride)));
    }
    let Some(size) = size else {
        return Ok(None);
    };
    let room = match padding {
        "EXPLICIT" => (input as i64)
            .saturating_add(around.0)
            .saturating_add(around.1),
        _ => input as i64,
    };
    let covered = match dilation {
        1 => size as i64,
        _ => (size as i64 - 1).saturating_mul(dilation).saturating_add(1),
    };
    if room < covered {
        return invalid(format!(
            "Negative dimension size caused by subtracting {covered} from {room}"
        ));
    }
    Ok(Some((room - covered) as usize / stride + 1))
}

/// Which dimensions of an image are spatial, and which one is the depth.
struct Layout {
    spatial: Vec<usize>,
    depth: usize,
    rank: usize,
}

impl Layout {
    fn of(c: &Context<'_>, spatial: usize) -> Result<Layout> {
        let rank = spatial + 2;
        let format = c.attrs().str("data_format").unwrap_or("NHWC");
        Ok(match format {
            "NHWC" | "NDHWC" => Layout {
                spatial: (1..=spatial).collect(),
                depth: rank - 1,
                rank,
            },
            "NCHW" | "NCDHW" => Layout {
                spatial: (2..rank).collect(),
                depth: 1,
                rank,
            },
            other => return invalid(format!("Invalid data format string: {other}")),
        })
    }
}

/// A list attribute that has one number for each dimension.
fn each<'a>(c: &'a Context<'_>, name: &str, rank: usize) -> Result<&'a [i64]> {
    let values = c.attrs().ints(name)?;
    if values.len() != rank {
        return invalid(format!(
            "the {name} attribute must contain {rank} values, but got: {}",
            values.len()
        ));
    }
    Ok(values)
}

/// What explicit paddings add around dimension `d`.
fn around(c: &Context<'_>, d: usize) -> Result<(i64, i64)> {
    let explicit = c.attrs().ints("explicit_paddings").unwrap_or_default();
    let at = |i: usize| explicit.get(i).copied().unwrap_or(0);
    if at(2 * d) < 0 || at(2 * d + 1) < 0 {
        return invalid("All elements of explicit_paddings must be nonnegative");
    }
    Ok((at(2 * d), at(2 * d + 1)))
}

/// Refuses explicit paddings of the wrong number.
fn check_explicit(c: &Context<'_>, rank: usize, padding: &str) -> Result<()> {
    let explicit = c.attrs().ints("explicit_paddings").unwrap_or_default();
    let wanted = if padding == "EXPLICIT" { 2 * rank } else { 0 };
    if explicit.len() != wanted {
        return invalid(format!(
            "explicit_paddings attribute must contain {wanted} values, but got: {}",
            explicit.len()
        ));
    }
    Ok(())
}

fn convolution(c: &mut Context<'_>, spatial: usize) -> Result<Shapes> {
    let layout = Layout::of(c, spatial)?;
    let rank = layout.rank;
    let (x, f) = (c.rank(0, rank)?, c.rank(1, rank)?);
    let (dilations, strides) = (each(c, "dilations", rank)?, each(c, "strides", rank)?);
    let (depth_in, depth_out) = (f[spatial], f[spatial + 1]);
    if let (Some(given), Some(wanted)) = (x[layout.depth], depth_in) {
        if wanted == 0 {
            return invalid("Depth of filter must not be 0");
        }
        if given % wanted != 0 {
            return invalid(format!(
                "Depth of input ({given}) is not a multiple of input depth of filter ({wanted})"
            ));
        }
        let groups = given / wanted;
        if groups != 1 && depth_out.is_some_and(|d| groups == 0 || d % groups != 0) {
            return invalid(format!(
                "Depth of output ({}) is not a multiple of the number of groups ({groups})",
                depth_out.unwrap_or(0)
            ));
        }
    }
    let padding = c.attrs().str("padding")?;
    check_explicit(c, rank, padding)?;
    let mut out = vec![x[0]; rank];
    for (i, &d) in layout.spatial.iter().enumerate() {
        out[d] = window(x[d], f[i], strides[d], dilations[d], padding, around(c, d)?)?;
    }
    out[layout.depth] = depth_out;
    one(shape(out))
}

fn depthwise(c: &mut Context<'_>) -> Result<Shapes> {
    let layout = Layout::of(c, 2)?;
    let (x, f) = (c.rank(0, 4)?, c.rank(1, 4)?);
    let strides = each(c, "strides", 4)?;
    let depth = multiply(merge_dims(x[layout.depth], f[2])?, f[3])?;
    let padding = c.attrs().str("padding")?;
    check_explicit(c, 4, padding)?;
    let mut out = vec![x[0]; 4];
    for (i, &d) in layout.spatial.iter().enumerate() {
        // The rates are not looked at here: TensorFlow's rule has none either, and dilated ones
        // reach it as batches.
        out[d] = window(x[d], f[i], strides[d], 1, padding, around(c, d)?)?;
    }
    out[layout.depth] = depth;
    one(shape(out))
}

/// The shape that input `i` spells out, of a known rank.
fn sized(c: &mut Context<'_>, i: usize, rank: usize) -> Result<Shapes> {
    let out = c.shape_from(i)?;
    match out.rank() {
        None => one(of_rank(rank)),
        Some(r) if r == rank => one(out),
        Some(r) => invalid(format!("Shape must be rank {rank} but is rank {r}")),
    }
}

fn backprop_input(c: &mut Context<'_>) -> Result<Shapes> {
    let sizes = c.shape_from(0)?;
    let layout = Layout::of(c, 2)?;
    let (f, dy) = (c.rank(1, 4)?, c.rank(2, 4)?);
    merge_dims(dy[layout.depth], f[3])?;
    let Some([rows, columns]) = sizes.dims() else {
        let mut out = sized(c, 0, 4)?[0].dims().unwrap_or_default().to_vec();
        out[0] = out[0].or(dy[0]);
        return one(shape(out));
    };
    let mut out = vec![dy[0]; 4];
    out[layout.spatial[0]] = *rows;
    out[layout.spatial[1]] = *columns;
    out[layout.depth] = f[2];
    one(shape(out))
}

fn pool(c: &mut Context<'_>, spatial: usize) -> Result<Shapes> {
    let rank = spatial + 2;
    let (sizes, strides) = (each(c, "ksize", rank)?, each(c, "strides", rank)?);
    pooled(c, spatial, sizes, strides)
}

/// A pool whose sizes and strides are the inputs from `first` on.
fn pool_by_inputs(c: &mut Context<'_>, first: usize) -> Result<Shapes> {
    for i in [first, first + 1] {
        if c.rank(i, 1)?[0].is_some_and(|n| n != 4) {
            return invalid("ksize and strides must have 4 elements");
        }
    }
    c.rank(0, 4)?;
    match (c.known_ints(first), c.known_ints(first + 1)) {
        (Some(sizes), Some(strides)) => pooled(c, 2, &sizes, &strides),
        _ => one(PartialShape::unknown()),
    }
}

fn pooled(c: &Context<'_>, spatial: usize, sizes: &[i64], strides: &[i64]) -> Result<Shapes> {
    let layout = Layout::of(c, spatial)?;
    let x = c.rank(0, layout.rank)?;
    let padding = c.attrs().str("padding")?;
    if c.attrs().find("explicit_paddings").is_some() {
        check_explicit(c, layout.rank, padding)?;
    }
    let mut out = x.clone();
    let depth = (spatial == 2).then_some(layout.depth);
    for &d in layout.spatial.iter().chain(depth.iter()) {
        if sizes[d] <= 0 {
            return invalid(format!(
                "Sliding window ksize must be positive, but is {}",
                sizes[d]
            ));
        }
        out[d] = window(x[d], size(sizes[d])?, strides[d], 1, padding, around(c, d)?)?;
    }
    one(shape(out))
}

fn grad_grad(c: &mut Context<'_>, spatial: usize) -> Result<Shapes> {
    let out = pool(c, spatial)?;
    fits_gradient(c, &out[0])?;
    Ok(out)
}

/// The gradient of a pool's gradient: inputs are the pool's input and output and a gradient.
fn fits_gradient(c: &Context<'_>, out: &PartialShape) -> Result<()> {
    if c.dtype(2).is_some_and(|t| t.is_floating()) {
        merge(&c.input(0), &c.input(2))?;
        merge(&c.input(1), out)?;
    }
    Ok(())
}

fn fractional(c: &mut Context<'_>) -> Result<Shapes> {
    let x = c.rank(0, 4)?;
    let ratios = c.attrs().floats("pooling_ratio")?;
    if ratios.len() != 4 {
        return invalid("pooling_ratio field must specify 4 dimensions");
    }
    if let Some(ratio) = ratios.iter().find(|r| r.is_nan() || **r < 1.0) {
        return invalid(format!(
            "pooling_ratio cannot be smaller than 1, got: {ratio}"
        ));
    }
    let out: Vec<Dim> = (x.iter().zip(ratios))
        .map(|(d, ratio)| d.map(|d| (d as f32 / ratio).floor() as usize))
        .collect();
    Ok(smallvec![
        shape(out.clone()),
        shape([out[1]]),
        shape([out[2]])
    ])
}

/// Like [`window`], as TensorFlow's older rules compute it: a window that is too long gives 0.
fn covered(input: Dim, window: Dim, stride: i64, padding: &str) -> Result<Dim> {
    let (Some(input), Some(window)) = (input, window) else {
        return Ok(None);
    };
    if stride <= 0 {
        return invalid(format!("Stride must be > 0, but got {stride}"));
    }
    let length = match padding {
        "SAME" => (input as i64 + stride - 1) / stride,
        _ => (input as i64 - window as i64 + stride) / stride,
    };
    match usize::try_from(length) {
        Ok(length) => Ok(Some(length)),
        Err(_) => invalid(format!(
            "Computed output size would be negative: {length} [input_size: {input}, \
             effective_filter_size: {window}, stride: {stride}]"
        )),
    }
}

/// A window of `size` with gaps between its places.
fn dilated(size: Dim, rate: i64) -> Dim {
    let size = size? as i64;
    let gaps = size.checked_sub(1)?.checked_mul(rate.checked_sub(1)?)?;
    usize::try_from(size.checked_add(gaps)?).ok()
}

fn dilation(c: &mut Context<'_>) -> Result<Shapes> {
    let (x, f) = (c.rank(0, 4)?, c.rank(1, 3)?);
    let (strides, rates) = (each(c, "strides", 4)?, each(c, "rates", 4)?);
    let padding = c.attrs().str("padding")?;
    if [x[1], x[2], f[0], f[1]].contains(&None) {
        return one(shape([x[0], None, None, f[2]]));
    }
    let depth = merge_dims(x[3], f[2])?;
    let rows = covered(x[1], dilated(f[0], rates[1]), strides[1], padding)?;
    let columns = covered(x[2], dilated(f[1], rates[2]), strides[2], padding)?;
    one(shape([x[0], rows, columns, depth]))
}

fn patches(c: &mut Context<'_>, spatial: usize) -> Result<Shapes> {
    let rank = spatial + 2;
    let x = c.rank(0, rank)?;
    let (sizes, strides) = (each(c, "ksizes", rank)?, each(c, "strides", rank)?);
    let rates = match spatial {
        2 => each(c, "rates", rank)?,
        _ => &[1; 5],
    };
    let padding = c.attrs().str("padding")?;
    let mut out = x.clone();
    for d in 1..=spatial {
        out[rank - 1] = multiply(out[rank - 1], size(sizes[d])?)?;
        out[d] = None;
    }
    if x[1..=spatial].iter().all(Option::is_some) {
        for d in 1..=spatial {
            out[d] = covered(
                x[d],
                dilated(size(sizes[d])?, rates[d]),
                strides[d],
                padding,
            )?;
        }
    }
    one(shape(out))
}

/// Blocks of space move to the batch (`forward`) or back.
fn space_batch(
    c: &mut Context<'_>,
    block: Option<Vec<Option<i64>>>,
    forward: bool,
) -> Result<Shapes> {
    let (count, around, blocks) = match block {
        Some(block) => (Some(block.len()), 1, Some(block)),
        None => match c.input(1).dims() {
            Some([Some(n)]) => (Some(*n), 2, c.ints(1)),
            Some([None]) => return invalid("block_shape must have known size."),
            _ => return invalid("block_shape must have rank 1."),
        },
    };
    let pads = c.rank(around, 2)?;
    merge_dims(pads[0], count)?;
    if pads[1].is_some_and(|n| n != 2) {
        return invalid("Dimension must be 2: paddings and crops have a begin and an end");
    }
    let Some(count) = count.or(pads[0]) else {
        return one(PartialShape::unknown());
    };
    let input = match around {
        1 => c.with_rank(0, 4)?,
        _ => c.at_least(0, count + 1)?,
    };
    let Some(x) = input.dims() else {
        return one(PartialShape::unknown());
    };
    let blocks = blocks.unwrap_or_else(|| vec![None; count]);
    let pads = c.ints(around).unwrap_or_else(|| vec![None; 2 * count]);
    let mut out = x.to_vec();
    for i in 0..count {
        let block = match blocks.get(i).copied().flatten() {
            Some(b) if b < 1 => return invalid(format!("block_shape must be positive, not {b}")),
            b => b.map(|b| b as usize),
        };
        let pair = (
            pads.get(2 * i).copied().flatten(),
            pads.get(2 * i + 1).copied().flatten(),
        );
        if [pair.0, pair.1].iter().flatten().any(|p| *p < 0) {
            return invalid("paddings and crops cannot be negative");
        }
        let both = pair.0.zip(pair.1).and_then(|(a, b)| a.checked_add(b));
        let (batch, side) = (out[0], out[i + 1]);
        if forward {
            out[0] = multiply(batch, block)?;
            let padded = side.zip(both).and_then(|(d, p)| d.checked_add(p as usize));
            out[i + 1] = match block {
                Some(block) => divide(padded, block)?,
                None => None,
            };
        } else {
            out[0] = match block {
                Some(block) => divide(batch, block)?,
                None => None,
            };
            let whole = multiply(side, block)?;
            out[i + 1] = match (whole, both) {
                (Some(d), Some(crop)) if crop > d as i64 => {
                    return invalid(format!(
                        "Negative dimension size caused by subtracting {crop} from {d}"
                    ));
                }
                (Some(d), Some(crop)) => Some(d - crop as usize),
                _ => None,
            };
        }
    }
    one(shape(out))
}

#[cfg(test)]
mod tests {
    use super::{covered, window};

    #[test]
    fn windows_move() {
        for (input, size, stride, dilation, padding, around, want) in [
            (28, 5, 1, 1, "VALID", (0, 0), 24),
            (28, 5, 2, 1, "SAME", (0, 0), 14),
            (7, 3, 2, 2, "VALID", (0, 0), 2),
            (5, 3, 1, 1, "EXPLICIT", (1, 1), 5),
            (3, 3, 5, 1, "VALID", (0, 0), 1),
        ] {
            let got = window(Some(input), Some(size), stride, dilation, padding, around);
            assert_eq!(got.unwrap(), Some(want));
        }
        assert_eq!(window(None, Some(3), 1, 1, "VALID", (0, 0)).unwrap(), None);
    }

    #[test]
    fn windows_that_cannot_move_are_errors() {
        assert!(window(Some(2), Some(3), 1, 1, "VALID", (0, 0)).is_err());
        assert!(window(Some(2), Some(1), 0, 1, "VALID", (0, 0)).is_err());
        assert!(window(Some(2), Some(1), 1, 0, "VALID", (0, 0)).is_err());
        assert_eq!(covered(Some(2), Some(3), 1, "VALID").unwrap(), Some(0));
        assert!(covered(Some(2), Some(5), 1, "VALID").is_err());
    }
}
