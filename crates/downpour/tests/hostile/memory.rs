//! Graphs that want more memory than there is, or keep it, or take for ever: each is refused by name or ends with its step, what it had
//! is given back, and other sessions go on.

use crate::common::*;
use downpour::{Server, ServerConfig};
use downpour_wire::proto::{NodeDef, RunOptions, RunStepResponse, TensorProto, attr_value};
use std::time::{Duration, Instant};
use tonic::{Code, Status};

const MB: usize = 1 << 20;

/// A client of a task that may use so much memory.
async fn limited(limit: usize, step: Option<usize>) -> Client {
    let config = ServerConfig {
        threads: Some(1),
        memory_limit: Some(limit),
        step_memory_limit: step,
        transport: transport(),
        ..ServerConfig::local()
    };
    let server = Server::bind(config).await.unwrap();
    let address = server.address();
    tokio::spawn(server.serve(std::future::pending()));
    connect(address).await
}

fn longs(values: &[i64]) -> TensorProto {
    TensorProto {
        dtype: 9,
        tensor_shape: Some(shape(&[values.len() as i64])),
        int64_val: values.to_vec(),
        ..Default::default()
    }
}

fn long(value: i64) -> TensorProto {
    TensorProto {
        dtype: 9,
        tensor_shape: Some(shape(&[])),
        int64_val: vec![value],
        ..Default::default()
    }
}

fn float(value: f32) -> TensorProto {
    TensorProto {
        dtype: 1,
        tensor_shape: Some(shape(&[])),
        float_val: vec![value],
        ..Default::default()
    }
}

/// Floats of some shape, all the same.
fn splat(dims: &[i64]) -> TensorProto {
    TensorProto {
        dtype: 1,
        tensor_shape: Some(shape(dims)),
        float_val: vec![1.0],
        ..Default::default()
    }
}

fn fed(name: &str, number: i32) -> NodeDef {
    node(name, "Placeholder", &[], &[("dtype", dtype(number))])
}

fn fill(name: &str, dims: &str, value: &str) -> NodeDef {
    let attrs = [("T", dtype(1)), ("index_type", dtype(9))];
    node(name, "Fill", &[dims, value], &attrs)
}

async fn target(
    client: &mut Client,
    session: &str,
    feeds: &[(&str, TensorProto)],
    target: &str,
) -> Result<RunStepResponse, Status> {
    let mut request = run_request(session, feeds, &[]);
    request.target = vec![target.into()];
    Ok(client.run_step(request).await?.into_inner())
}

#[track_caller]
fn assert_exhausted(error: &Status, parts: &[&str]) {
    assert_eq!(error.code(), Code::ResourceExhausted, "{error:?}");
    for part in parts {
        assert!(error.message().contains(part), "{part}: {error:?}");
    }
}

