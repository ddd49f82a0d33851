//! Lowering: functional branches and loops that ask for it (`_lower_using_switch_merge`) become
//! `Switch`, `Merge` and frames around the bodies of their functions, as TensorFlow's master does
//! it before placement. Bodies then are pruned, placed and partitioned like the rest of the graph,
//! and what a step does not need of them does not run.
//!
//! Whatever cannot be lowered (functions that contain themselves, types that do not fit, too many
//! nodes) stays a call, which the runtime executes as one.

use downpour_graph::{
    AttrValue, Attrs, DeviceName, Edge, FunctionBody, FunctionRef, Graph, Node, NodeId, find_op,
};
use downpour_tensor::{DType, Tensor};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Most nodes that lowering may add to a graph: calls of calls multiply.
const MAX_ADDED: usize = 1 << 18;

/// Lowers the nodes from `base` on. With `inline_calls`, plain calls are replaced by their bodies
/// as well: the body of a call can only be spread over tasks where it is part of the graph.
pub fn lower(graph: Graph, base: usize, inline_calls: bool) -> Graph {
    let mut lowering = Lowering {
        nodes: graph.nodes().map(|(_, n)| n.clone()).collect(),
        names: HashSet::new(),
        moved: HashMap::new(),
        inlined: Vec::new(),
        inside: vec![None; graph.len()],
        limit: graph.len() + MAX_ADDED,
        serial: 0,
        inline_calls,
        graph: &graph,
    };
    if !lowering.nodes[base..].iter().any(|n| lowering.wants(n)) {
        return graph;
    }
    lowering.names = graph.nodes().map(|(_, n)| n.name.clone()).collect();
    let mut at = base;
    while at < lowering.nodes.len() {
        let node = lowering.nodes[at].clone();
        if lowering.wants(&node) {
            // A node that cannot be lowered stays as it is.
            let _ = lowering.lower_node(NodeId(at as u32), &node);
        }
        at += 1;
    }
    lowering.reconnect(base);
    Graph::from_checked(lowering.nodes, &graph)
}

/// What became of a function's body.
struct Inlined {
    rets: Vec<Edge>,
    control_rets: Vec<NodeId>,
}

/// A body that was put in place of a call, and inside which other body.
struct Origin {
    function: String,
    parent: Option<usize>,
}

/// Where a body goes.
struct Site<'a> {
    prefix: String,
    function: &'a FunctionRef,
    /// The node that stood for the call.
    caller: NodeId,
    /// What everything in the body waits for.
    pivot: Option<NodeId>,
}

struct Lowering<'a> {
    graph: &'a Graph,
    nodes: Vec<Arc<Node>>,
    names: HashSet<Arc<str>>,
    /// Outputs of lowered nodes, and where they come from now.
    moved: HashMap<Edge, Edge>,
    inlined: Vec<Origin>,
    /// For each node, the body that it came with.
    inside: Vec<Option<usize>>,
    limit: usize,
    serial: u64,
    inline_calls: bool,
}

fn edge(node: NodeId, output: u32) -> Edge {
    Edge { node, output }
}

