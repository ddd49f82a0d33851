//! Functions: the library of a graph, and how a definition becomes a checked graph.
//!
//! A body names its inputs by argument (`x`, `xs:1`) or by a node's output argument
//! (`split:output:1`); instantiating resolves these, puts the call's attributes in place of
//! placeholders, and gives the result to the same checks as any other graph. A body that calls
//! functions, itself included, is not looked into further: every call is instantiated for itself,
//! when it is first made.

use crate::graph::{Resolver, complete_attrs};
use crate::{
    ArgDef, AttrList, AttrValue, Attrs, FunctionDef, Graph, GraphDef, Node, NodeDef, NodeId, OpDef,
    Result, Status, attr_text,
};
use downpour_tensor::DType;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// The function library of a graph.
#[derive(Clone, Debug, Default)]
pub struct Functions {
    pub(crate) definitions: HashMap<String, Arc<FunctionDef>>,
    pub(crate) gradients: HashMap<String, String>,
}

/// An instantiated function: its arguments are `_Arg` nodes, its results `_Retval` nodes.
#[derive(Clone, Debug)]
pub struct FunctionBody {
    /// The body, without nodes that neither a result nor a side effect needs.
    pub graph: Graph,
    /// Types of the arguments.
    pub arg_types: Vec<DType>,
    /// Types of the results.
    pub ret_types: Vec<DType>,
    /// Nodes (by name) that the function's control results name: a caller waits for them.
    pub control_rets: Vec<Arc<str>>,
}

impl Functions {
    /// The definition of `name`.
    pub fn find(&self, name: &str) -> Option<&Arc<FunctionDef>> {
        self.definitions.get(name)
    }

    /// The function registered as the gradient of `name`.
    pub fn gradient_of(&self, name: &str) -> Option<&str> {
        self.gradients.get(name).map(String::as_str)
    }

    /// Takes over what `other` has and this library has not.
    pub fn merge(&mut self, other: &Functions) {
        for (name, definition) in &other.definitions {
            if !self.definitions.contains_key(name) {
                self.definitions.insert(name.clone(), definition.clone());
            }
        }
        for (name, gradient) in &other.gradients {
            if !self.gradients.contains_key(name) {
                self.gradients.insert(name.clone(), gradient.clone());
            }
        }
    }

    /// Whether everything in `other` is here as well.
    pub fn covers(&self, other: &Functions) -> bool {
        let known = |name: &String| self.definitions.contains_key(name);
        other.definitions.keys().all(known)
            && (other.gradients.keys()).all(|name| self.gradients.contains_key(name))
    }

    /// `name` and every function that its body reaches, by name.
    pub fn reachable(&self, name: &str) -> BTreeMap<String, Arc<FunctionDef>> {
        let mut found = BTreeMap::new();
        let mut left = vec![name.to_owned()];
        while let Some(name) = left.pop() {
            let Some(definition) = self.definitions.get(&name) else {
                continue;
            };
            if found.insert(name.clone(), definition.clone()).is_some() {
                continue;
            }
            left.extend(self.gradients.get(&name).cloned());
            for node in &definition.nodes {
                left.push(node.op.clone());
                named_in(&node.attrs, &mut left);
            }
        }
        found
    }

    /// Instantiates `name` with the attributes of a call.
    pub fn instantiate(self: &Arc<Self>, name: &str, attrs: &Attrs) -> Result<FunctionBody> {
        if name == crate::gradient::GRADIENT {
            return self.instantiate_gradient(attrs.func("f")?);
        }
        let definition = self.find(name).ok_or_else(|| not_defined(name))?;
        instantiate_definition(self, definition, attrs)
    }
}

pub(crate) fn instantiate_definition(
    library: &Arc<Functions>,
    definition: &FunctionDef,
    attrs: &Attrs,
) -> Result<FunctionBody> {
    Instantiation::new(library, definition, attrs)?.build()
}