/// A zlib stream of so many zeros: a literal, then matches of 258 bytes at distance 1 in the fixed code.
fn bomb(matches: usize) -> Vec<u8> {
    let (mut out, mut bits, mut count) = (vec![0x78, 0x01], 0u32, 0);
    let mut put = |code: u32, len: u32, out: &mut Vec<u8>| {
        for i in (0..len).rev() {
            bits |= (code >> i & 1) << count;
            count += 1;
            if count == 8 {
                out.push(bits as u8);
                (bits, count) = (0, 0);
            }
        }
    };
    put(0b110, 3, &mut out);
    put(0b0011_0000, 8, &mut out);
    for _ in 0..matches {
        put(0b1100_0101, 8, &mut out);
        put(0, 5, &mut out);
    }
    put(0, 7, &mut out);
    put(0, 7, &mut out);
    let b = (1 + 258 * matches as u64) % 65521;
    out.extend(((b as u32) << 16 | 1).to_be_bytes());
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_refused_before_it_is_made() {
    let mut c = limited(64 * MB, None).await;
    let nodes = vec![
        fed("dims", 9),
        fed("value", 1),
        fill("filled", "dims", "value"),
        fed("num", 9),
        node(
            "spaced",
            "LinSpace",
            &["value", "value", "num"],
            &[("T", dtype(1)), ("Tidx", dtype(9))],
        ),
        fed("packed", 7),
        node(
            "inflated",
            "DecodeCompressed",
            &["packed"],
            &[(
                "compression_type",
                attr(attr_value::Value::S(b"ZLIB".to_vec().into())),
            )],
        ),
    ];
    let session = create(&mut c, graph(nodes)).await.unwrap();
    let began = Instant::now();
    let feeds = [("dims:0", longs(&[1 << 32])), ("value:0", float(1.0))];
    let e = target(&mut c, &session, &feeds, "filled")
        .await
        .unwrap_err();
    let oom = "OOM when allocating tensor with shape[4294967296] and type float";
    assert_exhausted(&e, &[oom, "17179869184 bytes", "{{node filled}}"]);
    let feeds = [("num:0", long(1 << 31)), ("value:0", float(1.0))];
    let e = target(&mut c, &session, &feeds, "spaced")
        .await
        .unwrap_err();
    assert_exhausted(&e, &["shape[2147483648]", "{{node spaced}}"]);
    let packed = |matches| TensorProto {
        dtype: 7,
        tensor_shape: Some(shape(&[])),
        string_val: vec![bomb(matches).into()],
        ..Default::default()
    };
    let feeds = [("packed:0", packed(4 << 20))];
    let e = target(&mut c, &session, &feeds, "inflated")
        .await
        .unwrap_err();
    assert_exhausted(&e, &["OOM when allocating", "{{node inflated}}"]);
    let reply = run(
        &mut c,
        &session,
        &[("packed:0", packed(4))],
        &["inflated:0"],
    )
    .await;
    let text = reply.unwrap().tensor[0].tensor.clone().unwrap();
    let bytes = text.tensor_content.len() + text.string_val.iter().map(|s| s.len()).sum::<usize>();
    assert!(bytes > 4 * 258, "{bytes}");
    assert!(began.elapsed() < Duration::from_secs(60));
    assert_serving(&mut c).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_double_end_at_the_budget_and_are_given_back() {
    let mut c = limited(64 * MB, None).await;
    let mut nodes = vec![
        fed("c0", 1),
        node("axis", "Placeholder", &[], &[("dtype", dtype(3))]),
    ];
    for i in 0..12 {
        let before = format!("c{i}");
        let attrs = [
            ("N", attr(attr_value::Value::I(2))),
            ("T", dtype(1)),
            ("Tidx", dtype(3)),
        ];
        let inputs = [&before[..], &before, "axis"];
        nodes.push(node(&format!("c{}", i + 1), "ConcatV2", &inputs, &attrs));
    }
    let session = create(&mut c, graph(nodes)).await.unwrap();
    let axis = TensorProto {
        tensor_shape: Some(shape(&[])),
        ..ints(&[0])
    };
    for _ in 0..2 {
        // Of 256 KiB, doubled: the eighth has 64 MiB, and the seventh is still there.
        let feeds = [("c0:0", splat(&[64 << 10])), ("axis:0", axis.clone())];
        let e = target(&mut c, &session, &feeds, "c12").await.unwrap_err();
        assert_exhausted(&e, &["OOM when allocating tensor with shape[", "{{node c"]);
        // What the step had is there for the next.
        let feeds = [("c0:0", splat(&[64 << 10])), ("axis:0", axis.clone())];
        target(&mut c, &session, &feeds, "c6").await.unwrap();
    }
    assert_serving(&mut c).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_has_a_budget_of_its_own() {
    let mut c = limited(64 * MB, Some(16 * MB)).await;
    let mut nodes = vec![fed("dims", 9)];
    let names: Vec<String> = (0..6).map(|i| format!("f{i}")).collect();
    for name in &names {
        // Of values of their own, or they would be one.
        let value = format!("{name}_value");
        nodes.extend([fed(&value, 1), fill(name, "dims", &value)]);
    }
    let inputs: Vec<&str> = names.iter().map(String::as_str).collect();
    let attrs = [("N", attr(attr_value::Value::I(6))), ("T", dtype(1))];
    nodes.push(node("sum", "AddN", &inputs, &attrs));
    let session = create(&mut c, graph(nodes)).await.unwrap();
    let values: Vec<String> = names.iter().map(|n| format!("{n}_value:0")).collect();
    for (size, fits) in [(1 << 20, false), (1 << 18, true)] {
        let mut feeds: Vec<_> = values.iter().map(|v| (&v[..], float(2.0))).collect();
        feeds.push(("dims:0", longs(&[size])));
        let outcome = target(&mut c, &session, &feeds, "sum").await;
        match outcome {
            Ok(_) => assert!(fits),
            Err(e) => assert_exhausted(&e, &["and step ", "16777216", "{{node f"]),
        }
    }
}

/// Nodes that make a queue of vectors without a bound, fill it with rows and take rows out.
fn queue_nodes() -> Vec<NodeDef> {
    let text = |s: &str| attr(attr_value::Value::S(s.to_owned().into_bytes().into()));
    let types = || {
        attr(attr_value::Value::List(Box::new(attr_value::ListValue {
            r#type: vec![1],
            ..Default::default()
        })))
    };
    let shapes = attr(attr_value::Value::List(Box::new(attr_value::ListValue {
        shape: vec![shape(&[16])],
        ..Default::default()
    })));
    let unbounded = attr(attr_value::Value::I(-1));
    vec![
        node(
            "q",
            "FIFOQueueV2",
            &[],
            &[
                ("component_types", types()),
                ("shapes", shapes),
                ("capacity", unbounded),
                ("shared_name", text("hoard")),
            ],
        ),
        fed("rows", 1),
        node(
            "put",
            "QueueEnqueueManyV2",
            &["q", "rows"],
            &[("Tcomponents", types())],
        ),
        node("n", "Placeholder", &[], &[("dtype", dtype(3))]),
        node(
            "take",
            "QueueDequeueManyV2",
            &["q", "n"],
            &[("component_types", types())],
        ),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_without_a_bound_ends_at_the_budget() {
    let mut c = limited(32 * MB, None).await;
    let session = create(&mut c, graph(queue_nodes())).await.unwrap();
    let rows = [("rows:0", splat(&[4000, 16]))];
    let mut count = 0;
    let e = loop {
        match target(&mut c, &session, &rows, "put").await {
            Ok(_) => count += 1,
            Err(e) => break e,
        }
        assert!(count < 400, "the queue has no bound");
    };
    assert_exhausted(
        &e,
        &["OOM when enqueuing into FIFOQueue 'hoard'", "{{node put}}"],
    );
    assert!(count > 5, "{count}");
    assert_serving(&mut c).await;
    // Others are told who has it.
    let nodes = vec![
        fed("dims", 9),
        fed("value", 1),
        fill("filled", "dims", "value"),
    ];
    let other = create(&mut c, graph(nodes)).await.unwrap();
    let large = [("dims:0", longs(&[6 << 20])), ("value:0", float(1.0))];
    let e = target(&mut c, &other, &large, "filled").await.unwrap_err();
    assert_exhausted(&e, &["{{node filled}}", "queues ", "most in hoard"]);
    let n = TensorProto {
        tensor_shape: Some(shape(&[])),
        ..ints(&[count * 4000])
    };
    target(&mut c, &session, &[("n:0", n)], "take")
        .await
        .unwrap();
    target(&mut c, &other, &large, "filled").await.unwrap();
    target(&mut c, &session, &rows, "put").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_without_a_bound_ends_at_the_budget() {
    let mut c = limited(32 * MB, None).await;
    let types = [("key_dtype", dtype(9)), ("value_dtype", dtype(9))];
    let inout = [("Tin", dtype(9)), ("Tout", dtype(9))];
    let nodes = vec![
        node("t", "MutableHashTableV2", &[], &types),
        fed("keys", 9),
        fed("values", 9),
        node(
            "put",
            "LookupTableInsertV2",
            &["t", "keys", "values"],
            &inout,
        ),
    ];
    let session = create(&mut c, graph(nodes)).await.unwrap();
    let mut steps = 0i64;
    let e = loop {
        let keys: Vec<i64> = (0..20_000).map(|i| steps * 20_000 + i).collect();
        let feeds = [("keys:0", longs(&keys)), ("values:0", longs(&keys))];
        match target(&mut c, &session, &feeds, "put").await {
            Ok(_) => steps += 1,
            Err(e) => break e,
        }
        // The same keys again take nothing more.
        let feeds = [("keys:0", longs(&keys)), ("values:0", longs(&keys))];
        let _ = target(&mut c, &session, &feeds, "put").await;
        assert!(steps < 100, "the table has no bound");
    };
    assert_exhausted(
        &e,
        &["OOM when adding 20000 keys", "tables ", "{{node put}}"],
    );
    assert!(steps > 5, "{steps}");
    assert_serving(&mut c).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn variables_without_a_bound_end_at_the_budget() {
    let mut c = limited(32 * MB, None).await;
    let mut nodes = vec![
        fed("dims", 9),
        fed("value", 1),
        fill("filled", "dims", "value"),
    ];
    for i in 0..20 {
        let name = format!("v{i}");
        let attrs = [
            ("dtype", dtype(1)),
            ("shape", attr(attr_value::Value::Shape(shape(&[1 << 20])))),
        ];
        let shared = (
            "shared_name",
            attr(attr_value::Value::S(name.clone().into_bytes().into())),
        );
        let attrs: Vec<_> = attrs.into_iter().chain([shared]).collect();
        nodes.push(node(&name, "VarHandleOp", &[], &attrs));
        let assign = [&name[..], "filled"];
        nodes.push(node(
            &format!("a{i}"),
            "AssignVariableOp",
            &assign,
            &[("dtype", dtype(1))],
        ));
        nodes.push(node(&format!("d{i}"), "DestroyResourceOp", &[&name], &[]));
    }
    let session = create(&mut c, graph(nodes)).await.unwrap();
    let feeds = [("dims:0", longs(&[1 << 20])), ("value:0", float(1.0))];
    let mut made = 0;
    let e = loop {
        match target(&mut c, &session, &feeds, &format!("a{made}")).await {
            Ok(_) => made += 1,
            Err(e) => break e,
        }
        assert!(made < 20, "variables have no bound");
    };
    assert_eq!(made, 7, "of 4 MiB, nine tenths of 32");
    assert_exhausted(&e, &["variables 29360128", "most in v", "{{node filled}}"]);
    assert_serving(&mut c).await;
    target(&mut c, &session, &[], "d0").await.unwrap();
    target(&mut c, &session, &feeds, "a7").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deadline_ends_a_kernel_half_way() {
    // Room for one of them, not for two.
    let mut c = limited(7 << 30, None).await;
    let nodes = vec![
        fed("dims", 9),
        fed("value", 1),
        fill("filled", "dims", "value"),
        node("small", "Placeholder", &[], &[("dtype", dtype(1))]),
        node("sum", "AddV2", &["small", "small"], &[("T", dtype(1))]),
    ];
    let session = create(&mut c, graph(nodes)).await.unwrap();
    let began = Instant::now();
    let mut ended = 0;
    while ended < 2 {
        let feeds = [("dims:0", longs(&[1 << 30])), ("value:0", float(1.0))];
        let mut request = run_request(&session, &feeds, &[]);
        request.target = vec!["filled".into()];
        request.options = Some(RunOptions {
            timeout_in_ms: 100,
            ..Default::default()
        });
        let e = c.run_step(request).await.unwrap_err();
        // The client hears of its deadline first; the kernel gives its memory back when it has seen it.
        match e.code() {
            Code::DeadlineExceeded => ended += 1,
            Code::ResourceExhausted => tokio::time::sleep(Duration::from_millis(20)).await,
            _ => panic!("{e:?}"),
        }
        let feeds = [("small:0", splat(&[64 << 10]))];
        target(&mut c, &session, &feeds, "sum").await.unwrap();
        assert!(
            began.elapsed() < Duration::from_secs(8),
            "{:?}",
            began.elapsed()
        );
    }
}

/// The network thread of a task is one for all its clients.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_kernel_keeps_nobody_waiting() {
    let start = || Server::start(ServerConfig::local()).unwrap();
    let server = tokio::task::spawn_blocking(start).await.unwrap();
    let mut c = connect(server.address()).await;
    let real = [("T", dtype(1))];
    let nodes = vec![
        fed("dims", 9),
        fed("value", 1),
        fill("filled", "dims", "value"),
        fed("image", 1),
        fed("size", 3),
        node(
            "resized",
            "ResizeNearestNeighbor",
            &["image", "size"],
            &real,
        ),
        fed("column", 1),
        fed("row", 1),
        node("grid", "AddV2", &["column", "row"], &real),
    ];
    let session = create(&mut c, graph(nodes)).await.unwrap();
    let huge = [
        (
            "filled",
            vec![("dims:0", longs(&[100 << 20])), ("value:0", float(1.0))],
        ),
        (
            "resized",
            vec![
                ("image:0", splat(&[1, 2, 2, 3])),
                ("size:0", ints(&[5000, 5000])),
            ],
        ),
        (
            "grid",
            vec![
                ("column:0", splat(&[7000, 1])),
                ("row:0", splat(&[1, 7000])),
            ],
        ),
    ];
    let nodes = vec![
        placeholder("x"),
        node("y", "AddV2", &["x", "x"], &[("T", dtype(1))]),
    ];
    let mut other = connect(server.address()).await;
    let null = create(&mut other, graph(nodes)).await.unwrap();
    for (name, feeds) in huge {
        let (mut c, session) = (c.clone(), session.clone());
        let long = tokio::spawn(async move {
            let began = Instant::now();
            target(&mut c, &session, &feeds, name).await.unwrap();
            began.elapsed()
        });
        let mut steps = 0;
        while !long.is_finished() {
            let feeds = [("x:0", floats(&[1.5]))];
            run(&mut other, &null, &feeds, &["y:0"]).await.unwrap();
            steps += 1;
        }
        let took = long.await.unwrap();
        // One or two when the long one holds the thread: before it begins, and when it has ended.
        let enough = took < Duration::from_millis(50) || steps > 5;
        assert!(enough, "{name}: {steps} steps in {took:?}");
    }
    tokio::task::spawn_blocking(move || drop(server))
        .await
        .unwrap();
}