impl Lowering<'_> {
    fn wants(&self, node: &Node) -> bool {
        match node.op_name() {
            "If" | "StatelessIf" | "Case" | "StatelessCase" | "While" | "StatelessWhile" => {
                matches!(node.attrs.bool("_lower_using_switch_merge"), Ok(true))
            }
            "PartitionedCall" | "StatefulPartitionedCall" => self.inline_calls,
            _ => false,
        }
    }

    fn lower_node(&mut self, id: NodeId, node: &Arc<Node>) -> Option<()> {
        match node.op_name() {
            "If" | "StatelessIf" => self.lower_if(id, node),
            "Case" | "StatelessCase" => self.lower_case(id, node),
            "While" | "StatelessWhile" => self.lower_while(id, node),
            _ => self.inline_call(id, node),
        }
    }

    fn lower_if(&mut self, id: NodeId, node: &Arc<Node>) -> Option<()> {
        let then = node.attrs.func("then_branch").ok()?;
        let other = node.attrs.func("else_branch").ok()?;
        let bodies = [
            self.body(id, node, other, 1)?,
            self.body(id, node, then, 1)?,
        ];
        let pred = *node.inputs.first()?;
        if node.input_types.first()?.0 != DType::Bool {
            return None;
        }
        let scope = self.scope(node);
        let pivot = self.switch(&format!("{scope}switch_pred"), pred, pred, id)?;
        let mut sides = [Vec::new(), Vec::new()];
        for (i, input) in node.inputs.iter().enumerate().skip(1) {
            let name = format!("{scope}switch_{i}");
            let switch = self.switch(&name, *input, pred, id)?;
            sides[0].push(edge(switch, 0));
            sides[1].push(edge(switch, 1));
        }
        let mut branches = Vec::new();
        for (side, (body, function)) in bodies.iter().zip([other, then]).enumerate() {
            let word = ["else", "then"][side];
            let from = edge(pivot, side as u32);
            branches.push(self.branch(id, &scope, word, from, body, function, &sides[side])?);
        }
        // The first input of a merge is the branch for true, as python writes it.
        branches.reverse();
        self.join(id, node, &scope, branches)
    }

    fn lower_case(&mut self, id: NodeId, node: &Arc<Node>) -> Option<()> {
        let functions = node.attrs.funcs("branches").ok()?;
        let index = *node.inputs.first()?;
        let mut bodies = Vec::new();
        for function in functions {
            bodies.push(self.body(id, node, function, 1)?);
        }
        let scope = self.scope(node);
        // Each test lets its own branch have the values, and passes them on otherwise.
        let mut rest: Vec<Edge> = node.inputs.clone();
        let mut branches = Vec::new();
        for (k, (body, function)) in bodies.iter().zip(functions).enumerate() {
            let mine = match k + 1 == functions.len() {
                true => std::mem::take(&mut rest),
                false => {
                    let test = self.test(&format!("{scope}is_{k}"), index, k as i32, id)?;
                    let mut mine = Vec::new();
                    for (i, value) in rest.iter_mut().enumerate() {
                        let name = format!("{scope}switch_{k}_{i}");
                        let switch = self.switch(&name, *value, test, id)?;
                        mine.push(edge(switch, 1));
                        *value = edge(switch, 0);
                    }
                    mine
                }
            };
            let word = format!("branch{k}");
            let args = mine.get(1..)?;
            branches.push(self.branch(id, &scope, &word, mine[0], body, function, args)?);
        }
        self.join(id, node, &scope, branches)
    }

    /// Puts a branch's body where its values are, and a node behind it that its end is known by.
    #[expect(clippy::too_many_arguments, reason = "one branch of one node")]
    fn branch(
        &mut self,
        id: NodeId,
        scope: &str,
        word: &str,
        pivot: Edge,
        body: &FunctionBody,
        function: &FunctionRef,
        args: &[Edge],
    ) -> Option<(Inlined, NodeId)> {
        let pivot = self.identity(&format!("{scope}pivot_{word}"), pivot, vec![], id)?;
        self.serial += 1;
        let site = Site {
            prefix: format!("{}/{word}/_{}/", self.nodes[id.index()].name, self.serial),
            function,
            caller: id,
            pivot: Some(pivot),
        };
        let inlined = self.inline(body, &site, args)?;
        let waits = inlined.control_rets.clone();
        let done = format!("{scope}done_{word}");
        let done = self.identity(&done, edge(pivot, 0), waits, id)?;
        Some((inlined, done))
    }

    /// Merges the results of branches and puts a node in place of the call.
    fn join(
        &mut self,
        id: NodeId,
        node: &Arc<Node>,
        scope: &str,
        branches: Vec<(Inlined, NodeId)>,
    ) -> Option<()> {
        let mut results = Vec::new();
        for i in 0..node.output_types.len() {
            let parts: Vec<Edge> = branches.iter().map(|(b, _)| b.rets[i]).collect();
            let dtype = node.output_types[i].0;
            let merge = self.merge(&format!("{scope}merge_{i}"), parts, dtype, id)?;
            results.push(edge(merge, 0));
        }
        let ends: Vec<Edge> = branches.iter().map(|(_, done)| edge(*done, 0)).collect();
        let dtype = self.type_of(ends[0]);
        let done = self.merge(&format!("{scope}branch_executed"), ends, dtype, id)?;
        self.replace(id, node, results, vec![done])
    }

    fn lower_while(&mut self, id: NodeId, node: &Arc<Node>) -> Option<()> {
        let cond_function = node.attrs.func("cond").ok()?;
        let body_function = node.attrs.func("body").ok()?;
        let cond = self.body_of(id, node, cond_function, 0, &[DType::Bool])?;
        let body = self.body(id, node, body_function, 0)?;
        if node.inputs.is_empty() {
            return None;
        }
        let parallel = node.attrs.int("parallel_iterations").unwrap_or(10);
        let scope = self.scope(node);
        let mut fixed = passed_through(&body);
        if fixed.iter().all(|f| *f) {
            // Something must turn.
            let turning = node
                .input_types
                .iter()
                .position(|t| t.0 != DType::Resource)?;
            fixed[turning] = false;
        }
        // What the loop starts with, and what each iteration has.
        let mut values = Vec::new();
        for (i, input) in node.inputs.iter().enumerate() {
            let mut attrs = Attrs::default();
            attrs.set("T", node.input_types[i].0);
            attrs.set("frame_name", scope.clone());
            attrs.set("is_constant", fixed[i]);
            attrs.set("parallel_iterations", parallel);
            let waits = node.control_inputs.clone();
            let enter = format!("{scope}enter_{i}");
            let enter = self.add(&enter, "Enter", attrs, vec![*input], waits, id)?;
            values.push(match fixed[i] {
                true => edge(enter, 0),
                false => {
                    // Its second input comes when the body is there.
                    let twice = vec![edge(enter, 0); 2];
                    let dtype = node.input_types[i].0;
                    edge(
                        self.merge(&format!("{scope}merge_{i}"), twice, dtype, id)?,
                        0,
                    )
                }
            });
        }
        let first = fixed.iter().position(|f| !f)?;
        self.serial += 2;
        let prefix = |word: &str, n: u64| format!("{}/{word}/_{n}/", node.name);
        let site = Site {
            prefix: prefix("cond", self.serial - 1),
            function: cond_function,
            caller: id,
            pivot: Some(values[first].node),
        };
        let decided = self.inline(&cond, &site, &values)?;
        let decided = self.add(
            &format!("{scope}loop_cond"),
            "LoopCond",
            Attrs::default(),
            vec![*decided.rets.first()?],
            decided.control_rets,
            id,
        )?;
        let decided = edge(decided, 0);
        let mut switches = Vec::new();
        for (i, value) in values.iter().enumerate() {
            switches.push(match fixed[i] {
                true => None,
                false => {
                    let name = format!("{scope}switch_{i}");
                    Some(self.plain_switch(&name, *value, decided, vec![], id)?)
                }
            });
        }
        let pivot = edge(switches[first]?, 1);
        let pivot = self.identity(&format!("{scope}body_pivot"), pivot, vec![], id)?;
        let mut args = Vec::new();
        for (i, value) in values.iter().enumerate() {
            args.push(match switches[i] {
                Some(switch) => edge(switch, 1),
                // What is the same in every iteration is there in the last one too, in which the
                // body does not run.
                None => {
                    let name = format!("{scope}fixed_{i}");
                    edge(self.identity(&name, *value, vec![pivot], id)?, 0)
                }
            });
        }
        let site = Site {
            prefix: prefix("body", self.serial),
            function: body_function,
            caller: id,
            pivot: Some(pivot),
        };
        let turned = self.inline(&body, &site, &args)?;
        let mut results = Vec::new();
        for (i, input) in node.inputs.iter().enumerate() {
            let Some(switch) = switches[i] else {
                results.push(*input);
                continue;
            };
            let mut attrs = Attrs::default();
            attrs.set("T", node.input_types[i].0);
            let name = format!("{scope}next_{i}");
            let waits = turned.control_rets.clone();
            let next = vec![turned.rets[i]];
            let next = self.add(&name, "NextIteration", attrs.clone(), next, waits, id)?;
            let merge = Arc::make_mut(&mut self.nodes[values[i].node.index()]);
            merge.inputs[1] = edge(next, 0);
            let exit = vec![edge(switch, 0)];
            let exit = self.add(&format!("{scope}exit_{i}"), "Exit", attrs, exit, vec![], id)?;
            results.push(edge(exit, 0));
        }
        let ends = results.iter().enumerate().filter(|(i, _)| !fixed[*i]);
        let ends = ends.map(|(_, e)| e.node).collect();
        self.replace(id, node, results, ends)
    }

    fn inline_call(&mut self, id: NodeId, node: &Arc<Node>) -> Option<()> {
        let function = node.attrs.func("f").ok()?;
        let body = self.body(id, node, function, 0)?;
        if !effects_are_awaited(&body) {
            return None;
        }
        let scope = self.scope(node);
        let start = format!("{scope}start");
        let waits = node.control_inputs.clone();
        let start = self.add(&start, "NoOp", Attrs::default(), vec![], waits, id)?;
        let mut args = Vec::new();
        for (i, input) in node.inputs.iter().enumerate() {
            let name = format!("{scope}input_{i}");
            args.push(edge(self.identity(&name, *input, vec![start], id)?, 0));
        }
        let site = Site {
            prefix: format!("{}/", node.name),
            function,
            caller: id,
            pivot: Some(start),
        };
        let inlined = self.inline(&body, &site, &args)?;
        self.replace(id, node, inlined.rets, inlined.control_rets)
    }

    /// The body of a function that takes the node's inputs from `first` on and gives its outputs.
    fn body(
        &self,
        id: NodeId,
        node: &Node,
        function: &FunctionRef,
        first: usize,
    ) -> Option<FunctionBody> {
        let outputs: Vec<DType> = node.output_types.iter().map(|t| t.0).collect();
        self.body_of(id, node, function, first, &outputs)
    }

    fn body_of(
        &self,
        id: NodeId,
        node: &Node,
        function: &FunctionRef,
        first: usize,
        outputs: &[DType],
    ) -> Option<FunctionBody> {
        let mut within = self.inside[id.index()];
        while let Some(origin) = within {
            if self.inlined[origin].function == function.name {
                return None;
            }
            within = self.inlined[origin].parent;
        }
        let library = self.graph.library();
        let definition = library.find(&function.name)?;
        if matches!(definition.attrs.bool("_noinline"), Ok(true)) && first == 0 {
            return None;
        }
        if self.nodes.len() + definition.nodes.len() >= self.limit {
            return None;
        }
        let body = library.instantiate(&function.name, &function.attrs).ok()?;
        let inputs = node.input_types.get(first..)?.iter().map(|t| t.0);
        let fits = inputs.eq(body.arg_types.iter().copied()) && body.ret_types == outputs;
        (fits && self.nodes.len() + body.graph.len() < self.limit).then_some(body)
    }

    /// Copies a body into the graph.
    fn inline(&mut self, body: &FunctionBody, site: &Site<'_>, args: &[Edge]) -> Option<Inlined> {
        self.inlined.push(Origin {
            function: site.function.name.clone(),
            parent: self.inside[site.caller.index()],
        });
        let origin = self.inlined.len() - 1;
        let caller_device = self.nodes[site.caller.index()].device.clone();
        let graph = &body.graph;
        let mut args = args.to_vec();
        for (id, node) in graph.nodes().filter(|(_, n)| n.op_name() == "_Arg") {
            // Who waits for an argument waits for its value, not for whoever steers it.
            if graph.nodes().any(|(_, n)| n.control_inputs.contains(&id)) {
                let i = node.attrs.size("index").ok()?;
                let name = format!("{}{}", site.prefix, node.name);
                let value = self.identity(&name, *args.get(i)?, vec![], site.caller)?;
                args[i] = edge(value, 0);
            }
        }
        // Ids first, as loops inside the body run backwards.
        let mut next = self.nodes.len() as u32;
        let mut place: Vec<Option<NodeId>> = Vec::with_capacity(graph.len());
        for (_, node) in graph.nodes() {
            place.push(match node.op_name() {
                "_Arg" | "_Retval" => None,
                _ => {
                    next += 1;
                    Some(NodeId(next - 1))
                }
            });
        }
        let find = |e: &Edge| -> Option<Edge> {
            match place[e.node.index()] {
                Some(id) => Some(edge(id, e.output)),
                None => {
                    let arg = graph.node(e.node).attrs.size("index").ok()?;
                    args.get(arg).copied()
                }
            }
        };
        let mut rets = vec![None; body.ret_types.len()];
        for (_, node) in graph.nodes() {
            if node.op_name() == "_Retval" {
                let i = node.attrs.size("index").ok()?;
                *rets.get_mut(i)? = find(node.inputs.first()?);
                continue;
            }
            if node.op_name() == "_Arg" {
                continue;
            }
            let mut copy = Node::clone(node);
            copy.inputs = node.inputs.iter().map(find).collect::<Option<_>>()?;
            let waits = node.control_inputs.iter().map(|c| {
                let source = edge(*c, 0);
                place[c.index()].or_else(|| find(&source).map(|e| e.node))
            });
            copy.control_inputs = waits.collect::<Option<_>>()?;
            if copy.inputs.is_empty() && copy.control_inputs.is_empty() {
                copy.control_inputs.extend(site.pivot);
            }
            self.settle(&mut copy, site, graph, &caller_device);
            self.push(copy, Some(origin));
        }
        Some(Inlined {
            rets: rets.into_iter().collect::<Option<_>>()?,
            control_rets: body
                .control_rets
                .iter()
                .filter_map(|name| place[graph.find(name)?.index()])
                .collect(),
        })
    }

    /// Gives a copy of a body's node its name, device and neighbours in the graph.
    fn settle(&mut self, copy: &mut Node, site: &Site<'_>, body: &Graph, device: &Arc<str>) {
        let prefix = &site.prefix;
        if copy.attrs.find("_original_name").is_none() {
            let original = copy.name.to_string();
            copy.attrs.set("_original_name", original);
        }
        copy.name = format!("{prefix}{}", copy.name).into();
        if let Ok(frame) = copy.attrs.str("frame_name").map(str::to_owned)
            && matches!(copy.op_name(), "Enter" | "RefEnter")
        {
            copy.attrs.set("frame_name", format!("{prefix}{frame}"));
        }
        if let Ok(classes) = copy.attrs.byte_strings("_class").map(<[_]>::to_vec) {
            let moved = classes.iter().filter_map(|class| {
                let text = String::from_utf8_lossy(class);
                let Some(target) = text.strip_prefix("loc:@") else {
                    return Some(class.clone());
                };
                if body
                    .find(target)
                    .is_some_and(|id| body.node(id).op_name() != "_Arg")
                {
                    return Some(format!("loc:@{prefix}{target}").into());
                }
                self.graph.find(target).map(|_| class.clone())
            });
            let moved = downpour_graph::AttrList::Str(moved.collect());
            copy.attrs.set("_class", AttrValue::List(moved));
        }
        copy.device = combined(device, &copy.device);
    }

    /// Puts a node with the same name and outputs in place of a lowered one. Whoever uses an
    /// output gets it from where it is made; fetches and later nodes find the name.
    fn replace(
        &mut self,
        id: NodeId,
        node: &Arc<Node>,
        results: Vec<Edge>,
        ends: Vec<NodeId>,
    ) -> Option<()> {
        for (i, result) in results.iter().enumerate() {
            self.moved.insert(edge(id, i as u32), *result);
        }
        let types: Vec<DType> = node.output_types.iter().map(|t| t.0).collect();
        let mut attrs = Attrs::default();
        let op = match types.is_empty() {
            true => "NoOp",
            false => {
                attrs.set("T", types.clone());
                "IdentityN"
            }
        };
        let mut ends = ends;
        ends.sort();
        ends.dedup();
        self.nodes[id.index()] = Arc::new(Node {
            name: node.name.clone(),
            op: find_op(op)?,
            inputs: results,
            control_inputs: ends,
            device: node.device.clone(),
            attrs,
            input_types: types.iter().map(|t| (*t, false)).collect(),
            output_types: types.iter().map(|t| (*t, false)).collect(),
        });
        Some(())
    }

    /// Gives users of lowered nodes' outputs the values themselves.
    fn reconnect(&mut self, base: usize) {
        let moved = &self.moved;
        let target = |mut e: Edge| {
            while let Some(next) = moved.get(&e) {
                e = *next;
            }
            e
        };
        for node in &mut self.nodes[base..] {
            if node.inputs.iter().any(|e| moved.contains_key(e)) {
                for e in &mut Arc::make_mut(node).inputs {
                    *e = target(*e);
                }
            }
        }
    }

    /// The start of names for what a node is lowered to.
    fn scope(&mut self, node: &Node) -> String {
        self.serial += 1;
        format!("{}/_{}/", node.name, self.serial)
    }

    fn type_of(&self, e: Edge) -> DType {
        self.nodes[e.node.index()].output_types[e.output as usize].0
    }

    /// A switch that waits for what the lowered node waited for.
    fn switch(&mut self, name: &str, data: Edge, pred: Edge, id: NodeId) -> Option<NodeId> {
        let waits = self.nodes[id.index()].control_inputs.clone();
        self.plain_switch(name, data, pred, waits, id)
    }

    fn plain_switch(
        &mut self,
        name: &str,
        data: Edge,
        pred: Edge,
        waits: Vec<NodeId>,
        id: NodeId,
    ) -> Option<NodeId> {
        let mut attrs = Attrs::default();
        attrs.set("T", self.type_of(data));
        self.add(name, "Switch", attrs, vec![data, pred], waits, id)
    }

    fn merge(&mut self, name: &str, parts: Vec<Edge>, dtype: DType, id: NodeId) -> Option<NodeId> {
        let mut attrs = Attrs::default();
        attrs.set("T", dtype);
        attrs.set("N", parts.len() as i64);
        self.add(name, "Merge", attrs, parts, vec![], id)
    }

    fn identity(
        &mut self,
        name: &str,
        from: Edge,
        waits: Vec<NodeId>,
        id: NodeId,
    ) -> Option<NodeId> {
        let mut attrs = Attrs::default();
        attrs.set("T", self.type_of(from));
        self.add(name, "Identity", attrs, vec![from], waits, id)
    }

    /// Whether `index` is `k`.
    fn test(&mut self, name: &str, index: Edge, k: i32, id: NodeId) -> Option<Edge> {
        let mut attrs = Attrs::default();
        attrs.set("dtype", DType::Int32);
        attrs.set("value", Tensor::scalar(k));
        let k = self.add(&format!("{name}/k"), "Const", attrs, vec![], vec![], id)?;
        let mut attrs = Attrs::default();
        attrs.set("T", DType::Int32);
        let inputs = vec![index, edge(k, 0)];
        Some(edge(self.add(name, "Equal", attrs, inputs, vec![], id)?, 0))
    }

    /// Adds a node on the device, and from the body, of the node that is lowered.
    fn add(
        &mut self,
        name: &str,
        op: &str,
        mut attrs: Attrs,
        inputs: Vec<Edge>,
        control_inputs: Vec<NodeId>,
        like: NodeId,
    ) -> Option<NodeId> {
        let op = find_op(op)?;
        for declared in &op.attrs {
            if let (None, Some(default)) = (attrs.find(&declared.name), &declared.default) {
                attrs.set(declared.name.clone(), default.clone());
            }
        }
        let node = Node {
            name: name.into(),
            inputs,
            control_inputs,
            device: self.nodes[like.index()].device.clone(),
            input_types: op.input_types(&attrs).ok()?,
            output_types: op.output_types(&attrs).ok()?,
            op,
            attrs,
        };
        Some(self.push(node, self.inside[like.index()]))
    }

    fn push(&mut self, mut node: Node, origin: Option<usize>) -> NodeId {
        while !self.names.insert(node.name.clone()) {
            node.name = format!("{}_", node.name).into();
        }
        self.nodes.push(Arc::new(node));
        self.inside.push(origin);
        NodeId(self.nodes.len() as u32 - 1)
    }
}

