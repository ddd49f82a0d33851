//! Counting values per row: `DenseCountSparseOutput`, `SparseCountSparseOutput`,
//! `RaggedCountSparseOutput`, `SparseBincount`, `RaggedBincount`.

use super::form::{Places, invalid, shown, validated};
use super::number::Number;
use crate::args::ints;
use crate::types::{INDEX, with_type};
use downpour_graph::Result;
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{DType, Element, Shape, Tensor};
use std::collections::BTreeMap;

const WEIGHTS: &[DType] = &[DType::Int32, DType::Int64, DType::Float, DType::Double];

pub(crate) fn register(r: &mut Registry) {
    let types = [("T", INDEX), ("output_type", WEIGHTS)];
    r.add_typed("DenseCountSparseOutput", &types, |b| counter(b, dense_rows));
    r.add_typed("SparseCountSparseOutput", &types, |b| {
        counter(b, sparse_rows)
    });
    r.add_typed("RaggedCountSparseOutput", &types, |b| {
        counter(b, ragged_rows)
    });
    let types = [("Tidx", INDEX), ("T", WEIGHTS)];
    r.add_typed("SparseBincount", &types, |b| bins(b, sparse_bins));
    r.add_typed("RaggedBincount", &types, |b| bins(b, ragged_bins));
}

/// Something that is added up.
trait Weight: Number {
    const ONE: Self;
}
macro_rules! weights {
    ($($t:ty),*) => { $(impl Weight for $t { const ONE: Self = 1 as $t; })* };
}
weights!(i32, i64, f32, f64);

/// What is counted: values, the row of each, the number of rows (`None`: there is one, and it is
/// not shown), the weights.
struct Items {
    values: Vec<i64>,
    rows: Vec<usize>,
    count: Option<usize>,
    weights: Tensor,
}

impl Items {
    fn weight<T: Weight>(&self) -> Result<impl Fn(usize) -> T> {
        let weights = self.weights.as_slice::<T>()?;
        Ok(move |i: usize| weights.get(i).copied().unwrap_or(T::ONE))
    }
}

#[derive(Clone, Copy)]
struct Limits {
    min: i64,
    max: i64,
    binary: bool,
}

fn counter(b: &KernelBuilder<'_>, read: fn(&OpContext<'_>) -> Result<Items>) -> Result<Built> {
    let limits = Limits {
        min: b.attrs().int("minlength")?,
        max: b.attrs().int("maxlength")?,
        binary: b.attrs().bool("binary_output")?,
    };
    let dtype = b.attrs().dtype("output_type")?;
    Built::cheap(move |ctx| {
        let items = read(ctx)?;
        if items.values.iter().any(|v| *v < 0) {
            return invalid("Input values must all be non-negative");
        }
        let out = with_type!(dtype, T in [i32, i64, f32, f64] => counted::<T>(&items, limits)?);
        for (i, t) in out.into_iter().enumerate() {
            ctx.set_output(i, t);
        }
        Ok(())
    })
}

fn counted<T: Weight>(items: &Items, limits: Limits) -> Result<[Tensor; 3]> {
    let weight = items.weight::<T>()?;
    let mut counts: BTreeMap<(usize, i64), T> = BTreeMap::new();
    // No values count as one zero: there is a column even so.
    let mut largest = 0;
    for (i, (&value, &row)) in items.values.iter().zip(&items.rows).enumerate() {
        // Only a negative limit means none; zero leaves nothing.
        if limits.max >= 0 && value >= limits.max {
            continue;
        }
        largest = largest.max(value);
        let slot = counts.entry((row, value)).or_insert(T::ZERO);
        *slot = if limits.binary {
            T::ONE
        } else {
            slot.plus(weight(i))
        };
    }
    let size = match limits.max {
        max if max >= 0 => max,
        _ => limits.min.max(largest.saturating_add(1)),
    };
    let n = counts.len();
    let (at, shape): (Vec<i64>, Vec<i64>) = match items.count {
        None => (counts.keys().map(|k| k.1).collect(), vec![size]),
        Some(rows) => (
            counts.keys().flat_map(|k| [k.0 as i64, k.1]).collect(),
            vec![rows as i64, size],
        ),
    };
    let at = Tensor::from_vec(at, [n, shape.len()])?;
    let values = Tensor::vector(counts.into_values().collect());
    Ok([at, values, Tensor::vector(shape)])
}

