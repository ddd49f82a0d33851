//! Diagonals of tensors (`Diag`) and of batches of matrices (`MatrixDiag…`), and bands.

use super::dtypes::{COMMON, DIAG};
use super::units::{Unit, with_unit};
use crate::args::{int, ints, shape_of};
use crate::types::{INDEX, NUMBERS};
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Registry};
use downpour_tensor::{Dims, Shape};

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Diag", &[("T", DIAG)], |_| Built::cheap(diag));
    r.add_typed("DiagPart", &[("T", DIAG)], |_| Built::cheap(diag_part));
    let common = [("T", COMMON)];
    for op in [
        "MatrixDiag",
        "BatchMatrixDiag",
        "MatrixDiagV2",
        "MatrixDiagV3",
    ] {
        r.add_typed(op, &common, |b| {
            let align = Align::of(b)?;
            Built::cheap(move |ctx| matrix_diag(ctx, align))
        });
    }
    for op in [
        "MatrixDiagPart",
        "BatchMatrixDiagPart",
        "MatrixDiagPartV2",
        "MatrixDiagPartV3",
    ] {
        r.add_typed(op, &common, |b| {
            let align = Align::of(b)?;
            Built::cheap(move |ctx| matrix_diag_part(ctx, align))
        });
    }
    for op in [
        "MatrixSetDiag",
        "BatchMatrixSetDiag",
        "MatrixSetDiagV2",
        "MatrixSetDiagV3",
    ] {
        r.add_typed(op, &common, |b| {
            let align = Align::of(b)?;
            Built::cheap(move |ctx| matrix_set_diag(ctx, align))
        });
    }
    r.add_typed(
        "MatrixBandPart",
        &[("T", COMMON), ("Tindex", INDEX)],
        |_| Built::cheap(band_part),
    );
    r.add_typed("BatchMatrixBandPart", &[("T", NUMBERS)], |_| {
        Built::cheap(band_part)
    });
}

fn invalid<T>(text: String) -> Result<T> {
    Err(Status::invalid_argument(text))
}

fn diag(ctx: &mut OpContext<'_>) -> Result<()> {
    let d = ctx.input(0)?;
    if d.rank() == 0 {
        return invalid("Input must be at least rank 1, got 0".to_owned());
    }
    let dims: Vec<i64> = d.dims().iter().chain(d.dims()).map(|&n| n as i64).collect();
    let shape = shape_of(&dims)?;
    ctx.check_alloc(d.dtype(), &shape)?;
    let n = d.num_elements();
    let out = with_unit!(d.dtype(), U => {
        let mut out = U::zeros(n * n)?;
        for (i, v) in U::view(d)?.iter().enumerate() {
            out[i * n + i] = v.clone();
        }
        U::tensor(d.dtype(), out, shape)?
    });
    ctx.set_output(0, out);
    Ok(())
}

fn diag_part(ctx: &mut OpContext<'_>) -> Result<()> {
    let t = ctx.input(0)?;
    let rank = t.rank();
    if !rank.is_multiple_of(2) {
        // The gap is TensorFlow's: a source line continued inside the text.
        return invalid(format!(
            "The rank of the tensor should be                                          even and positive, got shape {}",
            t.shape()
        ));
    }
    let half = rank / 2;
    if let Some(i) = (0..half).find(|&i| t.dims()[i] != t.dims()[i + half]) {
        return invalid(format!(
            "Invalid shape {}: dimensions {i} and {} do not match.",
            t.shape(),
            i + half
        ));
    }
    let shape = Shape::from(&t.dims()[..half]);
    let n = shape.num_elements();
    let out = with_unit!(t.dtype(), U => {
        let src = U::view(t)?;
        U::tensor(t.dtype(), (0..n).map(|i| src[i * n + i].clone()).collect(), shape)?
    });
    ctx.set_output(0, out);
    Ok(())
}

/// To which side shorter diagonals are packed.
#[derive(Clone, Copy)]
struct Align {
    super_left: bool,
    sub_left: bool,
}

