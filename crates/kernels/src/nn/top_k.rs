//! `TopK` and `TopKV2`, `InTopK`, `NthElement`: the largest elements of each row.
//!
//! The order of results with `sorted=false`, and what becomes of NaN, follow from the heap that
//! TensorFlow keeps; it is rebuilt here step for step.

use crate::args;
use crate::types::{INDEX, REALS, with_type};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Element, Shape, Tensor};

pub(crate) fn register(r: &mut Registry) {
    const INDICES: &[DType] = crate::types::INDEX_FROM_16;
    r.add_typed("TopK", &[("T", REALS)], |b| {
        let (k, sorted) = (b.attrs().int("k")?, b.attrs().bool("sorted")?);
        if k < 0 {
            return Err(Status::invalid_argument(format!("Need k >= 0, got {k}")));
        }
        Built::cheap(move |ctx| top_k(ctx, k, sorted, DType::Int32))
    });
    r.add_typed("TopKV2", &[("T", REALS), ("index_type", INDICES)], |b| {
        let sorted = b.attrs().bool("sorted")?;
        let index = b.attrs().dtype("index_type")?;
        Built::cheap(move |ctx| {
            let k = ctx.input(1)?;
            if k.rank() != 0 {
                return Err(Status::invalid_argument(format!(
                    "k must be scalar, got shape {}",
                    k.shape()
                )));
            }
            let k = args::int(k)?;
            if k < 0 {
                return Err(Status::invalid_argument(format!("Need k >= 0, got {k}")));
            }
            top_k(ctx, k, sorted, index)
        })
    });
    r.add_typed("InTopK", &[("T", INDEX)], |b| {
        let k = b.attrs().int("k")?;
        Built::cheap(move |ctx| in_top_k(ctx, k))
    });
    r.add_typed("InTopKV2", &[("T", INDEX)], |_| {
        Built::cheap(|ctx| {
            let k = ctx.input(2)?;
            if k.rank() != 0 {
                return Err(Status::invalid_argument(format!(
                    "k must be 0-D, got shape {}",
                    k.shape()
                )));
            }
            let k = args::int(k)?;
            in_top_k(ctx, k)
        })
    });
    r.add_typed("NthElement", &[("T", REALS)], |b| {
        let reverse = b.attrs().bool("reverse")?;
        Built::cheap(move |ctx| nth_element(ctx, reverse))
    });
}

fn top_k(ctx: &mut OpContext<'_>, k: i64, sorted: bool, index: DType) -> Result<()> {
    let x = ctx.take(0)?;
    let Some((&cols, outer)) = x.dims().split_last() else {
        return Err(Status::invalid_argument(format!(
            "input must be >= 1-D, got shape {}",
            x.shape()
        )));
    };
    if k as u64 > cols as u64 {
        return Err(Status::invalid_argument(format!(
            "input must have at least k columns. Had {cols}, needed {k}"
        )));
    }
    let k = k as usize;
    let shape: Shape = outer.iter().copied().chain([k]).collect();
    ctx.check_alloc(DType::Int64, &shape)?;
    let (values, at) = with_type!(x.dtype(), T in reals => {
        rows_top::<T>(x.as_slice::<T>()?, cols, k, sorted, &shape)?
    });
    ctx.set_output(0, values);
    ctx.set_output(1, args::int_tensor(index, at, shape)?);
    Ok(())
}

fn rows_top<T: Element + PartialOrd>(
    x: &[T],
    cols: usize,
    k: usize,
    sorted: bool,
    shape: &Shape,
) -> Result<(Tensor, Vec<i64>)> {
    let n = shape.num_elements();
    let (mut values, mut at) = (Vec::with_capacity(n), Vec::with_capacity(n));
    if n != 0 {
        for row in x.chunks_exact(cols) {
            let top = row_top(row, k, sorted);
            values.extend(top.iter().map(|&i| row[i]));
            at.extend(top.iter().map(|&i| i as i64));
        }
    }
    Ok((Tensor::from_vec(values, shape.clone())?, at))
}

/// Indices of the `k` largest elements of a row that has at least as many.
fn row_top<T: PartialOrd + Copy>(row: &[T], k: usize, sorted: bool) -> Vec<usize> {
    // Whether element `i` comes before element `j`; NaN is neither larger nor smaller.
    let before = |&i: &usize, &j: &usize| {
        if row[j] < row[i] {
            true
        } else if row[i] < row[j] {
            false
        } else {
            i < j
        }
    };
    if k == 0 {
        return Vec::new();
    }
    if k == 1 {
        let best = (0..row.len())
            .filter(|&i| row[i].partial_cmp(&row[i]).is_some())
            .reduce(|a, b| if row[b] > row[a] { b } else { a });
        return vec![best.unwrap_or(0)];
    }
    if k == row.len() {
        return sort_all(row, before);
    }
    let mut heap: Vec<usize> = (0..k + 1).collect();
    make_heap(&mut heap, before);
    pop_heap(&mut heap, before);
    heap.truncate(k);
    for i in k + 1..row.len() {
        if before(&i, &heap[0]) {
            pop_heap(&mut heap, before);
            heap[k - 1] = i;
            sift_up(&mut heap, k - 1, 0, i, before);
        }
    }
    if sorted {
        for end in (2..=k).rev() {
            pop_heap(&mut heap[..end], before);
        }
    }
    heap
}

