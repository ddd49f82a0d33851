//! `UniformQuantizedConvolution` and `UniformQuantizedConvolutionHybrid`: convolutions in any layout, of any number of
//! spatial dimensions, with strides, dilations of both sides and groups, over integers with scales and zero points.

use super::invalid;
use super::levels::{read, write};
use super::uniform::{Factor, Limits, Scheme, attrs, encode, row_scheme, within};
use crate::args::shape_of;
use crate::parse::proto::wire::{BYTES, Input, VARINT};
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry, parallel_ranges};
use downpour_tensor::{DType, Shape, Tensor};

const I8: &[DType] = &[DType::QInt8];
const I32: &[DType] = &[DType::QInt32];
const FLOAT: &[DType] = &[DType::Float];

/// Products worth a thread of their own.
const GRAIN: usize = 32 << 10;

pub(super) fn register(r: &mut Registry) {
    let types = &[("Tin", I8), ("Tout", I32)];
    r.add_typed("UniformQuantizedConvolution", types, |b| {
        let conv = Convolution::new(b)?;
        let (left, right) = (attrs(b, "lhs_")?.0, attrs(b, "rhs_")?.0);
        if left != -1 {
            return invalid("lhs_quantization_axis Attr must be -1 (per-tensor).");
        }
        let (out, limits) = attrs(b, "output_")?;
        Built::costly(move |ctx| integers(ctx, &conv, right, out, limits))
    });
    let types = &[("Tlhs", FLOAT), ("Trhs", I8), ("Tout", FLOAT)];
    r.add_typed("UniformQuantizedConvolutionHybrid", types, |b| {
        let conv = Convolution::new(b)?;
        let right = attrs(b, "rhs_")?.0;
        Built::costly(move |ctx| hybrid(ctx, &conv, right))
    });
}

/// Which dimension of a tensor is what.
#[derive(Clone, Debug, Default)]
struct Layout {
    /// Of the input and the output; the output's features of the kernel.
    batch: i64,
    /// The input's features of the kernel.
    feature: i64,
    spatial: Vec<i64>,
}

impl Layout {
    fn plain(rank: usize) -> Layout {
        Layout {
            batch: 0,
            feature: 1,
            spatial: (2..rank as i64).collect(),
        }
    }

    fn check(&self, rank: usize) -> Result<()> {
        let spatial = self.spatial.len();
        if spatial != rank - 2 {
            return invalid(format!(
                "Spatial dimensions size must be rank - 2. Given rank {rank} and spatial dimensions size {spatial}"
            ));
        }
        let mut seen = vec![false; rank];
        for &d in [self.batch, self.feature].iter().chain(&self.spatial) {
            let Some(place) = usize::try_from(d).ok().and_then(|d| seen.get_mut(d)) else {
                return invalid(format!(
                    "Each dimension number must be in region [0, rank). Given rank {rank} and dimension number value {d}"
                ));
            };
            if std::mem::replace(place, true) {
                return invalid(format!("dimension number {d} is given twice"));
            }
        }
        Ok(())
    }

    /// The sizes of a tensor: batch, features, then its spatial ones.
    fn of(&self, dims: &[usize]) -> (usize, usize, Vec<usize>) {
        let spatial = self.spatial.iter().map(|&d| dims[d as usize]);
        (
            dims[self.batch as usize],
            dims[self.feature as usize],
            spatial.collect(),
        )
    }
}

/// A convolution as its attributes have it.
struct Convolution {
    strides: Vec<i64>,
    padding: String,
    explicit: Vec<i64>,
    dilations: [Vec<i64>; 2],
    batch_groups: i64,
    feature_groups: i64,
    /// Of the input, the kernel and the output, if they are given.
    layouts: Option<[Layout; 3]>,
}

/// A convolution of tensors that are there.
struct Plan {
    layouts: [Layout; 3],
    dims: [Vec<usize>; 3],
    strides: Vec<usize>,
    before: Vec<usize>,
    dilations: [Vec<usize>; 2],
    batch_groups: usize,
    feature_groups: usize,
}

fn dilated(size: usize, by: usize) -> usize {
    match size {
        0 => 0,
        size => (size - 1).saturating_mul(by).saturating_add(1),
    }
}

