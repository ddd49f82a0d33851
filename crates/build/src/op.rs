//! How any operation is made: its inputs in the order of the signature, attributes where they do
//! not follow from the inputs.

use crate::graph::INVALID;
use crate::{Graph, Operation, Output};
use downpour_graph::{
    ArgKind, AttrList, AttrValue, Attrs, DeviceName, ElementType, NodeDef, NodeId, OpDef, Result,
    Status, find_op,
};
use downpour_tensor::DType;
use std::panic::Location;

/// One operation about to be made. The types and counts of its inputs set the attributes that
/// follow from them.
///
/// ```
/// use downpour_build::Graph;
/// let g = Graph::new();
/// let a = g.constant(vec![1.0f32, 2.0]);
/// let both = g.op("Pack").inputs(&[a.clone(), a]).attr("axis", 0i64).output();
/// assert_eq!(both.shape().to_string(), "[2,2]");
/// ```
#[must_use = "an operation is made by `build`, `output` or `outputs`"]
pub struct OpBuilder {
    graph: Graph,
    op: String,
    name: Option<String>,
    args: Vec<Arg>,
    attrs: Attrs,
    device: Option<DeviceName>,
    controls: Vec<NodeId>,
    at: &'static Location<'static>,
    broken: Option<Status>,
}

enum Arg {
    One(Output),
    Many(Vec<Output>),
}

impl Graph {
    /// Begins an operation of type `op`.
    #[track_caller]
    pub fn op(&self, op: &str) -> OpBuilder {
        OpBuilder {
            graph: self.innermost(),
            op: op.to_owned(),
            name: None,
            args: Vec::new(),
            attrs: Attrs::default(),
            device: None,
            controls: Vec::new(),
            at: Location::caller(),
            broken: None,
        }
    }
}

impl OpBuilder {
    /// Its name; the op's type if not given. A name that is taken gets a number.
    pub fn name(mut self, name: impl Into<String>) -> OpBuilder {
        self.name = Some(name.into());
        self
    }

    /// Carries the name of the current scope itself, as the operation that stands for all that
    /// the scope holds.
    pub fn name_of_scope(mut self) -> OpBuilder {
        self.name = Some(String::new());
        self
    }

    /// The next argument, one tensor.
    pub fn input(mut self, input: &Output) -> OpBuilder {
        self.args.push(Arg::One(input.clone()));
        self
    }

    /// The next argument, a list of tensors.
    pub fn inputs(mut self, inputs: &[Output]) -> OpBuilder {
        self.args.push(Arg::Many(inputs.to_vec()));
        self
    }

    /// An attribute.
    pub fn attr(mut self, name: &str, value: impl Into<AttrValue>) -> OpBuilder {
        self.attrs.set(name, value);
        self
    }

    /// Attributes of another operation, by name.
    pub(crate) fn attrs_of(mut self, other: &Operation, names: &[&str]) -> OpBuilder {
        let attrs = other.attrs();
        for name in names {
            if let Some(value) = attrs.find(name) {
                self.attrs.set(*name, value.clone());
            }
        }
        self
    }

    /// The device, whatever the scopes say; parts left open come from them.
    pub fn device(mut self, device: &str) -> OpBuilder {
        match DeviceName::parse(device) {
            Ok(device) => self.device = Some(device),
            Err(e) => self.broken = Some(Status::invalid_argument(e.to_string())),
        }
        self
    }

    /// Waits for another operation.
    #[track_caller]
    pub fn control(mut self, operation: &Operation) -> OpBuilder {
        self.controls.extend(self.graph.waitable(operation));
        self
    }

    /// Makes the operation.
    pub fn build(mut self) -> Operation {
        self.move_inside();
        let (graph, at) = (self.graph.clone(), self.at);
        let node = self.add().unwrap_or_else(|e| {
            graph.fail(e, at);
            INVALID.node
        });
        Operation::new(graph, node)
    }

    /// Makes the operation; its first output.
    pub fn output(self) -> Output {
        self.build().output(0)
    }

    /// Makes the operation; all its outputs.
    pub fn outputs(self) -> Vec<Output> {
        self.build().outputs()
    }

