//! `MatMul`, `SparseMatMul` (dense inputs that happen to hold zeros) and `_FusedMatMul`, which is
//! also what a `MatMul` becomes that [`crate::nn::layer`] found before a bias and an activation.

use super::fuse::Activation;
use super::gemm::{Matrix, product};
use super::tile::Tiled;
use crate::nn::bias::add_rows;
use crate::nn::float::{compute_type, narrow, widen};
use crate::types::with_type;
use downpour_graph::{Attrs, Result, Status};
use downpour_runtime::{Built, KernelBuilder, OpContext, Quick, Registry, parallel_ranges};
use downpour_tensor::{DType, Element, Shape, Tensor};

/// The types TensorFlow multiplies matrices of.
pub(super) const TYPES: &[DType] = &[
    DType::Int64,
    DType::Int32,
    DType::Int16,
    DType::Double,
    DType::Float,
    DType::BFloat16,
    DType::Half,
    DType::Complex128,
    DType::Complex64,
];

pub(crate) fn register(r: &mut Registry) {
    const MIXED: &[DType] = &[DType::BFloat16, DType::Float];
    const FUSED: &[DType] = &[DType::BFloat16, DType::Half, DType::Float];
    r.add_typed("MatMul", &[("T", TYPES)], |b| {
        let (ta, tb) = transposes(b)?;
        Built::costly(move |ctx| {
            let (a, b) = (ctx.take(0)?, ctx.take(1)?);
            let out = matmul(ctx, &a, &b, ta, tb)?;
            ctx.set_output(0, out);
            Ok(())
        })
    });
    r.add_typed("SparseMatMul", &[("Ta", MIXED), ("Tb", MIXED)], |b| {
        let (ta, tb) = transposes(b)?;
        Built::costly(move |ctx| sparse_matmul(ctx, ta, tb))
    });
    r.add_typed("_FusedMatMul", &[("T", FUSED)], |b| {
        let (ta, tb) = transposes(b)?;
        let names = b.attrs().byte_strings("fused_ops")?;
        let names: Vec<&str> = names
            .iter()
            .map(|s| std::str::from_utf8(s).unwrap_or_default())
            .collect();
        let unknown =
            || Status::unimplemented(format!("Fusion is not implemented: [{}]", names.join(",")));
        let alpha = b.attrs().float("leakyrelu_alpha")?;
        let activation = match names.as_slice() {
            ["BiasAdd"] => Activation::None,
            ["BiasAdd", one] => Activation::parse(one, alpha).ok_or_else(unknown)?,
            _ => return Err(unknown()),
        };
        Built::costly(move |ctx| fused_matmul(ctx, ta, tb, activation))
    });
}

/// The product of inputs 0 and 1 with `attrs`, then the bias in input 2, then an activation. Leaves
/// whatever is wrong to the ops themselves, whose errors name their nodes.
pub(crate) fn with_bias(attrs: &Attrs, activation: Activation) -> Option<Quick> {
    let (ta, tb) = (
        attrs.bool("transpose_a").ok()?,
        attrs.bool("transpose_b").ok()?,
    );
    Some(Box::new(move |ctx| {
        let (a, b, bias) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
        if bias.rank() != 1 {
            return Ok(false);
        }
        let Ok(out) = biased(ctx, (a, b, bias), ta, tb, activation) else {
            return Ok(false);
        };
        ctx.set_output(0, out);
        Ok(true)
    }))
}

fn transposes(b: &KernelBuilder<'_>) -> Result<(bool, bool)> {
    Ok((
        b.attrs().bool("transpose_a")?,
        b.attrs().bool("transpose_b")?,
    ))
}

/// The product of two matrices of one type.
pub(crate) fn matmul(
    ctx: &OpContext<'_>,
    a: &Tensor,
    b: &Tensor,
    ta: bool,
    tb: bool,
) -> Result<Tensor> {
    check_ranks(a, b)?;
    let shape = check_sizes(
        a,
        b,
        ta,
        tb,
        "Matrix size-incompatible: In[0]: ",
        ", In[1]: ",
    )?;
    let dtype = a.dtype();
    ctx.check_alloc(dtype, &shape)?;
    let (a, b) = (widen(a)?, widen(b)?);
    let out = with_type!(compute_type(dtype), T in [f32, f64, i16, i32, i64,
        num_complex::Complex32, num_complex::Complex64] => dense::<T>(&a, &b, ta, tb, shape)?);
    narrow(out, dtype)
}

/// The product of checked matrices.
fn dense<T: Element + Tiled>(
    a: &Tensor,
    b: &Tensor,
    ta: bool,
    tb: bool,
    shape: Shape,
) -> Result<Tensor> {
    let left = Matrix::dense(a.as_slice::<T>()?, a.dims()[0], a.dims()[1], ta);
    let right = Matrix::dense(b.as_slice::<T>()?, b.dims()[0], b.dims()[1], tb);
    let out = product(Vec::new(), left, right, true);
    Ok(Tensor::from_vec(out, shape)?)
}

