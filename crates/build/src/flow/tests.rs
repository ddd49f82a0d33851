//! What branches, loops and calls look like in a graph, and what is refused.

use super::*;
use crate::{Init, TensorList, gradients};
use downpour_graph::GraphDef;

/// A graph's functions and calls, one line each node.
fn text(def: &GraphDef) -> String {
    let mut out = String::new();
    for function in &def.functions {
        let inputs: Vec<&str> = (function.signature.inputs.iter())
            .map(|a| a.name.as_str())
            .collect();
        out += &format!("{}({})\n", function.signature.name, inputs.join(" "));
        for node in &function.nodes {
            out += &format!("  {} = {}({})\n", node.name, node.op, node.inputs.join(" "));
        }
        let results: Vec<&str> = function.ret.values().map(String::as_str).collect();
        let effects: Vec<String> = (function.control_ret.values())
            .map(|n| format!(" ^{n}"))
            .collect();
        out += format!("  -> {}{}", results.join(" "), effects.concat())
            .replace("  ^", " ^")
            .trim_end();
        out.push('\n');
    }
    for node in def.nodes.iter().filter(|n| n.attrs.find(LOWER).is_some()) {
        out += &format!("{} = {}({})\n", node.name, node.op, node.inputs.join(" "));
    }
    out
}

fn check(g: &Graph, expected: &str) {
    let got = text(&g.to_graph_def().unwrap());
    let lines = |s: &str| -> Vec<String> {
        let lines = s.lines().map(str::trim).filter(|l| !l.is_empty());
        lines.map(str::to_owned).collect()
    };
    assert_eq!(lines(&got), lines(expected), "\n{got}");
}

fn placeholders(g: &Graph) -> (Output, Output) {
    let p = g.placeholder("p", DType::Bool, ());
    (p, g.placeholder("x", DType::Float, [2usize]))
}

#[test]
fn branches_take_what_either_uses() {
    let g = Graph::new();
    let (p, x) = placeholders(&g);
    let w = g.placeholder("w", DType::Float, ());
    let y = cond(&p, |_| vec![&x * &w], |_| vec![&x + 1.0]);
    assert_eq!(y[0].shape().to_string(), "[2]");
    check(
        &g,
        "cond_false(arg_0 arg_1)
           Const = Const()
           AddV2 = AddV2(arg_0 Const:output:0)
           -> AddV2:z:0
         cond_true(arg_0 arg_1)
           Mul = Mul(arg_0 arg_1)
           -> Mul:z:0
         cond = StatelessIf(p x w)",
    );
}

#[test]
fn loops_count_and_pass_what_they_capture() {
    let g = Graph::new();
    let (_, x) = placeholders(&g);
    let n = g.placeholder("n", DType::Int32, ());
    While::new().maximum_iterations(5).run(
        &[g.constant(0i32), x.square()],
        |_, v| v[0].less(&n),
        |_, v| vec![&v[0] + 1, &v[1] * &x],
    );
    check(
        &g,
        "while_body(arg_0 arg_1 arg_2 arg_3 arg_4 arg_5)
           Const = Const()
           AddV2 = AddV2(arg_0 Const:output:0)
           Const_1 = Const()
           AddV2_1 = AddV2(arg_2 Const_1:output:0)
           Mul = Mul(arg_3 arg_4)
           -> AddV2:z:0 arg_1 AddV2_1:z:0 Mul:z:0 arg_4 arg_5
         while_cond(arg_0 arg_1 arg_2 arg_3 arg_4 arg_5)
           Less = Less(arg_2 arg_5)
           Less_1 = Less(arg_0 arg_1)
           LogicalAnd = LogicalAnd(Less_1:z:0 Less:z:0)
           -> LogicalAnd:z:0
         while = StatelessWhile(Const_1 Const_2 Const Square x n)",
    );
    let op = g.operation("while").unwrap();
    let shapes = op.attrs().shapes("output_shapes").unwrap().to_vec();
    assert_eq!(shapes[3].to_string(), "[2]");
    assert_eq!(op.attrs().int("parallel_iterations").unwrap(), 10);
}