/// All indices in order. Comparisons with NaN contradict each other, which a general sort must
/// not see: short rows are sorted by insertion as TensorFlow's are, long ones put NaN last.
fn sort_all<T: PartialOrd + Copy>(
    row: &[T],
    before: impl Fn(&usize, &usize) -> bool + Copy,
) -> Vec<usize> {
    let is_nan = |i: usize| row[i].partial_cmp(&row[i]).is_none();
    let mut all: Vec<usize> = (0..row.len()).collect();
    if row.len() > 16 || !(0..row.len()).any(is_nan) {
        all.sort_by(|&i, &j| {
            let by_nan = is_nan(i).cmp(&is_nan(j));
            let by_value = row[j].partial_cmp(&row[i]);
            by_nan.then(by_value.unwrap_or(std::cmp::Ordering::Equal))
        });
        return all;
    }
    for i in 1..all.len() {
        let v = all[i];
        let mut to = i;
        if before(&v, &all[0]) {
            to = 0;
        } else {
            while before(&v, &all[to - 1]) {
                to -= 1;
            }
        }
        all[to..=i].rotate_right(1);
    }
    all
}

/// The heap functions of the C++ library: the element that no other comes after is in front.
fn sift_up(
    heap: &mut [usize],
    mut hole: usize,
    top: usize,
    value: usize,
    less: impl Fn(&usize, &usize) -> bool,
) {
    while hole > top {
        let parent = (hole - 1) / 2;
        if !less(&heap[parent], &value) {
            break;
        }
        heap[hole] = heap[parent];
        hole = parent;
    }
    heap[hole] = value;
}

fn sift_down(
    heap: &mut [usize],
    mut hole: usize,
    value: usize,
    less: impl Fn(&usize, &usize) -> bool,
) {
    let (top, n) = (hole, heap.len());
    let mut child = hole;
    while child < n.saturating_sub(1) / 2 {
        child = 2 * (child + 1);
        if less(&heap[child], &heap[child - 1]) {
            child -= 1;
        }
        heap[hole] = heap[child];
        hole = child;
    }
    if n >= 2 && n % 2 == 0 && child == (n - 2) / 2 {
        child = 2 * child + 1;
        heap[hole] = heap[child];
        hole = child;
    }
    sift_up(heap, hole, top, value, less);
}

fn make_heap(heap: &mut [usize], less: impl Fn(&usize, &usize) -> bool + Copy) {
    if heap.len() < 2 {
        return;
    }
    for parent in (0..=(heap.len() - 2) / 2).rev() {
        sift_down(heap, parent, heap[parent], less);
    }
}

/// Moves the front to the end and makes a heap of the rest.
fn pop_heap(heap: &mut [usize], less: impl Fn(&usize, &usize) -> bool) {
    let last = heap.len() - 1;
    if last > 0 {
        let value = heap[last];
        heap[last] = heap[0];
        sift_down(&mut heap[..last], 0, value, less);
    }
}

fn in_top_k(ctx: &mut OpContext<'_>, k: i64) -> Result<()> {
    let (predictions, targets) = (ctx.input(0)?, ctx.input(1)?);
    let invalid = |text: String| Err(Status::invalid_argument(text));
    let &[rows, cols] = predictions.dims() else {
        return invalid("predictions must be 2-dimensional".into());
    };
    if targets.rank() != 1 {
        return invalid("targets must be 1-dimensional".into());
    }
    if targets.dims()[0] != rows {
        return invalid(format!(
            "First dimension of predictions {rows} must match length of targets {}",
            targets.dims()[0]
        ));
    }
    let values = predictions.as_slice::<f32>()?;
    let out: Vec<bool> = args::ints(targets)?
        .into_iter()
        .enumerate()
        .map(|(r, target)| {
            let row = &values[r * cols..(r + 1) * cols];
            let Some(&own) = usize::try_from(target).ok().and_then(|t| row.get(t)) else {
                return false;
            };
            // With a value that is not finite TensorFlow cannot say. Both are counted without a branch, in runs that no
            // count overflows in.
            let (mut larger, mut wrong) = (0, u32::from(!own.is_finite()));
            for run in row.chunks(1 << 20) {
                let mut above = 0u32;
                for &v in run {
                    above += u32::from(v > own);
                    wrong |= u32::from(!v.is_finite());
                }
                larger += i64::from(above);
            }
            wrong == 0 && larger < k
        })
        .collect();
    ctx.set_output(0, Tensor::vector(out));
    Ok(())
}

