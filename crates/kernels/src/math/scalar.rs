//! What arithmetic ops do to single numbers, for runs of them that the runtime computes at once.
//! Each must agree with its kernel to the bit; a test compares them.

use downpour_runtime::Registry;
use downpour_runtime::ScalarOp::{self, Binary, Unary};

pub(super) fn register(r: &mut Registry) {
    let ops: [(&'static str, ScalarOp); 13] = [
        ("Add", Binary(|a, b| a + b)),
        ("AddV2", Binary(|a, b| a + b)),
        ("Sub", Binary(|a, b| a - b)),
        ("Mul", Binary(|a, b| a * b)),
        ("Div", Binary(|a, b| a / b)),
        ("RealDiv", Binary(|a, b| a / b)),
        (
            "DivNoNan",
            Binary(|a, b| if b == 0.0 { 0.0 } else { a / b }),
        ),
        (
            "Maximum",
            Binary(|a, b| if a < b || b.is_nan() { b } else { a }),
        ),
        (
            "Minimum",
            Binary(|a, b| if b < a || b.is_nan() { b } else { a }),
        ),
        ("SquaredDifference", Binary(|a, b| (a - b) * (a - b))),
        ("Neg", Unary(|a| -a)),
        ("Square", Unary(|a| a * a)),
        ("Sqrt", Unary(f32::sqrt)),
    ];
    for (op, scalar) in ops {
        r.add_scalar(op, scalar);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{floats, node, run_graph, run_op};
    use downpour_graph::NodeDef;
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
        for (op, scalar) in r.scalars() {
            for a in NUMBERS {
                match scalar {
                    Unary(f) => {
                        let kernel = run_op(op, vec![Tensor::scalar(a)], &t).unwrap();
                        let kernel = kernel[0].scalar_value::<f32>().unwrap();
                        assert!(same(f(a), kernel), "{op} of {a}: {} {kernel}", f(a));
                    }
                    Binary(f) => {
                        // All second operands at once.
                        let right = floats(&NUMBERS);
                        let kernel = run_op(op, vec![Tensor::scalar(a), right], &t).unwrap();
                        for (b, kernel) in NUMBERS.iter().zip(kernel[0].as_slice::<f32>().unwrap())
                        {
                            assert!(same(f(a, *b), *kernel), "{op} of {a} and {b}");
                        }
                    }
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
}