#[test]
fn effects_are_ordered_and_waited_for() {
    let g = Graph::new();
    let (p, x) = placeholders(&g);
    let v = g.variable("v").init(Init::value([1.0f32, 2.0])).build();
    cond_op(
        &p,
        |_| {
            v.assign(&(v.read() * 2.0));
            v.assign_add(&x);
        },
        |_| (),
    );
    check(
        &g,
        "cond_false(arg_0 arg_1)
           ->
         cond_true(arg_0 arg_1)
           ReadVariableOp = ReadVariableOp(arg_0)
           Const = Const()
           Mul = Mul(ReadVariableOp:value:0 Const:output:0)
           AssignVariableOp = AssignVariableOp(arg_0 Mul:z:0 ^ReadVariableOp)
           AssignAddVariableOp = AssignAddVariableOp(arg_0 arg_1 ^AssignVariableOp)
           -> ^AssignAddVariableOp ^AssignVariableOp ^ReadVariableOp
         cond = If(p v x)",
    );
}

#[test]
fn operations_outside_are_waited_for_by_the_caller() {
    let g = Graph::new();
    let (p, x) = placeholders(&g);
    let v = g.variable("v").init(Init::value([1.0f32, 2.0])).build();
    let set = v.assign(&x);
    cond(
        &p,
        |g| g.with_control(std::slice::from_ref(&set), || vec![v.read()]),
        |_| vec![x.clone()],
    );
    let def = g.to_graph_def().unwrap();
    let node = def.nodes.iter().find(|n| n.name == "cond").unwrap();
    assert_eq!(node.inputs, ["p", "v", "x", "^AssignVariableOp"]);
}

#[test]
fn nested_bodies_have_names_of_their_own_and_capture_through() {
    let g = Graph::new();
    let (p, x) = placeholders(&g);
    let inner = |x: &Output| cond(&p, |_| vec![x.exp()], |_| vec![x.clone()]);
    cond(&p, |_| inner(&x), |_| inner(&-&x));
    let def = g.to_graph_def().unwrap();
    let names: Vec<&str> = (def.functions.iter())
        .map(|f| f.signature.name.as_str())
        .collect();
    let expected = [
        "cond_false",
        "cond_false_1",
        "cond_false_2",
        "cond_true",
        "cond_true_1",
        "cond_true_2",
    ];
    assert_eq!(names, expected);
    // What was written can be read again, also by the builder.
    let other = Graph::new();
    other.import(&def).unwrap();
    let y = other.output("cond/Identity:0").unwrap();
    let x = other.output("x:0").unwrap();
    assert!(gradients(&[y], &[x]).unwrap()[0].is_some());
}

#[test]
fn variables_made_inside_belong_to_the_graph() {
    let g = Graph::new();
    let (p, x) = placeholders(&g);
    cond(
        &p,
        |g| {
            let w = g.variable("w").init(Init::value(2.0f32)).build();
            vec![&x * w.read()]
        },
        |_| vec![x.clone()],
    );
    g.check().unwrap();
    assert_eq!(g.variables().len(), 1);
    assert_eq!(g.operation("w").unwrap().op(), "VarHandleOp");
}

#[test]
fn devices_reach_into_bodies() {
    let g = Graph::new();
    let (p, x) = placeholders(&g);
    let w = g.with_device("/job:ps/task:1", || {
        g.variable("w").init(Init::value(2.0f32)).build()
    });
    g.with_device("/job:worker", || {
        cond(&p, |_| vec![&x * w.read()], |_| vec![x.clone()])
    });
    let def = g.to_graph_def().unwrap();
    let function = |name: &str| {
        let found = def.functions.iter().find(|f| f.signature.name == name);
        found.unwrap().clone()
    };
    let nodes = function("cond_true").nodes;
    assert_eq!(nodes[0].device, "/job:ps/task:1");
    assert_eq!(nodes[1].device, "/job:worker");
}