impl Align {
    /// Reads attribute `align`; ops without it pack to the left.
    fn of(b: &KernelBuilder<'_>) -> Result<Align> {
        if b.attrs().find("align").is_none() {
            return Ok(Align {
                super_left: true,
                sub_left: true,
            });
        }
        let text = b.attrs().str("align")?;
        Ok(Align {
            super_left: text.starts_with("LEFT"),
            sub_left: text.ends_with("LEFT"),
        })
    }
}

/// Which diagonals of a matrix of `rows` by `cols` are meant, and how they are packed.
struct Band {
    rows: usize,
    cols: usize,
    lower: i64,
    upper: i64,
    /// Length of the longest of them, hence of each packed row.
    width: usize,
    align: Align,
}

impl Band {
    fn new(rows: usize, cols: usize, lower: i64, upper: i64, align: Align) -> Band {
        let (r, c) = (rows as i64, cols as i64);
        let width = (r + upper.min(0)).min(c - lower.max(0)).max(0) as usize;
        Band {
            rows,
            cols,
            lower,
            upper,
            width,
            align,
        }
    }

    fn count(&self) -> usize {
        (self.upper - self.lower + 1) as usize
    }

    /// Calls `f(packed index, matrix index)` for every element of every diagonal.
    fn each(&self, mut f: impl FnMut(usize, usize)) {
        for row in 0..self.count() {
            let d = self.upper - row as i64;
            let (r0, c0) = ((-d).max(0) as usize, d.max(0) as usize);
            let len = self
                .rows
                .saturating_sub(r0)
                .min(self.cols.saturating_sub(c0));
            let left = (d >= 0 && self.align.super_left) || (d <= 0 && self.align.sub_left);
            let gap = if left {
                0
            } else {
                self.width.saturating_sub(len)
            };
            for i in 0..len {
                f(row * self.width + gap + i, (r0 + i) * self.cols + c0 + i);
            }
        }
    }
}

/// Input `at` as the lowest and highest diagonal.
fn diagonals(ctx: &OpContext<'_>, at: usize) -> Result<(i64, i64)> {
    let t = ctx.input(at)?;
    if t.rank() > 1 {
        return invalid(format!(
            "diag_index must be a scalar or vector, received shape: {}",
            t.shape()
        ));
    }
    let values = ints(t)?;
    let (lower, upper) = match values.as_slice() {
        [] => return invalid("Expected diag_index to have at least 1 element".to_owned()),
        [k] => (*k, *k),
        [l, u] => (*l, *u),
        more => {
            return invalid(format!(
                "diag_index must have only one or two elements, received {} elements.",
                more.len()
            ));
        }
    };
    if lower > upper {
        return invalid(format!(
            "lower_diag_index must not be larger than upper_diag_index: {lower} > {upper}"
        ));
    }
    Ok((lower, upper))
}

