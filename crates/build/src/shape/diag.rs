//! Shapes of diagonals: matrices made of them, and taken or replaced in them.

use super::Rule::{self, Compute, Pattern};
use super::dims::{concatenate, merge, merge_dims, of_rank, shape, size, smaller};
use super::{Context, Dim, Shapes, invalid, one};
use downpour_graph::Result;
use downpour_tensor::PartialShape;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "Diag" => Pattern("[S..,n] -> [S..,n,S..,n]"),
        "DiagPart" => Compute(|c| {
            let input = c.input(0);
            let Some(dims) = input.dims() else {
                return one(PartialShape::unknown());
            };
            let (half, rest) = dims.split_at(dims.len() / 2);
            if dims.len() % 2 != 0 || dims.is_empty() {
                return invalid(format!(
                    "Input must have even and non-zero rank, input rank is {}",
                    dims.len()
                ));
            }
            let both: Result<Vec<Dim>> = (half.iter().zip(rest))
                .map(|(a, b)| merge_dims(*a, *b))
                .collect();
            one(shape(both?))
        }),
        "MatrixDiag" => Pattern("[B..,n] -> [B..,n,n]"),
        "MatrixDiagPart" => Compute(|c| {
            one(match c.at_least(0, 2)?.dims() {
                Some([lead @ .., a, b]) => shape(lead.iter().copied().chain([smaller(*a, *b)])),
                _ => PartialShape::unknown(),
            })
        }),
        "MatrixSetDiag" => Compute(|c| set_diag(c, Some((0, 0)))),
        "MatrixSetDiagV2" | "MatrixSetDiagV3" => Compute(|c| {
            let diagonals = diagonals(c, 2)?;
            set_diag(c, diagonals)
        }),
        "MatrixDiagPartV2" | "MatrixDiagPartV3" => Compute(diag_part),
        "MatrixDiagV2" | "MatrixDiagV3" => Compute(diag),
        "MatrixBandPart" => Pattern("S -> S"),
        "BatchMatrixBandPart"
        | "BatchMatrixDiag"
        | "BatchMatrixDiagPart"
        | "BatchMatrixSetDiag" => Pattern("->"),
        _ => return None,
    })
}

/// The lowest and the highest diagonal that input `i` names, if known.
fn diagonals(c: &Context<'_>, i: usize) -> Result<Option<(i64, i64)>> {
    c.at_most(i, 1)?;
    let (low, high) = match c.known_ints(i).as_deref() {
        None => return Ok(None),
        Some([one]) => (*one, *one),
        Some([low, high]) => (*low, *high),
        Some(_) => return invalid("diag_index must be scalar or vector of one or two elements"),
    };
    if low > high {
        return invalid("lower_diag_index is greater than upper_diag_index");
    }
    Ok(Some((low, high)))
}

/// Refuses diagonals outside a matrix.
fn within(rows: Dim, columns: Dim, diagonals: (i64, i64)) -> Result<()> {
    let (Some(rows), Some(columns)) = (rows, columns) else {
        return Ok(());
    };
    for (name, d) in [("lower", diagonals.0), ("upper", diagonals.1)] {
        if d != 0 && (-(rows as i64) >= d || d >= columns as i64) {
            return invalid(format!("{name}_diag_index is out of bound."));
        }
    }
    Ok(())
}

fn diag_part(c: &mut Context<'_>) -> Result<Shapes> {
    let input = c.at_least(0, 2)?;
    c.rank(2, 0)?;
    let diagonals = diagonals(c, 1)?;
    let (Some([lead @ .., rows, columns]), Some((low, high))) = (input.dims(), diagonals) else {
        return one(PartialShape::unknown());
    };
    within(*rows, *columns, (low, high))?;
    let length = rows.zip(*columns).map(|(rows, columns)| {
        let length = (rows as i64 + high.min(0)).min(columns as i64 - low.max(0));
        length.max(0) as usize
    });
    let mut out = lead.to_vec();
    if low < high {
        out.push(Some((high - low + 1) as usize));
    }
    out.push(length);
    one(shape(out))
}

fn diag(c: &mut Context<'_>) -> Result<Shapes> {
    let input = c.at_least(0, 1)?;
    c.scalars([2, 3, 4])?;
    let diagonals = diagonals(c, 1)?;
    let (Some(dims), Some((low, high))) = (input.dims(), diagonals) else {
        return one(PartialShape::unknown());
    };
    let mut lead = dims.to_vec();
    let longest = lead.pop().flatten();
    if low < high {
        c.at_least(0, 2)?;
        let count = lead.pop().flatten();
        if count.is_some_and(|n| n as i64 != high - low + 1) {
            return invalid(
                "The number of rows of `diagonal` doesn't match the number of diagonals implied \
                 from `d_lower` and `d_upper`.",
            );
        }
    }
    let Some(longest) = longest else {
        return one(of_rank(lead.len() + 2));
    };
    let least = (longest as i64 - high.min(0), longest as i64 + low.max(0));
    let given = |i: usize| match c.constant(i).is_some() {
        true => c.known_int(i),
        false => Some(-1),
    };
    let (rows, columns) = match (given(2).unwrap_or(-1), given(3).unwrap_or(-1)) {
        (-1, -1) => (least.0.max(least.1), least.0.max(least.1)),
        (-1, columns) => (least.0, columns),
        (rows, -1) => (rows, least.1),
        both => both,
    };
    if rows < least.0 {
        return invalid("num_rows is too small");
    }
    if columns < least.1 {
        return invalid("num_cols is too small.");
    }
    if rows != least.0 && columns != least.1 {
        return invalid(
            "num_rows and num_cols are not consistent with lower_diag_index, upper_diag_index, \
             and the length of the given diagonals.",
        );
    }
    lead.extend([size(rows)?, size(columns)?]);
    one(shape(lead))
}

fn set_diag(c: &mut Context<'_>, diagonals: Option<(i64, i64)>) -> Result<Shapes> {
    let (input, diagonal) = (c.at_least(0, 2)?, c.at_least(1, 1)?);
    let single = diagonals.map(|(low, high)| low == high);
    let Some([lead @ .., rows, columns]) = input.dims() else {
        // A single diagonal says how many matrices there are.
        return one(match (single, diagonal.dims()) {
            (Some(true), Some([lead @ .., _])) => {
                concatenate(&shape(lead.iter().copied()), &of_rank(2))
            }
            (Some(false), Some([lead @ .., _, _])) => {
                concatenate(&shape(lead.iter().copied()), &of_rank(2))
            }
            _ => input,
        });
    };
    match (single, diagonal.rank()) {
        (Some(single), Some(_)) => {
            c.rank(1, lead.len() + if single { 1 } else { 2 })?;
        }
        (None, Some(_)) => {
            c.at_least(1, lead.len() + 1)?;
            c.at_most(1, lead.len() + 2)?;
        }
        _ => {}
    }
    within(*rows, *columns, diagonals.unwrap_or((0, 0)))?;
    if diagonals == Some((0, 0))
        && c.num_inputs() == 2
        && let Some([.., length]) = diagonal.dims()
    {
        merge_dims(smaller(*rows, *columns), *length)?;
    }
    let Some(given) = diagonal.dims().filter(|_| single.is_some()) else {
        return one(input);
    };
    if input.to_shape().is_some() {
        return one(input);
    }
    let prefix = shape(given.iter().take(lead.len()).copied());
    one(merge(&input, &concatenate(&prefix, &of_rank(2)))?)
}
