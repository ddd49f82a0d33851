//! Times single ops of a small MLP and CNN and prints their arithmetic rate.
//!
//! `cargo run --release -p downpour-kernels --example gflops [part of a name]`
#![allow(
    clippy::disallowed_methods,
    reason = "a measurement reads the clock and its arguments"
)]
#![allow(clippy::print_stdout, reason = "printing is what it is for")]

use downpour_executor::{CompileEnv, KernelCache, Plan, Step};
use downpour_graph::{AttrValue, Graph, GraphDef, NodeDef};
use downpour_runtime::{Cancellation, Device, Extensions, MemoryBudget, Registry, StepEnv};
use downpour_tensor::{DType, Tensor};
use std::sync::{Arc, mpsc};
use std::time::Instant;

fn node(name: &str, op: &str, inputs: &[String], attrs: &[(&str, AttrValue)]) -> NodeDef {
    let mut def = NodeDef {
        name: name.into(),
        op: op.into(),
        ..Default::default()
    };
    def.inputs = inputs.to_vec();
    for (k, v) in attrs {
        def.attrs.set(*k, v.clone());
    }
    def
}

/// Processor seconds that all threads have used: unlike the clock, unmoved by other processes.
fn cpu_seconds() -> f64 {
    let mut nanos = 0u64;
    for task in std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten()
    {
        let stat = std::fs::read_to_string(task.path().join("schedstat")).unwrap_or_default();
        nanos += stat
            .split(' ')
            .next()
            .and_then(|n| n.parse::<u64>().ok())
            .unwrap_or(0);
    }
    nanos as f64 / 1e9
}

/// Best seconds of one run of `op`, and its mean processor seconds.
fn time(op: &str, inputs: &[Tensor], attrs: &[(&str, AttrValue)]) -> (f64, f64) {
    let mut registry = Registry::new();
    downpour_kernels::register(&mut registry);
    let memory = MemoryBudget::per_tensor(4 << 30);
    let name = "/job:localhost/replica:0/task:0/device:CPU:0".to_owned();
    let device = Arc::new(Device::cpu(
        name,
        "localhost",
        1,
        2,
        memory,
        Extensions::default(),
    ));
    let mut nodes = Vec::new();
    for (i, t) in inputs.iter().enumerate() {
        let attrs = [("T", t.dtype().into()), ("index", (i as i64).into())];
        nodes.push(node(&format!("a{i}"), "_Arg", &[], &attrs));
    }
    let names: Vec<String> = (0..inputs.len()).map(|i| format!("a{i}")).collect();
    nodes.push(node("op", op, &names, attrs));
    let def = GraphDef {
        nodes: nodes.clone(),
        ..Default::default()
    };
    let checked = Graph::new(def).expect("the op is well formed");
    let id = checked.find("op").expect("it was just added");
    for (i, (t, _)) in checked.node(id).output_types.iter().enumerate() {
        let attrs = [("T", (*t).into()), ("index", (i as i64).into())];
        nodes.push(node(
            &format!("r{i}"),
            "_Retval",
            &[format!("op:{i}")],
            &attrs,
        ));
    }
    let graph = Graph::new(GraphDef {
        nodes,
        ..Default::default()
    })
    .expect("the graph is well formed");
    let env = CompileEnv {
        registry: &registry,
        device: &device,
        cache: &KernelCache::default(),
        fold_constants: false,
        site: "",
        others: &[],
    };
    let plan = Plan::compile(&graph, &env).expect("the op has a kernel");
    let mut times = Vec::new();
    let begin = Instant::now();
    let cpu = cpu_seconds();
    while times.len() < 10 || (begin.elapsed().as_secs_f64() < 1.0 && times.len() < 2000) {
        let step = Arc::new(StepEnv::new(1, device.clone(), Cancellation::new()));
        let (tx, rx) = mpsc::channel();
        let start = Instant::now();
        Step::start(plan.clone(), step, inputs.to_vec(), move |r| {
            let _ = tx.send(r);
        });
        let out = rx.recv().expect("a step ends").expect("the op runs");
        times.push(start.elapsed().as_secs_f64());
        drop(out);
    }
    let cpu = (cpu_seconds() - cpu) / times.len() as f64;
    times.sort_by(f64::total_cmp);
    (times[0], cpu)
}

fn random(dims: &[usize]) -> Tensor {
    let mut state = 12345u32;
    let n = dims.iter().product();
    let values = (0..n)
        .map(|_| {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            (state >> 8) as f32 / (1 << 23) as f32 - 1.0
        })
        .collect();
    Tensor::from_vec(values, dims).expect("as many values as the shape says")
}

fn main() {
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let run =
        |label: &str, op: &str, inputs: &[Tensor], attrs: &[(&str, AttrValue)], flop: usize| {
            if !label.contains(&wanted) {
                return;
            }
            let mut all = vec![("T", DType::Float.into())];
            all.extend(attrs.iter().cloned());
            let (best, cpu) = time(op, inputs, &all);
            let rate = |t: f64| flop as f64 / t / 1e9;
            println!(
                "{label:40} best {:9.1} us {:7.1} cpu {:9.1} us {:7.1} Gop/s",
                best * 1e6,
                rate(best),
                cpu * 1e6,
                rate(cpu)
            );
        };
    for (m, k, n) in [
        (100, 784, 1024),
        (100, 1024, 1024),
        (100, 1024, 10),
        (64, 3136, 512),
        (64, 512, 10),
        (1024, 1024, 1024),
    ] {
        let flop = 2 * m * k * n;
        let (x, w, dy) = (random(&[m, k]), random(&[k, n]), random(&[m, n]));
        run(
            &format!("matmul {m}x{k}x{n}"),
            "MatMul",
            &[x.clone(), w.clone()],
            &[],
            flop,
        );
        let b = [("transpose_b", true.into())];
        run(
            &format!("matmul {m}x{k}x{n} dx"),
            "MatMul",
            &[dy.clone(), w],
            &b,
            flop,
        );
        let a = [("transpose_a", true.into())];
        run(
            &format!("matmul {m}x{k}x{n} dw"),
            "MatMul",
            &[x, dy],
            &a,
            flop,
        );
    }
    for (n, h, c, k, o) in [
        (64, 28, 1, 5, 32),
        (64, 14, 32, 5, 64),
        (32, 56, 64, 3, 64),
        (32, 14, 256, 3, 256),
        (32, 56, 64, 1, 256),
    ] {
        let flop = 2 * n * h * h * k * k * c * o;
        let (x, w, dy) = (
            random(&[n, h, h, c]),
            random(&[k, k, c, o]),
            random(&[n, h, h, o]),
        );
        let attrs = [
            ("strides", vec![1i64, 1, 1, 1].into()),
            ("padding", "SAME".into()),
        ];
        let label = format!("conv {n}x{h}x{h}x{c} {k}x{k} {o}");
        let sizes = |d: [usize; 4]| Tensor::vector(d.iter().map(|&v| v as i32).collect());
        run(&label, "Conv2D", &[x.clone(), w.clone()], &attrs, flop);
        let args = [sizes([n, h, h, c]), w.clone(), dy.clone()];
        run(
            &format!("{label} dx"),
            "Conv2DBackpropInput",
            &args,
            &attrs,
            flop,
        );
        let args = [x, sizes([k, k, c, o]), dy];
        run(
            &format!("{label} dw"),
            "Conv2DBackpropFilter",
            &args,
            &attrs,
            flop,
        );
    }
}
