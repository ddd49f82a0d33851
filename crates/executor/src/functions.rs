//! A session's functions: definitions, and what was compiled of them.
//!
//! Kernels keep no compiled function, or a function that calls itself would own itself:
//! [`SessionFunctions`] does, and steps and handles own it.

use crate::plan::{CompileEnv, KernelCache, Plan, calls_functions};
use downpour_graph::{Functions, Graph, Node, Result, Status};
use downpour_runtime::{
    Callee, Device, Function, FunctionHandle, FunctionLibrary, Registry, RemoteSource,
};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;

/// The functions of a session: definitions, and what was compiled of them.
pub struct SessionFunctions {
    registry: Arc<Registry>,
    device: Arc<Device>,
    definitions: RwLock<Arc<Functions>>,
    compiled: Mutex<HashMap<Arc<str>, Arc<Function>>>,
    /// How functions that run as steps of their own reach other tasks.
    remote: Option<Arc<dyn RemoteSource>>,
}

impl SessionFunctions {
    /// A library without functions.
    pub fn new(registry: Arc<Registry>, device: Arc<Device>) -> SessionFunctions {
        SessionFunctions {
            registry,
            device,
            definitions: RwLock::default(),
            compiled: Mutex::default(),
            remote: None,
        }
    }

    /// The same library, whose functions may call functions of other tasks also where they are called by no step.
    pub fn with_remote(self, remote: Arc<dyn RemoteSource>) -> SessionFunctions {
        SessionFunctions {
            remote: Some(remote),
            ..self
        }
    }

    /// Takes over a graph's functions. Those that are known stay as they are: a session's
    /// library only grows.
    pub fn add(&self, graph: &Graph) {
        let more = graph.library();
        let known = self.definitions.read().clone();
        if Arc::ptr_eq(&known, more) || known.covers(more) {
            return;
        }
        let mut definitions = self.definitions.write();
        if more.covers(&definitions) {
            *definitions = more.clone();
        } else {
            Arc::make_mut(&mut definitions).merge(more);
        }
    }

    /// The same functions, none of them compiled yet.
    fn uncompiled(&self) -> SessionFunctions {
        SessionFunctions {
            registry: self.registry.clone(),
            device: self.device.clone(),
            definitions: RwLock::new(self.definitions()),
            compiled: Mutex::default(),
            remote: self.remote.clone(),
        }
    }

    fn compile(&self, callee: &Callee) -> Result<Function> {
        let definitions = self.definitions();
        let body = definitions.instantiate(callee.name(), callee.attrs())?;
        let env = CompileEnv {
            registry: &self.registry,
            device: &self.device,
            // Node names are unique within a body only.
            cache: &KernelCache::default(),
            fold_constants: true,
            site: callee.site().unwrap_or(callee.key()),
            others: &[],
        };
        let any = |test: fn(&Node) -> bool| body.graph.nodes().any(|(_, n)| test(n));
        Ok(Function {
            name: callee.name().to_owned(),
            body: Plan::compile(&body.graph, &env)?,
            stateful: any(|n| n.op.stateful && !matches!(n.op_name(), "_Arg" | "_Retval")),
            private: any(keeps_state),
            arg_types: body.arg_types,
            ret_types: body.ret_types,
        })
    }
}

impl FunctionLibrary for SessionFunctions {
    fn get(&self, callee: &Callee) -> Result<Arc<Function>> {
        let own = callee.site().map(|site| own_key(callee.key(), site));
        {
            let compiled = self.compiled.lock();
            let shared = compiled
                .get(callee.key())
                .filter(|f| !f.private || own.is_none());
            let found = shared.or_else(|| compiled.get(own.as_ref()?));
            if let Some(found) = found {
                return Ok(found.clone());
            }
        }
        // Two steps may both get here; the first to finish stands, so that state inside the
        // function is one.
        let made = Arc::new(self.compile(callee)?);
        let key = match own {
            Some(own) if made.private => own,
            _ => callee.key().clone(),
        };
        Ok(self.compiled.lock().entry(key).or_insert(made).clone())
    }

    fn get_own(&self, callee: &Callee) -> Result<Arc<Function>> {
        let found = self.get(callee)?;
        match found.private {
            true => Ok(Arc::new(self.compile(callee)?)),
            false => Ok(found),
        }
    }

    fn apart(&self) -> Arc<dyn FunctionLibrary> {
        Arc::new(self.uncompiled())
    }

    fn definitions(&self) -> Arc<Functions> {
        self.definitions.read().clone()
    }

    fn graph(&self, graph: &Graph, device: &Arc<Device>) -> Result<FunctionHandle> {
        let library = Arc::new(self.uncompiled());
        library.add(graph);
        let env = CompileEnv {
            registry: &library.registry,
            device,
            cache: &KernelCache::default(),
            fold_constants: true,
            site: "",
            others: &[],
        };
        let plan = Plan::compile(graph, &env)?;
        if plan.num_args() > 0 {
            return Err(Status::invalid_argument(
                "a graph that is run as a whole has no arguments",
            ));
        }
        let function = Function {
            name: "graph".to_owned(),
            body: plan,
            arg_types: vec![],
            ret_types: vec![],
            stateful: true,
            private: false,
        };
        let captured = Arc::new([]);
        Ok(FunctionHandle::new(
            Arc::new(function),
            library,
            device.clone(),
            captured,
        ))
    }

    fn remote(&self) -> Option<&Arc<dyn RemoteSource>> {
        self.remote.as_ref()
    }
}

fn own_key(key: &str, site: &str) -> Arc<str> {
    format!("{key}\u{2}{site}").into()
}

/// Whether a node's kernel object has state of its own, or may call a function that has.
fn keeps_state(node: &Node) -> bool {
    let empty = |name: &str| matches!(node.attrs.str(name), Ok(""));
    node.op.stateful
        && (node.attrs.find("seed2").is_some()
            || calls_functions(node)
            || empty("shared_name")
                && !matches!(node.op_name(), "VarHandleOp" | "VariableV2" | "Variable"))
}
