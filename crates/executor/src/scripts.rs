//! What the executor does with graphs, as text: `testdata/*.txt` (see `downpour-script`). One file's commands share a
//! device, a session's kernels and functions, and the graph that was given last.
//!
//! | command | prints |
//! |---|---|
//! | `graph` | nothing, or why the graph is refused; the lines below it are the graph |
//! | `fold` | the graph with its constant parts computed; it takes the graph's place |
//! | `fuse` | the nodes that run as one, and the graph with those in the place of their last |
//! | `plan` | the nodes as the executor runs them: kind, what is known of them, and where their outputs go; `→!` moves a value |
//! | `run [name=tensor…] [traced] [step=N] [unfolded]` | the results by name, or the error; `traced` says which nodes ran |
//! | `run … echoed` | as `run`, with another task that sends back what is pushed to it along numbered edges; then in which portions that came, their dead values as `-` |
//! | `cancel [name=tensor…] [reason=…]` | how a step ends that is cancelled when nothing in it can go on |
//! | `compile` | how a graph is refused that is correct by its form |

use crate::fold::fold;
use crate::fuse::fuse;
use crate::plan::{Kind, PlanNode};
use crate::testing::Echo;
use crate::{CompileEnv, KernelCache, Plan, SessionFunctions, Step};
use downpour_graph::{Graph, Result, Status};
use downpour_runtime::{Cancellation, Device, Extensions, MemoryBudget, Registry, StepEnv, Trace};
use downpour_script::{Command, check_folder, parse, parse_tensor, show, show_tensor};
use downpour_tensor::Tensor;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, LazyLock, mpsc};
use std::time::Duration;

#[test]
fn scripts_print_what_they_say() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    check_folder(&folder, || {
        let mut session = Session::new();
        move |command: &Command| session.answer(command)
    });
}

static REGISTRY: LazyLock<Arc<Registry>> = LazyLock::new(|| {
    let mut registry = Registry::new();
    downpour_kernels::register(&mut registry);
    Arc::new(registry)
});

/// What the commands of a file share.
struct Session {
    device: Arc<Device>,
    cache: KernelCache,
    functions: Arc<SessionFunctions>,
    graph: Graph,
}

/// How a step ended, and which nodes ran.
struct Ended {
    results: Result<Vec<Tensor>>,
    ran: Vec<String>,
    echoed: Option<String>,
}

impl Session {
    fn new() -> Session {
        let device = Arc::new(Device::cpu(
            "/job:localhost/replica:0/task:0/device:CPU:0".to_owned(),
            "localhost",
            1,
            2,
            MemoryBudget::per_tensor(64 << 20),
            Extensions::default(),
        ));
        Session {
            functions: Arc::new(SessionFunctions::new(REGISTRY.clone(), device.clone())),
            device,
            cache: KernelCache::default(),
            graph: Graph::default(),
        }
    }