/// The dimension numbers of a `UniformQuantizedConvolutionDimensionNumbersAttr`.
fn layouts(bytes: &[u8]) -> Option<[Layout; 3]> {
    let mut layouts: [Layout; 3] = Default::default();
    let mut input = Input::new(bytes);
    while !input.is_done() {
        let tag = input.tag()?;
        let known = (1..=9).contains(&tag.number);
        let place = (tag.number as usize).wrapping_sub(1);
        match (tag.wire, tag.number % 3) {
            (VARINT, which) if known => {
                let value = input.varint()? as i64;
                let layout = &mut layouts[place / 3];
                match (which, tag.number) {
                    // The kernel's input features come before its output features.
                    (1, 4) | (2, 2 | 8) => layout.feature = value,
                    (1, _) | (2, _) => layout.batch = value,
                    _ => layout.spatial.push(value),
                }
            }
            (BYTES, 0) if known => {
                let mut packed = Input::new(input.bytes()?);
                while !packed.is_done() {
                    layouts[place / 3].spatial.push(packed.varint()? as i64);
                }
            }
            _ => input.skip(tag, 0)?,
        }
    }
    Some(layouts)
}

fn joined(values: &[i64]) -> String {
    let texts: Vec<String> = values.iter().map(i64::to_string).collect();
    texts.join(", ")
}

impl Convolution {
    fn new(b: &KernelBuilder<'_>) -> Result<Convolution> {
        let ints = |name: &str| b.attrs().ints(name).map(<[i64]>::to_vec);
        let padding = b.attrs().str("padding")?.to_owned();
        let explicit = ints("explicit_padding")?;
        if !["EXPLICIT", "SAME", "VALID"].contains(&padding.as_str()) {
            return invalid(format!(
                "padding Attr must be one of [EXPLICIT | SAME | VALID], but given: {padding}"
            ));
        }
        if padding != "EXPLICIT" && !explicit.is_empty() {
            return invalid(format!(
                "If padding Attr is not 'EXPLICIT', explicit_padding Attr must be empty. Given padding {padding} and explicit_padding of size {}",
                explicit.len()
            ));
        }
        let numbers = b.attrs().bytes("dimension_numbers")?;
        let Some(given) = layouts(numbers) else {
            return invalid("Error parsing convolution dimension numbers.");
        };
        Ok(Convolution {
            strides: ints("window_strides")?,
            padding,
            explicit,
            dilations: [ints("lhs_dilation")?, ints("rhs_dilation")?],
            batch_groups: b.attrs().int("batch_group_count")?,
            feature_groups: b.attrs().int("feature_group_count")?,
            layouts: (!given[0].spatial.is_empty()).then_some(given),
        })
    }

    /// One factor for each spatial dimension, none of them below 1.
    fn factors(&self, given: &[i64], name: &str, count: usize) -> Result<Vec<usize>> {
        if given.is_empty() {
            return Ok(vec![1; count]);
        }
        if given.len() != count {
            return invalid(format!("Size of {name} Attr must be dims - 2."));
        }
        if given.iter().any(|&v| v < 1) {
            return invalid(format!(
                "All elements of {name} must be >= 1. Given {}",
                joined(given)
            ));
        }
        Ok(given.iter().map(|&v| v as usize).collect())
    }

