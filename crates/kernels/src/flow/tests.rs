//! Functions, branches and loops through the executor.

use crate::testing::{device, func, function, node, run_with_functions, start};
use downpour_graph::{AttrValue, FunctionDef, NodeDef, Result};
use downpour_runtime::Cancellation;
use downpour_tensor::{DType, Tensor};
use std::sync::mpsc;
use std::time::Duration;

const F: DType = DType::Float;
const I: DType = DType::Int32;

fn t(dtype: DType) -> (&'static str, AttrValue) {
    ("T", dtype.into())
}

fn constant(name: &str, value: i32) -> NodeDef {
    let value = Tensor::scalar(value);
    let attrs = [("dtype", I.into()), ("value", value.into())];
    node(name, "Const", &[], &attrs)
}

/// `double(x) = x + x`.
fn double() -> FunctionDef {
    let body = vec![node("sum", "AddV2", &["x", "x"], &[t(F)])];
    function("double", &[("x", F)], body, &[("y", F, "sum:z:0")])
}

/// Runs `op` with int32 arguments and results.
fn run(
    op: &str,
    attrs: &[(&str, AttrValue)],
    functions: Vec<FunctionDef>,
    args: &[i32],
) -> Result<Vec<Tensor>> {
    let (nodes, args) = graph(op, attrs, args);
    run_with_functions(&device(), nodes, functions, args)
}

fn graph(op: &str, attrs: &[(&str, AttrValue)], args: &[i32]) -> (Vec<NodeDef>, Vec<Tensor>) {
    let names: Vec<String> = (0..args.len()).map(|i| format!("a{i}")).collect();
    let mut nodes: Vec<NodeDef> = names
        .iter()
        .zip(0i64..)
        .map(|(name, i)| node(name, "_Arg", &[], &[t(I), ("index", i.into())]))
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    nodes.push(node("op", op, &names, attrs));
    nodes.push(node(
        "r",
        "_Retval",
        &["op"],
        &[t(I), ("index", 0i64.into())],
    ));
    (nodes, args.iter().map(|v| Tensor::scalar(*v)).collect())
}

fn value(outcome: Result<Vec<Tensor>>) -> i32 {
    outcome.unwrap()[0].scalar_value::<i32>().unwrap()
}

fn types(count: usize) -> AttrValue {
    vec![I; count].into()
}

#[test]
fn a_function_is_called_by_attribute_and_by_name() {
    for op in ["PartitionedCall", "double"] {
        let mut call = node("c", op, &["x"], &[]);
        if op == "PartitionedCall" {
            call.attrs.set("f", func("double"));
            call.attrs.set("Tin", vec![F]);
            call.attrs.set("Tout", vec![F]);
        }
        let nodes = vec![
            node("x", "_Arg", &[], &[t(F), ("index", 0i64.into())]),
            call,
            node("r", "_Retval", &["c"], &[t(F), ("index", 0i64.into())]),
        ];
        let args = vec![Tensor::scalar(1.5f32)];
        let out = run_with_functions(&device(), nodes, vec![double()], args).unwrap();
        assert_eq!(out[0].scalar_value::<f32>().unwrap(), 3.0);
    }
}

#[test]
fn what_does_not_fit_is_refused_in_tensorflows_words() {
    let cases = [
        ("nothing", "Function nothing is not defined."),
        ("double", "Expects arg[0] to be float but int32 is provided"),
        ("two", "input_devices length = 1 number of arguments = 2"),
        ("wrong", "Return y -> sum:z:0 is not found."),
        (
            "clash",
            "input x[0] expected type float != int32, the type of x[0]",
        ),
        ("none", "Missing 0-th output from {{node op}}"),
    ];
    let functions = || {
        vec![
            double(),
            function("two", &[("x", I), ("z", I)], vec![], &[("y", I, "x")]),
            function("wrong", &[("x", I)], vec![], &[("y", I, "sum:z:0")]),
            function("none", &[("x", I)], vec![], &[]),
            function(
                "clash",
                &[("x", I)],
                vec![node("sum", "AddV2", &["x", "x"], &[t(F)])],
                &[("y", F, "sum:z:0")],
            ),
        ]
    };
    for (name, text) in cases {
        let attrs = [("f", func(name)), ("Tin", types(1)), ("Tout", types(1))];
        let e = run("PartitionedCall", &attrs, functions(), &[1]).unwrap_err();
        assert!(e.message.contains(text), "{name}: {}", e.message);
        let named = e.message.contains("{{node op}}") || e.message.ends_with("[[op]]");
        assert!(named, "{}", e.message);
    }
}

/// `f(n) = n == 0 ? 0 : n + f(n - 1)`, through `If`.
fn sum_to() -> Vec<FunctionDef> {
    let recurse = vec![
        constant("one", 1),
        node("less", "Sub", &["n", "one:output:0"], &[t(I)]),
        node("rest", "f", &["less:z:0"], &[]),
        node("sum", "AddV2", &["n", "rest:y:0"], &[t(I)]),
    ];
    let choose = vec![node(
        "if",
        "StatelessIf",
        &["n", "n"],
        &[
            ("Tcond", I.into()),
            ("Tin", types(1)),
            ("Tout", types(1)),
            ("then_branch", func("more")),
            ("else_branch", func("zero")),
        ],
    )];
    vec![
        function("f", &[("n", I)], choose, &[("y", I, "if:output:0")]),
        function("more", &[("n", I)], recurse, &[("y", I, "sum:z:0")]),
        function(
            "zero",
            &[("n", I)],
            vec![node("same", "Identity", &["n"], &[t(I)])],
            &[("y", I, "same:output:0")],
        ),
    ]
}