fn matrix_diag(ctx: &mut OpContext<'_>, align: Align) -> Result<()> {
    let d = ctx.input(0)?;
    let (mut lower, mut upper, mut rows, mut cols) = (0, 0, -1, -1);
    if d.rank() == 0 {
        return invalid(format!(
            "diagonal must be at least 1-dim, received shape: {}",
            d.shape()
        ));
    }
    let mut padding = None;
    if ctx.num_inputs() > 1 {
        (lower, upper) = diagonals(ctx, 1)?;
        for (i, name) in [(2, "num_rows"), (3, "num_cols"), (4, "padding_value")] {
            if ctx.input(i)?.rank() != 0 {
                return invalid(format!("{name} must be a scalar"));
            }
        }
        rows = int(ctx.input(2)?)?;
        cols = int(ctx.input(3)?)?;
        padding = Some(ctx.input(4)?);
    }
    let count = (upper - lower + 1) as usize;
    let batch_rank = d.rank() - if lower == upper { 1 } else { 2.min(d.rank()) };
    let rank = d.rank();
    if lower != upper && (rank < 2 || d.dims()[rank - 2] != count) {
        return invalid("The number of diagonals provided in the input does not match the lower_diag_index and upper_diag_index range.".to_owned());
    }
    let width = d.dims()[rank - 1] as i64;
    let least_rows = width - upper.min(0);
    let least_cols = width + lower.max(0);
    if rows != -1 && rows < least_rows {
        return invalid("The number of rows is too small.".to_owned());
    }
    if cols != -1 && cols < least_cols {
        return invalid("The number of columns is too small.".to_owned());
    }
    match (rows, cols) {
        (-1, -1) => {
            rows = least_rows.max(least_cols);
            cols = rows;
        }
        (-1, _) => rows = least_rows,
        (_, -1) => cols = least_cols,
        _ => {}
    }
    if rows != least_rows
        && cols != least_cols
        && !(rows == cols && rows == least_rows.max(least_cols))
    {
        return invalid("The number of rows or columns is not consistent with the specified d_lower, d_upper, and diagonal.".to_owned());
    }
    let batch = Dims::from_slice(&d.dims()[..batch_rank]);
    let dims: Vec<i64> = (batch.iter().map(|&n| n as i64))
        .chain([rows, cols])
        .collect();
    let shape = shape_of(&dims)?;
    let mut band = Band::new(rows as usize, cols as usize, lower, upper, align);
    band.width = width as usize;
    ctx.check_alloc(d.dtype(), &shape)?;
    let out = with_unit!(d.dtype(), U => {
        let src = U::view(d)?;
        let fill = match padding.map(U::view).transpose()?.and_then(<[U]>::first) {
            Some(v) => v.clone(),
            None => U::zero()?,
        };
        let mut out = vec![fill; shape.num_elements()];
        let (packed, page) = (count * band.width, band.rows * band.cols);
        for b in 0..batch.iter().product::<usize>() {
            band.each(|p, m| out[b * page + m] = src[b * packed + p].clone());
        }
        U::tensor(d.dtype(), out, shape)?
    });
    ctx.set_output(0, out);
    Ok(())
}

/// The last two dimensions of input 0, which must be there.
fn matrix_dims(ctx: &OpContext<'_>) -> Result<(Dims, usize, usize)> {
    let t = ctx.input(0)?;
    match t.dims() {
        [batch @ .., rows, cols] => Ok((Dims::from_slice(batch), *rows, *cols)),
        _ => invalid(format!(
            "input must be at least 2-dim, received shape: {}",
            t.shape()
        )),
    }
}

/// Whether diagonal `d` touches the matrix; the main diagonal of an empty one does.
fn within(d: i64, rows: usize, cols: usize) -> bool {
    (-(rows as i64) < d && d < cols as i64) || d == 0
}

fn matrix_diag_part(ctx: &mut OpContext<'_>, align: Align) -> Result<()> {
    let (batch, rows, cols) = matrix_dims(ctx)?;
    let (mut lower, mut upper) = (0, 0);
    let mut padding = None;
    if ctx.num_inputs() > 1 {
        (lower, upper) = diagonals(ctx, 1)?;
        let t = ctx.input(2)?;
        if t.num_elements() != 1 {
            return invalid("Padding must be scalar.".to_owned());
        }
        padding = Some(t);
    }
    let bounds = format!("It must be between {} and {cols}", -(rows as i64));
    if !within(lower, rows, cols) {
        return invalid(format!(
            "lower_diag_index is out of bound: {lower}. {bounds}"
        ));
    }
    if !within(upper, rows, cols) {
        return invalid(format!(
            "upper_diag_index is out of bound: {upper} {bounds}"
        ));
    }
    let band = Band::new(rows, cols, lower, upper, align);
    let mut dims = batch.clone();
    if lower != upper {
        dims.push(band.count());
    }
    dims.push(band.width);
    let shape = Shape::from(dims);
    let t = ctx.input(0)?;
    ctx.check_alloc(t.dtype(), &shape)?;
    let out = with_unit!(t.dtype(), U => {
        let src = U::view(t)?;
        let fill = match padding.map(U::view).transpose()?.and_then(<[U]>::first) {
            Some(v) => v.clone(),
            None => U::zero()?,
        };
        let mut out = vec![fill; shape.num_elements()];
        let (packed, page) = (band.count() * band.width, rows * cols);
        for b in 0..batch.iter().product::<usize>() {
            band.each(|p, m| out[b * packed + p] = src[b * page + m].clone());
        }
        U::tensor(t.dtype(), out, shape)?
    });
    ctx.set_output(0, out);
    Ok(())
}

