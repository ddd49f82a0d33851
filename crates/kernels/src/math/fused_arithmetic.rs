//! What arithmetic ops do to numbers, one by one and in rows, for runs of them that the runtime
//! computes at once. Each must agree with its kernel to the bit; a test compares them.

use super::isa::{Isa, Loop, dispatch};
use downpour_runtime::Arithmetic::{self, Binary, Spread, Unary};
use downpour_runtime::Registry;

struct Each<'a, F> {
    x: &'a [f32],
    out: &'a mut [f32],
    f: F,
}

impl<F: Fn(f32) -> f32> Loop for Each<'_, F> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for (out, x) in self.out.iter_mut().zip(self.x) {
            *out = (self.f)(*x);
        }
    }
}

struct Pairs<'a, F> {
    a: &'a [f32],
    b: &'a [f32],
    out: &'a mut [f32],
    f: F,
}

impl<F: Fn(f32, f32) -> f32> Loop for Pairs<'_, F> {
    type Out = ();

    #[inline(always)]
    fn run<I: Isa>(self) {
        for ((out, a), b) in self.out.iter_mut().zip(self.a).zip(self.b) {
            *out = (self.f)(*a, *b);
        }
    }
}

/// A function of one number, and over rows.
macro_rules! unary {
    ($f:expr) => {
        Unary($f, |x, out| dispatch(Each { x, out, f: $f }))
    };
}

/// A function of two numbers, and over rows.
macro_rules! binary {
    ($f:expr) => {
        Binary($f, |a, b, out| dispatch(Pairs { a, b, out, f: $f }))
    };
}

