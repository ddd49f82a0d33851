//! `Einsum` of one or two operands. Each operand is brought to the form batch, free, contracted
//! (repeated labels give its diagonal, labels found nowhere else are summed away); two operands
//! are then one batched product, whose dimensions are put in the output's order.

use super::batch_matmul::{BatchPlan, batched};
use super::equation::{Equation, Label};
use super::tile::{Arithmetic, Tiled};
use crate::nn::float::{compute_type, narrow, widen};
use crate::types::with_type;
use downpour_graph::{Result, Status};
use downpour_runtime::{Built, OpContext, Registry};
use downpour_tensor::{DType, Element, Shape, Tensor};
use num_complex::{Complex32, Complex64};

pub(super) const TYPES: &[DType] = &[
    DType::Int64,
    DType::Int32,
    DType::Half,
    DType::Float,
    DType::Double,
    DType::Complex64,
    DType::Complex128,
    DType::BFloat16,
];

pub(crate) fn register(r: &mut Registry) {
    r.add_typed("Einsum", &[("T", TYPES)], |b| {
        // Every byte is a label: nobody says that they are text.
        let bytes = b.attrs().bytes("equation")?.iter();
        let equation = Equation::parse(&bytes.map(|b| char::from(*b)).collect::<String>())?;
        Built::costly(move |ctx| run(ctx, &equation))
    });
}

pub(super) fn run(ctx: &mut OpContext<'_>, equation: &Equation) -> Result<()> {
    let inputs: Vec<Tensor> = (0..ctx.num_inputs())
        .map(|i| ctx.input(i).cloned())
        .collect::<Result<_>>()?;
    let bound = equation.bind(&inputs)?;
    let dtype = inputs[0].dtype();
    let wide: Vec<Tensor> = inputs.iter().map(widen).collect::<Result<_>>()?;
    let out = with_type!(compute_type(dtype), T in [f32, f64, i32, i64, Complex32, Complex64] => {
        let parts: Vec<Part<T>> = wide
            .iter()
            .zip(&bound.inputs)
            .map(|(t, labels)| Part::new(ctx, t, labels, |l| {
                bound.output.contains(&l) || bound.shared.contains(&l)
            }))
            .collect::<Result<_>>()?;
        let mut parts = parts.into_iter();
        let first = parts.next().ok_or_else(|| Status::internal("einsum without an input"))?;
        let joined = match parts.next() {
            None => first,
            Some(second) => multiply(ctx, first, second, &bound.output)?,
        };
        arrange(ctx, joined, &bound.output)?
    });
    ctx.set_output(0, narrow(out, dtype)?);
    Ok(())
}

/// An operand whose dimensions all have different labels.
struct Part<T> {
    labels: Vec<Label>,
    sizes: Vec<usize>,
    values: Vec<T>,
}

impl<T: Element + Tiled + Arithmetic> Part<T> {
    /// Takes diagonals, and sums over labels that are not to be kept.
    fn new(
        ctx: &OpContext<'_>,
        t: &Tensor,
        labels: &[Label],
        keep: impl Fn(Label) -> bool,
    ) -> Result<Part<T>> {
        let (mut kept, mut summed): (Vec<Label>, Vec<Label>) = (Vec::new(), Vec::new());
        for &l in labels {
            let list = if keep(l) { &mut kept } else { &mut summed };
            if !list.contains(&l) {
                list.push(l);
            }
        }
        let strides = t.shape().strides();
        let axis = |l: &Label| {
            let places = labels.iter().enumerate().filter(|(_, x)| *x == l);
            places.fold((1, 0), |(_, stride), (i, _)| {
                (t.dims()[i], stride + strides[i])
            })
        };
        let out: Vec<(usize, usize)> = kept.iter().map(axis).collect();
        let inner: Vec<(usize, usize)> = summed.iter().map(axis).collect();
        let sizes: Vec<usize> = out.iter().map(|a| a.0).collect();
        let from = t.as_slice::<T>()?;
        let values = if summed.is_empty() && kept.len() == labels.len() {
            from.to_vec()
        } else {
            ctx.check_alloc(T::DTYPE, &Shape::from(sizes.clone()))?;
            let mut values = Vec::with_capacity(sizes.iter().product());
            walk(&out, |at| {
                let mut sum = T::default();
                walk(&inner, |offset| sum = sum.plus(from[at + offset]));
                values.push(sum);
            });
            values
        };
        Ok(Part {
            labels: kept,
            sizes,
            values,
        })
    }

    fn size(&self, label: Label) -> usize {
        let at = self.labels.iter().position(|&l| l == label);
        at.map_or(1, |i| self.sizes[i])
    }