fn matrix_set_diag(ctx: &mut OpContext<'_>, align: Align) -> Result<()> {
    let (mut lower, mut upper) = (0, 0);
    if ctx.num_inputs() > 2 {
        (lower, upper) = diagonals(ctx, 2)?;
    }
    let (batch, rows, cols) = matrix_dims(ctx)?;
    let diagonal = ctx.input(1)?;
    if diagonal.rank() == 0 {
        return invalid(format!(
            "diagonal must be at least 1-dim, received shape: {}",
            diagonal.shape()
        ));
    }
    let bounds = format!("It must be between {} and {cols}", -(rows as i64));
    for (name, d) in [("lower", lower), ("upper", upper)] {
        if !within(d, rows, cols) {
            return invalid(format!("{name}_diag_index is out of bound: {d} {bounds}"));
        }
    }
    let band = Band::new(rows, cols, lower, upper, align);
    let mut expected = batch.clone();
    if lower != upper {
        expected.push(band.count());
    }
    expected.push(band.width);
    if diagonal.dims() != expected.as_slice() {
        return invalid(format!(
            "Either first dimensions of diagonal don't match input.shape[:-2], or diagonal.shape[:-1] is not equal to the longests diagonal in range [lower_diag_index:upper_diag_index].\nInput shape: {}\nDiagonal shape: {}\nExpected diagonal shape: {}",
            ctx.input(0)?.shape(),
            diagonal.shape(),
            Shape::from(expected)
        ));
    }
    let input = ctx.take(0)?;
    let diagonal = ctx.input(1)?;
    let (dtype, shape) = (input.dtype(), input.shape().clone());
    let out = with_unit!(dtype, U => {
        let mut out = U::view(&input)?.to_vec();
        let src = U::view(diagonal)?;
        let (packed, page) = (band.count() * band.width, rows * cols);
        for b in 0..batch.iter().product::<usize>() {
            band.each(|p, m| out[b * page + m] = src[b * packed + p].clone());
        }
        U::tensor(dtype, out, shape)?
    });
    ctx.set_output(0, out);
    Ok(())
}