/// TensorFlow's error for a function that nobody defined.
pub(crate) fn not_defined(name: &str) -> Status {
    let shown: String = name.chars().take(200).collect();
    Status::not_found(format!("Function {shown} is not defined."))
}

/// What a name stands for in a body: some outputs of one node, or some arguments.
#[derive(Clone)]
enum Source {
    /// Consecutive `_Arg` nodes, by their position among all arguments.
    Args(Range<usize>),
    /// Consecutive outputs of a body's node.
    Outputs(usize, Range<usize>),
}

struct BodyNode<'a> {
    def: &'a NodeDef,
    op: Arc<OpDef>,
    attrs: Attrs,
    output_types: Vec<DType>,
}

struct Instantiation<'a> {
    library: &'a Arc<Functions>,
    definition: &'a FunctionDef,
    attrs: &'a Attrs,
    args: HashMap<&'a str, Range<usize>>,
    arg_names: Vec<String>,
    arg_types: Vec<DType>,
    nodes: Vec<BodyNode<'a>>,
    by_name: HashMap<&'a str, usize>,
}

impl<'a> Instantiation<'a> {
    fn new(
        library: &'a Arc<Functions>,
        definition: &'a FunctionDef,
        attrs: &'a Attrs,
    ) -> Result<Instantiation<'a>> {
        check_call_attrs(&definition.signature, attrs)?;
        let mut made = Instantiation {
            library,
            definition,
            attrs,
            args: HashMap::new(),
            arg_names: Vec::new(),
            arg_types: Vec::new(),
            nodes: Vec::with_capacity(definition.nodes.len()),
            by_name: HashMap::new(),
        };
        for arg in &definition.signature.inputs {
            made.add_arg(arg)
                .map_err(|e| append(e, &format!("In {}", arg_text(arg))))?;
        }
        let mut resolver = Resolver::default();
        for (i, def) in definition.nodes.iter().enumerate() {
            made.add_node(i, def, &mut resolver)?;
        }
        Ok(made)
    }

    fn add_arg(&mut self, arg: &'a ArgDef) -> Result<()> {
        let types = types_of(arg, self.attrs)?;
        if types.is_empty() {
            return Err(Status::internal("Expected a list of at least one dtype"));
        }
        let start = self.arg_types.len();
        let range = start..start + types.len();
        if self.args.insert(&arg.name, range).is_some() {
            return Err(Status::invalid_argument(format!(
                "Duplicated arg name: {}",
                arg.name
            )));
        }
        for i in 0..types.len() {
            self.arg_names.push(match types.len() {
                1 => arg.name.clone(),
                _ => format!("{}_{i}", arg.name),
            });
        }
        self.arg_types.extend(types);
        Ok(())
    }

    fn add_node(&mut self, i: usize, def: &'a NodeDef, resolver: &mut Resolver) -> Result<()> {
        let mut bound = NodeDef {
            name: def.name.clone(),
            op: def.op.clone(),
            ..Default::default()
        };
        for (name, value) in &def.attrs.0 {
            let value = self.substitute(value)?;
            bound.attrs.set(name.clone(), value);
        }
        let op = resolver.signature(def, self.library)?;
        let at_node = |e: Status| append(e, &format!("In {{{{node {}}}}}", def.name));
        let attrs = complete_attrs(&bound, &op).map_err(at_node)?;
        let types = op.output_types(&attrs).map_err(at_node)?;
        if self.args.contains_key(&*def.name) || self.by_name.insert(&def.name, i).is_some() {
            return Err(at_node(Status::invalid_argument(format!(
                "Duplicated ret name: {}",
                def.name
            ))));
        }
        self.nodes.push(BodyNode {
            def,
            op,
            attrs,
            output_types: types.into_iter().map(|t| t.0).collect(),
        });
        Ok(())
    }

    /// A value of the body with the call's attributes in place of placeholders.
    fn substitute(&self, value: &AttrValue) -> Result<AttrValue> {
        let function = |f: &crate::FunctionRef| -> Result<crate::FunctionRef> {
            let mut attrs = Attrs::default();
            for (name, value) in &f.attrs.0 {
                attrs.set(name.clone(), self.substitute(value)?);
            }
            Ok(crate::FunctionRef {
                name: f.name.clone(),
                attrs,
            })
        };
        Ok(match value {
            AttrValue::Placeholder(name) => match self.attrs.find(name) {
                Some(value) => value.clone(),
                None => {
                    return Err(Status::invalid_argument(format!(
                        "Failed to bind all placeholders in {}",
                        attr_text(value)
                    )));
                }
            },
            AttrValue::Func(f) => AttrValue::Func(function(f)?),
            AttrValue::List(AttrList::Func(list)) => AttrValue::List(AttrList::Func(
                list.iter().map(function).collect::<Result<_>>()?,
            )),
            other => other.clone(),
        })
    }

    fn build(self) -> Result<FunctionBody> {
        let mut nodes = Vec::with_capacity(self.arg_types.len() + self.nodes.len());
        for (i, (name, dtype)) in self.arg_names.iter().zip(&self.arg_types).enumerate() {
            let mut def = end_node(name, "_Arg", *dtype, i);
            if let Some(attrs) = self.definition.arg_attrs.get(&(i as u32)) {
                let hints = attrs.0.iter().filter(|(name, _)| name.starts_with('_'));
                for (name, value) in hints {
                    def.attrs.set(name.clone(), value.clone());
                }
            }
            nodes.push(def);
        }
        for node in &self.nodes {
            let inputs = self
                .inputs(node)
                .map_err(|e| append(e, &format!("In {{{{node {}}}}}", node.def.name)))?;
            nodes.push(NodeDef {
                name: node.def.name.clone(),
                op: node.def.op.clone(),
                inputs,
                device: node.def.device.clone(),
                attrs: node.attrs.clone(),
            });
        }
        let mut ret_types = Vec::new();
        for ret in &self.definition.signature.outputs {
            self.add_ret(ret, &mut nodes, &mut ret_types)
                .map_err(|e| append(e, &format!("In function output {}", arg_text(ret))))?;
        }
        let control_rets = self.control_rets()?;
        let def = GraphDef {
            nodes,
            ..Default::default()
        };
        let graph = Graph::with_functions(def, self.library.clone())?;
        Ok(FunctionBody {
            graph: prune(&graph, &control_rets),
            arg_types: self.arg_types,
            ret_types,
            control_rets,
        })
    }

    /// A node's inputs in the syntax of a graph.
    fn inputs(&self, node: &BodyNode<'_>) -> Result<Vec<String>> {
        let mut out = Vec::with_capacity(node.def.inputs.len());
        let mut given = node.def.inputs.iter().enumerate().peekable();
        for arg in &node.op.inputs {
            let wanted = types_of(arg, &node.attrs)?;
            let mut at = 0;
            while at < wanted.len() {
                let Some((_, text)) = given.next() else {
                    return Err(Status::invalid_argument(format!(
                        "Attempt to access beyond input size: {} >= {}",
                        node.def.inputs.len(),
                        node.def.inputs.len()
                    )));
                };
                let source = self.find(text).ok_or_else(|| {
                    Status::invalid_argument(format!(
                        "input {text} is not found: {{{{node {}}}}}",
                        node.def.name
                    ))
                })?;
                let types = self.types(&source);
                if types.len() > wanted.len() - at {
                    return Err(Status::invalid_argument(format!(
                        "Input {text} too long for {}",
                        arg.name
                    )));
                }
                for (k, given) in types.iter().enumerate() {
                    if *given != wanted[at] {
                        return Err(Status::invalid_argument(format!(
                            "input {}[{at}] expected type {} != {given}, the type of {text}[{k}]",
                            arg.name, wanted[at]
                        )));
                    }
                    at += 1;
                }
                self.write_names(&source, &mut out);
            }
        }
        for (i, text) in given {
            let Some(name) = text.strip_prefix('^') else {
                return Err(Status::invalid_argument(format!(
                    "Expected input[{i}] == '{text}' to be a control input."
                )));
            };
            let target = match (self.args.get(name), self.by_name.get(name)) {
                (Some(range), _) => &self.arg_names[range.start],
                (None, Some(_)) => name,
                (None, None) => {
                    return Err(Status::invalid_argument(format!(
                        "input[{i}] == '{text}', is not found."
                    )));
                }
            };
            out.push(format!("^{target}"));
        }
        Ok(out)
    }

    /// What `argument`, `argument:1`, `node:output` or `node:output:1` stands for.
    fn find(&self, text: &str) -> Option<Source> {
        let mut parts = text.split(':');
        let name = parts.next()?;
        let single = |range: Range<usize>, index: &str| {
            let i = range.start.checked_add(index.parse().ok()?)?;
            range.contains(&i).then_some(i..i + 1)
        };
        if let Some(range) = self.args.get(name) {
            let range = match parts.next() {
                None => range.clone(),
                Some(index) => single(range.clone(), index)?,
            };
            return parts.next().is_none().then_some(Source::Args(range));
        }
        let at = *self.by_name.get(name)?;
        let node = &self.nodes[at];
        let Some(output) = parts.next() else {
            // Only a node without outputs goes by its bare name.
            return node
                .output_types
                .is_empty()
                .then_some(Source::Outputs(at, 0..0));
        };
        let ranges = node.op.output_ranges(&node.attrs).ok()?;
        let (_, range) = ranges.into_iter().find(|(name, _)| *name == output)?;
        let range = match parts.next() {
            None => range,
            Some(index) => single(range, index)?,
        };
        parts.next().is_none().then_some(Source::Outputs(at, range))
    }

    fn types(&self, source: &Source) -> &[DType] {
        match source {
            Source::Args(range) => &self.arg_types[range.clone()],
            Source::Outputs(node, range) => &self.nodes[*node].output_types[range.clone()],
        }
    }

    fn write_names(&self, source: &Source, out: &mut Vec<String>) {
        match source {
            Source::Args(range) => out.extend(self.arg_names[range.clone()].iter().cloned()),
            Source::Outputs(node, range) => {
                let name = &self.nodes[*node].def.name;
                out.extend(range.clone().map(|i| format!("{name}:{i}")));
            }
        }
    }

    fn add_ret(
        &self,
        ret: &ArgDef,
        nodes: &mut Vec<NodeDef>,
        ret_types: &mut Vec<DType>,
    ) -> Result<()> {
        let text = self
            .definition
            .ret
            .get(&ret.name)
            .ok_or_else(|| Status::invalid_argument(format!("Return {} missing.", ret.name)))?;
        let wanted = types_of(ret, self.attrs)?;
        let source = self.find(text).ok_or_else(|| {
            Status::invalid_argument(format!("Return {} -> {text} is not found.", ret.name))
        })?;
        let given = self.types(&source);
        if wanted != given {
            return Err(Status::invalid_argument(format!(
                "Invalid ret types {} : {} vs. {}",
                ret.name,
                type_list(&wanted),
                type_list(given)
            )));
        }
        let mut names = Vec::new();
        self.write_names(&source, &mut names);
        for (i, (name, dtype)) in names.into_iter().zip(&wanted).enumerate() {
            let own = match wanted.len() {
                1 => format!("{}_RetVal", ret.name),
                _ => format!("{}_RetVal_{i}", ret.name),
            };
            let mut def = end_node(&own, "_Retval", *dtype, ret_types.len());
            def.inputs.push(name);
            nodes.push(def);
            ret_types.push(*dtype);
        }
        Ok(())
    }

    fn control_rets(&self) -> Result<Vec<Arc<str>>> {
        self.definition
            .control_ret
            .iter()
            .map(|(name, node)| match self.by_name.get(&**node) {
                Some(_) => Ok(Arc::from(node.as_str())),
                None => Err(Status::invalid_argument(format!(
                    "Control return {name} -> {node} is not found."
                ))),
            })
            .collect()
    }
}