fn check_ranks(a: &Tensor, b: &Tensor) -> Result<()> {
    let invalid = |text: String| Err(Status::invalid_argument(text));
    if a.rank() != b.rank() {
        return invalid(format!(
            "In[0] and In[1] has different ndims: {} vs. {}",
            a.shape(),
            b.shape()
        ));
    } else if a.rank() != 2 {
        return invalid(format!("In[0] and In[1] ndims must be == 2: {}", a.rank()));
    }
    Ok(())
}

/// The product's shape, or an error that names both shapes after the given words.
fn check_sizes(
    a: &Tensor,
    b: &Tensor,
    ta: bool,
    tb: bool,
    before: &str,
    between: &str,
) -> Result<Shape> {
    let sizes = |t: &Tensor, swap: bool| match (t.dims()[0], t.dims()[1]) {
        (x, y) if swap => (y, x),
        same => same,
    };
    let ((m, k), (k2, n)) = (sizes(a, ta), sizes(b, tb));
    if k != k2 {
        return Err(Status::invalid_argument(format!(
            "{before}{}{between}{}",
            a.shape(),
            b.shape()
        )));
    }
    Ok(Shape::from([m, n]))
}

fn sparse_matmul(ctx: &mut OpContext<'_>, ta: bool, tb: bool) -> Result<()> {
    let (a, b) = (ctx.take(0)?, ctx.take(1)?);
    for (name, t) in [("a", &a), ("b", &b)] {
        if t.rank() != 2 {
            return Err(Status::invalid_argument(format!("{name} is not a matrix")));
        }
    }
    let shape = check_sizes(&a, &b, ta, tb, "Matrix size incompatible: a: ", ", b: ")?;
    ctx.check_alloc(DType::Float, &shape)?;
    let out = dense::<f32>(&widen(&a)?, &widen(&b)?, ta, tb, shape)?;
    ctx.set_output(0, out);
    Ok(())
}

fn fused_matmul(ctx: &mut OpContext<'_>, ta: bool, tb: bool, act: Activation) -> Result<()> {
    let (a, b, bias) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let dtype = a.dtype();
    let bias = widen(bias)?;
    let out = biased(ctx, (a, b, &bias), ta, tb, act)?;
    ctx.set_output(0, narrow(out, dtype)?);
    Ok(())
}

