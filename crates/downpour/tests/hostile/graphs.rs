//! Graphs no honest client sends (rows G1–G20 of the reliability plan that one task can meet):
//! each gets a typed error, quickly, and the server goes on serving.

use crate::common::*;
use downpour_wire::proto::{
    self, AttrValue, FunctionDef, FunctionDefLibrary, GraphDef, NameAttrList, NodeDef, OpDef,
    TensorProto, VersionDef, attr_value,
};
use tonic::Code;

type Feeds<'a> = Vec<(&'a str, TensorProto)>;

async fn refused(client: &mut Client, what: &str, graph: GraphDef, codes: &[Code]) -> String {
    let e = create(client, graph).await.expect_err(what);
    assert!(codes.contains(&e.code()), "{what}: {e:?}");
    assert_serving(client).await;
    e.message().to_owned()
}

const INVALID: &[Code] = &[Code::InvalidArgument];

#[tokio::test(flavor = "multi_thread")]
async fn names_edges_and_cycles_are_checked() {
    let mut c = connect(start().await).await;
    let long = "x".repeat(1 << 20);
    for name in ["", "a\0b", "a\nb", "^x", "x:0", "é"] {
        refused(&mut c, name, graph(vec![placeholder(name)]), INVALID).await;
    }
    // A long name is legal; an error that quotes one must not echo a megabyte.
    let missing = node("a", "NoOp", &[&format!("^{long}")], &[]);
    let text = refused(&mut c, "long input", graph(vec![missing]), INVALID).await;
    assert!(text.len() < 4096, "{} bytes", text.len());
    let float = [("T", dtype(1))];
    for (what, nodes) in [
        (
            "twice the same name",
            vec![placeholder("a"), placeholder("a")],
        ),
        ("missing input", vec![node("a", "Neg", &["gone"], &float)]),
        (
            "huge output index",
            vec![
                placeholder("a"),
                node("b", "Neg", &["a:2147483648"], &float),
            ],
        ),
        ("itself", vec![node("a", "Neg", &["a"], &float)]),
        (
            "control cycle",
            vec![
                node("a", "NoOp", &["^b"], &[]),
                node("b", "NoOp", &["^a"], &[]),
            ],
        ),
        (
            "wrong arity",
            vec![placeholder("a"), node("b", "AddV2", &["a"], &float)],
        ),
        (
            "missing attr",
            vec![placeholder("a"), node("b", "Neg", &["a"], &[])],
        ),
        (
            "extra attr",
            vec![node("a", "NoOp", &[], &[("zzz", dtype(1))])],
        ),
        (
            "wrong kind",
            vec![
                placeholder("a"),
                node("b", "Neg", &["a"], &[("T", attr(attr_value::Value::I(1)))]),
            ],
        ),
        (
            "type 0",
            vec![node("a", "Placeholder", &[], &[("dtype", dtype(0))])],
        ),
        (
            "type 99",
            vec![node("a", "Placeholder", &[], &[("dtype", dtype(99))])],
        ),
        (
            "reference type",
            vec![node("a", "Placeholder", &[], &[("dtype", dtype(101))])],
        ),
    ] {
        refused(&mut c, what, graph(nodes), INVALID).await;
    }
    let unknown = graph(vec![node("a", "PyFuncOfMine", &[], &[])]);
    let text = refused(&mut c, "unknown op", unknown, &[Code::NotFound]).await;
    assert!(
        text.starts_with("Op type not registered 'PyFuncOfMine'"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn devices_versions_and_shapes_are_checked() {
    let mut c = connect(start().await).await;
    let long = format!("/job:{}", "x".repeat(1 << 20));
    for device in [
        "/job:ps/task:999999999",
        "/job:../",
        "/device:GPU:-1",
        "/device:GPU:0",
        &long,
    ] {
        let placed = NodeDef {
            device: device.into(),
            ..node("a", "NoOp", &[], &[])
        };
        let text = refused(&mut c, device, graph(vec![placed]), INVALID).await;
        assert!(text.len() < 1 << 21);
    }
    for versions in [
        VersionDef {
            min_consumer: 1 << 30,
            ..Default::default()
        },
        VersionDef {
            producer: -1,
            ..Default::default()
        },
    ] {
        let def = GraphDef {
            versions: Some(versions),
            ..graph(vec![placeholder("a")])
        };
        refused(&mut c, "versions", def, INVALID).await;
    }
    for dims in [
        vec![-2],
        vec![1 << 62, 4],
        vec![1 << 62, 4, 0],
        vec![1; 255],
    ] {
        let value = attr(attr_value::Value::Shape(shape(&dims)));
        let def = graph(vec![node(
            "a",
            "Placeholder",
            &[],
            &[("dtype", dtype(1)), ("shape", value)],
        )]);
        refused(&mut c, "shape", def, INVALID).await;
    }
    let unknown_group = attr(attr_value::Value::List(Box::new(attr_value::ListValue {
        s: vec![bytes::Bytes::from_static(b"loc:@nowhere")],
        ..Default::default()
    })));
    let def = graph(vec![node("a", "NoOp", &[], &[("_class", unknown_group)])]);
    refused(&mut c, "colocation", def, INVALID).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn bombs_are_refused_before_they_are_built() {
    let mut c = connect(start().await).await;
    let bomb = |dims: &[i64], t: TensorProto| {
        let value = TensorProto {
            tensor_shape: Some(shape(dims)),
            ..t
        };
        let number = value.dtype;
        let value = attr(attr_value::Value::Tensor(Box::new(value)));
        graph(vec![node(
            "a",
            "Const",
            &[],
            &[("dtype", dtype(number)), ("value", value)],
        )])
    };
    let one = TensorProto {
        dtype: 1,
        float_val: vec![1.0],
        ..Default::default()
    };
    let budget = &[Code::ResourceExhausted, Code::InvalidArgument];
    refused(&mut c, "splat", bomb(&[1 << 40], one.clone()), budget).await;
    let text = TensorProto {
        dtype: 7,
        string_val: vec![bytes::Bytes::new()],
        ..Default::default()
    };
    refused(&mut c, "strings", bomb(&[1 << 32], text), budget).await;
    let short = TensorProto {
        dtype: 1,
        tensor_content: vec![0; 7].into(),
        ..Default::default()
    };
    refused(&mut c, "content", bomb(&[2], short), budget).await;
    // Many legal constants that are too much together.
    let nodes = (0..20)
        .map(|i| {
            let value = TensorProto {
                tensor_shape: Some(shape(&[1 << 28])),
                ..one.clone()
            };
            let value = attr(attr_value::Value::Tensor(Box::new(value)));
            node(
                &format!("c{i}"),
                "Const",
                &[],
                &[("dtype", dtype(1)), ("value", value)],
            )
        })
        .collect();
    refused(&mut c, "sum of constants", graph(nodes), budget).await;
    // Two million nodes.
    let nodes = vec![node("n", "NoOp", &[], &[]); 2 << 20];
    refused(&mut c, "nodes", graph(nodes), &[Code::ResourceExhausted]).await;
    // Attributes nested far beyond use.
    let mut value = dtype(1);
    for _ in 0..40 {
        let function = NameAttrList {
            name: "f".into(),
            attr: [("a".to_string(), value)].into(),
        };
        value = attr(attr_value::Value::Func(function));
    }
    let def = graph(vec![node("a", "NoOp", &[], &[("_x", value)])]);
    refused(
        &mut c,
        "nesting",
        def,
        &[
            Code::ResourceExhausted,
            Code::InvalidArgument,
            Code::Internal,
        ],
    )
    .await;
}

/// A function that calls itself, directly and by way of another, is accepted (its body may never
/// run) or refused, but never followed to the end of the stack.
#[tokio::test(flavor = "multi_thread")]
async fn recursive_functions_do_not_overflow_the_stack() {
    let mut c = connect(start().await).await;
    let function = |name: &str, calls: &str| FunctionDef {
        signature: Some(OpDef {
            name: name.into(),
            // Else the call, whose results nobody uses, need not be made.
            is_stateful: true,
            ..Default::default()
        }),
        node_def: vec![node("call", calls, &[], &[])],
        ..Default::default()
    };
    for library in [
        vec![function("f", "f")],
        vec![function("f", "g"), function("g", "f")],
    ] {
        let def = GraphDef {
            library: Some(FunctionDefLibrary {
                function: library,
                ..Default::default()
            }),
            ..graph(vec![node("a", "f", &[], &[])])
        };
        if let Ok(session) = create(&mut c, def).await {
            let mut request = run_request(&session, &[], &[]);
            request.target = vec!["a".into()];
            assert!(c.run_step(request).await.is_err());
        }
        assert_serving(&mut c).await;
    }
}

/// What a kernel would have to allocate comes from a feed, so only the step can refuse it.
#[tokio::test(flavor = "multi_thread")]
async fn outputs_over_the_memory_budget_fail_the_step() {
    let mut c = connect(start().await).await;
    let ph = |name: &str, number| node(name, "Placeholder", &[], &[("dtype", dtype(number))]);
    let cases: Vec<(&str, Vec<NodeDef>, Feeds<'_>)> = vec![
        (
            "Fill",
            vec![
                ph("d", 3),
                ph("v", 1),
                node(
                    "y",
                    "Fill",
                    &["d", "v"],
                    &[("T", dtype(1)), ("index_type", dtype(3))],
                ),
            ],
            vec![("d:0", ints(&[i32::MAX, i32::MAX])), ("v:0", scalar(1.0))],
        ),
        (
            "Tile",
            vec![
                ph("x", 1),
                ph("m", 3),
                node(
                    "y",
                    "Tile",
                    &["x", "m"],
                    &[("T", dtype(1)), ("Tmultiples", dtype(3))],
                ),
            ],
            vec![("x:0", floats(&[1.0; 1024])), ("m:0", ints(&[i32::MAX]))],
        ),
        (
            "Reshape twice -1",
            vec![
                ph("x", 1),
                ph("s", 3),
                node(
                    "y",
                    "Reshape",
                    &["x", "s"],
                    &[("T", dtype(1)), ("Tshape", dtype(3))],
                ),
            ],
            vec![("x:0", floats(&[1.0])), ("s:0", ints(&[-1, -1]))],
        ),
        (
            "GatherV2",
            vec![
                ph("x", 1),
                ph("i", 3),
                ph("a", 3),
                node(
                    "y",
                    "GatherV2",
                    &["x", "i", "a"],
                    &[
                        ("Tparams", dtype(1)),
                        ("Tindices", dtype(3)),
                        ("Taxis", dtype(3)),
                    ],
                ),
            ],
            vec![
                ("x:0", floats(&[1.0])),
                ("i:0", ints(&[-1])),
                ("a:0", int_scalar(0)),
            ],
        ),
    ];
    for (what, nodes, feeds) in cases {
        let session = create(&mut c, graph(nodes)).await.unwrap();
        let e = run(&mut c, &session, &feeds, &["y:0"])
            .await
            .expect_err(what);
        let typed = [Code::InvalidArgument, Code::ResourceExhausted];
        assert!(typed.contains(&e.code()), "{what}: {e:?}");
        assert_serving(&mut c).await;
    }
}

fn scalar(value: f32) -> TensorProto {
    TensorProto {
        dtype: 1,
        float_val: vec![value],
        tensor_shape: Some(shape(&[])),
        ..Default::default()
    }
}

fn int_scalar(value: i32) -> TensorProto {
    TensorProto {
        dtype: 3,
        int_val: vec![value],
        tensor_shape: Some(shape(&[])),
        ..Default::default()
    }
}

/// A loop that never ends stops when its client goes away.
#[tokio::test(flavor = "multi_thread")]
async fn an_endless_loop_ends_with_its_client() {
    let mut c = connect(start().await).await;
    let t = |n| [("T", dtype(n))];
    let name = |s: &str| AttrValue {
        value: Some(attr_value::Value::S(bytes::Bytes::copy_from_slice(
            s.as_bytes(),
        ))),
    };
    let truth = TensorProto {
        dtype: 10,
        bool_val: vec![true],
        tensor_shape: Some(shape(&[])),
        ..Default::default()
    };
    let truth = attr(attr_value::Value::Tensor(Box::new(truth)));
    let nodes = vec![
        node("c", "Const", &[], &[("dtype", dtype(10)), ("value", truth)]),
        node(
            "enter",
            "Enter",
            &["c"],
            &[("T", dtype(10)), ("frame_name", name("f"))],
        ),
        node(
            "merge",
            "Merge",
            &["enter", "next"],
            &[("T", dtype(10)), ("N", attr(attr_value::Value::I(2)))],
        ),
        node("cond", "LoopCond", &["merge"], &[]),
        node("switch", "Switch", &["merge", "cond"], &t(10)),
        node("body", "Identity", &["switch:1"], &t(10)),
        node("next", "NextIteration", &["body"], &t(10)),
        node("exit", "Exit", &["switch"], &t(10)),
    ];
    let session = create(&mut c, graph(nodes)).await.unwrap();
    let mut call = tonic::Request::new(run_request(&session, &[], &["exit:0"]));
    call.set_timeout(std::time::Duration::from_millis(200));
    let e = c.run_step(call).await.unwrap_err();
    assert!(
        [Code::DeadlineExceeded, Code::Cancelled].contains(&e.code()),
        "{e:?}"
    );
    // Both executor threads must be free again: as many steps as threads, and one more.
    for _ in 0..3 {
        assert_serving(&mut c).await;
    }
    let close = proto::CloseSessionRequest {
        session_handle: session,
    };
    c.close_session(close).await.unwrap();
}