    /// The values with dimensions in the order of `labels`; a label it lacks has size one.
    fn ordered(&self, labels: &[Label]) -> Vec<T> {
        let shape = Shape::from(self.sizes.clone());
        let strides = shape.strides();
        let axes: Vec<(usize, usize)> = labels
            .iter()
            .filter_map(|l| self.labels.iter().position(|x| x == l))
            .map(|i| (self.sizes[i], strides[i]))
            .collect();
        if axes.iter().map(|a| a.1).eq(strides.iter().copied()) {
            return self.values.clone();
        }
        let mut out = Vec::with_capacity(self.values.len());
        walk(&axes, |at| out.push(self.values[at]));
        out
    }
}

/// Calls `f` with the offset of every element of a box of `(size, stride)` axes, in order.
fn walk(axes: &[(usize, usize)], mut f: impl FnMut(usize)) {
    if axes.iter().any(|a| a.0 == 0) {
        return;
    }
    let mut index = vec![0; axes.len()];
    let mut at = 0;
    loop {
        f(at);
        let mut d = axes.len();
        loop {
            if d == 0 {
                return;
            }
            d -= 1;
            index[d] += 1;
            at += axes[d].1;
            if index[d] < axes[d].0 {
                break;
            }
            at -= axes[d].1 * axes[d].0;
            index[d] = 0;
        }
    }
}

/// The product of two operands over their shared labels that are not in the output.
fn multiply<T: Element + Tiled + Arithmetic>(
    ctx: &OpContext<'_>,
    x: Part<T>,
    y: Part<T>,
    output: &[Label],
) -> Result<Part<T>> {
    let in_both = |l: &Label| x.labels.contains(l) && y.labels.contains(l);
    let wanted = |l: &Label| output.contains(l);
    // Dimensions under an ellipsis broadcast, so one that only one operand has is a batch too.
    let is_batch = |l: &Label| wanted(l) && (in_both(l) || l.is_ellipsis());
    let mut batch: Vec<Label> = Vec::new();
    for &l in output.iter().filter(|l| is_batch(l)) {
        if !batch.contains(&l) {
            batch.push(l);
        }
    }
    let contracted: Vec<Label> = x
        .labels
        .iter()
        .copied()
        .filter(|l| in_both(l) && !wanted(l))
        .collect();
    let free = |p: &Part<T>| -> Vec<Label> {
        let other = |l: &Label| !batch.contains(l) && !contracted.contains(l);
        p.labels.iter().copied().filter(other).collect()
    };
    let (free_x, free_y) = (free(&x), free(&y));
    let product = |p: &Part<T>, labels: &[Label]| labels.iter().map(|&l| p.size(l)).product();
    let (m, n): (usize, usize) = (product(&x, &free_x), product(&y, &free_y));
    let k: usize = product(&x, &contracted);
    let dims = |p: &Part<T>, a: usize, b: usize| -> Vec<usize> {
        batch.iter().map(|&l| p.size(l)).chain([a, b]).collect()
    };
    let left = x.ordered(&[&batch[..], &free_x, &contracted].concat());
    let right = y.ordered(&[&batch[..], &contracted, &free_y].concat());
    let left = Tensor::from_vec(left, dims(&x, m, k))?;
    let right = Tensor::from_vec(right, dims(&y, k, n))?;
    let plan = BatchPlan::new(&left, &right, (false, false), true)?;
    ctx.check_alloc(T::DTYPE, &plan.shape)?;
    let out = batched::<T>(&plan, left.as_slice::<T>()?, right.as_slice::<T>()?)?;
    let sizes: Vec<usize> = plan.shape[..batch.len()]
        .iter()
        .copied()
        .chain(free_x.iter().map(|&l| x.size(l)))
        .chain(free_y.iter().map(|&l| y.size(l)))
        .collect();
    Ok(Part {
        labels: [batch, free_x, free_y].concat(),
        sizes,
        values: out.as_slice::<T>()?.to_vec(),
    })
}