/// Every attribute the signature declares must be given, and be of its kind.
fn check_call_attrs(signature: &OpDef, attrs: &Attrs) -> Result<()> {
    for declared in &signature.attrs {
        let Some(value) = attrs.find(&declared.name) else {
            return Err(Status::not_found(format!(
                "Attr {} is not found from Op<name={}>",
                declared.name, signature.name
            )));
        };
        let kind = crate::print::attr_kind(value);
        if kind != declared.kind && !(kind == "list(any)" && declared.kind.starts_with("list(")) {
            return Err(Status::invalid_argument(format!(
                "AttrValue had value with type '{kind}' when '{}' expected\n\tfor attr '{}'",
                declared.kind, declared.name
            )));
        }
    }
    Ok(())
}

fn types_of(arg: &ArgDef, attrs: &Attrs) -> Result<Vec<DType>> {
    let mut types = Vec::new();
    arg.append_types(attrs, &mut types)?;
    Ok(types.into_iter().map(|t| t.0).collect())
}

fn type_list(types: &[DType]) -> String {
    let names: Vec<&str> = types.iter().map(|t| t.name()).collect();
    names.join(", ")
}

/// An argument as TensorFlow writes it in errors.
fn arg_text(arg: &ArgDef) -> String {
    use crate::{ArgKind, ElementType};
    let element = |t: &ElementType| match t {
        ElementType::Fixed(t) => t.name().to_owned(),
        ElementType::Attr(name) => name.clone(),
    };
    let kind = match &arg.kind {
        ArgKind::Single(t) => element(t),
        ArgKind::Repeated(number, t) => format!("{number}*{}", element(t)),
        ArgKind::List(_) => String::new(),
    };
    format!("{}:{kind}", arg.name)
}

