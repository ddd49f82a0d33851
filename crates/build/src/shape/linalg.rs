//! Shapes of linear algebra and of Fourier transforms.

use super::Rule::{self, Compute, Pattern};
use super::dims::{concatenate, dims_of, shape, size, smaller};
use super::{Context, Shapes, invalid, one};
use downpour_graph::Result;
use downpour_tensor::PartialShape;
use smallvec::smallvec;

pub(super) fn rule(op: &str) -> Option<Rule> {
    Some(match op {
        "Cholesky" | "MatrixInverse" | "MatrixLogarithm" | "MatrixSquareRoot"
        | "MatrixExponential" | "CholeskyGrad" => Pattern("[B..,n,n] -> [B..,n,n]"),
        "MatrixDeterminant" => Pattern("[B..,n,n] -> [B..]"),
        "LogMatrixDeterminant" => Pattern("[B..,n,n] -> [B..] [B..]"),
        "Lu" => Pattern("[B..,n,n] -> [B..,n,n] [B..,n]"),
        "SelfAdjointEig" => Compute(|c| {
            one(match c.at_least(0, 2)?.dims() {
                Some([lead @ .., a, b]) => {
                    let n = super::dims::merge_dims(*a, *b)?;
                    let rows = n.map(|n| n + 1);
                    shape(lead.iter().copied().chain([rows, n]))
                }
                _ => PartialShape::unknown(),
            })
        }),
        "SelfAdjointEigV2" | "Eig" => Compute(|c| match c.attrs().bool("compute_v")? {
            true => super::pattern::apply("[B..,n,n] -> [B..,n] [B..,n,n]", c),
            false => super::pattern::apply("[B..,n,n] -> [B..,n] [0]", c),
        }),
        "Qr" => Compute(qr),
        "Svd" => Compute(svd),
        "MatrixSolve" => Pattern("[B..,n,n] [B..,n,k] -> [B..,n,k]"),
        "MatrixTriangularSolve" => Compute(|c| triangular(c, false)),
        "BandedTriangularSolve" => Compute(|c| triangular(c, true)),
        "MatrixSolveLs" => Pattern("[B..,m,n] [B..,m,k] [] -> [B..,n,k]"),
        "TridiagonalSolve" => Pattern("[B..,3,m] [B..,m,k] -> [B..,m,k]"),
        "TridiagonalMatMul" => Pattern("[B..,1,m] [B..,1,m] [B..,1,m] [B..,m,k] -> [B..,m,k]"),
        "Einsum" => Compute(super::einsum::einsum),
        "FFT" | "IFFT" => Pattern("[B..,a] -> [B..,a]"),
        "FFT2D" | "IFFT2D" => Pattern("[B..,a,b] -> [B..,a,b]"),
        "FFT3D" | "IFFT3D" => Pattern("[B..,a,b,c] -> [B..,a,b,c]"),
        "RFFT" => Compute(|c| real_transform(c, 1, true)),
        "RFFT2D" => Compute(|c| real_transform(c, 2, true)),
        "RFFT3D" => Compute(|c| real_transform(c, 3, true)),
        "IRFFT" => Compute(|c| real_transform(c, 1, false)),
        "IRFFT2D" => Compute(|c| real_transform(c, 2, false)),
        "IRFFT3D" => Compute(|c| real_transform(c, 3, false)),
        _ => return None,
    })
}

fn qr(c: &mut Context<'_>) -> Result<Shapes> {
    let input = c.at_least(0, 2)?;
    let Some([lead @ .., m, n]) = input.dims() else {
        return Ok(smallvec![PartialShape::unknown(); 2]);
    };
    let inner = match c.attrs().bool("full_matrices")? {
        true => *m,
        false => smaller(*m, *n),
    };
    let with = |a, b| shape(lead.iter().copied().chain([a, b]));
    Ok(smallvec![with(*m, inner), with(inner, *n)])
}

fn svd(c: &mut Context<'_>) -> Result<Shapes> {
    let input = c.at_least(0, 2)?;
    let vectors = c.attrs().bool("compute_uv")?;
    let none = shape([Some(0)]);
    let Some([lead @ .., m, n]) = input.dims() else {
        let rest = if vectors {
            PartialShape::unknown()
        } else {
            none
        };
        return Ok(smallvec![PartialShape::unknown(), rest.clone(), rest]);
    };
    let least = smaller(*m, *n);
    let values = shape(lead.iter().copied().chain([least]));
    if !vectors {
        return Ok(smallvec![values, none.clone(), none]);
    }
    let full = c.attrs().bool("full_matrices")?;
    let with = |a, b| shape(lead.iter().copied().chain([a, if full { a } else { b }]));
    Ok(smallvec![values, with(*m, least), with(*n, least)])
}

/// Triangular systems: the batches broadcast. A banded matrix has its bands as rows.
fn triangular(c: &mut Context<'_>, banded: bool) -> Result<Shapes> {
    let (a, b) = (c.at_least(0, 2)?, c.at_least(1, 2)?);
    let (Some([lead_a @ .., rows, n]), Some([lead_b @ .., m, k])) = (a.dims(), b.dims()) else {
        return one(PartialShape::unknown());
    };
    let mut n = super::dims::merge_dims(*n, *m)?;
    if !banded {
        n = super::dims::merge_dims(*rows, n)?;
    } else if *rows == Some(0) {
        return invalid("Number of bands must be positive, but is 0");
    } else if let (Some(bands), Some(size)) = (*rows, n)
        && bands > size
    {
        return invalid(format!(
            "Number of bands {bands} cannot exceed the size of the matrix {size}"
        ));
    }
    let lead = |d: &[super::Dim]| shape(d.iter().copied());
    let batch = super::dims::broadcast(&lead(lead_a), &lead(lead_b))?;
    one(concatenate(&batch, &shape([n, *k])))
}

fn real_transform(c: &mut Context<'_>, count: usize, forward: bool) -> Result<Shapes> {
    let input = c.at_least(0, count)?;
    if c.rank(1, 1)?[0].is_some_and(|n| n != count) {
        return invalid(format!(
            "Dimension must be {count}: fft_length has one number for each"
        ));
    }
    let Some(mut dims) = dims_of(&input) else {
        return one(PartialShape::unknown());
    };
    let first = dims.len() - count;
    let lengths = c.known_ints(1);
    for i in 0..count {
        dims[first + i] = match lengths.as_ref().and_then(|l| l.get(i)) {
            None => None,
            Some(&n) if forward && i == count - 1 && n != 0 => size(n / 2 + 1)?,
            Some(&n) => size(n)?,
        };
    }
    one(shape(dims))
}