fn dense_rows(ctx: &OpContext<'_>) -> Result<Items> {
    let (data, weights) = (ctx.input(0)?, ctx.input(1)?);
    if weights.num_elements() > 0 && weights.shape() != data.shape() {
        return invalid(format!(
            "Weights and data must have the same shape. Weight shape: {}; data shape: {}",
            weights.shape(),
            data.shape()
        ));
    }
    let (rows, count, width) = match *data.dims() {
        [n] => (1, None, n),
        [0, _] => return invalid("Invalid input: Shapes dimension cannot be 0."),
        [rows, n] => (rows, Some(rows), n),
        _ => {
            return invalid(format!(
                "Input must be a 1 or 2-dimensional tensor. Got: {}",
                data.shape()
            ));
        }
    };
    Ok(Items {
        values: ints(data)?,
        rows: (0..rows)
            .flat_map(|r| std::iter::repeat_n(r, width))
            .collect(),
        count,
        weights: weights.clone(),
    })
}

fn same_weights(weights: &Tensor, values: &Tensor) -> Result<()> {
    if weights.num_elements() > 0 && weights.shape() != values.shape() {
        return invalid(format!(
            "Weights and values must have the same shape. Weight shape: {}; values shape: {}",
            weights.shape(),
            values.shape()
        ));
    }
    Ok(())
}

fn sparse_rows(ctx: &OpContext<'_>) -> Result<Items> {
    let (indices, values) = (ctx.input(0)?, ctx.input(1)?);
    let (shape, weights) = (ctx.input(2)?, ctx.input(3)?);
    if indices.rank() != 2 {
        return invalid(format!(
            "Input indices must be a 2-dimensional tensor. Got: {}",
            indices.shape()
        ));
    }
    if values.rank() != 1 {
        return invalid(format!(
            "Input values must be a vector. Got: {}",
            values.shape()
        ));
    }
    if shape.rank() != 1 {
        return invalid(format!(
            "Input shape must be a vector. Got: {}",
            shape.shape()
        ));
    }
    let places = Places::new(indices)?;
    if values.num_elements() != places.count {
        return invalid(format!(
            "Number of values must match first dimension of indices.Got {} values, indices shape: {}",
            values.num_elements(),
            indices.shape()
        ));
    }
    if shape.num_elements() != places.rank {
        return invalid(format!(
            "Number of dimensions must match second dimension of indices.Got {} dimensions, indices shape: {}",
            shape.num_elements(),
            indices.shape()
        ));
    }
    let dims = shape.as_slice::<i64>()?;
    let Some(&rows) = dims.first() else {
        return invalid("The shape argument requires at least one element.");
    };
    same_weights(weights, values)?;
    for (i, row) in places.rows().enumerate() {
        if let Some(d) = (0..dims.len()).find(|&d| !(0..dims[d]).contains(&row[d])) {
            return invalid(format!(
                "Invalid index value at {i}: dimension {d} has value {} which is not in [0, {}) (as given by dense shape {}",
                row[d],
                dims[d],
                shown(shape)
            ));
        }
    }
    let one = dims.len() == 1;
    Ok(Items {
        values: ints(values)?,
        rows: places
            .rows()
            .map(|r| if one { 0 } else { r[0] as usize })
            .collect(),
        count: (!one).then_some(rows.max(0) as usize),
        weights: weights.clone(),
    })
}

/// The row of each value, by splits that begin with zero and end with the number of values.
fn rows_of(splits: &[i64], values: usize) -> Result<Vec<usize>> {
    let (first, last) = (splits[0], splits[splits.len() - 1]);
    if first != 0 {
        return invalid(format!("Splits must start with 0, not with {first}"));
    }
    if last != values as i64 {
        return invalid(format!(
            "Splits must end with the number of values, got {last} instead of {values}"
        ));
    }
    let mut next = 0;
    let row = |i: usize| {
        while splits.get(next).is_some_and(|end| *end <= i as i64) {
            next += 1;
        }
        next - 1
    };
    Ok((0..values).map(row).collect())
}

fn ragged_rows(ctx: &OpContext<'_>) -> Result<Items> {
    let (splits, values, weights) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    same_weights(weights, values)?;
    let splits = ints(splits)?;
    if splits.len() < 2 {
        return invalid("Must provide at least 2 elements for the splits argument");
    }
    Ok(Items {
        rows: rows_of(&splits, values.num_elements())?,
        values: ints(values)?,
        count: Some(splits.len() - 1),
        weights: weights.clone(),
    })
}

fn bins(b: &KernelBuilder<'_>, read: fn(&OpContext<'_>) -> Result<(Items, i64)>) -> Result<Built> {
    let binary = b.attrs().bool("binary_output")?;
    let dtype = b.attrs().dtype("T")?;
    Built::cheap(move |ctx| {
        let (items, size) = read(ctx)?;
        let out = with_type!(dtype, T in [i32, i64, f32, f64] =>
            binned::<T>(ctx, &items, size, binary)?);
        ctx.set_output(0, out);
        Ok(())
    })
}