    /// Inside a function's body, what comes from outside is captured.
    fn move_inside(&mut self) {
        let (graph, at) = (&self.graph, self.at);
        for arg in &mut self.args {
            match arg {
                Arg::One(output) => *output = output.inside(graph, at),
                Arg::Many(outputs) => {
                    for output in outputs {
                        *output = output.inside(graph, at);
                    }
                }
            }
        }
    }

    fn add(mut self) -> Result<NodeId> {
        let invalid = self.args.iter().any(|arg| match arg {
            Arg::One(output) => output.is_invalid(),
            Arg::Many(outputs) => outputs.iter().any(Output::is_invalid),
        });
        if invalid || self.graph.check().is_err() {
            return Ok(INVALID.node);
        }
        if let Some(broken) = self.broken {
            return Err(broken);
        }
        self.graph.check_unfinished()?;
        let signature = match find_op(&self.op) {
            Some(op) => op,
            None => self
                .graph
                .function_signature(&self.op)
                .ok_or_else(|| Status::not_found(format!("There is no op type '{}'", self.op)))?,
        };
        infer_attrs(&signature, &self.args, &mut self.attrs)?;
        let mut inputs = Vec::new();
        for arg in &self.args {
            match arg {
                Arg::One(output) => inputs.push(output.name()),
                Arg::Many(outputs) => inputs.extend(outputs.iter().map(Output::name)),
            }
        }
        let name = self.name.unwrap_or_else(|| self.op.clone());
        let def = NodeDef {
            name,
            op: self.op,
            inputs,
            device: String::new(),
            attrs: self.attrs,
        };
        let mut inner = self.graph.inner.lock();
        inner.add(def, self.device, &self.controls)
    }
}

/// Sets the attributes that follow from the inputs.
fn infer_attrs(op: &OpDef, args: &[Arg], attrs: &mut Attrs) -> Result<()> {
    if op.inputs.len() != args.len() {
        let names: Vec<&str> = op.inputs.iter().map(|a| a.name.as_str()).collect();
        return Err(Status::invalid_argument(format!(
            "{} takes {} arguments ({}), but {} were given",
            op.name,
            op.inputs.len(),
            names.join(", "),
            args.len()
        )));
    }
    for (declared, arg) in op.inputs.iter().zip(args) {
        let wrong = |what: &str| {
            Status::invalid_argument(format!("{}: '{}' {what}", op.name, declared.name))
        };
        match (&declared.kind, arg) {
            (ArgKind::Single(t), Arg::One(output)) => {
                set_type(attrs, t, &declared.name, op, output.dtype())?;
            }
            (ArgKind::Repeated(number, t), Arg::Many(outputs)) => {
                set_default(attrs, number, AttrValue::Int(outputs.len() as i64));
                for output in outputs {
                    set_type(attrs, t, &declared.name, op, output.dtype())?;
                }
            }
            (ArgKind::List(list), Arg::Many(outputs)) => {
                let types = outputs.iter().map(Output::dtype).collect();
                set_default(attrs, list, AttrValue::List(AttrList::Type(types)));
            }
            (ArgKind::Single(_), Arg::Many(_)) => return Err(wrong("is one tensor, not a list")),
            (_, Arg::One(_)) => return Err(wrong("is a list of tensors")),
        }
    }
    Ok(())
}

fn set_default(attrs: &mut Attrs, name: &str, value: AttrValue) {
    if attrs.find(name).is_none() {
        attrs.set(name, value);
    }
}

fn set_type(
    attrs: &mut Attrs,
    wanted: &ElementType,
    arg: &str,
    op: &OpDef,
    given: DType,
) -> Result<()> {
    let expected = match wanted {
        ElementType::Fixed(t) => *t,
        ElementType::Attr(name) => match attrs.find(name) {
            Some(AttrValue::Type(t)) => *t,
            _ => {
                attrs.set(name.as_str(), given);
                given
            }
        },
    };
    if expected != given {
        return Err(Status::invalid_argument(format!(
            "{}: '{arg}' is {}, but must be {}",
            op.name,
            given.name(),
            expected.name()
        )));
    }
    Ok(())
}