pub(super) fn register(r: &mut Registry) {
    let ops: [(&'static str, Arithmetic); 15] = [
        ("Add", binary!(|a, b| a + b)),
        ("AddV2", binary!(|a, b| a + b)),
        ("Sub", binary!(|a, b| a - b)),
        ("Mul", binary!(|a, b| a * b)),
        ("Div", binary!(|a, b| a / b)),
        ("RealDiv", binary!(|a, b| a / b)),
        (
            "DivNoNan",
            binary!(|a, b| if b == 0.0 { 0.0 } else { a / b }),
        ),
        (
            "Maximum",
            binary!(|a: f32, b: f32| if a < b || b.is_nan() { b } else { a }),
        ),
        (
            "Minimum",
            binary!(|a: f32, b: f32| if b < a || b.is_nan() { b } else { a }),
        ),
        ("SquaredDifference", binary!(|a, b| (a - b) * (a - b))),
        ("Neg", unary!(|a: f32| -a)),
        ("Square", unary!(|a| a * a)),
        ("Sqrt", unary!(|a: f32| a.sqrt())),
        ("BroadcastTo", Spread { same_rank: false }),
        ("Tile", Spread { same_rank: true }),
    ];
    for (op, arithmetic) in ops {
        r.add_arithmetic(op, arithmetic);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{floats, node, run_graph, run_op};
    use downpour_graph::{NodeDef, Status};
    use downpour_tensor::{DType, Tensor};

    const NUMBERS: [f32; 12] = [
        0.0,
        -0.0,
        1.0,
        -1.5,
        3.25,
        1e-40,
        -1e-38,
        f32::MAX,
        f32::MIN_POSITIVE,
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::NAN,
    ];

    fn same(a: f32, b: f32) -> bool {
        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
    }

    #[test]
    fn every_op_does_to_a_number_what_its_kernel_does() {
        let mut r = Registry::new();
        register(&mut r);
        let t = [("T", DType::Float.into())];
        for (op, arithmetic) in r.arithmetics() {
            for a in NUMBERS {
                match arithmetic {
                    Unary(f, rows) => {
                        let kernel = run_op(op, vec![Tensor::scalar(a)], &t).unwrap();
                        let kernel = kernel[0].scalar_value::<f32>().unwrap();
                        assert!(same(f(a), kernel), "{op} of {a}: {} {kernel}", f(a));
                        let mut row = [0.0; 20];
                        rows(&[a; 20], &mut row);
                        assert!(row.iter().all(|r| same(*r, kernel)), "{op} of {a} in a row");
                    }
                    Binary(f, rows) => {
                        // All second operands at once.
                        let right = floats(&NUMBERS);
                        let kernel = run_op(op, vec![Tensor::scalar(a), right], &t).unwrap();
                        for (b, kernel) in NUMBERS.iter().zip(kernel[0].as_slice::<f32>().unwrap())
                        {
                            assert!(same(f(a, *b), *kernel), "{op} of {a} and {b}");
                            let mut row = [0.0; 20];
                            rows(&[a; 20], &[*b; 20], &mut row);
                            let same = row.iter().all(|r| same(*r, *kernel));
                            assert!(same, "{op} of {a} and {b} in a row");
                        }
                    }
                    Spread { .. } => {}
                }
            }
        }
    }

    /// `(x * y - x) ^ 2 / y`, `x - y` fetched too: three of the five nodes are only seen inside.
    fn expression() -> Vec<NodeDef> {
        let t = || ("T", DType::Float.into());
        let index = |i: i64| ("index", i.into());
        vec![
            node("x", "_Arg", &[], &[t(), index(0)]),
            node("y", "_Arg", &[], &[t(), index(1)]),
            node("product", "Mul", &["x", "y"], &[t()]),
            node("difference", "Sub", &["product", "x"], &[t()]),
            node("square", "Square", &["difference"], &[t()]),
            node("quotient", "RealDiv", &["square", "y"], &[t()]),
            node("seen", "Sub", &["x", "y"], &[t()]),
            node("r0", "_Retval", &["quotient"], &[t(), index(0)]),
            node("r1", "_Retval", &["seen"], &[t(), index(1)]),
        ]
    }

    #[test]
    fn a_run_of_numbers_gives_what_its_ops_give() {
        let args = vec![Tensor::scalar(3.0f32), Tensor::scalar(2.0f32)];
        let out = run_graph(expression(), args).unwrap();
        assert_eq!(out[0].scalar_value::<f32>().unwrap(), 4.5);
        assert_eq!(out[1].scalar_value::<f32>().unwrap(), 1.0);
    }

    #[test]
    fn a_run_over_other_shapes_broadcasts_as_its_ops_do() {
        let args = vec![floats(&[3.0, 1.0]), Tensor::scalar(2.0f32)];
        let out = run_graph(expression(), args).unwrap();
        assert_eq!(out[0].as_slice::<f32>().unwrap(), [4.5, 0.5]);
        let args = vec![floats(&[]), Tensor::scalar(2.0f32)];
        let out = run_graph(expression(), args).unwrap();
        assert_eq!(out[0].shape().dims(), [0]);
    }

    #[test]
    fn an_error_inside_a_run_names_its_node() {
        let args = vec![floats(&[3.0, 1.0]), floats(&[1.0, 2.0, 3.0])];
        let mut nodes = expression();
        nodes.retain(|n| &*n.name != "seen" && &*n.name != "r1");
        let e = run_graph(nodes, args).unwrap_err();
        assert_eq!(
            e.message,
            "Incompatible shapes: [2] vs. [3]\n\t [[{{node product}}]]"
        );
    }

    /// `x * 2 * spread(y)`, the shape of the spread given.
    fn spread(op: &str, x: Tensor, y: Tensor, shape: Tensor) -> Result<Tensor, Status> {
        let t = || ("T", DType::Float.into());
        let index = |i: i64| ("index", i.into());
        let int = || ("T", shape.dtype().into());
        let dims = match op {
            "Tile" => ("Tmultiples", shape.dtype().into()),
            _ => ("Tidx", shape.dtype().into()),
        };
        let nodes = vec![
            node("x", "_Arg", &[], &[t(), index(0)]),
            node("y", "_Arg", &[], &[t(), index(1)]),
            node("shape", "_Arg", &[], &[int(), index(2)]),
            node("doubled", "Add", &["x", "x"], &[t()]),
            node("wide", op, &["y", "shape"], &[t(), dims]),
            node("product", "Mul", &["doubled", "wide"], &[t()]),
            node("r0", "_Retval", &["product"], &[t(), index(0)]),
        ];
        Ok(run_graph(nodes, vec![x, y, shape])?.remove(0))
    }

    #[test]
    fn a_run_over_large_arrays_gives_what_its_ops_give() {
        let n = 200_001;
        let x = Tensor::from_vec((0..3 * n).map(|i| i as f32).collect(), [3, n]).unwrap();
        let one = Tensor::from_vec(vec![3.0f32], [1, 1]).unwrap();
        for (op, y) in [
            ("Tile", one.clone()),
            ("BroadcastTo", one),
            ("BroadcastTo", Tensor::scalar(3.0f32)),
        ] {
            let shape = Tensor::vector(vec![3i32, n as i32]);
            let out = spread(op, x.clone(), y, shape).unwrap();
            assert_eq!(out.dims(), [3, n]);
            let out = out.as_slice::<f32>().unwrap();
            assert!(
                out.iter()
                    .enumerate()
                    .all(|(i, v)| *v == i as f32 * 2.0 * 3.0)
            );
        }
        // The array that was given is the caller's: it is as it was.
        assert_eq!(x.as_slice::<f32>().unwrap()[7], 7.0);
    }

    #[test]
    fn a_spread_to_another_shape_stretches_the_rest() {
        let x = floats(&[1.0, 2.0]);
        let out = spread(
            "BroadcastTo",
            x.clone(),
            Tensor::scalar(2.0f32),
            Tensor::vector(vec![3i64, 2]),
        );
        let out = out.unwrap();
        assert_eq!(out.dims(), [3, 2]);
        assert_eq!(
            out.as_slice::<f32>().unwrap(),
            [4.0, 8.0, 4.0, 8.0, 4.0, 8.0]
        );
        // A row of the table's width, not of one number.
        let y = floats(&[1.0, 10.0]);
        let out = spread("BroadcastTo", x.clone(), y, Tensor::vector(vec![2i32])).unwrap();
        assert_eq!(out.as_slice::<f32>().unwrap(), [2.0, 40.0]);
        let wrong = spread(
            "BroadcastTo",
            x,
            Tensor::scalar(2.0f32),
            Tensor::vector(vec![3i32]),
        );
        let e = wrong.unwrap_err();
        assert!(e.message.ends_with("[[{{node product}}]]"), "{}", e.message);
    }
}