fn nth_element(ctx: &mut OpContext<'_>, reverse: bool) -> Result<()> {
    let (x, n) = (ctx.input(0)?, ctx.input(1)?);
    let invalid = |text: String| Err(Status::invalid_argument(text));
    if n.rank() != 0 {
        return invalid(format!("N must be scalar but has rank {}", n.rank()));
    }
    let n = args::int(n)?;
    if n < 0 {
        return invalid(format!("n must be non-negative but is {n}"));
    }
    let Some((&cols, outer)) = x.dims().split_last() else {
        return invalid("Input must be at least rank 1 but is rank 0".into());
    };
    if n as u64 >= cols as u64 {
        return invalid(format!("Input must have last dimension > n = {n}"));
    }
    let n = if reverse {
        cols - 1 - n as usize
    } else {
        n as usize
    };
    let out = with_type!(x.dtype(), T in reals => {
        let mut out: Vec<T> = Vec::new();
        for row in x.as_slice::<T>()?.chunks_exact(cols) {
            let mut row = row.to_vec();
            // NaN counts as larger than all: any order will do, but it must be one.
            let order = |a: &T, b: &T| match a.partial_cmp(b) {
                Some(o) => o,
                None => (a.partial_cmp(a).is_none()).cmp(&b.partial_cmp(b).is_none()),
            };
            out.push(*row.select_nth_unstable_by(n, order).1);
        }
        Tensor::from_vec(out, outer)?
    });
    ctx.set_output(0, out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::row_top;
    use crate::testing::run_op;
    use downpour_tensor::{DType, Tensor};

    // All orders below are those of tf.raw_ops.TopKV2.
    #[test]
    fn orders_are_tensorflows() {
        let x = [5.0, 1.0, 9.0, 3.0, 7.0, 2.0];
        assert_eq!(row_top(&x, 3, true), [2, 4, 0]);
        assert_eq!(row_top(&x, 3, false), [0, 2, 4]);
        assert_eq!(row_top(&x, 5, false), [5, 3, 2, 0, 4]);
        assert_eq!(row_top(&x, 6, false), [2, 4, 0, 3, 5, 1]);
        let long: Vec<i32> = (0..40).map(|i| (i * 7) % 40).collect();
        assert_eq!(row_top(&long, 6, false), [22, 5, 28, 17, 11, 34]);
        assert_eq!(row_top(&[1, 3, 2, 3], 2, true), [1, 3]);
    }

    #[test]
    fn nan_goes_where_tensorflow_leaves_it() {
        let n = f32::NAN;
        assert_eq!(row_top(&[1.0, n, 2.0, 3.0], 4, true), [3, 2, 0, 1]);
        assert_eq!(row_top(&[n, 1.0, n, 3.0], 2, true), [0, 3]);
        assert_eq!(row_top(&[n, 1.0, n, 3.0], 1, true), [3]);
        let many = [1.0, n, 2.0, 3.0, n, 9.0, 8.0, 7.0, n, 0.0, 5.0];
        assert_eq!(row_top(&many, 5, true), [1, 5, 6, 7, 10]);
        assert_eq!(row_top(&[n; 40], 40, true).len(), 40);
    }

    #[test]
    fn targets_among_the_largest() {
        let p = Tensor::from_vec(vec![0.1f32, 0.3, 0.3, 0.2, 0.5, 0.1, 0.1, 0.1], [2, 4]).unwrap();
        let run = |targets: Vec<i32>, k: i32| {
            let t = [("T", DType::Int32.into())];
            let inputs = vec![p.clone(), Tensor::vector(targets), Tensor::scalar(k)];
            run_op("InTopKV2", inputs, &t).unwrap()[0]
                .as_slice::<bool>()
                .unwrap()
                .to_vec()
        };
        assert_eq!(run(vec![2, 0], 1), [true, true]);
        assert_eq!(run(vec![3, 9], 2), [false, false]);
        assert_eq!(run(vec![3, 1], 3), [true, true]);
    }

    #[test]
    fn the_nth_from_either_end() {
        let x = Tensor::from_vec(vec![3.0f32, 1.0, 2.0, 9.0, 8.0, 7.0], [2, 3]).unwrap();
        let run = |n: i32, reverse: bool| {
            let a = [("T", DType::Float.into()), ("reverse", reverse.into())];
            run_op("NthElement", vec![x.clone(), Tensor::scalar(n)], &a)
        };
        assert_eq!(
            run(1, false).unwrap()[0].as_slice::<f32>().unwrap(),
            [2.0, 8.0]
        );
        assert_eq!(
            run(0, true).unwrap()[0].as_slice::<f32>().unwrap(),
            [3.0, 9.0]
        );
        let e = run(3, false).unwrap_err();
        assert!(
            e.message
                .starts_with("Input must have last dimension > n = 3")
        );
    }
}