#[test]
fn mistakes_are_found_at_the_users_line() {
    let one = |g: &Graph| g.constant(1.0f32);
    type Mistake = fn(&Graph, &Output, &Output);
    let cases: &[(Mistake, &str)] = &[
        (
            |_, p, x| drop(cond(p, |_| vec![x.clone()], |_| vec![])),
            "branch 0 returns 1 tensors, but branch 1 returns 0",
        ),
        (
            |g, p, x| drop(cond(p, |_| vec![x.clone()], |_| vec![g.constant(1i32)])),
            "result 0 is float in branch 0, but int32 in branch 1",
        ),
        (
            |_, _, x| drop(cond(x, |_| vec![], |_| vec![])),
            "the predicate 'x:0' must be bool, but is float",
        ),
        (
            |_, p, x| {
                drop(while_loop(
                    std::slice::from_ref(x),
                    |_, _| p.clone(),
                    |_, v| vec![v[0].cast(DType::Double)],
                ))
            },
            "Loop var x:0 enters the loop with type float but has type double after 1 iteration",
        ),
        (
            |_, p, x| {
                drop(while_loop(
                    std::slice::from_ref(x),
                    |_, _| p.clone(),
                    |_, v| vec![v[0].reshape(&[1, 2])],
                ))
            },
            "enters the loop with shape [2], but has shape [1,2] after one iteration",
        ),
        (
            |_, p, x| {
                drop(while_loop(
                    std::slice::from_ref(x),
                    |_, _| p.clone(),
                    |_, v| vec![v[0].clone(), v[0].clone()],
                ))
            },
            "the loop has 1 variables, but its body returns 2 values",
        ),
        (
            |_, _, x| {
                drop(while_loop(
                    std::slice::from_ref(x),
                    |_, v| v[0].clone(),
                    |_, v| v.to_vec(),
                ))
            },
            "the condition of a loop must be a bool scalar, but is float of shape [2]",
        ),
        (
            |_, p, x| {
                let mut kept = None;
                cond(
                    p,
                    |_| {
                        kept = Some(x.exp());
                        vec![]
                    },
                    |_| vec![],
                );
                let _ = kept.unwrap() * 2.0;
            },
            "a tensor of a function's body is used outside of it",
        ),
        (
            |_, p, x| {
                drop(cond(
                    p,
                    |g| vec![x + g.constant([1.0f32; 3])],
                    |_| vec![x.clone()],
                ))
            },
            "[2] and [3]",
        ),
        (
            |g, _, x| {
                let f = g.function("f", &[(DType::Float, x.shape())], |_, a| a.to_vec());
                call(&f, &[]);
            },
            "Function f takes 1 arguments, but 0 were given",
        ),
        (
            |g, p, _| {
                let hidden = |g: &Graph| vec![g.placeholder("q", DType::Float, ())];
                cond(p, hidden, |_| vec![g.constant(1.0f32)]);
            },
            "'q' is a placeholder inside a function's body",
        ),
    ];
    for (make, expected) in cases {
        let g = Graph::new();
        let (p, x) = placeholders(&g);
        one(&g);
        make(&g, &p, &x);
        let error = g.check().expect_err(expected);
        assert!(error.message.contains(expected), "{error}");
        assert!(error.message.contains("flow/tests.rs:"), "{error}");
    }
}

#[test]
fn a_session_that_knows_a_loop_is_told_that_it_grew() {
    let g = Graph::new();
    let (_, x) = placeholders(&g);
    let y = while_loop(
        &[g.constant(0i32), x.clone()],
        |g, v| v[0].less(&g.constant(3i32)),
        |_, v| vec![&v[0] + 1, v[1].tanh()],
    );
    let known = g.len();
    assert_eq!(g.operation("while").unwrap().num_outputs(), 4);
    gradients(&y[1..], &[x]).unwrap();
    let grown = g.operation("while").unwrap();
    assert_eq!((grown.num_inputs(), grown.num_outputs()), (5, 5));
    let error = g.graph_def_since(known).unwrap_err();
    assert!(error.message.contains("'while' was changed"), "{error}");
    g.graph_def_since(g.len()).unwrap();
}

#[test]
fn the_way_back_takes_only_what_it_needs() {
    let g = Graph::new();
    let (p, x) = placeholders(&g);
    let y = cond(&p, |_| vec![x.exp() + &x], |_| vec![&x * 3.0]);
    gradients(&y, &[x]).unwrap();
    let def = g.to_graph_def().unwrap();
    let node = |name: &str| def.nodes.iter().find(|n| n.name == name).unwrap();
    // The exponential itself; nothing of the other branch, which is linear.
    assert_eq!(node("cond").attrs.dtypes("Tout").unwrap().len(), 2);
    let back = def.nodes.iter().filter(|n| n.op == "StatelessIf").nth(1);
    let inputs = &back.unwrap().inputs;
    assert_eq!(inputs.len(), 3, "{inputs:?}");
    assert_eq!(inputs[2], "cond:1");
}

