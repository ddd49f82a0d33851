//! Dealing rows out to several tensors and putting them together again.

use super::dtypes::{ALL, STITCH};
use super::gather::position;
use super::units::{Unit, with_unit};
use crate::args::ints;
use crate::math::isa::prefetch_run;
use crate::uninit::filled;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry, parallel_ranges};
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
    if let Some(i) = to
        .iter()
        .position(|p| !(0..n as i64).contains(&i64::from(*p)))
    {
        return invalid(format!(
            "partitions{} = {} is not in [0, {n})",
            position(partitions.dims(), i),
            to[i]
        ));
    }
    let dealt = dealt(to, n);
    let rest = Dims::from_slice(&data.dims()[partitions.rank()..]);
    let row: usize = rest.iter().product();
    let dtype = data.dtype();
    let outputs = with_unit!(dtype, U => {
        let src = U::view(data)?;
        let parts = dealt.iter().map(|rows| {
            let part = if row == 1 {
                rows.iter().map(|&i| src[i].clone()).collect()
            } else {
                filled(Vec::new(), rows.len() * row, row, GRAIN.div_ceil(row.max(1)), |first, out| {
                    let count = out.missing().checked_div(row).unwrap_or(0);
                    for &i in &rows[first..first + count] {
                        out.extend_from_slice(&src[i * row..(i + 1) * row]);
                    }
                })
            };
            let shape: Shape = std::iter::once(rows.len()).chain(rest.iter().copied()).collect();
            U::tensor(dtype, part, shape)
        });
        parts.collect::<Result<Vec<_>>>()?
    });
    for (i, out) in outputs.into_iter().enumerate() {
        ctx.set_output(i, out);
    }
    Ok(())
}

/// Parts below which looking for each one's rows in turn is quicker than dealing them out.
const FEW_PARTS: usize = 8;

/// Rows from which on looking through them is worth a thread.
const MANY_ROWS: usize = 16 << 10;

/// Which rows each of `n` parts gets, where row `i` goes to part `to[i]`, which there is.
fn dealt(to: &[i32], n: usize) -> Vec<Vec<usize>> {
    if n > FEW_PARTS {
        let mut parts = vec![Vec::new(); n];
        for (i, &p) in to.iter().enumerate() {
            parts[p as usize].push(i);
        }
        return parts;
    }
    let one = |p: i32| {
        let count = to.iter().filter(|t| **t == p).count();
        // Every row is written down and stays if it is one of these: nothing to mispredict.
        let (mut rows, mut next) = (vec![0; count + 1], 0);
        for (i, &t) in to.iter().enumerate() {
            rows[next] = i;
            next += usize::from(t == p);
        }
        rows.truncate(count);
        rows
    };
    let mut parts = vec![Vec::new(); n];
    let grain = MANY_ROWS.div_ceil(to.len().max(1));
    parallel_ranges(&mut parts, 1, grain, |first, parts| {
        for (p, part) in parts.iter_mut().enumerate() {
            *part = one((first + p) as i32);
        }
    });
    parts
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
        let views = data.iter().map(|d| U::view(d)).collect::<Result<Vec<&[U]>>>()?;
        let given = flat.iter().map(Vec::len).sum::<usize>();
        // Rows nobody gives stay zero. Variants have no zero, so any given row stands in.
        let gap = match (U::zero(), shape.num_elements()) {
            (Ok(zero), _) => Some(zero),
            (Err(_), 0) => None,
            (Err(e), _) => match views.iter().find_map(|v| v.first()) {
                Some(any) if given >= rows => Some(any.clone()),
                _ => return Err(e),
            },
        };
        let out = match gap {
            None => Vec::new(),
            Some(gap)
                if given >= rows && row >= LONG_ROW && u32::try_from(given).is_ok() =>
            {
                stitch_long(&flat, &views, rows, row, &gap)
            }
            Some(gap) => {
                let mut out = vec![gap; shape.num_elements()];
                for (values, src) in flat.iter().zip(&views) {
                    for (j, &to) in values.iter().enumerate() {
                        let to = to as usize * row;
                        out[to..to + row].clone_from_slice(&src[j * row..(j + 1) * row]);
                    }
                }
                out
            }
        };
        U::tensor(dtype, out, shape)?
    });
    ctx.set_output(0, out);
    Ok(())
}

/// Elements of a row from which looking up where it comes from is worth its while.
const LONG_ROW: usize = 4;

/// Elements below which a copy is not worth splitting.
const GRAIN: usize = 64 << 10;

/// Rows that are asked for before they are copied.
const AHEAD: usize = 8;