    fn env(&self, fold_constants: bool) -> CompileEnv<'_> {
        CompileEnv {
            registry: &REGISTRY,
            device: &self.device,
            cache: &self.cache,
            fold_constants,
            site: "",
            others: &[],
        }
    }

    fn answer(&mut self, command: &Command) -> String {
        match command.name.as_str() {
            "graph" => match parse(&command.body) {
                Ok(graph) => {
                    self.functions.add(&graph);
                    self.graph = graph;
                    String::new()
                }
                Err(e) => e,
            },
            "fold" => {
                self.graph = fold(&self.graph, &self.env(true));
                show(&self.graph)
            }
            "fuse" => self.fuse(),
            "plan" => match self.compile(command) {
                Ok(plan) => plan
                    .nodes
                    .iter()
                    .map(|n| show_plan_node(n, &plan))
                    .collect(),
                Err(e) => show_error(&e),
            },
            "compile" => match self.compile(command) {
                Ok(plan) => format!("{} nodes", plan.len()),
                Err(e) => show_error(&e),
            },
            "run" => self.run(command, None),
            "cancel" => {
                let reason = command.value("reason").unwrap_or("asked for");
                self.run(command, Some(Status::cancelled(reason)))
            }
            other => panic!("no command '{other}'"),
        }
    }

    fn fuse(&self) -> String {
        let (fused, kernels) = match fuse(&self.graph, &self.env(false)) {
            Ok(done) => done,
            Err(e) => return show_error(&e),
        };
        let gone = self.graph.nodes().map(|(_, n)| &n.name);
        let gone: Vec<&str> = gone
            .filter(|n| fused.find(n).is_none())
            .map(|n| &**n)
            .collect();
        let mut roots: Vec<&str> = kernels.keys().map(|id| &*fused.node(*id).name).collect();
        roots.sort_unstable();
        if roots.is_empty() {
            return "nothing".to_owned();
        }
        format!(
            "taken in: {}\nby: {}\n{}",
            gone.join(" "),
            roots.join(" "),
            show(&fused)
        )
    }

    fn compile(&self, command: &Command) -> Result<Arc<Plan>> {
        Plan::compile(&self.graph, &self.env(!command.has("unfolded")))
    }

    /// Runs the graph as a step that is cancelled for `stop`, if that is given, once the thread that started it has done
    /// all it can.
    fn run(&self, command: &Command, stop: Option<Status>) -> String {
        let plan = match self.compile(command) {
            Ok(plan) => plan,
            Err(e) => return show_error(&e),
        };
        let mut args = BTreeMap::new();
        let mut results: Vec<(i64, String)> = Vec::new();
        for (_, node) in self.graph.nodes() {
            let index = || node.attrs.int("index").unwrap_or_default();
            match node.op_name() {
                "_Arg" => {
                    let text = command.value(&node.name);
                    let text = text.unwrap_or_else(|| panic!("{} is not given", node.name));
                    args.insert(
                        index(),
                        parse_tensor(text).unwrap_or_else(|e| panic!("{e}")),
                    );
                }
                "_Retval" => results.push((index(), node.name.to_string())),
                _ => {}
            }
        }
        results.sort();
        let ended = self.step(&plan, args.into_values().collect(), command, stop);
        let mut out = match ended.results {
            Ok(values) => {
                let pairs = results.iter().zip(&values);
                pairs
                    .map(|((_, name), v)| format!("{name} = {}\n", show_tensor(v)))
                    .collect()
            }
            Err(e) => show_error(&e),
        };
        if let Some(echoed) = &ended.echoed {
            if !out.ends_with('\n') {
                out.push('\n');
            }
            out += echoed;
        }
        if command.has("traced") {
            out += &format!("ran: {}", ended.ran.join(" "));
        } else if out.is_empty() {
            out.push_str("done");
        }
        out
    }

    fn step(
        &self,
        plan: &Arc<Plan>,
        args: Vec<Tensor>,
        command: &Command,
        stop: Option<Status>,
    ) -> Ended {
        let cancellation = Cancellation::new();
        let id = command.value("step").map_or(1, |n| n.parse().unwrap_or(1));
        let mut env = StepEnv::new(id, self.device.clone(), cancellation.clone());
        env.functions = Some(self.functions.clone());
        let trace = command.has("traced").then(|| Arc::new(Trace::new(|| 0)));
        env.trace = trace.clone();
        let rendezvous = env.rendezvous.clone();
        let echo = command.has("echoed").then(|| Echo::of(&rendezvous));
        if let Some(echo) = &echo {
            env.remote = Some(echo.clone());
        }
        let (tx, rx) = mpsc::channel();
        Step::start(plan.clone(), Arc::new(env), args, move |r| {
            let _ = tx.send(r);
        });
        if let Some(reason) = stop {
            assert!(
                rx.try_recv().is_err(),
                "the step ended before it was cancelled"
            );
            // As a worker does it.
            cancellation.cancel(reason.clone());
            rendezvous.abort(reason);
        }
        let results = rx.recv_timeout(Duration::from_secs(60));
        let nodes = trace.map(|t| t.take()).unwrap_or_default();
        let mut ran: Vec<String> = nodes.iter().map(|n| n.name.to_string()).collect();
        ran.sort();
        Ended {
            results: results.unwrap_or_else(|e| panic!("the step does not end: {e}")),
            ran,
            echoed: echo.map(|e| e.portions()),
        }
    }
}

fn show_error(e: &Status) -> String {
    format!("{}: {}", e.code.name(), e.message)
}

fn show_plan_node(node: &PlanNode, plan: &Plan) -> String {
    let mut out = format!("{} {}", node.info.name, show_kind(node.kind));
    for (flag, is_set) in [
        ("costly", node.is_costly()),
        ("takes-refs", node.takes_refs),
        ("reads-late", node.reads_late),
        ("calls", node.calls),
        ("shares-arg", node.shares_arg),
        ("is-sent", node.is_sent),
        ("estimated", node.growth.is_some()),
    ] {
        if is_set {
            out += &format!(" {flag}");
        }
    }
    for edge in &node.data_edges {
        let to = &plan.nodes[edge.to as usize];
        let arrow = if edge.last { "→!" } else { "→" };
        out += &format!(
            " {}{arrow}{}:{}",
            edge.output,
            to.info.name,
            edge.slot - to.slots
        );
    }
    for to in &node.control_edges {
        out += &format!(" ^→{}", plan.nodes[*to as usize].info.name);
    }
    out + "\n"
}

fn show_kind(kind: Kind) -> String {
    match kind {
        Kind::Normal => "kernel".to_owned(),
        other => format!("{other:?}"),
    }
}
