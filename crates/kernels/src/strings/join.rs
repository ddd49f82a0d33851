//! `StringJoin`, `ReduceJoin`, `UnsortedSegmentJoin`.

use crate::args::{int, ints};
use crate::types::INDEX;
use bytes::Bytes;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Shape, Tensor};

pub(super) fn register(r: &mut Registry) {
    r.add("StringJoin", string_join);
    r.add("ReduceJoin", reduce_join);
    r.add_typed(
        "UnsortedSegmentJoin",
        &[("Tindices", INDEX), ("Tnumsegments", INDEX)],
        segment_join,
    );
}

/// Joins strings into one of bounded size.
fn join<'a>(
    ctx: &OpContext<'_>,
    mut parts: impl Iterator<Item = &'a Bytes> + Clone,
    separator: &[u8],
) -> Result<Bytes> {
    let (count, bytes) = parts
        .clone()
        .fold((0usize, 0usize), |(n, b), p| (n + 1, b + p.len()));
    if count == 1 {
        return Ok(parts.next().cloned().unwrap_or_default());
    }
    let total = bytes.saturating_add(separator.len().saturating_mul(count.saturating_sub(1)));
    ctx.check_alloc(DType::UInt8, &Shape::from([total]))?;
    let mut out = Vec::with_capacity(total);
    for (i, part) in parts.enumerate() {
        if i > 0 {
            out.extend_from_slice(separator);
        }
        out.extend_from_slice(part);
    }
    Ok(out.into())
}