/// Which arguments a loop's body hands back as they are.
fn passed_through(body: &FunctionBody) -> Vec<bool> {
    let mut fixed = vec![false; body.arg_types.len()];
    for (_, ret) in body.graph.nodes() {
        if ret.op_name() != "_Retval" {
            continue;
        }
        let source = ret.inputs.first().map(|e| body.graph.node(e.node));
        let index = |n: &Node| n.attrs.size("index").ok();
        if let Some(source) = source
            && source.op_name() == "_Arg"
            && let (Some(from), Some(to)) = (index(source), index(ret))
            && from == to
            && let Some(slot) = fixed.get_mut(to)
        {
            *slot = true;
        }
    }
    fixed
}

/// Whether all side effects of a body happen before one of its results or control results.
fn effects_are_awaited(body: &FunctionBody) -> bool {
    let graph = &body.graph;
    let mut seen = vec![false; graph.len()];
    let mut stack: Vec<NodeId> = graph
        .nodes()
        .filter(|(_, n)| n.op_name() == "_Retval")
        .map(|(id, _)| id)
        .collect();
    stack.extend(body.control_rets.iter().filter_map(|n| graph.find(n)));
    while let Some(id) = stack.pop() {
        if !std::mem::replace(&mut seen[id.index()], true) {
            let node = graph.node(id);
            stack.extend(node.inputs.iter().map(|e| e.node));
            stack.extend(node.control_inputs.iter().copied());
        }
    }
    graph
        .nodes()
        .all(|(id, n)| seen[id.index()] || !n.op.stateful)
}

/// A body node's device at its place: what the caller says of job, replica and task goes before.
fn combined(caller: &Arc<str>, own: &Arc<str>) -> Arc<str> {
    if own.is_empty() || caller.is_empty() {
        return if own.is_empty() { caller } else { own }.clone();
    }
    let (Ok(outer), Ok(inner)) = (DeviceName::parse(caller), DeviceName::parse(own)) else {
        return own.clone();
    };
    let merged = DeviceName {
        job: outer.job.or(inner.job),
        replica: outer.replica.or(inner.replica),
        task: outer.task.or(inner.task),
        ..inner
    };
    merged.to_string().into()
}

#[cfg(test)]
mod tests;