/// The tensor with the output's labels; a repeated label makes it zero off the diagonal.
fn arrange<T: Element + Tiled + Arithmetic>(
    ctx: &OpContext<'_>,
    part: Part<T>,
    output: &[Label],
) -> Result<Tensor> {
    let mut distinct: Vec<Label> = Vec::new();
    for &l in output {
        if !distinct.contains(&l) {
            distinct.push(l);
        }
    }
    let dims: Vec<i64> = output.iter().map(|&l| part.size(l) as i64).collect();
    let shape = Shape::checked(dims)?;
    let values = part.ordered(&distinct);
    if distinct.len() == output.len() {
        return Ok(Tensor::from_vec(values, shape)?);
    }
    let mut out = ctx.zeros(T::DTYPE, &shape)?;
    let strides = shape.strides();
    let axes: Vec<(usize, usize)> = distinct
        .iter()
        .map(|&l| {
            let places = output.iter().zip(&strides).filter(|(x, _)| **x == l);
            (part.size(l), places.map(|(_, s)| s).sum())
        })
        .collect();
    let to = out.make_mut::<T>()?;
    let mut next = values.into_iter();
    walk(&axes, |at| {
        if let Some(v) = next.next() {
            to[at] = v;
        }
    });
    Ok(out)
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use downpour_tensor::{DType, Tensor};

    fn iota(dims: &[usize]) -> Tensor {
        let n = dims.iter().product::<usize>();
        Tensor::from_vec((0..n).map(|v| (v % 7) as f32).collect(), dims).unwrap()
    }

    fn run(equation: &str, inputs: Vec<Tensor>) -> downpour_graph::Result<(Vec<usize>, Vec<f32>)> {
        let attrs = [
            ("T", DType::Float.into()),
            ("equation", equation.into()),
            ("N", (inputs.len() as i64).into()),
        ];
        let out = run_op("Einsum", inputs, &attrs)?;
        Ok((
            out[0].dims().to_vec(),
            out[0].as_slice::<f32>().unwrap().to_vec(),
        ))
    }

    // Values: tf.raw_ops.Einsum on arange(n) % 7.
    #[test]
    fn equations_of_one_operand() {
        let square = || vec![iota(&[3, 3])];
        assert_eq!(
            run("ii->i", square()).unwrap(),
            (vec![3], vec![0.0, 4.0, 1.0])
        );
        assert_eq!(run("ii->", square()).unwrap(), (vec![], vec![5.0]));
        assert_eq!(
            run("ij->ji", vec![iota(&[1, 2])]).unwrap(),
            (vec![2, 1], vec![0.0, 1.0])
        );
        let diagonal = [0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 2.0].to_vec();
        assert_eq!(
            run("i->ii", vec![iota(&[3])]).unwrap(),
            (vec![3, 3], diagonal)
        );
        assert_eq!(
            run("...i->...", vec![iota(&[2, 3])]).unwrap(),
            (vec![2], vec![3.0, 12.0])
        );
    }

    #[test]
    fn equations_of_two_operands() {
        let run = |e: &str, a: &[usize], b: &[usize]| run(e, vec![iota(a), iota(b)]).unwrap();
        assert_eq!(run("i,i->", &[3], &[3]), (vec![], vec![5.0]));
        let outer = vec![0.0, 0.0, 0.0, 0.0, 1.0, 2.0];
        assert_eq!(run("i,j->ij", &[2], &[3]), (vec![2, 3], outer));
        assert_eq!(run("ij,k->i", &[2, 3], &[2]), (vec![2], vec![3.0, 12.0]));
        assert_eq!(
            run("iij,j->i", &[2, 2, 3], &[3]),
            (vec![2], vec![5.0, 11.0])
        );
        assert_eq!(
            run("ij,jk->ki", &[2, 2], &[2, 2]),
            (vec![2, 2], vec![2.0, 6.0, 3.0, 11.0])
        );
        assert_eq!(
            run("...ij,...jk->...ik", &[2, 1, 2, 3], &[4, 3, 2]).0,
            [2, 4, 2, 2]
        );
        assert_eq!(
            run("a...b,b...c->a...c", &[2, 5, 3], &[3, 5, 4]).0,
            [2, 5, 4]
        );
        assert_eq!(
            run("ij...,jk...->ik...", &[2, 3, 1], &[3, 4, 5]).0,
            [2, 4, 5]
        );
        assert_eq!(run("...i,...i->...i", &[2, 1, 3], &[4, 3]).0, [2, 4, 3]);
        assert_eq!(
            run("ij,jk->ik", &[2, 0], &[0, 2]),
            (vec![2, 2], vec![0.0; 4])
        );
    }

    #[test]
    fn texts_are_tensorflows() {
        let fail = |e: &str, dims: &[&[usize]]| {
            let inputs = dims.iter().map(|d| iota(d)).collect();
            run(e, inputs).unwrap_err().message
        };
        let starts = |m: String, s: &str| assert!(m.starts_with(s), "{m}");
        starts(
            fail("ij,jk->ik", &[&[2, 3], &[2, 2]]),
            "Expected dimension 3 at axis 0 of the input shaped [2,2] but got dimension 2",
        );
        starts(
            fail("ij->ji", &[&[2]]),
            "Expected input 0 to have rank 2 but got: 1",
        );
        starts(
            fail("...ij->...ji", &[&[3]]),
            "Expected input 0 to have rank at least 2 but got: 1",
        );
        starts(
            fail("...i->i", &[&[2, 3]]),
            "Output contains 1 broadcasting dimension(s) but no ellipsis (...) was found in the output subscripts.",
        );
        starts(
            fail("...ij,...jk->...ik", &[&[2, 2, 3], &[3, 3, 2]]),
            "In[0] and In[1] must have compatible batch dimensions: [2,2,3] vs. [3,3,2]",
        );
    }
}