    fn plan(&self, left: &Tensor, right: &Tensor) -> Result<(Plan, Shape)> {
        let rank = left.rank();
        if rank != right.rank() {
            return invalid(format!(
                "lhs and rhs must have same dims. Given lhs and rhs of shapes: {}{}",
                left.shape(),
                right.shape()
            ));
        }
        if rank <= 2 {
            return invalid(format!(
                "lhs and rhs shape dims must be at least 3. Given: {rank}"
            ));
        }
        let count = rank - 2;
        let strides = self.factors(&self.strides, "window_strides", count)?;
        let dilations = [
            self.factors(&self.dilations[0], "lhs_dilation", count)?,
            self.factors(&self.dilations[1], "rhs_dilation", count)?,
        ];
        let layouts = match &self.layouts {
            Some(layouts) => layouts.clone(),
            None => [0; 3].map(|_| Layout::plain(rank)),
        };
        for layout in &layouts {
            layout.check(rank)?;
        }
        let (batch, features, size) = layouts[0].of(left.dims());
        let (outputs, inputs, window) = layouts[1].of(right.dims());
        let (batch_groups, feature_groups) = self.groups(batch, features, inputs, outputs)?;
        let mut before = vec![0; count];
        let mut dims = vec![0i64; rank];
        dims[layouts[2].batch as usize] = (batch / batch_groups) as i64;
        dims[layouts[2].feature as usize] = outputs as i64;
        if self.padding == "EXPLICIT" {
            if self.explicit.len() != 2 * count {
                return invalid(format!(
                    "Size of explicit_padding Attr must be 2 * (rank - 2). Given rank {rank} and explicit_padding of size {}",
                    self.explicit.len()
                ));
            }
            if self.explicit.iter().any(|&v| v < 0) {
                return invalid(format!(
                    "All explicit_padding elems must be >= 0, Given {}",
                    joined(&self.explicit)
                ));
            }
        }
        for i in 0..count {
            let own = dilated(size[i], dilations[0][i]) as i64;
            let kernel = dilated(window[i], dilations[1][i]) as i64;
            let stride = strides[i] as i64;
            let (low, high) = match self.padding.as_str() {
                "EXPLICIT" => (self.explicit[2 * i], self.explicit[2 * i + 1]),
                "VALID" => (0, 0),
                _ => {
                    let out = (own.saturating_add(stride - 1)) / stride;
                    let total = ((out - 1).saturating_mul(stride))
                        .saturating_add(kernel)
                        .saturating_sub(own)
                        .max(0);
                    (total / 2, total - total / 2)
                }
            };
            before[i] = low as usize;
            let padded = own.saturating_add(low).saturating_add(high);
            let room = padded.saturating_sub(kernel).saturating_add(1);
            dims[layouts[2].spatial[i] as usize] = room.saturating_add(stride - 1) / stride;
        }
        let shape = shape_of(&dims)?;
        let plan = Plan {
            dims: [left.dims(), right.dims(), shape.dims()].map(<[usize]>::to_vec),
            layouts,
            strides,
            before,
            dilations,
            batch_groups,
            feature_groups,
        };
        Ok((plan, shape))
    }

    /// Into how many groups batch and features are cut.
    fn groups(
        &self,
        batch: usize,
        features: usize,
        inputs: usize,
        outputs: usize,
    ) -> Result<(usize, usize)> {
        let groups = self.feature_groups;
        let Some(count) = usize::try_from(groups).ok().filter(|n| *n > 0) else {
            return invalid(format!(
                "feature_group_count must be a positive integer, given: {groups}"
            ));
        };
        if !features.is_multiple_of(count) {
            return invalid(format!(
                "feature_group_count must divide lhs feature dimension size, but {groups} does not divide {features}"
            ));
        }
        if inputs == 0 || !features.is_multiple_of(inputs) {
            return invalid(format!(
                "rhs input feature dimension must divide lhs feature dimension size, but {inputs} does not divide {features}"
            ));
        }
        if features / count != inputs {
            return invalid(format!(
                "lhs feature dimension size divided by feature_group_count must equal the rhs input feature dimension size, but {features} / {groups} != {inputs}"
            ));
        }
        if !outputs.is_multiple_of(count) {
            return invalid(format!(
                "rhs output dimension size must be a multiple of feature_group_count, but {outputs} is not a multiple of {groups}"
            ));
        }
        let batches = self.batch_groups;
        let Some(batch_count) = usize::try_from(batches).ok().filter(|n| *n > 0) else {
            return invalid(format!(
                "batch_group_count Attr must be a positive integer. Given: {batches}"
            ));
        };
        if !batch.is_multiple_of(batch_count) {
            return invalid(format!(
                "batch_group_count must divide lhs batch dimension size, but {batches} does not divide {batch}"
            ));
        }
        if !outputs.is_multiple_of(batch_count) {
            return invalid(format!(
                "rhs output dimension size must be a multiple of batch_group_count, but {outputs} is not a multiple of {batches}"
            ));
        }
        Ok((batch_count, count))
    }
}

impl Plan {
    fn steps(dims: &[usize]) -> Vec<usize> {
        Shape::from(dims).strides().to_vec()
    }