fn binned<T: Weight>(
    ctx: &OpContext<'_>,
    items: &Items,
    size: i64,
    binary: bool,
) -> Result<Tensor> {
    let shape = match items.count {
        None => crate::args::shape_of(&[size])?,
        Some(rows) => crate::args::shape_of(&[rows as i64, size])?,
    };
    let mut out = ctx.zeros(<T as Element>::DTYPE, &shape)?;
    let bins = out.make_mut::<T>()?;
    let weight = items.weight::<T>()?;
    for (i, (&value, &row)) in items.values.iter().zip(&items.rows).enumerate() {
        if (0..size).contains(&value) {
            let bin = &mut bins[row * size as usize + value as usize];
            *bin = if binary { T::ONE } else { bin.plus(weight(i)) };
        }
    }
    Ok(out)
}

fn bin_count(t: &Tensor) -> Result<i64> {
    if t.rank() != 0 {
        return invalid(format!("Shape must be rank 0 but is rank {}", t.rank()));
    }
    match ints(t)?[0] {
        size if size < 0 => invalid(format!("size ({size}) must be non-negative")),
        size => Ok(size),
    }
}

fn sparse_bins(ctx: &OpContext<'_>) -> Result<(Items, i64)> {
    let (values, weights) = (ctx.input(1)?, ctx.input(4)?);
    let size = bin_count(ctx.input(3)?)?;
    let (places, dims) = validated(ctx.input(0)?, values, ctx.input(2)?, true)?;
    same_weights(weights, values)?;
    let one = dims.len() == 1;
    let items = Items {
        values: ints(values)?,
        rows: places
            .rows()
            .map(|r| if one { 0 } else { r[0] as usize })
            .collect(),
        count: (!one).then_some(dims.first().map_or(0, |d| (*d).max(0) as usize)),
        weights: weights.clone(),
    };
    Ok((items, size))
}

fn ragged_bins(ctx: &OpContext<'_>) -> Result<(Items, i64)> {
    let (splits, values, weights) = (ctx.input(0)?, ctx.input(1)?, ctx.input(3)?);
    let size = bin_count(ctx.input(2)?)?;
    same_weights(weights, values)?;
    let splits = ints(splits)?;
    if splits.is_empty() {
        return invalid("Splits must be non-empty");
    }
    let items = Items {
        rows: rows_of(&splits, values.num_elements())?,
        values: ints(values)?,
        count: Some(splits.len() - 1),
        weights: weights.clone(),
    };
    if items.values.iter().any(|v| *v < 0) {
        return invalid("Input must be non-negative");
    }
    ctx.check_alloc(DType::Int64, &Shape::from([splits.len()]))?;
    Ok((items, size))
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_tensor::{DType, Tensor};

    #[test]
    fn values_are_counted_by_row() {
        let attrs = [
            ("T", DType::Int64.into()),
            ("output_type", DType::Float.into()),
            ("minlength", 5i64.into()),
            ("maxlength", (-1i64).into()),
            ("binary_output", false.into()),
        ];
        let run = |splits: Vec<i64>, values: Vec<i64>| {
            let inputs = vec![
                Tensor::vector(splits),
                Tensor::vector(values),
                floats(&[1.0, 2.0, 4.0]),
            ];
            run_op("RaggedCountSparseOutput", inputs, &attrs)
        };
        let out = run(vec![0, 2, 2, 3], vec![1, 1, 0]).unwrap();
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [0, 1, 2, 0]);
        assert_eq!(out[1].as_slice::<f32>().unwrap(), [3.0, 4.0]);
        assert_eq!(out[2].as_slice::<i64>().unwrap(), [3, 5]);
        // Splits that go down still put every value into some row.
        assert!(run(vec![0, 3, 1, 3], vec![1, 1, 0]).is_ok());
        assert!(run(vec![0, 2], vec![1, 1, 0]).is_err());
        assert!(run(vec![0, 3], vec![1, -1, 0]).is_err());
    }

    #[test]
    fn bins_ignore_what_is_too_large() {
        let attrs = [
            ("Tidx", DType::Int32.into()),
            ("T", DType::Int32.into()),
            ("binary_output", false.into()),
        ];
        let run = |size: i32| {
            let inputs = vec![
                Tensor::from_vec(vec![0i64, 0, 0, 1, 1, 0], [3, 2]).unwrap(),
                Tensor::vector(vec![1i32, 1, 7]),
                Tensor::vector(vec![2i64, 2]),
                Tensor::scalar(size),
                Tensor::vector(Vec::<i32>::new()),
            ];
            run_op("SparseBincount", inputs, &attrs)
        };
        assert_eq!(run(2).unwrap()[0].as_slice::<i32>().unwrap(), [0, 2, 0, 0]);
        assert!(run(-1).is_err());
        assert!(run(i32::MAX).is_err());
    }
}