fn string_join(b: &KernelBuilder<'_>) -> Result<Built> {
    let separator = b.attrs().bytes("separator")?.clone();
    Built::cheap(move |ctx| {
        let inputs = ctx.inputs(0..ctx.num_inputs())?;
        let mut shape = Shape::scalar();
        for input in inputs.iter().filter(|t| t.rank() > 0) {
            if shape.rank() == 0 {
                shape = input.shape().clone();
            } else if shape != *input.shape() {
                return Err(Status::invalid_argument(format!(
                    "Input shapes do not match: {shape} vs. {}",
                    input.shape()
                )));
            }
        }
        let mut columns = Vec::with_capacity(inputs.len());
        for input in inputs {
            columns.push((input.rank() > 0, input.as_strings()?));
        }
        let row = |i: usize| {
            let parts = columns
                .iter()
                .filter_map(|(full, s)| s.get(if *full { i } else { 0 }));
            join(ctx, parts, &separator)
        };
        let joined: Result<Vec<Bytes>> = (0..shape.num_elements()).map(row).collect();
        let out = Tensor::strings(joined?, shape)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn reduce_join(b: &KernelBuilder<'_>) -> Result<Built> {
    let separator = b.attrs().bytes("separator")?.clone();
    let keep_dims = b.attrs().bool("keep_dims")?;
    Built::cheap(move |ctx| {
        let (input, axes) = (ctx.input(0)?, ints(ctx.input(1)?)?);
        let rank = input.rank() as i64;
        let mut reduced = vec![false; input.rank()];
        let mut order = Vec::with_capacity(axes.len());
        for axis in axes {
            if axis < -rank || axis >= rank {
                return Err(Status::out_of_range(format!(
                    "Invalid reduction dimension {axis} for input with {rank} dimension(s)"
                )));
            }
            let i = axis.rem_euclid(rank) as usize;
            if std::mem::replace(&mut reduced[i], true) {
                return Err(Status::invalid_argument(format!(
                    "Duplicate reduction dimension {axis}"
                )));
            }
            order.push(i);
        }
        let shape: Shape = (input.dims().iter().zip(&reduced))
            .filter_map(|(&d, &r)| match (r, keep_dims) {
                (false, _) => Some(d),
                (true, keep) => keep.then_some(1),
            })
            .collect();
        let strides = input.shape().strides();
        let kept: Vec<usize> = (0..input.rank()).filter(|&i| !reduced[i]).collect();
        let starts = offsets(input.dims(), &strides, &kept);
        // The first listed dimension runs fastest.
        order.reverse();
        let steps = offsets(input.dims(), &strides, &order);
        ctx.check_alloc(DType::String, &shape)?;
        let strings = input.as_strings()?;
        let group = |&start: &usize| {
            let parts = steps.iter().filter_map(|step| strings.get(start + step));
            join(ctx, parts, &separator)
        };
        let joined: Result<Vec<Bytes>> = starts.iter().map(group).collect();
        let out = Tensor::strings(joined?, shape)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Offsets of all index tuples over the dimensions in `order`, the last one fastest.
fn offsets(dims: &[usize], strides: &[usize], order: &[usize]) -> Vec<usize> {
    let mut all = vec![0];
    for &d in order {
        all = all
            .iter()
            .flat_map(|&base| (0..dims[d]).map(move |i| base + i * strides[d]))
            .collect();
    }
    all
}

fn segment_join(b: &KernelBuilder<'_>) -> Result<Built> {
    let separator = b.attrs().bytes("separator")?.clone();
    Built::cheap(move |ctx| {
        let (input, ids, segments) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
        if segments.rank() != 0 {
            return Err(Status::invalid_argument(
                "Number of segments must be a scalar",
            ));
        }
        let count = int(segments)?;
        if ids.rank() == 0 {
            return Err(Status::invalid_argument("Segment_id cannot have rank 0"));
        }
        if ids.rank() > input.rank() {
            return Err(Status::out_of_range(format!(
                "Invalid segment_id rank {} for input with {} dimension(s)",
                ids.rank(),
                input.rank()
            )));
        }
        for (rank, &d) in ids.dims().iter().enumerate() {
            let have = input.dims().get(rank).copied();
            if have != Some(d) {
                return Err(Status::invalid_argument(match have {
                    Some(have) => format!(
                        "Segment dimension is {d} while input dimension is {have} in rank {rank}"
                    ),
                    None => format!(
                        "Input must have rank {} or more, but has shape {}",
                        ids.rank(),
                        input.shape()
                    ),
                }));
            }
        }
        let Ok(segments) = usize::try_from(count) else {
            return Err(Status::invalid_argument(format!(
                "Number of segments must be non-negative but got {count}"
            )));
        };
        let rest = &input.dims()[ids.rank()..];
        let shape = Shape::checked(std::iter::once(count).chain(rest.iter().map(|&d| d as i64)))?;
        ctx.check_alloc(DType::String, &shape)?;
        let row: usize = rest.iter().product();
        let mut members: Vec<Vec<usize>> = vec![Vec::new(); segments];
        for (i, id) in ints(ids)?.into_iter().enumerate() {
            let member = usize::try_from(id).ok().and_then(|id| members.get_mut(id));
            let member = member.ok_or_else(|| Status::invalid_argument(
                "segment_ids are not allowed to exceed num_segments or to have negative values.",
            ))?;
            member.push(i);
        }
        let strings = input.as_strings()?;
        let mut joined = Vec::with_capacity(shape.num_elements());
        for member in &members {
            for column in 0..row {
                let parts = member.iter().filter_map(|i| strings.get(i * row + column));
                joined.push(join(ctx, parts, &separator)?);
            }
        }
        let out = Tensor::strings(joined, shape)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use bytes::Bytes;
    use downpour_graph::AttrValue;
    use downpour_tensor::{DType, Tensor};

    fn strings(values: &[&str], shape: &[usize]) -> Tensor {
        let values = values.iter().map(|s| Bytes::from(s.to_string())).collect();
        Tensor::strings(values, shape).unwrap()
    }

    #[test]
    fn reduce_join_runs_the_first_listed_dimension_fastest() {
        let x = strings(&["a", "b", "c", "d"], &[2, 2]);
        let dot = ("separator", AttrValue::Str(Bytes::from_static(b".")));
        for (axes, expect) in [
            (vec![0], vec!["a.c", "b.d"]),
            (vec![-1], vec!["a.b", "c.d"]),
            (vec![0, 1], vec!["a.c.b.d"]),
            (vec![1, 0], vec!["a.b.c.d"]),
            (vec![], vec!["a", "b", "c", "d"]),
        ] {
            let inputs = vec![x.clone(), Tensor::vector::<i32>(axes)];
            let out = run_op("ReduceJoin", inputs, std::slice::from_ref(&dot)).unwrap();
            assert_eq!(out[0].as_strings().unwrap(), expect);
        }
        let e = run_op("ReduceJoin", vec![x, Tensor::scalar(2i32)], &[]).unwrap_err();
        assert!(
            e.message
                .starts_with("Invalid reduction dimension 2 for input with 2")
        );
    }

    #[test]
    fn segments_join_in_order_of_appearance() {
        let inputs = vec![
            strings(&["a", "b", "c"], &[3]),
            Tensor::vector(vec![0i32, 1, 0]),
            Tensor::scalar(3i32),
        ];
        let attrs = [
            ("separator", AttrValue::Str(Bytes::from_static(b":"))),
            ("Tindices", DType::Int32.into()),
        ];
        let out = run_op("UnsortedSegmentJoin", inputs, &attrs).unwrap();
        assert_eq!(out[0].as_strings().unwrap(), ["a:c", "b", ""]);
    }

    #[test]
    fn scalars_join_every_element() {
        let inputs = vec![strings(&["a", "b"], &[2]), strings(&["c"], &[])];
        let out = run_op("StringJoin", inputs, &[("N", 2i64.into())]).unwrap();
        assert_eq!(out[0].as_strings().unwrap(), ["ac", "bc"]);
        let inputs = vec![strings(&["a", "b"], &[2]), strings(&["c"], &[1])];
        let e = run_op("StringJoin", inputs, &[("N", 2i64.into())]).unwrap_err();
        assert!(
            e.message
                .starts_with("Input shapes do not match: [2] vs. [1]")
        );
    }
}