#[test]
fn functions_may_call_themselves_and_a_call_without_end_is_an_error() {
    assert_eq!(value(run("f", &[], sum_to(), &[3])), 6);
    assert_eq!(value(run("f", &[], sum_to(), &[200])), 20100);
    // -1 never reaches zero.
    let e = run("f", &[], sum_to(), &[-1]).unwrap_err();
    assert!(
        e.message.starts_with("functions call each other more than"),
        "{}",
        e.message
    );
}

/// `while n < limit: n += 1`.
fn counting(limit: i32) -> Vec<FunctionDef> {
    let cond = vec![
        constant("limit", limit),
        node("less", "Less", &["n", "limit:output:0"], &[t(I)]),
    ];
    let body = vec![
        constant("one", 1),
        node("more", "AddV2", &["n", "one:output:0"], &[t(I)]),
    ];
    vec![
        function("cond", &[("n", I)], cond, &[("y", DType::Bool, "less:z:0")]),
        function("body", &[("n", I)], body, &[("y", I, "more:z:0")]),
    ]
}

fn loop_attrs() -> [(&'static str, AttrValue); 3] {
    [
        ("T", types(1)),
        ("cond", func("cond")),
        ("body", func("body")),
    ]
}

#[test]
fn a_long_loop_needs_no_stack() {
    for op in ["While", "StatelessWhile"] {
        assert_eq!(
            value(run(op, &loop_attrs(), counting(20_000), &[0])),
            20_000
        );
        assert_eq!(value(run(op, &loop_attrs(), counting(0), &[7])), 7);
    }
}

#[test]
fn a_loop_without_end_ends_when_it_is_cancelled() {
    let (nodes, args) = graph("While", &loop_attrs(), &[0]);
    let mut functions = counting(1);
    // The body gives back what it got.
    functions[1] = function(
        "body",
        &[("n", I)],
        vec![node("same", "Identity", &["n"], &[t(I)])],
        &[("y", I, "same:output:0")],
    );
    let (device, cancellation) = (device(), Cancellation::new());
    let (tx, rx) = mpsc::channel();
    start(
        &device,
        nodes,
        functions,
        args,
        cancellation.clone(),
        move |r| {
            tx.send(r).unwrap();
        },
    )
    .unwrap();
    assert!(rx.recv_timeout(Duration::from_millis(20)).is_err());
    cancellation.cancel(downpour_graph::Status::cancelled("enough"));
    let e = rx
        .recv_timeout(Duration::from_secs(10))
        .unwrap()
        .unwrap_err();
    assert!(e.message.starts_with("enough"), "{}", e.message);
}

#[test]
fn a_for_loop_counts_from_start_to_limit() {
    let body = vec![node("sum", "AddV2", &["i", "n"], &[t(I)])];
    let body = || {
        function(
            "body",
            &[("i", I), ("n", I)],
            body.clone(),
            &[("y", I, "sum:z:0")],
        )
    };
    let attrs = [("T", types(1)), ("body", func("body"))];
    for (args, wanted) in [
        ([0, 5, 1, 100], 110),
        ([5, 0, -2, 0], 9),
        ([3, 3, 0, 8], 8),
        ([0, 0, 7, 1], 1),
    ] {
        assert_eq!(value(run("For", &attrs, vec![body()], &args)), wanted);
    }
    let e = run("For", &attrs, vec![body()], &[0, 5, -1, 0]).unwrap_err();
    assert!(e.message.starts_with("Invalid start/limit/delta: 0 5 -1"));
}

#[test]
fn a_case_out_of_range_is_the_last_one() {
    let branch =
        |name: &str, v: i32| function(name, &[], vec![constant("c", v)], &[("y", I, "c:output:0")]);
    let list = |names: &[&str]| {
        let list = names.iter().map(|n| downpour_graph::FunctionRef {
            name: n.to_string(),
            ..Default::default()
        });
        AttrValue::List(downpour_graph::AttrList::Func(list.collect()))
    };
    let attrs = [
        ("Tin", types(0)),
        ("Tout", types(1)),
        ("branches", list(&["a", "b"])),
    ];
    for (index, wanted) in [(0, 10), (1, 20), (2, 20), (-1, 20)] {
        let functions = vec![branch("a", 10), branch("b", 20)];
        assert_eq!(value(run("Case", &attrs, functions, &[index])), wanted);
    }
}

#[test]
fn errors_name_the_node_inside_and_the_call_outside() {
    let mut functions = counting(3);
    functions[1] = function(
        "body",
        &[("n", I)],
        vec![
            constant("zero", 0),
            node("divide", "FloorDiv", &["n", "zero:output:0"], &[t(I)]),
        ],
        &[("y", I, "divide:z:0")],
    );
    let e = run("While", &loop_attrs(), functions, &[0]).unwrap_err();
    assert!(
        e.message.ends_with("\n\t [[{{node divide}}]]\n\t [[op]]"),
        "{}",
        e.message
    );
}
