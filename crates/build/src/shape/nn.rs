//! Shapes of neural network operations: convolutions, pools, losses.

use super::common::{merge, merge_dim, same};
use super::{Context, Rule, Shapes, invalid, one};
use downpour_graph::Result;
use downpour_tensor::PartialShape;
use smallvec::smallvec;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "BiasAdd" => bias_add,
        "BiasAddGrad" => bias_add_grad,
        "SoftmaxCrossEntropyWithLogits" => |c| {
            let logits = merge(&c.with_rank(0, 2)?, &c.with_rank(1, 2)?)?;
            let rows = logits.dims().and_then(|d| d[0]);
            Ok(smallvec![PartialShape::from_dims([rows]), logits])
        },
        "SparseSoftmaxCrossEntropyWithLogits" => |c| {
            let (logits, labels) = (c.with_rank(0, 2)?, c.with_rank(1, 1)?);
            let dims = logits.dims().unwrap_or_default();
            let rows = merge_dim(dims[0], labels.dims().and_then(|d| d[0]));
            let Some(rows) = rows else {
                return invalid("there must be one label for each row of logits");
            };
            Ok(smallvec![
                PartialShape::from_dims([rows]),
                PartialShape::from_dims([rows, dims[1]])
            ])
        },
        "Conv2D" => conv2d,
        "MaxPool" | "AvgPool" => pool,
        "LRN" | "Dropout" => same,
        "InTopK" | "InTopKV2" => |c| one(c.with_rank(1, 1)?),
        "TopKV2" => top_k,
        _ => return None,
    })
}

/// Position of the channels among `rank` dimensions.
fn channels(c: &Context<'_>, rank: usize) -> Result<usize> {
    Ok(match c.attrs().str("data_format") {
        Ok("NCHW") => rank.checked_sub(3).unwrap_or(1).min(1),
        _ => rank.saturating_sub(1),
    })
}

fn bias_add(c: &mut Context<'_>) -> Result<Shapes> {
    let (value, bias) = (c.input(0), c.with_rank(1, 1)?);
    let Some(dims) = value.dims() else {
        return one(value);
    };
    if dims.len() < 2 {
        return invalid("the value must have at least two dimensions");
    }
    let mut dims = dims.to_vec();
    let at = channels(c, dims.len())?;
    let given = bias.dims().and_then(|d| d[0]);
    let Some(merged) = merge_dim(dims[at], given) else {
        return invalid(format!("a bias of {bias} does not fit a value of {value}"));
    };
    dims[at] = merged;
    one(PartialShape::from_dims(dims))
}

fn bias_add_grad(c: &mut Context<'_>) -> Result<Shapes> {
    let value = c.input(0);
    let Some(dims) = value.dims() else {
        return one(PartialShape::from_dims([None]));
    };
    let at = channels(c, dims.len())?;
    one(PartialShape::from_dims([dims.get(at).copied().flatten()]))
}

/// Length of one spatial dimension after a window has moved over it.
fn window(
    input: Option<usize>,
    size: Option<usize>,
    stride: usize,
    dilation: usize,
    padding: &str,
    explicit: (i64, i64),
) -> Result<Option<usize>> {
    let (Some(input), Some(size)) = (input, size) else {
        return Ok(None);
    };
    let effective = (size.max(1) - 1) * dilation + 1;
    let room = match padding {
        "SAME" => return Ok(Some(input.div_ceil(stride))),
        "EXPLICIT" => (input as i64 + explicit.0 + explicit.1).max(0) as usize,
        _ => input,
    };
    if room < effective {
        return invalid(format!(
            "Negative dimension size caused by subtracting {effective} from {room}"
        ));
    }
    Ok(Some((room - effective) / stride + 1))
}

fn positive(values: &[i64], i: usize) -> Result<usize> {
    match values.get(i).map(|v| usize::try_from(*v)) {
        Some(Ok(v)) if v > 0 => Ok(v),
        _ => invalid(format!("{values:?} must be four positive numbers")),
    }
}

fn conv2d(c: &mut Context<'_>) -> Result<Shapes> {
    let (input, filter) = (c.with_rank(0, 4)?, c.with_rank(1, 4)?);
    let (x, f) = (
        input.dims().unwrap_or_default(),
        filter.dims().unwrap_or_default(),
    );
    let nchw = c.attrs().str("data_format")? == "NCHW";
    let (height, width, depth) = if nchw { (2, 3, 1) } else { (1, 2, 3) };
    let strides = c.attrs().ints("strides")?;
    let dilations = c.attrs().ints("dilations")?;
    let padding = c.attrs().str("padding")?;
    let explicit = c.attrs().ints("explicit_paddings").unwrap_or_default();
    let around = |d: usize| match explicit {
        [] => (0, 0),
        e => (
            e.get(2 * d).copied().unwrap_or(0),
            e.get(2 * d + 1).copied().unwrap_or(0),
        ),
    };
    if let (Some(given), Some(wanted)) = (x[depth], f[2])
        && (wanted == 0 || given % wanted != 0)
    {
        return invalid(format!(
            "the depth of the input ({given}) is not a multiple of that of the filter ({wanted})"
        ));
    }
    let side = |d: usize, size: Option<usize>| {
        window(
            x[d],
            size,
            positive(strides, d)?,
            positive(dilations, d)?,
            padding,
            around(d),
        )
    };
    let (rows, columns) = (side(height, f[0])?, side(width, f[1])?);
    one(PartialShape::from_dims(match nchw {
        true => [x[0], f[3], rows, columns],
        false => [x[0], rows, columns, f[3]],
    }))
}

fn pool(c: &mut Context<'_>) -> Result<Shapes> {
    let input = c.with_rank(0, 4)?;
    let x = input.dims().unwrap_or_default();
    let (sizes, strides) = (c.attrs().ints("ksize")?, c.attrs().ints("strides")?);
    let padding = c.attrs().str("padding")?;
    let explicit = c.attrs().ints("explicit_paddings").unwrap_or_default();
    let mut out = Vec::new();
    for d in 0..4 {
        let around = (
            explicit.get(2 * d).copied().unwrap_or(0),
            explicit.get(2 * d + 1).copied().unwrap_or(0),
        );
        let size = Some(positive(sizes, d)?);
        out.push(window(
            x[d],
            size,
            positive(strides, d)?,
            1,
            padding,
            around,
        )?);
    }
    one(PartialShape::from_dims(out))
}

fn top_k(c: &mut Context<'_>) -> Result<Shapes> {
    let input = c.input(0);
    let k = c.known_int(1).and_then(|k| usize::try_from(k).ok());
    let shape = match input.dims() {
        Some([lead @ .., _]) => PartialShape::from_dims(lead.iter().copied().chain([k])),
        Some([]) => return invalid("the input must have at least one dimension"),
        None => PartialShape::unknown(),
    };
    Ok(smallvec![shape; 2])
}