/// The product of two matrices in float, with a bias and an activation.
fn biased(
    ctx: &OpContext<'_>,
    (a, b, bias): (&Tensor, &Tensor, &Tensor),
    ta: bool,
    tb: bool,
    act: Activation,
) -> Result<Tensor> {
    check_ranks(a, b)?;
    let shape = check_sizes(
        a,
        b,
        ta,
        tb,
        "Matrix size-incompatible: In[0]: ",
        ", In[1]: ",
    )?;
    let n = shape[1];
    if bias.dims() != [n] && bias.dims() != [1, n] {
        return Err(Status::invalid_argument(format!(
            "Must provide as many biases as the last dimension of the output tensor: {} vs. {shape}",
            bias.shape()
        )));
    }
    ctx.check_alloc(a.dtype(), &shape)?;
    let mut out = dense::<f32>(&widen(a)?, &widen(b)?, ta, tb, shape)?;
    let bias = bias.as_slice::<f32>()?;
    if n != 0 {
        let grain = (16usize << 10).div_ceil(n);
        parallel_ranges(out.make_mut::<f32>()?, n, grain, |_, rows| {
            add_rows(rows, bias);
            act.apply(rows);
        });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use crate::testing::{floats, node, run_graph, run_op};
    use downpour_graph::{AttrList, AttrValue, NodeDef};
    use downpour_tensor::{DType, Tensor};
    use num_complex::Complex32;

    fn matrix(values: &[f32], dims: [usize; 2]) -> Tensor {
        Tensor::from_vec(values.to_vec(), dims).unwrap()
    }

    #[test]
    fn sizes_that_do_not_fit_are_named() {
        let t = [("T", DType::Float.into())];
        let a = matrix(&[1.0, 2.0, 3.0, 4.0], [2, 2]);
        let e = run_op("MatMul", vec![a.clone(), matrix(&[1.0; 3], [3, 1])], &t).unwrap_err();
        assert!(
            e.message
                .starts_with("Matrix size-incompatible: In[0]: [2,2], In[1]: [3,1]")
        );
        let e = run_op("MatMul", vec![floats(&[1.0]), floats(&[1.0])], &t).unwrap_err();
        assert!(
            e.message
                .starts_with("In[0] and In[1] ndims must be == 2: 1")
        );
        let d = |v: Vec<f64>, dims: &[usize]| Tensor::from_vec(v, dims).unwrap();
        let t = [("T", DType::Double.into())];
        let e = run_op(
            "MatMul",
            vec![d(vec![1.0], &[1]), d(vec![1.0], &[1, 1])],
            &t,
        )
        .unwrap_err();
        assert!(
            e.message
                .starts_with("In[0] and In[1] has different ndims: [1] vs. [1,1]")
        );
    }

    #[test]
    fn every_type_multiplies() {
        let a = matrix(&[1.0, 2.0, 3.0, 4.0], [2, 2]);
        let run = |t: DType, x: Tensor| run_op("MatMul", vec![x.clone(), x], &[("T", t.into())]);
        let out = run(DType::Float, a.clone()).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [7.0, 10.0, 15.0, 22.0]);
        let i = Tensor::from_vec(vec![1i64, 2, 3, 4], [2, 2]).unwrap();
        let out = run(DType::Int64, i).unwrap();
        assert_eq!(out[0].as_slice::<i64>().unwrap(), [7, 10, 15, 22]);
        let c = Tensor::from_vec(vec![Complex32::new(0.0, 1.0)], [1, 1]).unwrap();
        let out = run(DType::Complex64, c).unwrap();
        assert_eq!(
            out[0].as_slice::<Complex32>().unwrap(),
            [Complex32::new(-1.0, 0.0)]
        );
        let h = crate::nn::float::narrow(a, DType::BFloat16).unwrap();
        assert_eq!(run(DType::BFloat16, h).unwrap()[0].dtype(), DType::BFloat16);
    }

    #[test]
    fn fused_products_add_the_bias_and_activate() {
        let ops = AttrValue::List(AttrList::Str(vec!["BiasAdd".into(), "Relu".into()]));
        let attrs = [
            ("T", DType::Float.into()),
            ("num_args", 1i64.into()),
            ("fused_ops", ops),
        ];
        let x = matrix(&[1.0, -2.0], [1, 2]);
        let w = matrix(&[1.0, 2.0, 3.0, 1.0], [2, 2]);
        let out = run_op("_FusedMatMul", vec![x, w, floats(&[1.0, 2.0])], &attrs).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [0.0, 2.0]);
    }

    /// `relu(a·b + bias)` of the arguments, `product` fetched too if asked.
    fn layer(is_seen: bool) -> Vec<NodeDef> {
        let t = || ("T", DType::Float.into());
        let index = |i: i64| ("index", i.into());
        let mut nodes = vec![
            node("a", "_Arg", &[], &[t(), index(0)]),
            node("b", "_Arg", &[], &[t(), index(1)]),
            node("c", "_Arg", &[], &[t(), index(2)]),
            node("product", "MatMul", &["a", "b"], &[t()]),
            node("sum", "BiasAdd", &["product", "c"], &[t()]),
            node("relu", "Relu", &["sum"], &[t()]),
            node("r0", "_Retval", &["relu"], &[t(), index(0)]),
        ];
        if is_seen {
            nodes.push(node("r1", "_Retval", &["product"], &[t(), index(1)]));
        }
        nodes
    }

    #[test]
    fn a_product_with_bias_and_activation_gives_what_its_ops_give() {
        let a: Vec<f32> = (0..37 * 50).map(|i| (i % 13) as f32 * 0.37 - 2.0).collect();
        let b: Vec<f32> = (0..50 * 45).map(|i| (i % 11) as f32 * 0.29 - 1.4).collect();
        let c: Vec<f32> = (0..45).map(|i| i as f32 * 0.7 - 9.0).collect();
        let args = || vec![matrix(&a, [37, 50]), matrix(&b, [50, 45]), floats(&c)];
        let one = run_graph(layer(true), args()).unwrap();
        let at_once = run_graph(layer(false), args()).unwrap();
        let values = |t: &Tensor| t.as_slice::<f32>().unwrap().to_vec();
        assert_eq!(values(&at_once[0]), values(&one[0]));
        assert!(values(&one[1]).iter().any(|v| *v < 0.0));
    }

    #[test]
    fn an_error_in_a_product_with_bias_names_its_node() {
        let m = |rows, cols| matrix(&vec![1.0; rows * cols], [rows, cols]);
        let fail = |args| run_graph(layer(false), args).unwrap_err().message;
        let e = fail(vec![m(2, 3), m(4, 5), floats(&[0.0; 5])]);
        assert!(e.ends_with("[[{{node product}}]]"), "{e}");
        let e = fail(vec![m(2, 3), m(3, 5), floats(&[0.0; 4])]);
        assert!(e.ends_with("[[{{node sum}}]]"), "{e}");
        let e = fail(vec![m(2, 3), m(3, 5), m(1, 5)]);
        assert!(e.starts_with("Biases must be 1D: [1,5]"), "{e}");
    }

    #[test]
    fn sparse_products_take_mixed_types() {
        let attrs = [("Ta", DType::BFloat16.into()), ("Tb", DType::Float.into())];
        let a = matrix(&[1.0, 0.0, 0.0, 2.0], [2, 2]);
        let h = crate::nn::float::narrow(a.clone(), DType::BFloat16).unwrap();
        let out = run_op("SparseMatMul", vec![h, a], &attrs).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [1.0, 0.0, 0.0, 4.0]);
    }
}