    /// Sums of products for elements `first..` of the output. `zero` is what is taken off a number of the input's batch
    /// entry, and what lies around it; `other` what is taken off the kernel's for an output feature.
    fn sums(
        &self,
        first: usize,
        out: &mut [i32],
        (left, right): (&[i32], &[i32]),
        zero: impl Fn(usize) -> i32,
        other: impl Fn(usize) -> i32,
    ) {
        let [of_left, of_right, of_out] = [0, 1, 2].map(|i| Plan::steps(&self.dims[i]));
        let (_, _, size) = self.layouts[0].of(&self.dims[0]);
        let (outputs, inputs, window) = self.layouts[1].of(&self.dims[1]);
        let batch = self.layouts[2].of(&self.dims[2]).0;
        let [l, r, o] = &self.layouts;
        let places: usize = window.iter().product();
        let spatial = window.len();
        for (i, out) in out.iter_mut().enumerate() {
            let i = first + i;
            let at = |d: i64| i / of_out[d as usize] % self.dims[2][d as usize];
            let feature = at(o.feature);
            let entry = feature / (outputs / self.batch_groups).max(1) * batch + at(o.batch);
            let group = feature / (outputs / self.feature_groups).max(1);
            let (zero, other) = (zero(entry), other(feature));
            let around = i32::from(zero as i8).wrapping_sub(zero);
            let mut sum = 0i32;
            for place in 0..places {
                let (mut rest, mut from, mut kernel, mut inside) = (place, 0, 0, true);
                for d in (0..spatial).rev() {
                    let w = rest % window[d];
                    rest /= window[d];
                    kernel += w * of_right[r.spatial[d] as usize];
                    let along = at(o.spatial[d]) * self.strides[d] + w * self.dilations[1][d];
                    let along = along.wrapping_sub(self.before[d]);
                    let by = self.dilations[0][d];
                    inside &= along < dilated(size[d], by) && along.is_multiple_of(by);
                    from = if inside {
                        from + along / by * of_left[l.spatial[d] as usize]
                    } else {
                        0
                    };
                }
                let from = from + entry * of_left[l.batch as usize];
                let kernel = kernel + feature * of_right[r.batch as usize];
                for c in 0..inputs {
                    let x = if inside {
                        let c = group * inputs + c;
                        left[from + c * of_left[l.feature as usize]].wrapping_sub(zero)
                    } else {
                        around
                    };
                    let y = right[kernel + c * of_right[r.feature as usize]].wrapping_sub(other);
                    sum = sum.wrapping_add(x.wrapping_mul(y));
                }
            }
            *out = sum;
        }
    }

    fn work(&self) -> usize {
        let (_, inputs, window) = self.layouts[1].of(&self.dims[1]);
        inputs.saturating_mul(window.iter().product()).max(1)
    }

    fn feature(&self, i: usize) -> usize {
        let d = self.layouts[2].feature as usize;
        i / Plan::steps(&self.dims[2])[d] % self.dims[2][d]
    }

    /// Which batch entry of the input element `i` of the output is made of.
    fn entry(&self, i: usize) -> usize {
        let d = self.layouts[2].batch as usize;
        let at = i / Plan::steps(&self.dims[2])[d] % self.dims[2][d];
        let outputs = self.layouts[1].of(&self.dims[1]).0;
        self.feature(i) / (outputs / self.batch_groups).max(1) * self.dims[2][d] + at
    }

    /// The kernel's scales may be the output features', and of nothing else.
    fn check_axis(&self, axis: i64) -> Result<()> {
        if axis != -1 && axis != self.layouts[1].batch {
            return invalid(
                "rhs_quantization_axis Attr must be -1 (per-tensor) or dimension_numbers.kernel_output_feature_dimension (per-channel).",
            );
        }
        Ok(())
    }
}

fn positive(t: &Tensor, name: &str) -> Result<()> {
    match t.as_slice::<f32>()?.iter().all(|v| *v > 0.0) {
        true => Ok(()),
        false => invalid(format!("{name} scales elements must be all positive.")),
    }
}