pub(crate) fn end_node(name: &str, op: &str, dtype: DType, index: usize) -> NodeDef {
    let mut def = NodeDef {
        name: name.to_owned(),
        op: op.to_owned(),
        ..Default::default()
    };
    def.attrs.set("T", dtype);
    def.attrs.set("index", index as i64);
    def
}

pub(crate) fn append(e: Status, text: &str) -> Status {
    Status {
        message: format!("{}\n\t{text}", e.message),
        ..e
    }
}

/// Leaves out nodes that neither a result, nor a control result, nor an op with a side effect
/// needs. Arguments stay only where they are used.
pub(crate) fn prune(graph: &Graph, control_rets: &[Arc<str>]) -> Graph {
    let wanted: HashSet<&str> = control_rets.iter().map(|n| &**n).collect();
    let is_seed = |node: &Node| {
        (node.op.stateful && node.op_name() != "_Arg")
            || wanted.contains(&*node.name)
            || matches!(
                node.op_name(),
                "Switch"
                    | "RefSwitch"
                    | "Merge"
                    | "RefMerge"
                    | "Enter"
                    | "RefEnter"
                    | "Exit"
                    | "RefExit"
                    | "NextIteration"
                    | "RefNextIteration"
            )
    };
    let mut keep = vec![false; graph.len()];
    let mut stack: Vec<NodeId> = graph
        .nodes()
        .filter(|(_, n)| is_seed(n))
        .map(|(id, _)| id)
        .collect();
    while let Some(id) = stack.pop() {
        if std::mem::replace(&mut keep[id.index()], true) {
            continue;
        }
        let node = graph.node(id);
        stack.extend(node.inputs.iter().map(|e| e.node));
        stack.extend(node.control_inputs.iter().copied());
    }
    graph.subgraph(&keep)
}
/// The functions that attributes name.
fn named_in(attrs: &Attrs, out: &mut Vec<String>) {
    let mut one = |function: &crate::FunctionRef| {
        out.push(function.name.clone());
        named_in(&function.attrs, out);
    };
    for (_, value) in attrs.0.iter() {
        match value {
            AttrValue::Func(function) => one(function),
            AttrValue::List(AttrList::Func(functions)) => functions.iter().for_each(&mut one),
            _ => {}
        }
    }
}