#[test]
fn v1_branches_have_gradients_and_v1_loops_an_error() {
    let g = Graph::new();
    let (p, x) = placeholders(&g);
    let sides = g.op("Switch").input(&x).input(&p).outputs();
    let both = [-&sides[0], sides[1].exp()];
    let y = g.op("Merge").inputs(&both).build().output(0);
    let dx = gradients(&[y], std::slice::from_ref(&x)).unwrap();
    assert_eq!(dx[0].as_ref().unwrap().to_dense().operation().op(), "Merge");
    let enter = g.op("Enter").input(&x).attr("frame_name", "f").output();
    let exit = g.op("Exit").input(&enter).output();
    let error = gradients(&[exit], &[x]).unwrap_err();
    assert!(error.message.contains("(op type: Exit)"), "{error}");
}

#[test]
fn lists_carry_types_and_shapes_through_loops() {
    let g = Graph::new();
    let x = g.placeholder("x", DType::Float, [None, Some(3)]);
    let y = map_fn(std::slice::from_ref(&x), |_, row| vec![row[0].exp()]);
    assert_eq!(y[0].shape().to_string(), "[?,3]");
    let list = TensorList::from_tensor(&x);
    assert!(TensorList::from_handle(list.handle()).is_ok());
    assert!(TensorList::from_handle(&x).is_err());
    g.check().unwrap();
}

#[test]
fn gradients_of_the_users_own_work_inside_bodies() {
    let g = Graph::new();
    let (p, x) = placeholders(&g);
    let own = |x: &Output| {
        crate::custom_gradient(std::slice::from_ref(x), |x| {
            let (x, e) = (x[0].clone(), x[0].exp());
            let y = (1.0 + &e).log();
            // Holds on to tensors of the body.
            let back = move |dy: &[Output]| Ok(vec![Some((&dy[0] * &e * &x).into())]);
            (vec![y], back)
        })
    };
    let y = cond(&p, |_| own(&x), |_| vec![x.clone()]);
    let twice = gradients(&y, std::slice::from_ref(&x)).unwrap();
    assert!(twice[0].is_some());
    let z = while_loop(
        std::slice::from_ref(&x),
        |_, _| p.clone(),
        |g, v| cond(&p, |_| own(&v[0]), |_| vec![&v[0] * &g.constant(2.0f32)]),
    );
    assert!(gradients(&z, &[x]).unwrap()[0].is_some());
    g.check().unwrap();
}

#[test]
fn a_function_that_calls_itself_has_no_gradient() {
    let g = Graph::new();
    let (_, x) = placeholders(&g);
    let f = g.function("f", &[(DType::Float, x.shape())], |_, a| vec![a[0].exp()]);
    call(&f, std::slice::from_ref(&x));
    let mut def = g.to_graph_def().unwrap();
    let node = def
        .nodes
        .iter()
        .find(|n| n.op == "PartitionedCall")
        .unwrap();
    let mut inside = node.clone();
    inside.inputs = vec!["arg_0".to_owned()];
    let function = &mut def.functions[0];
    function
        .ret
        .insert("result_0".to_owned(), format!("{}:output:0", inside.name));
    function.nodes = vec![inside];
    let other = Graph::new();
    other.import(&def).unwrap();
    let y = other.output("PartitionedCall:0").unwrap();
    let x = other.output("x:0").unwrap();
    let error = gradients(&[y], &[x]).unwrap_err();
    assert!(error.message.contains("calls itself"), "{error}");
}

#[test]
fn what_only_needs_a_shape_is_passed_only_the_shape() {
    let g = Graph::new();
    let x = g.placeholder("x", DType::Float, [None, Some(3)]);
    let n = g.placeholder("n", DType::Int32, ());
    let y = while_loop(
        &[g.constant(0i32), x.clone()],
        |_, v| v[0].less(&n),
        // The gradient of a sum needs the shape of what was summed.
        |_, v| vec![&v[0] + 1, &v[1] * 0.5 + (&v[1] * 3.0).sum_keep(1)],
    );
    let dx = gradients(&y[1..], &[x]).unwrap();
    assert_eq!(
        dx[0].as_ref().unwrap().to_dense().shape().to_string(),
        "[?,3]"
    );
    let types = g.operation("while").unwrap();
    for list in types
        .inputs()
        .iter()
        .filter(|i| i.dtype() == DType::Variant)
    {
        assert_eq!(list.behind().unwrap().0, DType::Int32);
    }
}