fn integers(
    ctx: &mut OpContext<'_>,
    conv: &Convolution,
    axis: i64,
    out_axis: i64,
    limits: Limits,
) -> Result<()> {
    for (i, name) in [(2, "lhs"), (4, "rhs"), (6, "output")] {
        positive(ctx.input(i)?, name)?;
    }
    let (left, right) = (ctx.input(0)?, ctx.input(1)?);
    let (plan, shape) = conv.plan(left, right)?;
    let (scales, zeros) = (ctx.input(2)?, ctx.input(3)?);
    if scales.rank() != 0 || zeros.rank() != 0 {
        return invalid(format!(
            "lhs scales/zero_points must be all scalar tensors. Given: {}{}",
            scales.shape(),
            zeros.shape()
        ));
    }
    plan.check_axis(axis)?;
    let of_right = Scheme::inputs(ctx, 4, axis, right.dims())?;
    if out_axis != -1 && out_axis != plan.layouts[2].feature {
        return invalid(
            "output_quantization_axis Attr must be -1 (per-tensor) or dimension_numbers.output_feature_dimension (per-channel).",
        );
    }
    let of_out = Scheme::inputs(ctx, 6, out_axis, shape.dims())?;
    if axis == -1 && out_axis != -1 {
        return invalid(
            "If rhs is per-tensor quantized, output must be also per-tensor quantized. Given output scales/zero_points of rank 1",
        );
    }
    ctx.check_alloc(DType::QInt32, &shape)?;
    let of_left = Scheme::inputs(ctx, 2, -1, left.dims())?;
    let channel = |axis: i64, feature: usize| if axis == -1 { 0 } else { feature };
    let outputs = plan.layouts[1].of(&plan.dims[1]).0;
    let factors = (0..outputs)
        .map(|f| {
            let scale = f64::from(of_left.scales[0]) * f64::from(of_right.scales[channel(axis, f)]);
            Factor::new(scale / f64::from(of_out.scales[channel(out_axis, f)]))
        })
        .collect::<Result<Vec<_>>>()?;
    let numbers = (read(left)?, read(right)?);
    let mut sums = vec![0i32; shape.num_elements()];
    parallel_ranges(&mut sums, 1, GRAIN / plan.work() + 1, |first, part| {
        let other = |f: usize| of_right.zeros[channel(axis, f)];
        let both = (numbers.0.as_slice(), numbers.1.as_slice());
        plan.sums(first, part, both, |_| of_left.zeros[0], other);
        for (i, v) in part.iter_mut().enumerate() {
            let feature = plan.feature(first + i);
            let zero = of_out.zeros[channel(out_axis, feature)];
            *v = within(factors[feature].apply(*v).wrapping_add(zero), limits);
        }
    });
    let made = write(DType::QInt32, sums, shape)?;
    ctx.set_output(0, made);
    Ok(())
}

