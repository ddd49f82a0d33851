//! Dealing rows out to several tensors and putting them together again.

use super::dtypes::{ALL, STITCH};
use super::gather::position;
use super::units::{Unit, with_unit};
use crate::args::ints;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{Dims, Shape};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("DynamicPartition", &[("T", ALL)], |_| {
        Built::cheap(partition)
    });
    for op in ["DynamicStitch", "ParallelDynamicStitch"] {
        r.add_typed(op, &[("T", STITCH)], |_| Built::cheap(stitch));
    }
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn partition(ctx: &mut OpContext<'_>) -> Result<()> {
    let (data, partitions) = (ctx.input(0)?, ctx.input(1)?);
    if !data.dims().starts_with(partitions.dims()) {
        return invalid(format!(
            "data.shape must start with partitions.shape, got data.shape = {}, partitions.shape = {}",
            data.shape(),
            partitions.shape()
        ));
    }
    let n = ctx.num_outputs();
    let to = partitions.as_slice::<i32>()?;
    let mut counts = vec![0usize; n];
    for (i, &p) in to.iter().enumerate() {
        match usize::try_from(p).ok().and_then(|p| counts.get_mut(p)) {
            Some(count) => *count += 1,
            None => {
                return invalid(format!(
                    "partitions{} = {p} is not in [0, {n})",
                    position(partitions.dims(), i)
                ));
            }
        }
    }
    let rest = Dims::from_slice(&data.dims()[partitions.rank()..]);
    let row: usize = rest.iter().product();
    let dtype = data.dtype();
    let outputs = with_unit!(dtype, U => {
        let src = U::view(data)?;
        let mut parts: Vec<Vec<U>> = counts.iter().map(|c| Vec::with_capacity(c * row)).collect();
        for (i, &p) in to.iter().enumerate() {
            parts[p as usize].extend_from_slice(&src[i * row..(i + 1) * row]);
        }
        let shaped = parts.into_iter().zip(&counts).map(|(part, &count)| {
            let shape: Shape = std::iter::once(count).chain(rest.iter().copied()).collect();
            U::tensor(dtype, part, shape)
        });
        shaped.collect::<Result<Vec<_>>>()?
    });
    for (i, out) in outputs.into_iter().enumerate() {
        ctx.set_output(i, out);
    }
    Ok(())
}

fn stitch(ctx: &mut OpContext<'_>) -> Result<()> {
    let n = ctx.num_inputs() / 2;
    let indices = ctx.inputs(0..n)?;
    let data = ctx.inputs(n..2 * n)?;
    let (Some(index0), Some(data0)) = (indices.first(), data.first()) else {
        return invalid("there is nothing to stitch".to_owned());
    };
    let mut rows = 0usize;
    let mut flat = Vec::with_capacity(n);
    for i in 0..n {
        if !data[i].dims().starts_with(indices[i].dims()) {
            return invalid(format!(
                "data[{i}].shape = {} does not start with indices[{i}].shape = {}",
                data[i].shape(),
                indices[i].shape()
            ));
        }
        let (a, b) = (index0.rank(), indices[i].rank());
        if data0.dims()[a..] != data[i].dims()[b..] {
            return invalid(format!(
                "Need data[0].shape[{a}:] = data[{i}].shape[{b}:], got data[0].shape = {}, data[{i}].shape = {}, indices[0].shape = {}, indices[{i}].shape = {}",
                data0.shape(),
                data[i].shape(),
                index0.shape(),
                indices[i].shape()
            ));
        }
        let values = ints(indices[i])?;
        let top = values.iter().max().map_or(0, |&m| (m.max(-1) + 1) as usize);
        rows = rows.max(top);
        flat.push(values);
    }
    let rest = Dims::from_slice(&data0.dims()[index0.rank()..]);
    let row: usize = rest.iter().product();
    let dims: Vec<i64> = std::iter::once(rows)
        .chain(rest.iter().copied())
        .map(|d| d as i64)
        .collect();
    let shape = crate::args::shape_of(&dims)?;
    for values in &flat {
        if let Some(at) = values.iter().position(|&i| i < 0) {
            return invalid(format!("indices[{at}] is out of range"));
        }
    }
    let dtype = data0.dtype();
    ctx.check_alloc(dtype, &shape)?;
    let out = with_unit!(dtype, U => {
        // Later rows win; rows nobody gives stay zero. Variants have no zero, so any given row
        // stands in until the right one comes.
        let total = shape.num_elements();
        let mut out = match U::zeros(total) {
            Ok(zeros) => zeros,
            Err(e) => match data.iter().find_map(|d| U::view(d).ok()?.first().cloned()) {
                Some(any) if flat.iter().map(Vec::len).sum::<usize>() >= rows => vec![any; total],
                _ => return Err(e),
            },
        };
        for (values, d) in flat.iter().zip(&data) {
            let src = U::view(d)?;
            for (j, &to) in values.iter().enumerate() {
                let to = to as usize * row;
                out[to..to + row].clone_from_slice(&src[j * row..(j + 1) * row]);
            }
        }
        U::tensor(dtype, out, shape)?
    });
    ctx.set_output(0, out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn rows_are_dealt_out_and_stitched_together() {
        let attrs = [("T", DType::Float.into()), ("num_partitions", 2.into())];
        let data = Tensor::from_vec(vec![0.0f32, 1.0, 2.0, 3.0, 4.0, 5.0], [3, 2]).unwrap();
        let deal = |p: Vec<i32>| {
            run_op(
                "DynamicPartition",
                vec![data.clone(), Tensor::vector(p)],
                &attrs,
            )
        };
        let out = deal(vec![1, 0, 1]).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [2.0, 3.0]);
        assert_eq!(out[1].as_slice::<f32>().unwrap(), [0.0, 1.0, 4.0, 5.0]);
        assert!(
            deal(vec![1, 0, 2])
                .unwrap_err()
                .message
                .starts_with("partitions[2] = 2 is not in [0, 2)")
        );
        let attrs = [("T", DType::Float.into()), ("N", 2.into())];
        let inputs = vec![
            Tensor::vector(vec![1i32]),
            Tensor::vector(vec![0i32, 2]),
            out[0].clone(),
            out[1].clone(),
        ];
        let back = run_op("DynamicStitch", inputs, &attrs).unwrap();
        assert_eq!(
            back[0].as_slice::<f32>().unwrap(),
            data.as_slice::<f32>().unwrap()
        );
    }

    #[test]
    fn later_rows_win_and_missing_ones_are_zero() {
        let attrs = [("T", DType::Float.into()), ("N", 2.into())];
        let run = |a: Vec<i32>| {
            let inputs = vec![
                Tensor::vector(a),
                Tensor::vector(vec![2i32]),
                floats(&[1.0, 2.0]),
                floats(&[10.0]),
            ];
            run_op("DynamicStitch", inputs, &attrs)
        };
        assert_eq!(
            run(vec![0, 2]).unwrap()[0].as_slice::<f32>().unwrap(),
            [1.0, 0.0, 10.0]
        );
        assert!(
            run(vec![0, -1])
                .unwrap_err()
                .message
                .starts_with("indices[1] is out of range")
        );
    }
}
