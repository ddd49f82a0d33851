//! Convolutions against their definition, and TensorFlow's answers to wrong shapes.

use super::shape::Geometry;
use crate::nn::float::Parts;
use crate::nn::window::{Axis, Padding};
use crate::testing::{node, run_graph, run_op};
use downpour_graph::{AttrValue, Code, NodeDef};
use downpour_tensor::{DType, Tensor};

/// One case: input, filter, strides, dilations, explicit padding (top, bottom, left, right).
struct Case {
    x: [usize; 4],
    f: [usize; 4],
    s: [usize; 2],
    d: [usize; 2],
    p: [usize; 4],
}

impl Case {
    fn out(&self) -> [usize; 4] {
        let size = |i: usize| {
            let extent = (self.f[i] - 1) * self.d[i] + 1;
            (self.x[i + 1] + self.p[2 * i] + self.p[2 * i + 1] - extent) / self.s[i] + 1
        };
        [self.x[0], size(0), size(1), self.f[3]]
    }

    /// Calls `f(x index, filter index, y index)` for every product of the convolution.
    fn each(&self, mut f: impl FnMut(usize, usize, usize)) {
        let [n, oh, ow, oc] = self.out();
        let [_, h, w, c] = self.x;
        let [fh, fw, fc, _] = self.f;
        let groups = c / fc;
        for b in 0..n {
            for y in 0..oh {
                for x in 0..ow {
                    for ky in 0..fh {
                        for kx in 0..fw {
                            let iy = (y * self.s[0] + ky * self.d[0]).wrapping_sub(self.p[0]);
                            let ix = (x * self.s[1] + kx * self.d[1]).wrapping_sub(self.p[2]);
                            if iy >= h || ix >= w {
                                continue;
                            }
                            for o in 0..oc {
                                let g = o / (oc / groups);
                                for i in 0..fc {
                                    f(
                                        ((b * h + iy) * w + ix) * c + g * fc + i,
                                        ((ky * fw + kx) * fc + i) * oc + o,
                                        ((b * oh + y) * ow + x) * oc + o,
                                    );
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    fn attrs(&self) -> Vec<(&'static str, AttrValue)> {
        let [t, b, l, r] = self.p.map(|v| v as i64);
        let list = |v: [usize; 2]| vec![1, v[0] as i64, v[1] as i64, 1];
        vec![
            ("T", DType::Float.into()),
            ("strides", list(self.s).into()),
            ("dilations", list(self.d).into()),
            ("padding", "EXPLICIT".into()),
            ("explicit_paddings", vec![0, 0, t, b, l, r, 0, 0].into()),
        ]
    }
}

/// Small whole numbers, so that sums are exact in any order.
fn numbers(dims: [usize; 4], seed: usize) -> Tensor {
    let n = dims.iter().product();
    let values = (0..n).map(|i| ((i * 7 + seed) % 11) as f32 - 5.0).collect();
    Tensor::from_vec(values, dims).unwrap()
}

/// Both gradients from the functions themselves, which can do more than the ops admit.
fn gradients(c: &Case, x: &[f32], f: &[f32], dy: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let axis = |i: usize| {
        let padding = Padding::Explicit([(c.p[0], c.p[1]), (c.p[2], c.p[3])]);
        Axis::new(c.x[i + 1], c.f[i], c.s[i], c.d[i], &padding, i).unwrap()
    };
    let g = Geometry {
        batch: c.x[0],
        h: axis(0),
        w: axis(1),
        in_c: c.x[3],
        out_c: c.f[3],
        groups: c.x[3] / c.f[2],
    };
    let (mut dx, mut df) = (vec![f32::NAN; x.len()], vec![f32::NAN; f.len()]);
    super::backward::input(&g, dy, f, &Parts::of(&mut dx), 1 << 30).unwrap();
    super::backward::filter(&g, x, dy, &Parts::of(&mut df), 1 << 30).unwrap();
    (dx, df)
}

fn cases() -> Vec<Case> {
    let case = |x, f, s, d, p| Case { x, f, s, d, p };
    vec![
        case([2, 7, 6, 3], [3, 3, 3, 5], [1, 1], [1, 1], [1, 1, 1, 1]),
        case(
            [2, 14, 14, 32],
            [5, 5, 32, 64],
            [1, 1],
            [1, 1],
            [2, 2, 2, 2],
        ),
        case([3, 28, 28, 1], [5, 5, 1, 32], [1, 1], [1, 1], [2, 2, 2, 2]),
        case([1, 9, 8, 2], [3, 2, 2, 4], [2, 3], [1, 1], [0, 1, 1, 0]),
        case([1, 9, 9, 4], [3, 3, 2, 6], [1, 1], [2, 2], [2, 2, 2, 2]),
        case([2, 9, 9, 2], [2, 3, 2, 3], [3, 2], [2, 1], [1, 0, 0, 3]),
        case([2, 5, 5, 8], [1, 1, 8, 33], [1, 1], [1, 1], [0, 0, 0, 0]),
        case([1, 6, 6, 3], [1, 1, 3, 4], [4, 4], [1, 1], [0, 0, 0, 0]),
        case([2, 6, 6, 4], [3, 3, 1, 8], [2, 2], [1, 1], [1, 1, 1, 1]),
        case([1, 3, 3, 1], [5, 5, 1, 1], [1, 1], [1, 1], [4, 4, 4, 4]),
        // More images than are put together, and not a multiple of them.
        case([11, 7, 7, 8], [5, 5, 8, 48], [1, 1], [1, 1], [2, 2, 2, 2]),
        case([9, 9, 6, 16], [3, 5, 16, 16], [2, 1], [1, 1], [1, 2, 2, 1]),
        case([9, 8, 9, 8], [4, 3, 8, 32], [2, 3], [1, 1], [3, 0, 1, 2]),
        // Taps and whole windows that never meet the input.
        case([8, 2, 2, 8], [5, 5, 8, 16], [1, 1], [1, 1], [4, 4, 4, 4]),
        case([8, 3, 3, 8], [3, 3, 8, 16], [1, 1], [1, 1], [4, 5, 4, 5]),
        case([8, 3, 4, 8], [2, 3, 8, 16], [2, 2], [1, 1], [4, 4, 4, 4]),
    ]
}

#[test]
fn convolutions_and_their_gradients_agree_with_the_definition() {
    for c in cases() {
        let (x, f, dy) = (numbers(c.x, 1), numbers(c.f, 2), numbers(c.out(), 3));
        let (xs, fs, dys) = (
            x.as_slice::<f32>().unwrap(),
            f.as_slice::<f32>().unwrap(),
            dy.as_slice::<f32>().unwrap(),
        );
        let (mut y, mut dx, mut df) = (
            vec![0.0; dys.len()],
            vec![0.0; xs.len()],
            vec![0.0; fs.len()],
        );
        c.each(|i, k, o| {
            y[o] += xs[i] * fs[k];
            dx[i] += dys[o] * fs[k];
            df[k] += dys[o] * xs[i];
        });
        let size = |d: [usize; 4]| Tensor::vector(d.map(|v| v as i32).to_vec());
        let run = |op: &str, inputs: Vec<Tensor>| {
            run_op(op, inputs, &c.attrs()).unwrap()[0]
                .as_slice::<f32>()
                .unwrap()
                .to_vec()
        };
        assert_eq!(run("Conv2D", vec![x.clone(), f.clone()]), y, "{:?}", c.x);
        if c.x[3] != c.f[2] {
            // TensorFlow has no gradients of groups on CPUs.
            let args = vec![size(c.x), f.clone(), dy.clone()];
            assert!(run_op("Conv2DBackpropInput", args, &c.attrs()).is_err());
            let (got_x, got_f) = gradients(&c, xs, fs, dys);
            assert_eq!((got_x, got_f), (dx, df), "{:?}", c.x);
            continue;
        }
        let args = vec![size(c.x), f.clone(), dy.clone()];
        assert_eq!(run("Conv2DBackpropInput", args), dx, "{:?}", c.x);
        let args = vec![x.clone(), size(c.f), dy.clone()];
        assert_eq!(run("Conv2DBackpropFilter", args), df, "{:?}", c.x);
    }
}

/// A convolution `y` of the arguments 0 and 1, plus the argument 2 as `b`, then `r`.
fn with_bias_and_relu(c: &Case) -> Vec<NodeDef> {
    let t = || ("T", DType::Float.into());
    let index = |i: i64| ("index", i.into());
    vec![
        node("x", "_Arg", &[], &[t(), index(0)]),
        node("f", "_Arg", &[], &[t(), index(1)]),
        node("bias", "_Arg", &[], &[t(), index(2)]),
        node("y", "Conv2D", &["x", "f"], &c.attrs()),
        node("b", "BiasAdd", &["y", "bias"], &[t()]),
        node("r", "Relu", &["b"], &[t()]),
        node("out", "_Retval", &["r"], &[t(), index(0)]),
    ]
}

#[test]
fn a_convolution_with_bias_and_activation_gives_what_its_ops_give() {
    let t = [("T", DType::Float.into())];
    for c in cases() {
        // Not whole numbers, so that another order of sums would show.
        let odd = |t: Tensor| {
            let values = t.as_slice::<f32>().unwrap().iter();
            let values = values.map(|v| v * 0.37 + 0.01).collect();
            Tensor::from_vec(values, t.shape().clone()).unwrap()
        };
        let (x, f) = (odd(numbers(c.x, 1)), odd(numbers(c.f, 2)));
        let bias = Tensor::vector((0..c.f[3]).map(|i| i as f32 - 3.3).collect());
        let y = run_op("Conv2D", vec![x.clone(), f.clone()], &c.attrs()).unwrap();
        let b = run_op("BiasAdd", vec![y[0].clone(), bias.clone()], &t).unwrap();
        let r = run_op("Relu", vec![b[0].clone()], &t).unwrap();
        let args = || vec![x.clone(), f.clone(), bias.clone()];
        let out = run_graph(with_bias_and_relu(&c), args()).unwrap();
        assert_eq!(
            out[0].as_slice::<f32>().unwrap(),
            r[0].as_slice::<f32>().unwrap()
        );
        let mut nodes = with_bias_and_relu(&c);
        nodes.retain(|n| &*n.name != "r");
        nodes[5].inputs = vec!["b".into()];
        let out = run_graph(nodes, args()).unwrap();
        assert_eq!(
            out[0].as_slice::<f32>().unwrap(),
            b[0].as_slice::<f32>().unwrap()
        );
    }
}

#[test]
fn an_error_in_a_convolution_with_bias_names_its_node() {
    let c = &cases()[0];
    let bias = |n: usize| Tensor::vector(vec![1.0f32; n]);
    let fail = |args| run_graph(with_bias_and_relu(c), args).unwrap_err().message;
    let e = fail(vec![numbers(c.x, 1), numbers(c.f, 2), bias(3)]);
    let text = "Must provide as many biases as the last dimension of the input tensor";
    assert!(e.starts_with(text) && e.ends_with("[[{{node b}}]]"), "{e}");
    let e = fail(vec![numbers(c.x, 1), numbers([3, 3, 2, 5], 2), bias(5)]);
    let text = "input depth must be evenly divisible by filter depth: 3 vs 2";
    assert!(e.starts_with(text) && e.ends_with("[[{{node y}}]]"), "{e}");
    let e = fail(vec![bias(4), numbers(c.f, 2), bias(5)]);
    assert!(e.ends_with("[[{{node y}}]]"), "{e}");
}

#[test]
fn no_pixels_stay_none() {
    let c = Case {
        x: [0, 4, 4, 8],
        ..cases()[0]
    };
    let args = vec![
        numbers(c.x, 0),
        numbers([3, 3, 8, 16], 0),
        Tensor::vector(vec![0.5f32; 16]),
    ];
    let out = run_graph(with_bias_and_relu(&c), args).unwrap();
    assert_eq!(out[0].dims(), [0, 4, 4, 16]);
}

#[test]
fn halves_are_computed_in_float() {
    let attrs = |t: DType| {
        [
            ("T", t.into()),
            ("strides", vec![1i64; 4].into()),
            ("padding", "SAME".into()),
        ]
    };
    let (x, f) = (numbers([1, 4, 4, 2], 1), numbers([3, 3, 2, 3], 2));
    let want = run_op("Conv2D", vec![x.clone(), f.clone()], &attrs(DType::Float)).unwrap();
    let half = |t: &Tensor| super::narrow(t.clone(), DType::Half).unwrap();
    let h = run_op("Conv2D", vec![half(&x), half(&f)], &attrs(DType::Half)).unwrap();
    assert_eq!(
        super::widen(&h[0]).unwrap().as_slice::<f32>().unwrap(),
        want[0].as_slice::<f32>().unwrap()
    );
}

#[test]
fn wrong_shapes_are_refused_in_tensorflows_words() {
    let attrs = [
        ("T", DType::Float.into()),
        ("strides", vec![1i64; 4].into()),
        ("padding", "VALID".into()),
    ];
    let fail = |op: &str, inputs: Vec<Tensor>| run_op(op, inputs, &attrs).unwrap_err().message;
    let x = numbers([1, 3, 3, 3], 0);
    let e = fail("Conv2D", vec![x.clone(), numbers([2, 2, 2, 3], 0)]);
    assert!(
        e.starts_with("input depth must be evenly divisible by filter depth: 3 vs 2"),
        "{e}"
    );
    let e = fail(
        "Conv2D",
        vec![numbers([1, 2, 2, 1], 0), numbers([5, 5, 1, 1], 0)],
    );
    assert!(
        e.starts_with("Computed output size would be negative: -2"),
        "{e}"
    );
    let size = Tensor::vector(vec![1i32, 3, 3]);
    let e = fail(
        "Conv2DBackpropInput",
        vec![size, numbers([2, 2, 2, 3], 0), numbers([1, 2, 2, 3], 0)],
    );
    assert!(
        e.starts_with("Conv2DBackpropInput requires input_sizes to contain 4 values"),
        "{e}"
    );
    let strides = [
        ("T", DType::Float.into()),
        ("strides", vec![2i64, 1, 1, 1].into()),
        ("padding", "VALID".into()),
    ];
    let e = run_op("Conv2D", vec![x, numbers([2, 2, 3, 3], 0)], &strides).unwrap_err();
    assert_eq!(e.code, Code::Unimplemented);
}

#[test]
fn padding_without_measure_is_refused_not_allocated() {
    let attrs = [
        ("T", DType::Float.into()),
        ("strides", vec![1i64; 4].into()),
        ("dilations", vec![1i64, 1 << 40, 1 << 40, 1].into()),
        ("padding", "SAME".into()),
    ];
    let e = run_op(
        "Conv2D",
        vec![numbers([1, 3, 3, 1], 0), numbers([2, 2, 1, 1], 0)],
        &attrs,
    );
    assert_eq!(e.unwrap_err().code, Code::ResourceExhausted);
}