/// Writes `rows` rows in order, each from the last place that gives it: nothing is zeroed first, and
/// parts can be written in parallel.
fn stitch_long<U: Unit>(
    flat: &[Vec<i64>],
    views: &[&[U]],
    rows: usize,
    row: usize,
    gap: &U,
) -> Vec<U> {
    const NOBODY: (u32, u32) = (u32::MAX, 0);
    let mut source = vec![NOBODY; rows];
    for (values, i) in flat.iter().zip(0u32..) {
        for (&to, j) in values.iter().zip(0u32..) {
            source[to as usize] = (i, j);
        }
    }
    let place = |(i, j): (u32, u32)| (i as usize, j as usize * row);
    filled(
        Vec::new(),
        rows * row,
        row,
        GRAIN.div_ceil(row),
        |first, out| {
            let end = first + out.missing() / row;
            for (r, &from) in source[first..end].iter().enumerate() {
                if let Some((i, at)) = source.get(first + r + AHEAD).copied().map(place)
                    && let Some(src) = views.get(i)
                {
                    prefetch_run(src, at, row);
                }
                let (i, at) = place(from);
                match views.get(i) {
                    Some(src) => out.extend_from_slice(&src[at..at + row]),
                    None => out.repeat(gap, row),
                }
            }
        },
    )
}

#[cfg(test)]
mod tests {
    use super::{FEW_PARTS, dealt};
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
    fn rows_are_dealt_out_alike_to_few_and_to_many() {
        for n in [1, 2, FEW_PARTS, FEW_PARTS + 1, 40] {
            let to: Vec<i32> = (0..20_000i32).map(|i| (i / 7 * 31) % n as i32).collect();
            let parts = dealt(&to, n);
            assert_eq!(parts.len(), n);
            for (p, rows) in parts.iter().enumerate() {
                let want = (0..to.len()).filter(|i| to[*i] == p as i32);
                assert!(rows.iter().copied().eq(want));
            }
        }
        assert_eq!(dealt(&[], 2), [[], []]);
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

    #[test]
    fn long_rows_are_stitched_as_short_ones_are() {
        let attrs = [("T", DType::Float.into()), ("N", 2.into())];
        // Row 3 is given twice, row 1 by nobody, and one input has more rows than are named apart.
        let (a, b) = (vec![3i32, 0, 3], vec![2i32, 0]);
        let long = |ids: &[i32], salt: f32| -> Tensor {
            let values = (0..ids.len() * 5).map(|i| i as f32 + salt).collect();
            Tensor::from_vec(values, [ids.len(), 5]).unwrap()
        };
        let inputs = vec![
            Tensor::vector(a.clone()),
            Tensor::vector(b.clone()),
            long(&a, 0.0),
            long(&b, 100.0),
        ];
        let out = run_op("DynamicStitch", inputs, &attrs).unwrap().remove(0);
        assert_eq!(out.dims(), [4, 5]);
        let row = |from: f32| (0..5).map(move |i| from + i as f32);
        let want: Vec<f32> = row(105.0)
            .chain([0.0; 5])
            .chain(row(100.0))
            .chain(row(10.0))
            .collect();
        assert_eq!(out.as_slice::<f32>().unwrap(), want);
        let none = || Tensor::vector(Vec::<i32>::new());
        let empty = || Tensor::from_vec(Vec::<f32>::new(), [0, 5]).unwrap();
        let out = run_op(
            "DynamicStitch",
            vec![none(), none(), empty(), empty()],
            &attrs,
        );
        assert_eq!(out.unwrap()[0].dims(), [0, 5]);
    }

    #[test]
    fn a_large_stitch_is_the_inverse_of_its_partition() {
        let (rows, row) = (20_000, 16);
        let data: Vec<f32> = (0..rows * row).map(|i| i as f32).collect();
        let data = Tensor::from_vec(data, [rows, row]).unwrap();
        let parts = Tensor::vector((0..rows).map(|i| (i * 7 % 3) as i32).collect());
        let places = Tensor::vector((0..rows as i32).collect());
        let deal = |t: &Tensor| {
            let attrs = [("T", t.dtype().into()), ("num_partitions", 3.into())];
            run_op("DynamicPartition", vec![t.clone(), parts.clone()], &attrs).unwrap()
        };
        let inputs = deal(&places).into_iter().chain(deal(&data)).collect();
        let attrs = [("T", DType::Float.into()), ("N", 3.into())];
        let out = run_op("DynamicStitch", inputs, &attrs).unwrap();
        assert!(out[0].as_slice::<f32>().unwrap() == data.as_slice::<f32>().unwrap());
    }
}