fn band_part(ctx: &mut OpContext<'_>) -> Result<()> {
    let (batch, rows, cols) = matrix_dims(ctx)?;
    let mut limits = [0; 2];
    for (i, (name, side, size)) in [("num_lower", "rows", rows), ("num_upper", "columns", cols)]
        .into_iter()
        .enumerate()
    {
        let t = ctx.input(i + 1)?;
        if t.rank() != 0 {
            return invalid(format!("{name} must be scalar, got shape {}", t.shape()));
        }
        limits[i] = int(t)?;
        if limits[i] > size as i64 {
            return invalid(format!(
                "{name} must be negative or less or equal to number of {side} ({size}) got: {}",
                limits[i]
            ));
        }
    }
    let [lower, upper] = limits;
    let input = ctx.take(0)?;
    let (dtype, shape) = (input.dtype(), input.shape().clone());
    let out = with_unit!(dtype, U => {
        let mut out = U::view(&input)?.to_vec();
        let zero = U::zero()?;
        for r in 0..batch.iter().product::<usize>() * rows {
            let i = (r % rows) as i64;
            let row = &mut out[r * cols..(r + 1) * cols];
            let first = if lower < 0 { 0 } else { (i - lower).clamp(0, cols as i64) as usize };
            let end = if upper < 0 { cols } else { (i + upper + 1).clamp(0, cols as i64) as usize };
            row[..first].fill(zero.clone());
            row[end.max(first)..].fill(zero.clone());
        }
        U::tensor(dtype, out, shape)?
    });
    ctx.set_output(0, out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, run_op};
    use downpour_graph::{AttrValue, Result};
    use downpour_tensor::{DType, Tensor};

    fn counting(rows: usize, cols: usize) -> Tensor {
        let values = (0..rows * cols).map(|i| i as f32 + 1.0).collect();
        Tensor::from_vec(values, [rows, cols]).unwrap()
    }

    fn attrs(align: &str) -> [(&'static str, AttrValue); 2] {
        [("T", DType::Float.into()), ("align", align.into())]
    }

    fn part(align: &str) -> Vec<f32> {
        let inputs = vec![
            counting(3, 4),
            Tensor::vector(vec![-2i32, 2]),
            Tensor::scalar(0.0f32),
        ];
        let out = run_op("MatrixDiagPartV3", inputs, &attrs(align)).unwrap();
        assert_eq!(out[0].dims(), [5, 3]);
        out[0].as_slice::<f32>().unwrap().to_vec()
    }

    #[test]
    fn diagonals_are_packed_to_the_side_asked_for() {
        let main = [2.0, 7.0, 12.0, 1.0, 6.0, 11.0];
        let with = |top: [f32; 3], low: [f32; 6]| [&top[..], &main, &low].concat();
        assert_eq!(
            part("RIGHT_LEFT"),
            with([0.0, 3.0, 8.0], [5.0, 10.0, 0.0, 9.0, 0.0, 0.0])
        );
        assert_eq!(
            part("LEFT_RIGHT"),
            with([3.0, 8.0, 0.0], [0.0, 5.0, 10.0, 0.0, 0.0, 9.0])
        );
    }

    #[test]
    fn a_band_is_laid_into_a_matrix_and_back() {
        let band = counting(3, 3);
        let mut inputs = vec![band.clone(), Tensor::vector(vec![-1i32, 1])];
        inputs.extend([
            Tensor::scalar(-1i32),
            Tensor::scalar(-1i32),
            Tensor::scalar(0.0f32),
        ]);
        let out = run_op("MatrixDiagV3", inputs, &attrs("RIGHT_LEFT")).unwrap();
        let expected = [4.0, 2.0, 0.0, 7.0, 5.0, 3.0, 0.0, 8.0, 6.0];
        assert_eq!(out[0].as_slice::<f32>().unwrap(), expected);
        let zeros = Tensor::zeros(DType::Float, [3, 3]).unwrap();
        let inputs = vec![zeros, band, Tensor::vector(vec![-1i32, 1])];
        let out = run_op("MatrixSetDiagV3", inputs, &attrs("RIGHT_LEFT")).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), expected);
    }

    #[test]
    fn everything_outside_a_band_is_cleared() {
        let band = |lower: i64, upper: i64| -> Result<Vec<f32>> {
            let inputs = vec![counting(2, 3), Tensor::scalar(lower), Tensor::scalar(upper)];
            let out = run_op("MatrixBandPart", inputs, &[("T", DType::Float.into())])?;
            Ok(out[0].as_slice::<f32>()?.to_vec())
        };
        assert_eq!(band(0, 0).unwrap(), [1.0, 0.0, 0.0, 0.0, 5.0, 0.0]);
        assert_eq!(band(-1, 1).unwrap(), [1.0, 2.0, 0.0, 4.0, 5.0, 6.0]);
        let text = band(3, 0).unwrap_err().message;
        assert!(text.starts_with(
            "num_lower must be negative or less or equal to number of rows (2) got: 3"
        ));
    }

    #[test]
    fn tensors_have_diagonals_too() {
        let out = run_op(
            "Diag",
            vec![floats(&[1.0, 2.0])],
            &[("T", DType::Float.into())],
        )
        .unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [1.0, 0.0, 0.0, 2.0]);
        let back = run_op("DiagPart", out, &[("T", DType::Float.into())]).unwrap();
        assert_eq!(back[0].as_slice::<f32>().unwrap(), [1.0, 2.0]);
    }
}
