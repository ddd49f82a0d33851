//! Runs one op on given inputs, as the executor would: what unit tests of kernels are made of.

use downpour_executor::{CompileEnv, KernelCache, Plan, SessionFunctions, Step};
use downpour_graph::{
    ArgDef, ArgKind, AttrValue, ElementType, FunctionDef, FunctionRef, Graph, GraphDef, NodeDef,
    OpDef, Result,
};
use downpour_runtime::{
    Cancellation, Device, Extensions, Inputs, MemoryBudget, Registry, StepEnv, Value,
};
use downpour_tensor::{DType, Tensor};
use std::sync::{Arc, LazyLock, mpsc};

static REGISTRY: LazyLock<Arc<Registry>> = LazyLock::new(|| {
    let mut r = Registry::new();
    crate::register(&mut r);
    Arc::new(r)
});

/// A device with a budget of 64 MiB per tensor.
pub(crate) fn device() -> Arc<Device> {
    let memory = MemoryBudget::per_tensor(64 << 20);
    let name = "/job:localhost/replica:0/task:0/device:CPU:0".to_owned();
    Arc::new(Device::cpu(
        name,
        "localhost",
        1,
        2,
        memory,
        Extensions::default(),
    ))
}

/// Runs a graph whose `_Arg` nodes take `args` and whose `_Retval` nodes give the results.
pub(crate) fn run_graph(nodes: Vec<NodeDef>, args: Vec<Tensor>) -> Result<Vec<Tensor>> {
    run_on(&device(), nodes, args)
}

/// As [`run_graph`], on a device that keeps its resources from run to run.
pub(crate) fn run_on(
    device: &Arc<Device>,
    nodes: Vec<NodeDef>,
    args: Vec<Tensor>,
) -> Result<Vec<Tensor>> {
    run_with_functions(device, nodes, vec![], args)
}

/// As [`run_on`], with a function library.
pub(crate) fn run_with_functions(
    device: &Arc<Device>,
    nodes: Vec<NodeDef>,
    functions: Vec<FunctionDef>,
    args: Vec<Tensor>,
) -> Result<Vec<Tensor>> {
    let (tx, rx) = mpsc::channel();
    let cancellation = Cancellation::new();
    start(device, nodes, functions, args, cancellation, move |r| {
        tx.send(r).unwrap();
    })?;
    rx.recv().unwrap()
}

/// Starts a graph as a step that ends with `cancellation`.
pub(crate) fn start(
    device: &Arc<Device>,
    nodes: Vec<NodeDef>,
    functions: Vec<FunctionDef>,
    args: Vec<Tensor>,
    cancellation: Arc<Cancellation>,
    done: impl FnOnce(Result<Vec<Tensor>>) + Send + 'static,
) -> Result<()> {
    let graph = Graph::new(GraphDef {
        nodes,
        functions,
        ..Default::default()
    })?;
    let env = CompileEnv {
        registry: &REGISTRY,
        device,
        cache: &KernelCache::default(),
        fold_constants: false,
        site: "",
        others: &[],
    };
    let plan = Plan::compile(&graph, &env)?;
    let library = SessionFunctions::new(REGISTRY.clone(), device.clone());
    library.add(&graph);
    let mut step = StepEnv::new(1, device.clone(), cancellation);
    step.functions = Some(Arc::new(library));
    Step::start(plan, Arc::new(step), args, done);
    Ok(())
}

/// A function of the nodes given, whose arguments and results are `name:type`.
pub(crate) fn function(
    name: &str,
    args: &[(&str, DType)],
    nodes: Vec<NodeDef>,
    rets: &[(&str, DType, &str)],
) -> FunctionDef {
    let arg = |name: &str, dtype| ArgDef {
        name: name.into(),
        kind: ArgKind::Single(ElementType::Fixed(dtype)),
        is_ref: false,
    };
    let signature = OpDef {
        name: name.into(),
        inputs: args.iter().map(|(n, t)| arg(n, *t)).collect(),
        outputs: rets.iter().map(|(n, t, _)| arg(n, *t)).collect(),
        ..Default::default()
    };
    FunctionDef {
        signature,
        nodes,
        ret: rets
            .iter()
            .map(|(n, _, from)| (n.to_string(), from.to_string()))
            .collect(),
        ..Default::default()
    }
}

/// A `func` attribute.
pub(crate) fn func(name: &str) -> AttrValue {
    AttrValue::Func(FunctionRef {
        name: name.into(),
        ..Default::default()
    })
}

/// A node by op, inputs and attributes.
pub(crate) fn node(name: &str, op: &str, inputs: &[&str], attrs: &[(&str, AttrValue)]) -> NodeDef {
    let mut def = NodeDef {
        name: name.into(),
        op: op.into(),
        ..Default::default()
    };
    def.inputs = inputs.iter().map(|s| s.to_string()).collect();
    for (k, v) in attrs {
        def.attrs.set(*k, v.clone());
    }
    def
}

/// How much the op `op` is said to write, given these inputs.
pub(crate) fn run_growth(op: &str, inputs: &[Tensor], attrs: &[(&str, AttrValue)]) -> usize {
    let names: Vec<String> = (0..inputs.len()).map(|i| format!("a{i}")).collect();
    let arg = |(i, t): (usize, &Tensor)| {
        let attrs = [("T", t.dtype().into()), ("index", (i as i64).into())];
        node(&names[i], "_Arg", &[], &attrs)
    };
    let mut nodes: Vec<NodeDef> = inputs.iter().enumerate().map(arg).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    nodes.push(node("op", op, &names, attrs));
    let graph = Graph::new(GraphDef {
        nodes,
        ..Default::default()
    });
    let graph = graph.unwrap();
    let values: Vec<_> = inputs
        .iter()
        .cloned()
        .map(Value::Tensor)
        .map(Some)
        .collect();
    let growth = REGISTRY.growth(op).unwrap();
    growth(graph.node(graph.find("op").unwrap()), Inputs::new(&values))
}

/// Runs the single op `op` on `inputs`.
pub(crate) fn run_op(
    op: &str,
    inputs: Vec<Tensor>,
    attrs: &[(&str, AttrValue)],
) -> Result<Vec<Tensor>> {
    let dtypes: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
    let mut nodes: Vec<NodeDef> = dtypes
        .iter()
        .enumerate()
        .map(|(i, &t)| {
            node(
                &format!("a{i}"),
                "_Arg",
                &[],
                &[("T", t.into()), ("index", (i as i64).into())],
            )
        })
        .collect();
    let names: Vec<String> = (0..dtypes.len()).map(|i| format!("a{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    nodes.push(node("op", op, &names, attrs));
    let checked = Graph::new(GraphDef {
        nodes: nodes.clone(),
        ..Default::default()
    })?;
    let id = checked.find("op").unwrap();
    for (i, (t, _)) in checked.node(id).output_types.iter().enumerate() {
        let attrs = [("T", (*t).into()), ("index", (i as i64).into())];
        nodes.push(node(
            &format!("r{i}"),
            "_Retval",
            &[&format!("op:{i}")],
            &attrs,
        ));
    }
    run_graph(nodes, inputs)
}

/// A float vector.
pub(crate) fn floats(values: &[f32]) -> Tensor {
    Tensor::vector(values.to_vec())
}

/// The message of an error without the node's name that the executor appends.
pub(crate) fn text<T: std::fmt::Debug>(result: Result<T>) -> String {
    let message = result.unwrap_err().message;
    message
        .split("\n\t [[")
        .next()
        .unwrap_or_default()
        .to_owned()
}
