//! Functions that a session's steps call on other tasks, as TensorFlow does it: the function is
//! registered there once, as a graph whose ends are fed and fetched by name, and each call is a
//! step of its own.

use downpour_graph::{Attrs, FunctionRef, Graph, GraphDef, NodeDef, Result, Status};
use downpour_net::{GraphOptions, Peers, RemoteTask, Task};
use downpour_runtime::{RemoteCall, StepEnv};
use downpour_tensor::{DType, Tensor};
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::Arc;

/// The functions of one session on other tasks.
pub(crate) struct RemoteFunctions {
    session: String,
    peers: Arc<Peers>,
    random: fn() -> u64,
    /// Registered functions by target and function. They go with the session.
    known: Mutex<HashMap<String, Known>>,
}

#[derive(Clone)]
struct Known {
    task: Arc<RemoteTask>,
    graph: u64,
}

impl RemoteFunctions {
    /// Without functions yet.
    pub(crate) fn new(session: &str, peers: Arc<Peers>, random: fn() -> u64) -> Arc<Self> {
        Arc::new(RemoteFunctions {
            session: session.to_owned(),
            peers,
            random,
            known: Mutex::default(),
        })
    }

    /// Runs a function on another task; dropping the future ends it there.
    pub(crate) fn call(
        self: Arc<Self>,
        env: &StepEnv,
        call: RemoteCall,
    ) -> impl Future<Output = Result<Vec<Tensor>>> + Send + 'static {
        let definitions = env.functions.as_ref().map(|f| f.definitions());
        async move {
            let key = format!("{} {:?}", call.target, call.function);
            let arg_types: Vec<DType> = call.args.iter().map(Tensor::dtype).collect();
            let found = self.known.lock().get(&key).cloned();
            let known = match found {
                Some(known) => known,
                None => {
                    let library = definitions
                        .ok_or_else(|| Status::internal("No function library is provided."))?;
                    let needed = library.reachable(&call.function.name);
                    if !needed.contains_key(&call.function.name) {
                        return Err(Status::not_found(format!(
                            "Function {} is not defined.",
                            call.function.name
                        )));
                    }
                    let gradient =
                        |name: &String| Some((name.clone(), library.gradient_of(name)?.to_owned()));
                    let def = GraphDef {
                        nodes: call_nodes(&call, &arg_types),
                        gradients: needed.keys().filter_map(gradient).collect(),
                        functions: needed.into_values().map(Arc::unwrap_or_clone).collect(),
                        ..Default::default()
                    };
                    let known = self.register(&call.target, Graph::new(def)?).await?;
                    self.known.lock().insert(key, known.clone());
                    known
                }
            };
            let names = 0..call.args.len();
            let keys = names.map(|i| end_key(&call.target, &arg_name(i)));
            let send = keys.zip(call.args).collect();
            let results = 0..call.ret_types.len();
            let recv = results.map(|i| end_key(&call.target, &ret_name(i)));
            let task = known.task;
            task.call_graph(&self.session, known.graph, send, recv.collect())
                .await
        }
    }

    async fn register(&self, target: &str, graph: Graph) -> Result<Known> {
        let name = target.split("/device:").next().unwrap_or(target);
        if self.peers.address(name).is_none() {
            let own = std::iter::once(self.peers.own());
            let mut workers: Vec<&str> = own.chain(self.peers.others()).collect();
            workers.sort_unstable();
            return Err(Status::invalid_argument(format!(
                "Could not find worker with target: {target} Available workers: {}",
                workers.join(", ")
            )));
        }
        let task = RemoteTask::unseen(&self.peers, name, self.random)?;
        let options = GraphOptions {
            fold_constants: true,
        };
        let graph = task.register_graph(&self.session, graph, options).await?;
        let task = Arc::new(task);
        Ok(Known { task, graph })
    }
}

fn arg_name(i: usize) -> String {
    format!("arg_{i}")
}

fn ret_name(i: usize) -> String {
    format!("ret_{i}")
}

/// The incarnation does not matter: the value never leaves the device.
const INCARNATION: i64 = 1;

fn end_key(target: &str, name: &str) -> String {
    format!("{target};{INCARNATION:016x};{target};{name};0:0")
}

/// The call between what receives its arguments and what sends its results.
fn call_nodes(call: &RemoteCall, arg_types: &[DType]) -> Vec<NodeDef> {
    let target = &call.target;
    let end = |op: &str, name: String, inputs: Vec<String>, (attr, dtype): (&str, DType)| {
        let mut attrs = Attrs::default();
        attrs.set(attr, dtype);
        attrs.set("tensor_name", name.as_str());
        attrs.set("send_device", target.as_str());
        attrs.set("recv_device", target.as_str());
        attrs.set("send_device_incarnation", INCARNATION);
        attrs.set("client_terminated", true);
        NodeDef {
            name: format!("{op}_{name}"),
            op: op.to_owned(),
            inputs,
            device: target.clone(),
            attrs,
        }
    };
    let mut nodes = Vec::with_capacity(arg_types.len() + call.ret_types.len() + 1);
    for (i, dtype) in arg_types.iter().enumerate() {
        nodes.push(end("_Recv", arg_name(i), vec![], ("tensor_type", *dtype)));
    }
    let FunctionRef { name, attrs } = &call.function;
    nodes.push(NodeDef {
        name: "call".to_owned(),
        op: name.clone(),
        inputs: nodes.iter().map(|n| n.name.clone()).collect(),
        device: target.clone(),
        attrs: attrs.clone(),
    });
    for (i, dtype) in call.ret_types.iter().enumerate() {
        let result = format!("call:{i}");
        nodes.push(end("_Send", ret_name(i), vec![result], ("T", *dtype)));
    }
    nodes
}