/// Floats on the left: each entry of the batch is rounded to 8 bits over its own range.
fn hybrid(ctx: &mut OpContext<'_>, conv: &Convolution, axis: i64) -> Result<()> {
    positive(ctx.input(2)?, "rhs")?;
    let (left, right) = (ctx.input(0)?, ctx.input(1)?);
    let (plan, shape) = conv.plan(left, right)?;
    plan.check_axis(axis)?;
    let scheme = Scheme::inputs(ctx, 2, axis, right.dims())?;
    ctx.check_alloc(DType::Float, &shape)?;
    let values = left.as_slice::<f32>()?;
    let d = plan.layouts[0].batch as usize;
    let (step, batch) = (Plan::steps(left.dims())[d], left.dims()[d]);
    let entry = |i: usize| i / step % batch.max(1);
    let mut rows = vec![Vec::new(); batch];
    for (i, v) in values.iter().enumerate() {
        rows[entry(i)].push(*v);
    }
    let schemes: Vec<(f32, i32)> = rows.iter().map(|row| row_scheme(row)).collect();
    let codes = values.iter().enumerate().map(|(i, v)| {
        let (scale, zero) = schemes[entry(i)];
        encode(*v, scale, zero, (-128, 127))
    });
    let numbers = (codes.collect::<Vec<i32>>(), read(right)?);
    let channel = |feature: usize| if axis == -1 { 0 } else { feature };
    let mut out = vec![0f32; shape.num_elements()];
    parallel_ranges(&mut out, 1, GRAIN / plan.work() + 1, |first, part| {
        let mut sums = vec![0; part.len()];
        let both = (numbers.0.as_slice(), numbers.1.as_slice());
        let other = |f: usize| scheme.zeros[channel(f)];
        plan.sums(first, &mut sums, both, |e| schemes[e].1, other);
        for (i, (to, sum)) in part.iter_mut().zip(sums).enumerate() {
            let own = schemes[plan.entry(first + i)].0;
            *to = sum as f32 * own * scheme.scales[channel(plan.feature(first + i))];
        }
    });
    ctx.set_output(0, Tensor::from_vec(out, shape)?);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::layouts;
    use crate::testing::{run_op, text};
    use downpour_graph::AttrValue;
    use downpour_tensor::{Buffer, DType, Tensor};

    fn codes(values: &[i8], dims: &[usize]) -> Tensor {
        let buffer = Buffer::from_vec::<i8>(values.to_vec());
        Tensor::from_buffer(DType::QInt8, dims, buffer).unwrap()
    }

    fn attrs(padding: &str, prefixes: &[&str]) -> Vec<(String, AttrValue)> {
        let mut attrs = vec![("padding".to_owned(), AttrValue::from(padding))];
        for prefix in prefixes {
            let name = |what: &str| format!("{prefix}_quantization_{what}_val");
            let (low, high) = match *prefix {
                "output" => (i64::from(i32::MIN), i64::from(i32::MAX)),
                _ => (-128, 127),
            };
            attrs.push((name("min"), low.into()));
            attrs.push((name("max"), high.into()));
        }
        attrs
    }

    fn run(
        op: &str,
        inputs: Vec<Tensor>,
        attrs: &[(String, AttrValue)],
    ) -> downpour_graph::Result<Vec<Tensor>> {
        let attrs: Vec<(&str, AttrValue)> =
            attrs.iter().map(|(n, v)| (n.as_str(), v.clone())).collect();
        run_op(op, inputs, &attrs)
    }

    fn scheme(scale: f32, zero: i32) -> [Tensor; 2] {
        [Tensor::scalar(scale), Tensor::scalar(zero)]
    }

    #[test]
    fn a_row_is_convolved_with_its_edges_as_zero_points() {
        // (x - 1) * 0.5 over the row 1 3 5, the kernel 1 1 with zero point 0 and scale 1, SAME: sums of neighbours.
        let mut attrs = attrs("SAME", &["lhs", "rhs", "output"]);
        attrs.push(("Tin".to_owned(), DType::QInt8.into()));
        attrs.push(("Tout".to_owned(), DType::QInt32.into()));
        let mut inputs = vec![codes(&[1, 3, 5], &[1, 1, 3]), codes(&[1, 1], &[1, 1, 2])];
        inputs.extend(scheme(0.5, 1));
        inputs.extend(scheme(1.0, 0));
        inputs.extend(scheme(0.25, 7));
        let out = run("UniformQuantizedConvolution", inputs.clone(), &attrs).unwrap();
        let got = out[0].buffer().unwrap().as_slice::<i32>().unwrap().to_vec();
        // 1.0, 3.0 and 2.0 in quarters, and 7.
        assert_eq!((got, out[0].dims()), (vec![11, 19, 15], &[1, 1, 3][..]));
        inputs[2] = Tensor::scalar(0f32);
        let refused = text(run("UniformQuantizedConvolution", inputs, &attrs));
        assert_eq!(refused, "lhs scales elements must be all positive.");
    }

    #[test]
    fn floats_are_rounded_entry_by_entry() {
        let mut attrs = attrs("VALID", &["rhs"]);
        attrs.push(("Tlhs".to_owned(), DType::Float.into()));
        attrs.push(("Trhs".to_owned(), DType::QInt8.into()));
        attrs.push(("Tout".to_owned(), DType::Float.into()));
        let left = Tensor::from_vec(vec![0f32, 255.0, 0.0, 2.55], [2, 1, 2]).unwrap();
        let mut inputs = vec![left, codes(&[1, 2], &[1, 1, 2])];
        inputs.extend(scheme(1.0, 0));
        let out = run("UniformQuantizedConvolutionHybrid", inputs, &attrs).unwrap();
        let got = out[0].as_slice::<f32>().unwrap();
        assert!(
            (got[0] - 510.0).abs() < 1e-3 && (got[1] - 5.1).abs() < 1e-5,
            "{got:?}"
        );
    }

    #[test]
    fn dimension_numbers_are_read_packed_and_one_by_one() {
        let numbers = [
            8, 0, 16, 3, 26, 2, 1, 2, 32, 2, 40, 3, 50, 2, 0, 1, 56, 0, 64, 3, 72, 1, 72, 2,
        ];
        let [left, kernel, out] = layouts(&numbers).unwrap();
        assert_eq!((left.batch, left.feature, left.spatial), (0, 3, vec![1, 2]));
        assert_eq!(
            (kernel.batch, kernel.feature, kernel.spatial),
            (3, 2, vec![0, 1])
        );
        assert_eq!((out.batch, out.feature, out.spatial), (0, 3, vec![1, 2]));
        assert!(layouts(&[8]).is_none());
    }
}
